// Normalisation of rows ([rows, len], contiguous). f16 and bf16 are computed in f32; P is the
// parameters' type; `out` may be x.
#include "far_from_mean.h"
#include "prelude.h"
#include "rows.h"
#include "widen.h"

// Declares blocks of at most 256 threads. To NVIDIA's compiler, which would use more registers, it also
// declares how many are resident. On an H200, layer norm of [65536, 4096] bf16 takes 343 us with 40
// registers, and 441 us with 64.
#if COMPILER_AMD
#define WAVES(blocks) __launch_bounds__(256) ALL_WAVES(true)
#else
#define WAVES(blocks) __launch_bounds__(256, blocks)
#endif
template <class T> constexpr u32 RESIDENT = sizeof(T) == 2 ? 6 : 4;

// The sums over a row of d = x - first and of d^2. `first` is the row's first element, which is
// usually near the mean: then a large mean costs no precision, and one reduction gives both sums.
// If it turns out to be far from the mean, a second pass uses the mean as `first`.
template <class C> struct Shifted {
    C sum, squares;
    DEVICE Shifted operator+(Shifted other) const { return Shifted{sum + other.sum, squares + other.squares}; }
    DEVICE void take(C d) { sum += d, squares += d * d; }
};

// `off` is the mean minus the first element, `rstd` is 1 / sqrt(variance + epsilon). If OF_WARP, the
// threads of a warp share the row, else those of the block.
template <class C> struct Scale {
    C off, rstd;
};
template <bool OF_WARP, class V> DEVICE V sum_over(V mine) {
    if constexpr (OF_WARP) return warp_reduce(mine, Plus());
    else return block_reduce(mine, Plus());
}
template <bool CENTRED, bool OF_WARP = false, class C> DEVICE Scale<C> scale_of(Shifted<C> mine, u64 len, C epsilon) {
    C off = (C)0, squares;
    if constexpr (CENTRED) {
        Shifted<C> all = sum_over<OF_WARP>(mine);
        off = all.sum / (C)len, squares = all.squares - all.sum * off;
    } else {
        squares = sum_over<OF_WARP>(mine.squares);
    }
    if (squares < (C)0) squares = (C)0; // negative by rounding; NaN stays NaN
    return Scale<C>{off, (C)1 / math::sqrt(squares / (C)len + epsilon)};
}

// to[i] = f(i, (from[i] - mean) / sqrt(variance + epsilon), more[i]...) for each element of a row.
// Unless CENTRED, the mean is taken as 0 and the variance as the mean of squares. KEPT: a row that
// fits stays in registers and is read once. TWICE: the mean and the variance of such a row come
// from one reduction each, which takes fewer registers.
template <bool CENTRED, bool KEPT, bool TWICE = false, class T, class C, class F, class... More>
DEVICE void normalise(u64 len, const T *from, C epsilon, T *to, F f, const More *...more) {
    if constexpr (ONE_THREAD) {
        C mean = CENTRED ? block_reduce_range(len, (C)0, [=](u64 i) { return load(from[i]); }, Plus()) / (C)len : (C)0;
        auto square = [=](u64 i) {
            C d = load(from[i]) - mean;
            return d * d;
        };
        C scale = (C)1 / math::sqrt(block_reduce_range(len, (C)0, square, Plus()) / (C)len + epsilon);
        for_each_in_block(
            len, [=](u64 i) { to[i] = store<T>::from(f(i, ((C)load(from[i]) - mean) * scale, (C)load(more[i])...)); });
    } else if (KEPT && KeptRow<T>::fits(len, from)) {
        KeptRow<T> row;
        if constexpr (TWICE) {
            C sum = (C)0, squares = (C)0;
            row.read(len, from, (C)0, [](C x) { return x; });
            row.for_each_kept([&](C &x, bool) { sum += x; });
            C mean = block_reduce(sum, Plus()) / (C)len;
            row.for_each_kept([&](C &x, bool inside) {
                x = inside ? x - mean : (C)0;
                squares += x * x;
            });
            C scale = (C)1 / math::sqrt(block_reduce(squares, Plus()) / (C)len + epsilon);
            return row.write(to, [&](u64 i, C x, auto... m) { return f((u32)i, x * scale, m...); }, more...);
        }
        Shifted<C> mine{(C)0, (C)0};
        C first = CENTRED ? (C)load(from[0]) : (C)0;
        // Elements are stored as read, so that no load waits for the first element. Places past the
        // row's ends also hold the first element, which adds nothing to the sums.
        row.read(len, from, first, [](C x) { return x; });
        row.for_each_kept([&](C &x, bool) { mine.take(x - first); });
        Scale<C> of = scale_of<CENTRED>(mine, len, epsilon);
        C mean = first + of.off;
        if (CENTRED && far_from_mean(of.off, of.rstd)) { // the same for the whole block
            mine = Shifted<C>{(C)0, (C)0};
            row.for_each_kept([&](C &x, bool inside) { mine.take(inside ? x - mean : (C)0); });
            of = scale_of<CENTRED>(mine, len, epsilon);
            mean += of.off;
        }
        row.write(to, [&](u64 i, C x, auto... m) { return f((u32)i, (x - mean) * of.rstd, m...); }, more...);
    } else {
        C mean = CENTRED ? (C)load(from[0]) : (C)0, scale;
        for (bool again = false;; again = true) {
            Shifted<C> mine{(C)0, (C)0};
            C first = mean;
            for_each_of_row(Team{recompute_from(threadIdx.x), blockDim.x}, len,
                            [&](u64, T x) { mine.take((C)load(x) - first); }, from);
            Scale<C> of = scale_of<CENTRED>(mine, len, epsilon);
            mean = first + of.off, scale = of.rstd;
            if (!CENTRED || again || !far_from_mean(of.off, of.rstd)) break;
        }
        if constexpr (KEPT) {
            map_row(len, to, [=](u64 i, C x, auto... m) { return f(i, (x - mean) * scale, m...); }, from, more...);
        } else { // one element at a time takes fewer registers
            for_each_in_block(len, [=](u64 i) {
                to[i] = store<T>::from(f(i, ((C)load(from[i]) - mean) * scale, (C)load(more[i])...));
            });
        }
    }
}

// to = (from - mean) / sqrt(variance + epsilon) * gamma + beta for one row. gamma has len elements;
// beta too, or it is null.
template <bool KEPT, class T, class P>
DEVICE void layer_norm_row(u64 len, const T *from, const P *gamma, const P *beta, f64 epsilon, T *to) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) { // separate loops, so that they vectorise
        if (beta == nullptr)
            return normalise<true, KEPT>(len, from, (C)epsilon, to, [](auto, C x, C g) { return x * g; }, gamma);
    }
    // If there is no beta, gamma is read in its place: two copies of this code would need the
    // registers of both.
    bool shift = beta != nullptr;
    normalise<true, KEPT>(len, from, (C)epsilon, to, [=](auto, C x, C g, C b) { return x * g + (shift ? b : (C)0); },
                          gamma, shift ? beta : gamma);
}

// A kernel's parameters, reloaded for each row. If kept across rows, they and what is computed from
// them take too many registers.
template <class T, class P> struct LayerNorm {
    u64 rows, len;
    const T *x;
    const P *gamma, *beta;
    f64 epsilon;
    T *out;
};
template <class T, class P> struct GroupNorm {
    u64 rows, len, groups, spatial;
    const T *x;
    const P *gamma, *beta;
    f64 epsilon;
    T *out;
};

template <class T, class P>
__global__ WAVES(RESIDENT<T>) void layer_norm_rows(u64 rows, u64 len, const T *x, const P *gamma, const P *beta,
                                                   f64 epsilon, T *out) {
    LayerNorm<T, P> given{rows, len, x, gamma, beta, epsilon, out};
    for_each_row(rows, [=](u64 row) {
        const LayerNorm<T, P> p = reload_parameters(given);
        layer_norm_row<true>(p.len, p.x + row * p.len, p.gamma, p.beta, p.epsilon, p.out + row * p.len);
    });
}

struct Either {
    DEVICE u32 operator()(u32 a, u32 b) const { return a | b; }
};

// Recomputes the rows whose variance MIOpen got wrong. MIOpen computes mean(x^2) - mean(x)^2, as if
// from differences to 0. `mean` and `rstd` are what MIOpen wrote for each row. A block first checks
// all its rows together, which costs one read if none is wrong. Rows are not kept in registers:
// with the check that would take more registers than all waves leave, and repeated reads hit the
// cache.
template <class T, class F> DEVICE void repair(u64 rows, const T *mean, const T *rstd, F normalise_row) {
    auto lost = [=](u64 row) { return far_from_mean(load(mean[row]), load(rstd[row])); };
    u64 own = rows > blockIdx.x ? (rows - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    u32 any = 0;
    for (u64 k = threadIdx.x; k < own; k += blockDim.x) any |= (u32)lost(blockIdx.x + k * gridDim.x);
    if (!block_reduce(any, Either())) return;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        if (lost(row)) normalise_row(row);
    }
}

template <class T>
__global__ WAVES(4) void layer_norm_repair(u64 rows, u64 len, const T *x, const T *gamma, const T *beta, const T *mean,
                                           const T *rstd, f64 epsilon, T *out) {
    repair(rows, mean, rstd,
           [=](u64 row) { layer_norm_row<false>(len, x + row * len, gamma, beta, epsilon, out + row * len); });
}

// The same for groups of channels: x is [rows / groups, groups, channels, spatial] and len =
// channels * spatial. gamma and beta have one value for each channel of all groups, or both are
// null.
template <bool KEPT, class T, class P>
DEVICE void group_norm_row(u64 row, u64 len, u64 groups, u64 spatial, const T *x, const P *gamma, const P *beta,
                           f64 epsilon, T *out) {
    using C = compute_t<T>;
    u64 first = row % groups * divided_in_f64(len, spatial);
    const P *gamma_of = gamma + first, *beta_of = beta + first;
    bool narrow = len >> 29 == 0;
    normalise<true, KEPT, true>(len, x + row * len, (C)epsilon, out + row * len, [=](auto i, C n) {
        if (gamma == nullptr) return n;
        if (sizeof(i) == 4 || narrow) {
            u32 channel = (u32)i / (u32)spatial;
            return n * (C)load(vector_at<1>(gamma_of, channel).lane[0]) +
                   (C)load(vector_at<1>(beta_of, channel).lane[0]);
        }
        u64 channel = divided_in_f64(i, spatial);
        return n * (C)load(gamma_of[channel]) + (C)load(beta_of[channel]);
    });
}

template <class T, class P>
__global__ WAVES(4) void group_norm_rows(u64 rows, u64 len, u64 groups, u64 spatial, const T *x, const P *gamma,
                                         const P *beta, f64 epsilon, T *out) {
    GroupNorm<T, P> given{rows, len, groups, spatial, x, gamma, beta, epsilon, out};
    for_each_row(rows, [=](u64 row) {
        const GroupNorm<T, P> p = reload_parameters(given);
        group_norm_row<true>(row, p.len, p.groups, p.spatial, p.x, p.gamma, p.beta, p.epsilon, p.out);
    });
}

template <class T> struct GroupNormRepair {
    u64 rows, len, groups, spatial;
    const T *x, *gamma, *beta, *mean, *rstd;
    f64 epsilon;
    T *out;
};
template <class T>
__global__ void group_norm_repair(u64 rows, u64 len, u64 groups, u64 spatial, const T *x, const T *gamma, const T *beta,
                                  const T *mean, const T *rstd, f64 epsilon, T *out) {
    GroupNormRepair<T> given{rows, len, groups, spatial, x, gamma, beta, mean, rstd, epsilon, out};
    repair(rows, mean, rstd, [=](u64 row) {
        const GroupNormRepair<T> p = reload_parameters(given);
        group_norm_row<false>(row, p.len, p.groups, p.spatial, p.x, p.gamma, p.beta, p.epsilon, p.out);
    });
}

// out = x / sqrt(mean of x^2 + epsilon) * gamma over each row.
template <class T, class P>
__global__ WAVES(RESIDENT<T>) void rms_norm_rows(u64 rows, u64 len, const T *x, const P *gamma, f64 epsilon, T *out) {
    using C = compute_t<T>;
    for_each_row(rows, [=](u64 row) {
        normalise<false, true>(len, x + row * len, (C)epsilon, out + row * len, [](auto, C x, C g) { return x * g; },
                               gamma);
    });
}

// ---------------------------------------------------------------- a warp for a row

// 16 bytes of a row that is read once. On NVIDIA they take no room in L1, which gamma and beta
// need.
template <class T> DEVICE Vector<T, LANES<T>> piece_once(const T *from) {
#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 700
    Vector<u32, 4> words;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.lane[0]), "=r"(words.lane[1]), "=r"(words.lane[2]), "=r"(words.lane[3])
                 : "l"(from)
                 : "memory");
    return bit_cast<Vector<T, LANES<T>>>(words);
#else
    return piece_of(from, 0);
#endif
}

// For f16 and bf16 rows of at most PIECES pieces of 16 bytes for each lane. All tensors are aligned
// to 16 bytes, and so is the length of a row. The row stays in registers as it is stored. There is
// no barrier, and a lane has so many elements that the reduction of a row's sums costs little. On
// an H200, a prototype took 273 us for layer norm of [65536, 4096] bf16, where the kernel with a
// block for a row took 376 us. beta may be null.
template <bool CENTRED, u32 PIECES, class T, class P>
DEVICE void rows_by_warps(u64 rows, u64 length, const T *x, const P *gamma, const P *beta, f64 epsilon, T *out) {
    using C = compute_t<T>;
    constexpr u32 WIDTH = LANES<T>;
    using Words = Neighbours<u32, sizeof(P) * WIDTH / 4>; // without beta, whole registers of 0
    u32 len = (u32)length, lane = threadIdx.x % (u32)warpSize, warps = blockDim.x / (u32)warpSize;
    auto for_each_piece = [=](auto f) {
        UNROLLED
        for (u32 p = 0; p < PIECES; ++p) {
            u32 first = (p * (u32)warpSize + lane) * WIDTH;
            if (first < len) f(p, first);
        }
    };
    u64 first_row = (u64)blockIdx.x * warps + warp_uniform(threadIdx.x / (u32)warpSize);
    for (u64 row = first_row; row < rows; row += (u64)gridDim.x * warps) {
        const T *from = x + row * len;
        T *to = out + row * len;
        Vector<T, WIDTH> kept[PIECES];
        for_each_piece([&](u32 p, u32 first) { kept[p] = piece_once(from + first); });
        C mean = CENTRED ? (C)load(from[0]) : (C)0;
        auto scale_from = [&]() {
            Shifted<C> mine[2] = {}; // two chains of sums
            for_each_piece([&](u32 p, u32) {
                C v[WIDTH];
                widen(recompute_after(mine[1].squares, kept[p]), v);
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) mine[j % 2].take(v[j] - mean);
            });
            return scale_of<CENTRED, true>(mine[0] + mine[1], length, (C)epsilon);
        };
        Scale<C> of = scale_from();
        mean += of.off;
        if (CENTRED && far_from_mean(of.off, of.rstd)) { // the same for the whole warp
            of = scale_from();
            mean += of.off;
        }
        for_each_piece([&](u32 p, u32 first) {
            Neighbours<P, WIDTH> own = lanes_of<WIDTH>(gamma, first);
            Words more = {};
            if (beta != nullptr) more = reinterpret_cast<const Words &>(lanes_of<WIDTH>(beta, first));
            C v[WIDTH], scale[WIDTH], shift[WIDTH];
            widen(recompute_from(kept[p]), v);
            widen(own.lane, scale);
            widen(bit_cast<Neighbours<P, WIDTH>>(more).lane, shift);
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) v[j] = (v[j] - mean) * of.rstd * scale[j] + shift[j];
            write_piece(narrow<T>(v), to + first);
        });
    }
}

// Blocks have at most 128 threads, so that NVIDIA's compiler may use more than 64 registers.
template <class T, class P, i32 PIECES>
__global__ __launch_bounds__(128) void layer_norm_warps(u64 rows, u64 len, const T *x, const P *gamma, const P *beta,
                                                        f64 epsilon, T *out) {
    rows_by_warps<true, (u32)PIECES>(rows, len, x, gamma, beta, epsilon, out);
}
template <class T, class P, i32 PIECES>
__global__ __launch_bounds__(128) void rms_norm_warps(u64 rows, u64 len, const T *x, const P *gamma, f64 epsilon,
                                                      T *out) {
    rows_by_warps<false, (u32)PIECES>(rows, len, x, gamma, (const P *)nullptr, epsilon, out);
}
