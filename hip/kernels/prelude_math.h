// Mathematical functions under one name for every compiler. On GPUs they are the compiler's own
// where it has them. On the host, the f32 functions on hot paths are written out below as
// straight-line code, which the compiler vectorises. Their polynomials are Chebyshev-Lawson fits in
// relative error (weights iterated on 2000 Chebyshev nodes, computed with 50 digits); a comment
// beside each gives its error. The other functions call the C library.
#pragma once
#include "prelude_types.h"

// a / b, in 32 bits if both fit, as they mostly do. AMD GPUs have no instruction for either width:
// a 32-bit division takes some 20 instructions, a 64-bit one over 100. An x86-64 core has both
// instructions, and a loop without the branch vectorises.
DEVICE u64 divided(u64 a, u64 b) {
#if COMPILER_HOST
    return a / b;
#else
    return (a | b) >> 32 == 0 ? (u32)a / (u32)b : a / b;
#endif
}

// a / b for numbers below 2^53. The f64 quotient is exact or one too great, which the code
// corrects. For kernels in which a 64-bit integer division would fill the scalar registers of AMD
// GPUs.
DEVICE u64 divided_in_f64(u64 a, u64 b) {
    u64 q = (u64)((f64)a / (f64)b);
    return q * b > a ? q - 1 : q;
}

namespace math {

#if COMPILER_HOST
#define MATH_FUNCTION(name, f, d)                       \
    DEVICE f32 name(f32 x) { return __builtin_##f(x); } \
    DEVICE f64 name(f64 x) { return __builtin_##d(x); }
#define MATH_FUNCTION2(name, f, d)                                \
    DEVICE f32 name(f32 x, f32 y) { return __builtin_##f(x, y); } \
    DEVICE f64 name(f64 x, f64 y) { return __builtin_##d(x, y); }
#else
#define MATH_FUNCTION(name, f, d)             \
    DEVICE f32 name(f32 x) { return ::f(x); } \
    DEVICE f64 name(f64 x) { return ::d(x); }
#define MATH_FUNCTION2(name, f, d)                      \
    DEVICE f32 name(f32 x, f32 y) { return ::f(x, y); } \
    DEVICE f64 name(f64 x, f64 y) { return ::d(x, y); }
#endif

MATH_FUNCTION(expm1, expm1f, expm1)
MATH_FUNCTION(sqrt, sqrtf, sqrt)
MATH_FUNCTION(abs, fabsf, fabs)
MATH_FUNCTION(cos, cosf, cos)
MATH_FUNCTION(sin, sinf, sin)
MATH_FUNCTION(tan, tanf, tan)
MATH_FUNCTION(cosh, coshf, cosh)
MATH_FUNCTION(sinh, sinhf, sinh)
MATH_FUNCTION(acos, acosf, acos)
MATH_FUNCTION(acosh, acoshf, acosh)
MATH_FUNCTION(asin, asinf, asin)
MATH_FUNCTION(asinh, asinhf, asinh)
MATH_FUNCTION(atan, atanf, atan)
MATH_FUNCTION(atanh, atanhf, atanh)
MATH_FUNCTION(floor, floorf, floor)
MATH_FUNCTION(ceil, ceilf, ceil)
MATH_FUNCTION(trunc, truncf, trunc)
// Rounds to nearest, ties to even, as Burn's `round` does.
MATH_FUNCTION(round, rintf, rint)
MATH_FUNCTION2(pow, powf, pow)
MATH_FUNCTION2(atan2, atan2f, atan2)
MATH_FUNCTION2(fmod, fmodf, fmod)
MATH_FUNCTION2(copysign, copysignf, copysign)

DEVICE bool is_nan(f32 x) { return x != x; }
DEVICE bool is_nan(f64 x) { return x != x; }
DEVICE bool is_inf(f32 x) { return (bit_cast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
DEVICE bool is_inf(f64 x) { return (bit_cast<u64>(x) & 0x7fffffffffffffffull) == 0x7ff0000000000000ull; }
template <class T> DEVICE bool is_nan(T) { return false; }
template <class T> DEVICE bool is_inf(T) { return false; }

#if !COMPILER_HOST
MATH_FUNCTION(exp, expf, exp)
MATH_FUNCTION(log, logf, log)
MATH_FUNCTION(tanh, tanhf, tanh)
MATH_FUNCTION(erf, erff, erf)
MATH_FUNCTION(log1p, log1pf, log1p)
#else

DEVICE f64 exp(f64 x) { return __builtin_exp(x); }
DEVICE f64 log(f64 x) { return __builtin_log(x); }
DEVICE f64 tanh(f64 x) { return __builtin_tanh(x); }
DEVICE f64 erf(f64 x) { return __builtin_erf(x); }
DEVICE f64 log1p(f64 x) { return __builtin_log1p(x); }

// exp(x) = 2^n exp(r), |r| <= ln 2 / 2 (Cody and Waite's two-part ln 2). The polynomial
// approximates (exp(r) - 1 - r) / r^2 with error 3.1e-9.
DEVICE f32 exp(f32 x) {
    x = select(x > 104.0f, 104.0f, x); // beyond f32's range at either end; NaN stays NaN
    x = select(x < -104.0f, -104.0f, x);
    f32 biased = x * 1.44269504f + 12582912.0f; // adding 1.5 * 2^23 rounds to an integer
    f32 n = biased - 12582912.0f;
    f32 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    f32 p = 0.00019854444f;
    p = p * r + 0.0013931972f;
    p = p * r + 0.0083333645f;
    p = p * r + 0.041666493f;
    p = p * r + 0.16666667f;
    p = p * r + 0.5f;
    p = (p * r * r + r) + 1.0f;
    // Two factors, so that results near either end of the range, and subnormal ones, come out.
    i32 power = bit_cast<i32>(biased) - bit_cast<i32>(12582912.0f);
    i32 half = power >> 1;
    return p * bit_cast<f32>((half + 127) << 23) * bit_cast<f32>((power - half + 127) << 23);
}

// log(x) = e ln 2 + log1p(z), z in [sqrt(1/2) - 1, sqrt(2) - 1]. The polynomial approximates
// (log1p(z) - z + z^2 / 2) / z^3 with error 6.5e-8.
DEVICE f32 log(f32 x) {
    bool subnormal = x < 1.17549435e-38f;
    i32 bits = bit_cast<i32>(select(subnormal, x * 8388608.0f, x));
    i32 e = ((bits - 0x3f3504f3) >> 23);
    f32 z = bit_cast<f32>(bits - (e << 23)) - 1.0f;
    f32 scale = (f32)(subnormal ? e - 23 : e);
    f32 p = 0.070375815f;
    p = p * z + -0.11514561f;
    p = p * z + 0.11677014f;
    p = p * z + -0.12420149f;
    p = p * z + 0.14249322f;
    p = p * z + -0.16668057f;
    p = p * z + 0.20000714f;
    p = p * z + -0.24999994f;
    p = p * z + 0.3333333f;
    f32 y = p * z * z * z + scale * -2.12194440e-4f;
    y = y - 0.5f * z * z;
    y = (z + y) + scale * 0.693359375f;
    y = select(x == 0.0f, -__builtin_inff(), y);
    y = select(x < 0.0f, __builtin_nanf(""), y);
    return select(x < __builtin_inff(), y, x); // x itself if it is infinity or NaN
}

// log(u) * x / (u - 1), where u is 1 + x rounded: the rounding error of u cancels (Kahan).
DEVICE f32 log1p(f32 x) {
    f32 u = 1.0f + x;
    f32 y = log(u) * (x / (u - 1.0f));
    return select((u == 1.0f) | (u == __builtin_inff()), x, y);
}

// |x| < 0.625: tanh(x) / x as a polynomial in x^2, with error 1.4e-10. Else 1 - 2 / (exp(2 |x|) +
// 1).
DEVICE f32 tanh(f32 x) {
    f32 a = bit_cast<f32>(bit_cast<u32>(x) & 0x7fffffffu);
    f32 z = x * x;
    f32 p = 0.002128507f;
    p = p * z + -0.008159113f;
    p = p * z + 0.021691822f;
    p = p * z + -0.0539447f;
    p = p * z + 0.13333184f;
    p = p * z + -0.33333328f;
    f32 small = p * z * a + a;
    f32 large = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
    return bit_cast<f32>(bit_cast<u32>(select(a < 0.625f, small, large)) | (bit_cast<u32>(x) & 0x80000000u));
}

// |x| < 1: erf(x) / x as a polynomial in x^2, with error 3.3e-11. Else 1 - exp(p(|x|)), where p is
// fitted to log(erfc) on [1, 4] so that the error in erfc is 4.2e-12.
DEVICE f32 erf(f32 x) {
    f32 a = bit_cast<f32>(bit_cast<u32>(x) & 0x7fffffffu);
    f32 z = x * x;
    f32 p = -9.641516e-06f;
    p = p * z + 0.000112569476f;
    p = p * z + -0.0008482829f;
    p = p * z + 0.0052209455f;
    p = p * z + -0.0268654f;
    p = p * z + 0.11283782f;
    p = p * z + -0.37612638f;
    p = p * z + 1.1283792f;
    f32 small = p * x;
    f32 t = a > 4.0f ? 4.0f : a; // erf(4) is 1 in f32
    f32 q = 7.845213e-07f;
    q = q * t + -1.24527905e-05f;
    q = q * t + 6.4341475e-05f;
    q = q * t + 0.000101760335f;
    q = q * t + -0.003360271f;
    q = q * t + 0.023836512f;
    q = q * t + -0.1069615f;
    q = q * t + -0.6341961f;
    q = q * t + -1.1292038f;
    q = q * t + 0.00012529366f;
    f32 large = 1.0f - exp(q);
    large = bit_cast<f32>(bit_cast<u32>(large) | (bit_cast<u32>(x) & 0x80000000u));
    return a < 1.0f ? small : a >= 1.0f ? large : x; // x itself if it is NaN
}
#endif

// As in PyTorch, max and min give NaN if either operand is NaN. Otherwise they order by IEEE
// comparisons.
template <class T> DEVICE T max(T a, T b) { return select((a > b) | is_nan(a), a, b); }
template <class T> DEVICE T min(T a, T b) { return select((a < b) | is_nan(a), a, b); }

} // namespace math
