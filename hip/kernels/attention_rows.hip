// Kernels over the rows of attention's scores [batch * heads, queries, keys] when a matrix product
// has stored them: one turns them into weights, one computes their gradient. `out` may be the
// scores or the incoming gradient. f16 and bf16 are computed in f32.
#include "attention_scores.h"
#include "prelude.h"
#include "rows.h"

struct Rows {
    i64 rows, heads, queries, keys; // rows: batch * heads * queries
};

// The kernels' parameters, in their order.
template <class T> struct Forward {
    Rows s;
    View mask_at;
    const T *scores;
    const u8 *mask;
    u32 mask_size;
    compute_t<T> fill;
    Window window;
    u32 quiet;
    u64 seed, call;
    u32 dropping, last;
    compute_t<T> factor;
    T *out;
};
template <class T> struct Backward {
    Rows s;
    View mask_at;
    const T *weights, *grad;
    const u8 *mask;
    u32 mask_size;
    u64 seed, call;
    u32 dropping, last;
    compute_t<T> factor;
    T *out;
};

// A row, and the mask and dropout of its scores.
template <class C> struct Row {
    u64 row;
    u32 query, keys;
    Mask mask;
    Dropout<C> dropout;

    template <class Given>
    DEVICE Row(const Given &g, u64 row)
        : row(row), keys((u32)g.s.keys), dropout{stream_of(g.seed, g.call), g.dropping, g.last, g.factor} {
        i64 pair = (i64)row / g.s.queries, batch = pair / g.s.heads;
        query = (u32)((i64)row - pair * g.s.queries);
        mask = mask_of(g.mask_at, g.mask, g.mask_size, batch, pair - batch * g.s.heads);
    }
    DEVICE bool hides(u32 key) const { return mask.from != nullptr && mask.hides(query, key); }

    // Calls f(key, factor) for each key, shared among the threads of a block. A thread takes the
    // four keys of one Philox block.
    template <class F> DEVICE void for_each_key(F f) const {
        for_each_in_block((u64)((keys + SPAN - 1) / SPAN) * BLOCKS, [&](u64 quad) {
            u32 first = (u32)quad / BLOCKS * SPAN + (u32)quad % BLOCKS;
            Words words = {};
            if (dropout.on) words = dropout.at(row, keys, first);
            UNROLLED
            for (u32 w = 0; w < APART; ++w) {
                u32 key = first + w * BLOCKS;
                if (key < keys) f(key, dropout.on ? dropout.kept(words.w[w]) : (C)1);
            }
        });
    }
};

// out = exp(x - max) / the sum of these over a row, or 0 if nothing in the row is above -inf. `out`
// may be x.
template <class T> DEVICE void softmax_row(u64 len, bool quiet, const T *x, T *out) {
    using C = compute_t<T>;
    auto total = [=](C base, C sum) { return share(quiet ? sum + math::exp(-base) : sum); };
    if (ONE_THREAD || !KeptRow<T>::fits(len, x)) {
        C base = base_of(block_reduce_range(len, LOWEST<C>, [=](u64 i) { return (C)load(x[i]); }, Larger()));
        C factor =
            total(base, block_reduce_range(len, (C)0, [=](u64 i) { return math::exp((C)load(x[i]) - base); }, Plus()));
        for_each_in_block(len, [=](u64 i) { out[i] = store<T>::from(math::exp((C)load(x[i]) - base) * factor); });
        return;
    }
    KeptRow<T> row; // reads the row once
    row.read(len, x, LOWEST<C>, [](C v) { return v; });
    C top = LOWEST<C>, sum = (C)0;
    row.for_each_kept([&](C &v, bool) { top = Larger()(top, v); });
    C base = base_of(block_reduce(top, Larger()));
    row.for_each_kept([&](C &v, bool) { sum += v = math::exp(v - base); });
    C factor = total(base, block_reduce(sum, Plus()));
    row.write(out, [&](u32, C v) { return v * factor; });
}

// out = the softmax of each row of scores after dropout, `fill` where the mask is true, and -inf
// outside the query's window. A row with only -inf gives 0. `quiet` divides by 1 + the sum of
// the exponentials (Miller 2023, "Attention is off by one").
template <class T>
__global__ void attention_weights(Rows s, View mask_at, const T *scores, const u8 *mask, u32 mask_size,
                                  compute_t<T> fill, Window window, u32 quiet, u64 seed, u64 call, u32 dropping,
                                  u32 last, compute_t<T> factor, T *out) {
    using C = compute_t<T>;
    Forward<T> given{s, mask_at, scores, mask, mask_size, fill, window, quiet, seed, call, dropping, last, factor, out};
    for_each_row((u64)s.rows, [=](u64 row) {
        bool changed = dropping || mask != nullptr || window.hides();
        if (changed) {
            const Forward<T> &g = reload_parameters(given);
            const Row<C> p(g, row);
            Range seen = g.window.keys_of(p.query, p.query, (u32)g.s.queries, p.keys);
            const T *from = g.scores + row * g.s.keys;
            T *to = g.out + row * g.s.keys;
            C fill = g.fill;
            p.for_each_key([&](u32 key, C kept) {
                C score = p.hides(key) ? fill : (C)load(from[key]) * kept;
                to[key] = store<T>::from(key >= seen.begin && key < seen.end ? score : LOWEST<C>);
            });
            // Other threads read what this thread has written.
            if constexpr (!ONE_THREAD) sync_threads();
        }
        const Forward<T> &g = reload_parameters(given);
        u64 keys = (u64)g.s.keys;
        softmax_row(keys, g.quiet != 0, (changed ? g.out : g.scores) + row * keys, g.out + row * keys);
    });
}

// out = the gradient of the scores from the weights w and their gradient g: w (g - sum(w g)) times
// the dropout's factor, or 0 if the score was masked or dropped.
template <class T>
__global__ void attention_weights_backward(Rows s, View mask_at, const T *weights, const T *grad, const u8 *mask,
                                           u32 mask_size, u64 seed, u64 call, u32 dropping, u32 last,
                                           compute_t<T> factor, T *out) {
    using C = compute_t<T>;
    Backward<T> given{s, mask_at, weights, grad, mask, mask_size, seed, call, dropping, last, factor, out};
    for_each_row((u64)s.rows, [=](u64 row) {
        const Backward<T> &b = reload_parameters(given);
        const T *w = b.weights + row * b.s.keys, *g = b.grad + row * b.s.keys;
        C sum = block_reduce_range((u64)b.s.keys, (C)0, [=](u64 i) { return (C)load(w[i]) * (C)load(g[i]); }, Plus());
        // Waits until all have read `grad` for the sum, because `out` may be `grad`.
        if constexpr (!ONE_THREAD) sync_threads();
        const Backward<T> &again = reload_parameters(given);
        const Row<C> p(again, row);
        T *to = again.out + row * again.s.keys;
        p.for_each_key([&](u32 key, C kept) {
            C by_score = p.hides(key) ? (C)0 : (C)load(w[key]) * ((C)load(g[key]) - sum) * kept;
            to[key] = store<T>::from(by_score);
        });
    });
}
