// Conversions between fp8 and other floats.
#include "fp8.h"

// out = the numbers of the codes, each times the scale of its row if there are scales: row r has
// `width` numbers.
template <class F, class T> __global__ void fp8_decode(u64 n, u64 width, const u8 *codes, const f32 *scales, T *out) {
    for_each(n, [=](u64 i) {
        f32 number = F::decode(codes[i]);
        out[i] = store<T>::from(scales != nullptr ? number * scales[divided(i, width)] : number);
    });
}

// out = the codes of the numbers. With `saturate`, numbers beyond the greatest become the greatest.
template <class F, class T> __global__ void fp8_encode(u64 n, u32 saturate, const T *x, u8 *out) {
    if (saturate != 0) for_each(n, [=](u64 i) { out[i] = F::template encode<true>((f32)load(x[i])); });
    else for_each(n, [=](u64 i) { out[i] = F::template encode<false>((f32)load(x[i])); });
}

// ---------------------------------------------------------------- one scale for a tensor

// |x| as the bits of an f32, which have the same order as integers. 0 for NaN and infinities, which
// do not count for the scale.
template <class T> DEVICE i32 finite_magnitude(T x) {
    i32 bits = bit_cast<i32>((f32)load(x)) & 0x7fffffff;
    return bits & -(i32)(bits < 0x7f800000);
}

struct LargerBits {
    DEVICE i32 operator()(i32 a, i32 b) const { return a > b ? a : b; }
};

// out[part] = the greatest finite |x| of the part's share of n elements. One block per part.
template <class T> __global__ void fp8_extent(u64 parts, u64 n, const T *x, f32 *out) {
    for_each_row(parts, [&](u64 part) {
        u64 begin = n * part / parts, end = n * (part + 1) / parts;
        auto magnitude = [=](u64 i) { return finite_magnitude(x[begin + i]); };
        i32 most = block_reduce_range<i32>(end - begin, 0, magnitude, LargerBits());
        if (threadIdx.x == 0) out[part] = bit_cast<f32>(most);
    });
}

// codes = those of x / scale. Finite numbers beyond the greatest become the greatest. If there are
// `parts`, `extents` has the greatest magnitude of each, and the scale makes the greatest of them the
// greatest number of fp8; it is stored. Else `extents` has the scale.
template <class F, class T>
__global__ void fp8_quantize(u64 n, u64 parts, f32 greatest, const T *x, const f32 *extents, f32 *scale, u8 *codes) {
    f32 by = extents[0];
    if (parts != 0) {
        i32 most = block_reduce_range<i32>(parts, 0, [=](u64 i) { return bit_cast<i32>(extents[i]); }, LargerBits());
        f32 least = bit_cast<f32>(0x00800000u), quotient = bit_cast<f32>(most) / greatest;
        by = most == 0 ? 1.0f : quotient < least ? least : quotient;
        if (blockIdx.x == 0 && threadIdx.x == 0) scale[0] = by;
    }
    for_each(n, [=](u64 i) {
        f32 value = (f32)load(x[i]);
        bool finite = (bit_cast<u32>(value) & 0x7fffffffu) < 0x7f800000u;
        codes[i] = select(finite, F::template encode<true>(value / by), F::template encode<false>(value));
    });
}
