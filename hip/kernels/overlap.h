// Launches that overlap. On NVIDIA from sm_90 on, a kernel of a graph may begin while the one before it
// still runs, if the files of both have OVERLAPPING_LAUNCHES (programmatic dependent launch; the cuda
// provider's overlap.rs decides). HIP has no such launches. For a kernel of such a file:
//
// - A thread calls `wait_for_earlier` before it reads what another kernel of such a file may have
//   written, and before it writes to global memory. When the call returns, all earlier launches have
//   ended.
// - A thread reads such memory by plain loads: `ld.global.nc` is for memory that no running kernel
//   writes.
// - At least one thread of every launch waits. So when a launch has ended, all earlier ones have too.
#pragma once
#include "prelude.h"

#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 900
constexpr bool OVERLAPS = true;
// The provider looks for this symbol in a module.
#define OVERLAPPING_LAUNCHES extern "C" __device__ u32 overlapping_launches = 1;
// The next kernel may begin once all blocks have called this, or have ended.
DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
DEVICE void wait_for_earlier() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
#else
constexpr bool OVERLAPS = false;
#define OVERLAPPING_LAUNCHES
DEVICE void let_next_begin() {}
DEVICE void wait_for_earlier() {}
#endif
