// Reductions within a warp and within a block.
#pragma once
#include "prelude_device.h"
#include "prelude_registers.h"

// Operations that combine two values in a reduction.
struct Plus {
    template <class C> DEVICE C operator()(C a, C b) const { return a + b; }
};
// The result may lose a NaN. That does no harm to the maximum in a sum of exp(x - max), because the
// sum is NaN anyway.
struct Larger {
    template <class C> DEVICE C operator()(C a, C b) const { return b > a ? b : a; }
#if COMPILER_NVIDIA
    DEVICE f32 operator()(f32 a, f32 b) const { return ::fmaxf(a, b); } // one instruction
#endif
};

// Combines the values of this warp's threads by op; every thread gets the result. The order is
// fixed, so every run gives the same bits. The block must consist of whole warps.
template <class T, class Op> DEVICE T warp_reduce(T value, Op op) {
    u32 lane = recompute_from(threadIdx.x);
    // A lane with no other lane `distance` above it reads one from the start of the warp; no lane
    // uses what it computes from that. Lane numbers are recomputed each time, because AMD's
    // compiler would keep all of them in registers through a kernel's loops.
    UNROLLED
    for (u32 distance = 32; distance > 0; distance /= 2) {
        if (distance < (u32)warpSize)
            value = op(value, shuffle(value, (i32)((recompute_from(lane) + distance) % (u32)warpSize)));
    }
    return shuffle(value, 0);
}

// Combines the values of all threads of the block by op. Every thread must call it and gets the
// result. The order is fixed, so every run gives the same bits.
template <class T, class Op> DEVICE T block_reduce(T value, Op op) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    return value;
#else
    SHARED(T, partial, 32); // a block has at most 1024 threads, a warp at least 32
    value = warp_reduce(value, op);
    u32 warps = (blockDim.x + (u32)warpSize - 1) / (u32)warpSize;
    if (warps == 1) return value;
    sync_threads(); // threads may still read an earlier call's values
    if (threadIdx.x % (u32)warpSize == 0) partial[threadIdx.x / (u32)warpSize] = value;
    sync_threads();
    value = partial[0];
    for (u32 w = 1; w < warps; ++w) value = op(value, partial[w]);
    return value;
#endif
}

// Combines f(i) for i in 0..n by op, shared among the threads of a block; every thread gets the
// result. `identity` is the initial value of each partial result. On the CPU, several partial
// results run side by side so that the loop vectorises, and sums are kept short for precision.
template <class T, class F, class Op> DEVICE T block_reduce_range(u64 n, T identity, F f, Op op) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    constexpr u64 LANES = 16 * 4 / sizeof(T) ? 16 * 4 / sizeof(T) : 1, SPAN = 2048;
    T total = identity;
    for (u64 start = 0; start < n; start += SPAN) {
        u64 end = start + SPAN < n ? start + SPAN : n;
        T lane[LANES];
        for (u64 k = 0; k < LANES; ++k) lane[k] = identity;
        u64 i = start;
        for (; i + LANES <= end; i += LANES) {
            for (u64 k = 0; k < LANES; ++k) lane[k] = op(lane[k], f(i + k));
        }
        for (; i < end; ++i) lane[0] = op(lane[0], f(i));
        for (u64 width = LANES / 2; width > 0; width /= 2) {
            for (u64 k = 0; k < width; ++k) lane[k] = op(lane[k], lane[k + width]);
        }
        total = op(total, lane[0]);
    }
    return total;
#else
    T value = identity;
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) value = op(value, f(i));
    return block_reduce(value, op);
#endif
}
