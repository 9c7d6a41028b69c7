// Rotates the heads of a token, for the kernels of `rotary.hip` and for attention that rotates its own
// queries.
//
// `team` neighbouring threads share a head; it is a power of two and at most a warp. FORM has the
// bits below.
#pragma once
#include "prelude.h"
#include "rows.h"

namespace rotation {

// Features 2 p and 2 p + 1 are a pair, instead of p and pairs + p.
constexpr i32 INTERLEAVED = 1;
// All features are turned. Rows consist of pieces of 16 bytes at multiples of 16 bytes, also within
// a head's halves, and a team has one piece of each half for each thread. Otherwise a thread takes
// one pair after the other.
constexpr i32 WHOLE = 2;

// The most pairs of a head (`MOST_PAIRS` of `ops/language/rotary.rs`).
constexpr u32 MOST_PAIRS = 256;

// The pairs that a thread takes at a time.
template <class T, i32 FORM> constexpr u32 TOGETHER = FORM & WHOLE ? 16 / sizeof(compute_t<T>) : 1;

// A sequence has `length` tokens. An item is one of the `parts` of a token's heads. tokens * parts < 2^32.
struct Sizes {
    u64 tokens, parts, team, length, heads, kv_heads, width, pairs;
};
// A token's position is step * (its number in the sequence), plus, if there are positions,
// positions[sequence * by_sequence + number * by_token]. `wide`: these are i64, else i32.
struct Places {
    i64 wide, by_sequence, by_token, step;
};

DEVICE i64 position_of(const Places &places, const void *positions, u32 sequence, u32 number) {
    i64 position = places.step * (i64)number;
    if (positions == nullptr) return position;
    i64 at = (i64)sequence * places.by_sequence + (i64)number * places.by_token;
    return position +
           (places.wide ? static_cast<const i64 *>(positions)[at] : (i64) static_cast<const i32 *>(positions)[at]);
}

// Cosine and sine. f32: a multiple of pi / 2 is subtracted in f64, which is off by less than 2^-33
// for angles up to 2^20. The rest, at most pi / 4, is rounded to f32. The Taylor series end with an
// error below 2^-28, so both results are within 2^-23.
DEVICE void turn(f64 angle, f64 &cosine, f64 &sine) { cosine = math::cos(angle), sine = math::sin(angle); }
DEVICE void turn(f32 angle, f32 &cosine, f32 &sine) {
    f64 quarters = math::round((f64)angle * 0.63661977236758134308);
    f32 r = (f32)((f64)angle - quarters * 1.57079632679489661923), z = r * r;
    f32 s = 2.7557319e-6f;
    s = s * z - 1.9841270e-4f;
    s = s * z + 8.3333333e-3f;
    s = s * z - 0.16666667f;
    s = s * z * r + r;
    f32 c = 2.4801587e-5f;
    c = c * z - 1.3888889e-3f;
    c = c * z + 4.1666667e-2f;
    c = c * z * z + (1.0f - 0.5f * z);
    u32 quadrant = (u32)(i64)quarters;
    cosine = quadrant & 1 ? s : c, sine = quadrant & 1 ? c : s;
    if ((quadrant + 1) & 2) cosine = -cosine;
    if (quadrant & 2) sine = -sine;
}

// Fills cosine and sine for a position, times `factor`. The angle is rounded to the compute type.
template <class C> DEVICE void turns(i64 position, u32 pairs, const f32 *frequency, C factor, C *cosine, C *sine) {
    sync_threads(); // the other threads may still read the previous ones
    for_each_in_block(pairs, [=](u64 p) {
        C c, s;
        turn((C)position * (C)frequency[p], c, s);
        cosine[p] = c * factor, sine[p] = s * factor;
    });
    sync_threads();
}

// The features of pair p.
struct Pair {
    u32 first, second;
};
template <i32 FORM> DEVICE Pair pair_of(u32 p, u32 pairs) {
    return FORM & INTERLEAVED ? Pair{2 * p, 2 * p + 1} : Pair{p, pairs + p};
}

// The N pairs from p on of a head.
template <i32 FORM, u32 N, class T, class C>
DEVICE void load_pairs(const T *head, u32 pairs, u32 p, C (&a)[N], C (&b)[N]) {
    u32 first = FORM & INTERLEAVED ? 2 * p : p, second = FORM & INTERLEAVED ? 2 * p + N : pairs + p;
    auto x = vector_at<N>(head, first), y = vector_at<N>(head, second);
    UNROLLED
    for (u32 j = 0; j < N; ++j) {
        if constexpr (FORM & INTERLEAVED) {
            a[j] = load(2 * j < N ? x.lane[2 * j % N] : y.lane[2 * j % N]);
            b[j] = load(2 * j + 1 < N ? x.lane[(2 * j + 1) % N] : y.lane[(2 * j + 1) % N]);
        } else {
            a[j] = load(x.lane[j]), b[j] = load(y.lane[j]);
        }
    }
}
template <i32 FORM, u32 N, class T, class C>
DEVICE void store_pairs(T *head, u32 pairs, u32 p, const C (&a)[N], const C (&b)[N]) {
    u32 first = FORM & INTERLEAVED ? 2 * p : p, second = FORM & INTERLEAVED ? 2 * p + N : pairs + p;
    Vector<T, N> x, y;
    UNROLLED
    for (u32 j = 0; j < N; ++j) {
        if constexpr (FORM & INTERLEAVED) {
            (2 * j < N ? x : y).lane[2 * j % N] = store<T>::from(a[j]);
            (2 * j + 1 < N ? x : y).lane[(2 * j + 1) % N] = store<T>::from(b[j]);
        } else {
            x.lane[j] = store<T>::from(a[j]), y.lane[j] = store<T>::from(b[j]);
        }
    }
    vector_at<N>(head, first) = x, vector_at<N>(head, second) = y;
}

// A product that is rounded before it is added to another. Else a compiler may fuse either product with
// the sum, differently in each kernel, and kernels would rotate to different bits.
DEVICE f32 rounded(f32 a, f32 b) {
#if COMPILER_NVIDIA
    return __fmul_rn(a, b);
#else
#if COMPILER_AMD
#pragma clang fp contract(off)
#endif
    f32 product = a * b;
    return product;
#endif
}
DEVICE f64 rounded(f64 a, f64 b) {
#if COMPILER_NVIDIA
    return __dmul_rn(a, b);
#else
#if COMPILER_AMD
#pragma clang fp contract(off)
#endif
    f64 product = a * b;
    return product;
#endif
}

// The sum over the threads of a team, returned to each. All threads of the block must call it.
template <class C> DEVICE C team_sum(C value, u32 team) {
    u32 lane = threadIdx.x % (u32)warpSize;
    ROLLED
    for (u32 distance = 1; distance < team; distance *= 2) value += shuffle(value, (i32)(lane ^ distance));
    return value;
}

// The heads or elements that a part of an item has: all * part / parts to all * (part + 1) / parts.
struct Slice {
    u32 begin, end;
};
DEVICE Slice slice_of(u32 all, u32 part, u32 parts) {
    return Slice{(u32)((u64)all * part / parts), (u32)((u64)all * (part + 1) / parts)};
}

// Calls f(head, active) for the heads of a slice, each for the threads of one team. All threads of
// the block make as many calls.
template <class F> DEVICE void for_each_head(Slice slice, u32 team, F f) {
    u32 at = threadIdx.x / team, count = blockDim.x / team;
    ROLLED
    for (u32 next = slice.begin; next < slice.end; next += count) f(next + at, next + at < slice.end);
}

template <class T, class P> struct Forward {
    Sizes sizes;
    Places places;
    const void *positions;
    const T *x;
    const P *query_norm, *key_norm; // both or neither
    const f32 *frequency;
    f64 factor, epsilon, shift;
    T *out; // may be x: values are then left alone
};

template <class T, class P>
DEVICE Forward<T, P> forward_of(Sizes sizes, Places places, const void *positions, const T *x, const P *query_norm,
                                const P *key_norm, const f32 *frequency, f64 factor, f64 epsilon, f64 shift, T *out) {
    return {sizes, places, positions, x, query_norm, key_norm, frequency, factor, epsilon, shift, out};
}

// `to(head)` is where a head is stored; null: nowhere.
template <i32 FORM, class T, class P, class To>
DEVICE void turn_heads(const Forward<T, P> &job, const T *from, To to, Slice slice, const compute_t<T> *cosine,
                       const compute_t<T> *sine) {
    using C = compute_t<T>;
    constexpr u32 N = TOGETHER<T, FORM>;
    u32 team = (u32)job.sizes.team, width = (u32)job.sizes.width, pairs = (u32)job.sizes.pairs,
        heads = (u32)job.sizes.heads, lane = threadIdx.x % team;
    const P *query_norm = job.query_norm, *key_norm = job.key_norm;
    C epsilon = (C)job.epsilon, shift = (C)job.shift;
    for_each_head(slice, team, [=](u32 index, bool active) {
        const T *head = from + (u64)index * width;
        T *out = active ? to(index) : nullptr;
        active = out != nullptr;
        const P *weight = select(index < heads, query_norm, key_norm);
        auto rotate = [=](u32 p, C(&a)[N], C(&b)[N], C scale) {
            if (query_norm != nullptr) {
                C u[N], v[N];
                load_pairs<FORM>(weight, pairs, p, u, v);
                UNROLLED
                for (u32 j = 0; j < N; ++j) a[j] *= scale * (u[j] + shift), b[j] *= scale * (v[j] + shift);
            }
            UNROLLED
            for (u32 j = 0; j < N; ++j) {
                C c = cosine[p + j], s = sine[p + j], turned = rounded(a[j], c) - rounded(b[j], s);
                b[j] = rounded(b[j], c) + rounded(a[j], s), a[j] = turned;
            }
            store_pairs<FORM>(out, pairs, p, a, b);
        };
        auto scale_of = [=](C squares) { return (C)1 / math::sqrt(team_sum(squares, team) / (C)width + epsilon); };
        C scale = (C)1, squares = (C)0;
        if constexpr (FORM & WHOLE) {
            C a[N] = {}, b[N] = {};
            active = active && lane * N < pairs;
            if (active) load_pairs<FORM>(head, pairs, lane * N, a, b);
            if (query_norm != nullptr) {
                UNROLLED
                for (u32 j = 0; j < N; ++j) squares += rounded(a[j], a[j]) + rounded(b[j], b[j]);
                scale = scale_of(squares);
            }
            if (active) rotate(lane * N, a, b, scale);
        } else {
            if (query_norm != nullptr) {
                for (u32 i = lane; active && i < width; i += team) {
                    C v = load(head[i]);
                    squares += rounded(v, v);
                }
                scale = scale_of(squares);
            }
            for (u32 p = lane; active && p < pairs; p += team) {
                C a[N], b[N];
                load_pairs<FORM>(head, pairs, p, a, b);
                rotate(p, a, b, scale);
            }
            for (u32 i = 2 * pairs + lane; active && i < width; i += team) {
                C v = load(head[i]);
                if (query_norm != nullptr) v *= scale * ((C)load(weight[i]) + shift);
                out[i] = store<T>::from(v);
            }
        }
    });
}

} // namespace rotation
