// Draws a token from each row of logits: penalties, temperature, top-k, top-p, min-p, in this order.
//
// `sample_scores` applies penalties and temperature, `sample_codes` turns scores into distances from
// the row's greatest and counts them in bins; both use the whole device. `sample_draw` has one block
// for a row. It looks up the bins first, and so reads the row only once or twice for each filter and
// for the draw.
//
// All sums of weights are sums of integers, so they are exact and need no order: a weight is
// exp(-distance) in units of 2^-40. A token farther than FARTHEST has no weight and is never drawn.
// Tokens are ordered by their distances in units of 2^-27, their codes; among equals, the smaller id
// comes first. The cuts of top-k and top-p, and the token, are found digit by digit of code and id,
// by histograms (radix select).
#include "philox.h"

// Must equal the constants in the host's decode/sample.rs.
constexpr u32 CHUNK = 4096, STATS = 4, BINS = 2048, VECTOR = 4, ID_BITS = 21;
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

DEVICE u64 pitch_of(u64 vocabulary) { return (vocabulary + VECTOR - 1) / VECTOR * VECTOR; }

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

// scores [rows, pitch]: the logits after penalties and temperature. Also clears the bins.
template <class T>
__global__ void sample_scores(u64 rows, u64 vocabulary, u64 chunks, const T *logits, const i32 *counts,
                              const f32 *parameters, f32 *scores, f32 *stats, u32 *bin_counts, u64 *bin_weights) {
    for_each_row(rows * chunks, [=](u64 at) {
        u64 row = at / chunks, first = at % chunks * CHUNK;
        u64 count = vocabulary - first < CHUNK ? vocabulary - first : CHUNK;
        const Choice choice = reinterpret_cast<const Choice *>(parameters)[row];
        const T *from = logits + row * vocabulary + first;
        const i32 *seen = counts == nullptr ? counts : counts + row * vocabulary + first;
        f32 *to = scores + row * pitch_of(vocabulary) + first;
        f32 temperature = choice.temperature > 0.0f ? choice.temperature : 1.0f;
        for_each_in_block(count, [=](u64 i) {
            to[i] = penalised(load(from[i]), choice, seen == nullptr ? 0u : (u32)seen[i]) / temperature;
        });
        if (first == 0) {
            for_each_in_block(BINS, [=](u64 b) { bin_counts[row * BINS + b] = 0, bin_weights[row * BINS + b] = 0; });
        }
        sync_threads();
        f32 most = block_reduce_range(count, LEAST_SCORE, [=](u64 i) { return to[i]; }, Larger());
        f32 raw = block_reduce_range(count, LEAST_SCORE, [=](u64 i) { return (f32)load(from[i]); }, Larger());
        f32 base = raw == LEAST_SCORE ? 0.0f : raw;
        f32 sum = block_reduce_range(count, 0.0f, [=](u64 i) { return math::exp((f32)load(from[i]) - base); }, Plus());
        auto place = [=](u64 i) { return to[i] == most ? (u32)i : NONE; };
        u32 least = block_reduce_range(count, NONE, place, Lesser());
        if (threadIdx.x == 0) reinterpret_cast<Stats *>(stats)[at] = Stats{most, raw, sum, (u32)first + least};
    });
}

DEVICE u64 weight_of(u32 code) { return (u64)(math::exp((f32)code * -0x1p-27f) * 0x1p40f + 0.5f); }

// Turns scores into codes, in place, and adds up the tokens and weights of each bin of codes. Codes
// behind the last token have no weight.
__global__ void sample_codes(u64 rows, u64 vocabulary, u64 chunks, const f32 *stats, u32 *codes, u32 *bin_counts,
                             u64 *bin_weights) {
    SHARED(u32, block_counts, BINS);
    SHARED(u64, block_weights, BINS);
    u32 *counted = block_counts;
    u64 *weighed = block_weights;
    for_each_row(rows * chunks, [=](u64 at) {
        u64 row = at / chunks, first = at % chunks * CHUNK, rest = pitch_of(vocabulary) - first;
        u32 count = rest < CHUNK ? (u32)rest : CHUNK, inside = (u32)(vocabulary - first);
        const Stats *own = reinterpret_cast<const Stats *>(stats) + row * chunks;
        f32 most = block_reduce_range(chunks, LEAST_SCORE, [=](u64 c) { return own[c].most; }, Larger());
        sync_threads(); // threads may still read the bins of the chunk before
        for_each_in_block(BINS, [=](u64 b) { counted[b] = 0, weighed[b] = 0; });
        sync_threads();
        u32 *to = codes + row * pitch_of(vocabulary) + first;
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            f32 score = i < inside ? bit_cast<f32>(to[i]) : LEAST_SCORE;
            f32 distance = i < inside && score == most ? 0.0f : most - score; // both may be infinite
            u32 code = distance < FARTHEST ? (u32)(distance * 0x1p27f) : NONE;
            code = i < inside ? code : NONE;
            to[i] = code;
            if (code == NONE) continue;
            u32 bin = code >> BIN_SHIFT;
            u64 weight = weight_of(code);
            if constexpr (ONE_THREAD) {
                counted[bin] += 1, weighed[bin] += weight;
            } else {
                atomic_add(counted + bin, 1u);
                atomic_add(weighed + bin, weight);
            }
        }
        sync_threads();
        for (u32 b = threadIdx.x; b < BINS; b += blockDim.x) {
            if (counted[b] == 0) continue;
            atomic_add(bin_counts + row * BINS + b, counted[b]);
            atomic_add(bin_weights + row * BINS + b, weighed[b]);
        }
    });
}

// The upper half of a 128-bit product.
DEVICE u64 upper_product(u64 a, u64 b) {
    u64 low = (a & 0xffffffffu) * (b & 0xffffffffu), left = (a >> 32) * (b & 0xffffffffu);
    u64 right = (a & 0xffffffffu) * (b >> 32), middle = (low >> 32) + (left & 0xffffffffu) + right;
    return (a >> 32) * (b >> 32) + (left >> 32) + (middle >> 32);
}

// A row, and a block's working memory.
struct Row {
    const u32 *codes;
    u32 pitch;
    const u32 *bin_counts; // of the row's codes
    const u64 *bin_weights;
    u64 *weights; // [BINS]: of the digit that is being found
    u32 *counts;  // [BINS]
    u32 *ids;     // [BINS]: a token of each
    u64 *sums;    // [1024]: one of each thread
    u64 *found;   // [3]
};

// The sum of the values of the threads before this one.
DEVICE u64 sum_before(u64 value, const Row &row) {
    if constexpr (ONE_THREAD) return 0;
    u32 t = threadIdx.x;
    sync_threads();
    row.sums[t] = value;
    sync_threads();
    for (u32 distance = 1; distance < blockDim.x; distance *= 2) {
        u64 add = t >= distance ? row.sums[t - distance] : 0;
        sync_threads();
        row.sums[t] += add;
        sync_threads();
    }
    return row.sums[t] - value;
}

// Finds the first i for which the sum of value(0..=i) is above `target`: leaves i and the sum before
// it in `found`. Returns whether there is one.
template <class F> DEVICE bool search(u32 count, u64 target, const Row &row, F value) {
    u32 each = (count + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each;
    u32 end = first + each < count ? first + each : count;
    u64 own = 0;
    for (u32 i = first; i < end; ++i) own += value(i);
    u64 before = sum_before(own, row);
    if (threadIdx.x == 0) row.found[2] = 0;
    sync_threads();
    if (before <= target && target < before + own) {
        for (u32 i = first; i < end; ++i) {
            u64 here = value(i);
            if (target < before + here) {
                row.found[0] = i, row.found[1] = before, row.found[2] = 1;
                break;
            }
            before += here;
        }
    }
    sync_threads();
    return row.found[2] != 0;
}

// Calls f(code, token) for the row's codes in a bin.
template <class F> DEVICE void for_each_of_bin(const Row &row, u32 bin, F f) {
    constexpr u32 AHEAD = ONE_THREAD ? 1 : 4; // loads that a thread issues at once
    u32 step = blockDim.x * VECTOR;
    for (u32 first = threadIdx.x * VECTOR; first < row.pitch; first += step * AHEAD) {
        Vector<u32, VECTOR> codes[AHEAD];
        UNROLLED
        for (u32 a = 0; a < AHEAD; ++a) {
            u32 at = first + a * step;
            codes[a] = {{NONE, NONE, NONE, NONE}};
            if (at < row.pitch) codes[a] = *reinterpret_cast<const Vector<u32, VECTOR> *>(row.codes + at);
        }
        UNROLLED
        for (u32 a = 0; a < AHEAD; ++a) {
            UNROLLED
            for (u32 l = 0; l < VECTOR; ++l) {
                if (codes[a].lane[l] >> BIN_SHIFT == bin) f(codes[a].lane[l], first + a * step + l);
            }
        }
    }
}

// The first tokens of the order, up to a place.
struct Cut {
    u64 last;   // the place (code and id): that of the last token, or one before the next token's
    u64 weight; // the sum of the tokens' weights
    u32 token;  // the last token, if it was asked for
};

// The cut with fewer tokens. It is chosen member by member, because a choice between two addresses
// would put both into memory.
DEVICE Cut shorter(const Cut &a, const Cut &b) {
    bool first = a.last < b.last;
    return Cut{first ? a.last : b.last, first ? a.weight : b.weight, 0};
}

// The shortest cut that has `target` tokens or, BY_WEIGHT, the weight `target`; all tokens if they
// have less together. `target` is above 0. With TOKEN and BY_WEIGHT, the last token is found too.
template <bool BY_WEIGHT, bool TOKEN> DEVICE Cut cut(const Row &row, u64 target) {
    const u32 *all_counts = row.bin_counts;
    const u64 *all_weights = row.bin_weights;
    bool any = search(BINS, target - 1, row, [=](u32 b) { return BY_WEIGHT ? all_weights[b] : (u64)all_counts[b]; });
    u32 top = any ? (u32)row.found[0] : BINS;
    u64 before = row.found[1];
    sync_threads(); // the next search writes `found`
    u64 weight = block_reduce_range(top, (u64)0, [=](u64 b) { return all_weights[b]; }, Plus());
    if (!any) return Cut{~0ull, weight, 0};
    target -= before;
    u64 prefix = top;
    u32 shift = 32 + ID_BITS - 11;
    if (!TOKEN && (BY_WEIGHT ? all_counts[top] == 1 : all_counts[top] == target))
        return Cut{((prefix + 1) << shift) - 1, weight + all_weights[top], 0};
    for (u32 level = 0; level < 4; ++level) {
        u32 bits = level == 0 || level == 2 ? 11 : 10, digits = 1u << bits;
        shift -= bits;
        u64 *weights = row.weights;
        u32 *counts = row.counts, *ids = row.ids;
        for_each_in_block(digits, [=](u64 d) { counts[d] = 0, weights[d] = 0; });
        sync_threads();
        for_each_of_bin(row, top, [=](u32 code, u32 token) {
            u64 order = (u64)code << ID_BITS | token;
            if ((order >> shift) >> bits != prefix) return;
            u32 digit = (u32)(order >> shift) & (digits - 1);
            if constexpr (ONE_THREAD) {
                counts[digit] += 1, weights[digit] += weight_of(code);
            } else {
                atomic_add(counts + digit, 1u);
                atomic_add(weights + digit, weight_of(code));
            }
            ids[digit] = token;
        });
        sync_threads();
        search(digits, target - 1, row, [=](u32 d) { return BY_WEIGHT ? weights[d] : (u64)counts[d]; });
        u32 digit = (u32)row.found[0];
        target -= row.found[1];
        weight += block_reduce_range(digit, (u64)0, [=](u64 d) { return weights[d]; }, Plus());
        prefix = prefix << bits | digit;
        u32 count = counts[digit], token = ids[digit];
        u64 own = weights[digit];
        sync_threads(); // the next level writes the tables
        if (count == 1 || (!BY_WEIGHT && count == target)) return Cut{((prefix + 1) << shift) - 1, weight + own, token};
    }
    return Cut{prefix, weight, 0}; // not reached: the last digit has one token
}

// The tokens whose weight is at least `least`.
DEVICE Cut cut_light(const Row &row, u64 least) {
    u32 low = 0, high = (u32)(FARTHEST * 0x1p27f); // low has the weight; high may not
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (weight_of(middle) >= least) low = middle;
        else high = middle;
    }
    u32 top = low >> BIN_SHIFT;
    const u64 *all_weights = row.bin_weights;
    u64 weight = block_reduce_range(top, (u64)0, [=](u64 b) { return all_weights[b]; }, Plus());
    u64 own = 0;
    for_each_of_bin(row, top, [&](u32 code, u32) { own += code <= low ? weight_of(code) : 0; });
    return Cut{((u64)(low + 1) << ID_BITS) - 1, weight + block_reduce(own, Plus()), 0};
}

// The parameters of `sample_draw`, in their order.
template <class T> struct Drawing {
    u64 rows, vocabulary, chunks, length;
    const T *logits;
    const u32 *codes, *bin_counts;
    const u64 *bin_weights;
    const f32 *stats, *parameters;
    const u64 *seeds;
    i32 *counts;
    i64 *steps;
    i32 *tokens;
    f32 *chances;
    i32 *ring;
};

// The logarithm of the softmax of a row's logits at the token.
template <class T> DEVICE void leave_chance(const Drawing<T> &given, u64 row, u32 token) {
    u64 chunks = given.chunks;
    const Stats *own = reinterpret_cast<const Stats *>(given.stats) + row * chunks;
    f32 raw = block_reduce_range(chunks, LEAST_SCORE, [=](u64 c) { return own[c].raw; }, Larger());
    auto part = [=](u64 c) {
        return own[c].raw == LEAST_SCORE ? own[c].sum : own[c].sum * math::exp(own[c].raw - raw);
    };
    f32 sum = block_reduce_range(chunks, 0.0f, part, Plus());
    if (threadIdx.x == 0)
        given.chances[row] = ((f32)load(given.logits[row * given.vocabulary + token]) - raw) - math::log(sum);
}

// The first token with the greatest score.
DEVICE u32 most_likely(const Stats *own, u64 chunks) {
    f32 most = block_reduce_range(chunks, LEAST_SCORE, [=](u64 c) { return own[c].most; }, Larger());
    return block_reduce_range(chunks, NONE, [=](u64 c) { return own[c].most == most ? own[c].first : NONE; }, Lesser());
}

// tokens[row]: the token drawn. steps[row] counts the draws; the random number is that of the row's
// seed and of this count. Absent operands are null: counts (counts the token), ring [length, rows]
// (keeps the last tokens), chances (the logarithm of the softmax of the logits as given).
template <class T>
__global__ __launch_bounds__(1024) void sample_draw(u64 rows, u64 vocabulary, u64 chunks, u64 length, const T *logits,
                                                    const u32 *codes, const u32 *bin_counts, const u64 *bin_weights,
                                                    const f32 *stats, const f32 *parameters, const u64 *seeds,
                                                    i32 *counts, i64 *steps, i32 *tokens, f32 *chances, i32 *ring) {
    SHARED(u64, digit_weights, BINS);
    SHARED(u32, digit_counts, BINS);
    SHARED(u32, digit_ids, BINS);
    SHARED(u64, thread_sums, 1024);
    SHARED(u64, places, 3);
    const Drawing<T> given{rows,  vocabulary, chunks, length, logits, codes,  bin_counts, bin_weights,
                           stats, parameters, seeds,  counts, steps,  tokens, chances,    ring};
    for_each_row(rows, [&](u64 at) {
        const Choice choice = reinterpret_cast<const Choice *>(parameters)[at];
        u32 token;
        if (!(choice.temperature > 0.0f)) {
            token = most_likely(reinterpret_cast<const Stats *>(stats) + at * chunks, chunks);
        } else {
            u64 pitch = pitch_of(vocabulary);
            const Row row{codes + at * pitch,
                          (u32)pitch,
                          bin_counts + at * BINS,
                          bin_weights + at * BINS,
                          digit_weights,
                          digit_counts,
                          digit_ids,
                          thread_sums,
                          places};
            const u64 *all_weights = row.bin_weights;
            Cut kept{~0ull, block_reduce_range(BINS, (u64)0, [=](u64 b) { return all_weights[b]; }, Plus()), 0};
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
            token = cut<true, true>(row, target + 1).token;
        }
        // Reloaded: kept, they would not fit into the scalar registers beside the filters.
        const Drawing<T> at_end = reload_parameters(given);
        if (token >= (u32)at_end.vocabulary) token = 0;
        if (at_end.chances != nullptr) leave_chance(at_end, at, token);
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
