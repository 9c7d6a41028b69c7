// `attention_f32_backward` for heads of 65 to 128 features, with more shared memory. A block keeps its
// keys and values there, so it stores them once and not again for each tile of queries. The
// products that give the scores and the queries' gradient read the same copy of the keys. Queries
// and the output's gradient arrive by copies that run while the block multiplies. Every sum has the
// order that it has in `attention_f32_backward`, so the bits are the same. Empty where
// `attention_f32_kept` is.
#include "attention_f32_backward.h"
#include "matrix_cores.h"

constexpr u32 FEATURES = 128, GROUPS = FEATURES / PART;
constexpr u32 KEPT = FEATURES * SIZE; // floats of a team's keys or values
constexpr u32 TALL = 8;               // rows of queries or gradients that arrive at once for a team's sums
constexpr u32 STAGE = STEP * PITCH, STAGES = 3;
constexpr u32 REST = 2 * TALL * FEATURES; // a team's two stages of rows
// The floats of shared memory: keys and values, two tiles, stages, and each row's numbers.
constexpr u32 FLOATS = TEAMS * KEPT + 2 * TILE + TEAMS * REST + 3 * SIZE;
static_assert(FLOATS * sizeof(f32) == 115456, "the host gives as much");
static_assert(STAGE <= REST && STAGES * STAGE <= TILE, "stages of scores fit");
// Terms of a sum that are multiplied without a branch. On an H200, a prototype took 19.5 ms for
// [2, 16, 4096, 128], and 19.9 ms with four terms whose operands are not read one term ahead.
constexpr u32 TOGETHER = 8;

// Kept keys and values lie as [feature][key], with the place of a key XORed with this. So lanes use
// different banks when they read along keys and when they read along features.
DEVICE u32 turned(u32 feature) { return feature / WIDTH % ACROSS * WIDTH; }

// Stores all features of a team's keys or values, 0 past their width. Past the last row, that row
// is stored again.
DEVICE void keep(const Rows &rows, u32 row, f32 *to) {
    u32 r = thread_now() % TEAM, at = row + r < rows.count ? row + r : rows.count - 1;
    UNROLLED_BY(8)
    for (u32 quad = 0; quad < FEATURES / WIDTH; ++quad) {
        Quad value = {};
        if (quad * WIDTH < rows.width) value = quad_at(rows.from + (at * rows.apart + quad * WIDTH));
        UNROLLED
        for (u32 w = 0; w < WIDTH; ++w) to[(quad * WIDTH + w) * SIZE + (r ^ turned(quad * WIDTH))] = value.lane[w];
    }
}

// Copies columns d .. d + STEP of SIZE rows from `row` on, as [column][row]: 0 past the width. Past
// the last row, that row is copied again. Lanes take 8 columns of 4 rows.
DEVICE void copy_across(const Rows &rows, u32 row, u32 d, f32 *to) {
    constexpr u32 WIDE = 8, ABREAST = TEAM / WIDE;
    static_assert(STEP == 2 * WIDE, "a lane takes two columns");
    u32 thread = thread_now() % TEAM, column = thread % WIDE, first = thread / WIDE;
    const f32 *from = rows.from + d + column;
    to += column * PITCH + first;
    if (row + SIZE <= rows.count && d + STEP <= rows.width) {
        const f32 *place = from + (row + first) * rows.apart;
        u64 apart = ABREAST * (u64)rows.apart;
        UNROLLED
        for (u32 n = 0; n < SIZE; n += ABREAST) {
            cores::copy_value(to + n, place, true);
            cores::copy_value(to + WIDE * PITCH + n, place + WIDE, true);
            place += apart;
        }
        return;
    }
    bool inside = d + column < rows.width, inside_next = d + WIDE + column < rows.width;
    UNROLLED
    for (u32 n = 0; n < SIZE; n += ABREAST) {
        u32 at = row + first + n;
        if (at >= rows.count) at = rows.count - 1;
        const f32 *place = from + at * rows.apart;
        cores::copy_value(to + n, place, inside);
        cores::copy_value(to + WIDE * PITCH + n, place + WIDE, inside_next);
    }
}

// Copies TALL rows from `row` on, as [row][feature], 0 outside the operand.
DEVICE void copy_along(const Rows &rows, u32 row, f32 *to) {
    constexpr u32 PIECES = FEATURES / WIDTH, ABREAST = TEAM / PIECES;
    u32 thread = thread_now() % TEAM, column = thread % PIECES * WIDTH;
    UNROLLED
    for (u32 n = 0; n < TALL / ABREAST; ++n) {
        u32 r = thread / PIECES + n * ABREAST, at = row + r;
        bool inside = at < rows.count && column < rows.width;
        cores::copy_piece(to + r * FEATURES + column, rows.from + (at * rows.apart + column), inside);
    }
}

// Adds the products of COUNT terms: left[COUNT][SIZE] by right[COUNT][OWNED * PART]. The terms of
// `left` are LONG apart, those of `right` WIDE. KEEPS: whether `right` is what `keep` stored, from
// feature `first` on. A term's operands are read while the one before is multiplied.
template <u32 COUNT, u32 LONG, u32 WIDE, bool KEEPS, u32 OWNED>
DEVICE void multiply(const f32 *left, const f32 *right, u32 first, f32 (&sum)[OWN][OWNED][WIDTH]) {
    u32 place = place_now<true>(), row = place / ACROSS * WIDTH, column = place % ACROSS * WIDTH;
    Quad x[2][HALVES], y[2][OWNED];
    left += row;
    // turned(first + from + u) is turned(first + from) ^ turned(u), because `from` is a multiple of
    // TOGETHER, and `u` is less.
    auto fetch = [&](u32 from, u32 u, u32 to) {
        UNROLLED
        for (u32 h = 0; h < HALVES; ++h) x[to][h] = quad_at(left + (from + u) * LONG + h * PART);
        u32 at = KEEPS ? column ^ turned(first + from) ^ turned(u) : column;
        UNROLLED
        for (u32 c = 0; c < OWNED; ++c) y[to][c] = quad_at(right + (from + u) * WIDE + c * PART + at);
    };
    fetch(0, 0, 0);
    ROLLED
    for (u32 from = 0; from < COUNT; from += TOGETHER) {
        UNROLLED
        for (u32 u = 0; u < TOGETHER; ++u) {
            if (u + 1 < TOGETHER) fetch(from, u + 1, (u + 1) % 2);
            else if (from + TOGETHER < COUNT) fetch(from + TOGETHER, 0, (u + 1) % 2);
            UNROLLED
            for (u32 i = 0; i < OWN; ++i) {
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

// Adds the products of PART keys for SIZE features of the queries' gradient: left[PART][SIZE], a
// tile [key][query], by the kept keys from `key` and `feature` on. A quad of these has four keys.
DEVICE void multiply_by_kept(const f32 *left, const f32 *kept, u32 key, u32 feature, Own &sum) {
    u32 place = place_now<true>(), row = place / ACROSS * WIDTH, column = place % ACROSS * WIDTH;
    const f32 *right = kept + (feature + column) * SIZE;
    ROLLED
    for (u32 k = 0; k < PART; k += WIDTH) {
        u32 right_at = (key + k) ^ column, left_at = row ^ turn(k); // turned(column) is `column`
        Quad y[HALVES][WIDTH];
        UNROLLED
        for (u32 c = 0; c < HALVES; ++c) {
            UNROLLED
            for (u32 w = 0; w < WIDTH; ++w) y[c][w] = quad_at(right + (c * PART + w) * SIZE + right_at);
        }
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            Quad x[HALVES];
            UNROLLED
            for (u32 h = 0; h < HALVES; ++h) x[h] = quad_at(left + (k + j) * SIZE + h * PART + left_at);
            UNROLLED
            for (u32 i = 0; i < OWN; ++i) {
                UNROLLED
                for (u32 c = 0; c < HALVES; ++c) {
                    UNROLLED
                    for (u32 w = 0; w < WIDTH; ++w) sum[i][c][w] += x[i / WIDTH].lane[i % WIDTH] * y[c][w].lane[j];
                }
            }
        }
    }
}

// `shared` is a head of keys.
DEVICE void pass_queries(const Given &g, u32 batch, u32 shared, u32 key0, f32 *room) {
    u32 team = team_now();
    f32 *kept = room, *first_tile = room + TEAMS * KEPT, *second_tile = first_tile + TILE, *rest = second_tile + TILE,
        *rows = rest + TEAMS * REST;
    f32 *own_kept = kept + team * KEPT, *own_stages = first_tile + team * TILE, *own_rest = rest + team * REST;
    f32 sums[OWN][GROUPS][WIDTH] = {};
    u32 queries = (u32)g.s.queries, keys = (u32)g.s.keys, width = (u32)g.s.width, values = (u32)g.s.values;
    Range seeing = g.window.queries_of(key0, key0 + SIZE - 1, queries, keys);
    u32 group = (u32)g.s.group, first_query = seeing.begin / SIZE * SIZE,
        steps = ((width > values ? width : values) + STEP - 1) / STEP;
    // Step 0 of the scores lies in the team's rest, because it arrives while the tiles are in use.
    // The other steps lie in stages, which share their memory with the tiles.
    auto stage_of = [&](u32 step) { return step == 0 ? own_rest : own_stages + (step - 1) % STAGES * STAGE; };
    auto copy_scores = [&](u32 head, u32 query0, u32 step) {
        if (step < steps) copy_across(queries_of(g, batch, head, team == 1), query0, step * STEP, stage_of(step));
        cores::end_copies();
    };
    auto copy_rows = [&](u32 head, u32 query0, u32 n) {
        if (n < SIZE / TALL)
            copy_along(queries_of(g, batch, head, team == 0), query0 + n * TALL, own_rest + n % 2 * (TALL * FEATURES));
        cores::end_copies();
    };
    sync_threads(); // threads may still read the room
    if (seeing.begin < seeing.end) {
        copy_scores(shared * group, first_query, 0);
        keep(keys_of(g, batch, shared, team == 1), key0, own_kept);
    }
    for (u32 head = shared * group; head < (shared + 1) * group; ++head) {
        for (u32 query0 = first_query; query0 < seeing.end; query0 += SIZE) {
            copy_scores(head, query0, 1);
            copy_scores(head, query0, 2);
            {
                Own score = {};
                {
                    u32 place = thread_now() % TEAM, query = query0 + place;
                    u64 row = ((u64)batch * (u64)g.s.heads + head) * queries + (query < queries ? query : queries - 1);
                    if (team == 0) {
                        RowSum<f32> row_sum = g.sums[row];
                        rows[place] = row_sum.base, rows[SIZE + place] = row_sum.factor;
                    } else rows[2 * SIZE + place] = g.dots[row];
                }
                ROLLED
                for (u32 step = 0; step < steps; ++step) {
                    if (step == 0) cores::wait_for_copies<2>();
                    else cores::wait_for_copies<1>();
                    sync_threads();
                    if (step > 0) copy_scores(head, query0, step + 2);
                    multiply<STEP, PITCH, SIZE, true>(stage_of(step), own_kept + step * STEP * SIZE, step * STEP,
                                                      score);
                }
                sync_threads(); // stages and rest are free
                copy_rows(head, query0, 0);
                if (team == 0) leave<0, true>(score, first_tile);
                else leave<1, true>(score, first_tile);
                sync_threads();
                u32 last = query0 + SIZE - 1;
                bool whole = last < queries && g.window.keys_of(last, last, queries, keys).begin <= key0 &&
                             key0 + SIZE <= g.window.keys_of(query0, query0, queries, keys).end;
                if (team == 0) weigh<0, true>(g, query0, key0, whole, rows, score, first_tile, second_tile);
                else weigh<1, true>(g, query0, key0, whole, rows, score, first_tile, second_tile);
            }
            {
                const f32 *tile = team == 0 ? first_tile : second_tile;
                ROLLED
                for (u32 n = 0; n < SIZE / TALL; ++n) {
                    cores::wait_for_copies<0>();
                    sync_threads();
                    copy_rows(head, query0, n + 1);
                    multiply<TALL, SIZE, FEATURES, false>(tile + n * TALL * SIZE, own_rest + n % 2 * (TALL * FEATURES),
                                                          0, sums);
                }
            }
            sync_threads(); // tiles and rest are free
            if (query0 + SIZE < seeing.end) copy_scores(head, query0 + SIZE, 0);
            else if (head + 1 < (shared + 1) * group) copy_scores(head + 1, first_query, 0);
            if (g.by_q == nullptr) continue;
            turn_tile<true>(second_tile, team, first_tile);
            sync_threads();
            u32 tile = query0 / SIZE,
                before = key0 / SIZE - g.window.keys_of(query0, query0 + SIZE - 1, queries, keys).begin / SIZE;
            u64 pair = (u64)batch * (u64)g.s.heads + head;
            u32 *added = g.state + 1 + pair * ((queries + SIZE - 1) / SIZE) + tile;
            ROLLED
            for (u32 d = 0; d < width; d += SIZE) {
                Own sum = {};
                multiply_by_kept(first_tile + team * (TILE / TEAMS), kept, team * PART, d, sum);
                if (d > 0) sync_threads(); // threads may still read what was passed before
                if (team == 0) pass<0>(sum, second_tile);
                else pass<1>(sum, second_tile);
                if (d == 0 && threadIdx.x == 0) {
                    while (published_with_memory(added) != before) give_way();
                }
                sync_threads();
                f32 *to = g.by_q + pair * queries * width;
                if (team == 0)
                    add_to_queries<0, true>(sum, query0, queries, width, d, g.scale, before == 0, to, second_tile);
                else add_to_queries<1, true>(sum, query0, queries, width, d, g.scale, before == 0, to, second_tile);
            }
            finish_writes();
            sync_threads();
            if (threadIdx.x == 0) publish_with_memory(added, before + 1);
        }
    }
    cores::wait_for_copies<0>();
    u32 heads = (u32)g.s.heads / group;
    u64 first = ((u64)batch * heads + shared) * keys;
    if (team == 0) write_keys<true>(sums, key0, keys, values, 1.0f, g.by_v + first * (u64)values);
    else write_keys<true>(sums, key0, keys, width, g.scale, g.by_k + first * (u64)width);
}

// As `attention_f32_backward`, for at most 128 features and values. Launched with blocks of 128
// threads and with FLOATS of shared memory; any number of blocks works.
template <class F>
__global__ __launch_bounds__(128, RESIDENT) void attention_f32_kept_backward(
    Shape s, View q_at, View k_at, View v_at, View grad_at, const F *q, const F *k, const F *v, const F *grad,
    const RowSum<F> *sums, const F *dots, F scale, Window window, F *by_q, F *by_k, F *by_v, u32 *state) {
#if CORES_MMA || CORES_EMULATED
    Given given{s, q_at, k_at, v_at, grad_at, q, k, v, grad, sums, dots, scale, window, by_q, by_k, by_v, state};
    GIVEN_SHARED(Quad, quads);
    f32 *room = reinterpret_cast<f32 *>(quads);
    Item item;
    while (take_item(given, room, item))
        pass_queries(reload_parameters(given), item.batch, item.shared, item.key0, room);
#endif
}
