// What `attention_f32.hip` and `attention_f32_kept.hip` share: how a block's threads divide a tile,
// the softmax of its scores, and the results.
#pragma once
#include "attention_sequences.h"
#include "prelude.h"
#include "rounded.h"

namespace math {
MATH_FUNCTION(exp2, exp2f, exp2)
MATH_FUNCTION2(fmax, fmaxf, fmax)
} // namespace math

// The kernels' parameters, in their order.
struct Given {
    Shape s;
    View q_at, k_at, v_at;
    const f32 *q, *k, *v;
    f32 scale;
    Window window;
    f32 *out;
    RowSum<f32> *sums; // or null
};

// TEAM neighbouring threads, 8 or 16, have the same 8 rows: two groups of WIDTH neighbours, ROWS /
// 2 apart. A thread's columns are groups of WIDTH neighbours too, PART apart: two of a tile's keys,
// and two or four of its values. So a team of 8 has 64 keys, and one of 16 has 128.
constexpr u32 TEAMS = 16, WIDTH = 4, HALVES = 2, SIZE = HALVES * WIDTH, ROWS = TEAMS * SIZE;
template <u32 TEAM> constexpr u32 THREADS = TEAMS * TEAM;
template <u32 TEAM> constexpr u32 PART = TEAM * WIDTH;
using Quad = Vector<f32, WIDTH>;

DEVICE Quad &quad_at(f32 *x) { return *reinterpret_cast<Quad *>(x); }
DEVICE const Quad &quad_at(const f32 *x) { return *reinterpret_cast<const Quad *>(x); }

// The thread's number, from which each step computes its positions again: they would otherwise stay
// in registers through the loops.
DEVICE u32 thread_now() { return recompute_from((u32)threadIdx.x); }

// The thread's place in its block: place / TEAM is its team, and place % TEAM its number there.
//
// ZIGZAG: bit 1 of the thread's number and the lowest bit of its team's number change places. Then
// a lane's neighbour at distance 1 has the same rows, and the one at distance 2 the same columns.
// NVIDIA's shared memory serves reads of 16 bytes a lane in two passes if all lanes i and i ^ 1, or
// i and i ^ 2, read the same address, else in four.
template <u32 TEAM, bool ZIGZAG> DEVICE u32 place_now() {
    u32 thread = thread_now();
    if (!ZIGZAG) return thread;
    u32 differ = (thread / 2 ^ thread / TEAM) & 1;
    return thread ^ (differ * (2 | TEAM));
}

using Own = f32[SIZE][HALVES][WIDTH]; // a thread's scores of a tile

// The position of a thread's row `i` in the tile.
template <u32 TEAM> DEVICE u32 row_of(u32 place, u32 i) {
    return i / WIDTH * (ROWS / HALVES) + place / TEAM * WIDTH + i % WIDTH;
}

// Combines the values of a team by op; each of its threads gets the result. A team's threads are in
// one warp.
template <u32 TEAM, bool ZIGZAG, class Op> DEVICE void across(f32 (&value)[SIZE], Op op) {
    i32 lane = (i32)(threadIdx.x % (u32)warpSize);
    UNROLLED
    for (i32 distance = (i32)TEAM / 2; distance > 0; distance /= 2) {
        i32 apart = ZIGZAG && distance == 2 ? (i32)TEAM : distance;
        UNROLLED
        for (u32 i = 0; i < SIZE; ++i) value[i] = op(value[i], shuffle(value[i], lane ^ apart));
    }
}

// One instruction instead of a comparison and a select. It drops NaN, but the sum of the row is
// then NaN.
struct Greater {
    DEVICE f32 operator()(f32 a, f32 b) const { return math::fmax(a, b); }
};

// exp(x), where `x` is a difference of scores, and so exact beside the scores' own rounding.
DEVICE f32 power(f32 x) { return math::exp2(x * 1.4426950408889634f); }

// Turns the scores of a tile into weights relative to the rows' greatest scores so far, and scales
// the earlier sums to match. `whole`: whether every query of the tile sees all its keys.
template <u32 TEAM, bool ZIGZAG, u32 GROUPS>
DEVICE void weigh(const Given &g, u32 row0, u32 key0, bool whole, Own &score, f32 (&top)[SIZE], f32 (&sum)[SIZE],
                  f32 (&sums)[SIZE][GROUPS][WIDTH]) {
    f32 peak[SIZE];
    UNROLLED
    for (u32 i = 0; i < SIZE; ++i) {
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) {
                f32 &x = score[i][c][w];
                // Not fused with the subtraction of the greatest, which would leave the product's
                // rounding error.
                x = product(x, g.scale);
            }
        }
    }
    if (!whole) {
        // Read before the comparisons, or each would become a branch around the read.
        const Window window = g.window;
        u32 queries = (u32)g.s.queries, keys = (u32)g.s.keys, place = place_now<TEAM, ZIGZAG>();
        UNROLLED
        for (u32 i = 0; i < SIZE; ++i) {
            u32 query = row0 + row_of<TEAM>(place, i);
            UNROLLED
            for (u32 c = 0; c < HALVES; ++c) {
                UNROLLED
                for (u32 w = 0; w < WIDTH; ++w) {
                    u32 key = key0 + c * PART<TEAM> + place % TEAM * WIDTH + w;
                    score[i][c][w] = select(window.sees(query, key, queries, keys), score[i][c][w], LOWEST<f32>);
                }
            }
        }
    }
    UNROLLED
    for (u32 i = 0; i < SIZE; ++i) {
        peak[i] = top[i];
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) peak[i] = Greater()(peak[i], score[i][c][w]);
        }
    }
    across<TEAM, ZIGZAG>(peak, Greater());
    UNROLLED
    for (u32 i = 0; i < SIZE; ++i) {
        // One row after the other: the comparisons of all exponentials at once would take more
        // scalar registers than there are.
        if (i > 0) peak[i] = recompute_after(sum[i - 1], peak[i]);
        f32 base = base_of(peak[i]), fade = power(top[i] - base);
        top[i] = peak[i];
        sum[i] *= fade;
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) sum[i] += score[i][c][w] = power(score[i][c][w] - base);
        }
        UNROLLED
        for (u32 c = 0; c < GROUPS; ++c) {
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) sums[i][c][w] *= fade;
        }
    }
}

// Divides each row's sums by the sum of its weights, and writes them.
template <u32 TEAM, bool ZIGZAG, u32 GROUPS>
DEVICE void write_rows(const Given &given, u32 batch, u32 head, u32 row0, const f32 (&top)[SIZE], f32 (&sum)[SIZE],
                       const f32 (&sums)[SIZE][GROUPS][WIDTH]) {
    across<TEAM, ZIGZAG>(sum, Plus());
    const Given &g = reload_parameters(given);
    u32 queries = (u32)g.s.queries, values = (u32)g.s.values, place = place_now<TEAM, ZIGZAG>();
    u64 first = ((u64)batch * (u64)g.s.heads + head) * queries;
    UNROLLED
    for (u32 i = 0; i < SIZE; ++i) {
        u32 query = row0 + row_of<TEAM>(place, i);
        if (query >= queries) continue;
        f32 factor = share(sum[i]);
        if (g.sums != nullptr && place % TEAM == 0) g.sums[first + query] = RowSum<f32>{base_of(top[i]), factor};
        UNROLLED
        for (u32 c = 0; c < GROUPS; ++c) {
            u32 column = c * PART<TEAM> + place % TEAM * WIDTH;
            if (column >= values) continue;
            Quad value;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) value.lane[w] = sums[i][c][w] * factor;
            quad_at(g.out + (first + query) * values + column) = value;
        }
    }
}
