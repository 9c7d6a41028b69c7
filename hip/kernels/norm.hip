// Normalisation of rows ([rows, len], contiguous); f16 and bf16 compute in f32; `out` may be x.
#include "prelude.h"

struct Plus {
    template <class C> DEVICE C operator()(C a, C b) const { return a + b; }
};

// out = (x - mean) / sqrt(variance + epsilon) * gamma + beta over each row; gamma of len elements, beta too or null. The
// variance from the centred row, so that a large mean costs no precision.
template <class T>
__global__ void layer_norm_rows(u64 rows, u64 len, const T *x, const T *gamma, const T *beta, f64 epsilon, T *out) {
    using C = compute_t<T>;
    for_each_row(rows, [=](u64 row) {
        const T *from = x + row * len;
        T *to = out + row * len;
        C mean = block_reduce_range(len, (C)0, [=](u64 i) { return load(from[i]); }, Plus()) / (C)len;
        auto square = [=](u64 i) {
            C d = load(from[i]) - mean;
            return d * d;
        };
        C variance = block_reduce_range(len, (C)0, square, Plus()) / (C)len;
        C scale = (C)1 / math::sqrt(variance + (C)epsilon);
        if (beta != nullptr) {
            for_each_in_block(len, [=](u64 i) { to[i] = store<T>::from((load(from[i]) - mean) * scale * load(gamma[i]) + load(beta[i])); });
        } else {
            for_each_in_block(len, [=](u64 i) { to[i] = store<T>::from((load(from[i]) - mean) * scale * load(gamma[i])); });
        }
    });
}

// out = x / sqrt(mean of x^2 + epsilon) * gamma over each row.
template <class T> __global__ void rms_norm_rows(u64 rows, u64 len, const T *x, const T *gamma, f64 epsilon, T *out) {
    using C = compute_t<T>;
    for_each_row(rows, [=](u64 row) {
        const T *from = x + row * len;
        T *to = out + row * len;
        auto square = [=](u64 i) { return load(from[i]) * load(from[i]); };
        C scale = (C)1 / math::sqrt(block_reduce_range(len, (C)0, square, Plus()) / (C)len + (C)epsilon);
        for_each_in_block(len, [=](u64 i) { to[i] = store<T>::from(load(from[i]) * scale * load(gamma[i])); });
    });
}
