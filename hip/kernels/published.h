// Words by which blocks of a launch wait for each other. A block may only wait for one that has
// begun, since a GPU need not run all blocks of a launch at once. So blocks take their work in turn
// (`atomic_add`), and wait only for earlier work.
#pragma once
#include "prelude.h"

// Words are read and written whole. A reader of a word need not see other memory as its writer did.
template <class W> DEVICE void publish_word(W *at, W word) {
#if COMPILER_AMD
    __hip_atomic_store(at, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#elif COMPILER_NVIDIA
    *(volatile W *)at = word;
#else
    __atomic_store_n(at, word, __ATOMIC_RELAXED);
#endif
}
template <class W> DEVICE W published_word(const W *at) {
#if COMPILER_AMD
    return __hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#elif COMPILER_NVIDIA
    return *(const volatile W *)at;
#else
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}
// What each thread calls before the barrier behind which another thread publishes its writes. On
// gfx90a and gfx942 a wave may pass a barrier before its stores are done, and a release waits for
// those of its own wave only.
DEVICE void finish_writes() {
#if COMPILER_AMD
    __threadfence();
#endif
}
// The same, with what the writer wrote or saw before, and what other threads of its block wrote
// before `finish_writes` and a barrier: once a thread has read such a word, it sees that memory, and
// so do the threads that it meets at a barrier.
DEVICE void publish_with_memory(u32 *at, u32 word) {
#if COMPILER_AMD
    __hip_atomic_store(at, word, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
#elif COMPILER_NVIDIA
    asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(at), "r"(word) : "memory");
#else
    __atomic_store_n(at, word, __ATOMIC_RELEASE);
#endif
}
DEVICE u32 published_with_memory(const u32 *at) {
#if COMPILER_AMD
    return __hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
#elif COMPILER_NVIDIA
    u32 word;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
#else
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}
// Waits a few cycles, in which other warps run.
DEVICE void give_way() {
#if COMPILER_AMD
    __builtin_amdgcn_s_sleep(1);
#elif COMPILER_NVIDIA && __CUDA_ARCH__ >= 700
    __nanosleep(20);
#endif
}
