// Draws a token from each row of logits: penalties, temperature, top-k, top-p, min-p, in this order.
//
// `sample_scores` applies penalties and temperature. `sample_codes` turns scores into distances from
// the row's greatest, counts them in bins, and orders the tokens of each chunk by bins. Both use the
// whole device. `sample_draw` has one block for a row. It finds the bin of a cut in the sums of the
// bins before, and then reads the tokens of this bin alone.
//
// All sums of weights are sums of integers, so they are exact and need no order: a weight is
// exp(-distance) in units of 2^-40. A token farther than FARTHEST has no weight and is never drawn.
// Tokens are ordered by their distances in units of 2^-27, their codes; among equals, the smaller id
// comes first. If the bin of a cut has up to LISTED tokens, each is compared with all others. If it
// has more, digits of code and id divide it further, by histograms (radix select).
#include "philox.h"

// Must equal the constants in the host's decode/sample.rs.
constexpr u32 CHUNK = 2048, STATS = 4, BINS = 2048, ID_BITS = 21;
// A token's count of generations, and whether it is in the prompt.
constexpr u32 IN_PROMPT = 1u << 30;

constexpr f32 LEAST_SCORE = -__builtin_inff();
constexpr f32 FARTHEST = 28.0f; // e^-28 is 0.76 units
// A bin is a code's upper 11 bits. NONE is the code of a token without weight.
constexpr u32 BIN_SHIFT = 21, NONE = ~0u;

struct Choice {
    f32 temperature, top_k, top_p, min_p, repetition, presence, frequency, unused;
};

// What a chunk of a row has.
struct Stats {
    f32 most;  // the greatest score
    f32 raw;   // the greatest logit
    f32 sum;   // of exp(logit - raw)
    u32 first; // the first token with the greatest score
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

struct Lesser {
    template <class C> DEVICE C operator()(C a, C b) const { return b < a ? b : a; }
};

// Elements that a thread loads before it uses the first: the compiler can't move a load ahead of a
// store to another array.
constexpr u32 AHEAD = ONE_THREAD ? 1 : 8;

// Joins the statistics of two parts of a row.
struct Joined {
    DEVICE Stats operator()(const Stats &a, const Stats &b) const {
        bool second = b.most > a.most || (b.most == a.most && b.first < a.first);
        f32 raw = Larger()(a.raw, b.raw), base = raw == LEAST_SCORE ? 0.0f : raw;
        f32 sum = a.sum * math::exp(a.raw - base) + b.sum * math::exp(b.raw - base);
        return Stats{second ? b.most : a.most, raw, sum, second ? b.first : a.first};
    }
};

// scores [rows, vocabulary]: the logits after penalties and temperature. Also clears the bins.
template <class T>
__global__ void sample_scores(u64 rows, u64 vocabulary, u64 chunks, const T *logits, const i32 *counts,
                              const f32 *parameters, f32 *scores, f32 *stats, u32 *bin_counts, u64 *bin_weights) {
    for_each_row(rows * chunks, [=](u64 at) {
        u64 row = at / chunks, first = at % chunks * CHUNK;
        u32 count = (u32)(vocabulary - first < CHUNK ? vocabulary - first : CHUNK);
        const Choice choice = reinterpret_cast<const Choice *>(parameters)[row];
        const T *from = logits + row * vocabulary + first;
        const i32 *seen = counts == nullptr ? counts : counts + row * vocabulary + first;
        f32 *to = scores + row * vocabulary + first;
        f32 temperature = choice.temperature > 0.0f ? choice.temperature : 1.0f;
        if (first == 0) {
            for_each_in_block(BINS, [=](u64 b) { bin_counts[row * BINS + b] = 0, bin_weights[row * BINS + b] = 0; });
        }
        Stats own{LEAST_SCORE, LEAST_SCORE, 0.0f, NONE};
        if constexpr (ONE_THREAD) { // loops that vectorise
            for_each_in_block(count, [=](u64 i) {
                to[i] = penalised(load(from[i]), choice, seen == nullptr ? 0u : (u32)seen[i]) / temperature;
            });
            f32 most = block_reduce_range(count, LEAST_SCORE, [=](u64 i) { return to[i]; }, Larger());
            f32 raw = block_reduce_range(count, LEAST_SCORE, [=](u64 i) { return (f32)load(from[i]); }, Larger());
            f32 base = raw == LEAST_SCORE ? 0.0f : raw;
            auto part = [=](u64 i) { return math::exp((f32)load(from[i]) - base); };
            auto place = [=](u64 i) { return to[i] == most ? (u32)i : NONE; };
            own = Stats{most, raw, block_reduce_range(count, 0.0f, part, Plus()),
                        block_reduce_range(count, NONE, place, Lesser())};
        } else {
            for (u32 start = threadIdx.x; start < count; start += AHEAD * blockDim.x) {
                f32 x[AHEAD];
                u32 times[AHEAD];
                UNROLLED
                for (u32 a = 0; a < AHEAD; ++a) {
                    u32 i = start + a * blockDim.x;
                    x[a] = i < count ? (f32)load(from[i]) : LEAST_SCORE;
                    times[a] = seen != nullptr && i < count ? (u32)seen[i] : 0u;
                }
                UNROLLED
                for (u32 a = 0; a < AHEAD; ++a) {
                    u32 i = start + a * blockDim.x;
                    if (i >= count) continue;
                    f32 score = penalised(x[a], choice, times[a]) / temperature;
                    to[i] = score;
                    if (score > own.most || own.first == NONE) own.most = score, own.first = i;
                    f32 raw = Larger()(own.raw, x[a]), base = raw == LEAST_SCORE ? 0.0f : raw;
                    own.sum = own.sum * math::exp(own.raw - base) + math::exp(x[a] - base);
                    own.raw = raw;
                }
            }
            own = block_reduce(own, Joined());
        }
        if (threadIdx.x == 0) {
            own.first += (u32)first;
            reinterpret_cast<Stats *>(stats)[at] = own;
        }
    });
}

DEVICE u64 weight_of(u32 code) { return (u64)(math::exp((f32)code * -0x1p-27f) * 0x1p40f + 0.5f); }

// The code of a score.
DEVICE u32 code_of(f32 score, f32 most) {
    f32 distance = score == most ? 0.0f : most - score; // both may be infinite
    return distance < FARTHEST ? (u32)(distance * 0x1p27f) : NONE;
}

// The sum of the values of the threads before this one. `totals` has a place for each warp.
template <class V> DEVICE V sum_before(V value, V *totals) {
    if constexpr (ONE_THREAD) return V{0};
    u32 lanes = (u32)warpSize, lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
    V sum = value;
    for (u32 distance = 1; distance < lanes; distance *= 2) {
        V other = shuffle(sum, (i32)((lane + lanes - distance) % lanes));
        if (lane >= distance) sum += other;
    }
    sync_threads(); // threads may still read an earlier call's totals
    if (lane == lanes - 1) totals[warp] = sum;
    sync_threads();
    for (u32 w = 0; w < warp; ++w) sum += totals[w];
    return sum - value;
}

// A token's place in the order, of which the code is the upper part.
constexpr u64 ID_MASK = (1ull << ID_BITS) - 1;
constexpr u32 ORDER_SHIFT = BIN_SHIFT + ID_BITS; // a place shifted by this is its bin

// Adds up the tokens and weights of each bin, and leaves the tokens of each chunk ordered by bins.
// tokens [rows, chunks, CHUNK]: their places in the order; those without weight are left out. starts
// [rows, chunks, BINS]: how many tokens of a chunk are in the bins before. Rows that take the most
// likely token are left as they are.
__global__ void sample_codes(u64 rows, u64 vocabulary, u64 chunks, const f32 *scores, const f32 *stats,
                             const f32 *parameters, u64 *tokens, u32 *starts, u32 *bin_counts, u64 *bin_weights) {
    SHARED(u32, block_counts, BINS);
    SHARED(u64, block_weights, BINS);
    SHARED(u32, warp_totals, 32);
    u32 *counted = block_counts, *totals = warp_totals;
    u64 *weighed = block_weights;
    for_each_row(rows * chunks, [=](u64 at) {
        u64 row = at / chunks, first = at % chunks * CHUNK;
        if (!(reinterpret_cast<const Choice *>(parameters)[row].temperature > 0.0f)) return;
        u32 count = (u32)(vocabulary - first < CHUNK ? vocabulary - first : CHUNK);
        const f32 *from = scores + row * vocabulary + first;
        const Stats *own = reinterpret_cast<const Stats *>(stats) + row * chunks;
        f32 most = block_reduce_range(chunks, LEAST_SCORE, [=](u64 c) { return own[c].most; }, Larger());
        sync_threads(); // threads may still read the bins of the chunk before
        for_each_in_block(BINS, [=](u64 b) { counted[b] = 0, weighed[b] = 0; });
        sync_threads();
        for (u32 start = threadIdx.x; start < count; start += AHEAD * blockDim.x) {
            u32 codes[AHEAD];
            UNROLLED
            for (u32 a = 0; a < AHEAD; ++a) {
                u32 i = start + a * blockDim.x;
                codes[a] = i < count ? code_of(from[i], most) : NONE;
            }
            UNROLLED
            for (u32 a = 0; a < AHEAD; ++a) {
                if (codes[a] == NONE) continue;
                u32 bin = codes[a] >> BIN_SHIFT;
                u64 weight = weight_of(codes[a]);
                if constexpr (ONE_THREAD) {
                    counted[bin] += 1, weighed[bin] += weight;
                } else {
                    atomic_add(counted + bin, 1u);
                    atomic_add(weighed + bin, weight);
                }
            }
        }
        sync_threads();
        // Each thread has neighbouring bins.
        u32 each = (BINS + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * each, sum = 0;
        u32 end = begin + each < BINS ? begin + each : BINS;
        for (u32 b = begin; b < end; ++b) sum += counted[b];
        u32 before = sum_before(sum, totals);
        u32 *to_starts = starts + at * BINS;
        for (u32 b = begin; b < end; ++b) {
            u32 here = counted[b];
            to_starts[b] = before;
            counted[b] = before; // where the bin's next token goes
            before += here;
            if (here == 0) continue;
            atomic_add(bin_counts + row * BINS + b, here);
            atomic_add(bin_weights + row * BINS + b, weighed[b]);
        }
        sync_threads();
        u64 *to = tokens + at * CHUNK;
        for (u32 start = threadIdx.x; start < count; start += AHEAD * blockDim.x) {
            u32 codes[AHEAD];
            UNROLLED
            for (u32 a = 0; a < AHEAD; ++a) {
                u32 i = start + a * blockDim.x;
                codes[a] = i < count ? code_of(from[i], most) : NONE;
            }
            UNROLLED
            for (u32 a = 0; a < AHEAD; ++a) {
                if (codes[a] == NONE) continue;
                u32 *place = counted + (codes[a] >> BIN_SHIFT), free;
                if constexpr (ONE_THREAD) free = (*place)++;
                else free = atomic_add(place, 1u);
                to[free] = (u64)codes[a] << ID_BITS | (first + start + a * blockDim.x);
            }
        }
    });
}

// The upper half of a 128-bit product.
DEVICE u64 upper_product(u64 a, u64 b) {
    u64 low = (a & 0xffffffffu) * (b & 0xffffffffu), left = (a >> 32) * (b & 0xffffffffu);
    u64 right = (a & 0xffffffffu) * (b >> 32), middle = (low >> 32) + (left & 0xffffffffu) + right;
    return (a >> 32) * (b >> 32) + (left >> 32) + (middle >> 32);
}

// The most tokens of a cut that are compared with each other, and the digits of a larger one.
constexpr u32 LISTED = 256, DIGIT_BITS = 7, DIGITS = 1 << DIGIT_BITS;
static_assert(ORDER_SHIFT % DIGIT_BITS == 0, "whole digits");

// A row, and a block's working memory.
struct Row {
    const u64 *tokens; // [chunks, CHUNK]
    const u32 *starts; // [chunks, BINS]
    u32 chunks;
    u64 *weights;       // [BINS + 1]: of all tokens in the bins before
    u32 *counts;        // [BINS + 1]
    u64 *listed;        // [LISTED]: tokens of a cut
    u64 *list_weights;  // [LISTED]
    u64 *digit_weights; // [DIGITS]
    u32 *digit_counts;  // [DIGITS]
    u64 *sums;          // [32]: one of each warp
    u64 *found;         // [2]
    u32 *length;        // [1]: of the list
};

// Sums the bins before each bin.
DEVICE void read_bins(const u32 *bin_counts, const u64 *bin_weights, const Row &row) {
    u32 each = (BINS + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * each;
    u32 end = begin + each < BINS ? begin + each : BINS;
    u64 weight = 0, count = 0;
    for (u32 b = begin; b < end; ++b) {
        row.counts[b] = (u32)count, row.weights[b] = weight;
        count += bin_counts[b], weight += bin_weights[b];
    }
    // A row has less than 2^21 tokens, so the sum of weights has 61 bits.
    u64 weight_before = sum_before(weight, row.sums), count_before = sum_before(count, row.sums);
    for (u32 b = begin; b < end; ++b) row.counts[b] += (u32)count_before, row.weights[b] += weight_before;
    if (begin < BINS && end == BINS)
        row.counts[BINS] = (u32)(count_before + count), row.weights[BINS] = weight_before + weight;
    sync_threads();
}

// Finds the i of 0..count with before(i) <= target < after(i): leaves it and `before` in `found`.
template <class B, class A> DEVICE void search(u32 count, u64 target, const Row &row, B before, A after) {
    sync_threads(); // threads may still read what was found before
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 here = before(i);
        if (here <= target && target < after(i)) row.found[0] = i, row.found[1] = here;
    }
    sync_threads();
}

// Calls f(order) for the tokens in a bin. Each chunk is read by TEAM neighbouring threads.
template <class F> DEVICE void for_each_of_bin(const Row &row, u32 bin, F f) {
    constexpr u32 TEAM = ONE_THREAD ? 1 : 8;
    for (u32 c = threadIdx.x / TEAM; c < row.chunks; c += (blockDim.x + TEAM - 1) / TEAM) {
        const u32 *starts = row.starts + (u64)c * BINS + bin; // the last bin has no tokens
        const u64 *tokens = row.tokens + (u64)c * CHUNK;
        u32 end = starts[1];
        for (u32 i = starts[0] + threadIdx.x % TEAM; i < end; i += TEAM) f(tokens[i]);
    }
}

DEVICE u32 code_of_order(u64 order) { return (u32)(order >> ID_BITS); }

// The first tokens of the order, up to a place.
struct Cut {
    u64 last;   // the place of the last token, or one before the next token's
    u64 weight; // the sum of the tokens' weights
};

// The cut with fewer tokens. It is chosen member by member, because a choice between two addresses
// would put both into memory.
DEVICE Cut shorter(const Cut &a, const Cut &b) {
    bool first = a.last < b.last;
    return Cut{first ? a.last : b.last, first ? a.weight : b.weight};
}

// The shortest cut that has `target` tokens or, BY_WEIGHT, the weight `target`; all tokens if they
// have less together. `target` is above 0. With TOKEN, `last` is the last token's place.
template <bool BY_WEIGHT, bool TOKEN> DEVICE Cut cut(const Row &row, u64 target) {
    const u64 *all_weights = row.weights;
    const u32 *all_counts = row.counts;
    if (target > (BY_WEIGHT ? all_weights[BINS] : (u64)all_counts[BINS])) return Cut{~0ull, all_weights[BINS]};
    auto sum = [=](u32 b) { return BY_WEIGHT ? all_weights[b] : (u64)all_counts[b]; };
    search(BINS, target - 1, row, sum, [=](u32 b) { return sum(b + 1); });
    u32 bin = (u32)row.found[0], shift = ORDER_SHIFT;
    u64 weight = all_weights[bin], prefix = bin; // weight: of the tokens before the prefix
    u32 count = all_counts[bin + 1] - all_counts[bin];
    target -= row.found[1];
    if (!TOKEN && !BY_WEIGHT && target == count) return Cut{((prefix + 1) << shift) - 1, all_weights[bin + 1]};
    ROLLED
    while (count > LISTED) { // the last digit has one token
        u64 *weights = row.digit_weights;
        u32 *counts = row.digit_counts;
        sync_threads(); // threads may still read the tables
        for_each_in_block(DIGITS, [=](u64 d) { counts[d] = 0, weights[d] = 0; });
        sync_threads();
        u32 low = shift - DIGIT_BITS;
        for_each_of_bin(row, bin, [=](u64 order) {
            if (order >> shift != prefix) return;
            u32 digit = (u32)(order >> low) % DIGITS;
            u64 own = weight_of(code_of_order(order));
            if constexpr (ONE_THREAD) {
                counts[digit] += 1, weights[digit] += own;
            } else {
                atomic_add(counts + digit, 1u);
                atomic_add(weights + digit, own);
            }
        });
        sync_threads();
        u32 digit = 0;
        for (;; ++digit) { // every thread walks the digits itself: few rows get here
            u64 here = BY_WEIGHT ? weights[digit] : (u64)counts[digit];
            if (target <= here) break;
            target -= here, weight += weights[digit];
        }
        shift = low, prefix = prefix << DIGIT_BITS | digit, count = counts[digit];
    }
    sync_threads(); // threads may still read an earlier list
    if (threadIdx.x == 0) row.length[0] = 0;
    sync_threads();
    for_each_of_bin(row, bin, [&](u64 order) {
        if (order >> shift != prefix) return;
        u32 place;
        if constexpr (ONE_THREAD) place = row.length[0]++;
        else place = atomic_add(row.length, 1u);
        row.listed[place] = order, row.list_weights[place] = weight_of(code_of_order(order));
    });
    sync_threads();
    for (u32 t = threadIdx.x; t < count; t += blockDim.x) {
        u64 own = row.listed[t], before = 0, weight_before = 0;
        for (u32 i = 0; i < count; ++i) {
            bool earlier = row.listed[i] < own;
            before += earlier;
            weight_before += earlier ? row.list_weights[i] : 0;
        }
        u64 own_weight = row.list_weights[t];
        if (BY_WEIGHT) before = weight_before;
        if (before < target && target <= before + (BY_WEIGHT ? own_weight : 1))
            row.found[0] = own, row.found[1] = weight_before + own_weight;
    }
    sync_threads();
    return Cut{row.found[0], weight + row.found[1]};
}

// The tokens whose weight is at least `least`.
DEVICE Cut cut_light(const Row &row, u64 least) {
    u32 low = 0, high = (u32)(FARTHEST * 0x1p27f); // low has the weight; high may not
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (weight_of(middle) >= least) low = middle;
        else high = middle;
    }
    u64 own = 0;
    for_each_of_bin(row, low >> BIN_SHIFT, [&](u64 order) {
        u32 code = code_of_order(order);
        own += code <= low ? weight_of(code) : 0;
    });
    return Cut{((u64)(low + 1) << ID_BITS) - 1, row.weights[low >> BIN_SHIFT] + block_reduce(own, Plus())};
}

// The parameters of `sample_draw`, in their order.
template <class T> struct Drawing {
    u64 rows, vocabulary, chunks, length;
    const T *logits;
    const u64 *candidates;
    const u32 *starts, *bin_counts;
    const u64 *bin_weights;
    const f32 *stats, *parameters;
    const u64 *seeds;
    i32 *counts;
    i64 *steps;
    i32 *tokens;
    f32 *chances;
    i32 *ring;
};

// What a whole row has. Every warp finds it for itself: a row has few chunks, and no warp waits.
DEVICE Stats stats_of(const f32 *stats, u64 row, u64 chunks) {
    const Stats *own = reinterpret_cast<const Stats *>(stats) + row * chunks;
    Stats all{LEAST_SCORE, LEAST_SCORE, 0.0f, NONE};
    u64 lanes = ONE_THREAD ? 1 : (u64)warpSize;
    for (u64 c = ONE_THREAD ? 0 : threadIdx.x % lanes; c < chunks; c += lanes) all = Joined()(all, own[c]);
    if constexpr (!ONE_THREAD) all = warp_reduce(all, Joined());
    return all;
}

// tokens[row]: the token drawn. steps[row] counts the draws; the random number is that of the row's
// seed and of this count. Absent operands are null: counts (counts the token), ring [length, rows]
// (keeps the last tokens), chances (the logarithm of the softmax of the logits as given).
template <class T>
__global__ __launch_bounds__(1024) void sample_draw(u64 rows, u64 vocabulary, u64 chunks, u64 length, const T *logits,
                                                    const u64 *candidates, const u32 *starts, const u32 *bin_counts,
                                                    const u64 *bin_weights, const f32 *stats, const f32 *parameters,
                                                    const u64 *seeds, i32 *counts, i64 *steps, i32 *tokens,
                                                    f32 *chances, i32 *ring) {
    SHARED(u64, sums_of_weights, BINS + 1);
    SHARED(u32, sums_of_counts, BINS + 1);
    SHARED(u64, list, LISTED);
    SHARED(u64, weights_of_list, LISTED);
    SHARED(u64, digit_weights, DIGITS);
    SHARED(u32, digit_counts, DIGITS);
    SHARED(u64, warp_sums, 32);
    SHARED(u64, places, 2);
    SHARED(u32, list_length, 1);
    const Drawing<T> given{rows,  vocabulary, chunks, length, logits, candidates, starts,  bin_counts, bin_weights,
                           stats, parameters, seeds,  counts, steps,  tokens,     chances, ring};
    for_each_row(rows, [&](u64 at) {
        const Choice choice = reinterpret_cast<const Choice *>(parameters)[at];
        u32 token;
        if (!(choice.temperature > 0.0f)) {
            token = stats_of(stats, at, chunks).first;
        } else {
            const Row row{candidates + at * chunks * CHUNK,
                          starts + at * chunks * BINS,
                          (u32)chunks,
                          sums_of_weights,
                          sums_of_counts,
                          list,
                          weights_of_list,
                          digit_weights,
                          digit_counts,
                          warp_sums,
                          places,
                          list_length};
            read_bins(bin_counts + at * BINS, bin_weights + at * BINS, row);
            Cut kept{~0ull, row.weights[BINS]};
            if (choice.top_k > 0.0f && choice.top_k < (f32)vocabulary) kept = cut<false, false>(row, (u64)choice.top_k);
            if (choice.top_p < 1.0f) {
                // A token stays while the weight before it is below top_p of the total.
                f64 wanted = (f64)choice.top_p * (f64)kept.weight;
                u64 target = (u64)wanted;
                if ((f64)target < wanted || target == 0) ++target;
                kept = shorter(cut<true, false>(row, target), kept);
            }
            if (choice.min_p > 0.0f) {
                u64 least = (u64)(choice.min_p * 0x1p40f);
                kept = shorter(cut_light(row, least > 1 ? least : 1), kept);
            }
            const Drawing<T> now = reload_parameters(given);
            u64 step = (u64)now.steps[at], seed = now.seeds[at];
            Words words = philox(Words{{(u32)step, (u32)(step >> 32), 0, 0}}, (u32)seed, (u32)(seed >> 32));
            u64 target = upper_product((u64)words.w[1] << 32 | words.w[0], kept.weight);
            token = (u32)(cut<true, true>(row, target + 1).last & ID_MASK);
        }
        // Reloaded: kept, they would not fit into the scalar registers beside the filters.
        const Drawing<T> at_end = reload_parameters(given);
        if (token >= (u32)at_end.vocabulary) token = 0;
        if (at_end.chances != nullptr) {
            // The logarithm of the softmax of the logits at the token.
            Stats all = stats_of(at_end.stats, at, at_end.chunks);
            f32 logit = load(at_end.logits[at * at_end.vocabulary + token]);
            if (threadIdx.x == 0) at_end.chances[at] = (logit - all.raw) - math::log(all.sum);
        }
        sync_threads(); // all threads have read the step
        if (threadIdx.x == 0) {
            at_end.tokens[at] = (i32)token;
            if (at_end.ring != nullptr)
                at_end.ring[(u64)at_end.steps[at] % at_end.length * at_end.rows + at] = (i32)token;
            if (at_end.counts != nullptr) at_end.counts[at * at_end.vocabulary + token] += 1;
            at_end.steps[at] += 1;
        }
        sync_threads();
    });
}
