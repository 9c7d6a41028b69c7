// Normalisation of rows ([rows, len], contiguous); f16 and bf16 compute in f32; `out` may be x.
#include "prelude.h"

struct Plus {
    template <class C> DEVICE C operator()(C a, C b) const { return a + b; }
};

// Elements of a row that a thread keeps in registers: rows up to 16 * blockDim.x are read once.
constexpr u32 KEEP = 16;

// f(i, x[i]) for the elements of a row that `kept` holds.
template <class C, class F> DEVICE void for_each_kept(u64 len, C (&kept)[KEEP], F f) {
#if !COMPILER_HOST
#pragma unroll
#endif
    for (u32 k = 0; k < KEEP; ++k) {
        if ((u64)k * blockDim.x >= len) break; // for all threads alike
        u64 i = threadIdx.x + (u64)k * blockDim.x;
        if (i < len) f(i, kept[k]);
    }
}

// Calls write(i, x[i], mean, 1 / sqrt(variance + epsilon)) for each element of a row, the mean 0 and the variance the mean of
// squares unless CENTRED. The variance comes from the centred row, so that a large mean costs no precision.
template <bool CENTRED, class T, class C, class F> DEVICE void normalise(u64 len, const T *from, C epsilon, F write) {
    if constexpr (!ONE_THREAD) {
        if (len <= (u64)KEEP * blockDim.x) {
            C kept[KEEP], sum = (C)0, squares = (C)0;
            for_each_kept(len, kept, [&](u64 i, C &x) { sum += x = load(from[i]); });
            C mean = CENTRED ? block_reduce(sum, Plus()) / (C)len : (C)0;
            for_each_kept(len, kept, [&](u64, C &x) { squares += (x - mean) * (x - mean); });
            C scale = (C)1 / math::sqrt(block_reduce(squares, Plus()) / (C)len + epsilon);
            for_each_kept(len, kept, [&](u64 i, C &x) { write(i, x, mean, scale); });
            return;
        }
    }
    C mean = CENTRED ? block_reduce_range(len, (C)0, [=](u64 i) { return load(from[i]); }, Plus()) / (C)len : (C)0;
    auto square = [=](u64 i) {
        C d = load(from[i]) - mean;
        return d * d;
    };
    C scale = (C)1 / math::sqrt(block_reduce_range(len, (C)0, square, Plus()) / (C)len + epsilon);
    for_each_in_block(len, [=](u64 i) { write(i, load(from[i]), mean, scale); });
}

// out = (x - mean) / sqrt(variance + epsilon) * gamma + beta over each row; gamma of len elements, beta too or null.
template <class T>
__global__ void layer_norm_rows(u64 rows, u64 len, const T *x, const T *gamma, const T *beta, f64 epsilon, T *out) {
    using C = compute_t<T>;
    for_each_row(rows, [=](u64 row) {
        T *to = out + row * len;
        const T *from = x + row * len;
        if (beta != nullptr) {
            normalise<true>(len, from, (C)epsilon, [=](u64 i, C v, C mean, C scale) {
                to[i] = store<T>::from((v - mean) * scale * load(gamma[i]) + load(beta[i]));
            });
        } else {
            normalise<true>(len, from, (C)epsilon, [=](u64 i, C v, C mean, C scale) {
                to[i] = store<T>::from((v - mean) * scale * load(gamma[i]));
            });
        }
    });
}

// out = x / sqrt(mean of x^2 + epsilon) * gamma over each row.
template <class T> __global__ void rms_norm_rows(u64 rows, u64 len, const T *x, const T *gamma, f64 epsilon, T *out) {
    using C = compute_t<T>;
    for_each_row(rows, [=](u64 row) {
        T *to = out + row * len;
        normalise<false>(len, x + row * len, (C)epsilon, [=](u64 i, C v, C, C scale) { to[i] = store<T>::from(v * scale * load(gamma[i])); });
    });
}
