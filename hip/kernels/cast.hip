// Conversion between element types.
#include "prelude.h"

// The number type `To` from a compute type: floats truncate and saturate, NaN becomes 0 (Rust's
// `as`); integers wrap.
template <class To, class From, bool TRUNCATES = is_float<From>::value && !is_float<To>::value> struct convert {
    static DEVICE compute_t<To> from(From x) { return (compute_t<To>)x; }
};
template <class To, class From> struct convert<To, From, true> {
    static DEVICE To from(From x) {
        constexpr u32 bits = sizeof(To) * 8 - is_signed<To>::value;
        constexpr To greatest = (To)(~0ull >> (64 - bits)), least = is_signed<To>::value ? (To)(~(u64)greatest) : (To)0;
        constexpr From end = (From)(1ull << (bits - 1)) * 2, begin = (From)least; // powers of two: exact
        // Only values in range are converted: the others' conversion would be undefined. Selects,
        // so that it vectorises.
        using Through = typename through<To, (sizeof(To) < sizeof(i32))>::type;
        To inside = (To)(Through)(x >= begin && x < end ? x : (From)0);
        To high = x >= end ? greatest : inside;
        return x < begin ? least : high;
    }
    // Small integers are converted through i32, which CPUs have instructions for.
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

// f64 to f16 or bf16 goes through f32 rounded to odd, so that the second rounding is the only one.
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

// out = (To)x: contiguous, both beginning at 16-byte boundaries. `out` may be `x` if the types have
// one size. A cast to bool8 is `x != 0`.
template <class From, class To> __global__ void cast_contiguous(u64 n, const From *x, To *out) {
    map_contiguous(n, out, [=](compute_t<From> v) { return convert<To, compute_t<From>>::from(v); }, x);
}

// out = x != 0 as a u32, 0 or 1: Burn's bool of four bytes. Contiguous, as above.
template <class From> __global__ void cast_bool(u64 n, const From *x, u32 *out) {
    map_contiguous(n, out, [=](compute_t<From> v) { return (u32)(v != (compute_t<From>)0); }, x);
}
