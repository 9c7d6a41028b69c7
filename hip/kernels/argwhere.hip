// The indices of true elements. One kernel counts them by chunk; the counts are summed up; then
// another kernel writes each chunk's indices.
#include "prelude.h"

// counts[c] = how many of chunk c's elements are true.
template <class B> __global__ void argwhere_count(u64 n, u64 chunk, const B *x, i64 *counts) {
    for_each((n + chunk - 1) / chunk, [=](u64 c) {
        u64 begin = c * chunk, end = begin + chunk < n ? begin + chunk : n;
        u32 count = 0;
        for (u64 i = begin; i < end; ++i) count += (u32)(load(x[i]) != 0);
        counts[c] = (i64)count;
    });
}

// places: the indices of the true elements, ascending. ends[c]: the number of true elements up to
// the end of chunk c. At most `found` indices are written.
template <class B>
__global__ void argwhere_places(u64 n, u64 chunk, u64 found, const B *x, const i64 *ends, i64 *places) {
    for_each((n + chunk - 1) / chunk, [=](u64 c) {
        u64 begin = c * chunk, end = begin + chunk < n ? begin + chunk : n;
        u64 at = c == 0 ? 0 : (u64)ends[c - 1];
        for (u64 i = begin; i < end; ++i) {
            if (load(x[i]) != 0 && at < found) places[at++] = (i64)i;
        }
    });
}

struct Sizes {
    u64 dim[8];
};

// The coordinates of places in a shape: out[p][first + d] for `count` dims of `sizes`. The dims
// after these hold `inner` elements. A row of out has `rank` elements.
template <class I>
__global__ void place_coordinates(u64 n, u32 rank, u32 first, u32 count, u64 inner, Sizes sizes, const i64 *places,
                                  I *out) {
    // The sizes by reference: a copy that is indexed would go to each thread's private memory.
    for_each(n, [=, &sizes](u64 p) {
        u64 rest = (u64)places[p] / inner;
        I *row = out + p * rank + first;
        for (u32 d = count; d-- > 0;) {
            row[d] = (I)(rest % sizes.dim[d]);
            rest /= sizes.dim[d];
        }
    });
}
