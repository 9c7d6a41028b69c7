// Products of few rows, 1 to 16, with weights of 4 or 8 bits in groups (qweight.h), on matrix cores,
// and what surrounds them in a decoder's layer (projection.h). Each code is read once. Sums are f32,
// in an order that depends only on the sizes and the launch.
//
// Codes minus the code of 0 are whole numbers, which f16 and bf16 hold exactly. So codes become
// operands in registers (matrix_few.h), x is multiplied as it is, and a group's sum is multiplied by
// the group's scale in f32. Each lane that holds a row of weights has a piece of 16 bytes. The
// pieces lie one after the other, and are STEP inputs in all.
//
// One product adds what these lanes hold, but their pieces may be in groups with different scales.
// SPLIT: the operand of x then has a row for each row of x and each lane of a row of weights, which is
// 0 where other lanes hold the inputs. So each piece has its own sums. This takes PARTS times as
// many products, but costs nothing for up to FEW / PARTS rows.
#include "matrix_few.h"
#include "overlap.h"
#include "qweight.h"

OVERLAPPING_LAUNCHES

#if HAS_FEW
// The most threads of a block.
constexpr u32 MOST_THREADS = 512;
// The pieces of each of its rows of weights that a lane has in flight. With more rows of x, registers
// suffice for one.
template <u32 ROWS> constexpr u32 IN_FLIGHT = ROWS > 2 ? 1 : 2;

using namespace cores;
using Words = Vector<u32, 4>;

// Loads as `read_now`, if `inside` is true; else the old value stays.
DEVICE void read_over(const u8 *from, bool inside, Words &to) {
#if COMPILER_NVIDIA
    if (inside)
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to.lane[0]), "=r"(to.lane[1]), "=r"(to.lane[2]), "=r"(to.lane[3])
                     : "l"(from));
#else
    if (inside) to = *reinterpret_cast<const Words *>(from);
#endif
}

// A group's scale, and its code of 0 as `pairs_of` takes it.
struct alignas(8) Factor {
    f32 scale;
    u32 zero;
};

#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 800
template <class F, class T> constexpr bool PAIRED = is_same<T, f16>::value || is_same<F, Int4>::value;
#else
template <class F, class T> constexpr bool PAIRED = false;
#endif

template <class F, class T> DEVICE u32 zero_of(u32 code) {
    if (!PAIRED<F, T>) return bit_cast<u32>((f32)code);
    // -(1024 + code) in f16, or -(128 + code) in bf16, in both halves.
    return (is_same<T, f16>::value ? 0xe400e400u : 0xc300c300u) | code | code << 16;
}

// The four codes in the bytes of a quad, minus the code of 0, as pairs of T.
template <class F, class T> DEVICE void pairs_of(u32 quad, u32 zero, u32 &first, u32 &second) {
#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 800
    if constexpr (PAIRED<F, T>) {
        // The codes as the last bits of 1024 + code or 128 + code.
        constexpr u32 UPPER = is_same<T, f16>::value ? 0x64646464u : 0x43434343u;
        u32 one = __byte_perm(quad, UPPER, 0x4140), two = __byte_perm(quad, UPPER, 0x4342);
        if constexpr (is_same<T, f16>::value) {
            asm("add.rn.f16x2 %0, %1, %2;" : "=r"(first) : "r"(one), "r"(zero));
            asm("add.rn.f16x2 %0, %1, %2;" : "=r"(second) : "r"(two), "r"(zero));
        } else {
            // sm_80 has no addition of pairs of bf16.
            asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(first) : "r"(one), "r"(0x3f803f80u), "r"(zero));
            asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(second) : "r"(two), "r"(0x3f803f80u), "r"(zero));
        }
    } else
#endif
    {
        f32 code[4];
        UNROLLED
        for (u32 k = 0; k < 4; ++k) code[k] = centred(quad, k, bit_cast<f32>(zero));
        if constexpr (is_same<T, f16>::value) {
            first = pair<T>(code[0], code[1]);
            second = pair<T>(code[2], code[3]);
        } else {
            // A bf16 is the upper half of an f32 that it equals.
#if COMPILER_NVIDIA
            first = __byte_perm(bit_cast<u32>(code[0]), bit_cast<u32>(code[1]), 0x7632);
            second = __byte_perm(bit_cast<u32>(code[2]), bit_cast<u32>(code[3]), 0x7632);
#else
            first = bit_cast<u32>(code[0]) >> 16 | (bit_cast<u32>(code[1]) & 0xffff0000u);
            second = bit_cast<u32>(code[2]) >> 16 | (bit_cast<u32>(code[3]) & 0xffff0000u);
#endif
        }
    }
}

// The factors of a block's rows of weights for some groups, in shared memory: reads from there are
// faster, and those of global memory take whole cache lines. PITCH spreads the lanes' reads over the
// banks, and leaves room for one group more.
constexpr u32 ROOM = 2048;
template <u32 WIDE> constexpr u32 GROUPS = ROOM / WIDE;
template <u32 WIDE> constexpr u32 PITCH = GROUPS<WIDE> + 4;

template <class F, class T, u32 WIDE>
DEVICE void stage(const WeightSizes &z, const WeightArrays &w, u32 tile, u32 first, u32 count, Factor *factors) {
    constexpr u32 BATCH = 4;
    u32 warps = blockDim.x / LANES, all = (count + LANES - 1) / LANES * WIDE;
    u32 same = (u32)bit_cast<f32>(z.zero);
    ROLLED
    for (u32 begin = warp(); begin < all; begin += BATCH * warps) {
        u32 scale[BATCH] = {}, code[BATCH] = {};
        UNROLLED
        for (u32 b = 0; b < BATCH; ++b) {
            u32 i = begin + b * warps, group = i / WIDE * LANES + lane();
            if (i >= all || group >= count) continue;
            u64 at = weight_row<WIDE>(z.outs, z.around.gate, tile, i % WIDE) * (u64)z.groups + first + group;
            if (z.kind == 2) scale[b] = reinterpret_cast<const u32 *>(w.scales)[at];
            else scale[b] = reinterpret_cast<const u16 *>(w.scales)[at];
            code[b] = w.extra != nullptr ? w.extra[at] : same;
        }
        UNROLLED
        for (u32 b = 0; b < BATCH; ++b) {
            u32 i = begin + b * warps, group = i / WIDE * LANES + lane();
            if (i >= all || group >= count) continue;
            f32 value = z.kind == 0 ? load_one(f16{(u16)scale[b]}) : bit_cast<f32>(scale[b] << (z.kind == 1 ? 16 : 0));
            factors[i % WIDE * PITCH<WIDE> + group] = Factor{value, zero_of<F, T>(code[b])};
        }
    }
}

// A block's shared memory: the factors, the warps' sums, the rows' roots or the warps' parts of their
// squares, and the squares of a tile.
struct Rooms {
    Factor *factors;
    f32 *parts, *roots, *squares;
};

// A block computes TILES * 16 rows of weights. Each tile of 16 has an equal number of its warps, which
// share its inputs.
template <class F, class T, u32 ROWS, bool SPLIT, u32 TILES>
DEVICE void tiles_of_block(const WeightSizes &z, const WeightArrays &w, const T *x, const Around<T> &a, u32 tile,
                           const Rooms &rooms) {
    // The rows of x in an operand, the operands, the products of a piece, and the columns of which a
    // lane has sums.
    constexpr u32 HELD = COLUMNS == 2 ? FEW : SIDE, EACH = SPLIT ? HELD / PARTS : HELD;
    constexpr u32 OPERANDS = (ROWS + EACH - 1) / EACH, ALL = EACH * OPERANDS;
    constexpr u32 PIECE = F::WEIGHTS, STEP = PIECE * PARTS, PRODUCTS = PIECE / K_OF_LANE;
    constexpr u32 SUMMED = FEW_ELEMENTS / SLOTS, WIDE = SIDE * TILES, AHEAD = IN_FLIGHT<ROWS>;
    const u32 sharing = blockDim.x / LANES / TILES, share = warp() / TILES, within = warp() % TILES * SIDE;
    const u32 own_first = share * (AHEAD * STEP), apart = sharing * (AHEAD * STEP);
    // The pieces that this lane holds, and of which it has the sums.
    const u32 held = part() * PIECE, summed = SPLIT ? few_row(0) / EACH * PIECE : 0;
    const bool mine = !SPLIT || own() / EACH == part();
    const u8 *codes[COLUMNS];
    UNROLLED
    for (u32 c = 0; c < COLUMNS; ++c) {
        u64 row = weight_row<WIDE>(z.outs, z.around.gate, tile, within + own() + 8 * c);
        codes[c] = w.codes + row * (z.inputs / PIECE * 16) + (own_first + held) / PIECE * 16;
    }
    // What a round reads. Outside the inputs it keeps old values: there x is 0, or the sums don't count.
    Words piece[AHEAD][COLUMNS] = {}, few[AHEAD][PIECE / 8] = {};
    auto codes_ahead = [&](u32 n, u32 k) {
        UNROLLED
        for (u32 c = 0; c < COLUMNS; ++c)
            read_over(codes[c] + n * (STEP / PIECE * 16), k + held < z.inputs, piece[n][c]);
    };
    UNROLLED
    for (u32 n = 0; n < AHEAD; ++n) codes_ahead(n, own_first + n * STEP);
    // For one or two rows, each output has a thread. The threads read what they need beside their sums
    // while the first codes are on their way.
    constexpr bool EARLY = ROWS <= 2;
    constexpr u32 EARLY_ROWS = EARLY ? ROWS : 1;
    Beside other = {};
    OwnSquares<1> early;
    auto read_beside = [&]() {
        if constexpr (EARLY) {
            early.begin(a);
            u32 across = z.around.gate == NO_GATE ? WIDE : WIDE / 2;
            if (threadIdx.x < across * a.rows)
                other = beside<WIDE>(a, tile, threadIdx.x / across, threadIdx.x % across);
        }
    };
    if constexpr (!OVERLAPS) read_beside();
    // `span`: how many inputs one pass takes, in whole rounds. The factors of their groups fit in
    // `rooms.factors`.
    const u32 bits = z.shift < 26 ? 5 + z.shift : 31;
    const u64 fits = (u64)GROUPS<WIDE> << bits;
    const u32 span = fits >= z.inputs ? (z.inputs + apart - 1) / apart * apart : (u32)fits / apart * apart;
    const u32 row_of_x = own() % EACH;
    const T *from = x + (u64)row_of_x * z.inputs + own_first + held;
    FewSums sums[OPERANDS] = {};
    ROLLED
    for (u32 done = 0; done < z.inputs; done += span) {
        u32 end = z.inputs - done < span ? z.inputs : done + span, first = done >> bits;
        if (done > 0) sync_threads(); // threads may still read the last groups' factors
        stage<F, T, WIDE>(z, w, tile, first, (end - 1 >> bits) - first + 1, rooms.factors);
        if (OVERLAPS && done == 0) {
            wait_for_earlier(); // no kernel that overlaps writes codes or scales
            read_beside();
        }
        sync_threads();
        ROLLED
        for (u32 at = done + own_first; at < end; at += apart) {
            UNROLLED
            for (u32 c = 0; c < COLUMNS; ++c) codes[c] += apart / PIECE * 16;
            UNROLLED
            for (u32 n = 0; n < AHEAD; ++n) {
                u32 k = at + n * STEP;
                bool inside = k + held < z.inputs;
                if constexpr (OPERANDS == 1) {
                    UNROLLED
                    for (u32 v = 0; v < PIECE / 8; ++v) {
                        if (mine && row_of_x < z.rows && inside)
                            few[n][v] = *reinterpret_cast<const Words *>(from + n * STEP + 8 * v);
                        else if (!SPLIT) few[n][v] = Words{};
                    }
                }
                Factor of[COLUMNS];
                f32 scale[SUMMED];
                bool counted = k + summed < z.inputs;
                Columns columns[PRODUCTS];
                UNROLLED
                for (u32 c = 0; c < COLUMNS; ++c) {
                    // Without SPLIT all pieces of a step are in one group, those outside of the inputs too: on
                    // NVIDIA their lanes have sums that take its scale.
                    bool known = SPLIT ? inside : counted;
                    u32 group = known ? (k + (SPLIT ? held : 0) >> bits) - first : 0;
                    of[c] = rooms.factors[(within + own() + 8 * c) * PITCH<WIDE> + group];
                    UNROLLED
                    for (u32 t = 0; t < PIECE / 4; ++t) {
                        u32 p = 2 * t, quad = F::quad(piece[n][c].lane[t % 4], 0, t);
                        pairs_of<F, T>(quad, of[c].zero, columns[p / PAIRS].word[word_at(c, p % PAIRS)],
                                       columns[(p + 1) / PAIRS].word[word_at(c, (p + 1) % PAIRS)]);
                    }
                }
                UNROLLED
                for (u32 c = 0; c < SUMMED; ++c) {
                    // On NVIDIA a lane has the sums of the rows of weights that it holds.
                    u32 row = within + few_column(c * SLOTS), group = counted ? (k + summed >> bits) - first : 0;
                    scale[c] = COLUMNS == 2 ? of[c].scale : rooms.factors[row * PITCH<WIDE> + group].scale;
                }
                codes_ahead(n, k + apart);
                UNROLLED
                for (u32 q = 0; q < OPERANDS; ++q) {
                    if (q > 0 && q * EACH >= z.rows) break;
                    if constexpr (OPERANDS > 1) {
                        bool some = mine && q * EACH + row_of_x < z.rows && inside;
                        const T *of_rows = from + (u64)(q * EACH) * z.inputs + n * STEP;
                        UNROLLED
                        for (u32 v = 0; v < PIECE / 8; ++v) {
                            few[0][v] = Words{};
                            if (some) few[0][v] = *reinterpret_cast<const Words *>(of_rows + 8 * v);
                        }
                    }
                    FewSums dot = {};
                    UNROLLED
                    for (u32 e = 0; e < PRODUCTS; ++e) {
                        FewRows rows;
                        UNROLLED
                        for (u32 p = 0; p < PAIRS; ++p) {
                            u32 word = e * PAIRS + p;
                            rows.word[p] = few[OPERANDS > 1 ? 0 : n][word / 4].lane[word % 4];
                        }
                        multiply_few<T>(rows, columns[e], dot);
                    }
                    UNROLLED
                    for (u32 i = 0; i < FEW_ELEMENTS; ++i) {
                        if (counted) sums[q].at[i] += scale[i / SLOTS] * dot.at[i];
                    }
                }
            }
            from += apart;
        }
    }
    sync_threads(); // threads may still read the previous tile's parts
    // The device's warp size. On the CPU device it may be larger than the matrix cores' LANES.
    const u32 wave = (u32)warpSize;
    if constexpr (EARLY) {
        f32 square[EARLY_ROWS];
        early.sums(a, square);
        UNROLLED
        for (u32 r = 0; r < EARLY_ROWS; ++r) {
            if (threadIdx.x % wave == 0) rooms.roots[threadIdx.x / wave * EARLY_ROWS + r] = square[r];
        }
    } else {
        find_roots(a, rooms.roots);
    }
    UNROLLED
    for (u32 q = 0; q < OPERANDS; ++q) {
        if (q > 0 && q * EACH >= z.rows) break;
        UNROLLED
        for (u32 i = 0; i < FEW_ELEMENTS; ++i) {
            f32 whole = sums[q].at[i];
            if constexpr (SPLIT) {
                constexpr u32 NEXT = COLUMNS == 2 ? 1 : EACH;
                UNROLLED
                for (u32 distance = NEXT; distance < NEXT * PARTS; distance *= 2)
                    whole += from_lane(whole, lane() ^ distance);
            }
            u32 r = q * EACH + few_row(few_slot(i)) % EACH;
            if (summed == 0) rooms.parts[(share * ALL + r) * WIDE + within + few_column(i)] = whole;
        }
    }
    sync_threads();
    const f32 *parts = rooms.parts;
    auto sum_of = [=](u32 column, u32 r) {
        f32 whole = parts[r * WIDE + column];
        for (u32 s = 1; s < sharing; ++s) whole += parts[(s * ALL + r) * WIDE + column];
        return whole;
    };
    if constexpr (EARLY) {
        f32 roots[EARLY_ROWS];
        UNROLLED
        for (u32 r = 0; r < EARLY_ROWS; ++r) {
            f32 whole = 0.0f;
            for (u32 w = 0; w < blockDim.x / wave; ++w) whole += rooms.roots[w * EARLY_ROWS + r];
            roots[r] = a.squares == nullptr ? 1.0f : root_of(a, whole);
        }
        finish<WIDE>(a, tile, roots, rooms.squares, sum_of, [=](u32, u32) { return other; });
    } else {
        finish<WIDE>(a, tile, rooms.roots, rooms.squares, sum_of);
    }
}
#endif

// Empty where the host does not launch it. x has up to ROWS rows of `z.inputs` elements. All arrays
// begin at multiples of 16 bytes. For bf16 x, 4-bit weights have codes of 0 below 128. A block
// computes TILES * 16 rows of weights. It has a multiple of TILES warps, and at most 512 threads.
template <class F, class T, i32 ROWS, i32 TILES>
__global__ __launch_bounds__(512, 1) void few_codes(WeightSizes z, const T *x, const u8 *codes, const u8 *upper,
                                                    const u8 *scales, const u8 *extra, const f32 *squares,
                                                    const T *bias, const T *residual, const f32 *factor, T *out,
                                                    T *scaled, f32 *new_squares) {
#if HAS_FEW
    WeightArrays w{codes, upper, scales, extra};
    Around<T> a{z.rows, z.outs, z.around, squares, bias, residual, factor, out, scaled, new_squares};
    let_next_begin();
    constexpr u32 WIDE = SIDE * TILES, MOST = ROWS > FEW ? SIDE : FEW, WARPS = MOST_THREADS / LANES;
    SHARED(Factor, factors, WIDE * PITCH<WIDE>);
    SHARED(f32, parts, WARPS * SIDE * MOST);
    SHARED(f32, roots, ROWS <= 2 ? WARPS * ROWS : ROWS);
    SHARED(f32, squares_of_tile, WIDE * ROWS);
    const Rooms rooms{factors, parts, roots, squares_of_tile};
    // Whether the pieces of a step are in one group.
    bool together = F::WEIGHTS * PARTS / 32 <= 1u << z.shift;
    for_each_row(tiles_of<WIDE>(z.outs, z.around.gate), [&](u64 tile) {
        if constexpr (ROWS > (COLUMNS == 2 ? FEW : SIDE) / PARTS) {
            if (together) return tiles_of_block<F, T, (u32)ROWS, false, (u32)TILES>(z, w, x, a, (u32)tile, rooms);
        }
        tiles_of_block<F, T, (u32)ROWS, true, (u32)TILES>(z, w, x, a, (u32)tile, rooms);
    });
#endif
}
