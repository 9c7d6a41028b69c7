// Batch normalisation of contiguous x, seen as [batch, channels, spatial]. Each channel has its own
// statistics, over batch and spatial. f16 and bf16 are computed in f32, and their parameters and
// running statistics are f32.
//
// A block computes one part of one tile of `wide` channels. A tile is one channel if the channel's
// elements are contiguous. Otherwise it has several channels, so that neighbouring threads read
// neighbouring channels. Sums have a fixed order: every run with the same grid gives the same bits.
#include "far_from_mean.h"
#include "prelude.h"
#include "relu.h"
#include "rows.h"

// The kernels declare blocks of at most 256 threads; otherwise the compiler would not accept that
// all waves are possible. On CDNA these kernels reach all waves without ALL_WAVES; with it, the
// compiler would give up scalar registers that they need.
#if __GFX9__
#define ALL_WAVES_ON_RDNA(wanted)
#else
#define ALL_WAVES_ON_RDNA(wanted) ALL_WAVES(wanted)
#endif

// Marks a number that is the same in all threads of a block. It goes to scalar registers, except on
// CDNA, which has none left.
DEVICE u64 block_uniform(u64 value) {
#if __GFX9__
    return value;
#else
    return (u64)warp_uniform((u32)(value >> 32)) << 32 | warp_uniform((u32)value);
#endif
}

// The first parameters of every kernel: the tensors' sizes, and how they are divided. Functions
// reload them where they need them (`reload_parameters`): if kept, they and the quotients computed
// from them don't fit into the scalar registers.
struct Shape {
    u64 batch, channels, spatial;
    u32 wide, parts;
    DEVICE u64 count() const { return batch * spatial; } // elements of a channel
    // The unit of which parts are made: this many contiguous elements of one channel in one sample.
    template <class T> DEVICE u32 unit() const { return wide == 1 && spatial % LANES<T> == 0 ? LANES<T> : 1; }
};

// One part of every channel: its first sample, its first element in that sample, and the number of
// its elements. The host makes parts small enough for 32-bit byte offsets: from a tile's elements
// in the part's first sample to those in its last.
struct Part {
    u64 sample, first;
    u32 count;
};
template <class T> DEVICE Part part_of(const Shape &s, u32 part) {
    u64 units = s.count() / s.unit<T>(), each = divided_in_f64(units, s.parts), more = units - each * s.parts;
    u64 begin = (part * each + (part < more ? part : more)) * s.unit<T>(), sample = divided_in_f64(begin, s.spatial);
    return Part{sample, begin - sample * s.spatial, ((u32)each + (part < more)) * s.unit<T>()};
}

// A thread's share of a part of a channel: every `strips`-th piece.
struct Place {
    u64 tile; // the tile's first channel
    u32 k;    // the channel's place in the tile
    u32 part, lanes, strip, strips;
    bool inside; // else the thread only takes part in reductions
    DEVICE u64 channel() const { return tile + k; }
};

// Calls f(place) for each channel of each tile and part; all threads of a block call it together. f
// is compiled twice: for tiles of one channel, most of a place is the same for all threads, which
// saves registers. Without WIDE only that copy is compiled.
template <bool WIDE = true, class F> DEVICE void for_each_place(const Shape &given, F f) {
    u64 tiles = given.wide == 1 ? given.channels : divided_in_f64(given.channels + given.wide - 1, given.wide);
    bool alone = given.wide == 1;
    u32 lanes = given.wide < blockDim.x ? given.wide : blockDim.x;
    for_each_row(tiles * given.parts, [=](u64 index) {
        const Shape s = reload_parameters(given);
        u64 tile = divided_in_f64(index, s.parts);
        u32 part = (u32)(index - tile * s.parts);
        if (!ONE_THREAD && (alone || !WIDE)) return f(Place{tile, 0, part, 1, threadIdx.x, blockDim.x, true});
        if constexpr (!ONE_THREAD && !WIDE) return;
        for (u32 first = 0; first < s.wide; first += lanes) {
            u32 lane = threadIdx.x % lanes;
            u32 k = first + lane;
            f(Place{tile * s.wide, k, part, lanes, threadIdx.x / lanes, (blockDim.x - lane + lanes - 1) / lanes,
                    k < s.wide && tile * s.wide + k < s.channels});
        }
    });
}

// Calls f(n, x's piece, dy's piece) for each piece of WIDTH elements that this thread has, with
// several loads at a time. n is the sample, counted from the part's first. BOTH: `dy` is read.
// WRITES: the result of f is written to `out`.
template <u32 WIDTH, bool BOTH, bool WRITES, class F, class T>
DEVICE void pieces_by(const Shape &given, Place p, F f, const T *x, const T *dy, T *out) {
    using Piece = Vector<T, WIDTH>;
    const Shape s = reload_parameters(given);
    const Part part = part_of<T>(s, p.part);
    // If a channel has 2^29 elements in one sample, every part lies within one sample, and byte
    // offsets fit 32 bits only if they are counted from the part's first element.
    bool far = s.spatial >> 29 != 0;
    u32 spatial = far ? ~0u : (u32)s.spatial / WIDTH, first = far ? 0 : (u32)part.first / WIDTH, at = first + p.strip,
        end = first + part.count / WIDTH;
    if (!p.inside || at >= end) return;
    u64 base = block_uniform((part.sample * s.channels + p.tile) * s.spatial + (far ? part.first : 0));
    x += base;
    if constexpr (BOTH) dy += base;
    if constexpr (WRITES) out += base;
    u32 left = (end - at + p.strips - 1) / p.strips; // pieces
    u32 n = at / spatial, i = at - n * spatial, sample = (u32)s.channels * spatial,
        offset = n * sample + p.k * spatial + i;
    u32 step_n = p.strips / spatial, step_i = p.strips - step_n * spatial, step = step_n * sample + step_i;
    auto next = [&]() {
        offset += step, n += step_n, i += step_i;
        if (i >= spatial) i -= spatial, offset += sample - spatial, ++n;
    };
    auto take = [=](u32 at, u32 n, Piece a, Piece g) {
        if constexpr (WRITES) vector_at<WIDTH>(out, at * WIDTH) = f(n, a, g);
        else f(n, a, g);
    };
    // Unpacking two tensors of 16-bit elements leaves registers for only one piece of each.
    constexpr u32 ABREAST = WIDTH == 1 && sizeof(T) < 8 ? 4 : BOTH && WIDTH == 8 ? 1 : 2;
    for (; left >= ABREAST; left -= ABREAST) {
        u32 where[ABREAST], of[ABREAST];
        Piece a[ABREAST], g[BOTH ? ABREAST : 1];
        UNROLLED
        for (u32 k = 0; k < ABREAST; ++k, next()) {
            where[k] = offset, of[k] = n;
            a[k] = vector_at<WIDTH>(x, offset * WIDTH);
            if constexpr (BOTH) g[k] = vector_at<WIDTH>(dy, offset * WIDTH);
        }
        UNROLLED
        for (u32 k = 0; k < ABREAST; ++k) take(where[k], of[k], a[k], g[BOTH ? k : 0]);
    }
    ROLLED
    for (; left > 0; --left, next()) {
        Piece g{};
        if constexpr (BOTH) g = vector_at<WIDTH>(dy, offset * WIDTH);
        take(offset, n, vector_at<WIDTH>(x, offset * WIDTH), g);
    }
}

// The same, in pieces of 16 bytes if these are aligned in all tensors, else element by element.
template <bool BOTH, bool WRITES, class F, class T>
DEVICE void for_each_piece(const Shape &s, Place p, F f, const T *x, const T *dy, T *out) {
    bool aligned = past_boundary(x) == 0 && past_boundary(dy) == 0 && past_boundary(out) == 0;
    if (LANES<T> > 1 && p.lanes == 1 && s.unit<T>() == LANES<T> && aligned)
        pieces_by<LANES<T>, BOTH, WRITES>(s, p, f, x, dy, out);
    else pieces_by<1, BOTH, WRITES>(s, p, f, x, dy, out);
}

// Combines the values of a channel's threads by op; each of them gets the result. `lanes` divides
// 256 or is the block's size.
template <class V, class Op> DEVICE V table_reduce(u32 lanes, V value, Op op) {
    // This many threads at a time leave shared memory for other blocks.
    constexpr u32 TABLE = 256;
    SHARED(V, table, TABLE);
    u32 lane = threadIdx.x % lanes;
    V all{};
    for (u32 base = 0; base < blockDim.x; base += TABLE) {
        sync_threads(); // threads may still read the earlier values
        if (threadIdx.x - base < TABLE) table[threadIdx.x - base] = value;
        sync_threads();
        u32 end = blockDim.x - base < TABLE ? blockDim.x - base : TABLE;
        for (u32 k = lane; k < end; k += lanes) all = base + k == lane ? table[k] : op(all, table[k]);
    }
    return all;
}
template <class V, class Op> DEVICE V channel_reduce(Place p, V value, Op op) {
    if constexpr (ONE_THREAD) return value;
    if (p.lanes == 1) return block_reduce(value, op);
    return table_reduce(p.lanes, value, op);
}

// Count, mean and the sum of squared deviations. Joining them has no cancellation, whatever the
// mean (Chan, Golub and LeVeque 1983).
template <class C> struct Moments {
    C count, mean, m2;
};
struct Join {
    template <class C> DEVICE Moments<C> operator()(Moments<C> a, Moments<C> b) const {
        C count = a.count + b.count, d = b.mean - a.mean;
        if (a.count == (C)0) return b;
        if (b.count == (C)0) return a;
        C share = b.count / count;
        return Moments<C>{count, a.mean + d * share, a.m2 + b.m2 + d * d * a.count * share};
    }
};

template <class C> struct Pair {
    C a, b;
    DEVICE Pair operator+(Pair other) const { return Pair{a + other.a, b + other.b}; }
};

// The moments of a part of a channel. They are computed by spans of elements: the span's first
// element is subtracted from the others, which keeps the squares about as small as the deviations'.
template <class T> DEVICE Moments<compute_t<T>> moments_of(const Shape &s, Place p, const T *x) {
    using C = compute_t<T>;
    constexpr u32 SPAN = 256, SUMS = ONE_THREAD ? LANES<T> : 1;
    Moments<C> all{(C)0, (C)0, (C)0};
    // On a CPU there is one sum for each position in a piece, so that whole pieces are added at a
    // time.
    C first = (C)0, sum[SUMS] = {}, squares[SUMS] = {};
    u32 count = 0;
    auto flush = [&]() {
        if (count == 0) return;
        C total = (C)0, square = (C)0;
        for (u32 j = 0; j < SUMS; ++j) {
            total += sum[j], square += squares[j];
            sum[j] = squares[j] = (C)0;
        }
        C mean = total / (C)count;
        C m2 = square - total * mean;
        all = Join()(all, Moments<C>{(C)count, first + mean, m2 < (C)0 ? (C)0 : m2});
        count = 0;
    };
    auto take = [&](u32, auto a, auto) {
        constexpr u32 WIDTH = sizeof(a) / sizeof(T);
        if (count == 0) first = load(a.lane[0]);
        for (u32 j = 0; j < WIDTH; ++j) {
            if (j == 4) a = recompute_after(sum[0], a);
            C d = (C)load(a.lane[j]) - first;
            sum[j % SUMS] += d;
            squares[j % SUMS] += d * d;
        }
        count += WIDTH;
        if (count >= SPAN) flush();
    };
    for_each_piece<false, false>(s, p, take, x, (const T *)nullptr, (T *)nullptr);
    flush();
    return channel_reduce(p, all, Join());
}

// The moments of a channel, joined from those of its parts.
template <class T>
DEVICE Moments<compute_t<T>> joined_moments(const Shape &given, Place p, const compute_t<T> *partial) {
    using C = compute_t<T>;
    const Shape s = reload_parameters(given);
    Moments<C> all{(C)0, (C)0, (C)0};
    if (p.inside) {
        for (u32 part = p.strip; part < s.parts; part += p.strips) {
            C count = (C)part_of<T>(s, part).count;
            u64 at = part * s.channels + p.channel();
            all = Join()(all, Moments<C>{count, partial[at], partial[s.parts * s.channels + at]});
        }
    }
    return channel_reduce(p, all, Join());
}

// The variance and 1 / sqrt(variance + epsilon); NaN without elements.
template <class C> struct Spread {
    C variance, rstd;
};
template <class C> DEVICE Spread<C> spread(Moments<C> m, f64 epsilon) {
    C variance = m.m2 / m.count;
    return Spread<C>{variance, (C)1 / math::sqrt(variance + (C)epsilon)};
}

// A running statistic after a batch.
template <class C> DEVICE C updated(C before, C of_batch, f64 momentum) {
    return before * (C)(1.0 - momentum) + of_batch * (C)momentum;
}

// y = (x - mean) * rstd * gamma + beta over a part of a channel, or the ReLU of that.
template <bool RELU = false, class T>
DEVICE void apply(const Shape &s, Place p, const T *x, const compute_t<T> *gamma, const compute_t<T> *beta,
                  compute_t<T> mean, compute_t<T> rstd, T *y) {
    using C = compute_t<T>;
    if (!p.inside) return;
    C scale = rstd * gamma[p.channel()], shift = beta[p.channel()];
    auto each = [=](u32, auto a, auto) {
        constexpr u32 WIDTH = sizeof(a) / sizeof(T);
        Vector<T, WIDTH> out;
        C last = (C)0;
        for (u32 j = 0; j < WIDTH; ++j) {
            if (j == 4) a = recompute_after(last, a);
            last = ((C)load(a.lane[j]) - mean) * scale + shift;
            out.lane[j] = store<T>::from(last);
            if constexpr (RELU) out.lane[j] = relu(out.lane[j]);
        }
        return out;
    };
    for_each_piece<false, true>(s, p, each, x, (const T *)nullptr, y);
}

// Writes partial[2, parts, channels]: the mean and the sum of squared deviations of each part.
template <class T>
__global__ __launch_bounds__(256)
    ALL_WAVES_ON_RDNA(true) void batch_norm_moments(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts,
                                                    const T *x, compute_t<T> *partial) {
    Shape s{batch, channels, spatial, wide, parts};
    for_each_place(s, [=](Place p) {
        auto m = moments_of(s, p, x);
        if (!p.inside || p.strip != 0) return;
        u64 at = (u64)p.part * channels + p.channel();
        partial[at] = m.mean;
        partial[parts * channels + at] = m.m2;
    });
}

// The second step. Writes y; statistics[2, channels], which are mean and rstd; and the new running
// mean and (biased) variance, in which this batch has the weight `momentum`. They may be the old
// ones.
template <bool RELU, class T>
DEVICE void apply_joined(const Shape &s, const T *x, const compute_t<T> *gamma, const compute_t<T> *beta,
                         const compute_t<T> *running_mean, const compute_t<T> *running_var, const compute_t<T> *partial,
                         f64 momentum, f64 epsilon, T *y, compute_t<T> *statistics, compute_t<T> *mean_after,
                         compute_t<T> *variance_after) {
    for_each_place(s, [=](Place p) {
        auto m = joined_moments<T>(s, p, partial);
        auto to = spread(m, epsilon);
        // Without elements the mean is NaN, as it is in Burn.
        auto mean = s.batch * s.spatial == 0 ? to.variance : m.mean;
        if (p.inside && p.part == 0 && p.strip == 0) {
            u64 c = p.channel();
            statistics[c] = mean;
            statistics[s.channels + c] = to.rstd;
            mean_after[c] = updated(running_mean[c], mean, momentum);
            variance_after[c] = updated(running_var[c], to.variance, momentum);
        }
        apply<RELU>(s, p, x, gamma, beta, mean, to.rstd, y);
    });
}
template <class T>
__global__ __launch_bounds__(256)
    ALL_WAVES_ON_RDNA(true) void batch_norm_apply(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x,
                                                  const compute_t<T> *gamma, const compute_t<T> *beta,
                                                  const compute_t<T> *running_mean, const compute_t<T> *running_var,
                                                  const compute_t<T> *partial, f64 momentum, f64 epsilon, T *y,
                                                  compute_t<T> *statistics, compute_t<T> *mean_after,
                                                  compute_t<T> *variance_after) {
    Shape s{batch, channels, spatial, wide, parts};
    apply_joined<false>(s, x, gamma, beta, running_mean, running_var, partial, momentum, epsilon, y, statistics,
                        mean_after, variance_after);
}
template <class T>
__global__ __launch_bounds__(256)
    ALL_WAVES_ON_RDNA(true) void batch_norm_relu(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x,
                                                 const compute_t<T> *gamma, const compute_t<T> *beta,
                                                 const compute_t<T> *running_mean, const compute_t<T> *running_var,
                                                 const compute_t<T> *partial, f64 momentum, f64 epsilon, T *y,
                                                 compute_t<T> *statistics, compute_t<T> *mean_after,
                                                 compute_t<T> *variance_after) {
    Shape s{batch, channels, spatial, wide, parts};
    apply_joined<true>(s, x, gamma, beta, running_mean, running_var, partial, momentum, epsilon, y, statistics,
                       mean_after, variance_after);
}

// Runs after MIOpen's forward pass, which wrote y and statistics[2, channels] in f32. It updates
// the running statistics, and recomputes the channels whose variance MIOpen got wrong: MIOpen
// computes mean(x^2) - mean(x)^2, whose relative error is mean^2 / variance roundings of 2^-24.
// `digits_lost` says where that is too many. wide = parts = 1; blocks have at most 256 threads.
template <class T> struct FinishGiven {
    Shape shape;
    const T *x;
    const f32 *gamma, *beta, *running_mean, *running_var;
    f64 momentum, epsilon;
    T *y;
    f32 *statistics;
    f32 *mean_after, *variance_after;
};
template <class T>
__global__ __launch_bounds__(256)
    ALL_WAVES_ON_RDNA(true) void batch_norm_finish(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts,
                                                   const T *x, const f32 *gamma, const f32 *beta,
                                                   const f32 *running_mean, const f32 *running_var, f64 momentum,
                                                   f64 epsilon, T *y, f32 *statistics, f32 *mean_after,
                                                   f32 *variance_after) {
    FinishGiven<T> all{{batch, channels, spatial, wide, parts},
                       x,
                       gamma,
                       beta,
                       running_mean,
                       running_var,
                       momentum,
                       epsilon,
                       y,
                       statistics,
                       mean_after,
                       variance_after};
    for_each_place<false>(all.shape, [=](Place p) {
        const FinishGiven<T> given = reload_parameters(all);
        f32 mean = given.statistics[p.channel()], rstd = given.statistics[given.shape.channels + p.channel()],
            ratio = mean * rstd;
        f32 variance = 1.0f / (rstd * rstd) - (f32)given.epsilon;
        if (variance < 0.0f) variance = 0.0f;
        if (digits_lost(ratio)) {
            auto m = moments_of(given.shape, p, given.x);
            const FinishGiven<T> again = reload_parameters(all);
            auto to = spread(m, again.epsilon);
            mean = m.mean, variance = to.variance, rstd = to.rstd;
            apply(again.shape, p, again.x, again.gamma, again.beta, mean, rstd, again.y);
        }
        sync_threads(); // waits until all threads have read the statistics
        if (p.strip != 0) return;
        const FinishGiven<T> to = reload_parameters(all);
        u64 c = p.channel();
        to.statistics[c] = mean;
        to.statistics[to.shape.channels + c] = rstd;
        to.mean_after[c] = updated(to.running_mean[c], mean, to.momentum);
        to.variance_after[c] = updated(to.running_var[c], variance, to.momentum);
    });
}

// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta with given statistics.
template <bool RELU, class T>
DEVICE void infer(const Shape &s, const T *x, const compute_t<T> *gamma, const compute_t<T> *beta,
                  const compute_t<T> *mean, const compute_t<T> *variance, f64 epsilon, T *y) {
    using C = compute_t<T>;
    for_each_place(s, [=](Place p) {
        if (!p.inside) return;
        C rstd = (C)1 / math::sqrt(variance[p.channel()] + (C)epsilon);
        apply<RELU>(s, p, x, gamma, beta, mean[p.channel()], rstd, y);
    });
}
template <class T>
__global__ __launch_bounds__(256)
    ALL_WAVES_ON_RDNA(true) void batch_norm_infer(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x,
                                                  const compute_t<T> *gamma, const compute_t<T> *beta,
                                                  const compute_t<T> *mean, const compute_t<T> *variance, f64 epsilon,
                                                  T *y) {
    infer<false>(Shape{batch, channels, spatial, wide, parts}, x, gamma, beta, mean, variance, epsilon, y);
}
template <class T>
__global__ __launch_bounds__(256)
    ALL_WAVES_ON_RDNA(true) void batch_norm_infer_relu(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts,
                                                       const T *x, const compute_t<T> *gamma, const compute_t<T> *beta,
                                                       const compute_t<T> *mean, const compute_t<T> *variance,
                                                       f64 epsilon, T *y) {
    infer<true>(Shape{batch, channels, spatial, wide, parts}, x, gamma, beta, mean, variance, epsilon, y);
}

// partial[2, parts, channels] gets the sums of dy * n and of dy over each part of a channel, where
// n = (x - mean) * rstd. statistics[2, rows] has mean and rstd. Those of a channel are in row
// (index in the batch) * step + channel / share; so a row may belong to a channel, or to a group of
// channels of one sample.
template <class T> struct SumsGiven {
    Shape shape;
    u64 step, share, rows;
    const T *x, *dy;
    const compute_t<T> *statistics;
    compute_t<T> *partial;
};
template <class T>
__global__ __launch_bounds__(256)
    ALL_WAVES_ON_RDNA((!is_same<T, f64>::value)) void channel_sums(u64 batch, u64 channels, u64 spatial, u32 wide,
                                                                   u32 parts, u64 step, u64 share, u64 rows, const T *x,
                                                                   const T *dy, const compute_t<T> *statistics,
                                                                   compute_t<T> *partial) {
    using C = compute_t<T>;
    SumsGiven<T> all{{batch, channels, spatial, wide, parts}, step, share, rows, x, dy, statistics, partial};
    for_each_place(all.shape, [=](Place p) {
        const SumsGiven<T> given = reload_parameters(all);
        // The first row of the tile. The thread's own row is counted from it, in 32 bits.
        u64 begin = block_uniform(divided_in_f64(p.tile, given.share));
        u32 row = p.inside ? (u32)divided_in_f64(p.tile - begin * given.share + p.k, given.share) : 0,
            each_step = (u32)given.step;
        const C *mean_of =
                    given.statistics + block_uniform(part_of<T>(given.shape, p.part).sample * given.step + begin),
                *rstd_of = mean_of + given.rows;
        // On a CPU one thread has the whole part. It keeps one sum for each position in a piece,
        // each over a bounded number of elements.
        constexpr u32 PLACES = ONE_THREAD ? LANES<T> : 1, SPAN = 2048;
        Pair<C> sum{(C)0, (C)0}, near[PLACES] = {};
        u32 since = 0;
        auto flush = [&]() {
            for (u32 j = 1; j < PLACES; ++j) near[0] = Plus()(near[0], near[j]), near[j] = Pair<C>{(C)0, (C)0};
            sum = Plus()(sum, near[0]), near[0] = Pair<C>{(C)0, (C)0};
            since = 0;
        };
        auto each = [&](u32 n, auto a, auto d) {
            constexpr u32 WIDTH = sizeof(a) / sizeof(T);
            u32 of = n * each_step + row;
            C mean = vector_at<1>(mean_of, of).lane[0], rstd = vector_at<1>(rstd_of, of).lane[0];
            for (u32 j = 0; j < WIDTH; ++j) {
                if (j % 4 == 0) a = recompute_after(near[0].a, a), d = recompute_from(d);
                C g = load(d.lane[j]);
                near[j % PLACES] = Plus()(near[j % PLACES], Pair<C>{g * (((C)load(a.lane[j]) - mean) * rstd), g});
            }
            if (ONE_THREAD && (since += WIDTH) >= SPAN) flush();
        };
        for_each_piece<true, false>(given.shape, p, each, given.x, given.dy, (T *)nullptr);
        flush();
        sum = channel_reduce(p, sum, Plus());
        if (!p.inside || p.strip != 0) return;
        const SumsGiven<T> to = reload_parameters(all);
        u64 at = p.part * to.shape.channels + p.channel();
        to.partial[at] = sum.a;
        to.partial[to.shape.parts * to.shape.channels + at] = sum.b;
    });
}

// channel_sums of a batch norm whose output goes through a ReLU. `dy` is the gradient of the ReLU's
// output, and counts where `passes`. What the norm gave is computed again, as `apply` does.
template <class T> struct ReluSumsGiven {
    Shape shape;
    const T *x, *dy;
    const compute_t<T> *gamma, *beta, *statistics;
    compute_t<T> *partial;
};
template <class T>
__global__ __launch_bounds__(256) ALL_WAVES_ON_RDNA((!is_same<T, f64>::value)) void batch_norm_relu_sums(
    u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x, const T *dy, const compute_t<T> *gamma,
    const compute_t<T> *beta, const compute_t<T> *statistics, compute_t<T> *partial) {
    using C = compute_t<T>;
    ReluSumsGiven<T> all{{batch, channels, spatial, wide, parts}, x, dy, gamma, beta, statistics, partial};
    for_each_place(all.shape, [=](Place p) {
        const ReluSumsGiven<T> given = reload_parameters(all);
        u64 c = p.inside ? p.channel() : 0;
        C mean = given.statistics[c], rstd = given.statistics[given.shape.channels + c];
        C scale = rstd * given.gamma[c], shift = given.beta[c];
        // On a CPU one thread has the whole part, as in `channel_sums`.
        constexpr u32 PLACES = ONE_THREAD ? LANES<T> : 1, SPAN = 2048;
        Pair<C> sum{(C)0, (C)0}, near[PLACES] = {};
        u32 since = 0;
        auto flush = [&]() {
            for (u32 j = 1; j < PLACES; ++j) near[0] = Plus()(near[0], near[j]), near[j] = Pair<C>{(C)0, (C)0};
            sum = Plus()(sum, near[0]), near[0] = Pair<C>{(C)0, (C)0};
            since = 0;
        };
        auto each = [&](u32, auto a, auto d) {
            constexpr u32 WIDTH = sizeof(a) / sizeof(T);
            for (u32 j = 0; j < WIDTH; ++j) {
                if (j % 4 == 0) a = recompute_after(near[0].a, a), d = recompute_from(d);
                C v = (C)load(a.lane[j]) - mean, g = passes<T>(v * scale + shift) ? (C)load(d.lane[j]) : (C)0;
                near[j % PLACES] = Plus()(near[j % PLACES], Pair<C>{g * (v * rstd), g});
            }
            if (ONE_THREAD && (since += WIDTH) >= SPAN) flush();
        };
        for_each_piece<true, false>(given.shape, p, each, given.x, given.dy, (T *)nullptr);
        flush();
        sum = channel_reduce(p, sum, Plus());
        if (!p.inside || p.strip != 0) return;
        const ReluSumsGiven<T> to = reload_parameters(all);
        u64 at = p.part * to.shape.channels + p.channel();
        to.partial[at] = sum.a;
        to.partial[to.shape.parts * to.shape.channels + at] = sum.b;
    });
}

// The second step: dx = gamma * rstd * (dy - mean(dy) - n * mean(dy * n)), and dparams[2, channels]
// with dgamma = sum(dy * n) and dbeta = sum(dy) (Ioffe and Szegedy 2015). With RELU, dy counts where
// `passes`.
template <bool RELU, class T>
DEVICE void gradient(const Shape &s, const T *x, const T *dy, const compute_t<T> *gamma, const compute_t<T> *beta,
                     const compute_t<T> *statistics, const compute_t<T> *partial, T *dx, compute_t<T> *dparams) {
    using C = compute_t<T>;
    for_each_place(s, [=](Place p) {
        Pair<C> sum{(C)0, (C)0};
        if (p.inside) {
            for (u32 part = p.strip; part < s.parts; part += p.strips) {
                u64 at = (u64)part * s.channels + p.channel();
                sum = Plus()(sum, Pair<C>{partial[at], partial[s.parts * s.channels + at]});
            }
        }
        sum = channel_reduce(p, sum, Plus());
        if (!p.inside) return;
        if (p.part == 0 && p.strip == 0) {
            dparams[p.channel()] = sum.a;
            dparams[s.channels + p.channel()] = sum.b;
        }
        C mean = statistics[p.channel()], rstd = statistics[s.channels + p.channel()], count = (C)s.count();
        C scale = rstd * gamma[p.channel()], slope = scale * rstd * (sum.a / count), shift = sum.b / count,
          onto = RELU ? beta[p.channel()] : (C)0;
        auto each = [=](u32, auto a, auto d) {
            constexpr u32 WIDTH = sizeof(a) / sizeof(T);
            Vector<T, WIDTH> out;
            C last = (C)0;
            for (u32 j = 0; j < WIDTH; ++j) {
                if (j % 4 == 0) a = recompute_after(last, a), d = recompute_from(d);
                C v = (C)load(a.lane[j]) - mean, g = load(d.lane[j]);
                if (RELU && !passes<T>(v * scale + onto)) g = (C)0;
                last = scale * (g - shift) - slope * v;
                out.lane[j] = store<T>::from(last);
            }
            return out;
        };
        for_each_piece<true, true>(s, p, each, x, dy, dx);
    });
}
template <class T>
__global__ __launch_bounds__(256)
    ALL_WAVES_ON_RDNA(true) void batch_norm_backward(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts,
                                                     const T *x, const T *dy, const compute_t<T> *gamma,
                                                     const compute_t<T> *statistics, const compute_t<T> *partial, T *dx,
                                                     compute_t<T> *dparams) {
    Shape s{batch, channels, spatial, wide, parts};
    gradient<false>(s, x, dy, gamma, (const compute_t<T> *)nullptr, statistics, partial, dx, dparams);
}
template <class T>
__global__ __launch_bounds__(256) ALL_WAVES_ON_RDNA((!is_same<T, f64>::value)) void batch_norm_relu_backward(
    u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x, const T *dy, const compute_t<T> *gamma,
    const compute_t<T> *beta, const compute_t<T> *statistics, const compute_t<T> *partial, T *dx,
    compute_t<T> *dparams) {
    Shape s{batch, channels, spatial, wide, parts};
    gradient<true>(s, x, dy, gamma, beta, statistics, partial, dx, dparams);
}
