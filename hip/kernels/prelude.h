// What every kernel includes. hipRTC (AMD), NVRTC (NVIDIA) or the host's C++ compiler (the CPU
// device) reads it.
//
// The model: a launch is `gridDim.x` blocks of `blockDim.x` threads. On the CPU device a block has
// one thread and blocks are spread over the cores; in its lockstep mode (HIP_CPU_LOCKSTEP) blocks
// have all their threads. Kernels assume no block or warp size: they loop over ranges
// (prelude_ranges.h) and ask for `warpSize`.
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
