// Reads and writes of the paged cache of keys and values (`paged.h`). i8 has a scale for each token
// and head: an element is its integer times the scale.
#include "paged.h"

struct LargerOrNan {
    DEVICE f32 operator()(f32 a, f32 b) const { return math::max(a, b); }
};

// Stores a head's vector. An i8 element is off by at most half a scale, so by 1/254 of the vector's
// greatest magnitude. A vector with a NaN or an infinity becomes NaN throughout. One whose greatest
// magnitude is below 127 / (2^128 - 2^104) becomes 0.
template <class T, class S> DEVICE void put(u32 width, const T *from, S *to, f32 *scale) {
    if constexpr (is_same<S, i8>::value) {
        f32 most = block_reduce_range(width, 0.0f, [=](u64 c) { return math::abs((f32)load(from[c])); }, LargerOrNan());
        f32 inverse = 127.0f / most, unit = most / 127.0f;
        bool finite = most - most == 0.0f, zero = math::is_inf(inverse);
        // 127 units of a rounded quotient must not pass the greatest f32.
        if (math::is_inf(unit * 127.0f)) unit = bit_cast<f32>(bit_cast<u32>(unit) - 1);
        if (threadIdx.x == 0) *scale = !finite ? __builtin_nanf("") : zero ? 0.0f : unit;
        for_each_in_block(width, [=](u64 c) {
            f32 x = finite && !zero ? math::round((f32)load(from[c]) * inverse) : 0.0f;
            to[c] = (i8)(x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x);
        });
    } else {
        for_each_in_block(width, [=](u64 c) { to[c] = store<S>::from((f32)load(from[c])); });
    }
}

// Appends keys and values [tokens, heads, width] behind the `lengths` tokens of their rows.
template <class T, class S>
__global__ void kv_write(Paged p, const T *keys, const T *values, const i32 *offsets, const i32 *lengths,
                         const i32 *table, u64 *flag, S *key_pages, S *value_pages, f32 *key_scales,
                         f32 *value_scales) {
    for_each_row(p.tokens * p.heads, [=](u64 i) {
        u32 token = (u32)i / (u32)p.heads, head = (u32)i % (u32)p.heads;
        Token at = token_of(offsets, (u32)p.rows, token);
        if (!at.exists) return;
        u32 position = (u32)lengths[at.row] + at.at;
        i64 place = place_of(p, table, at.row, head, position);
        if (place < 0) {
            if (threadIdx.x == 0) raise_index(flag, (i64)position, p.most * PAGE);
            return;
        }
        u32 width = (u32)p.width;
        u64 scale = (u64)place / pitch_of(p);
        put(width, keys + token * p.step0 + head * width, key_pages + place, key_scales + scale);
        put(width, values + token * p.step1 + head * width, value_pages + place, value_scales + scale);
    });
}

// All keys and values of the rows as [tokens, heads, width]: row i is at offsets[i]..offsets[i + 1].
template <class S, class T>
__global__ void kv_gather(Paged p, const S *key_pages, const S *value_pages, const f32 *key_scales,
                          const f32 *value_scales, const i32 *offsets, const i32 *table, T *keys, T *values) {
    for_each_row(p.tokens * p.heads, [=](u64 i) {
        u32 token = (u32)i / (u32)p.heads, head = (u32)i % (u32)p.heads, width = (u32)p.width;
        Token at = token_of(offsets, (u32)p.rows, token);
        i64 place = at.exists ? place_of(p, table, at.row, head, at.at) : -1;
        T *key = keys + i * width, *value = values + i * width;
        f32 of_key = 1.0f, of_value = 1.0f;
        if constexpr (is_same<S, i8>::value) {
            if (place >= 0)
                of_key = key_scales[(u64)place / pitch_of(p)], of_value = value_scales[(u64)place / pitch_of(p)];
        }
        for_each_in_block(width, [=](u64 c) {
            key[c] = store<T>::from(place < 0 ? 0.0f : (f32)load(key_pages[place + c]) * of_key);
            value[c] = store<T>::from(place < 0 ? 0.0f : (f32)load(value_pages[place + c]) * of_value);
        });
    });
}

// Counts the tokens that were appended to all layers.
__global__ void kv_advance(u64 rows, const i32 *offsets, i32 *lengths) {
    for_each(rows, [=](u64 i) { lengths[i] += offsets[i + 1] - offsets[i]; });
}
