// NVIDIA's instructions of matrix cores as the PTX ISA manual defines them, for lockstep. Fragments are written
// down as in its sections "Matrix Fragments for mma.m16n8k16" and "movmatrix".
#pragma once

namespace cores {

struct Fragments {
    const u32 *a, *b;
};

// d += a * b, of 16 x 16 by 16 x 8 elements.
template <class T> DEVICE void mma(f32 *d, const u32 *a, const u32 *b) {
    SHARED(Fragments, of_lane, 128); // the threads of a block
    of_lane[threadIdx.x] = Fragments{a, b};
    from_lane(0u, 0); // all lanes have written
    const Fragments *all = of_lane + threadIdx.x / 32 * 32;
    auto element = [](const u32 *words, u32 i) { return load(T{(u16)(words[i / 2] >> i % 2 * 16)}); };
    f32 left[16][16], right[16][8];
    for (u32 other = 0; other < 32; ++other) {
        u32 group = other >> 2, in_group = other % 4;
        for (u32 i = 0; i < 8; ++i) {
            u32 row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
            u32 column = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
            left[row][column] = element(all[other].a, i);
        }
        for (u32 i = 0; i < 4; ++i) {
            u32 row = i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
            right[row][group] = element(all[other].b, i);
        }
    }
    from_lane(0u, 0); // all lanes have read
    for (u32 i = 0; i < 4; ++i) {
        u32 row = i < 2 ? lane() >> 2 : (lane() >> 2) + 8, column = lane() % 4 * 2 + (i & 1);
        for (u32 k = 0; k < 16; ++k) d[i] += left[row][k] * right[k][column];
    }
}

// An 8 x 8 matrix of 16 bits, transposed.
DEVICE u32 movmatrix(u32 own) {
    u16 element[8][8];
    for (u32 other = 0; other < 32; ++other) {
        u32 word = from_lane(own, other);
        element[other / 4][other % 4 * 2] = (u16)word, element[other / 4][other % 4 * 2 + 1] = (u16)(word >> 16);
    }
    return (u32)element[lane() % 4 * 2][lane() / 4] | (u32)element[lane() % 4 * 2 + 1][lane() / 4] << 16;
}

} // namespace cores
