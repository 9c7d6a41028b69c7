// What hipRTC's compiler has built in and NVRTC spells otherwise. Read ahead of every program; nothing else differs for a kernel
// that prelude.h does not see to.
#pragma once

#define __builtin_memcpy(to, from, bytes) memcpy(to, from, bytes)
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000u)
