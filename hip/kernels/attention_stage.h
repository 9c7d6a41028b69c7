// How the tiled attention kernels copy operands into shared memory, with blocks of 256 threads.
#pragma once
#include "attention_scores.h"

constexpr u32 THREADS = 256;

// Copies a part of an operand into shared memory: to[r * row_step + c * column_step] becomes the
// element r rows and c columns past (row, column), or 0 if that is outside `rows` x `columns`.
template <u32 TALL, u32 WIDE, class T, class C>
DEVICE void stage(const T *from, const View &at, u32 row, u32 rows, u32 column, u32 columns, u32 row_step,
                  u32 column_step, C *to) {
    bool along = at.column == 1; // whether columns have stride 1, so that threads read along them
    // Unrolling all 8 or 16 steps takes 20 more registers. RDNA 2 then runs 5 waves instead of the
    // 6 that shared memory has room for.
    UNROLLED_BY(4)
    for (u32 i = threadIdx.x; i < TALL * WIDE; i += THREADS) {
        u32 r = along ? i / WIDE : i % TALL, c = along ? i % WIDE : i / TALL;
        C value = (C)0;
        if (row + r < rows && column + c < columns)
            value = load(from[(i64)(row + r) * at.row + (i64)(column + c) * at.column]);
        to[r * row_step + c * column_step] = value;
    }
}
