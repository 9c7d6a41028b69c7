// Scaled dot-product attention, softmax(q k^T) v, in one kernel: FlashAttention-2 (Dao 2023,
// "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", algorithm 1)
// with the online softmax of Milakov and Gimelshein (2018, "Online normalizer calculation for
// softmax"). A block takes a tile of queries and goes through all keys tile by tile; the scores
// never reach memory. The file also has the window for attention that the host composes of several
// kernels.
#include "attention_sequences.h"
#include "attention_stage.h"
#include "block_product.h"
#include "prelude.h"

// The parameters of `attention`, in their order.
template <class T> struct Given {
    Shape s;
    View q_at, k_at, v_at, mask_at, bias_at;
    const T *q, *k, *v;
    const u8 *mask;          // or null: true hides a key
    const T *bias;           // or null
    const i32 *offsets;      // of packed sequences, or null
    compute_t<T> scale, cap; // cap 0: scores are not capped
    Window window;
    u32 mask_size; // bytes of a bool
    // Only for TRAINED and PACKED:
    compute_t<T> fill; // the score of a hidden key
    u32 quiet;         // whether 1 is added to the sum of exponentials
    u64 seed, call;
    u32 dropping, last;
    compute_t<T> factor;
    T *out;
    RowSum<compute_t<T>> *sums; // or null
};

// The variants of the kernel. PLAIN has neither mask nor bias: their strides would take scalar
// registers that the rest needs. MASKED may have both. TRAINED may have a mask, dropout and a quiet
// softmax, and stores the rows' sums, from which the gradients are computed. PACKED is TRAINED
// without a mask for packed sequences (`attention_sequences.h`).
constexpr i32 PLAIN = 0, MASKED = 1, TRAINED = 2, PACKED = 3;
constexpr bool is_trained(i32 kind) { return kind >= TRAINED; }
constexpr bool has_mask(i32 kind) { return kind == MASKED || kind == TRAINED; }

// The parameters in the form that a tile needs.
template <class T, i32 KIND> struct Inputs {
    using C = compute_t<T>;
    Sequence at;
    u32 queries, keys, width, values;
    u32 all_keys; // of all sequences
    View q_at, k_at, v_at, bias_at;
    const T *q, *k, *v; // of one batch and head
    Mask mask;
    const T *bias;
    C scale, cap, fill;
    Window window;
    bool quiet;
    Dropout<C> dropout;
    RowSum<C> *sums; // or null
    u64 sums_row;
    T *out;
    u64 out_step; // elements from one row of the output to the next

    DEVICE Inputs(const Given<T> &g, i64 batch, i64 head)
        : at(sequence_of < KIND == PACKED > (g.s, g.offsets, (u32)batch)), queries(at.queries), keys(at.keys),
          width((u32)g.s.width), values((u32)g.s.values), all_keys((u32)g.s.keys), q_at(g.q_at), k_at(g.k_at),
          v_at(g.v_at), bias_at(g.bias_at), q(g.q + first(q_at, at.q, head)),
          k(g.k + first(k_at, at.k, shared_head(head, g.s.group))),
          v(g.v + first(v_at, at.k, shared_head(head, g.s.group))),
          mask(mask_of(g.mask_at, g.mask, g.mask_size, batch, head)),
          bias(g.bias == nullptr ? g.bias : g.bias + first(bias_at, batch, head)), scale(g.scale), cap(g.cap),
          fill(g.fill), window(g.window), quiet(g.quiet != 0),
          dropout{stream_of(g.seed, g.call), g.dropping, g.last, g.factor}, sums(g.sums),
          sums_row(first_row < KIND == PACKED > (g.s, at, (u32)head)) {
        // The output is packed: [rows, heads, values] of sequences, else [batch, heads, queries,
        // values].
        if constexpr (KIND == PACKED) {
            out_step = (u64)g.s.heads * values;
            out = g.out + (u64)at.q * out_step + (u64)head * values;
        } else {
            out_step = values;
            out = g.out + sums_row * values;
        }
    }
    static DEVICE i64 first(const View &at, i64 batch, i64 head) { return batch * at.batch + head * at.head; }

    // The keys that some query in first..=last sees.
    DEVICE Range seen(u32 first, u32 last) const { return window.keys_of(first, last, queries, keys); }
    DEVICE bool sees(u32 query, u32 key) const { return window.sees(query, key, queries, keys); }
    DEVICE C added(u32 query, u32 key) const {
        return load(bias[(i64)query * bias_at.row + (i64)key * bias_at.column]);
    }
    DEVICE C capped(C score) const {
        score *= scale;
        return cap > (C)0 ? cap * math::tanh(score / cap) : score;
    }
    // The sum of a row's exponentials relative to `base`. `leave` stores what the gradients need of
    // the row.
    DEVICE C total(C base, C sum) const { return quiet ? sum + math::exp(-base) : sum; }
    DEVICE void leave(u32 query, C base, C factor) const {
        if (sums != nullptr) sums[sums_row + query] = RowSum<C>{base, factor};
    }
};

// The widest head. Beyond it the host composes attention of several kernels.
constexpr u32 WIDEST = 256;

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP

// ---------------------------------------------------------------- one thread a block

constexpr u32 ROWS = 128, KEYS = 64; // queries and keys of a tile

// Turns the scores of one query and a tile of keys into weights, and updates the row's greatest
// score and sum. Returns the factor for earlier weights.
template <i32 KIND, class T, class C = compute_t<T>>
DEVICE C weigh(const Inputs<T, KIND> &p, u32 query, u32 key0, u32 count, C *x, C &top, C &sum) {
    INDEPENDENT
    for (u32 j = 0; j < KEYS; ++j) x[j] *= p.scale;
    if (p.cap > (C)0) {
        INDEPENDENT
        for (u32 j = 0; j < KEYS; ++j) x[j] = p.cap * math::tanh(x[j] / p.cap);
    }
    if (is_trained(KIND) && p.dropout.on) {
        u32 word[KEYS];
        static_assert(KEYS == SPAN, "one span of words a tile");
        for (u32 l = 0; l < BLOCKS; ++l) {
            Words words = p.dropout.at(p.sums_row + query, p.all_keys, key0 + l);
            for (u32 w = 0; w < APART; ++w) word[w * BLOCKS + l] = words.w[w];
        }
        for (u32 j = 0; j < KEYS; ++j) x[j] *= p.dropout.kept(word[j]);
    }
    if (has_mask(KIND) && p.mask.from != nullptr) {
        C hidden = KIND == TRAINED ? p.fill : LOWEST<C>;
        for (u32 j = 0; j < count; ++j) x[j] = p.mask.hides(query, key0 + j) ? hidden : x[j];
    }
    if (KIND == MASKED && p.bias != nullptr) {
        for (u32 j = 0; j < count; ++j) x[j] += p.added(query, key0 + j);
    }
    // Last, so that no mask and no bias counts outside the window.
    Range seen = p.seen(query, query);
    u32 from_key = seen.begin < key0 ? 0 : seen.begin - key0, to_key = seen.end < key0 ? 0 : seen.end - key0;
    for (u32 j = 0; j < from_key && j < KEYS; ++j) x[j] = LOWEST<C>;
    for (u32 j = to_key; j < KEYS; ++j) x[j] = LOWEST<C>;
    const C *from = x;
    C next = Larger()(top, block_reduce_range(KEYS, LOWEST<C>, [=](u64 j) { return from[j]; }, Larger()));
    C base = base_of(next), fade = math::exp(top - base);
    INDEPENDENT
    for (u32 j = 0; j < KEYS; ++j) x[j] = math::exp(x[j] - base);
    sum = sum * fade + block_reduce_range(KEYS, (C)0, [=](u64 j) { return from[j]; }, Plus());
    top = next;
    return fade;
}

// A block's working memory. It has up to 854 KB, too much for the stack of a thread that an
// application made.
template <class C> struct Tile {
    C q[ROWS * WIDEST], k[WIDEST * KEYS], v[KEYS * WIDEST], scores[ROWS * KEYS], sums[ROWS * WIDEST], top[ROWS],
        sum[ROWS];
};

template <i32 KIND, class T> DEVICE void attend(const Given<T> &given, i64 batch, i64 head, u32 row0) {
    using C = compute_t<T>;
    const Inputs<T, KIND> p(given, batch, head);
    constexpr u32 PANEL = ABREAST * lanes<C>::count;
    Tile<C> &tile = *(Tile<C> *)hip_cpu_scratch(sizeof(Tile<C>));
    // __restrict holds because no other pointer of this function points into the tile.
    C *__restrict q = tile.q, *__restrict k = tile.k, *__restrict v = tile.v, *__restrict scores = tile.scores,
                  *__restrict sums = tile.sums, *__restrict top = tile.top, *__restrict sum = tile.sum;
    u32 rows = p.queries - row0 < ROWS ? p.queries - row0 : ROWS, groups = (rows + GROUP - 1) / GROUP;
    u32 pitch = round_up(p.values, PANEL);     // elements of a row of values
    for (u32 r = 0; r < groups * GROUP; ++r) { // q: [group][column][row of the group]
        C *to = q + r / GROUP * GROUP * p.width + r % GROUP;
        const T *from = p.q + (i64)(row0 + r) * p.q_at.row;
        for (u32 d = 0; d < p.width; ++d) to[d * GROUP] = r < rows ? load(from[(i64)d * p.q_at.column]) : (C)0;
        top[r] = LOWEST<C>;
        sum[r] = (C)0;
    }
    for (u32 i = 0; i < groups * GROUP * pitch; ++i) sums[i] = (C)0;
    bool packed = is_same<T, C>::value && p.v_at.column == 1 && pitch == p.values;
    Range seen = p.seen(row0, row0 + rows - 1);
    for (u32 key0 = seen.begin / KEYS * KEYS; key0 < seen.end; key0 += KEYS) {
        u32 count = p.keys - key0 < KEYS ? p.keys - key0 : KEYS;
        for (u32 d = 0; d < p.width; ++d) { // k: [column][key]
            const T *from = p.k + (i64)key0 * p.k_at.row + (i64)d * p.k_at.column;
            for (u32 j = 0; j < count; ++j) k[d * KEYS + j] = load(from[(i64)j * p.k_at.row]);
            for (u32 j = count; j < KEYS; ++j) k[d * KEYS + j] = (C)0;
        }
        const C *right = v;
        i64 right_pitch = pitch;
        if (packed) {
            right = reinterpret_cast<const C *>(p.v) + (i64)key0 * p.v_at.row;
            right_pitch = p.v_at.row;
        } else {
            for (u32 j = 0; j < count; ++j) {
                const T *from = p.v + (i64)(key0 + j) * p.v_at.row;
                for (u32 c = 0; c < pitch; ++c)
                    v[j * pitch + c] = c < p.values ? load(from[(i64)c * p.v_at.column]) : (C)0;
            }
        }
        for (u32 i = 0; i < groups * GROUP * KEYS; ++i) scores[i] = (C)0;
        for (u32 c = 0; c < KEYS; c += PANEL) {
            for (u32 g = 0; g < groups; ++g) {
                block_product<1, GROUP>(p.width, q + g * GROUP * p.width, k + c, KEYS, scores + g * GROUP * KEYS + c,
                                        KEYS);
            }
        }
        for (u32 r = 0; r < rows; ++r) {
            C fade = weigh<KIND>(p, row0 + r, key0, count, scores + r * KEYS, top[r], sum[r]);
            C *to = sums + r * pitch;
            if (fade != (C)1) {
                INDEPENDENT
                for (u32 c = 0; c < pitch; ++c) to[c] *= fade;
            }
        }
        for (u32 c = 0; c < pitch; c += PANEL) {
            for (u32 g = 0; g < groups; ++g) {
                block_product<KEYS, 1>(count, scores + g * GROUP * KEYS, right + c, right_pitch,
                                       sums + g * GROUP * pitch + c, pitch);
            }
        }
    }
    for (u32 r = 0; r < rows; ++r) {
        C base = base_of(top[r]), total = is_trained(KIND) ? p.total(base, sum[r]) : sum[r], factor = share(total);
        if (is_trained(KIND)) p.leave(row0 + r, base, factor);
        for (u32 c = 0; c < p.values; ++c)
            p.out[(row0 + r) * p.out_step + c] = store<T>::from(sums[r * pitch + c] * factor);
    }
}

#else

// ---------------------------------------------------------------- 256 threads a block

constexpr u32 SIDE = 16, MICRO = 4; // a thread has 4 rows, and 4 columns of each 64
constexpr u32 ROWS = SIDE * MICRO, COLUMNS = SIDE * MICRO;

// Combines the values of the 16 threads that share rows by op; each of them gets the result. They
// are neighbours in a warp.
template <class C, class Op> DEVICE C across(C value, Op op) {
    i32 lane = (i32)(threadIdx.x % (u32)warpSize);
    for (i32 distance = SIDE / 2; distance > 0; distance /= 2) value = op(value, shuffle(value, lane ^ distance));
    return value;
}

template <i32 KIND, class T> DEVICE void attend(const Given<T> &given, i64 batch, i64 head, u32 row0) {
    using C = compute_t<T>;
    // Shared memory is 33 KB in either case. PITCH is one more than ROWS, so that writes down a
    // column use different banks.
    constexpr u32 KEYS = sizeof(C) == 8 ? 32 : 64, DEPTH = sizeof(C) == 8 ? 16 : 32, ACROSS = KEYS / SIDE,
                  PITCH = ROWS + 1;
    constexpr u32 PARTS = WIDEST / COLUMNS;
    constexpr u32 LEFT = DEPTH * PITCH, STAGED = max_size(LEFT + DEPTH * (KEYS + 1), KEYS * COLUMNS);
    SHARED(C, staged_tile, STAGED);
    SHARED(C, weights_tile, KEYS * PITCH);
    C *staged = staged_tile, *weights = weights_tile; // [depth][row], [depth][key], or [key][column]; [key][row]
    u32 tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    C sums[MICRO][PARTS][MICRO] = {}, top[MICRO], sum[MICRO];
    UNROLLED
    for (u32 i = 0; i < MICRO; ++i) {
        top[i] = LOWEST<C>;
        sum[i] = (C)0;
    }
    Range seen = Inputs<T, KIND>(given, batch, head).seen(row0, row0 + ROWS - 1);
    // Reloaded for each tile: if kept, the parameters do not fit into the scalar registers.
    auto inputs = [&] { return Inputs<T, KIND>(reload_parameters(given), batch, head); };
    for (u32 key0 = seen.begin / KEYS * KEYS; key0 < seen.end; key0 += KEYS) {
        u32 width = inputs().width, values = inputs().values;
        C score[MICRO][ACROSS] = {};
        for (u32 d0 = 0; d0 < width; d0 += DEPTH) {
            const Inputs<T, KIND> p = inputs();
            sync_threads(); // threads may still read what was staged before
            stage<ROWS, DEPTH>(p.q, p.q_at, row0, p.queries, d0, p.width, 1, PITCH, staged);
            stage<KEYS, DEPTH>(p.k, p.k_at, key0, p.keys, d0, p.width, 1, KEYS + 1, staged + LEFT);
            sync_threads();
            for (u32 d = 0; d < DEPTH; ++d) {
                C x[MICRO], y[ACROSS];
                UNROLLED
                for (u32 i = 0; i < MICRO; ++i) x[i] = staged[d * PITCH + i * SIDE + ty];
                UNROLLED
                for (u32 j = 0; j < ACROSS; ++j) y[j] = staged[LEFT + d * (KEYS + 1) + j * SIDE + tx];
                UNROLLED
                for (u32 i = 0; i < MICRO; ++i) {
                    UNROLLED
                    for (u32 j = 0; j < ACROSS; ++j) score[i][j] += x[i] * y[j];
                }
            }
        }
        UNROLLED
        for (u32 i = 0; i < MICRO; ++i) {
            const Inputs<T, KIND> p = inputs();
            u32 query = row0 + i * SIDE + ty;
            u32 inside = query < p.queries ? p.keys : 0;
            C peak = LOWEST<C>;
            Words words = {};
            // Reloaded, because the keys of Philox's ten rounds would not fit either.
            if (is_trained(KIND) && p.dropout.on) {
                const Inputs<T, KIND> d = inputs();
                words = d.dropout.at(d.sums_row + query, d.all_keys, key0 + tx);
            }
            const Inputs<T, KIND> m = inputs();
            UNROLLED
            for (u32 j = 0; j < ACROSS; ++j) {
                u32 key = key0 + j * SIDE + tx;
                C x = p.capped(score[i][j]);
                if (is_trained(KIND) && m.dropout.on) x *= m.dropout.kept(word_of(words, key0 % SPAN / SIDE + j));
                if constexpr (KIND == TRAINED) {
                    if (m.mask.from != nullptr && key < inside && m.mask.hides(query, key)) x = m.fill;
                }
                if constexpr (KIND == MASKED) {
                    if (key < inside) {
                        if (m.mask.from != nullptr && m.mask.hides(query, key)) x = LOWEST<C>;
                        if (m.bias != nullptr) x += m.added(query, key);
                    }
                }
                // Last, so that no mask and no bias counts outside the window.
                if (key >= inside || !p.sees(query, key)) x = LOWEST<C>;
                score[i][j] = x;
                peak = Larger()(peak, x);
            }
            C next = Larger()(top[i], across(peak, Larger()));
            C base = base_of(next), fade = math::exp(top[i] - base);
            top[i] = next;
            sum[i] *= fade;
            UNROLLED
            for (u32 c = 0; c < PARTS; ++c) {
                UNROLLED
                for (u32 j = 0; j < MICRO; ++j) sums[i][c][j] *= fade;
            }
            UNROLLED
            for (u32 j = 0; j < ACROSS; ++j) {
                C weight = math::exp(score[i][j] - base);
                // The sum over this thread's keys. The 16 threads' sums are joined at the end.
                sum[i] += weight;
                weights[(j * SIDE + tx) * PITCH + i * SIDE + ty] = weight;
            }
        }
        UNROLLED
        for (u32 c = 0; c < PARTS; ++c) {
            if (c * COLUMNS < values) {
                const Inputs<T, KIND> p = inputs();
                sync_threads();
                stage<KEYS, COLUMNS>(p.v, p.v_at, key0, p.keys, c * COLUMNS, p.values, COLUMNS, 1, staged);
                sync_threads();
                for (u32 key = 0; key < KEYS; ++key) {
                    C x[MICRO], y[MICRO];
                    UNROLLED
                    for (u32 i = 0; i < MICRO; ++i) x[i] = weights[key * PITCH + i * SIDE + ty];
                    UNROLLED
                    for (u32 j = 0; j < MICRO; ++j) y[j] = staged[key * COLUMNS + j * SIDE + tx];
                    UNROLLED
                    for (u32 i = 0; i < MICRO; ++i) {
                        UNROLLED
                        for (u32 j = 0; j < MICRO; ++j) sums[i][c][j] += x[i] * y[j];
                    }
                }
            }
        }
    }
    const Inputs<T, KIND> p = inputs();
    u32 values = p.values, queries = p.queries;
    UNROLLED
    for (u32 i = 0; i < MICRO; ++i) {
        u32 query = row0 + i * SIDE + ty;
        C total = across(sum[i], Plus());
        if constexpr (is_trained(KIND)) {
            C base = base_of(top[i]);
            total = p.total(base, total);
            if (tx == 0 && query < queries) p.leave(query, base, share(total));
        }
        C factor = share(total);
        UNROLLED
        for (u32 c = 0; c < PARTS; ++c) {
            UNROLLED
            for (u32 j = 0; j < MICRO; ++j) {
                u32 column = c * COLUMNS + j * SIDE + tx;
                if (query < queries && column < values)
                    p.out[query * p.out_step + column] = store<T>::from(sums[i][c][j] * factor);
            }
        }
    }
}

#endif

// out = softmax(window(mask(cap(scale q k^T)) + bias)) v, where `window` replaces the scores of
// keys outside by -inf. `out` is packed [pairs, queries, values]; the other operands have strides.
// Launched with blocks of 256 threads (or one). The host launches a block for each 64 queries of a
// pair, up to a limit, but any number of blocks works. Tiles of keys that no query of a tile sees
// are not read. TRAINED computes out = softmax(window(mask(dropout(scale q k^T)))) v, where the
// score of a hidden key is `fill` instead of -inf, and writes each row's RowSum to sums[pair,
// query]. PACKED: `out` is packed [rows, heads, values], and the rows' sums are sums[head, row]. A
// sequence's results read nothing outside the sequence.
template <class T, i32 KIND>
__global__ __launch_bounds__(256) void attention(Shape s, View q_at, View k_at, View v_at, View mask_at, View bias_at,
                                                 const T *q, const T *k, const T *v, const u8 *mask, const T *bias,
                                                 const i32 *offsets, compute_t<T> scale, compute_t<T> cap,
                                                 Window window, u32 mask_size, compute_t<T> fill, u32 quiet, u64 seed,
                                                 u64 call, u32 dropping, u32 last, compute_t<T> factor, T *out,
                                                 RowSum<compute_t<T>> *sums) {
    if constexpr (KIND == PLAIN || KIND == PACKED) mask = nullptr, bias = nullptr;
    Given<T> given{s,   q_at,   k_at,      v_at, mask_at, bias_at, q,    k,        v,    mask,   bias, offsets, scale,
                   cap, window, mask_size, fill, quiet,   seed,    call, dropping, last, factor, out,  sums};
    if constexpr (KIND == PACKED) {
        for_each_row(PackedPlace<ROWS>::items(s.queries, s.pairs, s.heads), [=](u64 item) {
            const Given<T> &g = reload_parameters(given);
            const PackedPlace<ROWS> at(item, g.s.pairs, g.s.heads, g.offsets, BY_PAIR);
            if (at.exists) attend<KIND>(given, at.batch, at.head, at.row);
        });
    } else {
        for_each_row((u64)s.pairs * ((s.queries + ROWS - 1) / ROWS), [=](u64 item) {
            const Given<T> &g = reload_parameters(given);
            i64 tiles = (g.s.queries + ROWS - 1) / ROWS, pair = (i64)item / tiles, batch = pair / g.s.heads;
            attend<KIND>(given, batch, pair - batch * g.s.heads, (u32)((i64)item - pair * tiles) * ROWS);
        });
    }
}

// out[row, col] = x[row, col], or -inf if the window of query row % queries lacks the key. There
// are `rows` = batch * heads * queries contiguous rows of `keys` elements. `out` may be x.
template <class T>
__global__ void attention_window(u64 rows, u32 queries, u32 keys, Window window, const T *x, T *out) {
    T hidden = store<T>::from(-__builtin_inff());
    for_each_row(rows, [=](u64 row) {
        u32 query = (u32)(row % queries);
        Range seen = window.keys_of(query, query, queries, keys);
        const T *from = x + row * keys;
        T *to = out + row * keys;
        for_each_in_block(keys, [=](u64 i) { to[i] = i >= seen.begin && i < seen.end ? from[i] : hidden; });
    });
}
