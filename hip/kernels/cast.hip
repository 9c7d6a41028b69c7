// Conversion between element types.
#include "prelude.h"

// Converts a compute type to the number type `To`: floats are truncated and saturate, NaN becomes 0
// (as Rust's `as` does); integers wrap.
template <class To, class From, bool TRUNCATES = is_float<From>::value && !is_float<To>::value> struct convert {
    static DEVICE compute_t<To> from(From x) { return (compute_t<To>)x; }
};
template <class To, class From> struct convert<To, From, true> {
    static DEVICE To from(From x) {
        constexpr u32 bits = sizeof(To) * 8 - is_signed<To>::value;
        constexpr To greatest = (To)(~0ull >> (64 - bits)), least = is_signed<To>::value ? (To)(~(u64)greatest) : (To)0;
        // Powers of two, so exact.
        constexpr From end = (From)(1ull << (bits - 1)) * 2, begin = (From)least;
        // Only values in range are converted, because converting others is undefined. Selects
        // instead of branches, so that the loop vectorises.
        using Through = typename through<To, (sizeof(To) < sizeof(i32))>::type;
        To inside = (To)(Through)(x >= begin && x < end ? x : (From)0);
        To high = x >= end ? greatest : inside;
        return x < begin ? least : high;
    }
    // Small integers are converted through i32, for which CPUs have instructions.
    template <class T, bool SMALL> struct through {
        using type = T;
    };
    template <class T> struct through<T, true> {
        using type = i32;
    };
};
template <class From> struct convert<bool8, From, true> {
    static DEVICE bool from(From x) { return x != (From)0; }
};
template <class From> struct convert<bool8, From, false> {
    static DEVICE bool from(From x) { return x != (From)0; }
};

// f64 is converted to f16 or bf16 through f32. The first step rounds to odd, so that the result is
// as if rounded once.
DEVICE f32 round_to_odd(f64 x) {
    f32 nearest = (f32)x;
    u32 bits = bit_cast<u32>(nearest);
    f64 back = (f64)nearest;
    bool above = math::abs(back) > math::abs(x);
    u32 odd = (above ? bits - 1 : bits) | 1u;
    return back == x || math::is_nan(x) ? nearest : bit_cast<f32>(odd);
}
template <> struct convert<f16, f64, false> {
    static DEVICE f32 from(f64 x) { return round_to_odd(x); }
};
template <> struct convert<bf16, f64, false> {
    static DEVICE f32 from(f64 x) { return round_to_odd(x); }
};

// out = (To)x: contiguous, both begin at 16-byte boundaries. `out` may be `x` if both types have
// the same size. A cast to bool8 is `x != 0`.
template <class From, class To> __global__ void cast_contiguous(u64 n, const From *x, To *out) {
    map_contiguous(n, out, [=](compute_t<From> v) { return convert<To, compute_t<From>>::from(v); }, x);
}

// out = x != 0 as a u32 of 0 or 1, which is Burn's bool of four bytes. Contiguous, as above.
template <class From> __global__ void cast_bool(u64 n, const From *x, u32 *out) {
    map_contiguous(n, out, [=](compute_t<From> v) { return (u32)(v != (compute_t<From>)0); }, x);
}
