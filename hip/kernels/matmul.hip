// A plain tiled matrix product, for integers, which rocBLAS does not multiply, and for floats on
// GPUs for which rocBLAS has no kernels.
#include "prelude.h"

// The type in which products are summed. Integers wrap.
template <class T, bool FLOAT = is_float<T>::value> struct accumulator {
    using type = compute_t<T>;
};
template <class T> struct accumulator<T, false> {
    using type = wrapping_t<T>;
};

// Strides in elements; a batch stride of 0 repeats an operand.
struct Strides {
    i64 a_batch, a_row, a_col, b_batch, b_row, b_col;
};

// Scales a sum by alpha and converts it to the result's type.
template <class T, class A> DEVICE T scaled(A sum, f64 alpha) {
    if constexpr (is_float<T>::value) sum *= (A)alpha;
    return store<T>::from(sum);
}

constexpr u32 TILE = 64;  // rows and columns of the output that a block computes
constexpr u32 DEPTH = 16; // terms of the sums in shared memory at a time
constexpr u32 MICRO = 4;  // rows and columns that a thread computes

// A block computes one tile; each thread has 4x4 elements in registers. A block of fewer than 256
// threads takes several rounds.
template <class T, class A>
DEVICE void tile_shared(u32 m, u32 n, u32 k, const Strides &s, u32 row0, u32 col0, f64 alpha, const T *a, const T *b,
                        T *out) {
    SHARED(A, left_tile, DEPTH * TILE);
    SHARED(A, right_tile, DEPTH * TILE);
    A *left = left_tile, *right = right_tile;
    constexpr u32 SIDE = TILE / MICRO;
    for (u32 round = 0; round < SIDE * SIDE; round += blockDim.x) {
        u32 part = round + threadIdx.x;
        bool active = part < SIDE * SIDE;
        // Interleaved, so that neighbouring threads read neighbouring words of shared memory.
        u32 ty = active ? part / SIDE : 0, tx = active ? part % SIDE : 0;
        A sum[MICRO][MICRO] = {};
        for (u32 k0 = 0; k0 < k; k0 += DEPTH) {
            sync_threads(); // threads may still read the previous step's tiles
            for_each_in_block(DEPTH * TILE, [=](u64 at) {
                // Reads along the axis in which the operand has stride 1.
                u32 p = (u32)at;
                u32 i = s.a_row == 1 ? p % TILE : p / DEPTH, d = s.a_row == 1 ? p / TILE : p % DEPTH;
                A value = (A)0;
                if (row0 + i < m && k0 + d < k) value = (A)load(a[(i64)(row0 + i) * s.a_row + (i64)(k0 + d) * s.a_col]);
                left[d * TILE + i] = value;
                u32 j = s.b_row == 1 ? p / DEPTH : p % TILE, e = s.b_row == 1 ? p % DEPTH : p / TILE;
                value = (A)0;
                if (col0 + j < n && k0 + e < k) value = (A)load(b[(i64)(k0 + e) * s.b_row + (i64)(col0 + j) * s.b_col]);
                right[e * TILE + j] = value;
            });
            sync_threads();
            for (u32 d = 0; d < DEPTH; ++d) {
                A x[MICRO], y[MICRO];
                for (u32 i = 0; i < MICRO; ++i) x[i] = left[d * TILE + i * SIDE + ty];
                for (u32 j = 0; j < MICRO; ++j) y[j] = right[d * TILE + j * SIDE + tx];
                for (u32 i = 0; i < MICRO; ++i) {
                    for (u32 j = 0; j < MICRO; ++j) sum[i][j] += x[i] * y[j];
                }
            }
        }
        for (u32 i = 0; i < MICRO; ++i) {
            for (u32 j = 0; j < MICRO; ++j) {
                u32 row = row0 + i * SIDE + ty, col = col0 + j * SIDE + tx;
                if (active && row < m && col < n) out[(u64)row * n + col] = scaled<T>(sum[i][j], alpha);
            }
        }
    }
}

// One thread computes one tile. b's part is packed, so that the inner loop runs along it, four
// terms at a time.
template <class T, class A>
DEVICE void tile_packed(u32 m, u32 n, u32 k, const Strides &s, u32 row0, u32 col0, f64 alpha, const T *a, const T *b,
                        T *out) {
    A sum[TILE][TILE] = {}, packed[DEPTH][TILE];
    u32 rows = m - row0 < TILE ? m - row0 : TILE, cols = n - col0 < TILE ? n - col0 : TILE;
    for (u32 k0 = 0; k0 < k; k0 += DEPTH) {
        u32 depth = k - k0 < DEPTH ? k - k0 : DEPTH;
        for (u32 d = 0; d < DEPTH; ++d) {
            for (u32 j = 0; j < TILE; ++j) packed[d][j] = (A)0;
            const T *from = b + (i64)(k0 + d) * s.b_row + (i64)col0 * s.b_col;
            if (d < depth) {
                for (u32 j = 0; j < cols; ++j) packed[d][j] = (A)load(from[(i64)j * s.b_col]);
            }
        }
        for (u32 i = 0; i < rows; ++i) {
            const T *from = a + (i64)(row0 + i) * s.a_row + (i64)k0 * s.a_col;
            for (u32 d = 0; d < depth; d += 4) {
                A x[4];
                for (u32 e = 0; e < 4; ++e) x[e] = d + e < depth ? (A)load(from[(i64)(d + e) * s.a_col]) : (A)0;
                INDEPENDENT
                for (u32 j = 0; j < TILE; ++j) {
                    sum[i][j] += (x[0] * packed[d][j] + x[1] * packed[d + 1][j]) +
                                 (x[2] * packed[d + 2][j] + x[3] * packed[d + 3][j]);
                }
            }
        }
    }
    for (u32 i = 0; i < rows; ++i) {
        for (u32 j = 0; j < cols; ++j) out[(u64)(row0 + i) * n + col0 + j] = scaled<T>(sum[i][j], alpha);
    }
}

// out[batch] = alpha * a[batch] x b[batch] (alpha is for floats only). a is m x k and b is k x n,
// both with strides; out is packed. A block computes a tile of 64 x 64 (256 threads are best); any
// grid works. f16 and bf16 are summed in f32 and rounded once.
template <class T>
__global__ __launch_bounds__(256) void matmul(u64 batch, u32 m, u32 n, u32 k, Strides s, f64 alpha, const T *a,
                                              const T *b, T *out) {
    using A = typename accumulator<T>::type;
    u32 down = (m + TILE - 1) / TILE, across = (n + TILE - 1) / TILE;
    for_each_row(batch * down * across, [=](u64 tile) {
        u64 at = tile / ((u64)down * across);
        u32 rest = (u32)(tile - at * down * across);
        u32 row0 = rest / across * TILE, col0 = rest % across * TILE;
        const T *x = a + (i64)at * s.a_batch, *y = b + (i64)at * s.b_batch;
        if constexpr (ONE_THREAD) tile_packed<T, A>(m, n, k, s, row0, col0, alpha, x, y, out + at * m * n);
        else tile_shared<T, A>(m, n, k, s, row0, col0, alpha, x, y, out + at * m * n);
    });
}
