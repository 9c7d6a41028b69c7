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

// The pixels of a line that a thread takes at once: on the CPU loops over them are vectorised.
constexpr i32 SPAN = ONE_THREAD ? 64 : 1;

// Calls f(line, plane, y, first, count) for the pieces of at most SPAN columns of each line of planes.
template <class F> DEVICE void for_each_piece(u64 planes, u32 height, u32 width, F f) {
    u32 pieces = (width + (u32)SPAN - 1) / (u32)SPAN;
    for_each(planes * height * pieces, [=](u64 piece) {
        u64 line = piece / pieces, plane = line / height;
        i32 first = (i32)(piece - line * pieces) * SPAN, rest = (i32)width - first;
        f(line, plane, (i32)(line - plane * height), first, rest < SPAN ? rest : SPAN);
    });
}

// best[i], place[i] become what lies at in[i * step] where that is greater or the first seen, for i in 0..count.
template <u32 STEP, class T, class C> DEVICE void take_greater(C *best, i32 *place, const T *in, u32 step, i32 at, i32 count) {
    u32 s = STEP == 0 ? step : STEP;
    INDEPENDENT
    for (i32 i = 0; i < count; ++i) {
        C value = load(in[(u32)i * s]);
        bool take = (place[i] < 0) | (value > best[i]);
        best[i] = take ? value : best[i];
        place[i] = take ? at + i * (i32)s : place[i];
    }
}

// out = the greatest element of each window, indices = its place in the plane if `indexed`. The first of equals; an element
// replaces the first one seen only if greater, so NaN stays where it came first. A window that holds nothing gives -inf and -1.
template <class T, class I> __global__ void max_pool2d(u64 planes, Window w, i32 indexed, const T *x, T *out, I *indices) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        for_each_piece(planes, w.oh, w.ow, [=](u64 line, u64 plane, i32 oy, i32 first, i32 count) {
            const T *in = x + plane * w.ih * w.iw;
            Range rows = taps(oy, w.ih, w.kh, w.sh, w.ph, w.dh);
            C best[SPAN];
            i32 place[SPAN];
            for (i32 i = 0; i < SPAN; ++i) {
                best[i] = (C)-__builtin_inff();
                place[i] = -1;
            }
            for (i32 ky = rows.first; ky < rows.last; ++ky) {
                i32 row = (oy * (i32)w.sh - (i32)w.ph + ky * (i32)w.dh) * (i32)w.iw;
                for (i32 kx = 0; kx < (i32)w.kw; ++kx) {
                    i32 shift = kx * (i32)w.dw - (i32)w.pw, end = (i32)w.iw - shift; // o * sw < end
                    i32 begin = shift < 0 ? (-shift + (i32)w.sw - 1) / (i32)w.sw : 0;
                    i32 last = end <= 0 ? 0 : (end + (i32)w.sw - 1) / (i32)w.sw;
                    begin = begin > first ? begin : first;
                    last = last < first + count ? last : first + count;
                    if (begin >= last) continue;
                    i32 at = row + begin * (i32)w.sw + shift, o = begin - first;
                    if (w.sw == 1) take_greater<1>(best + o, place + o, in + at, 1, at, last - begin);
                    else if (w.sw == 2) take_greater<2>(best + o, place + o, in + at, 2, at, last - begin);
                    else take_greater<0>(best + o, place + o, in + at, w.sw, at, last - begin);
                }
            }
            u64 to = line * w.ow + (u64)first;
            for (i32 i = 0; i < count; ++i) out[to + i] = store<T>::from(best[i]);
            if (!indexed) return;
            for (i32 i = 0; i < count; ++i) indices[to + i] = (I)place[i];
        });
        return;
    }
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
        if (indexed) indices[at] = (I)place;
    });
}

// An index that is neither in the plane nor the -1 of an empty window raises the flag.
template <class I> DEVICE void check_place(I index, u64 pixels, u64 *flag) {
    if (!in_range((u64)(i64)index + 1, pixels + 1)) raise_index(flag, index, pixels);
}

// Each input's gradient: the sum over the windows that chose it.
template <class T, class I>
__global__ void max_pool2d_backward(u64 planes, Window w, const T *grad, const I *indices, u64 *flag, T *out) {
    using C = compute_t<T>;
    u64 pixels = (u64)w.ih * w.iw;
    // In one thread, outputs are sent to where they came from: by planes into the result itself, which must not be rounded
    // between two of them, else by lines.
    if constexpr (ONE_THREAD && is_same<T, C>::value) {
        u64 outputs = (u64)w.oh * w.ow;
        for_each(planes, [=](u64 plane) {
            T *to = out + plane * pixels;
            for (u64 i = 0; i < pixels; ++i) to[i] = (T)0;
            for (u64 o = plane * outputs; o < (plane + 1) * outputs; ++o) {
                if ((u64)indices[o] < pixels) to[indices[o]] += grad[o];
                else check_place(indices[o], pixels, flag);
            }
        });
        return;
    } else if constexpr (ONE_THREAD) {
        for_each_piece(planes, w.ih, w.iw, [=](u64 line, u64 plane, i32 iy, i32 first, i32 count) {
            Range rows = reached(iy, w.oh, w.kh, w.sh, w.ph, w.dh);
            i32 begin = reached(first, w.ow, w.kw, w.sw, w.pw, w.dw).first;
            i32 end = reached(first + count - 1, w.ow, w.kw, w.sw, w.pw, w.dw).last;
            C sum[SPAN + 1] = {}; // the last: for those that come from elsewhere
            u64 from = (u64)iy * w.iw + (u64)first;
            for (i32 oy = rows.first; oy < rows.last; ++oy) {
                u64 o = (plane * w.oh + (u64)oy) * w.ow;
                for (i32 ox = begin; ox < end; ++ox) {
                    u64 at = (u64)indices[o + (u64)ox] - from;
                    check_place(indices[o + (u64)ox], pixels, flag);
                    sum[at < (u64)count ? at : SPAN] += load(grad[o + (u64)ox]);
                }
            }
            for (i32 i = 0; i < count; ++i) out[line * w.iw + (u64)(first + i)] = store<T>::from(sum[i]);
        });
        return;
    }
    for_each_pixel(planes, w.ih, w.iw, [=](u64 plane, i32 iy, i32 ix, u64 at) {
        Range rows = reached(iy, w.oh, w.kh, w.sh, w.ph, w.dh), columns = reached(ix, w.ow, w.kw, w.sw, w.pw, w.dw);
        u64 base = plane * w.oh * w.ow;
        I place = (I)(iy * (i32)w.iw + ix);
        C sum = (C)0;
        for (i32 oy = rows.first; oy < rows.last; ++oy) {
            for (i32 ox = columns.first; ox < columns.last; ++ox) {
                u64 o = base + (u64)oy * w.ow + (u64)ox;
                if (indices[o] == place) sum += load(grad[o]);
                else check_place(indices[o], pixels, flag);
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
    if constexpr (ONE_THREAD) {
        // Averages have no dilation.
        for_each_piece(planes, w.ih, w.iw, [=](u64 line, u64 plane, i32 iy, i32 first, i32 count) {
            Range rows = reached(iy, w.oh, w.kh, w.sh, w.ph, 1);
            i32 begin = reached(first, w.ow, w.kw, w.sw, w.pw, 1).first;
            i32 end = reached(first + count - 1, w.ow, w.kw, w.sw, w.pw, 1).last;
            i32 pad = (i32)w.pw, step = (i32)w.sw, low = count_include_pad ? -pad : 0, high = (i32)w.iw - low;
            C sum[SPAN] = {}, share[SPAN];
            for (i32 oy = rows.first; oy < rows.last; ++oy) {
                i32 y0 = oy * (i32)w.sh - (i32)w.ph, bottom = count_include_pad ? (i32)w.ih + (i32)w.ph : (i32)w.ih;
                i32 top = count_include_pad || y0 > 0 ? y0 : 0;
                C height = (C)((y0 + (i32)w.kh < bottom ? y0 + (i32)w.kh : bottom) - top);
                const T *from = grad + (plane * w.oh + (u64)oy) * w.ow;
                for (i32 o = begin; o < end; o += SPAN) {
                    i32 outputs = end - o < SPAN ? end - o : SPAN;
                    INDEPENDENT
                    for (i32 i = 0; i < outputs; ++i) {
                        i32 x0 = (o + i) * step - pad, x1 = x0 + (i32)w.kw;
                        i32 width = (x1 < high ? x1 : high) - (x0 > low ? x0 : low);
                        share[i] = load(from[o + i]) / (height * (C)width);
                    }
                    for (i32 kx = 0; kx < (i32)w.kw; ++kx) {
                        // Output o + i's pixel under kx is at + i * step of the piece.
                        i32 at = o * step - pad + kx - first;
                        i32 i = at < 0 ? (-at + step - 1) / step : 0, last = at >= count ? 0 : (count - at + step - 1) / step;
                        last = last < outputs ? last : outputs;
                        if (step == 1) {
                            INDEPENDENT
                            for (i32 k = i; k < last; ++k) sum[at + k] += share[k];
                        } else {
                            for (; i < last; ++i) sum[at + i * step] += share[i];
                        }
                    }
                }
            }
            for (i32 i = 0; i < count; ++i) out[line * w.iw + (u64)(first + i)] = store<T>::from(sum[i]);
        });
        return;
    }
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
