// What AMD's libraries compute and NVIDIA's do not: products of 8-bit integers whose sizes are no multiples of 4, maximum
// pooling that keeps each maximum's place, group norm, and activations that cuDNN has not.

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

template <class F> __device__ void for_each(u64 n, F f) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}

struct Gemm {
    i32 m, n, k, batch;
    i64 a_row, a_column, a_stride, b_row, b_column, b_stride, ldc, c_stride, ldd, d_stride;
    i32 alpha, beta;
};

// Sums wrap. c may be d.
extern "C" __global__ void gemm_i8(Gemm g, const i8 *a, const i8 *b, const i32 *c, i32 *d) {
    u64 plane = (u64)g.m * g.n;
    for_each(plane * g.batch, [=](u64 i) {
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

    // The windows that hold place i: from first, to last inclusive.
    __device__ i32 first(i32 i) const { return i + pad < window ? 0 : (i + pad - window) / stride + 1; }
    __device__ i32 last(i32 i) const { return min((i + pad) / stride, out - 1); }
};

struct Pool {
    i64 planes;
    Axis d, h, w;
    i32 masked; // an index counts within the window, else within the plane

    // In 2-D the compiler knows that there is one slice.
    template <int AXES> __device__ Axis depth() const {
        if constexpr (AXES == 2) return Axis{1, 1, 1, 1, 0};
        else return d;
    }
};

// The first of the greatest, beginning at the lowest finite number: MIOpen's maximum.
template <int AXES, class T, class I> __global__ void max_forward(Pool p, const T *x, T *y, I *indices) {
    Axis d = p.depth<AXES>(), h = p.h, w = p.w;
    u64 outputs = (u64)d.out * h.out * w.out;
    for_each(outputs * p.planes, [=](u64 i) {
        u64 plane = i / outputs;
        i32 slice = (i32)(i % outputs / ((u64)h.out * w.out)), row = (i32)(i / w.out % h.out), column = (i32)(i % w.out);
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

// Each pixel of the input gathers from the windows that hold it: a fixed order, one rounding.
template <int AXES, class T, class I> __global__ void max_backward(Pool p, const T *dy, const I *indices, T *dx) {
    Axis d = p.depth<AXES>(), h = p.h, w = p.w;
    u64 inputs = (u64)d.size * h.size * w.size, outputs = (u64)d.out * h.out * w.out;
    for_each(inputs * p.planes, [=](u64 i) {
        u64 plane = i / inputs, at = i % inputs;
        i32 slice = (i32)(at / ((u64)h.size * w.size)), row = (i32)(at / w.size % h.size), column = (i32)(at % w.size);
        float sum = 0.0f;
        for (i32 q = d.first(slice); q <= d.last(slice); ++q) {
            for (i32 r = h.first(row); r <= h.last(row); ++r) {
                for (i32 s = w.first(column); s <= w.last(column); ++s) {
                    u64 window = plane * outputs + ((u64)q * h.out + r) * w.out + s;
                    i32 inner = (slice + d.pad - q * d.stride) * h.window + row + h.pad - r * h.stride;
                    u64 mine = p.masked ? (u64)inner * w.window + (column + w.pad - s * w.stride) : at;
                    if ((u64)indices[window] == mine) sum += load(dy[window]);
                }
            }
        }
        store(dx + i, sum);
    });
}

struct Norm {
    i64 rows, length;
    // A value's weight: row % groups * channels + its place / share.
    i64 groups, channels, share;
    float epsilon;
};

// A sum over the block's threads, in each of them. 256 threads.
__device__ double block_sum(double value) {
    __shared__ double part[8];
    for (i32 distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    __syncthreads(); // an earlier sum may still be read
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0.0;
    for (i32 w = 0; w < 8; ++w) sum += part[w];
    return sum;
}

// One block a row: the mean first, then the deviations from it. weight and bias may be null.
template <class T>
__global__ void norm_forward(Norm p, const T *x, const T *weight, const T *bias, T *y, T *mean, T *rstd) {
    for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T *from = x + row * p.length;
        double sum = 0.0, squares = 0.0;
        for (i64 i = threadIdx.x; i < p.length; i += blockDim.x) sum += load(from[i]);
        float centre = (float)(block_sum(sum) / (double)p.length);
        sum = 0.0;
        for (i64 i = threadIdx.x; i < p.length; i += blockDim.x) {
            double off = (double)load(from[i]) - centre;
            sum += off;
            squares += off * off;
        }
        // Corrected by the first power: the mean was rounded.
        double first = block_sum(sum) / (double)p.length;
        double variance = block_sum(squares) / (double)p.length - first * first;
        float scale = (float)rsqrt((variance > 0.0 ? variance : 0.0) + (double)p.epsilon);
        if (threadIdx.x == 0) {
            store(mean + row, centre);
            store(rstd + row, scale);
        }
        i64 channel = row % p.groups * p.channels;
        for (i64 i = threadIdx.x; i < p.length; i += blockDim.x) {
            float value = (load(from[i]) - centre) * scale;
            i64 at = channel + i / p.share;
            if (weight != nullptr) value = value * load(weight[at]) + load(bias[at]);
            store(y + row * p.length + i, value);
        }
    }
}

// MIOpen's numbers of the modes, and its formulas.
struct Activation {
    i32 mode;
    float alpha, beta, gamma;
};

template <class T> __global__ void activation_forward(Activation p, u64 n, const T *from, T *to) {
    for_each(n, [=](u64 i) {
        float x = load(from[i]), y = x;
        switch (p.mode) {
        case 1: y = 1.0f / (1.0f + expf(-x)); break;
        case 2: y = p.beta * tanhf(p.alpha * x); break;
        case 3: y = x > 0.0f ? x : x * 0.0f; break;
        case 4: y = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); break;
        case 5: y = fabsf(x); break;
        case 6: y = powf(p.alpha + p.beta * x, p.gamma); break;
        case 7: y = fminf(fmaxf(x, 0.0f), p.alpha); break;
        case 8: y = x > 0.0f ? x : p.alpha * x; break;
        case 9: y = x > 0.0f ? x : p.alpha * expm1f(x); break;
        case 10: y = fminf(fmaxf(x, p.alpha), p.beta); break;
        }
        store(to + i, y);
    });
}

template <class T>
__global__ void activation_backward(Activation p, u64 n, const T *xs, const T *ys, const T *dys, T *to) {
    for_each(n, [=](u64 i) {
        float x = load(xs[i]), y = load(ys[i]), slope = 1.0f;
        switch (p.mode) {
        case 1: slope = y * (1.0f - y); break;
        case 2: slope = p.alpha * (p.beta - y * y / p.beta); break;
        case 3: slope = x > 0.0f ? 1.0f : 0.0f; break;
        case 4: slope = 1.0f / (1.0f + expf(-x)); break;
        case 5: slope = x > 0.0f ? 1.0f : -1.0f; break;
        case 6: {
            float base = p.alpha + p.beta * x;
            slope = fabsf(base) <= 1.1920929e-7f ? 0.0f : p.gamma * p.beta * y / base;
            break;
        }
        case 7: slope = x > 0.0f && x <= p.alpha ? 1.0f : 0.0f; break;
        case 8: slope = x > 0.0f ? 1.0f : p.alpha; break;
        case 9: slope = x > 0.0f ? 1.0f : y + p.alpha; break;
        case 10: slope = x > p.alpha && x <= p.beta ? 1.0f : 0.0f; break;
        }
        store(to + i, load(dys[i]) * slope);
    });
}
