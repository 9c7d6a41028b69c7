// Which compiler reads the kernels, and the macros that differ between compilers.
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

// Before a loop whose iterations are independent: each iteration reads and writes only its own
// elements. The input and output of an in-place op may be the same array.
#if COMPILER_HOST && defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif COMPILER_HOST
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

// Before a loop whose trip count is known. On GPUs UNROLLED unrolls the loop fully, UNROLLED_BY by
// `count`, and ROLLED not at all. Arrays stay in registers only if every index is known at compile
// time, but each copy of the body takes registers. The host's compiler decides for itself.
#if COMPILER_HOST
#define UNROLLED
#define UNROLLED_BY(count)
#else
#define AS_PRAGMA(text) _Pragma(#text)
#define UNROLLED _Pragma("unroll")
#define UNROLLED_BY(count) AS_PRAGMA(unroll count)
#endif
#define ROLLED UNROLLED_BY(1)
// Unrolls up to 8 iterations with the host's compiler too, which vectorises the surrounding loop
// only if the inner one is gone.
#define UNROLLED_EVERYWHERE _Pragma("GCC unroll 8")

// Whether a block has one thread, known at compile time. One thread then loops along memory, so
// that the loops vectorise.
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

// c ? a : b. The host compiler turns the plain form into branches if it sees that a later condition
// follows from this one, and then can't vectorise the loop. So on the host a mask selects.
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
