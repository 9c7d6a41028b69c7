// Shared memory, barriers, shuffles and atomics, and how a kernel reports a fault.
#pragma once
#include "prelude_compiler.h"

// GPU compilers have blockIdx, threadIdx, __syncthreads, shuffles and atomics built in. For the
// host's compiler the CPU device defines them in hip_cpu.h, which it includes before this file.
// SHARED declares an array in shared memory. GIVEN_SHARED declares one whose size the host gives
// with the launch.
#if COMPILER_HOST
#define SHARED(T, name, count) HIP_CPU_SHARED(T, name, count)
#define GIVEN_SHARED(T, name) HIP_DYNAMIC_SHARED(T, name)
#else
#define SHARED(T, name, count) __shared__ T name[count]
#define GIVEN_SHARED(T, name) extern __shared__ T name[]
#endif
DEVICE void sync_threads() { __syncthreads(); }
// The value that lane `source` of this warp holds. All lanes that `source` may name must call it.
template <class T> DEVICE T shuffle(T value, i32 source) {
    constexpr i32 words = (sizeof(T) + 3) / 4;
    i32 in[words] = {}, out[words];
    __builtin_memcpy(in, &value, sizeof(T));
    UNROLLED
    for (i32 w = 0; w < words; ++w) {
#if COMPILER_NVIDIA
        out[w] = __shfl_sync(0xffffffffu, in[w], source);
#else
        out[w] = __shfl(in[w], source);
#endif
    }
    T result;
    __builtin_memcpy(&result, out, sizeof(T));
    return result;
}

template <class T> DEVICE T atomic_add(T *address, T value) { return atomicAdd(address, value); }
template <> DEVICE i64 atomic_add<i64>(i64 *address, i64 value) {
    return (i64)atomicAdd(reinterpret_cast<u64 *>(address), (u64)value);
}

// ---------------------------------------------------------------- faults

// Reports a fault in the values that a kernel reads, such as an index out of range. The word goes
// to the op's flag in host memory, and the host looks at it when it next reads or waits. The store
// is plain: if several threads report, the last one wins. A null flag reports nothing.
DEVICE void raise(u64 *flag, u64 word) {
    if (flag != nullptr) *(volatile u64 *)flag = word;
}
// The word has bit 63 set, the axis' size in bits 32 to 62 and the index in the lower 32. A value
// that does not fit is clamped to the nearest end of its range.
template <class I> DEVICE void raise_index(u64 *flag, I index, u64 size) {
    i64 near = (i64)index;
    if (near > 0x7fffffff) near = 0x7fffffff;
    if (near < -0x7fffffff - 1) near = -0x7fffffff - 1;
    if (size > 0x7fffffff) size = 0x7fffffff;
    raise(flag, 1ull << 63 | size << 32 | (u64)(u32)(i32)near);
}
// The index is compared as unsigned, so negative ones are out of range too.
template <class I> DEVICE bool in_range(I index, u64 size) { return (u64)(i64)index < size; }
