// Two matrix products of attention, each fused with the softmax step that needs whole rows of its
// result, in f32: the weights softmax(scale q k^T), and the scores' gradient w (g - sum(w g)) where
// g = dy v^T. Rows stay in registers until they are done. A product by rocBLAS and a separate row
// kernel would write and read [batch * heads, queries, keys] elements once more.
//
// A block computes all columns of ROWS rows. Each team of 32 threads has HEIGHT of these rows; a
// thread has PARTS groups of four columns, 128 sums in all. Both operands go through shared memory,
// DEPTH elements of the summed axis at a time, while the next ones are loaded into registers (the
// scheme of CUTLASS' "Efficient GEMM in CUDA").
#include "attention_scores.h"
#include "prelude.h"

namespace math {
MATH_FUNCTION(exp2, exp2f, exp2)
MATH_FUNCTION2(fmax, fmaxf, fmax)
} // namespace math

struct Sizes {
    i64 pairs, heads;                // pairs: batch * heads
    i64 rows, columns, depth, tiles; // of a pair; rows: of the left operand, columns: rows of the right one
};

// The kernels' parameters, in their order.
struct Forward {
    Sizes s;
    View left_at, right_at;
    const f32 *left, *right;
    f32 scale;
    u32 quiet;
    f32 *out;
};
struct Backward {
    Sizes s;
    View left_at, right_at;
    const f32 *left, *right, *weights;
    f32 *out;
};

constexpr u32 THREADS = 256, TEAM = 32, TEAMS = THREADS / TEAM, WIDTH = 4, DEPTH = 16, QUADS = DEPTH / WIDTH;
using Quad = Vector<f32, WIDTH>;

// Whether the next tile's first step is loaded while a tile's softmax is computed. AMD's compiler
// would spill registers for it.
#if COMPILER_AMD
constexpr bool AHEAD = false;
#else
constexpr bool AHEAD = true;
#endif

template <u32 PARTS> struct Tile {
    static constexpr u32 HEIGHT = 32 / PARTS, ROWS = TEAMS * HEIGHT, COLUMNS = PARTS * TEAM * WIDTH;
    // The number of quads of a step that a thread loads.
    static constexpr u32 LEFT = ROWS * QUADS / THREADS, RIGHT = COLUMNS * QUADS / THREADS;
    f32 sum[HEIGHT][PARTS][WIDTH];
};

DEVICE Quad &quad_at(f32 *x) { return *reinterpret_cast<Quad *>(x); }
DEVICE const Quad &quad_at(const f32 *x) { return *reinterpret_cast<const Quad *>(x); }

// Rows of one operand of a pair. This thread loads every (THREADS / QUADS)-th of them.
template <u32 N> struct Rows {
    const f32 *from;
    u32 offset[N];

    // `first` is the tile's first row. Past the operand's last row, the last row is read again, and
    // the results are discarded.
    DEVICE void place(const f32 *operand, const View &at, i64 batch, i64 head, u32 first, u32 count) {
        from = operand + batch * at.batch + head * at.head;
        UNROLLED
        for (u32 n = 0; n < N; ++n) {
            u32 row = first + threadIdx.x / QUADS + n * (THREADS / QUADS);
            offset[n] = (row < count ? row : count - 1) * (u32)at.row + threadIdx.x % QUADS * WIDTH;
        }
    }
    DEVICE void read(u32 depth, u32 end, Quad (&to)[N]) const {
        bool inside = depth + threadIdx.x % QUADS * WIDTH < end;
        UNROLLED
        for (u32 n = 0; n < N; ++n) {
            to[n] = Quad{};
            if (inside) to[n] = quad_at(from + depth + offset[n]);
        }
    }
};

// Element [depth][row] of a step is stored with its row XORed with this, so that lanes use
// different banks when they write a quad down a column and when they read four rows.
DEVICE u32 turn(u32 quad) { return quad * (TEAM / QUADS); }

template <u32 COUNT, u32 N> DEVICE void put(const Quad (&from)[N], f32 *to) {
    static_assert(THREADS / QUADS % TEAM == 0, "rows that a thread brings differ in bits that a turn leaves alone");
    u32 quad = threadIdx.x % QUADS, first = quad * WIDTH * COUNT + (threadIdx.x / QUADS ^ turn(quad));
    UNROLLED
    for (u32 n = 0; n < N; ++n) {
        UNROLLED
        for (u32 w = 0; w < WIDTH; ++w) to[first + w * COUNT + n * (THREADS / QUADS)] = from[n].lane[w];
    }
}

template <u32 PARTS> DEVICE void multiply(const f32 *left, const f32 *right, Tile<PARTS> &tile) {
    using T = Tile<PARTS>;
    u32 team = threadIdx.x / TEAM, lane = threadIdx.x % TEAM;
    UNROLLED
    for (u32 d = 0; d < DEPTH; ++d) {
        Quad x[T::HEIGHT / WIDTH], y[PARTS];
        UNROLLED
        for (u32 i = 0; i < T::HEIGHT / WIDTH; ++i)
            x[i] = quad_at(left + d * T::ROWS + ((team * T::HEIGHT + i * WIDTH) ^ turn(d / WIDTH)));
        UNROLLED
        for (u32 c = 0; c < PARTS; ++c)
            y[c] = quad_at(right + d * T::COLUMNS + c * TEAM * WIDTH + (lane * WIDTH ^ turn(d / WIDTH)));
        UNROLLED
        for (u32 i = 0; i < T::HEIGHT; ++i) {
            UNROLLED
            for (u32 c = 0; c < PARTS; ++c) {
                UNROLLED
                for (u32 w = 0; w < WIDTH; ++w) tile.sum[i][c][w] += x[i / WIDTH].lane[i % WIDTH] * y[c].lane[w];
            }
        }
    }
}

// One instruction instead of a comparison and a select. It drops NaN, but the sum of the row is
// then NaN.
struct Greater {
    DEVICE f32 operator()(f32 a, f32 b) const { return math::fmax(a, b); }
};

// Combines the values of a team by op, for N rows at once; each of its threads gets the result. A
// team's threads are neighbours in a warp.
template <u32 N, class Op> DEVICE void across(f32 (&value)[N], Op op) {
    i32 lane = (i32)(threadIdx.x % (u32)warpSize);
    UNROLLED
    for (i32 distance = TEAM / 2; distance > 0; distance /= 2) {
        UNROLLED
        for (u32 n = 0; n < N; ++n) value[n] = op(value[n], shuffle(value[n], lane ^ distance));
    }
}

// The position of a tile among the tiles of all pairs.
struct Place {
    i64 batch, head;
    u32 row; // the tile's first row

    template <u32 ROWS> DEVICE static Place of(const Sizes &s, u64 item) {
        i64 pair = (i64)item / s.tiles, batch = pair / s.heads;
        return Place{batch, pair - batch * s.heads, (u32)((i64)item - pair * s.tiles) * ROWS};
    }
    template <u32 ROWS> DEVICE void advance(const Sizes &s) {
        row += ROWS;
        if (row < s.rows) return;
        row = 0;
        if (++head < s.heads) return;
        head = 0;
        ++batch;
    }
};

// The elements that a thread has of a tensor [pairs, rows, columns]: HEIGHT rows from offset
// `first` on, of which `rows` exist, and in them columns from `column` on.
struct Part {
    i64 first;
    u32 rows, column, columns;

    template <u32 PARTS> DEVICE static Part of(const Sizes &s, const Place &at) {
        u32 row = at.row + threadIdx.x / TEAM * Tile<PARTS>::HEIGHT, column = threadIdx.x % TEAM * WIDTH;
        i64 first = ((at.batch * s.heads + at.head) * s.rows + row) * s.columns + column;
        return Part{first, row < (u32)s.rows ? (u32)s.rows - row : 0, column, (u32)s.columns};
    }
    // Recomputed for each comparison: AMD's compiler would keep a lane mask for each of them.
    DEVICE bool has(u32 row, u32 part) const { return row < recompute_from(rows) && has(part); }
    DEVICE bool has(u32 part) const { return recompute_from(column) + part * TEAM * WIDTH < columns; }
    DEVICE u32 at(u32 row, u32 part) const { return row * columns + part * TEAM * WIDTH; }
};

// Calls finish(parameters, place, tile) for each tile of a block. A block's tiles are neighbours,
// so that the right operand stays in a cache. With EARLY, the next tile's first step is loaded
// during `finish`, which must leave registers for it.
template <u32 PARTS, bool EARLY, class Given, class Finish>
DEVICE void for_each_tile(const Given &given, Finish finish) {
    using T = Tile<PARTS>;
    SHARED(f32, left_room, DEPTH * T::ROWS);
    SHARED(f32, right_room, DEPTH * T::COLUMNS);
    u64 items = (u64)(given.s.pairs * given.s.tiles);
    u64 item = items * blockIdx.x / gridDim.x, end = items * (blockIdx.x + 1) / gridDim.x;
    if (item >= end) return;
    u32 depth = (u32)given.s.depth;
    Rows<T::LEFT> left_rows;
    Rows<T::RIGHT> right_rows;
    Quad left_step[T::LEFT], right_step[T::RIGHT];
    auto read = [&](u32 from) {
        left_rows.read(from, depth, left_step);
        right_rows.read(from, depth, right_step);
    };
    auto begin = [&](const Place &at) {
        const Given &g = reload_parameters(given);
        left_rows.place(g.left, g.left_at, at.batch, at.head, at.row, (u32)g.s.rows);
        right_rows.place(g.right, g.right_at, at.batch, at.head, 0, (u32)g.s.columns);
        read(0);
    };
    Place at = Place::of<T::ROWS>(given.s, item);
    begin(at);
    for (; item < end; ++item) {
        T tile = {};
        Place here = at;
        for (u32 from = 0; from < depth; from += DEPTH) {
            sync_threads(); // threads may still read the last step
            put<T::ROWS>(left_step, left_room);
            put<T::COLUMNS>(right_step, right_room);
            sync_threads();
            if (from + DEPTH < depth) {
                read(from + DEPTH);
            } else {
                at.advance<T::ROWS>(reload_parameters(given).s);
                if (EARLY && item + 1 < end) begin(at);
            }
            multiply<PARTS>(left_room, right_room, tile);
        }
        finish(reload_parameters(given), here, tile);
        if (!EARLY && item + 1 < end) begin(at);
    }
}

// out = softmax(scale left right^T) of rows [pairs, rows, columns]. A row with only -inf gives 0.
// `quiet` divides by 1 + the sum of the exponentials. Launched with blocks of 256 threads; any
// number works. The operands' columns must be contiguous, and all their other strides and all
// addresses multiples of 16 bytes. `depth` must be a multiple of 4, `columns` at most 128 PARTS and
// a multiple of 4, and offsets within a pair below 2^32.
template <class F, i32 PARTS>
__global__ __launch_bounds__(256) void attention_softmax(Sizes s, View left_at, View right_at, const F *left,
                                                         const F *right, F scale, u32 quiet, F *out) {
    using T = Tile<PARTS>;
    for_each_tile<PARTS, AHEAD>(Forward{s, left_at, right_at, left, right, scale, quiet, out},
                                [](const Forward &g, const Place &at, T &tile) {
        const Part part = Part::of<PARTS>(g.s, at);
        constexpr u32 STEP = 8;          // rows at a time: as many as registers allow
        f32 log2e = 1.4426950408889634f; // exp(x) = 2^(x log2(e))
        UNROLLED
        for (u32 row = 0; row < T::HEIGHT; row += STEP) {
            f32 base[STEP], sum[STEP];
            UNROLLED
            for (u32 i = 0; i < STEP; ++i) {
                base[i] = LOWEST<f32>;
                UNROLLED
                for (u32 c = 0; c < PARTS; ++c) {
                    UNROLLED
                    for (u32 w = 0; w < WIDTH; ++w) {
                        f32 &x = tile.sum[row + i][c][w];
                        x = part.has(c) ? x * (g.scale * log2e) : LOWEST<f32>;
                        base[i] = Greater()(base[i], x);
                    }
                }
            }
            across(base, Greater());
            UNROLLED
            for (u32 i = 0; i < STEP; ++i) {
                base[i] = base_of(base[i]);
                sum[i] = 0;
                UNROLLED
                for (u32 c = 0; c < PARTS; ++c) {
                    UNROLLED
                    for (u32 w = 0; w < WIDTH; ++w) {
                        f32 &x = tile.sum[row + i][c][w];
                        sum[i] += x = math::exp2(x - base[i]);
                    }
                }
            }
            across(sum, Plus());
            UNROLLED
            for (u32 i = 0; i < STEP; ++i) {
                f32 factor = share(g.quiet ? sum[i] + math::exp2(-base[i]) : sum[i]);
                UNROLLED
                for (u32 c = 0; c < PARTS; ++c) {
                    Quad v;
                    UNROLLED
                    for (u32 w = 0; w < WIDTH; ++w) v.lane[w] = tile.sum[row + i][c][w] * factor;
                    if (part.has(row + i, c)) quad_at(g.out + part.first + part.at(row + i, c)) = v;
                }
            }
        }
    });
}

// out = w (g - sum(w g)) for rows of the weights w and of g = left right^T, [pairs, rows, columns].
// The other requirements are those of `attention_softmax`.
template <class F, i32 PARTS>
__global__ __launch_bounds__(256) void attention_softmax_backward(Sizes s, View left_at, View right_at, const F *left,
                                                                  const F *right, const F *weights, F *out) {
    using T = Tile<PARTS>;
    for_each_tile<PARTS, false>(Backward{s, left_at, right_at, left, right, weights, out},
                                [](const Backward &g, const Place &at, T &tile) {
        const Part part = Part::of<PARTS>(g.s, at);
        constexpr u32 STEP = 8 / PARTS; // rows at a time: as many as registers allow
        UNROLLED
        for (u32 row = 0; row < T::HEIGHT; row += STEP) {
            Quad weight[STEP][PARTS];
            f32 sum[STEP] = {};
            UNROLLED
            for (u32 i = 0; i < STEP; ++i) {
                UNROLLED
                for (u32 c = 0; c < PARTS; ++c) {
                    weight[i][c] = Quad{};
                    if (part.has(row + i, c)) weight[i][c] = quad_at(g.weights + part.first + part.at(row + i, c));
                }
            }
            UNROLLED
            for (u32 i = 0; i < STEP; ++i) {
                UNROLLED
                for (u32 c = 0; c < PARTS; ++c) {
                    UNROLLED
                    for (u32 w = 0; w < WIDTH; ++w) sum[i] += weight[i][c].lane[w] * tile.sum[row + i][c][w];
                }
            }
            across(sum, Plus());
            UNROLLED
            for (u32 i = 0; i < STEP; ++i) {
                UNROLLED
                for (u32 c = 0; c < PARTS; ++c) {
                    Quad v;
                    UNROLLED
                    for (u32 w = 0; w < WIDTH; ++w)
                        v.lane[w] = weight[i][c].lane[w] * (tile.sum[row + i][c][w] - sum[i]);
                    if (part.has(row + i, c)) quad_at(g.out + part.first + part.at(row + i, c)) = v;
                }
            }
        }
    });
}
