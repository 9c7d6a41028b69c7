// What the loops over rows in norm_backward.hip share: gamma, sums over a block, and a row's
// statistics.
#pragma once
#include "far_from_mean.h"
#include "prelude.h"
#include "rows.h"

// The gamma of element i. Each element has its own, which is the same in ALL_ROWS (PerElement), or
// `spatial` neighbours share one (PerChannel); without gamma it is 1. `piece` returns the gamma of
// WIDTH neighbours. Kernels ask for at most AT_ONCE of them at a time: 16 bytes, because more would
// leave too few registers.
template <class P> struct PerElement {
    const P *gamma;
    static constexpr bool ALL_ROWS = true;
    DEVICE bool aligned() const { return past_boundary(gamma) == 0; }
    DEVICE PerElement of_row(u64) const { return *this; }
    DEVICE compute_t<P> operator()(u64 i) const { return load(gamma[i]); }
    template <u32 WIDTH> static constexpr u32 AT_ONCE = WIDTH < LANES<P> ? WIDTH : LANES<P>;
    template <u32 WIDTH, class I> DEVICE Vector<P, WIDTH> piece(I first) const {
        return vector_at<WIDTH>(gamma, first);
    }
};
template <class P> struct PerChannel {
    const P *gamma;
    u64 groups, channels, spatial; // channels: of a group
    static constexpr bool ALL_ROWS = false;
    DEVICE PerChannel of_row(u64 row) const {
        return PerChannel{gamma == nullptr ? nullptr : gamma + row % groups * channels, groups, channels, spatial};
    }
    DEVICE compute_t<P> operator()(u64 i) const {
        return gamma == nullptr ? (compute_t<P>)1 : load(gamma[i / spatial]);
    }
    DEVICE bool aligned() const { return true; }
    template <u32 WIDTH> static constexpr u32 AT_ONCE = WIDTH; // each piece needs a division
    template <u32 WIDTH, class I> DEVICE Neighbours<P, WIDTH> piece(I first) const {
        Neighbours<P, WIDTH> out;
        P value = store<P>::from((compute_t<P>)1);
        I size = (I)spatial, channel = sizeof(I) == 4 ? first / size : (I)divided_in_f64(first, spatial),
          rest = first - channel * size;
        if (gamma != nullptr) value = gamma[channel];
        for (u32 j = 0; j < WIDTH; ++j) {
            out.lane[j] = value;
            if (++rest == size && j + 1 < WIDTH) {
                rest = 0, ++channel;
                if (gamma != nullptr) value = gamma[channel];
            }
        }
        return out;
    }
};

// The sums of N values (2 or 4) over the block, returned to every thread. In each of the first
// exchanges a lane keeps half of its values, so that N sums cost little more than one. There is one
// barrier; consecutive calls must differ in `turn`. The block must consist of whole warps.
template <u32 N, class C> DEVICE void block_sums(C (&value)[N], u32 turn) {
    SHARED(C, partial, 2 * 32 * N); // a block has at most 1024 threads, a warp at least 32
    C *of_turn = partial + turn % 2 * 32 * N;
    u32 lane = recompute_from(threadIdx.x) % (u32)warpSize, warps = blockDim.x / (u32)warpSize;
    auto exchange = [=](C kept, C given, u32 distance) {
        return kept + shuffle(given, (i32)(recompute_from(lane) ^ distance));
    };
    auto lanes_alike = [=](C sum) { // over the lanes with the same remainder modulo N
        for (u32 distance = N; distance < (u32)warpSize; distance *= 2) sum = exchange(sum, sum, distance);
        return sum;
    };
    bool odd = lane & 1, upper = lane & 2;
    C sum = exchange(odd ? value[1] : value[0], odd ? value[0] : value[1], 1);
    if constexpr (N == 4) {
        C more = exchange(odd ? value[3] : value[2], odd ? value[2] : value[3], 1);
        sum = exchange(upper ? more : sum, upper ? sum : more, 2);
    }
    sum = lanes_alike(sum);
    if (warps > 1) {
        if (lane < N) of_turn[threadIdx.x / (u32)warpSize * N + lane] = sum;
        sync_threads();
        sum = (C)0;
        ROLLED
        for (u32 at = lane; at < warps * N; at += (u32)warpSize) sum += of_turn[at];
        sum = lanes_alike(sum);
    }
    for (u32 v = 0; v < N; ++v) value[v] = shuffle(sum, (i32)v);
}

// Where a block stores its sums of dgamma and dbeta, `len` each, and where it stores a row's mean
// and rstd. Null if they are not asked for.
template <class C> struct Sums {
    C *dgamma, *dbeta;
};
template <class C> struct Statistics {
    C *mean, *rstd;
};

// 1 / sqrt(x), on NVIDIA by an instruction and a correction, off by at most 2 ulp. AMD's compiler
// would spill registers for it in layer norm's gradient in f32.
#if COMPILER_NVIDIA
namespace math {
MATH_FUNCTION(rsqrt, rsqrtf, rsqrt)
}
template <class C> DEVICE C reciprocal_root(C x) { return math::rsqrt(x); }
#else
template <class C> DEVICE C reciprocal_root(C x) { return (C)1 / math::sqrt(x); }
#endif

// The values of a row from which its gradient is computed.
template <class C> struct Slope {
    C mean, rstd, shift, slope;

    // dx from an element's x (as n), dy and gamma.
    DEVICE C normal(C x) const { return (x - mean) * rstd; }
    DEVICE C operator()(C normal, C dy, C gamma) const { return rstd * (dy * gamma - shift - normal * slope); }
};

// The sums that a row's gradient needs. If CENTRED: of d = x - start, d^2, h and h * d, where
// `start` is the row's first element or, in a second pass, its mean. Else: of x^2 and h * x. One
// reduction gives all of them.
template <bool CENTRED, class C> struct RowSums {
    static constexpr u32 N = CENTRED ? 4 : 2;
    C sum[N] = {}, start = (C)0;

    DEVICE void add(C x, C h) {
        if constexpr (CENTRED) {
            C d = x - start;
            sum[0] += h, sum[1] += h * d, sum[2] += d, sum[3] += d * d;
        } else {
            sum[0] += x * x, sum[1] += h * x;
        }
    }
    DEVICE C last() const { return sum[1]; }

    // `part` must be 1 / len.
    DEVICE Slope<C> over_block(u32 turn, C part, C epsilon) {
        block_sums(sum, turn);
        if constexpr (CENTRED) {
            C off = sum[2] * part, squares = sum[3] - sum[2] * off;
            if (squares < (C)0) squares = (C)0; // negative by rounding; NaN stays NaN
            C rstd = reciprocal_root(squares * part + epsilon);
            return Slope<C>{start + off, rstd, sum[0] * part, rstd * (sum[1] - sum[0] * off) * part};
        } else {
            // With `reciprocal_root`, NVIDIA's compiler takes 70 registers instead of 64 in bf16.
            C rstd = (C)1 / math::sqrt(sum[0] * part + epsilon);
            return Slope<C>{(C)0, rstd, (C)0, rstd * sum[1] * part};
        }
    }
};

// Recomputes a row's sums from differences to `mean`, one element at a time to save registers.
template <class I, class T, class Gamma, class C>
DEVICE Slope<C> sums_again(u32 turn, C mean, I len, const T *x, const T *dy, Gamma gamma, C epsilon) {
    RowSums<true, C> of_row;
    of_row.start = mean;
    ROLLED
    for (I i = recompute_from(threadIdx.x); i < len; i += blockDim.x) {
        of_row.add(load(x[i]), (C)load(dy[i]) * (C)load(gamma.template piece<1>(i).lane[0]));
    }
    return of_row.over_block(turn, (C)1 / (C)len, epsilon);
}
