// Hints about registers for AMD's compiler, so that kernels neither spill nor lose waves. They
// change no value, and other compilers get none.
#pragma once
#include "prelude_compiler.h"

// The most waves that a SIMD can hold, if each takes few enough registers.
#if __gfx900__ || __gfx906__ || __gfx908__
#define MOST_WAVES 4
#elif __GFX9__
#define MOST_WAVES 8
#elif __gfx1010__ || __gfx1011__ || __gfx1012__ || __gfx1013__
#define MOST_WAVES 20 // RDNA 1: leaves 48 registers to each wave
#else
#define MOST_WAVES 16
#endif

// Goes after __global__ of a kernel that is limited by memory. It makes the compiler use so few
// registers that a SIMD has room for all its waves. If `wanted` is false, the compiler chooses.
// `wanted` may depend on template parameters.
#if COMPILER_AMD
#define ALL_WAVES(wanted) __attribute__((amdgpu_waves_per_eu((wanted) ? MOST_WAVES : 1)))
#else
#define ALL_WAVES(wanted)
#endif

// Loads a kernel's parameters from memory again. `given` is a struct of all parameters in their
// order. AMD's compiler would otherwise load them once, at the start of the kernel, into scalar
// registers that stay taken.
template <class Given> DEVICE const Given &reload_parameters(const Given &given) {
#if COMPILER_AMD
    // A launch puts the parameters here, each at its type's alignment, as in a struct (LLVM's "User
    // Guide for AMDGPU Backend", "Kernarg Segment").
    auto segment = __builtin_amdgcn_kernarg_segment_ptr();
    // Hides from the compiler that the address is the same as before.
    asm volatile("" : "+s"(segment));
    return *(const Given *)segment;
#elif COMPILER_HOST && HIP_CPU_LOCKSTEP
    // As above, so a struct in another order fails here too, without an AMD GPU.
    return *(const Given *)hip_cpu_now->arguments;
#else
    return given;
#endif
}

// Returns `value`. What is computed from the result is computed at this point: AMD's compiler
// neither keeps an earlier result of the same computation in registers nor moves the computation
// out of a loop.
template <class V> DEVICE V recompute_from(V value) {
#if COMPILER_AMD
    if constexpr (sizeof(V) % 4 == 0) {
        u32 word[sizeof(V) / 4];
        __builtin_memcpy(word, &value, sizeof(V));
        UNROLLED
        for (u32 w = 0; w < sizeof(V) / 4; ++w) asm volatile("" : "+v"(word[w]));
        __builtin_memcpy(&value, word, sizeof(V));
    }
#endif
    return value;
}
// The same, but only after `earlier` has been computed, so that the registers of that computation
// are free again.
template <class V, class C> DEVICE V recompute_after(C earlier, V value) {
#if COMPILER_AMD
    asm volatile("" : : "v"(earlier));
#endif
    return recompute_from(value);
}

// Marks a value that is the same in all threads of a warp. AMD's compiler then keeps it, and what
// is computed from it, in scalar registers, once for the warp.
DEVICE u32 warp_uniform(u32 value) {
#if COMPILER_AMD
    return (u32)__builtin_amdgcn_readfirstlane((i32)value);
#else
    return value;
#endif
}
