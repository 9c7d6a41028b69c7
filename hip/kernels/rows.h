// Contiguous rows, read and written by the threads of one block, 16 bytes at a time. A row may
// begin anywhere: it is cut at 16-byte boundaries, and the pieces at its ends are processed element
// by element. This is for GPUs; the CPU's loops vectorise without it.
#pragma once
#include "prelude.h"

// The number of elements in 16 bytes.
template <class T> constexpr u32 LANES = 16 / sizeof(T);

// The number of elements from the last 16-byte boundary to `row`.
template <class T> DEVICE u32 past_boundary(const T *row) { return (u32)((u64)row % 16 / sizeof(T)); }

// Whether the 16-byte boundaries that cut `row` also cut these rows at the same elements. Rows of
// wider elements have further boundaries in between.
template <class T, class... More> DEVICE bool cut_alike(const T *row, const More *...more) {
    return ((past_boundary(row) % LANES<More> == past_boundary(more)) && ... && true);
}

template <class T> DEVICE Vector<T, LANES<T>> piece_of(const T *row, i64 first) {
    return *reinterpret_cast<const Vector<T, LANES<T>> *>(row + first);
}

// WIDTH consecutive elements. WIDTH may be the number of narrower elements in 16 bytes; these
// elements then take more than 16 bytes.
template <class T, u32 WIDTH> struct alignas(sizeof(T) * WIDTH < 16 ? sizeof(T) * WIDTH : 16) Neighbours {
    T lane[WIDTH];
};
template <u32 WIDTH, class T> DEVICE const Neighbours<T, WIDTH> &lanes_of(const T *row, i64 first) {
    return *reinterpret_cast<const Neighbours<T, WIDTH> *>(row + first);
}

// Stores N neighbours, 16 bytes. NVIDIA's compiler would divide a store of halves into stores of each,
// if another path stores single ones.
template <class T, u32 N> DEVICE void write_piece(const Vector<T, N> &from, T *to) {
#if COMPILER_NVIDIA
    if constexpr (sizeof(T) == 2) {
        u32 words[4];
        UNROLLED
        for (u32 w = 0; w < 4; ++w) words[w] = (u32)from.lane[2 * w].bits | (u32)from.lane[2 * w + 1].bits << 16;
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
        return;
    }
#endif
    *reinterpret_cast<Vector<T, N> *>(to) = from;
}

// The WIDTH elements from `first` on. The row is aligned to WIDTH elements. If I has 32 bits, the
// row must have fewer than 2^32 bytes: an address then takes one register besides the row's own
// address, which all threads share.
template <u32 WIDTH, class I, class T> DEVICE const Vector<T, WIDTH> &vector_at(const T *row, I first) {
    I offset = recompute_from((I)(first * (I)sizeof(T)));
    return *reinterpret_cast<const Vector<T, WIDTH> *>(reinterpret_cast<const u8 *>(row) + offset);
}
template <u32 WIDTH, class I, class T> DEVICE Vector<T, WIDTH> &vector_at(T *row, I first) {
    I offset = recompute_from((I)(first * (I)sizeof(T)));
    return *reinterpret_cast<Vector<T, WIDTH> *>(reinterpret_cast<u8 *>(row) + offset);
}
// The threads that share a row: this thread is number `at` of `count`.
struct Team {
    u32 at, count;
};
DEVICE Team whole_block() { return Team{threadIdx.x, blockDim.x}; }

// Calls f(i, row[i], more[i]...) for i in 0..len, shared among the team. All elements have the same
// size. With AHEAD, four accesses of 16 bytes of each row are in flight at a time; this is for
// kernels that have registers left.
template <bool AHEAD = false, class F, class T, class... More>
DEVICE void for_each_of_row(Team team, u64 len, F f, const T *row, const More *...more) {
    constexpr u32 WIDTH = LANES<T>;
    u64 head = past_boundary(row) ? WIDTH - past_boundary(row) : 0;
    if (head > len || !cut_alike(row, more...)) head = len; // process the row element by element
    u64 tail = len - (len - head) % WIDTH;
    u64 step = (u64)team.count * WIDTH, i = head + (u64)team.at * WIDTH;
    // By value, so that everything is loaded before anything is used.
    auto one = [&](u64 at, Vector<T, WIDTH> x, Vector<More, WIDTH>... y) {
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) f(at + j, x.lane[j], y.lane[j]...);
    };
    if constexpr (AHEAD) {
        auto four = [&](Vector<T, WIDTH> a, Vector<More, WIDTH>... as, Vector<T, WIDTH> b, Vector<More, WIDTH>... bs,
                        Vector<T, WIDTH> c, Vector<More, WIDTH>... cs, Vector<T, WIDTH> d, Vector<More, WIDTH>... ds) {
            one(i, a, as...);
            one(i + step, b, bs...);
            one(i + 2 * step, c, cs...);
            one(i + 3 * step, d, ds...);
        };
        for (; i + 3 * step < tail; i += 4 * step) {
            i64 a = (i64)i, b = (i64)(i + step), c = (i64)(i + 2 * step), d = (i64)(i + 3 * step);
            four(piece_of(row, a), piece_of(more, a)..., piece_of(row, b), piece_of(more, b)..., piece_of(row, c),
                 piece_of(more, c)..., piece_of(row, d), piece_of(more, d)...);
        }
    }
    ROLLED
    for (; i < tail; i += step) one(i, piece_of(row, (i64)i), piece_of(more, (i64)i)...);
    // The elements before the first boundary and after the last.
    ROLLED
    for (u64 j = team.at; j < head + (len - tail); j += team.count) {
        u64 at = j < head ? j : tail + (j - head);
        f(at, row[at], more[at]...);
    }
}

// out[i] = f(i, in[i]...) for i in 0..len, cut as above. The arguments of f have compute types.
// `out` may be one of the inputs. TWO: a thread has two accesses of 16 bytes of each row in flight.
template <bool TWO = false, class T, class F, class... In> DEVICE void map_row(u64 len, T *out, F f, const In *...in) {
    constexpr u32 WIDTH = LANES<T>;
    u32 skip = past_boundary(out);
    bool together = cut_alike(out, in...);
    auto piece = [=](i64 first, Neighbours<In, WIDTH>... x) {
        Vector<T, WIDTH> y;
        compute_t<T> last = (compute_t<T>)0;
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            if (j == 4) ((x = recompute_after(last, x)), ...);
            last = f((u64)first + j, load(x.lane[j])...);
            y.lane[j] = store<T>::from(last);
        }
        write_piece(y, out + first);
    };
    auto by_element = [=](i64 first) {
        ROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            u64 i = (u64)(first + (i64)j);
            if (i < len) out[i] = store<T>::from(f(i, load(in[i])...));
        }
    };
    u64 at = (u64)threadIdx.x * WIDTH;
    if constexpr (TWO) {
        u64 step = (u64)blockDim.x * WIDTH;
        // The piece before the first boundary, so that its thread takes two at a time as the others do.
        if (together && at < skip) {
            by_element((i64)at - (i64)skip);
            at += step;
        }
        ROLLED
        for (; together && at + step + WIDTH <= len + skip; at += 2 * step) {
            i64 first = (i64)at - (i64)skip, second = first + (i64)step;
            // By value, so that both are loaded before one is stored.
            auto both = [=](Neighbours<In, WIDTH>... x, Neighbours<In, WIDTH>... y) {
                piece(first, x...);
                piece(second, y...);
            };
            both(lanes_of<WIDTH>(in, first)..., lanes_of<WIDTH>(in, second)...);
        }
    }
    ROLLED
    for (; at < len + skip; at += (u64)blockDim.x * WIDTH) {
        i64 first = recompute_from((i64)at -
                                   (i64)skip); // one counter for all rows: each row's address is computed from this one
        if (together && first >= 0 && (u64)first + WIDTH <= len) piece(first, lanes_of<WIDTH>(in, first)...);
        else by_element(first);
    }
}

// A row that the block's threads keep in registers. Each thread keeps at most 64 bytes.
template <class T> struct KeptRow {
    using C = compute_t<T>;
    static constexpr u32 WIDTH = LANES<T>, PIECES = 64 / (WIDTH * sizeof(C));

    C value[PIECES * WIDTH];
    u32 len, skip;

    static DEVICE bool fits(u64 len, const T *row) {
        return len + past_boundary(row) <= (u64)PIECES * WIDTH * blockDim.x;
    }

    // Reads f(element) for each element of the row. Places past the row's ends become `none`.
    template <class F> DEVICE void read(u64 length, const T *row, C none, F f) {
        len = (u32)length;
        skip = past_boundary(row);
        for_each_piece([&](u32 p, i32 first) {
            if (whole(first)) {
                Vector<T, WIDTH> x = piece_of(row, first);
                for_each_lane([&](u32 j) { value[p * WIDTH + j] = f((C)load(x.lane[j])); });
            } else {
                for_each_lane(
                    [&](u32 j) { value[p * WIDTH + j] = inside(first, j) ? f((C)load(row[first + (i32)j])) : none; });
            }
        });
    }

    // Calls f(value, inside) for each place that this thread keeps; `inside` is false past the
    // row's ends.
    template <class F> DEVICE void for_each_kept(F f) {
        for_each_piece(
            [&](u32 p, i32 first) { for_each_lane([&](u32 j) { f(value[p * WIDTH + j], inside(first, j)); }); });
    }

    // out[i] = f(i, element i of the row, more[i]...). The other rows may begin anywhere. Their
    // elements are at least as wide as this row's.
    template <class F, class... More> DEVICE void write(T *out, F f, const More *...more) {
        bool together = past_boundary(out) == skip && ((past_boundary(more) == skip % LANES<More>) && ... && true);
        for_each_piece([&](u32 p, i32 first) {
            if (together && whole(first)) {
                auto each = [&](Neighbours<More, WIDTH>... m) {
                    Vector<T, WIDTH> y;
                    C last = (C)0;
                    for_each_lane([&](u32 j) {
                        if (j == 4) ((m = recompute_after(last, m)), ...);
                        last = f((u64)first + j, value[p * WIDTH + j], (C)load(m.lane[j])...);
                        y.lane[j] = store<T>::from(last);
                    });
                    *reinterpret_cast<Vector<T, WIDTH> *>(out + first) = y;
                };
                each(lanes_of<WIDTH>(more, first)...);
            } else {
                for_each_lane([&](u32 j) {
                    i32 i = first + (i32)j;
                    if (inside(first, j)) out[i] = store<T>::from(f((u64)i, value[p * WIDTH + j], (C)load(more[i])...));
                });
            }
        });
    }

  private:
    DEVICE bool whole(i32 first) const { return first >= 0 && (u32)first + WIDTH <= len; }
    DEVICE bool inside(i32 first, u32 j) const { return (u32)(first + (i32)j) < len; }

    template <class F> DEVICE void for_each_piece(F f) {
        UNROLLED
        for (u32 p = 0; p < PIECES; ++p) {
            if (p * blockDim.x * WIDTH >= len + skip) break; // the same for all threads
            f(p, (i32)((p * blockDim.x + threadIdx.x) * WIDTH) - (i32)skip);
        }
    }
    template <class F> static DEVICE void for_each_lane(F f) {
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) f(j);
    }
};
