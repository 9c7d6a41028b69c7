// 2-D convolutions with few weights for each output channel, as in the first layer of a network for
// images, and the gradient of these weights: one group, and at most 27 weights for each output
// channel. As products of matrices they have too few terms, or too few tiles for a GPU.
//
// All sums are in f32. For the gradient, the output's pixels are divided into parts. A block sums
// one part for CHANNELS output channels, or for several times CHANNELS if the gradient's channels
// are innermost in memory. A thread takes every n-th pixel of the part and keeps all sums in
// registers. The block adds its threads' sums in a fixed order; another kernel adds the parts'
// sums, also in a fixed order. Blocks have 256 threads.
#include "matrix_cores.h"
#include "prelude.h"
#include "rows.h"

// Sizes of the input (i), the output (o) and the window (k), then stride (s), padding (p) and
// dilation (d), and the strides of the input x in elements.
struct FewWeights {
    u32 batch, oc, ic, ih, iw, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw;
    u32 parts, by_sample, by_channel, by_row, by_column, unused;
};

constexpr u32 BLOCK = 256;
// Neighbouring threads that add up each other's sums.
constexpr u32 TEAM = 32;

// A weight's place in the window, and what it adds to an element's address in x.
struct Tap {
    i32 y, x, offset, unused;
};

// The output channels of a thread.
template <i32 TAPS> constexpr u32 CHANNELS = TAPS <= 9 ? 8 : 2;

// Adds, for each j below COUNT and each residue of the thread's number by `across`, the values of all
// threads in a fixed order. Thread (j * TEAM + i) gets the sum for j and residue i % across.
template <u32 COUNT> DEVICE f32 block_add(const f32 (&value)[COUNT], u32 across) {
    static_assert(COUNT * TEAM <= BLOCK, "a team for each value");
    SHARED(f32, table, COUNT * BLOCK);
    sync_threads(); // threads may still read the earlier values
    UNROLLED
    for (u32 j = 0; j < COUNT; ++j) table[j * BLOCK + threadIdx.x] = value[j];
    sync_threads();
    u32 j = threadIdx.x / TEAM, i = threadIdx.x % TEAM;
    f32 sum = 0.0f;
    if (j < COUNT) {
        UNROLLED
        for (u32 k = 0; k < BLOCK / TEAM; ++k) sum += table[j * BLOCK + k * TEAM + i];
    }
    // A team is a warp or half of one.
    u32 lane = threadIdx.x % (u32)warpSize;
    for (u32 distance = TEAM / 2; distance >= across; distance /= 2) sum += shuffle(sum, (i32)(lane ^ distance));
    return sum;
}

// Fills the table of the window's places. With LAST, weights have the order [kh, kw, ic], else [ic, kh,
// kw].
template <i32 LAST> DEVICE void fill(const FewWeights &p, u32 taps, Tap *tap) {
    for (u32 t = threadIdx.x; t < taps; t += blockDim.x) {
        u32 c = LAST ? t % p.ic : t / (p.kh * p.kw), place = LAST ? t / p.ic : t % (p.kh * p.kw);
        i32 y = (i32)(place / p.kw * p.dh) - (i32)p.ph, at = (i32)(place % p.kw * p.dw) - (i32)p.pw;
        tap[t] = Tap{y, at, (i32)(c * p.by_channel) + y * (i32)p.by_row + at * (i32)p.by_column, 0};
    }
}

// The element of x under a tap of the window at row y and column `left`; 0 outside the image.
template <class T> DEVICE f32 element(const FewWeights &p, Tap at, i32 y, i32 left, const T *under, const T *x) {
    bool within = (u32)(y + at.y) < p.ih && (u32)(left + at.x) < p.iw;
    // Outside the image the address is that of any element, because the value is not used.
    f32 value = load(*(within ? under + at.offset : x));
    return within ? value : 0.0f;
}

// The most weights of all output channels that `conv_few_forward` keeps in shared memory, and the most
// of one channel.
constexpr u32 MOST_WEIGHTS = 4096, MOST_TAPS = 27;

// out[batch, oc, oh, ow], or with LAST out[batch, oh, ow, oc]. A thread computes 8 output channels of a
// pixel.
template <class T, i32 LAST>
__global__ __launch_bounds__(256) void conv_few_forward(FewWeights p, const T *w, const T *x, T *out) {
    constexpr u32 WIDE = 8;
    SHARED(Tap, tap, MOST_TAPS);
    SHARED(f32, weight, MOST_WEIGHTS);
    u32 taps = p.ic * p.kh * p.kw, pieces = p.oc / WIDE, plane = p.oh * p.ow;
    fill<LAST>(p, taps, tap);
    for (u32 i = threadIdx.x; i < p.oc * taps; i += blockDim.x) {
        u32 o = i / taps;
        weight[(i - o * taps) * p.oc + o] = load(w[i]);
    }
    sync_threads();
    for_each((u64)p.batch * plane * pieces, [=](u64 index) {
        u32 rest = (u32)index / (LAST ? pieces : plane), first = (u32)index - rest * (LAST ? pieces : plane);
        u32 channel = (LAST ? first : rest % pieces) * WIDE, pixel = LAST ? rest : rest / pieces * plane + first;
        u32 sample = pixel / plane, place = pixel - sample * plane, oy = place / p.ow, ox = place - oy * p.ow;
        i32 y = (i32)(oy * p.sh), left = (i32)(ox * p.sw);
        const T *under = x + (u64)sample * p.by_sample + (i64)y * p.by_row + (i64)left * p.by_column;
        f32 sum[WIDE] = {};
        for (u32 t = 0; t < taps; ++t) {
            f32 value = element(p, tap[t], y, left, under, x);
            const f32 *of = weight + t * p.oc + channel;
            UNROLLED
            for (u32 k = 0; k < WIDE; ++k) sum[k] += value * of[k];
        }
        if constexpr (LAST) {
            Neighbours<T, WIDE> result;
            UNROLLED
            for (u32 k = 0; k < WIDE; ++k) result.lane[k] = store<T>::from(sum[k]);
            *reinterpret_cast<Neighbours<T, WIDE> *>(out + (u64)pixel * p.oc + channel) = result;
        } else {
            T *to = out + ((u64)sample * p.oc + channel) * plane + place;
            UNROLLED
            for (u32 k = 0; k < WIDE; ++k) to[(u64)k * plane] = store<T>::from(sum[k]);
        }
    });
}

// out[parts, oc, TAPS' used part]. The weights of an output channel are in row-major order [ic, kh,
// kw], or with LAST in the order [kh, kw, ic], and the gradient then is [batch, oh, ow, oc] instead of
// [batch, oc, oh, ow].
template <class T, i32 TAPS, i32 LAST>
__global__ __launch_bounds__(256) void conv_few_weights(FewWeights p, const T *grad, const T *x, f32 *out) {
    constexpr u32 WIDE = CHANNELS<TAPS>;
    SHARED(Tap, tap, TAPS);
    u32 taps = p.ic * p.kh * p.kw, pieces = p.oc / WIDE, across = 1;
    if (LAST) {
        while (across < pieces && across < TEAM && across * 2 <= blockDim.x) across *= 2;
    }
    fill<LAST>(p, taps, tap);
    sync_threads();
    u32 groups = (pieces + across - 1) / across, strips = blockDim.x / across, plane = p.oh * p.ow;
    u64 pixels = (u64)p.batch * plane;
    for_each_row((u64)groups * p.parts, [=](u64 row) {
        u32 part = (u32)row / groups, piece = ((u32)row - part * groups) * across + threadIdx.x % across;
        u32 begin = (u32)(pixels * part / p.parts), end = (u32)(pixels * (part + 1) / p.parts), channel = piece * WIDE;
        bool inside = piece < pieces;
        f32 sum[TAPS][WIDE] = {};
        for (u32 pixel = begin + threadIdx.x / across; inside && pixel < end; pixel += strips) {
            u32 sample = pixel / plane, place = pixel - sample * plane, oy = place / p.ow, ox = place - oy * p.ow;
            i32 y = (i32)(oy * p.sh), left = (i32)(ox * p.sw);
            const T *under = x + (u64)sample * p.by_sample + (i64)y * p.by_row + (i64)left * p.by_column;
            f32 g[WIDE];
            if constexpr (LAST) {
                Neighbours<T, WIDE> of = lanes_of<WIDE>(grad, (i64)((u64)pixel * p.oc + channel));
                UNROLLED
                for (u32 k = 0; k < WIDE; ++k) g[k] = load(of.lane[k]);
            } else {
                const T *of = grad + ((u64)sample * p.oc + channel) * plane + place;
                UNROLLED
                for (u32 k = 0; k < WIDE; ++k) g[k] = load(of[(u64)k * plane]);
            }
            UNROLLED
            for (i32 t = 0; t < TAPS; ++t) {
                if ((u32)t >= taps) continue;
                f32 value = element(p, tap[t], y, left, under, x);
                UNROLLED
                for (u32 k = 0; k < WIDE; ++k) sum[t][k] += value * g[k];
            }
        }
        f32 *to = out + (u64)part * p.oc * taps;
        UNROLLED
        for (i32 t = 0; t < TAPS; ++t) {
            if ((u32)t >= taps) continue; // the same for all threads
            if constexpr (ONE_THREAD) {
                for (u32 k = 0; k < WIDE; ++k) to[(u64)(channel + k) * taps + (u32)t] = sum[t][k];
            } else {
                f32 all = block_add<WIDE>(sum[t], across);
                u32 k = threadIdx.x / TEAM, lane = threadIdx.x % TEAM;
                u32 first = (((u32)row - part * groups) * across + lane) * WIDE;
                if (k < WIDE && lane < across && first < p.oc) to[(u64)(first + k) * taps + (u32)t] = all;
            }
        }
    });
}

#if HAS_CORES
// Sets the terms of a product from `count` on to 0. The weights there are 0, but a NaN or an
// infinity times 0 is NaN.
DEVICE void keep_terms(cores::Rows &rows, u32 count) {
    UNROLLED
    for (u32 w = 0; w < cores::OPERAND; ++w) {
#if CORES_MMA
        u32 term = w / 2 * 8 + cores::lane() % 4 * 2;
#else
        u32 term = 2 * w + (cores::OPERAND * 2 == cores::SIDE ? 0 : cores::lane() / cores::SIDE * cores::OPERAND * 2);
#endif
        if (term >= count) rows.word[w] = 0;
    }
}
#endif

// out[batch, oh, ow, oc] by matrix cores: at most 4 input channels, windows of at most 7 rows and 8
// columns with a stride of 2 and no dilation along a row, and at most 64 output channels, a
// multiple of 16. `w` is [oc, kh, kw, ic].
//
// A block computes up to PIXELS neighbours of a row of the output at a time. It keeps the rows of x
// under their windows in shared memory, with 4 channels for each pixel. So with a stride of 2 every
// window's row begins at a multiple of 16 bytes, and the products read overlapping windows without
// a copy of each. A window's row has 32 terms, of which those past the window are 0 in both
// operands. A block has at least PIXELS / 32 warps of cores::LANES threads.
template <class T>
__global__ __launch_bounds__(256) void conv_few_matrix(FewWeights p, const T *w, const T *x, T *out) {
#if HAS_CORES
    constexpr u32 PIXELS = 128, STRIDE = 2, ROWS = 7, MOST = 64, GROUP = 32, TERMS = 32, AHEAD = 4;
    constexpr u32 LINE = (PIXELS * STRIDE + TERMS / 4) * 4, PITCH = ROWS * TERMS + 8, OUT_PITCH = MOST + 8;
    constexpr u32 AREA = ROWS * LINE > PIXELS * OUT_PITCH ? ROWS * LINE : PIXELS * OUT_PITCH;
    using Piece = Vector<T, 8>;
    SHARED(Piece, shared_area, AREA / 8);
    SHARED(Piece, shared_weight, MOST * PITCH / 8);
    T *area = shared_area[0].lane, *weight = shared_weight[0].lane;
    for (u32 i = threadIdx.x; i < MOST * PITCH; i += blockDim.x) {
        u32 o = i / PITCH, at = i % PITCH, r = at / TERMS, c = at % 4, column = at % TERMS / 4;
        bool inside = o < p.oc && r < p.kh && column < p.kw && c < p.ic;
        weight[i] = inside ? w[((o * p.kh + r) * p.kw + column) * p.ic + c] : T{0};
    }
    u32 across = (p.ow + PIXELS - 1) / PIXELS;
    for_each_row((u64)p.batch * p.oh * across, [&](u64 block) {
        u32 line = (u32)block / across, first = ((u32)block - line * across) * PIXELS, sample = line / p.oh;
        u32 count = p.ow - first < PIXELS ? p.ow - first : PIXELS, span = (count - 1) * STRIDE + TERMS / 4;
        i32 top = (i32)((line - sample * p.oh) * p.sh) - (i32)p.ph, left = (i32)(first * STRIDE) - (i32)p.pw;
        const T *image = x + (u64)sample * p.by_sample;
        for (u32 i = threadIdx.x; i < p.kh * span; i += AHEAD * blockDim.x) {
            Vector<T, 4> pixel[AHEAD] = {};
            UNROLLED
            for (u32 k = 0; k < AHEAD; ++k) {
                u32 at = i + k * blockDim.x, r = at / span, column = at - r * span;
                i32 iy = top + (i32)(r * p.dh), ix = left + (i32)column;
                if (at >= p.kh * span || (u32)iy >= p.ih || (u32)ix >= p.iw) continue;
                const T *from = image + ((u64)(u32)iy * p.by_row + (u64)(u32)ix * p.by_column);
                UNROLLED
                for (u32 c = 0; c < 4; ++c) {
                    if (c < p.ic) pixel[k].lane[c] = from[c * p.by_channel];
                }
            }
            UNROLLED
            for (u32 k = 0; k < AHEAD; ++k) {
                u32 at = i + k * blockDim.x, r = at / span, column = at - r * span;
                if (at < p.kh * span) *reinterpret_cast<Vector<T, 4> *>(area + r * LINE + column * 4) = pixel[k];
            }
        }
        sync_threads();
        cores::Tile<T, STRIDE * 4> windows(area);
        cores::Tile<T, PITCH> weights(weight);
        cores::Sums sums[GROUP / 16][MOST / 16] = {};
        // Whole warps compute or don't, because the CPU's emulation needs all lanes of one.
        u32 begin = cores::warp() * GROUP;
        bool computes = threadIdx.x / (u32)warpSize * (u32)warpSize / cores::LANES * GROUP < count;
        if (computes) {
            ROLLED
            for (u32 r = 0; r < p.kh; ++r) {
                ROLLED
                for (u32 k = 0; k < p.kw * 4; k += 16) {
                    cores::Rows pixels[GROUP / 16];
                    UNROLLED
                    for (u32 m = 0; m < GROUP / 16; ++m) {
                        pixels[m] = windows.rows(begin + m * 16, r * LINE + k);
                        if (p.kw * 4 - k < 16) keep_terms(pixels[m], p.kw * 4 - k);
                    }
                    UNROLLED
                    for (u32 n = 0; n < MOST / 16; ++n) {
                        if (n * 16 >= p.oc) continue;
                        cores::Columns columns = weights.columns(n * 16, r * TERMS + k);
                        UNROLLED
                        for (u32 m = 0; m < GROUP / 16; ++m) cores::multiply<T>(pixels[m], columns, sums[m][n]);
                    }
                }
            }
        }
        sync_threads(); // the results take the place of the image
        if (computes) {
            UNROLLED
            for (u32 m = 0; m < GROUP / 16; ++m) {
                UNROLLED
                for (u32 i = 0; i < cores::ELEMENTS; ++i) {
                    u32 row = begin + m * 16 + cores::row_of(cores::slot_of(i));
                    UNROLLED
                    for (u32 n = 0; n < MOST / 16; ++n)
                        area[row * OUT_PITCH + n * 16 + cores::column_of(i)] = store<T>::from(sums[m][n].at[i]);
                }
            }
        }
        sync_threads();
        T *to = out + ((u64)line * p.ow + first) * p.oc;
        u32 pieces = p.oc / 8;
        for (u32 i = threadIdx.x; i < count * pieces; i += blockDim.x) {
            u32 pixel = i / pieces, piece = i - pixel * pieces;
            reinterpret_cast<Piece *>(to)[i] = *reinterpret_cast<const Piece *>(area + pixel * OUT_PITCH + piece * 8);
        }
        sync_threads();
    });
#endif
}
