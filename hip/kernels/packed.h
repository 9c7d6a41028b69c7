// How quantised values are stored: signed integers of 8, 4 or 2 bits, packed in row-major order,
// the first in the lowest bits. A byte holds one, two or four of them. Storage of 4- and 2-bit
// values is a whole number of 32-bit words; storage of 8-bit values ends with the last value. Each
// `block` consecutive values share one scale; if block == 0, all values do. `shift` is log2(block),
// or 32 if block is not a power of two.
#pragma once
#include "prelude.h"

DEVICE u64 scale_index(u64 at, u32 block, u32 shift) { return block == 0 ? 0 : shift < 32 ? at >> shift : at / block; }

// Value number `at` of packed storage. If BITS == 0, `bits` gives the width.
template <i32 BITS> DEVICE i32 value_at(const u8 *values, u64 at, u32 bits = (u32)BITS) {
    if constexpr (BITS == 8) {
        return (i32)(i8)values[at];
    } else {
        // The number of bits is a power of two.
        u32 per_byte = 8 / bits, in_byte = (u32)at % per_byte;
        u32 byte = values[bits == 8 ? at : bits == 4 ? at / 2 : at / 4];
        return (i32)(byte << (32 - bits - in_byte * bits)) >> (32 - bits);
    }
}

// The end of the values that share a scale with value `at`, at most `end`.
DEVICE u64 run_end(u64 at, u64 end, u32 block) {
    if (block == 0) return end;
    u64 next = (at / block + 1) * block;
    return next < end ? next : end;
}

// Values first..first + n as i8, n at most CHUNK. Values that are stored as i8 are returned in
// place, others in `buffer`.
constexpr u32 CHUNK = 256;
template <i32 BITS> DEVICE const i8 *decoded(const u8 *values, u64 first, u32 n, i8 *buffer) {
    if constexpr (BITS == 8) {
        return reinterpret_cast<const i8 *>(values) + first;
    } else {
        constexpr u32 PER_BYTE = 8 / BITS;
        u32 i = 0;
        for (; i < n && (first + i) % PER_BYTE != 0; ++i) buffer[i] = (i8)value_at<BITS>(values, first + i);
        const u8 *bytes = values + (first + i) / PER_BYTE;
        u32 whole = (n - i) / PER_BYTE;
        i8 *to = buffer + i;
        for (u32 b = 0; b < whole; ++b) {
            for (u32 k = 0; k < PER_BYTE; ++k)
                to[b * PER_BYTE + k] = (i8)((i8)(u8)(bytes[b] << (8 - BITS - k * BITS)) >> (8 - BITS));
        }
        for (i += whole * PER_BYTE; i < n; ++i) buffer[i] = (i8)value_at<BITS>(values, first + i);
        return buffer;
    }
}
