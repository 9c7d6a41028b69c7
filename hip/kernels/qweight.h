// Quantised weights `[outs, inputs]`: unsigned codes of 4, 6 or 8 bits, with a scale for each group
// of a row's weights. Rows are padded to whole chunks of 32 weights.
//
// A chunk of 4-bit codes has 16 bytes: byte j has weight j in its lower half and weight j + 16 in
// its upper half. The upper two bits of 6-bit codes lie apart, 8 bytes a chunk: byte j has weights
// j, j + 8, j + 16 and j + 24. So a 32-bit word gives four neighbours by one shift and one mask.
#pragma once
#include "projection.h"

struct WeightSizes {
    u32 rows;            // of x and out; of `qweight_dequantize`, the rows of out
    u32 outs;            // rows of the weights
    u32 inputs;          // padded to whole chunks
    u32 inside;          // without padding
    u32 groups;          // in a row
    u32 shift;           // log2 of a group's chunks; 31 if a row is one group
    u32 kind;            // of scales: 0 f16, 1 bf16, 2 f32
    u32 zero;            // the code of 0 (the bits of an f32), if no zeros are given
    u32 first;           // row of the weights
    Surroundings around; // of products
    u32 unused[5];
};

// The arrays of a weight, in the order of the kernels' parameters. `extra` has the groups' codes of
// 0 (u8), or the scales of the scales of 256 weights: Q4K an f16 of scales and one of least values,
// Q6K one f16.
struct WeightArrays {
    const u8 *codes, *upper, *scales, *extra;
};

// Numbers that a thread reads with one access of 16 bytes, and the upper bits of 6-bit codes.
struct Piece {
    u32 word[4], upper[2];
};
// An element of an array. On GPUs the array's address is the same in all threads and the offset has
// 32 bits, so an address takes one register. NVIDIA's compiler would move plain loads down to their
// uses, to save registers, and a thread would have one in flight. No launch may write the array
// meanwhile.
template <class V> DEVICE V read_at(const u8 *array, u32 at) {
    const u8 *from = array + (u32)(at * (u32)sizeof(V));
#if COMPILER_NVIDIA
    if constexpr (sizeof(V) == 16) {
        Vector<u32, 4> to;
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to.lane[0]), "=r"(to.lane[1]), "=r"(to.lane[2]), "=r"(to.lane[3])
                     : "l"(from));
        return bit_cast<V>(to);
    } else if constexpr (sizeof(V) == 8) {
        Vector<u32, 2> to;
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(to.lane[0]), "=r"(to.lane[1]) : "l"(from));
        return bit_cast<V>(to);
    } else if constexpr (sizeof(V) == 4) {
        u32 to;
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(to) : "l"(from));
        return bit_cast<V>(to);
    } else if constexpr (sizeof(V) == 2) {
        u16 to;
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(to) : "l"(from));
        return bit_cast<V>(to);
    } else if constexpr (sizeof(V) == 1) {
        u16 to;
        asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(to) : "l"(from));
        return (V)to;
    } else {
        return *reinterpret_cast<const V *>(from);
    }
#else
    return *reinterpret_cast<const V *>(from);
#endif
}
DEVICE Piece piece_at(const u8 *codes, u32 piece) {
    Piece found;
    auto words = read_at<Vector<u32, 4>>(codes, piece);
    UNROLLED
    for (u32 w = 0; w < 4; ++w) found.word[w] = words.lane[w];
    return found;
}

// How a piece's codes become weights: scale * (code - zero) - least. The second scale is that of
// the piece's second half.
struct Factors {
    f32 scale[2], zero, least;
};

// A scale, without a branch on its type: loads after a branch would wait for earlier ones.
DEVICE f32 scale_at(const u8 *scales, u32 kind, u32 at) {
    u32 step = kind == 2 ? 2 : 1;
    u16 high = read_at<u16>(scales, at * step + step - 1);
    u32 low = kind == 2 ? (u32)read_at<u16>(scales, at * step) : 0;
    return kind == 0 ? load_one(f16{high}) : bit_cast<f32>((u32)high << 16 | low);
}

// Codes with a scale, and perhaps a code of 0, for each group.
template <u32 BITS> struct Grouped {
    static constexpr u32 WEIGHTS = 128 / BITS; // in a piece
    static constexpr bool HALVES = false, LEAST = false;
    static DEVICE Piece piece(const WeightSizes &z, const WeightArrays &w, u64 row, u32 p) {
        return piece_at(w.codes + row * (z.inputs / WEIGHTS * 16), p);
    }
    static DEVICE Factors factors(const WeightSizes &z, const WeightArrays &w, u64 row, u32 p) {
        u32 at = p * WEIGHTS / 32 >> z.shift;
        f32 zero = bit_cast<f32>(z.zero);
        if (w.extra != nullptr) zero = (f32)read_at<u8>(w.extra + row * z.groups, at);
        f32 scale = scale_at(w.scales + row * (z.groups * (z.kind == 2 ? 4 : 2)), z.kind, at);
        return {{scale, scale}, zero, 0.0f};
    }
};
// `quad` gives the codes of weights 4t to 4t + 3, one in each byte, from word t % 4 and upper word
// t % 2 of a piece.
struct Int4 : Grouped<4> {
    static DEVICE u32 quad(u32 word, u32, u32 t) { return (word >> t / 4 * 4) & 0x0f0f0f0fu; }
};
struct Int8 : Grouped<8> {
    static DEVICE u32 quad(u32 word, u32, u32) { return word; }
};

// GGUF's Q4_K. A chunk's scale and least value have 6 bits, in two bytes.
struct Q4K {
    static constexpr u32 WEIGHTS = 32;
    static constexpr bool HALVES = false, LEAST = true;
    static DEVICE Piece piece(const WeightSizes &z, const WeightArrays &w, u64 row, u32 p) {
        return piece_at(w.codes + row * (z.inputs / 2), p);
    }
    static DEVICE Factors factors(const WeightSizes &z, const WeightArrays &w, u64 row, u32 p) {
        u32 both = read_at<u16>(w.scales + row * (z.inputs / 16), p);
        u32 of = read_at<u32>(w.extra + row * (z.inputs / 64), p / 8);
        f32 scale = load_one(f16{(u16)of}) * (f32)(both & 0xff);
        return {{scale, scale}, 0.0f, load_one(f16{(u16)(of >> 16)}) * (f32)(both >> 8)};
    }
    static DEVICE u32 quad(u32 word, u32 upper, u32 t) { return Int4::quad(word, upper, t); }
};

// GGUF's Q6_K. Each half of a chunk has a signed scale of one byte.
struct Q6K {
    static constexpr u32 WEIGHTS = 32;
    static constexpr bool HALVES = true, LEAST = false;
    static DEVICE Piece piece(const WeightSizes &z, const WeightArrays &w, u64 row, u32 p) {
        Piece found = piece_at(w.codes + row * (z.inputs / 2), p);
        auto upper = read_at<Vector<u32, 2>>(w.upper + row * (z.inputs / 4), p);
        found.upper[0] = upper.lane[0];
        found.upper[1] = upper.lane[1];
        return found;
    }
    static DEVICE Factors factors(const WeightSizes &z, const WeightArrays &w, u64 row, u32 p) {
        u32 both = read_at<u16>(w.scales + row * (z.inputs / 16), p);
        f32 of = load_one(f16{read_at<u16>(w.extra + row * (z.inputs / 128), p / 8)});
        return {{of * (f32)(i8)(u8)both, of * (f32)(i8)(u8)(both >> 8)}, 32.0f, 0.0f};
    }
    static DEVICE u32 quad(u32 word, u32 upper, u32 t) {
        return Int4::quad(word, upper, t) | ((upper >> t / 2 * 2) & 0x03030303u) << 4;
    }
};

template <class F> DEVICE u32 quad_of(const Piece &p, u32 t) { return F::quad(p.word[t % 4], p.upper[t % 2], t); }

// Code number k of a quad, minus the code of 0: exact, because both are whole numbers below 2^8.
DEVICE f32 centred(u32 quad, u32 k, f32 zero) {
#if COMPILER_NVIDIA
    // The code as the last byte of 2^23 + code. A conversion would take four times as long.
    return bit_cast<f32>(__byte_perm(quad, 0x4b000000u, 0x7550u + k)) - (8388608.0f + zero);
#else
    return (f32)(quad >> 8 * k & 0xffu) - zero;
#endif
}

// Weight number 4 t + k of a piece.
template <class F> DEVICE f32 weight_of(u32 quad, u32 t, u32 k, const Factors &f) {
    f32 scaled = f.scale[F::HALVES && t >= F::WEIGHTS / 8] * centred(quad, k, f.zero);
    return F::LEAST ? scaled - f.least : scaled;
}
