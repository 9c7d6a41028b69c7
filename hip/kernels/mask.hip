// Selection by a mask. `T` is the unsigned integer of the element's size. `B` is the mask's type,
// bool8 or u32.
#include "prelude.h"

// Both values are read before the choice, so that it is a select and not a branch. So both operands
// must be readable at every element.
template <class T, class B> DEVICE T choose(B mask, T yes, T no) { return load(mask) != 0 ? yes : no; }

// out = mask ? value : x: all contiguous and beginning at 16-byte boundaries; `out` may be `x` or
// `value`.
template <class T, class B>
__global__ void mask_where_contiguous(u64 n, const T *x, const B *mask, const T *value, T *out) {
    map_contiguous(n, out, [=](T no, compute_t<B> yes, T other) { return yes != 0 ? other : no; }, x, mask, value);
}

// out[i] = mask[..] ? value[..] : x[..]: `out` is contiguous; the rows of `m` are x, mask, value.
template <class T, class B>
__global__ void mask_where(u32 n, Strided<3> m, const T *x, const B *mask, const T *value, T *out) {
    for_each_strided<3>(m, n,
                        [=](u64 i, Offsets<3> at) { out[i] = choose(mask[at.at[1]], value[at.at[2]], x[at.at[0]]); });
}

// out = mask ? value : x for a single value, with the requirements of mask_where_contiguous.
template <class T, class B> __global__ void mask_fill_contiguous(u64 n, const T *x, const B *mask, T value, T *out) {
    map_contiguous(n, out, [=](T no, compute_t<B> yes) { return yes != 0 ? value : no; }, x, mask);
}

// out[i] = mask[..] ? value : x[..]: `out` is contiguous; the rows of `m` are x, mask.
template <class T, class B> __global__ void mask_fill(u32 n, Strided<2> m, const T *x, const B *mask, T value, T *out) {
    for_each_strided<2>(m, n, [=](u64 i, Offsets<2> at) { out[i] = choose(mask[at.at[1]], value, x[at.at[0]]); });
}
