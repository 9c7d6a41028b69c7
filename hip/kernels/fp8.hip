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
