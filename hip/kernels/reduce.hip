// Reductions of a contiguous tensor, seen as [outer, len, inner], over its middle dim. If inner ==
// 1, a block takes a row; otherwise neighbouring threads take neighbouring columns.
//
// If there are too few rows or columns to fill the device, the host divides each into `parts`: out
// is then [outer, parts, inner], and a second launch reduces the parts. The launch fixes the order
// of all sums, so every run gives the same bits. Low-precision floats are accumulated in f32, and
// their parts are stored in f32 too; integers wrap at their own width.
#include "prelude.h"
#include "rows.h"
#include "sums.h"

// Sum and Mean are in sums.h.
struct Prod {
    template <class A> static DEVICE A identity() { return (A)1; }
    template <class A> static DEVICE A enter(A x) { return x; }
    template <class A> static DEVICE A join(A a, A b) {
        if constexpr (is_float<A>::value) return a * b;
        else return (A)((wrapping_t<A>)a * (wrapping_t<A>)b);
    }
    template <class A> static DEVICE A leave(A a, u64) { return a; }
};
struct Max { // NaN if any element is
    template <class A> static DEVICE A identity() { return least<A>(); }
    template <class A> static DEVICE A enter(A x) { return x; }
    template <class A> static DEVICE A join(A a, A b) { return math::max(a, b); }
    template <class A> static DEVICE A leave(A a, u64) { return a; }
};
struct Min { // NaN if any element is
    template <class A> static DEVICE A identity() { return greatest<A>(); }
    template <class A> static DEVICE A enter(A x) { return x; }
    template <class A> static DEVICE A join(A a, A b) { return math::min(a, b); }
    template <class A> static DEVICE A leave(A a, u64) { return a; }
};
struct MaxAbs : Max { // wraps for the least integer, as Abs does
    template <class A> static DEVICE A enter(A x) {
        if constexpr (is_float<A>::value) return math::abs(x);
        // Narrowed once, at the end: when NVRTC 13.0 selects between narrow values, it compares
        // with garbage that the neighbouring lane left in the upper bits.
        else return (A)(x < (A)0 ? (wrapping_t<A>)0 - (wrapping_t<A>)x : (wrapping_t<A>)x);
    }
};
// For bools of one or four bytes.
struct Any {
    template <class A> static DEVICE A identity() { return (A)0; }
    template <class A> static DEVICE A enter(A x) { return (A)(x != (A)0); }
    template <class A> static DEVICE A join(A a, A b) { return (A)(a | b); }
    template <class A> static DEVICE A leave(A a, u64) { return a; }
};
struct All {
    template <class A> static DEVICE A identity() { return (A)1; }
    template <class A> static DEVICE A enter(A x) { return (A)(x != (A)0); }
    template <class A> static DEVICE A join(A a, A b) { return (A)(a & b); }
    template <class A> static DEVICE A leave(A a, u64) { return a; }
};

// The type in which a reduction accumulates. For bools it is a byte, so that the CPU's loops
// vectorise.
template <class T> struct accumulator {
    using type = compute_t<T>;
    static DEVICE type from(T x) { return load(x); }
};
template <> struct accumulator<bool8> {
    using type = u8;
    static DEVICE u8 from(bool8 x) { return x.value; }
};

template <class Op, class From, class To>
DEVICE void rows(u64 rows, u64 len, u64 parts, u64 count, const From *x, To *out) {
    using A = typename accumulator<From>::type;
    auto join = [](A a, A b) { return Op::join(a, b); };
    if constexpr (ONE_THREAD) {
        for_each_row(rows * parts, [&](u64 index) {
            Part part = part_of(index, len, parts);
            const From *row = x + part.outer * len + part.begin;
            A result = Op::template identity<A>();
            if constexpr (CONVERTED<From>) {
                constexpr u32 ROOM = 2048; // the number that block_reduce_range adds up at a time
                A room[ROOM];
                for (u64 first = part.begin; first < part.end; first += ROOM) {
                    u32 some = part.end - first < ROOM ? (u32)(part.end - first) : ROOM;
                    read_row(some, x + part.outer * len + first, room);
                    const A *values = room;
                    result = Op::join(result, block_reduce_range<A>(some, Op::template identity<A>(),
                                                                    [=](u64 i) { return Op::enter(values[i]); }, join));
                }
            } else {
                auto value = [=](u64 i) { return Op::enter(accumulator<From>::from(row[i])); };
                result = block_reduce_range<A>(part.end - part.begin, result, value, join);
            }
            out[index] = store<To>::from(Op::leave(result, count));
        });
    } else {
        u32 width = (u32)warpSize, warps = (blockDim.x + width - 1) / width, warp = warp_uniform(threadIdx.x / width);
        // Enough for one row per warp, which needs no barriers.
        bool alone = rows * parts >= (u64)gridDim.x * warps;
        u32 lanes = blockDim.x - warp * width < width ? blockDim.x - warp * width : width;
        Team team = alone ? Team{threadIdx.x % width, lanes} : whole_block();
        u64 step = alone ? (u64)gridDim.x * warps : gridDim.x;
        for (u64 index = alone ? (u64)blockIdx.x * warps + warp : blockIdx.x; index < rows * parts; index += step) {
            Part part = part_of(index, len, parts);
            A result = Op::template identity<A>();
            auto enter = [&](u64, From v) { result = Op::join(result, Op::enter(accumulator<From>::from(v))); };
            // For single bytes, of which an access has 16, four accesses at once do not fit the
            // registers.
            for_each_of_row<(sizeof(From) > 1)>(team, part.end - part.begin, enter, x + part.outer * len + part.begin);
            result = alone ? warp_reduce(result, join) : block_reduce(result, join);
            if (team.at == 0) out[index] = store<To>::from(Op::leave(result, count));
        }
    }
}

template <class Op, class From, class To>
DEVICE void columns(u64 outer, u64 len, u64 inner, u64 parts, u64 count, const From *x, To *out) {
    using A = typename accumulator<From>::type;
    using Element = typename converted<From>::type;
    constexpr u64 SPAN = 256; // sums are short for precision
    for_each_column_group(outer * parts, inner, [=](u64 index, u64 column, u32 width) {
        Part part = part_of(index, len, parts);
        const From *from = x + part.outer * len * inner + column;
        A total[COLUMN_GROUP], sum[COLUMN_GROUP];
        compute_t<From> room[4][CONVERTED<From> ? COLUMN_GROUP : 1];
        for (u32 k = 0; k < width; ++k) total[k] = Op::template identity<A>();
        for (u64 begin = part.begin; begin < part.end; begin += SPAN) {
            u64 end = begin + SPAN < part.end ? begin + SPAN : part.end;
            for (u32 k = 0; k < width; ++k) sum[k] = Op::template identity<A>();
            auto enter = [](Element v) { return Op::enter(accumulator<Element>::from(v)); };
            auto row = [=, &room](u64 i, u32 k) { return row_ahead<COLUMN_GROUP>(width, from + i * inner, room[k]); };
            u64 i = begin;
            for (; i + 4 <= end; i += 4) { // loads four rows for each load and store of the sum
                const Element *a = row(i, 0), *b = row(i + 1, 1), *c = row(i + 2, 2), *d = row(i + 3, 3);
                for (u32 k = 0; k < width; ++k) {
                    A four = Op::join(Op::join(enter(a[k]), enter(b[k])), Op::join(enter(c[k]), enter(d[k])));
                    sum[k] = Op::join(sum[k], four);
                }
            }
            for (; i < end; ++i) {
                const Element *one = row(i, 0);
                for (u32 k = 0; k < width; ++k) sum[k] = Op::join(sum[k], enter(one[k]));
            }
            for (u32 k = 0; k < width; ++k) total[k] = Op::join(total[k], sum[k]);
        }
        To *to = out + index * inner + column;
        for (u32 k = 0; k < width; ++k) to[k] = store<To>::from(Op::leave(total[k], count));
    });
}

// The number of columns that a thread takes at once: 16 bytes, but at most 4, whose accumulators
// and four rows of loads fit 64 registers.
template <class T> constexpr u32 SIDE_BY_SIDE = LANES<T> < 4 ? LANES<T> : 4;

// The same on GPUs if `inner` is a multiple of SIDE_BY_SIDE and x begins at a 16-byte boundary. Up
// to 32 of a block's threads are neighbours along a row, each with SIDE_BY_SIDE columns; the others
// take different rows, with four accesses at a time. Any block size works, but threads beyond 256
// have nothing to do.
template <class Op, class From, class To>
DEVICE void wide_columns(u64 outer, u64 len, u64 inner, u64 parts, u64 count, const From *x, To *out) {
    using A = typename accumulator<From>::type;
    constexpr u32 WIDTH = SIDE_BY_SIDE<From>, MOST = 256, SPAN = 64; // sums are short for precision
    SHARED(A, partial, MOST);
    u64 wide = inner / WIDTH;
    u32 threads = blockDim.x < MOST ? blockDim.x : MOST, across = threads < 32 ? threads : 32;
    while (across > 1 && across / 2 >= wide) across /= 2;
    u32 down = threads / across, group = threadIdx.x / across, lane = threadIdx.x % across;
    u64 blocks = (wide + across - 1) / across;
    for_each_row(outer * parts * blocks, [&](u64 item) {
        u64 index = item / blocks, vector = item % blocks * across + lane;
        Part part = part_of(index, len, parts);
        bool mine = group < down && vector < wide;
        A total[WIDTH];
        UNROLLED
        for (u32 k = 0; k < WIDTH; ++k) total[k] = Op::template identity<A>();
        if (mine) {
            const Vector<From, WIDTH> *from =
                reinterpret_cast<const Vector<From, WIDTH> *>(x + part.outer * len * inner) + vector;
            auto enter = [](From v) { return Op::enter(accumulator<From>::from(v)); };
            u64 i = part.begin + group;
            while (i < part.end) {
                A sum[WIDTH];
                UNROLLED
                for (u32 k = 0; k < WIDTH; ++k) sum[k] = Op::template identity<A>();
                u32 n = 0;
                for (; n < SPAN && i + 3 * down < part.end; n += 4, i += 4 * down) {
                    Vector<From, WIDTH> a = from[i * wide], b = from[(i + down) * wide],
                                        c = from[(i + 2 * down) * wide], d = from[(i + 3 * down) * wide];
                    UNROLLED
                    for (u32 k = 0; k < WIDTH; ++k) {
                        A four = Op::join(Op::join(enter(a.lane[k]), enter(b.lane[k])),
                                          Op::join(enter(c.lane[k]), enter(d.lane[k])));
                        sum[k] = Op::join(sum[k], four);
                    }
                }
                for (; n < SPAN && i < part.end; ++n, i += down) {
                    Vector<From, WIDTH> a = from[i * wide];
                    UNROLLED
                    for (u32 k = 0; k < WIDTH; ++k) sum[k] = Op::join(sum[k], enter(a.lane[k]));
                }
                UNROLLED
                for (u32 k = 0; k < WIDTH; ++k) total[k] = Op::join(total[k], sum[k]);
            }
        }
        UNROLLED
        for (u32 k = 0; k < WIDTH; ++k) {
            if (down > 1) {
                sync_threads(); // threads may still read the earlier values
                if (threadIdx.x < MOST) partial[threadIdx.x] = total[k];
                sync_threads();
                if (group == 0) {
                    for (u32 g = 1; g < down; ++g) total[k] = Op::join(total[k], partial[g * across + lane]);
                }
            }
            if (group == 0 && mine)
                out[index * inner + vector * WIDTH + k] = store<To>::from(Op::leave(total[k], count));
        }
    });
}

template <class Op, class From, class To>
DEVICE void any_columns(u64 outer, u64 len, u64 inner, u64 parts, u64 count, const From *x, To *out) {
    if constexpr (!ONE_THREAD) {
        if (inner % SIDE_BY_SIDE<From> == 0 && past_boundary(x) == 0)
            return wide_columns<Op>(outer, len, inner, parts, count, x, out);
    }
    columns<Op>(outer, len, inner, parts, count, x, out);
}

// out[row][part] = op over x[row][the part's share of len]. A block takes a row's part; if there
// are at least as many of them as the launch has warps, a warp does. Any grid works. Mean divides
// by `count`. Sum, Prod, Mean, Max, Min and MaxAbs are for numbers, Any and All for bools.
template <class Op, class T> __global__ void reduce_rows(u64 n, u64 len, u64 parts, u64 count, const T *x, T *out) {
    rows<Op>(n, len, parts, count, x, out);
}

// The same from one type to another: from f16 and bf16 to parts in f32, and from these back.
template <class Op, class From, class To>
__global__ void reduce_rows_between(u64 n, u64 len, u64 parts, u64 count, const From *x, To *out) {
    rows<Op>(n, len, parts, count, x, out);
}

// out[outer][part][inner] = op over x[outer][the part's share of len][inner]. One thread takes a
// part of a column, unless wide_columns applies.
template <class Op, class T>
__global__ void reduce_columns(u64 outer, u64 len, u64 inner, u64 parts, u64 count, const T *x, T *out) {
    any_columns<Op>(outer, len, inner, parts, count, x, out);
}

// The same from one type to another.
template <class Op, class From, class To>
__global__ void reduce_columns_between(u64 outer, u64 len, u64 inner, u64 parts, u64 count, const From *x, To *out) {
    any_columns<Op>(outer, len, inner, parts, count, x, out);
}

// The greatest or least element and the first index that has it. NaN counts as beyond every number.
struct ArgMax : Max {
    template <class A> static DEVICE bool better(A candidate, A best) {
        return (candidate > best) | (math::is_nan(candidate) & !math::is_nan(best));
    }
};
struct ArgMin : Min {
    template <class A> static DEVICE bool better(A candidate, A best) {
        return (candidate < best) | (math::is_nan(candidate) & !math::is_nan(best));
    }
};

// For each part of each row, as in reduce_rows: the extreme value, and its index in the whole row.
// Both outputs are [rows, parts]. 0 < len < 2^31, parts <= len.
template <class Op, class T>
__global__ void arg_rows(u64 rows, u64 len, u64 parts, const T *x, T *value_out, i32 *index_out) {
    using A = compute_t<T>;
    for_each_row(rows * parts, [&](u64 index) {
        Part part = part_of(index, len, parts);
        const T *row = x + part.outer * len + part.begin;
        u32 size = (u32)(part.end - part.begin);
        // Reads the row twice, the second time from cache: two simple loops are faster than one
        // that carries pairs.
        A best = block_reduce_range<A>(size, Op::template identity<A>(), [=](u64 i) { return load(row[i]); },
                                       [](A a, A b) { return Op::join(a, b); });
        bool nan = math::is_nan(best);
        u32 first = block_reduce_range<u32>(size, ~0u, [=](u64 i) {
            A v = load(row[i]);
            return v == best || (nan && math::is_nan(v)) ? (u32)i : ~0u;
        }, [](u32 a, u32 b) { return a < b ? a : b; });
        if (threadIdx.x == 0) {
            value_out[index] = row[first];
            index_out[index] = (i32)(part.begin + first);
        }
    });
}

// For each part of each column, as in reduce_columns. 0 < len < 2^31, parts <= len.
template <class Op, class T>
__global__ void arg_columns(u64 outer, u64 len, u64 inner, u64 parts, const T *x, T *value_out, i32 *index_out) {
    using A = compute_t<T>;
    for_each_column_group(outer * parts, inner, [=](u64 index, u64 column, u32 width) {
        Part part = part_of(index, len, parts);
        const T *from = x + part.outer * len * inner + column;
        A best[COLUMN_GROUP];
        u32 at[COLUMN_GROUP];
        for (u32 k = 0; k < width; ++k) best[k] = load(from[part.begin * inner + k]), at[k] = (u32)part.begin;
        for (u64 i = part.begin + 1; i < part.end; ++i) {
            const T *row = from + i * inner;
            for (u32 k = 0; k < width; ++k) {
                A v = load(row[k]);
                bool better = Op::better(v, best[k]);
                at[k] = select(better, (u32)i, at[k]);
                best[k] = select(better, v, best[k]);
            }
        }
        u64 to = index * inner + column;
        for (u32 k = 0; k < width; ++k) value_out[to + k] = store<T>::from(best[k]), index_out[to + k] = (i32)at[k];
    });
}
