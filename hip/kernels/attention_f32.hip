// Scaled dot-product attention in f32, softmax(window(scale q k^T)) v, without mask, bias, softcap
// and dropout. The algorithm is FlashAttention-2's, as in attention.hip, which computes all other
// cases. There a thread has 4 x 4 scores and reads a number from shared memory for every two
// multiply-adds. Here it has 8 x 8, and reads four numbers at once for every 16. Weights are put into
// shared memory STEP keys at a time, beside the values of these keys, so a block needs little of it.
#include "attention_sequences.h"
#include "prelude.h"
#include "rounded.h"

namespace math {
MATH_FUNCTION(exp2, exp2f, exp2)
MATH_FUNCTION2(fmax, fmaxf, fmax)
} // namespace math

// The parameters of `attention_f32`, in their order.
struct Given {
    Shape s;
    View q_at, k_at, v_at;
    const f32 *q, *k, *v;
    f32 scale;
    Window window;
    f32 *out;
    RowSum<f32> *sums; // or null
};

// TEAM neighbouring threads, 8 or 16, have the same 8 rows: two groups of WIDTH neighbours, ROWS / 2
// apart. A thread's columns, keys or values, are two groups of WIDTH neighbours too, PART apart. So a
// team of 8 has 64 columns, and one of 16 has 128.
constexpr u32 TEAMS = 16, WIDTH = 4, HALVES = 2, SIZE = HALVES * WIDTH, ROWS = TEAMS * SIZE;
template <u32 TEAM> constexpr u32 THREADS = TEAMS * TEAM;
template <u32 TEAM> constexpr u32 PART = TEAM * WIDTH;
constexpr u32 STEP = 16, QUADS = STEP / WIDTH; // terms of a sum in shared memory

// Whether a block loads the next step's operands while it multiplies, and the terms of a step that it
// multiplies at a time. On an H200, [4, 12, 2048, 64] takes 1.44 ms, and 1.59 ms without both. On AMD
// GPUs other waves fill the time, and registers for the next step would leave fewer waves.
#if COMPILER_NVIDIA
constexpr bool AHEAD = true;
constexpr u32 TOGETHER = 8;
#else
constexpr bool AHEAD = false;
constexpr u32 TOGETHER = 4;
#endif
using Quad = Vector<f32, WIDTH>;

DEVICE Quad &quad_at(f32 *x) { return *reinterpret_cast<Quad *>(x); }
DEVICE const Quad &quad_at(const f32 *x) { return *reinterpret_cast<const Quad *>(x); }

// The thread's number, from which each step computes its positions again: they would otherwise stay
// in registers through the loops.
DEVICE u32 thread_now() { return recompute_from((u32)threadIdx.x); }

// Element [term][place] of a step is stored with its place XORed with this, so that lanes use
// different banks when they write a quad across terms and when they read along places.
DEVICE u32 turn(u32 quad) { return quad * (32 / QUADS); }

// Columns d .. d + STEP of COUNT rows from `row` on, which `store` puts into shared memory as
// [column][row], 0 past `width`. Past the operand's last row, that row is stored again.
template <u32 COUNT, u32 TEAM> struct Across {
    static constexpr u32 ABREAST = THREADS<TEAM> / QUADS, EACH = COUNT / ABREAST;
    Quad own[EACH];
    DEVICE void load(const f32 *from, i64 apart, u32 row, u32 rows, u32 d, u32 width) {
        u32 thread = thread_now(), column = d + thread % QUADS * WIDTH;
        UNROLLED
        for (u32 n = 0; n < EACH; ++n) {
            u32 r = thread / QUADS + n * ABREAST, at = row + r < rows ? row + r : rows - 1;
            own[n] = Quad{};
            if (column < width) own[n] = quad_at(from + (i64)at * apart + column);
        }
    }
    DEVICE void store(f32 *to) const {
        u32 thread = thread_now(), quad = thread % QUADS;
        UNROLLED
        for (u32 n = 0; n < EACH; ++n) {
            u32 r = thread / QUADS + n * ABREAST;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) to[(quad * WIDTH + w) * COUNT + (r ^ turn(quad))] = own[n].lane[w];
        }
    }
};

// Rows `row` .. `row` + STEP of COUNT columns, which `store` puts into shared memory as [row][column],
// 0 outside the operand.
template <u32 COUNT, u32 TEAM> struct Along {
    static constexpr u32 PIECES = COUNT / WIDTH, EACH = STEP * PIECES / THREADS<TEAM>;
    Quad own[EACH];
    DEVICE void load(const f32 *from, i64 apart, u32 row, u32 rows, u32 width) {
        u32 thread = thread_now();
        UNROLLED
        for (u32 n = 0; n < EACH; ++n) {
            u32 i = thread + n * THREADS<TEAM>, r = i / PIECES, column = i % PIECES * WIDTH;
            own[n] = Quad{};
            if (row + r < rows && column < width) {
                const Quad read = quad_at(from + (i64)(row + r) * apart + column);
                // A quad that is only copied as a whole would be copied through scratch.
                UNROLLED
                for (u32 w = 0; w < WIDTH; ++w) own[n].lane[w] = read.lane[w];
            }
        }
    }
    DEVICE void store(f32 *to) const {
        u32 thread = thread_now();
        UNROLLED
        for (u32 n = 0; n < EACH; ++n) {
            u32 i = thread + n * THREADS<TEAM>, r = i / PIECES, column = i % PIECES * WIDTH;
            quad_at(to + r * COUNT + (column ^ turn(r / WIDTH))) = own[n];
        }
    }
};

using Own = f32[SIZE][HALVES][WIDTH]; // what a thread has of a tile

// Adds the products of a step: left[STEP][ROWS] by right[STEP][HALVES * PART].
template <u32 TEAM> DEVICE void multiply(const f32 *left, const f32 *right, Own &sum) {
    u32 thread = thread_now(), row = thread / TEAM * WIDTH, column = thread % TEAM * WIDTH;
    UNROLLED_BY(TOGETHER)
    for (u32 d = 0; d < STEP; ++d) {
        u32 turned = turn(d / WIDTH);
        Quad x[HALVES], y[HALVES];
        UNROLLED
        for (u32 h = 0; h < HALVES; ++h) x[h] = quad_at(left + d * ROWS + h * (ROWS / HALVES) + (row ^ turned));
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) y[c] = quad_at(right + (d * HALVES + c) * PART<TEAM> + (column ^ turned));
        UNROLLED
        for (u32 i = 0; i < SIZE; ++i) {
            UNROLLED
            for (u32 c = 0; c < HALVES; ++c) {
                UNROLLED
                for (u32 w = 0; w < WIDTH; ++w) sum[i][c][w] += x[i / WIDTH].lane[i % WIDTH] * y[c].lane[w];
            }
        }
    }
}

// The position of a thread's row `i` in the tile.
template <u32 TEAM> DEVICE u32 row_of(u32 thread, u32 i) {
    return i / WIDTH * (ROWS / HALVES) + thread / TEAM * WIDTH + i % WIDTH;
}

// Combines the values of a team by op; each of its threads gets the result. A team's threads are
// neighbours in a warp.
template <u32 TEAM, class Op> DEVICE void across(f32 (&value)[SIZE], Op op) {
    i32 lane = (i32)(threadIdx.x % (u32)warpSize);
    UNROLLED
    for (i32 distance = (i32)TEAM / 2; distance > 0; distance /= 2) {
        UNROLLED
        for (u32 i = 0; i < SIZE; ++i) value[i] = op(value[i], shuffle(value[i], lane ^ distance));
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
template <u32 TEAM>
DEVICE void weigh(const Given &g, u32 row0, u32 key0, bool whole, Own &score, f32 (&top)[SIZE], f32 (&sum)[SIZE],
                  Own &sums) {
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
        u32 queries = (u32)g.s.queries, keys = (u32)g.s.keys, thread = thread_now();
        UNROLLED
        for (u32 i = 0; i < SIZE; ++i) {
            u32 query = row0 + row_of<TEAM>(thread, i);
            UNROLLED
            for (u32 c = 0; c < HALVES; ++c) {
                UNROLLED
                for (u32 w = 0; w < WIDTH; ++w) {
                    u32 key = key0 + c * PART<TEAM> + thread % TEAM * WIDTH + w;
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
    across<TEAM>(peak, Greater());
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
        for (u32 c = 0; c < HALVES; ++c) {
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) sums[i][c][w] *= fade;
        }
    }
}

// Stores the weights of keys STEP * n .. of the tile as [key][row]. A half or a quarter of the threads
// have them.
template <u32 TEAM> DEVICE void put_weights(const Own &score, u32 n, f32 *to) {
    constexpr u32 OWNERS = STEP / WIDTH, STEPS = TEAM / OWNERS; // threads of a team that have a step; steps of a group
    u32 thread = thread_now(), row = thread / TEAM * WIDTH, at = thread % TEAM, quad = at % OWNERS;
    if (at / OWNERS != n % STEPS) return;
    UNROLLED
    for (u32 c = 0; c < HALVES; ++c) {
        if (c != n / STEPS) continue; // `n` is no constant for every compiler, and registers have no addresses
        UNROLLED
        for (u32 w = 0; w < WIDTH; ++w) {
            UNROLLED
            for (u32 h = 0; h < HALVES; ++h) {
                Quad value;
                UNROLLED
                for (u32 i = 0; i < WIDTH; ++i) value.lane[i] = score[h * WIDTH + i][c][w];
                quad_at(to + (quad * WIDTH + w) * ROWS + h * (ROWS / HALVES) + (row ^ turn(quad))) = value;
            }
        }
    }
}

template <u32 TEAM> DEVICE void attend(const Given &given, u32 batch, u32 head, u32 row0) {
    constexpr u32 KEYS = HALVES * PART<TEAM>; // of a tile
    SHARED(f32, left_room, STEP * ROWS);
    SHARED(f32, right_room, STEP * KEYS);
    f32 *left = left_room, *right = right_room;
    Own sums = {};
    f32 top[SIZE], sum[SIZE];
    UNROLLED
    for (u32 i = 0; i < SIZE; ++i) {
        top[i] = LOWEST<f32>;
        sum[i] = 0.0f;
    }
    Range seen, by_all; // keys that some query, and that every query of the tile sees
    {
        const Given &g = reload_parameters(given);
        u32 queries = (u32)g.s.queries, keys = (u32)g.s.keys,
            last = row0 + ROWS < queries ? row0 + ROWS - 1 : queries - 1;
        seen = g.window.keys_of(row0, last, queries, keys);
        by_all =
            Range{g.window.keys_of(last, last, queries, keys).begin, g.window.keys_of(row0, row0, queries, keys).end};
    }
    // The operands of a step of scores and of one of sums.
    Across<ROWS, TEAM> some_queries;
    Across<KEYS, TEAM> some_keys;
    Along<KEYS, TEAM> some_values;
    auto load_scores = [&](u32 key0, u32 d) {
        const Given &g = reload_parameters(given);
        i64 shared = shared_head(head, g.s.group);
        u32 width = (u32)g.s.width;
        some_queries.load(g.q + batch * g.q_at.batch + head * g.q_at.head, g.q_at.row, row0, (u32)g.s.queries, d,
                          width);
        some_keys.load(g.k + batch * g.k_at.batch + shared * g.k_at.head, g.k_at.row, key0, (u32)g.s.keys, d, width);
    };
    auto load_values = [&](u32 row) {
        const Given &g = reload_parameters(given);
        i64 shared = shared_head(head, g.s.group);
        some_values.load(g.v + batch * g.v_at.batch + shared * g.v_at.head, g.v_at.row, row, (u32)g.s.keys,
                         (u32)g.s.values);
    };
    u32 first_key = seen.begin / KEYS * KEYS;
    if (AHEAD && first_key < seen.end) load_scores(first_key, 0);
    for (u32 key0 = first_key; key0 < seen.end; key0 += KEYS) {
        Own score = {};
        u32 width = (u32)reload_parameters(given).s.width;
        ROLLED
        for (u32 d = 0; d < width; d += STEP) {
            sync_threads(); // threads may still read what was staged before
            if constexpr (!AHEAD) load_scores(key0, d);
            some_queries.store(left);
            some_keys.store(right);
            sync_threads();
            if constexpr (AHEAD) {
                if (d + STEP < width) load_scores(key0, d + STEP);
                else load_values(key0);
            }
            multiply<TEAM>(left, right, score);
        }
        bool whole = by_all.begin <= key0 && key0 + KEYS <= by_all.end;
        weigh<TEAM>(reload_parameters(given), row0, key0, whole, score, top, sum, sums);
        UNROLLED
        for (u32 n = 0; n < KEYS / STEP; ++n) {
            sync_threads();
            put_weights<TEAM>(score, n, left);
            if constexpr (!AHEAD) load_values(key0 + n * STEP);
            some_values.store(right);
            sync_threads();
            if constexpr (AHEAD) {
                if (n + 1 < KEYS / STEP) load_values(key0 + (n + 1) * STEP);
                else if (key0 + KEYS < seen.end) load_scores(key0 + KEYS, 0);
            }
            multiply<TEAM>(left, right, sums);
        }
    }
    across<TEAM>(sum, Plus());
    const Given &g = reload_parameters(given);
    u32 queries = (u32)g.s.queries, values = (u32)g.s.values, thread = thread_now();
    u64 first = ((u64)batch * (u64)g.s.heads + head) * queries;
    UNROLLED
    for (u32 i = 0; i < SIZE; ++i) {
        u32 query = row0 + row_of<TEAM>(thread, i);
        if (query >= queries) continue;
        f32 factor = share(sum[i]);
        if (g.sums != nullptr && thread % TEAM == 0) g.sums[first + query] = RowSum<f32>{base_of(top[i]), factor};
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            u32 column = c * PART<TEAM> + thread % TEAM * WIDTH;
            if (column >= values) continue;
            Quad value;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) value.lane[w] = sums[i][c][w] * factor;
            quad_at(g.out + (first + query) * values + column) = value;
        }
    }
}

// `out` is packed [pairs, queries, values]. Columns of the operands are contiguous, their other
// strides, their addresses and the numbers of columns are multiples of 4 elements, and there are at
// most 8 TEAM values. Launched with blocks of 16 TEAM threads, for each 128 queries of a pair; any
// number works. Tiles of keys that no query of a tile sees are not read. Each row's RowSum goes to
// sums[pair, query], if that is not null.
template <class F, i32 TEAM>
__global__ __launch_bounds__(16 * TEAM) void attention_f32(Shape s, View q_at, View k_at, View v_at, const F *q,
                                                           const F *k, const F *v, F scale, Window window, F *out,
                                                           RowSum<F> *sums) {
    Given given{s, q_at, k_at, v_at, q, k, v, scale, window, out, sums};
    for_each_row((u64)s.pairs * (((u64)s.queries + ROWS - 1) / ROWS), [=](u64 item) {
        const Given &g = reload_parameters(given);
        // If later queries see more keys, the tiles that take longest begin first.
        const Place at(item, g.s.pairs, (g.s.queries + ROWS - 1) / ROWS, g.window.grows() ? LAST_FIRST : BY_PAIR);
        u32 pair = warp_uniform((u32)at.pair), heads = (u32)g.s.heads, batch = pair / heads;
        attend<(u32)TEAM>(given, batch, pair - batch * heads, warp_uniform((u32)at.tile) * ROWS);
    });
}
