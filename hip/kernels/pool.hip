// Pooling of planes ([planes, height, width] or [planes, depth, height, width], contiguous), for
// what MIOpen does not support: any window, dilation, padding and ceil mode (the output's size is
// given). Every kernel, gradients included, computes an output element from its inputs. There are
// no atomics, so every run gives the same bits. f16 and bf16 are summed in f32.
#include "pool_window.h"
#include "prelude.h"

struct Slice {
    u64 plane;
    i32 z;
};

// The plane and depth of slice `index`, for planes of `depth` slices.
DEVICE Slice slice_of(u64 index, u32 depth) {
    u64 plane = divided(index, depth);
    return Slice{plane, (i32)(index - plane * depth)};
}

// The number of pixels of a line that a thread takes at once. On the CPU the loops over them
// vectorise. On GPUs neighbours share the divisions by sizes, which take longer than the rest, and
// their loads do not wait for each other.
constexpr i32 SPAN = ONE_THREAD ? 64 : 4;

// Calls f(line, slice, y, first, count) for pieces of at most SPAN columns of each line of the
// slices.
template <class F> DEVICE void for_each_piece(u64 slices, u32 height, u32 width, F f) {
    u32 pieces = (width + (u32)SPAN - 1) / (u32)SPAN;
    for_each(slices * height * pieces, [=](u64 piece) {
        u64 line = divided(piece, pieces), slice = divided(line, height);
        i32 first = (i32)(piece - line * pieces) * SPAN, rest = (i32)width - first;
        f(line, slice, (i32)(line - slice * height), first, rest < SPAN ? rest : SPAN);
    });
}

// For i in 0..count: if in[i * step] replaces best[i], it becomes best[i], and its position becomes
// place[i].
template <u32 STEP, class T, class C>
DEVICE void take_greater(C *best, i32 *place, const T *in, u32 step, i32 at, i32 count, bool nan_wins) {
    u32 s = STEP == 0 ? step : STEP;
    INDEPENDENT
    for (i32 i = 0; i < count; ++i) {
        C value = load(in[(u32)i * s]);
        bool take = replaces(value, best[i], place[i], nan_wins);
        best[i] = take ? value : best[i];
        place[i] = take ? at + i * (i32)s : place[i];
    }
}

template <class T, class I, class W>
DEVICE void max_pool(u64 planes, const W &w, i32 indexed, bool nan_wins, const T *x, T *out, I *indices) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        for_each_piece(planes * w.depth().out, w.h.out, w.w.out,
                       [=](u64 line, u64 slice, i32 oy, i32 first, i32 count) {
            Axis d = w.depth();
            Slice s = slice_of(slice, d.out);
            const T *in = x + s.plane * d.in * w.h.in * w.w.in;
            Range slices = taps(s.z, d), rows = taps(oy, w.h);
            C best[SPAN];
            i32 place[SPAN];
            for (i32 i = 0; i < SPAN; ++i) {
                best[i] = (C)-__builtin_inff();
                place[i] = -1;
            }
            for (i32 kz = slices.first; kz < slices.last; ++kz) {
                for (i32 ky = rows.first; ky < rows.last; ++ky) {
                    i32 row = (under(s.z, kz, d) * (i32)w.h.in + under(oy, ky, w.h)) * (i32)w.w.in;
                    for (i32 kx = 0; kx < (i32)w.w.kernel; ++kx) {
                        i32 step = (i32)w.w.stride, shift = under(0, kx, w.w),
                            end = (i32)w.w.in - shift; // o * step < end
                        i32 begin = shift < 0 ? (-shift + step - 1) / step : 0;
                        i32 last = end <= 0 ? 0 : (end + step - 1) / step;
                        begin = begin > first ? begin : first;
                        last = last < first + count ? last : first + count;
                        if (begin >= last) continue;
                        i32 at = row + begin * step + shift, o = begin - first, some = last - begin;
                        if (step == 1) take_greater<1>(best + o, place + o, in + at, 1, at, some, nan_wins);
                        else if (step == 2) take_greater<2>(best + o, place + o, in + at, 2, at, some, nan_wins);
                        else take_greater<0>(best + o, place + o, in + at, w.w.stride, at, some, nan_wins);
                    }
                }
            }
            u64 to = line * w.w.out + (u64)first;
            for (i32 i = 0; i < count; ++i) out[to + i] = store<T>::from(best[i]);
            if (!indexed) return;
            for (i32 i = 0; i < count; ++i) indices[to + i] = (I)place[i];
        });
        return;
    }
    for_each_piece(planes * w.depth().out, w.h.out, w.w.out, [=](u64 line, u64 slice, i32 oy, i32 first, i32 count) {
        Axis d = w.depth();
        Slice s = slice_of(slice, d.out);
        Range slices = taps(s.z, d), rows = taps(oy, w.h);
        const T *in = x + s.plane * d.in * w.h.in * w.w.in;
        i32 z0 = under(s.z, 0, d), y0 = under(oy, 0, w.h), x0 = under(first, 0, w.w);
        i32 columns = w.w.in == 0 ? 0 : (i32)w.w.kernel;
        C best[SPAN];
        i32 place[SPAN];
        UNROLLED
        for (i32 i = 0; i < SPAN; ++i) best[i] = (C)-__builtin_inff(), place[i] = -1;
        for (i32 kz = slices.first; kz < slices.last; ++kz) {
            i32 top = (z0 + kz * (i32)d.dilation) * (i32)w.h.in + y0;
            for (i32 ky = rows.first; ky < rows.last; ++ky) {
                i32 row = (top + ky * (i32)w.h.dilation) * (i32)w.w.in;
                for (i32 kx = 0; kx < columns; ++kx) {
                    i32 column = x0 + kx * (i32)w.w.dilation;
                    T value[SPAN];
                    UNROLLED
                    for (i32 i = 0; i < SPAN; ++i) {
                        u32 here = (u32)column + (u32)i * w.w.stride;
                        value[i] = in[row + (i32)(i < count && here < w.w.in ? here : 0)];
                    }
                    UNROLLED
                    for (i32 i = 0; i < SPAN; ++i) {
                        u32 here = (u32)column + (u32)i * w.w.stride;
                        C v = load(value[i]);
                        bool take = (here < w.w.in) & replaces(v, best[i], place[i], nan_wins);
                        best[i] = take ? v : best[i];
                        place[i] = take ? row + (i32)here : place[i];
                    }
                }
            }
        }
        u64 to = line * w.w.out + (u64)first;
        UNROLLED
        for (i32 i = 0; i < SPAN; ++i) {
            if (i >= count) continue;
            out[to + (u64)i] = store<T>::from(best[i]);
            if (indexed) indices[to + (u64)i] = (I)place[i];
        }
    });
}

// out = the greatest element of each window; indices = its position in the plane if `indexed`. Of
// equal elements the first counts. If `nan_wins`, the last NaN of a window is its maximum. Else a
// NaN is the maximum only if it comes first. An empty window gives -inf and -1.
template <class T, class I>
__global__ void max_pool2d(u64 planes, Window2 w, i32 indexed, i32 nan_wins, const T *x, T *out, I *indices) {
    max_pool(planes, w, indexed, nan_wins != 0, x, out, indices);
}

template <class T>
__global__ void max_pool3d(u64 planes, Window3 w, i32 indexed, i32 nan_wins, const T *x, T *out, i32 *indices) {
    max_pool(planes, w, indexed, nan_wins != 0, x, out, indices);
}

template <class T, class I, class W>
DEVICE void max_pool_backward(u64 planes, const W &w, const T *grad, const I *indices, u64 *flag, T *out) {
    using C = compute_t<T>;
    u64 pixels = (u64)w.depth().in * w.h.in * w.w.in;
    // With one thread, each output's gradient is added to the element it came from: directly in the
    // result, plane by plane, if the result's type keeps the sums unrounded, else in a line's sums.
    if constexpr (ONE_THREAD && is_same<T, C>::value) {
        u64 outputs = (u64)w.depth().out * w.h.out * w.w.out;
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
        for_each_piece(planes * w.depth().in, w.h.in, w.w.in, [=](u64 line, u64 slice, i32 iy, i32 first, i32 count) {
            Axis d = w.depth();
            Slice s = slice_of(slice, d.in);
            Range slices = reached(s.z, d), rows = reached(iy, w.h);
            i32 begin = reached(first, w.w).first, end = reached(first + count - 1, w.w).last;
            C sum[SPAN + 1] = {}; // the last one collects gradients that belong to other pieces
            u64 from = ((u64)s.z * w.h.in + (u64)iy) * w.w.in + (u64)first;
            for (i32 oz = slices.first; oz < slices.last; ++oz) {
                for (i32 oy = rows.first; oy < rows.last; ++oy) {
                    u64 o = ((s.plane * d.out + (u64)oz) * w.h.out + (u64)oy) * w.w.out;
                    for (i32 ox = begin; ox < end; ++ox) {
                        u64 at = (u64)indices[o + (u64)ox] - from;
                        check_place(indices[o + (u64)ox], pixels, flag);
                        sum[at < (u64)count ? at : SPAN] += load(grad[o + (u64)ox]);
                    }
                }
            }
            for (i32 i = 0; i < count; ++i) out[line * w.w.in + (u64)(first + i)] = store<T>::from(sum[i]);
        });
        return;
    }
    for_each_piece(planes * w.depth().in, w.h.in, w.w.in, [=](u64 line, u64 slice, i32 iy, i32 first, i32 count) {
        Axis d = w.depth();
        Slice s = slice_of(slice, d.in);
        Range slices = reached(s.z, d), rows = reached(iy, w.h);
        i32 begin = reached(first, w.w).first, end = reached(first + count - 1, w.w).last;
        I place = (I)((s.z * (i32)w.h.in + iy) * (i32)w.w.in + first);
        C sum[SPAN] = {};
        for (i32 oz = slices.first; oz < slices.last; ++oz) {
            for (i32 oy = rows.first; oy < rows.last; ++oy) {
                u64 o = ((s.plane * d.out + (u64)oz) * w.h.out + (u64)oy) * w.w.out;
                for (i32 ox = begin; ox < end; ++ox) {
                    I index = indices[o + (u64)ox];
                    C g = load(grad[o + (u64)ox]);
                    check_place(index, pixels, flag);
                    UNROLLED
                    for (i32 i = 0; i < SPAN; ++i) sum[i] += index == (I)(place + (I)i) ? g : (C)0;
                }
            }
        }
        UNROLLED
        for (i32 i = 0; i < SPAN; ++i) {
            if (i < count) out[line * w.w.in + (u64)(first + i)] = store<T>::from(sum[i]);
        }
    });
}

// The gradient of each input: the sum over the windows that selected it.
template <class T, class I>
__global__ void max_pool2d_backward(u64 planes, Window2 w, const T *grad, const I *indices, u64 *flag, T *out) {
    max_pool_backward(planes, w, grad, indices, flag, out);
}

template <class T>
__global__ void max_pool3d_backward(u64 planes, Window3 w, const T *grad, const i32 *indices, u64 *flag, T *out) {
    max_pool_backward(planes, w, grad, indices, flag, out);
}

template <class T, class W>
DEVICE void avg_pool(u64 planes, const W &window, i32 count_include_pad, const T *x, T *out) {
    using C = compute_t<T>;
    for_each_pixel(planes * window.depth().out, window.h.out, window.w.out, [=](u64 slice, i32 oy, i32 ox, u64 at) {
        W w = window.dense();
        Axis d = w.depth();
        Slice s = slice_of(slice, d.out);
        Range slices = taps(s.z, d), rows = taps(oy, w.h), columns = taps(ox, w.w);
        const T *in = x + s.plane * d.in * w.h.in * w.w.in;
        i32 z0 = under(s.z, 0, d), y0 = under(oy, 0, w.h), x0 = under(ox, 0, w.w);
        C sum = (C)0;
        for (i32 kz = slices.first; kz < slices.last; ++kz) {
            for (i32 ky = rows.first; ky < rows.last; ++ky) {
                i32 row = ((z0 + kz) * (i32)w.h.in + y0 + ky) * (i32)w.w.in + x0;
                for (i32 kx = columns.first; kx < columns.last; ++kx) sum += load(in[row + kx]);
            }
        }
        out[at] = store<T>::from(sum / divisor<C>(w, s.z, oy, ox, count_include_pad));
    });
}

template <class T> __global__ void avg_pool2d(u64 planes, Window2 w, i32 count_include_pad, const T *x, T *out) {
    avg_pool(planes, w, count_include_pad, x, out);
}

template <class T> __global__ void avg_pool3d(u64 planes, Window3 w, i32 count_include_pad, const T *x, T *out) {
    avg_pool(planes, w, count_include_pad, x, out);
}

template <class T, class W>
DEVICE void avg_pool_backward(u64 planes, const W &window, i32 count_include_pad, const T *grad, T *out) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        u64 all = planes * window.depth().in;
        for_each_piece(all, window.h.in, window.w.in, [=](u64 line, u64 slice, i32 iy, i32 first, i32 count) {
            W w = window.dense();
            Axis d = w.depth();
            Slice s = slice_of(slice, d.in);
            Range slices = reached(s.z, d), rows = reached(iy, w.h);
            i32 begin = reached(first, w.w).first, end = reached(first + count - 1, w.w).last;
            i32 pad = (i32)w.w.padding, step = (i32)w.w.stride, low = count_include_pad ? -pad : 0,
                high = (i32)w.w.in - low;
            C sum[SPAN] = {}, share[SPAN];
            for (i32 oz = slices.first; oz < slices.last; ++oz) {
                for (i32 oy = rows.first; oy < rows.last; ++oy) {
                    C face = (C)counted(oz, d, count_include_pad) * (C)counted(oy, w.h, count_include_pad);
                    const T *from = grad + ((s.plane * d.out + (u64)oz) * w.h.out + (u64)oy) * w.w.out;
                    for (i32 o = begin; o < end; o += SPAN) {
                        i32 outputs = end - o < SPAN ? end - o : SPAN;
                        INDEPENDENT
                        for (i32 i = 0; i < outputs; ++i) {
                            i32 x0 = (o + i) * step - pad, x1 = x0 + (i32)w.w.kernel;
                            i32 width = (x1 < high ? x1 : high) - (x0 > low ? x0 : low);
                            share[i] = load(from[o + i]) / (face * (C)width);
                        }
                        for (i32 kx = 0; kx < (i32)w.w.kernel; ++kx) {
                            // The pixel of output o + i under kx is element at + i * step of the
                            // piece.
                            i32 at = o * step - pad + kx - first;
                            i32 i = at < 0 ? (-at + step - 1) / step : 0;
                            i32 last = at >= count ? 0 : (count - at + step - 1) / step;
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
            }
            for (i32 i = 0; i < count; ++i) out[line * w.w.in + (u64)(first + i)] = store<T>::from(sum[i]);
        });
        return;
    }
    for_each_pixel(planes * window.depth().in, window.h.in, window.w.in, [=](u64 slice, i32 iy, i32 ix, u64 at) {
        W w = window.dense();
        Axis d = w.depth();
        Slice s = slice_of(slice, d.in);
        Range slices = reached(s.z, d), rows = reached(iy, w.h), columns = reached(ix, w.w);
        C sum = (C)0;
        for (i32 oz = slices.first; oz < slices.last; ++oz) {
            for (i32 oy = rows.first; oy < rows.last; ++oy) {
                C face = (C)counted(oz, d, count_include_pad) * (C)counted(oy, w.h, count_include_pad);
                const T *from = grad + ((s.plane * d.out + (u64)oz) * w.h.out + (u64)oy) * w.w.out;
                for (i32 ox = columns.first; ox < columns.last; ++ox) {
                    sum += load(from[ox]) / (face * (C)counted(ox, w.w, count_include_pad));
                }
            }
        }
        out[at] = store<T>::from(sum);
    });
}

// The gradient of each input: the sum of the gradients of all windows that contain it, each divided
// as its output was.
template <class T>
__global__ void avg_pool2d_backward(u64 planes, Window2 w, i32 count_include_pad, const T *grad, T *out) {
    avg_pool_backward(planes, w, count_include_pad, grad, out);
}

template <class T>
__global__ void avg_pool3d_backward(u64 planes, Window3 w, i32 count_include_pad, const T *grad, T *out) {
    avg_pool_backward(planes, w, count_include_pad, grad, out);
}

// Output o averages the inputs from floor(o * inputs / outputs) to ceil((o + 1) * inputs /
// outputs).
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
        // The outputs whose share contains input i: from floor(i * outputs / inputs) to the last
        // one whose share begins at or before i.
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
