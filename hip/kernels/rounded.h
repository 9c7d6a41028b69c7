// Arithmetic that is rounded step by step, so that every provider gives the same bits.
#pragma once
#include "prelude.h"

// A product that no compiler may fuse with an addition.
DEVICE f32 product(f32 a, f32 b) {
#if COMPILER_NVIDIA
    return __fmul_rn(a, b);
#else
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
    return a * b;
#endif
}
DEVICE f64 product(f64 a, f64 b) {
#if COMPILER_NVIDIA
    return __dmul_rn(a, b);
#else
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
    return a * b;
#endif
}
