// Several elements in their compute type.
#pragma once
#include "prelude.h"

// NVIDIA's compiler takes two instructions to convert the upper bf16 of a register if it is loaded
// by itself, and one if the register is masked.
template <class T, u32 N> DEVICE void widen(const Vector<T, N> &from, compute_t<T> (&to)[N]) {
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
        for (u32 k = 0; k < N; ++k) to[k] = load(from.lane[k]);
    }
}
