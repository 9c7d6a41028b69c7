// What `attention_f32_backward.hip` and `attention_f32_kept_backward.hip` share: two teams of
// threads, and what happens to a tile between its products.
#pragma once
#include "attention_sequences.h"
#include "prelude.h"
#include "published.h"
#include "rounded.h"

namespace math {
MATH_FUNCTION(exp2, exp2f, exp2)
} // namespace math

// The kernels' parameters, in their order.
struct Given {
    Shape s;
    View q_at, k_at, v_at, grad_at;
    const f32 *q, *k, *v, *grad;
    const RowSum<f32> *sums; // of each row
    const f32 *dots;         // of each row: the product of the output and its gradient
    f32 scale;
    Window window;
    f32 *by_q, *by_k, *by_v; // by_q may be null
    u32 *state;
};

// A tile has SIZE queries and SIZE keys. Two teams of threads share the work. The first computes
// the scores and the values' gradient, the second the weights' gradient and the keys'. Each turns
// PART of the queries' scores into weights, and adds up the queries' gradient over PART of the
// keys. A team is ACROSS x ACROSS threads. A thread has 8 x 8 elements of a tile: two groups of
// WIDTH neighbours in each direction, PART apart.
constexpr u32 ACROSS = 8, TEAM = ACROSS * ACROSS, TEAMS = 2, THREADS = TEAMS * TEAM;
constexpr u32 WIDTH = 4, HALVES = 2, OWN = HALVES * WIDTH, PART = ACROSS * WIDTH, SIZE = HALVES * PART;
constexpr u32 STEP = 16; // terms of the scores that arrive at once
constexpr u32 TILE = SIZE * SIZE;
// The distance between the terms of an operand that is staged transposed. With it, a warp's lanes
// write different banks, if they have two quads of each of 16 rows.
constexpr u32 PITCH = SIZE + WIDTH;
using Quad = Vector<f32, WIDTH>;

DEVICE Quad &quad_at(f32 *x) { return *reinterpret_cast<Quad *>(x); }
DEVICE const Quad &quad_at(const f32 *x) { return *reinterpret_cast<const Quad *>(x); }

// The thread's number, from which each step computes its positions again: they would otherwise stay
// in registers through the loops.
DEVICE u32 thread_now() {
    u32 thread = recompute_from((u32)threadIdx.x);
#if COMPILER_NVIDIA
    asm volatile("" : "+r"(thread)); // as recompute_from
#endif
    return thread;
}
// A warp is part of one team.
DEVICE u32 team_now() { return warp_uniform(shuffle(threadIdx.x / TEAM, 0)); }

// An operand's rows of one batch and head, which span fewer than 2^32 elements.
struct Rows {
    const f32 *from;
    u32 apart, count, width;
};

// The thread's place in its team. ZIGZAG: bits 1 and 3 of its number change places, so that reads
// of shared memory take fewer passes (`place_now` in `attention_f32.h` says why).
template <bool ZIGZAG> DEVICE u32 place_now() {
    u32 thread = thread_now() % TEAM;
    if (!ZIGZAG) return thread;
    u32 differ = (thread / 2 ^ thread / ACROSS) & 1;
    return thread ^ (differ * (2 | ACROSS));
}

// In a tile [key][query], the place of a key's quads is XORed with this, so that lanes that write
// different keys use different banks.
DEVICE u32 turn(u32 key) { return key / WIDTH % ACROSS * WIDTH; }

using Own = f32[OWN][HALVES][WIDTH]; // a thread's part of a tile

// exp(x) for a difference `x` of scores. Its rounding is negligible beside the scores' own.
DEVICE f32 power(f32 x) { return math::exp2(x * 1.4426950408889634f); }

// The place of a thread's quad in a tile [query][key] in shared memory.
template <bool ZIGZAG> DEVICE Quad &tile_at(f32 *tile, u32 h, u32 i, u32 c) {
    u32 thread = place_now<ZIGZAG>(), query = h * PART + thread / ACROSS * WIDTH + i;
    return quad_at(tile + query * SIZE + c * PART + thread % ACROSS * WIDTH);
}

// Hands the other team what it needs: the scores or the weights' gradient of the other half.
template <u32 H, bool ZIGZAG> DEVICE void leave(const Own &value, f32 *tile) {
    UNROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            Quad quad;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) quad.lane[w] = value[(1 - H) * WIDTH + i][c][w];
            tile_at<ZIGZAG>(tile, 1 - H, i, c) = quad;
        }
    }
}

// A half of the tile's queries: `own` are scores in team 0 and gradients of weights in team 1, and
// `weights` has the other's. Stores the weights and the gradients of the products of queries and
// keys, without the scale. `rows` has each query's base, factor and dot. `whole`: whether every
// query of the tile sees all its keys.
template <u32 H, bool ZIGZAG>
DEVICE void weigh(const Given &g, u32 query0, u32 key0, bool whole, const f32 *rows, const Own &own, f32 *weights,
                  f32 *grads) {
    f32 scale = g.scale;
    u32 thread = place_now<ZIGZAG>(), row = H * PART + thread / ACROSS * WIDTH;
    const Quad base = quad_at(rows + row), factor = quad_at(rows + SIZE + row), dot = quad_at(rows + 2 * SIZE + row);
    UNROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            const Quad other = tile_at<ZIGZAG>(weights, H, i, c);
            Quad weight, by_score;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) {
                f32 mine = own[H * WIDTH + i][c][w], score = H == 0 ? mine : other.lane[w],
                    by_weight = H == 0 ? other.lane[w] : mine;
                // Not fused with the subtraction, as in the forward pass.
                weight.lane[w] = power(product(score, scale) - base.lane[i]) * factor.lane[i];
                by_score.lane[w] = weight.lane[w] * (by_weight - dot.lane[i]);
            }
            tile_at<ZIGZAG>(weights, H, i, c) = weight;
            tile_at<ZIGZAG>(grads, H, i, c) = by_score;
        }
    }
    if (whole) return;
    const Window window = g.window;
    u32 queries = (u32)g.s.queries, keys = (u32)g.s.keys;
    ROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        u32 query = query0 + row + i;
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            Quad weight = tile_at<ZIGZAG>(weights, H, i, c), by_score = tile_at<ZIGZAG>(grads, H, i, c);
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) {
                u32 key = key0 + c * PART + thread % ACROSS * WIDTH + w;
                bool seen = query < queries && window.sees(query, key, queries, keys);
                weight.lane[w] = select(seen, weight.lane[w], 0.0f);
                by_score.lane[w] = select(seen, by_score.lane[w], 0.0f);
            }
            tile_at<ZIGZAG>(weights, H, i, c) = weight;
            tile_at<ZIGZAG>(grads, H, i, c) = by_score;
        }
    }
}

// Stores a thread's part of half `h` of a tile [query][key] as [key][query].
template <bool ZIGZAG> DEVICE void turn_tile(f32 *from, u32 h, f32 *to) {
    u32 thread = place_now<ZIGZAG>(), row = h * PART + thread / ACROSS * WIDTH;
    UNROLLED
    for (u32 c = 0; c < HALVES; ++c) {
        Quad along[WIDTH];
        UNROLLED
        for (u32 i = 0; i < WIDTH; ++i) along[i] = tile_at<ZIGZAG>(from, h, i, c);
        UNROLLED
        for (u32 w = 0; w < WIDTH; ++w) {
            Quad across;
            UNROLLED
            for (u32 i = 0; i < WIDTH; ++i) across.lane[i] = along[i].lane[w];
            u32 key = c * PART + thread % ACROSS * WIDTH + w;
            quad_at(to + key * SIZE + (row ^ turn(key))) = across;
        }
    }
}

// Passes the sums of the other half to the other team, whose threads have the same places.
DEVICE f32 *slot(f32 *room, u32 h, u32 i, u32 c) {
    return room + (((h * WIDTH + i) * HALVES + c) * TEAM + thread_now() % TEAM) * WIDTH;
}
template <u32 H> DEVICE void pass(const Own &sum, f32 *room) {
    UNROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            Quad quad;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) quad.lane[w] = sum[(1 - H) * WIDTH + i][c][w];
            quad_at(slot(room, 1 - H, i, c)) = quad;
        }
    }
}
// Adds both teams' sums to a half of the queries' gradient. `first`: whether nothing was added yet.
template <u32 H, bool ZIGZAG>
DEVICE void add_to_queries(const Own &sum, u32 query0, u32 queries, u32 width, u32 d, f32 scale, bool first, f32 *to,
                           f32 *room) {
    u32 thread = place_now<ZIGZAG>(), query = query0 + H * PART + thread / ACROSS * WIDTH,
        column = d + thread % ACROSS * WIDTH;
    f32 *at = to + (u64)query * width + column;
    // All quads are read before the first is written. Otherwise each read would wait for the write
    // before it.
    Quad old[WIDTH][HALVES];
    UNROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            old[i][c] = Quad{};
            if (!first && query + i < queries && column + c * PART < width) {
                const Quad read = quad_at(at + i * width + c * PART);
                UNROLLED
                for (u32 w = 0; w < WIDTH; ++w) old[i][c].lane[w] = read.lane[w];
            }
        }
    }
    UNROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            const Quad other = quad_at(slot(room, H, i, c));
            Quad value;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w)
                value.lane[w] = old[i][c].lane[w] + (sum[H * WIDTH + i][c][w] + other.lane[w]) * scale;
            if (query + i < queries && column + c * PART < width) quad_at(at + i * width + c * PART) = value;
        }
    }
}

// Writes sums [keys][columns] of one team, times `factor`.
template <bool ZIGZAG, u32 GROUPS>
DEVICE void write_keys(const f32 (&sum)[OWN][GROUPS][WIDTH], u32 key0, u32 keys, u32 columns, f32 factor, f32 *to) {
    u32 thread = place_now<ZIGZAG>();
    UNROLLED
    for (u32 i = 0; i < OWN; ++i) {
        u32 key = key0 + i / WIDTH * PART + thread / ACROSS * WIDTH + i % WIDTH;
        UNROLLED
        for (u32 c = 0; c < GROUPS; ++c) {
            u32 column = c * PART + thread % ACROSS * WIDTH;
            if (key >= keys || column >= columns) continue;
            Quad value;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) value.lane[w] = sum[i][c][w] * factor;
            quad_at(to + (u64)key * columns + column) = value;
        }
    }
}

// A batch and head's rows of an operand.
DEVICE Rows rows_of(const f32 *from, const View &at, u32 batch, i64 head, i64 count, i64 width) {
    return Rows{from + batch * at.batch + head * at.head, (u32)at.row, (u32)count, (u32)width};
}
DEVICE Rows queries_of(const Given &g, u32 batch, u32 head, bool grad) {
    return grad ? rows_of(g.grad, g.grad_at, batch, head, g.s.queries, g.s.values)
                : rows_of(g.q, g.q_at, batch, head, g.s.queries, g.s.width);
}
DEVICE Rows keys_of(const Given &g, u32 batch, u32 shared, bool values) {
    return values ? rows_of(g.v, g.v_at, batch, shared, g.s.keys, g.s.values)
                  : rows_of(g.k, g.k_at, batch, shared, g.s.keys, g.s.width);
}

// Clears the gradients of tiles whose queries see no key. In others, the blocks that add to them
// write the zeros.
DEVICE void clear_unseeing(const Given &g, u32 batch, u32 shared) {
    u32 queries = (u32)g.s.queries, width = (u32)g.s.width, group = (u32)g.s.group;
    if (g.by_q == nullptr || !g.window.hides()) return;
    for (u32 query0 = 0; query0 < queries; query0 += SIZE) {
        Range seen = g.window.keys_of(query0, query0 + SIZE - 1, queries, (u32)g.s.keys);
        if (seen.begin < seen.end) continue;
        u32 pieces = (queries - query0 < SIZE ? queries - query0 : SIZE) * width / WIDTH;
        for (u32 head = shared * group; head < (shared + 1) * group; ++head) {
            f32 *to = g.by_q + (((u64)batch * (u64)g.s.heads + head) * queries + query0) * width;
            for (u32 i = threadIdx.x; i < pieces; i += THREADS) quad_at(to + i * WIDTH) = Quad{};
        }
    }
}

// A tile of keys of a head.
struct Item {
    u32 batch, shared, key0;
};
// Takes the block's next item, in the order of keys, and returns whether there is one. Clears the
// gradients that no block adds to. Overwrites the first word of `room`.
DEVICE bool take_item(const Given &given, f32 *room, Item &item) {
    const Given &g = reload_parameters(given);
    sync_threads(); // threads may still read the room
    if (threadIdx.x == 0) room[0] = bit_cast<f32>(atomic_add(g.state, 1u));
    sync_threads();
    u32 taken = warp_uniform(bit_cast<u32>(room[0])), heads = (u32)g.s.heads / (u32)g.s.group,
        pairs = (u32)g.s.pairs / (u32)g.s.group, tile = taken / pairs, pair = taken - tile * pairs;
    if (tile >= ((u32)g.s.keys + SIZE - 1) / SIZE) return false;
    u32 batch = pair / heads;
    item = Item{batch, pair - batch * heads, tile * SIZE};
    if (tile == 0) clear_unseeing(reload_parameters(given), item.batch, item.shared);
    return true;
}

// The blocks of a multiprocessor, or waves of a SIMD, for which the compiler leaves registers. On
// an H200 with [4, 12, 2048, 64], two blocks take 4.20 ms and three, with spills, 4.41 ms.
#if COMPILER_NVIDIA
constexpr u32 RESIDENT = 2;
#else
constexpr u32 RESIDENT = 1;
#endif
