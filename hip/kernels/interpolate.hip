// Resizes planes ([planes, height, width], contiguous) and samples them at given points.
//
// Resizing is linear and separable: each output row and column has a span of input rows or columns
// and their weights. One launch per call computes these tables for both axes (rows first, then
// columns), so that the mode's arithmetic, in f64, runs once per row and column and not once per
// pixel. Gradients use the same tables in reverse: an input element sums over the outputs that read
// it. There are no atomics, so every run gives the same bits. f16 and bf16 are summed in f32.
#include "prelude.h"

constexpr i32 NEAREST = 0, BILINEAR = 1, BICUBIC = 2, LANCZOS = 3;
constexpr i32 ZEROS = 0, BORDER = 1, REFLECTION = 2;

// The most inputs along one axis that an output may read.
constexpr i32 TAPS = 6;

// A range of consecutive indices.
struct Span {
    i32 first, count;
};

// Keys' cubic convolution kernel with a = -3/4.
DEVICE f64 cubic(f64 t) {
    t = math::abs(t);
    if (t < 1.0) return (1.25 * t - 2.25) * t * t + 1.0;
    return t < 2.0 ? -0.75 * (((t - 5.0) * t + 8.0) * t - 4.0) : 0.0;
}

// sinc(t) sinc(t / 3) for |t| < 3, else 0.
DEVICE f64 lanczos(f64 t) {
    if (t == 0.0) return 1.0;
    if (math::abs(t) >= 3.0) return 0.0;
    f64 a = 3.141592653589793 * t, b = a / 3.0;
    return math::sin(a) * math::sin(b) / (a * b);
}

// For modes other than NEAREST. A point's base is the input at or directly left of the point.
// Returns how many inputs the point reads to the left of its base. It also reads the base, and one
// more input to the right of the base than to the left.
DEVICE i32 taps_before(i32 mode) { return mode == BILINEAR ? 0 : mode == BICUBIC ? 1 : 2; }

// The weight of the k-th input that a point reads. `part` is the distance of the point from its
// base.
DEVICE f64 weight_of(i32 mode, f64 part, i32 k) {
    if (mode == BILINEAR) return k == 0 ? 1.0 - part : part;
    f64 t = part - (f64)(k - taps_before(mode));
    return mode == BICUBIC ? cubic(t) : lanczos(t);
}

// Returns how many inputs the point `at` reads, ignoring the plane's ends, and computes the weight
// of each. `first` is the position of the first input; it is f64 because it may be anywhere.
DEVICE i32 weigh(i32 mode, f64 at, f64 &first, f64 *weights) {
    f64 base = math::floor(at);
    i32 before = taps_before(mode), count = 2 * (before + 1);
    first = base - (f64)before;
    for (i32 k = 0; k < count; ++k) weights[k] = weight_of(mode, at - base, k);
    return count;
}

// A position as an index, clamped to +-2^30, which no plane exceeds. NaN gives 0.
DEVICE i32 index_of(f64 at) {
    if (!(at > -1073741824.0)) return math::is_nan(at) ? 0 : -1073741824;
    return at < 1073741824.0 ? (i32)at : 1073741824;
}

DEVICE i32 inside(i32 i, i32 size) { return i < 0 ? 0 : i < size ? i : size - 1; }

// Writes spans[o] and weights[o * TAPS ..] for each output row o and then each output column.
// `y_ratio` and `x_ratio` are the distances in the input for one step in the output.
template <class C>
__global__ __launch_bounds__(256) void interpolate_table(u32 ih, u32 iw, u32 oh, u32 ow, i32 mode, i32 align_corners,
                                                         f64 y_ratio, f64 x_ratio, C *weights, Span *spans) {
    for_each(oh + ow, [=](u64 at) {
        bool row = at < oh;
        i32 size = (i32)(row ? ih : iw);
        f64 o = (f64)(row ? at : at - oh), ratio = row ? y_ratio : x_ratio;
        C *to = weights + at * TAPS;
        if (mode == NEAREST) {
            to[0] = (C)1;
            spans[at] = Span{inside(index_of(math::floor(o * ratio)), size), 1};
            return;
        }
        f64 position = align_corners ? o * ratio : (o + 0.5) * ratio - 0.5;
        f64 base = math::floor(position), merged[TAPS] = {}, sum = 0.0;
        i32 before = taps_before(mode), count = 2 * (before + 1), first = index_of(base - (f64)before);
        i32 low = inside(first, size), high = inside(first + count - 1, size);
        // Computes one weight after the other: a dozen f64 sines at once do not fit into the
        // registers.
        ROLLED
        for (i32 k = 0; k < count; ++k) {
            // Lanczos skips positions outside the plane; the other modes repeat its border.
            bool counts = mode <= BICUBIC || (first + k >= 0 && first + k < size);
            if (!counts) continue;
            f64 weight = weight_of(mode, position - base, k);
            i32 slot = inside(first + k, size) - low;
            for (i32 j = 0; j < TAPS; ++j) {
                if (j == slot) merged[j] += weight;
            }
            sum += weight;
        }
        f64 scale = mode <= BICUBIC || sum == 0.0 ? 1.0 : 1.0 / sum;
        for (i32 k = 0; k < TAPS; ++k) to[k] = (C)(merged[k] * scale);
        spans[at] = Span{low, high - low + 1};
    });
}

// The number of spans that begin (with `ends`: end) at or before i. From one span to the next,
// neither the start nor the end may decrease.
DEVICE i32 spans_until(const Span *spans, u32 count, i32 i, bool ends) {
    u32 low = 0, high = count;
    while (low < high) {
        u32 middle = (low + high) / 2;
        Span s = spans[middle];
        if (s.first + (ends ? s.count : 0) <= i) low = middle + 1;
        else high = middle;
    }
    return (i32)low;
}

// reach[i] = the outputs whose spans contain input row i and, after the rows, input column i.
__global__ void interpolate_reach(u32 ih, u32 iw, u32 oh, u32 ow, const Span *spans, Span *reach) {
    for_each(ih + iw, [=](u64 at) {
        bool row = at < ih;
        i32 i = (i32)(row ? at : at - ih);
        const Span *of = row ? spans : spans + oh;
        u32 outputs = row ? oh : ow;
        i32 first = spans_until(of, outputs, i, true);
        reach[at] = Span{first, spans_until(of, outputs, i, false) - first};
    });
}

template <class T>
__global__ void interpolate(u64 planes, u32 ih, u32 iw, u32 oh, u32 ow, const T *x, const compute_t<T> *weights,
                            const Span *spans, T *out) {
    using C = compute_t<T>;
    for_each_pixel(planes, oh, ow, [=](u64 plane, i32 oy, i32 ox, u64 at) {
        Span rows = spans[oy], columns = spans[oh + (u32)ox];
        const C *y_weights = weights + (u64)oy * TAPS, *x_weights = weights + (u64)(oh + (u32)ox) * TAPS;
        const T *from = x + (plane * ih + (u32)rows.first) * iw + (u32)columns.first;
        C sum = (C)0;
        for (i32 r = 0; r < rows.count; ++r) {
            C part = (C)0;
            for (i32 c = 0; c < columns.count; ++c) part += load(from[(u64)r * iw + (u32)c]) * x_weights[c];
            sum += part * y_weights[r];
        }
        out[at] = store<T>::from(sum);
    });
}

template <class T>
__global__ void interpolate_backward(u64 planes, u32 ih, u32 iw, u32 oh, u32 ow, const T *grad,
                                     const compute_t<T> *weights, const Span *spans, const Span *reach, T *out) {
    using C = compute_t<T>;
    for_each_pixel(planes, ih, iw, [=](u64 plane, i32 iy, i32 ix, u64 at) {
        Span rows = reach[iy], columns = reach[ih + (u32)ix];
        C sum = (C)0;
        for (i32 r = 0; r < rows.count; ++r) {
            u32 oy = (u32)(rows.first + r);
            const T *from = grad + (plane * oh + oy) * ow;
            C part = (C)0;
            for (i32 c = 0; c < columns.count; ++c) {
                u32 ox = (u32)(columns.first + c);
                part += load(from[ox]) * weights[(u64)(oh + ox) * TAPS + (u32)(ix - spans[oh + ox].first)];
            }
            sum += part * weights[(u64)oy * TAPS + (u32)(iy - spans[oy].first)];
        }
        out[at] = store<T>::from(sum);
    });
}

// ---------------------------------------------------------------- sampling at points

// Reflects at the centres of the first and last pixels (align_corners) or at their outer edges: a
// triangle wave.
DEVICE f64 reflected(f64 at, i32 size, bool align_corners) {
    f64 low = align_corners ? 0.0 : -0.5, span = align_corners ? (f64)(size - 1) : (f64)size;
    if (span <= 0.0) return low;
    f64 x = math::abs(at - low), period = 2.0 * span;
    x -= math::floor(x / period) * period;
    return span - math::abs(x - span) + low;
}

// The at most N inputs that a point reads along one axis. Index -1 stands for a zero.
template <class C, i32 N> struct Taps {
    i32 count;
    i32 index[N];
    C weight[N];
};

// The whole number nearest to `at`. A tie goes to the even one or to the one farther from 0.
DEVICE f64 nearest(f64 at, bool ties_to_even) {
    f64 whole = math::trunc(at);
    f64 away = math::abs(at - whole) >= 0.5 ? whole + math::copysign(1.0, at) : whole;
    return ties_to_even ? math::round(at) : away;
}

template <class C, i32 N>
DEVICE Taps<C, N> taps_at(f64 at, i32 size, i32 mode, i32 padding, bool align_corners, bool ties_to_even) {
    f64 weight[N], first, sum = 1.0;
    Taps<C, N> taps;
    taps.count = N;
    if constexpr (N == 2) {
        if (mode == NEAREST) {
            first = nearest(at, ties_to_even);
            weight[0] = 1.0;
            weight[1] = 0.0;
            taps.count = 1;
        } else {
            weigh(BILINEAR, at, first, weight);
        }
    } else {
        weigh(N == 4 ? BICUBIC : LANCZOS, at, first, weight);
    }
    if constexpr (N == 6) {
        sum = 0.0;
        UNROLLED // fully unrolled, so that the taps stay in registers
            for (i32 k = 0; k < N; ++k) sum += weight[k];
    }
    UNROLLED
    for (i32 k = 0; k < N; ++k) {
        f64 position = first + (f64)k;
        // In the other modes the point itself was reflected.
        if (padding == REFLECTION && N > 2) position = reflected(position, size, align_corners);
        i32 i = index_of(position), near = inside(i, size);
        taps.index[k] = padding == ZEROS && i != near ? -1 : near;
        taps.weight[k] = (C)(weight[k] / sum);
    }
    return taps;
}

// out[n, c, p] = plane [n, c] of x, sampled at the point grid[n, p] = (x, y). Coordinates -1 and 1
// are the plane's ends: the centres of its outer pixels (align_corners) or their outer edges.
// Padding applies to the point in modes of up to two taps, and to each tap in wider modes. A work
// item is a point and every `groups`-th channel. Positions are f64: in f32, a point of a wide plane
// would be off by a visible part of a pixel. N is the most taps that the mode has along an axis: 2
// (nearest, bilinear), 4 (bicubic) or 6 (Lanczos).
template <class T, i32 N>
__global__ __launch_bounds__(256) void grid_sample_2d(u64 batch, u32 channels, u32 groups, u32 ih, u32 iw, u64 points,
                                                      i32 mode, i32 padding, i32 align_corners, i32 ties_to_even,
                                                      const T *x, const T *grid, T *out) {
    using C = compute_t<T>;
    for_each(batch * groups * points, [=](u64 item) {
        u64 rest = item / points, point = item - rest * points, n = rest / groups;
        const T *at = grid + (n * points + point) * 2;
        f64 px = ((f64)load(at[0]) + 1.0) * 0.5, py = ((f64)load(at[1]) + 1.0) * 0.5;
        px = align_corners ? px * (f64)(iw - 1) : px * (f64)iw - 0.5;
        py = align_corners ? py * (f64)(ih - 1) : py * (f64)ih - 0.5;
        bool finite = !(math::is_nan(px) || math::is_inf(px) || math::is_nan(py) || math::is_inf(py));
        if (mode <= BILINEAR && padding == BORDER) {
            f64 right = (f64)(iw - 1), bottom = (f64)(ih - 1);
            px = !finite ? right * 0.5 : px < 0.0 ? 0.0 : px > right ? right : px;
            py = !finite ? bottom * 0.5 : py < 0.0 ? 0.0 : py > bottom ? bottom : py;
        } else if (mode <= BILINEAR && padding == REFLECTION && finite) {
            px = reflected(px, (i32)iw, align_corners != 0);
            py = reflected(py, (i32)ih, align_corners != 0);
        }
        Taps<C, N> columns = taps_at<C, N>(px, (i32)iw, mode, padding, align_corners != 0, ties_to_even != 0);
        Taps<C, N> rows = taps_at<C, N>(py, (i32)ih, mode, padding, align_corners != 0, ties_to_even != 0);
        for (u64 channel = rest - n * groups; channel < channels; channel += groups) {
            u64 plane = n * channels + channel;
            C sum = (C)0;
            UNROLLED
            for (i32 r = 0; r < N; ++r) {
                if (r >= rows.count) break;
                C part = (C)0;
                UNROLLED
                for (i32 c = 0; c < N; ++c) {
                    if (c >= columns.count) break;
                    bool zero = rows.index[r] < 0 || columns.index[c] < 0;
                    C value = zero ? (C)0 : (C)load(x[(plane * ih + (u32)rows.index[r]) * iw + (u32)columns.index[c]]);
                    part += value * columns.weight[c];
                }
                sum += part * rows.weight[r];
            }
            out[plane * points + point] = store<T>::from(sum);
        }
    });
}
