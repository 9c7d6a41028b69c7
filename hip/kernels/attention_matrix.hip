// Scaled dot-product attention of f16 and bf16 on matrix cores, softmax(q k^T) v, in one kernel:
// FlashAttention-2 (Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work
// Partitioning", algorithm 1). A warp keeps the queries, scores and sums of its rows in registers;
// the block's warps share tiles of keys and values in shared memory. Weights are rounded to T
// before the second product, sums are f32.
#include "attention_matrix.h"

// The parameters of `attention_matrix`, in their order.
template <class T> struct Given {
    Shape s;
    View q_at, k_at, v_at, mask_at, bias_at, out_at;
    const T *q, *k, *v;
    const u8 *mask;          // or null: true hides a key
    const T *bias;           // or null
    const i32 *offsets;      // of packed sequences, or null
    compute_t<T> scale, cap; // cap 0: scores are not capped
    Window window;
    u32 mask_size;     // bytes of a bool
    compute_t<T> fill; // the score of a hidden key
    u32 quiet;         // whether 1 is added to the sum of exponentials
    u64 seed, call;
    u32 dropping, last;
    compute_t<T> factor;
    T *out;
    RowSum<compute_t<T>> *sums; // or null
};

#if HAS_CORES

// If the largest score of a row is further from 0 than this (in units of log 2), it is subtracted
// before the multiplication by `unit`. A fused multiply-add takes less time, but subtracts a rounded
// product: then the largest weight is off by the rounding's power of two, and scores of 1e9, which
// masks use, would overflow.
constexpr f32 FAR = 1024.0f;

// The sizes of a block's tiles for heads of up to WIDE features. TALL: tiles of 16 queries of a
// warp; KEYS: of a tile of keys; STAGES: tiles of keys and of values in shared memory; KEPT:
// whether the queries stay in shared memory. Those of NVIDIA were chosen on an H200, of up to nine
// for each width (docs/decisions/034); the others by registers and LDS.
template <i32 WIDE> struct Sizes {
#if CORES_MMA
    static constexpr u32 TALL = WIDE > 128 ? 1 : 2, KEYS = WIDE > 128 ? 32 : 64, STAGES = WIDE > 64 ? 1 : 2;
    static constexpr bool KEPT = WIDE > 64;
#elif CORES_MFMA
    static constexpr u32 TALL = WIDE > 128 ? 1 : 2, KEYS = WIDE > 128 ? 32 : 64, STAGES = 1;
    static constexpr bool KEPT = false;
#elif CORES_WMMA
    static constexpr u32 TALL = 1, KEYS = WIDE > 128 ? 16 : WIDE > 96 ? 32 : 64, STAGES = 1;
    static constexpr bool KEPT = WIDE > 128;
#else // one of each
    static constexpr u32 TALL = WIDE > 64 ? 1 : 2, KEYS = WIDE > 128 ? 16 : 64, STAGES = WIDE > 64 ? 1 : 2;
    static constexpr bool KEPT = WIDE == 96 || WIDE > 128;
#endif
    static constexpr u32 ROWS_OF_WARP = TALL * cores::SIDE, ROWS = WARPS * ROWS_OF_WARP, PITCH = pitch_of(WIDE);
    static constexpr u32 QUERIES = KEPT ? ROWS * PITCH : 0, TILE = KEYS * PITCH, ROOM = QUERIES + 2 * STAGES * TILE;
};

// Turns products into scores: scale, softcap, dropout, mask, bias, window. Each step loads its
// parameters when it begins; together they do not fit into AMD's scalar registers.
template <i32 KIND, u32 TALL, u32 ACROSS, class T>
DEVICE void change_scores(const Given<T> &given, const Sequence &at, u32 head, u32 row0, u32 key0,
                          cores::Sums (&score)[TALL][ACROSS]) {
    using namespace cores;
    u32 queries = at.queries, keys = at.keys;
    if constexpr (!is_packed(KIND)) { // loaded again, so that they take no registers between tiles
        const Given<T> &g = reload_parameters(given);
        queries = (u32)g.s.queries, keys = (u32)g.s.keys;
    }
#if CORES_WMMA
    // Otherwise the compiler would keep what follows from the rows in registers between tiles.
    row0 = recompute_from(row0);
#endif
    {
        const Given<T> &g = reload_parameters(given);
        f32 scale = g.scale, cap = g.cap;
        for_each_sum<TALL, ACROSS>(row0, key0, [&](u32, u32, u32 m, u32 n, u32 i) {
            f32 &x = score[m][n].at[i];
            x = rounded_product(x, scale);
            if (cap > 0.0f) x = cap * math::tanh(x / cap);
        });
    }
    if (reload_parameters(given).dropping) {
        const Given<T> &g = reload_parameters(given);
        Dropout<f32> dropout{stream_of(g.seed, g.call), g.dropping, g.last, g.factor};
        Words words = {}; // of the four tiles' keys; a span may be several tiles
        u64 row = first_row<is_packed(KIND)>(g.s, at, head);
        u32 all_keys = (u32)g.s.keys;
        for_each_sum<TALL, ACROSS>(row0, key0, [&](u32 query, u32 key, u32 m, u32 n, u32 i) {
            if (n == 0) words = dropout.at(row + query, all_keys, key);
            score[m][n].at[i] *= dropout.kept(word_of(words, key0 % SPAN / SIDE + n));
        });
    }
    if (!is_packed(KIND) && reload_parameters(given).mask != nullptr) {
        const Given<T> &g = reload_parameters(given);
        const Mask mask = mask_of(g.mask_at, g.mask, g.mask_size, at.q, head);
        f32 fill = g.fill;
        for_each_element<TALL, ACROSS>(row0, key0, queries, keys, mask.at.row, mask.at.column,
                                       [&](u32 m, u32 n, u32 i, i64 element) {
            if (mask.hides(element)) score[m][n].at[i] = fill;
        });
    }
    if (!is_packed(KIND) && reload_parameters(given).bias != nullptr) {
        const Given<T> &g = reload_parameters(given);
        const T *bias = g.bias + at.q * g.bias_at.batch + head * g.bias_at.head;
        for_each_element<TALL, ACROSS>(
            row0, key0, queries, keys, g.bias_at.row, g.bias_at.column,
            [&](u32 m, u32 n, u32 i, i64 element) { score[m][n].at[i] += load(bias[element]); });
    }
    // Last, so that no mask and no bias counts outside the window.
    const Window window = reload_parameters(given).window;
    for_each_sum<TALL, ACROSS>(row0, key0, [&](u32 query, u32 key, u32 m, u32 n, u32 i) {
#if CORES_WMMA
        query = recompute_from(query); // as for the plain variant
#endif
        if (!window.sees(query, key, queries, keys)) score[m][n].at[i] = LOWEST<f32>;
        keep_order<true>();
    });
}

// `block_row`: the block's first query in its sequence.
template <i32 WIDE, i32 KIND, class T> DEVICE void attend(const Given<T> &given, u32 batch, u32 head, u32 block_row) {
    using namespace cores;
    typedef Sizes<WIDE> S;
    constexpr u32 PITCH = S::PITCH, STEPS = WIDE / SIDE, TALL = S::TALL, KEYS = S::KEYS, ACROSS = KEYS / SIDE;
    constexpr u32 STAGES = S::STAGES, TILE = S::TILE, ROOM = S::ROOM, ROWS_OF_WARP = S::ROWS_OF_WARP;
    constexpr bool KEPT = S::KEPT;
    BLOCK_ROOM(room, ROOM / 8);
    check_room(ROOM * sizeof(T));
    T *q_tile = (T *)room, *tiles = q_tile + S::QUERIES;
    const Given<T> &g = reload_parameters(given);
    const Sequence at = sequence_of<is_packed(KIND)>(g.s, g.offsets, batch);
    u32 queries = at.queries, keys = at.keys;
    const Window window = g.window;
    u32 row0 = block_row + warp() * ROWS_OF_WARP; // the warp's first query

    Rows q[KEPT ? 1 : TALL][KEPT ? 1 : STEPS];
    constexpr u32 AT_ONCE = KEPT || ROOM / PITCH >= S::ROWS ? S::ROWS : ROOM / PITCH / ROWS_OF_WARP * ROWS_OF_WARP;
    const Copier<AT_ONCE, WIDE, KIND, T> from(g.q, g.q_at, at.q, head, queries, g.s.width);
    sync_threads(); // threads may still read an earlier item's tiles
    UNROLLED
    for (u32 first = 0; first < S::ROWS; first += AT_ONCE) {
        from.copy(block_row + first, q_tile);
        if constexpr (!KEPT) {
            end_copies();
            wait_for_copies<0>();
            sync_threads();
            u32 own = warp() * ROWS_OF_WARP - first;
            if (own < AT_ONCE) {
                const Tile<T, PITCH> tile(q_tile + own * PITCH);
                UNROLLED
                for (u32 m = 0; m < TALL; ++m) {
                    UNROLLED
                    for (u32 d = 0; d < STEPS; ++d) q[m][d] = tile.rows(m * SIDE, d * SIDE);
                }
            }
            sync_threads();
        }
    }
    // Made again for each tile, so that they take no registers between tiles.
    auto k = [&] {
        const Given<T> &g = reload_parameters(given);
        return Copier<KEYS, WIDE, KIND, T>(g.k, g.k_at, at.k, shared_head(head, g.s.group), keys, g.s.width);
    };
    auto v = [&] {
        const Given<T> &g = reload_parameters(given);
        return Copier<KEYS, WIDE, KIND, T>(g.v, g.v_at, at.k, shared_head(head, g.s.group), keys, g.s.values);
    };

    Sums out[TALL][STEPS] = {};
    f32 top[TALL][ROWS], sum[TALL][ROWS];
    UNROLLED
    for (u32 m = 0; m < TALL; ++m) {
        UNROLLED
        for (u32 s = 0; s < ROWS; ++s) top[m][s] = LOWEST<f32>, sum[m][s] = 0.0f;
    }
    // A weight is 2^(unit * (score - top) + SHIFT).
    f32 unit = is_plain(KIND) ? g.scale * LOG2E : LOG2E;
    // The keys that some query sees: of the block, from a tile's first key on, and of the warp.
    u32 last_row = row0 + ROWS_OF_WARP - 1;
    const Range seen = window.keys_of(block_row, block_row + S::ROWS - 1, queries, keys);
    const Range own = window.keys_of(row0, last_row, queries, keys);
    u32 begin = seen.begin / KEYS * KEYS, end = seen.end;

    if (begin < end) {
        k().copy(begin, tiles);
        if (STAGES == 1) end_copies();
        v().copy(begin, tiles + STAGES * TILE);
        end_copies();
    } else { // The block's next item copies its queries to the same place.
        end_copies();
        wait_for_copies<0>();
    }
    u32 stage = 0;
    for (u32 key0 = begin; key0 < end; key0 += KEYS) {
        wait_for_copies<STAGES == 1 ? 1 : 0>();
        sync_threads();
        if (STAGES == 2 && key0 + KEYS < end) {
            k().copy(key0 + KEYS, tiles + (stage ^ 1) * TILE);
            v().copy(key0 + KEYS, tiles + (2 + (stage ^ 1)) * TILE);
            end_copies();
        }
        bool has_keys = key0 < own.end && key0 + KEYS > own.begin;
        Sums score[TALL][ACROSS] = {};
        if (has_keys) {
            const Tile<T, PITCH> tile(tiles + stage * TILE), rows(q_tile + warp() * ROWS_OF_WARP * PITCH);
            UNROLLED
            for (u32 d = 0; d < STEPS; ++d) {
                Rows left[TALL];
                UNROLLED
                for (u32 m = 0; m < TALL; ++m) {
                    if constexpr (KEPT) left[m] = rows.rows(m * SIDE, d * SIDE);
                    else left[m] = q[m][d];
                }
                UNROLLED
                for (u32 n = 0; n < ACROSS; ++n) {
                    Columns columns = tile.columns(n * SIDE, d * SIDE);
                    UNROLLED
                    for (u32 m = 0; m < TALL; ++m) multiply<T>(left[m], columns, score[m][n]);
                }
                keep_order();
            }
        }
        if (STAGES == 1) {
            sync_threads();
            if (key0 + KEYS < end) k().copy(key0 + KEYS, tiles);
            end_copies();
        }
        Rows weights[TALL][ACROSS];
        if (has_keys) {
            if constexpr (is_plain(KIND)) {
                // Whether some query of the warp does not see some key of the tile.
                u32 last_key = key0 + KEYS - 1;
                if (!window.sees(row0, last_key, queries, keys) || !window.sees(last_row, key0, queries, keys)) {
                    for_each_sum<TALL, ACROSS>(row0, key0, [&](u32 query, u32 key, u32 m, u32 n, u32 i) {
#if CORES_WMMA
                        // Otherwise the compiler would keep the distances to all keys in registers.
                        query = recompute_from(query);
#endif
                        if (!window.sees(query, key, queries, keys)) score[m][n].at[i] = LOWEST<f32>;
                        keep_order<true>();
                    });
                }
            } else {
                change_scores<KIND>(given, at, head, row0, key0, score);
            }
            UNROLLED
            for (u32 m = 0; m < TALL; ++m) {
                f32 base[ROWS], fade[ROWS], far[ROWS];
                bool some_far = false;
                UNROLLED
                for (u32 s = 0; s < ROWS; ++s) {
                    f32 peak = top[m][s];
                    UNROLLED
                    for (u32 n = 0; n < ACROSS; ++n) {
                        UNROLLED
                        for (u32 i = 0; i < ELEMENTS; ++i) {
                            if (slot_of(i) == s) peak = Maximum()(peak, score[m][n].at[i]);
                        }
                    }
                    peak = along_row(peak, Maximum());
                    f32 subtracted = base_of(peak), whole = subtracted * unit;
                    fade[s] = power2((top[m][s] - subtracted) * unit);
                    bool is_far = !(whole > -FAR && whole < FAR);
                    far[s] = is_far ? subtracted : 0.0f;
                    base[s] = is_far ? -SHIFT<T> : whole - SHIFT<T>;
                    some_far = some_far || is_far;
                    top[m][s] = peak;
                    sum[m][s] *= fade[s];
                }
                UNROLLED
                for (u32 c = 0; c < STEPS; ++c) {
                    UNROLLED
                    for (u32 i = 0; i < ELEMENTS; ++i) out[m][c].at[i] *= fade[slot_of(i)];
                }
                if (some_far) {
                    UNROLLED
                    for (u32 n = 0; n < ACROSS; ++n) {
                        UNROLLED
                        for (u32 i = 0; i < ELEMENTS; ++i) score[m][n].at[i] -= far[slot_of(i)];
                    }
                }
                UNROLLED
                for (u32 n = 0; n < ACROSS; ++n) {
                    UNROLLED
                    for (u32 i = 0; i < ELEMENTS; ++i) {
                        f32 weight = power2(score[m][n].at[i] * unit - base[slot_of(i)]);
                        score[m][n].at[i] = weight;
                        sum[m][slot_of(i)] += weight; // of this lane's keys
                    }
                    weights[m][n] = rows_of<T>(score[m][n]);
                    keep_order<true>();
                }
            }
        }
        if (STAGES == 1) {
            wait_for_copies<1>();
            sync_threads();
        }
        if (has_keys) {
            const Tile<T, PITCH> tile(tiles + (STAGES + stage) * TILE);
            UNROLLED
            for (u32 n = 0; n < ACROSS; ++n) {
                UNROLLED
                for (u32 c = 0; c < STEPS; ++c) {
                    Columns columns = tile.turned(n * SIDE, c * SIDE);
                    UNROLLED
                    for (u32 m = 0; m < TALL; ++m) multiply<T>(weights[m][n], columns, out[m][c]);
                    if (c % 2 == 1) keep_order();
                }
            }
        }
        if (STAGES == 1) {
            sync_threads();
            if (key0 + KEYS < end) v().copy(key0 + KEYS, tiles + TILE);
            end_copies();
        } else {
            stage ^= 1;
        }
    }

    const Given<T> &again = reload_parameters(given);
    u32 values = (u32)again.s.values;
    T *first = again.out + at.q * again.out_at.batch + head * again.out_at.head;
    u64 sums_row = first_row<is_packed(KIND)>(again.s, at, head);
    i64 step = again.out_at.row;
    UNROLLED
    for (u32 m = 0; m < TALL; ++m) {
        f32 factor[ROWS];
        UNROLLED
        for (u32 s = 0; s < ROWS; ++s) {
            u32 query = row0 + m * SIDE + row_of(s);
            f32 base = base_of(top[m][s]), total = along_row(sum[m][s], Plus());
            if (again.quiet) total += power2(SHIFT<T> - base * unit);
            factor[s] = share(total);
            if (is_plain(KIND)) base = rounded_product(base, again.scale);
            if (again.sums != nullptr && column_of(0) == 0 && query < queries)
                again.sums[sums_row + query] = RowSum<f32>{base, factor[s] * SHIFTED<T>};
        }
        auto row = [=](u32 slot) {
            u32 query = row0 + m * SIDE + row_of(slot);
            return query < queries ? first + (i64)query * step : nullptr;
        };
        UNROLLED
        for (u32 c = 0; c < STEPS; ++c)
            write_sums<T>(out[m][c], c * SIDE, values, row, [&](u32 slot) { return factor[slot]; });
    }
}

#endif

// out = softmax(window(mask(dropout(cap(scale q k^T))) + bias)) v for heads of up to WIDE features,
// where the score of a hidden key is `fill`, and `window` replaces the scores of keys outside by
// -inf. Every operand has strides; the output's last axis is contiguous and its other strides are
// multiples of `values`. Each row's RowSum goes to sums[pair, query]. Launched with THREADS
// threads; any number of blocks works. Tiles of keys that no query of a block sees are not read.
// PACKED: the queries of a sequence see that sequence's keys alone, and its results read nothing
// outside it; the rows' sums are sums[head, row] of all rows.
template <class T, i32 WIDE, i32 KIND>
__global__ __launch_bounds__(THREADS) void attention_matrix(Shape s, View q_at, View k_at, View v_at, View mask_at,
                                                            View bias_at, View out_at, const T *q, const T *k,
                                                            const T *v, const u8 *mask, const T *bias,
                                                            const i32 *offsets, compute_t<T> scale, compute_t<T> cap,
                                                            Window window, u32 mask_size, compute_t<T> fill, u32 quiet,
                                                            u64 seed, u64 call, u32 dropping, u32 last,
                                                            compute_t<T> factor, T *out, RowSum<compute_t<T>> *sums) {
#if HAS_CORES
    constexpr u32 SIZE = Sizes<WIDE>::ROWS;
    Given<T> given{s,     q_at, k_at, v_at,     mask_at, bias_at, out_at, q,         k,
                   v,     mask, bias, offsets,  scale,   cap,     window, mask_size, fill,
                   quiet, seed, call, dropping, last,    factor,  out,    sums};
    // No `for_each_row`: AMD's compiler does not inline a lambda of this size.
    for (i64 item = blockIdx.x;; item += gridDim.x) {
        const Given<T> &g = reload_parameters(given);
        const Order order = g.window.grows() ? LAST_FIRST : BY_PAIR;
        if constexpr (is_packed(KIND)) {
            typedef PackedPlace<SIZE> P;
            if ((u64)item >= P::items(g.s.queries, g.s.pairs, g.s.heads)) break;
            const P at(item, g.s.pairs, g.s.heads, g.offsets, order);
            if (at.exists) attend<WIDE, KIND>(given, at.batch, at.head, at.row);
        } else {
            i64 tiles = (g.s.queries + SIZE - 1) / SIZE;
            if (item >= g.s.pairs * tiles) break;
            const Place at(item, g.s.pairs, tiles, order);
            u32 batch = (u32)at.pair / (u32)g.s.heads, head = (u32)at.pair - batch * (u32)g.s.heads;
            attend<WIDE, KIND>(given, batch, head, (u32)(at.tile * SIZE));
        }
    }
#endif
}
