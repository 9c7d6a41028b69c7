// Cumulative sums, products, minima and maxima along the middle dim of contiguous [outer, len,
// inner]; `out` may be the input. f16 and bf16 are accumulated in f32. A NaN makes all later
// elements NaN, in minima and maxima too.
#include "published.h"
#include "rows.h"

struct CumSum {
    template <class C> static DEVICE C identity() { return (C)0; }
    template <class C> static DEVICE C apply(C a, C b) {
        if constexpr (is_float<C>::value) return a + b;
        else return (C)((wrapping_t<C>)a + (wrapping_t<C>)b);
    }
};
struct CumProd {
    template <class C> static DEVICE C identity() { return (C)1; }
    template <class C> static DEVICE C apply(C a, C b) {
        if constexpr (is_float<C>::value) return a * b;
        else return (C)((wrapping_t<C>)a * (wrapping_t<C>)b);
    }
};
struct CumMin {
    template <class C> static DEVICE C identity() { return greatest<C>(); }
    template <class C> static DEVICE C apply(C a, C b) { return math::min(a, b); }
};
struct CumMax {
    template <class C> static DEVICE C identity() { return least<C>(); }
    template <class C> static DEVICE C apply(C a, C b) { return math::max(a, b); }
};

// The scan of `value` over the threads of this warp up to this one, inclusive. The block must
// consist of whole warps.
template <class Op, class C> DEVICE C warp_scan(C value) {
    u32 lane = threadIdx.x % (u32)warpSize;
    UNROLLED
    for (u32 distance = 1; distance < 64; distance *= 2) {
        if (distance < (u32)warpSize) {
            u32 place =
                // AMD's compiler would keep the comparisons' masks through a kernel's loops.
                recompute_from(lane);
            C other = shuffle(value, (i32)((place - distance) % (u32)warpSize));
            if (place >= distance) value = Op::apply(other, value);
        }
    }
    return value;
}

// The number of rows that one thread scans at once. Each step of a scan waits for the step before
// in its row, but not for other rows.
constexpr u32 ROWS = 8;

template <class Op, u32 COUNT, class T> DEVICE void scan_rows(u64 len, const T *x, T *out) {
    using C = compute_t<T>;
    C sum[COUNT];
    for (u32 j = 0; j < COUNT; ++j) sum[j] = Op::template identity<C>();
    for (u64 i = 0; i < len; ++i) {
        for (u32 j = 0; j < COUNT; ++j) {
            sum[j] = Op::apply(sum[j], load(x[j * len + i]));
            out[j * len + i] = store<T>::from(sum[j]);
        }
    }
}

// The threads of a block scan one row. A step takes blockDim.x * PER elements: each thread scans
// PER neighbours, and the block scans the threads' totals.
template <class Op, class T> DEVICE void scan_row(u64 len, const T *x, T *out) {
    using C = compute_t<T>;
    if constexpr (ONE_THREAD) {
        scan_rows<Op, 1>(len, x, out);
    } else {
        constexpr u32 PER = 4;
        SHARED(C, totals, 32); // a block has at most 1024 threads, a warp at least 32
        u32 warp = threadIdx.x / (u32)warpSize, lane = threadIdx.x % (u32)warpSize;
        u32 warps = (blockDim.x + (u32)warpSize - 1) / (u32)warpSize;
        C carry = Op::template identity<C>();
        for (u64 start = 0; start < len; start += (u64)blockDim.x * PER) {
            u64 first = start + (u64)threadIdx.x * PER;
            C part[PER];
            C sum = Op::template identity<C>();
            for (u32 k = 0; k < PER; ++k) {
                if (first + k < len) sum = Op::apply(sum, load(x[first + k]));
                part[k] = sum;
            }
            C scanned = warp_scan<Op>(sum);
            bool last = lane + 1 == (u32)warpSize || threadIdx.x + 1 == blockDim.x;
            if (last) totals[warp] = scanned;
            C before = shuffle(scanned, lane > 0 ? (i32)lane - 1 : 0);
            sync_threads();
            C base = carry;
            for (u32 w = 0; w < warp; ++w) base = Op::apply(base, totals[w]);
            if (lane > 0) base = Op::apply(base, before);
            for (u32 w = 0; w < warps; ++w) carry = Op::apply(carry, totals[w]);
            // Waits until the totals are read, because the next step may overwrite them.
            sync_threads();
            for (u32 k = 0; k < PER; ++k) {
                if (first + k < len) out[first + k] = store<T>::from(Op::apply(base, part[k]));
            }
        }
    }
}

// The number of neighbouring columns that one thread takes. On a GPU it is one, so that
// neighbouring threads take neighbouring columns.
constexpr u32 TILE = ONE_THREAD ? 64 : 1;

// If inner == 1, a block takes a row (launched for `outer` rows of len). Else it is launched for
// outer * inner elements.
template <class Op, class T> __global__ void scan(u64 outer, u64 len, u64 inner, const T *x, T *out) {
    using C = compute_t<T>;
    if (inner == 1) {
        u64 groups = ONE_THREAD ? outer / ROWS : 0;
        if (ONE_THREAD)
            for_each_row(groups, [=](u64 g) { scan_rows<Op, ROWS>(len, x + g * ROWS * len, out + g * ROWS * len); });
        x += groups * ROWS * len, out += groups * ROWS * len;
        for_each_row(outer - groups * ROWS, [=](u64 row) { scan_row<Op>(len, x + row * len, out + row * len); });
        return;
    }
    u64 tiles = (inner + TILE - 1) / TILE;
    for_each(outer * tiles, [=](u64 item) {
        u64 o = item / tiles, column = (item - o * tiles) * TILE;
        u32 columns = inner - column < TILE ? (u32)(inner - column) : TILE;
        u64 first = o * len * inner + column;
        C sum[TILE];
        for (u32 j = 0; j < columns; ++j) sum[j] = Op::template identity<C>();
        for (u64 i = 0; i < len; ++i) {
            INDEPENDENT
            for (u32 j = 0; j < columns; ++j) {
                sum[j] = Op::apply(sum[j], load(x[first + i * inner + j]));
                out[first + i * inner + j] = store<T>::from(sum[j]);
            }
        }
    });
}

// ---------------------------------------------------------------- long rows

// Blocks take tiles of rows, in the manner of decoupled look-back (Merrill and Garland 2016,
// "Single-pass Parallel Prefix Scan with Decoupled Look-back"). A block takes the next tile, scans
// it in registers, and publishes its total. Groups of blockDim.x tiles publish their totals too.
// What precedes a tile is computed from the totals of the earlier groups and of the earlier tiles
// in its own group. So every run adds in the same order, and no total waits for a chain of others.
// A block does not wait idly either. It keeps a tile's results in shared memory, publishes the next
// tile's total and requests the elements of the tile after that. By then the totals that the first
// tile needs are available (H200, sum of 2^24 f32: 41.5 us; 56 if a block waits at each tile; a
// copy takes 34.5).
//
// A tile's own total covers its elements alone. It may overflow although the running result does
// not (zeros followed by a product beyond the type's range, or large terms of both signs). Then
// what follows is infinite or NaN.

// A published value has one word for each 32 bits, with a 1 above them; before it is published, the
// word is 0.

// A published value that may not have arrived yet.
template <class C> struct Published {
    static constexpr u32 WORDS = (sizeof(C) + 3) / 4;
    const u64 *at;
    u64 word[WORDS];

    static DEVICE void publish(u64 *at, C value) {
        u32 bits[WORDS] = {};
        __builtin_memcpy(bits, &value, sizeof(C));
        for (u32 w = 0; w < WORDS; ++w) publish_word(at + w, 1ull << 32 | bits[w]);
    }
    DEVICE void look(const u64 *place) {
        at = place;
        for (u32 w = 0; w < WORDS; ++w) word[w] = published_word(at + w);
    }
    DEVICE C wait() {
        u32 bits[WORDS];
        for (u32 w = 0; w < WORDS; ++w) {
            while (word[w] >> 32 == 0) {
                give_way();
                word[w] = published_word(at + w);
            }
            bits[w] = (u32)word[w];
        }
        C value;
        __builtin_memcpy(&value, bits, sizeof(C));
        return value;
    }
};

// The most threads of a block in scan_tiles.
constexpr u32 BLOCK = 256;
// The most elements of a tile per thread, which are also kept in shared memory. Most AMD GPUs have
// less of it for each block of a compute unit.
#if COMPILER_NVIDIA
constexpr u32 MOST = 32;
#else
constexpr u32 MOST = 16;
#endif

// A tile of a row.
struct Place {
    u64 first; // its first element's index in the whole tensor
    u32 t;     // its index among the row's tiles
    u32 left;  // the number of its elements that are in the row
    u64 *row;  // the words that the row's tiles publish, followed by its groups'
};

// Rows of `len` elements, divided into `count` tiles of `size`.
template <class Op, class T> struct Tiles {
    using C = compute_t<T>;
    static constexpr u32 WIDTH = LANES<T>, WORDS = Published<C>::WORDS;
    // The number of a thread's 16-byte accesses per tile. Wide types, whose elements take more
    // registers, have half as many elements.
    static constexpr u32 STEPS = MOST / WIDTH < MOST / 4 ? MOST / WIDTH : MOST / 4;
    using Piece = Vector<T, WIDTH>;
    using Sums = Vector<C, WIDTH>;

    const T *x;
    u64 *state;
    T *out;
    u64 len;
    u32 size, count;

    DEVICE Tiles(u64 len, const T *x, u64 *state, T *out) : x(x), state(state), out(out), len(len) {
        size = STEPS * WIDTH * blockDim.x;
        count = (u32)((len + size - 1) / size);
    }
    // The number of the next tile, counted over all rows. Thread 0 calls it.
    DEVICE u32 taken() const { return (u32)atomic_add(state, (u64)1); }
    DEVICE Place place(u32 ticket) const {
        u32 row = ticket / count, t = ticket - row * count;
        u64 begin = (u64)t * size, words = (count + (count + blockDim.x - 1) / blockDim.x) * WORDS;
        return Place{row * len + begin, t, len - begin < size ? (u32)(len - begin) : size, state + 1 + row * words};
    }
    DEVICE u64 *tile(const Place &p, u32 t) const { return p.row + (u64)t * WORDS; }
    DEVICE u64 *group(const Place &p, u32 g) const { return p.row + ((u64)count + g) * WORDS; }

    // The first element in the tile of this thread's step `s`. The pieces of a warp's threads are
    // contiguous, and so are its steps.
    DEVICE u32 at(u32 s) const {
        u32 warp = threadIdx.x / (u32)warpSize, lane = threadIdx.x % (u32)warpSize;
        return ((warp * STEPS + s) * (u32)warpSize + lane) * WIDTH;
    }
    // Reads this thread's elements. Those past the row's end become the operation's identity.
    DEVICE void read(const Place &p, Piece (&pieces)[STEPS]) const {
        const T *from = x + p.first;
        bool whole = p.left == size && past_boundary(from) == 0;
        UNROLLED
        for (u32 s = 0; s < STEPS; ++s) {
            if (whole) {
                pieces[s] = vector_at<WIDTH>(from, at(s));
            } else {
                UNROLLED
                for (u32 k = 0; k < WIDTH; ++k) {
                    u32 i = at(s) + k;
                    pieces[s].lane[k] = i < p.left ? from[i] : store<T>::from(Op::template identity<C>());
                }
            }
        }
    }
    // Writes the results: `ahead`, the total of what precedes the tile, joined with the thread's
    // own scan, which the block holds as [STEPS][BLOCK].
    DEVICE void write(const Place &p, C ahead, const Sums *held) const {
        T *to = out + p.first;
        if (p.left == size && past_boundary(to) == 0) {
            UNROLLED
            for (u32 s = 0; s < STEPS; ++s) {
                Sums own = held[s * BLOCK + threadIdx.x];
                Piece piece;
                UNROLLED
                for (u32 k = 0; k < WIDTH; ++k) piece.lane[k] = store<T>::from(Op::apply(ahead, own.lane[k]));
                vector_at<WIDTH>(to, at(s)) = piece;
            }
        } else {
            for (u32 s = 0; s < STEPS; ++s) {
                ROLLED
                for (u32 k = 0; k < WIDTH; ++k) {
                    u32 i = at(s) + k;
                    if (i < p.left) to[i] = store<T>::from(Op::apply(ahead, held[s * BLOCK + threadIdx.x].lane[k]));
                }
            }
        }
    }
    // Scans the tile. `sums` gets the thread's part of the scan; every thread gets the tile's
    // total.
    DEVICE C scan(const Piece (&pieces)[STEPS], Sums (&sums)[STEPS]) const {
        SHARED(C, totals, BLOCK / 32);
        u32 warp = threadIdx.x / (u32)warpSize, lane = threadIdx.x % (u32)warpSize, warps = blockDim.x / (u32)warpSize;
        C scanned[STEPS], running = Op::template identity<C>(), before[STEPS];
        UNROLLED
        for (u32 s = 0; s < STEPS; ++s) {
            sums[s].lane[0] = load(pieces[s].lane[0]);
            UNROLLED
            for (u32 k = 1; k < WIDTH; ++k)
                sums[s].lane[k] = Op::apply(sums[s].lane[k - 1], (C)load(pieces[s].lane[k]));
            scanned[s] = warp_scan<Op>(sums[s].lane[WIDTH - 1]);
        }
        UNROLLED
        for (u32 s = 0; s < STEPS; ++s) {
            C previous = shuffle(scanned[s], (i32)((lane - 1) % (u32)warpSize));
            before[s] = lane == 0 ? running : Op::apply(running, previous);
            running = Op::apply(running, shuffle(scanned[s], warpSize - 1));
        }
        if (lane == 0) totals[warp] = running;
        sync_threads();
        C total = totals[0], ahead = Op::template identity<C>();
        for (u32 w = 1; w < warps; ++w) {
            if (w == warp) ahead = total;
            total = Op::apply(total, totals[w]);
        }
        UNROLLED
        for (u32 s = 0; s < STEPS; ++s) {
            before[s] = Op::apply(ahead, before[s]);
            UNROLLED
            for (u32 k = 0; k < WIDTH; ++k) sums[s].lane[k] = Op::apply(before[s], sums[s].lane[k]);
        }
        return total;
    }
    // The last tile of a group publishes the group's total.
    DEVICE void publish_group(const Place &p, C total) const {
        if ((p.t + 1) % blockDim.x != 0) return;
        Published<C> other;
        if (threadIdx.x > 0) other.look(tile(p, p.t - threadIdx.x));
        total = block_reduce(threadIdx.x > 0 ? other.wait() : total, [](C a, C b) { return Op::apply(a, b); });
        if (threadIdx.x == 0) other.publish(group(p, p.t / blockDim.x), total);
    }
    DEVICE C ahead(const Place &p) const {
        u32 groups = p.t / blockDim.x, first = groups * blockDim.x;
        Published<C> other, whole;
        bool has_other = first + threadIdx.x < p.t;
        if (has_other) other.look(tile(p, first + threadIdx.x));
        if (threadIdx.x < groups) whole.look(group(p, threadIdx.x));
        C value = has_other ? other.wait() : Op::template identity<C>();
        for (u32 g = threadIdx.x; g < groups;) {
            value = Op::apply(value, whole.wait());
            g += blockDim.x;
            if (g < groups) whole.look(group(p, g));
        }
        return block_reduce(value, [](C a, C b) { return Op::apply(a, b); });
    }
};

// Scans rows of `len` elements with any number of blocks. Blocks take tiles in order, so the tiles
// for which a block waits belong to blocks that are running. `state` must begin as zeros. It holds
// the number of tiles taken, followed by what each row's tiles and groups publish.
template <class Op, class T>
__global__ __launch_bounds__(BLOCK, 2) void scan_tiles(u64 outer, u64 len, const T *x, u64 *state, T *out) {
    using Scan = Tiles<Op, T>;
    using C = compute_t<T>;
    using Sums = typename Scan::Sums;
    Scan tiles(len, x, state, out);
    u32 all = (u32)outer * tiles.count;
    if constexpr (!ONE_THREAD) {
        SHARED(u32, taken, 1);
        // Each thread uses its own elements, so no barrier is needed.
        SHARED(Sums, held, Scan::STEPS * BLOCK);
        if (threadIdx.x == 0) taken[0] = tiles.taken();
        sync_threads();
        u32 ticket = taken[0];
        if (ticket >= all) return;
        Place now = tiles.place(ticket), before;
        typename Scan::Piece pieces[Scan::STEPS];
        tiles.read(now, pieces);
        for (bool holds = false;; holds = true) {
            Sums sums[Scan::STEPS];
            C total = tiles.scan(pieces, sums);
            if (threadIdx.x == 0) {
                Published<C>::publish(tiles.tile(now, now.t), total);
                taken[0] = tiles.taken();
            }
            sync_threads();
            ticket = taken[0];
            Place next;
            if (ticket < all) {
                next = tiles.place(ticket);
                tiles.read(next, pieces);
            }
            tiles.publish_group(now, total);
            if (holds) tiles.write(before, tiles.ahead(before), held);
            UNROLLED
            for (u32 s = 0; s < Scan::STEPS; ++s) held[s * BLOCK + threadIdx.x] = sums[s];
            before = now;
            if (ticket >= all) break;
            now = next;
        }
        tiles.write(before, tiles.ahead(before), held);
    }
}
