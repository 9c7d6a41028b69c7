// Comparisons and predicates; results are bool8. cast_contiguous<bool8, u32> makes four-byte bools
// of them. NaN follows IEEE: all comparisons with it are false, except that it is unequal to
// everything. For two tensors, `a > b` is Less with swapped operands.
#include "prelude.h"

struct Equal {
    template <class T> static DEVICE bool apply(T a, T b) { return a == b; }
};
struct NotEqual {
    template <class T> static DEVICE bool apply(T a, T b) { return a != b; }
};
struct Less {
    template <class T> static DEVICE bool apply(T a, T b) { return a < b; }
};
struct LessEqual {
    template <class T> static DEVICE bool apply(T a, T b) { return a <= b; }
};
struct Greater {
    template <class T> static DEVICE bool apply(T a, T b) { return a > b; }
};
struct GreaterEqual {
    template <class T> static DEVICE bool apply(T a, T b) { return a >= b; }
};

struct IsNan {
    template <class T> static DEVICE bool apply(T x) { return math::is_nan(x); }
};
struct IsInf {
    template <class T> static DEVICE bool apply(T x) { return math::is_inf(x); }
};

// out = op(a, b): all contiguous and beginning at 16-byte boundaries; `out` may be a one-byte
// input.
template <class Op, class T> __global__ void compare_contiguous(u64 n, const T *a, const T *b, bool8 *out) {
    map_contiguous(n, out, [=](compute_t<T> x, compute_t<T> y) { return Op::apply(x, y); }, a, b);
}

// out[i] = op(a[..], b[..]): `out` is contiguous.
template <class Op, class T> __global__ void compare_strided(u32 n, Strided<2> m, const T *a, const T *b, bool8 *out) {
    map_strided(m, n, out, [=](compute_t<T> x, compute_t<T> y) { return Op::apply(x, y); }, a, b);
}

// out = op(a, scalar): contiguous; the scalar has the compute type.
template <class Op, class T> __global__ void compare_scalar(u64 n, const T *a, compute_t<T> scalar, bool8 *out) {
    map_contiguous(n, out, [=](compute_t<T> x) { return Op::apply(x, scalar); }, a);
}

// out = op(x): contiguous.
template <class Op, class T> __global__ void predicate_contiguous(u64 n, const T *x, bool8 *out) {
    map_contiguous(n, out, [=](compute_t<T> v) { return Op::apply(v); }, x);
}
