// Built-ins of hipRTC that have other names in NVRTC. NVRTC reads this file before every program.
// hip/kernels/prelude_*.h handle the other differences.
#pragma once

#define __builtin_memcpy(to, from, bytes) memcpy(to, from, bytes)
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000u)

// CUDA's own variable is constant only to the assembler, so loops over a warp's lanes would not be
// unrolled.
#define warpSize 32
