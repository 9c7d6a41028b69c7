// Element-wise functions of one tensor. A functor takes and gives the compute type.
#include "prelude.h"
#include "rows.h"

#define FROM_MATH(Name, function)                                                     \
    struct Name {                                                                     \
        template <class T> static DEVICE T apply(T x) { return math::function(x); }   \
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
    template <class T> static DEVICE T apply(T x) { return x < (T)0 ? (T)0 : x; } // NaN stays
};
// x * Phi(x), the exact form.
struct Gelu {
    template <class T> static DEVICE T apply(T x) { return (T)0.5 * x * ((T)1 + math::erf(x * (T)0.70710678118654752440)); }
};
// exp of a value that is never positive: right in relative terms at both ends.
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
    template <class T> static DEVICE T apply(T x) { return (x > (T)0 ? (T)0 : x) - math::log1p(math::exp(-math::abs(x))); }
};

// The negative of the least integer is itself.
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

// Functors with two parameters, of the compute type.
struct Clamp { // to p..q; NaN stays
    template <class T> static DEVICE T apply(T x, T p, T q) {
        T low = x < p ? p : x;
        return low > q ? q : low;
    }
};
struct LeakyRelu { // p: the slope below zero
    template <class T> static DEVICE T apply(T x, T p, T) { return x < (T)0 ? x * p : x; }
};
struct HardSigmoid { // p * x + q, to 0..1
    template <class T> static DEVICE T apply(T x, T p, T q) { return Clamp::apply(p * x + q, (T)0, (T)1); }
};
struct Powi { // the power p, 3 or -2: both computed, so that a loop over elements has no branch
    template <class T> static DEVICE T apply(T x, T p, T) {
        T square = x * x;
        return select(p > (T)0, square * x, (T)1 / square);
    }
};

// As map_contiguous, two elements computed after the other two: eight logarithms abreast take more registers than all waves have.
template <class Op, class T> DEVICE void map_by_twos(u64 n, const T *x, T *out) {
    constexpr u32 WIDTH = LANES<T>;
    u64 vectors = n / WIDTH;
    for_each(vectors, [=](u64 v) {
        Vector<T, WIDTH> from = reinterpret_cast<const Vector<T, WIDTH> *>(x)[v], to;
        compute_t<T> last{};
#if !COMPILER_HOST
#pragma unroll
#endif
        for (u32 j = 0; j < WIDTH; ++j) {
            if (j != 0 && j % 2 == 0) from = anew(from, last);
            last = Op::apply(load(from.lane[j]));
            to.lane[j] = store<T>::from(last);
        }
        reinterpret_cast<Vector<T, WIDTH> *>(out)[v] = to;
    });
    for_each(n - vectors * WIDTH, [=](u64 i) {
        u64 at = vectors * WIDTH + i;
        out[at] = store<T>::from(Op::apply(load(x[at])));
    });
}

// out = op(x): both contiguous, beginning at 16-byte boundaries; `out` may be `x`.
template <class Op, class T> __global__ __launch_bounds__(256) void unary_contiguous(u64 n, const T *x, T *out) {
    if constexpr (is_float<T>::value && sizeof(T) == 2 && !ONE_THREAD) map_by_twos<Op>(n, x, out);
    else map_contiguous(n, out, [=](compute_t<T> v) { return Op::apply(v); }, x);
}

// out[i] = op(x[..]): `out` contiguous; it may be `x` where every element is its own.
template <class Op, class T> __global__ void unary_strided(u32 n, Strided<1> m, const T *x, T *out) {
    for_each_strided<1>(m, n, [=](u32 i, Offsets<1> at) { out[i] = store<T>::from(Op::apply(load(x[at.at[0]]))); });
}

// out = op(x, p, q): as unary_contiguous.
template <class Op, class T> __global__ void unary2_contiguous(u64 n, const T *x, compute_t<T> p, compute_t<T> q, T *out) {
    map_contiguous(n, out, [=](compute_t<T> v) { return Op::apply(v, p, q); }, x);
}

// out[i] = op(x[..], p, q): as unary_strided.
template <class Op, class T>
__global__ void unary2_strided(u32 n, Strided<1> m, const T *x, compute_t<T> p, compute_t<T> q, T *out) {
    for_each_strided<1>(m, n, [=](u32 i, Offsets<1> at) { out[i] = store<T>::from(Op::apply(load(x[at.at[0]]), p, q)); });
}
