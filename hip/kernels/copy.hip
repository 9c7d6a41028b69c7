// Copies between layouts, fills and ranges. `T` is the unsigned integer of the element's size: bits are moved, not
// numbers.
#include "prelude.h"

// out[i] = x[..]: `out` contiguous.
template <class T> __global__ void copy_strided(u32 n, Strided<1> m, const T *x, T *out) {
    for_each_strided<1>(m, n, [=](u32 i, Offsets<1> at) { out[i] = x[at.at[0]]; });
}

// out[..] = x[..]: row 0 of `m` is x's, row 1 out's. No element of `out` may be addressed twice; `x` and `out` don't
// overlap.
template <class T> __global__ void copy_to_strided(u32 n, Strided<2> m, const T *x, T *out) {
    for_each_strided<2>(m, n, [=](u32, Offsets<2> at) { out[at.at[1]] = x[at.at[0]]; });
}

// out[b][r][c] = x[b * batch_stride + c * column_stride + r] for `out` contiguous [batches, rows, columns]: the copy of a
// transposed matrix, through a tile so that both sides are read and written along memory. Launched with one block a
// tile of 32x32; any grid is right.
template <class T>
__global__ void copy_transposed(u64 batches, u64 rows, u64 columns, u64 batch_stride, u64 column_stride, const T *x, T *out) {
    constexpr u32 TILE = 32;
    SHARED(T, tile, TILE * (TILE + 1)); // one more column, so that a column's elements lie in different banks
    u64 down = (rows + TILE - 1) / TILE, across = (columns + TILE - 1) / TILE;
    for_each_row(batches * down * across, [&](u64 block) {
        u64 batch = block / (down * across), row = block / across % down * TILE, column = block % across * TILE;
        u32 height = (u32)(rows - row < TILE ? rows - row : TILE), width = (u32)(columns - column < TILE ? columns - column : TILE);
        const T *from = x + batch * batch_stride + column * column_stride + row;
        T *to = out + (batch * rows + row) * columns + column;
        for_each_in_tile<TILE>(width, height, [&](u32 c, u32 r) { tile[c * (TILE + 1) + r] = from[c * column_stride + r]; });
        sync_threads();
        for_each_in_tile<TILE>(height, width, [&](u32 r, u32 c) { to[r * columns + c] = tile[c * (TILE + 1) + r]; });
        sync_threads();
    });
}

// out = value: contiguous, beginning at a 16-byte boundary.
template <class T> __global__ void fill(u64 n, T value, T *out) {
    map_contiguous(n, out, [=]() { return value; });
}

// out[..] = value.
template <class T> __global__ void fill_strided(u32 n, Strided<1> m, T value, T *out) {
    for_each_strided<1>(m, n, [=](u32, Offsets<1> at) { out[at.at[0]] = value; });
}

// out[i] = start + i * step, wrapping.
template <class T> __global__ void arange(u64 n, i64 start, i64 step, T *out) {
    for_each(n, [=](u64 i) { out[i] = (T)((u64)start + i * (u64)step); });
}
