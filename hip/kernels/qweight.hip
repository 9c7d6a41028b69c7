// Products with quantised weights (qweight.h), and the weights as floats. Sums are f32, in an order
// that depends only on the sizes and the launch.
#include "qweight.h"

// COUNT elements, moved by accesses of up to 16 bytes.
template <class T, u32 COUNT> struct alignas(sizeof(T) * COUNT < 16 ? sizeof(T) * COUNT : 16) Some {
    T lane[COUNT];
};
// The elements of x from `first` on, a multiple of COUNT.
template <class T, u32 COUNT> DEVICE void read_some(const T *x, u32 first, f32 (&to)[COUNT]) {
    auto some = read_at<Some<T, COUNT>>(reinterpret_cast<const u8 *>(x), first / COUNT);
    UNROLLED
    for (u32 k = 0; k < COUNT; ++k) to[k] = load(some.lane[k]);
}

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
// ---------------------------------------------------------------- one thread a block

// The rows of weights for which x is converted once, and the inputs that are converted at a time.
constexpr u32 OUTS = 16, SPAN = 1024;

// The compiler's vector types, which it splits if the CPU's vectors are shorter.
typedef f32 Floats __attribute__((vector_size(64)));
typedef i32 Ints __attribute__((vector_size(64)));
typedef u8 Bytes __attribute__((vector_size(16)));

// Bytes as floats. gcc would convert them one by one.
DEVICE Floats widened(Bytes bytes) {
#if defined(__clang__)
    return __builtin_convertvector(bytes, Floats);
#elif __AVX512F__
    typedef char Chars __attribute__((vector_size(16)));
    return __builtin_convertvector((Ints)__builtin_ia32_pmovzxbd512_mask((Chars)bytes, Ints{}, (u16)-1), Floats);
#elif __AVX2__
    typedef char Chars __attribute__((vector_size(16)));
    typedef u64 Halves __attribute__((vector_size(16)));
    Halves low = (Halves)bytes, high = {low[1], 0};
    auto first = __builtin_ia32_pmovzxbd256((Chars)low), second = __builtin_ia32_pmovzxbd256((Chars)high);
    Ints both;
    __builtin_memcpy(&both, &first, 32);
    __builtin_memcpy((u8 *)&both + 32, &second, 32);
    return __builtin_convertvector(both, Floats);
#else
    Floats found;
    for (u32 k = 0; k < 16; ++k) found[k] = (f32)bytes[k];
    return found;
#endif
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

DEVICE Bytes bytes_at(const u8 *from) {
    Bytes found;
    __builtin_memcpy(&found, from, sizeof(found));
    return found;
}

// The codes of a chunk: weights 0 to 15 and 16 to 31.
template <class F> DEVICE void codes_of(const WeightArrays &w, u64 chunk, Bytes (&half)[2]) {
    if constexpr (F::WEIGHTS == 16) {
        half[0] = bytes_at(w.codes + chunk * 32);
        half[1] = bytes_at(w.codes + chunk * 32 + 16);
    } else {
        Bytes both = bytes_at(w.codes + chunk * 16);
        half[0] = both & 15;
        half[1] = both >> 4;
    }
    if constexpr (F::HALVES) {
        u64 bits;
        __builtin_memcpy(&bits, w.upper + chunk * 8, 8);
        constexpr u64 MASK = 0x0303030303030303ull;
        u64 part[4] = {bits & MASK, bits >> 2 & MASK, bits >> 4 & MASK, bits >> 6 & MASK};
        half[0] |= bytes_at(reinterpret_cast<const u8 *>(part)) << 4;
        half[1] |= bytes_at(reinterpret_cast<const u8 *>(part + 2)) << 4;
    }
}

// The sums of OUTS rows of weights with all rows of x.
template <class F, class T, u32 ROWS>
DEVICE void rows_of_weights(const WeightSizes &z, const WeightArrays &w, const T *x, const T *bias, T *out, u32 first) {
    u32 outs = z.outs - first < OUTS ? z.outs - first : OUTS;
    Floats total[OUTS][ROWS] = {};
    alignas(64) f32 at[ROWS][SPAN], sums[ROWS][SPAN / 32];
    for (u32 begin = 0; begin < z.inputs; begin += SPAN) {
        u32 span = z.inputs - begin < SPAN ? z.inputs - begin : SPAN;
        for (u32 r = 0; r < z.rows; ++r) {
            read_row(span, x + (u64)r * z.inputs + begin, at[r]);
            if constexpr (F::LEAST) {
                for (u32 c = 0; c < span / 32; ++c) {
                    f32 sum = 0.0f;
                    for (u32 k = 0; k < 32; ++k) sum += at[r][c * 32 + k];
                    sums[r][c] = sum;
                }
            }
        }
        for (u32 o = 0; o < outs; ++o) {
            u64 row = first + o;
            f32 least[ROWS] = {};
            for (u32 c = 0; c < span / 32; ++c) {
                u32 chunk = begin / 32 + c;
                Factors f = F::factors(z, w, row, chunk * (32 / F::WEIGHTS));
                Bytes half[2];
                codes_of<F>(w, row * (z.inputs / 32) + chunk, half);
                Floats low = widened(half[0]) - f.zero, high = widened(half[1]) - f.zero;
                if constexpr (F::HALVES) low *= f.scale[0], high *= f.scale[1];
                Floats scale = f.scale[0] - Floats{};
                for (u32 r = 0; r < (ROWS == 1 ? 1 : z.rows); ++r) {
                    Floats a, b;
                    __builtin_memcpy(&a, at[r] + c * 32, 64);
                    __builtin_memcpy(&b, at[r] + c * 32 + 16, 64);
                    if constexpr (F::HALVES) total[o][r] = multiply_add(low, a, multiply_add(high, b, total[o][r]));
                    else total[o][r] = multiply_add(scale, multiply_add(low, a, high * b), total[o][r]);
                    if constexpr (F::LEAST) least[r] += f.least * sums[r][c];
                }
            }
            if constexpr (F::LEAST) {
                for (u32 r = 0; r < z.rows; ++r) total[o][r][0] -= least[r];
            }
        }
    }
    for (u32 o = 0; o < outs; ++o) {
        for (u32 r = 0; r < z.rows; ++r) {
            f32 sum = 0.0f;
            for (u32 k = 0; k < 16; ++k) sum += total[o][r][k];
            if (bias != nullptr) sum += load(bias[first + o]);
            out[(u64)r * z.outs + first + o] = store<T>::from(sum);
        }
    }
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
DEVICE void rows_of_weights(const WeightSizes &z, const WeightArrays &w, const T *x, const T *bias, T *out, u32 first) {
    SHARED(f32, parts, WARPS * OUTS * ROWS);
    f32 sum[OUTS][ROWS] = {};
    ROLLED
    for (u32 p = threadIdx.x; p < z.inputs / F::WEIGHTS; p += blockDim.x) {
        Piece piece[OUTS];
        Factors f[OUTS];
        UNROLLED
        for (u32 o = 0; o < OUTS; ++o) {
            u32 row = first + o < z.outs ? first + o : z.outs - 1;
            piece[o] = F::piece(z, w, row, p);
        }
        UNROLLED
        for (u32 o = 0; o < OUTS; ++o) {
            u32 row = first + o < z.outs ? first + o : z.outs - 1;
            f[o] = F::factors(z, w, row, p);
        }
        if constexpr (ROWS == 1) {
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
    sync_threads(); // threads may still read the previous tile's parts
    UNROLLED
    for (u32 o = 0; o < OUTS; ++o) {
        UNROLLED
        for (u32 r = 0; r < ROWS; ++r) {
            f32 whole = warp_reduce(sum[o][r], Plus{});
            if (threadIdx.x % (u32)warpSize == 0)
                parts[threadIdx.x / (u32)warpSize * OUTS * ROWS + o * ROWS + r] = whole;
        }
    }
    sync_threads();
    for (u32 i = threadIdx.x; i < OUTS * ROWS; i += blockDim.x) {
        u32 row = first + i / ROWS, r = i % ROWS;
        if (row >= z.outs || r >= z.rows) continue;
        f32 whole = parts[i];
        for (u32 warp = 1; warp < blockDim.x / (u32)warpSize; ++warp) whole += parts[warp * OUTS * ROWS + i];
        if (bias != nullptr) whole += load(bias[row]);
        out[(u64)r * z.outs + row] = store<T>::from(whole);
    }
}
#endif

// out = x times the transposed weights, plus the bias if there is one. x has up to ROWS rows of
// `z.inputs` elements, and begins at a multiple of 16 bytes. A block has at most 256 threads.
template <class F, class T, i32 ROWS>
__global__ __launch_bounds__(256) void qweight_product(WeightSizes z, const T *x, const u8 *codes, const u8 *upper,
                                                       const u8 *scales, const u8 *extra, const T *bias, T *out) {
    WeightArrays w{codes, upper, scales, extra};
    for_each_row((z.outs + OUTS - 1) / OUTS,
                 [=](u64 tile) { rows_of_weights<F, T, (u32)ROWS>(z, w, x, bias, out, (u32)tile * OUTS); });
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
            Some<T, 8> eight;
            UNROLLED
            for (u32 k = 0; k < 8; ++k)
                eight.lane[k] = store<T>::from(weight_of<F>(quad_of<F>(piece, t + k / 4), t + k / 4, k % 4, f));
            if constexpr (WHOLE) {
                *reinterpret_cast<Some<T, 8> *>(to + t * 4) = eight;
            } else {
                for (u32 k = 0; k < 8; ++k) {
                    if (p * F::WEIGHTS + t * 4 + k < z.inside) to[t * 4 + k] = eight.lane[k];
                }
            }
        }
    };
    if constexpr (ONE_THREAD) {
        for_each_row(z.rows, [=](u64 r) {
            for (u32 p = 0; p < pieces; ++p) one((u32)r, p);
        });
    } else {
        for_each((u64)z.rows * pieces, [=](u64 at) { one((u32)(at / pieces), (u32)(at % pieces)); });
    }
}

// Row r of out is row indices[r] of the weights, or row z.first + r without indices. A thread makes
// the weights of a piece. An index out of range gives zeros and raises the flag.
template <class F, class T>
__global__ void qweight_dequantize(WeightSizes z, const u8 *codes, const u8 *upper, const u8 *scales, const u8 *extra,
                                   const i32 *indices, u64 *flag, T *out) {
    WeightArrays w{codes, upper, scales, extra};
    // A loop of its own for whole rows: the compiler would otherwise join some of their stores with
    // stores of single elements, and none would have 16 bytes.
    if (z.inside == z.inputs) dequantize_rows<F, T, true>(z, w, indices, flag, out);
    else dequantize_rows<F, T, false>(z, w, indices, flag, out);
}
