// What becomes of a score between the product that made it and the softmax: dropout, then a mask;
// and the softmax's parts.
#pragma once
#include "philox.h"
#include "prelude.h"

// Strides of an operand [batch, head, row, column], in elements.
struct View {
    i64 batch, head, row, column;
};

template <class C> constexpr C LOWEST = (C)-__builtin_inff();

// What exponents are taken relative to, `top` being the greatest score yet: 0 while every key is
// hidden, so that exp(-inf) gives 0 and not NaN.
template <class C> DEVICE C base_of(C top) { return top == LOWEST<C> ? (C)0 : top; }
// Over the sum of a row's weights; a row of hidden keys alone is 0.
template <class C> DEVICE C share(C sum) { return sum == (C)0 ? (C)1 : (C)1 / sum; }
// A row's softmax: the weight of a score is exp(score - base) * factor. Apart, because a logarithm
// of the sum would lose the digits that scores of thousands have behind the point: of a row of
// masked keys alone they are all -10000.
template <class C> struct RowSum {
    C base, factor;
};

// Keys below this are seen by the query: all, or if causal those up to its own place, the last
// query seeing every key.
DEVICE u32 causal_end(bool causal, u32 query, u32 queries, u32 keys) {
    if (!causal) return keys;
    i64 end = (i64)query + (i64)keys - (i64)queries + 1;
    return end < 0 ? 0 : end < (i64)keys ? (u32)end : keys;
}

// Scores that are dropped become 0, the others are multiplied by `factor`. Which are depends on
// seed, call and place alone, the same in every kernel: 16 Philox blocks for each 64 keys of a row,
// block l having word w for key 16 w + l. A thread that has every 16th key of 64 takes one block
// for them.
constexpr u32 SPAN = 64, BLOCKS = 16, APART = 4; // keys, blocks of them, and words of a block
template <class C> struct Dropout {
    u64 seed, call;
    u32 on, last; // whether scores are dropped at all; the greatest word that drops
    C factor;

    // The words of keys `key`, key + 16, ... of the same 64 in row `row` of batch * heads *
    // queries.
    DEVICE Words at(u64 row, u32 keys, u32 key) const {
        u64 row_blocks = (u64)((keys + SPAN - 1) / SPAN) * BLOCKS;
        return Stream{seed, call}.at(row * row_blocks + key / SPAN * BLOCKS + key % BLOCKS);
    }
    // What to multiply a score by.
    DEVICE C kept(u32 word) const { return word <= last ? (C)0 : factor; }
};
// Word `w` of a block: an index that is not known would put the block into memory.
DEVICE u32 word_of(const Words &words, u32 w) {
    u32 low = w & 1 ? words.w[1] : words.w[0], high = w & 1 ? words.w[3] : words.w[2];
    return w & 2 ? high : low;
}

// The bools that hide keys, of `size` bytes each.
struct Mask {
    View at;
    const u8 *from; // of one batch and head, or null
    u32 size;
    DEVICE bool hides(u32 query, u32 key) const {
        i64 i = (i64)query * at.row + (i64)key * at.column;
        return size == 1 ? from[i] != 0 : reinterpret_cast<const u32 *>(from)[i] != 0;
    }
};
// The mask of one batch and head.
DEVICE Mask mask_of(const View &at, const u8 *mask, u32 size, i64 batch, i64 head) {
    return Mask{at, mask == nullptr ? mask : mask + (batch * at.batch + head * at.head) * size, size};
}
