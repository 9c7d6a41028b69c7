// Pooling of planes ([planes, height, width], contiguous), for what MIOpen does not take: any window, dilation, padding and ceil
// mode (the output's size is given). Every kernel computes an output element from its inputs, gradients too: no atomics, the same
// bits on every run. f16 and bf16 are summed in f32.
#include "prelude.h"

// Input and output size, kernel, stride, padding, dilation; height before width.
struct Window {
    u32 ih, iw, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw;
};

struct Range {
    i32 first, last; // not included
};

// The kernel positions k for which o * stride + k * dilation - padding lies in 0..size.
DEVICE Range taps(i32 o, u32 size, u32 kernel, u32 stride, u32 padding, u32 dilation) {
    i32 start = o * (i32)stride - (i32)padding;
    i32 first = start < 0 ? (-start + (i32)dilation - 1) / (i32)dilation : 0;
    i32 last = start >= (i32)size ? 0 : ((i32)size - start + (i32)dilation - 1) / (i32)dilation;
    return Range{first, last < (i32)kernel ? last : (i32)kernel};
}

// The outputs whose windows may reach input i.
DEVICE Range reached(i32 i, u32 outputs, u32 kernel, u32 stride, u32 padding, u32 dilation) {
    i32 at = i + (i32)padding, before = at - (i32)((kernel - 1) * dilation);
    i32 first = before <= 0 ? 0 : (before + (i32)stride - 1) / (i32)stride;
    i32 last = at / (i32)stride + 1;
    return Range{first, last < (i32)outputs ? last : (i32)outputs};
}

// out = the greatest element of each window, indices = its place in the plane. The first of equals; an element replaces the first
// one seen only if greater, so NaN stays where it came first. A window that holds nothing gives -inf and -1.
template <class T, class I> __global__ void max_pool2d(u64 planes, Window w, const T *x, T *out, I *indices) {
    using C = compute_t<T>;
    for_each_pixel(planes, w.oh, w.ow, [=](u64 plane, i32 oy, i32 ox, u64 at) {
        Range rows = taps(oy, w.ih, w.kh, w.sh, w.ph, w.dh), columns = taps(ox, w.iw, w.kw, w.sw, w.pw, w.dw);
        const T *in = x + plane * w.ih * w.iw;
        i32 y0 = oy * (i32)w.sh - (i32)w.ph, x0 = ox * (i32)w.sw - (i32)w.pw;
        C best = (C)-__builtin_inff();
        i32 place = -1;
        for (i32 ky = rows.first; ky < rows.last; ++ky) {
            for (i32 kx = columns.first; kx < columns.last; ++kx) {
                i32 here = (y0 + ky * (i32)w.dh) * (i32)w.iw + x0 + kx * (i32)w.dw;
                C value = load(in[here]);
                bool take = place < 0 || value > best;
                best = take ? value : best;
                place = take ? here : place;
            }
        }
        out[at] = store<T>::from(best);
        if (indices != nullptr) indices[at] = (I)place;
    });
}

// Each input's gradient: the sum over the windows that chose it.
template <class T, class I> __global__ void max_pool2d_backward(u64 planes, Window w, const T *grad, const I *indices, T *out) {
    using C = compute_t<T>;
    for_each_pixel(planes, w.ih, w.iw, [=](u64 plane, i32 iy, i32 ix, u64 at) {
        Range rows = reached(iy, w.oh, w.kh, w.sh, w.ph, w.dh), columns = reached(ix, w.ow, w.kw, w.sw, w.pw, w.dw);
        u64 base = plane * w.oh * w.ow;
        I place = (I)(iy * (i32)w.iw + ix);
        C sum = (C)0;
        for (i32 oy = rows.first; oy < rows.last; ++oy) {
            for (i32 ox = columns.first; ox < columns.last; ++ox) {
                u64 o = base + (u64)oy * w.ow + (u64)ox;
                if (indices[o] == place) sum += load(grad[o]);
            }
        }
        out[at] = store<T>::from(sum);
    });
}

// How many elements a window is divided by: those within the padded input, or within the input alone; at least 1.
DEVICE i32 divisor(const Window &w, i32 oy, i32 ox, i32 count_include_pad) {
    i32 rows, columns;
    if (count_include_pad) {
        Range r = taps(oy, w.ih + 2 * w.ph, w.kh, w.sh, 0, w.dh), c = taps(ox, w.iw + 2 * w.pw, w.kw, w.sw, 0, w.dw);
        rows = r.last - r.first;
        columns = c.last - c.first;
    } else {
        Range r = taps(oy, w.ih, w.kh, w.sh, w.ph, w.dh), c = taps(ox, w.iw, w.kw, w.sw, w.pw, w.dw);
        rows = r.last - r.first;
        columns = c.last - c.first;
    }
    return rows > 0 && columns > 0 ? rows * columns : 1;
}

template <class T> __global__ void avg_pool2d(u64 planes, Window w, i32 count_include_pad, const T *x, T *out) {
    using C = compute_t<T>;
    for_each_pixel(planes, w.oh, w.ow, [=](u64 plane, i32 oy, i32 ox, u64 at) {
        Range rows = taps(oy, w.ih, w.kh, w.sh, w.ph, w.dh), columns = taps(ox, w.iw, w.kw, w.sw, w.pw, w.dw);
        const T *in = x + plane * w.ih * w.iw;
        i32 y0 = oy * (i32)w.sh - (i32)w.ph, x0 = ox * (i32)w.sw - (i32)w.pw;
        C sum = (C)0;
        for (i32 ky = rows.first; ky < rows.last; ++ky) {
            for (i32 kx = columns.first; kx < columns.last; ++kx) {
                sum += load(in[(y0 + ky * (i32)w.dh) * (i32)w.iw + x0 + kx * (i32)w.dw]);
            }
        }
        out[at] = store<T>::from(sum / (C)divisor(w, oy, ox, count_include_pad));
    });
}

// Each input's gradient: the sum over the windows that hold it of their gradients, divided as the output was.
template <class T> __global__ void avg_pool2d_backward(u64 planes, Window w, i32 count_include_pad, const T *grad, T *out) {
    using C = compute_t<T>;
    for_each_pixel(planes, w.ih, w.iw, [=](u64 plane, i32 iy, i32 ix, u64 at) {
        Range rows = reached(iy, w.oh, w.kh, w.sh, w.ph, w.dh), columns = reached(ix, w.ow, w.kw, w.sw, w.pw, w.dw);
        u64 base = plane * w.oh * w.ow;
        C sum = (C)0;
        for (i32 oy = rows.first; oy < rows.last; ++oy) {
            if ((iy + (i32)w.ph - oy * (i32)w.sh) % (i32)w.dh != 0) continue;
            for (i32 ox = columns.first; ox < columns.last; ++ox) {
                if ((ix + (i32)w.pw - ox * (i32)w.sw) % (i32)w.dw != 0) continue;
                sum += load(grad[base + (u64)oy * w.ow + (u64)ox]) / (C)divisor(w, oy, ox, count_include_pad);
            }
        }
        out[at] = store<T>::from(sum);
    });
}

// Output o averages the inputs from floor(o * inputs / outputs) to ceil((o + 1) * inputs / outputs).
DEVICE Range share(u32 o, u32 inputs, u32 outputs) {
    u64 first = (u64)o * inputs / outputs, last = ((u64)(o + 1) * inputs + outputs - 1) / outputs;
    return Range{(i32)first, (i32)last};
}

template <class T> __global__ void adaptive_avg_pool2d(u64 planes, u32 ih, u32 iw, u32 oh, u32 ow, const T *x, T *out) {
    using C = compute_t<T>;
    for_each_pixel(planes, oh, ow, [=](u64 plane, i32 oy, i32 ox, u64 at) {
        Range rows = share((u32)oy, ih, oh), columns = share((u32)ox, iw, ow);
        const T *in = x + plane * ih * iw;
        C sum = (C)0;
        for (i32 y = rows.first; y < rows.last; ++y) {
            C part = (C)0;
            for (i32 c = columns.first; c < columns.last; ++c) part += load(in[y * (i32)iw + c]);
            sum += part;
        }
        out[at] = store<T>::from(sum / (C)((rows.last - rows.first) * (columns.last - columns.first)));
    });
}

template <class T>
__global__ void adaptive_avg_pool2d_backward(u64 planes, u32 ih, u32 iw, u32 oh, u32 ow, const T *grad, T *out) {
    using C = compute_t<T>;
    for_each_pixel(planes, ih, iw, [=](u64 plane, i32 iy, i32 ix, u64 at) {
        // The outputs whose share holds input i: from floor(i * outputs / inputs), the last one that begins at or before i.
        u32 top = (u32)((u64)(u32)iy * oh / ih), left = (u32)((u64)(u32)ix * ow / iw);
        const T *from = grad + plane * oh * ow;
        C sum = (C)0;
        for (u32 oy = top; oy < oh; ++oy) {
            Range rows = share(oy, ih, oh);
            if (rows.first > iy) break;
            for (u32 ox = left; ox < ow; ++ox) {
                Range columns = share(ox, iw, ow);
                if (columns.first > ix) break;
                sum += load(from[oy * ow + ox]) / (C)((rows.last - rows.first) * (columns.last - columns.first));
            }
        }
        out[at] = store<T>::from(sum);
    });
}
