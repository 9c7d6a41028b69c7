// Products with quantised weights (qweight.h) and what surrounds them in a decoder's layer
// (projection.h), and the weights as floats. Sums are f32, in an order that depends only on the
// sizes and the launch.
#include "overlap.h"
#include "qweight.h"

OVERLAPPING_LAUNCHES

// COUNT elements, moved by accesses of up to 16 bytes.
template <class T, u32 COUNT> struct alignas(sizeof(T) * COUNT < 16 ? sizeof(T) * COUNT : 16) Some {
    T lane[COUNT];
};
// The elements of x from `first` on, a multiple of COUNT.
template <class T, u32 COUNT> DEVICE void read_some(const T *x, u32 first, f32 (&to)[COUNT]) {
    Some<T, COUNT> some;
    if constexpr (sizeof(some) == 16) some = bit_cast<Some<T, COUNT>>(read_now<false>(x + first, true));
    else some = *reinterpret_cast<const Some<T, COUNT> *>(x + first);
    UNROLLED
    for (u32 k = 0; k < COUNT; ++k) to[k] = load(some.lane[k]);
}

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
// ---------------------------------------------------------------- one thread a block

// The rows of weights for which x is arranged once, those that a loop takes together for one row of
// x, and the chunks whose factors are read at a time.
constexpr u32 OUTS = 32, TOGETHER = 2, SPAN = 32;

// The compiler's vector types, which it splits if the CPU's vectors are shorter.
typedef f32 Floats __attribute__((vector_size(64)));
typedef u32 Words __attribute__((vector_size(64)));
typedef f32 Four __attribute__((vector_size(16)));
typedef i32 FourInts __attribute__((vector_size(16)));

template <class V> DEVICE V vector_at(const void *from) {
    V found;
    __builtin_memcpy(&found, from, sizeof(found));
    return found;
}

// a * b + c, rounded once if the CPU can.
DEVICE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__clang__)
#pragma clang fp contract(fast)
    return a * b + c;
#elif __AVX512F__
    return __builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4);
#elif __FMA__ && __AVX2__
    typedef f32 Half __attribute__((vector_size(32)));
    Half x[2], y[2], z[2];
    __builtin_memcpy(x, &a, 64);
    __builtin_memcpy(y, &b, 64);
    __builtin_memcpy(z, &c, 64);
    z[0] = __builtin_ia32_vfmaddps256(x[0], y[0], z[0]);
    z[1] = __builtin_ia32_vfmaddps256(x[1], y[1], z[1]);
    __builtin_memcpy(&c, z, 64);
    return c;
#else
    return a * b + c;
#endif
}

// The sum of a vector's elements.
DEVICE f32 sum_of(Floats all) {
    typedef f32 Eight __attribute__((vector_size(32)));
    Eight eight[2];
    __builtin_memcpy(eight, &all, 64);
    eight[0] += eight[1];
    Four four[2];
    __builtin_memcpy(four, &eight[0], 32);
    four[0] += four[1];
    return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

// A vector of codes, 64 bytes as the array has them: CHUNKS chunks of WORDS words, each of CODES
// codes. Code n of all words becomes a vector of floats, and x is arranged in the same order. So no
// instruction moves codes between words.
template <class F> struct Held {
    static constexpr u32 CHUNKS = F::WEIGHTS / 8, CODES = F::WEIGHTS / 4, WORDS = 16 / CHUNKS;
};

#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, FourInts{__VA_ARGS__})
#endif
// Element n of each of four vectors becomes vector n.
DEVICE void transpose(Four (&v)[4]) {
    Four a = SHUFFLED(v[0], v[1], 0, 4, 1, 5), b = SHUFFLED(v[2], v[3], 0, 4, 1, 5);
    Four c = SHUFFLED(v[0], v[1], 2, 6, 3, 7), d = SHUFFLED(v[2], v[3], 2, 6, 3, 7);
    v[0] = SHUFFLED(a, b, 0, 1, 4, 5);
    v[1] = SHUFFLED(a, b, 2, 3, 6, 7);
    v[2] = SHUFFLED(c, d, 0, 1, 4, 5);
    v[3] = SHUFFLED(c, d, 2, 3, 6, 7);
}

// A row of x in the order of the codes: for each vector of codes CODES vectors of x. Zeros follow the
// row up to a whole vector of codes.
template <class F, class T> DEVICE void arrange(u32 inputs, const T *x, f32 *to) {
    using H = Held<F>;
    for (u32 chunk = 0; chunk < inputs / 32; ++chunk) {
        f32 room[32];
        const f32 *from = room;
        if constexpr (is_same<T, f32>::value) from = x + chunk * 32;
        else read_row(32, x + chunk * 32, room);
        f32 *block = to + chunk / H::CHUNKS * (H::CODES * 16) + chunk % H::CHUNKS * H::WORDS;
        UNROLLED_EVERYWHERE
        for (u32 half = 0; half < 2; ++half) {
            Four four[4];
            __builtin_memcpy(four, from + half * 16, 64);
            transpose(four);
            UNROLLED_EVERYWHERE
            for (u32 byte = 0; byte < 4; ++byte) {
                f32 *at = H::CODES == 8 ? block + (byte * 2 + half) * 16 : block + byte * 16 + half * 4;
                __builtin_memcpy(at, &four[byte], 16);
            }
        }
    }
    for (u32 chunk = inputs / 32; chunk % H::CHUNKS != 0; ++chunk) {
        f32 *block = to + chunk / H::CHUNKS * (H::CODES * 16) + chunk % H::CHUNKS * H::WORDS;
        for (u32 n = 0; n < H::CODES; ++n)
            for (u32 k = 0; k < H::WORDS; ++k) block[n * 16 + k] = 0.0f;
    }
}

// The factors of a row's chunks, each array with one element per chunk.
struct Spread {
    alignas(64) f32 scale[2][SPAN + 16], zero[SPAN + 16], least[SPAN];
};

// The scales of `count` chunks from `first` on.
template <class S> DEVICE void spread_scales(const WeightSizes &z, const u8 *scales, u32 first, u32 count, f32 *to) {
    u32 begin = first >> z.shift, groups = (first + count - 1 >> z.shift) - begin + 1;
    const S *from = reinterpret_cast<const S *>(scales) + begin;
    if (z.shift == 0) return read_row(count, from, to);
    f32 each[SPAN];
    read_row(groups, from, each);
    for (u32 c = 0; c < count; ++c) to[c] = each[(first + c >> z.shift) - begin];
}

// The factors of `count` chunks from `first` on, and 0 for the others.
template <class F>
DEVICE void spread(const WeightSizes &z, const WeightArrays &w, u64 row, u32 first, u32 count, Spread &to) {
    if (count < SPAN) to = {};
    if constexpr (F::HALVES || F::LEAST) {
        for (u32 c = 0; c < count; ++c) {
            Factors f = F::factors(z, w, row, first + c);
            to.scale[0][c] = f.scale[0];
            to.scale[1][c] = f.scale[1];
            to.least[c] = f.least;
        }
    } else {
        u32 bytes = z.kind == 2 ? 4 : 2;
        const u8 *scales = w.scales + row * (z.groups * bytes);
        __builtin_prefetch(scales + (TOGETHER * z.groups + (first >> z.shift)) * bytes);
        if (z.kind == 0) spread_scales<f16>(z, scales, first, count, to.scale[0]);
        else if (z.kind == 1) spread_scales<bf16>(z, scales, first, count, to.scale[0]);
        else spread_scales<f32>(z, scales, first, count, to.scale[0]);
        if (w.extra != nullptr) {
            const u8 *zeros = w.extra + row * z.groups;
            for (u32 c = 0; c < count; ++c) to.zero[c] = (f32)zeros[first + c >> z.shift];
        }
    }
}

// The factors of the chunks of a vector of codes, one for each word. `chunks` has at least 16.
template <class F> DEVICE Floats each_word(const f32 *chunks) {
    Floats all = vector_at<Floats>(chunks);
#if defined(__clang__)
    if constexpr (Held<F>::WORDS == 8) return SHUFFLED(all, all, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    else return SHUFFLED(all, all, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
#else
    constexpr u32 W = Held<F>::WORDS;
    return __builtin_shuffle(all, Words{0 / W, 1 / W, 2 / W, 3 / W, 4 / W, 5 / W, 6 / W, 7 / W, 8 / W, 9 / W, 10 / W,
                                        11 / W, 12 / W, 13 / W, 14 / W, 15 / W});
#endif
}

// Codes of BITS bits minus the code of 0. `codes` has them from bit AT on. They become the last bits
// of a float, from bit AT on, which is 2^23 / 2^AT more. Exact, and faster than conversions.
template <u32 BITS, u32 AT> DEVICE Floats centred(Words codes, Floats zero) {
    constexpr f32 MORE = (f32)(1 << 23 - AT);
    constexpr u32 MASK = (1u << BITS) - 1 << AT;
    return (Floats)(codes & MASK | bit_cast<u32>(MORE)) - (MORE + zero);
}

#if __AVX512BW__ && !defined(__clang__)
// The same of 4-bit codes by looking them up, in half as many instructions: `table` has the floats
// of all codes, `halves` their upper halves.
struct Table {
    typedef i16 Halves __attribute__((vector_size(64)));
    Floats all;
    Halves halves;
    DEVICE explicit Table(Floats zero) {
        all = Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} - zero;
        Floats even = Floats{0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14} - zero;
        Floats odd = Floats{1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15} - zero;
        halves = (Halves)((Words)even >> 16 | (Words)odd & 0xffff0000u);
    }
    // The codes in bits 0 to 3, and in bits 16 to 19. The instructions ignore the bits above.
    DEVICE Floats low(Words codes) const {
        typedef i32 Ints __attribute__((vector_size(64)));
        return __builtin_ia32_permvarsf512_mask(all, (Ints)codes, Floats{}, (u16)-1);
    }
    DEVICE Floats high(Words codes) const {
        return (Floats)__builtin_ia32_permvarhi512_mask(halves, (Halves)codes, Halves{}, 0xaaaaaaaau);
    }
};
#endif

// Codes minus the code of 0, by their place in the words of a vector of codes.
template <class F, bool ZEROS>
DEVICE void codes_of(const u8 *codes, const u8 *upper, Floats zero, Floats (&found)[Held<F>::CODES]) {
    Words words = vector_at<Words>(codes);
    if constexpr (F::WEIGHTS == 16) {
        Words later = words >> 16;
        found[0] = centred<8, 0>(words, zero);
        found[1] = centred<8, 8>(words, zero);
        found[2] = centred<8, 0>(later, zero);
        found[3] = centred<8, 8>(later, zero);
    } else if constexpr (F::HALVES) {
        Words above, shift;
        for (u32 k = 0; k < 16; ++k) {
            above[k] = vector_at<u32>(upper + k / 4 * 8 + k % 2 * 4);
            shift[k] = k % 4 / 2 * 2;
        }
        above >>= shift;
        for (u32 half = 0; half < 2; ++half) {
            Words all = words >> half * 4 & 0x0f0f0f0fu | (above >> half * 4 & 0x03030303u) << 4;
            Words later = all >> 16;
            found[half] = centred<8, 0>(all, zero);
            found[2 + half] = centred<8, 8>(all, zero);
            found[4 + half] = centred<8, 0>(later, zero);
            found[6 + half] = centred<8, 8>(later, zero);
        }
    } else {
#if __AVX512BW__ && !defined(__clang__)
        Table table(ZEROS ? Floats{} : zero);
        UNROLLED_EVERYWHERE
        for (u32 n = 0; n < 4; ++n) {
            Words from = words >> 4 * n;
            found[n] = table.low(from);
            found[n + 4] = table.high(from);
            if constexpr (ZEROS) found[n] -= zero, found[n + 4] -= zero;
        }
#else
        Words later = words >> 16;
        found[0] = centred<4, 0>(words, zero);
        found[1] = centred<4, 4>(words, zero);
        found[2] = centred<4, 8>(words, zero);
        found[3] = centred<4, 12>(words, zero);
        found[4] = centred<4, 0>(later, zero);
        found[5] = centred<4, 4>(later, zero);
        found[6] = centred<4, 8>(later, zero);
        found[7] = centred<4, 12>(later, zero);
#endif
    }
}

// Adds the products of a vector of codes with DOWN rows of x.
template <class F, bool ZEROS, u32 DOWN>
DEVICE void add_products(const u8 *codes, const u8 *upper, const Spread &f, u32 c, f32 zero, const f32 *(&x)[DOWN],
                         u32 at, Floats (&sum)[DOWN]) {
    constexpr u32 CODES = Held<F>::CODES;
    Floats found[CODES], scale = each_word<F>(f.scale[0] + c), second = scale;
    if constexpr (F::HALVES) second = each_word<F>(f.scale[1] + c);
    codes_of<F, ZEROS>(codes, upper, ZEROS ? each_word<F>(f.zero + c) : zero - Floats{}, found);
    UNROLLED_EVERYWHERE
    for (u32 k = 0; k < DOWN; ++k) {
        Floats dot[2];
        UNROLLED_EVERYWHERE
        for (u32 n = 0; n < CODES; ++n) {
            Floats inputs = vector_at<Floats>(x[k] + at + n * 16);
            dot[n % 2] = n < 2 ? found[n] * inputs : multiply_add(found[n], inputs, dot[n % 2]);
        }
        if constexpr (F::HALVES) {
            sum[k] = multiply_add(scale, dot[0], multiply_add(second, dot[1], sum[k]));
        } else {
            sum[k] = multiply_add(scale, dot[0] + dot[1], sum[k]);
        }
    }
}

// The sums of ACROSS rows of weights with DOWN rows of x.
template <class F, bool ZEROS, u32 ACROSS, u32 DOWN>
DEVICE void add_rows(const WeightSizes &z, const WeightArrays &w, const u64 (&row)[ACROSS], const f32 *(&x)[DOWN],
                     const f32 *(&sums)[DOWN], f32 (&whole)[ACROSS][DOWN]) {
    constexpr u32 BYTES = 512 / F::WEIGHTS;
    // Codes are fetched from memory while the rows before theirs are multiplied. CPUs fetch ahead by
    // themselves, but not fast enough for these loops.
    u32 chunks = z.inputs / 32, ahead = ACROSS * chunks * BYTES;
    Floats sum[ACROSS][DOWN] = {};
    Floats least[ACROSS][DOWN] = {};
    f32 zero = F::HALVES ? 32.0f : F::LEAST ? 0.0f : bit_cast<f32>(z.zero);
    for (u32 begin = 0; begin < chunks; begin += SPAN) {
        u32 count = chunks - begin < SPAN ? chunks - begin : SPAN;
        Spread f[ACROSS];
        const u8 *codes[ACROSS], *upper[ACROSS];
        for (u32 p = 0; p < ACROSS; ++p) {
            spread<F>(z, w, row[p], begin, count, f[p]);
            codes[p] = w.codes + (row[p] * chunks + begin) * BYTES;
            upper[p] = w.upper + (row[p] * chunks + begin) * 8;
        }
        u32 c = 0;
        for (; c + Held<F>::CHUNKS <= count; c += Held<F>::CHUNKS) {
            UNROLLED_EVERYWHERE
            for (u32 p = 0; p < ACROSS; ++p) {
                __builtin_prefetch(codes[p] + c * BYTES + ahead);
                add_products<F, ZEROS>(codes[p] + c * BYTES, upper[p] + c * 8, f[p], c, zero, x, (begin + c) * 32,
                                       sum[p]);
            }
        }
        if (c < count) {
            for (u32 p = 0; p < ACROSS; ++p) {
                u8 last[64] = {}, above[32] = {};
                __builtin_memcpy(last, codes[p] + c * BYTES, (count - c) * BYTES);
                if constexpr (F::HALVES) __builtin_memcpy(above, upper[p] + c * 8, (count - c) * 8);
                add_products<F, ZEROS>(last, above, f[p], c, zero, x, (begin + c) * 32, sum[p]);
            }
        }
        if constexpr (F::LEAST) {
            for (u32 p = 0; p < ACROSS; ++p) {
                for (u32 k = 0; k < DOWN; ++k) {
                    for (u32 i = 0; i < SPAN; i += 16) {
                        Floats of = vector_at<Floats>(sums[k] + begin + i);
                        least[p][k] = multiply_add(vector_at<Floats>(f[p].least + i), of, least[p][k]);
                    }
                }
            }
        }
    }
    for (u32 p = 0; p < ACROSS; ++p)
        for (u32 k = 0; k < DOWN; ++k) whole[p][k] = sum_of(F::LEAST ? sum[p][k] - least[p][k] : sum[p][k]);
}

// The sums of OUTS rows of weights with all rows of x.
template <class F, class T, u32 ROWS>
DEVICE void rows_of_weights(const WeightSizes &z, const WeightArrays &w, const T *x, const Around<T> &a, u32 tile) {
    // A loop takes several rows of weights and one row of x, or one row of weights and several of x.
    constexpr u32 ACROSS = ROWS == 1 ? TOGETHER : 1, DOWN = ROWS == 1 ? 1 : 4;
    u32 chunks = z.inputs / 32;
    u32 width = (chunks + Held<F>::CHUNKS - 1) / Held<F>::CHUNKS * Held<F>::CHUNKS * 32;
    // The sums of the inputs of each chunk, with zeros up to a whole span.
    u32 of_sums = F::LEAST ? (chunks + SPAN - 1) / SPAN * SPAN : 0;
    auto room = static_cast<f32 *>(hip_cpu_scratch((u64)z.rows * (width + of_sums) * sizeof(f32)));
    f32 *sums_room = room + (u64)z.rows * width, roots[ROWS], squares[OUTS * ROWS];
    for (u32 r = 0; r < z.rows; ++r) {
        const T *from = x + (u64)r * z.inputs;
        arrange<F>(z.inputs, from, room + (u64)r * width);
        if constexpr (F::LEAST) {
            for (u32 c = 0; c < of_sums; ++c) {
                f32 chunk[32] = {};
                if (c < chunks) read_row(32, from + c * 32, chunk);
                sums_room[r * of_sums + c] = sum_of(vector_at<Floats>(chunk) + vector_at<Floats>(chunk + 16));
            }
        }
    }
    f32 found[OUTS][ROWS];
    for (u32 o = 0; o < OUTS; o += ACROSS) {
        u64 row[ACROSS];
        for (u32 p = 0; p < ACROSS; ++p) row[p] = weight_row<OUTS>(z.outs, z.around.gate, tile, o + p);
        for (u32 r = 0; r < z.rows; r += DOWN) {
            const f32 *at[DOWN], *sums[DOWN];
            for (u32 k = 0; k < DOWN; ++k) {
                // The last row is computed again, not stored.
                u64 one = r + k < z.rows ? r + k : z.rows - 1;
                at[k] = room + one * width, sums[k] = sums_room + one * of_sums;
            }
            f32 whole[ACROSS][DOWN];
            if (!F::HALVES && !F::LEAST && w.extra != nullptr) add_rows<F, true>(z, w, row, at, sums, whole);
            else add_rows<F, false>(z, w, row, at, sums, whole);
            for (u32 p = 0; p < ACROSS; ++p)
                for (u32 k = 0; k < DOWN && r + k < z.rows; ++k) found[o + p][r + k] = whole[p][k];
        }
    }
    find_roots(a, roots);
    finish<OUTS>(a, tile, roots, squares, [&](u32 o, u32 r) { return found[o][r]; });
}

// The weights of a chunk. Simple loops, which the compiler vectorises.
template <class F> DEVICE void weights_of(const WeightSizes &z, const WeightArrays &w, u64 row, u32 c, f32 (&to)[32]) {
    u64 chunk = row * (z.inputs / 32) + c;
    Factors f = F::factors(z, w, row, c * (32 / F::WEIGHTS));
    u8 code[32];
    const u8 *codes = w.codes + chunk * (512 / F::WEIGHTS);
    for (u32 k = 0; k < 16; ++k) {
        code[k] = F::WEIGHTS == 16 ? codes[k] : codes[k] & 15;
        code[k + 16] = F::WEIGHTS == 16 ? codes[k + 16] : codes[k] >> 4;
    }
    if constexpr (F::HALVES) {
        const u8 *upper = w.upper + chunk * 8;
        for (u32 k = 0; k < 8; ++k) {
            for (u32 part = 0; part < 4; ++part) code[part * 8 + k] |= (upper[k] >> 2 * part & 3) << 4;
        }
    }
    for (u32 half = 0; half < 2; ++half) {
        for (u32 k = half * 16; k < half * 16 + 16; ++k) {
            f32 scaled = f.scale[F::HALVES ? half : 0] * ((f32)code[k] - f.zero);
            to[k] = F::LEAST ? scaled - f.least : scaled;
        }
    }
}

// The rows of qweight_dequantize.
template <class F, class T, bool WHOLE>
DEVICE void dequantize_rows(const WeightSizes &z, const WeightArrays &w, const i32 *indices, u64 *flag, T *out) {
    for_each_row(z.rows, [=](u64 r) {
        i64 row = indices != nullptr ? (i64)indices[r] : (i64)(z.first + r);
        T *to = out + r * z.inside;
        bool known = in_range(row, z.outs);
        if (!known) raise_index(flag, row, z.outs);
        for (u32 begin = 0; begin < z.inside; begin += 32) {
            f32 weights[32] = {};
            if (known) weights_of<F>(z, w, (u64)row, begin / 32, weights);
            if (!WHOLE && z.inside - begin < 32) {
                for (u32 k = 0; k < z.inside - begin; ++k) to[begin + k] = store<T>::from(weights[k]);
            } else if constexpr (CONVERTED<T>) {
                for (u32 k = 0; k < 32; k += 8) narrow8(weights + k, to + begin + k);
            } else {
                for (u32 k = 0; k < 32; ++k) to[begin + k] = store<T>::from(weights[k]);
            }
        }
    });
}

#else
// ---------------------------------------------------------------- many threads a block

// The rows of weights whose pieces a thread has in flight, and the most warps of a block.
constexpr u32 OUTS = 4, WARPS = 8;

// Keeps AMD's scheduler from loading x far ahead, for which it would spill.
DEVICE void keep_order() {
#if COMPILER_AMD
    __builtin_amdgcn_sched_barrier(0);
#endif
}

// A block computes the sums of OUTS rows of weights with all rows of x. Its threads share the
// inputs.
template <class F, class T, u32 ROWS>
DEVICE void rows_of_weights(const WeightSizes &z, const WeightArrays &w, const T *x, const Around<T> &a, u32 tile) {
    SHARED(f32, parts, WARPS * OUTS * ROWS);
    SHARED(f32, roots, ROWS == 1 ? WARPS : ROWS);
    SHARED(f32, squares, OUTS * ROWS);
    f32 sum[OUTS][ROWS] = {};
    // For one row: what the block needs beside its sums. It is read while the first codes are on their
    // way. `finish` asks only for the column threadIdx.x.
    OwnSquares<2> own;
    Beside other = {};
    auto read_beside = [&]() {
        own.begin(a);
        if (threadIdx.x < OUTS) other = beside<OUTS>(a, tile, 0, threadIdx.x);
    };
    if (ROWS == 1 && threadIdx.x >= z.inputs / F::WEIGHTS) {
        wait_for_earlier();
        read_beside();
    }
    u32 row[OUTS];
    UNROLLED
    for (u32 o = 0; o < OUTS; ++o) row[o] = weight_row<OUTS>(z.outs, z.around.gate, tile, o);
    ROLLED
    for (u32 p = threadIdx.x; p < z.inputs / F::WEIGHTS; p += blockDim.x) {
        Piece piece[OUTS];
        Factors f[OUTS];
        UNROLLED
        for (u32 o = 0; o < OUTS; ++o) piece[o] = F::piece(z, w, row[o], p);
        UNROLLED
        for (u32 o = 0; o < OUTS; ++o) f[o] = F::factors(z, w, row[o], p);
        if (p == threadIdx.x) wait_for_earlier(); // no kernel that overlaps writes codes or scales
        if constexpr (ROWS == 1) {
            if (p == threadIdx.x) read_beside();
            f32 dot[OUTS][F::HALVES ? 2 : 1] = {}, all = 0.0f;
            UNROLLED
            for (u32 t = 0; t < F::WEIGHTS / 4; t += 2) {
                f32 eight[8];
                keep_order();
                read_some(x, p * F::WEIGHTS + t * 4, eight);
                UNROLLED
                for (u32 k = 0; k < 8; ++k) {
                    if constexpr (F::LEAST) all += eight[k];
                    UNROLLED
                    for (u32 o = 0; o < OUTS; ++o) {
                        f32 code = centred(quad_of<F>(piece[o], t + k / 4), k % 4, f[o].zero);
                        dot[o][F::HALVES && t >= F::WEIGHTS / 8] += eight[k] * code;
                    }
                }
            }
            UNROLLED
            for (u32 o = 0; o < OUTS; ++o) {
                sum[o][0] += f[o].scale[0] * dot[o][0];
                if constexpr (F::HALVES) sum[o][0] += f[o].scale[1] * dot[o][1];
                if constexpr (F::LEAST) sum[o][0] -= f[o].least * all;
            }
        } else {
            // A step takes one word of each piece, which holds QUADS quads. The words move up instead
            // of being indexed, so that they stay in registers.
            constexpr u32 QUADS = F::WEIGHTS / 16;
            ROLLED
            for (u32 w = 0; w < 4; ++w) {
                f32 weight[QUADS][OUTS][4];
                UNROLLED
                for (u32 o = 0; o < OUTS; ++o) {
                    UNROLLED
                    for (u32 h = 0; h < QUADS; ++h) {
                        u32 quad = F::quad(piece[o].word[0], piece[o].upper[0], w + 4 * h);
                        UNROLLED
                        for (u32 k = 0; k < 4; ++k) weight[h][o][k] = weight_of<F>(quad, 4 * h, k, f[o]);
                    }
                    UNROLLED
                    for (u32 i = 0; i < 3; ++i) piece[o].word[i] = piece[o].word[i + 1];
                    u32 upper = piece[o].upper[0];
                    piece[o].upper[0] = piece[o].upper[1];
                    piece[o].upper[1] = upper;
                }
                u32 at = p * F::WEIGHTS + w * 4;
                UNROLLED
                for (u32 r = 0; r < ROWS; ++r) {
                    if (r % 4 == 0) keep_order();
                    UNROLLED
                    for (u32 h = 0; h < QUADS; ++h) {
                        f32 four[4];
                        read_some(x, at + h * 16, four);
                        UNROLLED
                        for (u32 o = 0; o < OUTS; ++o) {
                            UNROLLED
                            for (u32 k = 0; k < 4; ++k) sum[o][r] += four[k] * weight[h][o][k];
                        }
                    }
                    at += r + 1 < z.rows ? z.inputs : 0; // the last row is computed again, not stored
                }
            }
        }
    }
    if (ROWS > 1) wait_for_earlier(); // threads without a piece
    u32 warps = blockDim.x / (u32)warpSize, warp = threadIdx.x / (u32)warpSize;
    bool leads = threadIdx.x % (u32)warpSize == 0;
    f32 square[1];
    if constexpr (ROWS == 1) own.sums(a, square);
    sync_threads(); // threads may still read the previous tile's parts
    if constexpr (ROWS > 1) find_roots(a, roots);
    else if (leads) roots[warp] = square[0];
    UNROLLED
    for (u32 o = 0; o < OUTS; ++o) {
        UNROLLED
        for (u32 r = 0; r < ROWS; ++r) {
            f32 whole = warp_reduce(sum[o][r], Plus{});
            if (leads) parts[warp * OUTS * ROWS + o * ROWS + r] = whole;
        }
    }
    sync_threads();
    auto sum_of = [=](u32 o, u32 r) {
        f32 whole = parts[o * ROWS + r];
        for (u32 warp = 1; warp < warps; ++warp) whole += parts[warp * OUTS * ROWS + o * ROWS + r];
        return whole;
    };
    if constexpr (ROWS > 1) return finish<OUTS>(a, tile, roots, squares, sum_of);
    f32 root[1] = {1.0f};
    if (a.squares != nullptr) {
        f32 whole = roots[0];
        for (u32 warp = 1; warp < warps; ++warp) whole += roots[warp];
        root[0] = root_of(a, whole);
    }
    finish<OUTS>(a, tile, root, squares, sum_of, [=](u32, u32) { return other; });
}

// Eight floats as T, by accesses of 16 bytes: NVIDIA's compiler divides the store of a struct of
// halves into stores of each.
template <class T> DEVICE void write_eight(const f32 (&from)[8], T *to) {
    if constexpr (sizeof(T) == 2) {
        Vector<u32, 4> words;
        UNROLLED
        for (u32 k = 0; k < 4; ++k) {
            u32 low = store<T>::from(from[2 * k]).bits, high = store<T>::from(from[2 * k + 1]).bits;
            words.lane[k] = low | high << 16;
        }
        *reinterpret_cast<Vector<u32, 4> *>(to) = words;
    } else {
        UNROLLED
        for (u32 half = 0; half < 2; ++half) {
            Vector<f32, 4> four;
            UNROLLED
            for (u32 k = 0; k < 4; ++k) four.lane[k] = from[4 * half + k];
            reinterpret_cast<Vector<f32, 4> *>(to)[half] = four;
        }
    }
}

// The rows of qweight_dequantize. WHOLE: whether rows of out are as long as those of the weights.
template <class F, class T, bool WHOLE>
DEVICE void dequantize_rows(const WeightSizes &z, const WeightArrays &w, const i32 *indices, u64 *flag, T *out) {
    u32 pieces = z.inputs / F::WEIGHTS;
    auto one = [=](u32 r, u32 p) {
        i64 row = indices != nullptr ? (i64)indices[r] : (i64)z.first + r;
        bool known = in_range(row, z.outs);
        if (!known && p == 0) raise_index(flag, row, z.outs);
        Piece piece = {};
        Factors f = {};
        if (known) {
            piece = F::piece(z, w, (u64)row, p);
            f = F::factors(z, w, (u64)row, p);
        }
        T *to = out + (u64)r * z.inside + p * F::WEIGHTS;
        UNROLLED
        for (u32 t = 0; t < F::WEIGHTS / 4; t += 2) {
            f32 eight[8];
            UNROLLED
            for (u32 k = 0; k < 8; ++k) eight[k] = weight_of<F>(quad_of<F>(piece, t + k / 4), t + k / 4, k % 4, f);
            if constexpr (WHOLE) {
                write_eight(eight, to + t * 4);
            } else {
                for (u32 k = 0; k < 8; ++k) {
                    if (p * F::WEIGHTS + t * 4 + k < z.inside) to[t * 4 + k] = store<T>::from(eight[k]);
                }
            }
        }
    };
    for_each((u64)z.rows * pieces, [=](u64 at) {
        u64 r = divided_in_f64(at, pieces);
        one((u32)r, (u32)(at - r * pieces));
    });
}
#endif

// x has up to ROWS rows of `z.inputs` elements, and begins at a multiple of 16 bytes. A block has at
// most 256 threads.
template <class F, class T, i32 ROWS>
__global__ __launch_bounds__(256) void qweight_product(WeightSizes z, const T *x, const u8 *codes, const u8 *upper,
                                                       const u8 *scales, const u8 *extra, const f32 *squares,
                                                       const T *bias, const T *residual, const f32 *factor, T *out,
                                                       T *scaled, f32 *new_squares) {
    WeightArrays w{codes, upper, scales, extra};
    Around<T> a{z.rows, z.outs, z.around, squares, bias, residual, factor, out, scaled, new_squares};
    let_next_begin();
    for_each_row(tiles_of<OUTS>(z.outs, z.around.gate),
                 [=](u64 tile) { rows_of_weights<F, T, (u32)ROWS>(z, w, x, a, (u32)tile); });
}

// Row r of out is row indices[r] of the weights, or row z.first + r without indices. A thread makes
// the weights of a piece. An index out of range gives zeros and raises the flag.
template <class F, class T>
__global__ void qweight_dequantize(WeightSizes z, const u8 *codes, const u8 *upper, const u8 *scales, const u8 *extra,
                                   const i32 *indices, u64 *flag, T *out) {
    WeightArrays w{codes, upper, scales, extra};
    wait_for_earlier();
    // A loop of its own for whole rows: the compiler would otherwise join some of their stores with
    // stores of single elements, and none would have 16 bytes.
    if (z.inside == z.inputs) dequantize_rows<F, T, true>(z, w, indices, flag, out);
    else dequantize_rows<F, T, false>(z, w, indices, flag, out);
}
