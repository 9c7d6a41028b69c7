// Contiguous rows read and written 16 bytes a thread and access, by the threads of one block. A row
// may begin anywhere: it is cut at 16-byte boundaries, and the pieces at its ends are taken element
// by element. For GPUs; the CPU's loops vectorise as they are.
#pragma once
#include "prelude.h"

// Elements in 16 bytes.
template <class T> constexpr u32 LANES = 16 / sizeof(T);

// Elements from the last 16-byte boundary to `row`.
template <class T> DEVICE u32 past_boundary(const T *row) { return (u32)((u64)row % 16 / sizeof(T)); }

// Whether 16-byte boundaries cut all these rows where they cut `row`. Rows of wider elements are
// cut in other places too.
template <class T, class... More> DEVICE bool cut_alike(const T *row, const More *...more) {
    return ((past_boundary(row) % LANES<More> == past_boundary(more)) && ... && true);
}

template <class T> DEVICE Vector<T, LANES<T>> piece_of(const T *row, i64 first) {
    return *reinterpret_cast<const Vector<T, LANES<T>> *>(row + first);
}

// WIDTH neighbours. WIDTH may be the number of narrower elements in 16 bytes: then these take more
// than 16.
template <class T, u32 WIDTH> struct alignas(sizeof(T) * WIDTH < 16 ? sizeof(T) * WIDTH : 16) Neighbours {
    T lane[WIDTH];
};
template <u32 WIDTH, class T> DEVICE const Neighbours<T, WIDTH> &lanes_of(const T *row, i64 first) {
    return *reinterpret_cast<const Neighbours<T, WIDTH> *>(row + first);
}

// The WIDTH elements from `first` on of a row that is aligned to as many. Where I has 32 bits the
// row has fewer than 2^32 bytes: an address is then one register beside the row's own, which all
// threads share.
template <u32 WIDTH, class I, class T> DEVICE const Vector<T, WIDTH> &vector_at(const T *row, I first) {
    I offset = recompute_from((I)(first * (I)sizeof(T)));
    return *reinterpret_cast<const Vector<T, WIDTH> *>(reinterpret_cast<const u8 *>(row) + offset);
}
template <u32 WIDTH, class I, class T> DEVICE Vector<T, WIDTH> &vector_at(T *row, I first) {
    I offset = recompute_from((I)(first * (I)sizeof(T)));
    return *reinterpret_cast<Vector<T, WIDTH> *>(reinterpret_cast<u8 *>(row) + offset);
}
// The threads that share a row: this one is `at` of `count`.
struct Team {
    u32 at, count;
};
DEVICE Team whole_block() { return Team{threadIdx.x, blockDim.x}; }

// f(i, row[i], more[i]...) for i in 0..len, shared among the team; the elements have one size.
// AHEAD: four accesses of 16 bytes of each row are on their way at a time, for kernels whose
// registers leave room.
template <bool AHEAD = false, class F, class T, class... More>
DEVICE void for_each_of_row(Team team, u64 len, F f, const T *row, const More *...more) {
    constexpr u32 WIDTH = LANES<T>;
    u64 head = past_boundary(row) ? WIDTH - past_boundary(row) : 0;
    if (head > len || !cut_alike(row, more...)) head = len; // element by element
    u64 tail = len - (len - head) % WIDTH;
    u64 step = (u64)team.count * WIDTH, i = head + (u64)team.at * WIDTH;
    // By value, so that all is loaded before any of it is used.
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
    // What lies before the first boundary and past the last.
    ROLLED
    for (u64 j = team.at; j < head + (len - tail); j += team.count) {
        u64 at = j < head ? j : tail + (j - head);
        f(at, row[at], more[at]...);
    }
}

// out[i] = f(i, in[i]...) for i in 0..len, as above; f takes compute types. `out` may be one of the
// inputs.
template <class T, class F, class... In> DEVICE void map_row(u64 len, T *out, F f, const In *...in) {
    constexpr u32 WIDTH = LANES<T>;
    u32 skip = past_boundary(out);
    bool together = cut_alike(out, in...);
    ROLLED
    for (u64 at = (u64)threadIdx.x * WIDTH; at < len + skip; at += (u64)blockDim.x * WIDTH) {
        i64 first = recompute_from((i64)at -
                                   (i64)skip); // one counter, from which each row's address comes, not one for each row
        if (together && first >= 0 && (u64)first + WIDTH <= len) {
            auto each = [&](Neighbours<In, WIDTH>... x) {
                Vector<T, WIDTH> y;
                compute_t<T> last = (compute_t<T>)0;
                UNROLLED
                for (u32 j = 0; j < WIDTH; ++j) {
                    if (j == 4) ((x = recompute_after(last, x)), ...);
                    last = f((u64)first + j, load(x.lane[j])...);
                    y.lane[j] = store<T>::from(last);
                }
                *reinterpret_cast<Vector<T, WIDTH> *>(out + first) = y;
            };
            each(lanes_of<WIDTH>(in, first)...);
        } else {
            ROLLED
            for (u32 j = 0; j < WIDTH; ++j) {
                u64 i = (u64)(first + (i64)j);
                if (i < len) out[i] = store<T>::from(f(i, load(in[i])...));
            }
        }
    }
}

// A row that the block's threads keep in registers, each 64 bytes of it.
template <class T> struct KeptRow {
    using C = compute_t<T>;
    static constexpr u32 WIDTH = LANES<T>, PIECES = 64 / (WIDTH * sizeof(C));

    C value[PIECES * WIDTH];
    u32 len, skip;

    static DEVICE bool fits(u64 len, const T *row) {
        return len + past_boundary(row) <= (u64)PIECES * WIDTH * blockDim.x;
    }

    // Reads the row; what lies past its ends is `none`.
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

    // f(value, inside) for each element that this thread keeps and, not inside, for what lies past
    // the row's ends.
    template <class F> DEVICE void for_each_kept(F f) {
        for_each_piece(
            [&](u32 p, i32 first) { for_each_lane([&](u32 j) { f(value[p * WIDTH + j], inside(first, j)); }); });
    }

    // out[i] = f(the row's element i, more[i]...). The other rows may begin anywhere, and their
    // elements are as wide as this one's or wider.
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
            if (p * blockDim.x * WIDTH >= len + skip) break; // for all threads alike
            f(p, (i32)((p * blockDim.x + threadIdx.x) * WIDTH) - (i32)skip);
        }
    }
    template <class F> static DEVICE void for_each_lane(F f) {
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) f(j);
    }
};
