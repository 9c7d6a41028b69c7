// Two steps of attention: what happens to a score between the matrix product and the softmax
// (dropout, then a mask), and the parts of the softmax.
#pragma once
#include "philox.h"
#include "prelude.h"

// Strides of an operand [batch, head, row, column], in elements.
struct View {
    i64 batch, head, row, column;
};

// The sizes of a call.
struct Shape {
    i64 pairs, heads, queries, keys, width, values; // pairs: batch * heads; width: of q and k; values: of v
    i64 group;                                      // heads of queries that share a head of keys and values
};

template <class C> constexpr C LOWEST = (C)-__builtin_inff();

// The number that is subtracted from scores before exponentiation: `top`, the greatest score so
// far. While every key is hidden, `top` is -inf and 0 is subtracted instead, so that exp(-inf)
// gives 0 and not NaN.
template <class C> DEVICE C base_of(C top) { return top == LOWEST<C> ? (C)0 : top; }
// The factor that turns a row's exponentials into weights: 1 / sum. If all keys of the row are
// hidden, the sum is 0, and the factor 1 keeps the weights 0.
template <class C> DEVICE C share(C sum) { return sum == (C)0 ? (C)1 : (C)1 / sum; }
// A row's softmax: the weight of a score is exp(score - base) * factor. The two are stored apart
// because base + log(sum) as one number would lose the fractional digits if scores are in the
// thousands: a row with only masked keys has scores of -10000.
template <class C> struct RowSum {
    C base, factor;
};

// The head of keys and values of a head of queries. `group` neighbours share one.
DEVICE i64 shared_head(i64 head, i64 group) { return (u32)head / (u32)group; }

// Indices from `begin` up to `end`, without it.
struct Range {
    u32 begin, end;
};

// The keys that a query sees: from `before` keys before its own position to `after` keys behind it.
// The last query is at the position of the last key. Without a limit, `before` is 2^31 and `after`
// 2^31 - 1: sequences are shorter.
struct Window {
    u32 before, after;

    // Whether there is a limit. A window for all keys needs no comparison.
    DEVICE bool hides() const { return before != 0x80000000u || after != 0x7fffffffu; }
    // Whether later queries see more keys than earlier ones.
    DEVICE bool grows() const { return before == 0x80000000u && after != 0x7fffffffu; }
    // `key` may be past the last one. The distance between the two positions is less than 2^31 in
    // either direction, so the sum is right although it wraps.
    DEVICE bool sees(u32 query, u32 key, u32 queries, u32 keys) const {
        return key < keys && key + queries - keys - query + before <= before + after;
    }
    // The keys that some query in first..=last sees. `first` must be a query; `last` may be past
    // the last one.
    DEVICE Range keys_of(u32 first, u32 last, u32 queries, u32 keys) const {
        return reach(first, last, queries, keys, before, after);
    }
    // The queries that see some key in first..=last.
    DEVICE Range queries_of(u32 first, u32 last, u32 queries, u32 keys) const {
        return reach(first, last, keys, queries, after, before);
    }

  private:
    static DEVICE Range reach(u32 first, u32 last, u32 own, u32 others, u32 before, u32 after) {
        i64 shift = (i64)others - (i64)own;
        i64 begin = (i64)first + shift - (i64)before, end = (i64)(last < own ? last : own - 1) + shift + after + 1;
        return Range{clamped(begin, others), clamped(end, others)};
    }
    static DEVICE u32 clamped(i64 index, u32 count) { return index < 0 ? 0 : index < (i64)count ? (u32)index : count; }
};

// Dropout sets some scores to 0 and multiplies the others by `factor`. Which scores it drops
// depends only on seed, call and position, so all kernels agree. A row is divided into spans of
// SPAN keys, each of which uses BLOCKS Philox blocks of APART words. Word w of block l belongs to
// key 16 w + l of the span, so a thread that processes every 16th of the 64 keys needs one block
// for them.
constexpr u32 SPAN = 64, BLOCKS = 16, APART = 4;
template <class C> struct Dropout {
    Stream stream;
    u32 on, last; // on: whether anything is dropped; last: the greatest word that drops its key
    C factor;

    // The words of keys `key`, key + 16, ... of the same span. `row` counts over batch * heads *
    // queries.
    DEVICE Words at(u64 row, u32 keys, u32 key) const {
        u64 row_blocks = (u64)((keys + SPAN - 1) / SPAN) * BLOCKS;
        return stream.at(row * row_blocks + key / SPAN * BLOCKS + key % BLOCKS);
    }
    // The factor by which a score is multiplied.
    DEVICE C kept(u32 word) const { return word <= last ? (C)0 : factor; }
};
// Word `w` of a block. Indexing by a number that the compiler does not know would put the block
// into memory.
DEVICE u32 word_of(const Words &words, u32 w) {
    u32 low = w & 1 ? words.w[1] : words.w[0], high = w & 1 ? words.w[3] : words.w[2];
    return w & 2 ? high : low;
}

// The mask whose true elements hide keys. An element has `size` bytes.
struct Mask {
    View at;
    const u8 *from; // the mask of one batch and head, or null
    u32 size;
    DEVICE bool hides(u32 query, u32 key) const { return hides((i64)query * at.row + (i64)key * at.column); }
    DEVICE bool hides(i64 element) const {
        return size == 1 ? from[element] != 0 : reinterpret_cast<const u32 *>(from)[element] != 0;
    }
};
// The mask of one batch and head.
DEVICE Mask mask_of(const View &at, const u8 *mask, u32 size, i64 batch, i64 head) {
    return Mask{at, mask == nullptr ? mask : mask + (batch * at.batch + head * at.head) * size, size};
}
