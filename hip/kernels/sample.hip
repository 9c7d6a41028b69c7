// Draws a token from each row of logits: penalties, temperature, top-k, top-p, min-p, in this order.
//
// `sample_scores` uses the whole device: it applies penalties and temperature, and leaves the
// greatest score of each CHUNK of a row. `sample_draw` has one block for a row. All sums of weights
// are sums of integers, so they are exact and have no order: a weight is exp(score - greatest) in
// units of 2^-40, and a token with less than half a unit has none and is never drawn. Among 2^20
// tokens, those have less than 2^-21 of the probability.
//
// The order of tokens is that of their distances from the greatest score in units of 2^-27; among
// equals, the smaller id comes first. The cuts of top-k and top-p are found digit by digit of that
// order, by histograms (radix select).
#include "philox.h"

// Must equal the constants in the host's decode/sample.rs.
constexpr u32 CHUNK = 4096, PARAMETERS = 8, STATS = 3;
// A token's count of generations, and whether it is in the prompt.
constexpr u32 IN_PROMPT = 1u << 30;

constexpr f32 LEAST_SCORE = -__builtin_inff();

struct Choice {
    f32 temperature, top_k, top_p, min_p, repetition, presence, frequency, unused;
};

// A logit after penalties. A NaN counts as -inf.
DEVICE f32 penalised(f32 x, const Choice &choice, u32 count) {
    if (count != 0) {
        x = x < 0.0f ? x * choice.repetition : x / choice.repetition;
        u32 generated = count & (IN_PROMPT - 1);
        if (generated != 0) x -= choice.frequency * (f32)generated + choice.presence;
    }
    return math::is_nan(x) ? LEAST_SCORE : x;
}

// scores[row][i]: the logit after penalties and temperature. stats[row][chunk]: the greatest score,
// the greatest logit, and the sum of exp(logit - greatest logit).
template <class T>
__global__ void sample_scores(u64 rows, u64 vocabulary, u64 chunks, const T *logits, const i32 *counts,
                              const f32 *parameters, f32 *scores, f32 *stats) {
    for_each_row(rows * chunks, [=](u64 at) {
        u64 row = at / chunks, first = at % chunks * CHUNK;
        u64 count = vocabulary - first < CHUNK ? vocabulary - first : CHUNK;
        const Choice choice = reinterpret_cast<const Choice *>(parameters)[row];
        const T *from = logits + row * vocabulary + first;
        const i32 *seen = counts == nullptr ? counts : counts + row * vocabulary + first;
        f32 *to = scores + row * vocabulary + first;
        f32 temperature = choice.temperature > 0.0f ? choice.temperature : 1.0f;
        for_each_in_block(count, [=](u64 i) {
            to[i] = penalised(load(from[i]), choice, seen == nullptr ? 0u : (u32)seen[i]) / temperature;
        });
        sync_threads();
        f32 most = block_reduce_range(count, LEAST_SCORE, [=](u64 i) { return to[i]; }, Larger());
        f32 raw = block_reduce_range(count, LEAST_SCORE, [=](u64 i) { return (f32)load(from[i]); }, Larger());
        f32 base = raw == LEAST_SCORE ? 0.0f : raw;
        f32 sum = block_reduce_range(count, 0.0f, [=](u64 i) { return math::exp((f32)load(from[i]) - base); }, Plus());
        if (threadIdx.x == 0) {
            f32 *own = stats + at * STATS;
            own[0] = most, own[1] = raw, own[2] = sum;
        }
    });
}

// The upper half of a 128-bit product.
DEVICE u64 upper_product(u64 a, u64 b) {
    u64 low = (a & 0xffffffffu) * (b & 0xffffffffu), left = (a >> 32) * (b & 0xffffffffu);
    u64 right = (a & 0xffffffffu) * (b >> 32), middle = (low >> 32) + (left & 0xffffffffu) + right;
    return (a >> 32) * (b >> 32) + (left >> 32) + (middle >> 32);
}

// A row's scores as weights and places in the order.
struct Ranked {
    const f32 *scores;
    f32 most;
    u64 last;  // the last of the order that may be drawn
    u64 least; // the least weight that may be drawn
    DEVICE f32 distance(u64 i) const {
        f32 x = scores[i];
        return x == most ? 0.0f : most - x; // both may be infinite
    }
    static DEVICE u64 weight_of(f32 distance) { return (u64)(math::exp(-distance) * 0x1p40f + 0.5f); }
    // Weights end at a distance of 28.5, so the distance in units of 2^-27 fits 32 bits.
    static DEVICE u64 order_of(f32 distance, u64 i) { return (u64)(u32)(distance * 0x1p27f) << ID_BITS | i; }
    // The weight if the token may be drawn, else 0.
    DEVICE u64 weight(u64 i) const {
        f32 d = distance(i);
        if (!(d < FARTHEST)) return 0;
        u64 w = weight_of(d);
        return w >= least && order_of(d, i) <= last ? w : 0;
    }
    static constexpr u32 ID_BITS = 21;
    static constexpr f32 FARTHEST = 28.5f;
};

constexpr u32 BINS = 2048, COLUMNS = 1024;

// A block's working memory.
struct Tables {
    u64 *weights; // [BINS]
    u32 *counts;  // [BINS]
    u64 *sums;    // [1024]: one of each thread
    u64 *found;   // [4]
};

// The sum of the values of the threads before this one. The total is left in tables.found[3].
DEVICE u64 sum_before(u64 value, const Tables &tables) {
    u64 before = 0;
    if constexpr (!ONE_THREAD) {
        u32 t = threadIdx.x;
        sync_threads();
        tables.sums[t] = value;
        sync_threads();
        for (u32 distance = 1; distance < blockDim.x; distance *= 2) {
            u64 add = t >= distance ? tables.sums[t - distance] : 0;
            sync_threads();
            tables.sums[t] += add;
            sync_threads();
        }
        before = tables.sums[t] - value;
    }
    if (threadIdx.x == blockDim.x - 1) tables.found[3] = before + value;
    sync_threads();
    return before;
}

// Finds where the sums of value(0), value(1), .. pass `target`: leaves in `found` the first index
// whose sum including itself is above it, and the sum before it. Returns whether there is one.
template <class F> DEVICE bool search(u32 count, u64 target, const Tables &tables, F value) {
    u32 each = (count + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each;
    u32 end = first + each < count ? first + each : count;
    u64 own = 0;
    for (u32 i = first; i < end; ++i) own += value(i);
    u64 before = sum_before(own, tables);
    if (before <= target && target < before + own) {
        for (u32 i = first; i < end; ++i) {
            u64 here = value(i);
            if (target < before + here) {
                tables.found[0] = i, tables.found[1] = before;
                break;
            }
            before += here;
        }
    }
    u64 total = tables.found[3];
    sync_threads();
    return target < total;
}

// The place in the order of the last token of the shortest beginning that has `target` tokens or,
// BY_WEIGHT, the weight `target`. If all tokens have less: ranked.last.
template <bool BY_WEIGHT> DEVICE u64 cut(const Ranked &ranked, u64 vocabulary, u64 target, const Tables &tables) {
    const u32 digits[5] = {11, 11, 10, 11, 10};
    u64 prefix = 0;
    u32 shift = 32 + Ranked::ID_BITS;
    for (u32 level = 0; level < 5; ++level) {
        u32 bits = digits[level], bins = 1u << bits;
        shift -= bits;
        for_each_in_block(bins, [=](u64 b) {
            tables.counts[b] = 0;
            if (BY_WEIGHT) tables.weights[b] = 0;
        });
        sync_threads();
        for (u64 i = threadIdx.x; i < vocabulary; i += blockDim.x) {
            f32 distance = ranked.distance(i);
            if (!(distance < Ranked::FARTHEST)) continue;
            u64 order = Ranked::order_of(distance, i);
            if (order > ranked.last || (order >> shift) >> bits != prefix) continue;
            u64 weight = Ranked::weight_of(distance);
            if (weight == 0) continue;
            u32 bin = (u32)(order >> shift) & (bins - 1);
            if constexpr (ONE_THREAD) {
                tables.counts[bin] += 1;
                if (BY_WEIGHT) tables.weights[bin] += weight;
            } else {
                atomic_add(tables.counts + bin, 1u);
                if (BY_WEIGHT) atomic_add(tables.weights + bin, weight);
            }
        }
        sync_threads();
        // The bin in which the sum reaches the target: passes target - 1.
        bool any = search(bins, target - 1, tables,
                          [=](u32 b) { return BY_WEIGHT ? tables.weights[b] : (u64)tables.counts[b]; });
        if (!any) return ranked.last;
        u32 bin = (u32)tables.found[0];
        target -= tables.found[1];
        prefix = prefix << bits | bin;
        bool whole = BY_WEIGHT ? tables.counts[bin] == 1 : tables.counts[bin] == target;
        sync_threads(); // the next level writes the tables
        if (whole) return ((prefix + 1) << shift) - 1;
    }
    return prefix;
}

// The total weight of what may be drawn. Leaves the weights of the columns, i % COLUMNS, in the
// table.
DEVICE u64 columns_of(const Ranked &ranked, u64 vocabulary, const Tables &tables) {
    if constexpr (ONE_THREAD) {
        for (u32 c = 0; c < COLUMNS; ++c) tables.weights[c] = 0;
        for (u64 i = 0; i < vocabulary; ++i) tables.weights[i % COLUMNS] += ranked.weight(i);
    } else {
        for (u64 c = threadIdx.x; c < COLUMNS; c += blockDim.x) {
            u64 sum = 0;
            for (u64 i = c; i < vocabulary; i += COLUMNS) sum += ranked.weight(i);
            tables.weights[c] = sum;
        }
    }
    sync_threads();
    u64 own = 0;
    for (u32 c = threadIdx.x; c < COLUMNS; c += blockDim.x) own += tables.weights[c];
    sum_before(own, tables);
    u64 total = tables.found[3];
    sync_threads();
    return total;
}

// tokens[row]: the token drawn. steps[row] counts the draws; the random number is that of the row's
// seed and of this count. Absent operands are null: counts (counts the token), ring [length, rows]
// (keeps the last tokens), chances (the logarithm of the softmax of the logits as given).
template <class T>
__global__ __launch_bounds__(1024) void sample_draw(u64 rows, u64 vocabulary, u64 chunks, u64 length, const T *logits,
                                                    const f32 *scores, const f32 *stats, const f32 *parameters,
                                                    const u64 *seeds, i32 *counts, i64 *steps, i32 *tokens,
                                                    f32 *chances, i32 *ring) {
    SHARED(u64, weight_bins, BINS);
    SHARED(u32, count_bins, BINS);
    SHARED(u64, thread_sums, 1024);
    SHARED(u64, places, 4);
    const Tables tables{weight_bins, count_bins, thread_sums, places};
    for_each_row(rows, [&](u64 row) {
        const Choice choice = reinterpret_cast<const Choice *>(parameters)[row];
        const f32 *own = stats + row * chunks * STATS;
        f32 most = block_reduce_range(chunks, LEAST_SCORE, [=](u64 c) { return own[c * STATS]; }, Larger());
        Ranked ranked{scores + row * vocabulary, most, ~0ull, 1};
        u32 token = 0;
        sync_threads();
        if (!(choice.temperature > 0.0f)) {
            const f32 *all = ranked.scores;
            u32 none = (u32)vocabulary;
            auto is_most = [=](u64 i) { return all[i] == most ? (u32)i : none; };
            token = block_reduce_range(vocabulary, none, is_most, [](u32 a, u32 b) { return b < a ? b : a; });
        } else {
            if (choice.top_k > 0.0f && choice.top_k < (f32)vocabulary)
                ranked.last = cut<false>(ranked, vocabulary, (u64)choice.top_k, tables);
            if (choice.top_p < 1.0f) {
                // A token stays while the weight before it is below top_p of the total.
                f64 wanted = (f64)choice.top_p * (f64)columns_of(ranked, vocabulary, tables);
                u64 target = (u64)wanted;
                if ((f64)target < wanted || target == 0) ++target;
                ranked.last = cut<true>(ranked, vocabulary, target, tables);
            }
            u64 least = (u64)(choice.min_p * 0x1p40f);
            ranked.least = least > 1 ? least : 1;
            u64 total = columns_of(ranked, vocabulary, tables);
            Words words = philox(Words{{(u32)steps[row], (u32)((u64)steps[row] >> 32), 0, 0}}, (u32)seeds[row],
                                 (u32)(seeds[row] >> 32));
            u64 target = upper_product((u64)words.w[1] << 32 | words.w[0], total);
            search(COLUMNS, target, tables, [=](u32 c) { return tables.weights[c]; });
            u64 column = tables.found[0], rest = target - tables.found[1];
            u32 high = (u32)((vocabulary - column + COLUMNS - 1) / COLUMNS);
            sync_threads();
            for_each_in_block(high, [=](u64 j) { tables.weights[j] = ranked.weight(column + j * COLUMNS); });
            sync_threads();
            search(high, rest, tables, [=](u32 j) { return tables.weights[j]; });
            token = (u32)(column + tables.found[0] * COLUMNS);
        }
        if (token >= (u32)vocabulary) token = 0;
        if (chances != nullptr) {
            f32 raw = block_reduce_range(chunks, LEAST_SCORE, [=](u64 c) { return own[c * STATS + 1]; }, Larger());
            f32 sum = block_reduce_range(chunks, 0.0f, [=](u64 c) {
                const f32 *at = own + c * STATS;
                return at[1] == LEAST_SCORE ? at[2] : at[2] * math::exp(at[1] - raw);
            }, Plus());
            if (threadIdx.x == 0) chances[row] = ((f32)load(logits[row * vocabulary + token]) - raw) - math::log(sum);
        }
        sync_threads(); // all threads have read the step
        if (threadIdx.x == 0) {
            tokens[row] = (i32)token;
            if (ring != nullptr) ring[(u64)steps[row] % length * rows + row] = (i32)token;
            if (counts != nullptr) counts[row * vocabulary + token] += 1;
            steps[row] += 1;
        }
        sync_threads();
    });
}
