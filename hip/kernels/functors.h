// The functors of element-wise kernels. Arguments and results have compute types.
#pragma once
#include "prelude.h"

// ---------------------------------------------------------------- two operands

// Integers wrap. They are computed as unsigned, because signed overflow is undefined in C++.
template <class T, bool FLOAT = is_float<T>::value> struct ring {
    static DEVICE T sum(T a, T b) { return a + b; }
    static DEVICE T difference(T a, T b) { return a - b; }
    static DEVICE T product(T a, T b) { return a * b; }
};
template <class T> struct ring<T, false> {
    using U = wrapping_t<T>;
    static DEVICE T sum(T a, T b) { return (T)((U)a + (U)b); }
    static DEVICE T difference(T a, T b) { return (T)((U)a - (U)b); }
    static DEVICE T product(T a, T b) { return (T)((U)a * (U)b); }
};
struct Add {
    template <class T> static DEVICE T apply(T a, T b) { return ring<T>::sum(a, b); }
};
struct Sub {
    template <class T> static DEVICE T apply(T a, T b) { return ring<T>::difference(a, b); }
};
struct Mul {
    template <class T> static DEVICE T apply(T a, T b) { return ring<T>::product(a, b); }
};

// Integer division by zero gives 0 and does not trap. The host rejects a scalar 0, and the kernels
// on two tensors raise a flag.
template <class T, bool FLOAT = is_float<T>::value> struct division {
    static DEVICE T quotient(T a, T b) { return a / b; }
    // As in Python, the remainder has the sign of the divisor.
    static DEVICE T remainder(T a, T b) {
        T r = math::fmod(a, b);
        return r != (T)0 && (r < (T)0) != (b < (T)0) ? r + b : r;
    }
};
template <class T> struct division<T, false> {
    static DEVICE T quotient(T a, T b) {
        if (b == (T)0) return (T)0;
        // The least value divided by -1 traps on some CPUs.
        if (is_signed<T>::value && b == (T)-1) return (T)(0 - (u64)a);
        return a / b;
    }
    static DEVICE T remainder(T a, T b) {
        if (b == (T)0 || (is_signed<T>::value && b == (T)-1)) return (T)0;
        T r = a % b;
        return r != (T)0 && (r < (T)0) != (b < (T)0) ? (T)(r + b) : r;
    }
};
struct Div {
    template <class T> static DEVICE T apply(T a, T b) { return division<T>::quotient(a, b); }
};
struct Rem {
    template <class T> static DEVICE T apply(T a, T b) { return division<T>::remainder(a, b); }
};

struct Pow {
    static DEVICE f32 apply(f32 a, f32 b) { return math::pow(a, b); }
    static DEVICE f64 apply(f64 a, f64 b) { return math::pow(a, b); }
    // By repeated squaring; wraps on overflow. A negative exponent gives 1 / a^|b| by integer
    // division.
    template <class T> static DEVICE T apply(T a, T b) {
        if (is_signed<T>::value && b < (T)0) {
            if (a == (T)1) return a;
            if (a == (T)-1) return b & 1 ? a : (T)1;
            return (T)0;
        }
        u64 base = (u64)a, power = 1;
        for (u64 e = (u64)b; e != 0; e >>= 1) {
            if (e & 1) power *= base;
            base *= base;
        }
        return (T)power;
    }
};
struct Atan2 {
    template <class T> static DEVICE T apply(T a, T b) { return math::atan2(a, b); }
};
struct Max {
    template <class T> static DEVICE T apply(T a, T b) { return math::max(a, b); }
};
struct Min {
    template <class T> static DEVICE T apply(T a, T b) { return math::min(a, b); }
};

struct BitAnd {
    template <class T> static DEVICE T apply(T a, T b) { return a & b; }
};
struct BitOr {
    template <class T> static DEVICE T apply(T a, T b) { return a | b; }
};
struct BitXor {
    template <class T> static DEVICE T apply(T a, T b) { return a ^ b; }
};
// Bools stored in one or four bytes. Any value but 0 is true; results are 0 or 1.
struct LogicAnd {
    template <class T> static DEVICE T apply(T a, T b) { return (T)((a != (T)0) & (b != (T)0)); }
};
struct LogicOr {
    template <class T> static DEVICE T apply(T a, T b) { return (T)((a != 0) | (b != 0)); }
};
struct LogicXor {
    template <class T> static DEVICE T apply(T a, T b) { return (T)((a != 0) != (b != 0)); }
};
// A shift by the type's width or more is defined here: it gives 0, or the sign for an arithmetic
// right shift.
struct Shl {
    template <class T> static DEVICE T apply(T a, T b) { return (u64)b < sizeof(T) * 8 ? (T)((u64)a << (u64)b) : (T)0; }
};
struct Shr {
    template <class T> static DEVICE T apply(T a, T b) {
        if ((u64)b < sizeof(T) * 8) return (T)(a >> (u64)b);
        return a < (T)0 ? (T)-1 : (T)0;
    }
};

// Gradients: `a` is the saved tensor, `b` the output's gradient.
struct ReluBackward { // a: the output; where it is NaN, the gradient passes
    template <class T> static DEVICE T apply(T a, T b) { return a <= (T)0 ? (T)0 : b; }
};
struct SigmoidBackward { // a: the output
    template <class T> static DEVICE T apply(T a, T b) { return b * a * ((T)1 - a); }
};
struct GeluBackward { // a: the input; d/dx x * Phi(x) = Phi(x) + x * phi(x)
    template <class T> static DEVICE T apply(T a, T b) {
        T cdf = (T)0.5 * ((T)1 + math::erf(a * (T)0.70710678118654752440));
        T pdf = math::exp((T)-0.5 * a * a) * (T)0.39894228040143267794;
        return b * (cdf + a * pdf);
    }
};
struct Prelu { // b: the slope below zero
    template <class T> static DEVICE T apply(T a, T b) { return a < (T)0 ? a * b : a; }
};
struct LogSigmoidBackward { // a: the input; d/dx -log(1 + exp(-x)) = 1 / (1 + exp(x))
    template <class T> static DEVICE T apply(T a, T b) { return b / ((T)1 + math::exp(a)); }
};
struct SiluBackward { // a: the input; d/dx x s(x) = s(x) (1 + x (1 - s(x)))
    template <class T> static DEVICE T apply(T a, T b) {
        T e = math::exp(-math::abs(a)), s = (a < (T)0 ? e : (T)1) / ((T)1 + e);
        return b * (s * ((T)1 + a * ((T)1 - s)));
    }
};

// ---------------------------------------------------------------- one tensor

#define FROM_MATH(Name, function)                                                   \
    struct Name {                                                                   \
        template <class T> static DEVICE T apply(T x) { return math::function(x); } \
    };
FROM_MATH(Exp, exp)
FROM_MATH(Log, log)
FROM_MATH(Log1p, log1p)
FROM_MATH(Sqrt, sqrt)
FROM_MATH(Cos, cos)
FROM_MATH(Sin, sin)
FROM_MATH(Tan, tan)
FROM_MATH(Cosh, cosh)
FROM_MATH(Sinh, sinh)
FROM_MATH(Tanh, tanh)
FROM_MATH(Acos, acos)
FROM_MATH(Acosh, acosh)
FROM_MATH(Asin, asin)
FROM_MATH(Asinh, asinh)
FROM_MATH(Atan, atan)
FROM_MATH(Atanh, atanh)
FROM_MATH(Round, round)
FROM_MATH(Floor, floor)
FROM_MATH(Ceil, ceil)
FROM_MATH(Trunc, trunc)
FROM_MATH(Erf, erf)

struct Recip {
    template <class T> static DEVICE T apply(T x) { return (T)1 / x; }
};
struct Relu {
    template <class T> static DEVICE T apply(T x) { return x < (T)0 ? (T)0 : x; } // NaN stays NaN
};
// x * Phi(x), the exact form.
struct Gelu {
    template <class T> static DEVICE T apply(T x) {
        return (T)0.5 * x * ((T)1 + math::erf(x * (T)0.70710678118654752440));
    }
};
// Takes exp only of numbers that are not positive, so the relative error is small at both ends.
struct Sigmoid {
    template <class T> static DEVICE T apply(T x) {
        T e = math::exp(-math::abs(x));
        return (x < (T)0 ? e : (T)1) / ((T)1 + e);
    }
};
struct Silu { // x * sigmoid(x)
    template <class T> static DEVICE T apply(T x) { return x * Sigmoid::apply(x); }
};
struct LogSigmoid {
    template <class T> static DEVICE T apply(T x) {
        return (x > (T)0 ? (T)0 : x) - math::log1p(math::exp(-math::abs(x)));
    }
};

// Integers wrap: the negative of the least integer is itself.
template <class T, bool FLOAT = is_float<T>::value> struct signs {
    static DEVICE T negative(T x) { return -x; }
    static DEVICE T absolute(T x) { return math::abs(x); }
};
template <class T> struct signs<T, false> {
    static DEVICE T negative(T x) { return (T)((wrapping_t<T>)0 - (wrapping_t<T>)x); }
    static DEVICE T absolute(T x) { return x < (T)0 ? negative(x) : x; }
};
struct Neg {
    template <class T> static DEVICE T apply(T x) { return signs<T>::negative(x); }
};
struct Abs {
    template <class T> static DEVICE T apply(T x) { return signs<T>::absolute(x); }
};
struct Sign { // 0 for both zeros, NaN for NaN
    template <class T> static DEVICE T apply(T x) {
        T sign = x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : (T)0;
        return x == x ? sign : x;
    }
};
struct BitNot {
    template <class T> static DEVICE T apply(T x) { return (T)~x; }
};
struct LogicNot {
    template <class T> static DEVICE T apply(T x) { return (T)(x == (T)0); }
};

// Functors with two parameters, p and q, of the compute type.
struct Clamp { // to p..q; NaN stays NaN
    template <class T> static DEVICE T apply(T x, T p, T q) {
        T low = x < p ? p : x;
        return low > q ? q : low;
    }
};
struct LeakyRelu { // p: the slope below zero
    template <class T> static DEVICE T apply(T x, T p, T) { return x < (T)0 ? x * p : x; }
};
struct HardSigmoid { // p * x + q, clamped to 0..1
    template <class T> static DEVICE T apply(T x, T p, T q) { return Clamp::apply(p * x + q, (T)0, (T)1); }
};
// p is the power, 3 or -2. Both powers are computed, so that loops over elements have no branch.
struct Powi {
    template <class T> static DEVICE T apply(T x, T p, T) {
        T square = x * x;
        return select(p > (T)0, square * x, (T)1 / square);
    }
};
