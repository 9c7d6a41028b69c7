// Symmetric quantisation: x is approximately scale * q, where q is a signed integer of 8, 4 or 2
// bits.
#include "packed.h"

// ---------------------------------------------------------------- scales

// |x| as the bits of an f32, which have the same order as integers. 0 for NaN, so that NaN does not
// affect the range.
template <class T> DEVICE i32 magnitude(T x) {
    i32 bits = bit_cast<i32>((f32)load(x)) & 0x7fffffff;
    return bits & -(i32)(bits <= 0x7f800000);
}
DEVICE i32 larger(i32 a, i32 b) { return a > b ? a : b; }

// The nearest scale that the scheme's precision (0: f32, 1: f16, 2: bf16, 3: UE8M0, 4: UE4M3) can
// represent and that is neither 0 nor infinite. A scale that is 0, subnormal, infinite or NaN
// becomes the least positive normal number.
DEVICE f32 valid_scale(f32 scale, u32 param) {
    u32 sign = bit_cast<u32>(scale) & 0x80000000u, bits = bit_cast<u32>(scale) ^ sign;
    if (bits < 0x00800000u || bits >= 0x7f800000u) bits = 0x00800000u, sign = 0;
    f32 size = bit_cast<f32>(bits);
    if (param == 1) {
        size = size > 65504.0f ? 65504.0f : size < 5.9604645e-8f ? 5.9604645e-8f : f16_to_f32(f32_to_f16(size));
    } else if (param == 2) {
        u32 rounded = (u32)f32_to_bf16(size).bits;
        size = bit_cast<f32>((rounded > 0x7f7fu ? 0x7f7fu : rounded) << 16);
    } else if (param == 3) {
        // The next power of two, so that no value exceeds the range.
        u32 power = (bits + 0x7fffffu) >> 23;
        return bit_cast<f32>((power > 254u ? 254u : power) << 23);
    } else if (param == 4) {
        if (size >= 0.015625f) size = bit_cast<f32>((bits + 0x7ffffu + ((bits >> 20) & 1u)) & 0xfff00000u);
        else size = math::round(size * 512.0f) * 0.001953125f;
        return size > 448.0f ? 448.0f : size < 0.001953125f ? 0.001953125f : size;
    }
    return bit_cast<f32>(bit_cast<u32>(size) | sign);
}

// The scale that maps values up to `most` to a range of `range` steps around 0.
DEVICE f32 scale_for(i32 most, f32 range, u32 param) { return valid_scale(2.0f * bit_cast<f32>(most) / range, param); }

// out[part] = the largest |x| of the part's share of n elements. One block per part.
template <class T> __global__ void quantize_extent(u64 parts, u64 n, const T *x, f32 *out) {
    for_each_row(parts, [&](u64 part) {
        u64 begin = n * part / parts, end = n * (part + 1) / parts;
        i32 most = block_reduce_range<i32>(end - begin, 0, [=](u64 i) { return magnitude(x[begin + i]); },
                                           [](i32 a, i32 b) { return larger(a, b); });
        if (threadIdx.x == 0) out[part] = bit_cast<f32>(most);
    });
}

// scales[b] = the scale of x[b * len ..][.. len]. Up to 32 lanes share a block of values.
template <class T> __global__ void quantize_scales(u64 blocks, u64 len, f32 range, u32 param, const T *x, f32 *scales) {
    if constexpr (ONE_THREAD) {
        for_each_row(blocks, [=](u64 b) {
            const T *row = x + b * len;
            i32 most = 0;
            for (u64 i = 0; i < len; ++i) most = larger(most, magnitude(row[i]));
            scales[b] = scale_for(most, range, param);
        });
    } else {
        u32 lanes = 1;
        if (blockDim.x % 32 == 0) {
            while (lanes < 32 && lanes < len) lanes *= 2;
        }
        u32 lane = threadIdx.x % lanes;
        u64 together = blockDim.x / lanes;
        for (u64 first = blockIdx.x * together; first < blocks; first += gridDim.x * together) {
            u64 b = first + threadIdx.x / lanes;
            i32 most = 0;
            if (b < blocks) {
                for (u64 i = lane; i < len; i += lanes) most = larger(most, magnitude(x[b * len + i]));
            }
            for (u32 d = lanes / 2; d > 0; d /= 2)
                most = larger(most, shuffle(most, (i32)((threadIdx.x % (u32)warpSize) ^ d)));
            if (b < blocks && lane == 0) scales[b] = scale_for(most, range, param);
        }
    }
}

// The given scales, made valid.
__global__ void quantize_params(u64 n, u32 param, const f32 *x, f32 *out) {
    for_each(n, [=](u64 i) { out[i] = valid_scale(x[i], param); });
}

// ---------------------------------------------------------------- values

// Rounds to nearest, ties away from 0, and clamps to low..high. NaN gives 0.
DEVICE i32 quantized(f32 x, f32 inverse, f32 low, f32 high) {
    f32 y = x * inverse;
    y = select(y < low, low, y);
    y = select(y > high, high, y);
    y = select(y == y, y, 0.0f);
    // The greatest number below 0.5: adding 0.5 itself would round 0.49999997 up.
    f32 half = bit_cast<f32>(bit_cast<u32>(0.49999997f) | (bit_cast<u32>(y) & 0x80000000u));
    return (i32)(y + half);
}

// Packs n values of i8, n at most CHUNK, into whole words. Bits after the last value are 0.
template <i32 BITS> DEVICE void pack_words(u32 n, const i8 *from, u8 *to) {
    constexpr u32 PER_WORD = 32 / BITS;
    for (u32 w = 0; w * PER_WORD < n; ++w) {
        u32 word = 0;
        for (u32 k = 0; k < PER_WORD; ++k) {
            u32 i = w * PER_WORD + k;
            word |= (i < n ? (u32)from[i] & ((1u << BITS) - 1u) : 0u) << (k * BITS);
        }
        reinterpret_cast<u32 *>(to)[w] = word;
    }
}

// out = the n values of x, each quantised with its block's scale.
template <class T, i32 BITS>
__global__ void quantize(u64 n, f32 low, f32 high, u32 block, u32 shift, const T *x, const f32 *scales, u8 *out) {
    constexpr u32 PER_WORD = 32 / BITS;
    if constexpr (ONE_THREAD) {
        for_each_row((n + CHUNK - 1) / CHUNK, [=](u64 chunk) {
            u64 begin = chunk * CHUNK, end = begin + CHUNK < n ? begin + CHUNK : n;
            i8 packed[CHUNK];
            for (u64 at = begin; at < end;) {
                u64 stop = run_end(at, end, block);
                f32 inverse = 1.0f / scales[scale_index(at, block, shift)];
                u32 count = (u32)(stop - at);
                const T *from = x + at;
                i8 *to = packed + (at - begin);
                INDEPENDENT
                for (u32 i = 0; i < count; ++i) to[i] = (i8)quantized((f32)load(from[i]), inverse, low, high);
                at = stop;
            }
            u32 count = (u32)(end - begin);
            if constexpr (BITS == 8) __builtin_memcpy(out + begin, packed, count);
            else pack_words<BITS>(count, packed, out + begin * BITS / 8);
        });
    } else {
        // A thread makes one word. Its values share a scale if blocks consist of whole words.
        bool whole = block % PER_WORD == 0;
        for_each((n + PER_WORD - 1) / PER_WORD, [=](u64 w) {
            u64 first = w * PER_WORD;
            u32 count = n - first < PER_WORD ? (u32)(n - first) : PER_WORD;
            f32 inverse = 1.0f / scales[scale_index(first, block, shift)];
            u32 word = 0;
            for (u32 k = 0; k < count; ++k) {
                if (!whole) inverse = 1.0f / scales[scale_index(first + k, block, shift)];
                u32 q = (u32)quantized((f32)load(x[first + k]), inverse, low, high);
                word |= (q & (BITS == 8 ? 0xffu : (1u << BITS) - 1u)) << (k * BITS);
            }
            if (BITS == 8 && count < PER_WORD) {
                for (u32 k = 0; k < count; ++k) out[first + k] = (u8)(word >> (8 * k));
            } else {
                reinterpret_cast<u32 *>(out)[w] = word;
            }
        });
    }
}

// out[i] = the dequantised value number first + i.
template <class T, i32 BITS>
__global__ void dequantize(u64 n, u64 first, u32 block, u32 shift, const u8 *values, const f32 *scales, T *out) {
    if constexpr (ONE_THREAD) {
        for_each_row((n + CHUNK - 1) / CHUNK, [=](u64 chunk) {
            u64 begin = chunk * CHUNK, end = begin + CHUNK < n ? begin + CHUNK : n;
            i8 unpacked[CHUNK];
            const i8 *from = decoded<BITS>(values, first + begin, (u32)(end - begin), unpacked);
            for (u64 at = begin; at < end;) {
                u64 stop = run_end(first + at, first + end, block) - first;
                f32 scale = scales[scale_index(first + at, block, shift)];
                u32 count = (u32)(stop - at);
                const i8 *q = from + (at - begin);
                T *to = out + at;
                INDEPENDENT
                for (u32 i = 0; i < count; ++i) to[i] = store<T>::from(scale * (f32)q[i]);
                at = stop;
            }
        });
    } else {
        for_each(n, [=](u64 i) {
            f32 scale = scales[scale_index(first + i, block, shift)];
            out[i] = store<T>::from(scale * (f32)value_at<BITS>(values, first + i));
        });
    }
}

// The same for a view. Row 0 of `m` has the strides of the values, whose numbers count from
// `first`; row 1 is unused and has stride 0.
template <class T>
__global__ void dequantize_strided(u32 n, Strided<2> m, u64 first, const u8 *values, const f32 *scales, u32 bits,
                                   u32 block, u32 shift, T *out) {
    for_each_strided<2>(m, n, [=](u64 i, Offsets<2> at) {
        u64 from = first + (u64)(i64)at.at[0];
        out[i] = store<T>::from(scales[scale_index(from, block, shift)] * (f32)value_at<0>(values, from, bits));
    });
}

// The values of a view, one per byte.
__global__ void unpack_strided(u32 n, Strided<1> m, u64 first, const u8 *values, u32 bits, i8 *out) {
    for_each_strided<1>(
        m, n, [=](u64 i, Offsets<1> at) { out[i] = (i8)value_at<0>(values, first + (u64)(i64)at.at[0], bits); });
}

// Packs n values, one per byte, into words.
template <i32 BITS> __global__ void pack(u64 n, const i8 *values, u8 *out) {
    constexpr u32 PER_WORD = 32 / BITS;
    for_each((n + PER_WORD - 1) / PER_WORD, [=](u64 w) {
        u64 first = w * PER_WORD;
        pack_words<BITS>(n - first < PER_WORD ? (u32)(n - first) : PER_WORD, values + first, out + first * BITS / 8);
    });
}
