// The gradients of `attention_matrix` without storing the scores: FlashAttention-2's backward pass
// (Dao 2023, algorithm 2) on matrix cores. It is split into two kernels, so that every sum has a
// fixed order. One takes rows of keys through all queries, for the gradients of keys and values;
// the other takes rows of queries through all keys, for the queries' gradient. Each recomputes the
// scores, and the weights from them and from the row sums that the forward kernel stored. Weights
// and the scores' gradient are rounded to T before they are multiplied.
#include "attention_matrix.h"

// The kernels' parameters, in their order.
template <class T> struct Given {
    using C = compute_t<T>;
    Shape s;
    View q_at, k_at, v_at, grad_at, mask_at, out_at, other_at;
    const T *q, *k, *v, *grad;
    const u8 *mask;        // or null: true hides a key
    const RowSum<C> *sums; // of each row
    const C *dots;         // of each row: the product of the output and its gradient
    const i32 *offsets;    // of packed sequences, or null
    C scale, fill;         // fill: the score of a hidden key
    Window window;
    u32 mask_size;
    u64 seed, call;
    u32 dropping, last;
    C factor;
    T *out, *other; // the gradients of keys and values; of queries, and null
};

// A block's rows are queries or keys; it goes through the others, the columns.
constexpr i32 QUERIES = 0, KEYS = 1;

#if HAS_CORES

// The sizes of a block's tiles for heads of up to WIDE features. TALL: tiles of 16 rows of a warp;
// COLUMNS: of a tile of columns; STAGES: such tiles in shared memory; CHUNK: tiles of 16 columns
// whose scores a warp has at once; KEPT1, KEPT2: whether the rows' first and second operand stay in
// shared memory. Those of NVIDIA were chosen on an H200, of seven for each (docs/decisions/034);
// the others by registers and LDS.
template <i32 WIDE, i32 BY> struct Sizes {
#if CORES_MMA
    static constexpr u32 TALL = WIDE > 64 && BY == KEYS ? 1 : 2, COLUMNS = WIDE > 64 && BY == QUERIES ? 32 : 64;
    static constexpr u32 STAGES = 2, CHUNK = WIDE > 64 && BY == QUERIES ? 2 : 1;
    static constexpr bool KEPT1 = WIDE > 64 && BY == QUERIES, KEPT2 = WIDE > 64 || BY == KEYS;
#elif CORES_MFMA
    static constexpr u32 TALL = WIDE > 64 ? 1 : 2, COLUMNS = WIDE > 64 ? 32 : 64, STAGES = 1, CHUNK = 1;
    static constexpr bool KEPT1 = false, KEPT2 = false;
#elif CORES_WMMA
    static constexpr u32 TALL = 1, COLUMNS = WIDE > 64 ? 32 : 64, STAGES = 1, CHUNK = 1;
    static constexpr bool KEPT1 = true, KEPT2 = true;
#else // one of each
    static constexpr u32 TALL = WIDE > 64 ? 1 : 2, COLUMNS = WIDE > 64 ? 32 : 64, STAGES = WIDE > 64 ? 1 : 2;
    static constexpr u32 CHUNK = WIDE > 96 ? 2 : 1;
    static constexpr bool KEPT1 = WIDE == 96, KEPT2 = WIDE > 96;
#endif
    static constexpr u32 ROWS_OF_WARP = TALL * cores::SIDE, ROWS = WARPS * ROWS_OF_WARP, PITCH = pitch_of(WIDE);
    static constexpr u32 BLOCK = ROWS * PITCH, KEPT = (KEPT1 + KEPT2) * BLOCK, TILE = COLUMNS * PITCH;
    static constexpr u32 ROOM = max_size(KEPT + STAGES * 2 * TILE, BLOCK);
};

// AMD's compiler would load the operands of all chunks first, and spill.
#if CORES_MMA
#define UNROLLED_CHUNKS UNROLLED
#else
#define UNROLLED_CHUNKS ROLLED
#endif

// Which scores dropout keeps, if a warp's rows are queries, for keys from column0 on. Bit 4 i + w
// of kept[m] is that of sum i in the w-th tile of 16 keys of their span. One draw of four random
// words serves a lane for all tiles of the span.
template <bool IS_PACKED, u32 TALL, class T>
DEVICE void draw(const Given<T> &given, const Sequence &at, u32 head, u32 row0, u32 column0, u32 (&kept)[TALL]) {
    using namespace cores;
    const Given<T> &g = reload_parameters(given);
    Dropout<f32> dropout{stream_of(g.seed, g.call), g.dropping, g.last, g.factor};
    u64 row = first_row<IS_PACKED>(g.s, at, head) + row0;
    u32 all_keys = (u32)g.s.keys;
    UNROLLED
    for (u32 m = 0; m < TALL; ++m) {
        u32 bits = 0;
        UNROLLED_BY(2)
        for (u32 i = 0; i < ELEMENTS; ++i) {
            Words words = dropout.at(row + m * SIDE + row_of(slot_of(i)), all_keys, column0 + column_of(i));
            UNROLLED
            for (u32 w = 0; w < APART; ++w) bits |= (words.w[w] > dropout.last ? 1u : 0u) << (APART * i + w);
        }
        kept[m] = bits;
    }
}

// Turns products q k^T into scores, and the products of values and the output's gradient, minus the
// dots, into the scores' gradient without the weights' and the scale's factor. Each step loads its
// parameters when it begins; together they do not fit into AMD's scalar registers. If the rows are
// queries, `kept` is what `draw` gave.
template <i32 KIND, i32 BY, u32 TALL, u32 ACROSS, class T>
DEVICE void change_scores(const Given<T> &given, const Sequence &at, u32 head, u32 row0, u32 column0,
                          const u32 (&kept)[TALL], cores::Sums (&score)[TALL][ACROSS],
                          cores::Sums (&grad)[TALL][ACROSS]) {
    using namespace cores;
    u32 queries = at.queries, keys = at.keys;
    f32 scale = reload_parameters(given).scale;
    for_each_sum<TALL, ACROSS>(row0, column0, [&](u32, u32, u32 m, u32 n, u32 i) {
        score[m][n].at[i] = rounded_product(score[m][n].at[i], scale);
    });
    auto drop = [&](u32 m, u32 n, u32 i, f32 factor) {
        score[m][n].at[i] *= factor;
        grad[m][n].at[i] = factor == 0.0f ? 0.0f : grad[m][n].at[i] * factor;
    };
    if (reload_parameters(given).dropping) {
        const Given<T> &g = reload_parameters(given);
        f32 factor = g.factor;
        if constexpr (BY == QUERIES) {
            u32 first = column0 % SPAN / SIDE;
            for_each_sum<TALL, ACROSS>(row0, column0, [&](u32, u32, u32 m, u32 n, u32 i) {
                drop(m, n, i, kept[m] >> (APART * i + first + n) & 1 ? factor : 0.0f);
            });
        } else {
            Dropout<f32> dropout{stream_of(g.seed, g.call), g.dropping, g.last, factor};
            u64 row = first_row<is_packed(KIND)>(g.s, at, head);
            u32 all_keys = (u32)g.s.keys;
            UNROLLED
            for (u32 n = 0; n < ACROSS; ++n) {
                UNROLLED
                for (u32 i = 0; i < ELEMENTS; ++i) {
                    u32 query = column0 + n * SIDE + column_of(i), key = row0 + row_of(slot_of(i));
                    Words words = dropout.at(row + query, all_keys, key);
                    UNROLLED
                    for (u32 m = 0; m < TALL; ++m) drop(m, n, i, dropout.kept(word_of(words, row0 % SPAN / SIDE + m)));
                    keep_order<true>();
                }
            }
        }
    }
    if (!is_packed(KIND) && reload_parameters(given).mask != nullptr) {
        const Given<T> &g = reload_parameters(given);
        const Mask mask = mask_of(g.mask_at, g.mask, g.mask_size, at.q, head);
        f32 fill = g.fill;
        bool by_keys = BY == KEYS;
        for_each_element<TALL, ACROSS>(row0, column0, by_keys ? keys : queries, by_keys ? queries : keys,
                                       by_keys ? mask.at.column : mask.at.row, by_keys ? mask.at.row : mask.at.column,
                                       [&](u32 m, u32 n, u32 i, i64 element) {
            if (mask.hides(element)) score[m][n].at[i] = fill, grad[m][n].at[i] = 0.0f;
        });
    }
    const Window window = reload_parameters(given).window;
    for_each_sum<TALL, ACROSS>(row0, column0, [&](u32 row, u32 column, u32 m, u32 n, u32 i) {
        u32 query = BY == KEYS ? column : row, key = BY == KEYS ? row : column;
        if (!window.sees(query, key, queries, keys)) {
            score[m][n].at[i] = LOWEST<f32>;
            grad[m][n].at[i] = 0.0f;
        }
    });
}

// Copies a block's rows to shared memory and, unless they stay there, reads the warp's rows from
// it.
template <bool KEPT, u32 TALL, u32 STEPS, class From, class T>
DEVICE void take(const From &copier, u32 block_row, T *tile, u32 warp_row, cores::Rows (&to)[TALL][STEPS]) {
    using namespace cores;
    copier.copy(block_row, tile);
    end_copies();
    if constexpr (!KEPT) {
        wait_for_copies<0>();
        sync_threads();
        const Tile<T, From::PITCH> own(tile + warp_row * From::PITCH);
        UNROLLED
        for (u32 m = 0; m < TALL; ++m) {
            UNROLLED
            for (u32 d = 0; d < STEPS; ++d) to[m][d] = own.rows(m * SIDE, d * SIDE);
        }
        sync_threads();
    }
}

// `head` is one of queries; BY == KEYS: of keys. `block_row`: the block's first row in its
// sequence.
template <i32 WIDE, i32 KIND, i32 BY, class T>
DEVICE void gradients(const Given<T> &given, u32 batch, u32 head, u32 block_row) {
    using namespace cores;
    typedef Sizes<WIDE, BY> S;
    constexpr bool BY_KEYS = BY == KEYS, KEPT1 = S::KEPT1, KEPT2 = S::KEPT2;
    constexpr u32 TALL = S::TALL, ROWS_OF_WARP = S::ROWS_OF_WARP, PITCH = S::PITCH, STEPS = WIDE / SIDE;
    constexpr u32 COLUMNS = S::COLUMNS, STAGES = S::STAGES, CHUNK = S::CHUNK, TILE = S::TILE, STAGE = 2 * TILE;
    constexpr u32 SUMS = BY_KEYS ? STAGES * COLUMNS : 2, SUMS_SIZE = SUMS / 2, DOTS_SIZE = SUMS / 4;
    // Tiles, then the sums and dots of their columns.
    constexpr u32 PIECES = S::ROOM / 8 + (BY_KEYS ? SUMS_SIZE + DOTS_SIZE : 0);
    BLOCK_ROOM(room, PIECES);
    check_room(PIECES * sizeof(Piece));
    RowSum<f32> *sums_room = (RowSum<f32> *)(room + S::ROOM / 8);
    f32 *dots_room = (f32 *)(room + S::ROOM / 8 + SUMS_SIZE);
    T *kept = (T *)room, *tiles = kept + S::KEPT;
    const Given<T> &g = reload_parameters(given);
    const Sequence at = sequence_of<is_packed(KIND)>(g.s, g.offsets, batch);
    u32 queries = at.queries, keys = at.keys, rows = BY_KEYS ? keys : queries, columns = BY_KEYS ? queries : keys;
    const Window window = g.window;
    // The heads of queries that the block goes through begin at `head`.
    u32 group = (u32)g.s.group;
    if (BY_KEYS) head *= group;
    u32 shared = head / group, members = BY_KEYS ? group : 1;
    u32 warp_row = warp() * ROWS_OF_WARP, row0 = block_row + warp_row; // the warp's first row
    const RowSum<f32> *first_sums = g.sums + first_row<is_packed(KIND)>(g.s, at, head);
    const f32 *first_dots = g.dots + first_row<is_packed(KIND)>(g.s, at, head);
    u32 rows_of_head = (u32)g.s.queries; // of sums and dots
    f32 score_scale = g.scale;

    // The operands of the rows: keys and values, or queries and the output's gradient.
    Rows first[KEPT1 ? 1 : TALL][KEPT1 ? 1 : STEPS], second[KEPT2 ? 1 : TALL][KEPT2 ? 1 : STEPS];
    typedef Copier<S::ROWS, WIDE, KIND, T> RowsCopier;
    sync_threads(); // threads may still read an earlier item's tiles
    u32 rows_head = BY_KEYS ? shared : head, columns_head = BY_KEYS ? head : shared;
    u32 rows_batch = BY_KEYS ? at.k : at.q, columns_batch = BY_KEYS ? at.q : at.k;
    take<KEPT1>(RowsCopier(BY_KEYS ? g.k : g.q, BY_KEYS ? g.k_at : g.q_at, rows_batch, rows_head, rows, g.s.width),
                block_row, kept, warp_row, first);
    take<KEPT2>(
        RowsCopier(BY_KEYS ? g.v : g.grad, BY_KEYS ? g.v_at : g.grad_at, rows_batch, rows_head, rows, g.s.values),
        block_row, kept + KEPT1 * S::BLOCK, warp_row, second);
    const Tile<T, PITCH> first_tile(kept + warp_row * PITCH), second_tile(kept + KEPT1 * S::BLOCK + warp_row * PITCH);
    typedef Copier<COLUMNS, WIDE, KIND, T> ColumnsCopier;
    // Made again for each tile, so that they take no registers between tiles.
    auto third = [&](u32 member) {
        const Given<T> &g = reload_parameters(given);
        return ColumnsCopier(BY_KEYS ? g.q : g.k, BY_KEYS ? g.q_at : g.k_at, columns_batch, columns_head + member,
                             columns, g.s.width);
    };
    auto fourth = [&](u32 member) {
        const Given<T> &g = reload_parameters(given);
        return ColumnsCopier(BY_KEYS ? g.grad : g.v, BY_KEYS ? g.grad_at : g.v_at, columns_batch, columns_head + member,
                             columns, g.s.values);
    };
    // Copies columns column0.. of the group's head `member`.
    auto copy = [&](u32 member, u32 column0, u32 stage) {
        third(member).copy(column0, tiles + stage * STAGE);
        fourth(member).copy(column0, tiles + stage * STAGE + TILE);
        if (BY_KEYS && threadIdx.x < COLUMNS) {
            u32 query = column0 + threadIdx.x;
            bool inside = query < queries;
            const RowSum<f32> *sums = first_sums + (u64)member * rows_of_head;
            const f32 *dots = first_dots + (u64)member * rows_of_head;
            copy_value(sums_room + stage * COLUMNS + threadIdx.x, sums + (inside ? query : 0), inside);
            copy_value(dots_room + stage * COLUMNS + threadIdx.x, dots + (inside ? query : 0), inside);
        }
        end_copies();
    };

    Sums by_first[TALL][STEPS] = {}, by_second[BY_KEYS ? TALL : 1][BY_KEYS ? STEPS : 1] = {};
    // Of the rows, if they are queries.
    RowSum<f32> row_sum[TALL][ROWS];
    f32 row_dot[TALL][ROWS];
    UNROLLED
    for (u32 m = 0; m < TALL; ++m) {
        UNROLLED
        for (u32 s = 0; s < ROWS; ++s) {
            u32 query = row0 + m * SIDE + row_of(s);
            bool inside = !BY_KEYS && query < queries;
            row_sum[m][s] = inside ? first_sums[query] : RowSum<f32>{0.0f, 0.0f};
            row_dot[m][s] = inside ? first_dots[query] : 0.0f;
        }
    }
    // The columns that some row sees or is seen by: of the block, from a tile's first column on,
    // and of the warp.
    auto reach = [=](u32 first, u32 last) {
        return BY_KEYS ? window.queries_of(first, last, queries, keys) : window.keys_of(first, last, queries, keys);
    };
    u32 last_row = row0 + ROWS_OF_WARP - 1;
    const Range of_block = reach(block_row, block_row + S::ROWS - 1), own = reach(row0, last_row);
    u32 begin = of_block.begin / COLUMNS * COLUMNS, end = of_block.end;

    if (STAGES == 2 && begin < end) copy(0, begin, 0);
    u32 stage = 0, member = 0, column0 = begin;
    while (begin < end && member < members) {
        // The tile after this one.
        bool more = column0 + COLUMNS < end;
        u32 next_member = more ? member : member + 1, next_column = more ? column0 + COLUMNS : begin;
        if (STAGES == 1) {
            sync_threads();
            copy(member, column0, 0);
        }
        wait_for_copies<0>();
        sync_threads();
        if (STAGES == 2 && next_member < members) copy(next_member, next_column, stage ^ 1);
        const Tile<T, PITCH> third_tile(tiles + stage * STAGE), fourth_tile(tiles + stage * STAGE + TILE);
        u32 last = column0 + COLUMNS - 1;
        // Whether the tile has pairs that see each other, and whether it has others.
        bool some = column0 < own.end && column0 + COLUMNS > own.begin;
        bool all = BY_KEYS ? window.sees(column0, last_row, queries, keys) && window.sees(last, row0, queries, keys)
                           : window.sees(row0, last, queries, keys) && window.sees(last_row, column0, queries, keys);
        if (some) {
            u32 drawn[TALL] = {};
            if constexpr (!is_plain(KIND) && !BY_KEYS) {
                if (reload_parameters(given).dropping) draw<is_packed(KIND)>(given, at, head, row0, column0, drawn);
            }
            UNROLLED_CHUNKS
            for (u32 n0 = 0; n0 < COLUMNS / SIDE; n0 += CHUNK) {
                Sums product[TALL][CHUNK] = {}, by_weight[TALL][CHUNK] = {};
                UNROLLED
                for (u32 d = 0; d < STEPS; ++d) {
                    Rows left[TALL];
                    UNROLLED
                    for (u32 m = 0; m < TALL; ++m) {
                        if constexpr (KEPT1) left[m] = first_tile.rows(m * SIDE, d * SIDE);
                        else left[m] = first[m][d];
                    }
                    UNROLLED
                    for (u32 n = 0; n < CHUNK; ++n) {
                        Columns right = third_tile.columns((n0 + n) * SIDE, d * SIDE);
                        UNROLLED
                        for (u32 m = 0; m < TALL; ++m) multiply<T>(left[m], right, product[m][n]);
                    }
                    keep_order();
                }
                UNROLLED
                for (u32 d = 0; d < STEPS; ++d) {
                    Rows left[TALL];
                    UNROLLED
                    for (u32 m = 0; m < TALL; ++m) {
                        if constexpr (KEPT2) left[m] = second_tile.rows(m * SIDE, d * SIDE);
                        else left[m] = second[m][d];
                    }
                    UNROLLED
                    for (u32 n = 0; n < CHUNK; ++n) {
                        Columns right = fourth_tile.columns((n0 + n) * SIDE, d * SIDE);
                        UNROLLED
                        for (u32 m = 0; m < TALL; ++m) multiply<T>(left[m], right, by_weight[m][n]);
                    }
                    keep_order();
                }
                u32 first_sum = stage * COLUMNS + n0 * SIDE; // of the chunk's columns, if they are queries
                for_each_sum<TALL, CHUNK>(0, 0, [&](u32, u32 column, u32 m, u32 n, u32 i) {
                    by_weight[m][n].at[i] -= BY_KEYS ? dots_room[first_sum + column] : row_dot[m][slot_of(i)];
                });
                if constexpr (!is_plain(KIND)) {
                    change_scores<KIND, BY>(given, at, head + member, row0, column0 + n0 * SIDE, drawn, product,
                                            by_weight);
                } else if (!all) {
                    for_each_sum<TALL, CHUNK>(row0, column0 + n0 * SIDE, [&](u32 row, u32 column, u32 m, u32 n, u32 i) {
                        u32 query = BY_KEYS ? column : row, key = BY_KEYS ? row : column;
                        if (!window.sees(query, key, queries, keys))
                            product[m][n].at[i] = LOWEST<f32>, by_weight[m][n].at[i] = 0.0f;
                    });
                }
                Rows weights[TALL][CHUNK], grads[TALL][CHUNK];
                for_each_sum<TALL, CHUNK>(0, 0, [&](u32, u32 column, u32 m, u32 n, u32 i) {
                    RowSum<f32> sum = BY_KEYS ? sums_room[first_sum + column] : row_sum[m][slot_of(i)];
                    f32 score = product[m][n].at[i];
                    if (is_plain(KIND)) score = rounded_product(score, score_scale);
                    // The factor is 0 for queries beyond the last and for rows whose keys are all
                    // hidden, where the rest may be NaN.
                    bool has_weight = sum.factor != 0.0f;
                    f32 weight = has_weight ? power2((score - sum.base) * LOG2E) * sum.factor : 0.0f;
                    product[m][n].at[i] = weight;
                    by_weight[m][n].at[i] = has_weight ? by_weight[m][n].at[i] * weight : 0.0f;
                });
                UNROLLED
                for (u32 m = 0; m < TALL; ++m) {
                    UNROLLED
                    for (u32 n = 0; n < CHUNK; ++n) {
                        if constexpr (BY_KEYS) weights[m][n] = rows_of<T>(product[m][n]);
                        grads[m][n] = rows_of<T>(by_weight[m][n]);
                    }
                }
                UNROLLED
                for (u32 n = 0; n < CHUNK; ++n) {
                    UNROLLED
                    for (u32 c = 0; c < STEPS; ++c) {
                        if constexpr (BY_KEYS) {
                            Columns right = fourth_tile.turned((n0 + n) * SIDE, c * SIDE);
                            UNROLLED
                            for (u32 m = 0; m < TALL; ++m) multiply<T>(weights[m][n], right, by_second[m][c]);
                            keep_order();
                        }
                        Columns right = third_tile.turned((n0 + n) * SIDE, c * SIDE);
                        UNROLLED
                        for (u32 m = 0; m < TALL; ++m) multiply<T>(grads[m][n], right, by_first[m][c]);
                        keep_order();
                    }
                }
            }
        }
        if (STAGES == 2) stage ^= 1;
        member = next_member, column0 = next_column;
    }
    wait_for_copies<0>();

    const Given<T> &again = reload_parameters(given);
    u32 width = (u32)again.s.width, values = (u32)again.s.values;
    f32 scale = again.scale;
    UNROLLED
    for (u32 m = 0; m < TALL; ++m) {
        auto row = [=](T *out, const View &at) {
            T *first = out + rows_batch * at.batch + rows_head * at.head;
            i64 step = at.row;
            return [=](u32 slot) {
                u32 row = row0 + m * SIDE + row_of(slot);
                return row < rows ? first + (i64)row * step : nullptr;
            };
        };
        UNROLLED
        for (u32 c = 0; c < STEPS; ++c) {
            write_sums<T>(by_first[m][c], c * SIDE, width, row(again.out, again.out_at), [=](u32) { return scale; });
            if constexpr (BY_KEYS)
                write_sums<T>(by_second[m][c], c * SIDE, values, row(again.other, again.other_at),
                              [](u32) { return 1.0f; });
        }
    }
}

#endif

// BY == KEYS: the gradients of the keys [pairs / group, keys, width] and values [pairs / group,
// keys, values], each summed over the heads of its group in their order; QUERIES: of the queries
// [pairs, queries, width], and no other. Every operand has strides; the results' last axis is
// contiguous and their other strides are multiples of its size. For heads of up to WIDE features.
// Launched with THREADS threads; any number of blocks works. PACKED: as in `attention_matrix`.
template <class T, i32 WIDE, i32 KIND, i32 BY>
__global__ __launch_bounds__(THREADS) void attention_matrix_backward(
    Shape s, View q_at, View k_at, View v_at, View grad_at, View mask_at, View out_at, View other_at, const T *q,
    const T *k, const T *v, const T *grad, const u8 *mask, const RowSum<compute_t<T>> *sums, const compute_t<T> *dots,
    const i32 *offsets, compute_t<T> scale, compute_t<T> fill, Window window, u32 mask_size, u64 seed, u64 call,
    u32 dropping, u32 last, compute_t<T> factor, T *out, T *other) {
#if HAS_CORES
    constexpr u32 SIZE = Sizes<WIDE, BY>::ROWS;
    Given<T> given{s,      q_at,      k_at, v_at, grad_at,  mask_at, out_at,  other_at, q,
                   k,      v,         grad, mask, sums,     dots,    offsets, scale,    fill,
                   window, mask_size, seed, call, dropping, last,    factor,  out,      other};
    // No `for_each_row`: AMD's compiler does not inline a lambda of this size.
    for (i64 item = blockIdx.x;; item += gridDim.x) {
        const Given<T> &g = reload_parameters(given);
        i64 rows = BY == KEYS ? g.s.keys : g.s.queries, heads = g.s.heads;
        if (BY == KEYS) heads = (i64)divided((u64)heads, (u64)g.s.group);
        const Order order = !g.window.grows() ? BY_PAIR : BY == KEYS ? FIRST_FIRST : LAST_FIRST;
        if constexpr (is_packed(KIND)) {
            typedef PackedPlace<SIZE> P;
            if ((u64)item >= P::items(rows, g.s.pairs, heads)) break;
            const i32 *offsets = BY == KEYS ? g.offsets + g.s.pairs + 1 : g.offsets;
            const P at(item, g.s.pairs, heads, offsets, order);
            if (at.exists) gradients<WIDE, KIND, BY>(given, at.batch, at.head, at.row);
        } else {
            i64 tiles = (rows + SIZE - 1) / SIZE;
            i64 pairs = BY == KEYS ? (i64)divided((u64)g.s.pairs, (u64)g.s.group) : g.s.pairs;
            if (item >= pairs * tiles) break;
            const Place at(item, pairs, tiles, order);
            u32 batch = (u32)at.pair / (u32)heads, head = (u32)at.pair - batch * (u32)heads;
            gradients<WIDE, KIND, BY>(given, batch, head, (u32)(at.tile * SIZE));
        }
    }
#endif
}

// dots[row] = the dot product of the output's row and its gradient's, for each row of batch * heads
// * queries. `whole`: rows of both consist of pieces of 16 bytes at multiples of 16 bytes. A block
// of 256 threads takes 32 rows.
template <class T>
__global__ __launch_bounds__(256) void attention_matrix_dots(i64 rows, i64 heads, i64 queries, i64 values, View out_at,
                                                             View grad_at, const T *out, const T *grad, u32 whole,
                                                             f32 *dots) {
    constexpr u32 TEAM = ONE_THREAD ? 1 : 8; // threads of a row
    u32 rows_of_block = blockDim.x / TEAM, member = threadIdx.x % TEAM;
    for (i64 row0 = (i64)blockIdx.x * rows_of_block; row0 < rows; row0 += (i64)gridDim.x * rows_of_block) {
        i64 row = row0 + threadIdx.x / TEAM;
        f32 dot = 0.0f;
        if (row < rows) {
            i64 pair = (i64)divided((u64)row, (u64)queries), batch = (i64)divided((u64)pair, (u64)heads);
            auto first = [=](const T *of, const View &at) {
                return of + batch * at.batch + (pair - batch * heads) * at.head + (row - pair * queries) * at.row;
            };
            const T *y = first(out, out_at), *g = first(grad, grad_at);
            for (u32 c = member * 8; c < (u32)values; c += TEAM * 8) {
                if (whole) {
                    auto a = *(const Vector<T, 8> *)(y + c), b = *(const Vector<T, 8> *)(g + c);
                    UNROLLED
                    for (u32 i = 0; i < 8; ++i) dot += load(a.lane[i]) * load(b.lane[i]);
                } else {
                    for (u32 i = c; i < c + 8 && i < (u32)values; ++i)
                        dot += load(y[(i64)i * out_at.column]) * load(g[(i64)i * grad_at.column]);
                }
            }
        }
        UNROLLED
        for (u32 distance = TEAM / 2; distance > 0; distance /= 2)
            dot += shuffle(dot, (i32)((threadIdx.x % (u32)warpSize) ^ distance));
        if (member == 0 && row < rows) dots[row] = dot;
    }
}
