// Element-wise chains: the host defers ops over tensors of the same length, and one launch runs
// them in order. A thread computes the same elements in every op, so that no thread waits for
// another.
#include "prelude.h"
#include "functors.h"
#include "rows.h"

// The functors of a step, in the order of `CHAIN` in `src/table.rs`.
#define CHAIN_OF_TWO(X) X(Add) X(Sub) X(Mul) X(Div) X(Max) X(Min) X(ReluBackward) X(SigmoidBackward) X(Fill)
#define CHAIN_OF_ONE(X) X(Neg) X(Abs) X(Sqrt) X(Recip) X(Exp) X(Log) X(Tanh) X(Relu) X(Sigmoid)

// Where a step's operand comes from: memory, the result of the step before, the result of the step
// before that, or a scalar in the step itself.
enum Source : u32 { IN_MEMORY, LAST, BEFORE_LAST, SCALAR };

struct Fill { // the result is b
    template <class C> static DEVICE C apply(C, C b) { return b; }
};

// The same layout as `Step` in `hip/src/launch/steps.rs`: the addresses of two operands and of the
// result. If the second operand is a scalar, b has its bits; if the first is, a is unused. All
// tensors begin at 16-byte boundaries; a result may overwrite an operand.
struct Step {
    u64 a, b, out;
    u32 functor;
    u8 source_a, source_b; // an operand in registers is in memory too, unless nothing reads it there
    u8 stored;             // 0: a later step overwrites the result, and none reads it from memory
    u8 unused;
};

constexpr u32 STEPS = 16;

struct Chain {
    u32 n, count;
    Step step[STEPS];
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
        u64 first = stretch * STRETCH;
        u32 count = chain.n - first < STRETCH ? (u32)(chain.n - first) : STRETCH;
        for (u32 s = 0; s < chain.count; ++s) {
            const Step &step = chain.step[s];
            T *out = reinterpret_cast<T *>(step.out) + first;
            const T *a = step.source_a == SCALAR ? out : reinterpret_cast<const T *>(step.a) + first;
            with_functor(step.functor, [=](auto op) {
                if (step.source_b == SCALAR) {
                    C y = (C)bit_cast<f32>((u32)step.b);
                    INDEPENDENT
                    for (u32 i = 0; i < count; ++i) out[i] = store<T>::from(op.apply((C)load(a[i]), y));
                } else {
                    const T *b = reinterpret_cast<const T *>(step.b) + first;
                    INDEPENDENT
                    for (u32 i = 0; i < count; ++i) out[i] = store<T>::from(op.apply((C)load(a[i]), (C)load(b[i])));
                }
            });
        }
    });
}

// The number of elements that a thread takes: 16 bytes of their compute type, because a step holds
// three of these at once.
template <class T> constexpr u32 WIDTH = LANES<compute_t<T>>;
template <class T> using Lanes = Vector<T, WIDTH<T>>;

// Reads elements [first, first + WIDTH) of a tensor of n; lanes past its end keep their values.
template <class T> DEVICE void read_lanes(u64 tensor, u32 first, u32 n, Lanes<T> &lanes) {
    const T *from = reinterpret_cast<const T *>(tensor);
    if (first + WIDTH<T> <= n) {
        lanes = *reinterpret_cast<const Lanes<T> *>(from + first);
        return;
    }
    UNROLLED
    for (u32 j = 0; j < WIDTH<T>; ++j) {
        if (first + j < n) lanes.lane[j] = from[first + j];
    }
}
template <class T> DEVICE void write_lanes(u64 tensor, u32 first, u32 n, const Lanes<T> &lanes) {
    T *to = reinterpret_cast<T *>(tensor);
    if (first + WIDTH<T> <= n) {
        *reinterpret_cast<Lanes<T> *>(to + first) = lanes;
        return;
    }
    UNROLLED
    for (u32 j = 0; j < WIDTH<T>; ++j) {
        if (first + j < n) to[first + j] = lanes.lane[j];
    }
}

template <class T> __global__ void chain(Chain given) {
    if constexpr (ONE_THREAD) {
        in_one_thread<T>(given);
    } else {
        using C = compute_t<T>;
        u32 n = given.n, count = given.count;
        for_each((n + WIDTH<T> - 1) / WIDTH<T>, [&](u64 piece) {
            u32 first = (u32)piece * WIDTH<T>;
            Lanes<T> last = {}, before_last = {};
            for (u32 s = 0; s < count; ++s) {
                const Step &step = reload_parameters(given).step[s];
                Lanes<T> x = step.source_a == LAST ? last : before_last, y = step.source_b == LAST ? last : before_last;
                if (step.source_a == IN_MEMORY) read_lanes(step.a, first, n, x);
                if (step.source_b == IN_MEMORY) read_lanes(step.b, first, n, y);
                bool scalar = step.source_b == SCALAR;
                C value = (C)bit_cast<f32>((u32)step.b);
                before_last = last;
                with_functor(step.functor, [&](auto op) {
                    UNROLLED
                    for (u32 j = 0; j < WIDTH<T>; ++j) {
                        C b = scalar ? value : (C)load(y.lane[j]);
                        last.lane[j] = store<T>::from(op.apply((C)load(x.lane[j]), b));
                    }
                });
                if (step.stored) write_lanes(step.out, first, n, last);
            }
        });
    }
}
