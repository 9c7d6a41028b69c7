// Element types as they are stored, and the types they are computed in.
#pragma once
#include "prelude_compiler.h"

// IEEE binary16, as stored. All arithmetic is in f32.
struct f16 {
    u16 bits;
};

// bfloat16: the upper half of an f32.
struct bf16 {
    u16 bits;
};

// One byte, stored as 0 or 1. A kernel reads any other value as true.
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
// Integer operations without branches, so that the host compiler vectorises them on every x86-64.
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
    // At least the exponent of the least normal f16, which subnormals use too.
    exponent = exponent > (113u << 23) ? exponent : 113u << 23;
    // Adds 2^13 times the power of two of the exponent. The last bit of the sum is then the last
    // bit of the result, and the addition rounds to nearest even.
    u32 scale = exponent + (13u << 23);
    u32 half =
        bit_cast<u32>(bit_cast<f32>(magnitude) + bit_cast<f32>(scale)) - scale + ((exponent - (113u << 23)) >> 13);
    half = half < 0x7c00u ? half : 0x7c00u;
    half = select(magnitude > 0x7f800000u, 0x7e00u, half);
    return f16{(u16)(half | (bits >> 16 & 0x8000u))};
}
#endif

#if COMPILER_NVIDIA
// One instruction for each half of a word. A shift of the upper half would take two.
DEVICE f32 bf16_to_f32(bf16 b) {
    f32 f;
    asm("mov.b32 %0, {0, %1};" : "=f"(f) : "h"(b.bits));
    return f;
}
#else
DEVICE f32 bf16_to_f32(bf16 b) { return bit_cast<f32>((u32)b.bits << 16); }
#endif
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

// The type in which a stored type is computed: f32 for f16 and bf16.
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
    static constexpr bool value =
        is_same<T, f32>::value || is_same<T, f64>::value || is_same<T, f16>::value || is_same<T, bf16>::value;
};
template <class T> struct is_signed {
    static constexpr bool value = (T)-1 < (T)0;
};

// The unsigned type in which integer arithmetic wraps. It is at least as wide as int, so that
// nothing is promoted to a signed type, whose overflow is undefined.
template <u64 SIZE> struct wrapping {
    using type = u32;
};
template <> struct wrapping<8> {
    using type = u64;
};
template <class T> using wrapping_t = typename wrapping<sizeof(T)>::type;

// The ends of a number type's range; for floats the infinities.
template <class T> DEVICE T greatest() {
    if constexpr (is_float<T>::value) return (T)__builtin_inff();
    else return (T)(~0ull >> (64 - sizeof(T) * 8 + is_signed<T>::value));
}
template <class T> DEVICE T least() {
    if constexpr (is_float<T>::value) return (T)-__builtin_inff();
    else return (T)(~(wrapping_t<T>)greatest<T>());
}

template <class C> constexpr C INFINITE = (C)__builtin_inff();

// Converts a stored value to its compute type, and back.
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

constexpr u64 max_size(u64 a) { return a; }
template <class... S> constexpr u64 max_size(u64 a, u64 b, S... rest) { return max_size(a > b ? a : b, rest...); }

template <class T, u32 N> struct alignas(sizeof(T) * N) Vector {
    T lane[N];
};
