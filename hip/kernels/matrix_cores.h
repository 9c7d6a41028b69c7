// Products of 16 x 16 tiles of f16 or bf16 with sums in f32, each computed by one warp: MFMA on
// CDNA, WMMA on RDNA 3 and 4, `mma` on NVIDIA. The CPU device's lockstep mode emulates them, for
// tests. Other architectures have no such products: a kernel that needs them is empty there, and
// the host does not launch it.
//
// sums[r][c] += the sum over k of rows[r][k] * columns[c][k], for 16 values each of r, c and k. A
// lane holds some elements of each tile. The file chooses the layouts so that sums become the rows
// of a following product without leaving the lane (RDNA 3: by one exchange with another lane).
//
// Sources of the layouts: "AMD matrix instruction calculator"; AMD's "RDNA3" and "RDNA4"
// instruction set documents, V_WMMA_F32_16X16X16_F16; NVIDIA's PTX ISA, mma.m16n8k16 and ldmatrix.
#pragma once
#include "approximate.h"
#include "prelude.h"

#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 800
#define CORES_MMA 1
#elif COMPILER_AMD && (__gfx908__ || __gfx90a__ || __gfx940__ || __gfx941__ || __gfx942__ || __gfx950__)
#define CORES_MFMA 1
#elif COMPILER_AMD && __GFX11__
#define CORES_WMMA 3
#elif COMPILER_AMD && (__gfx1200__ || __gfx1201__)
#define CORES_WMMA 4
#elif COMPILER_HOST && HIP_CPU_LOCKSTEP
#define CORES_EMULATED 1
#endif
#if CORES_MMA || CORES_MFMA || CORES_WMMA || CORES_EMULATED
#define HAS_CORES 1
#endif

namespace cores {

constexpr u32 SIDE = 16;
#if CORES_MFMA
constexpr u32 LANES = 64, OPERAND = 2, ELEMENTS = 4; // 32-bit registers of an operand, and of the sums
#elif CORES_WMMA == 3
constexpr u32 LANES = 32, OPERAND = 8, ELEMENTS = 8;
#else
constexpr u32 LANES = 32, OPERAND = 4, ELEMENTS = 8;
#endif
#if CORES_MMA
constexpr u32 ROWS = 2, RUN = 2; // rows of which a lane has sums; consecutive sums that are neighbours in a row
#elif CORES_WMMA == 3
constexpr u32 ROWS = 1, RUN = 1;
#else
constexpr u32 ROWS = 1, RUN = ELEMENTS;
#endif

struct Rows {
    u32 word[OPERAND];
};
struct Columns {
    u32 word[OPERAND];
};
struct Sums {
    f32 at[ELEMENTS];
};

DEVICE u32 lane() { return threadIdx.x % LANES; }
// The warp's number in its block. A warp of 64 lanes counts as two if products take 32.
DEVICE u32 warp() { return warp_uniform(threadIdx.x / LANES); }

// Where a sum belongs: its row and column in the tile, and which of the lane's rows that is.
DEVICE u32 slot_of(u32 i) { return ROWS == 2 ? i / 2 % 2 : 0; }
DEVICE u32 row_of(u32 slot) { return ROWS == 2 ? lane() / 4 + 8 * slot : lane() % SIDE; }
DEVICE u32 column_of(u32 i) {
#if CORES_MMA
    return lane() % 4 * 2 + i % 2 + i / 4 * 8;
#elif CORES_WMMA == 3
    return 2 * i + lane() / SIDE;
#else
    return lane() / SIDE * ELEMENTS + i;
#endif
}

// The value of lane `source` of this warp.
template <class V> DEVICE V from_lane(V value, u32 source) {
    return shuffle(value, (i32)(threadIdx.x % (u32)warpSize / LANES * LANES + source));
}
// Combines a value of each lane that has sums of the same row.
template <class Op> DEVICE f32 along_row(f32 value, Op op) {
#if CORES_MMA
    value = op(value, from_lane(value, lane() ^ 1));
    return op(value, from_lane(value, lane() ^ 2));
#else
    UNROLLED
    for (u32 distance = SIDE; distance < LANES; distance *= 2) value = op(value, from_lane(value, lane() ^ distance));
    return value;
#endif
}

// Two elements in a register, the first in the lower half.
template <class T> DEVICE u32 pair(f32 low, f32 high) {
#if COMPILER_NVIDIA && __CUDA_ARCH__ >= 800
    u32 both;
    if constexpr (is_same<T, f16>::value) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return (u32)store<T>::from(low).bits | (u32)store<T>::from(high).bits << 16;
#endif
}

// Rounds sums to the rows of a product: k counts the sums' columns.
template <class T> DEVICE Rows rows_of(const Sums &sums) {
    Rows rows;
#if CORES_WMMA == 3
    UNROLLED
    for (u32 i = 0; i < ELEMENTS; i += 2) {
        u32 own = pair<T>(sums.at[i], sums.at[i + 1]), other = from_lane(own, lane() ^ SIDE);
        u32 even = lane() < SIDE ? own : other, odd = lane() < SIDE ? other : own;
        rows.word[i] = (even & 0xffff) | odd << 16;
        rows.word[i + 1] = even >> 16 | (odd & 0xffff0000u);
    }
#else
    UNROLLED
    for (u32 i = 0; i < ELEMENTS; i += 2) rows.word[i / 2] = pair<T>(sums.at[i], sums.at[i + 1]);
#endif
    return rows;
}

// A tile in shared memory whose rows are PITCH elements apart. Rows begin at multiples of 16 bytes.
template <class T, u32 PITCH> struct Tile {
#if CORES_MMA
    u32 rows_at, columns_at;

    DEVICE Tile(const T *tile) {
        u32 base = (u32)__cvta_generic_to_shared(tile), l = lane();
        rows_at = base + (l % 16 * PITCH + l / 16 * 8) * 2;
        columns_at = base + ((l / 16 * 8 + l % 8) * PITCH + l / 8 % 2 * 8) * 2;
    }
    // tile[row..][k..]
    DEVICE Rows rows(u32 row, u32 k) const {
        Rows found;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found.word[0]), "=r"(found.word[1]), "=r"(found.word[2]), "=r"(found.word[3])
                     : "r"(rows_at + (row * PITCH + k) * 2));
        return found;
    }
    // tile[column..][k..]
    DEVICE Columns columns(u32 column, u32 k) const {
        Columns found;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found.word[0]), "=r"(found.word[1]), "=r"(found.word[2]), "=r"(found.word[3])
                     : "r"(columns_at + (column * PITCH + k) * 2));
        return found;
    }
    // tile[k..][column..]
    DEVICE Columns turned(u32 k, u32 column) const {
        Columns found;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found.word[0]), "=r"(found.word[1]), "=r"(found.word[2]), "=r"(found.word[3])
                     : "r"(rows_at + (k * PITCH + column) * 2));
        return found;
    }
#else
    // A lane has K consecutive elements of one row (or column): all 16, or those of its half or
    // quarter of the warp.
    static constexpr u32 K = OPERAND * 2, PART = OPERAND < 4 ? OPERAND : 4;
    const T *tile;

    DEVICE Tile(const T *tile) : tile(tile) {}
    static DEVICE u32 first_k() { return K == SIDE ? 0 : lane() / SIDE * K; }
    template <class To> DEVICE To read(u32 row, u32 k) const {
        const T *from = tile + (row + lane() % SIDE) * PITCH + k + first_k();
        To found;
        UNROLLED
        for (u32 w = 0; w < OPERAND; w += PART) {
            auto words = *(const Vector<u32, PART> *)(from + 2 * w);
            UNROLLED
            for (u32 i = 0; i < PART; ++i) found.word[w + i] = words.lane[i];
        }
        return found;
    }
    DEVICE Rows rows(u32 row, u32 k) const { return read<Rows>(row, k); }
    DEVICE Columns columns(u32 column, u32 k) const { return read<Columns>(column, k); }
    DEVICE Columns turned(u32 k, u32 column) const {
        const T *from = tile + (k + first_k()) * PITCH + column + lane() % SIDE;
        Columns found;
        UNROLLED
        for (u32 w = 0; w < OPERAND; ++w)
            found.word[w] = (u32)from[2 * w * PITCH].bits | (u32)from[(2 * w + 1) * PITCH].bits << 16;
        return found;
    }
#endif
};

#if CORES_MFMA || CORES_WMMA
template <class V, class From> DEVICE V registers(const From &from) {
    V to;
    static_assert(sizeof(V) == sizeof(from.word), "one register each");
    __builtin_memcpy(&to, from.word, sizeof(V));
    return to;
}
typedef f32 SumVector __attribute__((ext_vector_type(ELEMENTS)));
typedef _Float16 HalfVector __attribute__((ext_vector_type(OPERAND * 2)));
typedef i16 ShortVector __attribute__((ext_vector_type(OPERAND * 2)));
#endif

// sums += rows * columns. Architectures differ in which operand is called A.
template <class T> DEVICE void multiply(const Rows &rows, const Columns &columns, Sums &sums) {
    constexpr bool HALF = is_same<T, f16>::value;
#if CORES_MMA
    UNROLLED
    for (u32 n = 0; n < 2; ++n) {
        f32 *d = sums.at + n * 4;
        const u32 *a = rows.word, *b = columns.word + n * 2;
        if constexpr (HALF)
            asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                "{%8, %9}, {%0, %1, %2, %3};"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        else
            asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                "{%8, %9}, {%0, %1, %2, %3};"
                : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#elif CORES_MFMA || CORES_WMMA
    SumVector d;
    __builtin_memcpy(&d, sums.at, sizeof(d));
#if CORES_MFMA
    if constexpr (HALF) {
        d = __builtin_amdgcn_mfma_f32_16x16x16f16(registers<HalfVector>(columns), registers<HalfVector>(rows), d, 0, 0,
                                                  0);
    } else {
#if __gfx908__
        // Two products of half the depth. Both operands are split in the same way, so it does not
        // matter which k's a product takes.
        typedef i16 Two __attribute__((ext_vector_type(2)));
        UNROLLED
        for (u32 w = 0; w < OPERAND; ++w)
            d = __builtin_amdgcn_mfma_f32_16x16x8bf16(bit_cast<Two>(columns.word[w]), bit_cast<Two>(rows.word[w]), d, 0,
                                                      0, 0);
#else
        d = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(registers<ShortVector>(columns), registers<ShortVector>(rows), d,
                                                      0, 0, 0);
#endif
    }
#elif CORES_WMMA == 3
    if constexpr (HALF)
        d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(registers<HalfVector>(columns), registers<HalfVector>(rows), d);
    else
        d = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(registers<ShortVector>(columns), registers<ShortVector>(rows),
                                                        d);
#else
    if constexpr (HALF)
        d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(registers<HalfVector>(columns),
                                                             registers<HalfVector>(rows), d);
    else
        d = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(registers<ShortVector>(columns),
                                                              registers<ShortVector>(rows), d);
#endif
    __builtin_memcpy(sums.at, &d, sizeof(d));
#elif CORES_EMULATED
    // Lanes read each other's operands between two shuffles, for which they wait for each other.
    SHARED(const Rows *, rows_of_lane, 256);
    SHARED(const Columns *, columns_of_lane, 256);
    rows_of_lane[threadIdx.x] = &rows;
    columns_of_lane[threadIdx.x] = &columns;
    from_lane(0u, 0);
    u32 first = threadIdx.x / LANES * LANES;
    for (u32 k = 0; k < SIDE; ++k) {
        u32 word = k / 2 % OPERAND, bits = k % 2 * 16, from = first + k / (2 * OPERAND) * SIDE;
        f32 left = load(T{(u16)(rows_of_lane[from + lane() % SIDE]->word[word] >> bits)});
        for (u32 i = 0; i < ELEMENTS; ++i)
            sums.at[i] += left * load(T{(u16)(columns_of_lane[from + column_of(i)]->word[word] >> bits)});
    }
    from_lane(0u, 0);
#endif
}

// Keeps AMD's scheduler from moving instructions across. RDNA's waves have 256 registers, and the
// scheduler would otherwise load the operands of many products ahead, and spill. CDNA's have more,
// but of its scalar registers a comparison takes two: hence SCALARS.
template <bool SCALARS = false> DEVICE void keep_order() {
#if CORES_WMMA
    __builtin_amdgcn_sched_barrier(0);
#elif CORES_MFMA
    if constexpr (SCALARS) __builtin_amdgcn_sched_barrier(0);
#endif
}

// Copies 16 bytes to shared memory, or writes zeros if `inside` is false. The copy may still be
// under way on return: see `end_copies`.
DEVICE void copy_piece(void *to, const void *from, bool inside) {
#if CORES_MMA
    u32 at = (u32)__cvta_generic_to_shared(to), bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
#elif HAS_CORES
    typedef u32 Piece __attribute__((vector_size(16))); // a struct would go through memory
    Piece piece = {};
    if (inside) piece = *(const Piece *)from;
    *(Piece *)to = piece;
#endif
}
// As `copy_piece`, of a value of 4 or 8 bytes.
template <class V> DEVICE void copy_value(V *to, const V *from, bool inside) {
#if CORES_MMA
    u32 at = (u32)__cvta_generic_to_shared(to), bytes = inside ? (u32)sizeof(V) : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(sizeof(V)), "r"(bytes)
                 : "memory");
#else
    *to = inside ? *from : V{};
#endif
}
// Ends a group of this thread's copies.
DEVICE void end_copies() {
#if CORES_MMA
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all groups but the last `LEFT` are done, of this thread alone.
template <u32 LEFT> DEVICE void wait_for_copies() {
#if CORES_MMA
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// The greater number; the other operand if one is NaN.
struct Maximum {
    DEVICE f32 operator()(f32 a, f32 b) const {
#if COMPILER_NVIDIA
        return ::fmaxf(a, b);
#else
        return __builtin_fmaxf(a, b);
#endif
    }
};

} // namespace cores
