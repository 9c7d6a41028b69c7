// Convolution in 3-D: forward, both gradients, and the patches of images in both directions. In 1-D
// and 2-D the outer axes have size 1. For what MIOpen does not support: f64, and tensors of 2^31
// elements. Every kernel computes an output element as a sum over inputs, without atomics, so every
// run gives the same bits. f16 and bf16 are summed in f32.
#include "prelude.h"

// The number of groups; the input (ic) and output channels (oc) of each group; then, in the order
// depth, height, width, the sizes of input (i), output (o) and window (k), the stride (s), padding
// (p) and dilation (d).
struct Convolution {
    u32 groups, ic, oc, id, ih, iw, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw;
};

// The number of channels that a thread sums at once: each element it loads serves all of them.
constexpr u32 CHANNELS = 4;
// The number of pixels of a line that a thread sums at once. On the CPU the loops over them
// vectorise.
constexpr i32 SPAN = ONE_THREAD ? 64 : 1;

struct Range {
    i32 first, last; // `last` is exclusive
};

// The positions k of the window for which o * stride + k * dilation - padding is in 0..size.
DEVICE Range taps(u32 o, u32 size, u32 kernel, u32 stride, u32 padding, u32 dilation) {
    i32 start = (i32)(o * stride) - (i32)padding;
    i32 first = start < 0 ? (i32)(((u32)-start + dilation - 1) / dilation) : 0;
    i32 last = start >= (i32)size ? 0 : (i32)(((u32)((i32)size - start) + dilation - 1) / dilation);
    return Range{first, last < (i32)kernel ? last : (i32)kernel};
}

// The outputs o in 0..outputs for which o * stride + shift is in first..last.
DEVICE Range reaching(i32 first, i32 last, i32 shift, u32 outputs, u32 stride) {
    i32 low = first - shift, high = last - shift;
    i32 begin = low <= 0 ? 0 : (i32)(((u32)low + stride - 1) / stride);
    i32 end = high <= 0 ? 0 : (i32)(((u32)high + stride - 1) / stride);
    return Range{begin, end < (i32)outputs ? end : (i32)outputs};
}

// The output whose window has input `at` under position k, or -1.
DEVICE i32 source(i32 at, i32 k, u32 outputs, u32 stride, u32 padding, u32 dilation) {
    i32 from = at + (i32)padding - k * (i32)dilation;
    if (from < 0) return -1;
    u32 o = (u32)from / stride;
    return o * stride == (u32)from && o < outputs ? (i32)o : -1;
}

// Calls f(row, first, count) for pieces [first, first + count) of `rows` lines of `width` pixels.
// Each pixel is in one piece.
template <class F> DEVICE void for_each_piece(u64 rows, u32 width, F f) {
    if constexpr (ONE_THREAD) {
        u32 pieces = (width + (u32)SPAN - 1) / (u32)SPAN;
        for_each(rows * pieces, [=](u64 i) {
            u64 row = i / pieces;
            i32 first = (i32)(i - row * pieces) * SPAN, rest = (i32)width - first;
            f(row, first, rest < SPAN ? rest : SPAN);
        });
    } else {
        for_each(rows * width, [=](u64 at) {
            u64 row = at / width;
            f(row, (i32)(at - row * width), 1);
        });
    }
}

// to[channel][first + i * to_step] += from[i * from_step] * factor[channel] for i in 0..count. The
// compiler knows steps that are 1.
template <class T, class C>
DEVICE void add_scaled(C (&to)[CHANNELS][SPAN], i32 first, u32 to_step, const T *from, u32 from_step, i32 count,
                       const C (&factor)[CHANNELS]) {
    if (to_step == 1 && from_step == 1) {
        for (u32 c = 0; c < CHANNELS; ++c) {
            INDEPENDENT
            for (i32 i = 0; i < count; ++i) to[c][first + i] += load(from[i]) * factor[c];
        }
        return;
    }
    for (i32 i = 0; i < count; ++i) {
        C value = load(from[(u32)i * from_step]);
        for (u32 c = 0; c < CHANNELS; ++c) to[c][first + i * (i32)to_step] += value * factor[c];
    }
}

// What `row` stands for: a line (y) of a plane (z) of CHANNELS channels of a group of an image.
struct Place {
    u32 y, z, channel, group;
    u64 image;
};

DEVICE Place place_of(u64 row, u32 height, u32 depth, u32 channels, u32 groups) {
    u32 tiles = (channels + CHANNELS - 1) / CHANNELS;
    Place at;
    u64 rest = row / height;
    at.y = (u32)(row - rest * height);
    row = rest / depth;
    at.z = (u32)(rest - row * depth);
    rest = row / tiles;
    at.channel = (u32)(row - rest * tiles) * CHANNELS;
    at.image = rest / groups;
    at.group = (u32)(rest - at.image * groups);
    return at;
}

template <class T>
__global__ __launch_bounds__(256) void conv_forward(u64 batch, Convolution p, const T *x, const T *w, T *out) {
    using C = compute_t<T>;
    u64 rows = batch * p.groups * ((p.oc + CHANNELS - 1) / CHANNELS) * p.od * p.oh;
    for_each_piece(rows, p.ow, [=](u64 row, i32 first, i32 count) {
        Place at = place_of(row, p.oh, p.od, p.oc, p.groups);
        u32 held = p.oc - at.channel < CHANNELS ? p.oc - at.channel : CHANNELS;
        u64 volume = (u64)p.id * p.ih * p.iw, window = (u64)p.kd * p.kh * p.kw;
        u64 channel = (u64)at.group * p.oc + at.channel;
        const T *image = x + (at.image * p.groups + at.group) * p.ic * volume;
        // A channel past the last reads the last one's weights, and its sums are not stored.
        const T *weights[CHANNELS];
        for (u32 c = 0; c < CHANNELS; ++c) weights[c] = w + (channel + (c < held ? c : held - 1)) * p.ic * window;
        Range zs = taps(at.z, p.id, p.kd, p.sd, p.pd, p.dd), ys = taps(at.y, p.ih, p.kh, p.sh, p.ph, p.dh);
        Range xs = ONE_THREAD ? Range{0, (i32)p.kw} : taps((u32)first, p.iw, p.kw, p.sw, p.pw, p.dw);
        C sum[CHANNELS][SPAN] = {};
        for (u32 c = 0; c < p.ic; ++c) {
            for (i32 kz = zs.first; kz < zs.last; ++kz) {
                i32 z = (i32)(at.z * p.sd) - (i32)p.pd + kz * (i32)p.dd;
                for (i32 ky = ys.first; ky < ys.last; ++ky) {
                    i32 y = (i32)(at.y * p.sh) - (i32)p.ph + ky * (i32)p.dh;
                    const T *line = image + ((u64)c * p.id + (u32)z) * p.ih * p.iw + (u64)(u32)y * p.iw;
                    u64 tap = c * window + ((u32)kz * p.kh + (u32)ky) * (u64)p.kw;
                    for (i32 kx = xs.first; kx < xs.last; ++kx) {
                        C factor[CHANNELS];
                        for (u32 k = 0; k < CHANNELS; ++k) factor[k] = load(weights[k][tap + (u32)kx]);
                        i32 shift = kx * (i32)p.dw - (i32)p.pw;
                        if constexpr (ONE_THREAD) {
                            Range o = reaching(0, (i32)p.iw, shift, p.ow, p.sw);
                            i32 begin = o.first > first ? o.first : first,
                                end = o.last < first + count ? o.last : first + count;
                            if (begin >= end) continue;
                            add_scaled(sum, begin - first, 1, line + (begin * (i32)p.sw + shift), p.sw, end - begin,
                                       factor);
                        } else {
                            C value = load(line[first * (i32)p.sw + shift]);
                            for (u32 k = 0; k < CHANNELS; ++k) sum[k][0] += value * factor[k];
                        }
                    }
                }
            }
        }
        u64 plane = (u64)p.od * p.oh * p.ow;
        T *to = out + (at.image * p.groups * p.oc + channel) * plane + ((u64)at.z * p.oh + at.y) * p.ow + (u32)first;
        for (u32 c = 0; c < held; ++c) {
            for (i32 i = 0; i < count; ++i) to[c * plane + (u32)i] = store<T>::from(sum[c][i]);
        }
    });
}

// The gradient of the input. Each of its elements sums over the outputs whose windows contain it.
template <class T>
__global__ __launch_bounds__(256) void conv_backward_data(u64 batch, Convolution p, const T *grad, const T *w, T *out) {
    using C = compute_t<T>;
    u64 rows = batch * p.groups * ((p.ic + CHANNELS - 1) / CHANNELS) * p.id * p.ih;
    for_each_piece(rows, p.iw, [=](u64 row, i32 first, i32 count) {
        Place at = place_of(row, p.ih, p.id, p.ic, p.groups);
        u32 held = p.ic - at.channel < CHANNELS ? p.ic - at.channel : CHANNELS;
        u64 plane = (u64)p.od * p.oh * p.ow, window = (u64)p.kd * p.kh * p.kw;
        const T *image = grad + (at.image * p.groups + at.group) * p.oc * plane;
        const T *weights[CHANNELS];
        for (u32 c = 0; c < CHANNELS; ++c) {
            u32 channel = at.channel + (c < held ? c : held - 1);
            weights[c] = w + ((u64)at.group * p.oc * p.ic + channel) * window;
        }
        C sum[CHANNELS][SPAN] = {};
        for (u32 o = 0; o < p.oc; ++o) {
            for (i32 kz = 0; kz < (i32)p.kd; ++kz) {
                i32 z = source((i32)at.z, kz, p.od, p.sd, p.pd, p.dd);
                if (z < 0) continue;
                for (i32 ky = 0; ky < (i32)p.kh; ++ky) {
                    i32 y = source((i32)at.y, ky, p.oh, p.sh, p.ph, p.dh);
                    if (y < 0) continue;
                    const T *line = image + ((u64)o * p.od + (u32)z) * p.oh * p.ow + (u64)(u32)y * p.ow;
                    u64 tap = (u64)o * p.ic * window + ((u32)kz * p.kh + (u32)ky) * (u64)p.kw;
                    for (i32 kx = 0; kx < (i32)p.kw; ++kx) {
                        if constexpr (ONE_THREAD) {
                            i32 shift = kx * (i32)p.dw - (i32)p.pw;
                            Range from = reaching(first, first + count, shift, p.ow, p.sw);
                            if (from.first >= from.last) continue;
                            C factor[CHANNELS];
                            for (u32 k = 0; k < CHANNELS; ++k) factor[k] = load(weights[k][tap + (u32)kx]);
                            i32 begin = from.first * (i32)p.sw + shift - first;
                            add_scaled(sum, begin, p.sw, line + from.first, 1, from.last - from.first, factor);
                        } else {
                            i32 from = source(first, kx, p.ow, p.sw, p.pw, p.dw);
                            if (from < 0) continue;
                            C value = load(line[from]);
                            for (u32 k = 0; k < CHANNELS; ++k) sum[k][0] += value * load(weights[k][tap + (u32)kx]);
                        }
                    }
                }
            }
        }
        u64 volume = (u64)p.id * p.ih * p.iw;
        T *to = out + ((at.image * p.groups + at.group) * p.ic + at.channel) * volume +
                ((u64)at.z * p.ih + at.y) * p.iw + (u32)first;
        for (u32 c = 0; c < held; ++c) {
            for (i32 i = 0; i < count; ++i) to[c * volume + (u32)i] = store<T>::from(sum[c][i]);
        }
    });
}

// The parameters of conv_backward_weights, in their order.
template <class T> struct Given {
    u64 batch;
    u32 parts;
    Convolution p;
    const T *grad, *x;
    compute_t<T> *out;
};

// The gradient of the weights. The lines of all outputs are divided into `parts`, each of which is
// summed separately: out is [parts, oc, ic / groups, window], and the host sums over the parts. A
// block takes one element of the weights for CHANNELS output channels. A part has fewer than 2^31
// elements.
template <class T>
__global__ void conv_backward_weights(u64 batch, u32 parts, Convolution p, const T *grad, const T *x,
                                      compute_t<T> *out) {
    using C = compute_t<T>;
    Given<T> given{batch, parts, p, grad, x, out};
    u64 blocks = (u64)parts * p.groups * ((p.oc + CHANNELS - 1) / CHANNELS) * p.ic * p.kd * p.kh * p.kw;
    for_each_row(blocks, [=](u64 row) {
        const Given<T> &g = reload_parameters(given);
        const Convolution p = g.p;
        const T *grad = g.grad, *x = g.x;
        u32 tiles = (p.oc + CHANNELS - 1) / CHANNELS, window = p.kd * p.kh * p.kw;
        u64 total = (u64)p.groups * p.oc * p.ic * window;
        u64 rest = row / window;
        u32 tap = (u32)(row - rest * window);
        row = rest / p.ic;
        u32 c = (u32)(rest - row * p.ic);
        rest = row / tiles;
        u32 channel = (u32)(row - rest * tiles) * CHANNELS;
        row = rest / p.groups;
        u32 group = (u32)(rest - row * p.groups);
        u64 part = row;
        u32 held = p.oc - channel < CHANNELS ? p.oc - channel : CHANNELS;
        u32 kz = tap / (p.kh * p.kw), ky = tap / p.kw % p.kh, kx = tap % p.kw;

        u64 lines = g.batch * p.od * p.oh, begin = lines * part / g.parts, end = lines * (part + 1) / g.parts;
        u64 plane = (u64)p.od * p.oh * p.ow;
        i32 shift = (i32)(kx * p.dw) - (i32)p.pw;
        Range inside = reaching(0, (i32)p.iw, shift, p.ow, p.sw);
        // For output line `line`: the gradient's line, and the input's line under this tap, or null
        // if that is padding.
        struct Lines {
            const T *grad, *x;
        };
        auto lines_of = [=](u64 line) {
            u64 above = line / p.oh, image = above / p.od;
            u32 oy = (u32)(line - above * p.oh), oz = (u32)(above - image * p.od);
            i32 z = (i32)(oz * p.sd + kz * p.dd) - (i32)p.pd, y = (i32)(oy * p.sh + ky * p.dh) - (i32)p.ph;
            bool within = z >= 0 && z < (i32)p.id && y >= 0 && y < (i32)p.ih;
            const T *from = grad + ((image * p.groups + group) * p.oc + channel) * plane + ((u64)oz * p.oh + oy) * p.ow;
            if (!within) return Lines{from, nullptr};
            const T *under =
                x + (((image * p.groups + group) * p.ic + c) * p.id + (u32)z) * p.ih * p.iw + (u64)(u32)y * p.iw;
            return Lines{from, under};
        };
        C sum[CHANNELS] = {};
        if constexpr (ONE_THREAD) {
            constexpr i32 LANES = 8;
            C lane[CHANNELS][LANES] = {};
            for (u64 line = begin; line < end; ++line) {
                Lines l = lines_of(line);
                if (l.x == nullptr) continue;
                for (u32 k = 0; k < held; ++k) {
                    const T *from = l.grad + k * plane;
                    i32 o = inside.first;
                    if (p.sw == 1) {
                        for (; o + LANES <= inside.last; o += LANES) {
                            for (i32 i = 0; i < LANES; ++i) lane[k][i] += load(from[o + i]) * load(l.x[o + shift + i]);
                        }
                    }
                    for (; o < inside.last; ++o) lane[k][o % LANES] += load(from[o]) * load(l.x[o * (i32)p.sw + shift]);
                }
            }
            for (u32 k = 0; k < CHANNELS; ++k) {
                for (i32 i = 0; i < LANES; ++i) sum[k] += lane[k][i];
            }
        } else {
            u32 wide = (u32)(inside.last > inside.first ? inside.last - inside.first : 0),
                count = (u32)(end - begin) * wide;
            for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
                u32 line = i / wide;
                i32 o = inside.first + (i32)(i - line * wide);
                Lines l = lines_of(begin + line);
                if (l.x == nullptr) continue;
                C value = load(l.x[o * (i32)p.sw + shift]);
                for (u32 k = 0; k < CHANNELS; ++k)
                    sum[k] += value * load(l.grad[(k < held ? k : held - 1) * plane + (u32)o]);
            }
        }
        for (u32 k = 0; k < CHANNELS; ++k) sum[k] = block_reduce(sum[k], Plus());
        if (threadIdx.x == 0) {
            u64 to = part * total + (((u64)group * p.oc + channel) * p.ic + c) * window + tap;
            for (u32 k = 0; k < held; ++k) g.out[to + (u64)k * p.ic * window] = sum[k];
        }
    });
}

// The patches of volumes under a moving window. out is [volumes, window, outputs], with zeros where
// the window is on padding. Only the sizes in `p` are used; `volumes` is batch * channels.
template <class T> __global__ void conv_patches(u64 volumes, Convolution p, const T *x, T *out) {
    u64 rows = volumes * p.kd * p.kh * p.kw * p.od * p.oh;
    for_each_piece(rows, p.ow, [=](u64 row, i32 first, i32 count) {
        u64 rest = row / p.oh;
        i32 y = (i32)((u32)(row - rest * p.oh) * p.sh) - (i32)p.ph;
        u64 above = rest / p.od;
        i32 z = (i32)((u32)(rest - above * p.od) * p.sd) - (i32)p.pd;
        rest = above / p.kw;
        i32 shift = (i32)((u32)(above - rest * p.kw) * p.dw) - (i32)p.pw;
        above = rest / p.kh;
        y += (i32)((u32)(rest - above * p.kh) * p.dh);
        u64 volume = above / p.kd;
        z += (i32)((u32)(above - volume * p.kd) * p.dd);
        T *to = out + row * p.ow + (u32)first;
        bool within = y >= 0 && y < (i32)p.ih && z >= 0 && z < (i32)p.id;
        const T *line = x + ((volume * p.id + (within ? (u32)z : 0u)) * p.ih + (within ? (u32)y : 0u)) * p.iw;
        Range inside = within ? reaching(0, (i32)p.iw, shift, p.ow, p.sw) : Range{0, 0};
        for (i32 i = 0; i < count; ++i) {
            i32 o = first + i;
            to[i] = o >= inside.first && o < inside.last ? line[o * (i32)p.sw + shift] : (T)0;
        }
    });
}

// The inverse direction: each element of a volume is the sum of its copies in the patches [volumes,
// window, outputs].
template <class T> __global__ void conv_unpatch(u64 volumes, Convolution p, const T *patches, T *out) {
    u64 plane = (u64)p.od * p.oh * p.ow;
    for_each_piece(volumes * p.id * p.ih, p.iw, [=](u64 row, i32 first, i32 count) {
        u64 above = row / p.ih, volume = above / p.id;
        i32 y = (i32)(row - above * p.ih), z = (i32)(above - volume * p.id);
        const T *of = patches + volume * p.kd * p.kh * p.kw * plane;
        T sum[SPAN] = {};
        for (i32 kz = 0; kz < (i32)p.kd; ++kz) {
            i32 oz = source(z, kz, p.od, p.sd, p.pd, p.dd);
            if (oz < 0) continue;
            for (i32 ky = 0; ky < (i32)p.kh; ++ky) {
                i32 oy = source(y, ky, p.oh, p.sh, p.ph, p.dh);
                if (oy < 0) continue;
                const T *line =
                    of + ((u32)kz * p.kh + (u32)ky) * (u64)p.kw * plane + ((u64)(u32)oz * p.oh + (u32)oy) * p.ow;
                for (i32 kx = 0; kx < (i32)p.kw; ++kx) {
                    if constexpr (ONE_THREAD) {
                        i32 shift = kx * (i32)p.dw - (i32)p.pw;
                        Range o = reaching(first, first + count, shift, p.ow, p.sw);
                        i32 at = o.first * (i32)p.sw + shift - first;
                        if (p.sw == 1) {
                            INDEPENDENT
                            for (i32 i = 0; i < o.last - o.first; ++i)
                                sum[at + i] += line[(u32)kx * plane + (u32)(o.first + i)];
                        } else {
                            for (i32 i = o.first; i < o.last; ++i, at += (i32)p.sw)
                                sum[at] += line[(u32)kx * plane + (u32)i];
                        }
                    } else {
                        i32 o = source(first, kx, p.ow, p.sw, p.pw, p.dw);
                        if (o >= 0) sum[0] += line[(u32)kx * plane + (u32)o];
                    }
                }
            }
        }
        for (i32 i = 0; i < count; ++i) out[row * p.iw + (u32)(first + i)] = sum[i];
    });
}
