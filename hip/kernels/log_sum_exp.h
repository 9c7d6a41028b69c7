// The greatest element of a row of logits and the sum of exp(x - max), computed by a thread, a warp
// or a block.
#pragma once
#include "approximate.h"
#include "rows.h"
#include "widen.h"

// Which threads compute a row: one thread, a warp or a block. `reduce` combines the values of all
// of them by op.
struct Alone {
    static DEVICE u32 lane() { return 0; }
    static DEVICE u32 lanes() { return 1; }
    template <class F> static DEVICE void for_each_own(u64 rows, F f) { for_each(rows, f); }
};
struct OfWarp {
    static DEVICE u32 first() { return warp_uniform(threadIdx.x / (u32)warpSize) * (u32)warpSize; }
    static DEVICE u32 lane() { return threadIdx.x - first(); }
    static DEVICE u32 lanes() {
        u32 rest = blockDim.x - first();
        return rest < (u32)warpSize ? rest : (u32)warpSize;
    }
    template <class C, class Op> static DEVICE C reduce(C value, Op op) { return warp_reduce(value, op); }
    template <class F> static DEVICE void for_each_own(u64 rows, F f) {
        u32 warps = (blockDim.x + (u32)warpSize - 1) / (u32)warpSize, warp = warp_uniform(threadIdx.x / (u32)warpSize);
        for (u64 row = (u64)blockIdx.x * warps + warp; row < rows; row += (u64)gridDim.x * warps) f(row);
    }
};
struct OfBlock {
    static DEVICE u32 lane() { return threadIdx.x; }
    static DEVICE u32 lanes() { return blockDim.x; }
    template <class C, class Op> static DEVICE C reduce(C value, Op op) { return block_reduce(value, op); }
    template <class F> static DEVICE void for_each_own(u64 rows, F f) { for_each_row(rows, f); }
};
// Calls f(row) for each row. On the CPU the rows come in order, because f accumulates.
template <class Scope, class F> DEVICE void for_each_row_of(u64 rows, F f) {
    if constexpr (ONE_THREAD) for_each_row(rows, f);
    else Scope::for_each_own(rows, f);
}

// A row's greatest element, the sum of exp(x - max) and its logarithm. `own_total` is this thread's
// share of the sum of x - max, if it was asked for.
template <class C> struct Norm {
    C max, sum, log_sum, own_total;
    DEVICE C log_p(C x) const { return x - max - log_sum; }
};

// The initial value of a maximum. It is finite because -inf - FLOOR is -inf, whereas -inf - (-inf)
// would be NaN.
template <class C> constexpr C FLOOR = (C)-3.40282347e38f;
template <> constexpr f64 FLOOR<f64> = -1.7976931348623157e308;

// The sum of x - max over the elements that a thread has read, and their number. No term is
// positive, so the sum has no cancellation.
template <class C> struct Total {
    C sum;
    u32 count;
    // Corrects the sum when the maximum grows.
    DEVICE void raise(C before, C max) {
        // Without elements the difference may be infinite.
        if (count > 0) sum += (C)count * (before - max);
    }
};

// exp(x), where `x` is a difference of elements of T. On GPUs one instruction and a product, if T has
// 16 bits: the product's rounding is then negligible. Results below the smallest normal f32 may be 0.
template <class T, class C> DEVICE C power_of(C x) {
#if !COMPILER_HOST
    if constexpr (sizeof(T) == 2) return power2(x * 1.4426950408889634f);
#endif
    return math::exp(x);
}

// The greatest of `max` and all elements of the pieces. NVIDIA GPUs compare two elements of 16 bits
// by one instruction, which may lose a NaN, as `Larger` may.
template <class T, class C, u32 WIDTH, u32 N> DEVICE C greatest_of(const Vector<T, WIDTH> (&piece)[N], C max) {
#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(T) == 2) {
        constexpr u32 CHAINS = 4;
        u32 word[N * WIDTH / 2];
        __builtin_memcpy(word, piece, sizeof(word));
        UNROLLED
        for (u32 w = CHAINS; w < N * WIDTH / 2; ++w) {
            if constexpr (is_same<T, f16>::value) asm("max.f16x2 %0, %0, %1;" : "+r"(word[w % CHAINS]) : "r"(word[w]));
            else asm("max.bf16x2 %0, %0, %1;" : "+r"(word[w % CHAINS]) : "r"(word[w]));
        }
        UNROLLED
        for (u32 w = 0; w < CHAINS; ++w) {
            auto both = bit_cast<Vector<T, 2>>(word[w]);
            max = Larger()(max, Larger()((C)load(both.lane[0]), (C)load(both.lane[1])));
        }
        return max;
    }
#endif
    UNROLLED
    for (u32 p = 0; p < N; ++p) {
        C v[WIDTH];
        widen(recompute_after(max, piece[p]), v);
        UNROLLED
        for (u32 k = 0; k < WIDTH; ++k) max = Larger()(max, v[k]);
    }
    return max;
}

// Adds a thread's next pieces to its maximum, its sum of exp(x - maximum) and, if `summed`, its
// total. Element k of the pieces belongs to the row if first + k < len; the others are -inf. Pieces
// stay as they are stored, because their elements as f32 would take too many registers.
template <class T, class C, u32 WIDTH, u32 N>
DEVICE void enter(const Vector<T, WIDTH> (&piece)[N], u64 first, u64 len, C &max, C &sum, bool summed,
                  Total<C> &total) {
    C before = max;
    max = greatest_of(piece, max);
    if (summed) total.raise(before, max);
    sum *= power_of<T>(before - max);
    UNROLLED
    for (u32 p = 0; p < N; ++p) {
        C v[WIDTH];
        widen(recompute_after(sum, piece[p]), v);
        UNROLLED
        for (u32 k = 0; k < WIDTH; ++k) {
            // More exponentials at a time would take too many registers.
            if (k % (16 / sizeof(C)) == 0) before = sum;
            sum += power_of<T>(recompute_after(before, v[k]) - max);
        }
    }
    if (!summed) return;
    UNROLLED
    for (u32 p = 0; p < N; ++p) {
        C v[WIDTH];
        widen(recompute_after(total.sum, piece[p]), v);
        UNROLLED
        for (u32 k = 0; k < WIDTH; ++k) {
            if (first + p * WIDTH + k >= len) continue;
            total.sum += v[k] - max;
            ++total.count;
        }
    }
}

// Computes the `Norm` of a row. On GPUs a warp or a block reads the row once.
template <class Scope, class T> DEVICE Norm<compute_t<T>> norm_of(u64 len, const T *x, bool summed) {
    using C = compute_t<T>;
    Norm<C> e{FLOOR<C>, (C)0, (C)0, (C)0};
    if constexpr (ONE_THREAD) { // exponentials and sums vectorise better in loops of their own
        constexpr u64 CHUNK = 512;
        C max = block_reduce_range(len, FLOOR<C>, [=](u64 i) { return (C)load(x[i]); }, Larger()), kept[CHUNK];
        if (summed) e.own_total = block_reduce_range(len, (C)0, [=](u64 i) { return (C)load(x[i]) - max; }, Plus());
        e.max = max;
        for (u64 start = 0; start < len; start += CHUNK) {
            u64 count = len - start < CHUNK ? len - start : CHUNK;
            const T *from = x + start;
            INDEPENDENT
            for (u64 i = 0; i < count; ++i) kept[i] = math::exp((C)load(from[i]) - max);
            const C *terms = kept;
            e.sum += block_reduce_range(count, (C)0, [=](u64 i) { return terms[i]; }, Plus());
        }
    } else if constexpr (is_same<Scope, Alone>::value) {
        for (u64 i = 0; i < len; ++i) e.max = Larger()(e.max, (C)load(x[i]));
        for (u64 i = 0; i < len; ++i) {
            C v = (C)load(x[i]) - e.max;
            e.sum += math::exp(v);
            e.own_total += v;
        }
    } else {
        // A thread has four pieces of 16 bytes in flight (two if elements have 64 bits), or one
        // piece where some would not be whole. Its sum is relative to its own maximum. With two
        // pieces of 16-bit elements, cross entropy of [65536, 4096] bf16 took 169 us on an H200,
        // and a prototype with four took 137 us.
        constexpr u32 WIDTH = LANES<T>, PIECES = sizeof(T) == 8 ? 2 : 4;
        u32 skip = past_boundary(x);
        u64 end = len + skip, step = (u64)Scope::lanes() * WIDTH, at = (u64)Scope::lane() * WIDTH, base = 0;
        C max = e.max, sum = (C)0;
        Total<C> total{(C)0, 0};
        if (skip == 0) {
            ROLLED
            for (; base + PIECES * step <= end; base += PIECES * step) {
                Vector<T, WIDTH> piece[PIECES];
                UNROLLED
                for (u32 p = 0; p < PIECES; ++p) piece[p] = piece_of(x, (i64)(base + at + p * step));
                enter(piece, 0, PIECES * WIDTH, max, sum, summed, total);
            }
        }
        ROLLED
        for (; base < end; base += step) {
            Vector<T, WIDTH> piece[1];
            // Wraps before the row's start, so that it exceeds every length.
            u64 first = base + at - skip;
            bool whole = first < len && first + WIDTH <= len;
            if (whole) {
                piece[0] = piece_of(x, (i64)first);
            } else {
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j)
                    piece[0].lane[j] = first + j < len ? x[first + j] : store<T>::from(-INFINITE<C>);
            }
            enter(piece, first, len, max, sum, summed, total);
        }
        e.max = Scope::reduce(max, Larger());
        e.sum = Scope::reduce(max == e.max ? sum : sum * math::exp(max - e.max), Plus());
        if (summed) total.raise(max, e.max);
        e.own_total = total.sum;
    }
    e.log_sum = math::log(e.sum);
    return e;
}

// This thread's share of the sum of f(i) for i in 0..n.
template <class Scope, class C, class F> DEVICE C own_sum(u64 n, C zero, F f) {
    C sum = zero;
    if constexpr (ONE_THREAD) {
        sum = block_reduce_range(n, zero, f, Plus());
    } else {
        ROLLED
        for (u64 i = Scope::lane(); i < n; i += Scope::lanes()) sum += f(i);
    }
    return sum;
}
