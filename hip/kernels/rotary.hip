// Rotary position embedding (Su et al. 2021) of the heads of packed queries, keys and values, with
// the RMS norms of queries and keys, and the gradients. A token is a row of heads * width queries,
// kv_heads * width keys and as many values. Pair p of a head is turned by the angle position *
// frequency[p]. Features from 2 * pairs on are not turned, nor are values. f16 and bf16 are
// computed in f32; P is the type of the norms' weights.
//
// A block takes an item at a time: some of a token's heads. It first computes the cosines and sines,
// which all heads share.
#include "rotary.h"
#include "paged.h"

using namespace rotation;

#if COMPILER_AMD
#define BLOCK __launch_bounds__(256)
#else
#define BLOCK
#endif

template <class T, class P, i32 FORM>
__global__ BLOCK void rotary(Sizes sizes, Places places, const void *positions, const T *x, const P *query_norm,
                             const P *key_norm, const f32 *frequency, f64 factor, f64 epsilon, f64 shift, T *out) {
    using C = compute_t<T>;
    const Forward<T, P> given{sizes,     places, positions, x,     query_norm, key_norm,
                              frequency, factor, epsilon,   shift, out};
    SHARED(C, cosine, MOST_PAIRS);
    SHARED(C, sine, MOST_PAIRS);
    C *cosines = cosine, *sines = sine;
    for_each_row(sizes.tokens * sizes.parts, [=](u64 item) {
        const Forward<T, P> job = reload_parameters(given);
        u32 parts = (u32)job.sizes.parts, length = (u32)job.sizes.length;
        u32 token = (u32)item / parts, part = (u32)item - token * parts, sequence = token / length;
        i64 position = position_of(job.places, job.positions, sequence, token - sequence * length);
        turns(position, (u32)job.sizes.pairs, job.frequency, (C)job.factor, cosines, sines);
        u32 turned = (u32)(job.sizes.heads + job.sizes.kv_heads), width = (u32)job.sizes.width,
            n = (u32)job.sizes.kv_heads * width;
        u64 first = (u64)token * (turned * width + n);
        T *out = job.out + first;
        auto beside = [=](u32 head) { return out + (u64)head * width; };
        turn_heads<FORM>(job, job.x + first, beside, slice_of(turned, part, parts), cosines, sines);
        if (job.out != job.x) {
            constexpr u32 N = TOGETHER<T, FORM>;
            Slice slice = slice_of(n / N, part, parts);
            const T *values = job.x + first + turned * width;
            T *to = job.out + first + turned * width;
            for_each_in_block(slice.end - slice.begin, [=](u64 i) {
                u32 at = (slice.begin + (u32)i) * N;
                vector_at<N>(to, at) = vector_at<N>(values, at);
            });
        }
    });
}

// As `rotary`, but stores only queries in `out`, [tokens, heads, width]. Appends keys and values
// behind the `lengths` tokens of their rows of a paged cache (paged.h), which has
// `kv_heads` heads. Ignores `Paged::step0`.
template <class T, class P, i32 FORM>
__global__ BLOCK void rotary_append(Sizes sizes, Places places, Paged paged, const void *positions, const T *x,
                                    const P *query_norm, const P *key_norm, const f32 *frequency, const i32 *offsets,
                                    const i32 *lengths, const i32 *table, f64 factor, f64 epsilon, f64 shift, u64 *flag,
                                    T *out, T *key_pages, T *value_pages) {
    using C = compute_t<T>;
    const auto job =
        forward_of(sizes, places, positions, x, query_norm, key_norm, frequency, factor, epsilon, shift, out);
    SHARED(C, cosine, MOST_PAIRS);
    SHARED(C, sine, MOST_PAIRS);
    C *cosines = cosine, *sines = sine;
    for_each_row(sizes.tokens * sizes.parts, [=](u64 item) {
        u32 parts = (u32)sizes.parts, length = (u32)sizes.length, heads = (u32)sizes.heads;
        u32 token = (u32)item / parts, part = (u32)item - token * parts, sequence = token / length;
        i64 position = position_of(places, positions, sequence, token - sequence * length);
        // Before `turns`, so that it overlaps with the look-ups.
        Token at = token_of(offsets, (u32)paged.rows, token);
        u32 behind = at.exists ? (u32)lengths[at.row] + at.at : 0;
        i64 first_head = at.exists ? place_of(paged, table, at.row, 0, behind) : -1;
        if (at.exists && first_head < 0) raise_index(flag, (i64)behind, paged.most * PAGE);
        turns(position, (u32)sizes.pairs, frequency, (C)factor, cosines, sines);
        u32 turned = heads + (u32)sizes.kv_heads, width = (u32)sizes.width, n = (u32)sizes.kv_heads * width;
        u64 first = (u64)token * (turned * width + n);
        u32 apart = PAGE * pitch_of(paged); // from a head's page to the next head's
        auto place = [=](u32 head, T *pages) -> T * {
            return first_head < 0 ? nullptr : pages + first_head + (u64)head * apart;
        };
        auto to = [=](u32 head) {
            return head < heads ? out + ((u64)token * heads + head) * width : place(head - heads, key_pages);
        };
        turn_heads<FORM>(job, x + first, to, slice_of(turned, part, parts), cosines, sines);
        constexpr u32 N = TOGETHER<T, FORM>;
        Slice slice = slice_of(n / N, part, parts);
        const T *values = x + first + turned * width;
        for_each_in_block(slice.end - slice.begin, [=](u64 i) {
            u32 from = (slice.begin + (u32)i) * N, head = from / width;
            T *page = place(head, value_pages);
            if (page != nullptr) vector_at<N>(page, from % width) = vector_at<N>(values, from);
        });
    });
}

// ---------------------------------------------------------------- backward

// Strides of sequences, heads, tokens and features, which are neighbours.
struct Strides {
    i64 at[4];
};

template <class T, class P> struct Backward {
    Sizes sizes;
    Places places;
    Strides of_query, of_key, of_value;
    const void *positions;
    const T *by_query, *by_key, *by_value; // null if there is no gradient
    const T *x;                            // null without norms
    const P *query_norm, *key_norm;
    const f32 *frequency;
    f64 factor, epsilon, shift;
    T *out;
    compute_t<T> *partial;
};

// The gradient of a head before the rotation: with y = R n, that of n is R^T dy.
template <i32 FORM, u32 N, class T, class C>
DEVICE void turn_back(const T *grad, u32 pairs, u32 p, const C *cosine, const C *sine, C (&a)[N], C (&b)[N]) {
    UNROLLED
    for (u32 j = 0; j < N; ++j) a[j] = b[j] = (C)0;
    if (grad != nullptr) load_pairs<FORM>(grad, pairs, p, a, b);
    UNROLLED
    for (u32 j = 0; j < N; ++j) {
        C c = cosine[p + j], s = sine[p + j], turned = a[j] * c + b[j] * s;
        b[j] = b[j] * c - a[j] * s, a[j] = turned;
    }
}

// What turn_heads_back needs of a job: that of queries or that of keys.
template <class T, class P> struct Turned {
    u32 team, width, pairs;
    const P *weight;
    compute_t<T> epsilon, shift;
};

// With n = x scale w and h = dn w, the gradient of x is scale (h - x scale^2 mean(h x)), as for any
// RMS norm, and that of w the sum of dn x scale. A thread adds the latter to sum_a and sum_b for
// its pairs if the form is WHOLE, else to `sums` in memory, if that is not null.
template <i32 FORM, class T, class P, class G>
DEVICE void turn_heads_back(const Turned<T, P> job, G grad_of, const T *from, T *to, Slice slice,
                            const compute_t<T> *cosine, const compute_t<T> *sine,
                            compute_t<T> (&sum_a)[TOGETHER<T, FORM>], compute_t<T> (&sum_b)[TOGETHER<T, FORM>],
                            compute_t<T> *sums) {
    using C = compute_t<T>;
    constexpr u32 N = TOGETHER<T, FORM>;
    u32 lane = threadIdx.x % job.team;
    for_each_head(slice, job.team, [=, &sum_a, &sum_b](u32 index, bool active) {
        const T *grad = active ? grad_of(index) : nullptr, *head = from + (u64)index * job.width;
        T *out = to + (u64)index * job.width;
        C squares = (C)0, products = (C)0, scale = (C)1, slope = (C)0;
        auto join = [&]() {
            squares = team_sum(squares, job.team), products = team_sum(products, job.team);
            scale = (C)1 / math::sqrt(squares / (C)job.width + job.epsilon);
            slope = scale * scale * products / (C)job.width;
        };
        if constexpr (FORM & WHOLE) {
            C a[N] = {}, b[N] = {}, x[N] = {}, y[N] = {};
            u32 own = lane * N;
            active = active && own < job.pairs;
            if (active) turn_back<FORM>(grad, job.pairs, own, cosine, sine, a, b);
            if (job.weight != nullptr) {
                C u[N] = {}, v[N] = {};
                if (active) {
                    load_pairs<FORM>(head, job.pairs, own, x, y);
                    load_pairs<FORM>(job.weight, job.pairs, own, u, v);
                }
                UNROLLED
                for (u32 j = 0; j < N; ++j) {
                    squares += x[j] * x[j] + y[j] * y[j];
                    products += x[j] * (a[j] * (u[j] + job.shift)) + y[j] * (b[j] * (v[j] + job.shift));
                }
                join();
                UNROLLED
                for (u32 j = 0; j < N; ++j) {
                    sum_a[j] += a[j] * x[j] * scale, sum_b[j] += b[j] * y[j] * scale;
                    a[j] = scale * (a[j] * (u[j] + job.shift) - x[j] * slope);
                    b[j] = scale * (b[j] * (v[j] + job.shift) - y[j] * slope);
                }
            }
            if (active) store_pairs<FORM>(out, job.pairs, own, a, b);
        } else {
            // Calls f(feature, its gradient) for each of the thread's features.
            auto each = [&](auto f) {
                for (u32 p = lane; active && p < job.pairs; p += job.team) {
                    C a[N], b[N];
                    turn_back<FORM>(grad, job.pairs, p, cosine, sine, a, b);
                    Pair at = pair_of<FORM>(p, job.pairs);
                    f(at.first, a[0]), f(at.second, b[0]);
                }
                for (u32 i = 2 * job.pairs + lane; active && i < job.width; i += job.team)
                    f(i, grad == nullptr ? (C)0 : (C)load(grad[i]));
            };
            if (job.weight == nullptr) return each([&](u32 i, C d) { out[i] = store<T>::from(d); });
            each([&](u32 i, C d) {
                C x = load(head[i]);
                squares += x * x, products += x * (d * ((C)load(job.weight[i]) + job.shift));
            });
            join();
            each([&](u32 i, C d) {
                C x = load(head[i]);
                if (sums != nullptr) sums[i] += d * x * scale;
                out[i] = store<T>::from(scale * (d * ((C)load(job.weight[i]) + job.shift) - x * slope));
            });
        }
    });
}

// The number of blocks is a multiple of 3: in turn they have queries, keys and values. partial [2,
// gridDim.x / 3 * teams of a block, width] gets the teams' parts of the gradients of both norms'
// weights; it may be null.
template <class T, class P, i32 FORM>
__global__ BLOCK void rotary_backward(Sizes sizes, Places places, Strides of_query, Strides of_key, Strides of_value,
                                      const void *positions, const T *by_query, const T *by_key, const T *by_value,
                                      const T *x, const P *query_norm, const P *key_norm, const f32 *frequency,
                                      f64 factor, f64 epsilon, f64 shift, T *out, compute_t<T> *partial) {
    using C = compute_t<T>;
    const Backward<T, P> given{sizes, places,     of_query, of_key,    of_value, positions, by_query, by_key, by_value,
                               x,     query_norm, key_norm, frequency, factor,   epsilon,   shift,    out,    partial};
    constexpr u32 N = TOGETHER<T, FORM>;
    SHARED(C, cosine, MOST_PAIRS);
    SHARED(C, sine, MOST_PAIRS);
    u32 kind = blockIdx.x % 3, lane = threadIdx.x % (u32)sizes.team;
    C sum_a[N] = {}, sum_b[N] = {}, *sums = nullptr;
    if (partial != nullptr && kind < 2) {
        u32 teams = blockDim.x / (u32)sizes.team;
        u64 row = ((u64)kind * (gridDim.x / 3) + blockIdx.x / 3) * teams + threadIdx.x / (u32)sizes.team;
        sums = partial + row * sizes.width;
        for (u32 i = lane; i < (u32)sizes.width; i += (u32)sizes.team) sums[i] = (C)0;
        sync_threads(); // from here on, a feature's sum may be another thread's
    }
    ROLLED
    for (u32 item = blockIdx.x / 3; item < (u32)(sizes.tokens * sizes.parts); item += gridDim.x / 3) {
        const Backward<T, P> job = reload_parameters(given);
        u32 parts = (u32)job.sizes.parts, length = (u32)job.sizes.length, heads = (u32)job.sizes.heads,
            kv_heads = (u32)job.sizes.kv_heads, width = (u32)job.sizes.width, pairs = (u32)job.sizes.pairs;
        u32 token = item / parts, part = item - token * parts, sequence = token / length,
            number = token - sequence * length;
        u64 first = (u64)token * (heads + 2 * kv_heads) * width + (u64)(kind == 0   ? 0
                                                                        : kind == 1 ? heads
                                                                                    : heads + kv_heads) *
                                                                      width;
        const T *grads = select(kind == 0, job.by_query, select(kind == 1, job.by_key, job.by_value));
        i64 by_head = select(kind == 0, job.of_query.at[1], select(kind == 1, job.of_key.at[1], job.of_value.at[1]));
        if (grads != nullptr) {
            i64 by_sequence =
                select(kind == 0, job.of_query.at[0], select(kind == 1, job.of_key.at[0], job.of_value.at[0]));
            i64 by_token =
                select(kind == 0, job.of_query.at[2], select(kind == 1, job.of_key.at[2], job.of_value.at[2]));
            grads += (i64)sequence * by_sequence + (i64)number * by_token;
        }
        T *to = job.out + first;
        if (kind == 2) {
            Slice slice = slice_of(kv_heads * width / N, part, parts);
            for_each_in_block(slice.end - slice.begin, [=](u64 i) {
                u32 at = (slice.begin + (u32)i) * N, head = at / width;
                if (grads == nullptr) {
                    for (u32 j = 0; j < N; ++j) to[at + j] = store<T>::from((C)0);
                    return;
                }
                const T *from = grads + (i64)head * by_head + (at - head * width);
                vector_at<N>(to, at) = *reinterpret_cast<const Vector<T, N> *>(from);
            });
            continue;
        }
        i64 position = position_of(job.places, job.positions, sequence, number);
        turns(position, pairs, job.frequency, (C)job.factor, (C *)cosine, (C *)sine);
        Turned<T, P> turned{(u32)job.sizes.team, width,       pairs, select(kind == 0, job.query_norm, job.key_norm),
                            (C)job.epsilon,      (C)job.shift};
        auto grad_of = [=](u32 head) { return grads == nullptr ? nullptr : grads + (i64)head * by_head; };
        turn_heads_back<FORM>(turned, grad_of, job.x == nullptr ? nullptr : job.x + first, to,
                              slice_of(kind == 0 ? heads : kv_heads, part, parts), cosine, sine, sum_a, sum_b, sums);
    }
    if constexpr (FORM & WHOLE) {
        if (sums != nullptr && lane * N < (u32)sizes.pairs) {
            UNROLLED
            for (u32 j = 0; j < N; ++j) {
                Pair at = pair_of<FORM>(lane * N + j, (u32)sizes.pairs);
                sums[at.first] = sum_a[j], sums[at.second] = sum_b[j];
            }
        }
    }
}
