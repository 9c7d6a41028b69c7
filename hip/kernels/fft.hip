// Fourier transforms along the middle axis of contiguous [outer, len, inner], with real and
// imaginary parts in separate tensors. One launch is one pass over memory. Lengths with small prime
// factors use Stockham's form, which needs no reordering, with one radix per pass; others use
// Bluestein's form. Every transform is forward; the inverse is the conjugate of the transform of
// the conjugate. f16 and bf16 are computed in f32.
#include "prelude.h"

// exp(-2 pi i k / n) for k in 0..n. The angle is reduced to an eighth of the circle while it is an
// integer, and its sine and cosine are computed in f64, so each entry is exact to half a unit in
// the last place of f32.
template <class C> __global__ void fft_twiddles(u64 n, C *re, C *im) {
    for_each(n, [=](u64 k) {
        u64 at = 8 * k, octant = at / n; // k / n of a turn
        // Relative to the nearest quarter turn, the angle is at most an eighth of a turn.
        u64 quarter = (octant + 1) / 2;
        i64 away = (i64)at - (i64)(quarter * 2 * n);
        f64 angle = (f64)away / (f64)n * 0.78539816339744830962;
        f64 c = math::cos(angle), s = math::sin(angle);
        quarter %= 4;
        f64 x = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
        f64 y = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
        re[k] = (C)x;
        im[k] = (C)-y;
    });
}

// Calls f(o, k, i) for each point of outer x len x inner. The inner loop runs over the innermost
// axis that is longer than 1, so that it can vectorise.
template <class F> DEVICE void for_each_point(u64 outer, u64 len, u64 inner, F f) {
    if (inner == 1) {
        for_each_column_group(outer, len, [=](u64 o, u64 first, u32 width) {
            INDEPENDENT
            for (u32 c = 0; c < width; ++c) f(o, first + c, (u64)0);
        });
    } else {
        for_each_column_group(outer * len, inner, [=](u64 row, u64 first, u32 width) {
            u64 o = row / len, k = row % len;
            INDEPENDENT
            for (u32 c = 0; c < width; ++c) f(o, k, first + c);
        });
    }
}

// Loads a real signal. Of the `stored` elements along the axis the first `have` are used; zeros
// follow.
template <class T>
__global__ void fft_load(u64 outer, u64 len, u64 inner, u64 stored, u64 have, const T *x, compute_t<T> *re,
                         compute_t<T> *im) {
    using C = compute_t<T>;
    for_each_point(outer, len, inner, [=](u64 o, u64 k, u64 i) {
        u64 to = (o * len + k) * inner + i;
        re[to] = k < have ? load(x[(o * stored + k) * inner + i]) : (C)0;
        im[to] = (C)0;
    });
}

// A real signal with an even number of samples is transformed as a complex one of half the length:
// even samples are the real parts, odd samples the imaginary parts (Numerical Recipes, 12.3).
// `half` is the number of these pairs.
template <class T>
__global__ void fft_load_pairs(u64 outer, u64 half, u64 inner, u64 stored, u64 have, const T *x, compute_t<T> *re,
                               compute_t<T> *im) {
    using C = compute_t<T>;
    for_each_point(outer, half, inner, [=](u64 o, u64 k, u64 i) {
        u64 to = (o * half + k) * inner + i, from = (o * stored + 2 * k) * inner + i;
        re[to] = 2 * k < have ? load(x[from]) : (C)0;
        im[to] = 2 * k + 1 < have ? load(x[from + inner]) : (C)0;
    });
}

// The half + 1 bins of such a signal, from the transform of its pairs. The table is for length 2
// half.
template <class T>
__global__ void fft_unpack(u64 outer, u64 half, u64 inner, const compute_t<T> *table_re, const compute_t<T> *table_im,
                           const compute_t<T> *re, const compute_t<T> *im, T *out_re, T *out_im) {
    using C = compute_t<T>;
    for_each_point(outer, half + 1, inner, [=](u64 o, u64 k, u64 i) {
        u64 here = k == half ? 0 : k, there = k == 0 ? 0 : half - k;
        u64 a = (o * half + here) * inner + i, b = (o * half + there) * inner + i;
        C even_re = (re[a] + re[b]) * (C)0.5, even_im = (im[a] - im[b]) * (C)0.5;
        C odd_re = (im[a] + im[b]) * (C)0.5, odd_im = (re[b] - re[a]) * (C)0.5;
        C w_re = table_re[k], w_im = table_im[k];
        u64 to = (o * (half + 1) + k) * inner + i;
        out_re[to] = store<T>::from(even_re + w_re * odd_re - w_im * odd_im);
        out_im[to] = store<T>::from(even_im + w_re * odd_im + w_im * odd_re);
    });
}

// The conjugate of the pairs' spectrum, from the first `have` of `stored` bins along the axis, of a
// real signal of 2 half samples. Bins that are real for every real signal have their imaginary part
// ignored.
template <class T>
__global__ void fft_pack(u64 outer, u64 half, u64 inner, u64 stored, u64 have, const compute_t<T> *table_re,
                         const compute_t<T> *table_im, const T *x_re, const T *x_im, compute_t<T> *re,
                         compute_t<T> *im) {
    using C = compute_t<T>;
    for_each_point(outer, half, inner, [=](u64 o, u64 k, u64 i) {
        u64 a = (o * stored + k) * inner + i, b = (o * stored + half - k) * inner + i;
        bool has_a = k < have, has_b = half - k < have;
        C a_re = has_a ? load(x_re[a]) : (C)0, a_im = has_a && k > 0 ? load(x_im[a]) : (C)0;
        C b_re = has_b ? load(x_re[b]) : (C)0, b_im = has_b && k > 0 ? load(x_im[b]) : (C)0;
        C even_re = (a_re + b_re) * (C)0.5, even_im = (a_im - b_im) * (C)0.5;
        C apart_re = (a_re - b_re) * (C)0.5, apart_im = (a_im + b_im) * (C)0.5;
        C w_re = table_re[k], w_im = table_im[k];
        C odd_re = apart_re * w_re + apart_im * w_im, odd_im = apart_im * w_re - apart_re * w_im;
        u64 to = (o * half + k) * inner + i;
        re[to] = even_re - odd_im;
        im[to] = -(even_im + odd_re);
    });
}

// The samples from the conjugates of the pairs, times `scale`.
template <class T>
__global__ void fft_store_pairs(u64 outer, u64 half, u64 inner, const compute_t<T> *re, const compute_t<T> *im,
                                f64 scale, T *out) {
    using C = compute_t<T>;
    for_each_point(outer, half, inner, [=](u64 o, u64 k, u64 i) {
        u64 from = (o * half + k) * inner + i, to = (o * 2 * half + 2 * k) * inner + i;
        out[to] = store<T>::from(re[from] * (C)scale);
        out[to + inner] = store<T>::from(-im[from] * (C)scale);
    });
}

// The conjugate of the full spectrum of a real signal of `len` samples, from the first `have` of
// `stored` bins along the axis; missing bins are zero. Bins that are real for every real signal
// have their imaginary part ignored.
template <class T>
__global__ void fft_load_half(u64 outer, u64 len, u64 inner, u64 stored, u64 have, const T *x_re, const T *x_im,
                              compute_t<T> *re, compute_t<T> *im) {
    using C = compute_t<T>;
    for_each_point(outer, len, inner, [=](u64 o, u64 k, u64 i) {
        bool mirrored = k > len / 2;
        u64 bin = mirrored ? len - k : k;
        bool inside = bin < have;
        C sign = bin == 0 || 2 * bin == len ? (C)0 : mirrored ? (C)1 : (C)-1;
        u64 at = inside ? (o * stored + bin) * inner + i : 0, to = (o * len + k) * inner + i;
        re[to] = inside ? load(x_re[at]) : (C)0;
        im[to] = inside && sign != (C)0 ? load(x_im[at]) * sign : (C)0;
    });
}

// Stores the first `count` of `len` elements along the axis, times `scale`.
template <class T>
__global__ void fft_store(u64 outer, u64 len, u64 inner, u64 count, const compute_t<T> *x, f64 scale, T *out) {
    using C = compute_t<T>;
    for_each_point(outer, count, inner, [=](u64 o, u64 k, u64 i) {
        out[(o * count + k) * inner + i] = store<T>::from(x[(o * len + k) * inner + i] * (C)scale);
    });
}

// The transform of R values. root[j] is exp(-2 pi i j / R).
template <u32 R, class C> DEVICE void butterfly(C (&re)[R], C (&im)[R], const C (&root_re)[R], const C (&root_im)[R]) {
    if constexpr (R == 2) {
        C r = re[0], i = im[0];
        re[0] = r + re[1], im[0] = i + im[1];
        re[1] = r - re[1], im[1] = i - im[1];
    } else if constexpr (R == 4) {
        C even_re = re[0] + re[2], even_im = im[0] + im[2], back_re = re[0] - re[2], back_im = im[0] - im[2];
        C odd_re = re[1] + re[3], odd_im = im[1] + im[3], turn_re = re[1] - re[3], turn_im = im[1] - im[3];
        re[0] = even_re + odd_re, im[0] = even_im + odd_im;
        re[2] = even_re - odd_re, im[2] = even_im - odd_im;
        re[1] = back_re + turn_im, im[1] = back_im - turn_re;
        re[3] = back_re - turn_im, im[3] = back_im + turn_re;
    } else {
        // For odd R, x[j] and x[R - j] share their products.
        constexpr u32 H = R / 2;
        C sum_re[H], sum_im[H], difference_re[H], difference_im[H];
        C zero_re = re[0], zero_im = im[0];
        UNROLLED_EVERYWHERE
        for (u32 j = 1; j <= H; ++j) {
            sum_re[j - 1] = re[j] + re[R - j], sum_im[j - 1] = im[j] + im[R - j];
            difference_re[j - 1] = re[j] - re[R - j], difference_im[j - 1] = im[j] - im[R - j];
        }
        UNROLLED_EVERYWHERE
        for (u32 j = 0; j < H; ++j) re[0] += sum_re[j], im[0] += sum_im[j];
        UNROLLED_EVERYWHERE
        for (u32 k = 1; k <= H; ++k) {
            C a_re = zero_re, a_im = zero_im, b_re = (C)0, b_im = (C)0;
            UNROLLED_EVERYWHERE
            for (u32 j = 1; j <= H; ++j) {
                a_re += sum_re[j - 1] * root_re[j * k % R], a_im += sum_im[j - 1] * root_re[j * k % R];
                b_re += difference_im[j - 1] * root_im[j * k % R], b_im += difference_re[j - 1] * root_im[j * k % R];
            }
            re[k] = a_re - b_re, im[k] = a_im + b_im;
            re[R - k] = a_re + b_re, im[R - k] = a_im - b_im;
        }
    }
}

// One butterfly: reads R values that are `hop` apart, and writes their transform times the twiddles
// to places `stride` apart.
template <u32 R, class C>
DEVICE void stage_point(const C *in_re, const C *in_im, u64 hop, C *out_re, C *out_im, u64 stride, const C (&w_re)[R],
                        const C (&w_im)[R], const C (&root_re)[R], const C (&root_im)[R]) {
    C re[R], im[R];
    UNROLLED_EVERYWHERE
    for (u32 j = 0; j < R; ++j) re[j] = in_re[j * hop], im[j] = in_im[j * hop];
    butterfly<R>(re, im, root_re, root_im);
    out_re[0] = re[0], out_im[0] = im[0];
    UNROLLED_EVERYWHERE
    for (u32 k = 1; k < R; ++k) {
        out_re[k * stride] = re[k] * w_re[k] - im[k] * w_im[k];
        out_im[k * stride] = re[k] * w_im[k] + im[k] * w_re[k];
    }
}

// One pass of radix R: outer x [R, m, stride] -> outer x [m, R, stride]. The circle of this pass
// has R * m steps, each of which is `step` entries of the table. `stride` is the product of the
// inner axes and the radices of earlier passes. RADIX is signed because hipRTC 5 finds a kernel
// only by its demangled name, in which an unsigned argument would be `4u`.
template <i32 RADIX, class C>
__global__ void fft_stage(u64 outer, u64 m, u64 stride, u64 step, const C *table_re, const C *table_im, const C *in_re,
                          const C *in_im, C *out_re, C *out_im) {
    constexpr u32 R = (u32)RADIX;
    u64 hop = m * stride;
    if (ONE_THREAD && stride < 8) {
        // In the first passes the stride is too short to vectorise along, so the loop runs along m.
        for_each_column_group(outer, m, [=](u64 o, u64 first, u32 width) {
            C root_re[R], root_im[R];
            for (u32 k = 0; k < R; ++k) root_re[k] = table_re[m * k * step], root_im[k] = table_im[m * k * step];
            for (u64 s = 0; s < stride; ++s) {
                u64 from = o * R * hop + s + first * stride, to = o * m * R * stride + s + first * R * stride;
                INDEPENDENT
                for (u32 c = 0; c < width; ++c) {
                    C w_re[R], w_im[R];
                    UNROLLED_EVERYWHERE
                    for (u32 k = 1; k < R; ++k)
                        w_re[k] = table_re[(first + c) * k * step], w_im[k] = table_im[(first + c) * k * step];
                    stage_point<R>(in_re + from + c * stride, in_im + from + c * stride, hop,
                                   out_re + to + c * R * stride, out_im + to + c * R * stride, stride, w_re, w_im,
                                   root_re, root_im);
                }
            }
        });
        return;
    }
    for_each_column_group(outer * m, stride, [=](u64 row, u64 first, u32 width) {
        u64 p = row % m, from = (row / m) * R * hop + p * stride + first, to = row * R * stride + first;
        C w_re[R], w_im[R], root_re[R], root_im[R];
        for (u32 k = 0; k < R; ++k) {
            w_re[k] = table_re[p * k * step], w_im[k] = table_im[p * k * step];
            root_re[k] = table_re[m * k * step], root_im[k] = table_im[m * k * step];
        }
        INDEPENDENT
        for (u32 c = 0; c < width; ++c)
            stage_point<R>(in_re + from + c, in_im + from + c, hop, out_re + to + c, out_im + to + c, stride, w_re,
                           w_im, root_re, root_im);
    });
}

// The same for any radix; each result is a sum of its own.
template <class C>
__global__ void fft_stage_any(u64 outer, u64 radix, u64 m, u64 stride, u64 step, const C *table_re, const C *table_im,
                              const C *in_re, const C *in_im, C *out_re, C *out_im) {
    for_each_column_group(outer * m * radix, stride, [=](u64 row, u64 first, u32 width) {
        u64 k = row % radix, group = row / radix, p = group % m;
        u64 from = (group / m) * radix * m * stride + p * stride + first, to = row * stride + first;
        C w_re = table_re[p * k * step], w_im = table_im[p * k * step];
        for (u32 c = 0; c < width; ++c) {
            C re = (C)0, im = (C)0;
            u64 turn = 0;
            for (u64 j = 0; j < radix; ++j) {
                C root_re = table_re[turn * m * step], root_im = table_im[turn * m * step];
                C x_re = in_re[from + j * m * stride + c], x_im = in_im[from + j * m * stride + c];
                re += x_re * root_re - x_im * root_im;
                im += x_re * root_im + x_im * root_re;
                turn += k;
                if (turn >= radix) turn -= radix;
            }
            out_re[to + c] = re * w_re - im * w_im;
            out_im[to + c] = re * w_im + im * w_re;
        }
    });
}

// Bluestein's form: jk = (j^2 + k^2 - (j - k)^2) / 2 turns the transform into a convolution with
// the chirp exp(pi i k^2 / len). Transforms of `padded` >= 2 len - 1 elements compute the
// convolution. The table is for length 2 len.

// The input times the conjugate of the chirp, followed by zeros.
template <class C>
__global__ void fft_chirp(u64 outer, u64 len, u64 padded, u64 inner, const C *table_re, const C *table_im,
                          const C *in_re, const C *in_im, C *out_re, C *out_im) {
    for_each_column_group(outer * padded, inner, [=](u64 row, u64 first, u32 width) {
        u64 k = row % padded, to = row * inner + first;
        bool inside = k < len;
        u64 at = inside ? k * k % (2 * len) : 0, from = inside ? ((row / padded) * len + k) * inner + first : 0;
        C w_re = table_re[at], w_im = table_im[at];
        INDEPENDENT
        for (u32 c = 0; c < width; ++c) {
            C re = in_re[from + c], im = in_im[from + c];
            out_re[to + c] = inside ? re * w_re - im * w_im : (C)0;
            out_im[to + c] = inside ? re * w_im + im * w_re : (C)0;
        }
    });
}

// The chirp itself, at k and at padded - k.
template <class C>
__global__ void fft_chirp_filter(u64 len, u64 padded, const C *table_re, const C *table_im, C *out_re, C *out_im) {
    for_each(padded, [=](u64 at) {
        u64 k = at < len ? at : padded - at;
        bool inside = k < len;
        u64 turn = inside ? k * k % (2 * len) : 0;
        out_re[at] = inside ? table_re[turn] : (C)0;
        out_im[at] = inside ? -table_im[turn] : (C)0;
    });
}

// The conjugate of the product of the input's and the filter's transforms.
template <class C>
__global__ void fft_filter(u64 outer, u64 padded, u64 inner, const C *filter_re, const C *filter_im, const C *in_re,
                           const C *in_im, C *out_re, C *out_im) {
    for_each_column_group(outer * padded, inner, [=](u64 row, u64 first, u32 width) {
        u64 k = row % padded, at = row * inner + first;
        C w_re = filter_re[k], w_im = filter_im[k];
        INDEPENDENT
        for (u32 c = 0; c < width; ++c) {
            C re = in_re[at + c], im = in_im[at + c];
            out_re[at + c] = re * w_re - im * w_im;
            out_im[at + c] = -(re * w_im + im * w_re);
        }
    });
}

// The first `len` elements of the convolution: the conjugate of the input, divided by `padded`,
// times the conjugate of the chirp.
template <class C>
__global__ void fft_unchirp(u64 outer, u64 len, u64 padded, u64 inner, const C *table_re, const C *table_im,
                            const C *in_re, const C *in_im, C *out_re, C *out_im) {
    for_each_column_group(outer * len, inner, [=](u64 row, u64 first, u32 width) {
        u64 k = row % len, at = k * k % (2 * len), to = row * inner + first;
        u64 from = ((row / len) * padded + k) * inner + first;
        C w_re = table_re[at] / (C)padded, w_im = table_im[at] / (C)padded;
        INDEPENDENT
        for (u32 c = 0; c < width; ++c) {
            C re = in_re[from + c], im = -in_im[from + c];
            out_re[to + c] = re * w_re - im * w_im;
            out_im[to + c] = re * w_im + im * w_re;
        }
    });
}
