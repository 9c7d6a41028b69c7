// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).
#pragma once
#include "prelude.h"

struct Words {
    u32 w[4];
};

// The block of four words into which Philox 4x32 turns a counter, in ten rounds.
DEVICE Words philox(Words counter, u32 key0, u32 key1) {
    u32 c0 = counter.w[0], c1 = counter.w[1], c2 = counter.w[2], c3 = counter.w[3];
    UNROLLED
    for (i32 round = 0; round < 10; ++round) {
        u64 p0 = (u64)0xd2511f53u * c0;
        u64 p1 = (u64)0xcd9e8d57u * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ key0;
        c2 = (u32)(p0 >> 32) ^ c3 ^ key1;
        c1 = (u32)p1;
        c3 = (u32)p0;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return Words{{c0, c1, c2, c3}};
}

// The random numbers of one op: its place in the sequence of the device's ops is `call`.
struct Stream {
    u64 seed, call;
    DEVICE Words at(u64 group) const {
        return philox(Words{{(u32)group, (u32)(group >> 32), (u32)call, (u32)(call >> 32)}}, (u32)seed,
                      (u32)(seed >> 32));
    }
};

// The numbers at `address`, which all threads read and no thread of this launch writes. AMD's
// compiler reads them into scalar registers only if it knows that they are constant.
template <class T> DEVICE const T *constant_at(u64 address) {
#if COMPILER_AMD
    return (const T *)(const __attribute__((address_space(4))) T *)address;
#else
    return reinterpret_cast<const T *>(address);
#endif
}

// The stream of an op's arguments `seed` and `call`. An op in a graph draws other numbers at each
// replay. Bit 63 of its `call` says so: `seed` is then the address of two numbers that each replay
// sets, the seed and the place of the graph's first op, and the other bits are the op's place among
// the graph's ops. All threads take the same branch.
DEVICE Stream stream_of(u64 seed, u64 call) {
    if ((i64)call >= 0) return Stream{seed, call};
    const u64 *at = constant_at<u64>(seed);
    return Stream{at[0], at[1] + (call & ~(1ull << 63))};
}
