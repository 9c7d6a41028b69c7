// GELU and its slope: z Phi(z) and Phi(z) + z phi(z), where phi is the normal distribution's
// density and Phi its distribution function. T is the type in which the result is stored.
//
// f32 and f64 take Phi(z) = (1 + erf(z / sqrt 2)) / 2. For f16 and bf16 that would be both slower
// and, below z = -3, less accurate than the result's type. They take
//   Phi(-a) = exp(-a^2 / 2) r(a) for a >= 0,  r(a) = erfc(a / sqrt 2) exp(a^2 / 2) / 2,
// and Phi(a) = 1 - Phi(-a). With t = 1 / (1 + 0.3075 a), r(a) = t p(t): the form of Hastings 1955,
// "Approximations for Digital Computers", sheet 43. p was fitted by Remez exchange in relative
// error for a <= 13.3, beyond which exp(-a^2 / 2) is below the normal numbers: the error of r is at
// most 2^-18. Roundings add (24 + 1.5 a^2) 2^-24, the second term from the exponential's argument.
// So GELU has a relative error below 2^-16.8 where f16 holds the result as a normal number, and
// below 2^-15.4 everywhere. The slope's error is at most that share of Phi(-a) + a phi(a).
#pragma once
#include "approximate.h"

namespace normal {

// exp(-z^2 / 2)
DEVICE f32 bell(f32 z) {
#if COMPILER_HOST
    return math::exp(-0.5f * z * z); // vectorised
#else
    return power2(-0.72134752f * (z * z));
#endif
}
// Phi(-a) / bell(a)
DEVICE f32 ratio(f32 a) {
    f32 t = reciprocal(0.3075f * a + 1.0f);
    f32 p = -0.0759435073f;
    p = p * t + 0.192351729f;
    p = p * t + 0.00463542063f;
    p = p * t + 0.137589231f;
    p = p * t + 0.11842043f;
    p = p * t + 0.122944891f;
    return p * t;
}

template <class T, class C> DEVICE C gelu(C z) {
    if constexpr (sizeof(T) == 2) {
        f32 below = ratio(math::abs(z)) * bell(z);
        return z * select(z < 0.0f, below, 1.0f - below);
    } else {
        return (C)0.5 * z * ((C)1 + math::erf(z * (C)0.70710678118654752440));
    }
}
template <class T, class C> DEVICE C gelu_slope(C z) {
    if constexpr (sizeof(T) == 2) {
        f32 a = math::abs(z), below = (ratio(a) - 0.39894228f * a) * bell(z);
        return select(z < 0.0f, below, 1.0f - below);
    } else {
        C cdf = (C)0.5 * ((C)1 + math::erf(z * (C)0.70710678118654752440));
        return cdf + z * math::exp((C)-0.5 * z * z) * (C)0.39894228040143267794;
    }
}

} // namespace normal
