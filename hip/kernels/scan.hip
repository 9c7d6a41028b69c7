// Cumulative sums, products, minima and maxima along the middle dim of contiguous [outer, len, inner]; `out` may be the input.
// f16 and bf16 accumulate in f32. NaN spreads to all that follows it, in minima and maxima too.
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

// The scan of `value` over the threads of this warp up to and including this one. Lanes that a shuffle names are there: `source`
// is never past this lane.
template <class Op, class C> DEVICE C warp_scan(C value) {
    i32 lane = (i32)(threadIdx.x % (u32)warpSize);
    for (i32 distance = 1; distance < warpSize; distance *= 2) {
        i32 source = lane >= distance ? lane - distance : lane;
        C other = shuffle(value, source);
        if (lane >= distance) value = Op::apply(other, value);
    }
    return value;
}

// Rows that one thread takes side by side: each step of a scan waits for the one before, but not for those of other rows.
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

// One row by the threads of a block: a step takes blockDim.x * PER elements; each thread scans PER neighbours, the block their totals.
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
            sync_threads(); // the totals are read: the next step may write them
            for (u32 k = 0; k < PER; ++k) {
                if (first + k < len) out[first + k] = store<T>::from(Op::apply(base, part[k]));
            }
        }
    }
}

// Columns side by side that one thread takes: neighbouring threads take neighbouring columns on a GPU.
constexpr u32 TILE = ONE_THREAD ? 64 : 1;

// inner == 1: a block a row (launched for `outer` rows of len). Else: launched for outer * inner elements.
template <class Op, class T> __global__ void scan(u64 outer, u64 len, u64 inner, const T *x, T *out) {
    using C = compute_t<T>;
    if (inner == 1) {
        u64 groups = ONE_THREAD ? outer / ROWS : 0;
        if (ONE_THREAD) for_each_row(groups, [=](u64 g) { scan_rows<Op, ROWS>(len, x + g * ROWS * len, out + g * ROWS * len); });
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

// ---------------------------------------------------------------- long rows, each by many blocks

// Decoupled look-back (Merrill and Garland 2016, "Single-pass Parallel Prefix Scan with Decoupled Look-back"), in a fixed order. A
// block takes a tile of a row, publishes the tile's total, and waits for what lies ahead of it: the totals of the tiles of its group, of
// the groups of its super-group, and the running result of all super-groups before. A group's last tile publishes the group's
// total, a super-group's last tile the running result. So the same sums are made each time, and only every
// FAN * FAN-th tile waits for a chain.
constexpr u32 FAN = 32;

// A published value is one word for each 32 bits of it, with a 1 above them. A word is read and written whole, so that no fence
// is needed; until it is published it is 0.
DEVICE void publish_word(u64 *at, u64 word) {
#if COMPILER_AMD
    __hip_atomic_store(at, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#elif COMPILER_NVIDIA
    *(volatile u64 *)at = word;
#else
    __atomic_store_n(at, word, __ATOMIC_RELAXED);
#endif
}
DEVICE u64 published_word(const u64 *at) {
#if COMPILER_AMD
    return __hip_atomic_load(at, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#elif COMPILER_NVIDIA
    return *(const volatile u64 *)at;
#else
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}
// A few cycles in which other warps run.
DEVICE void give_way() {
#if COMPILER_AMD
    __builtin_amdgcn_s_sleep(1);
#elif COMPILER_NVIDIA && __CUDA_ARCH__ >= 700
    __nanosleep(20);
#endif
}

// A level's published values.
template <class C> struct Published {
    static constexpr u32 WORDS = (sizeof(C) + 3) / 4;
    u64 *words;

    DEVICE void publish(u64 index, C value) const {
        u32 bits[WORDS] = {};
        __builtin_memcpy(bits, &value, sizeof(C));
        for (u32 w = 0; w < WORDS; ++w) publish_word(words + index * WORDS + w, 1ull << 32 | bits[w]);
    }
    DEVICE C awaited(u64 index) const {
        u32 bits[WORDS];
        for (u32 w = 0; w < WORDS; ++w) {
            u64 word = published_word(words + index * WORDS + w);
            while (word >> 32 == 0) {
                give_way();
                word = published_word(words + index * WORDS + w);
            }
            bits[w] = (u32)word;
        }
        C value;
        __builtin_memcpy(&value, bits, sizeof(C));
        return value;
    }
    // The values from `first` on, `count` (less than FAN) of them, together. All threads of one warp call it; each gets the result.
    template <class Op> DEVICE C joined(u64 first, u32 count) const {
        C value = Op::template identity<C>();
        if constexpr (ONE_THREAD) {
            for (u32 k = 0; k < count; ++k) value = Op::apply(value, awaited(first + k));
            return value;
        } else {
            u32 lane = threadIdx.x % (u32)warpSize;
            if (lane < count) value = awaited(first + lane);
            return shuffle(warp_scan<Op>(value), (i32)FAN - 1); // a warp has at least FAN lanes
        }
    }
};

// What a row's tiles publish; the host makes room for it in this order, behind the counter of tiles taken.
template <class C> struct Levels {
    Published<C> tiles, groups, supers;

    DEVICE Levels(u64 *words, u64 count) {
        u64 groups_count = (count + FAN - 1) / FAN;
        tiles.words = words;
        groups.words = tiles.words + count * Published<C>::WORDS;
        supers.words = groups.words + groups_count * Published<C>::WORDS;
    }
    static DEVICE u64 words(u64 count) {
        u64 groups_count = (count + FAN - 1) / FAN;
        return (count + groups_count + (groups_count + FAN - 1) / FAN) * Published<C>::WORDS;
    }

    // What lies ahead of tile `t`, whose own total is given. All threads of one warp call it; each gets the result.
    template <class Op> DEVICE C ahead(u64 t, C total) const {
        bool first = ONE_THREAD || threadIdx.x % (u32)warpSize == 0;
        if (first) tiles.publish(t, total);
        u64 group = t / FAN, super = group / FAN;
        bool last_tile = t % FAN == FAN - 1, last_group = group % FAN == FAN - 1;
        C within = tiles.template joined<Op>(group * FAN, (u32)(t % FAN));
        if (last_tile && first) groups.publish(group, Op::apply(within, total));
        C before = groups.template joined<Op>(super * FAN, (u32)(group % FAN));
        if (super > 0) before = Op::apply(supers.awaited(super - 1), before);
        before = Op::apply(before, within);
        if (last_tile && last_group && first) supers.publish(super, Op::apply(before, total));
        return before;
    }
};

// Accesses of 16 bytes that a thread makes of a tile: few, so that its registers leave room for all waves, which hide each other's waits.
template <class T> constexpr u32 STEPS = sizeof(T) < 4 ? 1 : 2;

// Tile `t` of a row: blockDim.x * STEPS * LANES elements, on the CPU `tile`.
template <class Op, class T> DEVICE void scan_tile(u64 t, u64 len, u64 tile, const T *x, Levels<compute_t<T>> levels, T *out) {
    using C = compute_t<T>;
    u64 begin = t * tile;
    if constexpr (ONE_THREAD) {
        u64 end = begin + tile < len ? begin + tile : len;
        C total = Op::template identity<C>();
        for (u64 i = begin; i < end; ++i) total = Op::apply(total, load(x[i]));
        C sum = levels.template ahead<Op>(t, total);
        for (u64 i = begin; i < end; ++i) {
            sum = Op::apply(sum, load(x[i]));
            out[i] = store<T>::from(sum);
        }
    } else {
        constexpr u32 WIDTH = LANES<T>, COUNT = STEPS<T>;
        SHARED(C, totals, COUNT * 32); // a block has at most 1024 threads, a warp at least 32
        SHARED(C, base, 1);
        u32 warp = threadIdx.x / (u32)warpSize, lane = threadIdx.x % (u32)warpSize, warps = blockDim.x / (u32)warpSize;
        x += begin, out += begin;
        bool whole = begin + tile <= len && past_boundary(x) == 0 && past_boundary(out) == 0;
        // Of the tile, what is there.
        u32 left = begin + tile <= len ? (u32)tile : (u32)(len - begin), at = threadIdx.x * WIDTH, step = blockDim.x * WIDTH;
        C part[COUNT][WIDTH], before[COUNT];
#pragma unroll
        for (u32 s = 0; s < COUNT; ++s) {
            if (whole) {
                Vector<T, WIDTH> piece = vector_at<WIDTH>(x, at + s * step);
#pragma unroll
                for (u32 k = 0; k < WIDTH; ++k) part[s][k] = load(piece.lane[k]);
            } else {
#pragma unroll
                for (u32 k = 0; k < WIDTH; ++k) {
                    u32 i = at + s * step + k;
                    part[s][k] = i < left ? (C)load(x[i]) : Op::template identity<C>();
                }
            }
        }
#pragma unroll
        for (u32 s = 0; s < COUNT; ++s) {
#pragma unroll
            for (u32 k = 1; k < WIDTH; ++k) part[s][k] = Op::apply(part[s][k - 1], part[s][k]);
            C scanned = warp_scan<Op>(part[s][WIDTH - 1]);
            if (lane + 1 == (u32)warpSize) totals[s * 32 + warp] = scanned;
            before[s] = shuffle(scanned, lane > 0 ? (i32)lane - 1 : 0);
            if (lane == 0) before[s] = Op::template identity<C>();
        }
        sync_threads();
        C total = Op::template identity<C>();
#pragma unroll
        for (u32 s = 0; s < COUNT; ++s) {
            for (u32 w = 0; w < warps; ++w) {
                if (w == warp) before[s] = Op::apply(total, before[s]);
                total = Op::apply(total, totals[s * 32 + w]);
            }
        }
        if (warp == 0) {
            C ahead = levels.template ahead<Op>(t, total);
            if (lane == 0) base[0] = ahead;
        }
        sync_threads();
        C ahead = base[0];
#pragma unroll
        for (u32 s = 0; s < COUNT; ++s) {
            C start = Op::apply(ahead, before[s]);
            if (whole) {
                Vector<T, WIDTH> piece;
#pragma unroll
                for (u32 k = 0; k < WIDTH; ++k) piece.lane[k] = store<T>::from(Op::apply(start, part[s][k]));
                vector_at<WIDTH>(out, at + s * step) = piece;
            } else {
#pragma unroll
                for (u32 k = 0; k < WIDTH; ++k) {
                    u32 i = at + s * step + k;
                    if (i < left) out[i] = store<T>::from(Op::apply(start, part[s][k]));
                }
            }
        }
    }
}

// Rows of `len` elements, `tiles` of `tile` elements each, by however many blocks. Blocks take tiles in order, so that those which
// one waits for are taken already. `state` is all 0: the number of tiles taken, then the levels of each row.
template <class Op, class T>
__global__ __launch_bounds__(256) ALL_WAVES(true) void scan_tiles(u64 outer, u64 len, u64 tile, u64 tiles, const T *x, u64 *state, T *out) {
    using C = compute_t<T>;
    SHARED(u64, taken, 1);
    while (true) {
        if (threadIdx.x == 0) taken[0] = atomic_add(state, (u64)1);
        sync_threads();
        u64 ticket = taken[0];
        if (ticket >= outer * tiles) return;
        u64 row = ticket / tiles;
        Levels<C> levels(state + 1 + row * Levels<C>::words(tiles), tiles);
        scan_tile<Op>(ticket - row * tiles, len, tile, x + row * len, levels, out + row * len);
        sync_threads(); // all is read of the shared memory: the next tile writes it
    }
}
