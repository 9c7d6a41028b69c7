// Activations that kernels fuse with other ops, and their derivatives. T is the type in which the
// result is stored.
#pragma once
#include "normal.h"

struct Gelu { // z Phi(z), the exact form
    template <class T, class C> static DEVICE C apply(C z) { return normal::gelu<T>(z); }
    template <class T, class C> static DEVICE C slope(C z) { return normal::gelu_slope<T>(z); }
};
// z s(z). exp is taken only of numbers that are not positive, so the relative error is small at
// both ends.
struct Silu {
    template <class C> static DEVICE C sigmoid(C z) {
        C e = math::exp(-math::abs(z));
        return (z < (C)0 ? e : (C)1) / ((C)1 + e);
    }
    template <class T, class C> static DEVICE C apply(C z) { return z * sigmoid(z); }
    template <class T, class C> static DEVICE C slope(C z) {
        C s = sigmoid(z);
        return s * ((C)1 + z * ((C)1 - s));
    }
};
// The approximation z (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (z + 0.044715 z^3). Since (1 +
// tanh(u)) / 2 = s(2 u), its relative error is small at both ends too.
struct GeluTanh {
    template <class C> static DEVICE C inner(C z) {
        return (C)1.5957691216057308 * (z + (C)0.044715 * (z * z * z)); // 2 u
    }
    template <class T, class C> static DEVICE C apply(C z) { return z * Silu::sigmoid(inner(z)); }
    template <class T, class C> static DEVICE C slope(C z) {
        C s = Silu::sigmoid(inner(z)), rest = (C)1 - s;
        // Where s is 0 or 1, the square of z may be infinite.
        C more = z * s * rest;
        if (more == (C)0) return s;
        return s + more * (C)1.5957691216057308 * ((C)1 + (C)0.134145 * (z * z));
    }
};
