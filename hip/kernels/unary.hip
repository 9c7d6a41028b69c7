// Element-wise functions of one tensor.
#include "prelude.h"
#include "functors.h"
#include "rows.h"

// Like map_contiguous, but computes two elements at a time: eight logarithms at once take more
// registers than all waves leave.
template <class Op, class T> DEVICE void map_by_twos(u64 n, const T *x, T *out) {
    constexpr u32 WIDTH = LANES<T>;
    u64 vectors = n / WIDTH;
    for_each(vectors, [=](u64 v) {
        Vector<T, WIDTH> from = reinterpret_cast<const Vector<T, WIDTH> *>(x)[v], to;
        compute_t<T> last{};
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            if (j != 0 && j % 2 == 0) from = recompute_after(last, from);
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

// out = op(x): both contiguous and beginning at 16-byte boundaries; `out` may be `x`.
template <class Op, class T> __global__ __launch_bounds__(256) void unary_contiguous(u64 n, const T *x, T *out) {
    if constexpr (is_float<T>::value && sizeof(T) == 2 && !ONE_THREAD) map_by_twos<Op>(n, x, out);
    else map_contiguous(n, out, [=](compute_t<T> v) { return Op::apply(v); }, x);
}

// out[i] = op(x[..]): `out` is contiguous. It may be `x` if index i reads only element i.
template <class Op, class T> __global__ void unary_strided(u32 n, Strided<1> m, const T *x, T *out) {
    map_strided(m, n, out, [=](compute_t<T> v) { return Op::apply(v); }, x);
}

// out = op(x, p, q), with the requirements of unary_contiguous.
template <class Op, class T>
__global__ void unary2_contiguous(u64 n, const T *x, compute_t<T> p, compute_t<T> q, T *out) {
    map_contiguous(n, out, [=](compute_t<T> v) { return Op::apply(v, p, q); }, x);
}

// out[i] = op(x[..], p, q), with the requirements of unary_strided.
template <class Op, class T>
__global__ void unary2_strided(u32 n, Strided<1> m, const T *x, compute_t<T> p, compute_t<T> q, T *out) {
    map_strided(m, n, out, [=](compute_t<T> v) { return Op::apply(v, p, q); }, x);
}
