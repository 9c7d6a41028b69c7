// Built-ins of hipRTC that have other names in NVRTC. NVRTC reads this file before every program.
// hip/kernels/prelude_*.h handle the other differences.
#pragma once

#define __builtin_memcpy(to, from, bytes) memcpy(to, from, bytes)
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000u)

// A constant for the compiler too, so that it unrolls loops over a warp's lanes. CUDA's own variable
// is a constant only for the assembler.
#define warpSize 32
