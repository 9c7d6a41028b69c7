// Deformable convolution (Dai et al., "Deformable Convolutional Networks", 2017; the mask: Zhu et
// al., "Deformable ConvNets v2", 2019). Each tap of the window reads the input at a point that an
// offset moves, interpolated between pixels; outside the input are zeros. The kernels sample the
// input into columns [channels, taps, batch, count]; the rest is a matrix product. A launch covers
// `count` output positions of each image, from `first` on, so that the host can bound the size of
// the columns. Tensors are contiguous: x [batch, channels, ih, iw], offset [batch, groups, taps, 2
// (y, x), oh, ow], mask [batch, groups, taps, oh, ow] or null.
#include "prelude.h"

struct Window {
    u32 ih, iw, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw;
};

// The four pixels around a point, the upper left one first, and the point's distance from the upper
// left one. -1 stands for a zero outside the input.
template <class C> struct Point {
    i32 at[4];
    C y, x;
};

template <class C> DEVICE Point<C> point_at(const Window &w, C y, C x) {
    Point<C> p{{-1, -1, -1, -1}, (C)0, (C)0};
    if (!(y > (C)-1 && y < (C)w.ih && x > (C)-1 && x < (C)w.iw)) {
        // No pixels, but whatever is computed from the point is NaN.
        if (math::is_nan(y) || math::is_nan(x)) p.y = p.x = y + x;
        return p;
    }
    C top = math::floor(y), left = math::floor(x);
    p.y = y - top;
    p.x = x - left;
    i32 row = (i32)top, column = (i32)left, width = (i32)w.iw, at = row * width + column;
    bool above = row >= 0, below = row + 1 < (i32)w.ih, before = column >= 0, after = column + 1 < width;
    if (above && before) p.at[0] = at;
    if (above && after) p.at[1] = at + 1;
    if (below && before) p.at[2] = at + width;
    if (below && after) p.at[3] = at + width + 1;
    return p;
}

// Where one tap reads for one output position of one image. All channels of an offset group share
// it.
template <class T> struct Tap {
    using C = compute_t<T>;
    C mask;
    Point<C> point;
    // Indices of the offset's y (its x is one plane further) and of the mask.
    u64 offset_at, mask_at;
};

template <class T>
DEVICE Tap<T> tap_at(const Window &w, u32 groups, u32 group, u64 image, u32 k, u32 position, const T *offset,
                     const T *mask) {
    using C = compute_t<T>;
    u64 plane = (u64)w.oh * w.ow;
    Tap<T> tap;
    tap.mask_at = ((image * groups + group) * (w.kh * w.kw) + k) * plane + position;
    tap.offset_at = ((image * groups + group) * (w.kh * w.kw) + k) * 2 * plane + position;
    tap.mask = mask ? (C)load(mask[tap.mask_at]) : (C)1;
    u32 oy = position / w.ow, ky = k / w.kw;
    i32 y = (i32)(oy * w.sh + ky * w.dh) - (i32)w.ph,
        x = (i32)((position - oy * w.ow) * w.sw + (k - ky * w.kw) * w.dw) - (i32)w.pw;
    tap.point = point_at<C>(w, (C)y + load(offset[tap.offset_at]), (C)x + load(offset[tap.offset_at + plane]));
    return tap;
}

// The coordinates of an element of one channel's columns [taps, batch, count].
struct Place {
    u64 image;
    u32 k, position;
};
DEVICE Place place_of(u64 at, u64 batch, u32 first, u32 count) {
    u64 line = at / count, k = line / batch;
    return Place{line - k * batch, (u32)k, first + (u32)(at - line * count)};
}

// The values of a point's four pixels.
template <class T> struct Pixels {
    compute_t<T> value[4];
};
template <class T> DEVICE Pixels<T> pixels(const T *plane, const i32 (&at)[4]) {
    Pixels<T> p;
    UNROLLED
    for (i32 c = 0; c < 4; ++c) p.value[c] = at[c] < 0 ? (compute_t<T>)0 : (compute_t<T>)load(plane[at[c]]);
    return p;
}
template <class T, class C> DEVICE C between(const Pixels<T> &p, C y, C x) {
    C upper = ((C)1 - x) * p.value[0] + x * p.value[1], lower = ((C)1 - x) * p.value[2] + x * p.value[3];
    return ((C)1 - y) * upper + y * lower;
}

// A work item is one tap at one position, for every `parts`-th channel of one offset group.
template <class T>
__global__ void deform_columns(u64 batch, u32 channels, u32 groups, u32 parts, u32 first, u32 count, Window w,
                               const T *x, const T *offset, const T *mask, T *columns) {
    using C = compute_t<T>;
    u64 each = (u64)(w.kh * w.kw) * batch * count, plane = (u64)w.ih * w.iw;
    u32 members = channels / groups;
    for_each(each * groups * parts, [=](u64 item) {
        u64 unit = item / each, at = item - unit * each;
        u32 group = (u32)unit / parts;
        Place place = place_of(at, batch, first, count);
        Tap<T> tap = tap_at(w, groups, group, place.image, place.k, place.position, offset, mask);
        for (u32 c = (u32)unit - group * parts; c < members; c += parts) {
            u64 channel = (u64)group * members + c;
            const T *from = x + (place.image * channels + channel) * plane;
            C value = between(pixels(from, tap.point.at), tap.point.y, tap.point.x);
            columns[channel * each + at] = store<T>::from(value * tap.mask);
        }
    });
}

// The gradients of offset and mask from the columns' gradient. A work item is one tap at one
// position and sums over the group's channels, so every run gives the same bits.
template <class T>
__global__ void deform_offset_backward(u64 batch, u32 channels, u32 groups, u32 first, u32 count, Window w, const T *x,
                                       const T *offset, const T *grad, const T *mask, T *mask_grad, T *offset_grad) {
    using C = compute_t<T>;
    u64 each = (u64)(w.kh * w.kw) * batch * count, plane = (u64)w.ih * w.iw;
    u32 members = channels / groups;
    for_each(each * groups, [=](u64 item) {
        u64 group = item / each, at = item - group * each;
        Place place = place_of(at, batch, first, count);
        Tap<T> tap = tap_at(w, groups, (u32)group, place.image, place.k, place.position, offset, mask);
        C y = tap.point.y, x_part = tap.point.x, by_y = (C)0, by_x = (C)0, by_mask = (C)0;
        for (u32 c = 0; c < members; ++c) {
            u64 channel = group * members + c;
            C g = load(grad[channel * each + at]);
            Pixels<T> p = pixels(x + (place.image * channels + channel) * plane, tap.point.at);
            const C *v = p.value;
            by_y += g * (((C)1 - x_part) * (v[2] - v[0]) + x_part * (v[3] - v[1]));
            by_x += g * (((C)1 - y) * (v[1] - v[0]) + y * (v[3] - v[2]));
            by_mask += g * between(p, y, x_part);
        }
        offset_grad[tap.offset_at] = store<T>::from(by_y * tap.mask);
        offset_grad[tap.offset_at + (u64)w.oh * w.ow] = store<T>::from(by_x * tap.mask);
        if (mask_grad) mask_grad[tap.mask_at] = store<T>::from(by_mask);
    });
}

// The weight of one of the four pixels in an interpolated value.
template <class C> DEVICE C share(const Point<C> &p, i32 corner) {
    return (corner < 2 ? (C)1 - p.y : p.y) * (corner % 2 == 0 ? (C)1 - p.x : p.x);
}

// Adds to the gradient of one channel of one image, over all taps and positions in order.
template <class T>
DEVICE void plane_backward(u64 row, u64 batch, u32 channels, u32 groups, u32 first, u32 count, const Window &w,
                           const T *offset, const T *grad, const T *mask, compute_t<T> *x_grad) {
    using C = compute_t<T>;
    u32 taps = w.kh * w.kw;
    u64 image = row / channels, channel = row - image * channels;
    C *to = x_grad + row * ((u64)w.ih * w.iw);
    for (u32 k = 0; k < taps; ++k) {
        const T *from = grad + ((channel * taps + k) * batch + image) * count;
        for (u32 j = 0; j < count; ++j) {
            Tap<T> tap = tap_at(w, groups, (u32)channel / (channels / groups), image, k, first + j, offset, mask);
            C g = load(from[j]) * tap.mask;
            for (i32 corner = 0; corner < 4; ++corner) {
                i32 at = tap.point.at[corner];
                if (at >= 0) to[at] += share(tap.point, corner) * g;
            }
        }
    }
}

// Adds to the input's gradient, which has the compute type. On GPUs the additions are atomic and
// have no fixed order.
template <class T>
__global__ void deform_x_backward(u64 batch, u32 channels, u32 groups, u32 parts, u32 first, u32 count, Window w,
                                  const T *offset, const T *grad, const T *mask, compute_t<T> *x_grad) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        for_each(batch * channels, [=](u64 row) {
            plane_backward(row, batch, channels, groups, first, count, w, offset, grad, mask, x_grad);
        });
    } else {
        u64 each = (u64)(w.kh * w.kw) * batch * count, plane = (u64)w.ih * w.iw;
        u32 members = channels / groups;
        for_each(each * groups * parts, [=](u64 item) {
            u64 unit = item / each, at = item - unit * each;
            u32 group = (u32)unit / parts;
            Place place = place_of(at, batch, first, count);
            Tap<T> tap = tap_at(w, groups, group, place.image, place.k, place.position, offset, mask);
            for (u32 c = (u32)unit - group * parts; c < members; c += parts) {
                u64 channel = (u64)group * members + c;
                C g = load(grad[channel * each + at]) * tap.mask;
                C *to = x_grad + (place.image * channels + channel) * plane;
                UNROLLED
                for (i32 corner = 0; corner < 4; ++corner) {
                    i32 pixel = tap.point.at[corner];
                    if (pixel >= 0) atomic_add(to + pixel, share(tap.point, corner) * g);
                }
            }
        });
    }
}

// The same, but one thread computes each plane, so every run gives the same bits.
template <class T>
__global__ void deform_x_backward_ordered(u64 batch, u32 channels, u32 groups, u32 first, u32 count, Window w,
                                          const T *offset, const T *grad, const T *mask, compute_t<T> *x_grad) {
    for_each(batch * channels, [=](u64 row) {
        plane_backward(row, batch, channels, groups, first, count, w, offset, grad, mask, x_grad);
    });
}
