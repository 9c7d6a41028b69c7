// Copies between layouts, fills and ranges. `T` is the unsigned integer of the element's size,
// since the kernels move bits and don't compute.
#include "prelude.h"
#include "rows.h"

// out[i] = x[..]: `out` is contiguous.
template <class T> __global__ void copy_strided(u32 n, Strided<1> m, const T *x, T *out) {
    for_each_strided<1>(m, n, [=](u64 i, Offsets<1> at) { out[i] = x[at.at[0]]; });
}

// The same in units of BYTES, which is more than an element's size. Strides and n count units, and
// everything begins at multiples of BYTES.
template <u32 BYTES> struct alignas(BYTES) Unit {
    u8 bytes[BYTES];
};
template <i32 BYTES> __global__ void copy_strided_units(u32 n, Strided<1> m, const u8 *x, u8 *out) {
    const Unit<BYTES> *from = reinterpret_cast<const Unit<BYTES> *>(x);
    Unit<BYTES> *to = reinterpret_cast<Unit<BYTES> *>(out);
    for_each_strided<1>(m, n, [=](u64 i, Offsets<1> at) { to[i] = from[at.at[0]]; });
}

// out[..] = x[..]. Row 0 of `m` has x's strides, row 1 out's. No element of `out` may be addressed
// twice; `x` and `out` don't overlap.
template <class T> __global__ void copy_to_strided(u32 n, Strided<2> m, const T *x, T *out) {
    for_each_strided<2>(m, n, [=](u64, Offsets<2> at) { out[at.at[1]] = x[at.at[0]]; });
}

// Transposes in registers. A thread takes V x V elements, with V accesses of 16 bytes (8 for single
// bytes) on each side, and reads all before it writes any. Of 32 threads, 8 are neighbours along
// the rows that are read and 4 along the rows that are written, so that both sides access whole
// sectors. A block takes a tile of 16 x 16 such squares.
template <class T> struct Squares {
    static constexpr u32 V = sizeof(T) == 1 ? 8 : 16 / sizeof(T), SIDE = 16, TILE = SIDE * V;

    static DEVICE void copy(u64 height, u64 width, u64 column_stride, u64 out_stride, const T *from, T *to) {
        for (u32 t = threadIdx.x; t < SIDE * SIDE; t += blockDim.x) {
            u32 lane = t % 32, warp = t / 32;
            u32 r = (lane % 8 + warp % 2 * 8) * V, c = (lane / 8 + warp / 2 * 4) * V;
            if (r >= height || c >= width) continue;
            Vector<T, V> x[V];
            // One offset at a time, so that registers don't hold all of them.
            u64 at = c * column_stride + r;
            UNROLLED
            for (u32 k = 0; k < V; ++k) {
                x[k] = *reinterpret_cast<const Vector<T, V> *>(from + at);
                at = recompute_from(at + column_stride);
            }
            at = r * out_stride + c;
            UNROLLED
            for (u32 k = 0; k < V; ++k) {
                Vector<T, V> y;
                UNROLLED
                for (u32 j = 0; j < V; ++j) {
                    // So that registers don't hold all of the output either.
                    x[j] = recompute_from(x[j]);
                    y.lane[j] = x[j].lane[k];
                }
                *reinterpret_cast<Vector<T, V> *>(to + at) = y;
                at = recompute_from(at + out_stride);
            }
        }
    }
};

// tile[c][r] = from[c * column_stride + r] for up to WIDTH columns and rows. A thread reads several
// elements before it writes the first.
template <u32 WIDTH, class T> DEVICE void fill_tile(u32 columns, u32 rows, u64 column_stride, const T *from, T *tile) {
    auto put = [&](u32 c, u32 r, T value) { tile[c * (WIDTH + 1) + r] = value; };
    if constexpr (ONE_THREAD)
        return for_each_in_tile<WIDTH>(columns, rows, [&](u32 c, u32 r) { put(c, r, from[c * column_stride + r]); });
    constexpr u32 AHEAD = 4;
    for (u32 i = threadIdx.x; i < columns * WIDTH; i += AHEAD * blockDim.x) {
        T x[AHEAD] = {};
        UNROLLED
        for (u32 k = 0; k < AHEAD; ++k) {
            u32 c = (i + k * blockDim.x) / WIDTH, r = (i + k * blockDim.x) % WIDTH;
            if (c < columns && r < rows) x[k] = from[c * column_stride + r];
        }
        UNROLLED
        for (u32 k = 0; k < AHEAD; ++k) {
            u32 c = (i + k * blockDim.x) / WIDTH, r = (i + k * blockDim.x) % WIDTH;
            if (c < columns && r < rows) put(c, r, x[k]);
        }
    }
}

// out[b][r][c] = x[b * batch_stride + c * column_stride + r], where `out` is contiguous [batches,
// rows, columns]: a copy of transposed matrices. It goes through registers if all sizes and strides
// are multiples of 16 bytes, else through a tile in shared memory, so that both sides are accessed
// along memory. Works with any grid.
template <class T>
__global__ void copy_transposed(u64 batches, u64 rows, u64 columns, u64 batch_stride, u64 column_stride, const T *x,
                                T *out) {
    using S = Squares<T>;
    bool squares = !ONE_THREAD && (rows | columns | batch_stride | column_stride) % S::V == 0 &&
                   ((u64)x | (u64)out) % (S::V * sizeof(T)) == 0;
    constexpr u32 TILE = 32;
    // One more column, so that a column's elements are in different banks.
    SHARED(T, tile, TILE * (TILE + 1));
    u64 side = squares ? S::TILE : TILE;
    u64 down = divided(rows + side - 1, side), across = divided(columns + side - 1, side);
    for_each_row(batches * down * across, [&](u64 block) {
        u64 line = divided(block, across), batch = divided(line, down);
        u64 row = (line - batch * down) * side, column = (block - line * across) * side;
        u32 height = (u32)(rows - row < side ? rows - row : side),
            width = (u32)(columns - column < side ? columns - column : side);
        const T *from = x + batch * batch_stride + column * column_stride + row;
        T *to = out + (batch * rows + row) * columns + column;
        if (squares) return S::copy(height, width, column_stride, columns, from, to);
        fill_tile<TILE>(width, height, column_stride, from, tile);
        sync_threads();
        for_each_in_tile<TILE>(height, width, [&](u32 r, u32 c) { to[r * columns + c] = tile[c * (TILE + 1) + r]; });
        sync_threads();
    });
}

// A tile of `copy_narrow` in shared memory, as a sequence of elements. After every 128 bytes, 4
// bytes are free (8 for elements of 8 bytes). So neighbouring threads access different banks,
// whether their elements follow each other or are 16 bytes or a row apart. With the free bytes,
// BYTES take less than 8 KiB, so that 8 blocks fit in the 64 KiB of a compute unit. `ops/copy.rs`
// repeats BYTES.
template <class T> struct NarrowTile {
    static constexpr u32 BYTES = 7680, GROUP = 128 / sizeof(T), FREE = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    static constexpr u32 SIZE = BYTES / 128 * (GROUP + FREE);
    static DEVICE u32 place(u32 i) { return i + i / GROUP * FREE; }

    // V elements, `step` apart. One place at a time, so that registers don't hold all of them.
    template <u32 V> static DEVICE Vector<T, V> get(const T *tile, u32 i, u32 step) {
        Vector<T, V> x;
        UNROLLED
        for (u32 v = 0; v < V; ++v, i = recompute_from(i + step)) x.lane[v] = tile[place(i)];
        return x;
    }
    template <u32 V> static DEVICE void put(T *tile, u32 i, u32 step, const Vector<T, V> &x) {
        UNROLLED
        for (u32 v = 0; v < V; ++v, i = recompute_from(i + step)) tile[place(i)] = x.lane[v];
    }
};

// A thread's walk over matrices stored as planes [width][len]. It takes V neighbours of a line at a
// time: the piece `i` of line `j` of matrix `m`. It divides once, and then adds the block's step.
template <u32 V> struct NarrowLines {
    u32 across, width, m, j, i, step_m, step_j, step_i;

    DEVICE NarrowLines(u32 width, u32 len) : across(len / V), width(width) {
        u32 line = threadIdx.x / across, lines = blockDim.x / across;
        m = line / width, j = line - m * width, i = threadIdx.x - line * across;
        step_m = lines / width, step_j = lines - step_m * width, step_i = blockDim.x - lines * across;
    }
    DEVICE void advance() {
        m += step_m, j += step_j, i += step_i;
        if (i >= across) i -= across, ++j;
        if (j >= width) j -= width, ++m;
    }
};

// n elements from an address on, cut into `pieces` pieces of 16 bytes. `head` elements come before
// the first boundary.
template <class T> struct NarrowRun {
    static constexpr u32 V = LANES<T>;
    u32 n, head, pieces;

    DEVICE NarrowRun(u32 n, const T *at) : n(n), head((V - past_boundary(at)) % V) {
        if (head > n) head = n;
        pieces = (n - head) / V;
    }
    // Calls f(i) for the elements outside the pieces. In one loop with the pieces, NVIDIA's
    // compiler would divide each store of a piece into stores of elements.
    template <class F> DEVICE void for_each_end(F f) const {
        for_each_in_block(n - pieces * V, [this, &f](u64 i) { f(i < head ? (u32)i : (u32)i + pieces * V); });
    }
};

// tile[i] = from[i] for i in 0..n. A thread reads two pieces before it stores the first.
template <class T> DEVICE void fill_narrow(u32 n, const T *from, T *tile) {
    constexpr u32 V = LANES<T>, AHEAD = 2;
    NarrowRun<T> run(n, from);
    ROLLED
    for (u32 p = threadIdx.x; p < run.pieces; p += AHEAD * blockDim.x) {
        Vector<T, V> x[AHEAD] = {};
        UNROLLED
        for (u32 k = 0; k < AHEAD; ++k) {
            if (p + k * blockDim.x < run.pieces) x[k] = piece_of(from, run.head + (p + k * blockDim.x) * V);
        }
        UNROLLED
        for (u32 k = 0; k < AHEAD; ++k) {
            if (p + k * blockDim.x >= run.pieces) continue;
            NarrowTile<T>::put(tile, run.head + (p + k * blockDim.x) * V, 1, x[k]);
        }
    }
    run.for_each_end([=](u32 i) { tile[NarrowTile<T>::place(i)] = from[i]; });
}

// to[i] = tile[i] for i in 0..n.
template <class T> DEVICE void empty_narrow(u32 n, const T *tile, T *to) {
    constexpr u32 V = LANES<T>;
    NarrowRun<T> run(n, to);
    ROLLED
    for (u32 p = threadIdx.x; p < run.pieces; p += blockDim.x) {
        u32 first = run.head + p * V;
        *reinterpret_cast<Vector<T, V> *>(to + first) = NarrowTile<T>::template get<V>(tile, first, 1);
    }
    run.for_each_end([=](u32 i) { to[i] = tile[NarrowTile<T>::place(i)]; });
}

// to[m][j][i] = tile[m][i][j], V neighbours at a time.
template <u32 V, class T>
DEVICE void narrow_to_planes(u32 matrices, u32 width, u32 len, u64 batch_stride, u64 plane_stride, const T *tile,
                             T *to) {
    NarrowLines<V> at(width, len);
    ROLLED
    for (; at.m < matrices; at.advance()) {
        u32 first = (at.m * len + at.i * V) * width + at.j;
        u64 offset = at.m * batch_stride + at.j * plane_stride + at.i * V;
        *reinterpret_cast<Vector<T, V> *>(to + offset) = NarrowTile<T>::template get<V>(tile, first, width);
    }
}

// tile[m][i][j] = from[m][j][i], V neighbours at a time. A thread reads several times before it
// stores the first.
template <u32 V, class T>
DEVICE void narrow_from_planes(u32 matrices, u32 width, u32 len, u64 batch_stride, u64 plane_stride, const T *from,
                               T *tile) {
    constexpr u32 AHEAD = V > 1 ? 2 : 4;
    NarrowLines<V> at(width, len);
    ROLLED
    while (at.m < matrices) {
        Vector<T, V> x[AHEAD] = {};
        u32 first[AHEAD];
        UNROLLED
        for (u32 k = 0; k < AHEAD; ++k, at.advance()) {
            first[k] = at.m < matrices ? (at.m * len + at.i * V) * width + at.j : ~0u;
            if (at.m >= matrices) continue;
            u64 offset = at.m * batch_stride + at.j * plane_stride + at.i * V;
            x[k] = *reinterpret_cast<const Vector<T, V> *>(from + offset);
        }
        UNROLLED
        for (u32 k = 0; k < AHEAD; ++k) {
            if (first[k] != ~0u) NarrowTile<T>::put(tile, first[k], width, x[k]);
        }
    }
}

// Copies matrices between rows [len][width] of few elements, where all elements of a matrix follow
// each other, and planes [width][len]. If TO_PLANES, out[b][j][i] = x[b * batch_stride + i * width
// + j], else out[b][i][j] = x[b * batch_stride + j * plane_stride + i]. `out` is contiguous.
//
// A block takes a tile: `matrices` whole matrices or, if `matrices` is 1, `run` rows of one. It
// accesses neighbouring elements of both tensors together, 16 bytes at a time where they are
// aligned. If TO_PLANES and `matrices` is more than 1, matrices must follow each other in x. A tile
// takes at most NarrowTile::BYTES, and `run` is a multiple of the number of elements in 16 bytes.
// Works with any grid.
template <class T, i32 TO_PLANES>
__global__ void copy_narrow(u64 batches, u64 len, u32 width, u32 matrices, u32 run, u64 batch_stride, u64 plane_stride,
                            const T *x, T *out) {
    SHARED(T, tile, NarrowTile<T>::SIZE);
    u64 across = divided(len + run - 1, run);
    u64 on_planes = TO_PLANES ? len : batch_stride | plane_stride | len;
    bool in_units = on_planes % LANES<T> == 0 && past_boundary(TO_PLANES ? out : x) == 0;
    for_each_row(divided(batches + matrices - 1, matrices) * across, [&](u64 block) {
        u64 group = divided(block, across), row = (block - group * across) * run, batch = group * matrices;
        u32 count = (u32)(batches - batch < matrices ? batches - batch : matrices);
        u32 rows = (u32)(len - row < run ? len - row : run);
        if constexpr (TO_PLANES) {
            const T *from = x + batch * batch_stride + row * width;
            T *to = out + batch * width * len + row;
            if constexpr (ONE_THREAD) {
                for (u32 m = 0; m < count; ++m) {
                    for (u32 j = 0; j < width; ++j) {
                        INDEPENDENT
                        for (u32 i = 0; i < rows; ++i) {
                            to[(m * width + j) * len + i] = from[m * batch_stride + i * width + j];
                        }
                    }
                }
                return;
            }
            fill_narrow(count * rows * width, from, tile);
            sync_threads();
            if (in_units) narrow_to_planes<LANES<T>>(count, width, rows, width * len, len, tile, to);
            else narrow_to_planes<1>(count, width, rows, width * len, len, tile, to);
        } else {
            const T *from = x + batch * batch_stride + row;
            T *to = out + (batch * len + row) * width;
            if constexpr (ONE_THREAD) {
                for (u32 m = 0; m < count; ++m) {
                    for (u32 j = 0; j < width; ++j) {
                        INDEPENDENT
                        for (u32 i = 0; i < rows; ++i) {
                            to[(m * len + i) * width + j] = from[m * batch_stride + j * plane_stride + i];
                        }
                    }
                }
                return;
            }
            if (in_units) narrow_from_planes<LANES<T>>(count, width, rows, batch_stride, plane_stride, from, tile);
            else narrow_from_planes<1>(count, width, rows, batch_stride, plane_stride, from, tile);
            sync_threads();
            empty_narrow(count * rows * width, tile, to);
        }
        sync_threads();
    });
}

// out = value: contiguous and beginning at a 16-byte boundary.
template <class T> __global__ void fill(u64 n, T value, T *out) {
    map_contiguous(n, out, [=]() { return value; });
}

// out[..] = value.
template <class T> __global__ void fill_strided(u32 n, Strided<1> m, T value, T *out) {
    for_each_strided<1>(m, n, [=](u64, Offsets<1> at) { out[at.at[0]] = value; });
}

// out[i] = start + i * step, which wraps.
template <class T> __global__ void arange(u64 n, i64 start, i64 step, T *out) {
    for_each(n, [=](u64 i) { out[i] = (T)((u64)start + i * (u64)step); });
}

// One of several tensors that are concatenated: the address of its elements, the position of its
// first element in `out`, the number of its first piece among all pieces, and the common shape with
// the strides on both sides. `PART_...` and the structs are repeated in `ops/cat.rs`.
constexpr u32 PART_DIMS = 4, PART_PIECE = 4096, PART_ROWS = 55;
struct Part {
    u64 from, to;
    u32 first, rank;
    u32 shape[PART_DIMS];
    i32 stride[2][PART_DIMS];
};

// Passed by value. With the other parameters it stays below the 4 KiB that a launch may pass.
struct Parts {
    u32 rows, pieces;
    Part row[PART_ROWS];
};

// The offsets of element i on both sides.
DEVICE Offsets<2> offsets_in(const Part &part, u32 i) {
    Offsets<2> o = {};
    UNROLLED
    for (u32 d = PART_DIMS; d-- > 0;) {
        if (d < part.rank) {
            u32 quotient = d > 0 ? i / part.shape[d] : 0;
            i32 coordinate = (i32)(i - quotient * part.shape[d]);
            i = quotient;
            for (u32 k = 0; k < 2; ++k) o.at[k] += coordinate * part.stride[k][d];
        }
    }
    return o;
}

// Copies elements [begin, end) of a part, shared among the threads of one block.
template <class T> DEVICE void copy_part(const Part &part, u32 begin, u32 end, T *out) {
    const T *from = reinterpret_cast<const T *>(part.from);
    T *to = out + part.to;
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    u32 last = part.rank > 0 ? part.rank - 1 : 0;
    Offsets<2> step{{part.stride[0][last], part.stride[1][last]}};
    for (u32 i = begin; i < end;) {
        u32 count = part.shape[last] - i % part.shape[last];
        if (count > end - i) count = end - i;
        strided_row<2>(i, (i32)count, offsets_in(part, i), step,
                       [=](u64, Offsets<2> at) { to[at.at[1]] = from[at.at[0]]; });
        i += count;
    }
#else
    for (u32 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        Offsets<2> at = offsets_in(part, i);
        to[at.at[1]] = from[at.at[0]];
    }
#endif
}

template <class T> DEVICE void copy_parts(const Parts &parts, T *out) {
    for_each_row(parts.pieces, [&](u64 piece) {
        u32 at = 0, end = parts.rows; // row[at].first <= piece < row[end].first
        while (end - at > 1) {
            u32 middle = (at + end) / 2;
            if (parts.row[middle].first <= piece) at = middle;
            else end = middle;
        }
        const Part &part = parts.row[at];
        u32 n = part.shape[0] * part.shape[1] * part.shape[2] * part.shape[3];
        u32 begin = (u32)(piece - part.first) * PART_PIECE;
        copy_part(part, begin, n - begin < PART_PIECE ? n : begin + PART_PIECE, out);
    });
}

// out[to + ..] = from[..] for each part. The parts don't overlap in `out`. Works with any grid.
template <class T> __global__ void cat(Parts parts, T *out) { copy_parts(parts, out); }
template <i32 BYTES> __global__ void cat_units(Parts parts, u8 *out) {
    copy_parts(parts, reinterpret_cast<Unit<BYTES> *>(out));
}
