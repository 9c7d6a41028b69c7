// How the attention kernels on matrix cores copy operands into shared memory, and the softmax's
// constants.
#pragma once
#include "attention_sequences.h"
#include "matrix_cores.h"

// The host launches this many threads. Four warps share a compute unit's shared memory.
constexpr u32 THREADS = 4 * cores::LANES, WARPS = THREADS / cores::LANES;

// The variants of the kernels. PLAIN has no mask, bias, softcap or dropout, a positive scale, and
// operands whose rows consist of pieces of 16 bytes at multiples of 16 bytes. Packed sequences have
// two variants more, PLAIN + PACKED and ANY + PACKED, without mask and bias.
constexpr i32 PLAIN = 0, ANY = 1, PACKED = 2;
constexpr bool is_plain(i32 kind) { return (kind & ANY) == 0; }
constexpr bool is_packed(i32 kind) { return (kind & PACKED) != 0; }

constexpr f32 LOG2E = 1.44269504f;
// Weights are powers of two times this power of two, so that small ones are no subnormal f16: those
// lose bits, and gfx90a's matrix cores take them for 0. A weight is at most 1, so the product is
// below the greatest f16. The rows' sums have the same factor.
template <class T> constexpr f32 SHIFT = is_same<T, f16>::value ? 14.0f : 0.0f;
template <class T> constexpr f32 SHIFTED = is_same<T, f16>::value ? 16384.0f : 1.0f; // 2^SHIFT

// A product that is rounded before anything is subtracted from it. The forward and the backward
// kernel must get the same score, or else the largest weight of a row is not 1.
DEVICE f32 rounded_product(f32 a, f32 b) {
#if COMPILER_NVIDIA
    return __fmul_rn(a, b);
#else
#if COMPILER_AMD
#pragma clang fp contract(off)
#endif
    f32 product = a * b;
    return product;
#endif
}

// Elements from one row of a tile in shared memory to the next: 16 bytes more than the row, so that
// 8 rows' pieces lie in different banks.
constexpr u32 pitch_of(u32 wide) { return wide + 8; }

// A block's shared memory, `count` pieces of 16 bytes. NVIDIA's compilers take at most 48 KB that
// the source declares; the host gives them as much as the kernel needs.
typedef Vector<u32, 4> Piece;
#if COMPILER_NVIDIA
#define BLOCK_ROOM(name, count) extern __shared__ Piece name[]
#else
#define BLOCK_ROOM(name, count) SHARED(Piece, name, count)
#endif

// Ends the kernel if the host gave it less shared memory than it needs.
DEVICE void check_room(u32 bytes) {
#if COMPILER_NVIDIA
    u32 given;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(given));
    if (given < bytes) __trap();
#endif
}

// The pieces that a thread loads before it stores the first. Four registers each: RDNA's waves have
// few to spare.
#if CORES_WMMA
#define COPIES_AHEAD UNROLLED_BY(2)
#else
#define COPIES_AHEAD UNROLLED
#endif

// Copies tiles of TALL rows and WIDE columns of an operand of one batch and head to shared memory,
// 0 outside the operand. The block's threads share the work. A copy ends after `end_copies` and
// `wait_for_copies`.
template <u32 TALL, u32 WIDE, i32 KIND, class T> struct Copier {
    static constexpr u32 PIECES = WIDE / 8, STEP = THREADS / PIECES, PITCH = pitch_of(WIDE);
    const T *from; // the first row's element that this thread copies first
    i64 row, column;
    u32 rows, left, r, c; // left: columns of the operand from `c` on
    bool whole;           // whether rows consist of pieces of 16 bytes at multiples of 16 bytes

    DEVICE Copier(const T *operand, const View &at, i64 batch, i64 head, i64 rows, i64 columns)
        : row(at.row), column(at.column), rows((u32)rows) {
        u32 thread = recompute_from((u32)threadIdx.x);
        r = thread / PIECES, c = thread % PIECES * 8;
        from = operand + batch * at.batch + head * at.head;
        whole = is_plain(KIND) || (column == 1 && row % 8 == 0 && columns % 8 == 0 && ((u64)from & 15) == 0);
        from += (i64)r * row + (i64)c * column;
        left = c < (u32)columns ? (u32)columns - c : 0;
    }
    // Copies rows row0..
    DEVICE void copy(u32 row0, T *tile) const {
        if (STEP * PIECES < THREADS && r >= STEP) return;
        const T *at = from + (i64)row0 * row;
        T *to = tile + r * PITCH + c;
        COPIES_AHEAD
        for (u32 done = 0; done < TALL; done += STEP) {
            if (TALL % STEP != 0 && r + done >= TALL) continue;
            bool inside = row0 + r + done < rows;
            if (whole) cores::copy_piece(to + done * PITCH, at + (i64)done * row, inside && left > 0);
            else copy_elements(inside ? left : 0, at + (i64)done * row, to + done * PITCH);
        }
    }
    DEVICE void copy_elements(u32 count, const T *at, T *to) const {
        ROLLED
        for (u32 j = 0; j < 8; ++j) to[j] = j < count ? at[(i64)j * column] : T{0};
    }
};

// Calls f(row, column, m, n, i) for each sum of a warp's tiles, which begin at (row0, column0).
template <u32 TALL, u32 ACROSS, class F> DEVICE void for_each_sum(u32 row0, u32 column0, F f) {
    using namespace cores;
    UNROLLED
    for (u32 m = 0; m < TALL; ++m) {
        UNROLLED
        for (u32 i = 0; i < ELEMENTS; ++i) {
            UNROLLED
            for (u32 n = 0; n < ACROSS; ++n)
                f(row0 + m * SIDE + row_of(slot_of(i)), column0 + n * SIDE + column_of(i), m, n, i);
        }
    }
}

// Calls f(m, n, i, at) for each sum whose row and column exist. `at` is the element of an operand
// with these strides.
template <u32 TALL, u32 ACROSS, class F>
DEVICE void for_each_element(u32 row0, u32 column0, u32 rows, u32 columns, i64 row_step, i64 column_step, F f) {
    using namespace cores;
    UNROLLED
    for (u32 m = 0; m < TALL; ++m) {
        UNROLLED
        for (u32 i = 0; i < ELEMENTS; ++i) {
            u32 row = row0 + m * SIDE + row_of(slot_of(i)), column = column0 + column_of(i);
            i64 at = (i64)row * row_step + (i64)column * column_step;
            UNROLLED
            for (u32 n = 0; n < ACROSS; ++n) {
                if (row < rows && column + n * SIDE < columns) f(m, n, i, at);
                at += SIDE * column_step;
                keep_order<true>();
            }
        }
    }
}

// Writes a row's neighbours. Rows of a result begin at multiples of `columns` elements.
template <u32 COUNT, class T> DEVICE void write_run(const f32 *value, u32 column, u32 columns, T *row) {
    if (columns % COUNT == 0) {
        if (column >= columns) return;
        Vector<T, COUNT> run;
        UNROLLED
        for (u32 i = 0; i < COUNT; ++i) run.lane[i] = store<T>::from(value[i]);
        *(Vector<T, COUNT> *)(row + column) = run;
        return;
    }
    UNROLLED
    for (u32 i = 0; i < COUNT; ++i) {
        if (column + i < columns) row[column + i] = store<T>::from(value[i]);
    }
}
// Writes a tile of sums, each row of them times its factor, to columns column0.. of a result.
// `row(slot)` is the row's first element, or null.
template <class T, class Row, class Factor>
DEVICE void write_sums(const cores::Sums &sums, u32 column0, u32 columns, Row row, Factor factor) {
    using namespace cores;
    UNROLLED
    for (u32 i = 0; i < ELEMENTS; i += RUN) {
        f32 value[RUN];
        UNROLLED
        for (u32 j = 0; j < RUN; ++j) value[j] = sums.at[i + j] * factor(slot_of(i));
        T *to = row(slot_of(i));
        if (to != nullptr) write_run<RUN>(value, column0 + column_of(i), columns, to);
    }
}
