// Products of a few rows, at most FEW, by 16 columns, on matrix cores (`matrix_cores.h`):
// sums[r][c] += the sum over k of rows[r][k] * columns[c][k]. On NVIDIA the columns are the operand
// of 16 rows of `mma.m16n8k16`, and the few rows that of 8 columns, so that no register is empty.
// Elsewhere these are products of 16 rows, of which the last 8 are unused.
//
// Operands come from memory straight into registers. A lane has the elements of `COLUMNS` columns, at
// `K_OF_LANE` places of k. Any order of k gives the same sum if rows and columns have the same, so a
// lane reads neighbouring elements and takes them for its places.
//
// Source of NVIDIA's layouts: PTX ISA, mma.m16n8k16 and movmatrix.
#pragma once
#include "matrix_cores.h"

// On RDNA 3 two lanes hold the same column of an operand: twice the registers, which are too many.
#if HAS_CORES && CORES_WMMA != 3
#define HAS_FEW 1

namespace cores {

constexpr u32 FEW = 8;
#if CORES_MMA
constexpr u32 COLUMNS = 2, SLOTS = 2; // columns of an operand in a lane; rows of which it has sums
constexpr u32 FEW_WORDS = 2, FEW_ELEMENTS = 4;
#else
constexpr u32 COLUMNS = 1, SLOTS = 1;
constexpr u32 FEW_WORDS = OPERAND, FEW_ELEMENTS = ELEMENTS;
#endif
constexpr u32 K_OF_LANE = 2 * OPERAND / COLUMNS, PARTS = SIDE / K_OF_LANE, PAIRS = K_OF_LANE / 2;

struct FewRows {
    u32 word[FEW_WORDS]; // pairs of k
};
struct FewSums {
    f32 at[FEW_ELEMENTS];
};

// Which part of k this lane holds, and the row or column of its operands. A lane with two columns
// (COLUMNS) has the one 8 further, too.
#if CORES_MMA
DEVICE u32 part() { return lane() % 4; }
DEVICE u32 own() { return lane() / 4; }
#else
DEVICE u32 part() { return lane() / SIDE; }
DEVICE u32 own() { return lane() % SIDE; }
#endif
// The first k of a pair, and the pair's word in an operand of columns.
DEVICE u32 k_of(u32 pair) { return COLUMNS == 2 ? 2 * part() + 8 * pair : part() * K_OF_LANE + 2 * pair; }
constexpr u32 word_at(u32 column, u32 pair) { return COLUMNS * pair + column; }

// Where a sum belongs.
DEVICE u32 few_slot(u32 i) { return SLOTS == 2 ? i % 2 : 0; }
DEVICE u32 few_row(u32 slot) { return SLOTS == 2 ? 2 * part() + slot : lane() % SIDE; }
DEVICE u32 few_column(u32 i) { return SLOTS == 2 ? own() + 8 * (i / 2) : lane() / SIDE * ELEMENTS + i; }
// Whether this lane is the first of those that have sums of the same rows.
DEVICE bool leads_few() { return SLOTS == 2 ? own() == 0 : lane() < SIDE; }

// Combines a value of each lane that has sums of the same row.
template <class Op> DEVICE f32 along_few(f32 value, Op op) {
    constexpr u32 FIRST = SLOTS == 2 ? 4 : SIDE;
    UNROLLED
    for (u32 distance = FIRST; distance < LANES; distance *= 2) value = op(value, from_lane(value, lane() ^ distance));
    return value;
}

// Rounds sums to the rows of a product: k counts the sums' columns.
template <class T> DEVICE FewRows few_of(const FewSums &sums) {
    FewRows rows;
#if CORES_MMA
    UNROLLED
    for (u32 half = 0; half < 2; ++half) {
        u32 both = pair<T>(sums.at[2 * half], sums.at[2 * half + 1]);
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(rows.word[half]) : "r"(both));
    }
#else
    Sums all;
    UNROLLED
    for (u32 i = 0; i < ELEMENTS; ++i) all.at[i] = sums.at[i];
    Rows rounded = rows_of<T>(all);
    UNROLLED
    for (u32 w = 0; w < OPERAND; ++w) rows.word[w] = rounded.word[w];
#endif
    return rows;
}

// sums += rows * columns.
template <class T> DEVICE void multiply_few(const FewRows &rows, const Columns &columns, FewSums &sums) {
#if CORES_MMA
    f32 *d = sums.at;
    const u32 *a = columns.word, *b = rows.word;
    if constexpr (is_same<T, f16>::value)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    Rows left;
    Sums all;
    UNROLLED
    for (u32 w = 0; w < OPERAND; ++w) left.word[w] = rows.word[w];
    UNROLLED
    for (u32 i = 0; i < ELEMENTS; ++i) all.at[i] = sums.at[i];
    multiply<T>(left, columns, all);
    UNROLLED
    for (u32 i = 0; i < ELEMENTS; ++i) sums.at[i] = all.at[i];
#endif
}

} // namespace cores
#endif
