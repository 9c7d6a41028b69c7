// Stable sorts of the rows of contiguous [rows, len], which also give each element's index in its
// row (i32).
//
// Elements are mapped to unsigned keys of their own width that have the requested order (for floats
// IEEE's total order: -NaN, -inf .. -0, 0 .. inf, NaN). A key and its index form a pair. No two
// pairs are equal, so any sort of them is stable. One block sorts a row of at most TILE elements.
// Longer rows are sorted tile by tile, and their sorted runs are merged two by two. Bisection finds
// equal shares of each merge, so that one long row occupies the whole device.
#include "prelude.h"

// `flags`: how a key is computed from an element's bits.
constexpr u32 SIGNED = 1, FLOAT = 2, DESCENDING = 4;

// Must equal the constant in the host's sort.rs.
constexpr u32 TILE = 1024;

template <class U> DEVICE U to_key(U bits, u32 flags) {
    constexpr U sign = (U)((U)1 << (sizeof(U) * 8 - 1));
    U key = bits;
    if (flags & FLOAT) key = bits & sign ? (U)~bits : (U)(bits | sign);
    else if (flags & SIGNED) key = bits ^ sign;
    return flags & DESCENDING ? (U)~key : key;
}
template <class U> DEVICE U from_key(U key, u32 flags) {
    constexpr U sign = (U)((U)1 << (sizeof(U) * 8 - 1));
    if (flags & DESCENDING) key = (U)~key;
    if (flags & FLOAT) return key & sign ? (U)(key ^ sign) : (U)~key;
    return flags & SIGNED ? (U)(key ^ sign) : key;
}

// A key and an index in one integer, for keys of up to four bytes.
struct Narrow {
    u64 bits;
    static DEVICE Narrow of(u64 key, u32 index) { return {key << 32 | index}; }
    DEVICE u64 key() const { return bits >> 32; }
    DEVICE u32 index() const { return (u32)bits; }
    DEVICE bool before(const Narrow &other) const { return bits < other.bits; }
    static DEVICE Narrow either(bool c, Narrow a, Narrow b) { return {c ? a.bits : b.bits}; }
};
struct Wide {
    u64 high;
    u64 low;
    static DEVICE Wide of(u64 key, u32 index) { return {key, index}; }
    DEVICE u64 key() const { return high; }
    DEVICE u32 index() const { return (u32)low; }
    DEVICE bool before(const Wide &other) const { return high < other.high || (high == other.high && low < other.low); }
    // Member by member: a choice between two addresses would put both into memory.
    static DEVICE Wide either(bool c, Wide a, Wide b) { return {c ? a.high : b.high, c ? a.low : b.low}; }
};
template <class U> struct pair {
    using type = Narrow;
};
template <> struct pair<u64> {
    using type = Wide;
};
template <class U> using pair_t = typename pair<U>::type;

// Sorts `pairs`, which must be in the order of their indices; `spare` has room for as many. One
// thread does it: by insertion if there are few, otherwise by radix sort from the lowest byte of
// the key, skipping bytes that are the same in all keys.
template <class U> DEVICE void sort_serially(u32 count, pair_t<U> *pairs, pair_t<U> *spare) {
    using P = pair_t<U>;
    if (count <= 32) {
        for (u32 i = 1; i < count; ++i) {
            P moving = pairs[i];
            u32 at = i;
            for (; at > 0 && moving.before(pairs[at - 1]); --at) pairs[at] = pairs[at - 1];
            pairs[at] = moving;
        }
        return;
    }
    P *from = pairs, *to = spare;
    for (u32 byte = 0; byte < sizeof(U); ++byte) {
        u32 place[256] = {};
        for (u32 i = 0; i < count; ++i) ++place[from[i].key() >> (byte * 8) & 255];
        if (place[from[0].key() >> (byte * 8) & 255] == count) continue;
        u32 sum = 0;
        for (u32 digit = 0; digit < 256; ++digit) {
            u32 here = place[digit];
            place[digit] = sum;
            sum += here;
        }
        for (u32 i = 0; i < count; ++i) to[place[from[i].key() >> (byte * 8) & 255]++] = from[i];
        P *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != pairs) {
        for (u32 i = 0; i < count; ++i) pairs[i] = from[i];
    }
}

// The block's threads sort pairs in shared memory with a bitonic network. `size` is a power of two;
// places after the last pair hold pairs that sort after all others.
template <class P> DEVICE void sort_together(u32 size, P *pairs) {
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 distance = run / 2; distance > 0; distance /= 2) {
            sync_threads();
            for (u32 i = threadIdx.x; i < size / 2; i += blockDim.x) {
                u32 a = 2 * i - (i & (distance - 1)), b = a + distance;
                bool ascending = (a & run) == 0;
                P first = pairs[a], second = pairs[b];
                if (second.before(first) == ascending) {
                    pairs[a] = second;
                    pairs[b] = first;
                }
            }
        }
    }
    sync_threads();
}

// Loads x[0..count) as pairs whose indices start at `start`, sorts them with the whole block, and
// calls put(place, pair) for each.
template <class U, class F> DEVICE void sort_tile(u32 count, u64 start, u32 flags, const U *x, F put) {
    using P = pair_t<U>;
    SHARED(P, pairs, TILE);
    if constexpr (ONE_THREAD) {
        P spare[TILE];
        for (u32 i = 0; i < count; ++i) pairs[i] = P::of(to_key(x[i], flags), (u32)(start + i));
        sort_serially<U>(count, pairs, spare);
        for (u32 i = 0; i < count; ++i) put(i, pairs[i]);
    } else {
        u32 size = 1;
        while (size < count) size *= 2;
        for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
            pairs[i] = i < count ? P::of(to_key(x[i], flags), (u32)(start + i)) : P::of(~0ull, 0xffffffffu);
        }
        sort_together(size, pairs);
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) put(i, pairs[i]);
        sync_threads(); // waits until the pairs are read, because the next tile may overwrite them
    }
}

// For rows of at most TILE elements. `out` may be the input.
template <class U> __global__ void sort_rows(u64 rows, u64 len, u32 flags, const U *x, i32 *index, U *out) {
    for_each_row(rows, [=](u64 row) {
        sort_tile((u32)len, 0, flags, x + row * len, [=](u32 i, pair_t<U> p) {
            out[row * len + i] = from_key((U)p.key(), flags);
            index[row * len + i] = (i32)p.index();
        });
    });
}

// Sorts every `tile` elements of each row into `pairs`. With blocks of one thread, a tile may have
// any size, and `spare` is working memory; otherwise it has at most TILE elements.
template <class U>
__global__ void sort_tiles(u64 rows, u64 len, u64 tile, u32 flags, const U *x, pair_t<U> *spare, pair_t<U> *pairs) {
    using P = pair_t<U>;
    u64 tiles = (len + tile - 1) / tile;
    for_each_row(rows * tiles, [=](u64 item) {
        u64 row = item / tiles, start = (item - row * tiles) * tile;
        u64 first = row * len + start;
        u32 count = (u32)(len - start < tile ? len - start : tile);
        if constexpr (ONE_THREAD) {
            for (u32 i = 0; i < count; ++i) pairs[first + i] = P::of(to_key(x[first + i], flags), (u32)(start + i));
            sort_serially<U>(count, pairs + first, spare + first);
        } else {
            sort_tile(count, start, flags, x + first, [=](u32 i, P p) { pairs[first + i] = p; });
        }
    });
}

// The number of elements that one thread merges at a time.
constexpr u32 SHARE = ONE_THREAD ? 4096 : 16;

// Merges sorted runs of `run` elements in each row of `x` two by two into `out`. Launched for rows
// * ceil(len / 16) items.
template <class U> __global__ void sort_merge(u64 rows, u64 len, u64 run, const pair_t<U> *x, pair_t<U> *out) {
    using P = pair_t<U>;
    // A share never crosses the end of a couple of runs: each couple has its own shares.
    u64 couples = (len + 2 * run - 1) / (2 * run), shares = (2 * run + SHARE - 1) / SHARE;
    for_each(rows * couples * shares, [=](u64 item) {
        u64 share = item % shares, couple = item / shares % couples, row = item / shares / couples;
        u64 start = couple * 2 * run;
        u64 left = len - start < run ? len - start : run;
        u64 right = len - start - left < run ? len - start - left : run;
        u64 begin = share * SHARE;
        if (begin >= left + right) return;
        u64 count = left + right - begin < SHARE ? left + right - begin : SHARE;
        const P *a = x + row * len + start, *b = a + left;
        // The number of the couple's first `begin` elements that come from a: the least i for which
        // b[begin - i - 1] is before a[i].
        u64 low = begin > right ? begin - right : 0, high = begin < left ? begin : left;
        while (low < high) {
            u64 middle = (low + high) / 2;
            if (b[begin - middle - 1].before(a[middle])) high = middle;
            else low = middle + 1;
        }
        u64 i = low, j = begin - low;
        P *to = out + row * len + start + begin;
        u64 k = 0;
        for (; k < count && i < left && j < right; ++k) {
            P first = a[i], second = b[j];
            bool other = second.before(first);
            to[k] = P::either(other, second, first);
            j += other;
            i += !other;
        }
        for (; k < count && i < left; ++k) to[k] = a[i++];
        for (; k < count; ++k) to[k] = b[j++];
    });
}

// Splits pairs into elements and indices.
template <class U> __global__ void sort_finish(u64 n, u32 flags, const pair_t<U> *pairs, i32 *index, U *out) {
    for_each(n, [=](u64 i) {
        out[i] = from_key((U)pairs[i].key(), flags);
        index[i] = (i32)pairs[i].index();
    });
}
