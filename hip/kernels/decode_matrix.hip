// Attention of few queries for each sequence over a paged cache, as `decode.hip`, in f16 and bf16 on
// matrix cores: vector instructions take longer than the reads of keys and values. A warp computes
// one page of 16 keys at a time for up to FEW queries. It reads the page straight into the registers
// that the products take, 16 bytes a lane (8 of an i8 cache). Unless it rotates its queries, it needs
// neither shared memory nor barriers until the end of its split. The next page's keys are on their way
// while it computes the softmax and the product with the values, and the next values while it computes
// scores.
//
// The last block of a row's splits joins them, in their order, so there is one launch and each run
// gives the same bits.
//
// Weights are rounded to T before the product with the values. i8 values are multiplied as bf16, and
// their weights are rounded to it: in f16, a weight times a value's scale could be too small.
#include "attention_matrix.h"
#include "decode.h"
#include "matrix_few.h"
#include "overlap.h"
#include "rotary.h"

OVERLAPPING_LAUNCHES

#if HAS_FEW

// The widest heads that fit into the registers. Wider ones are not launched.
#if CORES_WMMA
constexpr u32 WIDEST = 64;
#else
constexpr u32 WIDEST = 256;
#endif

// The type of the values in their product.
template <class T, class S> struct Multiplied {
    using type = T;
};
template <class T> struct Multiplied<T, i8> {
    using type = bf16;
};

// N elements of S in registers.
template <class S, u32 N> struct Raw {
    static constexpr u32 WORDS = N * sizeof(S) / 4;
    u32 word[WORDS];

    // Zeros if `inside` is false.
    DEVICE void read(const S *from, bool inside) {
        Vector<u32, WORDS> words = {};
        if (inside) words = *reinterpret_cast<const Vector<u32, WORDS> *>(from);
        UNROLLED
        for (u32 w = 0; w < WORDS; ++w) word[w] = words.lane[w];
    }
};

// Byte `at` of a word, a signed number, as f32.
DEVICE f32 byte_of(u32 word, u32 at) {
    u32 codes = word ^ 0x80808080u; // plus 128
#if COMPILER_NVIDIA
    // A conversion takes four times as long as an addition. The byte is put into the lowest mantissa bits of 2^23.
    return bit_cast<f32>(__byte_perm(codes, 0x4b000000u, 0x7440u + at)) - 8388736.0f;
#else
    return (f32)(codes >> 8 * at & 0xffu) - 128.0f;
#endif
}

// Elements e and e + 1 of one vector, as two of T. e is even.
template <class T, class S, u32 N> DEVICE u32 neighbours(const Raw<S, N> &from, u32 e) {
    if constexpr (is_same<S, i8>::value)
        return cores::pair<T>(byte_of(from.word[e / 4], e % 4), byte_of(from.word[e / 4], e % 4 + 1));
    else return from.word[e / 2];
}

// Element e of two vectors, as two of T.
template <class T, class S, u32 N> DEVICE u32 both(const Raw<S, N> &low, const Raw<S, N> &high, u32 e) {
    if constexpr (is_same<S, i8>::value) {
        return cores::pair<T>(byte_of(low.word[e / 4], e % 4), byte_of(high.word[e / 4], e % 4));
    } else {
        u32 a = low.word[e / 2], b = high.word[e / 2];
        return e % 2 == 0 ? (a & 0xffffu) | b << 16 : a >> 16 | (b & 0xffff0000u);
    }
}

#endif

// The blocks of a multiprocessor, or waves of a SIMD, for which the compiler leaves registers.
#if CORES_MFMA && __gfx908__
template <i32 WIDE> constexpr u32 RESIDENT = 1;
#elif CORES_MFMA && __gfx90a__
template <i32 WIDE> constexpr u32 RESIDENT = WIDE > 128 ? 1 : 2;
#else
template <i32 WIDE> constexpr u32 RESIDENT = WIDE > 128 ? 1 : 3;
#endif

#if HAS_FEW

// A launch's cache, and what its rows have in it.
template <class S> struct Cached {
    const S *keys, *values;
    const f32 *key_scales, *value_scales;
    const i32 *offsets, *lengths, *table;
};
// Where splits leave their results. parts: [tokens, heads, splits, width rounded up to 4]; stats:
// [.., splits, 2]; arrived: how many blocks of a row, head and chunk are done, 0 before and after the
// launch.
struct Splits {
    f32 *parts, *stats;
    u32 *arrived;
};

// Queries [tokens, heads, width].
template <class T> struct Stored {
    const T *queries;
    u64 step;
    u32 group, width;
    template <class U> DEVICE void check(const U &) const {}
    template <class U, class Read> DEVICE void begin(const U &, Read read) const { read(); }
    DEVICE const T *query(u32 token, u32 head, u32 member) const {
        return queries + token * step + (head * group + member) * width;
    }
};

// Packed queries, keys and values of at most one token a row, which are not rotated yet (rotary.h).
// One block's keys include the token's place. This block appends the token's key and value before it
// reads any. All blocks rotate their queries while their first keys and values are being loaded.
template <class T, class P, i32 WIDE, i32 FORM> struct Packed {
    using C = compute_t<T>;
    Paged p;
    u32 group; // at most FEW
    rotation::Forward<T, P> job;
    const i32 *offsets, *lengths, *table;
    u64 *flag;
    T *key_pages, *value_pages, *room; // room: [FEW, WIDE], shared
    C *cosine, *sine;                  // [WIDE / 2], shared

    // Raises an error for a token that has no page.
    template <class U> DEVICE void check(const U &unit) const {
        u32 first = (u32)offsets[unit.row], behind = (u32)lengths[unit.row];
        if (threadIdx.x != 0 || first >= (u32)p.tokens || (u32)offsets[unit.row + 1] <= first) return;
        if (place_of(p, table, unit.row, 0, behind) < 0) raise_index(flag, (i64)behind, p.most * PAGE);
    }
    template <class U, class Read> DEVICE void begin(const U &unit, Read read) const {
        const rotation::Sizes &sizes = job.sizes;
        u32 token = (u32)offsets[unit.row], sequence = token / (u32)sizes.length, number = unit.span.before;
        u32 heads = (u32)sizes.heads, turned = heads + (u32)sizes.kv_heads, width = (u32)sizes.width;
        bool appends = unit.begin <= number && number < unit.end;
        if (!appends) read();
        i64 position = rotation::position_of(job.places, job.positions, sequence, token - sequence * (u32)sizes.length);
        rotation::turns(position, (u32)sizes.pairs, job.frequency, (C)job.factor, cosine, sine);
        const T *from = job.x + (u64)token * ((turned + (u32)sizes.kv_heads) * width);
        if (appends) {
            i64 place = place_of(p, table, unit.row, unit.head, number);
            T *key = place < 0 ? nullptr : key_pages + place;
            rotation::turn_heads<FORM>(job, from, [=](u32) { return key; },
                                       rotation::Slice{heads + unit.head, heads + unit.head + 1}, cosine, sine);
            constexpr u32 N = rotation::TOGETHER<T, FORM>;
            const T *value = from + (turned + unit.head) * width;
            T *to = place < 0 ? nullptr : value_pages + place;
            for_each_in_block(place < 0 ? 0 : width / N,
                              [=](u64 i) { vector_at<N>(to, (u32)i * N) = vector_at<N>(value, (u32)i * N); });
            sync_threads();
            read();
        }
        u32 first = unit.head * group;
        T *room = this->room;
        rotation::turn_heads<FORM>(job, from, [=](u32 head) { return room + (head - first) * WIDE; },
                                   rotation::Slice{first, first + group}, cosine, sine);
        sync_threads();
    }
    DEVICE const T *query(u32, u32, u32 member) const { return room + member * WIDE; }
};

// A block's work.
template <i32 WIDE, class T, class S, class Source>
DEVICE void attend(const Paged &p, const Plan &plan, const Cached<S> &cached, const Source &source, f32 scale, f32 cap,
                   const Splits &joining, T *out) {
    using namespace cores;
    constexpr bool CODES = is_same<S, i8>::value;
    using V = typename Multiplied<T, S>::type;
    // Pieces of 8 features of a key that a lane reads. Of a value it reads FEATURES neighbouring
    // ones, in GROUPS pieces.
    constexpr u32 PIECES = WIDE / (8 * PARTS), PRODUCTS = WIDE / SIDE;
    constexpr u32 FEATURES = COLUMNS == 2 || WIDE >= 128 ? 8 : WIDE / SIDE, BESIDE = SIDE / COLUMNS;
    constexpr u32 GROUPS = WIDE / (FEATURES * BESIDE), TILES = FEATURES / COLUMNS;
    constexpr u32 ACROSS = WIDE + 1;
    SHARED(f32, tops, WARPS * FEW);
    SHARED(f32, totals, WARPS * FEW);
    SHARED(f32, joined, WARPS * FEW * ACROSS);
    SHARED(u32, is_last, 1);
    const u32 group = plan.group, splits = plan.splits, window = plan.window;
    const S *keys = cached.keys, *values = cached.values;
    const f32 *key_scales = cached.key_scales, *value_scales = cached.value_scales;
    const i32 *offsets = cached.offsets, *lengths = cached.lengths, *table = cached.table;
    f32 *parts = joining.parts, *stats = joining.stats;
    const u32 width = (u32)p.width, pitch = pitch_of(p);
    const Unit<FEW> unit(p, plan, offsets, lengths, blockIdx.x);
    auto clear = [&]() {
        if (unit.row == 0 && unit.first == 0 && unit.split == 0) clear_rest(p, plan, offsets, unit.head, out);
        clear_outgrown(p, plan, offsets, unit, out);
        if (unit.split == 0 && unit.first == 0) source.check(unit);
    };
    if (!unit.any) {
        wait_for_earlier();
        return clear();
    }
    const u32 all = unit.span.count * group, count = all - unit.first < FEW ? all - unit.first : FEW;
    const u32 first = (u32)offsets[unit.row], end = unit.end;
    const u32 first_token = unit.first / group, last_token = (unit.first + count - 1) / group;
    // All queries see the keys of [all_from, all_to).
    const u32 last_at = unit.span.before + last_token, all_to = unit.span.before + first_token + 1;
    const u32 all_from = window == 0 || last_at < window ? 0 : last_at + 1 - window;

    // The page in which the warp's keys of a round lie, or none.
    auto page_of = [=](u32 key) {
        u32 id = key < end ? (u32)table[(u64)unit.row * p.most + key / PAGE] : ~0u;
        return warp_uniform(id < (u32)p.pages ? id : ~0u);
    };
    Raw<S, 8> key[COLUMNS][PIECES];
    Raw<S, FEATURES> value[GROUPS][K_OF_LANE];
    f32 key_scale[FEW_ELEMENTS], value_scale[FEW_ELEMENTS];
    auto read_keys = [&](u32 page) {
        bool exists = page != ~0u;
        u64 from = ((u64)(exists ? page : 0) * p.heads + unit.head) * PAGE;
        UNROLLED
        for (u32 c = 0; c < COLUMNS; ++c) {
            const S *at = keys + (from + recompute_from(own()) + 8 * c) * pitch;
            UNROLLED
            for (u32 j = 0; j < PIECES; ++j) {
                u32 feature = (j * PARTS + part()) * 8;
                key[c][j].read(at + feature, exists && feature < pitch);
            }
        }
        if constexpr (CODES) {
            UNROLLED
            for (u32 i = 0; i < FEW_ELEMENTS; ++i) key_scale[i] = exists ? key_scales[from + few_column(i)] : 0.0f;
        }
    };
    auto read_values = [&](u32 page) {
        bool exists = page != ~0u;
        u64 from = ((u64)(exists ? page : 0) * p.heads + unit.head) * PAGE;
        u32 mine = recompute_from(own());
        UNROLLED
        for (u32 i = 0; i < K_OF_LANE; ++i) {
            const S *at = values + (from + k_of(i / 2) + i % 2) * pitch;
            UNROLLED
            for (u32 g = 0; g < GROUPS; ++g) {
                u32 feature = (g * BESIDE + mine) * FEATURES;
                value[g][i].read(at + feature, exists && feature < pitch);
            }
        }
        if constexpr (CODES) {
            UNROLLED
            for (u32 i = 0; i < FEW_ELEMENTS; ++i) value_scale[i] = exists ? value_scales[from + few_column(i)] : 0.0f;
        }
    };
    u32 page = page_of(unit.begin + warp() * PAGE), next_page = page_of(unit.begin + (WARPS + warp()) * PAGE);
    wait_for_earlier();
    source.begin(unit, [&]() {
        read_keys(page);
        read_values(page);
    });
    clear(); // while the first keys and values are on their way

    // The queries, in the order of features in which lanes read keys.
    FewRows q[PRODUCTS];
    {
        bool exists = own() < count;
        u32 of_row = unit.first + (exists ? own() : 0), token = of_row / group, member = of_row % group;
        const T *from = source.query(first + token, unit.head, member);
        bool whole = ((u64)from & 15) == 0 && width % 8 == 0;
        Raw<T, 8> piece[PIECES];
        UNROLLED
        for (u32 j = 0; j < PIECES; ++j) {
            u32 feature = (j * PARTS + part()) * 8;
            piece[j].read(from + feature, whole && exists && feature < width);
            if (!whole && exists) {
                UNROLLED
                for (u32 w = 0; w < 4; ++w) {
                    u32 at = feature + 2 * w;
                    u32 low = at < width ? from[at].bits : 0, high = at + 1 < width ? from[at + 1].bits : 0;
                    piece[j].word[w] = low | high << 16;
                }
            }
        }
        UNROLLED
        for (u32 n = 0; n < PRODUCTS; ++n) {
            UNROLLED
            for (u32 h = 0; h < PAIRS; ++h) {
                u32 e = n * K_OF_LANE + 2 * h;
                q[n].word[h] = piece[e / 8].word[e % 8 / 2];
            }
        }
    }
    u32 token_of_slot[SLOTS];
    f32 top[SLOTS], sum[SLOTS];
    UNROLLED
    for (u32 s = 0; s < SLOTS; ++s) {
        u32 row = few_row(s);
        token_of_slot[s] = (unit.first + (row < count ? row : 0)) / group;
        top[s] = LOWEST<f32>, sum[s] = 0.0f;
    }
    FewSums sums[GROUPS][TILES] = {};

    // All warps take as many rounds, so that the whole block takes the same branches.
    for (u32 key0 = unit.begin; key0 < end; key0 += WARPS * PAGE) {
        u32 own0 = key0 + warp() * PAGE;
        FewSums score = {};
        UNROLLED
        for (u32 n = 0; n < PRODUCTS; ++n) {
            Columns columns;
            UNROLLED
            for (u32 c = 0; c < COLUMNS; ++c) {
                UNROLLED
                for (u32 h = 0; h < PAIRS; ++h) {
                    u32 e = n * K_OF_LANE + 2 * h;
                    columns.word[word_at(c, h)] = neighbours<T>(key[c][e / 8], e % 8);
                }
            }
            multiply_few<T>(q[n], columns, score);
            keep_order();
        }
        f32 factor[FEW_ELEMENTS];
        UNROLLED
        for (u32 i = 0; i < FEW_ELEMENTS; ++i) factor[i] = CODES ? scale * key_scale[i] : scale;
        bool exists = page != ~0u;
        page = next_page;
        next_page = page_of(own0 + 2 * WARPS * PAGE);
        read_keys(page);

        // Whether every query sees every key of the round.
        bool plain = key0 >= all_from && key0 + WARPS * PAGE <= (all_to < end ? all_to : end);
        UNROLLED
        for (u32 i = 0; i < FEW_ELEMENTS; ++i) {
            u32 at = unit.span.before + token_of_slot[few_slot(i)], number = own0 + few_column(i);
            f32 x = capped(score.at[i] * factor[i], cap);
            score.at[i] = exists && (plain || (number < end && sees(at, number, window))) ? x : LOWEST<f32>;
        }
        f32 base[SLOTS], fade[SLOTS];
        bool fades = false;
        UNROLLED
        for (u32 s = 0; s < SLOTS; ++s) {
            f32 peak = top[s];
            UNROLLED
            for (u32 i = 0; i < FEW_ELEMENTS; ++i) {
                if (few_slot(i) == s) peak = Larger()(peak, score.at[i]);
            }
            peak = along_few(peak, Larger());
            base[s] = base_of(peak);
            fade[s] = power2((top[s] - base[s]) * LOG2E);
            fades = fades || peak != top[s];
            top[s] = peak;
            sum[s] *= fade[s];
        }
        if (fades) {
            UNROLLED
            for (u32 g = 0; g < GROUPS; ++g) {
                UNROLLED
                for (u32 j = 0; j < TILES; ++j) {
                    UNROLLED
                    for (u32 i = 0; i < FEW_ELEMENTS; ++i) sums[g][j].at[i] *= fade[few_slot(i)];
                }
            }
        }
        UNROLLED
        for (u32 i = 0; i < FEW_ELEMENTS; ++i) {
            f32 weight = power2((score.at[i] - base[few_slot(i)]) * LOG2E + SHIFT<T>);
            sum[few_slot(i)] += weight; // of this lane's keys
            // A key that is not seen may have a scale of NaN.
            if (CODES) weight = score.at[i] == LOWEST<f32> ? 0.0f : weight * value_scale[i];
            score.at[i] = weight;
        }
        FewRows weights = few_of<V>(score);
        auto tile = [&](u32 g, u32 j) {
            Columns columns;
            UNROLLED
            for (u32 c = 0; c < COLUMNS; ++c) {
                UNROLLED
                for (u32 h = 0; h < PAIRS; ++h)
                    columns.word[word_at(c, h)] = both<V>(value[g][2 * h], value[g][2 * h + 1], COLUMNS * j + c);
            }
            return columns;
        };
        if (plain || CODES) {
            UNROLLED
            for (u32 g = 0; g < GROUPS; ++g) {
                UNROLLED
                for (u32 j = 0; j < TILES; ++j) {
                    multiply_few<V>(weights, tile(g, j), sums[g][j]);
                    keep_order();
                }
            }
        } else {
            // A NaN of a value that a query does not see must not reach it by a weight of 0. So the
            // queries of each token have products of their own.
            ROLLED
            for (u32 token = first_token; token <= last_token; ++token) {
                u32 masks[PAIRS], at = unit.span.before + token;
                UNROLLED
                for (u32 h = 0; h < PAIRS; ++h) {
                    u32 low = own0 + k_of(h), high = low + 1;
                    masks[h] = (low < end && sees(at, low, window) ? 0xffffu : 0u) |
                               (high < end && sees(at, high, window) ? 0xffff0000u : 0u);
                }
                UNROLLED
                for (u32 g = 0; g < GROUPS; ++g) {
                    UNROLLED
                    for (u32 j = 0; j < TILES; ++j) {
                        Columns columns = tile(g, j);
                        UNROLLED
                        for (u32 c = 0; c < COLUMNS; ++c) {
                            UNROLLED
                            for (u32 h = 0; h < PAIRS; ++h) columns.word[word_at(c, h)] &= masks[h];
                        }
                        FewSums more = sums[g][j];
                        multiply_few<V>(weights, columns, more);
                        UNROLLED
                        for (u32 i = 0; i < FEW_ELEMENTS; ++i) {
                            if (token_of_slot[few_slot(i)] == token) sums[g][j].at[i] = more.at[i];
                        }
                        keep_order();
                    }
                }
            }
        }
        read_values(page);
    }

    // The block's warps.
    UNROLLED
    for (u32 s = 0; s < SLOTS; ++s) {
        u32 row = few_row(s);
        sum[s] = along_few(sum[s], Plus());
        if (row >= FEW) continue;
        if (leads_few()) {
            tops[warp() * FEW + row] = top[s];
            totals[warp() * FEW + row] = sum[s];
        }
        f32 *to = joined + (warp() * FEW + row) * ACROSS;
        UNROLLED
        for (u32 g = 0; g < GROUPS; ++g) {
            UNROLLED
            for (u32 j = 0; j < TILES; ++j) {
                UNROLLED
                for (u32 i = 0; i < FEW_ELEMENTS; ++i) {
                    // Each of BESIDE columns has FEATURES neighbouring features, COLUMNS of them in a tile.
                    u32 column = few_column(i) % BESIDE, element = COLUMNS * j + few_column(i) / BESIDE;
                    if (few_slot(i) == s) to[(g * BESIDE + column) * FEATURES + element] = sums[g][j].at[i];
                }
            }
        }
    }
    sync_threads();
    const u32 used = unit.span.splits(), across = (width + 3) / 4 * 4;
    auto index_of = [=](u32 i) {
        return query_of(p, plan, first + (unit.first + i) / group, unit.head, (unit.first + i) % group);
    };
    for (u32 at = threadIdx.x; at < count * WIDE; at += THREADS) {
        u32 i = at / WIDE, c = at % WIDE;
        if (c >= width) continue;
        u64 query = index_of(i), place = query * splits + unit.split;
        f32 x = 0.0f, peak = LOWEST<f32>, total = 0.0f;
        UNROLLED
        for (u32 w = 0; w < WARPS; ++w) peak = Larger()(peak, tops[w * FEW + i]);
        UNROLLED
        for (u32 w = 0; w < WARPS; ++w) {
            f32 weight = power2((tops[w * FEW + i] - base_of(peak)) * LOG2E);
            x += joined[(w * FEW + i) * ACROSS + c] * weight;
            total += totals[w * FEW + i] * weight;
        }
        if (used == 1) {
            out[query * width + c] = store<T>::from(x * share(total));
        } else {
            parts[place * across + c] = x;
            if (c == 0) stats[2 * place] = peak, stats[2 * place + 1] = total;
        }
    }
    if (used == 1) return;

    // The block that arrives last joins the splits.
    __threadfence(); // its results, before it arrives
    sync_threads();
    if (threadIdx.x == 0) {
        u32 *counter = joining.arrived + ((u64)unit.row * p.heads + unit.head) * plan.chunks + unit.first / FEW;
        u32 before = atomic_add(counter, 1u);
        is_last[0] = before + 1 == used;
        if (before + 1 == used) *counter = 0; // for the next launch
    }
    sync_threads();
    if (is_last[0] == 0) return;
    __threadfence(); // the others' results, after they arrived
    const u32 pieces = across / 4;
    for (u32 at = threadIdx.x; at < count * pieces; at += THREADS) {
        u32 i = at / pieces, c = at % pieces * 4;
        u64 query = index_of(i);
        const f32 *from = parts + query * splits * across + c, *own_stats = stats + query * splits * 2;
        Vector<f32, 4> x = {};
        f32 top_so_far = LOWEST<f32>, total = 0.0f;
        // Splits whose results are on their way together. On CDNA, more would leave fewer waves.
#if COMPILER_NVIDIA
        constexpr u32 BATCH = 16;
#else
        constexpr u32 BATCH = 8;
#endif
        ROLLED
        for (u32 next = 0; next < used; next += BATCH) {
            Vector<f32, 4> part[BATCH] = {};
            f32 peaks[BATCH], sums_of[BATCH], peak = top_so_far;
            UNROLLED
            for (u32 s = 0; s < BATCH; ++s) {
                u32 split = next + s;
                bool exists = split < used;
                if (exists) part[s] = *reinterpret_cast<const Vector<f32, 4> *>(from + (u64)split * across);
                peaks[s] = exists ? own_stats[2 * split] : LOWEST<f32>;
                sums_of[s] = exists ? own_stats[2 * split + 1] : 0.0f;
            }
            UNROLLED
            for (u32 s = 0; s < BATCH; ++s) peak = Larger()(peak, peaks[s]);
            f32 base = base_of(peak), fade = power2((top_so_far - base) * LOG2E);
            total *= fade;
            UNROLLED
            for (u32 l = 0; l < 4; ++l) x.lane[l] *= fade;
            UNROLLED
            for (u32 s = 0; s < BATCH; ++s) {
                f32 weight = power2((peaks[s] - base) * LOG2E);
                total += sums_of[s] * weight;
                UNROLLED
                for (u32 l = 0; l < 4; ++l) x.lane[l] += part[s].lane[l] * weight;
            }
            top_so_far = peak;
        }
        UNROLLED
        for (u32 l = 0; l < 4; ++l) {
            if (c + l < width) out[query * width + c + l] = store<T>::from(x.lane[l] * share(total));
        }
    }
}

#endif

// Launched with THREADS threads. Heads have up to WIDE features.
template <class T, class S, i32 WIDE>
__global__ __launch_bounds__(THREADS, RESIDENT<WIDE>) void decode_attention_matrix(
    Paged p, u32 group, u32 splits, u32 chunks, u32 window, const T *queries, const S *keys, const S *values,
    const f32 *key_scales, const f32 *value_scales, const i32 *offsets, const i32 *lengths, const i32 *table, f32 scale,
    f32 cap, f32 *parts, f32 *stats, u32 *arrived, T *out) {
#if HAS_FEW
    if (WIDE > WIDEST) return;
    let_next_begin();
    const Cached<S> cached{keys, values, key_scales, value_scales, offsets, lengths, table};
    const Stored<T> source{queries, p.step0, group, (u32)p.width};
    attend<WIDE>(p, Plan{group, splits, chunks, window}, cached, source, scale, cap, Splits{parts, stats, arrived},
                 out);
#endif
}

// As `rotary_append` (rotary.hip) and then `decode_attention_matrix`, for at most one token a row and a
// `group` of at most FEW. FORM has WHOLE.
template <class T, class P, i32 WIDE, i32 FORM>
__global__ __launch_bounds__(THREADS, RESIDENT<WIDE>) void decode_rotary_attention(
    Paged p, u32 group, u32 splits, u32 chunks, u32 window, rotation::Sizes sizes, rotation::Places places,
    const void *positions, const T *x, const P *query_norm, const P *key_norm, const f32 *frequency, const i32 *offsets,
    const i32 *lengths, const i32 *table, f32 scale, f32 cap, f64 factor, f64 epsilon, f64 shift, u64 *flag,
    T *key_pages, T *value_pages, f32 *parts, f32 *stats, u32 *arrived, T *out) {
#if HAS_FEW
    if (WIDE > WIDEST) return;
    let_next_begin();
    using C = compute_t<T>;
    SHARED(Piece, room, cores::FEW * WIDE * sizeof(T) / sizeof(Piece));
    SHARED(C, cosine, WIDE / 2);
    SHARED(C, sine, WIDE / 2);
    const Cached<T> cached{key_pages, value_pages, nullptr, nullptr, offsets, lengths, table};
    const auto job = rotation::forward_of(sizes, places, positions, x, query_norm, key_norm, frequency, factor, epsilon,
                                          shift, (T *)nullptr);
    const Packed<T, P, WIDE, FORM> source{p,      group, job,       offsets,     lengths,
                                          table,  flag,  key_pages, value_pages, reinterpret_cast<T *>(&room[0]),
                                          cosine, sine};
    attend<WIDE>(p, Plan{group, splits, chunks, window}, cached, source, scale, cap, Splits{parts, stats, arrived},
                 out);
#endif
}
