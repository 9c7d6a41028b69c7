// Gradients of normalised rows ([rows, len], contiguous) from the rows and the output's gradient; f16 and bf16 compute in f32.
//
// With n = (x - mean) * rstd, or x * rstd where rows are not CENTRED, and h = dy * gamma:
//   dx = rstd * (h - mean(h) - n * mean(h * n)), without mean(h) where they are not
//   dgamma = the sum over rows of dy * n, dbeta = the sum over rows of dy
// Statistics are computed again from x, which is read anyway: the same in every dtype, whoever did the forward pass. Each block sums its
// own rows' parts of dgamma and dbeta, and sum_partials joins the blocks': the same bits on every run of one grid.
#include "prelude.h"
#include "rows.h"

struct Plus {
    template <class C> DEVICE C operator()(C a, C b) const { return a + b; }
};

template <class C> struct Pair {
    C a, b;
    DEVICE Pair operator+(Pair other) const { return Pair{a + other.a, b + other.b}; }
};

// gamma of element i: one an element, or one for `spatial` of them; 1 where there is none. `piece` is gamma of WIDTH neighbours.
template <class T> struct PerElement {
    const T *gamma;
    DEVICE bool aligned() const { return past_boundary(gamma) == 0; }
    DEVICE PerElement of_row(u64) const { return *this; }
    DEVICE compute_t<T> operator()(u64 i) const { return load(gamma[i]); }
    template <u32 WIDTH, class I> DEVICE Vector<T, WIDTH> piece(I first) const { return vector_at<WIDTH>(gamma, first); }
};
template <class T> struct PerChannel {
    const T *gamma;
    u64 groups, channels, spatial; // channels of a group
    DEVICE PerChannel of_row(u64 row) const {
        return PerChannel{gamma == nullptr ? nullptr : gamma + row % groups * channels, groups, channels, spatial};
    }
    DEVICE compute_t<T> operator()(u64 i) const { return gamma == nullptr ? (compute_t<T>)1 : load(gamma[i / spatial]); }
    DEVICE bool aligned() const { return true; }
    template <u32 WIDTH, class I> DEVICE Vector<T, WIDTH> piece(I first) const {
        Vector<T, WIDTH> out;
        T value = store<T>::from((compute_t<T>)1);
        I size = (I)spatial, channel = first / size, rest = first - channel * size;
        if (gamma != nullptr) value = gamma[channel];
        for (u32 j = 0; j < WIDTH; ++j) {
            out.lane[j] = value;
            if (++rest == size && j + 1 < WIDTH) {
                rest = 0, ++channel;
                if (gamma != nullptr) value = gamma[channel];
            }
        }
        return out;
    }
};

// The sums over a block of what each warp has of two, in every thread; in the warps' order.
template <class C> DEVICE void join_warps(Pair<C> &x, Pair<C> &y) {
    SHARED(Pair<C>, partial, 64); // a block has at most 1024 threads, a warp at least 32
    u32 warps = (blockDim.x + (u32)warpSize - 1) / (u32)warpSize;
    if (warps == 1) return;
    sync_threads(); // the last row's may still be read
    if (threadIdx.x % (u32)warpSize == 0) {
        partial[threadIdx.x / (u32)warpSize * 2] = x;
        partial[threadIdx.x / (u32)warpSize * 2 + 1] = y;
    }
    sync_threads();
    x = partial[0], y = partial[1];
#if !COMPILER_HOST
#pragma unroll 1
#endif
    for (u32 w = 1; w < warps; ++w) x = x + partial[2 * w], y = y + partial[2 * w + 1];
}

// Where a block keeps its sums of dgamma and dbeta, `len` each, and a row's mean and rstd; null where nobody asks.
template <class C> struct Sums {
    C *dgamma, *dbeta;
};
template <class C> struct Statistics {
    C *mean, *rstd;
};

// Pieces of 16 bytes that a thread keeps of a row: 32 bytes of compute types, so that two rows' pieces and both sums are some 32 registers.
template <class T> constexpr u32 KEPT = 32 / (LANES<T> * sizeof(compute_t<T>));

// Rows by WIDTH neighbouring elements a thread, all of them aligned to as many; I counts a row's bytes. KEEP: the block's threads hold x and
// dy of a row, as they are stored, and read them once; each has the same columns of every row, whose sums it holds too. Else a row is
// read three times, from cache where it fits, and the sums lie in memory.
template <bool CENTRED, bool SUMS, bool KEEP, u32 WIDTH, class I, class T, class Gamma>
DEVICE void rows_by(u64 rows, I len, const T *x, const T *dy, Gamma gamma, compute_t<T> epsilon, T *dx, Sums<compute_t<T>> sums,
                    Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    constexpr u32 PIECES = KEEP ? KEPT<T> : 1, HELD = KEEP && SUMS ? PIECES * WIDTH : 1;
    constexpr u32 TOGETHER = SUMS ? 4 : 2; // elements that are unpacked before the next are
    Vector<T, WIDTH> kept[PIECES], kept_grad[PIECES];
    C dgamma[HELD], dbeta[HELD];
    auto for_each_piece = [=](auto f) {
        if constexpr (KEEP) {
#if !COMPILER_HOST
#pragma unroll
#endif
            for (u32 p = 0; p < PIECES; ++p) {
                I first = (p * blockDim.x + anew(threadIdx.x)) * WIDTH;
                if (first < len) f(p, first);
            }
        } else {
#if !COMPILER_HOST
#pragma unroll 1
#endif
            for (I first = threadIdx.x * WIDTH; first < len; first += blockDim.x * WIDTH) f(0u, first);
        }
    };
    if constexpr (SUMS && KEEP) {
        for (u32 k = 0; k < HELD; ++k) dgamma[k] = dbeta[k] = (C)0;
    } else if constexpr (SUMS) {
        for_each_piece([=](u32, I first) {
            for (u32 j = 0; j < WIDTH; ++j) {
                if (sums.dgamma != nullptr) sums.dgamma[first + j] = (C)0;
                if (sums.dbeta != nullptr) sums.dbeta[first + j] = (C)0;
            }
        });
    }
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * len, *grad = dy + row * len;
        T *to = dx + row * len;
        auto scale = gamma.of_row(row);
        // f(p, first, x, dy, gamma) for each piece of the row.
        auto for_each_read = [&](bool again, auto f) {
            for_each_piece([&](u32 p, I first) {
                auto factor = scale.template piece<WIDTH>(first);
                Vector<T, WIDTH> a, b;
                if constexpr (KEEP) {
                    if (again) kept[p] = anew(kept[p]), kept_grad[p] = anew(kept_grad[p]);
                    else kept[p] = vector_at<WIDTH>(from, first), kept_grad[p] = vector_at<WIDTH>(grad, first);
                    a = kept[p], b = kept_grad[p];
                } else {
                    a = vector_at<WIDTH>(from, first), b = vector_at<WIDTH>(grad, first);
                }
                f(p, first, a, b, factor);
            });
        };
        C mean = (C)0, shift = (C)0;
        Pair<C> of_x{(C)0, (C)0}, of_h{(C)0, (C)0};
        if constexpr (CENTRED) {
            // Sums of d, x less the row's first element and so as near to the mean as any, of h and of products: one reduction. Those of x are the warp's
            // before those of h are begun, which leaves them their registers.
            C start = load(from[0]);
            for_each_read(false, [&](u32, I, auto a, auto, auto) {
                for (u32 j = 0; j < WIDTH; ++j) {
                    if (j != 0 && j % TOGETHER == 0) a = anew(a, of_x.b);
                    C d = (C)load(a.lane[j]) - start;
                    of_x = of_x + Pair<C>{d, d * d};
                }
            });
            of_x = warp_reduce(of_x, Plus());
            for_each_read(true, [&](u32, I, auto a, auto b, auto factor) {
                for (u32 j = 0; j < WIDTH; ++j) {
                    if (j != 0 && j % TOGETHER == 0) a = anew(a, of_h.b), b = anew(b), factor = anew(factor);
                    C d = (C)load(a.lane[j]) - start, h = (C)load(b.lane[j]) * (C)load(factor.lane[j]);
                    of_h = of_h + Pair<C>{h, h * d};
                }
            });
            of_h = warp_reduce(of_h, Plus());
            join_warps(of_x, of_h);
            C off = of_x.a / (C)len;
            mean = start + off, shift = of_h.a / (C)len;
            of_x.b -= of_x.a * off, of_h.b -= of_h.a * off;
            if (of_x.b < (C)0) of_x.b = (C)0; // by rounding; NaN stays
        } else {
            Pair<C> both{(C)0, (C)0};
            for_each_read(false, [&](u32, I, auto a, auto b, auto factor) {
                for (u32 j = 0; j < WIDTH; ++j) {
                    if (j != 0 && j % TOGETHER == 0) a = anew(a, both.b), b = anew(b), factor = anew(factor);
                    C v = load(a.lane[j]);
                    both = both + Pair<C>{v * v, (C)load(b.lane[j]) * (C)load(factor.lane[j]) * v};
                }
            });
            both = block_reduce(both, Plus());
            of_x.b = both.a, of_h.b = both.b;
        }
        C rstd = (C)1 / math::sqrt(of_x.b / (C)len + epsilon), slope = rstd * (of_h.b / (C)len);
        for_each_read(true, [&](u32 p, I first, auto a, auto b, auto factor) {
            Vector<T, WIDTH> out;
            C last = (C)0;
            for (u32 j = 0; j < WIDTH; ++j) {
                if (j != 0 && j % TOGETHER == 0) a = anew(a, last), b = anew(b), factor = anew(factor);
                C normal = ((C)load(a.lane[j]) - mean) * rstd, d = (C)load(b.lane[j]);
                if constexpr (SUMS && KEEP) {
                    dgamma[p * WIDTH + j] += d * normal, dbeta[p * WIDTH + j] += d;
                } else if constexpr (SUMS) {
                    if (sums.dgamma != nullptr) sums.dgamma[first + j] += d * normal;
                    if (sums.dbeta != nullptr) sums.dbeta[first + j] += d;
                }
                last = rstd * (d * (C)load(factor.lane[j]) - shift - normal * slope);
                out.lane[j] = store<T>::from(last);
            }
            vector_at<WIDTH>(to, first) = out;
        });
        if (statistics.mean != nullptr && threadIdx.x == 0) statistics.mean[row] = mean, statistics.rstd[row] = rstd;
    }
    if constexpr (SUMS && KEEP) {
        for_each_piece([&](u32 p, I first) {
            for (u32 j = 0; j < WIDTH; ++j) {
                if (sums.dgamma != nullptr) sums.dgamma[first + j] = dgamma[p * WIDTH + j];
                if (sums.dbeta != nullptr) sums.dbeta[first + j] = dbeta[p * WIDTH + j];
            }
        });
    }
}

// Rows by the one thread of a block: a loop for each sum, which vectorises.
template <bool CENTRED, bool SUMS, class T, class Gamma>
DEVICE void rows_alone(u64 rows, u64 len, const T *x, const T *dy, Gamma gamma, compute_t<T> epsilon, T *dx, Sums<compute_t<T>> sums,
                       Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    C *dgamma = sums.dgamma, *dbeta = sums.dbeta;
    if constexpr (SUMS) {
        for_each_in_block(len, [=](u64 i) {
            if (dgamma != nullptr) dgamma[i] = (C)0;
            if (dbeta != nullptr) dbeta[i] = (C)0;
        });
    }
    for_each_row(rows, [=](u64 row) {
        const T *from = x + row * len, *grad = dy + row * len;
        T *to = dx + row * len;
        auto scale = gamma.of_row(row);
        C mean = (C)0, shift = (C)0;
        if constexpr (CENTRED) mean = block_reduce_range(len, (C)0, [=](u64 i) { return load(from[i]); }, Plus()) / (C)len;
        auto square = [=](u64 i) {
            C d = load(from[i]) - mean;
            return d * d;
        };
        C rstd = (C)1 / math::sqrt(block_reduce_range(len, (C)0, square, Plus()) / (C)len + epsilon);
        if constexpr (CENTRED) shift = block_reduce_range(len, (C)0, [=](u64 i) { return load(grad[i]) * scale(i); }, Plus()) / (C)len;
        auto product = [=](u64 i) { return load(grad[i]) * scale(i) * ((load(from[i]) - mean) * rstd); };
        C slope = block_reduce_range(len, (C)0, product, Plus()) / (C)len;
        if constexpr (SUMS) {
            if (dgamma != nullptr) {
                for_each_in_block(len, [=](u64 i) { dgamma[i] += load(grad[i]) * ((load(from[i]) - mean) * rstd); });
            }
            if (dbeta != nullptr) for_each_in_block(len, [=](u64 i) { dbeta[i] += load(grad[i]); });
        }
        for_each_in_block(len, [=](u64 i) {
            C normal = (load(from[i]) - mean) * rstd;
            to[i] = store<T>::from(rstd * (load(grad[i]) * scale(i) - shift - normal * slope));
        });
        if (statistics.mean != nullptr) statistics.mean[row] = mean, statistics.rstd[row] = rstd;
    });
}

template <bool CENTRED, bool SUMS, class T, class Gamma>
DEVICE void rows_gradient(u64 rows, u64 len, const T *x, const T *dy, Gamma gamma, f64 epsilon, T *dx, Sums<compute_t<T>> sums,
                          Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        rows_alone<CENTRED, SUMS>(rows, len, x, dy, gamma, (C)epsilon, dx, sums, statistics);
    } else {
        constexpr u32 WIDTH = LANES<T>;
        bool aligned = past_boundary(x) == 0 && past_boundary(dy) == 0 && past_boundary(dx) == 0 && gamma.aligned() && len % WIDTH == 0;
        if (aligned && len <= (u64)KEPT<T> * WIDTH * blockDim.x) {
            rows_by<CENTRED, SUMS, true, WIDTH, u32>(rows, (u32)len, x, dy, gamma, (C)epsilon, dx, sums, statistics);
        } else if (aligned && len < (1u << 31) / sizeof(C)) {
            rows_by<CENTRED, SUMS, false, WIDTH, u32>(rows, (u32)len, x, dy, gamma, (C)epsilon, dx, sums, statistics);
        } else {
            rows_by<CENTRED, SUMS, false, 1, u64>(rows, len, x, dy, gamma, (C)epsilon, dx, sums, statistics);
        }
    }
}

// This block's rows of partial[outputs, blocks, len].
template <class C> DEVICE Sums<C> partial_of_block(C *partial, u64 len, bool second) {
    if (partial == nullptr) return Sums<C>{nullptr, nullptr};
    return Sums<C>{partial + blockIdx.x * len, second ? partial + ((u64)gridDim.x + blockIdx.x) * len : nullptr};
}

// What fits the registers that all waves leave. On RDNA 1, whose 20 leave 48, bf16 does not, which is rounded by integers.
#if __gfx1010__ || __gfx1011__ || __gfx1012__ || __gfx1013__
template <class T> constexpr bool FITS = is_same<T, f32>::value || is_same<T, f16>::value;
#else
template <class T> constexpr bool FITS = !is_same<T, f64>::value;
#endif

// Blocks may have 1024 threads here, so that long rows are kept: nothing is said of fewer.
// partial[2, gridDim.x, len] gets each block's sums of dgamma and dbeta; null where neither is asked for.
template <class T>
__global__ ALL_WAVES(FITS<T>) void layer_norm_rows_backward(u64 rows, u64 len, const T *x, const T *dy, const T *gamma, f64 epsilon, T *dx, compute_t<T> *partial) {
    using C = compute_t<T>;
    rows_gradient<true, true>(rows, len, x, dy, PerElement<T>{gamma}, epsilon, dx, partial_of_block(partial, len, true),
                              Statistics<C>{nullptr, nullptr});
}

// partial[1, gridDim.x, len]: there is no dbeta.
template <class T>
__global__ ALL_WAVES(true) void rms_norm_rows_backward(u64 rows, u64 len, const T *x, const T *dy, const T *gamma, f64 epsilon, T *dx, compute_t<T> *partial) {
    using C = compute_t<T>;
    rows_gradient<false, true>(rows, len, x, dy, PerElement<T>{gamma}, epsilon, dx, partial_of_block(partial, len, false),
                               Statistics<C>{nullptr, nullptr});
}

// Rows are groups of channels: x is [rows / groups, groups, channels, spatial] and len = channels * spatial; gamma may be null.
// statistics[2, rows] gets mean and rstd, from which channel_sums makes dgamma and dbeta; it may be null.
template <class T>
__global__ ALL_WAVES((!is_same<T, f64>::value)) void group_norm_rows_backward(u64 rows, u64 len, u64 groups, u64 spatial, const T *x, const T *dy, const T *gamma, f64 epsilon, T *dx,
                                         compute_t<T> *statistics) {
    using C = compute_t<T>;
    Statistics<C> to{statistics, statistics == nullptr ? nullptr : statistics + rows};
    rows_gradient<true, false>(rows, len, x, dy, PerChannel<T>{gamma, groups, len / spatial, spatial}, epsilon, dx,
                               Sums<C>{nullptr, nullptr}, to);
}

// out[outer, len] = the sum over `count` of partial[outer, count, len], a block for 32 columns.
template <class T> __global__ void sum_partials(u64 outer, u64 count, u64 len, const compute_t<T> *partial, T *out) {
    using C = compute_t<T>;
    constexpr u32 TILE = 32;
    u64 tiles = (len + TILE - 1) / TILE;
    for_each_row(outer * tiles, [=](u64 index) {
        u64 o = index / tiles, begin = (index - o * tiles) * TILE;
        const C *from = partial + o * count * len + begin;
        T *to = out + o * len + begin;
        u32 width = len - begin < TILE ? (u32)(len - begin) : TILE;
        if constexpr (ONE_THREAD) {
            C sum[TILE];
            for (u32 k = 0; k < width; ++k) sum[k] = (C)0;
            for (u64 r = 0; r < count; ++r) {
                for (u32 k = 0; k < width; ++k) sum[k] += from[r * len + k];
            }
            for (u32 k = 0; k < width; ++k) to[k] = store<T>::from(sum[k]);
        } else {
            SHARED(C, strip_sum, 1024);
            u32 abreast = blockDim.x < TILE ? blockDim.x : TILE, strips = blockDim.x / abreast, strip = threadIdx.x / abreast;
            for (u32 first = 0; first < TILE; first += abreast) {
                u32 k = first + threadIdx.x % abreast;
                C sum = (C)0;
                if (strip < strips && k < width) {
#if !COMPILER_HOST
#pragma unroll 4 // as many loads on their way
#endif
                    for (u64 r = strip; r < count; r += strips) sum += from[r * len + k];
                }
                sync_threads(); // the last tile's sums may still be read
                strip_sum[threadIdx.x] = sum;
                sync_threads();
                if (strip == 0 && k < width) {
                    for (u32 s = 1; s < strips; ++s) sum += strip_sum[s * abreast + threadIdx.x];
                    to[k] = store<T>::from(sum);
                }
            }
        }
    });
}
