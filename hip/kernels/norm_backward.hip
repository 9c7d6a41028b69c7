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

// gamma of element i: one an element, or one for `spatial` of them; 1 where there is none.
template <class T> struct PerElement {
    const T *gamma;
    DEVICE bool aligned() const { return past_boundary(gamma) == 0; }
    DEVICE PerElement of_row(u64) const { return *this; }
    DEVICE compute_t<T> operator()(u64 i) const { return load(gamma[i]); }
    // gamma of the elements of a piece of 16 bytes.
    DEVICE void piece(u32 first, compute_t<T> (&out)[LANES<T>]) const {
        Vector<T, LANES<T>> v = piece_of(gamma, first);
        for (u32 j = 0; j < LANES<T>; ++j) out[j] = load(v.lane[j]);
    }
};
template <class T> struct PerChannel {
    const T *gamma;
    u64 groups, channels, spatial; // channels of a group
    DEVICE PerChannel of_row(u64 row) const {
        return PerChannel{gamma == nullptr ? nullptr : gamma + row % groups * channels, groups, channels, spatial};
    }
    DEVICE compute_t<T> operator()(u64 i) const {
        if (gamma == nullptr) return (compute_t<T>)1;
        return load(gamma[(i | spatial) >> 32 ? i / spatial : (u64)((u32)i / (u32)spatial)]);
    }
    DEVICE bool aligned() const { return true; }
    DEVICE void piece(u32 first, compute_t<T> (&out)[LANES<T>]) const {
        u32 channel = first / (u32)spatial, rest = first - channel * (u32)spatial;
        for (u32 j = 0; j < LANES<T>; ++j) {
            out[j] = gamma == nullptr ? (compute_t<T>)1 : load(gamma[channel]);
            if (++rest == (u32)spatial) rest = 0, ++channel;
        }
    }
};

// Where a block keeps its sums of dgamma and dbeta, `len` each, and a row's mean and rstd; null where nobody asks.
template <class C> struct Sums {
    C *dgamma, *dbeta;
};
template <class C> struct Statistics {
    C *mean, *rstd;
};

// Pieces of 16 bytes that a thread keeps of a row: 32 bytes of compute types, so that two rows' pieces and both sums are some 32 registers.
template <class T> constexpr u32 KEPT = 32 / (LANES<T> * sizeof(compute_t<T>));

// Rows that begin at 16-byte boundaries and fit the block's registers: x and dy are read once, and each thread has the same columns of
// every row, whose sums it keeps.
template <bool CENTRED, bool SUMS, class T, class Gamma>
DEVICE void kept_rows(u64 rows, u32 len, const T *x, const T *dy, Gamma gamma, compute_t<T> epsilon, T *dx, Sums<compute_t<T>> sums,
                      Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    constexpr u32 WIDTH = LANES<T>, PIECES = KEPT<T>;
    C n[PIECES * WIDTH], g[PIECES * WIDTH], dgamma[SUMS ? PIECES * WIDTH : 1], dbeta[SUMS ? PIECES * WIDTH : 1];
    auto for_each_piece = [=](auto f) {
#if !COMPILER_HOST
#pragma unroll
#endif
        for (u32 p = 0; p < PIECES; ++p) {
            u32 first = (p * blockDim.x + threadIdx.x) * WIDTH;
            if (first < len) f(p * WIDTH, first);
        }
    };
    if constexpr (SUMS) {
        for (u32 k = 0; k < PIECES * WIDTH; ++k) dgamma[k] = dbeta[k] = (C)0;
    }
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * len, *grad = dy + row * len;
        auto scale = gamma.of_row(row);
        // Two sums at a time: x and h, then of the centred row its squares and its product with h.
        Pair<C> of_row{(C)0, (C)0}, centred{(C)0, (C)0};
        for_each_piece([&](u32 at, u32 first) {
            Vector<T, WIDTH> a = piece_of(from, first), b = piece_of(grad, first);
            C factor[WIDTH];
            scale.piece(first, factor);
            for (u32 j = 0; j < WIDTH; ++j) {
                n[at + j] = load(a.lane[j]), g[at + j] = load(b.lane[j]);
                of_row = of_row + Pair<C>{n[at + j], g[at + j] * factor[j]};
            }
        });
        if constexpr (CENTRED) of_row = block_reduce(of_row, Plus());
        C mean = CENTRED ? of_row.a / (C)len : (C)0, shift = CENTRED ? of_row.b / (C)len : (C)0;
        for_each_piece([&](u32 at, u32 first) {
            C factor[WIDTH];
            scale.piece(first, factor);
            for (u32 j = 0; j < WIDTH; ++j) {
                C d = n[at + j] -= mean;
                centred = centred + Pair<C>{d * d, g[at + j] * factor[j] * d};
            }
        });
        centred = block_reduce(centred, Plus());
        C rstd = (C)1 / math::sqrt(centred.a / (C)len + epsilon), slope = rstd * (centred.b / (C)len);
        T *to = dx + row * len;
        for_each_piece([&](u32 at, u32 first) {
            C factor[WIDTH];
            scale.piece(first, factor);
            Vector<T, WIDTH> out;
            for (u32 j = 0; j < WIDTH; ++j) {
                C normal = n[at + j] * rstd, d = g[at + j];
                if constexpr (SUMS) dgamma[at + j] += d * normal, dbeta[at + j] += d;
                out.lane[j] = store<T>::from(rstd * (d * factor[j] - shift - normal * slope));
            }
            *reinterpret_cast<Vector<T, WIDTH> *>(to + first) = out;
        });
        if (statistics.mean != nullptr && threadIdx.x == 0) statistics.mean[row] = mean, statistics.rstd[row] = rstd;
    }
    if constexpr (SUMS) {
        for_each_piece([&](u32 at, u32 first) {
            for (u32 j = 0; j < WIDTH; ++j) {
                if (sums.dgamma != nullptr) sums.dgamma[first + j] = dgamma[at + j];
                if (sums.dbeta != nullptr) sums.dbeta[first + j] = dbeta[at + j];
            }
        });
    }
}

// Rows of any length and place, read several times, from cache where they fit.
template <bool CENTRED, bool SUMS, class T, class Gamma>
DEVICE void long_rows(u64 rows, u64 len, const T *x, const T *dy, Gamma gamma, compute_t<T> epsilon, T *dx, Sums<compute_t<T>> sums,
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
        C mean = (C)0, rstd;
        Pair<C> both{(C)0, (C)0};
        if constexpr (ONE_THREAD) {
            if constexpr (CENTRED) mean = block_reduce_range(len, (C)0, [=](u64 i) { return load(from[i]); }, Plus()) / (C)len;
            auto square = [=](u64 i) {
                C d = load(from[i]) - mean;
                return d * d;
            };
            rstd = (C)1 / math::sqrt(block_reduce_range(len, (C)0, square, Plus()) / (C)len + epsilon);
            if constexpr (CENTRED) both.a = block_reduce_range(len, (C)0, [=](u64 i) { return load(grad[i]) * scale(i); }, Plus());
            auto product = [=](u64 i) { return load(grad[i]) * scale(i) * ((load(from[i]) - mean) * rstd); };
            both.b = block_reduce_range(len, (C)0, product, Plus());
        } else {
            C sum = (C)0, squares = (C)0;
            if constexpr (CENTRED) for_each_of_row(whole_block(), len, [&](u64, T v) { sum += (C)load(v); }, from);
            if constexpr (CENTRED) mean = block_reduce(sum, Plus()) / (C)len;
            auto square = [&](u64, T v) {
                C d = (C)load(v) - mean;
                squares += d * d;
            };
            for_each_of_row(whole_block(), len, square, from);
            rstd = (C)1 / math::sqrt(block_reduce(squares, Plus()) / (C)len + epsilon);
            auto each = [&](u64 i, T v, T g) {
                C h = (C)load(g) * scale(i);
                both = both + Pair<C>{h, h * (((C)load(v) - mean) * rstd)};
            };
            for_each_of_row(whole_block(), len, each, from, grad);
            both = block_reduce(both, Plus());
        }
        C shift = CENTRED ? both.a / (C)len : (C)0, slope = both.b / (C)len;
        if constexpr (SUMS) {
            if (dgamma != nullptr) {
                for_each_in_block(len, [=](u64 i) { dgamma[i] += load(grad[i]) * ((load(from[i]) - mean) * rstd); });
            }
            if (dbeta != nullptr) for_each_in_block(len, [=](u64 i) { dbeta[i] += load(grad[i]); });
        }
        auto gradient = [=](u64 i, C v, C g) { return rstd * (g * scale(i) - shift - (v - mean) * rstd * slope); };
        if constexpr (ONE_THREAD) {
            for_each_in_block(len, [=](u64 i) { to[i] = store<T>::from(gradient(i, load(from[i]), load(grad[i]))); });
        } else {
            map_row(len, to, gradient, from, grad);
        }
        if (statistics.mean != nullptr && threadIdx.x == 0) statistics.mean[row] = mean, statistics.rstd[row] = rstd;
    });
}

template <bool CENTRED, bool SUMS, class T, class Gamma>
DEVICE void rows_gradient(u64 rows, u64 len, const T *x, const T *dy, Gamma gamma, f64 epsilon, T *dx, Sums<compute_t<T>> sums,
                          Statistics<compute_t<T>> statistics) {
    using C = compute_t<T>;
    if constexpr (!ONE_THREAD) {
        bool aligned = past_boundary(x) == 0 && past_boundary(dy) == 0 && past_boundary(dx) == 0 && gamma.aligned() && len % LANES<T> == 0;
        if (aligned && len <= (u64)KEPT<T> * LANES<T> * blockDim.x) {
            kept_rows<CENTRED, SUMS>(rows, (u32)len, x, dy, gamma, (C)epsilon, dx, sums, statistics);
            return;
        }
    }
    long_rows<CENTRED, SUMS>(rows, len, x, dy, gamma, (C)epsilon, dx, sums, statistics);
}

// This block's rows of partial[outputs, blocks, len].
template <class C> DEVICE Sums<C> partial_of_block(C *partial, u64 len, bool second) {
    if (partial == nullptr) return Sums<C>{nullptr, nullptr};
    return Sums<C>{partial + blockIdx.x * len, second ? partial + ((u64)gridDim.x + blockIdx.x) * len : nullptr};
}

// partial[2, gridDim.x, len] gets each block's sums of dgamma and dbeta; null where neither is asked for.
template <class T>
__global__ void layer_norm_rows_backward(u64 rows, u64 len, const T *x, const T *dy, const T *gamma, f64 epsilon, T *dx, compute_t<T> *partial) {
    using C = compute_t<T>;
    rows_gradient<true, true>(rows, len, x, dy, PerElement<T>{gamma}, epsilon, dx, partial_of_block(partial, len, true),
                              Statistics<C>{nullptr, nullptr});
}

// partial[1, gridDim.x, len]: there is no dbeta.
template <class T>
__global__ void rms_norm_rows_backward(u64 rows, u64 len, const T *x, const T *dy, const T *gamma, f64 epsilon, T *dx, compute_t<T> *partial) {
    using C = compute_t<T>;
    rows_gradient<false, true>(rows, len, x, dy, PerElement<T>{gamma}, epsilon, dx, partial_of_block(partial, len, false),
                               Statistics<C>{nullptr, nullptr});
}

// Rows are groups of channels: x is [rows / groups, groups, channels, spatial] and len = channels * spatial; gamma may be null.
// statistics[2, rows] gets mean and rstd, from which channel_sums makes dgamma and dbeta; it may be null.
template <class T>
__global__ void group_norm_rows_backward(u64 rows, u64 len, u64 groups, u64 spatial, const T *x, const T *dy, const T *gamma, f64 epsilon, T *dx,
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
