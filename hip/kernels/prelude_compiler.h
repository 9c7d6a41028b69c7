// Which compiler reads the kernels, and what is said to it in a way of its own.
#pragma once

#if defined(__HIPCC_RTC__) || defined(__HIPCC__)
#define COMPILER_AMD 1
#elif defined(__CUDACC_RTC__) || defined(__CUDACC__)
#define COMPILER_NVIDIA 1
#else
#define COMPILER_HOST 1
#endif

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;

#if COMPILER_HOST
#define DEVICE inline __attribute__((always_inline))
#else
#define DEVICE __device__ __forceinline__
#endif

// Loops whose iterations touch different elements, or the same one they read: in-place ops may
// alias exactly.
#if COMPILER_HOST && defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif COMPILER_HOST
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

// Before a loop of a known count. On GPUs its iterations are written out (all of them, or `count`
// at a time), or it stays a loop: arrays stay in registers only where every index is known, and
// each copy of a body takes registers. The host's compiler decides for itself.
#if COMPILER_HOST
#define UNROLLED
#define UNROLLED_BY(count)
#else
#define AS_PRAGMA(text) _Pragma(#text)
#define UNROLLED _Pragma("unroll")
#define UNROLLED_BY(count) AS_PRAGMA(unroll count)
#endif
#define ROLLED UNROLLED_BY(1)
// By the host's compiler too, up to 8 times: it vectorises around such loops only where they are
// gone.
#define UNROLLED_EVERYWHERE _Pragma("GCC unroll 8")

// Whether a block is one thread, known when compiling: loops then run along memory, in one thread,
// to be vectorised.
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
constexpr bool ONE_THREAD = true;
#else
constexpr bool ONE_THREAD = false;
#endif

template <class To, class From> DEVICE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}

// c ? a : b. The host compiler makes branches of the plain form where it sees that a later
// condition follows from this one, and then can't vectorise the loop: it gets a mask instead.
template <class T> DEVICE T select(bool c, T a, T b) { return c ? a : b; }
#if COMPILER_HOST
template <> DEVICE u32 select<u32>(bool c, u32 a, u32 b) {
    u32 mask = 0u - (u32)c;
    return (a & mask) | (b & ~mask);
}
template <> DEVICE f32 select<f32>(bool c, f32 a, f32 b) {
    return bit_cast<f32>(select(c, bit_cast<u32>(a), bit_cast<u32>(b)));
}
template <> DEVICE f64 select<f64>(bool c, f64 a, f64 b) {
    u64 mask = 0ull - (u64)c;
    return bit_cast<f64>((bit_cast<u64>(a) & mask) | (bit_cast<u64>(b) & ~mask));
}
#endif
