// What is said to AMD's compiler about registers, so that kernels neither spill nor lose waves. It
// changes no value; other compilers are told nothing.
#pragma once
#include "prelude_compiler.h"

// The waves that a SIMD has room for, if each takes few enough registers.
#if __gfx900__ || __gfx906__ || __gfx908__
#define MOST_WAVES 4
#elif __GFX9__
#define MOST_WAVES 8
#elif __gfx1010__ || __gfx1011__ || __gfx1012__ || __gfx1013__
#define MOST_WAVES 20 // RDNA 1: 48 registers each
#else
#define MOST_WAVES 16
#endif

// Behind __global__, of a kernel that memory bounds: it takes so few registers that a SIMD has room
// for all of its waves. Where `wanted` is false the compiler chooses; it may depend on the
// template's parameters.
#if COMPILER_AMD
#define ALL_WAVES(wanted) __attribute__((amdgpu_waves_per_eu((wanted) ? MOST_WAVES : 1)))
#else
#define ALL_WAVES(wanted)
#endif

// A kernel's parameters, loaded from memory here; `given` is a struct of all of them in their
// order. AMD's compiler would load them once, when the kernel begins, into scalar registers that
// stay taken.
template <class Given> DEVICE const Given &reload_parameters(const Given &given) {
#if COMPILER_AMD
    // Where a launch puts them, each at its type's alignment as in a struct (LLVM's "User Guide for
    // AMDGPU Backend", "Kernarg Segment").
    auto segment = __builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(segment)); // not known to be what it was before
    return *(const Given *)segment;
#elif COMPILER_HOST && HIP_CPU_LOCKSTEP
    return *(const Given *)hip_cpu_now->arguments; // as above: a struct in another order fails here, without an AMD GPU
#else
    return given;
#endif
}

// `value`. What is computed from it here is computed here: AMD's compiler neither keeps an earlier
// result of the same computation in registers, nor computes it ahead of a loop.
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
// The same, and not before `earlier` has been computed: the registers of that are free again by
// then.
template <class V, class C> DEVICE V recompute_after(C earlier, V value) {
#if COMPILER_AMD
    asm volatile("" : : "v"(earlier));
#endif
    return recompute_from(value);
}

// A value that all threads of a warp have: AMD's compiler keeps it, and what is computed from it,
// in scalar registers, once for all of them.
DEVICE u32 warp_uniform(u32 value) {
#if COMPILER_AMD
    return (u32)__builtin_amdgcn_readfirstlane((i32)value);
#else
    return value;
#endif
}
