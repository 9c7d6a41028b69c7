// Element-wise functions of one tensor.
#include "prelude.h"
#include "functors.h"

// out = op(x): both contiguous, beginning at 16-byte boundaries; `out` may be `x`.
template <class Op, class T> __global__ void unary_contiguous(u64 n, const T *x, T *out) {
    map_contiguous(n, out, [=](compute_t<T> v) { return Op::apply(v); }, x);
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
