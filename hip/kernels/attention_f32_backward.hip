// The gradients of `attention_f32`: FlashAttention-2's backward pass (Dao 2023, algorithm 2) in one
// kernel, which stores no scores. A block takes a tile of keys through the queries. It keeps the
// gradients of keys and values in registers, and adds to the queries' gradient in memory. Blocks add
// to a tile of queries in the order of their keys: a block waits until the one before it has added,
// so every sum has a fixed order. `attention_backward.hip` computes the other cases. Its two kernels
// compute 7 products of a tile, this one 5.
#include "attention_f32_backward.h"

constexpr u32 QUADS = STEP / WIDTH;
// Whether threads have their places in a zigzag (`place_now`). It gains nothing here: on an H200, a
// prototype took 22.6 ms for [2, 16, 4096, 128] with it, and 22.5 ms without.
constexpr bool ZIGZAG = false;

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

// Adds the products of COUNT terms: left[COUNT][SIZE] by right[COUNT][GROUPS * PART]. The terms of
// `left` are LONG apart, those of `right` WIDE. TURNED: whether `left` is a tile [key][query].
template <u32 COUNT, u32 LONG, u32 WIDE, bool TURNED, u32 GROUPS>
DEVICE void multiply(const f32 *left, const f32 *right, f32 (&sum)[OWN][GROUPS][WIDTH]) {
    u32 thread = place_now<ZIGZAG>(), row = thread / ACROSS * WIDTH, column = thread % ACROSS * WIDTH;
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

// The floats of shared memory: two tiles, and TALL rows of an operand for each team.
template <u32 PARTS> struct Room {
    static constexpr u32 TALL = PART / PARTS, ROWS = TALL * PARTS * SIZE, FLOATS = 2 * TILE + TEAMS * ROWS;
};

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
                if (team == 0) leave<0, ZIGZAG>(score, first_tile);
                else leave<1, ZIGZAG>(score, first_tile);
                sync_threads();
                const Given &g = reload_parameters(given);
                u32 queries = (u32)g.s.queries, keys = (u32)g.s.keys, last = query0 + SIZE - 1;
                bool whole = last < queries && g.window.keys_of(last, last, queries, keys).begin <= key0 &&
                             key0 + SIZE <= g.window.keys_of(query0, query0, queries, keys).end;
                if (team == 0) weigh<0, ZIGZAG>(g, query0, key0, whole, rows, score, first_tile, second_tile);
                else weigh<1, ZIGZAG>(g, query0, key0, whole, rows, score, first_tile, second_tile);
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
                if (d == 0) turn_tile<ZIGZAG>(second_tile, team, first_tile);
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
                if (team == 0)
                    add_to_queries<0, ZIGZAG>(sum, query0, queries, width, d, g.scale, before == 0, to, second_tile);
                else add_to_queries<1, ZIGZAG>(sum, query0, queries, width, d, g.scale, before == 0, to, second_tile);
            }
            finish_writes();
            sync_threads();
            if (threadIdx.x == 0) publish_with_memory(added, before + 1);
        }
    }
    const Given &g = reload_parameters(given);
    u32 keys = (u32)g.s.keys, heads = (u32)g.s.heads / group;
    u64 first = ((u64)batch * heads + shared) * keys;
    if (team == 0) write_keys<ZIGZAG>(sums, key0, keys, (u32)g.s.values, 1.0f, g.by_v + first * (u64)g.s.values);
    else write_keys<ZIGZAG>(sums, key0, keys, (u32)g.s.width, g.scale, g.by_k + first * (u64)g.s.width);
}

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
    Item item;
    while (take_item(given, room, item)) pass_queries<PARTS>(given, item.batch, item.shared, item.key0, room);
}
