// What the kernels of attention over a paged cache share: how a launch divides queries and keys.
#pragma once
#include "attention_scores.h"
#include "paged.h"

// The sizes of a launch beside those of the cache.
struct Plan {
    u32 group;  // heads of queries that share a head of keys
    u32 splits; // of the keys of a row
    u32 chunks; // of Q queries of a row and head of keys
    u32 window; // keys that a query sees; 0: all
    // The launch has less than 2^31 blocks, `rows * heads * splits * chunks`.
};

// The keys of a row that its queries see, and how they are split.
struct Span {
    u32 before, count; // tokens before this step, tokens of this step
    u32 begin, end, step;
    DEVICE u32 splits() const { return (end - begin + step - 1) / step; }
};
// Splits are multiples of a page. No query of the row sees a key before `begin`: the window ends there.
DEVICE Span span_of(const Paged &p, const Plan &plan, const i32 *offsets, const i32 *lengths, u32 row) {
    Span s;
    u32 first = (u32)offsets[row], most = (u32)p.most * PAGE, rest = first < (u32)p.tokens ? (u32)p.tokens - first : 0;
    s.before = (u32)lengths[row], s.count = (u32)offsets[row + 1] - first;
    s.count = s.count < rest ? s.count : rest;
    s.before = s.before < most ? s.before : most;
    s.count = s.count < most - s.before ? s.count : most - s.before;
    s.end = s.count == 0 ? 0 : s.before + s.count;
    u32 hidden = plan.window == 0 || s.before < plan.window ? 0 : s.before + 1 - plan.window;
    s.begin = s.end == 0 ? 0 : hidden / PAGE * PAGE;
    constexpr u32 LEAST = 4 * PAGE;
    u32 share = (s.end - s.begin + plan.splits - 1) / plan.splits;
    s.step = (share + LEAST - 1) / LEAST * LEAST;
    s.step = s.step == 0 ? LEAST : s.step;
    return s;
}

// Whether a query at position `at` sees the key.
DEVICE bool sees(u32 at, u32 key, u32 window) { return key <= at && (window == 0 || at - key < window); }
DEVICE f32 capped(f32 score, f32 cap) { return cap > 0.0f ? cap * math::tanh(score / cap) : score; }

// One block's work.
template <u32 Q> struct Unit {
    u32 row, head, split, first; // first: the chunk's first query, of [token, head of the group]
    Span span;
    u32 begin, end; // of the split's keys
    bool any;       // whether there is work
    DEVICE Unit(const Paged &p, const Plan &plan, const i32 *offsets, const i32 *lengths, u32 unit) {
        first = unit % plan.chunks * Q;
        unit /= plan.chunks;
        split = unit % plan.splits;
        unit /= plan.splits;
        head = unit % (u32)p.heads;
        row = unit / (u32)p.heads;
        span = span_of(p, plan, offsets, lengths, row);
        begin = span.begin + split * span.step;
        end = begin + span.step < span.end ? begin + span.step : span.end;
        any = begin < end && first < span.count * plan.group;
    }
};

// The index of a query among [tokens, heads].
DEVICE u64 query_of(const Paged &p, const Plan &plan, u32 token, u32 head, u32 of_group) {
    return (u64)token * (p.heads * plan.group) + head * plan.group + of_group;
}

// Zeros for the tokens that belong to no row.
template <class T> DEVICE void clear_rest(const Paged &p, const Plan &plan, const i32 *offsets, u32 head, T *out) {
    u64 first = (u64)offsets[p.rows], wide = plan.group * p.width;
    if (first >= p.tokens) return;
    for_each_in_block((p.tokens - first) * wide, [=](u64 i) {
        out[((first + i / wide) * p.heads + head) * wide + i % wide] = store<T>::from(0.0f);
    });
}

// Zeros for the chunk's queries whose tokens have no place in the row's pages, by the block of split 0.
template <class T, u32 Q>
DEVICE void clear_outgrown(const Paged &p, const Plan &plan, const i32 *offsets, const Unit<Q> &unit, T *out) {
    u32 first = (u32)offsets[unit.row], rest = first < (u32)p.tokens ? (u32)p.tokens - first : 0;
    u32 count = (u32)offsets[unit.row + 1] - first, group = plan.group, head = unit.head;
    u32 from = unit.span.count * group, to = (count < rest ? count : rest) * group;
    from = from > unit.first ? from : unit.first;
    to = to < unit.first + Q ? to : unit.first + Q;
    if (unit.split != 0 || from >= to) return;
    u64 width = (u64)p.width;
    for_each_in_block((to - from) * width, [=](u64 i) {
        u32 of_row = from + (u32)(i / width);
        u64 query = query_of(p, plan, first + of_row / group, head, of_row % group);
        out[query * width + i % width] = store<T>::from(0.0f);
    });
}
