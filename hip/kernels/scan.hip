// Cumulative sums, products, minima and maxima along the middle dim of contiguous [outer, len, inner]; `out` may be the input.
// f16 and bf16 accumulate in f32. NaN spreads to all that follows it, in minima and maxima too.
#include "prelude.h"

struct CumSum {
    template <class C> static DEVICE C identity() { return (C)0; }
    template <class C> static DEVICE C apply(C a, C b) {
        if constexpr (is_float<C>::value) return a + b;
        else return (C)((wrapping_t<C>)a + (wrapping_t<C>)b);
    }
};
struct CumProd {
    template <class C> static DEVICE C identity() { return (C)1; }
    template <class C> static DEVICE C apply(C a, C b) {
        if constexpr (is_float<C>::value) return a * b;
        else return (C)((wrapping_t<C>)a * (wrapping_t<C>)b);
    }
};
struct CumMin {
    template <class C> static DEVICE C identity() { return greatest<C>(); }
    template <class C> static DEVICE C apply(C a, C b) { return math::min(a, b); }
};
struct CumMax {
    template <class C> static DEVICE C identity() { return least<C>(); }
    template <class C> static DEVICE C apply(C a, C b) { return math::max(a, b); }
};

// The scan of `value` over the threads of this warp up to and including this one. Lanes that a shuffle names are there: `source`
// is never past this lane.
template <class Op, class C> DEVICE C warp_scan(C value) {
    i32 lane = (i32)(threadIdx.x % (u32)warpSize);
    for (i32 distance = 1; distance < warpSize; distance *= 2) {
        i32 source = lane >= distance ? lane - distance : lane;
        C other = shuffle(value, source);
        if (lane >= distance) value = Op::apply(other, value);
    }
    return value;
}

// Rows that one thread takes side by side: each step of a scan waits for the one before, but not for those of other rows.
constexpr u32 ROWS = 8;

template <class Op, u32 COUNT, class T> DEVICE void scan_rows(u64 len, const T *x, T *out) {
    using C = compute_t<T>;
    C sum[COUNT];
    for (u32 j = 0; j < COUNT; ++j) sum[j] = Op::template identity<C>();
    for (u64 i = 0; i < len; ++i) {
        for (u32 j = 0; j < COUNT; ++j) {
            sum[j] = Op::apply(sum[j], load(x[j * len + i]));
            out[j * len + i] = store<T>::from(sum[j]);
        }
    }
}

// One row by the threads of a block: a step takes blockDim.x * PER elements; each thread scans PER neighbours, the block their totals.
template <class Op, class T> DEVICE void scan_row(u64 len, const T *x, T *out) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        scan_rows<Op, 1>(len, x, out);
    } else {
        constexpr u32 PER = 4;
        SHARED(C, totals, 32); // a block has at most 1024 threads, a warp at least 32
        u32 warp = threadIdx.x / (u32)warpSize, lane = threadIdx.x % (u32)warpSize;
        u32 warps = (blockDim.x + (u32)warpSize - 1) / (u32)warpSize;
        C carry = Op::template identity<C>();
        for (u64 start = 0; start < len; start += (u64)blockDim.x * PER) {
            u64 first = start + (u64)threadIdx.x * PER;
            C part[PER];
            C sum = Op::template identity<C>();
            for (u32 k = 0; k < PER; ++k) {
                if (first + k < len) sum = Op::apply(sum, load(x[first + k]));
                part[k] = sum;
            }
            C scanned = warp_scan<Op>(sum);
            bool last = lane + 1 == (u32)warpSize || threadIdx.x + 1 == blockDim.x;
            if (last) totals[warp] = scanned;
            C before = shuffle(scanned, lane > 0 ? (i32)lane - 1 : 0);
            sync_threads();
            C base = carry;
            for (u32 w = 0; w < warp; ++w) base = Op::apply(base, totals[w]);
            if (lane > 0) base = Op::apply(base, before);
            for (u32 w = 0; w < warps; ++w) carry = Op::apply(carry, totals[w]);
            sync_threads(); // the totals are read: the next step may write them
            for (u32 k = 0; k < PER; ++k) {
                if (first + k < len) out[first + k] = store<T>::from(Op::apply(base, part[k]));
            }
        }
    }
}

// Columns side by side that one thread takes: neighbouring threads take neighbouring columns on a GPU.
constexpr u32 TILE = ONE_THREAD ? 64 : 1;

// inner == 1: a block a row (launched for `outer` rows of len). Else: launched for outer * inner elements.
template <class Op, class T> __global__ void scan(u64 outer, u64 len, u64 inner, const T *x, T *out) {
    using C = compute_t<T>;
    if (inner == 1) {
        u64 groups = ONE_THREAD ? outer / ROWS : 0;
        if (ONE_THREAD) for_each_row(groups, [=](u64 g) { scan_rows<Op, ROWS>(len, x + g * ROWS * len, out + g * ROWS * len); });
        x += groups * ROWS * len, out += groups * ROWS * len;
        for_each_row(outer - groups * ROWS, [=](u64 row) { scan_row<Op>(len, x + row * len, out + row * len); });
        return;
    }
    u64 tiles = (inner + TILE - 1) / TILE;
    for_each(outer * tiles, [=](u64 item) {
        u64 o = item / tiles, column = (item - o * tiles) * TILE;
        u32 columns = inner - column < TILE ? (u32)(inner - column) : TILE;
        u64 first = o * len * inner + column;
        C sum[TILE];
        for (u32 j = 0; j < columns; ++j) sum[j] = Op::template identity<C>();
        for (u64 i = 0; i < len; ++i) {
            INDEPENDENT
            for (u32 j = 0; j < columns; ++j) {
                sum[j] = Op::apply(sum[j], load(x[first + i * inner + j]));
                out[first + i * inner + j] = store<T>::from(sum[j]);
            }
        }
    });
}
