// The product of one row with float weights [outs, inputs], and what surrounds it in a decoder's
// layer (projection.h). Each weight is read once. Sums are f32, in an order that depends only on the
// sizes and the device.
//
// Two warps (one, if warps have 64 threads) multiply whole rows of weights, so that a warp reads
// neighbouring addresses and waits for others only when its part is summed.
#include "projection.h"

struct RowSizes {
    u32 outs, inputs; // inputs: a multiple of 8
    Surroundings around;
    u32 unused[6];
};

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
constexpr u32 TILE = 32; // rows of weights of a block

// The product of a row of weights and a row of x in f32.
template <class T> DEVICE f32 dot(u32 inputs, const T *weights, const f32 *x) {
    constexpr u32 SPAN = 256, SUMS = 16;
    f32 lane[SUMS] = {}, wide[SPAN];
    for (u32 first = 0; first < inputs; first += SPAN) {
        u32 count = inputs - first < SPAN ? inputs - first : SPAN;
        const f32 *row = wide;
        if constexpr (is_same<T, f32>::value) row = weights + first;
        else read_row(count, weights + first, wide);
        u32 k = 0;
        for (; k + SUMS <= count; k += SUMS)
            for (u32 i = 0; i < SUMS; ++i) lane[i] += row[k + i] * x[first + k + i];
        for (; k < count; ++k) lane[0] += row[k] * x[first + k];
    }
    for (u32 width = SUMS / 2; width > 0; width /= 2)
        for (u32 i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
}

template <class T> DEVICE void tile_of(const RowSizes &z, const Around<T> &a, const T *x, const T *weights, u32 tile) {
    auto room = static_cast<f32 *>(hip_cpu_scratch((u64)z.inputs * sizeof(f32)));
    f32 root[1], squares[TILE], sums[TILE];
    read_row(z.inputs, x, room);
    for (u32 c = 0; c < TILE; ++c)
        sums[c] = dot(z.inputs, weights + (u64)weight_row<TILE>(z.outs, z.around.gate, tile, c) * z.inputs, room);
    find_roots(a, root);
    finish<TILE>(a, tile, root, squares, [&](u32 c, u32) { return sums[c]; });
}

#else
constexpr u32 THREADS = 256;
// Rows of weights of a block and of a warp, and the pieces of 16 bytes of each of its rows that a lane
// has in flight. Small blocks fill a device evenly: on an H200, products of 2048 to 16384 inputs and
// outputs take up to 11 % less time than with 16 rows a block. With one row a warp the conversions of
// x and what follows the sums take too many instructions for large matrices.
constexpr u32 TILE = 8, EACH = 2, AHEAD = 4;

using Words = Vector<u32, 4>;

template <class T> DEVICE void widen(Words words, f32 (&to)[16 / sizeof(T)]) {
    UNROLLED
    for (u32 w = 0; w < 4; ++w) {
        if constexpr (sizeof(T) == 4) {
            to[w] = bit_cast<f32>(words.lane[w]);
        } else if constexpr (is_same<T, bf16>::value) {
            to[2 * w] = bit_cast<f32>(words.lane[w] << 16);
            to[2 * w + 1] = bit_cast<f32>(words.lane[w] & 0xffff0000u);
        } else {
            to[2 * w] = load(T{(u16)words.lane[w]});
            to[2 * w + 1] = load(T{(u16)(words.lane[w] >> 16)});
        }
    }
}

template <class T, u32 WARP>
DEVICE void tile_of(const RowSizes &z, const Around<T> &a, const T *x, const T *weights, u32 tile) {
    // SHARE: warps that share rows of weights.
    constexpr u32 WARPS = THREADS / WARP, SHARE = WARPS * EACH / TILE, N = 16 / sizeof(T), STEP = SHARE * WARP * N;
    SHARED(f32, sums, WARPS * EACH);
    SHARED(f32, squares, WARPS);
    SHARED(f32, room, TILE);
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = (warp % SHARE * WARP + lane) * N;
    const T *row[EACH];
    UNROLLED
    for (u32 e = 0; e < EACH; ++e) {
        u32 column = warp / SHARE * EACH + e;
        row[e] = weights + (u64)weight_row<TILE>(z.outs, z.around.gate, tile, column) * z.inputs;
    }
    f32 sum[EACH] = {}, square = 0.0f;
    Beside other = {};
    ROLLED
    for (u32 at = first; at < z.inputs + first; at += AHEAD * STEP) {
        Words piece[AHEAD][EACH], some[AHEAD];
        UNROLLED
        for (u32 n = 0; n < AHEAD; ++n) {
            u32 k = at + n * STEP;
            UNROLLED
            for (u32 e = 0; e < EACH; ++e) piece[n][e] = read_now<true>(row[e] + k, k < z.inputs);
        }
        UNROLLED
        for (u32 n = 0; n < AHEAD; ++n) {
            u32 k = at + n * STEP;
            some[n] = read_now<false>(x + k, k < z.inputs);
        }
        // After the loads of the first weights, which take longer.
        if (at == first) {
            if (a.squares != nullptr) {
                for (u32 part = threadIdx.x; part < a.of.parts; part += THREADS) square += a.squares[part];
            }
            if (threadIdx.x < TILE) other = beside<TILE>(a, tile, 0, threadIdx.x);
        }
        UNROLLED
        for (u32 n = 0; n < AHEAD; ++n) {
            f32 inputs[N];
            widen<T>(some[n], inputs);
            UNROLLED
            for (u32 e = 0; e < EACH; ++e) {
                f32 w[N];
                widen<T>(piece[n][e], w);
                UNROLLED
                for (u32 k = 0; k < N; ++k) sum[e] += w[k] * inputs[k];
            }
        }
    }
    UNROLLED
    for (u32 e = 0; e < EACH; ++e) sum[e] = warp_reduce(sum[e], Plus());
    if (a.squares != nullptr) square = warp_reduce(square, Plus());
    sync_threads(); // threads may still read the previous tile's sums
    if (lane == 0) {
        squares[warp] = square;
        UNROLLED
        for (u32 e = 0; e < EACH; ++e) sums[warp * EACH + e] = sum[e];
    }
    sync_threads();
    f32 root[1] = {1.0f};
    if (a.squares != nullptr) {
        f32 whole = 0.0f;
        UNROLLED
        for (u32 w = 0; w < WARPS; ++w) whole += squares[w];
        root[0] = root_of(a, whole);
    }
    auto sum_of = [=](u32 column, u32) {
        f32 whole = 0.0f;
        UNROLLED
        for (u32 s = 0; s < SHARE; ++s) whole += sums[(column / EACH * SHARE + s) * EACH + column % EACH];
        return whole;
    };
    // `finish` asks only for the column threadIdx.x, for which `other` was read.
    finish<TILE>(a, tile, root, room, sum_of, [=](u32, u32) { return other; });
}
#endif

// All arrays begin at multiples of 16 bytes. On GPUs, launched with blocks of 256 threads.
template <class T>
__global__ __launch_bounds__(256, 3) void row_product(RowSizes z, const T *x, const T *weights, const f32 *squares,
                                                      const T *bias, const T *residual, const f32 *factor, T *out,
                                                      T *scaled, f32 *new_squares) {
    Around<T> a{1, z.outs, z.around, squares, bias, residual, factor, out, scaled, new_squares};
    for_each_row(tiles_of<TILE>(z.outs, z.around.gate), [=](u64 tile) {
        if constexpr (ONE_THREAD) tile_of<T>(z, a, x, weights, (u32)tile);
        else if ((u32)warpSize == 32) tile_of<T, 32>(z, a, x, weights, (u32)tile);
        else tile_of<T, 64>(z, a, x, weights, (u32)tile);
    });
}
