// Windows of poolings, and which elements they contain.
#pragma once
#include "prelude.h"

// The sizes and the window along one axis.
struct Axis {
    u32 in, out, kernel, stride, padding, dilation;
};

// For averages, which have no dilation.
DEVICE Axis undilated(const Axis &a) { return Axis{a.in, a.out, a.kernel, a.stride, a.padding, 1}; }

struct Window2 {
    Axis h, w;

    // The compiler knows that there is one slice, so the loops over slices vanish.
    DEVICE Axis depth() const { return Axis{1, 1, 1, 1, 0, 1}; }
    DEVICE Window2 dense() const { return Window2{undilated(h), undilated(w)}; }
};

struct Window3 {
    Axis d, h, w;

    DEVICE Axis depth() const { return d; }
    DEVICE Window3 dense() const { return Window3{undilated(d), undilated(h), undilated(w)}; }
};

struct Range {
    i32 first, last; // `last` is exclusive
};

// The input under position k of output o's window. It may be outside the input.
DEVICE i32 under(i32 o, i32 k, const Axis &a) { return o * (i32)a.stride - (i32)a.padding + k * (i32)a.dilation; }

// a / by, for a >= 0. A division takes some 20 instructions, and most windows have steps of 1 or 2.
DEVICE i32 quotient(i32 a, u32 by) { return by == 1 ? a : by == 2 ? a >> 1 : a / (i32)by; }

// The positions k of the window for which o * stride + k * dilation - padding is in 0..in.
DEVICE Range taps(i32 o, const Axis &a) {
    i32 start = under(o, 0, a);
    i32 first = start < 0 ? quotient(-start + (i32)a.dilation - 1, a.dilation) : 0;
    i32 last = start >= (i32)a.in ? 0 : quotient((i32)a.in - start + (i32)a.dilation - 1, a.dilation);
    return Range{first, last < (i32)a.kernel ? last : (i32)a.kernel};
}

// The outputs whose windows may contain input i.
DEVICE Range reached(i32 i, const Axis &a) {
    i32 at = i + (i32)a.padding, before = at - (i32)((a.kernel - 1) * a.dilation);
    i32 first = before <= 0 ? 0 : quotient(before + (i32)a.stride - 1, a.stride);
    i32 last = quotient(at, a.stride) + 1;
    return Range{first, last < (i32)a.out ? last : (i32)a.out};
}

// Whether an element replaces the maximum of the elements before it, which is `best` at `place` (-1
// if there are none). If `nan_wins`, a NaN replaces any maximum, and only another NaN replaces it.
// Else a NaN is the maximum only if it comes first.
template <class C> DEVICE bool replaces(C value, C best, i32 place, bool nan_wins) {
    return (place < 0) | (value > best) | (nan_wins & math::is_nan(value));
}

// Raises the flag for an index that is neither in the plane nor the -1 of an empty window.
template <class I> DEVICE void check_place(I index, u64 pixels, u64 *flag) {
    if (!in_range((u64)(i64)index + 1, pixels + 1)) raise_index(flag, index, pixels);
}

// The number of a window's positions along an axis that are within the padded input, or within the
// input alone.
DEVICE i32 counted(i32 o, const Axis &a, i32 count_include_pad) {
    Range r =
        count_include_pad ? taps(o, Axis{a.in + 2 * a.padding, a.out, a.kernel, a.stride, 0, a.dilation}) : taps(o, a);
    return r.last - r.first;
}

// The divisor of a window's sum, at least 1. The product may exceed 32 bits.
template <class C, class W> DEVICE C divisor(const W &w, i32 oz, i32 oy, i32 ox, i32 count_include_pad) {
    i32 slices = counted(oz, w.depth(), count_include_pad), rows = counted(oy, w.h, count_include_pad);
    i32 columns = counted(ox, w.w, count_include_pad);
    return slices > 0 && rows > 0 && columns > 0 ? (C)slices * (C)rows * (C)columns : (C)1;
}
