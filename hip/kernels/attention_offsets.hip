// The check of the offsets of packed sequences (`attention_sequences.h`), once for a call.
#include "prelude.h"

// Whether offset i (of `sequences` + 1) is right: the first is 0, the last is `rows`, and none is
// less than the one before it.
template <class I> DEVICE bool ascends(const I *offsets, u64 i, u64 sequences, u64 rows) {
    i64 value = (i64)offsets[i], before = i == 0 ? 0 : (i64)offsets[i - 1];
    if (i == 0 && value != 0) return false;
    if (i == sequences && value != (i64)rows) return false;
    return value >= before && value <= (i64)rows;
}

// table[0][..] = the offsets of queries, table[1][..] those of keys, if both ascend from 0 to their
// numbers of rows. Otherwise the table is 0 throughout, so that no sequence has rows, and a bad
// offset is reported. Launched with one block.
template <class I>
__global__ void attention_offsets(u64 sequences, u64 query_rows, u64 key_rows, const I *queries, const I *keys,
                                  u64 *flag, i32 *table) {
    u64 count = sequences + 1;
    auto offset = [=](u64 i) { return (i64)(i >= count ? keys[i - count] : queries[i]); };
    auto is_good = [=](u64 i) {
        return i >= count ? ascends(keys, i - count, sequences, key_rows) : ascends(queries, i, sequences, query_rows);
    };
    // How many offsets there are from the first bad one on; 0 if all are good.
    u64 left = block_reduce_range(2 * count, (u64)0, [=](u64 i) { return is_good(i) ? 0 : 2 * count - i; }, Larger());
    u64 bad = 2 * count - left;
    if (left > 0 && threadIdx.x == 0) raise_index(flag, offset(bad), bad >= count ? key_rows : query_rows);
    for_each_in_block(2 * count, [=](u64 i) { table[i] = left == 0 ? (i32)offset(i) : 0; });
}
