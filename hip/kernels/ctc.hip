// Connectionist temporal classification (Graves, Fernandez, Gomez, Schmidhuber 2006, "Connectionist
// Temporal Classification: Labelling Unsegmented Sequence Data with Recurrent Neural Networks",
// section 4): the forward and backward variables in log space. One block takes a sequence, with the
// states across its threads and one barrier for each time step.
//
// A sequence of `tl` labels has 2 tl + 1 states: a blank before, between and after the labels. The
// tensors log_probs [steps, batch, classes], targets [batch, labels] and lengths [batch] are
// contiguous. A length that exceeds its tensor gives NaN and raises the flag, as does a label among
// the first `tl` that is not a class; later labels are not read. If no alignment is possible, the
// loss is infinite and the gradient zero.
#include "prelude.h"

// If a sequence has at most this many states, the variables of two time steps are kept in a block's
// shared memory, else in global memory.
constexpr u32 LOCAL_STATES = 1024;

// The variables are logarithms of products over all steps. They reach the thousands, which leaves
// few fractional digits, while only their differences matter. So every STEPS_APART steps the
// greatest is subtracted from all. In f32, with 1000 steps of 30 classes and 200 labels, the error
// of a gradient is 1.1e-3 without this and without the sum over states in `ctc_gradient`, and
// 1.9e-5 with both. Subtracting at every step would halve the error, for 16 times the reductions.
constexpr u32 STEPS_APART = 16;

template <class C> constexpr C IMPOSSIBLE = (C)-__builtin_inff();

// log(exp(a) + exp(b) + exp(c)); NaN stays NaN.
template <class C> DEVICE C log_sum(C a, C b, C c) {
    C top = math::max(math::max(a, b), c);
    if (top == IMPOSSIBLE<C>) return top;
    return top + math::log(math::exp(a - top) + math::exp(b - top) + math::exp(c - top));
}

struct Greater { // NaN stays NaN
    template <class C> DEVICE C operator()(C a, C b) const { return math::max(a, b); }
};

// The greatest of a sequence's variables, or 0 if all are impossible. All threads of the block call
// it.
template <class C> DEVICE C greatest(u32 states, const C *x) {
    C top = block_reduce_range(states, IMPOSSIBLE<C>, [=](u64 s) { return x[s]; }, Greater());
    return top == IMPOSSIBLE<C> ? (C)0 : top;
}

// What all kernels need to know of one sequence of the batch.
template <class T> struct Sequence {
    using C = compute_t<T>;
    u64 batch, n;
    u32 classes, blank, steps, states, labels;
    bool valid;
    const T *log_probs;
    const i64 *targets;

    DEVICE i64 label(u32 s) const { return targets[s / 2]; }
    // 2 * the state's class, + 1 if an alignment may come from two states before, skipping the one
    // between. It may not from a label to its repetition. ~0 for a label that is not a class.
    DEVICE u32 tag(u32 s) const {
        if (s % 2 == 0) return blank * 2;
        i64 own = label(s);
        if ((u64)own >= classes) return ~0u;
        return (u32)own * 2 + (s >= 3 && own != (i64)blank && own != label(s - 2));
    }
    DEVICE C log_prob(u32 step, u32 tag) const {
        if (tag == ~0u) return (C)__builtin_nanf("");
        return load(log_probs[((u64)step * batch + n) * classes + tag / 2]);
    }
};

template <class T>
DEVICE Sequence<T> sequence(u64 batch, u64 n, u32 steps, u32 classes, u32 labels, u32 blank, const T *log_probs,
                            const i64 *targets, const i64 *input_lengths, const i64 *target_lengths) {
    i64 length = input_lengths[n], target = target_lengths[n];
    bool valid = (u64)length <= steps && (u64)target <= labels;
    return Sequence<T>{batch,
                       n,
                       classes,
                       blank,
                       valid ? (u32)length : 0,
                       valid ? 2 * (u32)target + 1 : 1,
                       (u32)(valid ? target : 0),
                       valid,
                       log_probs,
                       targets + n * labels};
}

// Raises the flag for a length that exceeds its tensor (reported as an index among the possible
// lengths) and for a label that is not a class.
template <class T>
DEVICE void check(const Sequence<T> &q, u32 steps, u32 labels, const i64 *input_lengths, const i64 *target_lengths,
                  u64 *flag) {
    if (threadIdx.x == 0 && !q.valid) {
        i64 length = input_lengths[q.n], target = target_lengths[q.n];
        if (!in_range(length, (u64)steps + 1)) raise_index(flag, length, (u64)steps + 1);
        else raise_index(flag, target, (u64)labels + 1);
    }
    for_each_in_block(q.labels, [=](u64 j) {
        if (!in_range(q.targets[j], q.classes)) raise_index(flag, q.targets[j], q.classes);
    });
}

// log p(targets | log_probs) from the last step's variables, less what was subtracted from these.
// Every thread gets it.
template <class C> DEVICE C log_likelihood(bool valid, u32 steps, u32 states, const C *last) {
    if (!valid) return (C)__builtin_nanf("");
    // With no steps, only the empty sequence is possible.
    if (steps == 0) return states == 1 ? (C)0 : IMPOSSIBLE<C>;
    return log_sum(last[states - 1], states > 1 ? last[states - 2] : IMPOSSIBLE<C>, IMPOSSIBLE<C>);
}

// The forward variables of one sequence, in which each step's variables lack a term that all its
// states share. `alpha` [kept, states of the longest sequence] has room for `kept` steps. If
// `keep`, it has the variables of all steps at the end.
template <class T>
DEVICE void alpha_of(const Sequence<T> &q, u32 kept, bool keep, u32 most_states, compute_t<T> *alpha, T *loss) {
    using C = compute_t<T>;
    SHARED(C, window_room, 2 * LOCAL_STATES);
    SHARED(u32, tag_room, LOCAL_STATES);
    C *window = window_room;
    u32 *tags = tag_room;
    bool local = q.states <= LOCAL_STATES;
    sync_threads(); // threads may still read an earlier sequence's
    if (local) for_each_in_block(q.states, [=](u64 s) { tags[s] = q.tag((u32)s); });
    C *last = window, taken = (C)0; // taken: what has been subtracted from all variables
    for (u32 t = 0; t < q.steps; ++t) {
        C *history = alpha + (u64)(t % kept) * most_states;
        C *now = local ? window + t % 2 * LOCAL_STATES : history;
        const C *before =
            local ? window + (t + 1) % 2 * LOCAL_STATES : alpha + (u64)((t + kept - 1) % kept) * most_states;
        bool both = local && keep;
        sync_threads();
        C top = (C)0;
        if (t > 0 && t % STEPS_APART == 0) taken += top = greatest(q.states, before);
        for_each_in_block(q.states, [=](u64 i) {
            u32 s = (u32)i, tag = local ? tags[s] : q.tag(s);
            C value = IMPOSSIBLE<C>;
            if (t > 0) {
                C skipped = (tag & 1) && s >= 2 ? before[s - 2] : IMPOSSIBLE<C>;
                value = log_sum(before[s], s >= 1 ? before[s - 1] : IMPOSSIBLE<C>, skipped) - top;
            } else if (s < 2) {
                value = (C)0;
            }
            value += q.log_prob(t, tag);
            now[s] = value;
            if (both) history[s] = value;
        });
        last = now;
    }
    sync_threads();
    if (threadIdx.x == 0) *loss = store<T>::from((C)0 - (taken + log_likelihood(q.valid, q.steps, q.states, last)));
}

// The parameters of ctc_alpha, in their order.
template <class T> struct Given {
    u64 batch;
    u32 steps, classes, labels, blank, kept;
    const T *log_probs;
    const i64 *targets, *input_lengths, *target_lengths;
    u64 *flag;
    compute_t<T> *alpha;
    T *loss;
};

// The loss of each sequence. alpha [kept, 2 labels + 1] for each sequence holds the forward
// variables of all steps (kept = steps), or of two (kept = 2) as working memory.
template <class T>
__global__ void ctc_alpha(u64 batch, u32 steps, u32 classes, u32 labels, u32 blank, u32 kept, const T *log_probs,
                          const i64 *targets, const i64 *input_lengths, const i64 *target_lengths, u64 *flag,
                          compute_t<T> *alpha, T *loss) {
    Given<T> given{batch,   steps,         classes,        labels, blank, kept, log_probs,
                   targets, input_lengths, target_lengths, flag,   alpha, loss};
    for_each_row(batch, [=](u64 n) {
        const Given<T> &g = reload_parameters(given);
        Sequence<T> q = sequence(g.batch, n, g.steps, g.classes, g.labels, g.blank, g.log_probs, g.targets,
                                 g.input_lengths, g.target_lengths);
        check(q, g.steps, g.labels, g.input_lengths, g.target_lengths, g.flag);
        u32 most = 2 * g.labels + 1;
        alpha_of(q, g.kept, g.kept == g.steps, most, g.alpha + n * g.kept * most, g.loss + n);
    });
}

// Replaces the forward variables [steps, states of the longest sequence] by the logarithms of the
// probabilities that an alignment passes each state at each step, up to a term that all states of a
// step share. `rows` is working memory for two steps.
template <class T>
DEVICE void posterior_of(const Sequence<T> &q, u32 most_states, compute_t<T> *rows, compute_t<T> *alpha,
                         compute_t<T> *likelihood) {
    using C = compute_t<T>;
    SHARED(C, window_room, 2 * LOCAL_STATES);
    SHARED(u32, tag_room, LOCAL_STATES);
    C *window = window_room;
    u32 *tags = tag_room;
    bool local = q.states <= LOCAL_STATES;
    const C *end = q.steps ? alpha + (u64)(q.steps - 1) * most_states : alpha;
    C total = log_likelihood(q.valid, q.steps, q.states, end);
    if (threadIdx.x == 0) *likelihood = total;
    if (total == IMPOSSIBLE<C>) return;
    // An earlier sequence's window may still be read, and this one's last step is overwritten.
    sync_threads();
    if (local) for_each_in_block(q.states, [=](u64 s) { tags[s] = q.tag((u32)s); });
    for (u32 t = q.steps; t-- > 0;) {
        // The step's backward variables, including the state's own probability at the step.
        C *now = local ? window + t % 2 * LOCAL_STATES : rows + (u64)(t % 2) * most_states;
        const C *after = local ? window + (t + 1) % 2 * LOCAL_STATES : rows + (u64)((t + 1) % 2) * most_states;
        C *out = alpha + (u64)t * most_states;
        bool last = t + 1 == q.steps;
        sync_threads();
        C top = (C)0;
        if (!last && t % STEPS_APART == 0) top = greatest(q.states, after);
        for_each_in_block(q.states, [=](u64 i) {
            u32 s = (u32)i, tag = local ? tags[s] : q.tag(s);
            C beta = s + 2 >= q.states ? (C)0 : IMPOSSIBLE<C>;
            if (!last) {
                C skipped = IMPOSSIBLE<C>;
                if (s + 2 < q.states && ((local ? tags[s + 2] : q.tag(s + 2)) & 1)) skipped = after[s + 2];
                beta = log_sum(after[s], s + 1 < q.states ? after[s + 1] : IMPOSSIBLE<C>, skipped) - top;
            }
            now[s] = beta + q.log_prob(t, tag);
            out[s] += beta;
        });
    }
}

// For each label, the index of the next equal label (or `labels`). The sign bit is set if an
// earlier label is equal.
template <class T> DEVICE void links_of(const Sequence<T> &q, u32 labels, u32 *links) {
    for_each_in_block(q.labels, [=](u64 j) {
        u32 next = (u32)j + 1, earlier = (u32)j;
        i64 own = q.targets[j];
        while (next < q.labels && q.targets[next] != own) ++next;
        while (earlier > 0 && q.targets[earlier - 1] != own) --earlier;
        links[j] = (next < q.labels ? next : labels) | (earlier > 0 ? 1u << 31 : 0u);
    });
}

// Computes three things from ctc_alpha's variables of all steps. It replaces the variables by the
// states' log-probabilities, up to a term that all states of a step share. It writes each
// sequence's log-likelihood, up to a term of the sequence; an impossible one is still -inf. And it
// writes the links of equal labels [batch, labels]. rows [batch, 2, 2 labels + 1] is working
// memory.
template <class T>
__global__ void ctc_posterior(u64 batch, u32 steps, u32 classes, u32 labels, u32 blank, const T *log_probs,
                              const i64 *targets, const i64 *input_lengths, const i64 *target_lengths,
                              compute_t<T> *rows, compute_t<T> *alpha, compute_t<T> *likelihood, u32 *links) {
    u64 most = 2 * (u64)labels + 1;
    for_each_row(batch, [=](u64 n) {
        Sequence<T> q =
            sequence(batch, n, steps, classes, labels, blank, log_probs, targets, input_lengths, target_lengths);
        links_of(q, labels, links + n * labels);
        posterior_of(q, (u32)most, rows + n * 2 * most, alpha + n * steps * most, likelihood + n);
    });
}

// Sums of the states' probabilities at a step, relative to the greatest: over all states, and over
// the blank ones.
template <class C> struct Passed {
    C all, blanks;
    DEVICE Passed operator+(Passed other) const { return Passed{all + other.all, blanks + other.blanks}; }
};

// The gradient of the log-probabilities [steps, batch, classes]. For each class it is minus the
// probability that an alignment emits the class at that step, times the loss' gradient. Every
// alignment passes one state in each step, so the states' probabilities are divided by their sum,
// which cancels their common term. `posterior` is overwritten. A block takes one step of a
// sequence; sums have a fixed order.
template <class T>
__global__ void ctc_gradient(u64 batch, u32 steps, u32 classes, u32 labels, u32 blank, compute_t<T> *posterior,
                             const compute_t<T> *likelihood, const i64 *targets, const i64 *input_lengths,
                             const i64 *target_lengths, const u32 *links, const T *loss_grad, T *out) {
    using C = compute_t<T>;
    u64 most = 2 * (u64)labels + 1;
    for_each_row((u64)steps * batch, [=](u64 row) {
        u64 t = row / batch, n = row - t * batch;
        Sequence<T> q = sequence(batch, n, steps, classes, labels, blank, (const T *)nullptr, targets, input_lengths,
                                 target_lengths);
        T *to = out + row * classes;
        T rest = store<T>::from(q.valid ? (C)0 : (C)__builtin_nanf(""));
        for_each_in_block(classes, [=](u64 c) { to[c] = rest; });
        if (t >= q.steps || likelihood[n] == IMPOSSIBLE<C>) return;
        sync_threads();
        C *p = posterior + (n * steps + t) * most;
        const u32 *link = links + n * labels;
        C top = greatest(q.states, p);
        auto passed = [=](u64 s) {
            C share = p[s] = math::exp(p[s] - top);
            return Passed<C>{share, s % 2 == 0 || q.label((u32)s) == (i64)blank ? share : (C)0};
        };
        Passed<C> sums = block_reduce_range(q.states, Passed<C>{(C)0, (C)0}, passed, Plus());
        sync_threads(); // other threads read the states of a label
        C g = -load(loss_grad[n]) / sums.all;
        if (threadIdx.x == 0) to[blank] = store<T>::from(g * sums.blanks);
        for_each_in_block(q.labels, [=](u64 j) {
            i64 own = q.targets[j];
            if (own == (i64)blank || (u64)own >= classes || link[j] >> 31) return;
            C sum = (C)0;
            for (u32 k = (u32)j; k < labels; k = link[k] & 0x7fffffffu) sum += p[2 * k + 1];
            to[own] = store<T>::from(g * sum);
        });
    });
}
