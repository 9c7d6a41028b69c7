// Several elements in their compute type.
#pragma once
#include "prelude.h"

// NVIDIA's compiler takes two instructions to convert the upper bf16 of a register if it is loaded
// by itself, and one if the register is masked.
template <class T, u32 N> DEVICE void widen(const T (&from)[N], compute_t<T> (&to)[N]) {
    if constexpr (is_same<T, bf16>::value && N % 2 == 0 && !ONE_THREAD) {
        u32 word[N / 2];
        __builtin_memcpy(word, &from, sizeof(word));
        UNROLLED
        for (u32 k = 0; k < N / 2; ++k) {
            to[2 * k] = bit_cast<f32>(word[k] << 16);
            to[2 * k + 1] = bit_cast<f32>(word[k] & 0xffff0000u);
        }
    } else {
        UNROLLED
        for (u32 k = 0; k < N; ++k) to[k] = load(from[k]);
    }
}
// By value: from memory, an array would be loaded by single bytes.
template <class T, u32 N> DEVICE void widen(Vector<T, N> from, compute_t<T> (&to)[N]) { widen(from.lane, to); }

// The same back, each element rounded. NVIDIA GPUs round two elements by one instruction.
template <class T, u32 N> DEVICE Vector<T, N> narrow(const compute_t<T> (&from)[N]) {
#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        u32 word[N / 2];
        UNROLLED
        for (u32 k = 0; k < N / 2; ++k) {
            if constexpr (is_same<T, f16>::value)
                asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word[k]) : "f"(from[2 * k + 1]), "f"(from[2 * k]));
            else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[k]) : "f"(from[2 * k + 1]), "f"(from[2 * k]));
        }
        Vector<T, N> to;
        __builtin_memcpy(&to, word, sizeof(to));
        return to;
    }
#endif
    Vector<T, N> to;
    UNROLLED
    for (u32 k = 0; k < N; ++k) to.lane[k] = store<T>::from(from[k]);
    return to;
}
