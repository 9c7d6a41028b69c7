// What attention needs beyond matrix products and softmax.
#include "prelude.h"

// out[row, col] = x[row, col], or -inf where a query would see a later key: col > q + keys - queries, q = row % queries.
// `rows` = batch * heads * queries, rows of `keys` elements, contiguous; `out` may be x.
template <class T> __global__ void causal_mask(u64 rows, u32 queries, u32 keys, const T *x, T *out) {
    T masked = store<T>::from(-__builtin_inff());
    for_each_row(rows, [=](u64 row) {
        i64 last = (i64)(row % queries) + (i64)keys - (i64)queries; // the last key that this query sees
        u64 seen = last < 0 ? 0 : (u64)last + 1 < keys ? (u64)last + 1 : keys;
        const T *from = x + row * keys;
        T *to = out + row * keys;
        for_each_in_block(seen, [=](u64 i) { to[i] = from[i]; });
        for_each_in_block(keys - seen, [=](u64 i) { to[seen + i] = masked; });
    });
}
