// Rows of f16 on the CPU device. The CPU has an instruction that converts eight f16 (F16C), but gcc
// before 14 does not use it in vectorised loops, and conversion by integer operations takes longer
// than most loops' own arithmetic. So loops first convert a piece of a row with the instruction and
// then compute in f32.
#pragma once
#include "prelude_types.h"

// Whether loops convert rows of T before they compute.
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP && __F16C__
template <class T> constexpr bool CONVERTED = is_same<T, f16>::value;
typedef i16 Half8 __attribute__((vector_size(16)));
typedef f32 Single8 __attribute__((vector_size(32)));
typedef f32 Single4 __attribute__((vector_size(16)));
DEVICE void widen8(const f16 *from, f32 *to) {
    Half8 halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    Single8 singles = __builtin_ia32_vcvtph2ps256(halves);
    __builtin_memcpy(to, &singles, sizeof(singles));
}
DEVICE void narrow8(const f32 *from, f16 *to) {
    Single8 singles;
    __builtin_memcpy(&singles, from, sizeof(singles));
    Half8 halves = __builtin_ia32_vcvtps2ph256(singles, 0); // to nearest even
    __builtin_memcpy(to, &halves, sizeof(halves));
}
// A single value, for the ends of rows. The instruction is faster than integer operations here too.
template <class T> DEVICE compute_t<T> load_one(T x) { return load(x); }
template <> DEVICE f32 load_one<f16>(f16 x) { return __builtin_ia32_vcvtph2ps(Half8{(i16)x.bits})[0]; }
template <class T> struct store_one : store<T> {};
template <> struct store_one<f16> {
    template <class C> static DEVICE f16 from(C x) { return f16{(u16)__builtin_ia32_vcvtps2ph(Single4{(f32)x}, 0)[0]}; }
};
#else
template <class T> constexpr bool CONVERTED = false;
DEVICE void widen8(const f16 *, f32 *) {}
DEVICE void narrow8(const f32 *, f16 *) {}
template <class T> DEVICE compute_t<T> load_one(T x) { return load(x); }
template <class T> using store_one = store<T>;
#endif

// The type that a loop reads from a row: the compute type if rows are converted first, else T.
template <class T, bool AHEAD = CONVERTED<T>> struct converted {
    using type = T;
};
template <class T> struct converted<T, true> {
    using type = compute_t<T>;
};

// Reads from[0..count] into compute types.
template <class T> DEVICE void read_row(u32 count, const T *from, compute_t<T> *to) {
    u32 k = 0;
    if constexpr (CONVERTED<T>) {
        for (; k + 8 <= count; k += 8) widen8(from + k, to + k);
    }
    for (; k < count; ++k) to[k] = load_one(from[k]);
}

// A row of at most LEN elements as a loop reads it: converted into `room` if rows are converted
// first, else in place.
template <u32 LEN, class T>
DEVICE const typename converted<T>::type *row_ahead(u32 count, const T *from,
                                                    compute_t<T> (&room)[CONVERTED<T> ? LEN : 1]) {
    if constexpr (CONVERTED<T>) {
        read_row(count, from, room);
        return room;
    } else {
        return from;
    }
}

// Eight consecutive elements of an operand; with ONE, eight copies of its only value. gcc puts the
// eight into a vector.
template <bool ONE, class T> struct Eights {
    const T *from;
    compute_t<T> lane[8];
    DEVICE Eights(const T *from) : from(from) {
        if constexpr (ONE) {
            compute_t<T> value = load_one(*from);
            for (u32 k = 0; k < 8; ++k) lane[k] = value;
        }
    }
    DEVICE void read(u64 first) {
        if constexpr (ONE) return;
        if constexpr (CONVERTED<T>) widen8(from + first, lane);
        else
            for (u32 k = 0; k < 8; ++k) lane[k] = load(from[first + k]);
    }
    DEVICE compute_t<T> at(u64 i) const { return load_one(from[ONE ? 0 : i]); }
};
template <class Out, class F, class... In> DEVICE void map_eights(u64 n, Out *out, F f, In... in) {
    u64 i = 0;
    for (; i + 8 <= n; i += 8) {
        (in.read(i), ...);
        compute_t<Out> result[8];
        for (u32 k = 0; k < 8; ++k) result[k] = f(in.lane[k]...);
        if constexpr (CONVERTED<Out>) narrow8(result, out + i);
        else
            for (u32 k = 0; k < 8; ++k) out[i + k] = store<Out>::from(result[k]);
    }
    for (; i < n; ++i) out[i] = store_one<Out>::from(f(in.at(i)...));
}

// An operand whose elements are `step` apart.
template <class T> struct Operand {
    const T *at;
    i32 step;
};
// out[i] = f(in[i]...) for i in 0..n, by one thread. `out` may be an input.
template <class Out, class F, class A> DEVICE void map_converted(u64 n, Out *out, F f, Operand<A> a) {
    if (a.step == 1) return map_eights(n, out, f, Eights<false, A>(a.at));
    for (i64 i = 0; i < (i64)n; ++i) out[i] = store_one<Out>::from(f(load_one(a.at[i * a.step])));
}
template <class Out, class F, class A, class B>
DEVICE void map_converted(u64 n, Out *out, F f, Operand<A> a, Operand<B> b) {
    if (a.step == 1 && b.step == 1) return map_eights(n, out, f, Eights<false, A>(a.at), Eights<false, B>(b.at));
    if (a.step == 1 && b.step == 0) return map_eights(n, out, f, Eights<false, A>(a.at), Eights<true, B>(b.at));
    if (a.step == 0 && b.step == 1) return map_eights(n, out, f, Eights<true, A>(a.at), Eights<false, B>(b.at));
    for (i64 i = 0; i < (i64)n; ++i)
        out[i] = store_one<Out>::from(f(load_one(a.at[i * a.step]), load_one(b.at[i * b.step])));
}
