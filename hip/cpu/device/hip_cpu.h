// The built-ins of a GPU compiler, for kernels that the host's C++ compiler builds for the CPU
// device. Every such translation unit includes this file before the kernels, in the same namespace.
// It includes nothing.
//
// Native mode: a block is one thread. Lockstep (HIP_CPU_LOCKSTEP): a block has all its threads;
// each is a coroutine of the CPU device, which schedules them through the hooks below.
#pragma once

// A kernel is not inlined into the loop over blocks, because gcc then loses track of the pointers.
// Everything that a kernel calls is inlined into it, because a loop with a call isn't vectorised.
#define __global__ __attribute__((noinline, flatten))
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define HIP_CPU_INLINE static inline __attribute__((always_inline, unused))

struct dim3 {
    unsigned x, y, z;
};

// The CPU device's description of a launch and, in lockstep, the functions that kernels call. The
// layout must match the device's abi.rs.
struct hip_cpu_launch {
    dim3 grid, block_dim;
    unsigned long long first, count; // the blocks to run, counted x first
    void *dynamic_shared;
    // Lockstep only; the scheduler keeps these up to date.
    dim3 thread, block;
    int wave, lane;
    void (*sync)(const void *site);
    void *(*shared)(const void *key, unsigned long long bytes, unsigned long long align, const char *name);
    void (*shuffle)(const void *site, const void *in, void *out, unsigned bytes, int source);
    unsigned long long (*ballot)(const void *site, int predicate);
    const void *arguments; // as in AMD's kernarg segment: one after the other, each at its type's alignment
    // Native only: returns memory of the calling thread, aligned to 64 bytes. The next call may
    // return the same memory.
    void *(*scratch)(unsigned long long bytes);
};

#if HIP_CPU_LOCKSTEP

// One launch runs at a time in this mode.
static const hip_cpu_launch *hip_cpu_now;
#define blockIdx (hip_cpu_now->block)
#define gridDim (hip_cpu_now->grid)
#define threadIdx (hip_cpu_now->thread)
#define blockDim (hip_cpu_now->block_dim)
#define warpSize ((int)hip_cpu_now->wave)
#define hip_cpu_lane (hip_cpu_now->lane)

// These functions are never inlined and calls to them never duplicated, because the return address
// identifies the call in the kernel.
#ifdef __clang__
#define HIP_CPU_CALL __attribute__((noinline, noduplicate, unused)) static
#else
#define HIP_CPU_CALL __attribute__((noinline, unused)) static
#endif
HIP_CPU_CALL void hip_cpu_sync() { hip_cpu_now->sync(__builtin_return_address(0)); }
HIP_CPU_CALL void hip_cpu_shuffle(const void *in, void *out, unsigned bytes, int source) {
    hip_cpu_now->shuffle(__builtin_return_address(0), in, out, bytes, source);
}
HIP_CPU_CALL unsigned long long hip_cpu_ballot(int predicate) {
    return hip_cpu_now->ballot(__builtin_return_address(0), predicate);
}
HIP_CPU_INLINE void __syncthreads() { hip_cpu_sync(); }
HIP_CPU_INLINE unsigned long long __ballot(int predicate) { return hip_cpu_ballot(predicate); }
// clang-format off: it mistakes the reference for a call
#define HIP_CPU_SHARED(T, name, count)                                                                 \
    static char name##_key;                                                                            \
    T(&name)[count] = *reinterpret_cast<T(*)[count]>(                                                  \
        hip_cpu_now->shared(&name##_key, sizeof(T) * (count), alignof(T), #name))
// clang-format on
#define __shared__ static
#define hip_cpu_dynamic_shared (hip_cpu_now->dynamic_shared)

#else

static __thread dim3 hip_cpu_block, hip_cpu_grid;
static __thread void *hip_cpu_dynamic_shared;
static __thread void *(*hip_cpu_scratch)(unsigned long long bytes);
#define blockIdx hip_cpu_block
#define gridDim hip_cpu_grid
static constexpr dim3 threadIdx = {0, 0, 0};
static constexpr dim3 blockDim = {1, 1, 1};
static constexpr int warpSize = 1;
static constexpr int hip_cpu_lane = 0;

HIP_CPU_INLINE void __syncthreads() {}
HIP_CPU_INLINE unsigned long long __ballot(int predicate) { return predicate != 0; }
HIP_CPU_INLINE void hip_cpu_shuffle(const void *in, void *out, unsigned bytes, int) {
    __builtin_memcpy(out, in, bytes);
}
#define HIP_CPU_SHARED(T, name, count) T name[count]
#define __shared__ static __thread

#endif

// `extern __shared__ T name[];` becomes `T *const name = HIP_CPU_DYNAMIC;` (compiler.rs). Outside
// functions, where the block's memory is not known, the lambda's capture `[&]` is a compile error.
struct hip_cpu_dynamic {
    template <class T> operator T *() const { return static_cast<T *>(hip_cpu_dynamic_shared); }
};
#define HIP_CPU_DYNAMIC [&] { return hip_cpu_dynamic{}; }()
#define HIP_DYNAMIC_SHARED(T, name) T *const name = HIP_CPU_DYNAMIC;

// Shuffles behave as AMD's do: a lane whose source lies outside `width` gets its own value.
template <class T> HIP_CPU_INLINE T hip_cpu_exchange(T value, int source) {
    T result;
    hip_cpu_shuffle(&value, &result, sizeof(T), source);
    return result;
}
template <class T> HIP_CPU_INLINE T __shfl(T value, int source, int width = warpSize) {
    return hip_cpu_exchange(value, (source & (width - 1)) + (hip_cpu_lane & ~(width - 1)));
}
template <class T> HIP_CPU_INLINE T __shfl_up(T value, unsigned delta, int width = warpSize) {
    int source = hip_cpu_lane - (int)delta;
    return hip_cpu_exchange(value, source < (hip_cpu_lane & ~(width - 1)) ? hip_cpu_lane : source);
}
template <class T> HIP_CPU_INLINE T __shfl_down(T value, unsigned delta, int width = warpSize) {
    int source = hip_cpu_lane + (int)delta;
    return hip_cpu_exchange(value, (hip_cpu_lane & (width - 1)) + (int)delta >= width ? hip_cpu_lane : source);
}
template <class T> HIP_CPU_INLINE T __shfl_xor(T value, int mask, int width = warpSize) {
    int source = hip_cpu_lane ^ mask;
    return hip_cpu_exchange(value, source >= ((hip_cpu_lane + width) & ~(width - 1)) ? hip_cpu_lane : source);
}
HIP_CPU_INLINE int __any(int predicate) { return __ballot(predicate) != 0; }
HIP_CPU_INLINE int __all(int predicate) { return __ballot(predicate == 0) == 0; }
HIP_CPU_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
HIP_CPU_INLINE void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Blocks run on several cores, so atomics must be real. The loops compare bits, so that they also
// end for a NaN.
template <unsigned long long BYTES> struct hip_cpu_word;
template <> struct hip_cpu_word<4> {
    using type = unsigned int;
};
template <> struct hip_cpu_word<8> {
    using type = unsigned long long;
};
template <class T, class F> HIP_CPU_INLINE T hip_cpu_atomic(T *address, F next) {
    using Word = typename hip_cpu_word<sizeof(T)>::type;
    Word *word = reinterpret_cast<Word *>(address);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED), replacement;
    T value;
    do {
        __builtin_memcpy(&value, &old, sizeof(T));
        T changed = next(value);
        __builtin_memcpy(&replacement, &changed, sizeof(T));
    } while (!__atomic_compare_exchange_n(word, &old, replacement, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return value;
}
template <class T> struct hip_cpu_same {
    using type = T;
};
template <class T>
using hip_cpu_plain = typename hip_cpu_same<T>::type; // not deduced: atomicAdd(float *, double) adds a float
template <class T> HIP_CPU_INLINE T atomicAdd(T *a, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T old) { return (T)(old + x); });
}
template <class T> HIP_CPU_INLINE T atomicSub(T *a, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T old) { return (T)(old - x); });
}
template <class T> HIP_CPU_INLINE T atomicMax(T *a, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T old) { return old < x ? x : old; });
}
template <class T> HIP_CPU_INLINE T atomicMin(T *a, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T old) { return x < old ? x : old; });
}
template <class T> HIP_CPU_INLINE T atomicExch(T *a, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T) { return x; });
}
template <class T> HIP_CPU_INLINE T atomicCAS(T *a, hip_cpu_plain<T> expected, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T old) { return old == expected ? x : old; });
}
template <class T> HIP_CPU_INLINE T atomicAnd(T *a, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T old) { return (T)(old & x); });
}
template <class T> HIP_CPU_INLINE T atomicOr(T *a, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T old) { return (T)(old | x); });
}
template <class T> HIP_CPU_INLINE T atomicXor(T *a, hip_cpu_plain<T> x) {
    return hip_cpu_atomic(a, [=](T old) { return (T)(old ^ x); });
}
