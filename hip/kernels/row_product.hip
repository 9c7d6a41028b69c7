// The product of one row with float weights [outs, inputs], and what surrounds it in a decoder's
// layer (projection.h). Each weight is read once. Sums are f32, in an order that depends only on the
// sizes and the device.
//
// A warp multiplies whole rows of weights, so that it reads neighbouring addresses and waits for no
// other warp before its rows are summed.
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
// Rows of weights of a block, and the pieces of 16 bytes of each of its rows that a lane has in
// flight. On an H200, 4 pieces and 3 blocks on a multiprocessor read 4.4 TB/s of a matrix of 525 MB;
// 2 pieces and 6 blocks 4.1, 8 pieces and 2 blocks 4.4 (and 3 to 4 % less of small matrices).
constexpr u32 TILE = 16, AHEAD = 4;

using Words = Vector<u32, 4>;
// 16 bytes, or zeros if `inside` is false. NVIDIA's compiler would move plain loads down to their
// uses, to save registers, and a lane would have one in flight instead of AHEAD for each row. ONCE:
// L1 does not keep the bytes; no launch may write the array meanwhile.
template <bool ONCE> DEVICE Words read_now(const void *from, bool inside) {
    Words words = {};
#if COMPILER_NVIDIA
    if (inside) {
        if constexpr (ONCE)
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words.lane[0]), "=r"(words.lane[1]), "=r"(words.lane[2]), "=r"(words.lane[3])
                         : "l"(from));
        else
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words.lane[0]), "=r"(words.lane[1]), "=r"(words.lane[2]), "=r"(words.lane[3])
                         : "l"(from));
    }
#else
    if (inside) words = *static_cast<const Words *>(from);
#endif
    return words;
}

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
    constexpr u32 WARPS = THREADS / WARP, EACH = TILE / WARPS, N = 16 / sizeof(T), STEP = WARP * N;
    SHARED(f32, sums, TILE);
    SHARED(f32, roots, 1);
    SHARED(f32, room, TILE);
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const T *row[EACH];
    UNROLLED
    for (u32 e = 0; e < EACH; ++e) {
        u32 column = warp + e * WARPS;
        row[e] = weights + (u64)weight_row<TILE>(z.outs, z.around.gate, tile, column) * z.inputs + lane * N;
    }
    f32 sum[EACH] = {}, squares = 0.0f;
    ROLLED
    for (u32 at = 0; at < z.inputs; at += AHEAD * STEP) {
        Words piece[AHEAD][EACH], some[AHEAD];
        UNROLLED
        for (u32 n = 0; n < AHEAD; ++n) {
            bool inside = at + n * STEP + lane * N < z.inputs;
            UNROLLED
            for (u32 e = 0; e < EACH; ++e) piece[n][e] = read_now<true>(row[e] + at + n * STEP, inside);
        }
        UNROLLED
        for (u32 n = 0; n < AHEAD; ++n) {
            u32 k = at + n * STEP + lane * N;
            some[n] = read_now<false>(x + k, k < z.inputs);
        }
        // After the loads of the first weights, which take longer.
        if (at == 0 && a.squares != nullptr) {
            for (u32 part = lane; part < a.of.parts; part += WARP) squares += a.squares[part];
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
    if (a.squares != nullptr) squares = warp_reduce(squares, Plus());
    sync_threads(); // threads may still read the previous tile's sums
    if (threadIdx.x == 0) roots[0] = a.squares == nullptr ? 1.0f : root_of(a, squares);
    UNROLLED
    for (u32 e = 0; e < EACH; ++e) {
        f32 whole = warp_reduce(sum[e], Plus());
        if (lane == 0) sums[warp + e * WARPS] = whole;
    }
    sync_threads();
    finish<TILE>(a, tile, roots, room, [=](u32 column, u32) { return sums[column]; });
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
