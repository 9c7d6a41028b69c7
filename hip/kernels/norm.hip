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

// to = (from - mean) / sqrt(variance + epsilon) * gamma + beta for one row; gamma of len elements, beta too or null.
template <class T> DEVICE void layer_norm_row(u64 len, const T *from, const T *gamma, const T *beta, f64 epsilon, T *to) {
    using C = compute_t<T>;
    if (beta != nullptr) {
        normalise<true>(len, from, (C)epsilon, [=](u64 i, C v, C mean, C scale) {
            to[i] = store<T>::from((v - mean) * scale * load(gamma[i]) + load(beta[i]));
        });
    } else {
        normalise<true>(len, from, (C)epsilon, [=](u64 i, C v, C mean, C scale) {
            to[i] = store<T>::from((v - mean) * scale * load(gamma[i]));
        });
    }
}

template <class T>
__global__ void layer_norm_rows(u64 rows, u64 len, const T *x, const T *gamma, const T *beta, f64 epsilon, T *out) {
    for_each_row(rows, [=](u64 row) { layer_norm_row(len, x + row * len, gamma, beta, epsilon, out + row * len); });
}

struct Either {
    DEVICE u32 operator()(u32 a, u32 b) const { return a | b; }
};

// What MIOpen normalised, again where it lost the variance: it takes the mean of squares less the squared mean, which leaves
// mean^2 / variance roundings of 2^-24. `mean` and `rstd` are what it wrote for each row; past a mean of 4 deviations, or where they
// are no numbers, the row is computed as by layer_norm_rows. A block looks at all of its rows at once, so that rows in order cost one read.
template <class T>
__global__ void layer_norm_repair(u64 rows, u64 len, const T *x, const T *gamma, const T *beta, const T *mean, const T *rstd, f64 epsilon,
                                  T *out) {
    using C = compute_t<T>;
    auto lost = [=](u64 row) {
        C ratio = load(mean[row]) * load(rstd[row]);
        return !(ratio * ratio <= (C)16);
    };
    u64 own = rows > blockIdx.x ? (rows - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    u32 any = 0;
    for (u64 k = threadIdx.x; k < own; k += blockDim.x) any |= (u32)lost(blockIdx.x + k * gridDim.x);
    if (!block_reduce(any, Either())) return;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        if (lost(row)) layer_norm_row(len, x + row * len, gamma, beta, epsilon, out + row * len);
    }
}

// out = x / sqrt(mean of x^2 + epsilon) * gamma over each row.
template <class T> __global__ void rms_norm_rows(u64 rows, u64 len, const T *x, const T *gamma, f64 epsilon, T *out) {
    using C = compute_t<T>;
    for_each_row(rows, [=](u64 row) {
        T *to = out + row * len;
        normalise<false>(len, x + row * len, (C)epsilon, [=](u64 i, C v, C, C scale) { to[i] = store<T>::from(v * scale * load(gamma[i])); });
    });
}
