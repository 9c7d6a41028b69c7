// What every kernel builds on, and the only file that knows which compiler reads it: hipRTC (AMD), NVRTC
// (NVIDIA) or the host's C++ compiler (the CPU device). No kernel includes anything else.
//
// The model: a launch is `gridDim.x` blocks of `blockDim.x` threads. On the CPU device a block has one thread
// and blocks are spread over the cores; in its lockstep mode (HIP_CPU_LOCKSTEP) blocks have all their threads.
// Kernels assume no block or warp size: they loop over the ranges below and ask for `warpSize`.
#pragma once

#if defined(__HIPCC_RTC__) || defined(__HIPCC__)
#define COMPILER_AMD 1
#elif defined(__CUDACC_RTC__) || defined(__CUDACC__)
#define COMPILER_NVIDIA 1
#else
#define COMPILER_HOST 1
#endif

// ---------------------------------------------------------------- types

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

// Loops whose iterations touch different elements, or the same one they read: in-place ops may alias exactly.
#if COMPILER_HOST && defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif COMPILER_HOST
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

template <class To, class From> DEVICE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}

// c ? a : b. The host compiler makes branches of the plain form where it sees that a later condition follows from this
// one, and then can't vectorise the loop: it gets a mask instead.
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

// A kernel's parameters; `given` is a struct of all of them in their order. AMD's compiler loads the parameters
// when a kernel begins, into scalar registers that stay taken. Read through this function, they are loaded where
// they are needed, each time anew.
template <class Given> DEVICE const Given &parameters(const Given &given) {
#if COMPILER_AMD
    // Where a launch puts them, each at its type's alignment as in a struct (LLVM's "User Guide for AMDGPU
    // Backend", "Kernarg Segment").
    auto segment = __builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(segment)); // not known to be what it was before
    return *(const Given *)segment;
#elif COMPILER_HOST && HIP_CPU_LOCKSTEP
    return *(const Given *)hip_cpu_now->arguments; // as above: a struct in another order fails here, without an AMD GPU
#else
    return given;
#endif
}

// Behind __global__, of a kernel that memory bounds: it is to take so few registers that a SIMD has room for all of
// its waves. Where `wanted` (it may be of the template's parameters) is false, as the compiler likes.
#if COMPILER_AMD
#if __gfx900__ || __gfx906__ || __gfx908__
#define ALL_WAVES(wanted) __attribute__((amdgpu_waves_per_eu((wanted) ? 4 : 1)))
#elif __GFX9__
#define ALL_WAVES(wanted) __attribute__((amdgpu_waves_per_eu((wanted) ? 8 : 1)))
#elif __gfx1010__ || __gfx1011__ || __gfx1012__ || __gfx1013__
#define ALL_WAVES(wanted) __attribute__((amdgpu_waves_per_eu((wanted) ? 20 : 1)))
#else
#define ALL_WAVES(wanted) __attribute__((amdgpu_waves_per_eu((wanted) ? 16 : 1)))
#endif
#else
#define ALL_WAVES(wanted)
#endif

// IEEE binary16, as stored. Computed with in f32 only.
struct f16 {
    u16 bits;
};

// bfloat16: the upper half of an f32.
struct bf16 {
    u16 bits;
};

// One byte, 0 or 1 as stored; any other byte reads as true.
struct bool8 {
    u8 value;
};

#if COMPILER_AMD
DEVICE f32 f16_to_f32(f16 h) { return (f32)bit_cast<_Float16>(h.bits); }
DEVICE f16 f32_to_f16(f32 f) { return f16{bit_cast<u16>((_Float16)f)}; }
#elif COMPILER_NVIDIA
DEVICE f32 f16_to_f32(f16 h) {
    f32 f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
DEVICE f16 f32_to_f16(f32 f) {
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}
#else
// On integers and without branches, so that the host compiler vectorises them on every x86-64.
DEVICE f32 f16_to_f32(f16 h) {
    u32 magnitude = (u32)(h.bits & 0x7fff) << 13;
    u32 exponent = magnitude & 0x0f800000u;
    u32 normal = magnitude + (112u << 23);
    u32 special = magnitude + (224u << 23);
    u32 subnormal = bit_cast<u32>(bit_cast<f32>(magnitude + (113u << 23)) - bit_cast<f32>(113u << 23));
    u32 bits = select(exponent == 0x0f800000u, special, select(exponent == 0, subnormal, normal));
    return bit_cast<f32>(bits | (u32)(h.bits & 0x8000) << 16);
}
DEVICE f16 f32_to_f16(f32 f) {
    u32 bits = bit_cast<u32>(f);
    u32 magnitude = bits & 0x7fffffffu;
    u32 exponent = magnitude & 0x7f800000u;
    exponent = exponent > (113u << 23) ? exponent : 113u << 23; // f16's least, which subnormals have too
    // Of a sum with 2^13 times the exponent's power of two, the last bit is the result's last bit: the addition
    // rounds to nearest even.
    u32 scale = exponent + (13u << 23);
    u32 half = bit_cast<u32>(bit_cast<f32>(magnitude) + bit_cast<f32>(scale)) - scale + ((exponent - (113u << 23)) >> 13);
    half = half < 0x7c00u ? half : 0x7c00u;
    half = select(magnitude > 0x7f800000u, 0x7e00u, half);
    return f16{(u16)(half | (bits >> 16 & 0x8000u))};
}
#endif

DEVICE f32 bf16_to_f32(bf16 b) { return bit_cast<f32>((u32)b.bits << 16); }
#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 800
DEVICE bf16 f32_to_bf16(f32 f) {
    bf16 b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b.bits) : "f"(f));
    return b;
}
#else
DEVICE bf16 f32_to_bf16(f32 f) {
    u32 bits = bit_cast<u32>(f);
    u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u); // nearest, ties to even
    u32 quiet_nan = bits | 0x400000u;
    return bf16{(u16)(select((bits & 0x7fffffffu) > 0x7f800000u, quiet_nan, rounded) >> 16)};
}
#endif

// The type a stored type is computed in: low-precision floats in f32.
template <class T> struct compute {
    using type = T;
};
template <> struct compute<f16> {
    using type = f32;
};
template <> struct compute<bf16> {
    using type = f32;
};
template <> struct compute<bool8> {
    using type = bool;
};
template <class T> using compute_t = typename compute<T>::type;

template <class A, class B> struct is_same {
    static constexpr bool value = false;
};
template <class A> struct is_same<A, A> {
    static constexpr bool value = true;
};
template <class T> struct is_float {
    static constexpr bool value = is_same<T, f32>::value || is_same<T, f64>::value || is_same<T, f16>::value || is_same<T, bf16>::value;
};
template <class T> struct is_signed {
    static constexpr bool value = (T)-1 < (T)0;
};

// The unsigned type in which an integer's arithmetic wraps: at least as wide as int, so that nothing is promoted to a
// signed type, whose overflow is undefined.
template <u64 SIZE> struct wrapping {
    using type = u32;
};
template <> struct wrapping<8> {
    using type = u64;
};
template <class T> using wrapping_t = typename wrapping<sizeof(T)>::type;

// The ends of a number type's range; the infinities of a float's.
template <class T> DEVICE T greatest() {
    if constexpr (is_float<T>::value) return (T)__builtin_inff();
    else return (T)(~0ull >> (64 - sizeof(T) * 8 + is_signed<T>::value));
}
template <class T> DEVICE T least() {
    if constexpr (is_float<T>::value) return (T)-__builtin_inff();
    else return (T)~(wrapping_t<T>)greatest<T>();
}

// From storage to the type it is computed in, and back.
template <class T> DEVICE T load(T x) { return x; }
DEVICE f32 load(f16 x) { return f16_to_f32(x); }
DEVICE f32 load(bf16 x) { return bf16_to_f32(x); }
DEVICE bool load(bool8 x) { return x.value != 0; }

template <class T> struct store {
    template <class C> static DEVICE T from(C x) { return (T)x; }
};
template <> struct store<f16> {
    template <class C> static DEVICE f16 from(C x) { return f32_to_f16((f32)x); }
};
template <> struct store<bf16> {
    template <class C> static DEVICE bf16 from(C x) { return f32_to_bf16((f32)x); }
};
template <> struct store<bool8> {
    template <class C> static DEVICE bool8 from(C x) { return bool8{(u8)(x != (C)0)}; }
};

// ---------------------------------------------------------------- the device

// blockIdx, threadIdx, __syncthreads, shuffles and atomics are built into the GPU compilers; for the host's
// compiler the CPU device brings them (hip_cpu.h, included ahead of this).
#if COMPILER_HOST
#define SHARED(T, name, count) HIP_CPU_SHARED(T, name, count)
#else
#define SHARED(T, name, count) __shared__ T name[count]
#endif
DEVICE void sync_threads() { __syncthreads(); }
// The value that the lane `source` of this warp holds. All lanes that `source` may name must take part.
template <class T> DEVICE T shuffle(T value, i32 source) {
    constexpr i32 words = (sizeof(T) + 3) / 4;
    i32 in[words] = {}, out[words];
    __builtin_memcpy(in, &value, sizeof(T));
#pragma unroll
    for (i32 w = 0; w < words; ++w) {
#if COMPILER_NVIDIA
        out[w] = __shfl_sync(0xffffffffu, in[w], source);
#else
        out[w] = __shfl(in[w], source);
#endif
    }
    T result;
    __builtin_memcpy(&result, out, sizeof(T));
    return result;
}

template <class T> DEVICE T atomic_add(T *address, T value) { return atomicAdd(address, value); }
template <> DEVICE i64 atomic_add<i64>(i64 *address, i64 value) {
    return (i64)atomicAdd(reinterpret_cast<u64 *>(address), (u64)value);
}

// Whether a block is one thread, known when compiling: loops then run along memory, in one thread, to be vectorised.
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
constexpr bool ONE_THREAD = true;
#else
constexpr bool ONE_THREAD = false;
#endif

// ---------------------------------------------------------------- faults

// What is wrong with the values that a kernel reads is stored into its op's word in host memory, which the host
// looks at when it next reads or waits. A plain store: whichever thread's comes last is reported. Without a flag,
// nothing.
DEVICE void raise(u64 *flag, u64 word) {
    if (flag != nullptr) *(volatile u64 *)flag = word;
}
// Bit 63, the axis' size in bits 32 to 62, the index in the lower 32; each at its type's end where it is past it.
template <class I> DEVICE void raise_index(u64 *flag, I index, u64 size) {
    i64 near = (i64)index;
    if (near > 0x7fffffff) near = 0x7fffffff;
    if (near < -0x7fffffff - 1) near = -0x7fffffff - 1;
    if (size > 0x7fffffff) size = 0x7fffffff;
    raise(flag, 1ull << 63 | size << 32 | (u64)(u32)(i32)near);
}
// An index is read as unsigned, so a negative one is out of range too.
template <class I> DEVICE bool in_range(I index, u64 size) { return (u64)(i64)index < size; }

// ---------------------------------------------------------------- ranges

// Calls f(i) once for each i in 0..n, over the whole launch: grid-stride on GPUs, so that neighbouring threads
// touch neighbouring elements; one contiguous chunk a block on the CPU, so that its loop vectorises.
template <class F> DEVICE void for_each(u64 n, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    u64 begin = n * blockIdx.x / gridDim.x, end = n * (blockIdx.x + 1) / gridDim.x;
    INDEPENDENT
    for (u64 i = begin; i < end; ++i) f(i);
#else
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) f(i);
#endif
}

// a / b, in 32 bits where both fit, as they mostly do. AMD GPUs have no instruction for either: a division of 32
// bits takes them some 20 instructions, one of 64 bits over 100. An x86-64 core has both instructions, and a loop
// without the branch vectorises.
DEVICE u64 divided(u64 a, u64 b) {
#if COMPILER_HOST
    return a / b;
#else
    return (a | b) >> 32 == 0 ? (u32)a / (u32)b : a / b;
#endif
}

// a / b of less than 2^53, where the quotient of f64 is right or one too great: for kernels whose scalar registers
// a division of 64-bit integers would fill on AMD GPUs.
DEVICE u64 divided_in_f64(u64 a, u64 b) {
    u64 q = (u64)((f64)a / (f64)b);
    return q * b > a ? q - 1 : q;
}

// Calls f(plane, y, x) for each of planes * height * width elements, with the element's index.
template <class F> DEVICE void for_each_pixel(u64 planes, u32 height, u32 width, F f) {
    if constexpr (ONE_THREAD) {
        for_each(planes * height, [=](u64 row) {
            u64 plane = row / height;
            i32 y = (i32)(row - plane * height);
            for (u32 x = 0; x < width; ++x) f(plane, y, (i32)x, row * width + x);
        });
    } else {
        for_each(planes * height * width, [=](u64 at) {
            u64 row = divided(at, width), plane = divided(row, height);
            f(plane, (i32)(row - plane * height), (i32)(at - row * width), at);
        });
    }
}

// Calls f(row) for each row in 0..rows, one block a row at a time: all threads of a block see the same rows.
template <class F> DEVICE void for_each_row(u64 rows, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    u64 begin = rows * blockIdx.x / gridDim.x, end = rows * (blockIdx.x + 1) / gridDim.x;
    for (u64 row = begin; row < end; ++row) f(row);
#else
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) f(row);
#endif
}

// Calls f(i) for each i in 0..n, shared among the threads of one block.
template <class F> DEVICE void for_each_in_block(u64 n, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    INDEPENDENT
    for (u64 i = 0; i < n; ++i) f(i);
#else
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) f(i);
#endif
}

// Calls f(o, first, width) so that each column of outer x inner is in one group [first, first + width) of one o. A
// group is one column on GPUs, where a thread takes it; on the CPU it is long, so that loops over its columns
// vectorise and read memory in order.
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
constexpr u32 COLUMN_GROUP = 1024;
#else
constexpr u32 COLUMN_GROUP = 1;
#endif
template <class F> DEVICE void for_each_column_group(u64 outer, u64 inner, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    u64 at = outer * inner * blockIdx.x / gridDim.x, end = outer * inner * (blockIdx.x + 1) / gridDim.x;
    while (at < end) {
        u64 o = at / inner, first = at % inner;
        u64 width = inner - first;
        if (width > end - at) width = end - at;
        if (width > COLUMN_GROUP) width = COLUMN_GROUP;
        f(o, first, (u32)width);
        at += width;
    }
#else
    for_each(outer * inner, [=](u64 i) { f(i / inner, i % inner, 1u); });
#endif
}

// Calls f(r, c) for each r in 0..rows and c in 0..columns, both at most WIDTH, shared among the threads of one block:
// neighbouring threads have neighbouring columns.
template <u32 WIDTH, class F> DEVICE void for_each_in_tile(u32 rows, u32 columns, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    for (u32 r = 0; r < rows; ++r) {
        INDEPENDENT
        for (u32 c = 0; c < columns; ++c) f(r, c);
    }
#else
    for (u32 i = threadIdx.x; i < rows * WIDTH; i += blockDim.x) {
        if (i % WIDTH < columns) f(i / WIDTH, i % WIDTH);
    }
#endif
}

constexpr u64 max_size(u64 a) { return a; }
template <class... S> constexpr u64 max_size(u64 a, u64 b, S... rest) { return max_size(a > b ? a : b, rest...); }

template <class T, u32 N> struct alignas(sizeof(T) * N) Vector {
    T lane[N];
};

// ---------------------------------------------------------------- what the compiler knows

// `value`, of which AMD's compiler then knows nothing, and only once it has computed `after`: what it made of it
// earlier it makes again rather than keep it in registers, and what it is to make of it later it doesn't make
// ahead.
template <class V> DEVICE V anew(V value) {
#if COMPILER_AMD
    if constexpr (sizeof(V) % 4 == 0) {
        u32 word[sizeof(V) / 4];
        __builtin_memcpy(word, &value, sizeof(V));
#pragma unroll
        for (u32 w = 0; w < sizeof(V) / 4; ++w) asm volatile("" : "+v"(word[w]));
        __builtin_memcpy(&value, word, sizeof(V));
    }
#endif
    return value;
}
template <class V, class C> DEVICE V anew(V value, C after) {
#if COMPILER_AMD
    asm volatile("" : : "v"(after));
#endif
    return anew(value);
}

#include "prelude_math.h"
#include "prelude_convert.h"
#include "prelude_map.h"
#include "prelude_reduce.h"
