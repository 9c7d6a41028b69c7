// What a product of few rows with weights also computes in a decoder's layer, so that the layer
// takes fewer launches. With y[r][o] = root[r] * (sum over k of x[r][k] * weights[o][k]) + bias[o]:
//   out = y, or residual + y, or activation(y[r][o]) * y[r][o + half] for a gate, which has half as
//         many outputs
// An RMS norm, v / sqrt(mean of v^2 + epsilon) * factor, is divided between two products. The first
// also stores v * factor, for v = out as stored, and for each tile the sum of its v^2. The second
// takes v * factor as its x, and multiplies the sums by the root that the squares give. So no
// thread waits for a whole row before it multiplies.
#pragma once
#include "activations.h"
#include "prelude.h"

// The activations of a gate; must equal the numbers in the host's ops/language/gate.rs.
constexpr u32 NO_GATE = 0, GATE_SILU = 1, GATE_GELU = 2;

// The sizes that `Around` has.
struct Surroundings {
    u32 gate;
    u32 parts;   // of the squares
    f32 inverse; // 1 / the width of the squared rows
    f32 epsilon;
};

template <class T> struct Around {
    u32 rows, outs; // of the product
    Surroundings of;
    const f32 *squares; // [parts, rows]; null: the root is 1
    const T *bias, *residual;
    const f32 *factor; // null: no norm follows
    T *out, *scaled;
    f32 *new_squares; // [tiles, rows]
};

// A tile is TILE rows of weights. With a gate these are TILE / 2 of the gate and the TILE / 2 rows of
// the other factor that belong to them.
template <u32 TILE> DEVICE u32 tiles_of(u32 outs, u32 gate) {
    return gate == NO_GATE ? (outs + TILE - 1) / TILE : (outs / 2 + TILE / 2 - 1) / (TILE / 2);
}
// The row of weights of a tile's column; the last row again where there is none.
template <u32 TILE> DEVICE u32 weight_row(u32 outs, u32 gate, u32 tile, u32 column) {
    if (gate == NO_GATE) {
        u32 row = tile * TILE + column;
        return row < outs ? row : outs - 1;
    }
    u32 half = outs / 2, row = tile * (TILE / 2) + column % (TILE / 2);
    return (row < half ? row : half - 1) + (column < TILE / 2 ? 0 : half);
}

// The root of a row, from the sum of its squares.
template <class T> DEVICE f32 root_of(const Around<T> &a, f32 squares) {
    return 1.0f / math::sqrt(squares * a.of.inverse + a.of.epsilon);
}

// 16 bytes, or zeros if `inside` is false. NVIDIA's compiler would move plain loads down to their
// uses, to save registers, and a thread would have one in flight. ONCE: L1 does not keep the bytes; no
// launch may write the array meanwhile.
template <bool ONCE> DEVICE Vector<u32, 4> read_now(const void *from, bool inside) {
    Vector<u32, 4> words = {};
#if COMPILER_NVIDIA
    if (inside) {
        if constexpr (ONCE)
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words.lane[0]), "=r"(words.lane[1]), "=r"(words.lane[2]), "=r"(words.lane[3])
                         : "l"(from));
        else
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words.lane[0]), "=r"(words.lane[1]), "=r"(words.lane[2]), "=r"(words.lane[3])
                         : "l"(from));
    }
#else
    if (inside) words = *static_cast<const Vector<u32, 4> *>(from);
#endif
    return words;
}

// The squares of one or two rows, which a block's threads read together. A thread reads the first
// ROUNDS times 16 bytes at once, so that they are on their way while it does something else.
template <u32 ROUNDS> struct OwnSquares {
    Vector<u32, 4> early[ROUNDS];

    static DEVICE u32 whole(u32 all) { return all / 4 < ROUNDS * blockDim.x ? all / 4 : ROUNDS * blockDim.x; }
    template <class T> DEVICE void begin(const Around<T> &a) {
        u32 all = a.squares == nullptr ? 0 : a.of.parts * a.rows;
        UNROLLED
        for (u32 i = 0; i < ROUNDS; ++i) {
            u32 at = i * blockDim.x + threadIdx.x;
            early[i] = read_now<false>(a.squares + 4 * at, at < whole(all));
        }
    }
    // The sum over a warp for each row, returned to each of its threads. All threads of the block call it.
    template <u32 ROWS, class T> DEVICE void sums(const Around<T> &a, f32 (&sum)[ROWS]) const {
        static_assert(ROWS <= 2, "rows alternate in 16 bytes");
        u32 all = a.squares == nullptr ? 0 : a.of.parts * a.rows;
        auto add = [&](u32 at, f32 square) {
            UNROLLED
            for (u32 r = 0; r < ROWS; ++r) sum[r] += a.rows == 1 || at % 2 == r ? square : 0.0f;
        };
        UNROLLED
        for (u32 r = 0; r < ROWS; ++r) sum[r] = 0.0f;
        UNROLLED
        for (u32 i = 0; i < ROUNDS; ++i) {
            UNROLLED
            for (u32 k = 0; k < 4; ++k) add(k, bit_cast<f32>(early[i].lane[k]));
        }
        for (u32 at = 4 * whole(all) + threadIdx.x; at < all; at += blockDim.x) add(at, a.squares[at]);
        UNROLLED
        for (u32 r = 0; r < ROWS; ++r) sum[r] = warp_reduce(sum[r], Plus());
    }
};

// Fills the rows' roots, in the same order in every block. The caller synchronises the block.
template <class T> DEVICE void find_roots(const Around<T> &a, f32 *roots) {
    if (a.squares == nullptr) {
        for_each_in_block(a.rows, [=](u64 r) { roots[r] = 1.0f; });
        return;
    }
    u32 lane = ONE_THREAD ? 0 : threadIdx.x % (u32)warpSize, lanes = ONE_THREAD ? 1 : (u32)warpSize;
    u32 warps = ONE_THREAD ? 1 : blockDim.x / lanes;
    for (u32 first = 0; first < a.rows; first += warps) {
        u32 r = first + (ONE_THREAD ? 0 : threadIdx.x / lanes);
        f32 sum = 0.0f;
        UNROLLED_BY(8)
        for (u32 part = lane; r < a.rows && part < a.of.parts; part += lanes) sum += a.squares[(u64)part * a.rows + r];
        if constexpr (!ONE_THREAD) sum = warp_reduce(sum, Plus());
        if (lane == 0 && r < a.rows) roots[r] = root_of(a, sum);
    }
}

DEVICE f32 activated(u32 gate, f32 z) {
    if (gate == GATE_SILU) return Silu::apply<f32>(z);
    if (gate == GATE_GELU) return Gelu::apply<f32>(z);
    return GeluTanh::apply<f32>(z);
}

// What an output takes beside sums.
struct Beside {
    f32 bias[2]; // of a column, and with a gate of the other factor's column that matches it
    f32 residual, factor;
};

// What the output of a row and a tile's column takes beside its sums. 0 for a column without one.
template <u32 TILE, class T> DEVICE Beside beside(const Around<T> &a, u32 tile, u32 row, u32 column) {
    bool gated = a.of.gate != NO_GATE;
    u32 width = gated ? a.outs / 2 : a.outs, at = tile * (gated ? TILE / 2 : TILE) + column;
    Beside b = {};
    if (at >= width) return b;
    if (a.bias != nullptr) {
        b.bias[0] = load(a.bias[at]);
        if (gated) b.bias[1] = load(a.bias[at + width]);
    }
    if (a.residual != nullptr) b.residual = load(a.residual[(u64)row * width + at]);
    if (a.factor != nullptr) b.factor = a.factor[at];
    return b;
}

// Stores the outputs of a tile. `sum(column, row)` is a row's sum with a row of weights, and
// `beside_of(row, column)` returns the output's `Beside`. `roots` has each row's root (`root_of`). All
// threads of the block call it. `room` has TILE * a.rows elements.
template <u32 TILE, class T, class Sum, class Other>
DEVICE void finish(const Around<T> &a, u32 tile, const f32 *roots, f32 *room, Sum sum, Other beside_of) {
    u32 width = a.of.gate == NO_GATE ? a.outs : a.outs / 2, across = a.of.gate == NO_GATE ? TILE : TILE / 2;
    for_each_in_block(across * a.rows, [=](u64 i) {
        u32 row = (u32)i / across, column = (u32)i % across, at = tile * across + column;
        f32 square = 0.0f;
        if (at < width) {
            Beside b = beside_of(row, column);
            f32 y = roots[row] * sum(column, row) + b.bias[0];
            if (a.of.gate != NO_GATE)
                y = activated(a.of.gate, y) * (roots[row] * sum(column + TILE / 2, row) + b.bias[1]);
            y += b.residual;
            u64 to = (u64)row * width + at;
            T stored = store<T>::from(y);
            a.out[to] = stored;
            if (a.factor != nullptr) {
                f32 v = load(stored);
                a.scaled[to] = store<T>::from(v * b.factor);
                square = v * v;
            }
        }
        if (a.factor != nullptr) room[row * across + column] = square;
    });
    if (a.factor == nullptr) return;
    sync_threads();
    for_each_in_block(a.rows, [=](u64 row) {
        f32 whole = 0.0f;
        for (u32 column = 0; column < across; ++column) whole += room[row * across + column];
        a.new_squares[(u64)tile * a.rows + row] = whole;
    });
}

// The same, which reads each output's `Beside` itself.
template <u32 TILE, class T, class Sum>
DEVICE void finish(const Around<T> &a, u32 tile, const f32 *roots, f32 *room, Sum sum) {
    finish<TILE>(a, tile, roots, room, sum,
                 [&a, tile](u32 row, u32 column) { return beside<TILE>(a, tile, row, column); });
}
