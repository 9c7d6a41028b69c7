// Functions by single instructions of the GPUs. Their errors are a few roundings of f32.
#pragma once
#include "prelude.h"

// 2^x. Results below the smallest normal number may be 0.
DEVICE f32 power2(f32 x) {
#if COMPILER_NVIDIA
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif COMPILER_AMD
    return __builtin_amdgcn_exp2f(x);
#else
    return __builtin_exp2f(x);
#endif
}

// 1 / x. Where x or the result is below the smallest normal number, the result may be that of 0.
DEVICE f32 reciprocal(f32 x) {
#if COMPILER_NVIDIA
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif COMPILER_AMD
    return __builtin_amdgcn_rcpf(x);
#else
    return 1.0f / x;
#endif
}
