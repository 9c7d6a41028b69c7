// Functions that AMD's libraries have and NVIDIA's lack: products of 8-bit integers whose sizes are
// not multiples of 4, maximum pooling that stores the index of each maximum, norms of rows and
// groups, and some activations.

typedef signed char i8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

struct f16 {
    u16 bits;
};

struct bf16 {
    u16 bits;
};

__device__ float load(float x) { return x; }
__device__ float load(f16 x) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
    return f;
}
__device__ void store(float *to, float x) { *to = x; }
__device__ void store(f16 *to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x)); }

__device__ float load(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ void store(bf16 *to, float x) {
    u32 bits = __float_as_uint(x);
    u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u); // nearest, ties to even
    to->bits = (u16)(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
}

template <class N, class F> __device__ void for_each(N n, F f) {
    N step = (N)gridDim.x * blockDim.x;
    for (N i = (N)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}

struct Gemm {
    i32 m, n, k, batch;
    i64 a_row, a_column, a_stride, b_row, b_column, b_stride, ldc, c_stride, ldd, d_stride;
    i32 alpha, beta;
};

// Sums wrap. c may be d.
extern "C" __global__ void gemm_i8(Gemm g, const i8 *a, const i8 *b, const i32 *c, i32 *d) {
    u64 plane = (u64)g.m * g.n;
    for_each<u64>(plane * g.batch, [=](u64 i) {
        u64 batch = i / plane, column = i % plane / g.m, row = i % plane % g.m;
        const i8 *x = a + batch * g.a_stride + row * g.a_row;
        const i8 *y = b + batch * g.b_stride + column * g.b_column;
        u32 sum = 0;
        for (i32 l = 0; l < g.k; ++l) sum += (u32)((i32)x[l * g.a_column] * (i32)y[l * g.b_row]);
        u32 value = (u32)g.alpha * sum;
        if (g.beta != 0) value += (u32)g.beta * (u32)c[batch * g.c_stride + column * g.ldc + row];
        d[batch * g.d_stride + column * g.ldd + row] = (i32)value;
    });
}

struct Axis {
    i32 size, out, window, stride, pad;

    // The windows that contain index i: from first to last, inclusive.
    __device__ i32 first(i32 i) const { return i + pad < window ? 0 : strides_in(i + pad - window) + 1; }
    __device__ i32 last(i32 i) const { return min(strides_in(i + pad), out - 1); }

    // length / stride, for length >= 0. A division takes some 20 instructions, and most strides are
    // 1 or 2.
    __device__ i32 strides_in(i32 length) const {
        return stride == 1 ? length : stride == 2 ? length >> 1 : length / stride;
    }
};

struct Pool {
    i64 planes;
    Axis d, h, w;
    i32 masked; // whether an index is a position in the window instead of the plane

    // In 2-D the compiler knows that there is one slice.
    template <int AXES> __device__ Axis depth() const {
        if constexpr (AXES == 2) return Axis{1, 1, 1, 1, 0};
        else return d;
    }
};

// MIOpen's maximum: the first of the largest elements. The search starts with the lowest finite
// number.
template <int AXES, class T, class I> __global__ void max_forward(Pool p, const T *x, T *y, I *indices) {
    Axis d = p.depth<AXES>(), h = p.h, w = p.w;
    u64 outputs = (u64)d.out * h.out * w.out;
    for_each<u64>(outputs * p.planes, [=](u64 i) {
        u64 plane = i / outputs;
        i32 slice = (i32)(i % outputs / ((u64)h.out * w.out)), row = (i32)(i / w.out % h.out),
            column = (i32)(i % w.out);
        const T *from = x + plane * d.size * h.size * w.size;
        i32 front = slice * d.stride - d.pad, top = row * h.stride - h.pad, left = column * w.stride - w.pad;
        float best = -3.402823466e+38f;
        u64 index = 0;
        for (i32 q = 0; q < d.window; ++q) {
            if (front + q < 0 || front + q >= d.size) continue;
            for (i32 r = 0; r < h.window; ++r) {
                if (top + r < 0 || top + r >= h.size) continue;
                for (i32 s = 0; s < w.window; ++s) {
                    if (left + s < 0 || left + s >= w.size) continue;
                    u64 at = ((u64)(front + q) * h.size + (top + r)) * w.size + (left + s);
                    float value = load(from[at]);
                    if (value > best) {
                        best = value;
                        index = p.masked ? ((u64)q * h.window + r) * w.window + s : at;
                    }
                }
            }
        }
        store(y + i, best);
        if (indices) indices[i] = (I)index;
    });
}

// Each pixel of the input sums over the windows that contain it, so the order is fixed and the sum
// is rounded once. A thread has four neighbouring pixels of a line, which share the divisions by
// sizes and most windows. N is the integer type for indices over the pixels of all planes, and for
// divisions.
template <class N, int AXES, class T, class I>
__device__ void gather_max(Pool p, const T *dy, const I *indices, T *dx) {
    constexpr i32 WIDE = 4;
    Axis d = p.depth<AXES>(), h = p.h, w = p.w;
    N pieces = ((N)w.size + WIDE - 1) / WIDE, slices = (N)p.planes * (N)d.size;
    u64 outputs = (u64)d.out * h.out * w.out;
    for_each<N>(slices * (N)h.size * pieces, [=](N i) {
        N line = i / pieces, number = line / (N)h.size, plane = AXES == 2 ? number : number / (N)d.size;
        i32 column = (i32)(i - line * pieces) * WIDE, row = (i32)(line - number * (N)h.size),
            slice = AXES == 2 ? 0 : (i32)(number - plane * (N)d.size);
        i32 count = min(w.size - column, WIDE);
        u64 at = ((u64)slice * h.size + row) * w.size + column;
        float sum[WIDE] = {};
        for (i32 q = d.first(slice); q <= d.last(slice); ++q) {
            for (i32 r = h.first(row); r <= h.last(row); ++r) {
                i32 inner = (slice + d.pad - q * d.stride) * h.window + row + h.pad - r * h.stride;
                for (i32 s = w.first(column); s <= w.last(column + count - 1); ++s) {
                    u64 window = plane * outputs + ((u64)q * h.out + r) * w.out + s;
                    u64 index = (u64)indices[window];
                    float gradient = load(dy[window]);
                    i32 left = column + w.pad - s * w.stride; // the first pixel's place in the window
#pragma unroll
                    for (i32 k = 0; k < WIDE; ++k) {
                        u64 mine = p.masked ? (u64)inner * w.window + (left + k) : at + k;
                        if (left + k >= 0 && left + k < w.window && index == mine) sum[k] += gradient;
                    }
                }
            }
        }
        T *to = dx + (u64)line * w.size + column;
#pragma unroll
        for (i32 k = 0; k < WIDE; ++k) {
            if (k < count) store(to + k, sum[k]);
        }
    });
}

template <int AXES, class T, class I> __global__ void max_backward(Pool p, const T *dy, const I *indices, T *dx) {
    // In 32 bits up to 2^31 pixels: the loop's last step stays below 2^32, because at most 2^31
    // threads run.
    if ((u64)p.depth<AXES>().size * p.h.size * p.w.size * p.planes <= 0x80000000u)
        gather_max<u32, AXES>(p, dy, indices, dx);
    else gather_max<u64, AXES>(p, dy, indices, dx);
}

struct Norm {
    i64 rows, length;
    // The weight of a value has the index row % groups * channels + (the value's index in its row)
    // / share.
    i64 groups, channels, share;
    float epsilon;
};

// The sum over a block's 256 threads, returned to each of them.
__device__ double block_sum(double value) {
    __shared__ double part[8];
    for (i32 distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    __syncthreads(); // threads may still read an earlier sum's parts
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0.0;
    for (i32 w = 0; w < 8; ++w) sum += part[w];
    return sum;
}

// One block normalises a row: it computes first the mean, then the deviations from it. If not
// CENTRED (T5's norm), the mean is taken as 0. Tensors whose pointer is null are left out.
template <class T, bool CENTRED>
__global__ void norm_forward(Norm p, const T *x, const T *weight, const T *bias, T *y, T *mean, T *rstd) {
    for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T *from = x + row * p.length;
        double sum = 0.0, squares = 0.0;
        float centre = 0.0f;
        if constexpr (CENTRED) {
            for (i64 i = threadIdx.x; i < p.length; i += blockDim.x) sum += load(from[i]);
            centre = (float)(block_sum(sum) / (double)p.length);
            sum = 0.0;
        }
        for (i64 i = threadIdx.x; i < p.length; i += blockDim.x) {
            double off = (double)load(from[i]) - centre;
            sum += off;
            squares += off * off;
        }
        // The rounding error of the mean is the mean deviation, which corrects the variance.
        double first = CENTRED ? block_sum(sum) / (double)p.length : 0.0;
        double variance = block_sum(squares) / (double)p.length - first * first;
        float scale = (float)rsqrt((variance < 0.0 ? 0.0 : variance) + (double)p.epsilon);
        if (threadIdx.x == 0) {
            if (mean != nullptr) store(mean + row, centre);
            if (rstd != nullptr) store(rstd + row, scale);
        }
        i64 channel = row % p.groups * p.channels;
        for (i64 i = threadIdx.x; i < p.length; i += blockDim.x) {
            float value = (load(from[i]) - centre) * scale;
            i64 at = channel + i / p.share;
            if (weight != nullptr) value *= load(weight[at]);
            if (bias != nullptr) value += load(bias[at]);
            store(y + row * p.length + i, value);
        }
    }
}

// 16 bytes, read or written by one access.
template <class T> struct Piece {
    static constexpr i32 WIDTH = 16 / sizeof(T);
    T lane[WIDTH];

    __device__ static Piece read(const T *from, i64 at) {
        uint4 bits = reinterpret_cast<const uint4 *>(from)[at];
        Piece piece;
        __builtin_memcpy(&piece, &bits, 16);
        return piece;
    }
    __device__ void write(T *to, i64 at) const {
        uint4 bits;
        __builtin_memcpy(&bits, this, 16);
        reinterpret_cast<uint4 *>(to)[at] = bits;
    }
};

// The sums of both components over the TEAM threads of a row (a warp or a block of 256), returned
// to each of them.
template <i32 TEAM> __device__ float2 team_sum(float2 value) {
    for (i32 distance = 16; distance > 0; distance /= 2) {
        value.x += __shfl_xor_sync(0xffffffffu, value.x, distance);
        value.y += __shfl_xor_sync(0xffffffffu, value.y, distance);
    }
    if constexpr (TEAM > 32) {
        __shared__ float2 part[8];
        __syncthreads(); // threads may still read an earlier sum's parts
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
        __syncthreads();
        value = part[0];
        for (i32 w = 1; w < 8; ++w) value.x += part[w].x, value.y += part[w].y;
    }
    return value;
}

// norm_forward for rows of at most PIECES times 16 bytes per thread, if all addresses are multiples
// of 16 bytes and each element has its own weight. A row is read once and stays in registers. Mean
// and variance are computed from differences to the row's first element, so that one reduction
// gives both and a large mean costs no precision.
template <class T, bool CENTRED, i32 TEAM, i32 PIECES>
__global__ void __launch_bounds__(256)
    row_norm(Norm p, const T *x, const T *weight, const T *bias, T *y, T *mean, T *rstd) {
    constexpr i32 WIDTH = Piece<T>::WIDTH;
    i32 thread = threadIdx.x % TEAM, pieces = (i32)(p.length / WIDTH);
    for (i64 row = (i64)blockIdx.x * (256 / TEAM) + threadIdx.x / TEAM; row < p.rows;
         row += (i64)gridDim.x * (256 / TEAM)) {
        const T *from = x + row * p.length;
        float first = CENTRED ? load(from[0]) : 0.0f;
        Piece<T> kept[PIECES];
#pragma unroll
        for (i32 j = 0; j < PIECES; ++j) {
            if (thread + j * TEAM < pieces) kept[j] = Piece<T>::read(from, thread + j * TEAM);
        }
        float2 mine = {0.0f, 0.0f};
#pragma unroll
        for (i32 j = 0; j < PIECES; ++j) {
            if (thread + j * TEAM >= pieces) break;
#pragma unroll
            for (i32 w = 0; w < WIDTH; ++w) {
                float off = load(kept[j].lane[w]) - first;
                if constexpr (CENTRED) mine.x += off;
                mine.y += off * off;
            }
        }
        float2 all = team_sum<TEAM>(mine);
        float off = all.x / (float)p.length, variance = all.y / (float)p.length - off * off;
        float scale = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + p.epsilon);
        if (thread == 0) {
            if (mean != nullptr) store(mean + row, first + off);
            if (rstd != nullptr) store(rstd + row, scale);
        }
#pragma unroll
        for (i32 j = 0; j < PIECES; ++j) {
            i32 at = thread + j * TEAM;
            if (at >= pieces) break;
            Piece<T> factor, shift, out;
            if (weight != nullptr) factor = Piece<T>::read(weight, at);
            if (bias != nullptr) shift = Piece<T>::read(bias, at);
#pragma unroll
            for (i32 w = 0; w < WIDTH; ++w) {
                float value = (load(kept[j].lane[w]) - first - off) * scale;
                if (weight != nullptr) value *= load(factor.lane[w]);
                if (bias != nullptr) value += load(shift.lane[w]);
                store(&out.lane[w], value);
            }
            out.write(y + row * p.length, at);
        }
    }
}

// The gradient of x from the stored statistics. One block per row. weight may be null.
template <class T>
__global__ void norm_backward(Norm p, const T *dy, const T *x, const T *weight, const T *mean, const T *rstd, T *dx) {
    for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        i64 start = row * p.length;
        float centre = load(mean[row]), scale = load(rstd[row]);
        auto gradient = [=](i64 i) { return load(dy[start + i]) * (weight != nullptr ? load(weight[i]) : 1.0f); };
        auto normal = [=](i64 i) { return (load(x[start + i]) - centre) * scale; };
        double sum = 0.0, moment = 0.0;
        for (i64 i = threadIdx.x; i < p.length; i += blockDim.x) {
            sum += gradient(i);
            moment += gradient(i) * normal(i);
        }
        float each = (float)(block_sum(sum) / (double)p.length), along = (float)(block_sum(moment) / (double)p.length);
        for (i64 i = threadIdx.x; i < p.length; i += blockDim.x) {
            store(dx + start + i, scale * (gradient(i) - each - normal(i) * along));
        }
    }
}

// The gradients of weight and bias. A block takes 32 columns, and each of its 8 warps takes every
// eighth row.
template <class T>
__global__ void norm_parameters(Norm p, const T *dy, const T *x, const T *mean, const T *rstd, T *weight, T *bias) {
    __shared__ double parts[2][8][32];
    i32 column = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (i64 first = (i64)blockIdx.x * 32; first < p.length; first += (i64)gridDim.x * 32) {
        i64 at = first + column;
        double by_weight = 0.0, by_bias = 0.0;
        for (i64 row = warp; row < p.rows && at < p.length; row += 8) {
            float gradient = load(dy[row * p.length + at]);
            by_weight += gradient * ((load(x[row * p.length + at]) - load(mean[row])) * load(rstd[row]));
            by_bias += gradient;
        }
        __syncthreads(); // threads may still read the previous columns' parts
        parts[0][warp][column] = by_weight;
        parts[1][warp][column] = by_bias;
        __syncthreads();
        if (warp != 0 || at >= p.length) continue;
        for (i32 other = 1; other < 8; ++other) {
            by_weight += parts[0][other][column];
            by_bias += parts[1][other][column];
        }
        store(weight + at, (float)by_weight);
        store(bias + at, (float)by_bias);
    }
}

// MIOpen's mode numbers, and its formulas.
struct Activation {
    i32 mode;
    float alpha, beta, gamma;
};

template <class T> __global__ void activation_forward(Activation p, u64 n, const T *from, T *to) {
    for_each(n, [=](u64 i) {
        float x = load(from[i]), y = x;
        switch (p.mode) {
        case 1:
            y = 1.0f / (1.0f + expf(-x));
            break;
        case 2:
            y = p.beta * tanhf(p.alpha * x);
            break;
        case 3:
            y = x > 0.0f ? x : x * 0.0f;
            break;
        case 4:
            y = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
            break;
        case 5:
            y = fabsf(x);
            break;
        case 6:
            y = powf(p.alpha + p.beta * x, p.gamma);
            break;
        case 7:
            y = fminf(fmaxf(x, 0.0f), p.alpha);
            break;
        case 8:
            y = x > 0.0f ? x : p.alpha * x;
            break;
        case 9:
            y = x > 0.0f ? x : p.alpha * expm1f(x);
            break;
        case 10:
            y = fminf(fmaxf(x, p.alpha), p.beta);
            break;
        }
        store(to + i, y);
    });
}

template <class T>
__global__ void activation_backward(Activation p, u64 n, const T *xs, const T *ys, const T *dys, T *to) {
    for_each(n, [=](u64 i) {
        float x = load(xs[i]), y = load(ys[i]), slope = 1.0f;
        switch (p.mode) {
        case 1:
            slope = y * (1.0f - y);
            break;
        case 2:
            slope = p.alpha * (p.beta - y * y / p.beta);
            break;
        case 3:
            slope = x > 0.0f ? 1.0f : 0.0f;
            break;
        case 4:
            slope = 1.0f / (1.0f + expf(-x));
            break;
        case 5:
            slope = x > 0.0f ? 1.0f : -1.0f;
            break;
        case 6: {
            float base = p.alpha + p.beta * x;
            slope = fabsf(base) <= 1.1920929e-7f ? 0.0f : p.gamma * p.beta * y / base;
            break;
        }
        case 7:
            slope = x > 0.0f && x <= p.alpha ? 1.0f : 0.0f;
            break;
        case 8:
            slope = x > 0.0f ? 1.0f : p.alpha;
            break;
        case 9:
            slope = x > 0.0f ? 1.0f : y + p.alpha;
            break;
        case 10:
            slope = x > p.alpha && x <= p.beta ? 1.0f : 0.0f;
            break;
        }
        store(to + i, load(dys[i]) * slope);
    });
}
