// Scaled dot-product attention in f32, softmax(window(scale q k^T)) v, without mask, bias, softcap
// and dropout. The algorithm is FlashAttention-2's, as in attention.hip, which computes all other
// cases. There a thread has 4 x 4 scores and reads a number from shared memory for every two
// multiply-adds. Here it has 8 x 8, and reads four numbers at once for every 16. Weights are put into
// shared memory STEP keys at a time, beside the values of these keys, so a block needs little of it.
#include "attention_f32.h"

constexpr u32 STEP = 16, QUADS = STEP / WIDTH; // terms of a sum in shared memory

// Whether a block loads the next step's operands while it multiplies, and the terms of a step that it
// multiplies at a time. On an H200, [4, 12, 2048, 64] takes 1.44 ms, and 1.59 ms without both. On AMD
// GPUs other waves fill the time, and registers for the next step would leave fewer waves.
#if COMPILER_NVIDIA
constexpr bool AHEAD = true;
constexpr u32 TOGETHER = 8;
// Whether threads have their places in a zigzag (`place_now`). On an H200, a prototype took 6.94 ms
// for [2, 16, 4096, 128], and 7.43 ms without the zigzag. Nobody has timed teams of 8 with it.
template <u32 TEAM> constexpr bool ZIGZAG = TEAM == 16;
#else
constexpr bool AHEAD = false;
constexpr u32 TOGETHER = 4;
template <u32 TEAM> constexpr bool ZIGZAG = false;
#endif

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

// Adds the products of a step: left[STEP][ROWS] by right[STEP][HALVES * PART].
template <u32 TEAM> DEVICE void multiply(const f32 *left, const f32 *right, Own &sum) {
    u32 place = place_now<TEAM, ZIGZAG<TEAM>>(), row = place / TEAM * WIDTH, column = place % TEAM * WIDTH;
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

// Stores the weights of keys STEP * n .. of the tile as [key][row]. A half or a quarter of the threads
// have them.
template <u32 TEAM> DEVICE void put_weights(const Own &score, u32 n, f32 *to) {
    constexpr u32 OWNERS = STEP / WIDTH, STEPS = TEAM / OWNERS; // threads of a team that have a step; steps of a group
    u32 place = place_now<TEAM, ZIGZAG<TEAM>>(), row = place / TEAM * WIDTH, at = place % TEAM, quad = at % OWNERS;
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
        weigh<TEAM, ZIGZAG<TEAM>>(reload_parameters(given), row0, key0, whole, score, top, sum, sums);
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
    write_rows<TEAM, ZIGZAG<TEAM>>(given, batch, head, row0, top, sum, sums);
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
