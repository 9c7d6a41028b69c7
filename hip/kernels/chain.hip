// Element-wise chains: the host defers ops over the same number of elements, and one launch runs
// them in order. A thread computes the same elements in every op, so that no thread waits for
// another. Operands may be broadcast or strided.
#include "prelude.h"
#include "functors.h"
#include "rows.h"

// The functors of a step, in the order of `CHAIN` in `src/table.rs`.
#define CHAIN_OF_TWO(X) X(Add) X(Sub) X(Mul) X(Div) X(Max) X(Min) X(ReluBackward) X(SigmoidBackward) X(Fill)
#define CHAIN_OF_ONE(X) X(Neg) X(Abs) X(Sqrt) X(Recip) X(Exp) X(Log) X(Tanh) X(Relu) X(Sigmoid)

// A thread takes two groups of four elements through all steps.
constexpr u32 GROUP = 4, GROUPS = 2;

// Where a step's operand comes from: elements in memory at the indices of the result's, the result
// of the step before, the result of the step before that, or a scalar in the step itself. The last
// three are in memory too, where a map says: for each group one value, for each group four
// neighbours at a multiple of four elements, or elements that lie apart.
enum Source : u32 { IN_MEMORY, LAST, BEFORE_LAST, SCALAR, ONE, NEIGHBOURS, APART };

struct Fill { // the result is b
    template <class C> static DEVICE C apply(C, C b) { return b; }
};

// The same layout as `Step` in `hip/src/launch/steps.rs`: the addresses of two operands and of the
// result. If the second operand is a scalar, b has its bits; if the first is, a is unused. The
// result, and operands that are IN_MEMORY, begin at 16-byte boundaries; a result may overwrite such
// an operand.
struct Step {
    u64 a, b, out;
    u8 functor, source_a, source_b; // an operand in registers is in memory too, if a step reads it there
    u8 stored;                      // 0: nobody reads the result from memory
    u8 map_a, map_b, unused[2];
};

// The same layout as `Map` in `hip/src/launch/map.rs`: sizes and strides of an operand's axes, from
// the innermost outwards. The outermost axis needs no size. An index below 2^31 is divided by
// `size` as (2 * index * factor) >> (32 + shift).
constexpr u32 MAP_AXES = 4, MAPS = 4;
struct Map {
    u32 rank, size[MAP_AXES - 1], factor[MAP_AXES - 1], shift[MAP_AXES - 1];
    i32 stride[MAP_AXES];
};
// The distance of the operand's element for index i from its first element.
DEVICE i32 offset_of(const Map &map, u32 i) {
    i32 offset = 0;
    UNROLLED
    for (u32 axis = 0; axis + 1 < MAP_AXES; ++axis) {
        if (axis + 1 == map.rank) return offset + (i32)i * map.stride[axis];
        u32 quotient = (u32)((u64)(2 * i) * map.factor[axis] >> 32) >> map.shift[axis];
        offset += (i32)(i - quotient * map.size[axis]) * map.stride[axis];
        i = quotient;
    }
    return offset + (i32)i * map.stride[MAP_AXES - 1];
}

constexpr u32 STEPS = 16;

struct Chain {
    u32 n, count;
    Step step[STEPS];
    Map map[MAPS];
};

// The functor Op of one value as a functor of two. `with_functor` calls f with the functor of a
// step.
template <class Op> struct OfOne {
    template <class C> static DEVICE C apply(C a, C) { return Op::apply(a); }
};
template <class F> DEVICE void with_functor(u32 functor, F f) {
    enum : u32 {
#define NUMBER(Name) NUMBER_OF_##Name,
        CHAIN_OF_TWO(NUMBER) CHAIN_OF_ONE(NUMBER)
#undef NUMBER
    };
    switch (functor) {
#define CASE(Name)         \
    case NUMBER_OF_##Name: \
        f(Name());         \
        break;
        CHAIN_OF_TWO(CASE)
#undef CASE
#define CASE(Name)         \
    case NUMBER_OF_##Name: \
        f(OfOne<Name>());  \
        break;
        CHAIN_OF_ONE(CASE)
#undef CASE
    }
}

// One thread takes a stretch that fits its caches through all steps. Each step is a loop that
// vectorises.
template <class T> DEVICE void in_one_thread(const Chain &chain) {
    constexpr u32 STRETCH = 4096 / sizeof(T);
    using C = compute_t<T>;
    for_each_row((chain.n + STRETCH - 1) / STRETCH, [&](u64 stretch) {
        u32 first = (u32)stretch * STRETCH;
        u32 count = chain.n - first < STRETCH ? chain.n - first : STRETCH;
        T mapped[2][STRETCH];
        auto elements = [&](u64 tensor, u32 source, u32 map, T *room) {
            const T *from = reinterpret_cast<const T *>(tensor);
            if (source < ONE) return from + first;
            for (u32 i = 0; i < count; ++i) room[i] = from[offset_of(chain.map[map], first + i)];
            return (const T *)room;
        };
        for (u32 s = 0; s < chain.count; ++s) {
            const Step &step = chain.step[s];
            T *out = reinterpret_cast<T *>(step.out) + first;
            const T *a = step.source_a == SCALAR ? out : elements(step.a, step.source_a, step.map_a, mapped[0]);
            with_functor(step.functor, [&](auto op) {
                if (step.source_b == SCALAR) {
                    C y = (C)bit_cast<f32>((u32)step.b);
                    INDEPENDENT
                    for (u32 i = 0; i < count; ++i) out[i] = store<T>::from(op.apply((C)load(a[i]), y));
                } else {
                    const T *b = elements(step.b, step.source_b, step.map_b, mapped[1]);
                    INDEPENDENT
                    for (u32 i = 0; i < count; ++i) out[i] = store<T>::from(op.apply((C)load(a[i]), (C)load(b[i])));
                }
            });
        }
    });
}

// A thread's elements. Its group g begins at `first + g * step`, of n elements in all. Two groups
// of 16 bits are neighbours, because an access has 16 bytes. Groups of f32 lie a block apart, so
// that a warp's accesses are contiguous.
template <class T> constexpr bool JOINED = sizeof(T) * GROUP * GROUPS <= 16;
struct Place {
    u32 first, step, n;
};
template <class T> DEVICE Place place_in(u32 tile, u32 n) {
    u32 begin = tile * blockDim.x * GROUP * GROUPS;
    if constexpr (JOINED<T>) return {begin + threadIdx.x * GROUP * GROUPS, GROUP, n};
    else return {begin + threadIdx.x * GROUP, blockDim.x * GROUP, n};
}
template <class T> struct Values {
    Vector<T, GROUP> group[GROUPS];
};
template <class T> using Joined = Vector<T, GROUP * GROUPS>;

// Whether all of a thread's elements exist.
DEVICE bool is_whole(Place at) { return at.first + (GROUPS - 1) * at.step + GROUP <= at.n; }

// Reads a thread's elements of a tensor; those past its end keep their values.
template <class T> DEVICE void read_values(u64 tensor, Place at, Values<T> &values) {
    const T *from = reinterpret_cast<const T *>(tensor);
    if (is_whole(at)) {
        if constexpr (JOINED<T>) {
            Joined<T> both = *reinterpret_cast<const Joined<T> *>(from + at.first);
            __builtin_memcpy(&values, &both, sizeof(values));
        } else {
            UNROLLED
            for (u32 g = 0; g < GROUPS; ++g)
                values.group[g] = *reinterpret_cast<const Vector<T, GROUP> *>(from + at.first + g * at.step);
        }
        return;
    }
    UNROLLED
    for (u32 g = 0; g < GROUPS; ++g) {
        UNROLLED
        for (u32 j = 0; j < GROUP; ++j) {
            u32 i = at.first + g * at.step + j;
            if (i < at.n) values.group[g].lane[j] = from[i];
        }
    }
}
template <class T> DEVICE void write_values(u64 tensor, Place at, const Values<T> &values) {
    T *to = reinterpret_cast<T *>(tensor);
    if (is_whole(at)) {
        if constexpr (JOINED<T>) {
            Joined<T> both;
            __builtin_memcpy(&both, &values, sizeof(values));
            *reinterpret_cast<Joined<T> *>(to + at.first) = both;
        } else {
            UNROLLED
            for (u32 g = 0; g < GROUPS; ++g)
                *reinterpret_cast<Vector<T, GROUP> *>(to + at.first + g * at.step) = values.group[g];
        }
        return;
    }
    UNROLLED
    for (u32 g = 0; g < GROUPS; ++g) {
        UNROLLED
        for (u32 j = 0; j < GROUP; ++j) {
            u32 i = at.first + g * at.step + j;
            if (i < at.n) to[i] = values.group[g].lane[j];
        }
    }
}

// The same where a map says. With ONE and NEIGHBOURS, a group lies inside of one row of the map's
// innermost axis; so it exists as a whole or, with ONE, has the same value past the end.
template <class T> DEVICE void read_mapped(u64 tensor, u32 source, const Map &map, Place at, Values<T> &values) {
    const T *from = reinterpret_cast<const T *>(tensor);
    UNROLLED
    for (u32 g = 0; g < GROUPS; ++g) {
        u32 first = at.first + g * at.step;
        Vector<T, GROUP> &group = values.group[g];
        if (source == APART) {
            UNROLLED
            for (u32 j = 0; j < GROUP; ++j) {
                if (first + j < at.n) group.lane[j] = from[offset_of(map, first + j)];
            }
        } else if (first < at.n) {
            const T *own = from + offset_of(map, first);
            if (source == ONE) {
                T value = *own;
                UNROLLED
                for (u32 j = 0; j < GROUP; ++j) group.lane[j] = value;
            } else {
                group = *reinterpret_cast<const Vector<T, GROUP> *>(own);
            }
        }
    }
}
template <class T> DEVICE void read_operand(u64 tensor, u32 source, const Map &map, Place at, Values<T> &values) {
    if (source == IN_MEMORY) read_values(tensor, at, values);
    else if (source >= ONE) read_mapped(tensor, source, map, at, values);
}

template <class T> __global__ void chain(Chain given) {
    if constexpr (ONE_THREAD) {
        in_one_thread<T>(given);
    } else {
        using C = compute_t<T>;
        u32 n = given.n, count = given.count, taken = blockDim.x * GROUP * GROUPS;
        for_each_row((n + taken - 1) / taken, [&](u64 tile) {
            Place at = place_in<T>((u32)tile, n);
            if (at.first >= n) return;
            Values<T> last = {}, before_last = {};
            for (u32 s = 0; s < count; ++s) {
                const Chain &chain = reload_parameters(given);
                const Step &step = chain.step[s];
                Values<T> x = step.source_a == LAST ? last : before_last,
                          y = step.source_b == LAST ? last : before_last;
                read_operand(step.a, step.source_a, chain.map[step.map_a], at, x);
                read_operand(step.b, step.source_b, chain.map[step.map_b], at, y);
                bool scalar = step.source_b == SCALAR;
                C value = (C)bit_cast<f32>((u32)step.b);
                before_last = last;
                with_functor(step.functor, [&](auto op) {
                    UNROLLED
                    for (u32 g = 0; g < GROUPS; ++g) {
                        // One group after the other, which takes fewer registers.
                        if (g > 0) x.group[g] = recompute_from(x.group[g]);
                        UNROLLED
                        for (u32 j = 0; j < GROUP; ++j) {
                            C b = scalar ? value : (C)load(y.group[g].lane[j]);
                            last.group[g].lane[j] = store<T>::from(op.apply((C)load(x.group[g].lane[j]), b));
                        }
                    }
                });
                if (step.stored) write_values(step.out, at, last);
            }
        });
    }
}
