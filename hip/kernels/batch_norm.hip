// Batch normalisation of x seen as [batch, channels, spatial], contiguous: statistics over batch and spatial of each channel; f16 and
// bf16 compute in f32, in which parameters and running statistics are. A part of one tile of `wide` channels is a block's work: one channel where its elements lie side by side, else
// several, so that neighbouring threads read neighbouring channels. Sums have a fixed order: the same bits on every run of one grid.
#include "prelude.h"
#include "rows.h"

// What every kernel here is given first: its tensors' sizes and how it goes through them. Functions read it anew where they need it (`parameters`):
// kept, it and what is divided of it do not fit into the scalar registers.
struct Shape {
    u64 batch, channels, spatial;
    u32 wide, parts;
    DEVICE u64 count() const { return batch * spatial; } // elements of a channel
    // Elements that lie side by side in every channel of every sample, where a channel is a block's: parts are made of such.
    template <class T> DEVICE u32 unit() const { return wide == 1 && spatial % LANES<T> == 0 ? LANES<T> : 1; }
    template <class T> DEVICE u64 begin(u32 part) const { return count() / unit<T>() * part / parts * unit<T>(); }
};

// The channels' elements that a thread has: every `strips`-th of a channel.
struct Place {
    u64 channel;
    u32 part, lanes, strip, strips;
    bool inside; // else the thread only takes part in reductions
};

// f(place) for each channel of each tile and part; all threads of a block come by together.
template <class F> DEVICE void for_each_place(const Shape &given, F f) {
    u64 tiles = (given.channels + given.wide - 1) / given.wide;
    u32 lanes = given.wide < blockDim.x ? given.wide : blockDim.x;
    for_each_row(tiles * given.parts, [=](u64 index) {
        const Shape s = parameters(given);
        u64 tile = index / s.parts;
        for (u32 first = 0; first < s.wide; first += lanes) {
            u32 lane = threadIdx.x % lanes;
            u32 k = first + lane;
            u64 channel = tile * s.wide + k;
            Place place{channel, (u32)(index - tile * s.parts), lanes, threadIdx.x / lanes, (blockDim.x - lane + lanes - 1) / lanes,
                        k < s.wide && channel < s.channels};
            f(place);
        }
    });
}

// f(offset, n, x's piece, dy's piece) for each piece of WIDTH elements that this thread has, n being its index in the batch: several loads at a
// time. `dy` may be null, its pieces are not looked at then.
template <u32 WIDTH, bool BOTH, class F, class T> DEVICE void pieces_by(const Shape &given, Place p, F f, const T *x, const T *dy) {
    using Piece = Vector<T, WIDTH>;
    const Shape s = parameters(given);
    u64 spatial = s.spatial / WIDTH, at = s.begin<T>(p.part) / WIDTH + p.strip, end = s.begin<T>(p.part + 1) / WIDTH;
    if (!p.inside || at >= end) return;
    u64 left = (end - at + p.strips - 1) / p.strips; // pieces
    u64 n = at / spatial, i = at - n * spatial, offset = (n * s.channels + p.channel) * spatial + i;
    u64 step_n = p.strips / spatial, step_i = p.strips - step_n * spatial;
    u64 sample = s.channels * spatial, step = step_n * sample + step_i;
    auto next = [&]() {
        offset += step, n += step_n, i += step_i;
        if (i >= spatial) i -= spatial, offset += sample - spatial, ++n;
    };
    auto piece = [](const T *from, u64 at) { return *reinterpret_cast<const Piece *>(from + at * WIDTH); };
    constexpr u32 ABREAST = WIDTH == 1 && sizeof(T) < 8 ? 4 : 2;
    for (; left >= ABREAST; left -= ABREAST) {
        u64 where[ABREAST], of[ABREAST];
        Piece a[ABREAST], g[BOTH ? ABREAST : 1];
#if !COMPILER_HOST
#pragma unroll
#endif
        for (u32 k = 0; k < ABREAST; ++k, next()) {
            where[k] = offset, of[k] = n;
            a[k] = piece(x, offset);
            if constexpr (BOTH) g[k] = piece(dy, offset);
        }
#if !COMPILER_HOST
#pragma unroll
#endif
        for (u32 k = 0; k < ABREAST; ++k) f(where[k] * WIDTH, of[k], a[k], g[BOTH ? k : 0]);
    }
    for (; left > 0; --left, next()) {
        Piece g{};
        if constexpr (BOTH) g = piece(dy, offset);
        f(offset * WIDTH, n, piece(x, offset), g);
    }
}

// The same by pieces of 16 bytes where all tensors, `out` as well, have them at 16-byte boundaries, else element by element.
template <bool BOTH, class F, class T> DEVICE void for_each_piece(const Shape &s, Place p, F f, const T *x, const T *dy, const T *out) {
    bool aligned = past_boundary(x) == 0 && past_boundary(dy) == 0 && past_boundary(out) == 0;
    if (LANES<T> > 1 && s.unit<T>() == LANES<T> && aligned) pieces_by<LANES<T>, BOTH>(s, p, f, x, dy);
    else pieces_by<1, BOTH>(s, p, f, x, dy);
}

// op over the values of a channel's threads, in each of them.
template <class V, class Op> DEVICE V channel_reduce(Place p, V value, Op op) { // lanes divide 256, or are the block
    if constexpr (ONE_THREAD) return value;
    if (p.lanes == 1) return block_reduce(value, op);
    constexpr u32 TABLE = 256; // threads at a time, few enough to leave shared memory for other blocks
    SHARED(V, table, TABLE);
    u32 lane = threadIdx.x % p.lanes;
    V all{};
    for (u32 base = 0; base < blockDim.x; base += TABLE) {
        sync_threads(); // what was there may still be read
        if (threadIdx.x - base < TABLE) table[threadIdx.x - base] = value;
        sync_threads();
        u32 end = blockDim.x - base < TABLE ? blockDim.x - base : TABLE;
        for (u32 k = lane; k < end; k += p.lanes) all = base + k == lane ? table[k] : op(all, table[k]);
    }
    return all;
}

// Count, mean and the sum of squared deviations (Chan, Golub and LeVeque 1983): no cancellation, whatever the mean.
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
};
struct Plus {
    template <class C> DEVICE Pair<C> operator()(Pair<C> x, Pair<C> y) const { return Pair<C>{x.a + y.a, x.b + y.b}; }
};

// The moments of a part of a channel: spans of elements less the span's first, so that squares stay near the deviations'.
template <class T> DEVICE Moments<compute_t<T>> moments_of(const Shape &s, Place p, const T *x) {
    using C = compute_t<T>;
    constexpr u32 SPAN = 256, LANE_COUNT = LANES<T>;
    Moments<C> all{(C)0, (C)0, (C)0};
    // Of each place in a piece, so that a CPU adds a piece at a time.
    C first = (C)0, sum[LANE_COUNT] = {}, squares[LANE_COUNT] = {};
    u32 count = 0;
    auto flush = [&]() {
        if (count == 0) return;
        C total = (C)0, square = (C)0;
        for (u32 j = 0; j < LANE_COUNT; ++j) {
            total += sum[j], square += squares[j];
            sum[j] = squares[j] = (C)0;
        }
        C mean = total / (C)count;
        C m2 = square - total * mean;
        all = Join()(all, Moments<C>{(C)count, first + mean, m2 < (C)0 ? (C)0 : m2});
        count = 0;
    };
    auto take = [&](u64, u64, auto a, auto) {
        constexpr u32 WIDTH = sizeof(a) / sizeof(T);
        if (count == 0) first = load(a.lane[0]);
        for (u32 j = 0; j < WIDTH; ++j) {
            C d = (C)load(a.lane[j]) - first;
            sum[j] += d;
            squares[j] += d * d;
        }
        count += WIDTH;
        if (count >= SPAN) flush();
    };
    for_each_piece<false>(s, p, take, x, (const T *)nullptr, (const T *)nullptr);
    flush();
    return channel_reduce(p, all, Join());
}

// A channel's moments from its parts'.
template <class T> DEVICE Moments<compute_t<T>> joined_moments(const Shape &given, Place p, const compute_t<T> *partial) {
    using C = compute_t<T>;
    const Shape s = parameters(given);
    Moments<C> all{(C)0, (C)0, (C)0};
    if (p.inside) {
        for (u32 part = p.strip; part < s.parts; part += p.strips) {
            C count = (C)(s.begin<T>(part + 1) - s.begin<T>(part));
            u64 at = (u64)part * s.channels + p.channel;
            all = Join()(all, Moments<C>{count, partial[at], partial[s.parts * s.channels + at]});
        }
    }
    return channel_reduce(p, all, Join());
}

// 1 / sqrt(variance + epsilon), and the variance itself; NaN of nothing.
template <class C> struct Spread {
    C variance, rstd;
};
template <class C> DEVICE Spread<C> spread(Moments<C> m, f64 epsilon) {
    C variance = m.m2 / m.count;
    return Spread<C>{variance, (C)1 / math::sqrt(variance + (C)epsilon)};
}

template <class C>
DEVICE void update_running(u64 channels, u64 channel, const C *mean_before, const C *variance_before, f64 momentum, C mean, C variance, C *running) {
    C kept = (C)(1.0 - momentum), taken = (C)momentum;
    running[channel] = mean_before[channel] * kept + mean * taken;
    running[channels + channel] = variance_before[channel] * kept + variance * taken;
}

// y = (x - mean) * rstd * gamma + beta over a part of a channel.
template <class T>
DEVICE void apply(const Shape &s, Place p, const T *x, const compute_t<T> *gamma, const compute_t<T> *beta, compute_t<T> mean, compute_t<T> rstd,
                  T *y) {
    using C = compute_t<T>;
    if (!p.inside) return;
    C scale = rstd * gamma[p.channel], shift = beta[p.channel];
    auto each = [=](u64 at, u64, auto a, auto) {
        constexpr u32 WIDTH = sizeof(a) / sizeof(T);
        Vector<T, WIDTH> out;
        C last = (C)0;
        for (u32 j = 0; j < WIDTH; ++j) {
            if (j == 4) a = anew(a, last);
            last = ((C)load(a.lane[j]) - mean) * scale + shift;
            out.lane[j] = store<T>::from(last);
        }
        *reinterpret_cast<Vector<T, WIDTH> *>(y + at) = out;
    };
    for_each_piece<false>(s, p, each, x, (const T *)nullptr, (const T *)y);
}

// partial[2, parts, channels]: mean and summed squared deviations of each part.
template <class T>
__global__ void batch_norm_moments(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x, compute_t<T> *partial) {
    Shape s{batch, channels, spatial, wide, parts};
    for_each_place(s, [=](Place p) {
        auto m = moments_of(s, p, x);
        if (!p.inside || p.strip != 0) return;
        u64 at = (u64)p.part * channels + p.channel;
        partial[at] = m.mean;
        partial[parts * channels + at] = m.m2;
    });
}

// The second step: y, statistics[2, channels] with mean and rstd, and running[2, channels] with the running mean and (biased) variance
// after `momentum` of this batch's. The running statistics are read where they were and written elsewhere.
template <class T>
__global__ void batch_norm_apply(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x, const compute_t<T> *gamma,
                                 const compute_t<T> *beta, const compute_t<T> *running_mean, const compute_t<T> *running_var,
                                 const compute_t<T> *partial, f64 momentum, f64 epsilon, T *y, compute_t<T> *statistics, compute_t<T> *running) {
    Shape s{batch, channels, spatial, wide, parts};
    for_each_place(s, [=](Place p) {
        auto m = joined_moments<T>(s, p, partial);
        auto to = spread(m, epsilon);
        // Of nothing: a mean that is no number, as of Burn.
        auto mean = batch * spatial == 0 ? to.variance : m.mean;
        if (p.inside && p.part == 0 && p.strip == 0) {
            statistics[p.channel] = mean;
            statistics[channels + p.channel] = to.rstd;
            update_running(channels, p.channel, running_mean, running_var, momentum, mean, to.variance, running);
        }
        apply(s, p, x, gamma, beta, mean, to.rstd, y);
    });
}

// After MIOpen's forward pass, which wrote y and statistics[2, channels] in f32: the running statistics, and again the channels whose
// variance it lost. It takes the mean of squares less the squared mean, which leaves mean^2 / variance roundings of 2^-24: past a
// mean of 4 deviations, or where they are no numbers, the channel is computed as above. wide = parts = 1; blocks of at most 256 threads.
template <class T>
__global__ __launch_bounds__(256) void batch_norm_finish(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x, const f32 *gamma,
                                                         const f32 *beta, const f32 *running_mean, const f32 *running_var, f64 momentum,
                                                         f64 epsilon, T *y, f32 *statistics, f32 *running) {
    Shape s{batch, channels, spatial, wide, parts};
    for_each_place(s, [=](Place p) {
        f32 mean = statistics[p.channel], rstd = statistics[channels + p.channel], ratio = mean * rstd;
        f32 variance = 1.0f / (rstd * rstd) - (f32)epsilon;
        if (variance < 0.0f) variance = 0.0f;
        if (!(ratio * ratio <= 16.0f)) {
            auto m = moments_of(s, p, x);
            auto to = spread(m, epsilon);
            mean = m.mean, variance = to.variance, rstd = to.rstd;
            apply(s, p, x, gamma, beta, mean, rstd, y);
        }
        sync_threads(); // until all have read the statistics
        if (p.strip != 0) return;
        statistics[p.channel] = mean;
        statistics[channels + p.channel] = rstd;
        update_running(channels, p.channel, running_mean, running_var, momentum, mean, variance, running);
    });
}

// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta with given statistics.
template <class T>
__global__ void batch_norm_infer(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x, const compute_t<T> *gamma,
                                 const compute_t<T> *beta, const compute_t<T> *mean, const compute_t<T> *variance, f64 epsilon, T *y) {
    using C = compute_t<T>;
    Shape s{batch, channels, spatial, wide, parts};
    for_each_place(s, [=](Place p) {
        if (!p.inside) return;
        C rstd = (C)1 / math::sqrt(variance[p.channel] + (C)epsilon);
        apply(s, p, x, gamma, beta, mean[p.channel], rstd, y);
    });
}

// partial[2, parts, channels]: the sums of dy * n and of dy over each part of a channel, n = (x - mean) * rstd. statistics[2, rows] has
// mean and rstd of row (index in the batch) * step + channel / share: of a channel, or of a group of channels of one sample.
template <class T>
__global__ void channel_sums(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, u64 step, u64 share, u64 rows, const T *x, const T *dy,
                             const compute_t<T> *statistics, compute_t<T> *partial) {
    using C = compute_t<T>;
    Shape s{batch, channels, spatial, wide, parts};
    for_each_place(s, [=](Place p) {
        u64 row = p.inside ? p.channel / share : 0;
        Pair<C> sum{(C)0, (C)0};
        auto each = [&](u64, u64 n, auto a, auto d) {
            constexpr u32 WIDTH = sizeof(a) / sizeof(T);
            u64 of = n * step + row;
            C mean = statistics[of], rstd = statistics[rows + of];
            for (u32 j = 0; j < WIDTH; ++j) {
                C g = load(d.lane[j]);
                sum = Plus()(sum, Pair<C>{g * (((C)load(a.lane[j]) - mean) * rstd), g});
            }
        };
        for_each_piece<true>(s, p, each, x, dy, (const T *)nullptr);
        sum = channel_reduce(p, sum, Plus());
        if (!p.inside || p.strip != 0) return;
        u64 at = (u64)p.part * channels + p.channel;
        partial[at] = sum.a;
        partial[parts * channels + at] = sum.b;
    });
}

// The second step: dx = gamma * rstd * (dy - mean(dy) - n * mean(dy * n)), and dparams[2, channels] with dgamma = sum(dy * n) and
// dbeta = sum(dy) (Ioffe and Szegedy 2015).
template <class T>
__global__ void batch_norm_backward(u64 batch, u64 channels, u64 spatial, u32 wide, u32 parts, const T *x, const T *dy, const compute_t<T> *gamma,
                                    const compute_t<T> *statistics, const compute_t<T> *partial, T *dx, compute_t<T> *dparams) {
    using C = compute_t<T>;
    Shape s{batch, channels, spatial, wide, parts};
    for_each_place(s, [=](Place p) {
        Pair<C> sum{(C)0, (C)0};
        if (p.inside) {
            for (u32 part = p.strip; part < parts; part += p.strips) {
                u64 at = (u64)part * channels + p.channel;
                sum = Plus()(sum, Pair<C>{partial[at], partial[parts * channels + at]});
            }
        }
        sum = channel_reduce(p, sum, Plus());
        if (!p.inside) return;
        if (p.part == 0 && p.strip == 0) {
            dparams[p.channel] = sum.a;
            dparams[channels + p.channel] = sum.b;
        }
        C mean = statistics[p.channel], rstd = statistics[channels + p.channel], count = (C)s.count();
        C scale = rstd * gamma[p.channel], slope = sum.a / count, shift = sum.b / count;
        auto each = [=](u64 at, u64, auto a, auto d) {
            constexpr u32 WIDTH = sizeof(a) / sizeof(T);
            Vector<T, WIDTH> out;
            for (u32 j = 0; j < WIDTH; ++j) {
                C v = load(a.lane[j]), g = load(d.lane[j]);
                out.lane[j] = store<T>::from(scale * (g - shift - (v - mean) * rstd * slope));
            }
            *reinterpret_cast<Vector<T, WIDTH> *>(dx + at) = out;
        };
        for_each_piece<true>(s, p, each, x, dy, (const T *)dx);
    });
}
