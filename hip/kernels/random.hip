// Random numbers by Philox 4x32-10 (`philox.h`).
//
// Element i of a tensor takes its bits from Philox with counter (group, call) and key = seed. If 32
// bits suffice for an element, a group has four elements (group = i / 4, word i % 4); if it needs
// 64, a group has two (group = i / 2). So a value depends only on seed, call and index, never on
// the launch. All arithmetic is written out and rounded step by step (no contraction, no library
// function but sqrt), so every provider gives the same bits.
#include "philox.h"
#include "prelude.h"
#include "rounded.h"

// out[i] = f(words)[i % PER] over groups of PER elements; f fills an array of PER.
template <u32 PER, class T, class F> DEVICE void for_each_group(u64 n, Stream stream, T *out, F f) {
    u64 full = n / PER;
    for_each(full, [=](u64 group) {
        T y[PER];
        f(stream.at(group), y);
        for (u32 k = 0; k < PER; ++k) out[group * PER + k] = y[k];
    });
    if (n % PER != 0) {
        for_each(1, [=](u64) {
            T y[PER];
            f(stream.at(full), y);
            for (u32 k = 0; k < n % PER; ++k) out[full * PER + k] = y[k];
        });
    }
}

template <u64 SIZE> struct unsigned_of;
template <> struct unsigned_of<1> {
    using type = u8;
};
template <> struct unsigned_of<2> {
    using type = u16;
};
template <> struct unsigned_of<4> {
    using type = u32;
};
template <> struct unsigned_of<8> {
    using type = u64;
};

// The number of elements that one group of four words serves.
template <class T> struct per_group {
    static constexpr u32 value = sizeof(T) == 8 ? 2 : 4;
};

// The greatest value of T below x, for finite x.
template <class T, class Bits> DEVICE T next_below(T x, Bits sign) {
    Bits bits = bit_cast<Bits>(x);
    if ((Bits)(bits << 1) == 0) return bit_cast<T>((Bits)(sign + 1));
    return bit_cast<T>((Bits)(bits & sign ? bits + 1 : bits - 1));
}
DEVICE f32 below(f32 x) { return next_below<f32, u32>(x, 0x80000000u); }
DEVICE f64 below(f64 x) { return next_below<f64, u64>(x, 0x8000000000000000ull); }
DEVICE f16 below(f16 x) { return next_below<f16, u16>(x, 0x8000); }
DEVICE bf16 below(bf16 x) { return next_below<bf16, u16>(x, 0x8000); }

DEVICE f32 unit(u32 word) { return product((f32)(i32)(word >> 8), 1.0f / 16777216.0f); } // [0, 1), 24 bits
DEVICE f64 unit(u32 high, u32 low) {                                                     // [0, 1), 53 bits
    u64 bits = (u64)high << 21 | low >> 11;
    return product((f64)(i64)bits, 1.0 / 9007199254740992.0);
}

template <class T, bool FLOAT = is_float<T>::value> struct uniform;

// low + u (high - low), rounded to T. Rounding may reach `high`; such results become the value
// below it. Both bounds are finite in T. If their difference is not finite in C, everything is
// computed from halves and doubled at the end.
template <class T> struct uniform<T, true> {
    using C = compute_t<T>;
    C low, span, scale, last;
    DEVICE uniform(f64 from, f64 to) {
        f64 part = math::is_inf((C)(to - from)) ? 0.5 : 1.0;
        low = (C)(from * part);
        span = (C)(to * part - from * part);
        scale = (C)(1.0 / part);
        T bound = store<T>::from((C)to);
        last = load((f64)load(bound) < to ? bound : below(bound));
        C first = load(store<T>::from((C)from));
        if (!(last > first)) last = first;
    }
    DEVICE T stored(C u) const {
        C x = product(low + product(u, span), scale);
        // `last` is a T, so nothing below it rounds to more than it.
        return store<T>::from(x > last ? last : x);
    }
    DEVICE void fill(const Words &words, T *y) const {
        if constexpr (sizeof(T) == 8) {
            for (u32 k = 0; k < 2; ++k) y[k] = stored(unit(words.w[2 * k], words.w[2 * k + 1]));
        } else {
            for (u32 k = 0; k < 4; ++k) y[k] = stored(unit(words.w[k]));
        }
    }
};

// floor(low + u (high - low)) in f64, kept below `high` and within the type's range.
template <class T> struct uniform<T, false> {
    f64 low, span, first, last;
    DEVICE uniform(f64 from, f64 to) : low(from), span(to - from) {
        constexpr u32 bits = sizeof(T) * 8;
        f64 least = is_signed<T>::value ? -(f64)(1ull << (bits - 1)) : 0.0;
        f64 greatest = (f64)(1ull << (bits - 1)) * (is_signed<T>::value ? 1.0 : 2.0) - 1.0;
        if (bits == 64) greatest = below(is_signed<T>::value ? 9223372036854775808.0 : 18446744073709551616.0);
        first = math::floor(from);
        if (!(first >= least)) first = least;
        if (first > greatest) first = greatest;
        last = math::ceil(to) - 1.0;
        if (last > greatest) last = greatest;
        if (!(last > first)) last = first;
    }
    DEVICE T stored(f64 u) const {
        f64 x = low + product(u, span);
        x = x > last ? last : x;
        x = math::floor(x < first ? first : x);
        if constexpr (sizeof(T) < 4 || is_same<T, i32>::value) return (T)(i32)x;
        else if constexpr (is_same<T, u64>::value) return (T)x;
        else return (T)(i64)x;
    }
    DEVICE void fill(const Words &words, T *y) const {
        if constexpr (sizeof(T) == 8) {
            for (u32 k = 0; k < 2; ++k) y[k] = stored(unit(words.w[2 * k], words.w[2 * k + 1]));
        } else {
            for (u32 k = 0; k < 4; ++k) y[k] = stored(product((f64)words.w[k], 1.0 / 4294967296.0));
        }
    }
};

// out[i] is uniform in [low, high); for integers it is the floor of that. low == high gives low.
template <class T> __global__ void random_uniform(u64 n, u64 seed, u64 call, f64 low, f64 high, T *out) {
    uniform<T> distribution(low, high);
    for_each_group<per_group<T>::value>(n, stream_of(seed, call), out,
                                        [=](const Words &words, T *y) { distribution.fill(words, y); });
}

// out[i] = 1 with probability p, else 0, from 32 bits in every type.
template <class T> __global__ void random_bernoulli(u64 n, u64 seed, u64 call, f64 p, T *out) {
    using Bits = typename unsigned_of<sizeof(T)>::type;
    f64 scaled = p * 4294967296.0;
    u64 threshold = scaled >= 4294967296.0 ? 4294967296ull : scaled > 0.0 ? (u64)scaled : 0;
    u32 last = (u32)(threshold - 1); // the greatest word that gives 1
    Bits one = threshold == 0 ? (Bits)0 : bit_cast<Bits>(store<T>::from(1));
    for_each_group<4>(n, stream_of(seed, call), out, [=](const Words &words, T *y) {
        for (u32 k = 0; k < 4; ++k)
            // A mask, so that there is no branch.
            y[k] = bit_cast<T>((Bits)(one & (Bits)(0 - (u64)(words.w[k] <= last))));
    });
}

// Box and Muller: two normals from a uniform in (0, 1] and an angle pi x, x in [-1, 1).

// sin(pi x) and cos(pi x). r = x - q / 2 is exact, with |r| <= 1/4; the polynomials give the values
// at r, and `turn` rotates them by q quarter turns.
template <class C> DEVICE void turn(C s, C c, i32 q, C &sine, C &cosine) {
    C a = q & 1 ? c : s, b = q & 1 ? s : c;
    sine = q & 2 ? -a : a;
    cosine = (q + 1) & 2 ? -b : b;
}
// By Horner's scheme, rounding every step.
template <class C, u32 N> DEVICE C polynomial(const C (&coefficient)[N], C x) {
    C p = coefficient[0];
    UNROLLED
    for (u32 k = 1; k < N; ++k) p = product(p, x) + coefficient[k];
    return p;
}

DEVICE void sine_cosine_pi(f32 x, f32 &sine, f32 &cosine) {
    // Fitted for |r| <= 1/4; the relative errors are 4.6e-12 and 5.6e-11.
    constexpr f32 S[] = {0.08099587f, -0.5992014f, 2.5501626f, -5.1677127f, 3.1415927f};
    constexpr f32 K[] = {0.23126093f, -1.3350359f, 4.0587068f, -4.934802f, 1.0f};
    f32 shifted = product(x, 2.0f) + 12582912.0f; // adding 1.5 * 2^23 rounds to an integer
    i32 q = bit_cast<i32>(shifted);
    f32 r = x - product(shifted - 12582912.0f, 0.5f);
    f32 z = product(r, r);
    turn(product(polynomial(S, z), r), polynomial(K, z), q, sine, cosine);
}
DEVICE void sine_cosine_pi(f64 x, f64 &sine, f64 &cosine) {
    // Taylor series: for |r| <= 1/4 the first omitted term is below 4e-19.
    constexpr f64 S[] = {7.9520540014755126e-07, -2.1915353447830217e-05, 0.00046630280576761255,
                         -0.0073704309457143504, 0.082145886611128233,    -0.59926452932079211,
                         2.5501640398773455,     -5.1677127800499703,     3.1415926535897931};
    constexpr f64 K[] = {-1.3878952462213771e-07, 4.3030695870329473e-06,
                         -0.00010463810492484570, 0.0019295743094039231,
                         -0.025806891390014061,   0.23533063035889320,
                         -1.3352627688545895,     4.0587121264167685,
                         -4.9348022005446790,     1.0};
    f64 shifted = product(x, 2.0) + 6755399441055744.0; // adding 1.5 * 2^52 rounds to an integer
    i32 q = (i32)bit_cast<u64>(shifted);
    f64 r = x - product(shifted - 6755399441055744.0, 0.5);
    f64 z = product(r, r);
    turn(product(polynomial(S, z), r), polynomial(K, z), q, sine, cosine);
}

// log u for normal u in (0, 1], with the f32 polynomial of prelude_math.h, rounded step by step.
DEVICE f32 logarithm(f32 u) {
    constexpr f32 P[] = {0.070375815f, -0.11514561f, 0.11677014f,  -0.12420149f, 0.14249322f,
                         -0.16668057f, 0.20000714f,  -0.24999994f, 0.3333333f};
    i32 bits = bit_cast<i32>(u);
    i32 e = (bits - 0x3f3504f3) >> 23; // u = 2^e (1 + z), 1 + z in [sqrt(1/2), sqrt(2))
    f32 z = bit_cast<f32>(bits - (e << 23)) - 1.0f;
    f32 scale = (f32)e;
    f32 square = product(z, z);
    f32 y = product(product(polynomial(P, z), z), square) + product(scale, -2.12194440e-4f);
    y = y - product(0.5f, square);
    return (z + y) + product(scale, 0.693359375f);
}
DEVICE f64 logarithm(f64 u) {
    // log(1 + z) = 2 artanh(s), s = z / (2 + z), |s| < 0.172. The series has error 1e-19.
    constexpr f64 P[] = {2.0 / 23, 2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13,
                         2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3};
    i64 bits = bit_cast<i64>(u);
    i64 e = (bits - 0x3fe6a09e667f3bcdll) >> 52;
    f64 z = bit_cast<f64>(bits - (i64)((u64)e << 52)) - 1.0;
    f64 s = z / (2.0 + z);
    f64 square = product(s, s);
    f64 tail = product(product(polynomial(P, square), square), s);
    // 2 s = z - s z. z is exact, so only the small product is rounded.
    f64 y = (tail - product(s, z)) + product((f64)e, 1.90821492927058770002e-10);
    return (z + y) + product((f64)e, 6.93147180369123816490e-01);
}

DEVICE void box_muller(u32 a, u32 b, f32 &even, f32 &odd) {
    // (a + 1/2) / 2^32 rounded to f32: the normals reach 6.7 standard deviations.
    f32 u = product((f32)a, 1.0f / 4294967296.0f) + 1.0f / 8589934592.0f;
    f32 radius = math::sqrt(product(-2.0f, logarithm(u > 1.0f ? 1.0f : u)));
    f32 sine, cosine;
    sine_cosine_pi(product((f32)((i32)b >> 8), 1.0f / 8388608.0f), sine, cosine);
    even = product(radius, cosine);
    odd = product(radius, sine);
}
DEVICE void box_muller(const Words &words, f32 (&z)[4]) {
    box_muller(words.w[0], words.w[1], z[0], z[1]);
    box_muller(words.w[2], words.w[3], z[2], z[3]);
}
DEVICE void box_muller(const Words &words, f64 (&z)[2]) {
    f64 u = unit(words.w[0], words.w[1]) + 1.0 / 18014398509481984.0;
    f64 radius = math::sqrt(product(-2.0, logarithm(u > 1.0 ? 1.0 : u)));
    i64 angle = (i64)((u64)words.w[2] << 32 | words.w[3]) >> 11;
    f64 sine, cosine;
    sine_cosine_pi(product((f64)angle, 1.0 / 4503599627370496.0), sine, cosine);
    z[0] = product(radius, cosine);
    z[1] = product(radius, sine);
}

// out[i] is normal with this mean and standard deviation. Even elements have Box and Muller's
// cosine, odd ones the sine.
template <class T> __global__ void random_normal(u64 n, u64 seed, u64 call, f64 mean, f64 deviation, T *out) {
    using C = compute_t<T>;
    C centre = (C)mean, scale = (C)deviation;
    for_each_group<per_group<T>::value>(n, stream_of(seed, call), out, [=](const Words &words, T *y) {
        C z[per_group<T>::value];
        box_muller(words, z);
        for (u32 k = 0; k < per_group<T>::value; ++k) y[k] = store<T>::from(centre + product(scale, z[k]));
    });
}

// Moves a graph's stream (`stream_of`) past the `calls` ops that the graph drew for.
__global__ void philox_advance(u64 calls, u64 *state) {
    for_each(1, [=](u64) { state[1] += calls; });
}

// out[4 i .. 4 i + 4] = Philox of counter[4 i ..] with key[2 i ..], to test known-answer vectors.
__global__ void philox_words(u64 n, const u32 *counter, const u32 *key, u32 *out) {
    for_each(n, [=](u64 i) {
        Words y = philox(Words{{counter[4 * i], counter[4 * i + 1], counter[4 * i + 2], counter[4 * i + 3]}},
                         key[2 * i], key[2 * i + 1]);
        for (u32 k = 0; k < 4; ++k) out[4 * i + k] = y.w[k];
    });
}
