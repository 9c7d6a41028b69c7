// A chain whose last result is summed: the sum reads the result from registers. The order of all
// sums is that of reduce.hip for the same grid, so the bits are the same. The CPU device's blocks of
// one thread don't have these kernels.
#include "chain.h"
#include "sums.h"

// The same layout as `Reduced` in `hip/src/launch/reduced.rs`. The last result is seen as [outer,
// len, inner]; out is [outer, parts, inner].
template <class To> struct Reduced {
    Chain chain;
    u64 outer, len, inner, parts, count;
    To *out;
};

// As reduce_rows, for inner == 1: a block takes a part of a row, or a warp does if there are enough
// parts for all warps.
template <class Op, class T, class To> __global__ __launch_bounds__(256) void chain_rows(Reduced<To> given) {
    if constexpr (!ONE_THREAD) {
        using A = compute_t<T>;
        constexpr u32 WIDTH = LANES<T>;
        constexpr bool JOINED = WIDTH > GROUP;
        auto join = [](A a, A b) { return Op::join(a, b); };
        auto reload = [&]() -> const Chain & { return reload_parameters(given).chain; };
        u32 width = (u32)warpSize, warps = (blockDim.x + width - 1) / width, warp = warp_uniform(threadIdx.x / width);
        u32 all = (u32)given.outer * (u32)given.parts, parts = (u32)given.parts;
        bool alone = all >= (u64)gridDim.x * warps;
        u32 lanes = blockDim.x - warp * width < width ? blockDim.x - warp * width : width;
        Team team = alone ? Team{threadIdx.x % width, lanes} : whole_block();
        u32 step = alone ? gridDim.x * warps : gridDim.x;
        for (u32 index = alone ? blockIdx.x * warps + warp : blockIdx.x; index < all; index += step) {
            Part part = part_of(index, given.len, parts);
            u32 begin = (u32)(part.outer * given.len + part.begin), len = (u32)(part.end - part.begin);
            A result = Op::template identity<A>();
            // The order is that of for_each_of_row on a result that begins at a 16-byte boundary:
            // two 16-byte pieces at a time, then one, then single elements at both ends. All go
            // through one call of `evaluate`, because each call would be a copy of the interpreter.
            u32 head = begin % WIDTH ? WIDTH - begin % WIDTH : 0;
            if (head > len) head = len;
            u32 tail = len - (len - head) % WIDTH, stride = team.count * WIDTH;
            u32 piece = head + team.at * WIDTH, single = team.at;
            while (true) {
                Place at{begin + piece, GROUP, reload().n};
                u32 elements = WIDTH;
                if (piece < tail && JOINED) {
                    piece += stride;
                } else if (piece < tail) {
                    bool two = piece + stride < tail;
                    at = {begin + piece, stride, two ? reload().n : begin + piece + WIDTH};
                    elements = two ? 2 * WIDTH : WIDTH;
                    piece += two ? 2 * stride : stride;
                } else if (single < head + (len - tail)) {
                    u32 first = begin + (single < head ? single : tail + (single - head));
                    at = {first, GROUP, first + 1};
                    elements = 1;
                    single += team.count;
                } else {
                    break;
                }
                Values<T> values = evaluate<T, false, JOINED>(reload().count, at, reload);
                UNROLLED
                for (u32 g = 0; g < GROUPS; ++g) {
                    UNROLLED
                    for (u32 j = 0; j < GROUP; ++j) {
                        if (g * GROUP + j < elements)
                            result = Op::join(result, Op::enter((A)load(values.group[g].lane[j])));
                    }
                }
            }
            result = alone ? warp_reduce(result, join) : block_reduce(result, join);
            if (team.at == 0) {
                const Reduced<To> &given_again = reload_parameters(given);
                given_again.out[index] = store<To>::from(Op::leave(result, given_again.count));
            }
        }
    }
}

// As wide_columns of reduce.hip: `inner` is a multiple of GROUP.
template <class Op, class T, class To> __global__ __launch_bounds__(256) void chain_columns(Reduced<To> given) {
    if constexpr (!ONE_THREAD) {
        using A = compute_t<T>;
        constexpr u32 MOST = 256, SPAN = 64;
        SHARED(A, partial, MOST);
        auto reload = [&]() -> const Chain & { return reload_parameters(given).chain; };
        // All counts are below 2^31, as the number of elements is.
        u32 len = (u32)given.len, inner = (u32)given.inner, parts = (u32)given.parts, wide = inner / GROUP;
        u32 threads = blockDim.x < MOST ? blockDim.x : MOST, across = threads < 32 ? threads : 32;
        while (across > 1 && across / 2 >= wide) across /= 2;
        u32 down = threads / across, group = threadIdx.x / across, lane = threadIdx.x % across;
        u32 blocks = (wide + across - 1) / across;
        for_each_row((u32)given.outer * parts * blocks, [&](u64 item) {
            u32 index = (u32)item / blocks, vector = (u32)item % blocks * across + lane;
            Part part = part_of(index, len, parts);
            u32 begin = (u32)part.begin, end = (u32)part.end, before = (u32)part.outer * len;
            bool mine = group < down && vector < wide;
            A total[GROUP];
            UNROLLED
            for (u32 k = 0; k < GROUP; ++k) total[k] = Op::template identity<A>();
            if (mine) {
                // Four rows, two at a time, while there are so many; then single rows. All go through
                // one call, as above.
                A sum[GROUP], half[GROUP];
                UNROLLED
                for (u32 k = 0; k < GROUP; ++k) sum[k] = Op::template identity<A>();
                u32 summed = 0;
                bool second = false; // whether the first two of four rows are in `half`
                for (u32 i = begin + group; i < end;) {
                    bool two = second || i + 3 * down < end;
                    u32 first = (before + (second ? i + 2 * down : i)) * inner + vector * GROUP;
                    Place at{first, two ? down * inner : GROUP, two ? reload().n : first + GROUP};
                    Values<T> rows = evaluate<T, false, false>(reload().count, at, reload);
                    UNROLLED
                    for (u32 k = 0; k < GROUP; ++k) {
                        A value = Op::enter((A)load(rows.group[0].lane[k]));
                        if (two) value = Op::join(value, Op::enter((A)load(rows.group[1].lane[k])));
                        if (second) value = Op::join(half[k], value);
                        half[k] = value;
                        if (second || !two) sum[k] = Op::join(sum[k], value);
                    }
                    second = two && !second;
                    if (second) continue;
                    i += (two ? 4 : 1) * down;
                    summed += two ? 4 : 1;
                    if (summed < SPAN) continue;
                    summed = 0;
                    UNROLLED
                    for (u32 k = 0; k < GROUP; ++k) {
                        total[k] = Op::join(total[k], sum[k]);
                        sum[k] = Op::template identity<A>();
                    }
                }
                UNROLLED
                for (u32 k = 0; k < GROUP; ++k) {
                    if (summed > 0) total[k] = Op::join(total[k], sum[k]);
                }
            }
            UNROLLED
            for (u32 k = 0; k < GROUP; ++k) {
                if (down > 1) {
                    sync_threads(); // threads may still read the earlier values
                    if (threadIdx.x < MOST) partial[threadIdx.x] = total[k];
                    sync_threads();
                    if (group == 0) {
                        for (u32 g = 1; g < down; ++g) total[k] = Op::join(total[k], partial[g * across + lane]);
                    }
                }
                if (group == 0 && mine) {
                    const Reduced<To> &given_again = reload_parameters(given);
                    To *to = given_again.out + index * inner + vector * GROUP;
                    to[k] = store<To>::from(Op::leave(total[k], given_again.count));
                }
            }
        });
    }
}
