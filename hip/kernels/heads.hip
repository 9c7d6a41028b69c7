// Packs the weights and biases of several linear layers into one, head by head.
#include "prelude.h"

// The unit of copying: BYTES is the size of an element, or 16.
template <i32 BYTES> struct alignas(BYTES) Unit {
    u8 bytes[BYTES];
};

// out[row][head][part] = `width` units of row `row` and head `head` of part `part`. The first
// `rows` rows come from three tensors [rows, heads, width], and one more row from three tensors
// [heads, width]. All are contiguous and begin at multiples of BYTES, with fewer than 2^32 units.
template <i32 BYTES>
__global__ void pack_heads(u64 rows, u32 heads, u32 width, const u8 *a, const u8 *b, const u8 *c, const u8 *last_a,
                           const u8 *last_b, const u8 *last_c, u8 *out) {
    using U = Unit<BYTES>;
    u32 lines = (u32)rows * heads;
    for_each((rows + 1) * heads * 3 * width, [=](u64 at) {
        u32 i = (u32)at, rest = i / width, unit = i - rest * width, line = rest / 3, part = rest - line * 3;
        bool last = line >= lines;
        // By value: AMD's compiler turns a choice among captured names into a table in memory.
        const u8 *from = select(part == 0, select(last, last_a, a),
                                select(part == 1, select(last, last_b, b), select(last, last_c, c)));
        if (last) line -= lines;
        reinterpret_cast<U *>(out)[i] = reinterpret_cast<const U *>(from)[line * width + unit];
    });
}
