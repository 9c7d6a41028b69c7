// The four types of fp8: sign, exponent and fraction in one byte. OCP's E4M3 has no infinities, and
// its NaN is 0x7f and 0xff; its E5M2 has both, like f16. The FNUZ types (bias one higher) have no
// infinities and no -0, and their NaN is 0x80.
//
// Sources: "OCP 8-bit Floating Point Specification" 1.0; "8-bit Numerical Formats for Deep Neural
// Networks" (https://arxiv.org/abs/2206.02915) for FNUZ.
#pragma once
#include "prelude.h"

template <u32 FRACTION, u32 BIAS, bool FNUZ> struct Fp8 {
    static constexpr u32 SHIFT = 23 - FRACTION;
    // The code of the greatest finite number, and that of the least NaN or infinity.
    static constexpr u32 GREATEST = FNUZ ? 0x7f : FRACTION == 3 ? 0x7e : 0x7b;

    static DEVICE f32 decode(u8 code) {
        u32 magnitude = (u32)(code & 0x7f);
        u32 normal = (magnitude << SHIFT) + ((127 - BIAS) << 23);
        // Below the normal numbers: a number of the next exponent, less that power of two.
        f32 power = bit_cast<f32>((128 - BIAS) << 23);
        u32 subnormal = bit_cast<u32>(bit_cast<f32>((magnitude << SHIFT) + ((128 - BIAS) << 23)) - power);
        u32 bits = select(magnitude >> FRACTION == 0, subnormal, normal);
        if constexpr (FNUZ) {
            bits = select(code == 0x80, 0x7fc00000u, bits | (u32)(code & 0x80) << 24);
        } else {
            u32 special = FRACTION == 2 && magnitude == 0x7c ? 0x7f800000u : 0x7fc00000u;
            bits = select(magnitude > GREATEST, special, bits) | (u32)(code & 0x80) << 24;
        }
        return bit_cast<f32>(bits);
    }

    // Rounds to nearest even. If SATURATE, a number beyond the greatest becomes the greatest, and so
    // does an infinity. Else E5M2 gives an infinity, and the other types NaN.
    template <bool SATURATE> static DEVICE u8 encode(f32 x) {
        u32 bits = bit_cast<u32>(x), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80;
        u32 lost = magnitude >> SHIFT & 1; // the last bit that is kept
        u32 normal = (magnitude + ((1u << (SHIFT - 1)) - 1) + lost >> SHIFT) - ((127 - BIAS) << FRACTION);
        // The addition rounds to a multiple of the least number, whose bit becomes the last one.
        f32 power = bit_cast<f32>((128 - BIAS + SHIFT) << 23);
        u32 subnormal = bit_cast<u32>(bit_cast<f32>(magnitude) + power) - bit_cast<u32>(power);
        u32 code = select(magnitude < (128 - BIAS) << 23, subnormal, normal);
        bool over = magnitude >= 0x7f800000u || code > GREATEST;
        u32 beyond = SATURATE ? GREATEST : FNUZ ? 0x80 : FRACTION == 2 ? 0x7c : 0x7f;
        code = select(over, beyond, code);
        if constexpr (FNUZ) {
            u32 signless = code == 0 || code == 0x80;
            code = signless ? code : code | sign;
            return (u8)select(magnitude > 0x7f800000u, 0x80u, code);
        } else {
            return (u8)(select(magnitude > 0x7f800000u, FRACTION == 2 ? 0x7eu : 0x7fu, code) | sign);
        }
    }
};
struct E4M3 : Fp8<3, 7, false> {};
struct E5M2 : Fp8<2, 15, false> {};
struct E4M3Fnuz : Fp8<3, 8, true> {};
struct E5M2Fnuz : Fp8<2, 16, true> {};
