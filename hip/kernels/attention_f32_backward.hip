// The gradients of `attention_f32`: FlashAttention-2's backward pass (Dao 2023, algorithm 2) in one
// kernel, which stores no scores. A block takes a tile of keys through the queries. It keeps the
// gradients of keys and values in registers, and adds to the queries' gradient in memory. Blocks add
// to a tile of queries in the order of their keys: a block waits until the one before it has added,
// so every sum has a fixed order. `attention_backward.hip` computes the other cases. Its two kernels
// compute 7 products of a tile, this one 5.
#include "attention_sequences.h"
#include "prelude.h"
#include "published.h"
#include "rounded.h"

namespace math {
MATH_FUNCTION(exp2, exp2f, exp2)
} // namespace math

// The parameters of `attention_f32_backward`, in their order.
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

// A tile has SIZE queries and SIZE keys. Two teams of threads share the work. The first computes the
// scores and the values' gradient, the second the weights' gradient and the keys'. Each turns PART of
// the queries' scores into weights, and adds up the queries' gradient over PART of the keys. A team is
// ACROSS x ACROSS threads. A thread has 8 x 8 elements of a tile: two groups of WIDTH neighbours in
// each direction, PART apart.
constexpr u32 ACROSS = 8, TEAM = ACROSS * ACROSS, TEAMS = 2, THREADS = TEAMS * TEAM;
constexpr u32 WIDTH = 4, HALVES = 2, OWN = HALVES * WIDTH, PART = ACROSS * WIDTH, SIZE = HALVES * PART;
constexpr u32 STEP = 16, QUADS = STEP / WIDTH; // terms of the scores in shared memory
constexpr u32 TILE = SIZE * SIZE;
// The distance between the terms of an operand that is staged transposed. With it, a warp's lanes write
// different banks, if they have two quads of each of 16 rows.
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

// A team's part of columns d .. d + STEP of SIZE rows from `row` on, which `store` puts into shared
// memory as [column][row], 0 past `width`. Past the operand's last row, that row is stored again.
struct Across {
    static constexpr u32 ABREAST = 2, COUNT = SIZE * QUADS / TEAM; // ABREAST: quads of a row that neighbours load
    Quad own[COUNT];
    static DEVICE u32 quad_of(u32 thread, u32 n) { return thread % ABREAST + n % (QUADS / ABREAST) * ABREAST; }
    static DEVICE u32 row_of(u32 thread, u32 n) { return thread / ABREAST + n / (QUADS / ABREAST) * (TEAM / ABREAST); }
    DEVICE void load(const Rows &rows, u32 row, u32 d) {
        u32 thread = thread_now() % TEAM;
        UNROLLED
        for (u32 n = 0; n < COUNT; ++n) {
            u32 at = row + row_of(thread, n), column = d + quad_of(thread, n) * WIDTH;
            if (at >= rows.count) at = rows.count - 1;
            own[n] = Quad{};
            if (column < rows.width) own[n] = quad_at(rows.from + (at * rows.apart + column));
        }
    }
    DEVICE void store(f32 *to) const {
        u32 thread = thread_now() % TEAM;
        UNROLLED
        for (u32 n = 0; n < COUNT; ++n) {
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w)
                to[(quad_of(thread, n) * WIDTH + w) * PITCH + row_of(thread, n)] = own[n].lane[w];
        }
    }
};

// A team's part of rows `row` .. `row` + TALL and COLUMNS columns from d on, which `store` puts into
// shared memory as [row][column], 0 outside the operand.
template <u32 TALL, u32 COLUMNS> struct Along {
    static constexpr u32 PIECES = COLUMNS / WIDTH, COUNT = TALL * PIECES / TEAM;
    Quad own[COUNT];
    DEVICE void load(const Rows &rows, u32 row, u32 d) {
        u32 thread = thread_now() % TEAM;
        UNROLLED
        for (u32 n = 0; n < COUNT; ++n) {
            u32 i = thread + n * TEAM, at = row + i / PIECES, column = d + i % PIECES * WIDTH;
            own[n] = Quad{};
            if (at < rows.count && column < rows.width) {
                const Quad read = quad_at(rows.from + (at * rows.apart + column));
                // The compiler would copy a whole quad through scratch memory.
                UNROLLED
                for (u32 w = 0; w < WIDTH; ++w) own[n].lane[w] = read.lane[w];
            }
        }
    }
    DEVICE void store(f32 *to) const {
        u32 thread = thread_now() % TEAM;
        UNROLLED
        for (u32 n = 0; n < COUNT; ++n) {
            u32 i = thread + n * TEAM, r = i / PIECES, column = i % PIECES * WIDTH;
            quad_at(to + r * COLUMNS + column) = own[n];
        }
    }
};

// In a tile [key][query], the place of a key's quads is XORed with this, so that lanes that write
// different keys use different banks.
DEVICE u32 turn(u32 key) { return key / WIDTH % ACROSS * WIDTH; }

// Adds the products of COUNT terms: left[COUNT][SIZE] by right[COUNT][GROUPS * PART]. The terms of
// `left` are LONG apart, those of `right` WIDE. TURNED: whether `left` is a tile [key][query].
template <u32 COUNT, u32 LONG, u32 WIDE, bool TURNED, u32 GROUPS>
DEVICE void multiply(const f32 *left, const f32 *right, f32 (&sum)[OWN][GROUPS][WIDTH]) {
    u32 thread = thread_now() % TEAM, row = thread / ACROSS * WIDTH, column = thread % ACROSS * WIDTH;
    // On an H200, [2, 16, 4096, 128] takes 22.6 ms with two terms at a time, and 24.9 ms with four.
    // With 64 features four are fastest.
    constexpr u32 TOGETHER = GROUPS > HALVES ? 2 : 4;
    UNROLLED_BY(TOGETHER)
    for (u32 d = 0; d < COUNT; ++d) {
        u32 place = TURNED ? row ^ turn(d) : row;
        Quad x[HALVES], y[GROUPS];
        UNROLLED
        for (u32 h = 0; h < HALVES; ++h) x[h] = quad_at(left + d * LONG + h * PART + place);
        UNROLLED
        for (u32 c = 0; c < GROUPS; ++c) y[c] = quad_at(right + d * WIDE + c * PART + column);
        UNROLLED
        for (u32 i = 0; i < OWN; ++i) {
            UNROLLED
            for (u32 c = 0; c < GROUPS; ++c) {
                UNROLLED
                for (u32 w = 0; w < WIDTH; ++w) sum[i][c][w] += x[i / WIDTH].lane[i % WIDTH] * y[c].lane[w];
            }
        }
    }
}

using Own = f32[OWN][HALVES][WIDTH]; // a thread's part of a tile

// exp(x) for a difference `x` of scores. Its rounding is negligible beside the scores' own.
DEVICE f32 power(f32 x) { return math::exp2(x * 1.4426950408889634f); }

// The place of a thread's quad in a tile [query][key] in shared memory.
DEVICE Quad &tile_at(f32 *tile, u32 h, u32 i, u32 c) {
    u32 thread = thread_now() % TEAM, query = h * PART + thread / ACROSS * WIDTH + i;
    return quad_at(tile + query * SIZE + c * PART + thread % ACROSS * WIDTH);
}

// Hands the other team what it needs: the scores or the weights' gradient of the other half.
template <u32 H> DEVICE void leave(const Own &value, f32 *tile) {
    UNROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            Quad quad;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) quad.lane[w] = value[(1 - H) * WIDTH + i][c][w];
            tile_at(tile, 1 - H, i, c) = quad;
        }
    }
}

// A half of the tile's queries: `own` are scores in team 0 and gradients of weights in team 1, and
// `weights` has the other's. Stores the weights and the gradients of the products of queries and
// keys, without the scale. `rows` has each query's base, factor and dot. `whole`: whether every query
// of the tile sees all its keys.
template <u32 H>
DEVICE void weigh(const Given &g, u32 query0, u32 key0, bool whole, const f32 *rows, const Own &own, f32 *weights,
                  f32 *grads) {
    f32 scale = g.scale;
    u32 thread = thread_now() % TEAM, row = H * PART + thread / ACROSS * WIDTH;
    const Quad base = quad_at(rows + row), factor = quad_at(rows + SIZE + row), dot = quad_at(rows + 2 * SIZE + row);
    UNROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            const Quad other = tile_at(weights, H, i, c);
            Quad weight, by_score;
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) {
                f32 mine = own[H * WIDTH + i][c][w], score = H == 0 ? mine : other.lane[w],
                    by_weight = H == 0 ? other.lane[w] : mine;
                // Not fused with the subtraction, as in the forward pass.
                weight.lane[w] = power(product(score, scale) - base.lane[i]) * factor.lane[i];
                by_score.lane[w] = weight.lane[w] * (by_weight - dot.lane[i]);
            }
            tile_at(weights, H, i, c) = weight;
            tile_at(grads, H, i, c) = by_score;
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
            Quad weight = tile_at(weights, H, i, c), by_score = tile_at(grads, H, i, c);
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) {
                u32 key = key0 + c * PART + thread % ACROSS * WIDTH + w;
                bool seen = query < queries && window.sees(query, key, queries, keys);
                weight.lane[w] = select(seen, weight.lane[w], 0.0f);
                by_score.lane[w] = select(seen, by_score.lane[w], 0.0f);
            }
            tile_at(weights, H, i, c) = weight;
            tile_at(grads, H, i, c) = by_score;
        }
    }
}

// Stores a thread's part of half `h` of a tile [query][key] as [key][query].
DEVICE void turn_tile(f32 *from, u32 h, f32 *to) {
    u32 thread = thread_now() % TEAM, row = h * PART + thread / ACROSS * WIDTH;
    UNROLLED
    for (u32 c = 0; c < HALVES; ++c) {
        Quad along[WIDTH];
        UNROLLED
        for (u32 i = 0; i < WIDTH; ++i) along[i] = tile_at(from, h, i, c);
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
template <u32 H>
DEVICE void add_to_queries(const Own &sum, u32 query0, u32 queries, u32 width, u32 d, f32 scale, bool first, f32 *to,
                           f32 *room) {
    u32 thread = thread_now() % TEAM;
    UNROLLED
    for (u32 i = 0; i < WIDTH; ++i) {
        u32 query = query0 + H * PART + thread / ACROSS * WIDTH + i;
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            u32 column = d + c * PART + thread % ACROSS * WIDTH;
            if (query >= queries || column >= width) continue;
            const Quad other = quad_at(slot(room, H, i, c));
            f32 *at = to + (u64)query * width + column;
            Quad value = {};
            if (!first) value = quad_at(at);
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) value.lane[w] += (sum[H * WIDTH + i][c][w] + other.lane[w]) * scale;
            quad_at(at) = value;
        }
    }
}

// Writes sums [keys][columns] of one team, times `factor`.
template <u32 GROUPS>
DEVICE void write_keys(const f32 (&sum)[OWN][GROUPS][WIDTH], u32 key0, u32 keys, u32 columns, f32 factor, f32 *to) {
    u32 thread = thread_now() % TEAM;
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

// The floats of shared memory: two tiles, and TALL rows of an operand for each team.
template <u32 PARTS> struct Room {
    static constexpr u32 TALL = PART / PARTS, ROWS = TALL * PARTS * SIZE, FLOATS = 2 * TILE + TEAMS * ROWS;
};

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

// `shared` is a head of keys. PARTS: groups of SIZE features.
template <u32 PARTS> DEVICE void pass_queries(const Given &given, u32 batch, u32 shared, u32 key0, f32 *room) {
    constexpr u32 GROUPS = PARTS * HALVES, TALL = Room<PARTS>::TALL, SLICE = STEP * PITCH;
    u32 team = team_now();
    // First two steps of the scores, and behind them each row's numbers; then two tiles and the rest.
    f32 *first_tile = room, *second_tile = room + TILE, *rest = room + 2 * TILE, *rows = room + 2 * TEAMS * 2 * SLICE;
    static_assert(2 * TEAMS * 2 * SLICE >= 2 * TILE && 2 * TEAMS * 2 * SLICE + 3 * SIZE <= Room<PARTS>::FLOATS,
                  "rows lie in the rest");
    f32 sums[OWN][GROUPS][WIDTH] = {};
    Range seeing = given.window.queries_of(key0, key0 + SIZE - 1, (u32)given.s.queries, (u32)given.s.keys);
    u32 group = (u32)given.s.group;
    for (u32 head = shared * group; head < (shared + 1) * group; ++head) {
        for (u32 query0 = seeing.begin / SIZE * SIZE; query0 < seeing.end; query0 += SIZE) {
            {
                Own score = {};
                {
                    const Given &g = reload_parameters(given);
                    u32 width = (u32)g.s.width, values = (u32)g.s.values, longest = width > values ? width : values;
                    const Rows x = queries_of(g, batch, head, team == 1), y = keys_of(g, batch, shared, team == 1);
                    Across part, other;
                    part.load(x, query0, 0);
                    other.load(y, key0, 0);
                    u32 place = thread_now() % TEAM, query = query0 + place, queries = (u32)g.s.queries;
                    u64 row = ((u64)batch * (u64)g.s.heads + head) * queries + (query < queries ? query : queries - 1);
                    RowSum<f32> row_sum = {};
                    f32 dot = 0.0f;
                    if (team == 0) row_sum = g.sums[row];
                    else dot = g.dots[row];
                    f32 *now = room + team * (2 * SLICE), *next = now + TEAMS * (2 * SLICE);
                    sync_threads(); // threads may still read what was staged before
                    part.store(now);
                    other.store(now + SLICE);
                    if (team == 0) rows[place] = row_sum.base, rows[SIZE + place] = row_sum.factor;
                    else rows[2 * SIZE + place] = dot;
                    sync_threads();
                    for (u32 d = STEP;; d += STEP) {
                        bool more = d < longest;
                        if (more) part.load(x, query0, d);
                        multiply<STEP / 2, PITCH, PITCH, false>(now, now + SLICE, score);
                        if (more) {
                            part.store(next);
                            part.load(y, key0, d);
                        }
                        multiply<STEP / 2, PITCH, PITCH, false>(now + SLICE / 2, now + SLICE + SLICE / 2, score);
                        if (more) part.store(next + SLICE);
                        sync_threads();
                        if (!more) break;
                        f32 *was = now;
                        now = next;
                        next = was;
                    }
                }
                if (team == 0) leave<0>(score, first_tile);
                else leave<1>(score, first_tile);
                sync_threads();
                const Given &g = reload_parameters(given);
                u32 queries = (u32)g.s.queries, keys = (u32)g.s.keys, last = query0 + SIZE - 1;
                bool whole = last < queries && g.window.keys_of(last, last, queries, keys).begin <= key0 &&
                             key0 + SIZE <= g.window.keys_of(query0, query0, queries, keys).end;
                if (team == 0) weigh<0>(g, query0, key0, whole, rows, score, first_tile, second_tile);
                else weigh<1>(g, query0, key0, whole, rows, score, first_tile, second_tile);
            }
            f32 *own_rest = rest + team * Room<PARTS>::ROWS;
            {
                const Rows x = queries_of(reload_parameters(given), batch, head, team == 0);
                const f32 *tile = team == 0 ? first_tile : second_tile;
                ROLLED
                for (u32 n = 0; n < SIZE; n += TALL) {
                    Along<TALL, PARTS * SIZE> part;
                    part.load(x, query0 + n, 0);
                    sync_threads();
                    part.store(own_rest);
                    sync_threads();
                    multiply<TALL, SIZE, PARTS * SIZE, false>(tile + n * SIZE, own_rest, sums);
                }
            }
            u32 tile = query0 / SIZE;
            const Given &g = reload_parameters(given);
            u32 queries = (u32)g.s.queries, width = (u32)g.s.width,
                before = key0 / SIZE - g.window.keys_of(query0, query0 + SIZE - 1, queries, (u32)g.s.keys).begin / SIZE;
            u64 pair = (u64)batch * (u64)g.s.heads + head;
            u32 *added = g.state + 1 + pair * ((queries + SIZE - 1) / SIZE) + tile;
            if (g.by_q == nullptr) continue;
            ROLLED
            for (u32 d = 0; d < width; d += SIZE) {
                const Rows k = keys_of(g, batch, shared, false);
                Own sum = {};
                Along<PART, SIZE> part;
                part.load(k, key0 + team * PART, d);
                sync_threads();
                if (d == 0) turn_tile(second_tile, team, first_tile);
                part.store(rest + team * (TILE / TEAMS));
                sync_threads();
                multiply<PART, SIZE, SIZE, true>(first_tile + team * (TILE / TEAMS), rest + team * (TILE / TEAMS), sum);
                if (team == 0) pass<0>(sum, second_tile);
                else pass<1>(sum, second_tile);
                if (d == 0 && threadIdx.x == 0) {
                    while (published_word(added) != before) give_way();
                    published_with_memory(added);
                }
                sync_threads();
                f32 *to = g.by_q + pair * queries * width;
                if (team == 0) add_to_queries<0>(sum, query0, queries, width, d, g.scale, before == 0, to, second_tile);
                else add_to_queries<1>(sum, query0, queries, width, d, g.scale, before == 0, to, second_tile);
            }
            finish_writes();
            sync_threads();
            if (threadIdx.x == 0) publish_with_memory(added, before + 1);
        }
    }
    const Given &g = reload_parameters(given);
    u32 keys = (u32)g.s.keys, heads = (u32)g.s.heads / group;
    u64 first = ((u64)batch * heads + shared) * keys;
    if (team == 0) write_keys(sums, key0, keys, (u32)g.s.values, 1.0f, g.by_v + first * (u64)g.s.values);
    else write_keys(sums, key0, keys, (u32)g.s.width, g.scale, g.by_k + first * (u64)g.s.width);
}

// The blocks of a multiprocessor, or waves of a SIMD, for which the compiler leaves registers. On an
// H200 with [4, 12, 2048, 64], two blocks take 4.20 ms and three, with spills, 4.41 ms.
#if COMPILER_NVIDIA
constexpr u32 RESIDENT = 2;
#else
constexpr u32 RESIDENT = 1;
#endif

// The gradients of queries [pairs, queries, width], keys [pairs / group, keys, width] and values
// [pairs / group, keys, values], packed; those of keys and values are summed over the heads of a
// group in their order. `by_q` may be null. Columns of the operands are contiguous,
// their other strides, their addresses and the numbers of columns are multiples of 4 elements,
// and there are at most 64 * PARTS features and values; a pair spans fewer than 2^32 elements.
// `state` has a word, and one for every 64 queries of a pair, all 0. Launched with blocks of 128
// threads; any number works.
template <class F, i32 PARTS>
__global__ __launch_bounds__(128, RESIDENT) void attention_f32_backward(
    Shape s, View q_at, View k_at, View v_at, View grad_at, const F *q, const F *k, const F *v, const F *grad,
    const RowSum<F> *sums, const F *dots, F scale, Window window, F *by_q, F *by_k, F *by_v, u32 *state) {
    Given given{s, q_at, k_at, v_at, grad_at, q, k, v, grad, sums, dots, scale, window, by_q, by_k, by_v, state};
    SHARED(f32, whole_room, Room<PARTS>::FLOATS);
    f32 *room = whole_room;
    while (true) {
        const Given &g = reload_parameters(given);
        sync_threads(); // threads may still read the room
        if (threadIdx.x == 0) room[0] = bit_cast<f32>(atomic_add(g.state, 1u));
        sync_threads();
        u32 item = warp_uniform(bit_cast<u32>(room[0])), heads = (u32)g.s.heads / (u32)g.s.group,
            pairs = (u32)g.s.pairs / (u32)g.s.group, tile = item / pairs, pair = item - tile * pairs;
        if (tile >= ((u32)g.s.keys + SIZE - 1) / SIZE) return;
        u32 batch = pair / heads;
        if (tile == 0) clear_unseeing(reload_parameters(given), batch, pair - batch * heads);
        pass_queries<PARTS>(given, batch, pair - batch * heads, tile * SIZE, room);
    }
}
