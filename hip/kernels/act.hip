// Activations fused with the op before them (adding a bias, a sum or a product), and their
// gradients. f16 and bf16 are computed in f32; `out` may be an input.
#include "activations.h"
#include "prelude.h"
#include "rows.h"
#include "widen.h"

// An activation of z and its derivative there, for elements of type T.
struct Relu { // NaN stays NaN, and its gradient passes; `passes` at the output equals that at z
    template <class T, class C> static DEVICE C apply(C z) { return z < (C)0 ? (C)0 : z; }
    template <class C> static DEVICE bool passes(C z) { return !(z <= (C)0); }
};
// The gradient at z, from that of the activation's result. ReLU chooses and does not multiply: an
// infinite gradient times 0 would be NaN.
template <class Act, class T, class C> DEVICE C gradient(C grad, C z) {
    if constexpr (is_same<Act, Relu>::value) return Relu::passes(z) ? grad : (C)0;
    else return grad * Act::template slope<T>(z);
}

// ---------------------------------------------------------------- after a bias

// The channel of an element of [outer, len, inner]. `narrow` says that the element's index fits 32
// bits.
DEVICE u64 channel_of(u64 at, u64 len, u64 inner, bool narrow) {
    if (narrow) {
        u32 row = inner == 1 ? (u32)at : (u32)at / (u32)inner;
        return row % (u32)len;
    }
    return at / inner % len;
}

// out = act(x + bias) over packed [outer, len, inner]; the bias runs along the middle dim. Without
// a bias, out = act(x).
template <class Act, class T>
__global__ ALL_WAVES(sizeof(T) == 2) void bias_act(u64 outer, u64 len, u64 inner, const T *x, const T *bias, T *out) {
    using C = compute_t<T>;
    u64 n = outer * len * inner;
    auto added = [=](u64 channel) { return bias == nullptr ? (C)0 : (C)load(bias[channel]); };
    if constexpr (ONE_THREAD) {
        if (inner == 1) {
            for_each_row(outer, [=](u64 row) {
                const T *from = x + row * len;
                T *to = out + row * len;
                if (bias == nullptr)
                    for_each_in_block(len,
                                      [=](u64 i) { to[i] = store<T>::from(Act::template apply<T>((C)load(from[i]))); });
                else
                    for_each_in_block(len, [=](u64 i) {
                        to[i] = store<T>::from(Act::template apply<T>((C)load(from[i]) + (C)load(bias[i])));
                    });
            });
        } else {
            for_each_row(outer * len, [=](u64 row) {
                C b = added(row % len);
                const T *from = x + row * inner;
                T *to = out + row * inner;
                for_each_in_block(inner,
                                  [=](u64 i) { to[i] = store<T>::from(Act::template apply<T>((C)load(from[i]) + b)); });
            });
        }
    } else {
        constexpr u32 WIDTH = LANES<T>;
        bool narrow = n < (1ull << 31);
        u64 pieces = n / WIDTH;
        // Neighbouring elements have neighbouring bias elements, so pieces of the bias are read
        // like pieces of x.
        if (inner == 1 && len % WIDTH == 0 && bias != nullptr && past_boundary(bias) == 0) {
            for_each(pieces, [=](u64 piece) {
                u64 at = piece * WIDTH;
                Vector<T, WIDTH> v = piece_of(x, (i64)at), b = piece_of(bias, (i64)channel_of(at, len, 1, narrow)), y;
                C z[WIDTH], added[WIDTH];
                widen(v, z), widen(b, added);
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) y.lane[j] = store<T>::from(Act::template apply<T>(z[j] + added[j]));
                *reinterpret_cast<Vector<T, WIDTH> *>(out + at) = y;
            });
            return; // n is a multiple of len
        }
        for_each(pieces, [=](u64 piece) {
            u64 at = piece * WIDTH, channel = channel_of(at, len, inner, narrow), rest = inner - at % inner;
            if (narrow) rest = (u32)inner - (u32)at % (u32)inner;
            Vector<T, WIDTH> v = piece_of(x, (i64)at), y;
            C z[WIDTH];
            widen(v, z);
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) {
                y.lane[j] = store<T>::from(Act::template apply<T>(z[j] + added(channel)));
                if (--rest == 0) {
                    rest = inner;
                    if (++channel == len) channel = 0;
                }
            }
            *reinterpret_cast<Vector<T, WIDTH> *>(out + at) = y;
        });
        for_each(n - pieces * WIDTH, [=](u64 i) {
            u64 at = pieces * WIDTH + i;
            out[at] =
                store<T>::from(Act::template apply<T>((C)load(x[at]) + added(channel_of(at, len, inner, narrow))));
        });
    }
}

// out = residual + (x + bias) over packed [rows, len]; the bias runs along a row.
template <class T>
__global__ ALL_WAVES(sizeof(T) == 2) void bias_add(u64 rows, u64 len, const T *residual, const T *x, const T *bias,
                                                   T *out) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        for_each_row(rows, [=](u64 row) {
            const T *from = x + row * len, *more = residual + row * len;
            T *to = out + row * len;
            for_each_in_block(
                len, [=](u64 i) { to[i] = store<T>::from((C)load(more[i]) + ((C)load(from[i]) + (C)load(bias[i]))); });
        });
    } else {
        constexpr u32 WIDTH = LANES<T>;
        u64 n = rows * len, pieces = n / WIDTH;
        bool narrow = n < (1ull << 31);
        for_each(pieces, [=](u64 piece) {
            u64 at = piece * WIDTH, channel = channel_of(at, len, 1, narrow);
            Vector<T, WIDTH> v = piece_of(x, (i64)at), r = piece_of(residual, (i64)at), y;
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) {
                y.lane[j] = store<T>::from((C)load(r.lane[j]) + ((C)load(v.lane[j]) + (C)load(bias[channel])));
                if (++channel == len) channel = 0;
            }
            *reinterpret_cast<Vector<T, WIDTH> *>(out + at) = y;
        });
        for_each(n - pieces * WIDTH, [=](u64 i) {
            u64 at = pieces * WIDTH + i;
            C added = (C)load(x[at]) + (C)load(bias[channel_of(at, len, 1, narrow)]);
            out[at] = store<T>::from((C)load(residual[at]) + added);
        });
    }
}

// The rows that belong to a part.
struct Part {
    u64 begin, end;
};
DEVICE Part part_of(u64 part, u64 count, u64 parts) { return {count * part / parts, count * (part + 1) / parts}; }

// The work of bias_act_columns_backward in pieces of WIDTH neighbouring columns. A thread goes
// through a part's rows of one piece, ABREAST rows at a time.
template <u32 WIDTH, class Act, class T>
DEVICE void columns_backward(u64 rows, u64 len, u64 parts, const T *x, const T *bias, const T *grad,
                             compute_t<T> *partial, T *out) {
    using C = compute_t<T>;
    using Piece = Vector<T, WIDTH>;
    constexpr u32 ABREAST = 2;
    u64 pieces = len / WIDTH;
    for_each(parts * pieces, [=](u64 item) {
        u64 index = item / pieces, first = (item - index * pieces) * WIDTH;
        Part part = part_of(index, rows, parts);
        C sum[WIDTH], add[WIDTH];
        UNROLLED
        for (u32 k = 0; k < WIDTH; ++k) {
            sum[k] = (C)0;
            add[k] = bias == nullptr ? (C)0 : (C)load(bias[first + k]);
        }
        auto row = [&](u64 at, Piece v, Piece d) {
            Piece y;
            C z[WIDTH], grads[WIDTH];
            widen(v, z), widen(d, grads);
            UNROLLED
            for (u32 k = 0; k < WIDTH; ++k) {
                C g = gradient<Act, T>(grads[k], z[k] + add[k]);
                y.lane[k] = store<T>::from(g);
                sum[k] += g;
            }
            *reinterpret_cast<Piece *>(out + at) = y;
        };
        auto piece = [](const T *from, u64 at) { return *reinterpret_cast<const Piece *>(from + at); };
        u64 at = part.begin * len + first, end = part.end * len;
        ROLLED
        for (; at + (ABREAST - 1) * len < end; at += ABREAST * len) {
            Piece v[ABREAST], d[ABREAST];
            UNROLLED
            for (u32 r = 0; r < ABREAST; ++r) v[r] = piece(x, at + r * len), d[r] = piece(grad, at + r * len);
            UNROLLED
            for (u32 r = 0; r < ABREAST; ++r) row(at + r * len, v[r], d[r]);
        }
        for (; at < end; at += len) row(at, piece(x, at), piece(grad, at));
        Vector<C, WIDTH> sums;
        UNROLLED
        for (u32 k = 0; k < WIDTH; ++k) sums.lane[k] = sum[k];
        *reinterpret_cast<Vector<C, WIDTH> *>(partial + index * len + first) = sums;
    });
}

// out = grad * slope(x + bias) over [rows, len]. partial [parts, len] gets the sums of out over the
// rows of each part.
template <class Act, class T>
__global__ ALL_WAVES(sizeof(T) == 2) void bias_act_columns_backward(u64 rows, u64 len, u64 parts, const T *x,
                                                                    const T *bias, const T *grad, compute_t<T> *partial,
                                                                    T *out) {
    using C = compute_t<T>;
    if constexpr (!ONE_THREAD) {
        constexpr u32 WIDTH = LANES<T> / 2; // accesses of 16 bytes would take too many registers
        if (len % WIDTH == 0) columns_backward<WIDTH, Act>(rows, len, parts, x, bias, grad, partial, out);
        else columns_backward<1, Act>(rows, len, parts, x, bias, grad, partial, out);
        return;
    }
    for_each_column_group(parts, len, [=](u64 index, u64 first, u32 width) {
        Part part = part_of(index, rows, parts);
        C sum[COLUMN_GROUP], add[COLUMN_GROUP];
        for (u32 k = 0; k < width; ++k) {
            sum[k] = (C)0;
            add[k] = bias == nullptr ? (C)0 : (C)load(bias[first + k]);
        }
        for (u64 row = part.begin; row < part.end; ++row) {
            u64 at = row * len + first;
            for (u32 k = 0; k < width; ++k) {
                C d = gradient<Act, T>((C)load(grad[at + k]), (C)load(x[at + k]) + add[k]);
                out[at + k] = store<T>::from(d);
                sum[k] += d;
            }
        }
        for (u32 k = 0; k < width; ++k) partial[index * len + first + k] = sum[k];
    });
}

// The same over [outer, len, inner], with the sums of each channel over each part of the outer dim.
template <class Act, class T>
__global__ void bias_act_planes_backward(u64 outer, u64 len, u64 inner, u64 parts, const T *x, const T *bias,
                                         const T *grad, compute_t<T> *partial, T *out) {
    using C = compute_t<T>;
    for_each_row(parts * len, [=](u64 index) {
        u64 channel = index % len;
        Part part = part_of(index / len, outer, parts);
        C add = bias == nullptr ? (C)0 : (C)load(bias[channel]), sum = (C)0;
        for (u64 o = part.begin; o < part.end; ++o) {
            u64 at = (o * len + channel) * inner;
            const T *from = x + at, *g = grad + at;
            T *to = out + at;
            if constexpr (ONE_THREAD) {
                auto of = [=](u64 i) { return gradient<Act, T>((C)load(g[i]), (C)load(from[i]) + add); };
                // Read before `out`, which may be an input, is written.
                sum += block_reduce_range(inner, (C)0, of, Plus());
                for_each_in_block(inner, [=](u64 i) { to[i] = store<T>::from(of(i)); });
            } else {
                auto of = [&](u64, C v, C d) {
                    d = gradient<Act, T>(d, v + add);
                    sum += d;
                    return d;
                };
                map_row(inner, to, of, from, g);
            }
        }
        sum = block_reduce(sum, Plus());
        if (threadIdx.x == 0) partial[index] = sum;
    });
}

// ---------------------------------------------------------------- after a sum or a product

// out = act(a + b). Here and below all tensors are packed.
template <class Act, class T> __global__ void add_act(u64 n, const T *a, const T *b, T *out) {
    using C = compute_t<T>;
    map_contiguous(n, out, [=](C x, C y) { return Act::template apply<T>(x + y); }, a, b);
}
// out = grad * slope(a + b), which is the gradient of both a and b.
template <class Act, class T> __global__ void add_act_backward(u64 n, const T *a, const T *b, const T *grad, T *out) {
    using C = compute_t<T>;
    map_contiguous(n, out, [=](C x, C y, C g) { return gradient<Act, T>(g, x + y); }, a, b, grad);
}
// out = a * b + c
template <class T> __global__ void mul_add(u64 n, const T *a, const T *b, const T *c, T *out) {
    using C = compute_t<T>;
    map_contiguous(n, out, [=](C x, C y, C z) { return x * y + z; }, a, b, c);
}

// The gradients of both factors of a * b.
template <class T> __global__ void mul_backward(u64 n, const T *a, const T *b, const T *grad, T *by_a, T *by_b) {
    using C = compute_t<T>;
    for_each(n, [=](u64 i) {
        C x = load(a[i]), y = load(b[i]), g = load(grad[i]);
        by_a[i] = store<T>::from(g * y);
        by_b[i] = store<T>::from(g * x);
    });
}
