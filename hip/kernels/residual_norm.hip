// RMS norm together with the sum of a residual connection, over rows ([rows, len], contiguous).
// f16 and bf16 are computed in f32; P is the type of both norms' weights. With
//   rms(v, w) = v / sqrt(mean of v^2 + epsilon) * (w + shift)
// the kernel computes
//   y      = rms(x, before), or x if `before` is null
//   sum    = residual + y, or y if `residual` is null
//   normed = rms(sum, after), if `after` is not null
// y and sum are rounded to T before they are used, as if stored. `sum` may be null if it equals x.
// `sum` and `normed` may be x or the residual.
#include "prelude.h"
#include "rows.h"

#if COMPILER_AMD
#define BLOCK __launch_bounds__(256) ALL_WAVES(true)
#else
#define BLOCK
#endif

// The kernel's parameters, loaded again for each row: kept through the loop, they would fill the
// scalar registers.
template <class T, class P> struct Job {
    u64 rows, len;
    const T *x, *residual;
    const P *before, *after;
    f64 epsilon, shift;
    T *sum, *normed;
};

// The bytes that a thread keeps of a row, in the compute type.
template <class T> constexpr u32 KEPT = 64 / sizeof(compute_t<T>);

template <class C> DEVICE C rms_scale(C squares, u64 len, C epsilon) {
    return (C)1 / math::sqrt(squares / (C)len + epsilon);
}
// A value as T holds it.
template <class T> DEVICE compute_t<T> rounded(compute_t<T> x) { return load(store<T>::from(x)); }

// A row that the block's threads keep in registers: it consists of pieces of 16 bytes at multiples
// of 16 bytes.
template <class T, class P>
DEVICE void kept_row(const Job<T, P> job, const T *x, const T *residual, T *sum, T *normed) {
    using C = compute_t<T>;
    constexpr u32 N = LANES<T>, PIECES = KEPT<T> / N;
    u32 len = (u32)job.len;
    auto for_each_piece = [=](auto f) {
        UNROLLED
        for (u32 p = 0; p < PIECES; ++p) {
            u32 first = (p * blockDim.x + recompute_from(threadIdx.x)) * N;
            if (first < len) f(p, first);
        }
    };
    // All loads are issued before any result is used.
    Vector<T, N> kept[PIECES] = {}, more[PIECES] = {};
    for_each_piece([&](u32 p, u32 first) { kept[p] = vector_at<N>(x, first); });
    if (residual != nullptr) for_each_piece([&](u32 p, u32 first) { more[p] = vector_at<N>(residual, first); });
    auto squares_of_row = [&]() {
        C squares = (C)0;
        for_each_piece([&](u32 p, u32) {
            UNROLLED
            for (u32 j = 0; j < N; ++j) {
                C v = load(kept[p].lane[j]);
                squares += v * v;
            }
        });
        return block_reduce(squares, Plus());
    };
    // to[j] = v * scale * (weight + shift) for a piece.
    auto normalise = [&](u32 p, u32 first, const P *weight, C scale, Vector<T, N> &to) {
        auto w = lanes_of<N>(weight, (i64)first);
        auto v = kept[p];
        C last = (C)0;
        UNROLLED
        for (u32 j = 0; j < N; ++j) {
            if (j == 4) w = recompute_after(last, w), v = recompute_from(v);
            last = (C)load(v.lane[j]) * scale * ((C)load(w.lane[j]) + (C)job.shift);
            to.lane[j] = store<T>::from(last);
        }
    };
    if (job.before != nullptr) {
        C scale = rms_scale(squares_of_row(), job.len, (C)job.epsilon);
        for_each_piece([&](u32 p, u32 first) { normalise(p, first, job.before, scale, kept[p]); });
    }
    if (residual != nullptr) {
        for_each_piece([&](u32 p, u32) {
            UNROLLED
            for (u32 j = 0; j < N; ++j)
                kept[p].lane[j] = store<T>::from((C)load(more[p].lane[j]) + (C)load(kept[p].lane[j]));
        });
    }
    if (sum != nullptr) for_each_piece([&](u32 p, u32 first) { vector_at<N>(sum, first) = kept[p]; });
    if (job.after != nullptr) {
        C scale = rms_scale(squares_of_row(), job.len, (C)job.epsilon);
        for_each_piece([&](u32 p, u32 first) {
            Vector<T, N> out;
            normalise(p, first, job.after, scale, out);
            vector_at<N>(normed, first) = out;
        });
    }
}

// Any row. A thread reads from `sum` only what it has written itself.
template <class T, class P>
DEVICE void row_by_element(const Job<T, P> job, const T *x, const T *residual, T *sum, T *normed) {
    using C = compute_t<T>;
    u64 len = job.len;
    C shift = (C)job.shift;
    auto scale_of = [=](const T *row) {
        auto square = [=](u64 i) {
            C v = load(row[i]);
            return v * v;
        };
        return rms_scale(block_reduce_range(len, (C)0, square, Plus()), len, (C)job.epsilon);
    };
    if (sum != nullptr) {
        const P *before = job.before;
        C scale = before == nullptr ? (C)1 : scale_of(x);
        if (before == nullptr && residual != nullptr) { // a loop of its own, which vectorises
            for_each_in_block(len, [=](u64 i) { sum[i] = store<T>::from((C)load(residual[i]) + (C)load(x[i])); });
        } else {
            for_each_in_block(len, [=](u64 i) {
                C y = load(x[i]);
                if (before != nullptr) y = rounded<T>(y * scale * ((C)load(before[i]) + shift));
                sum[i] = store<T>::from(residual == nullptr ? y : (C)load(residual[i]) + y);
            });
        }
    }
    if (job.after != nullptr) {
        const T *from = sum == nullptr ? x : sum;
        const P *after = job.after;
        C scale = scale_of(from);
        for_each_in_block(
            len, [=](u64 i) { normed[i] = store<T>::from((C)load(from[i]) * scale * ((C)load(after[i]) + shift)); });
    }
}

template <class T, class P>
__global__ BLOCK void residual_norm(u64 rows, u64 len, const T *x, const T *residual, const P *before, const P *after,
                                    f64 epsilon, f64 shift, T *sum, T *normed) {
    const Job<T, P> given{rows, len, x, residual, before, after, epsilon, shift, sum, normed};
    auto whole = [](const void *pointer) { return (u64)pointer % 16 == 0; };
    bool kept = !ONE_THREAD && len % LANES<T> == 0 && len <= (u64)KEPT<T> * blockDim.x && whole(x) && whole(residual) &&
                whole(before) && whole(after) && whole(sum) && whole(normed);
    for_each_row(rows, [=](u64 row) {
        const Job<T, P> job = reload_parameters(given);
        u64 at = row * job.len;
        const T *more = job.residual == nullptr ? nullptr : job.residual + at;
        T *to_sum = job.sum == nullptr ? nullptr : job.sum + at;
        T *to_normed = job.normed == nullptr ? nullptr : job.normed + at;
        if constexpr (!ONE_THREAD) {
            if (kept) return kept_row(job, job.x + at, more, to_sum, to_normed);
        }
        row_by_element(job, job.x + at, more, to_sum, to_normed);
    });
}
