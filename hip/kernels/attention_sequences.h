// Which rows a block of attention takes: the tile of a batch and head, and where their rows are.
// Batches have sequences of one length, or of any lengths: "packed" sequences lie one after the
// other along the rows, without padding.
#pragma once
#include "attention_scores.h"

// The pair (batch and head) and the tile of a block's item. If later queries see more keys than
// earlier ones, tiles take different times. The longest then begin first, so that no block is left
// with one at the end.
enum Order { BY_PAIR, FIRST_FIRST, LAST_FIRST };
struct Place {
    i64 pair, tile;
    DEVICE Place(u64 item, i64 pairs, i64 tiles, Order order) {
        i64 by = order == BY_PAIR ? tiles : pairs, high = (i64)divided(item, (u64)by), low = (i64)item - high * by;
        pair = order == BY_PAIR ? high : low;
        tile = order == BY_PAIR ? low : order == FIRST_FIRST ? high : tiles - 1 - high;
    }
};

// Where the rows of a batch and head are.
struct Sequence {
    u32 q, k; // factors of the batch axis' strides, for queries and for keys
    u32 queries, keys;
};

// PACKED: `offsets[2][sequences + 1]` has each sequence's first row, of queries and of keys, then
// the number of all rows. `attention_offsets` has checked it. The stride of an operand's batch axis
// is that of its rows. s.pairs counts sequences; s.queries and s.keys count the rows of all.
template <bool PACKED> DEVICE Sequence sequence_of(const Shape &s, const i32 *offsets, u32 batch) {
    if constexpr (PACKED) {
        const i32 *q = offsets + batch, *k = q + (u32)s.pairs + 1;
        u32 q0 = warp_uniform((u32)q[0]), k0 = warp_uniform((u32)k[0]);
        return Sequence{q0, k0, warp_uniform((u32)q[1]) - q0, warp_uniform((u32)k[1]) - k0};
    } else {
        return Sequence{batch, batch, (u32)s.queries, (u32)s.keys};
    }
}
// The number of the first query of a sequence and head, counted in the order [batch, head, query],
// or PACKED [head, row].
template <bool PACKED> DEVICE u64 first_row(const Shape &s, const Sequence &at, u32 head) {
    if constexpr (PACKED) return (u64)head * (u64)s.queries + at.q;
    return ((u64)at.q * (u64)s.heads + head) * (u64)s.queries;
}

// An item's tile: SIZE rows of a packed sequence and a head. Sequence i has the items from
// heads * (offsets[i] / SIZE + i) on. For each head that is one item for each tile, or one more, so
// no kernel has to count the tiles of the sequences before.
template <u32 SIZE> struct PackedPlace {
    u32 batch, head, row;
    bool exists; // whether the sequence has this tile

    DEVICE static u64 items(i64 rows, i64 sequences, i64 heads) { return (u64)(heads * (rows / SIZE + sequences)); }

    DEVICE PackedPlace(u64 item, i64 sequences, i64 heads, const i32 *offsets, Order order) {
        u32 at = (u32)divided(item, (u64)heads), last = (u32)sequences;
        batch = 0;
        while (last - batch > 1) {
            u32 middle = batch + (last - batch) / 2;
            if (begin_of(offsets, middle) <= at) batch = middle;
            else last = middle;
        }
        u32 begin = begin_of(offsets, batch), end = begin_of(offsets, batch + 1);
        const Place place(item - (u64)begin * (u64)heads, heads, end - begin, order);
        head = warp_uniform((u32)place.pair), row = warp_uniform((u32)place.tile) * SIZE;
        exists = row < warp_uniform((u32)offsets[batch + 1]) - warp_uniform((u32)offsets[batch]);
    }

  private:
    static DEVICE u32 begin_of(const i32 *offsets, u32 sequence) {
        return warp_uniform((u32)offsets[sequence]) / SIZE + sequence;
    }
};
