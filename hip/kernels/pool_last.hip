// Pooling of images whose channels are innermost in memory: [batch, height, width, channels],
// contiguous. The results are those of `pool.hip`: any window, no atomics, sums in f32 and in the
// order of the windows.
//
// A thread computes neighbouring channels of a pixel, which share the window: 16 bytes of them if
// that divides the number of channels and all tensors are aligned, else one. Neighbouring threads
// have neighbouring channels. So the window and the divisions by sizes cost little for each element.
#include "pool_window.h"
#include "prelude.h"
#include "rows.h"

// The channels at `first` of a pixel in [batch, height, width, channels].
struct Spot {
    u64 sample;
    i32 y, x;
    u32 first;
};

// Calls f(spot, at) for each pixel and each WIDTH of its channels; `at` is the first one's element.
template <u32 WIDTH, class F> DEVICE void for_each_spot(u64 batch, u32 height, u32 width, u32 channels, F f) {
    u32 pieces = channels / WIDTH;
    for_each(batch * height * width * pieces, [=](u64 piece) {
        u64 pixel = divided(piece, pieces), line = divided(pixel, width), sample = divided(line, height);
        f(Spot{sample, (i32)(line - sample * height), (i32)(pixel - line * width),
               (u32)(piece - pixel * pieces) * WIDTH},
          piece * WIDTH);
    });
}

// Whether a piece of 16 bytes never spans two pixels and is aligned in each tensor. An index may be
// wider than an element: its pieces begin at multiples of 16 bytes too.
template <class T, class... More> DEVICE bool in_pieces(u32 channels, const T *row, const More *...more) {
    return channels % LANES<T> == 0 && (u64)row % 16 == 0 && (((u64)more % 16 == 0) && ... && true);
}

template <u32 WIDTH, class T, class I>
DEVICE void max_of(u64 batch, u32 channels, const Window2 &w, i32 indexed, bool nan_wins, const T *x, T *out,
                   I *indices) {
    using C = compute_t<T>;
    for_each_spot<WIDTH>(batch, w.h.out, w.w.out, channels, [=](Spot s, u64 at) {
        Range rows = taps(s.y, w.h), columns = taps(s.x, w.w);
        C best[WIDTH];
        i32 place[WIDTH];
        for (u32 j = 0; j < WIDTH; ++j) best[j] = (C)-__builtin_inff(), place[j] = -1;
        for (i32 ky = rows.first; ky < rows.last; ++ky) {
            i32 y = under(s.y, ky, w.h);
            for (i32 kx = columns.first; kx < columns.last; ++kx) {
                i32 column = under(s.x, kx, w.w), here = y * (i32)w.w.in + column;
                u64 from = ((s.sample * w.h.in + (u64)y) * w.w.in + (u64)column) * channels + s.first;
                Neighbours<T, WIDTH> piece = lanes_of<WIDTH>(x, (i64)from);
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) {
                    C value = load(piece.lane[j]);
                    bool take = replaces(value, best[j], place[j], nan_wins);
                    best[j] = take ? value : best[j];
                    place[j] = take ? here : place[j];
                }
            }
        }
        Neighbours<T, WIDTH> greatest;
        for (u32 j = 0; j < WIDTH; ++j) greatest.lane[j] = store<T>::from(best[j]);
        *reinterpret_cast<Neighbours<T, WIDTH> *>(out + at) = greatest;
        if (!indexed) return;
        Neighbours<I, WIDTH> places;
        for (u32 j = 0; j < WIDTH; ++j) places.lane[j] = (I)place[j];
        *reinterpret_cast<Neighbours<I, WIDTH> *>(indices + at) = places;
    });
}

// As max_pool2d in `pool.hip`, with the same rule for equal elements, NaN and empty windows. An
// index is a position in the plane [height, width], as it is in row-major order.
template <class T, class I>
__global__ void max_pool2d_last(u64 batch, u32 channels, Window2 w, i32 indexed, i32 nan_wins, const T *x, T *out,
                                I *indices) {
    bool nan = nan_wins != 0;
    if (in_pieces(channels, x, out, indices)) max_of<LANES<T>>(batch, channels, w, indexed, nan, x, out, indices);
    else max_of<1>(batch, channels, w, indexed, nan, x, out, indices);
}

template <u32 WIDTH, class T, class I>
DEVICE void max_gradient(u64 batch, u32 channels, const Window2 &w, const T *grad, const I *indices, u64 *flag,
                         T *out) {
    using C = compute_t<T>;
    using U = wrapping_t<I>;
    u64 pixels = (u64)w.h.in * w.w.in;
    for_each_spot<WIDTH>(batch, w.h.in, w.w.in, channels, [=](Spot s, u64 at) {
        Range rows = reached(s.y, w.h), columns = reached(s.x, w.w);
        I place = (I)(s.y * (i32)w.w.in + s.x);
        C sum[WIDTH] = {};
        for (i32 oy = rows.first; oy < rows.last; ++oy) {
            for (i32 ox = columns.first; ox < columns.last; ++ox) {
                u64 from = ((s.sample * w.h.out + (u64)oy) * w.w.out + (u64)ox) * channels + s.first;
                Neighbours<I, WIDTH> of = lanes_of<WIDTH>(indices, (i64)from);
                Neighbours<T, WIDTH> piece = lanes_of<WIDTH>(grad, (i64)from);
                bool outside = false; // neither in the plane nor -1, counted in the index's own width
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) {
                    sum[j] += of.lane[j] == place ? load(piece.lane[j]) : (C)0;
                    outside |= (U)((U)of.lane[j] + 1) > (U)pixels;
                }
                if (!outside) continue;
                for (u32 j = 0; j < WIDTH; ++j) check_place(of.lane[j], pixels, flag);
            }
        }
        Neighbours<T, WIDTH> result;
        for (u32 j = 0; j < WIDTH; ++j) result.lane[j] = store<T>::from(sum[j]);
        *reinterpret_cast<Neighbours<T, WIDTH> *>(out + at) = result;
    });
}

// The gradient of each input: the sum over the windows that selected it.
template <class T, class I>
__global__ void max_pool2d_last_backward(u64 batch, u32 channels, Window2 w, const T *grad, const I *indices, u64 *flag,
                                         T *out) {
    if (in_pieces(channels, grad, indices, out)) max_gradient<LANES<T>>(batch, channels, w, grad, indices, flag, out);
    else max_gradient<1>(batch, channels, w, grad, indices, flag, out);
}

template <u32 WIDTH, class T>
DEVICE void mean_of(u64 batch, u32 channels, const Window2 &window, i32 count_include_pad, const T *x, T *out) {
    using C = compute_t<T>;
    for_each_spot<WIDTH>(batch, window.h.out, window.w.out, channels, [=](Spot s, u64 at) {
        Window2 w = window.dense();
        Range rows = taps(s.y, w.h), columns = taps(s.x, w.w);
        C sum[WIDTH] = {};
        for (i32 ky = rows.first; ky < rows.last; ++ky) {
            u64 line = s.sample * w.h.in + (u64)under(s.y, ky, w.h);
            for (i32 kx = columns.first; kx < columns.last; ++kx) {
                u64 from = (line * w.w.in + (u64)under(s.x, kx, w.w)) * channels + s.first;
                Neighbours<T, WIDTH> piece = lanes_of<WIDTH>(x, (i64)from);
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) sum[j] += load(piece.lane[j]);
            }
        }
        C count = divisor<C>(w, 0, s.y, s.x, count_include_pad);
        Neighbours<T, WIDTH> mean;
        for (u32 j = 0; j < WIDTH; ++j) mean.lane[j] = store<T>::from(sum[j] / count);
        *reinterpret_cast<Neighbours<T, WIDTH> *>(out + at) = mean;
    });
}

template <class T>
__global__ void avg_pool2d_last(u64 batch, u32 channels, Window2 w, i32 count_include_pad, const T *x, T *out) {
    if (in_pieces(channels, x, out)) mean_of<LANES<T>>(batch, channels, w, count_include_pad, x, out);
    else mean_of<1>(batch, channels, w, count_include_pad, x, out);
}

template <u32 WIDTH, class T>
DEVICE void mean_gradient(u64 batch, u32 channels, const Window2 &window, i32 count_include_pad, const T *grad,
                          T *out) {
    using C = compute_t<T>;
    for_each_spot<WIDTH>(batch, window.h.in, window.w.in, channels, [=](Spot s, u64 at) {
        Window2 w = window.dense();
        Range rows = reached(s.y, w.h), columns = reached(s.x, w.w);
        C sum[WIDTH] = {};
        for (i32 oy = rows.first; oy < rows.last; ++oy) {
            C height = (C)counted(oy, w.h, count_include_pad);
            for (i32 ox = columns.first; ox < columns.last; ++ox) {
                C count = height * (C)counted(ox, w.w, count_include_pad);
                u64 from = ((s.sample * w.h.out + (u64)oy) * w.w.out + (u64)ox) * channels + s.first;
                Neighbours<T, WIDTH> piece = lanes_of<WIDTH>(grad, (i64)from);
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) sum[j] += load(piece.lane[j]) / count;
            }
        }
        Neighbours<T, WIDTH> result;
        for (u32 j = 0; j < WIDTH; ++j) result.lane[j] = store<T>::from(sum[j]);
        *reinterpret_cast<Neighbours<T, WIDTH> *>(out + at) = result;
    });
}

// The gradient of each input: the sum of the gradients of all windows that contain it, each divided
// as its output was.
template <class T>
__global__ void avg_pool2d_last_backward(u64 batch, u32 channels, Window2 w, i32 count_include_pad, const T *grad,
                                         T *out) {
    if (in_pieces(channels, grad, out)) mean_gradient<LANES<T>>(batch, channels, w, count_include_pad, grad, out);
    else mean_gradient<1>(batch, channels, w, count_include_pad, grad, out);
}
