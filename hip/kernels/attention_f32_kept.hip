// `attention_f32` for heads of 65 to 128 features, with more shared memory. A block keeps its queries
// there, so it stores them once and not again for each tile of keys. Keys and values arrive by
// copies that run while the block multiplies. The weights of a whole tile lie in shared memory too.
// The warp that writes a weight is the only one that reads it, so blocks need barriers only for
// copies. Two blocks of four warps share a multiprocessor: one multiplies while the other waits.
//
// The kernel is for NVIDIA GPUs with such copies (cp.async), and lockstep tests it. Elsewhere it is
// empty. AMD's compute units have 64 KB of shared memory, or 160 KB (gfx950), too little for two
// blocks, and nobody has timed it there.
#include "attention_f32.h"
#include "matrix_cores.h"

constexpr u32 TEAM = 8, KEYS = HALVES * PART<TEAM>; // threads of a team, keys of a tile
constexpr u32 FEATURES = 128, GROUPS = FEATURES / PART<TEAM>;
// What arrives at once is a stage: DEPTH features of the tile's keys, or TALL keys' values.
constexpr u32 DEPTH = 32, TALL = 16, STAGES = 2;
// The distance between the features of keys in a stage. With it, lanes that copy 8 features of 4
// keys write different banks.
constexpr u32 PITCH = KEYS + WIDTH;
constexpr u32 STAGE = DEPTH * PITCH;
static_assert(TALL * FEATURES <= STAGE, "values fit too");
// The floats of shared memory: queries, weights and stages.
constexpr u32 FLOATS = FEATURES * ROWS + KEYS * ROWS + STAGES * STAGE;
static_assert(FLOATS * sizeof(f32) == 115712, "the host gives as much");
// Terms of a sum that are multiplied without a branch.
constexpr u32 TOGETHER = 8;

// The blocks of a multiprocessor. On an H200, a prototype took 6.33 ms for [2, 16, 4096, 128]. With
// teams of 16 and one block it took 6.48 to 6.61 ms. With three stages of half the size it took
// 6.37 ms.
constexpr u32 RESIDENT = 2;

// The place of row `r` among the weights of a quad of keys is r ^ turn(quad), so that lanes that
// write different keys use different banks.
DEVICE u32 turn(u32 quad) { return ((quad & 1) * 2 | (quad & 4)) * WIDTH; }

// Waits for the other lanes of the warp. What they wrote to shared memory is then visible.
DEVICE void sync_warp() {
#if COMPILER_NVIDIA
    __syncwarp();
#else
    shuffle(0u, 0);
#endif
}

// The thread's number, for positions that NVIDIA's compiler would otherwise keep in registers
// through the loops, where they spill.
DEVICE u32 fresh_thread() {
    u32 thread = thread_now();
#if COMPILER_NVIDIA
    asm volatile("" : "+r"(thread));
#endif
    return thread;
}

// Copies features d .. d + DEPTH of KEYS keys from `key` on, as [feature][key]: 0 past `width`.
// Past the last key, that key is copied again. Lanes take 8 features of 4 keys.
DEVICE void copy_keys(const f32 *from, i64 apart, u32 key, u32 keys, u32 d, u32 width, f32 *to) {
    constexpr u32 WIDE = 8, ABREAST = THREADS<TEAM> / WIDE, EACH = KEYS / ABREAST;
    u32 thread = fresh_thread(), column = thread % WIDE, first = thread / WIDE;
    to += column * PITCH + first;
    if (key + KEYS <= keys && d + DEPTH <= width) {
        const f32 *row = from + (i64)(key + first) * apart + d + column;
        UNROLLED
        for (u32 n = 0; n < EACH; ++n) {
            UNROLLED
            for (u32 c = 0; c < DEPTH; c += WIDE) cores::copy_value(to + c * PITCH + n * ABREAST, row + c, true);
            row += apart * ABREAST;
        }
        return;
    }
    UNROLLED
    for (u32 n = 0; n < EACH; ++n) {
        u32 r = first + n * ABREAST, at = key + r < keys ? key + r : keys - 1;
        const f32 *row = from + (i64)at * apart + d + column;
        UNROLLED
        for (u32 c = 0; c < DEPTH; c += WIDE)
            cores::copy_value(to + c * PITCH + n * ABREAST, row + c, d + c + column < width);
    }
}

// Copies TALL keys' values from `key` on, as [key][feature], 0 outside.
DEVICE void copy_values(const f32 *from, i64 apart, u32 key, u32 keys, u32 width, f32 *to) {
    constexpr u32 PIECES = FEATURES / WIDTH, ABREAST = THREADS<TEAM> / PIECES, EACH = TALL / ABREAST;
    static_assert(EACH * THREADS<TEAM> == TALL * PIECES, "no thread is left over");
    u32 thread = fresh_thread(), column = thread % PIECES * WIDTH, first = thread / PIECES;
    const f32 *row = from + (i64)(key + first) * apart + column;
    to += first * FEATURES + column;
    bool whole = key + TALL <= keys && width == FEATURES;
    UNROLLED
    for (u32 n = 0; n < EACH; ++n) {
        bool inside = whole || (key + first + n * ABREAST < keys && column < width);
        cores::copy_piece(to + n * ABREAST * FEATURES, row, inside);
        row += apart * ABREAST;
    }
}

// Stores the tile's queries, as [feature][row], 0 past `width`. Past the last query, that query is
// stored again.
DEVICE void keep_queries(const f32 *from, i64 apart, u32 row, u32 rows, u32 width, f32 *to) {
    constexpr u32 ABREAST = THREADS<TEAM> / ROWS;
    u32 thread = fresh_thread(), r = thread % ROWS, at = row + r < rows ? row + r : rows - 1;
    UNROLLED_BY(8)
    for (u32 quad = thread / ROWS; quad < FEATURES / WIDTH; quad += ABREAST) {
        Quad value = {};
        if (quad * WIDTH < width) value = quad_at(from + (i64)at * apart + quad * WIDTH);
        UNROLLED
        for (u32 w = 0; w < WIDTH; ++w) to[(quad * WIDTH + w) * ROWS + r] = value.lane[w];
    }
}

// Adds the products of COUNT terms: left[COUNT][ROWS] by right[COUNT][LONG]. TURNED: whether `left`
// are weights, from key `first` on. A term's operands are read while the one before is multiplied.
template <u32 COUNT, u32 LONG, bool TURNED, u32 OWNED>
DEVICE void multiply(const f32 *left, const f32 *right, u32 first, f32 (&sum)[SIZE][OWNED][WIDTH]) {
    static_assert(COUNT % TOGETHER == 0 && TOGETHER % (2 * WIDTH) == 0, "as turn() below needs");
    u32 place = place_now<TEAM, true>(), row = place / TEAM * WIDTH, column = place % TEAM * WIDTH;
    Quad x[2][HALVES], y[2][OWNED];
    auto fetch = [&](const f32 *l, const f32 *r, u32 to) {
        UNROLLED
        for (u32 h = 0; h < HALVES; ++h) x[to][h] = quad_at(l + h * (ROWS / HALVES));
        UNROLLED
        for (u32 c = 0; c < OWNED; ++c) y[to][c] = quad_at(r + c * PART<TEAM>);
    };
    right += column;
    fetch(left + (TURNED ? row ^ turn(first / WIDTH) : row), right, 0);
    ROLLED
    for (u32 d = 0; d < COUNT; d += TOGETHER) {
        UNROLLED
        for (u32 u = 0; u < TOGETHER; ++u) {
            if (u + 1 < TOGETHER || d + TOGETHER < COUNT) {
                // turn(a + b) is turn(a) ^ turn(b), because `a` is even and `b` is 0 or 1.
                u32 next = d + u + 1, a = u + 1 < TOGETHER ? d : d + TOGETHER;
                u32 at = TURNED ? row ^ turn((first + a) / WIDTH) ^ turn((next - a) / WIDTH) : row;
                fetch(left + next * ROWS + at, right + next * LONG, (u + 1) % 2);
            }
            UNROLLED
            for (u32 i = 0; i < SIZE; ++i) {
                UNROLLED
                for (u32 c = 0; c < OWNED; ++c) {
                    UNROLLED
                    for (u32 w = 0; w < WIDTH; ++w)
                        sum[i][c][w] += x[u % 2][i / WIDTH].lane[i % WIDTH] * y[u % 2][c].lane[w];
                }
            }
        }
    }
}

// Stores a tile's weights as [key][row]. Only threads of the same warp read them.
DEVICE void put_weights(const Own &score, f32 *to) {
    u32 place = place_now<TEAM, true>(), row = place / TEAM * WIDTH, at = place % TEAM;
    UNROLLED
    for (u32 c = 0; c < HALVES; ++c) {
        u32 quad = c * TEAM + at;
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

DEVICE void attend(const Given &g, u32 batch, u32 head, u32 row0, f32 *room) {
    constexpr u32 VALUE_PARTS = KEYS / TALL; // stages of a tile's values
    f32 *const kept = room, *const weights = kept + FEATURES * ROWS, *const stages = weights + KEYS * ROWS;
    f32 sums[SIZE][GROUPS][WIDTH] = {};
    f32 top[SIZE], sum[SIZE];
    UNROLLED
    for (u32 i = 0; i < SIZE; ++i) {
        top[i] = LOWEST<f32>;
        sum[i] = 0.0f;
    }
    u32 queries = (u32)g.s.queries, keys = (u32)g.s.keys, width = (u32)g.s.width, values = (u32)g.s.values;
    Range seen, by_all; // keys that some query, and that every query of the tile sees
    {
        u32 last = row0 + ROWS < queries ? row0 + ROWS - 1 : queries - 1;
        seen = g.window.keys_of(row0, last, queries, keys);
        by_all =
            Range{g.window.keys_of(last, last, queries, keys).begin, g.window.keys_of(row0, row0, queries, keys).end};
    }
    i64 shared = shared_head(head, g.s.group);
    const f32 *k = g.k + batch * g.k_at.batch + shared * g.k_at.head,
              *v = g.v + batch * g.v_at.batch + shared * g.v_at.head;
    u32 parts = (width + DEPTH - 1) / DEPTH, first_key = seen.begin / KEYS * KEYS; // parts: stages of a tile's keys
    // What is copied next: a tile's keys, and then its values.
    u32 next_key0 = first_key, next_part = 0, next_place = 0, place = 0;
    auto copy_next = [&]() {
        if (next_key0 < seen.end) {
            f32 *to = stages + next_place * STAGE;
            if (next_part < parts) copy_keys(k, g.k_at.row, next_key0, keys, next_part * DEPTH, width, to);
            else copy_values(v, g.v_at.row, next_key0 + (next_part - parts) * TALL, keys, values, to);
            if (++next_part == parts + VALUE_PARTS) next_part = 0, next_key0 += KEYS;
            if (++next_place == STAGES) next_place = 0;
        }
        cores::end_copies();
    };
    // Waits for the next stage. The one before it is then free, and gets the next copy.
    auto arrived = [&]() {
        cores::wait_for_copies<STAGES - 2>();
        sync_threads();
        copy_next();
        const f32 *at = stages + place * STAGE;
        if (++place == STAGES) place = 0;
        return at;
    };
    sync_threads(); // threads may still read what was stored before
    UNROLLED
    for (u32 n = 0; n < STAGES - 1; ++n) copy_next();
    keep_queries(g.q + batch * g.q_at.batch + head * g.q_at.head, g.q_at.row, row0, queries, width, kept);
    for (u32 key0 = first_key; key0 < seen.end; key0 += KEYS) {
        {
            Own score = {};
            ROLLED
            for (u32 n = 0; n < parts; ++n) {
                const f32 *at = arrived();
                multiply<DEPTH, PITCH, false>(kept + n * DEPTH * ROWS, at, 0, score);
            }
            bool whole = by_all.begin <= key0 && key0 + KEYS <= by_all.end;
            weigh<TEAM, true>(g, row0, key0, whole, score, top, sum, sums);
            sync_warp(); // lanes may still read the weights before
            put_weights(score, weights);
            sync_warp();
        }
        ROLLED
        for (u32 n = 0; n < VALUE_PARTS; ++n) {
            const f32 *at = arrived();
            multiply<TALL, FEATURES, true>(weights + n * TALL * ROWS, at, n * TALL, sums);
        }
    }
    cores::wait_for_copies<0>();
    write_rows<TEAM, true>(g, batch, head, row0, top, sum, sums);
}

// As `attention_f32`, for at most 128 features of queries, keys and values. Launched with blocks of
// 128 threads, for each 128 queries of a pair, and with FLOATS of shared memory; any number of
// blocks works.
template <class F>
__global__ __launch_bounds__(128, RESIDENT) void attention_f32_kept(Shape s, View q_at, View k_at, View v_at,
                                                                    const F *q, const F *k, const F *v, F scale,
                                                                    Window window, F *out, RowSum<F> *sums) {
#if CORES_MMA || CORES_EMULATED
    Given given{s, q_at, k_at, v_at, q, k, v, scale, window, out, sums};
    GIVEN_SHARED(Quad, quads);
    f32 *room = reinterpret_cast<f32 *>(quads);
    for_each_row((u64)s.pairs * (((u64)s.queries + ROWS - 1) / ROWS), [=](u64 item) {
        const Given &g = reload_parameters(given);
        // If later queries see more keys, the tiles that take longest begin first.
        const Place at(item, g.s.pairs, (g.s.queries + ROWS - 1) / ROWS, g.window.grows() ? LAST_FIRST : BY_PAIR);
        u32 pair = warp_uniform((u32)at.pair), heads = (u32)g.s.heads, batch = pair / heads;
        attend(given, batch, pair - batch * heads, warp_uniform((u32)at.tile) * ROWS, room);
    });
#endif
}
