// Element-wise maps over contiguous and strided operands.
#pragma once
#include "prelude_convert.h"
#include "prelude_ranges.h"

// out[i] = f(in[i]...) over contiguous arrays that begin at 16-byte boundaries. A thread accesses
// 16 bytes of the widest type at a time. The arguments of `f` have the stored types' compute types;
// its result is stored as Out. `out` may be one of the inputs.
template <class Out, class F, class... In> DEVICE void map_contiguous(u64 n, Out *out, F f, const In *...in) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    if constexpr (CONVERTED<Out> || (CONVERTED<In> || ...)) {
        u64 begin = n * blockIdx.x / gridDim.x, end = n * (blockIdx.x + 1) / gridDim.x;
        map_eights(end - begin, out + begin, f, Eights<false, In>(in + begin)...);
    } else {
        for_each(n, [=](u64 i) { out[i] = store<Out>::from(f(load(in[i])...)); });
    }
#else
    constexpr u32 width = 16 / max_size(sizeof(Out), sizeof(In)...);
    u64 vectors = n / width;
    for_each(vectors, [=](u64 v) {
        // By value, so that everything is loaded before anything is computed: the compiler does not
        // join loads across branches.
        auto each = [&](Vector<In, width>... x) {
            Vector<Out, width> y;
            UNROLLED
            for (u32 k = 0; k < width; ++k) y.lane[k] = store<Out>::from(f(load(x.lane[k])...));
            reinterpret_cast<Vector<Out, width> *>(out)[v] = y;
        };
        each(reinterpret_cast<const Vector<In, width> *>(in)[v]...);
    });
    for_each(n - vectors * width, [=](u64 i) {
        u64 at = vectors * width + i;
        out[at] = store<Out>::from(f(load(in[at])...));
    });
#endif
}

// ---------------------------------------------------------------- strided operands

// The greatest number of dims of a strided launch. The host first merges dims; if more than these
// are left, it launches once for each index of the outer ones.
constexpr u32 MAX_DIMS = 8;

// The common shape of N operands and the strides of each in elements (0: broadcast; negative:
// flipped). The host splits a launch whose element count or offsets exceed 31 bits.
template <u32 N> struct Strided {
    u32 rank;
    u32 shape[MAX_DIMS];
    i32 stride[N][MAX_DIMS];
};

template <u32 N> struct Offsets {
    i32 at[N];
};

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
// One row of a strided range. The compiler knows the inner strides if they are 0 or 1. The counter
// is signed and so can't wrap, which lets the compiler see that addresses are consecutive.
template <u32 N, class F> DEVICE void strided_row(u64 first, i32 count, Offsets<N> base, Offsets<N> step, F f) {
    bool ones = true;
    for (u32 k = 0; k < N; ++k) ones = ones && step.at[k] == 1;
    if (ones) {
        INDEPENDENT
        for (i32 j = 0; j < count; ++j) {
            Offsets<N> o;
            for (u32 k = 0; k < N; ++k) o.at[k] = base.at[k] + j;
            f(first + (u64)j, o);
        }
        return;
    }
    if constexpr (N == 2) {
        if (step.at[0] == 1 && step.at[1] == 0) {
            INDEPENDENT
            for (i32 j = 0; j < count; ++j) f(first + (u64)j, Offsets<2>{{base.at[0] + j, base.at[1]}});
            return;
        }
        if (step.at[0] == 0 && step.at[1] == 1) {
            INDEPENDENT
            for (i32 j = 0; j < count; ++j) f(first + (u64)j, Offsets<2>{{base.at[0], base.at[1] + j}});
            return;
        }
    }
    for (i32 j = 0; j < count; ++j) {
        Offsets<N> o;
        for (u32 k = 0; k < N; ++k) o.at[k] = base.at[k] + j * step.at[k];
        f(first + (u64)j, o);
    }
}
#endif

// The offset of element i in each operand, in row-major order of m.shape.
template <u32 N> DEVICE Offsets<N> offsets_of(const Strided<N> &m, u32 i) {
    Offsets<N> o = {};
    UNROLLED
    for (u32 d = MAX_DIMS; d-- > 0;) {
        if (d < m.rank) {
            u32 quotient = i / m.shape[d];
            i32 coordinate = (i32)(i - quotient * m.shape[d]);
            i = quotient;
            for (u32 k = 0; k < N; ++k) o.at[k] += coordinate * m.stride[k][d];
        }
    }
    return o;
}

#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
// Calls f(first, count, offsets, steps) for the pieces of rows that make up this block's share of n
// elements. `offsets` has each operand's offset of the first element, `steps` the distance to the
// next.
template <u32 N, class F> DEVICE void for_each_strided_row(const Strided<N> &m, u32 n, F f) {
    u32 i = (u32)((u64)n * blockIdx.x / gridDim.x), end = (u32)((u64)n * (blockIdx.x + 1) / gridDim.x);
    if (i >= end) return;
    u32 coordinate[MAX_DIMS] = {};
    Offsets<N> base = {}, step = {};
    u32 rest = i;
    for (u32 d = m.rank; d-- > 0;) {
        coordinate[d] = rest % m.shape[d];
        rest /= m.shape[d];
        for (u32 k = 0; k < N; ++k) base.at[k] += (i32)coordinate[d] * m.stride[k][d];
    }
    if (m.rank == 0) return f(0, 1, base, step);
    u32 last = m.rank - 1;
    for (u32 k = 0; k < N; ++k) step.at[k] = m.stride[k][last];
    while (true) {
        u32 count = m.shape[last] - coordinate[last];
        if (count > end - i) count = end - i;
        f(i, count, base, step);
        i += count;
        if (i >= end) return;
        for (u32 k = 0; k < N; ++k) base.at[k] -= (i32)coordinate[last] * step.at[k];
        coordinate[last] = 0;
        for (u32 d = last; d-- > 0;) {
            for (u32 k = 0; k < N; ++k) base.at[k] += m.stride[k][d];
            if (++coordinate[d] < m.shape[d]) break;
            for (u32 k = 0; k < N; ++k) base.at[k] -= (i32)m.shape[d] * m.stride[k][d];
            coordinate[d] = 0;
        }
    }
}
#endif

// Calls f(i, offsets) for each element i of n, in row-major order of m.shape, with its offset in
// each operand.
template <u32 N, class F> DEVICE void for_each_strided(const Strided<N> &m, u32 n, F f) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    for_each_strided_row(m, n, [=](u32 first, u32 count, Offsets<N> base, Offsets<N> step) {
        strided_row<N>(first, (i32)count, base, step, f);
    });
#else
    for_each(n, [=](u64 index) { f(index, offsets_of(m, (u32)index)); });
#endif
}

// out[i] = f(in[..]...): `out` is contiguous, and the rows of m are the strides of the one or two
// inputs. The arguments of `f` have compute types, and its result is stored as Out. `out` may be an
// input from which index i reads only element i.
template <class Out, class F, class A> DEVICE void map_strided(const Strided<1> &m, u32 n, Out *out, F f, const A *a) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    if constexpr (CONVERTED<Out> || CONVERTED<A>) {
        for_each_strided_row(m, n, [=](u32 first, u32 count, Offsets<1> base, Offsets<1> step) {
            map_converted(count, out + first, f, Operand<A>{a + base.at[0], step.at[0]});
        });
        return;
    }
#endif
    for_each_strided(m, n, [=](u64 i, Offsets<1> at) { out[i] = store<Out>::from(f(load(a[at.at[0]]))); });
}
template <class Out, class F, class A, class B>
DEVICE void map_strided(const Strided<2> &m, u32 n, Out *out, F f, const A *a, const B *b) {
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    if constexpr (CONVERTED<Out> || CONVERTED<A> || CONVERTED<B>) {
        for_each_strided_row(m, n, [=](u32 first, u32 count, Offsets<2> base, Offsets<2> step) {
            map_converted(count, out + first, f, Operand<A>{a + base.at[0], step.at[0]},
                          Operand<B>{b + base.at[1], step.at[1]});
        });
        return;
    }
#endif
    for_each_strided(m, n,
                     [=](u64 i, Offsets<2> at) { out[i] = store<Out>::from(f(load(a[at.at[0]]), load(b[at.at[1]]))); });
}
