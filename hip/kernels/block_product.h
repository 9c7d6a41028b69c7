// Products of small matrices with CPU vectors, computed by one thread.
#pragma once
#include "prelude.h"

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP

#if defined(__AVX512F__)
constexpr u32 VECTOR = 64, GROUP = 8; // bytes of a vector; rows whose sums stay in registers
#elif defined(__AVX__)
constexpr u32 VECTOR = 32, GROUP = 4;
#else
constexpr u32 VECTOR = 16, GROUP = 4;
#endif
template <class C> struct lanes {
    typedef C type __attribute__((vector_size(VECTOR)));
    static constexpr u32 count = VECTOR / sizeof(C);
};
constexpr u32 ABREAST = 2; // vectors of columns whose sums stay in registers

constexpr u32 round_up(u32 n, u32 to) { return (n + to - 1) / to * to; }

// out[r][c] += the sum over k < depth of a[r * ROW + k * STEP] * b[k][c], for GROUP rows r and
// ABREAST vectors of columns c.
template <u32 ROW, u32 STEP, class C>
DEVICE void block_product(u64 depth, const C *a, const C *b, i64 b_pitch, C *out, u32 out_pitch) {
    using V = typename lanes<C>::type;
    constexpr u32 L = lanes<C>::count;
    V sum[GROUP][ABREAST];
    UNROLLED_EVERYWHERE
    for (u32 r = 0; r < GROUP; ++r) {
        UNROLLED_EVERYWHERE
        for (u32 v = 0; v < ABREAST; ++v) __builtin_memcpy(&sum[r][v], out + r * out_pitch + v * L, VECTOR);
    }
    for (u64 k = 0; k < depth; ++k) {
        V right[ABREAST];
        UNROLLED_EVERYWHERE
        for (u32 v = 0; v < ABREAST; ++v) __builtin_memcpy(&right[v], b + (i64)k * b_pitch + v * L, VECTOR);
        UNROLLED_EVERYWHERE
        for (u32 r = 0; r < GROUP; ++r) {
            C left = a[r * ROW + k * STEP];
            UNROLLED_EVERYWHERE
            for (u32 v = 0; v < ABREAST; ++v) sum[r][v] += left * right[v];
        }
    }
    UNROLLED_EVERYWHERE
    for (u32 r = 0; r < GROUP; ++r) {
        UNROLLED_EVERYWHERE
        for (u32 v = 0; v < ABREAST; ++v) __builtin_memcpy(out + r * out_pitch + v * L, &sum[r][v], VECTOR);
    }
}

#endif
