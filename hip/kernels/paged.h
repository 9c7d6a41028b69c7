// Keys and values of several sequences in pages of 16 tokens, [pages, heads, PAGE, pitch], where the
// pitch is the width rounded up to a multiple of 8, and the features behind the width are 0. A table
// [rows, most] says in which page each 16 tokens of a row lie. A row is a sequence's place in the
// batch. A page of one head is contiguous (4 KB for 128 features of 16 bits), so neighbouring lanes
// read neighbouring 16 bytes, and one look-up serves 16 keys.
#pragma once
#include "prelude.h"

// Must equal the constant in the host's decode/mod.rs.
constexpr u32 PAGE = 16;

struct Paged {
    u64 rows, tokens; // tokens: those that the kernel's other operands have, of all rows
    u64 heads, width; // of keys and values
    u64 pages, most;  // pages of the cache; pages that a row may have
    u64 step0, step1; // elements from one token to the next in the kernel's other operands
};

DEVICE u32 pitch_of(const Paged &p) { return ((u32)p.width + 7) / 8 * 8; }

// A token's row and its place among the row's tokens. Row i has the tokens
// offsets[i]..offsets[i + 1].
struct Token {
    u32 row, at;
    bool exists;
};
DEVICE Token token_of(const i32 *offsets, u32 rows, u32 token) {
    u32 low = 0, high = rows; // offsets[low] <= token
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if ((u32)offsets[middle] <= token) low = middle;
        else high = middle;
    }
    u32 first = (u32)offsets[low];
    return Token{low, token - first, first <= token && token < (u32)offsets[low + 1]};
}

// The first element of a head's vector at `position` of a row; -1 if the table has no page of the
// cache there.
DEVICE i64 place_of(const Paged &p, const i32 *table, u32 row, u32 head, u32 position) {
    u32 page = position / PAGE;
    if (page >= (u32)p.most) return -1;
    u32 id = (u32)table[(u64)row * p.most + page];
    if (id >= (u32)p.pages) return -1;
    return (i64)((((u64)id * p.heads + head) * PAGE + position % PAGE) * pitch_of(p));
}
