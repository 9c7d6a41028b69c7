// What reductions of tensors (reduce.hip) and of a chain's results (chain_reduce.hip) share.
#pragma once
#include "prelude.h"

// A reduction has an identity, a function that converts an element for it (`enter`), one that joins
// two accumulators (`join`), and one that makes the result from the accumulator of `count` elements
// (`leave`).
struct Sum {
    template <class A> static DEVICE A identity() { return (A)0; }
    template <class A> static DEVICE A enter(A x) { return x; }
    template <class A> static DEVICE A join(A a, A b) {
        if constexpr (is_float<A>::value) return a + b;
        else return (A)((wrapping_t<A>)a + (wrapping_t<A>)b);
    }
    template <class A> static DEVICE A leave(A a, u64) { return a; }
};
struct Mean : Sum {
    template <class A> static DEVICE A leave(A a, u64 count) {
        if constexpr (is_signed<A>::value && !is_float<A>::value) return (A)((i64)a / (i64)count);
        else if constexpr (is_float<A>::value) return a / (A)count;
        else return (A)((u64)a / count);
    }
};

// The elements [begin, end) that part `index % parts` has of a dim of `len`.
struct Part {
    u64 outer, begin, end;
};
DEVICE Part part_of(u64 index, u64 len, u64 parts) {
    u64 part = index % parts;
    return {index / parts, len * part / parts, len * (part + 1) / parts};
}
