// Losses and their gradients. Over rows of class scores [rows, len] with one class each: cross
// entropy and negative log-likelihood. Over elements: squared error, Huber's loss and binary cross
// entropy. Tensors are contiguous; f16 and bf16 are computed in f32.
//
// A loss is a quotient of sums over all rows or elements. A launch with one block writes it. With
// more blocks, each block stores its sums in `partial` ([blocks, 2]), and `loss_total` joins them.
// Every run gives the same bits.
#include "prelude.h"
#include "log_sum_exp.h"

// ---------------------------------------------------------------- sums over a launch

// Sums of losses and of the weights by which they are divided if the host does not know the
// divisor.
template <class C> struct Sums {
    C loss, weight;
    DEVICE Sums operator+(Sums other) const { return Sums{loss + other.loss, weight + other.weight}; }
};

// The type in which a thread accumulates rows. On a CPU a thread may have millions of rows, and f32
// sums would lose precision.
template <class C, bool MANY = ONE_THREAD> struct over_rows {
    using type = C;
};
template <class C> struct over_rows<C, true> {
    using type = f64;
};
template <class C> using RowSums = Sums<typename over_rows<C>::type>;

// Divides by `divisor`, or by the sum of weights if `divisor` is 0. `weight` gets that sum unless
// it is null.
template <class T, class S, class C> DEVICE void conclude(Sums<S> all, f64 divisor, C *weight, T *out) {
    out[0] = store<T>::from((C)(all.loss / (divisor == 0 ? all.weight : (S)divisor)));
    if (weight != nullptr) weight[0] = (C)all.weight;
}

// Joins the threads' sums. Each thread of the launch calls it once.
template <class T, class S, class C> DEVICE void finish(Sums<S> mine, f64 divisor, C *partial, C *weight, T *out) {
    Sums<S> block = block_reduce(mine, Plus());
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1) {
        conclude(block, divisor, weight, out);
    } else {
        partial[2 * (u64)blockIdx.x] = (C)block.loss;
        partial[2 * (u64)blockIdx.x + 1] = (C)block.weight;
    }
}

// Launched with one block. `weight` may be null.
template <class T>
__global__ void loss_total(u64 parts, const compute_t<T> *partial, compute_t<T> *weight, f64 divisor, T *out) {
    using C = compute_t<T>;
    auto part = [=](u64 i) { return Sums<C>{partial[2 * i], partial[2 * i + 1]}; };
    Sums<C> all = block_reduce_range(parts, Sums<C>{(C)0, (C)0}, part, Plus());
    if (threadIdx.x == 0) conclude(all, divisor, weight, out);
}

// ---------------------------------------------------------------- rows of classes

// What is stored of a row of logits: the greatest, and 1 over the sum of exp(x - max). The gradient
// needs exp(x - max - log(sum)). max + log(sum) as one number would have few fractional digits if
// logits are in the thousands, so the two are stored separately.
template <class C> struct alignas(2 * sizeof(C)) Softmax {
    C max, share;
};

// What the scores of a row are. `read` returns a score's log-probability; `target` returns that of
// the target's score when there is no smoothing. `gradient` is the derivative of the loss with
// respect to a score. In the loss, this class's negated log-probability has the factor `k`, and all
// classes' factors add up to `all`; `row` is what `cross_entropy` saved.
struct Logits {
    static constexpr bool SUMMED = true;
    template <class T, class C> static DEVICE C gradient(C x, C k, C all, Softmax<C> row, bool, C) {
        return power_of<T>(x - row.max) * (row.share * all) - k;
    }
};
struct Probabilities { // a target's probability is clamped away from 0
    static constexpr bool SUMMED = false;
    template <class C> static DEVICE C read(C x) { return math::log(x); }
    template <class C> static DEVICE C target(C x, C least) { return math::log(x < least ? least : x); }
    template <class T, class C> static DEVICE C gradient(C x, C k, C, Softmax<C>, bool smoothed, C least) {
        return k == (C)0 || (!smoothed && x < least) ? (C)0 : -k / x;
    }
};
struct LogProbabilities {
    static constexpr bool SUMMED = false;
    template <class C> static DEVICE C read(C x) { return x; }
    template <class C> static DEVICE C target(C x, C) { return x; }
    template <class T, class C> static DEVICE C gradient(C, C k, C, Softmax<C>, bool, C) { return -k; }
};

// Targets whose rows do not count.
constexpr u32 MAX_PADS = 8;
struct Pads {
    u64 token[MAX_PADS];
};

// A row's class, its weight, and whether the row counts.
template <class C> struct Label {
    u64 at;
    C weight;
    bool counts;
};
template <class C, class I>
DEVICE Label<C> label_of(I target, u64 len, const C *weights, u32 pads, const Pads &pad, u64 *flag) {
    bool padded = false, valid = in_range(target, len);
    // All pads are compared, so that NVIDIA's compiler can unroll the loop and index by constants;
    // computed indices would give each thread a copy of the pads in memory. AMD's compiler indexes
    // the kernel's own copy by any number, and an unrolled loop would fill its scalar registers.
#if COMPILER_NVIDIA
    UNROLLED
#else
    ROLLED
#endif
    for (u32 k = 0; k < MAX_PADS; ++k) padded = padded || (k < pads && (u64)(i64)target == pad.token[k]);
    if (!valid && !padded) raise_index(flag, target, len);
    C weight = !valid ? (C)0 : weights == nullptr ? (C)1 : weights[(u64)(i64)target];
    return Label<C>{valid ? (u64)(i64)target : 0, weight, valid && !padded};
}

// Adds this thread's share of a row's loss to its sums. The thread that `leads` adds -(1 - a) w[t]
// log p[t]. Each thread adds -a / len * spread, where `spread` is its share of sum(w log p). a is
// the smoothing; below 0 there is none.
template <class C>
DEVICE void add_row(RowSums<C> &mine, bool leads, u64 len, Label<C> label, C a, C log_target, C spread) {
    if (leads) mine.weight += label.weight;
    if (!label.counts) return;
    if (a >= (C)0) {
        mine.loss -= a / (C)len * spread;
        log_target *= (C)1 - a;
    }
    if (leads && a != (C)1)
        mine.loss -= label.weight * log_target; // at 1 this term is 0, and computing 0 times -inf would give NaN
}

// The parameters of the cross-entropy kernels on logits, in their order.
template <class T, class I> struct Scored {
    u64 rows, len;
    const T *x;
    const I *targets;
    const compute_t<T> *weights;
    compute_t<T> *saved, *partial, smoothing, least;
    f64 divisor;
    u32 pads;
    Pads pad;
    u64 *flag;
    T *out;
};

// The loss of logits: the sum over all rows, divided by the sum of the targets' weights or by
// `divisor`. saved [2 rows + 1] gets each row's `Softmax`, then the sum of weights. A target that
// is not a class raises the flag; its row counts 0, as does a row whose target is a pad token.
// `Scope` says which threads compute a row. `pad` is the kernel's own parameter: a copy that is
// indexed would go to memory.
template <class Scope, class T, class I> DEVICE void logits_loss(const Scored<T, I> &given, const Pads &pad) {
    using C = compute_t<T>;
    RowSums<C> mine{};
    for_each_row_of<Scope>(given.rows, [&](u64 row) {
        const Scored<T, I> &g = reload_parameters(given);
        u64 len = g.len;
        const T *from = g.x + row * len;
        I target = g.targets[row]; // nothing waits for it until the row is read
        bool leads = Scope::lane() == 0, summed = g.smoothing >= (C)0 && g.weights == nullptr;
        Norm<C> e = norm_of<Scope>(len, from, summed);
        const Scored<T, I> &again = reload_parameters(given);
        const C *weights = again.weights;
        Label<C> label = label_of(target, len, weights, again.pads, pad, again.flag);
        C score = (C)load(from[label.at]), spread = (C)0;
        if (leads) reinterpret_cast<Softmax<C> *>(again.saved)[row] = Softmax<C>{e.max, (C)1 / e.sum};
        if (summed) spread = leads ? e.own_total - (C)len * e.log_sum : e.own_total;
        else if (again.smoothing >= (C)0)
            spread = own_sum<Scope>(len, (C)0, [=](u64 i) { return e.log_p((C)load(from[i])) * weights[i]; });
        add_row(mine, leads, len, label, again.smoothing, e.log_p(score), spread);
    });
    const Scored<T, I> &g = reload_parameters(given);
    finish(mine, g.divisor, g.partial, g.saved + 2 * g.rows, g.out);
}

// One block per row.
template <class T, class I>
__global__ ALL_WAVES(sizeof(T) <=
                     4) void cross_entropy(u64 rows, u64 len, const T *x, const I *targets, const compute_t<T> *weights,
                                           compute_t<T> *saved, compute_t<T> *partial, compute_t<T> smoothing,
                                           compute_t<T> least, f64 divisor, u32 pads, Pads pad, u64 *flag, T *out) {
    logits_loss<OfBlock>(
        Scored<T, I>{rows, len, x, targets, weights, saved, partial, smoothing, least, divisor, pads, pad, flag, out},
        pad);
}
// One warp per row: no barriers, and one short reduction.
template <class T, class I>
__global__ ALL_WAVES(sizeof(T) <= 4) void cross_entropy_warps(u64 rows, u64 len, const T *x, const I *targets,
                                                              const compute_t<T> *weights, compute_t<T> *saved,
                                                              compute_t<T> *partial, compute_t<T> smoothing,
                                                              compute_t<T> least, f64 divisor, u32 pads, Pads pad,
                                                              u64 *flag, T *out) {
    logits_loss<OfWarp>(
        Scored<T, I>{rows, len, x, targets, weights, saved, partial, smoothing, least, divisor, pads, pad, flag, out},
        pad);
}
// One thread per row.
template <class T, class I>
__global__ void cross_entropy_short(u64 rows, u64 len, const T *x, const I *targets, const compute_t<T> *weights,
                                    compute_t<T> *saved, compute_t<T> *partial, compute_t<T> smoothing,
                                    compute_t<T> least, f64 divisor, u32 pads, Pads pad, u64 *flag, T *out) {
    logits_loss<Alone>(
        Scored<T, I>{rows, len, x, targets, weights, saved, partial, smoothing, least, divisor, pads, pad, flag, out},
        pad);
}

// The loss of probabilities or log-probabilities. With smoothing a block computes a row, else a
// thread. saved [1] gets the sum of weights.
template <class Kind, class T, class I>
__global__ void nll_loss(u64 rows, u64 len, const T *x, const I *targets, const compute_t<T> *weights,
                         compute_t<T> *saved, compute_t<T> *partial, compute_t<T> smoothing, compute_t<T> least,
                         f64 divisor, u32 pads, Pads pad, u64 *flag, T *out) {
    using C = compute_t<T>;
    RowSums<C> mine{};
    if (smoothing < (C)0) {
        for_each_row_of<Alone>(rows, [&](u64 row) {
            Label<C> label = label_of(targets[row], len, weights, pads, pad, flag);
            add_row(mine, true, len, label, smoothing, Kind::target((C)load(x[row * len + label.at]), least), (C)0);
        });
    } else {
        for_each_row(rows, [&](u64 row) {
            const T *from = x + row * len;
            Label<C> label = label_of(targets[row], len, weights, pads, pad, flag);
            auto term = [=](u64 i) { return Kind::read((C)load(from[i])) * (weights == nullptr ? (C)1 : weights[i]); };
            C spread = own_sum<OfBlock>(len, (C)0, term);
            add_row(mine, threadIdx.x == 0, len, label, smoothing, Kind::read((C)load(from[label.at])), spread);
        });
    }
    finish(mine, divisor, partial, saved, out);
}

// The factors from which the gradient of an element is made.
template <class C> struct Shares {
    // Of the target; of each class, times its weight; of all classes, with their weights summed.
    C on, off, spread;
};
template <class C> DEVICE Shares<C> shares(u64 len, const C *weights, C smoothing) {
    C a = smoothing < (C)0 ? (C)0 : smoothing, off = a / (C)len, all = (C)len;
    if (a > (C)0 && weights != nullptr) all = block_reduce_range(len, (C)0, [=](u64 i) { return weights[i]; }, Plus());
    return Shares<C>{(C)1 - a, off, off * all};
}
// The gradient times `factor`. It is 0 for a row that does not count, even if the factor is not
// finite because no row has a weight.
template <class Kind, class T, class C>
DEVICE C class_gradient(u64 i, C x, Label<C> label, Shares<C> of, const C *weights, Softmax<C> row, bool smoothed,
                        C least, C factor) {
    C on = of.on * label.weight, k = i == label.at ? on : (C)0;
    if (of.off != (C)0) k += of.off * (weights == nullptr ? (C)1 : weights[i]);
    C slope = Kind::template gradient<T>(x, k, on + of.spread, row, smoothed, least);
    return label.counts ? factor * slope : (C)0;
}
// What the loss saved, for one row and for all rows.
template <class Kind, class C> DEVICE Softmax<C> softmax_of(const C *saved, u64 row) {
    return Kind::SUMMED ? reinterpret_cast<const Softmax<C> *>(saved)[row] : Softmax<C>{};
}
template <class Kind, class C> DEVICE C weight_of(const C *saved, u64 rows) {
    return saved[Kind::SUMMED ? 2 * rows : 0];
}

// On NVIDIA more blocks are resident if elements have 16 bits, and a thread has two accesses in flight. On an
// H200, [65536, 4096] bf16 takes 270 us in blocks of 64 threads, and 453 us without both in blocks of 256.
#if COMPILER_NVIDIA
#define WAVES(T) __launch_bounds__(256, sizeof(T) == 2 ? 5 : 4)
template <class T> constexpr bool TWO = sizeof(T) == 2;
#else
#define WAVES(T) ALL_WAVES(sizeof(T) <= 4)
template <class T> constexpr bool TWO = false;
#endif

// out = d loss / d x, where `saved` is what the loss wrote. One block per row, of at most 256 threads.
template <class Kind, class T, class I>
__global__ WAVES(T) void cross_entropy_backward(u64 rows, u64 len, const T *x, const I *targets,
                                                const compute_t<T> *weights, const compute_t<T> *saved, const T *grad,
                                                compute_t<T> smoothing, compute_t<T> least, f64 divisor, u32 pads,
                                                Pads pad, T *out) {
    using C = compute_t<T>;
    Shares<C> of = shares(len, weights, smoothing);
    C factor = (C)load(grad[0]) / (divisor == 0 ? weight_of<Kind>(saved, rows) : (C)divisor);
    bool smoothed = smoothing >= (C)0;
    for_each_row(rows, [=, &pad](u64 row) {
        const T *from = x + row * len;
        T *to = out + row * len;
        Label<C> label = label_of(targets[row], len, weights, pads, pad, (u64 *)nullptr);
        Softmax<C> kept = softmax_of<Kind>(saved, row);
        auto one = [=](u64 i, C v) {
            return class_gradient<Kind, T>(i, v, label, of, weights, kept, smoothed, least, factor);
        };
        if constexpr (ONE_THREAD)
            for_each_in_block(len, [=](u64 i) { to[i] = store<T>::from(one(i, (C)load(from[i]))); });
        else map_row<TWO<T>>(len, to, one, from);
    });
}
// The same for short rows: neighbouring threads have neighbouring elements, and a block has several
// rows.
template <class Kind, class T, class I>
__global__ void cross_entropy_short_backward(u64 rows, u64 len, const T *x, const I *targets,
                                             const compute_t<T> *weights, const compute_t<T> *saved, const T *grad,
                                             compute_t<T> smoothing, compute_t<T> least, f64 divisor, u32 pads,
                                             Pads pad, T *out) {
    using C = compute_t<T>;
    Shares<C> of = shares(len, weights, smoothing);
    C factor = (C)load(grad[0]) / (divisor == 0 ? weight_of<Kind>(saved, rows) : (C)divisor);
    bool smoothed = smoothing >= (C)0;
    for_each(rows * len, [=, &pad](u64 at) {
        u64 row = divided(at, len);
        Label<C> label = label_of(targets[row], len, weights, pads, pad, (u64 *)nullptr);
        Softmax<C> kept = softmax_of<Kind>(saved, row);
        C d =
            class_gradient<Kind, T>(at - row * len, (C)load(x[at]), label, of, weights, kept, smoothed, least, factor);
        out[at] = store<T>::from(d);
    });
}

// ---------------------------------------------------------------- elements

// The sums of f(i, a[i], b[i]) over this block's share of n elements, with weight 0.
template <class T, class F> DEVICE Sums<compute_t<T>> sum_of(u64 n, F f, const T *a, const T *b) {
    using C = compute_t<T>;
    u64 begin = n * blockIdx.x / gridDim.x, len = n * (blockIdx.x + 1) / gridDim.x - begin;
    const T *x = a + begin, *y = b + begin;
    C sum = (C)0;
    if constexpr (ONE_THREAD)
        sum = block_reduce_range(len, sum, [=](u64 i) { return f((C)load(x[i]), (C)load(y[i])); }, Plus());
    else for_each_of_row(whole_block(), len, [&](u64, T v, T w) { sum += f((C)load(v), (C)load(w)); }, x, y);
    return Sums<C>{sum, (C)0};
}

// Losses of a residual r. p and q belong to Huber's loss: the bound beyond which it is linear, and
// half the bound's square.
struct Squared {
    template <class C> static DEVICE C loss(C r, C, C) { return r * r; }
    template <class C> static DEVICE C slope(C r, C) { return (C)2 * r; }
};
struct Huber {
    template <class C> static DEVICE C loss(C r, C p, C q) {
        C size = math::abs(r);
        return select(size > p, p * size - q, (C)0.5 * r * r);
    }
    template <class C> static DEVICE C slope(C r, C p) {
        C low = r < -p ? -p : r;
        return low > p ? p : low;
    }
};

// out[i] = loss(a[i] - b[i]), or loss(a[i]) if b is null. All begin at 16-byte boundaries.
template <class Kind, class T>
__global__ void residual_loss(u64 n, const T *a, const T *b, compute_t<T> p, compute_t<T> q, T *out) {
    using C = compute_t<T>;
    if (b == nullptr) map_contiguous(n, out, [=](C x) { return Kind::loss(x, p, q); }, a);
    else map_contiguous(n, out, [=](C x, C y) { return Kind::loss(x - y, p, q); }, a, b);
}
// The sum of these losses, divided by `divisor`.
template <class Kind, class T>
__global__ void residual_loss_sum(u64 n, const T *a, const T *b, compute_t<T> *partial, compute_t<T> p, compute_t<T> q,
                                  f64 divisor, T *out) {
    using C = compute_t<T>;
    finish(sum_of(n, [=](C x, C y) { return Kind::loss(x - y, p, q); }, a, b), divisor, partial, (C *)nullptr, out);
}
// by_a[i] = f(in[i]...), and by_b[i] = -f(in[i]...) unless by_b is null. All begin at 16-byte
// boundaries.
template <class T, class F, class... In> DEVICE void map_both_ways(u64 n, T *by_a, T *by_b, F f, const In *...in) {
    if (by_b == nullptr) return map_contiguous(n, by_a, f, in...);
#if COMPILER_HOST && !HIP_CPU_LOCKSTEP
    for_each(n, [=](u64 i) {
        compute_t<T> value = f(load(in[i])...);
        by_a[i] = store<T>::from(value);
        by_b[i] = store<T>::from(-value);
    });
#else
    constexpr u32 WIDTH = LANES<T>;
    u64 vectors = n / WIDTH;
    for_each(vectors, [=](u64 v) {
        auto each = [&](Vector<In, WIDTH>... x) {
            Vector<T, WIDTH> to_a, to_b;
            UNROLLED
            for (u32 k = 0; k < WIDTH; ++k) {
                compute_t<T> value = f(load(x.lane[k])...);
                to_a.lane[k] = store<T>::from(value);
                to_b.lane[k] = store<T>::from(-value);
            }
            reinterpret_cast<Vector<T, WIDTH> *>(by_a)[v] = to_a;
            reinterpret_cast<Vector<T, WIDTH> *>(by_b)[v] = to_b;
        };
        each(reinterpret_cast<const Vector<In, WIDTH> *>(in)[v]...);
    });
    for_each(n - vectors * WIDTH, [=](u64 i) {
        u64 at = vectors * WIDTH + i;
        compute_t<T> value = f(load(in[at])...);
        by_a[at] = store<T>::from(value);
        by_b[at] = store<T>::from(-value);
    });
#endif
}

// by_a gets the gradient of a, by_b that of b unless it is null. Without a sum each element has its
// own `grad`; with a sum all have grad[0] / divisor. If b is null, so is by_b.
template <class Kind, class T>
__global__ void residual_loss_backward(u64 n, const T *a, const T *b, const T *grad, compute_t<T> p, T *by_a, T *by_b) {
    using C = compute_t<T>;
    if (b == nullptr) map_contiguous(n, by_a, [=](C x, C g) { return Kind::slope(x, p) * g; }, a, grad);
    else map_both_ways(n, by_a, by_b, [=](C x, C y, C g) { return Kind::slope(x - y, p) * g; }, a, b, grad);
}
template <class Kind, class T>
__global__ void residual_loss_sum_backward(u64 n, const T *a, const T *b, const T *grad, compute_t<T> p, f64 divisor,
                                           T *by_a, T *by_b) {
    using C = compute_t<T>;
    C g = (C)load(grad[0]) / (C)divisor;
    map_both_ways(n, by_a, by_b, [=](C x, C y) { return Kind::slope(x - y, p) * g; }, a, b);
}

// Binary cross entropy of one element and its slope, from x and the target y in 0..1.
// The loss is (1 - y) x - log(sigmoid(x)), written so that no terms of opposite sign meet: a large
// |x| does not absorb the contribution of exp(-|x|).
struct BinaryLogits {
    // The slope for large |x|.
    template <class C> static DEVICE C limit(C x, C y) { return x > (C)0 ? (C)1 - y : -y; }
    template <class C> static DEVICE C loss(C x, C y) {
        return limit(x, y) * x + math::log1p(math::exp(-math::abs(x)));
    }
    template <class C> static DEVICE C slope(C x, C y) {
        C e = math::exp(-math::abs(x)), rest = e / ((C)1 + e);
        return limit(x, y) + (x > (C)0 ? -rest : rest);
    }
};
struct BinaryProbabilities { // -y log(x) - (1 - y) log(1 - x), with logarithms of at least -100
    template <class C> static DEVICE C kept(C log) { return log < (C)-100 ? (C)-100 : log; }
    template <class C> static DEVICE C loss(C x, C y) {
        return (y - (C)1) * kept(math::log1p(-x)) - y * kept(math::log(x));
    }
    template <class C> static DEVICE C slope(C x, C y) {
        C no = math::log1p(-x) < (C)-100 ? (C)0 : ((C)1 - y) / ((C)1 - x);
        C yes = math::log(x) < (C)-100 ? (C)0 : y / x;
        return no - yes;
    }
};

// The weight of an element: by its target if there is one column, otherwise by its column.
// Smoothing divides by `classes`.
template <class C, class I> struct Binary {
    const I *targets;
    const C *weights;
    u64 columns, count;
    f64 smoothing, classes;
    u64 *flag;

    DEVICE C target(u64 i) const {
        C y = (C)targets[i];
        return smoothing < 0 ? y : y * ((C)1 - (C)smoothing) + (C)smoothing / (C)classes;
    }
    DEVICE C weight(u64 i) const {
        if (weights == nullptr) return (C)1;
        if (columns > 0) return weights[i - divided(i, columns) * columns];
        I at = targets[i];
        if (in_range(at, count)) return weights[(u64)(i64)at];
        raise_index(flag, at, count);
        return (C)0;
    }
};

// The sum over n elements, divided by `divisor`. If columns is 0, weights [count] are indexed by
// target.
template <class Kind, class T, class I>
__global__ void binary_cross_entropy(u64 n, u64 columns, u64 count, const T *x, const I *targets,
                                     const compute_t<T> *weights, compute_t<T> *partial, f64 smoothing, f64 classes,
                                     f64 divisor, u64 *flag, T *out) {
    using C = compute_t<T>;
    Binary<C, I> of{targets, weights, columns, count, smoothing, classes, flag};
    u64 begin = n * blockIdx.x / gridDim.x, len = n * (blockIdx.x + 1) / gridDim.x - begin;
    auto loss = [=](u64 k) {
        u64 i = begin + k;
        return Kind::loss((C)load(x[i]), of.target(i)) * of.weight(i);
    };
    C sum = (C)0;
    if constexpr (ONE_THREAD) sum = block_reduce_range(len, sum, loss, Plus());
    else
        for (u64 k = threadIdx.x; k < len; k += blockDim.x) sum += loss(k);
    finish(Sums<C>{sum, (C)0}, divisor, partial, (C *)nullptr, out);
}
template <class Kind, class T, class I>
__global__ void binary_cross_entropy_backward(u64 n, u64 columns, u64 count, const T *x, const I *targets,
                                              const compute_t<T> *weights, const T *grad, f64 smoothing, f64 classes,
                                              f64 divisor, u64 *flag, T *out) {
    using C = compute_t<T>;
    Binary<C, I> of{targets, weights, columns, count, smoothing, classes, flag};
    C g = (C)load(grad[0]) / (C)divisor;
    for_each(n, [=](u64 i) { out[i] = store<T>::from(Kind::slope((C)load(x[i]), of.target(i)) * of.weight(i) * g); });
}
