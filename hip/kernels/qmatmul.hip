// Products of matrices, of which one or both are quantised. Values are converted to f32 and scaled
// when they are copied into a tile; sums are f32.
#include "packed.h"

// For each side: bits per value, values per scale, and the logarithm of the latter, as in packed.h.
// A float side does not use them.
struct Sizes {
    u32 m, n, k, a_bits, a_block, a_shift, b_bits, b_block, b_shift, unused[3];
};
// In elements. A batch stride of 0 repeats an operand.
struct Strides {
    i64 a_batch, a_row, a_col, b_batch, b_row, b_col;
};

// The kernel's parameters, in their order.
template <class A, class B, class Out> struct Given {
    u64 batch;
    Sizes z;
    Strides s;
    i64 a_first, b_first;
    const A *a;
    const f32 *a_scales;
    const B *b;
    const f32 *b_scales;
    Out *out;
};

// One operand: its first element, its stride along the summed dim (`depth`) and along the other dim
// (`outer`), which has `outers` elements.
struct Side {
    i64 first, outer, depth;
    u32 outers, bits, block, shift;
};

template <class G> DEVICE Side left_of(const G &g, u64 at) {
    return {g.a_first + (i64)at * g.s.a_batch, g.s.a_row, g.s.a_col, g.z.m, g.z.a_bits, g.z.a_block, g.z.a_shift};
}
template <class G> DEVICE Side right_of(const G &g, u64 at) {
    return {g.b_first + (i64)at * g.s.b_batch, g.s.b_col, g.s.b_row, g.z.n, g.z.b_bits, g.z.b_block, g.z.b_shift};
}

// Quantised values have type i8, whatever their number of bits.
template <class T> DEVICE f32 entry(const Side &, const T *values, const f32 *, i64 at) {
    return (f32)load(values[at]);
}
DEVICE f32 entry(const Side &s, const i8 *values, const f32 *scales, i64 at) {
    f32 scale = s.block == 0 ? scales[0] : scales[s.shift < 32 ? (u32)at >> s.shift : (u32)at / s.block];
    return scale * (f32)value_at<0>(reinterpret_cast<const u8 *>(values), (u64)at, s.bits);
}

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
// ---------------------------------------------------------------- one thread a block

// The rows and columns of a tile, the terms of its sums that are packed at a time, and the part of
// the tile that is kept in registers.
constexpr u32 TILE = 128, DEPTH = 128;
#if __AVX512F__
constexpr u32 LANES = 16, MICRO_ROWS = 8, MICRO_COLUMNS = 32;
#elif __AVX2__
constexpr u32 LANES = 8, MICRO_ROWS = 4, MICRO_COLUMNS = 16;
#else
constexpr u32 LANES = 4, MICRO_ROWS = 4, MICRO_COLUMNS = 8;
#endif
#define ONCE static __attribute__((noinline)) // compiled once, not for every instantiation

// The compiler's vector type, because it would not keep an array of sums in registers.
typedef f32 Lanes __attribute__((vector_size(LANES * sizeof(f32))));

// a * b + c, rounded once if the CPU can. So, as in rocBLAS, the bits of these sums depend on the
// instruction set.
DEVICE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
#if defined(__clang__)
#pragma clang fp contract(fast)
    return a * b + c;
#elif __AVX512F__
    return __builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4);
#elif __FMA__ && __AVX2__
    return __builtin_ia32_vfmaddps256(a, b, c);
#else
    return a * b + c;
#endif
}

// sum += left x right over `depth` terms. left is in columns of MICRO_ROWS, right in rows of
// MICRO_COLUMNS.
ONCE void micro(u32 depth, const f32 *left, const f32 *right, f32 *sum) {
    constexpr u32 ACROSS = MICRO_COLUMNS / LANES;
    Lanes total[MICRO_ROWS][ACROSS] = {};
    for (u32 d = 0; d < depth; ++d) {
        Lanes y[ACROSS];
        UNROLLED_EVERYWHERE
        for (u32 j = 0; j < ACROSS; ++j) __builtin_memcpy(&y[j], right + d * MICRO_COLUMNS + j * LANES, sizeof(Lanes));
        UNROLLED_EVERYWHERE
        for (u32 i = 0; i < MICRO_ROWS; ++i) {
            Lanes x = left[d * MICRO_ROWS + i] - Lanes{}; // a copy in every lane
            UNROLLED_EVERYWHERE
            for (u32 j = 0; j < ACROSS; ++j) total[i][j] = multiply_add(x, y[j], total[i][j]);
        }
    }
    UNROLLED_EVERYWHERE
    for (u32 i = 0; i < MICRO_ROWS; ++i) {
        UNROLLED_EVERYWHERE
        for (u32 j = 0; j < ACROSS; ++j) {
            f32 *to = sum + i * TILE + j * LANES;
            Lanes before;
            __builtin_memcpy(&before, to, sizeof(Lanes));
            before += total[i][j];
            __builtin_memcpy(to, &before, sizeof(Lanes));
        }
    }
}

// out[i] = element at + i, if the stride is 1. count is at most CHUNK.
template <class T> ONCE void run(const Side &, const T *values, const f32 *, i64 at, u32 count, f32 *out) {
    INDEPENDENT
    for (u32 i = 0; i < count; ++i) out[i] = (f32)load(values[at + i]);
}
ONCE void run(const Side &s, const i8 *values, const f32 *scales, i64 at, u32 count, f32 *out) {
    i8 buffer[CHUNK];
    const u8 *bytes = reinterpret_cast<const u8 *>(values);
    const i8 *q = s.bits == 8   ? decoded<8>(bytes, (u64)at, count, buffer)
                  : s.bits == 4 ? decoded<4>(bytes, (u64)at, count, buffer)
                                : decoded<2>(bytes, (u64)at, count, buffer);
    for (u32 i = 0; i < count;) {
        u32 stop = (u32)(run_end((u64)at + i, (u64)at + count, s.block) - (u64)at);
        f32 scale = scales[scale_index((u64)at + i, s.block, s.shift)];
        INDEPENDENT
        for (u32 k = i; k < stop; ++k) out[k] = scale * (f32)q[k];
        i = stop;
    }
}

// Packs elements outer0.. and k0.. into panels of WIDTH along the outer dim, each of `depth` terms.
// Places outside the operand are 0.
template <class T, u32 WIDTH>
ONCE void pack(const Side &s, const T *values, const f32 *scales, u32 outer0, u32 k0, u32 depth, f32 *to) {
    u32 count = s.outers - outer0 < TILE ? s.outers - outer0 : TILE;
    i64 base = s.first + (i64)outer0 * s.outer + (i64)k0 * s.depth;
    f32 line[TILE > DEPTH ? TILE : DEPTH];
    u32 panels = (count + WIDTH - 1) / WIDTH;
    if (s.outer == 1) {
        for (u32 i = count; i < panels * WIDTH; ++i) line[i] = 0.0f;
        for (u32 d = 0; d < depth; ++d) {
            run(s, values, scales, base + (i64)d * s.depth, count, line);
            for (u32 p = 0; p < panels; ++p)
                __builtin_memcpy(to + (p * DEPTH + d) * WIDTH, line + p * WIDTH, WIDTH * sizeof(f32));
        }
        return;
    }
    for (u32 i = 0; i < panels * WIDTH; ++i) {
        f32 *column = to + i / WIDTH * DEPTH * WIDTH + i % WIDTH;
        i64 at = base + (i64)i * s.outer;
        if (i >= count) {
            for (u32 d = 0; d < depth; ++d) column[d * WIDTH] = 0.0f;
        } else if (s.depth == 1) {
            run(s, values, scales, at, depth, line);
            for (u32 d = 0; d < depth; ++d) column[d * WIDTH] = line[d];
        } else {
            for (u32 d = 0; d < depth; ++d) column[d * WIDTH] = entry(s, values, scales, at + (i64)d * s.depth);
        }
    }
}

template <class A, class B, class Out> DEVICE void one_tile(const Given<A, B, Out> &g, u64 at, u32 row0, u32 col0) {
    Side left = left_of(g, at), right = right_of(g, at);
    Out *out = g.out + at * g.z.m * g.z.n;
    u32 k = g.z.k;
    alignas(64) f32 sum[TILE * TILE], x[TILE * DEPTH], y[TILE * DEPTH];
    u32 rows = left.outers - row0 < TILE ? left.outers - row0 : TILE,
        columns = right.outers - col0 < TILE ? right.outers - col0 : TILE;
    for (u32 i = 0; i < TILE * TILE; ++i) sum[i] = 0.0f;
    for (u32 k0 = 0; k0 < k; k0 += DEPTH) {
        u32 depth = k - k0 < DEPTH ? k - k0 : DEPTH;
        pack<A, MICRO_ROWS>(left, g.a, g.a_scales, row0, k0, depth, x);
        pack<B, MICRO_COLUMNS>(right, g.b, g.b_scales, col0, k0, depth, y);
        for (u32 j = 0; j < columns; j += MICRO_COLUMNS) {
            for (u32 i = 0; i < rows; i += MICRO_ROWS) micro(depth, x + i * DEPTH, y + j * DEPTH, sum + i * TILE + j);
        }
    }
    for (u32 i = 0; i < rows; ++i) {
        Out *to = out + (u64)(row0 + i) * right.outers + col0;
        INDEPENDENT
        for (u32 j = 0; j < columns; ++j) to[j] = store<Out>::from(sum[i * TILE + j]);
    }
}

#else
// ---------------------------------------------------------------- many threads a block

constexpr u32 TILE = 64;       // rows and columns of the output that a block computes
constexpr u32 DEPTH = 32;      // terms of the sums in shared memory at a time
constexpr u32 MICRO = 4;       // rows and columns that a thread computes
constexpr u32 LINE = TILE + 1; // one more word, so that a row's terms are in different banks

// Copies elements outer0.. and k0.. to to[term][outer]. Places outside the operand are 0.
// Neighbouring threads read along the axis in which the operand has stride 1.
template <class T>
DEVICE void fetch(const Side &s, const T *values, const f32 *scales, u32 outer0, u32 k0, u32 k, f32 *to) {
    bool along = s.outer == 1;
    for_each_in_block(TILE * DEPTH, [=](u64 at) {
        u32 p = (u32)at;
        u32 i = along ? p % TILE : p / DEPTH, d = along ? p / TILE : p % DEPTH;
        f32 value = 0.0f;
        if (outer0 + i < s.outers && k0 + d < k) {
            value = entry(s, values, scales, s.first + (i64)(outer0 + i) * s.outer + (i64)(k0 + d) * s.depth);
        }
        to[d * LINE + i] = value;
    });
}

// A thread copies four values with one load if they are contiguous.
DEVICE void fetch(const Side &s, const i8 *values, const f32 *scales, u32 outer0, u32 k0, u32 k, f32 *to) {
    bool along = s.outer == 1;
    u32 step = along ? 1 : LINE;
    bool unit = along || s.depth == 1, one_scale = s.block % 4 == 0;
    for_each_in_block(TILE * DEPTH / 4, [=](u64 quad) {
        u32 p = (u32)quad;
        u32 i = along ? p % (TILE / 4) * 4 : p / (DEPTH / 4), d = along ? p / (TILE / 4) : p % (DEPTH / 4) * 4;
        u32 outers = outer0 + i < s.outers ? s.outers - (outer0 + i) : 0, terms = k0 + d < k ? k - (k0 + d) : 0;
        u32 inside = outers == 0 || terms == 0 ? 0 : along ? outers : terms;
        i64 at = s.first + (i64)(outer0 + i) * s.outer + (i64)(k0 + d) * s.depth, next = along ? s.outer : s.depth;
        f32 *out = to + d * LINE + i;
        if (inside >= 4 && unit && one_scale && at % 4 == 0) {
            const u8 *bytes = reinterpret_cast<const u8 *>(values);
            u32 word;
            if (s.bits == 8) word = *reinterpret_cast<const u32 *>(bytes + at);
            else if (s.bits == 4) word = *reinterpret_cast<const u16 *>(bytes + at / 2);
            else word = bytes[at / 4];
            f32 scale = s.block == 0 ? scales[0] : scales[s.shift < 32 ? (u32)at >> s.shift : (u32)at / s.block];
            u32 top = 32 - s.bits;
            for (u32 e = 0; e < 4; ++e) out[e * step] = scale * (f32)((i32)(word << (top - e * s.bits)) >> top);
        } else {
            for (u32 e = 0; e < 4; ++e)
                out[e * step] = e < inside ? entry(s, values, scales, at + (i64)e * next) : 0.0f;
        }
    });
}

// A block computes one tile; each thread has 4x4 elements in registers. A block of fewer than 256
// threads takes several rounds.
template <class A, class B, class Out> DEVICE void one_tile(const Given<A, B, Out> &given, u64 at, u32 row0, u32 col0) {
    SHARED(f32, left_tile, DEPTH * LINE);
    SHARED(f32, right_tile, DEPTH * LINE);
    f32 *x = left_tile, *y = right_tile;
    constexpr u32 SIDE = TILE / MICRO;
    for (u32 round = 0; round < SIDE * SIDE; round += blockDim.x) {
        u32 part = round + threadIdx.x;
        bool active = part < SIDE * SIDE;
        // Interleaved, so that neighbouring threads read neighbouring words of shared memory.
        u32 ty = active ? part / SIDE : 0, tx = active ? part % SIDE : 0;
        f32 sum[MICRO][MICRO] = {};
        for (u32 k0 = 0, k = reload_parameters(given).z.k; k0 < k; k0 += DEPTH) {
            sync_threads(); // threads may still read the previous step's tiles
            // Reloaded in each step: the parameters of both sides do not fit into the scalar
            // registers.
            const Given<A, B, Out> &l = reload_parameters(given);
            fetch(left_of(l, at), l.a, l.a_scales, row0, k0, k, x);
            const Given<A, B, Out> &r = reload_parameters(given);
            fetch(right_of(r, at), r.b, r.b_scales, col0, k0, k, y);
            sync_threads();
            for (u32 d = 0; d < DEPTH; ++d) {
                f32 u[MICRO], v[MICRO];
                for (u32 i = 0; i < MICRO; ++i) u[i] = x[d * LINE + i * SIDE + ty];
                for (u32 j = 0; j < MICRO; ++j) v[j] = y[d * LINE + j * SIDE + tx];
                for (u32 i = 0; i < MICRO; ++i) {
                    for (u32 j = 0; j < MICRO; ++j) sum[i][j] += u[i] * v[j];
                }
            }
        }
        const Given<A, B, Out> &g = reload_parameters(given);
        Out *out = g.out + at * g.z.m * g.z.n;
        for (u32 i = 0; i < MICRO; ++i) {
            for (u32 j = 0; j < MICRO; ++j) {
                u32 row = row0 + i * SIDE + ty, column = col0 + j * SIDE + tx;
                if (active && row < g.z.m && column < g.z.n)
                    out[(u64)row * g.z.n + column] = store<Out>::from(sum[i][j]);
            }
        }
    }
}
#endif

// out[batch] = a[batch] x b[batch]. a is m x k and b is k x n, both with strides; out is packed. a
// and b point to the start of their storage. A block computes a tile (256 threads are best); any
// grid works.
template <class A, class B, class Out>
__global__ void qmatmul(u64 batch, Sizes z, Strides s, i64 a_first, i64 b_first, const A *a, const f32 *a_scales,
                        const B *b, const f32 *b_scales, Out *out) {
    Given<A, B, Out> given{batch, z, s, a_first, b_first, a, a_scales, b, b_scales, out};
    u32 down = (z.m + TILE - 1) / TILE, across = (z.n + TILE - 1) / TILE;
    for_each_row(batch * down * across, [=](u64 tile) {
        u64 at = tile / ((u64)down * across);
        u32 rest = (u32)(tile - at * down * across);
        one_tile(given, at, rest / across * TILE, rest % across * TILE);
    });
}

// out = x * a[0] * b[0], where x has the sums of a product of 8-bit values and a and b the scales
// of both sides.
template <class T> __global__ void scale_product(u64 n, const i32 *x, const f32 *a, const f32 *b, T *out) {
    f32 scale = a[0] * b[0];
    if constexpr (is_same<T, f64>::value) {
        f64 exact = (f64)a[0] * (f64)b[0];
        for_each(n, [=](u64 i) { out[i] = (f64)x[i] * exact; });
    } else {
        for_each(n, [=](u64 i) { out[i] = store<T>::from((f32)x[i] * scale); });
    }
}
