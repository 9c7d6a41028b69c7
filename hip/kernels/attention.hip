// Scaled dot-product attention, softmax(q k^T) v, in one kernel: FlashAttention-2 (Dao 2023, "FlashAttention-2: Faster Attention with
// Better Parallelism and Work Partitioning", algorithm 1) with the online softmax of Milakov and Gimelshein (2018, "Online
// normalizer calculation for softmax"). A block takes a tile of queries through all keys, a tile at a time; the scores never
// reach memory. And the mask that the composed path needs.
#include "prelude.h"

// Strides of an operand [batch, head, row, column], in elements.
struct View {
    i64 batch, head, row, column;
};
struct Shape {
    i64 pairs, heads, queries, keys, width, values; // pairs: batch * heads; width: of q and k; values: of v
};

// The kernel's parameters, in their order.
template <class T> struct Given {
    Shape s;
    View q_at, k_at, v_at, mask_at, bias_at;
    const T *q, *k, *v;
    const u8 *mask; // or null: true hides a key
    const T *bias;  // or null
    compute_t<T> scale, cap; // cap 0: none
    u32 causal, mask_size;   // mask_size: bytes of a bool
    T *out;
};

// What a tile needs of them.
template <class T> struct Inputs {
    using C = compute_t<T>;
    u32 queries, keys, width, values;
    View q_at, k_at, v_at, mask_at, bias_at;
    const T *q, *k, *v; // of one batch and head
    const u8 *mask;
    const T *bias;
    u32 mask_size;
    C scale, cap;
    bool causal;

    DEVICE Inputs(const Given<T> &g, i64 batch, i64 head)
        : queries((u32)g.s.queries), keys((u32)g.s.keys), width((u32)g.s.width), values((u32)g.s.values), q_at(g.q_at), k_at(g.k_at), v_at(g.v_at),
          mask_at(g.mask_at), bias_at(g.bias_at), q(g.q + first(q_at, batch, head)), k(g.k + first(k_at, batch, head)),
          v(g.v + first(v_at, batch, head)), mask(g.mask == nullptr ? g.mask : g.mask + first(mask_at, batch, head) * g.mask_size),
          bias(g.bias == nullptr ? g.bias : g.bias + first(bias_at, batch, head)), mask_size(g.mask_size), scale(g.scale), cap(g.cap),
          causal(g.causal != 0) {}
    static DEVICE i64 first(const View &at, i64 batch, i64 head) { return batch * at.batch + head * at.head; }

    // Keys below this are seen by the query.
    DEVICE u32 seen(u32 query) const {
        if (!causal) return keys;
        i64 end = (i64)query + (i64)keys - (i64)queries + 1;
        return end < 0 ? 0 : end < (i64)keys ? (u32)end : keys;
    }
    DEVICE bool hidden(u32 query, u32 key) const {
        i64 at = (i64)query * mask_at.row + (i64)key * mask_at.column;
        return mask_size == 1 ? mask[at] != 0 : reinterpret_cast<const u32 *>(mask)[at] != 0;
    }
    DEVICE C added(u32 query, u32 key) const { return load(bias[(i64)query * bias_at.row + (i64)key * bias_at.column]); }
    DEVICE C capped(C score) const {
        score *= scale;
        return cap > (C)0 ? cap * math::tanh(score / cap) : score;
    }
};

template <class C> constexpr C LOWEST = (C)-__builtin_inff();
constexpr u32 WIDEST = 256; // the widest head; the host takes the composed path beyond

// NaN may lose here: it comes back with the sum.
struct Larger {
    template <class C> DEVICE C operator()(C a, C b) const { return b > a ? b : a; }
};
struct Plus {
    template <class C> DEVICE C operator()(C a, C b) const { return a + b; }
};

// What exponents are taken relative to, `top` being the greatest score yet: 0 while every key is hidden, so that exp(-inf)
// gives 0 and not NaN.
template <class C> DEVICE C base_of(C top) { return top == LOWEST<C> ? (C)0 : top; }
// Over the sum of a row's weights; a row of hidden keys alone is 0.
template <class C> DEVICE C share(C sum) { return sum == (C)0 ? (C)1 : (C)1 / sum; }

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP

// ---------------------------------------------------------------- one thread a block

constexpr u32 ROWS = 128, KEYS = 64; // queries and keys of a tile

#if defined(__AVX512F__)
constexpr u32 VECTOR = 64, GROUP = 8; // bytes of a vector; rows whose sums are kept in registers
#elif defined(__AVX__)
constexpr u32 VECTOR = 32, GROUP = 4;
#else
constexpr u32 VECTOR = 16, GROUP = 4;
#endif
template <class C> struct lanes {
    typedef C type __attribute__((vector_size(VECTOR)));
    static constexpr u32 count = VECTOR / sizeof(C);
};
constexpr u32 ABREAST = 2; // vectors of columns

constexpr u32 round_up(u32 n, u32 to) { return (n + to - 1) / to * to; }

// out[r][c] += a[r * ROW + k * STEP] * b[k][c] over `depth` k, for GROUP rows and ABREAST vectors of columns.
template <u32 ROW, u32 STEP, class C> DEVICE void block_product(u64 depth, const C *a, const C *b, i64 b_pitch, C *out, u32 out_pitch) {
    using V = typename lanes<C>::type;
    constexpr u32 L = lanes<C>::count;
    V sum[GROUP][ABREAST];
#pragma GCC unroll 8
    for (u32 r = 0; r < GROUP; ++r) {
#pragma GCC unroll 8
        for (u32 v = 0; v < ABREAST; ++v) __builtin_memcpy(&sum[r][v], out + r * out_pitch + v * L, VECTOR);
    }
    for (u64 k = 0; k < depth; ++k) {
        V right[ABREAST];
#pragma GCC unroll 8
        for (u32 v = 0; v < ABREAST; ++v) __builtin_memcpy(&right[v], b + (i64)k * b_pitch + v * L, VECTOR);
#pragma GCC unroll 8
        for (u32 r = 0; r < GROUP; ++r) {
            C left = a[r * ROW + k * STEP];
#pragma GCC unroll 8
            for (u32 v = 0; v < ABREAST; ++v) sum[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 8
    for (u32 r = 0; r < GROUP; ++r) {
#pragma GCC unroll 8
        for (u32 v = 0; v < ABREAST; ++v) __builtin_memcpy(out + r * out_pitch + v * L, &sum[r][v], VECTOR);
    }
}

// The scores of one query and a tile of keys become weights; the row's greatest score and sum go on. Gives what earlier
// weights are to be scaled by.
template <class T, class C = compute_t<T>> DEVICE C weigh(const Inputs<T> &p, u32 query, u32 key0, u32 count, C *x, C &top, C &sum) {
    INDEPENDENT
    for (u32 j = 0; j < KEYS; ++j) x[j] *= p.scale;
    if (p.cap > (C)0) {
        INDEPENDENT
        for (u32 j = 0; j < KEYS; ++j) x[j] = p.cap * math::tanh(x[j] / p.cap);
    }
    u32 seen = p.seen(query);
    u32 visible = seen < key0 ? 0 : seen - key0 < count ? seen - key0 : count;
    for (u32 j = visible; j < KEYS; ++j) x[j] = LOWEST<C>;
    if (p.mask != nullptr) {
        for (u32 j = 0; j < count; ++j) x[j] = p.hidden(query, key0 + j) ? LOWEST<C> : x[j];
    }
    if (p.bias != nullptr) {
        for (u32 j = 0; j < count; ++j) x[j] += p.added(query, key0 + j);
    }
    const C *from = x;
    C next = Larger()(top, block_reduce_range(KEYS, LOWEST<C>, [=](u64 j) { return from[j]; }, Larger()));
    C base = base_of(next), fade = math::exp(top - base);
    INDEPENDENT
    for (u32 j = 0; j < KEYS; ++j) x[j] = math::exp(x[j] - base);
    sum = sum * fade + block_reduce_range(KEYS, (C)0, [=](u64 j) { return from[j]; }, Plus());
    top = next;
    return fade;
}

template <bool MASKED, class T> DEVICE void attend(const Given<T> &given, i64 batch, i64 head, u32 row0, T *out) {
    using C = compute_t<T>;
    const Inputs<T> p(given, batch, head);
    constexpr u32 PANEL = ABREAST * lanes<C>::count;
    C q[ROWS * WIDEST], k[WIDEST * KEYS], v[KEYS * WIDEST], scores[ROWS * KEYS], sums[ROWS * WIDEST], top[ROWS], sum[ROWS];
    u32 rows = p.queries - row0 < ROWS ? p.queries - row0 : ROWS, groups = (rows + GROUP - 1) / GROUP;
    u32 pitch = round_up(p.values, PANEL); // of a row of values
    for (u32 r = 0; r < groups * GROUP; ++r) { // q: [group][column][row of the group]
        C *to = q + r / GROUP * GROUP * p.width + r % GROUP;
        const T *from = p.q + (i64)(row0 + r) * p.q_at.row;
        for (u32 d = 0; d < p.width; ++d) to[d * GROUP] = r < rows ? load(from[(i64)d * p.q_at.column]) : (C)0;
        top[r] = LOWEST<C>;
        sum[r] = (C)0;
    }
    for (u32 i = 0; i < groups * GROUP * pitch; ++i) sums[i] = (C)0;
    bool packed = is_same<T, C>::value && p.v_at.column == 1 && pitch == p.values;
    u32 seen = p.seen(row0 + rows - 1);
    for (u32 key0 = 0; key0 < seen; key0 += KEYS) {
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
                for (u32 c = 0; c < pitch; ++c) v[j * pitch + c] = c < p.values ? load(from[(i64)c * p.v_at.column]) : (C)0;
            }
        }
        for (u32 i = 0; i < groups * GROUP * KEYS; ++i) scores[i] = (C)0;
        for (u32 c = 0; c < KEYS; c += PANEL) {
            for (u32 g = 0; g < groups; ++g) {
                block_product<1, GROUP>(p.width, q + g * GROUP * p.width, k + c, KEYS, scores + g * GROUP * KEYS + c, KEYS);
            }
        }
        for (u32 r = 0; r < rows; ++r) {
            C fade = weigh(p, row0 + r, key0, count, scores + r * KEYS, top[r], sum[r]);
            C *to = sums + r * pitch;
            if (fade != (C)1) {
                INDEPENDENT
                for (u32 c = 0; c < pitch; ++c) to[c] *= fade;
            }
        }
        for (u32 c = 0; c < pitch; c += PANEL) {
            for (u32 g = 0; g < groups; ++g) {
                block_product<KEYS, 1>(count, scores + g * GROUP * KEYS, right + c, right_pitch, sums + g * GROUP * pitch + c, pitch);
            }
        }
    }
    for (u32 r = 0; r < rows; ++r) {
        C factor = share(sum[r]);
        for (u32 c = 0; c < p.values; ++c) out[(u64)(row0 + r) * p.values + c] = store<T>::from(sums[r * pitch + c] * factor);
    }
}

#else

// ---------------------------------------------------------------- 256 threads a block

// Sums stay in registers only where every index is known.
#if COMPILER_HOST
#define UNROLLED
#define UNROLLED_BY_4
#else
#define UNROLLED _Pragma("unroll")
#define UNROLLED_BY_4 _Pragma("unroll 4")
#endif

constexpr u32 THREADS = 256, SIDE = 16, MICRO = 4; // a thread has 4 rows, and 4 columns of each 64
constexpr u32 ROWS = SIDE * MICRO, COLUMNS = SIDE * MICRO;

// A part of an operand into shared memory: to[c * pitch + r] of rows x columns from (row, column), 0 outside.
template <u32 TALL, u32 WIDE, class T, class C>
DEVICE void stage(const T *from, const View &at, u32 row, u32 rows, u32 column, u32 columns, u32 row_step, u32 column_step, C *to) {
    bool along = at.column == 1; // along the operand's own unit stride
    UNROLLED_BY_4 // all 8 or 16 at once take 20 more registers: on RDNA 2, 5 waves and not the 6 that shared memory has room for
    for (u32 i = threadIdx.x; i < TALL * WIDE; i += THREADS) {
        u32 r = along ? i / WIDE : i % TALL, c = along ? i % WIDE : i / TALL;
        C value = (C)0;
        if (row + r < rows && column + c < columns) value = load(from[(i64)(row + r) * at.row + (i64)(column + c) * at.column]);
        to[r * row_step + c * column_step] = value;
    }
}

// op over the values of the 16 threads that share rows, in each of them: neighbours in a warp.
template <class C, class Op> DEVICE C across(C value, Op op) {
    i32 lane = (i32)(threadIdx.x % (u32)warpSize);
    for (i32 distance = SIDE / 2; distance > 0; distance /= 2) value = op(value, shuffle(value, lane ^ distance));
    return value;
}

template <bool MASKED, class T> DEVICE void attend(const Given<T> &given, i64 batch, i64 head, u32 row0, T *out) {
    using C = compute_t<T>;
    // 33 KB of shared memory either way. One more than ROWS apart, so that writes down a column meet different banks.
    constexpr u32 KEYS = sizeof(C) == 8 ? 32 : 64, DEPTH = sizeof(C) == 8 ? 16 : 32, ACROSS = KEYS / SIDE, PITCH = ROWS + 1;
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
    u32 queries = (u32)given.s.queries, last = queries - row0 < ROWS ? queries - 1 : row0 + ROWS - 1;
    u32 seen = Inputs<T>(given, batch, head).seen(last);
    // Read anew for each tile: kept, the parameters do not fit into the scalar registers.
    auto inputs = [&] { return Inputs<T>(parameters(given), batch, head); };
    for (u32 key0 = 0; key0 < seen; key0 += KEYS) {
        u32 width = inputs().width, values = inputs().values;
        C score[MICRO][ACROSS] = {};
        for (u32 d0 = 0; d0 < width; d0 += DEPTH) {
            const Inputs<T> p = inputs();
            sync_threads(); // what was staged before may still be read
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
        const Inputs<T> p = inputs();
        UNROLLED
        for (u32 i = 0; i < MICRO; ++i) {
            u32 query = row0 + i * SIDE + ty;
            u32 inside = query < p.queries ? p.keys : 0, visible = query < p.queries ? p.seen(query) : 0;
            C peak = LOWEST<C>;
            const Inputs<T> m = inputs();
            UNROLLED
            for (u32 j = 0; j < ACROSS; ++j) {
                u32 key = key0 + j * SIDE + tx;
                C x = p.capped(score[i][j]);
                if (key >= visible) x = LOWEST<C>;
                if constexpr (MASKED) {
                    if (key < inside) {
                        if (m.mask != nullptr && m.hidden(query, key)) x = LOWEST<C>;
                        if (m.bias != nullptr) x += m.added(query, key);
                    }
                }
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
                sum[i] += weight; // this thread's keys; the 16 come together at the end
                weights[(j * SIDE + tx) * PITCH + i * SIDE + ty] = weight;
            }
        }
        UNROLLED
        for (u32 c = 0; c < PARTS; ++c) {
            if (c * COLUMNS < values) {
                const Inputs<T> p = inputs();
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
    u32 values = inputs().values;
    UNROLLED
    for (u32 i = 0; i < MICRO; ++i) {
        u32 query = row0 + i * SIDE + ty;
        C factor = share(across(sum[i], Plus()));
        UNROLLED
        for (u32 c = 0; c < PARTS; ++c) {
            UNROLLED
            for (u32 j = 0; j < MICRO; ++j) {
                u32 column = c * COLUMNS + j * SIDE + tx;
                if (query < queries && column < values) out[(u64)query * values + column] = store<T>::from(sums[i][c][j] * factor);
            }
        }
    }
}

#endif

// out = softmax(mask(cap(scale q k^T)) + bias) v: out packed [pairs, queries, values], the others by their strides. Launched with
// blocks of 256 threads (or one), min(pairs * ceil(queries / 64), cap) of them; any number of blocks is right. Keys that no query of
// a tile sees are not read. MASKED: whether there may be a mask or a bias; without, their strides leave the scalar registers to the rest.
template <class T, i32 MASKED>
__global__ __launch_bounds__(256) void attention(Shape s, View q_at, View k_at, View v_at, View mask_at, View bias_at, const T *q, const T *k,
                                                 const T *v, const u8 *mask, const T *bias, compute_t<T> scale, compute_t<T> cap, u32 causal,
                                                 u32 mask_size, T *out) {
    if constexpr (!MASKED) mask = nullptr, bias = nullptr;
    Given<T> given{s, q_at, k_at, v_at, mask_at, bias_at, q, k, v, mask, bias, scale, cap, causal, mask_size, out};
    for_each_row((u64)s.pairs * ((s.queries + ROWS - 1) / ROWS), [=](u64 item) {
        const Given<T> &g = parameters(given);
        i64 tiles = (g.s.queries + ROWS - 1) / ROWS, pair = (i64)item / tiles, batch = pair / g.s.heads, head = pair - batch * g.s.heads;
        attend<MASKED != 0>(given, batch, head, (u32)((i64)item - pair * tiles) * ROWS, g.out + pair * g.s.queries * g.s.values);
    });
}

// out[row, col] = x[row, col], or -inf where a query would see a later key: col > q + keys - queries, q = row % queries.
// `rows` = batch * heads * queries, rows of `keys` elements, contiguous; `out` may be x.
template <class T> __global__ void causal_mask(u64 rows, u32 queries, u32 keys, const T *x, T *out) {
    T masked = store<T>::from(-__builtin_inff());
    for_each_row(rows, [=](u64 row) {
        i64 last = (i64)(row % queries) + (i64)keys - (i64)queries; // the last key that this query sees
        u64 seen = last < 0 ? 0 : (u64)last + 1 < keys ? (u64)last + 1 : keys;
        const T *from = x + row * keys;
        T *to = out + row * keys;
        for_each_in_block(seen, [=](u64 i) { to[i] = from[i]; });
        for_each_in_block(keys - seen, [=](u64 i) { to[seen + i] = masked; });
    });
}
