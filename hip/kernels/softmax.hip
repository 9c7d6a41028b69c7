// Softmax and its logarithm along rows ([rows, len]) or columns ([outer, len, inner]) of contiguous
// tensors; `out` may be an input. f16 and bf16 are summed in f32. A row that has NaN or +inf, or
// only -inf, gives NaN, as the formula does; the masked kernel gives zeros if nothing is greater
// than -inf.
#include "prelude.h"
#include "rows.h"

// The sum of exp(x - max) over the elements seen so far, and max.
template <class C> struct Sum {
    C max, sum;
};
struct Combine {
    // Equal maxima are not subtracted from each other, because they may be infinite.
    template <class C> DEVICE Sum<C> operator()(Sum<C> a, Sum<C> b) const {
        // NaN must win, because a sum that is scaled by exp(-inf) would lose it.
        C top = math::max(a.max, b.max);
        C left = a.max == top ? a.sum : a.sum * math::exp(a.max - top);
        C right = b.max == top ? b.sum : b.sum * math::exp(b.max - top);
        return Sum<C>{top, left + right};
    }
};
// How results are computed from x - max and the sum of exp(x - max), where x is `read` of an
// element.
struct Normal {
    template <class C> static DEVICE C read(C x) { return x; }
    template <class C> static DEVICE C factor(Sum<C> s) { return s.max == INFINITE<C> ? s.max - s.max : (C)1 / s.sum; }
    template <class C> static DEVICE C apply(C shifted, C factor) { return math::exp(shifted) * factor; }
    static constexpr bool EXPONENTIAL = true, MASKED = false;
};
// If nothing is greater than -inf, the shift is 0: exp(-inf) is 0, and NaN stays NaN.
struct Masked : Normal {
    template <class C> static DEVICE C factor(Sum<C> s) { return s.sum == (C)0 ? (C)1 : Normal::factor(s); }
    static constexpr bool MASKED = true;
};
struct Negative : Normal {
    template <class C> static DEVICE C read(C x) { return -x; }
};
struct Logarithm {
    template <class C> static DEVICE C read(C x) { return x; }
    template <class C> static DEVICE C factor(Sum<C> s) {
        return s.max == INFINITE<C> ? s.max - s.max : math::log(s.sum);
    }
    template <class C> static DEVICE C apply(C shifted, C factor) { return shifted - factor; }
    static constexpr bool EXPONENTIAL = false, MASKED = false;
};

// The sum of exp(x - max), on the CPU. Exponentials and sums vectorise better in separate loops
// (1.0 instead of 1.5 ns per element with AVX2).
template <class Kind, class T, class C> DEVICE C exponential_sum(u64 len, const T *x, C max) {
    constexpr u64 CHUNK = 512;
    C total = (C)0, e[CHUNK];
    for (u64 start = 0; start < len; start += CHUNK) {
        u64 count = len - start < CHUNK ? len - start : CHUNK;
        const T *from = x + start;
        INDEPENDENT
        for (u64 i = 0; i < count; ++i) e[i] = math::exp(Kind::read(load(from[i])) - max);
        const C *terms = e;
        total += block_reduce_range(count, (C)0, [=](u64 i) { return terms[i]; }, Plus());
    }
    return total;
}

template <class Kind, class T> DEVICE void softmax_row(u64 len, const T *x, T *out) {
    using C = compute_t<T>;
    constexpr C lowest = -INFINITE<C>;
    auto at = [=](u64 i) { return Kind::read((C)load(x[i])); };
    if constexpr (ONE_THREAD) {
        Sum<C> s;
        s.max = block_reduce_range(len, lowest, at, Larger());
        if (Kind::MASKED && s.max == lowest) s.max = (C)0;
        C max = s.max;
        if constexpr (Kind::EXPONENTIAL && is_same<T, C>::value) {
            // The row fits the first-level cache, so `out` keeps the exponentials, which are then
            // scaled in place.
            for_each_in_block(len, [=](u64 i) { out[i] = math::exp(at(i) - max); });
            s.sum = block_reduce_range(len, (C)0, [=](u64 i) { return out[i]; }, Plus());
            C factor = Kind::factor(s);
            for_each_in_block(len, [=](u64 i) { out[i] *= factor; });
        } else {
            s.sum = exponential_sum<Kind>(len, x, max);
            C factor = Kind::factor(s);
            for_each_in_block(len, [=](u64 i) { out[i] = store<T>::from(Kind::apply(at(i) - max, factor)); });
        }
    } else if (KeptRow<T>::fits(len, x)) { // reads the row once
        KeptRow<T> row;
        row.read(len, x, lowest, [](C v) { return Kind::read(v); });
        Sum<C> s{lowest, (C)0};
        // Places past the row's ends hold -inf, which is no maximum and whose exponential is 0.
        row.for_each_kept([&](C &v, bool) { s.max = Larger()(s.max, v); });
        s.max = block_reduce(s.max, Larger());
        if (Kind::MASKED && s.max == lowest) s.max = (C)0;
        row.for_each_kept([&](C &v, bool) {
            if constexpr (Kind::EXPONENTIAL) s.sum += v = math::exp(v - s.max);
            else s.sum += math::exp(v - s.max);
        });
        s.sum = block_reduce(s.sum, Plus());
        C factor = Kind::factor(s);
        row.write(out, [&](u64, C v) { return Kind::EXPONENTIAL ? v * factor : Kind::apply(v - s.max, factor); });
    } else {
        Sum<C> s{lowest, (C)0};
        for_each_of_row(whole_block(), len, [&](u64, T v) { s = Combine()(s, Sum<C>{Kind::read((C)load(v)), (C)1}); },
                        x);
        s = block_reduce(s, Combine());
        if (Kind::MASKED && s.max == lowest) s.max = (C)0;
        C factor = Kind::factor(s), max = s.max;
        map_row(len, out, [=](u64, C v) { return Kind::apply(Kind::read(v) - max, factor); }, x);
    }
}

// The softmax of rows that `lanes` threads of a warp keep in registers. `lanes` is a power of two.
// Rows begin and end at multiples of 16 bytes.
template <class Kind, class T> DEVICE void softmax_short(u64 rows, u64 len, u32 lanes, const T *x, T *out) {
    using C = compute_t<T>;
    constexpr u32 WIDTH = LANES<T>, PIECES = KeptRow<T>::PIECES;
    constexpr C lowest = -INFINITE<C>;
    u32 team = threadIdx.x / lanes, teams = blockDim.x / lanes, own = threadIdx.x % lanes * WIDTH;
    auto over_team = [=](C value, auto op) {
        ROLLED
        for (u32 distance = lanes / 2; distance > 0; distance /= 2)
            value = op(value, shuffle(value, (i32)(threadIdx.x % (u32)warpSize ^ distance)));
        return value;
    };
    // All threads of a block take the same number of turns, because lanes exchange values.
    for (u64 first = (u64)blockIdx.x * teams; first < rows; first += (u64)gridDim.x * teams) {
        u64 row = first + team;
        auto inside = [=](u32 p) { return row < rows && own + p * lanes * WIDTH < (u32)len; };
        Vector<T, WIDTH> piece[PIECES];
        UNROLLED
        for (u32 p = 0; p < PIECES; ++p) {
            piece[p] = {};
            if (inside(p)) piece[p] = piece_of(x + row * len, own + p * lanes * WIDTH);
        }
        // Places past the row's end hold -inf, which is no maximum and whose exponential is 0.
        C value[PIECES * WIDTH];
        Sum<C> s{lowest, (C)0};
        UNROLLED
        for (u32 i = 0; i < PIECES * WIDTH; ++i) {
            value[i] = inside(i / WIDTH) ? Kind::read((C)load(piece[i / WIDTH].lane[i % WIDTH])) : lowest;
            s.max = Larger()(s.max, value[i]);
        }
        s.max = over_team(s.max, Larger());
        UNROLLED
        for (u32 i = 0; i < PIECES * WIDTH; ++i) {
            C e = math::exp(value[i] - s.max);
            s.sum += e;
            if constexpr (Kind::EXPONENTIAL) value[i] = e;
        }
        s.sum = over_team(s.sum, Plus());
        C factor = Kind::factor(s);
        UNROLLED
        for (u32 p = 0; p < PIECES; ++p) {
            if (!inside(p)) continue;
            Vector<T, WIDTH> result;
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) {
                C v = value[p * WIDTH + j];
                result.lane[j] = store<T>::from(Kind::EXPONENTIAL ? v * factor : Kind::apply(v - s.max, factor));
            }
            write_piece(result, out + row * len + own + p * lanes * WIDTH);
        }
    }
}

template <class T> __global__ void softmax_short_rows(u64 rows, u64 len, u32 lanes, const T *x, T *out) {
    if constexpr (!ONE_THREAD) softmax_short<Normal>(rows, len, lanes, x, out); // never called otherwise
}
template <class T> __global__ void log_softmax_short_rows(u64 rows, u64 len, u32 lanes, const T *x, T *out) {
    if constexpr (!ONE_THREAD) softmax_short<Logarithm>(rows, len, lanes, x, out);
}

template <class T> __global__ void softmax_rows(u64 rows, u64 len, const T *x, T *out) {
    for_each_row(rows, [=](u64 row) { softmax_row<Normal>(len, x + row * len, out + row * len); });
}
template <class T> __global__ void softmin_rows(u64 rows, u64 len, const T *x, T *out) {
    for_each_row(rows, [=](u64 row) { softmax_row<Negative>(len, x + row * len, out + row * len); });
}
template <class T> __global__ void masked_softmax_rows(u64 rows, u64 len, const T *x, T *out) {
    for_each_row(rows, [=](u64 row) { softmax_row<Masked>(len, x + row * len, out + row * len); });
}
template <class T> __global__ void log_softmax_rows(u64 rows, u64 len, const T *x, T *out) {
    for_each_row(rows, [=](u64 row) { softmax_row<Logarithm>(len, x + row * len, out + row * len); });
}

// The number of neighbouring columns that one thread takes. On a GPU it is one, so that
// neighbouring threads take neighbouring columns.
constexpr u32 TILE = ONE_THREAD ? 64 : 1;

// Calls f(first element, columns) for each tile of columns of [outer, len, inner].
template <class F> DEVICE void for_each_tile(u64 outer, u64 len, u64 inner, F f) {
    u64 tiles = (inner + TILE - 1) / TILE;
    for_each(outer * tiles, [=](u64 item) {
        u64 o = item / tiles, first = (item - o * tiles) * TILE;
        f(o * len * inner + first, inner - first < TILE ? (u32)(inner - first) : TILE);
    });
}

// sum[j] = the sum of f(i, j) for i in 0..len. It is summed in spans, because a long plain sum
// would lose precision.
template <class C, class F> DEVICE void sum_columns(u64 len, u32 columns, C (&sum)[TILE], F f) {
    constexpr u64 SPAN = 128;
    for (u32 j = 0; j < columns; ++j) sum[j] = (C)0;
    for (u64 start = 0; start < len; start += SPAN) {
        u64 end = start + SPAN < len ? start + SPAN : len;
        C part[TILE];
        for (u32 j = 0; j < columns; ++j) part[j] = (C)0;
        for (u64 i = start; i < end; ++i) {
            for (u32 j = 0; j < columns; ++j) part[j] += f(i, j);
        }
        for (u32 j = 0; j < columns; ++j) sum[j] += part[j];
    }
}

// The greatest f(i) for i in 0..len and the sum of exp(f(i) - greatest), in spans as above.
template <class C, class F> DEVICE Sum<C> online_sum(u64 len, F f) {
    constexpr u64 SPAN = 128;
    Sum<C> all{-INFINITE<C>, (C)0};
    for (u64 start = 0; start < len; start += SPAN) {
        u64 end = start + SPAN < len ? start + SPAN : len;
        Sum<C> part{-INFINITE<C>, (C)0};
        for (u64 i = start; i < end; ++i) part = Combine()(part, Sum<C>{f(i), (C)1});
        all = Combine()(all, part);
    }
    return all;
}

template <class Kind, class T> DEVICE void softmax_columns_of(u64 outer, u64 len, u64 inner, const T *x, T *out) {
    using C = compute_t<T>;
    for_each_tile(outer, len, inner, [=](u64 first, u32 columns) {
        C max[TILE], sum[TILE], factor[TILE];
        auto value = [=](u64 i, u32 j) { return Kind::read((C)load(x[first + i * inner + j])); };
        if constexpr (ONE_THREAD) {
            for (u32 j = 0; j < columns; ++j) max[j] = -INFINITE<C>;
            for (u64 i = 0; i < len; ++i) {
                for (u32 j = 0; j < columns; ++j) max[j] = Larger()(max[j], value(i, j));
            }
            sum_columns(len, columns, sum, [&](u64 i, u32 j) { return math::exp(value(i, j) - max[j]); });
        } else {
            // One pass gives maximum and sum (Milakov and Gimelshein 2018).
            Sum<C> s = online_sum<C>(len, [=](u64 i) { return value(i, 0); });
            max[0] = s.max;
            sum[0] = s.sum;
        }
        for (u32 j = 0; j < columns; ++j) factor[j] = Kind::factor(Sum<C>{max[j], sum[j]});
        for (u64 i = 0; i < len; ++i) {
            INDEPENDENT
            for (u32 j = 0; j < columns; ++j) {
                u64 at = first + i * inner + j;
                out[at] = store<T>::from(Kind::apply(value(i, j) - max[j], factor[j]));
            }
        }
    });
}

template <class T> __global__ void softmax_columns(u64 outer, u64 len, u64 inner, const T *x, T *out) {
    softmax_columns_of<Normal>(outer, len, inner, x, out);
}
template <class T> __global__ void softmin_columns(u64 outer, u64 len, u64 inner, const T *x, T *out) {
    softmax_columns_of<Negative>(outer, len, inner, x, out);
}
template <class T> __global__ void log_softmax_columns(u64 outer, u64 len, u64 inner, const T *x, T *out) {
    softmax_columns_of<Logarithm>(outer, len, inner, x, out);
}

// Gradients from the output y and its gradient g: y (g - sum(g y)), or for the logarithm g - exp(y)
// sum(g).
struct NormalGradient {
    template <class C> static DEVICE C term(C y, C g) { return y * g; }
    template <class C> static DEVICE C apply(C y, C g, C sum) { return y * (g - sum); }
};
struct LogarithmGradient {
    template <class C> static DEVICE C term(C, C g) { return g; }
    template <class C> static DEVICE C apply(C y, C g, C sum) { return g - math::exp(y) * sum; }
};

template <class Kind, class T> DEVICE void gradient_rows(u64 rows, u64 len, const T *y, const T *grad, T *out) {
    using C = compute_t<T>;
    for_each_row(rows, [=](u64 row) {
        const T *a = y + row * len, *g = grad + row * len;
        T *to = out + row * len;
        if constexpr (ONE_THREAD) {
            C sum = block_reduce_range(len, (C)0, [=](u64 i) { return Kind::term(load(a[i]), load(g[i])); }, Plus());
            for_each_in_block(len, [=](u64 i) { to[i] = store<T>::from(Kind::apply(load(a[i]), load(g[i]), sum)); });
        } else {
            C sum = (C)0;
            for_each_of_row(whole_block(), len, [&](u64, T v, T d) { sum += Kind::term((C)load(v), (C)load(d)); }, a,
                            g);
            sum = block_reduce(sum, Plus());
            map_row(len, to, [=](u64, C v, C d) { return Kind::apply(v, d, sum); }, a, g);
        }
    });
}
template <class T> __global__ void softmax_rows_backward(u64 rows, u64 len, const T *y, const T *grad, T *out) {
    gradient_rows<NormalGradient>(rows, len, y, grad, out);
}
template <class T> __global__ void log_softmax_rows_backward(u64 rows, u64 len, const T *y, const T *grad, T *out) {
    gradient_rows<LogarithmGradient>(rows, len, y, grad, out);
}

template <class Kind, class T>
DEVICE void gradient_columns(u64 outer, u64 len, u64 inner, const T *y, const T *grad, T *out) {
    using C = compute_t<T>;
    for_each_tile(outer, len, inner, [=](u64 first, u32 columns) {
        C sum[TILE];
        sum_columns(len, columns, sum, [&](u64 i, u32 j) {
            return Kind::term(load(y[first + i * inner + j]), load(grad[first + i * inner + j]));
        });
        for (u64 i = 0; i < len; ++i) {
            INDEPENDENT
            for (u32 j = 0; j < columns; ++j) {
                u64 at = first + i * inner + j;
                out[at] = store<T>::from(Kind::apply(load(y[at]), load(grad[at]), sum[j]));
            }
        }
    });
}
template <class T>
__global__ void softmax_columns_backward(u64 outer, u64 len, u64 inner, const T *y, const T *grad, T *out) {
    gradient_columns<NormalGradient>(outer, len, inner, y, grad, out);
}
template <class T>
__global__ void log_softmax_columns_backward(u64 outer, u64 len, u64 inner, const T *y, const T *grad, T *out) {
    gradient_columns<LogarithmGradient>(outer, len, inner, y, grad, out);
}
