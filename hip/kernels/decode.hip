// Attention of few queries for each sequence over a paged cache (`paged.h`), split along the keys:
// "Flash-Decoding for long-context inference" (Dao, Haziza, Massa, Sizov 2023). A block computes Q
// queries, all of which share a head of keys, over one split of the keys. It leaves the sum of
// values weighted by exp(score - top), the sum of these weights, and `top`, its greatest score, all
// in f32. `decode_combine` joins the splits in their order.
//
// Layout of `decode_attention` on a GPU: 8 neighbouring features of a key belong to a lane, so a
// 16-bit key is read 16 bytes a lane, and `lanes` neighbouring lanes have one key. The queries stay in
// registers. Each group of lanes has its own keys and running softmax until the end of the split.
#include "decode.h"
#include "widen.h"

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP

template <class T, class S, i32 QUERIES>
__global__ void decode_attention(Paged p, u32 group, u32 splits, u32 chunks, u32 window, const T *queries,
                                 const S *keys, const S *values, const f32 *key_scales, const f32 *value_scales,
                                 const i32 *offsets, const i32 *lengths, const i32 *table, f32 scale, f32 cap,
                                 f32 *parts, f32 *stats, T *out) {
    constexpr u32 Q = (u32)QUERIES, KEYS = 64, WIDEST = 256;
    const Plan plan{group, splits, chunks, window};
    u32 width = (u32)p.width;
    for_each_row(p.rows * p.heads * splits * chunks, [&](u64 index) {
        Unit<Q> unit(p, plan, offsets, lengths, (u32)index);
        if (splits == 1 && unit.row == 0 && unit.first == 0) clear_rest(p, plan, offsets, unit.head, out);
        if (splits == 1) clear_outgrown(p, plan, offsets, unit, out);
        if (!unit.any) return;
        f32 q[Q][WIDEST], sums[Q][WIDEST], score[Q][KEYS], x[WIDEST], top[Q], sum[Q];
        u32 at[Q], all = unit.span.count * group, count = all - unit.first < Q ? all - unit.first : Q;
        u32 first = (u32)offsets[unit.row];
        for (u32 i = 0; i < count; ++i) {
            u32 token = (unit.first + i) / group, member = (unit.first + i) % group;
            at[i] = unit.span.before + token;
            const T *from = queries + (first + token) * p.step0 + (unit.head * group + member) * width;
            for (u32 c = 0; c < width; ++c) q[i][c] = load(from[c]), sums[i][c] = 0.0f;
            top[i] = LOWEST<f32>, sum[i] = 0.0f;
        }
        for (u32 key0 = unit.begin; key0 < unit.end; key0 += KEYS) {
            u32 here = unit.end - key0 < KEYS ? unit.end - key0 : KEYS;
            i64 place[KEYS];
            for (u32 j = 0; j < here; ++j) {
                i64 from = place[j] = place_of(p, table, unit.row, unit.head, key0 + j);
                if (from < 0) {
                    for (u32 i = 0; i < count; ++i) score[i][j] = LOWEST<f32>;
                    continue;
                }
                INDEPENDENT
                for (u32 c = 0; c < width; ++c) x[c] = (f32)load(keys[from + c]);
                f32 factor = scale;
                if constexpr (is_same<S, i8>::value) factor *= key_scales[from / pitch_of(p)];
                for (u32 i = 0; i < count; ++i) {
                    const f32 *a = q[i], *b = x;
                    f32 dot = block_reduce_range(width, 0.0f, [=](u64 c) { return a[c] * b[c]; }, Plus());
                    score[i][j] = sees(at[i], key0 + j, window) ? capped(dot * factor, cap) : LOWEST<f32>;
                }
            }
            for (u32 i = 0; i < count; ++i) {
                f32 next = top[i];
                for (u32 j = 0; j < here; ++j) next = Larger()(next, score[i][j]);
                f32 base = base_of(next), fade = math::exp(top[i] - base);
                top[i] = next;
                sum[i] *= fade;
                INDEPENDENT
                for (u32 c = 0; c < width; ++c) sums[i][c] *= fade;
                for (u32 j = 0; j < here; ++j) sum[i] += score[i][j] = math::exp(score[i][j] - base);
            }
            for (u32 j = 0; j < here; ++j) {
                if (place[j] < 0) continue;
                INDEPENDENT
                for (u32 c = 0; c < width; ++c) x[c] = (f32)load(values[place[j] + c]);
                f32 factor = 1.0f;
                if constexpr (is_same<S, i8>::value) factor = value_scales[place[j] / pitch_of(p)];
                for (u32 i = 0; i < count; ++i) {
                    if (!sees(at[i], key0 + j, window)) continue;
                    f32 weight = score[i][j] * factor;
                    INDEPENDENT
                    for (u32 c = 0; c < width; ++c) sums[i][c] += weight * x[c];
                }
            }
        }
        for (u32 i = 0; i < count; ++i) {
            u32 token = (unit.first + i) / group, member = (unit.first + i) % group;
            u64 query = query_of(p, plan, first + token, unit.head, member);
            if (splits == 1) {
                f32 factor = share(sum[i]);
                for (u32 c = 0; c < width; ++c) out[query * width + c] = store<T>::from(sums[i][c] * factor);
            } else {
                u64 part = query * splits + unit.split;
                stats[2 * part] = top[i], stats[2 * part + 1] = sum[i];
                for (u32 c = 0; c < width; ++c) parts[part * width + c] = sums[i][c];
            }
        }
    });
}

#else

// Features of a lane.
constexpr u32 EACH = 8;

template <class S> DEVICE void as_f32(const Vector<S, EACH> &from, f32 (&to)[EACH]) {
    if constexpr (is_same<S, i8>::value) {
        UNROLLED
        for (u32 e = 0; e < EACH; ++e) to[e] = (f32)from.lane[e];
    } else {
        widen(from, to);
    }
}

// Loads that a lane may issue at once, of keys and of as many values.
template <u32 Q> constexpr u32 AHEAD = Q > 4 ? 2 : 4;

template <class T, class S, i32 QUERIES>
__global__ __launch_bounds__(256) void decode_attention(Paged p, u32 group, u32 splits, u32 chunks, u32 window,
                                                        const T *queries, const S *keys, const S *values,
                                                        const f32 *key_scales, const f32 *value_scales,
                                                        const i32 *offsets, const i32 *lengths, const i32 *table,
                                                        f32 scale, f32 cap, f32 *parts, f32 *stats, T *out) {
    constexpr u32 Q = (u32)QUERIES, DEEP = AHEAD<Q>;
    constexpr u32 ROOM = 4096, WARPS = 256 / 32;
    SHARED(f32, tops, WARPS * Q);
    SHARED(f32, totals, WARPS * Q);
    SHARED(f32, joined, ROOM); // [warp][query of the round][column]
    const Plan plan{group, splits, chunks, window};
    u32 width = (u32)p.width, lanes = 1;
    while (lanes * EACH < width) lanes *= 2;
    u32 warp_lane = threadIdx.x % (u32)warpSize, warp = threadIdx.x / (u32)warpSize;
    u32 team = threadIdx.x / lanes, teams = blockDim.x / lanes, column = threadIdx.x % lanes * EACH;
    bool mine = column < width;
    Unit<Q> unit(p, plan, offsets, lengths, blockIdx.x);
    if (splits == 1 && unit.row == 0 && unit.first == 0) clear_rest(p, plan, offsets, unit.head, out);
    if (splits == 1) clear_outgrown(p, plan, offsets, unit, out);
    if (!unit.any) return;

    u32 all = unit.span.count * group, count = all - unit.first < Q ? all - unit.first : Q;
    u32 first = (u32)offsets[unit.row];
    f32 q[Q][EACH], sums[Q][EACH], top[Q], sum[Q];
    u32 at[Q];
    UNROLLED
    for (u32 i = 0; i < Q; ++i) {
        u32 of_row = unit.first + (i < count ? i : 0), token = of_row / group, member = of_row % group;
        at[i] = unit.span.before + token;
        top[i] = LOWEST<f32>, sum[i] = 0.0f;
        const T *from = queries + (first + token) * p.step0 + (unit.head * group + member) * width + column;
        UNROLLED
        for (u32 e = 0; e < EACH; ++e) {
            q[i][e] = column + e < width ? (f32)load(from[e]) : 0.0f;
            sums[i][e] = 0.0f;
        }
    }
    // All queries see the keys from `all_from` up to `all_to`, without it.
    u32 last = unit.span.before + (unit.first + count - 1) / group, all_to = at[0] + 1;
    u32 all_from = window == 0 || last < window ? 0 : last + 1 - window;

    // The page of this team's key number j of a round, or the cache's end.
    auto page_of = [=](u32 key) {
        u32 id = key < unit.end ? (u32)table[(u64)unit.row * p.most + key / PAGE] : ~0u;
        return id < (u32)p.pages ? id : ~0u;
    };
    u32 page[DEEP];
    UNROLLED
    for (u32 j = 0; j < DEEP; ++j) page[j] = page_of(unit.begin + j * teams + team);
    for (u32 key0 = unit.begin; key0 < unit.end; key0 += teams * DEEP) {
        Vector<S, EACH> key[DEEP], value[DEEP];
        f32 key_scale[DEEP], value_scale[DEEP];
        bool inside[DEEP];
        UNROLLED
        for (u32 j = 0; j < DEEP; ++j) {
            u32 number = key0 + j * teams + team;
            inside[j] = page[j] != ~0u;
            u64 vector = ((u64)page[j] * p.heads + unit.head) * PAGE + number % PAGE,
                from = vector * pitch_of(p) + column;
            key[j] = {}, value[j] = {};
            key_scale[j] = 1.0f, value_scale[j] = 1.0f;
            if (inside[j] && mine) {
                key[j] = *reinterpret_cast<const Vector<S, EACH> *>(keys + from);
                value[j] = *reinterpret_cast<const Vector<S, EACH> *>(values + from);
            }
            if constexpr (is_same<S, i8>::value) {
                if (inside[j]) key_scale[j] = key_scales[vector], value_scale[j] = value_scales[vector];
            }
        }
        // The next round's pages come while this round computes.
        UNROLLED
        for (u32 j = 0; j < DEEP; ++j) page[j] = page_of(key0 + (DEEP + j) * teams + team);
        f32 score[DEEP][Q];
        UNROLLED
        for (u32 j = 0; j < DEEP; ++j) {
            f32 x[EACH];
            as_f32(key[j], x);
            UNROLLED
            for (u32 i = 0; i < Q; ++i) {
                f32 dot = 0.0f;
                UNROLLED
                for (u32 e = 0; e < EACH; ++e) dot += q[i][e] * x[e];
                score[j][i] = dot;
            }
        }
        for (u32 distance = lanes / 2; distance > 0; distance /= 2) {
            UNROLLED
            for (u32 j = 0; j < DEEP; ++j) {
                UNROLLED
                for (u32 i = 0; i < Q; ++i) score[j][i] += shuffle(score[j][i], (i32)(warp_lane ^ distance));
            }
        }
        // Whether every query sees every key of the round.
        bool plain = key0 >= all_from && key0 + teams * DEEP <= (all_to < unit.end ? all_to : unit.end);
        UNROLLED
        for (u32 i = 0; i < Q; ++i) {
            f32 next = top[i];
            UNROLLED
            for (u32 j = 0; j < DEEP; ++j) {
                f32 x = capped(score[j][i] * (scale * key_scale[j]), cap);
                bool seen = inside[j] && (plain || sees(at[i], key0 + j * teams + team, window));
                score[j][i] = x = seen ? x : LOWEST<f32>;
                next = Larger()(next, x);
            }
            f32 base = base_of(next), fade = math::exp(top[i] - base);
            top[i] = next;
            sum[i] *= fade;
            UNROLLED
            for (u32 j = 0; j < DEEP; ++j) {
                f32 weight = math::exp(score[j][i] - base);
                sum[i] += weight;
                score[j][i] = weight * value_scale[j];
            }
            UNROLLED
            for (u32 e = 0; e < EACH; ++e) sums[i][e] *= fade;
        }
        UNROLLED
        for (u32 j = 0; j < DEEP; ++j) {
            f32 y[EACH];
            as_f32(value[j], y);
            UNROLLED
            for (u32 i = 0; i < Q; ++i) {
                // A NaN of a value that a query does not see must not reach it by a weight of 0.
                if (plain || sees(at[i], key0 + j * teams + team, window)) {
                    UNROLLED
                    for (u32 e = 0; e < EACH; ++e) sums[i][e] += score[j][i] * y[e];
                }
            }
        }
    }
    // The teams of a warp, two by two. The first team's lanes have the result.
    for (u32 distance = lanes; distance < (u32)warpSize; distance *= 2) {
        UNROLLED
        for (u32 i = 0; i < Q; ++i) {
            i32 other = (i32)(warp_lane ^ distance);
            f32 others_top = shuffle(top[i], other), others_sum = shuffle(sum[i], other);
            f32 next = Larger()(top[i], others_top), base = base_of(next);
            f32 own = math::exp(top[i] - base), others = math::exp(others_top - base);
            top[i] = next;
            sum[i] = sum[i] * own + others_sum * others;
            UNROLLED
            for (u32 e = 0; e < EACH; ++e) sums[i][e] = sums[i][e] * own + shuffle(sums[i][e], other) * others;
        }
    }
    if (warp_lane == 0) {
        UNROLLED
        for (u32 i = 0; i < Q; ++i) tops[warp * Q + i] = top[i], totals[warp * Q + i] = sum[i];
    }
    sync_threads();
    u32 warps = blockDim.x / (u32)warpSize, columns = lanes * EACH;
    auto peak_of = [=](u32 i) {
        f32 peak = LOWEST<f32>;
        for (u32 w = 0; w < warps; ++w) peak = Larger()(peak, tops[w * Q + i]);
        return peak;
    };
    auto total_of = [=](u32 i, f32 base) {
        f32 total = 0.0f;
        for (u32 w = 0; w < warps; ++w) total += totals[w * Q + i] * math::exp(tops[w * Q + i] - base);
        return total;
    };
    u32 a_round = ROOM / (warps * columns);
    a_round = a_round < Q ? a_round : Q;
    for (u32 from = 0; from < count; from += a_round) {
        sync_threads(); // threads may still read the round before
        UNROLLED
        for (u32 i = 0; i < Q; ++i) {
            if (i >= from && i < from + a_round && warp_lane < lanes) {
                f32 factor = math::exp(top[i] - base_of(peak_of(i)));
                UNROLLED
                for (u32 e = 0; e < EACH; ++e)
                    joined[(warp * a_round + i - from) * columns + column + e] = sums[i][e] * factor;
            }
        }
        sync_threads();
        for (u32 x = threadIdx.x; x < a_round * columns; x += blockDim.x) {
            u32 i = from + x / columns, c = x % columns;
            if (i >= count || c >= width) continue;
            f32 value = 0.0f;
            for (u32 w = 0; w < warps; ++w) value += joined[(w * a_round + i - from) * columns + c];
            f32 peak = peak_of(i), total = total_of(i, base_of(peak));
            u32 token = (unit.first + i) / group, member = (unit.first + i) % group;
            u64 query = query_of(p, plan, first + token, unit.head, member);
            if (splits == 1) {
                out[query * width + c] = store<T>::from(value * share(total));
            } else {
                u64 part = query * splits + unit.split;
                parts[part * width + c] = value;
                if (c == 0) stats[2 * part] = peak, stats[2 * part + 1] = total;
            }
        }
    }
}

#endif

// Joins the splits of each query. parts: [tokens, heads, splits, width]; stats: [.., splits, 2].
template <class T>
__global__ void decode_combine(Paged p, u32 group, u32 splits, u32 window, const f32 *parts, const f32 *stats,
                               const i32 *offsets, const i32 *lengths, T *out) {
    constexpr u32 MOST = 128; // splits; must equal the constant in the host's decode/attention.rs
    const Plan plan{group, splits, 1, window};
    u64 heads = p.heads * group, width = p.width;
    SHARED(f32, weight, MOST);
    f32 *weights = weight;
    for_each_row(p.tokens * heads, [=](u64 query) {
        Token token = token_of(offsets, (u32)p.rows, (u32)query / (u32)heads);
        // A token without a place in its row's pages has no parts.
        u32 count = 0;
        if (token.exists) {
            const Span span = span_of(p, plan, offsets, lengths, token.row);
            if (token.at < span.count) count = span.splits();
        }
        const f32 *own = stats + query * splits * 2;
        f32 top = LOWEST<f32>;
        for (u32 s = 0; s < count; ++s) top = Larger()(top, own[2 * s]);
        f32 base = base_of(top), total = 0.0f;
        sync_threads(); // threads may still read the weights of the query before
        for_each_in_block(count, [=](u64 s) { weights[s] = math::exp(own[2 * s] - base); });
        sync_threads();
        for (u32 s = 0; s < count; ++s) total += own[2 * s + 1] * weights[s];
        f32 factor = share(total);
        const f32 *from = parts + query * splits * width;
        T *to = out + query * width;
        for_each_in_block(width, [=](u64 c) {
            f32 value = 0.0f;
            for (u32 s = 0; s < count; ++s) value += from[s * width + c] * weights[s];
            to[c] = store<T>::from(value * factor);
        });
    });
}
