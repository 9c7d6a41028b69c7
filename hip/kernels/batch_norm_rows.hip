// Batch norm of 16-bit x [rows, channels], contiguous and aligned to 16 bytes, with a multiple of 8
// channels: images whose channels are innermost in memory. `batch_norm.hip` computes the same for
// any shape, but would read one element at a time here.
//
// A thread has a piece of 8 neighbouring channels, 16 bytes of each of its rows. A block has up to 8
// neighbouring pieces and one part of the rows. Its threads' results are combined in a fixed order,
// and so are those of the parts: by a kernel of its own, or, if the parts are few, by each block of the
// kernel that needs them. All is computed in f32.
#include "prelude.h"
#include "relu.h"
#include "rows.h"

constexpr u32 WIDTH = 8; // the channels of a piece
constexpr u32 MOST_ACROSS = 8;
constexpr u32 HALF_BLOCK = 128; // blocks have at most 256 threads

// A thread's share of a part: rows first, first + step, .. below end, of the channels from `channel`
// on. Threads that are not `inside` only take part in reductions.
struct Share {
    u64 first, end;
    u32 step, channel, part, across, strip;
    bool inside;
};

// The first row of part `part`: rows * part / parts rounded down. `each` and `more` are the quotient
// and the remainder of rows / parts; with few parts they need no division of 64 bits, which takes
// hundreds of instructions.
struct Parts {
    u64 each;
    u32 more, parts;
    DEVICE Parts(u64 rows, u32 parts) : each(divided(rows, parts)), parts(parts) { more = (u32)(rows - each * parts); }
    DEVICE u64 begin(u32 part) const { return each * part + divided((u64)more * part, parts); }
};

// Calls f(share) for each part and each group of pieces; all threads of a block call it together.
template <class F> DEVICE void for_each_share(u64 rows, u32 channels, u32 parts, F f) {
    u32 pieces = channels / WIDTH, across = 1;
    while (across < pieces && across < MOST_ACROSS && across * 2 <= blockDim.x) across *= 2;
    u32 strips = blockDim.x / across, strip = threadIdx.x / across, lane = threadIdx.x % across;
    u32 groups = (pieces + across - 1) / across;
    Parts all(rows, parts);
    for_each_row((u64)groups * parts, [=](u64 index) {
        u32 part = (u32)divided(index, groups), piece = (u32)(index - (u64)part * groups) * across + lane;
        u64 begin = all.begin(part), end = all.begin(part + 1);
        f(Share{begin + strip, end, strips, piece * WIDTH, part, across, strip, piece < pieces && strip < strips});
    });
}

using f32x8 = Neighbours<f32, WIDTH>;

DEVICE f32x8 eight(const f32 *from, u32 first) { return lanes_of<WIDTH>(from, (i64)first); }
DEVICE void put(f32 *to, u64 first, f32x8 value) { *reinterpret_cast<f32x8 *>(to + first) = value; }

// Calls f(row, x's piece, more's pieces..) for each row of the share. Several rows are loaded before
// the first is used.
template <u32 ABREAST, class F, class T, class... More>
DEVICE void for_each_piece(const Share &s, u32 channels, F f, const T *x, const More *...more) {
    if (!s.inside) return;
    auto one = [&](u64 row, Neighbours<T, WIDTH> a, Neighbours<More, WIDTH>... as) { f(row, a, as...); };
    u64 row = s.first;
    if constexpr (!ONE_THREAD) {
        for (; row + (ABREAST - 1) * (u64)s.step < s.end; row += ABREAST * (u64)s.step) {
            Neighbours<T, WIDTH> a[ABREAST];
            Neighbours<T, WIDTH> b[sizeof...(More) ? ABREAST : 1];
            UNROLLED
            for (u32 k = 0; k < ABREAST; ++k) {
                i64 at = (i64)((row + k * (u64)s.step) * channels + s.channel);
                a[k] = lanes_of<WIDTH>(x, at);
                ((b[k] = lanes_of<WIDTH>(more, at)), ...);
            }
            UNROLLED
            for (u32 k = 0; k < ABREAST; ++k) {
                if constexpr (sizeof...(More) == 0) one(row + k * (u64)s.step, a[k]);
                else one(row + k * (u64)s.step, a[k], b[k]);
            }
        }
    }
    for (; row < s.end; row += s.step) {
        i64 at = (i64)(row * channels + s.channel);
        one(row, lanes_of<WIDTH>(x, at), lanes_of<WIDTH>(more, at)...);
    }
}

// Combines the values of all strips of a block, in a fixed order. The threads of strip 0 get the
// result.
template <class V, class Op> DEVICE V strip_reduce(u32 across, V value, Op op) {
    if constexpr (ONE_THREAD) return value;
    SHARED(V, table, HALF_BLOCK);
    u32 strip = threadIdx.x / across;
    for (u32 left = blockDim.x / across; left > 1;) {
        u32 half = (left + 1) / 2, at = threadIdx.x - half * across;
        sync_threads(); // threads may still read the earlier values
        if (strip >= half && strip < left) table[at] = value;
        sync_threads();
        if (strip < left - half) value = op(value, table[threadIdx.x]);
        left = half;
    }
    return value;
}

// Count, means and sums of squared deviations of N channels. Joining them has no cancellation,
// whatever the mean (Chan, Golub and LeVeque 1983).
template <u32 N> struct Moments {
    f32 count, mean[N], m2[N];
};
struct Join {
    template <u32 N> DEVICE Moments<N> operator()(Moments<N> a, Moments<N> b) const {
        if (a.count == 0.0f) return b;
        if (b.count == 0.0f) return a;
        f32 count = a.count + b.count, share = b.count / count;
        Moments<N> all;
        all.count = count;
        UNROLLED
        for (u32 j = 0; j < N; ++j) {
            f32 d = b.mean[j] - a.mean[j];
            all.mean[j] = a.mean[j] + d * share;
            all.m2[j] = a.m2[j] + b.m2[j] + d * d * a.count * share;
        }
        return all;
    }
};

// Two sums for each of N channels. The odd size keeps a table of them free of bank conflicts.
template <u32 N> struct Sums {
    f32 a[N], b[N], unused;
};
struct AddSums {
    template <u32 N> DEVICE Sums<N> operator()(Sums<N> x, Sums<N> y) const {
        UNROLLED
        for (u32 j = 0; j < N; ++j) x.a[j] += y.a[j], x.b[j] += y.b[j];
        return x;
    }
};

// The moments of 8 channels from those of `summed` parts. The threads of strip 0 get them.
DEVICE Moments<WIDTH> joined_moments(const Share &s, u64 rows, u32 channels, u32 summed, const f32 *partial) {
    Parts of(rows, summed);
    Moments<WIDTH> all{};
    for (u32 part = s.strip; s.inside && part < summed; part += s.step) {
        u64 at = (u64)part * channels + s.channel;
        f32x8 mean = eight(partial + at, 0), m2 = eight(partial + (u64)summed * channels + at, 0);
        Moments<WIDTH> one;
        one.count = (f32)(of.begin(part + 1) - of.begin(part));
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) one.mean[j] = mean.lane[j], one.m2[j] = m2.lane[j];
        all = Join()(all, one);
    }
    return strip_reduce(s.across, all, Join());
}

// The sums of 8 channels from those of `summed` parts. The threads of strip 0 get them.
DEVICE Sums<WIDTH> joined_sums(const Share &s, u32 channels, u32 summed, const f32 *partial) {
    Sums<WIDTH> all{};
    for (u32 part = s.strip; s.inside && part < summed; part += s.step) {
        u64 at = (u64)part * channels + s.channel;
        f32x8 a = eight(partial + at, 0), b = eight(partial + (u64)summed * channels + at, 0);
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) all.a[j] += a.lane[j], all.b[j] += b.lane[j];
    }
    return strip_reduce(s.across, all, AddSums());
}

// Two values for each of a block's channels, from the threads of strip 0 to all.
struct Two {
    f32x8 a, b;
};
DEVICE Two for_all_strips(const Share &s, Two value) {
    if constexpr (ONE_THREAD) return value;
    SHARED(Two, table, MOST_ACROSS);
    sync_threads(); // threads may still read the earlier values
    if (s.strip == 0) table[threadIdx.x] = value;
    sync_threads();
    return table[threadIdx.x % s.across];
}

// The rows of a thread are summed by spans. A span's first row is subtracted from the others, which
// keeps the squares about as small as the deviations'.
constexpr u32 SPAN = 256;

// Writes partial[2, parts, channels]: the means and the sums of squared deviations of each part.
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_moments(u64 rows, u32 channels, u32 parts, const T *x,
                                                               f32 *partial) {
    for_each_share(rows, channels, parts, [=](Share s) {
        Moments<WIDTH> all{};
        f32 first[WIDTH] = {}, sum[WIDTH] = {}, squares[WIDTH] = {};
        u32 count = 0;
        auto flush = [&]() {
            if (count == 0) return;
            Moments<WIDTH> span;
            span.count = (f32)count;
            f32 share = 1.0f / span.count;
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) {
                f32 mean = sum[j] * share, m2 = squares[j] - sum[j] * mean;
                span.mean[j] = first[j] + mean;
                span.m2[j] = m2 < 0.0f ? 0.0f : m2;
                sum[j] = squares[j] = 0.0f;
            }
            all = Join()(all, span);
            count = 0;
        };
        for_each_piece<4>(s, channels, [&](u64, auto a) {
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) {
                f32 value = load(a.lane[j]);
                first[j] = count == 0 ? value : first[j];
                f32 d = value - first[j];
                sum[j] += d;
                squares[j] += d * d;
            }
            if (++count == SPAN) flush();
        }, x);
        flush();
        all = strip_reduce(s.across, all, Join());
        if (!s.inside || s.strip != 0) return;
        f32x8 mean, m2;
        for (u32 j = 0; j < WIDTH; ++j) mean.lane[j] = all.mean[j], m2.lane[j] = all.m2[j];
        u64 at = (u64)s.part * channels + s.channel;
        put(partial, at, mean);
        put(partial, (u64)parts * channels + at, m2);
    });
}

// How the threads of a block share the parts of 8 channels.
struct Lane {
    u32 channel, across, strip, strips;
    bool inside;
};
template <class F> DEVICE void for_each_lane(u32 channels, F f) {
    u32 across = WIDTH < blockDim.x ? WIDTH : blockDim.x;
    u32 strips = blockDim.x / across, strip = threadIdx.x / across;
    for_each_row((channels + across - 1) / across, [=](u64 group) {
        u32 channel = (u32)group * across + threadIdx.x % across;
        f(Lane{channel, across, strip, strips, channel < channels && strip < strips});
    });
}

// The second step. Writes statistics[2, channels], which are mean and rstd; and the new running mean
// and (biased) variance, in which this batch has the weight `momentum`. They may be the old ones.
template <class C>
__global__ __launch_bounds__(256) void batch_norm_rows_join(u64 rows, u32 channels, u32 parts, const C *running_mean,
                                                            const C *running_var, const C *partial, f64 momentum,
                                                            f64 epsilon, C *statistics, C *mean_after,
                                                            C *variance_after) {
    Parts of(rows, parts);
    for_each_lane(channels, [=](Lane l) {
        Moments<1> all{};
        for (u32 part = l.strip; l.inside && part < parts; part += l.strips) {
            u64 at = (u64)part * channels + l.channel;
            f32 count = (f32)(of.begin(part + 1) - of.begin(part));
            all = Join()(all, Moments<1>{count, {partial[at]}, {partial[(u64)parts * channels + at]}});
        }
        all = strip_reduce(l.across, all, Join());
        if (!l.inside || l.strip != 0) return;
        f32 variance = all.m2[0] / all.count, kept = (f32)(1.0 - momentum), taken = (f32)momentum;
        statistics[l.channel] = all.mean[0];
        statistics[channels + l.channel] = 1.0f / math::sqrt(variance + (f32)epsilon);
        mean_after[l.channel] = running_mean[l.channel] * kept + all.mean[0] * taken;
        variance_after[l.channel] = running_var[l.channel] * kept + variance * taken;
    });
}

// y = (x - mean) * scale + shift, or the ReLU of that.
template <bool RELU, class T>
DEVICE void apply_share(const Share &s, u32 channels, const T *x, f32x8 mean, f32x8 scale, f32x8 shift, T *y) {
    for_each_piece<4>(s, channels, [=](u64 row, auto a) {
        Neighbours<T, WIDTH> out;
        f32 last = 0.0f;
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            // Else the comparisons of all rows on their way fill AMD's scalar registers.
            if (RELU && j % 4 == 0) a = recompute_after(last, a);
            f32 value = ((f32)load(a.lane[j]) - mean.lane[j]) * scale.lane[j] + shift.lane[j];
            out.lane[j] = store<T>::from(value);
            if constexpr (RELU) out.lane[j] = relu(out.lane[j]), last = load(out.lane[j]);
        }
        *reinterpret_cast<Neighbours<T, WIDTH> *>(y + row * channels + s.channel) = out;
    }, x);
}

// The scale is rstd * gamma, and the shift beta. With `variances`, `spread` has variances instead of
// rstd.
template <bool RELU, class T>
DEVICE void apply_rows(u64 rows, u32 channels, u32 parts, i32 variances, const T *x, const f32 *gamma, const f32 *beta,
                       const f32 *mean, const f32 *spread, f64 epsilon, T *y) {
    for_each_share(rows, channels, parts, [=](Share s) {
        if (!s.inside) return;
        f32x8 scale = eight(spread, s.channel), factor = eight(gamma, s.channel);
        for (u32 j = 0; j < WIDTH; ++j) {
            if (variances) scale.lane[j] = 1.0f / math::sqrt(scale.lane[j] + (f32)epsilon);
            scale.lane[j] *= factor.lane[j];
        }
        apply_share<RELU>(s, channels, x, eight(mean, s.channel), scale, eight(beta, s.channel), y);
    });
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_apply(u64 rows, u32 channels, u32 parts, i32 variances,
                                                             const T *x, const f32 *gamma, const f32 *beta,
                                                             const f32 *mean, const f32 *spread, f64 epsilon, T *y) {
    apply_rows<false>(rows, channels, parts, variances, x, gamma, beta, mean, spread, epsilon, y);
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_relu(u64 rows, u32 channels, u32 parts, i32 variances,
                                                            const T *x, const f32 *gamma, const f32 *beta,
                                                            const f32 *mean, const f32 *spread, f64 epsilon, T *y) {
    apply_rows<true>(rows, channels, parts, variances, x, gamma, beta, mean, spread, epsilon, y);
}

// The second and the third step at once, for `summed` parts.
template <bool RELU, class T>
DEVICE void join_and_apply(u64 rows, u32 channels, u32 parts, u32 summed, const T *x, const f32 *gamma, const f32 *beta,
                           const f32 *running_mean, const f32 *running_var, const f32 *partial, f64 momentum,
                           f64 epsilon, T *y, f32 *statistics, f32 *mean_after, f32 *variance_after) {
    for_each_share(rows, channels, parts, [=](Share s) {
        Moments<WIDTH> all = joined_moments(s, rows, channels, summed, partial);
        Two of{};
        if (s.inside && s.strip == 0) {
            f32 kept = (f32)(1.0 - momentum), taken = (f32)momentum;
            for (u32 j = 0; j < WIDTH; ++j) {
                f32 variance = all.m2[j] / all.count;
                of.a.lane[j] = all.mean[j], of.b.lane[j] = 1.0f / math::sqrt(variance + (f32)epsilon);
                if (s.part != 0) continue;
                u32 c = s.channel + j;
                mean_after[c] = running_mean[c] * kept + all.mean[j] * taken;
                variance_after[c] = running_var[c] * kept + variance * taken;
            }
            if (s.part == 0) put(statistics, s.channel, of.a), put(statistics + channels, s.channel, of.b);
        }
        of = for_all_strips(s, of);
        if (!s.inside) return;
        f32x8 factor = eight(gamma, s.channel);
        for (u32 j = 0; j < WIDTH; ++j) of.b.lane[j] *= factor.lane[j];
        apply_share<RELU>(s, channels, x, of.a, of.b, eight(beta, s.channel), y);
    });
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_apply_joined(u64 rows, u32 channels, u32 parts, u32 summed,
                                                                    const T *x, const f32 *gamma, const f32 *beta,
                                                                    const f32 *running_mean, const f32 *running_var,
                                                                    const f32 *partial, f64 momentum, f64 epsilon, T *y,
                                                                    f32 *statistics, f32 *mean_after,
                                                                    f32 *variance_after) {
    join_and_apply<false>(rows, channels, parts, summed, x, gamma, beta, running_mean, running_var, partial, momentum,
                          epsilon, y, statistics, mean_after, variance_after);
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_relu_joined(u64 rows, u32 channels, u32 parts, u32 summed,
                                                                   const T *x, const f32 *gamma, const f32 *beta,
                                                                   const f32 *running_mean, const f32 *running_var,
                                                                   const f32 *partial, f64 momentum, f64 epsilon, T *y,
                                                                   f32 *statistics, f32 *mean_after,
                                                                   f32 *variance_after) {
    join_and_apply<true>(rows, channels, parts, summed, x, gamma, beta, running_mean, running_var, partial, momentum,
                         epsilon, y, statistics, mean_after, variance_after);
}

// partial[2, parts, channels] gets the sums of dy * n and of dy over each part, where
// n = (x - mean) * rstd. With RELU, dy counts where `passes`; what the norm gave is computed again, as
// `apply_rows` does.
template <bool RELU, class T>
DEVICE void sum_rows(u64 rows, u32 channels, u32 parts, const T *x, const T *dy, const f32 *gamma, const f32 *beta,
                     const f32 *statistics, f32 *partial) {
    for_each_share(rows, channels, parts, [=](Share s) {
        Sums<WIDTH> all{}, near{};
        u32 count = 0;
        f32x8 mean{}, rstd{}, scale{}, shift{};
        if (s.inside) mean = eight(statistics, s.channel), rstd = eight(statistics, channels + s.channel);
        if (RELU && s.inside) {
            scale = eight(gamma, s.channel), shift = eight(beta, s.channel);
            for (u32 j = 0; j < WIDTH; ++j) scale.lane[j] *= rstd.lane[j];
        }
        for_each_piece<2>(s, channels, [&](u64, auto a, auto d) {
            UNROLLED
            for (u32 j = 0; j < WIDTH; ++j) {
                f32 v = (f32)load(a.lane[j]) - mean.lane[j], g = load(d.lane[j]);
                if (RELU && !passes<T>(v * scale.lane[j] + shift.lane[j])) g = 0.0f;
                near.a[j] += g * (v * rstd.lane[j]);
                near.b[j] += g;
            }
            if (++count == SPAN) all = AddSums()(all, near), near = Sums<WIDTH>{}, count = 0;
        }, x, dy);
        all = strip_reduce(s.across, AddSums()(all, near), AddSums());
        if (!s.inside || s.strip != 0) return;
        f32x8 products, sums;
        for (u32 j = 0; j < WIDTH; ++j) products.lane[j] = all.a[j], sums.lane[j] = all.b[j];
        u64 at = (u64)s.part * channels + s.channel;
        put(partial, at, products);
        put(partial, (u64)parts * channels + at, sums);
    });
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_sums(u64 rows, u32 channels, u32 parts, const T *x, const T *dy,
                                                            const f32 *statistics, f32 *partial) {
    sum_rows<false>(rows, channels, parts, x, dy, (const f32 *)nullptr, (const f32 *)nullptr, statistics, partial);
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_relu_sums(u64 rows, u32 channels, u32 parts, const T *x,
                                                                 const T *dy, const f32 *gamma, const f32 *beta,
                                                                 const f32 *statistics, f32 *partial) {
    sum_rows<true>(rows, channels, parts, x, dy, gamma, beta, statistics, partial);
}

// The second step: dparams[2, channels] with dgamma = sum(dy * n) and dbeta = sum(dy).
template <class C>
__global__ __launch_bounds__(256) void batch_norm_rows_total(u64 rows, u32 channels, u32 parts, const C *partial,
                                                             C *dparams) {
    for_each_lane(channels, [=](Lane l) {
        Sums<1> all{};
        for (u32 part = l.strip; l.inside && part < parts; part += l.strips) {
            u64 at = (u64)part * channels + l.channel;
            all = AddSums()(all, Sums<1>{{partial[at]}, {partial[(u64)parts * channels + at]}, 0.0f});
        }
        all = strip_reduce(l.across, all, AddSums());
        if (!l.inside || l.strip != 0) return;
        dparams[l.channel] = all.a[0];
        dparams[channels + l.channel] = all.b[0];
    });
}

// dx of a share, from the sums of its channels.
template <bool RELU, class T>
DEVICE void gradient_share(const Share &s, u64 rows, u32 channels, const T *x, const T *dy, const f32 *gamma,
                           const f32 *beta, const f32 *statistics, f32x8 slope, f32x8 shift, T *dx) {
    f32x8 mean = eight(statistics, s.channel), scale = eight(statistics, channels + s.channel),
          factor = eight(gamma, s.channel), onto{};
    if (RELU) onto = eight(beta, s.channel);
    f32 count = (f32)rows;
    for (u32 j = 0; j < WIDTH; ++j) {
        f32 rstd = scale.lane[j];
        scale.lane[j] = rstd * factor.lane[j];
        slope.lane[j] = scale.lane[j] * rstd * (slope.lane[j] / count);
        shift.lane[j] /= count;
    }
    for_each_piece<2>(s, channels, [=](u64 row, auto a, auto d) {
        Neighbours<T, WIDTH> out;
        f32 last = 0.0f;
        UNROLLED
        for (u32 j = 0; j < WIDTH; ++j) {
            if (RELU && j % 4 == 0) a = recompute_after(last, a); // as in `apply_share`
            f32 v = (f32)load(a.lane[j]) - mean.lane[j], g = load(d.lane[j]);
            if (RELU && !passes<T>(v * scale.lane[j] + onto.lane[j])) g = 0.0f;
            last = scale.lane[j] * (g - shift.lane[j]) - slope.lane[j] * v;
            out.lane[j] = store<T>::from(last);
        }
        *reinterpret_cast<Neighbours<T, WIDTH> *>(dx + row * channels + s.channel) = out;
    }, x, dy);
}

// The third step: dx = gamma * rstd * (dy - mean(dy) - n * mean(dy * n)) (Ioffe and Szegedy 2015).
// With RELU, dy counts where `passes`.
template <bool RELU, class T>
DEVICE void gradient_rows(u64 rows, u32 channels, u32 parts, const T *x, const T *dy, const f32 *gamma, const f32 *beta,
                          const f32 *statistics, const f32 *dparams, T *dx) {
    for_each_share(rows, channels, parts, [=](Share s) {
        if (!s.inside) return;
        gradient_share<RELU>(s, rows, channels, x, dy, gamma, beta, statistics, eight(dparams, s.channel),
                             eight(dparams, channels + s.channel), dx);
    });
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_backward(u64 rows, u32 channels, u32 parts, const T *x,
                                                                const T *dy, const f32 *gamma, const f32 *statistics,
                                                                const f32 *dparams, T *dx) {
    gradient_rows<false>(rows, channels, parts, x, dy, gamma, (const f32 *)nullptr, statistics, dparams, dx);
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_relu_backward(u64 rows, u32 channels, u32 parts, const T *x,
                                                                     const T *dy, const f32 *gamma, const f32 *beta,
                                                                     const f32 *statistics, const f32 *dparams, T *dx) {
    gradient_rows<true>(rows, channels, parts, x, dy, gamma, beta, statistics, dparams, dx);
}

// The second and the third step at once, for `summed` parts.
template <bool RELU, class T>
DEVICE void join_and_derive(u64 rows, u32 channels, u32 parts, u32 summed, const T *x, const T *dy, const f32 *gamma,
                            const f32 *beta, const f32 *statistics, const f32 *partial, T *dx, f32 *dparams) {
    for_each_share(rows, channels, parts, [=](Share s) {
        Sums<WIDTH> all = joined_sums(s, channels, summed, partial);
        Two of{};
        if (s.inside && s.strip == 0) {
            for (u32 j = 0; j < WIDTH; ++j) of.a.lane[j] = all.a[j], of.b.lane[j] = all.b[j];
            if (s.part == 0) put(dparams, s.channel, of.a), put(dparams + channels, s.channel, of.b);
        }
        of = for_all_strips(s, of);
        if (!s.inside) return;
        gradient_share<RELU>(s, rows, channels, x, dy, gamma, beta, statistics, of.a, of.b, dx);
    });
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_backward_joined(u64 rows, u32 channels, u32 parts, u32 summed,
                                                                       const T *x, const T *dy, const f32 *gamma,
                                                                       const f32 *statistics, const f32 *partial, T *dx,
                                                                       f32 *dparams) {
    join_and_derive<false>(rows, channels, parts, summed, x, dy, gamma, (const f32 *)nullptr, statistics, partial, dx,
                           dparams);
}
template <class T>
__global__ __launch_bounds__(256) void batch_norm_rows_relu_backward_joined(u64 rows, u32 channels, u32 parts,
                                                                            u32 summed, const T *x, const T *dy,
                                                                            const f32 *gamma, const f32 *beta,
                                                                            const f32 *statistics, const f32 *partial,
                                                                            T *dx, f32 *dparams) {
    join_and_derive<true>(rows, channels, parts, summed, x, dy, gamma, beta, statistics, partial, dx, dparams);
}
