// The steps of element-wise chains, and how a thread takes its elements through them.
#pragma once
#include "prelude.h"
#include "approximate.h"
#include "functors.h"
#include "rounded.h"
#include "rows.h"
#include "widen.h"

// The functors of a step, in the order of `CHAIN` in `src/table.rs`.
#define CHAIN_OF_TWO(X) X(Add) X(Sub) X(Mul) X(Div) X(Max) X(Min) X(ReluBackward) X(SigmoidBackward) X(Fill)
#define CHAIN_OF_ONE(X) X(Neg) X(Abs) X(Sqrt) X(Recip) X(Exp) X(Log) X(Tanh) X(Relu) X(Sigmoid) X(Cast)

// A thread takes two groups of four elements through all steps.
constexpr u32 GROUP = 4, GROUPS = 2;

// Where a step's operand comes from. IN_MEMORY: elements at the result's indices. LAST,
// BEFORE_LAST: the result of the step before, or of the one before that. SCALAR: a value in the
// step itself. The others are in memory where a map says. ONE: one value for each group.
// NEIGHBOURS: four neighbours for each group, aligned to four elements. APART: elements that lie
// apart.
enum Source : u32 { IN_MEMORY, LAST, BEFORE_LAST, SCALAR, ONE, NEIGHBOURS, APART };

struct Fill { // the result is b
    template <class C> static DEVICE C apply(C, C b) { return b; }
};
struct Cast { // converts between types
    template <class C> static DEVICE C apply(C x) { return x; }
};

// The types of a mixed list's tensors. `with_type` calls f with a value of a type.
enum Type : u32 { AS_F32, AS_F16, AS_BF16 };
template <class F> DEVICE void with_type(u32 type, F f) {
    if (type == AS_F32) f(f32());
    else if (type == AS_F16) f(f16());
    else f(bf16());
}

// The same layout as `Step` in `hip/src/launch/steps.rs`: the addresses of two operands and of the
// result. If the second operand is a scalar, b has its bits; if the first is, a is unused. The
// result, and operands that are IN_MEMORY, begin at 16-byte boundaries; a result may overwrite such
// an operand.
struct Step {
    u64 a, b, out;
    u8 functor, source_a, source_b; // an operand in registers is in memory too, if a step reads it there
    u8 stored;                      // 0: nobody reads the result from memory
    u8 map_a, map_b;
    u8 from, to; // the operands' Type and the result's; only chain_mixed reads them
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

// What a list computes. INTERPRETED: any steps. The other two are compiled as a whole:
// - NORM: a norm on known statistics, so Sub, Div, Mul and Add of values with one map, ONE or
//   NEIGHBOURS;
// - SHIFT: only this Add, for instance of a bias.
// In both, an Add of elements IN_MEMORY may follow, and then a Relu. The first operand of the first
// step is IN_MEMORY, that of the others is LAST. The last result is stored, and no other.
enum Program : u16 { INTERPRETED, NORM, SHIFT };
constexpr u32 NORM_STEPS = 4;

struct Chain {
    u32 n;
    u16 count, program;
    Step step[STEPS];
    Map map[MAPS];
};

DEVICE bool needs_before_last(const Step &step) { return step.source_a == BEFORE_LAST || step.source_b == BEFORE_LAST; }

// Makes the functor Op of one value a functor of two. `with_functor` calls f with the functor of a
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

// A thread's elements. Group g begins at `first + g * step`; elements from n on don't exist. If
// JOINED, the two groups are neighbours, and one access reads or writes both.
struct Place {
    u32 first, step, n;
};
template <class T> struct Values {
    Vector<T, GROUP> group[GROUPS];
};
template <class T> using Both = Vector<T, GROUP * GROUPS>;

// Whether all of a thread's elements exist.
DEVICE bool is_whole(Place at) { return at.first + (GROUPS - 1) * at.step + GROUP <= at.n; }

// Reads a thread's elements of a tensor; those that don't exist keep their values.
template <bool JOINED, class M> DEVICE void read_values(u64 tensor, Place at, Values<M> &values) {
    const M *from = reinterpret_cast<const M *>(tensor);
    if (is_whole(at)) {
        if constexpr (JOINED) {
            Both<M> both = *reinterpret_cast<const Both<M> *>(from + at.first);
            __builtin_memcpy(&values, &both, sizeof(values));
        } else {
            UNROLLED
            for (u32 g = 0; g < GROUPS; ++g)
                values.group[g] = *reinterpret_cast<const Vector<M, GROUP> *>(from + at.first + g * at.step);
        }
        return;
    }
    UNROLLED
    for (u32 g = 0; g < GROUPS; ++g) {
        u32 first = at.first + g * at.step;
        if (first + GROUP <= at.n) {
            values.group[g] = *reinterpret_cast<const Vector<M, GROUP> *>(from + first);
        } else {
            UNROLLED
            for (u32 j = 0; j < GROUP; ++j) {
                if (first + j < at.n) values.group[g].lane[j] = from[first + j];
            }
        }
    }
}
template <bool JOINED, class M> DEVICE void write_values(u64 tensor, Place at, const Values<M> &values) {
    M *to = reinterpret_cast<M *>(tensor);
    if (is_whole(at)) {
        if constexpr (JOINED) {
            Both<M> both;
            __builtin_memcpy(&both, &values, sizeof(values));
            *reinterpret_cast<Both<M> *>(to + at.first) = both;
        } else {
            UNROLLED
            for (u32 g = 0; g < GROUPS; ++g)
                *reinterpret_cast<Vector<M, GROUP> *>(to + at.first + g * at.step) = values.group[g];
        }
        return;
    }
    UNROLLED
    for (u32 g = 0; g < GROUPS; ++g) {
        u32 first = at.first + g * at.step;
        if (first + GROUP <= at.n) {
            *reinterpret_cast<Vector<M, GROUP> *>(to + first) = values.group[g];
        } else {
            UNROLLED
            for (u32 j = 0; j < GROUP; ++j) {
                if (first + j < at.n) to[first + j] = values.group[g].lane[j];
            }
        }
    }
}

// The offsets of the groups of a thread in an operand with map number `map`. A norm's steps read the
// mean, the deviation, the weight and the bias of the same channels, so the next step often needs the
// same.
struct GroupOffsets {
    u32 map; // MAPS: none yet
    i32 group[GROUPS];

    DEVICE void find(const Chain &chain, u32 number, Place at) {
#if !COMPILER_AMD // with AMD's compiler the kept offsets would take too many registers
        if (map == number) return;
        map = number;
#endif
        UNROLLED
        for (u32 g = 0; g < GROUPS; ++g) group[g] = offset_of(chain.map[number], at.first + g * at.step);
    }
};

// Reads a thread's elements where map `number` says. With ONE and NEIGHBOURS, a group that begins at a
// multiple of GROUP lies inside one row of the map's innermost axis. So all of its elements exist,
// or, with ONE, those past the end have the same value.
template <class M>
DEVICE void read_mapped(u64 tensor, u32 source, const Chain &chain, u32 number, Place at, GroupOffsets &offsets,
                        Values<M> &values) {
    const M *from = reinterpret_cast<const M *>(tensor);
    bool whole = source != APART && at.first % GROUP == 0 && at.step % GROUP == 0;
    if (whole) offsets.find(chain, number, at);
    UNROLLED
    for (u32 g = 0; g < GROUPS; ++g) {
        u32 first = at.first + g * at.step;
        Vector<M, GROUP> &group = values.group[g];
        if (!whole) {
            UNROLLED
            for (u32 j = 0; j < GROUP; ++j) {
                u32 i = recompute_from(first + j); // one offset after the other, for fewer registers
                if (i < at.n) group.lane[j] = from[offset_of(chain.map[number], i)];
            }
        } else if (first < at.n) {
            const M *own = from + offsets.group[g];
            if (source == ONE) {
                M value = *own;
                UNROLLED
                for (u32 j = 0; j < GROUP; ++j) group.lane[j] = value;
            } else {
                group = *reinterpret_cast<const Vector<M, GROUP> *>(own);
            }
        }
    }
}

// Stores f(g, j) in the type To, for each element j of each group g.
template <class To, class F> DEVICE void convert_values(Values<To> &to, F f) {
    UNROLLED
    for (u32 g = 0; g < GROUPS; ++g) {
        UNROLLED
        for (u32 j = 0; j < GROUP; ++j) to.group[g].lane[j] = store<To>::from(f(g, j));
    }
}

// Reads an operand of a step whose tensors are of type M. An operand in registers keeps its values.
template <bool JOINED, class T, class M>
DEVICE void read_operand(u64 tensor, u32 source, const Chain &chain, u32 map, Place at, GroupOffsets &offsets,
                         Values<T> &values) {
    if (source != IN_MEMORY && source < ONE) return;
    Values<M> read = {};
    if (source == IN_MEMORY) read_values<JOINED>(tensor, at, read);
    else read_mapped(tensor, source, chain, map, at, offsets, read);
    if constexpr (is_same<T, M>::value) values = read;
    else convert_values(values, [&](u32 g, u32 j) { return load(read.group[g].lane[j]); });
}

// Takes a thread's elements through the `count` steps of the list that `reload` returns, and returns
// the results of the last step. T is the type in which a result stays in registers. If MIXED, it is
// f32, and a result is rounded to the step's type.
//
// All lanes take the same branches. A step overwrites `last`, which mostly is its first operand, so
// that no register is copied.
template <class T, bool MIXED, bool JOINED, class Reload>
DEVICE Values<T> evaluate(u32 count, Place at, Reload reload) {
    using C = compute_t<T>;
    Values<T> last = {}, before_last = {};
    GroupOffsets offsets = {MAPS, {}};
    for (u32 s = 0; s < count; ++s) {
        const Chain &chain = reload();
        const Step &step = chain.step[s];
        Values<T> y = {};
        if (step.source_b == LAST) y = last;
        else if (step.source_b == BEFORE_LAST) y = before_last;
        if (step.source_a == BEFORE_LAST) {
            Values<T> x = before_last;
            before_last = last;
            last = x;
        } else if (s + 1 < count && needs_before_last(chain.step[s + 1])) {
            before_last = last;
        }
        auto read = [&](auto none) {
            using M = decltype(none);
            read_operand<JOINED, T, M>(step.a, step.source_a, chain, step.map_a, at, offsets, last);
            read_operand<JOINED, T, M>(step.b, step.source_b, chain, step.map_b, at, offsets, y);
        };
        if constexpr (MIXED) with_type(step.from, read);
        else read(T());
        bool scalar = step.source_b == SCALAR;
        C value = (C)bit_cast<f32>((u32)step.b);
        with_functor(step.functor, [&](auto op) {
            // A copy keeps the bits of a NaN, which conversions do not.
            if constexpr (!MIXED && is_same<decltype(op), OfOne<Cast>>::value) return;
            // Two elements after the two before, or one after the other in f16, where conversions come
            // on top: more logarithms at once do not fit the registers.
            constexpr u32 AT_ONCE = is_same<T, f16>::value ? 1 : 2;
            C done = (C)0;
            UNROLLED
            for (u32 g = 0; g < GROUPS; ++g) {
                Vector<T, GROUP> &group = last.group[g];
                UNROLLED
                for (u32 j = 0; j < GROUP; ++j) {
                    if (j % AT_ONCE == 0 && g + j > 0) group = recompute_after(done, group);
                    done = op.apply((C)load(group.lane[j]), scalar ? value : (C)load(y.group[g].lane[j]));
                    group.lane[j] = store<T>::from(done);
                }
            }
        });
        if constexpr (MIXED) {
            with_type(step.to, [&](auto none) {
                using M = decltype(none);
                Values<M> stored;
                convert_values(stored, [&](u32 g, u32 j) { return last.group[g].lane[j]; });
                convert_values(last, [&](u32 g, u32 j) { return load(stored.group[g].lane[j]); });
                if (step.stored) write_values<JOINED>(step.out, at, stored);
            });
        } else if (step.stored) {
            write_values<JOINED>(step.out, at, last);
        }
    }
    return last;
}

// Divides a by b. In bf16 it multiplies by the reciprocals if all b and 1 / b are normal numbers.
// Rounded to bf16, the results are the same. bf16 numbers have 8 binary digits. The quotient of two
// of them differs from each midpoint between neighbouring bf16 numbers by at least 2^-17 of itself,
// and the product is exact to 2^-22. A quotient below f32's normal numbers may be a midpoint. Then b
// is a power of two, whose reciprocal must be exact, or the product is rounded to the midpoint, a
// multiple of 2^-149. On an H200 all pairs of bf16 numbers were compared. AMD's manuals promise
// a reciprocal exact to an ulp, but not that of a power of two, so AMD GPUs divide.
template <class T, class C, u32 WIDTH> DEVICE void divide_all(C (&a)[WIDTH], const C (&b)[WIDTH]) {
#if !COMPILER_AMD
    if constexpr (is_same<T, bf16>::value) {
        bool normal = true;
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            f32 size = math::abs(b[j]);
            normal = normal && size >= 1.17549435e-38f && size <= 8.5e37f; // not if it is NaN
        }
        if (normal) {
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) a[j] = product(a[j], reciprocal(b[j]));
            return;
        }
    }
#endif
    UNROLLED
    for (u32 j = 0; j < WIDTH; ++j) a[j] = a[j] / b[j];
}

// NORM, or SHIFT if not NORMED, for WIDTH neighbours that all exist: the results of `evaluate`,
// without the interpreter. SOURCE is that of the mapped values, ONE or NEIGHBOURS. All reads come
// before the first step, so that they are in flight together.
template <class T, bool NORMED, u32 SOURCE, u32 WIDTH, class Reload>
DEVICE void evaluate_norm(u32 first, Reload reload) {
    using C = compute_t<T>;
    using Piece = Vector<T, WIDTH>;
    constexpr u32 OWN = NORMED ? NORM_STEPS : 1;
    const Chain &chain = reload();
    u32 count = chain.count;
    bool adds = count > OWN && chain.step[OWN].source_b == IN_MEMORY;
    auto elements = [&](u64 tensor) {
        return *reinterpret_cast<const Piece *>(reinterpret_cast<const T *>(tensor) + first);
    };
    Piece x = elements(chain.step[0].a), more = {}, mapped[OWN];
    if (adds) more = elements(chain.step[OWN].b);
    UNROLLED
    for (u32 g = 0; g < WIDTH / GROUP; ++g) {
        i32 offset = offset_of(chain.map[chain.step[0].map_b], first + g * GROUP);
        UNROLLED
        for (u32 s = 0; s < OWN; ++s) {
            const T *from = reinterpret_cast<const T *>(chain.step[s].b) + offset;
            Vector<T, GROUP> group;
            if constexpr (SOURCE == ONE) {
                UNROLLED
                for (u32 j = 0; j < GROUP; ++j) group.lane[j] = *from;
            } else {
                group = *reinterpret_cast<const Vector<T, GROUP> *>(from);
            }
            UNROLLED
            for (u32 j = 0; j < GROUP; ++j) mapped[s].lane[g * GROUP + j] = group.lane[j];
        }
    }
    C a[WIDTH];
    widen(x, a);
    // Each step rounds to T, as a separate kernel would store it.
    auto step = [&](const Piece &other, auto f) {
        C b[WIDTH];
        widen(other, b);
        f(b);
        widen(narrow<T>(a), a);
    };
    auto add = [&](const C(&b)[WIDTH]) {
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) a[j] += b[j];
    };
    if constexpr (NORMED) {
        step(mapped[0], [&](const C(&b)[WIDTH]) {
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) a[j] -= b[j];
        });
        step(mapped[1], [&](const C(&b)[WIDTH]) { divide_all<T>(a, b); });
        // Without a rounded product, the next sum would join it to one instruction.
        step(mapped[2], [&](const C(&b)[WIDTH]) {
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) a[j] = product(a[j], b[j]);
        });
    }
    step(mapped[OWN - 1], add);
    if (adds) step(more, add);
    if (count > OWN + (adds ? 1 : 0)) {
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) a[j] = Relu::apply(a[j]);
    }
    T *to = reinterpret_cast<T *>(reload().step[count - 1].out);
    *reinterpret_cast<Piece *>(to + first) = narrow<T>(a);
}
template <class T, bool JOINED, bool NORMED, class Reload> DEVICE void evaluate_norm(Place at, Reload reload) {
    auto from = [&](auto part) {
        constexpr u32 WIDTH = JOINED ? GROUP * GROUPS : GROUP;
        UNROLLED
        for (u32 first = at.first, p = 0; p < GROUP * GROUPS / WIDTH; ++p, first += at.step) part(first);
    };
    constexpr u32 WIDTH = JOINED ? GROUP * GROUPS : GROUP;
    if (reload().step[0].source_b == ONE) from([&](u32 first) { evaluate_norm<T, NORMED, ONE, WIDTH>(first, reload); });
    else from([&](u32 first) { evaluate_norm<T, NORMED, NEIGHBOURS, WIDTH>(first, reload); });
}
