// Element-wise chains: ops over tensors of one length that the host put off, done in their order by
// one launch. A thread takes the same elements of all of them, so that none waits for another.
#include "prelude.h"
#include "functors.h"
#include "rows.h"

// What a step computes, in the order of `CHAIN` in `src/table.rs`.
#define CHAIN_OF_TWO(X) X(Add) X(Sub) X(Mul) X(Div) X(Max) X(Min) X(ReluBackward) X(SigmoidBackward) X(Fill)
#define CHAIN_OF_ONE(X) X(Neg) X(Abs) X(Sqrt) X(Recip) X(Exp) X(Log) X(Tanh) X(Relu) X(Sigmoid)

// Where a step's operand is found: in memory, in the result of the step before or of the one before
// that, or in the step itself.
enum Source : u32 { IN_MEMORY, LAST, BEFORE_LAST, SCALAR };

struct Fill { // with b
    template <class C> static DEVICE C apply(C, C b) { return b; }
};

// As `Step` in `hip/src/launch/steps.rs`: two operands' addresses, the second's own bits where it
// is a scalar, and the result's; a first operand that is a scalar is none. All tensors begin at
// 16-byte boundaries; a result may take an operand's place.
struct Step {
    u64 a, b, out;
    u32 functor;
    u8 source_a, source_b; // a source in registers is in memory too, unless nobody needs it there
    u8 stored;             // 0: a later step writes over it, and none reads it from memory
    u8 unused;
};

constexpr u32 STEPS = 16;

struct Chain {
    u32 n, count;
    Step step[STEPS];
};

// Calls f with a functor of two values.
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

// One thread takes a stretch that its caches hold through all steps, each step a loop that
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

// Elements that a thread takes: 16 bytes of what they are computed in, since a step has three of
// them at once.
template <class T> constexpr u32 WIDTH = LANES<compute_t<T>>;
template <class T> using Lanes = Vector<T, WIDTH<T>>;

// Elements [first, first + WIDTH) of a tensor of n, those past its end left as they were.
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
