// The gradients of scaled dot-product attention, softmax(scale q k^T) v, without storing the
// scores: FlashAttention-2's backward pass (Dao 2023, algorithm 2). It is split into two kernels,
// so that every sum has a fixed order. One takes a tile of keys through all queries, for the
// gradients of keys and values; the other takes a tile of queries through all keys, for the
// queries' gradient. Each recomputes the scores, and the weights from them and from the row sums
// that the forward kernel stored.
#include "attention_sequences.h"
#include "attention_stage.h"
#include "block_product.h"
#include "prelude.h"
#include "rounded.h"

// The kernels' parameters, in their order.
template <class T> struct Given {
    using C = compute_t<T>;
    Shape s;
    View q_at, k_at, v_at, grad_at, mask_at;
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
    T *out, *other;
};

// The most features of a head. Beyond it the host composes attention of several kernels.
constexpr u32 WIDEST = 128;

// The variants of the kernels. PACKED has packed sequences (`attention_sequences.h`) and no mask.
constexpr i32 PADDED = 0, PACKED = 1;

// The parameters in the form that a tile of scores needs.
template <class T, i32 KIND> struct Inputs {
    using C = compute_t<T>;
    Sequence at;
    u32 queries, keys, width, values;
    u32 all_keys; // of all sequences
    View q_at, k_at, v_at, grad_at;
    const T *q, *k, *v, *grad; // of one batch and head
    Mask mask;
    const RowSum<C> *sums;
    const C *dots;
    C scale, fill;
    Window window;
    Dropout<C> dropout;
    u64 row0; // the first row of the batch and head

    DEVICE Inputs(const Given<T> &g, i64 batch, i64 head)
        : at(sequence_of < KIND == PACKED > (g.s, g.offsets, (u32)batch)), queries(at.queries), keys(at.keys),
          width((u32)g.s.width), values((u32)g.s.values), all_keys((u32)g.s.keys), q_at(g.q_at), k_at(g.k_at),
          v_at(g.v_at), grad_at(g.grad_at), scale(g.scale), fill(g.fill), window(g.window),
          dropout{stream_of(g.seed, g.call), g.dropping, g.last, g.factor},
          row0(first_row < KIND == PACKED > (g.s, at, (u32)head)) {
        auto first = [=](const View &of, i64 batch, i64 head) { return batch * of.batch + head * of.head; };
        i64 shared = shared_head(head, g.s.group);
        q = g.q + first(q_at, at.q, head);
        k = g.k + first(k_at, at.k, shared);
        v = g.v + first(v_at, at.k, shared);
        grad = g.grad + first(grad_at, at.q, head);
        mask = mask_of(g.mask_at, KIND == PACKED ? nullptr : g.mask, g.mask_size, batch, head);
        sums = g.sums + row0;
        dots = g.dots + row0;
    }
    // A gradient of `heads` heads that begins with this batch and head, and the elements from one
    // of its rows to the next. It is packed: [rows, heads, columns] of sequences, whose first row
    // is `first`, else [batch, heads, rows, columns].
    static DEVICE T *part(T *gradient, u32 first, i64 heads, i64 head, u32 rows, u32 columns, u64 &step) {
        step = KIND == PACKED ? (u64)heads * columns : columns;
        if constexpr (KIND == PACKED) return gradient + first * step + (u64)head * columns;
        return gradient + ((u64)first * heads + head) * rows * columns;
    }
    // The keys that some query in first..=last sees, and the reverse.
    DEVICE Range keys_of(u32 first, u32 last) const { return window.keys_of(first, last, queries, keys); }
    DEVICE Range queries_of(u32 first, u32 last) const { return window.queries_of(first, last, queries, keys); }
    DEVICE bool sees(u32 query, u32 key) const { return window.sees(query, key, queries, keys); }
    // On entry `weight` is q k^T and `by_score` the product of v and the output's gradient. On return they
    // are the weight and the gradient with respect to q k^T.
    DEVICE void gradient(u32 query, u32 key, u32 word, C &weight, C &by_score) const {
        // The score is rounded before the greatest one is subtracted, with and without a mask: a packed
        // sequence has the bits of the padded form.
        C kept = dropout.on ? dropout.kept(word) * scale : scale, score = product(weight, kept);
        if (mask.from != nullptr && mask.hides(query, key)) {
            score = fill;
            kept = (C)0;
        }
        weight = math::exp(score - sums[query].base) * sums[query].factor;
        by_score = kept == (C)0 ? (C)0 : weight * (by_score - dots[query]) * kept;
    }
};

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP

// ---------------------------------------------------------------- one thread a block

constexpr u32 TILE = 64; // queries and keys of a tile
template <class C> constexpr u32 TILE_OF = TILE;

// The next three functions copy rows row0.. of an operand, 0 past its end: in row order, in column
// order, and in groups of GROUP rows in column order.
template <class T, class C>
DEVICE void pack_rows(const T *from, const View &at, u32 row0, u32 rows, u32 columns, u32 pitch, C *to) {
    for (u32 r = 0; r < TILE; ++r) {
        const T *row = from + (i64)(row0 + r) * at.row;
        u32 inside = row0 + r < rows ? columns : 0;
        for (u32 c = 0; c < inside; ++c) to[r * pitch + c] = load(row[(i64)c * at.column]);
        for (u32 c = inside; c < pitch; ++c) to[r * pitch + c] = (C)0;
    }
}
template <class C> DEVICE void turn_rows(const C *rows, u32 columns, u32 pitch, C *to) {
    for (u32 c = 0; c < columns; ++c) {
        for (u32 r = 0; r < TILE; ++r) to[c * TILE + r] = rows[r * pitch + c];
    }
}
template <class C> DEVICE void group_rows(const C *rows, u32 columns, u32 pitch, C *to) {
    for (u32 g = 0; g < TILE; g += GROUP) {
        for (u32 c = 0; c < columns; ++c) {
            for (u32 r = 0; r < GROUP; ++r) to[g * columns + c * GROUP + r] = rows[(g + r) * pitch + c];
        }
    }
}

// The queries' or the keys' side of a tile: rows of features, and rows of the output's gradient
// (queries) or of values (keys).
template <class C> struct Side {
    C features[TILE * WIDEST], values[TILE * WIDEST];
};

// The tile's weights and the gradients with respect to q k^T, 0 outside. `q` is laid out by
// `group_rows`, `k` by `turn_rows`.
template <i32 KIND, class T, class C = compute_t<T>>
DEVICE void tile_gradients(const Inputs<T, KIND> &p, u32 query0, u32 key0, const Side<C> &q, const Side<C> &k,
                           C *weights, C *grads) {
    constexpr u32 PANEL = ABREAST * lanes<C>::count;
    for (u32 i = 0; i < TILE * TILE; ++i) weights[i] = grads[i] = (C)0;
    for (u32 c = 0; c < TILE; c += PANEL) {
        for (u32 g = 0; g < TILE; g += GROUP) {
            block_product<1, GROUP>(p.width, q.features + g * p.width, k.features + c, TILE, weights + g * TILE + c,
                                    TILE);
            block_product<1, GROUP>(p.values, q.values + g * p.values, k.values + c, TILE, grads + g * TILE + c, TILE);
        }
    }
    u32 count = p.keys - key0 < TILE ? p.keys - key0 : TILE;
    for (u32 r = 0; r < TILE; ++r) {
        u32 query = query0 + r;
        Range seen = query < p.queries ? p.keys_of(query, query) : Range{0, 0};
        u32 begin = seen.begin < key0 ? 0 : seen.begin - key0, end = seen.end < key0 ? 0 : seen.end - key0;
        end = end < count ? end : count;
        begin = begin < end ? begin : end;
        C *w = weights + r * TILE, *g = grads + r * TILE;
        u32 word[TILE] = {};
        if (p.dropout.on && begin < end) {
            static_assert(TILE == SPAN, "one span of words a tile");
            for (u32 l = 0; l < BLOCKS; ++l) {
                Words words = p.dropout.at(p.row0 + query, p.all_keys, key0 + l);
                for (u32 b = 0; b < APART; ++b) word[b * BLOCKS + l] = words.w[b];
            }
        }
        if (p.dropout.on || p.mask.from != nullptr) {
            for (u32 j = begin; j < end; ++j) p.gradient(query, key0 + j, word[j], w[j], g[j]);
        } else if (begin < end) {
            C scale = p.scale, base = p.sums[query].base, factor = p.sums[query].factor, dot = p.dots[query];
            INDEPENDENT
            for (u32 j = begin; j < end; ++j) {
                w[j] = math::exp(w[j] * scale - base) * factor;
                g[j] = w[j] * (g[j] - dot) * scale;
            }
        }
        for (u32 j = 0; j < begin; ++j) w[j] = g[j] = (C)0;
        for (u32 j = end; j < TILE; ++j) w[j] = g[j] = (C)0;
    }
}

// sums[row][column] += the product of the tile [query][key] and rows of the other side. With BY_KEY
// the sum is over queries.
template <bool BY_KEY, class C> DEVICE void add_product(const C *tile, const C *rows, u32 pitch, C *sums) {
    constexpr u32 PANEL = ABREAST * lanes<C>::count;
    for (u32 c = 0; c < pitch; c += PANEL) {
        for (u32 g = 0; g < TILE; g += GROUP) {
            const C *from = tile + (BY_KEY ? g : g * TILE);
            block_product<BY_KEY ? 1 : TILE, BY_KEY ? TILE : 1>(TILE, from, rows + c, pitch, sums + g * pitch + c,
                                                                pitch);
        }
    }
}
template <class T, class C>
DEVICE void write_rows(const C *sums, u32 pitch, u32 row0, u32 rows, u32 columns, T *out, u64 step) {
    for (u32 r = 0; r < TILE && row0 + r < rows; ++r) {
        for (u32 c = 0; c < columns; ++c) out[(row0 + r) * step + c] = store<T>::from(sums[r * pitch + c]);
    }
}

// `shared` is a head of keys.
template <i32 KIND, class T> DEVICE void by_keys(const Given<T> &given, i64 batch, i64 shared, u32 key0) {
    using C = compute_t<T>;
    const Inputs<T, KIND> first(given, batch, shared * given.s.group);
    constexpr u32 PANEL = ABREAST * lanes<C>::count;
    Side<C> q, k;
    C rows[TILE * WIDEST], grad_rows[TILE * WIDEST], weights[TILE * TILE], grads[TILE * TILE];
    C key_sums[TILE * WIDEST] = {}, value_sums[TILE * WIDEST] = {};
    u32 wide = round_up(first.width, PANEL), long_ = round_up(first.values, PANEL);
    pack_rows(first.k, first.k_at, key0, first.keys, first.width, wide, rows);
    turn_rows(rows, first.width, wide, k.features);
    pack_rows(first.v, first.v_at, key0, first.keys, first.values, long_, rows);
    turn_rows(rows, first.values, long_, k.values);
    Range seeing = first.queries_of(key0, key0 + TILE - 1);
    for (i64 member = 0; member < given.s.group; ++member) {
        const Inputs<T, KIND> p(given, batch, shared * given.s.group + member);
        for (u32 query0 = seeing.begin / TILE * TILE; query0 < seeing.end; query0 += TILE) {
            pack_rows(p.q, p.q_at, query0, p.queries, p.width, wide, rows);
            group_rows(rows, p.width, wide, q.features);
            pack_rows(p.grad, p.grad_at, query0, p.queries, p.values, long_, grad_rows);
            group_rows(grad_rows, p.values, long_, q.values);
            tile_gradients<KIND>(p, query0, key0, q, k, weights, grads);
            add_product<true>(weights, grad_rows, long_, value_sums);
            add_product<true>(grads, rows, wide, key_sums);
        }
    }
    i64 heads = given.s.heads / given.s.group;
    u64 step;
    T *by_key = first.part(given.out, first.at.k, heads, shared, first.keys, first.width, step);
    write_rows(key_sums, wide, key0, first.keys, first.width, by_key, step);
    T *by_value = first.part(given.other, first.at.k, heads, shared, first.keys, first.values, step);
    write_rows(value_sums, long_, key0, first.keys, first.values, by_value, step);
}

template <i32 KIND, class T> DEVICE void by_queries(const Given<T> &given, i64 batch, i64 head, u32 query0) {
    using C = compute_t<T>;
    const Inputs<T, KIND> p(given, batch, head);
    constexpr u32 PANEL = ABREAST * lanes<C>::count;
    Side<C> q, k;
    C rows[TILE * WIDEST], weights[TILE * TILE], grads[TILE * TILE], sums[TILE * WIDEST] = {};
    u32 wide = round_up(p.width, PANEL), long_ = round_up(p.values, PANEL);
    pack_rows(p.q, p.q_at, query0, p.queries, p.width, wide, rows);
    group_rows(rows, p.width, wide, q.features);
    pack_rows(p.grad, p.grad_at, query0, p.queries, p.values, long_, rows);
    group_rows(rows, p.values, long_, q.values);
    Range seen = p.keys_of(query0, query0 + TILE - 1);
    for (u32 key0 = seen.begin / TILE * TILE; key0 < seen.end; key0 += TILE) {
        pack_rows(p.v, p.v_at, key0, p.keys, p.values, long_, rows);
        turn_rows(rows, p.values, long_, k.values);
        pack_rows(p.k, p.k_at, key0, p.keys, p.width, wide, rows);
        turn_rows(rows, p.width, wide, k.features);
        tile_gradients<KIND>(p, query0, key0, q, k, weights, grads);
        add_product<false>(grads, rows, wide, sums);
    }
    u64 step;
    T *out = p.part(given.out, p.at.q, given.s.heads, head, p.queries, p.width, step);
    write_rows(sums, wide, query0, p.queries, p.width, out, step);
}

#else

// ---------------------------------------------------------------- 256 threads a block

constexpr u32 SIDE = 16, COLUMNS = 64, ABREAST_COLUMNS = COLUMNS / SIDE, PARTS = WIDEST / COLUMNS;

// A tile has as many queries as keys. It uses 33 KB of shared memory, or 25 KB in f64.
template <class C> struct Tile {
    static constexpr u32 SIZE = sizeof(C) == 8 ? 32 : 64, DEPTH = sizeof(C) == 8 ? 16 : 32, MICRO = SIZE / SIDE;
    static constexpr u32 PITCH = SIZE + 1; // so that writes down a column use different banks
    static constexpr u32 STAGED = max_size(2 * DEPTH * PITCH, (SIZE * COLUMNS));
};

// sum[i][j] += the product of row left0 + i * 16 + ty of one operand and row right0 + j * 16 + tx
// of the other.
template <u32 M, class T, class C>
DEVICE void tile_product(const T *left, const View &left_at, u32 left0, u32 lefts, const T *right, const View &right_at,
                         u32 right0, u32 rights, u32 width, C *staged, C (&sum)[M][M]) {
    using S = Tile<C>;
    constexpr u32 SECOND = S::DEPTH * S::PITCH;
    u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    for (u32 d0 = 0; d0 < width; d0 += S::DEPTH) {
        sync_threads(); // threads may still read what was staged before
        stage<S::SIZE, S::DEPTH>(left, left_at, left0, lefts, d0, width, 1, S::PITCH, staged);
        stage<S::SIZE, S::DEPTH>(right, right_at, right0, rights, d0, width, 1, S::PITCH, staged + SECOND);
        sync_threads();
        for (u32 d = 0; d < S::DEPTH; ++d) {
            C x[M], y[M];
            UNROLLED
            for (u32 i = 0; i < M; ++i) x[i] = staged[d * S::PITCH + i * SIDE + ty];
            UNROLLED
            for (u32 j = 0; j < M; ++j) y[j] = staged[SECOND + d * S::PITCH + j * SIDE + tx];
            UNROLLED
            for (u32 i = 0; i < M; ++i) {
                UNROLLED
                for (u32 j = 0; j < M; ++j) sum[i][j] += x[i] * y[j];
            }
        }
    }
}

// The weights of a tile and the gradients with respect to q k^T, for queries i * 16 + ty and keys j
// * 16 + tx; 0 outside.
template <i32 KIND, u32 M, class T, class C>
DEVICE void tile_gradients(const Given<T> &given, i64 batch, i64 head, u32 query0, u32 key0, C *staged,
                           C (&weight)[M][M], C (&grad)[M][M]) {
    u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    UNROLLED
    for (u32 i = 0; i < M; ++i) {
        UNROLLED
        for (u32 j = 0; j < M; ++j) weight[i][j] = grad[i][j] = (C)0;
    }
    {
        const Inputs<T, KIND> p(reload_parameters(given), batch, head);
        tile_product(p.q, p.q_at, query0, p.queries, p.k, p.k_at, key0, p.keys, p.width, staged, weight);
    }
    {
        const Inputs<T, KIND> p(reload_parameters(given), batch, head);
        tile_product(p.grad, p.grad_at, query0, p.queries, p.v, p.v_at, key0, p.keys, p.values, staged, grad);
    }
    const Inputs<T, KIND> p(reload_parameters(given), batch, head);
    UNROLLED
    for (u32 i = 0; i < M; ++i) {
        u32 query = query0 + i * SIDE + ty;
        Words words = {};
        if (p.dropout.on) words = p.dropout.at(p.row0 + query, p.all_keys, key0 + tx);
        UNROLLED
        for (u32 j = 0; j < M; ++j) {
            u32 key = key0 + j * SIDE + tx;
            bool seen = query < p.queries && p.sees(query, key);
            if (seen) p.gradient(query, key, word_of(words, key0 % SPAN / SIDE + j), weight[i][j], grad[i][j]);
            else weight[i][j] = grad[i][j] = (C)0;
        }
    }
}

// sum[i][c][j] += the product of column i * 16 + ty of `tile`, whose rows are `pitch` apart, and
// column 64 c + 16 j + tx of rows row0.. of an operand.
template <u32 M, class T, class C>
DEVICE void add_product(const C *tile, const T *from, const View &at, u32 row0, u32 rows, u32 columns, C *staged,
                        C (&sum)[M][PARTS][ABREAST_COLUMNS]) {
    using S = Tile<C>;
    u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    UNROLLED
    for (u32 c = 0; c < PARTS; ++c) {
        if (c * COLUMNS < columns) {
            sync_threads(); // waits until `tile` is written and what was staged has been read
            stage<S::SIZE, COLUMNS>(from, at, row0, rows, c * COLUMNS, columns, COLUMNS, 1, staged);
            sync_threads();
            for (u32 row = 0; row < S::SIZE; ++row) {
                C x[M], y[ABREAST_COLUMNS];
                UNROLLED
                for (u32 i = 0; i < M; ++i) x[i] = tile[row * S::PITCH + i * SIDE + ty];
                UNROLLED
                for (u32 j = 0; j < ABREAST_COLUMNS; ++j) y[j] = staged[row * COLUMNS + j * SIDE + tx];
                UNROLLED
                for (u32 i = 0; i < M; ++i) {
                    UNROLLED
                    for (u32 j = 0; j < ABREAST_COLUMNS; ++j) sum[i][c][j] += x[i] * y[j];
                }
            }
        }
    }
}

template <u32 M, class T, class C>
DEVICE void write_rows(const C (&sum)[M][PARTS][ABREAST_COLUMNS], u32 row0, u32 rows, u32 columns, T *out, u64 step) {
    u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    UNROLLED
    for (u32 i = 0; i < M; ++i) {
        u32 row = row0 + i * SIDE + ty;
        UNROLLED
        for (u32 c = 0; c < PARTS; ++c) {
            UNROLLED
            for (u32 j = 0; j < ABREAST_COLUMNS; ++j) {
                u32 column = c * COLUMNS + j * SIDE + tx;
                if (row < rows && column < columns) out[row * step + column] = store<T>::from(sum[i][c][j]);
            }
        }
    }
}

// Stores the tile in shared memory: tile[query * PITCH + key], or with BY_KEY tile[key * PITCH +
// query].
template <bool BY_KEY, u32 M, class C> DEVICE void keep_tile(const C (&value)[M][M], C *tile) {
    constexpr u32 PITCH = Tile<C>::PITCH;
    u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    sync_threads(); // threads may still read the tile
    UNROLLED
    for (u32 i = 0; i < M; ++i) {
        UNROLLED
        for (u32 j = 0; j < M; ++j) {
            u32 query = i * SIDE + ty, key = j * SIDE + tx;
            tile[BY_KEY ? query * PITCH + key : key * PITCH + query] = value[i][j];
        }
    }
}

// `shared` is a head of keys.
template <i32 KIND, class T> DEVICE void by_keys(const Given<T> &given, i64 batch, i64 shared, u32 key0) {
    using C = compute_t<T>;
    using S = Tile<C>;
    constexpr u32 M = S::MICRO, TILE = S::SIZE;
    SHARED(C, staged_part, S::STAGED);
    SHARED(C, whole_tile, TILE * S::PITCH);
    C *staged = staged_part, *tile = whole_tile;
    C key_sums[M][PARTS][ABREAST_COLUMNS] = {}, value_sums[M][PARTS][ABREAST_COLUMNS] = {};
    i64 head = shared * given.s.group;
    Range seeing = Inputs<T, KIND>(given, batch, head).queries_of(key0, key0 + TILE - 1);
    for (u32 left = (u32)given.s.group; left > 0; --left, ++head) {
        for (u32 query0 = seeing.begin / TILE * TILE; query0 < seeing.end; query0 += TILE) {
            C weight[M][M], grad[M][M];
            tile_gradients<KIND>(given, batch, head, query0, key0, staged, weight, grad);
            keep_tile<true>(weight, tile);
            {
                const Inputs<T, KIND> p(reload_parameters(given), batch, head);
                add_product(tile, p.grad, p.grad_at, query0, p.queries, p.values, staged, value_sums);
            }
            keep_tile<true>(grad, tile);
            const Inputs<T, KIND> p(reload_parameters(given), batch, head);
            add_product(tile, p.q, p.q_at, query0, p.queries, p.width, staged, key_sums);
        }
    }
    const Given<T> &g = reload_parameters(given);
    const Inputs<T, KIND> p(g, batch, shared * g.s.group);
    i64 heads = (u32)g.s.heads / (u32)g.s.group;
    u64 step;
    T *by_key = p.part(g.out, p.at.k, heads, shared, p.keys, p.width, step);
    write_rows(key_sums, key0, p.keys, p.width, by_key, step);
    T *by_value = p.part(g.other, p.at.k, heads, shared, p.keys, p.values, step);
    write_rows(value_sums, key0, p.keys, p.values, by_value, step);
}

template <i32 KIND, class T> DEVICE void by_queries(const Given<T> &given, i64 batch, i64 head, u32 query0) {
    using C = compute_t<T>;
    using S = Tile<C>;
    constexpr u32 M = S::MICRO, TILE = S::SIZE;
    SHARED(C, staged_part, S::STAGED);
    SHARED(C, whole_tile, TILE * S::PITCH);
    C *staged = staged_part, *tile = whole_tile;
    C sums[M][PARTS][ABREAST_COLUMNS] = {};
    Range seen = Inputs<T, KIND>(given, batch, head).keys_of(query0, query0 + TILE - 1);
    for (u32 key0 = seen.begin / TILE * TILE; key0 < seen.end; key0 += TILE) {
        C weight[M][M], grad[M][M];
        tile_gradients<KIND>(given, batch, head, query0, key0, staged, weight, grad);
        keep_tile<false>(grad, tile);
        const Inputs<T, KIND> p(reload_parameters(given), batch, head);
        add_product(tile, p.k, p.k_at, key0, p.keys, p.width, staged, sums);
    }
    const Given<T> &g = reload_parameters(given);
    const Inputs<T, KIND> p(g, batch, head);
    u64 step;
    T *out = p.part(g.out, p.at.q, g.s.heads, head, p.queries, p.width, step);
    write_rows(sums, query0, p.queries, p.width, out, step);
}

template <class C> constexpr u32 TILE_OF = Tile<C>::SIZE;

#endif

// Calls f(batch, head, row) for each tile of SIZE keys of the heads of keys, or of queries of
// theirs.
template <i32 KIND, bool KEYS, u32 SIZE, class T, class F> DEVICE void for_each_tile(const Given<T> &given, F f) {
    auto rows = [](const Given<T> &g) { return KEYS ? g.s.keys : g.s.queries; };
    auto heads = [](const Given<T> &g) { return KEYS ? (i64)((u32)g.s.heads / (u32)g.s.group) : g.s.heads; };
    if constexpr (KIND == PACKED) {
        for_each_row(PackedPlace<SIZE>::items(rows(given), given.s.pairs, heads(given)), [=](u64 item) {
            const Given<T> &g = reload_parameters(given);
            const PackedPlace<SIZE> at(item, g.s.pairs, heads(g), KEYS ? g.offsets + g.s.pairs + 1 : g.offsets,
                                       BY_PAIR);
            if (at.exists) f((i64)at.batch, (i64)at.head, at.row);
        });
    } else {
        for_each_row((u64)(given.s.pairs / given.s.heads * heads(given) * ((rows(given) + SIZE - 1) / SIZE)),
                     [=](u64 item) {
            const Given<T> &g = reload_parameters(given);
            i64 tiles = (rows(g) + SIZE - 1) / SIZE, pair = (i64)item / tiles, batch = pair / heads(g);
            f(batch, pair - batch * heads(g), (u32)((i64)item - pair * tiles) * SIZE);
        });
    }
}

// The gradients of the keys [pairs / group, keys, width] and values [pairs / group, keys, values],
// packed, each summed over the heads of its group in their order. The other operands have strides.
// PACKED: [rows, heads / group, width] and [rows, heads / group, values]. Launched with blocks of
// 256 threads (or one); any number of blocks works.
template <class T, i32 KIND>
__global__ __launch_bounds__(256) void attention_backward_keys(
    Shape s, View q_at, View k_at, View v_at, View grad_at, View mask_at, const T *q, const T *k, const T *v,
    const T *grad, const u8 *mask, const RowSum<compute_t<T>> *sums, const compute_t<T> *dots, const i32 *offsets,
    compute_t<T> scale, compute_t<T> fill, Window window, u32 mask_size, u64 seed, u64 call, u32 dropping, u32 last,
    compute_t<T> factor, T *by_k, T *by_v) {
    Given<T> given{s,       q_at,  k_at, v_at,   grad_at,   mask_at, q,    k,        v,    grad,   mask, sums, dots,
                   offsets, scale, fill, window, mask_size, seed,    call, dropping, last, factor, by_k, by_v};
    for_each_tile<KIND, true, TILE_OF<compute_t<T>>>(
        given, [=](i64 batch, i64 shared, u32 key0) { by_keys<KIND>(given, batch, shared, key0); });
}

// The gradient of the queries [pairs, queries, width], packed. PACKED: [rows, heads, width].
template <class T, i32 KIND>
__global__ __launch_bounds__(256) void attention_backward_queries(
    Shape s, View q_at, View k_at, View v_at, View grad_at, View mask_at, const T *q, const T *k, const T *v,
    const T *grad, const u8 *mask, const RowSum<compute_t<T>> *sums, const compute_t<T> *dots, const i32 *offsets,
    compute_t<T> scale, compute_t<T> fill, Window window, u32 mask_size, u64 seed, u64 call, u32 dropping, u32 last,
    compute_t<T> factor, T *by_q) {
    Given<T> given{s,       q_at,  k_at, v_at,   grad_at,   mask_at, q,    k,        v,    grad,   mask, sums,   dots,
                   offsets, scale, fill, window, mask_size, seed,    call, dropping, last, factor, by_q, nullptr};
    for_each_tile<KIND, false, TILE_OF<compute_t<T>>>(
        given, [=](i64 batch, i64 head, u32 query0) { by_queries<KIND>(given, batch, head, query0); });
}

// dots[row] = the dot product of the output's row and its gradient's, for each row of batch * heads
// * queries.
template <class T>
__global__ void attention_dots(i64 rows, i64 heads, i64 queries, i64 values, View out_at, View grad_at, const T *out,
                               const T *grad, compute_t<T> *dots) {
    using C = compute_t<T>;
    for_each_row((u64)rows, [=](u64 row) {
        i64 pair = (i64)row / queries, query = (i64)row - pair * queries, batch = pair / heads,
            head = pair - batch * heads;
        auto first = [=](const View &at) { return batch * at.batch + head * at.head + query * at.row; };
        const T *y = out + first(out_at), *g = grad + first(grad_at);
        i64 y_step = out_at.column, g_step = grad_at.column;
        C dot = block_reduce_range((u64)values, (C)0, [=](u64 i) {
            return (C)load(y[(i64)i * y_step]) * (C)load(g[(i64)i * g_step]);
        }, Plus());
        if (threadIdx.x == 0) dots[row] = dot;
    });
}
