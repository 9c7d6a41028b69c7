// Element-wise operations of two tensors, or of a tensor and a scalar.
#include "prelude.h"
#include "functors.h"
#include "rows.h"

// out = op(a, b): all three are contiguous and begin at 16-byte boundaries; `out` may be `a` or
// `b`.
template <class Op, class T>
__global__ ALL_WAVES((is_same<Op, Pow>::value && is_same<T, f32>::value)) void binary_contiguous(u64 n, const T *a,
                                                                                                 const T *b, T *out) {
    map_contiguous(n, out, [=](compute_t<T> x, compute_t<T> y) { return Op::apply(x, y); }, a, b);
}

// Reads 16 bytes of elements: contiguous ones or, with ONE, copies of the first.
template <bool ONE, class T> DEVICE void read_piece(const T *from, Vector<T, LANES<T>> &piece) {
    if constexpr (ONE) {
        T value = *from;
        UNROLLED
        for (u32 j = 0; j < LANES<T>; ++j) piece.lane[j] = value;
    } else {
        piece = piece_of(from, 0);
    }
}

template <class T> struct StridedGiven {
    u32 n;
    Strided<2> m;
    u32 lies;
    const T *a, *b;
    T *out;
};
template <class Op, bool ONE_A, bool ONE_B, class T> DEVICE void by_pieces(const StridedGiven<T> &given) {
    constexpr u32 WIDTH = LANES<T>;
    for_each(given.n / WIDTH, [=](u64 index) {
        // If kept, the parameters and the constants for division by the shape would take too many
        // scalar registers.
        const StridedGiven<T> p = reload_parameters(given);
        Offsets<2> at = offsets_of(p.m, (u32)index * WIDTH);
        Vector<T, WIDTH> x, y;
        read_piece<ONE_A>(p.a + at.at[0], x);
        read_piece<ONE_B>(p.b + at.at[1], y);
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            // Four elements after the other four: eight powers at once do not fit into the
            // registers.
            if (j != 0 && j % 4 == 0) x = recompute_from(x), y = recompute_from(y);
            x.lane[j] = store<T>::from(Op::apply(load(x.lane[j]), load(y.lane[j])));
        }
        reinterpret_cast<Vector<T, WIDTH> *>(p.out)[index] = x;
    });
}

// out[i] = op(a[..], b[..]): `out` is contiguous. The grid has a thread for each 16 bytes. The host
// computes `lies`: 1 if the last axis consists of whole pieces of 16 bytes in which each operand
// either is contiguous or has one value; + 2 if a has one value along that axis, + 4 if b has.
// Otherwise `lies` is 0.
template <class Op, class T>
__global__ void binary_strided(u32 n, Strided<2> m, u32 lies, const T *a, const T *b, T *out) {
    if constexpr (!ONE_THREAD) {
        StridedGiven<T> given{n, m, lies, a, b, out};
        bool left = past_boundary(out) == 0 && past_boundary(a) == 0,
             right = past_boundary(out) == 0 && past_boundary(b) == 0;
        if (lies == 1 && left && right) return by_pieces<Op, false, false>(given);
        if (lies == 3 && right) return by_pieces<Op, true, false>(given);
        if (lies == 5 && left) return by_pieces<Op, false, true>(given);
    }
    map_strided(m, n, out, [=](compute_t<T> x, compute_t<T> y) { return Op::apply(x, y); }, a, b);
}

// The same two kernels for Div and Rem of integers. A divisor of 0 gives 0 and raises the flag.
template <class Op, class T> DEVICE T divided(T x, T y, u64 *flag) {
    if (y == (T)0) raise(flag, 1);
    return Op::apply(x, y);
}
template <class Op, class T> __global__ void divide_contiguous(u64 n, const T *a, const T *b, u64 *flag, T *out) {
    map_contiguous(n, out, [=](T x, T y) { return divided<Op>(x, y, flag); }, a, b);
}
template <class Op, class T>
__global__ void divide_strided(u32 n, Strided<2> m, const T *a, const T *b, u64 *flag, T *out) {
    map_strided(m, n, out, [=](T x, T y) { return divided<Op>(x, y, flag); }, a, b);
}

// out = op(a, scalar): contiguous. The scalar has the compute type, so that it keeps its precision
// with low-precision tensors.
template <class Op, class T>
__global__ __launch_bounds__(256)
    ALL_WAVES((is_same<Op, Pow>::value && is_same<T, f32>::value)) void binary_scalar(u64 n, const T *a,
                                                                                      compute_t<T> scalar, T *out) {
    map_contiguous(n, out, [=](compute_t<T> x) { return Op::apply(x, scalar); }, a);
}

// a b - c d with each product rounded. For equal products it gives exactly 0, which a fused
// multiply-add would not.
#if COMPILER_NVIDIA
DEVICE f32 difference_of_products(f32 a, f32 b, f32 c, f32 d) { return __fmul_rn(a, b) - __fmul_rn(c, d); }
DEVICE f64 difference_of_products(f64 a, f64 b, f64 c, f64 d) { return __dmul_rn(a, b) - __dmul_rn(c, d); }
#else
template <class T> DEVICE T difference_of_products(T a, T b, T c, T d) {
#if COMPILER_AMD
#pragma clang fp contract(off)
#endif
    T left = a * b, right = c * d;
    return left - right;
}
#endif

// The cross product of 3-vectors. `m` is the shape without the vectors' axis, along which each
// operand has a step of its own.
template <class T>
__global__ void cross(u32 n, Strided<3> m, const T *a, const T *b, i64 a_step, i64 b_step, i64 out_step, T *out) {
    using C = compute_t<T>;
    for_each_strided<3>(m, n, [=](u64, Offsets<3> at) {
        const T *u = a + at.at[0], *v = b + at.at[1];
        T *w = out + at.at[2];
        C u0 = load(u[0]), u1 = load(u[a_step]), u2 = load(u[2 * a_step]);
        C v0 = load(v[0]), v1 = load(v[b_step]), v2 = load(v[2 * b_step]);
        w[0] = store<T>::from(difference_of_products(u1, v2, u2, v1));
        w[out_step] = store<T>::from(difference_of_products(u2, v0, u0, v2));
        w[2 * out_step] = store<T>::from(difference_of_products(u0, v1, u1, v0));
    });
}
