// Element-wise chains: the host defers ops over the same number of elements, and one launch runs
// them in order. A thread computes the same elements in every op, so that no thread waits for
// another. Operands may be broadcast or strided.
#include "chain.h"

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
                if constexpr (is_same<decltype(op), OfOne<Cast>>::value) { // keeps the bits of a NaN
                    INDEPENDENT
                    for (u32 i = 0; i < count; ++i) out[i] = a[i];
                } else if (step.source_b == SCALAR) {
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

// in_one_thread for a list of several dtypes, computed in f32.
DEVICE void mixed_in_one_thread(const Chain &chain) {
    constexpr u32 STRETCH = 1024;
    for_each_row((chain.n + STRETCH - 1) / STRETCH, [&](u64 stretch) {
        u32 first = (u32)stretch * STRETCH;
        u32 count = chain.n - first < STRETCH ? chain.n - first : STRETCH;
        f32 x[STRETCH] = {}, y[STRETCH];
        auto read = [&](u64 tensor, u32 type, u32 source, u32 map, f32 *to) {
            with_type(type, [&](auto none) {
                const auto *from = reinterpret_cast<const decltype(none) *>(tensor);
                for (u32 i = 0; i < count; ++i)
                    to[i] = load(from[source < ONE ? (i32)(first + i) : offset_of(chain.map[map], first + i)]);
            });
        };
        for (u32 s = 0; s < chain.count; ++s) {
            const Step &step = chain.step[s];
            if (step.source_a != SCALAR) read(step.a, step.from, step.source_a, step.map_a, x);
            if (step.source_b != SCALAR) read(step.b, step.from, step.source_b, step.map_b, y);
            else
                for (u32 i = 0; i < count; ++i) y[i] = bit_cast<f32>((u32)step.b);
            with_functor(step.functor, [&](auto op) {
                for (u32 i = 0; i < count; ++i) x[i] = op.apply(x[i], y[i]);
            });
            with_type(step.to, [&](auto none) {
                using M = decltype(none);
                M *out = reinterpret_cast<M *>(step.out) + first;
                for (u32 i = 0; i < count; ++i) out[i] = store<M>::from(x[i]);
            });
        }
    });
}

// A thread's two groups of 16-bit elements are neighbours, so that one access has 16 bytes. Its two
// groups of f32 lie a block apart, so that a warp's accesses are contiguous.
template <class T> constexpr bool JOINED = sizeof(T) * GROUP * GROUPS <= 16;
template <class T> DEVICE Place place_in(u32 tile, u32 n) {
    u32 begin = tile * blockDim.x * GROUP * GROUPS;
    if constexpr (JOINED<T>) return {begin + threadIdx.x * GROUP * GROUPS, GROUP, n};
    else return {begin + threadIdx.x * GROUP, blockDim.x * GROUP, n};
}

// All steps of a list. T and MIXED are those of `evaluate`.
template <class T, bool MIXED> DEVICE void run(const Chain &given) {
    u32 n = given.n, count = given.count, taken = blockDim.x * GROUP * GROUPS;
    for_each_row((n + taken - 1) / taken, [&](u64 tile) {
        Place at = place_in<T>((u32)tile, n);
        auto reload = [&]() -> const Chain & { return reload_parameters(given); };
        if (at.first >= n) return;
        if constexpr (!MIXED) {
            // If some of a thread's elements are past the end, the interpreter computes the rest.
            if (given.program == NORM && is_whole(at)) return evaluate_norm<T, JOINED<T>, true>(at, reload);
            if (given.program == SHIFT && is_whole(at)) return evaluate_norm<T, JOINED<T>, false>(at, reload);
        }
        evaluate<T, MIXED, JOINED<T>>(count, at, reload);
    });
}

template <class T> __global__ void chain(Chain given) {
    if constexpr (ONE_THREAD) in_one_thread<T>(given);
    else run<T, false>(given);
}

// A chain of steps on tensors of several types.
template <class T> __global__ void chain_mixed(Chain given) {
    if constexpr (ONE_THREAD) mixed_in_one_thread(given);
    else run<T, true>(given);
}
