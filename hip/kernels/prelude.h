// Every kernel includes this file. It is compiled by hipRTC (AMD), NVRTC (NVIDIA) or the host's C++
// compiler (the CPU device).
//
// The model: a launch has `gridDim.x` blocks of `blockDim.x` threads. On the CPU device a block has
// one thread, and the cores share the blocks; in its lockstep mode (HIP_CPU_LOCKSTEP) blocks have
// all their threads. Kernels assume no size of blocks or warps: they loop over ranges
// (prelude_ranges.h) and read `warpSize`.
#pragma once

#include "prelude_compiler.h"
#include "prelude_registers.h"
#include "prelude_types.h"
#include "prelude_device.h"
#include "prelude_ranges.h"
#include "prelude_math.h"
#include "prelude_convert.h"
#include "prelude_map.h"
#include "prelude_reduce.h"
