// Slices of `value` [outer, len, inner] added to the slices of contiguous `out` [outer, size, inner]
// that a list of `len` indices names. All slices with one index are a segment. A segment's sum is
// computed in the compute type, added to out's slice, and rounded once.
//
// The order is fixed: up to PIECE slices of a segment, in the order of the list, are summed one
// after another, and so are the sums of these pieces. So an element's bits depend on its own
// segment only. Threads share long segments, such as those of a padding token, piece by piece.
#include "prelude.h"

// Must equal the constant in the host's segment.rs.
constexpr u64 PIECE = 64;

// The sums of a column group, which on GPUs is one column.
template <class T> struct Sums {
    compute_t<T> column[COLUMN_GROUP];

    DEVICE void begin(u32 width, const T *from) { read_row(width, from, column); }
    DEVICE void add(u32 width, const T *from) {
        if constexpr (CONVERTED<T>) {
            compute_t<T> wide[COLUMN_GROUP];
            read_row(width, from, wide);
            for (u32 c = 0; c < width; ++c) column[c] += wide[c];
        } else {
            for (u32 c = 0; c < width; ++c) column[c] += load(from[c]);
        }
    }
    DEVICE void add_to(u32 width, T *to) const {
        using C = compute_t<T>;
        if constexpr (CONVERTED<T>)
            map_converted(width, to, [](C a, C b) { return a + b; }, Operand<T>{to, 1}, Operand<C>{column, 1});
        else
            for (u32 c = 0; c < width; ++c) to[c] = store<T>::from(load(to[c]) + column[c]);
    }
};

// for_each_column_group with a quicker division on GPUs.
template <class F> DEVICE void for_each_group(u64 rows, u64 inner, F f) {
    if constexpr (COLUMN_GROUP > 1) for_each_column_group(rows, inner, f);
    else
        for_each(rows * inner, [=](u64 i) {
            u64 row = divided(i, inner);
            f(row, i - row * inner, 1u);
        });
}

// Sums the piece that begins at `begin` of the sorted indices. `from` is the group's first column
// in slice 0.
template <class T, class I>
DEVICE Sums<T> piece_sum(u64 begin, u64 len, u64 inner, u32 width, const I *sorted, const i32 *order, const T *from) {
    I index = sorted[begin];
    u64 end = begin + PIECE < len ? begin + PIECE : len;
    Sums<T> sums;
    sums.begin(width, from + (u64)order[begin] * inner);
    for (u64 at = begin + 1; at < end && sorted[at] == index; ++at) sums.add(width, from + (u64)order[at] * inner);
    return sums;
}

// The sums of all pieces but the first of each segment. `sorted` has the indices in order, `order`
// the place of each in the list. These pieces begin PIECE indices apart or further, so at most one
// begins among indices [w * PIECE, (w + 1) * PIECE): its sum is slice w - 1 of `pieces` [outer,
// windows - 1, inner]. None begins in window 0.
template <class T, class I>
__global__ void segment_pieces(u64 outer, u64 len, u64 inner, u64 windows, const I *sorted, const i32 *order,
                               const T *value, compute_t<T> *pieces) {
    u64 each = windows - 1;
    for_each_group(outer * each, inner, [=](u64 row, u64 first, u32 width) {
        u64 o = divided(row, each), window = (row - o * each + 1) * PIECE;
        I index = sorted[window];
        if (sorted[window - 1] != index) return; // a segment begins here, with its first piece
        u64 low = 0, high = window - 1;          // bisects for the segment's first index
        while (low < high) {
            u64 middle = (low + high) / 2;
            if (sorted[middle] < index) low = middle + 1;
            else high = middle;
        }
        u64 begin = low + (window - low + PIECE - 1) / PIECE * PIECE;
        if (begin >= len || sorted[begin] != index) return;
        Sums<T> sums = piece_sum(begin, len, inner, width, sorted, order, value + o * len * inner + first);
        compute_t<T> *to = pieces + row * inner + first;
        for (u32 c = 0; c < width; ++c) to[c] = sums.column[c];
    });
}

// The thread of a segment's first index adds the pieces and the slice of out.
template <class T, class I>
__global__ void segment_sums(u64 outer, u64 len, u64 inner, u64 size, const I *sorted, const i32 *order, const T *value,
                             const compute_t<T> *pieces, u64 *flag, T *out) {
    u64 each = (len + PIECE - 1) / PIECE - 1;
    for_each_group(outer * len, inner, [=](u64 row, u64 first, u32 width) {
        u64 o = divided(row, len), begin = row - o * len;
        I index = sorted[begin];
        if (begin > 0 && sorted[begin - 1] == index) return;
        if (!in_range(index, size)) {
            raise_index(flag, index, size);
            return;
        }
        Sums<T> sums = piece_sum(begin, len, inner, width, sorted, order, value + o * len * inner + first);
        for (u64 at = begin + PIECE; at < len && sorted[at] == index; at += PIECE) {
            const compute_t<T> *piece = pieces + (o * each + at / PIECE - 1) * inner + first;
            for (u32 c = 0; c < width; ++c) sums.column[c] += piece[c];
        }
        sums.add_to(width, out + (o * size + (u64)index) * inner + first);
    });
}

// The same for at most PIECE indices in any order, so that each segment is one piece. The thread of
// a segment's first slice looks for the others.
template <class T, class I>
__global__ void segment_few(u64 outer, u64 len, u64 inner, u64 size, const I *indices, const T *value, u64 *flag,
                            T *out) {
    for_each_group(outer * len, inner, [=](u64 row, u64 first, u32 width) {
        u64 o = divided(row, len), begin = row - o * len;
        I index = indices[begin];
        for (u64 at = 0; at < begin; ++at) {
            if (indices[at] == index) return;
        }
        if (!in_range(index, size)) {
            raise_index(flag, index, size);
            return;
        }
        const T *from = value + o * len * inner + first;
        Sums<T> sums;
        sums.begin(width, from + begin * inner);
        for (u64 at = begin + 1; at < len; ++at) {
            if (indices[at] == index) sums.add(width, from + at * inner);
        }
        sums.add_to(width, out + (o * size + (u64)index) * inner + first);
    });
}
