// Steps of optimizers, and the ops around them, over many tensors in one launch. A launch gets its
// tensors by value, as a table; the blocks share the tensors' pieces.
#include "prelude.h"
#include "published.h"
#include "rounded.h"
#include "rows.h"

// With the other parameters this stays below the 4 KiB that a launch may pass: `TABLE_BYTES` in
// `ops/launch.rs`.
constexpr u32 TABLE_BYTES = 3976;

// A group of A tensors with the same length: `address` is that of each, at a 16-byte boundary;
// `first` is the number of their first piece, counted over the table; `last` is the number of
// elements in their last piece.
template <u32 A> struct Row {
    u64 address[A];
    u32 first, last;
};

// The lower half of `shape` is the number of rows. The upper half is the binary logarithm of the
// piece's size: the elements that a block takes at a time, a multiple of every vector width.
template <u32 A> struct Table {
    u32 shape, pieces;
    Row<A> row[(TABLE_BYTES - 8) / sizeof(Row<A>)];

    DEVICE u32 rows() const { return shape & 0xffffu; }
    DEVICE u32 piece() const { return 1u << (shape >> 16); }
    // One past the row's last piece.
    DEVICE u32 end(u32 at) const { return at + 1 < rows() ? row[at + 1].first : pieces; }
};

// Calls f(at, begin, count, piece) for each piece: elements [begin, begin + count) of row `at`. All
// threads of a block get the same piece.
template <u32 A, class F> DEVICE void for_each_piece(const Table<A> &table, F f) {
    for_each_row(table.pieces, [&](u64 piece) {
        u32 at = 0, end = table.rows(); // row[at].first <= piece < row[end].first
        while (end - at > 1) {
            u32 middle = (at + end) / 2;
            if (table.row[middle].first <= piece) at = middle;
            else end = middle;
        }
        u64 begin = (piece - table.row[at].first) * table.piece();
        f(at, begin, piece + 1 == table.end(at) ? table.row[at].last : table.piece(), piece);
    });
}

// The number of elements per access: 16 bytes, or fewer if a thread would then hold more than 72
// bytes of compute types (`bytes` per element). With a limit of 112, which is four of Adam's
// elements, gfx942 spilled scalar registers: the compiler keeps comparison masks for the root and
// the quotient of each element.
constexpr u32 vector_width(u32 most, u32 bytes) {
    return most > 1 && most * bytes > 72 ? vector_width(most / 2, bytes) : most;
}

// Element `at` of each of the inputs, in compute types. The second input may have its own type.
template <class In, class Second, u32 READ> struct Inputs {
    const In *in[READ];
    const Second *second;

    DEVICE Inputs(const u64 *address, u64 begin) {
        UNROLLED
        for (u32 k = 0; k < READ; ++k) in[k] = reinterpret_cast<const In *>(address[k]) + begin;
        second = reinterpret_cast<const Second *>(address[READ > 1 ? 1 : 0]) + begin;
    }
    DEVICE void load_at(u32 at, compute_t<In> *x) const {
        UNROLLED
        for (u32 k = 0; k < READ; ++k) x[k] = k == 1 ? (compute_t<In>)load(second[at]) : load(in[k][at]);
    }
};

// Calls f(inputs, outputs), both in compute types, for elements [begin, begin + count) of a row's
// tensors. The first READ tensors are read, the next WRITTEN ones are written. The second tensor's
// elements are Second, those of the others that are read In. An output may overwrite an input.
template <class In, class Out, u32 READ, u32 WRITTEN, class Second = In, class F>
DEVICE void map_piece(const u64 (&address)[READ + WRITTEN], u64 begin, u32 count, F f) {
    Inputs<In, Second, READ> in(address, begin);
    Out *out[WRITTEN];
    for (u32 k = 0; k < WRITTEN; ++k) out[k] = reinterpret_cast<Out *>(address[READ + k]) + begin;
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    INDEPENDENT
    for (u32 i = 0; i < count; ++i) {
        compute_t<In> x[READ];
        compute_t<Out> y[WRITTEN];
        in.load_at(i, x);
        f(x, y);
        for (u32 k = 0; k < WRITTEN; ++k) out[k][i] = store<Out>::from(y[k]);
    }
#else
    constexpr u32 WIDTH = vector_width(16 / max_size(sizeof(In), sizeof(Out)),
                                       (READ + WRITTEN) * max_size(sizeof(compute_t<In>), sizeof(compute_t<Out>)));
    u32 vectors = count / WIDTH;
    ROLLED
    for (u32 v = threadIdx.x; v < vectors; v += blockDim.x) {
        Vector<In, WIDTH> x[READ];
        Vector<Second, WIDTH> second = {};
        Vector<Out, WIDTH> y[WRITTEN];
        UNROLLED
        for (u32 k = 0; k < READ; ++k) {
            if (k == 1) second = vector_at<WIDTH>(in.second, v * WIDTH);
            else x[k] = vector_at<WIDTH>(in.in[k], v * WIDTH);
        }
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            compute_t<In> from[READ];
            compute_t<Out> to[WRITTEN];
            UNROLLED
            for (u32 k = 0; k < READ; ++k) from[k] = k == 1 ? (compute_t<In>)load(second.lane[j]) : load(x[k].lane[j]);
            f(from, to);
            UNROLLED
            for (u32 k = 0; k < WRITTEN; ++k) y[k].lane[j] = store<Out>::from(to[k]);
        }
        UNROLLED
        for (u32 k = 0; k < WRITTEN; ++k) vector_at<WIDTH>(out[k], v * WIDTH) = y[k];
    }
    ROLLED
    for (u32 i = vectors * WIDTH + threadIdx.x; i < count; i += blockDim.x) {
        compute_t<In> from[READ];
        compute_t<Out> to[WRITTEN];
        in.load_at(i, from);
        f(from, to);
        UNROLLED
        for (u32 k = 0; k < WRITTEN; ++k) out[k][i] = store<Out>::from(to[k]);
    }
#endif
}

// Prepares a gradient for the step: clamps it to +-limit, then multiplies it by its tensor's
// factor.
template <class C> DEVICE C clipped(C grad, C limit, C factor) {
    // The branch is the same for all threads. It keeps the compiler from holding the comparisons of
    // several elements at once.
    if (ONE_THREAD || limit < greatest<C>())
        grad = select(grad > limit, limit, select(grad < -limit, -limit, grad)); // NaN stays NaN
    return product(grad, factor);
}

// The same as `Scalars` in `fused/optim.rs`.
template <class C> struct Adam {
    C beta_1, rest_1, beta_2, rest_2; // moment = beta * moment + rest * grad
    C scale_1, scale_2;               // 1 / (1 - beta^t)
    C epsilon, lr;
    C penalty;  // penalty * parameter is added to the gradient
    C decay;    // decay * parameter is subtracted from the parameter
    C cautious; // if not 0, only parameters with the sign of their first moment decay
    C limit;
};

// Adam (Kingma and Ba 2014, algorithm 1), with L2 penalty or decoupled decay (Loshchilov and Hutter
// 2017), cautious decay (arXiv 2510.12402) and, with three states, the largest second moment so far
// (Reddi et al. 2018). `x` has parameter, gradient and states; `y` has parameter and states. Each
// product is rounded (`rounded.h`). Otherwise a compiler fuses other sums in a graph's step than in
// an eager one, and they differ in the last bit.
template <u32 STATES, bool FIRST, bool OLD_MAX, class C> struct AdamStep {
    Adam<C> s;
    C factor;

    DEVICE void operator()(const C *x, C *y) const {
        C param = x[0], grad = clipped(x[1], s.limit, factor) + product(s.penalty, param);
        C m = product(s.rest_1, grad), v = product(product(s.rest_2, grad), grad);
        if constexpr (!FIRST) {
            m += product(s.beta_1, x[2]);
            v += product(s.beta_2, x[3]);
        }
        C largest = v;
        if constexpr (STATES == 3) {
            if constexpr (OLD_MAX) largest = math::max(x[4], v);
            y[3] = largest;
        }
        y[1] = m;
        y[2] = v;
        C decay = s.decay;
        // The branch is the same for all threads, as in `clipped`.
        if (ONE_THREAD || s.cautious != (C)0)
            decay = select((s.cautious != (C)0) & ((param >= (C)0) != (m >= (C)0)), (C)0, decay);
        C size = math::sqrt(product(largest, s.scale_2)) + s.epsilon;
        y[0] = param - product(decay, param) - product(s.lr, product(m, s.scale_1) / size);
    }
};

// Applies the step make(row, factor) to each element of the rows for which skips(row) is false. The
// first READ addresses of a row are read and its last WRITTEN addresses are written. The second
// address is that of the gradient, whose elements are G.
template <class T, class G, u32 A, u32 READ, u32 WRITTEN, class Make, class Skips>
DEVICE void step_each(const Table<A> &table, const compute_t<T> *factors, Make make, Skips skips) {
    for_each_piece(table, [&](u32 at, u64 begin, u32 count, u64) {
        if (skips(at)) return;
        u64 address[READ + WRITTEN];
        UNROLLED
        for (u32 k = 0; k < READ; ++k) address[k] = table.row[at].address[k];
        UNROLLED
        for (u32 k = 0; k < WRITTEN; ++k) address[READ + k] = table.row[at].address[A - WRITTEN + k];
        compute_t<T> factor = factors == nullptr ? (compute_t<T>)1 : factors[at];
        map_piece<T, T, READ, WRITTEN, G>(address, begin, count, make(at, factor));
    });
}
struct Never {
    DEVICE bool operator()(u32) const { return false; }
};

// How many of a parameter's states exist before the step.
constexpr i32 NONE = 0, SOME = 1, ALL = 2;

// A step of Adam over tensors of STATES states (2, or 3 with the largest second moment). The
// addresses are: parameter, gradient, old states, new parameter, new states. If OLD is NONE, the
// old states are not read; if it is SOME, the last one is not. `factors` has one factor per row, or
// is null. G is the gradient's type.
template <class T, class G, i32 STATES, i32 OLD>
__global__ void optim_adam(Table<3 + 2 * STATES> table, Adam<compute_t<T>> s, const compute_t<T> *factors) {
    using C = compute_t<T>;
    constexpr u32 READ = 2 + (OLD == ALL ? STATES : OLD == SOME ? 2 : 0);
    step_each<T, G, 3 + 2 * STATES, READ, 1 + STATES>(table, factors, [&](u32, C factor) {
        return AdamStep<STATES, OLD == NONE, OLD == ALL, C>{s, factor};
    }, Never());
}

// The same as `Scalars` in `fused/optim.rs`.
template <class C> struct Sgd {
    C lr, penalty, momentum, rest; // velocity = momentum * velocity + rest * grad
    C nesterov;                    // not 0: Nesterov's momentum
    C limit;
};

template <u32 STATES, bool FIRST, class C> struct SgdStep {
    Sgd<C> s;
    C factor;

    DEVICE void operator()(const C *x, C *y) const {
        C param = x[0], grad = clipped(x[1], s.limit, factor) + product(s.penalty, param);
        if constexpr (STATES == 1) {
            C velocity = grad;
            if constexpr (!FIRST) velocity = product(s.rest, grad) + product(s.momentum, x[2]);
            y[1] = velocity;
            grad = s.nesterov != (C)0 ? product(s.momentum, velocity) + grad : velocity;
        }
        y[0] = param - product(s.lr, grad);
    }
};

// A step of gradient descent, with momentum if there is a state (Sutskever et al. 2013). Addresses
// and `factors` are as for optim_adam.
template <class T, class G, i32 STATES, i32 OLD>
__global__ void optim_sgd(Table<3 + 2 * STATES> table, Sgd<compute_t<T>> s, const compute_t<T> *factors) {
    using C = compute_t<T>;
    step_each<T, G, 3 + 2 * STATES, 2 + (OLD == ALL ? STATES : 0), 1 + STATES>(
        table, factors, [&](u32, C factor) { return SgdStep<STATES, OLD == NONE, C>{s, factor}; }, Never());
}

// A step in a graph reads its numbers from memory, because they change from replay to replay. Row
// `at` has those at numbers[stride * at ..]: the struct's fields, and at SKIP a number other than 0
// if the row is skipped.
constexpr u32 NUMBERS = 16, SKIP = 12;
template <class S, class C> DEVICE S numbers_of(const C *from) {
    S s;
    UNROLLED
    for (u32 k = 0; k < sizeof(S) / sizeof(C); ++k) { // a copy of all at once would load bytes
        C number = from[k];
        __builtin_memcpy(reinterpret_cast<u8 *>(&s) + k * sizeof(C), &number, sizeof(C));
    }
    return s;
}

// optim_adam with numbers from memory, for tensors that have all states. A skipped row is neither
// read nor written.
template <class T, class G, i32 STATES>
__global__ void optim_adam_replayed(Table<3 + 2 * STATES> table, u32 stride, const compute_t<T> *numbers,
                                    const compute_t<T> *factors) {
    using C = compute_t<T>;
    step_each<T, G, 3 + 2 * STATES, 2 + STATES, 1 + STATES>(table, factors, [&](u32 at, C factor) {
        return AdamStep<STATES, false, true, C>{numbers_of<Adam<C>>(numbers + stride * at), factor};
    }, [=](u32 at) { return numbers[stride * at + SKIP] != (C)0; });
}

// The same for optim_sgd.
template <class T, class G, i32 STATES>
__global__ void optim_sgd_replayed(Table<3 + 2 * STATES> table, u32 stride, const compute_t<T> *numbers,
                                   const compute_t<T> *factors) {
    using C = compute_t<T>;
    step_each<T, G, 3 + 2 * STATES, 2 + STATES, 1 + STATES>(table, factors, [&](u32 at, C factor) {
        return SgdStep<STATES, false, C>{numbers_of<Sgd<C>>(numbers + stride * at), factor};
    }, [=](u32 at) { return numbers[stride * at + SKIP] != (C)0; });
}

// The same as `settings` in `ops/optim.rs`.
struct AdamSettings {
    f64 beta_1, beta_2, epsilon, penalty;
    f64 rate; // of decoupled decay
    f64 cautious, limit;
    f64 unused[5];
};
struct SgdSettings {
    f64 penalty, momentum, rest, nesterov, limit;
    f64 unused[7];
};

// x to the power n >= 0 by squaring: the products that Rust's `powi` takes, in the same order.
DEVICE f32 power(f32 x, u64 n) {
    f32 y = 1;
    for (;;) {
        if (n & 1) y = product(y, x);
        n >>= 1;
        if (n == 0) return y;
        x = product(x, x);
    }
}
// 1 / (1 - beta^t), computed as on the host.
DEVICE f64 correction(f32 beta, u64 t) { return 1.0 / (f64)(1.0f - power(beta, t)); }

// Advances each row's clock, which counts a parameter's steps, and writes the numbers of the step
// for which it then stands. If `*skip` is not 0 the clocks stand still. `skip` may be null. A row's
// address is that of its clock.
template <class C>
__global__ void optim_adam_numbers(Table<1> table, AdamSettings s, const f64 *lr, const u32 *skip, C *numbers) {
    bool skipped = skip != nullptr && *skip != 0;
    for_each_row(table.rows(), [&](u64 at) {
        if (threadIdx.x != 0) return;
        u64 *clock = reinterpret_cast<u64 *>(table.row[(u32)at].address[0]);
        C *out = numbers + NUMBERS * at;
        out[SKIP] = (C)(skipped ? 1 : 0);
        if (skipped) return;
        u64 t = *clock + 1;
        *clock = t;
        f32 beta_1 = (f32)s.beta_1, beta_2 = (f32)s.beta_2;
        f64 all[] = {s.beta_1,
                     (f64)(1.0f - beta_1),
                     s.beta_2,
                     (f64)(1.0f - beta_2),
                     correction(beta_1, t),
                     correction(beta_2, t),
                     s.epsilon,
                     *lr,
                     s.penalty,
                     product(*lr, s.rate),
                     s.cautious,
                     s.limit};
        for (u32 k = 0; k < SKIP; ++k) out[k] = (C)all[k];
    });
}

// Writes the numbers of a step of gradient descent, which all rows share.
template <class C> __global__ void optim_sgd_numbers(SgdSettings s, const f64 *lr, const u32 *skip, C *numbers) {
    for_each(1, [=](u64) {
        numbers[SKIP] = (C)(skip != nullptr && *skip != 0 ? 1 : 0);
        f64 all[] = {*lr, s.penalty, s.momentum, s.rest, s.nesterov, s.limit};
        for (u32 k = 0; k < 6; ++k) numbers[k] = (C)all[k];
    });
}

// The sum of squares of each piece.
template <class T> __global__ void optim_squares(Table<1> table, compute_t<T> *sums) {
    using C = compute_t<T>;
    for_each_piece(table, [&](u32 at, u64 begin, u32 count, u64 piece) {
        const T *x = reinterpret_cast<const T *>(table.row[at].address[0]) + begin;
        C sum = block_reduce_range((u64)count, (C)0, [=](u64 i) {
            C value = load(x[i]);
            return value * value;
        }, Plus());
        if (threadIdx.x == 0) sums[piece] = sum;
    });
}

// For each row the factor that reduces its elements' norm to at most `most`, from the sums of
// squares of its pieces.
template <class C> __global__ void optim_norms(Table<1> table, C most, const C *sums, C *factors) {
    for_each_row(table.rows(), [&](u64 at) {
        u32 first = table.row[(u32)at].first;
        C sum =
            block_reduce_range((u64)(table.end((u32)at) - first), (C)0, [=](u64 i) { return sums[first + i]; }, Plus());
        C norm = math::sqrt(sum);
        if (threadIdx.x == 0) factors[at] = norm <= most ? (C)1 : most / norm; // NaN stays NaN
    });
}

// Sets a word, and fences it before this thread's next barrier. Few threads come here. A fence
// after the loop, by all threads, would wait for the stores of their results too.
DEVICE void set_found(u32 *found) {
    publish_word(found, 1u);
    __threadfence();
}

// out = in * factor; `found` becomes 1 if a result is not finite. Addresses: in, out.
template <class In, class Out> DEVICE void unscale_each(const Table<2> &table, f32 factor, u32 *found) {
    for_each_piece(table, [&](u32 at, u64 begin, u32 count, u64) {
        u64 address[2] = {table.row[at].address[0], table.row[at].address[1]};
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
        // Counts in the loop, because a store that depends on the value would prevent
        // vectorisation.
        const In *in = reinterpret_cast<const In *>(address[0]) + begin;
        Out *out = reinterpret_cast<Out *>(address[1]) + begin;
        u32 bad = 0;
        for (u32 i = 0; i < count; ++i) {
            compute_t<Out> value = (compute_t<Out>)load(in[i]) * (compute_t<Out>)factor;
            bad += !(math::abs(value) < greatest<compute_t<Out>>());
            out[i] = store<Out>::from(value);
        }
        if (bad != 0) set_found(found);
#else
        map_piece<In, Out, 1, 1>(address, begin, count, [=](const compute_t<In> *x, compute_t<Out> *y) {
            y[0] = (compute_t<Out>)x[0] * (compute_t<Out>)factor;
            if (!(math::abs(y[0]) < greatest<compute_t<Out>>())) set_found(found);
        });
#endif
    });
}
template <class In, class Out> __global__ void optim_unscale(Table<2> table, f32 factor, u32 *found) {
    unscale_each<In, Out>(table, factor, found);
}

// The scale of a loss in device memory: `scale` in `amp/scaler.rs`. `factors` has the scale, and 1
// / scale at INVERSE. `counts` has the finite steps since the scale changed, the steps skipped, and
// two words that are 0 before and after a step: whether a result of this step is not finite, and
// how many blocks of its last launch are done.
constexpr u32 INVERSE = 4, FOUND = 2, DONE = 3;

// The scale of a step, and the counts before it.
struct Scaled {
    f32 scale;
    u32 finite, skipped;
    DEVICE Scaled(const u32 *counts, const f32 *factors) : scale(factors[0]), finite(counts[0]), skipped(counts[1]) {}
};

// Sets the scale for the next step, as `update` in `amp/scaler.rs` does.
DEVICE void rescale(f64 growth, f64 backoff, f64 interval, bool found, Scaled now, u32 *counts, f32 *factors) {
    if (found) {
        f64 less = product((f64)now.scale, backoff);
        now.scale = (f32)(less > 1.1754943508222875e-38 ? less : 1.1754943508222875e-38);
        now.finite = 0;
        now.skipped += 1;
    } else if ((f64)(now.finite + 1) >= interval) {
        f32 more = (f32)product((f64)now.scale, growth);
        if (more < greatest<f32>()) now.scale = more;
        now.finite = 0;
    } else {
        now.finite += 1;
    }
    counts[0] = now.finite;
    counts[1] = now.skipped;
    factors[0] = now.scale;
    factors[INVERSE] = 1.0f / now.scale;
}
__global__ void optim_rescale(f64 growth, f64 backoff, f64 interval, const u32 *found, u32 *counts, f32 *factors) {
    for_each(1,
             [=](u64) { rescale(growth, backoff, interval, *found != 0, Scaled(counts, factors), counts, factors); });
}

// out = in * factors[INVERSE]. A step may take several launches. In the last one (`is_last`), the
// block that is done last sets `found` to whether a result of the step is not finite. Unless the
// interval is negative, it also sets the scale for the next step, after all blocks have read this
// step's.
template <class In, class Out>
__global__ void optim_unscale_replayed(Table<2> table, f64 growth, f64 backoff, f64 interval, u32 is_last, f32 *factors,
                                       u32 *counts, u32 *found) {
    Scaled now(counts, factors); // before the block that is done last waits for anything else
    unscale_each<In, Out>(table, factors[INVERSE], counts + FOUND);
    if (is_last == 0) return;
    finish_writes();
    sync_threads();
    // Each thread has used this step's factor, so its read is done, and has fenced FOUND if it set
    // it.
    if (threadIdx.x != 0 || atomic_add(counts + DONE, 1u) + 1 != gridDim.x) return;
    __threadfence(); // the others' FOUND
    u32 any = published_word(counts + FOUND);
    *found = any;
    counts[FOUND] = counts[DONE] = 0;
    if (interval >= 0) rescale(growth, backoff, interval, any != 0, now, counts, factors);
}

// out = in. Addresses: in, out.
template <class In, class Out> __global__ void optim_cast(Table<2> table) {
    for_each_piece(table, [&](u32 at, u64 begin, u32 count, u64) {
        u64 address[2] = {table.row[at].address[0], table.row[at].address[1]};
        map_piece<In, Out, 1, 1>(address, begin, count,
                                 [](const compute_t<In> *x, compute_t<Out> *y) { y[0] = (compute_t<Out>)x[0]; });
    });
}
