// Gradients of normalised rows ([rows, len], contiguous) from the rows and the output's gradient.
// f16 and bf16 are computed in f32; P is gamma's type.
//
// Let n = (x - mean) * rstd, or x * rstd if rows are not CENTRED, and h = dy * gamma. Then
//   dx = rstd * (h - mean(h) - n * mean(h * n)), without mean(h) if they are not CENTRED
//   dgamma = the sum over rows of dy * n, dbeta = the sum over rows of dy
// The statistics are recomputed from x, which is read anyway. So they are the same whichever
// library did the forward pass, in every dtype. Each block sums its own rows' parts of dgamma and
// dbeta, and sum_partials joins the blocks' sums. Every run with the same grid gives the same bits.
#include "norm_gradient.h"
#include "widen.h"

// The pieces of 16 bytes that a thread keeps of a row: 32 bytes of compute types, so that the
// pieces of two rows and both sums take some 32 registers. On NVIDIA twice as many, if elements have
// 16 bits: with 8 elements a thread, the sums over a block would take longer than memory. On an H200,
// layer norm's gradient of [65536, 4096] bf16 takes 429 us with 16 elements, and 483 us with 8.
#if COMPILER_NVIDIA
template <class T> constexpr u32 KEPT = (sizeof(T) == 2 ? 64 : 32) / (LANES<T> * sizeof(compute_t<T>));
// Blocks have at most 512 threads then.
#define MOST_THREADS(T) __launch_bounds__(sizeof(T) == 2 ? 512 : 1024)
#else
template <class T> constexpr u32 KEPT = 32 / (LANES<T> * sizeof(compute_t<T>));
#define MOST_THREADS(T)
#endif

// KEEP: whether a row's x and dy stay in registers until its sums are known. FITS_ALL_WAVES:
// whether a second pass over rows fits the registers that a SIMD with all its waves leaves. On RDNA
// 1, x and dy don't fit beside the column sums if rows are CENTRED or gamma's elements are WIDER;
// then they are read again, from cache.
#if MOST_WAVES == 20
template <bool CENTRED, bool SUMS, bool WIDER> constexpr bool KEEP = !(SUMS && (CENTRED || WIDER));
template <class T, class P> constexpr bool FITS_ALL_WAVES = sizeof(T) == 4;
#elif __gfx1102__
template <bool CENTRED, bool SUMS, bool WIDER> constexpr bool KEEP = true;
template <class T, class P> constexpr bool FITS_ALL_WAVES = sizeof(T) <= 4 && sizeof(P) <= sizeof(T);
#else
template <bool CENTRED, bool SUMS, bool WIDER> constexpr bool KEEP = true;
template <class T, class P> constexpr bool FITS_ALL_WAVES = sizeof(T) <= 4;
#endif

// The number of elements that are unpacked at a time.
template <bool SUMS> constexpr u32 TOGETHER = SUMS ? 4 : 2;

// Whether a block loads a row while it computes the row before. Otherwise it idles while it waits
// for a row's sums. On AMD GPUs other waves fill that time, and the registers for a second row
// would leave fewer waves.
#if COMPILER_AMD
template <class T> constexpr bool AHEAD = false;
#else
template <class T> constexpr bool AHEAD = sizeof(T) == 2;
#endif

// Whether a thread keeps its elements of x and dy, and its gammas, as numbers of the compute type.
// Else it converts them in each pass over a row. For layer norm on NVIDIA, numbers take 127 or 128
// registers, with which as many blocks are resident as with the 99 to 111 that the kernel takes
// otherwise.
template <bool CENTRED, bool SUMS, class T, class Gamma>
constexpr bool AS_NUMBERS = AHEAD<T> && CENTRED && SUMS && Gamma::ALL_ROWS;

// The number of a row's sums that a thread stores at a time: 16 bytes, which the row's alignment
// allows here too. Stores of single elements write a part of each sector, several times each. For
// f32, AMD's compiler would spill registers.
#if COMPILER_AMD
template <class T> constexpr u32 TOGETHER_STORED = sizeof(T) == 2 ? LANES<compute_t<T>> : 1;
#else
template <class T> constexpr u32 TOGETHER_STORED = LANES<compute_t<T>>;
#endif

// Whether dx may be the sum of a row's gradient and `onto`, another gradient of the same x. On some
// architectures the other types have no registers left for it.
template <class T> constexpr bool ONTO = is_same<T, f32>::value;

// For rows whose x and dy fit the registers of the block's threads, as they are stored or as
// numbers, so that both are read once. Each thread has the same columns in every row, and keeps
// their sums too.
template <bool CENTRED, bool SUMS, class T, class Gamma>
DEVICE void rows_kept(u64 rows, u32 len, const T *x, const T *dy, Gamma gamma, compute_t<T> epsilon, T *dx,
                      const T *onto, Sums<compute_t<T>> sums, Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    constexpr u32 WIDTH = LANES<T>, PIECES = KEPT<T>, HELD = SUMS ? PIECES * WIDTH : 1,
                  AT_ONCE = Gamma::template AT_ONCE<WIDTH>;
    constexpr bool NUMBERS = AS_NUMBERS<CENTRED, SUMS, T, Gamma>;
    constexpr u32 STORED = NUMBERS ? 1 : PIECES, COUNT = NUMBERS ? PIECES * WIDTH : 1;
    Vector<T, WIDTH> kept[STORED], kept_grad[STORED];
    C number[COUNT], grad_number[COUNT], gamma_number[COUNT];
    C dgamma[HELD] = {}, dbeta[HELD] = {}, part = (C)1 / (C)len;
    auto for_each_piece = [=](auto f) {
        UNROLLED
        for (u32 p = 0; p < PIECES; ++p) {
            u32 first = (p * blockDim.x + recompute_from(threadIdx.x)) * WIDTH;
            if (first < len) f(p, first);
        }
    };
    constexpr u32 WAITING = AHEAD<T> ? PIECES : 1;
    using Words = Vector<u32, sizeof(T) * WIDTH / 4>;
    Words next[WAITING], next_grad[WAITING];
    T next_start = {};
    auto read_ahead = [&](u64 row) {
        if (row >= rows) return;
        const T *from = x + row * len, *grad = dy + row * len;
        for_each_piece([&](u32 p, u32 first) {
            next[p] = reinterpret_cast<const Words &>(vector_at<WIDTH>(from, first));
            next_grad[p] = reinterpret_cast<const Words &>(vector_at<WIDTH>(grad, first));
        });
        if constexpr (CENTRED) next_start = from[0];
    };
    if constexpr (AHEAD<T>) read_ahead(blockIdx.x);
    if constexpr (NUMBERS) {
        for_each_piece([&](u32 p, u32 first) {
            UNROLLED
            for (u32 j = 0; j < WIDTH; j += AT_ONCE) {
                auto factor = gamma.template piece<AT_ONCE>(first + j);
                C v[AT_ONCE];
                widen(factor.lane, v);
                UNROLLED
                for (u32 k = 0; k < AT_ONCE; ++k) gamma_number[p * WIDTH + j + k] = v[k];
            }
        });
    }
    u32 turn = 0;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x, ++turn) {
        const T *from = x + row * len, *grad = dy + row * len;
        T *to = dx + row * len;
        auto read = [&](u32 p, u32 first) {
            kept[p] = vector_at<WIDTH>(from, first), kept_grad[p] = vector_at<WIDTH>(grad, first);
        };
        // All loads of a row are issued before any result is used.
        C start = (C)0;
        if constexpr (NUMBERS) {
            for_each_piece([&](u32 p, u32) {
                C a[WIDTH], b[WIDTH];
                widen(bit_cast<Vector<T, WIDTH>>(next[p]), a);
                widen(bit_cast<Vector<T, WIDTH>>(next_grad[p]), b);
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) number[p * WIDTH + j] = a[j], grad_number[p * WIDTH + j] = b[j];
            });
            start = load(next_start);
            read_ahead(row + gridDim.x);
        } else if constexpr (AHEAD<T>) {
            UNROLLED
            for (u32 p = 0; p < PIECES; ++p) {
                kept[p] = bit_cast<Vector<T, WIDTH>>(next[p]);
                kept_grad[p] = bit_cast<Vector<T, WIDTH>>(next_grad[p]);
            }
            start = load(next_start);
            read_ahead(row + gridDim.x);
        } else {
            if constexpr (KEEP<CENTRED, SUMS, (AT_ONCE < WIDTH)>) for_each_piece(read);
            if constexpr (CENTRED) start = load(from[0]);
        }
#if COMPILER_NVIDIA // registers can't hold `onto` until the sums are known, so it is prefetched
        if (ONTO<T> && onto != nullptr)
            for_each_piece([&](u32, u32 first) {
                asm volatile("prefetch.global.L2 [%0];" : : "l"(onto + row * len + first));
            });
#endif
        auto scale = gamma.of_row(row);
        Slope<C> slope;
        for (bool last = !CENTRED;; last = true) {
            RowSums<CENTRED, C> of_row;
            of_row.start = start;
            for_each_piece([&](u32 p, u32 first) {
                if constexpr (NUMBERS) {
                    UNROLLED
                    for (u32 i = p * WIDTH; i < (p + 1) * WIDTH; ++i)
                        of_row.add(number[i], grad_number[i] * gamma_number[i]);
                } else {
                    if constexpr (!AHEAD<T> && !KEEP<CENTRED, SUMS, (AT_ONCE < WIDTH)>) read(p, first);
                    auto a = kept[p], b = kept_grad[p];
                    auto factor = scale.template piece<AT_ONCE>(first);
                    for (u32 j = 0; j < WIDTH; ++j) {
                        if (j != 0 && j % TOGETHER<SUMS> == 0)
                            a = recompute_after(of_row.last(), a), b = recompute_from(b),
                            factor = recompute_from(factor);
                        if (j != 0 && j % AT_ONCE == 0)
                            factor = scale.template piece<AT_ONCE>(recompute_after(of_row.last(), first + j));
                        of_row.add(load(a.lane[j]), (C)load(b.lane[j]) * (C)load(factor.lane[j % AT_ONCE]));
                    }
                }
            });
            slope = of_row.over_block(turn, part, epsilon);
            // The same for the whole block.
            if (last || !warp_uniform(far_from_mean(slope.mean - start, slope.rstd))) break;
            ++turn;
// A loop here costs bf16 3 % of its time. AMD's compiler would spill registers for a second pass
// from memory.
#if COMPILER_NVIDIA
            slope = sums_again(turn, slope.mean, len, from, grad, scale, epsilon);
            break;
#else
            start = slope.mean;
#endif
        }
        for_each_piece([&](u32 p, u32 first) {
            if constexpr (NUMBERS) {
                C y[WIDTH];
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) {
                    u32 i = p * WIDTH + j;
                    C normal = slope.normal(number[i]), d = grad_number[i];
                    dgamma[i] += d * normal, dbeta[i] += d;
                    y[j] = slope(normal, d, gamma_number[i]);
                }
                write_piece(narrow<T>(y), to + first);
            } else {
                if constexpr (!AHEAD<T> && !KEEP<CENTRED, SUMS, (AT_ONCE < WIDTH)>) read(p, first);
                auto a = recompute_from(kept[p]), b = recompute_from(kept_grad[p]);
                auto factor = scale.template piece<AT_ONCE>(first);
                Vector<T, WIDTH> out, more = {};
                if (ONTO<T> && onto != nullptr) more = vector_at<WIDTH>(onto + row * len, first);
                C last = (C)0;
                for (u32 j = 0; j < WIDTH; ++j) {
                    if (j != 0 && j % TOGETHER<SUMS> == 0)
                        a = recompute_after(last, a), b = recompute_from(b), factor = recompute_from(factor);
                    if (j != 0 && j % AT_ONCE == 0)
                        factor = scale.template piece<AT_ONCE>(recompute_after(last, first + j));
                    C normal = slope.normal(load(a.lane[j])), d = load(b.lane[j]);
                    if constexpr (SUMS) dgamma[p * WIDTH + j] += d * normal, dbeta[p * WIDTH + j] += d;
                    last = slope(normal, d, load(factor.lane[j % AT_ONCE]));
                    if (ONTO<T> && onto != nullptr) last += load(more.lane[j]);
                    out.lane[j] = store<T>::from(last);
                }
                vector_at<WIDTH>(to, first) = out;
            }
        });
        if (statistics.mean != nullptr && threadIdx.x == 0)
            statistics.mean[row] = slope.mean, statistics.rstd[row] = slope.rstd;
    }
    if constexpr (SUMS) {
        if constexpr (TOGETHER_STORED<T> > 1) {
            constexpr u32 GROUP = TOGETHER_STORED<T>;
            auto write = [=](C *to, u32 first, const C *sum) {
                if (to == nullptr) return;
                UNROLLED
                for (u32 j = 0; j < WIDTH; j += GROUP) {
                    Vector<C, GROUP> together;
                    UNROLLED
                    for (u32 k = 0; k < GROUP; ++k) together.lane[k] = sum[j + k];
                    vector_at<GROUP>(to, first + j) = together;
                }
            };
            for_each_piece([&](u32 p, u32 first) {
                write(sums.dgamma, first, dgamma + p * WIDTH);
                write(sums.dbeta, first, dbeta + p * WIDTH);
            });
        } else {
            for_each_piece([&](u32 p, u32 first) {
                for (u32 j = 0; j < WIDTH; ++j) {
                    if (sums.dgamma != nullptr) sums.dgamma[first + j] = dgamma[p * WIDTH + j];
                    if (sums.dbeta != nullptr) sums.dbeta[first + j] = dbeta[p * WIDTH + j];
                }
            });
        }
    }
}

// For longer rows, and for rows that are not aligned to WIDTH elements. They are read twice, from
// cache if they fit it, and the sums are in memory. I is the type that counts a row's bytes.
template <bool CENTRED, bool SUMS, u32 WIDTH, class I, class T, class Gamma>
DEVICE void rows_by(u64 rows, I len, const T *x, const T *dy, Gamma gamma, compute_t<T> epsilon, T *dx, const T *onto,
                    Sums<compute_t<T>> sums, Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    constexpr u32 AT_ONCE = Gamma::template AT_ONCE<WIDTH>;
    C part = (C)1 / (C)len;
    auto for_each_piece = [=](auto f) {
        ROLLED
        for (I first = threadIdx.x * WIDTH; first < len; first += blockDim.x * WIDTH) f(first);
    };
    if constexpr (SUMS) {
        for_each_piece([=](I first) {
            for (u32 j = 0; j < WIDTH; ++j) {
                if (sums.dgamma != nullptr) sums.dgamma[first + j] = (C)0;
                if (sums.dbeta != nullptr) sums.dbeta[first + j] = (C)0;
            }
        });
    }
    u32 turn = 0;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x, ++turn) {
        const T *from = x + row * len, *grad = dy + row * len;
        T *to = dx + row * len;
        auto scale = gamma.of_row(row);
        RowSums<CENTRED, C> of_row;
        if constexpr (CENTRED) of_row.start = load(from[0]);
        for_each_piece([&](I first) {
            auto a = vector_at<WIDTH>(from, first), b = vector_at<WIDTH>(grad, first);
            auto factor = scale.template piece<AT_ONCE>(first);
            for (u32 j = 0; j < WIDTH; ++j) {
                if (j != 0 && j % TOGETHER<SUMS> == 0)
                    a = recompute_after(of_row.last(), a), b = recompute_from(b), factor = recompute_from(factor);
                if (j != 0 && j % AT_ONCE == 0)
                    factor = scale.template piece<AT_ONCE>(recompute_after(of_row.last(), first + j));
                of_row.add(load(a.lane[j]), (C)load(b.lane[j]) * (C)load(factor.lane[j % AT_ONCE]));
            }
        });
        auto slope = of_row.over_block(turn, part, epsilon);
        // The same for the whole block.
        if (CENTRED && warp_uniform(far_from_mean(slope.mean - of_row.start, slope.rstd))) {
            slope = sums_again(++turn, slope.mean, len, from, grad, scale, epsilon);
        }
        for_each_piece([&](I first) {
            auto a = vector_at<WIDTH>(from, first), b = vector_at<WIDTH>(grad, first);
            auto factor = scale.template piece<AT_ONCE>(first);
            Vector<T, WIDTH> out, more = {};
            if (ONTO<T> && onto != nullptr) more = vector_at<WIDTH>(onto + row * len, first);
            C last = (C)0;
            for (u32 j = 0; j < WIDTH; ++j) {
                if (j != 0 && j % TOGETHER<SUMS> == 0)
                    a = recompute_after(last, a), b = recompute_from(b), factor = recompute_from(factor);
                if (j != 0 && j % AT_ONCE == 0)
                    factor = scale.template piece<AT_ONCE>(recompute_after(last, first + j));
                C normal = slope.normal(load(a.lane[j])), d = load(b.lane[j]);
                if constexpr (SUMS) {
                    if (sums.dgamma != nullptr) sums.dgamma[first + j] += d * normal;
                    if (sums.dbeta != nullptr) sums.dbeta[first + j] += d;
                }
                last = slope(normal, d, load(factor.lane[j % AT_ONCE]));
                if (ONTO<T> && onto != nullptr) last += load(more.lane[j]);
                out.lane[j] = store<T>::from(last);
            }
            vector_at<WIDTH>(to, first) = out;
        });
        if (statistics.mean != nullptr && threadIdx.x == 0)
            statistics.mean[row] = slope.mean, statistics.rstd[row] = slope.rstd;
    }
}

// After this many rows their parts of dgamma and dbeta are added to the total, so that the number
// of terms in a running sum is bounded.
constexpr u32 NEAR = 512;

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
template <class C> DEVICE C *near_sums(u64 count) { return (C *)hip_cpu_scratch(count * sizeof(C)); }
#else
// Never called: only blocks of one thread use it.
template <class C> DEVICE C *near_sums(u64) { return nullptr; }
#endif

// For blocks of one thread. Each sum has a loop of its own, which vectorises.
template <bool CENTRED, bool SUMS, class T, class Gamma>
DEVICE void rows_alone(u64 rows, u64 len, const T *x, const T *dy, Gamma gamma, compute_t<T> epsilon, T *dx,
                       const T *onto, Sums<compute_t<T>> sums, Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    C *dgamma = sums.dgamma, *dbeta = sums.dbeta, *near_gamma = nullptr, *near_beta = nullptr;
    if constexpr (SUMS) {
        if (dgamma != nullptr || dbeta != nullptr) near_gamma = near_sums<C>(2 * len), near_beta = near_gamma + len;
        for_each_in_block(len, [=](u64 i) {
            if (dgamma != nullptr) dgamma[i] = near_gamma[i] = (C)0;
            if (dbeta != nullptr) dbeta[i] = near_beta[i] = (C)0;
        });
    }
    auto join = [=](C *sum, C *near) {
        if (sum == nullptr) return;
        for_each_in_block(len, [=](u64 i) {
            sum[i] += near[i];
            near[i] = (C)0;
        });
    };
    u32 since = 0;
    for_each_row(rows, [=, &since](u64 row) {
        const T *from = x + row * len, *grad = dy + row * len;
        T *to = dx + row * len;
        auto scale = gamma.of_row(row);
        C mean = (C)0, shift = (C)0;
        if constexpr (CENTRED)
            mean = block_reduce_range(len, (C)0, [=](u64 i) { return load(from[i]); }, Plus()) / (C)len;
        auto square = [=](u64 i) {
            C d = load(from[i]) - mean;
            return d * d;
        };
        C rstd = (C)1 / math::sqrt(block_reduce_range(len, (C)0, square, Plus()) / (C)len + epsilon);
        if constexpr (CENTRED)
            shift = block_reduce_range(len, (C)0, [=](u64 i) { return load(grad[i]) * scale(i); }, Plus()) / (C)len;
        auto product = [=](u64 i) { return load(grad[i]) * scale(i) * ((load(from[i]) - mean) * rstd); };
        C slope = block_reduce_range(len, (C)0, product, Plus()) / (C)len;
        if constexpr (SUMS) {
            if (dgamma != nullptr) {
                for_each_in_block(len,
                                  [=](u64 i) { near_gamma[i] += load(grad[i]) * ((load(from[i]) - mean) * rstd); });
            }
            if (dbeta != nullptr) for_each_in_block(len, [=](u64 i) { near_beta[i] += load(grad[i]); });
            if (++since == NEAR) {
                join(dgamma, near_gamma), join(dbeta, near_beta);
                since = 0;
            }
        }
        for_each_in_block(len, [=](u64 i) {
            C normal = (load(from[i]) - mean) * rstd;
            C more = !ONTO<T> || onto == nullptr ? (C)0 : (C)load(onto[row * len + i]);
            to[i] = store<T>::from(rstd * (load(grad[i]) * scale(i) - shift - normal * slope) + more);
        });
        if (statistics.mean != nullptr) statistics.mean[row] = mean, statistics.rstd[row] = rstd;
    });
    if constexpr (SUMS) join(dgamma, near_gamma), join(dbeta, near_beta);
}

template <bool CENTRED, bool SUMS, class T, class Gamma>
DEVICE void rows_gradient(u64 rows, u64 len, const T *x, const T *dy, Gamma gamma, f64 epsilon, T *dx, const T *onto,
                          Sums<compute_t<T>> sums, Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        rows_alone<CENTRED, SUMS>(rows, len, x, dy, gamma, (C)epsilon, dx, onto, sums, statistics);
    } else {
        constexpr u32 WIDTH = LANES<T>;
        bool aligned = past_boundary(x) == 0 && past_boundary(dy) == 0 && past_boundary(dx) == 0 &&
                       (onto == nullptr || past_boundary(onto) == 0) && gamma.aligned() && len % WIDTH == 0;
        if (aligned && len <= (u64)KEPT<T> * WIDTH * blockDim.x) {
            rows_kept<CENTRED, SUMS>(rows, (u32)len, x, dy, gamma, (C)epsilon, dx, onto, sums, statistics);
        } else if (aligned && len < (1u << 31) / sizeof(C)) {
            rows_by<CENTRED, SUMS, WIDTH, u32>(rows, (u32)len, x, dy, gamma, (C)epsilon, dx, onto, sums, statistics);
        } else {
            rows_by<CENTRED, SUMS, 1, u64>(rows, len, x, dy, gamma, (C)epsilon, dx, onto, sums, statistics);
        }
    }
}

// The rows of partial[outputs, blocks, len] that belong to this block.
template <class C> DEVICE Sums<C> partial_of_block(C *partial, u64 len, bool second) {
    if (partial == nullptr) return Sums<C>{nullptr, nullptr};
    return Sums<C>{partial + blockIdx.x * len, second ? partial + ((u64)gridDim.x + blockIdx.x) * len : nullptr};
}

// Blocks may have 1024 threads here (MOST_THREADS), so that long rows can be kept in registers.
// partial[2, gridDim.x, len] gets each block's sums of dgamma and dbeta; it is null if neither is
// asked for.
template <class T, class P>
__global__ MOST_THREADS(T)
    ALL_WAVES((FITS_ALL_WAVES<T, P>)) void layer_norm_rows_backward(u64 rows, u64 len, const T *x, const T *dy,
                                                                    const P *gamma, const T *onto, f64 epsilon, T *dx,
                                                                    compute_t<T> *partial) {
    using C = compute_t<T>;
    rows_gradient<true, true>(rows, len, x, dy, PerElement<P>{gamma}, epsilon, dx, onto,
                              partial_of_block(partial, len, true), Statistics<C>{nullptr, nullptr});
}

// As above with partial[1, gridDim.x, len], since there is no dbeta.
template <class T, class P>
__global__ MOST_THREADS(T)
    ALL_WAVES(true) void rms_norm_rows_backward(u64 rows, u64 len, const T *x, const T *dy, const P *gamma,
                                                const T *onto, f64 epsilon, T *dx, compute_t<T> *partial) {
    using C = compute_t<T>;
    rows_gradient<false, true>(rows, len, x, dy, PerElement<P>{gamma}, epsilon, dx, onto,
                               partial_of_block(partial, len, false), Statistics<C>{nullptr, nullptr});
}

// Rows are groups of channels: x is [rows / groups, groups, channels, spatial] and len = channels *
// spatial; gamma may be null. statistics[2, rows] gets mean and rstd, from which channel_sums
// computes dgamma and dbeta; it may be null.
template <class T, class P>
__global__ MOST_THREADS(T)
    ALL_WAVES((!is_same<T, f64>::value)) void group_norm_rows_backward(u64 rows, u64 len, u64 groups, u64 spatial,
                                                                       const T *x, const T *dy, const P *gamma,
                                                                       f64 epsilon, T *dx, compute_t<T> *statistics) {
    using C = compute_t<T>;
    Statistics<C> to{statistics, statistics == nullptr ? nullptr : statistics + rows};
    rows_gradient<true, false>(rows, len, x, dy, PerChannel<P>{gamma, groups, len / spatial, spatial}, epsilon, dx,
                               (const T *)nullptr, Sums<C>{nullptr, nullptr}, to);
}

// out[outer, len] = the sum over `count` of partial[outer, count, len]. One block takes 16 columns:
// half a cache line, which gives twice as many blocks as a whole line.
template <class T> __global__ void sum_partials(u64 outer, u64 count, u64 len, const compute_t<T> *partial, T *out) {
    using C = compute_t<T>;
    constexpr u32 TILE = 16;
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
            u32 abreast = blockDim.x < TILE ? blockDim.x : TILE, strips = blockDim.x / abreast,
                strip = threadIdx.x / abreast;
            for (u32 first = 0; first < TILE; first += abreast) {
                u32 k = first + threadIdx.x % abreast;
                C sum = (C)0;
                if (strip < strips && k < width) {
                    constexpr u32 IN_FLIGHT = 8; // loads, also of the last rows
                    ROLLED
                    for (u64 r = strip; r < count; r += IN_FLIGHT * strips) {
                        C part[IN_FLIGHT];
                        UNROLLED
                        for (u32 p = 0; p < IN_FLIGHT; ++p) {
                            u64 at = r + p * strips;
                            part[p] = at < count ? from[at * len + k] : (C)0;
                        }
                        UNROLLED
                        for (u32 p = 0; p < IN_FLIGHT; ++p) sum += part[p];
                    }
                }
                sync_threads(); // threads may still read the previous tile's sums
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
