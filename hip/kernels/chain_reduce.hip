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

// As reduce_rows, for inner == 1: a block takes a row's part, or a warp if there are enough.
template <class Op, class T, class To> __global__ void chain_rows(Reduced<To> given) {
    if constexpr (!ONE_THREAD) {
        using A = compute_t<T>;
        constexpr u32 WIDTH = LANES<T>;
        constexpr bool JOINED = WIDTH > GROUP;
        auto join = [](A a, A b) { return Op::join(a, b); };
        auto reload = [&]() -> const Chain & { return reload_parameters(given).chain; };
        u32 width = (u32)warpSize, warps = (blockDim.x + width - 1) / width, warp = warp_uniform(threadIdx.x / width);
        u64 all = given.outer * given.parts;
        bool alone = all >= (u64)gridDim.x * warps;
        u32 lanes = blockDim.x - warp * width < width ? blockDim.x - warp * width : width;
        Team team = alone ? Team{threadIdx.x % width, lanes} : whole_block();
        u64 step = alone ? (u64)gridDim.x * warps : gridDim.x;
        for (u64 index = alone ? (u64)blockIdx.x * warps + warp : blockIdx.x; index < all; index += step) {
            Part part = part_of(index, given.len, given.parts);
            u32 begin = (u32)(part.outer * given.len + part.begin), len = (u32)(part.end - part.begin);
            A result = Op::template identity<A>();
            auto take = [&](Place at, u32 elements) {
                Values<T> values = evaluate<T, false, JOINED>(given.chain.count, at, reload);
                UNROLLED
                for (u32 g = 0; g < GROUPS; ++g) {
                    UNROLLED
                    for (u32 j = 0; j < GROUP; ++j) {
                        if (g * GROUP + j < elements)
                            result = Op::join(result, Op::enter((A)load(values.group[g].lane[j])));
                    }
                }
            };
            // for_each_of_row cuts the row at 16-byte boundaries, and the result would begin at one.
            u32 head = begin % WIDTH ? WIDTH - begin % WIDTH : 0;
            if (head > len) head = len;
            u32 tail = len - (len - head) % WIDTH, stride = team.count * WIDTH, i = head + team.at * WIDTH;
            if constexpr (JOINED) {
                for (; i < tail; i += stride) take(Place{begin + i, GROUP, given.chain.n}, WIDTH);
            } else {
                for (; i + stride < tail; i += 2 * stride) take(Place{begin + i, stride, given.chain.n}, 2 * WIDTH);
                if (i < tail) take(Place{begin + i, stride, begin + i + WIDTH}, WIDTH);
            }
            for (u32 j = team.at; j < head + (len - tail); j += team.count) {
                u32 at = begin + (j < head ? j : tail + (j - head));
                take(Place{at, GROUP, at + 1}, 1);
            }
            result = alone ? warp_reduce(result, join) : block_reduce(result, join);
            if (team.at == 0) given.out[index] = store<To>::from(Op::leave(result, given.count));
        }
    }
}

// As wide_columns of reduce.hip: `inner` is a multiple of GROUP.
template <class Op, class T, class To> __global__ void chain_columns(Reduced<To> given) {
    if constexpr (!ONE_THREAD) {
        using A = compute_t<T>;
        constexpr u32 MOST = 256, SPAN = 64;
        SHARED(A, partial, MOST);
        auto reload = [&]() -> const Chain & { return reload_parameters(given).chain; };
        u64 len = given.len, inner = given.inner, parts = given.parts, wide = inner / GROUP;
        u32 threads = blockDim.x < MOST ? blockDim.x : MOST, across = threads < 32 ? threads : 32;
        while (across > 1 && across / 2 >= wide) across /= 2;
        u32 down = threads / across, group = threadIdx.x / across, lane = threadIdx.x % across;
        u64 blocks = (wide + across - 1) / across;
        for_each_row(given.outer * parts * blocks, [&](u64 item) {
            u64 index = item / blocks, vector = item % blocks * across + lane;
            Part part = part_of(index, len, parts);
            bool mine = group < down && vector < wide;
            A total[GROUP];
            UNROLLED
            for (u32 k = 0; k < GROUP; ++k) total[k] = Op::template identity<A>();
            if (mine) {
                auto first = [&](u64 i) { return (u32)((part.outer * len + i) * inner + vector * GROUP); };
                auto enter = [](T v) { return Op::enter((A)load(v)); };
                // The results of row i and of the next one.
                auto two = [&](u64 i) {
                    Place at{first(i), (u32)(down * inner), given.chain.n};
                    return evaluate<T, false, false>(given.chain.count, at, reload);
                };
                u64 i = part.begin + group;
                while (i < part.end) {
                    A sum[GROUP];
                    UNROLLED
                    for (u32 k = 0; k < GROUP; ++k) sum[k] = Op::template identity<A>();
                    u32 n = 0;
                    for (; n < SPAN && i + 3 * down < part.end; n += 4, i += 4 * down) {
                        A four[GROUP];
                        Values<T> rows = two(i);
                        UNROLLED
                        for (u32 k = 0; k < GROUP; ++k)
                            four[k] = Op::join(enter(rows.group[0].lane[k]), enter(rows.group[1].lane[k]));
                        rows = two(i + 2 * down);
                        UNROLLED
                        for (u32 k = 0; k < GROUP; ++k) {
                            A others = Op::join(enter(rows.group[0].lane[k]), enter(rows.group[1].lane[k]));
                            sum[k] = Op::join(sum[k], Op::join(four[k], others));
                        }
                    }
                    for (; n < SPAN && i < part.end; ++n, i += down) {
                        Place at{first(i), GROUP, first(i) + GROUP};
                        Values<T> row = evaluate<T, false, false>(given.chain.count, at, reload);
                        UNROLLED
                        for (u32 k = 0; k < GROUP; ++k) sum[k] = Op::join(sum[k], enter(row.group[0].lane[k]));
                    }
                    UNROLLED
                    for (u32 k = 0; k < GROUP; ++k) total[k] = Op::join(total[k], sum[k]);
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
                if (group == 0 && mine)
                    given.out[index * inner + vector * GROUP + k] = store<To>::from(Op::leave(total[k], given.count));
            }
        });
    }
}
