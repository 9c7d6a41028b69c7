// How the threads of a launch share a range.
#pragma once
#include "prelude_math.h"

// Calls f(i) once for each i in 0..n, over the whole launch. On GPUs the loop is grid-stride, so
// that neighbouring threads access neighbouring elements. On the CPU each block has one contiguous
// chunk, so that its loop vectorises.
template <class F> DEVICE void for_each(u64 n, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    u64 begin = n * blockIdx.x / gridDim.x, end = n * (blockIdx.x + 1) / gridDim.x;
    INDEPENDENT
    for (u64 i = begin; i < end; ++i) f(i);
#else
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) f(i);
#endif
}

// Calls f(plane, y, x) for each of planes * height * width elements.
template <class F> DEVICE void for_each_pixel(u64 planes, u32 height, u32 width, F f) {
    if constexpr (ONE_THREAD) {
        for_each(planes * height, [=](u64 row) {
            u64 plane = row / height;
            i32 y = (i32)(row - plane * height);
            for (u32 x = 0; x < width; ++x) f(plane, y, (i32)x, row * width + x);
        });
    } else {
        for_each(planes * height * width, [=](u64 at) {
            u64 row = divided(at, width), plane = divided(row, height);
            f(plane, (i32)(row - plane * height), (i32)(at - row * width), at);
        });
    }
}

// Calls f(row) for each row in 0..rows. A block takes one row at a time, and all its threads see
// the same rows.
template <class F> DEVICE void for_each_row(u64 rows, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    u64 begin = rows * blockIdx.x / gridDim.x, end = rows * (blockIdx.x + 1) / gridDim.x;
    for (u64 row = begin; row < end; ++row) f(row);
#else
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) f(row);
#endif
}

// Calls f(i) for each i in 0..n; the threads of one block share the range.
template <class F> DEVICE void for_each_in_block(u64 n, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    INDEPENDENT
    for (u64 i = 0; i < n; ++i) f(i);
#else
    for (u64 i = threadIdx.x; i < n; i += blockDim.x) f(i);
#endif
}

// Calls f(o, first, width) so that each column of outer x inner belongs to one group [first, first
// + width) of one o. On GPUs a group is one column, taken by one thread. On the CPU it is long, so
// that loops over its columns vectorise and read memory in order.
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
constexpr u32 COLUMN_GROUP = 1024;
#else
constexpr u32 COLUMN_GROUP = 1;
#endif
template <class F> DEVICE void for_each_column_group(u64 outer, u64 inner, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    u64 at = outer * inner * blockIdx.x / gridDim.x, end = outer * inner * (blockIdx.x + 1) / gridDim.x;
    while (at < end) {
        u64 o = at / inner, first = at % inner;
        u64 width = inner - first;
        if (width > end - at) width = end - at;
        if (width > COLUMN_GROUP) width = COLUMN_GROUP;
        f(o, first, (u32)width);
        at += width;
    }
#else
    for_each(outer * inner, [=](u64 i) { f(i / inner, i % inner, 1u); });
#endif
}

// Calls f(r, c) for each r in 0..rows and c in 0..columns, both at most WIDTH. The threads of one
// block share them; neighbouring threads have neighbouring columns.
template <u32 WIDTH, class F> DEVICE void for_each_in_tile(u32 rows, u32 columns, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    for (u32 r = 0; r < rows; ++r) {
        INDEPENDENT
        for (u32 c = 0; c < columns; ++c) f(r, c);
    }
#else
    for (u32 i = threadIdx.x; i < rows * WIDTH; i += blockDim.x) {
        if (i % WIDTH < columns) f(i / WIDTH, i % WIDTH);
    }
#endif
}
