// Kernels that hipRTC compiles with the options given, each against the same text compiled for the host.
//
//   options -O0
//   options -O3 -ffast-math
//
// Integers, control flow and single operations on floats must agree to the bit. With -ffast-math the inputs are finite
// and normal, and what that option lets the compiler approximate has the bounds of OpenCL C's specification ("Relative
// Error as ULPs", and its table for unsafe math), to which AMD's device libraries are written.
#include "common.h"

#include <math.h>
#include <string.h>

typedef unsigned long long u64;

// The text for both compilers.
#define FN static
#define BOTH(...) \
    static const char *both = #__VA_ARGS__ "\n"; \
    __VA_ARGS__

enum { INTEGERS = 30, WIDE = 12, FLOATS = 24, DOUBLES = 16, FUNCTIONS = 11 };

// clang-format off
BOTH(
FN unsigned integers(unsigned a, unsigned b, int which) {
    int x = (int)a;
    int y = (int)b;
    int divides = b != 0 && !(a == 0x80000000u && b == ~0u);
    unsigned sum = 0;
    switch (which) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return b ? a / b : 0;
    case 4: return b ? a % b : 0;
    case 5: return divides ? (unsigned)(x / y) : 0;
    case 6: return divides ? (unsigned)(x % y) : 0;
    case 7: return a << (b & 31);
    case 8: return a >> (b & 31);
    case 9: return (unsigned)(x >> (b & 31));
    case 10: return (unsigned)((unsigned long long)a * b >> 32);
    case 11: return (unsigned)((long long)x * y >> 32);
    case 12: return a << (b & 31) | a >> (-b & 31);
    case 13: return (unsigned)__builtin_popcount(a);
    case 14: return a ? (unsigned)__builtin_clz(a) : 32;
    case 15: return a ? (unsigned)__builtin_ctz(a) : 32;
    case 16: return a < b;
    case 17: return x < y;
    case 18: return x < y ? a : b;
    case 19: return a > b ? a : b;
    case 20: return (unsigned)((signed char)a + (short)b);
    case 21: return (a & b) | (~a ^ b);
    case 22: return a > b ? a - b : b - a;
    case 23: return __builtin_bswap32(a) + b;
    case 24: return (a >> (b & 15)) & 0xff;
    case 25: return a + b < a ? ~0u : a + b;
    case 26:
        for (int i = 0; i < 32; i += 8) sum += (a >> i & 255) * (b >> i & 255);
        return sum;
    case 27:
        for (int i = 0; i < 32; i += 8) sum += (unsigned)((signed char)(a >> i) * (signed char)(b >> i));
        return sum;
    case 28: return (unsigned char)(a + b) * 3u + (unsigned short)(a * b);
    default: return (unsigned)-x;
    }
}
FN unsigned long long wide(unsigned long long a, unsigned long long b, int which) {
    switch (which) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return a / (b | 1);
    case 4: return a % (b | 1);
    case 5: return (unsigned long long)((long long)(a >> 1) / (long long)(b >> 1 | 1));
    case 6: return a << (b & 63);
    case 7: return a >> (b & 63);
    case 8: return (unsigned long long)((long long)a >> (b & 63));
    case 9: return a < b ? a : b;
    case 10: return (unsigned long long)((long long)a > (long long)b) + (unsigned long long)__builtin_popcountll(a);
    default: return (unsigned long long)(__builtin_clzll(a | 1) * 64 + __builtin_ctzll(b | 1ull << 63));
    }
}
FN float floats(float a, float b, float c, int which) {
    float inside = a > 1e9f ? 1e9f : a < -1e9f ? -1e9f : a == a ? a : 0;
    switch (which) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return a / b;
    case 4: return sqrtf(fabsf(a));
    case 5: return fmaf(a, b, c);
    case 6: return floorf(a);
    case 7: return ceilf(a);
    case 8: return truncf(a);
    case 9: return rintf(a);
    case 10: return fminf(a, b);
    case 11: return fmaxf(a, b);
    case 12: return a < b ? 1.0f : 2.0f;
    case 13: return a >= b ? 1.0f : 2.0f;
    case 14: return copysignf(a, b);
    case 15: return (float)(int)inside;
    case 16: return (float)(unsigned)fabsf(inside);
    case 17: return (float)((double)a * (double)b);
    case 18: return ldexpf(a, 3);
    case 19: return a == b ? 1.0f : a != b ? 2.0f : 3.0f;
    case 20: return (float)(long long)(inside * 1024.0f);
    case 21: return -a;
    case 22: return a * b + c;
    default: return (float)((unsigned long long)fabsf(inside) << 20);
    }
}
FN double doubles(double a, double b, double c, int which) {
    double inside = a > 1e9 ? 1e9 : a < -1e9 ? -1e9 : a == a ? a : 0;
    switch (which) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return a / b;
    case 4: return sqrt(fabs(a));
    case 5: return fma(a, b, c);
    case 6: return floor(a);
    case 7: return ceil(a);
    case 8: return trunc(a);
    case 9: return rint(a);
    case 10: return fmin(a, b);
    case 11: return fmax(a, b);
    case 12: return a < b ? 1.0 : a > b ? 2.0 : 3.0;
    case 13: return (double)(int)inside;
    case 14: return (double)(long long)(inside * 1024.0);
    default: return (double)(unsigned)fabs(inside);
    }
}
FN __attribute__((noinline)) int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
FN __attribute__((noinline)) int tripled(int x) { return 3 * x; }
FN __attribute__((noinline)) int squared(int x) { return x * x; }
FN __attribute__((noinline)) int collatz(int x) {
    int steps = 0;
    for (unsigned n = (unsigned)x + 1; n != 1; n = n % 2 ? 3 * n + 1 : n / 2) steps++;
    return steps;
}
FN int control(int thread) {
    int (*functions[3])(int) = {tripled, squared, collatz};
    int order[16];
    int result = 0;
    for (int i = 0; i < 16; i++) order[i * 5 % 16] = i + thread;
    for (int i = 0; i < 16; i++) {
        if (order[i] % 7 == thread % 7) continue;
        if (result > 100000) break;
        result += order[(order[i] & 15)] * (i % 2 ? 1 : 3);
    }
    return result + functions[thread % 3](thread) + fibonacci(thread % 9);
}
struct block {
    char tag;
    double d;
    short s[5];
    float f[12];
    long long l;
};
FN double members(struct block b, int thread) {
    return b.tag + b.d * 2 + b.s[thread % 5] + (double)b.f[thread % 12] + (double)(b.l >> thread % 32);
}
)
// clang-format on

static const char *kernels =
    "#define KERNEL extern \"C\" __global__ void\n"
    "#define AT int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;\n"
    // Neighbours execute different cases.
    "KERNEL k_integers(const unsigned *a, const unsigned *b, unsigned *out, int n, int cases) {\n"
    "    AT\n"
    "    for (int k = 0; k < cases; k++) {\n"
    "        int w = (k + i) % cases;\n"
    "        out[i * cases + w] = integers(a[i], b[i], w);\n"
    "    }\n"
    "}\n"
    "typedef unsigned long long u64;\n"
    "KERNEL k_wide(const u64 *a, const u64 *b, u64 *out, int n, int cases) {\n"
    "    AT for (int w = 0; w < cases; w++) out[i * cases + w] = wide(a[i], b[i], w);\n"
    "}\n"
    "KERNEL k_floats(const float *a, const float *b, const float *c, float *out, int n, int cases) {\n"
    "    AT for (int w = 0; w < cases; w++) out[i * cases + w] = floats(a[i], b[i], c[i], w);\n"
    "}\n"
    "KERNEL k_doubles(const double *a, const double *b, const double *c, double *out, int n, int cases) {\n"
    "    AT for (int w = 0; w < cases; w++) out[i * cases + w] = doubles(a[i], b[i], c[i], w);\n"
    "}\n"
    "KERNEL k_functions(const float *a, const float *b, float *out, int n, int cases) {\n"
    "    AT float x = a[i], y = b[i], *o = out + i * cases;\n"
    "    o[0] = expf(x); o[1] = exp2f(x); o[2] = logf(y); o[3] = log2f(y); o[4] = sinf(x); o[5] = cosf(x);\n"
    "    o[6] = powf(y, x); o[7] = cbrtf(x); o[8] = erff(x); o[9] = atan2f(x, y); o[10] = tanhf(x);\n"
    "}\n"
    "KERNEL k_halves(const float *a, const float *b, _Float16 *out, int n) {\n"
    "    AT _Float16 x = (_Float16)a[i], y = (_Float16)b[i], *o = out + 4 * i;\n"
    "    o[0] = x; o[1] = x + y; o[2] = x * y; o[3] = x / y;\n"
    "}\n"
    "KERNEL k_control(int *out, int n) { AT out[i] = control(i); }\n"
    "KERNEL k_members(block b, double *out, int n) { AT out[i] = members(b, i); }\n"
    // 256 threads: a tree in LDS, then lanes by shuffles; counts by atomics in LDS and in memory.
    "KERNEL k_group(const float *in, float *sums, int *counts) {\n"
    "    __shared__ float part[256]; __shared__ int mine[16];\n"
    "    int t = threadIdx.x; float x = in[blockIdx.x * 256 + t];\n"
    "    part[t] = x; if (t < 16) mine[t] = 0;\n"
    "    __syncthreads();\n"
    "    atomicAdd(&mine[(int)x & 15], 1);\n"
    "    for (int step = 128; step >= 32; step /= 2) {\n"
    "        if (t < step) part[t] += part[t + step];\n"
    "        __syncthreads();\n"
    "    }\n"
    "    if (t < 32) {\n"
    "        float sum = part[t];\n"
    "        for (int step = 16; step > 0; step /= 2) sum += __shfl_down(sum, step, 32);\n"
    "        if (t == 0) sums[blockIdx.x] = sum;\n"
    "    }\n"
    "    if (t < 16) atomicAdd(&counts[t], mine[t]);\n"
    "}\n";

// Whether values are finite and normal, and approximations are allowed.
static int fast;

// Knuth's MMIX generator; its high bits.
static unsigned draw(void) {
    static u64 state = 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 32);
}

static void run(const char *name, int n, void **arguments) {
    CHECK(launch(name, (n + 127) / 128, 128, 0, arguments));
}

static void get(void *host, void *memory, size_t size) {
    CHECK(hipMemcpy(host, memory, size, hipMemcpyDeviceToHost));
    CHECK(hipFree(memory));
}

static void wrong(const char *what, int which, double a, double b, double found, double expected) {
    printf("%s, case %d of %.17g and %.17g: found %.17g, expected %.17g\n", what, which, a, b, found, expected);
    exit(1);
}

static void check_integers(void) {
    static const unsigned edges[] = {
        0, 1, 2, 31, 32, 33, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0x7fffffff, 0x80000000, ~0u};
    enum { EDGES = sizeof edges / sizeof *edges, N = EDGES * EDGES + 500 };
    static unsigned a[N], b[N], out[N * INTEGERS];
    static u64 wide_a[N], wide_b[N], wide_out[N * WIDE];
    int n = N, cases = INTEGERS, wide_cases = WIDE;
    for (int i = 0; i < N; i++) {
        int edge = i < EDGES * EDGES;
        a[i] = edge ? edges[i / EDGES] : draw();
        b[i] = edge ? edges[i % EDGES] : draw() >> (draw() & 31);
        wide_a[i] = (u64)a[i] << (b[i] & 32) | b[i];
        wide_b[i] = ((u64)b[i] << 32 | a[i]) >> (a[i] & 63);
    }
    void *da = device(a, sizeof a), *db = device(b, sizeof b), *dout = device(NULL, sizeof out);
    void *arguments[] = {&da, &db, &dout, &n, &cases};
    run("k_integers", n, arguments);
    get(out, dout, sizeof out);
    for (int i = 0; i < N * INTEGERS; i++) {
        unsigned expected = integers(a[i / INTEGERS], b[i / INTEGERS], i % INTEGERS);
        if (out[i] != expected) wrong("integers", i % INTEGERS, a[i / INTEGERS], b[i / INTEGERS], out[i], expected);
    }
    void *wa = device(wide_a, sizeof wide_a), *wb = device(wide_b, sizeof wide_b);
    void *wout = device(NULL, sizeof wide_out);
    void *wide_arguments[] = {&wa, &wb, &wout, &n, &wide_cases};
    run("k_wide", n, wide_arguments);
    get(wide_out, wout, sizeof wide_out);
    for (int i = 0; i < N * WIDE; i++) {
        u64 expected = wide(wide_a[i / WIDE], wide_b[i / WIDE], i % WIDE);
        double x = (double)wide_a[i / WIDE], y = (double)wide_b[i / WIDE];
        if (wide_out[i] != expected) wrong("64 bits", i % WIDE, x, y, (double)wide_out[i], (double)expected);
    }
    CHECK(hipFree(da)), CHECK(hipFree(db)), CHECK(hipFree(wa)), CHECK(hipFree(wb));
}

// The distance between neighbours near a number, in a type with these digits and this least exponent.
static double ulp(double x, int digits, int least) {
    int exponent = x == 0 || !isfinite(x) ? least : ilogb(x);
    return ldexp(1, (exponent < least ? least : exponent) - digits + 1);
}

// Equal, both NaN, or no further apart than the bound.
static int near(double found, double expected, double bound) {
    return found == expected || (isnan(found) && isnan(expected)) || fabs(found - expected) <= bound;
}

// What -ffast-math may change in the cases that `floats` and `doubles` share: a quotient and a root are approximate
// (2.5 and 3 ulp), and a product may be fused with a sum, or not.
static double bound(int which, double a, double b, double one_ulp, int fused) {
    if (!fast) return 0;
    if (which == 3) return 2.5 * one_ulp;
    if (which == 4) return 3 * one_ulp;
    if (which == fused) return one_ulp + ldexp(fabs(a * b), -24);
    return 0;
}

static void check_floats(void) {
    static const float edges[] = {0, -0.0f, 1, -1, 0.5f, 1.5f, -2.5f, 3, 1e-3f, 1e9f, -1e9f, 8388609, 16777217,
        INFINITY, -INFINITY, NAN, 1e-40f, -1e-45f, 1.1754944e-38f, 3.4028235e38f};
    enum { EDGES = sizeof edges / sizeof *edges, N = EDGES * EDGES + 1000 };
    static float a[N], b[N], c[N], out[N * FLOATS];
    static double da[N], db[N], dc[N], dout[N * DOUBLES];
    int n = N, cases = FLOATS, double_cases = DOUBLES;
    for (int i = 0; i < N; i++) {
        int edge = i < EDGES * EDGES && !fast;
        a[i] = edge ? edges[i / EDGES] : ldexpf((int)draw(), (int)(draw() % 40) - 50);
        b[i] = edge ? edges[i % EDGES] : ldexpf((int)draw(), (int)(draw() % 40) - 50);
        if (fast && a[i] == 0) a[i] = 1;
        if (fast && b[i] == 0) b[i] = 1;
        c[i] = edge ? -a[i] * b[i] : ldexpf((int)draw(), (int)(draw() % 40) - 50);
        da[i] = a[i] * (edge ? 1.0 : 1.0 + 1e-9 * (draw() % 1000));
        db[i] = b[i] * (edge ? 1.0 : 1.0 + 1e-9 * (draw() % 1000));
        dc[i] = c[i] * (edge ? 1.0 : 1.0 + 1e-9 * (draw() % 1000));
    }
    void *ma = device(a, sizeof a), *mb = device(b, sizeof b), *mc = device(c, sizeof c);
    void *mout = device(NULL, sizeof out);
    void *arguments[] = {&ma, &mb, &mc, &mout, &n, &cases};
    run("k_floats", n, arguments);
    get(out, mout, sizeof out);
    for (int i = 0; i < N * FLOATS; i++) {
        int at = i / FLOATS, which = i % FLOATS;
        float expected = floats(a[at], b[at], c[at], which);
        if (!near(out[i], expected, bound(which, a[at], b[at], ulp(expected, 24, -126), 22)))
            wrong("f32", which, a[at], b[at], out[i], expected);
    }
    void *na = device(da, sizeof da), *nb = device(db, sizeof db), *nc = device(dc, sizeof dc);
    void *nout = device(NULL, sizeof dout);
    void *double_arguments[] = {&na, &nb, &nc, &nout, &n, &double_cases};
    run("k_doubles", n, double_arguments);
    get(dout, nout, sizeof dout);
    for (int i = 0; i < N * DOUBLES; i++) {
        int at = i / DOUBLES, which = i % DOUBLES;
        double expected = doubles(da[at], db[at], dc[at], which);
        if (!near(dout[i], expected, bound(which, da[at], db[at], ulp(expected, 53, -1022), -1)))
            wrong("f64", which, da[at], db[at], dout[i], expected);
    }
    void *all[] = {ma, mb, mc, na, nb, nc};
    for (int i = 0; i < 6; i++) CHECK(hipFree(all[i]));
}

static double function(double x, double y, int which) {
    switch (which) {
    case 0: return exp(x);
    case 1: return exp2(x);
    case 2: return log(y);
    case 3: return log2(y);
    case 4: return sin(x);
    case 5: return cos(x);
    case 6: return pow(y, x);
    case 7: return cbrt(x);
    case 8: return erf(x);
    case 9: return atan2(x, y);
    default: return tanh(x);
    }
}

static double function_bound(double x, double y, double expected, int which) {
    static const double ulps[FUNCTIONS] = {3, 3, 3, 3, 4, 4, 16, 2, 16, 6, 5};
    double one = ulp(expected, 24, -126);
    // The functions of f64 on this host are right to less than 1e-3 ulp of f32.
    double plain = (ulps[which] + 1e-3) * one;
    if (!fast) return plain;
    switch (which) {
    case 0: case 1: return (3 + floor(fabs(2 * x))) * one;
    case 2: case 3: return y >= 0.5 && y <= 2 ? fmax(ldexp(1, -21), plain) : plain;
    case 4: case 5: return ldexp(1, -11);
    // exp2(x * log2(y)): a relative error of the exponent's few roundings times the exponent, and exp2's own.
    case 6: return (3 + floor(fabs(2 * x * log2(y))) + 8 * fabs(x * log2(y))) * one;
    // 4 ulp for cbrt; tanh may be made of exp.
    case 7: return 4 * one;
    case 10: return (5 + 2 * (3 + floor(fabs(2 * x)))) * one;
    default: return plain;
    }
}

static void check_functions(void) {
    enum { N = 3000 };
    static float x[N], y[N], out[N * FUNCTIONS];
    int n = N, cases = FUNCTIONS;
    for (int i = 0; i < N; i++) {
        x[i] = (float)((int)draw() * (3.0 / 2147483648.0));
        y[i] = ldexpf(1 + (draw() >> 9) / 8388608.0f, i % 2 ? 0 : (int)(draw() % 16) - 8);
    }
    void *dx = device(x, sizeof x), *dy = device(y, sizeof y), *dout = device(NULL, sizeof out);
    void *arguments[] = {&dx, &dy, &dout, &n, &cases};
    run("k_functions", n, arguments);
    get(out, dout, sizeof out);
    for (int i = 0; i < N * FUNCTIONS; i++) {
        int at = i / FUNCTIONS, which = i % FUNCTIONS;
        double expected = function(x[at], y[at], which);
        if (!near(out[i], expected, function_bound(x[at], y[at], expected, which)))
            wrong("functions", which, x[at], y[at], out[i], expected);
    }
    CHECK(hipFree(dx)), CHECK(hipFree(dy));
}

// To the nearest f16, halves to even.
static double half(double x) {
    double unit = ulp(x, 11, -14);
    double rounded = nearbyint(x / unit) * unit;
    return fabs(rounded) >= 65520 ? copysign(INFINITY, x) : rounded;
}

// The value of an f16's bits.
static double half_of(unsigned short bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double x = exponent == 31 ? (mantissa ? NAN : INFINITY)
        : exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits >> 15 ? -x : x;
}

static void check_halves(void) {
    enum { N = 4000 };
    static float a[N], b[N];
    static unsigned short out[4 * N];
    int n = N;
    for (int i = 0; i < N; i++) {
        // Subnormal f16 among them, and ties; a sum and a product of f16 are exact in f64.
        a[i] = (float)ldexp((int)(draw() % 16384) - 8192, (int)(draw() % (fast ? 8 : 16)) - (fast ? 12 : 26));
        b[i] = (float)ldexp((int)(draw() % 4096) + 1, (int)(draw() % (fast ? 8 : 16)) - (fast ? 12 : 20));
    }
    void *da = device(a, sizeof a), *db = device(b, sizeof b), *dout = device(NULL, sizeof out);
    void *arguments[] = {&da, &db, &dout, &n};
    run("k_halves", n, arguments);
    get(out, dout, sizeof out);
    for (int i = 0; i < N; i++) {
        double x = half(a[i]), y = half(b[i]), expected[] = {x, half(x + y), half(x * y), half(x / y)};
        for (int k = 0; k < 4; k++) {
            // A quotient of f64 has more than twice the digits, so it is rounded as the exact one.
            double allowed = fast && k == 3 ? 2.5 * ulp(expected[k], 11, -14) : 0;
            double found = half_of(out[4 * i + k]);
            if (!near(found, expected[k], allowed)) wrong("f16", k, a[i], b[i], found, expected[k]);
        }
    }
    CHECK(hipFree(da)), CHECK(hipFree(db));
}

static void check_control(void) {
    enum { N = 1000 };
    static int out[N];
    static double sums[N];
    int n = N;
    void *memory = device(NULL, sizeof out), *arguments[] = {&memory, &n};
    run("k_control", n, arguments);
    get(out, memory, sizeof out);
    for (int i = 0; i < N; i++)
        if (out[i] != control(i)) wrong("control flow", i, 0, 0, out[i], control(i));
    // All sums are exact.
    struct block block = {.tag = 3, .d = 0.25, .l = 0x123456789abcll};
    for (int i = 0; i < 5; i++) block.s[i] = (short)(i * 1000 - 2000);
    for (int i = 0; i < 12; i++) block.f[i] = 0.5f * i;
    void *places = device(NULL, sizeof sums), *member_arguments[] = {&block, &places, &n};
    run("k_members", n, member_arguments);
    get(sums, places, sizeof sums);
    for (int i = 0; i < N; i++)
        if (sums[i] != members(block, i)) wrong("members", i, 0, 0, sums[i], members(block, i));
}

static void check_groups(void) {
    enum { GROUPS = 37, N = GROUPS * 256 };
    static float in[N], sums[GROUPS];
    int counts[16], expected[16] = {0};
    // Small integers, so that every order of the sum is exact.
    for (int i = 0; i < N; i++) in[i] = draw() % 1000, expected[(int)in[i] & 15]++;
    void *din = device(in, sizeof in), *dsums = device(NULL, sizeof sums), *dcounts = device(NULL, sizeof counts);
    void *arguments[] = {&din, &dsums, &dcounts};
    CHECK(launch("k_group", GROUPS, 256, 0, arguments));
    get(sums, dsums, sizeof sums);
    get(counts, dcounts, sizeof counts);
    for (int g = 0; g < GROUPS; g++) {
        float sum = 0;
        for (int i = 0; i < 256; i++) sum += in[256 * g + i];
        if (sums[g] != sum) wrong("a group's sum", g, 0, 0, sums[g], sum);
    }
    for (int k = 0; k < 16; k++)
        if (counts[k] != expected[k]) wrong("counts", k, 0, 0, counts[k], expected[k]);
    CHECK(hipFree(din));
}

int main(int count, char **arguments) {
    const char *options[8];
    EXPECT(count < 7);
    int given = 0;
    for (int i = 1; i < count; i++) {
        fast |= !strcmp(arguments[i], "-ffast-math");
        options[given++] = arguments[i];
    }
    // By default the compiler fuses products with sums. -ffast-math asks for it.
    if (!fast) options[given++] = "-ffp-contract=off";
    size_t size = strlen(both) + strlen(kernels) + 64;
    char *source = malloc(size);
    snprintf(source, size, "#define FN static __device__\n%s%s", both, kernels);
    compile(source, options, given);
    free(source);
    check_integers();
    check_floats();
    check_functions();
    check_halves();
    check_control();
    check_groups();
    puts("options: right");
    return 0;
}
