// What HIP has built in for an app's kernels besides hip_cpu.h: vector types and fast functions. Only
// programs that are compiled at run time include this file, after hip_cpu.h, because the built-in
// kernels use none of it. It includes nothing.
#pragma once

// Templates, so that a function of the program or of the C library with the same parameters comes
// first.
template <class = void> HIP_CPU_INLINE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
template <class = void> HIP_CPU_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }

// Macros, because glibc's math.h declares functions of these names, and its library exports none. It
// then declares these, too, as C.
#define __expf hip_cpu_expf
#define __exp10f hip_cpu_exp10f
#define __logf hip_cpu_logf
#define __log2f hip_cpu_log2f
#define __log10f hip_cpu_log10f
#define __sinf hip_cpu_sinf
#define __cosf hip_cpu_cosf
#define __tanf hip_cpu_tanf
#define __powf hip_cpu_powf
extern "C" {
HIP_CPU_INLINE float hip_cpu_expf(float x) noexcept { return __builtin_expf(x); }
HIP_CPU_INLINE float hip_cpu_exp10f(float x) noexcept { return __builtin_powf(10.0f, x); }
HIP_CPU_INLINE float hip_cpu_logf(float x) noexcept { return __builtin_logf(x); }
HIP_CPU_INLINE float hip_cpu_log2f(float x) noexcept { return __builtin_log2f(x); }
HIP_CPU_INLINE float hip_cpu_log10f(float x) noexcept { return __builtin_log10f(x); }
HIP_CPU_INLINE float hip_cpu_sinf(float x) noexcept { return __builtin_sinf(x); }
HIP_CPU_INLINE float hip_cpu_cosf(float x) noexcept { return __builtin_cosf(x); }
HIP_CPU_INLINE float hip_cpu_tanf(float x) noexcept { return __builtin_tanf(x); }
HIP_CPU_INLINE float hip_cpu_powf(float x, float y) noexcept { return __builtin_powf(x, y); }
}
HIP_CPU_INLINE float __fdividef(float x, float y) { return x / y; }

// Of a number and a NaN, the number. Two types are converted as by `+`.
template <class A, class B> HIP_CPU_INLINE auto max(A a, B b) -> decltype(a + b) {
    decltype(a + b) one = a, other = b;
    return one < other || one != one ? other : one;
}
template <class A, class B> HIP_CPU_INLINE auto min(A a, B b) -> decltype(a + b) {
    decltype(a + b) one = a, other = b;
    return other < one || one != one ? other : one;
}

// float2 and its like. Those of two and four elements are aligned to their size, also where a
// launch passes one by value.
template <class T, int N> struct hip_cpu_vector;
template <class T> struct alignas(2 * sizeof(T)) hip_cpu_vector<T, 2> {
    T x, y;
    hip_cpu_vector() = default;
    explicit constexpr hip_cpu_vector(T all) : x(all), y(all) {}
    template <class X, class Y> constexpr hip_cpu_vector(X x, Y y) : x((T)x), y((T)y) {}
};
template <class T> struct hip_cpu_vector<T, 3> {
    T x, y, z;
    hip_cpu_vector() = default;
    explicit constexpr hip_cpu_vector(T all) : x(all), y(all), z(all) {}
    template <class X, class Y, class Z> constexpr hip_cpu_vector(X x, Y y, Z z) : x((T)x), y((T)y), z((T)z) {}
};
template <class T> struct alignas(4 * sizeof(T)) hip_cpu_vector<T, 4> {
    T x, y, z, w;
    hip_cpu_vector() = default;
    explicit constexpr hip_cpu_vector(T all) : x(all), y(all), z(all), w(all) {}
    template <class X, class Y, class Z, class W>
    constexpr hip_cpu_vector(X x, Y y, Z z, W w) : x((T)x), y((T)y), z((T)z), w((T)w) {}
};

// A scalar operand stands for a vector of it.
#define HIP_CPU_VECTOR_OPERATOR(op)                                                                   \
    template <class T>                                                                                \
    HIP_CPU_INLINE hip_cpu_vector<T, 2> operator op(hip_cpu_vector<T, 2> a, hip_cpu_vector<T, 2> b) { \
        return {a.x op b.x, a.y op b.y};                                                              \
    }                                                                                                 \
    template <class T>                                                                                \
    HIP_CPU_INLINE hip_cpu_vector<T, 3> operator op(hip_cpu_vector<T, 3> a, hip_cpu_vector<T, 3> b) { \
        return {a.x op b.x, a.y op b.y, a.z op b.z};                                                  \
    }                                                                                                 \
    template <class T>                                                                                \
    HIP_CPU_INLINE hip_cpu_vector<T, 4> operator op(hip_cpu_vector<T, 4> a, hip_cpu_vector<T, 4> b) { \
        return {a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w};                                      \
    }                                                                                                 \
    template <class T, int N>                                                                         \
    HIP_CPU_INLINE hip_cpu_vector<T, N> operator op(hip_cpu_vector<T, N> a, hip_cpu_plain<T> b) {     \
        return a op hip_cpu_vector<T, N>(b);                                                          \
    }                                                                                                 \
    template <class T, int N>                                                                         \
    HIP_CPU_INLINE hip_cpu_vector<T, N> operator op(hip_cpu_plain<T> a, hip_cpu_vector<T, N> b) {     \
        return hip_cpu_vector<T, N>(a) op b;                                                          \
    }                                                                                                 \
    template <class T, int N, class B>                                                                \
    HIP_CPU_INLINE hip_cpu_vector<T, N> &operator op##=(hip_cpu_vector<T, N> &a, B b) {               \
        return a = a op b;                                                                            \
    }
HIP_CPU_VECTOR_OPERATOR(+)
HIP_CPU_VECTOR_OPERATOR(-)
HIP_CPU_VECTOR_OPERATOR(*)
HIP_CPU_VECTOR_OPERATOR(/)

template <class T> HIP_CPU_INLINE hip_cpu_vector<T, 2> operator-(hip_cpu_vector<T, 2> a) { return {-a.x, -a.y}; }
template <class T> HIP_CPU_INLINE hip_cpu_vector<T, 3> operator-(hip_cpu_vector<T, 3> a) { return {-a.x, -a.y, -a.z}; }
template <class T> HIP_CPU_INLINE hip_cpu_vector<T, 4> operator-(hip_cpu_vector<T, 4> a) {
    return {-a.x, -a.y, -a.z, -a.w};
}
template <class T> HIP_CPU_INLINE bool operator==(hip_cpu_vector<T, 2> a, hip_cpu_vector<T, 2> b) {
    return a.x == b.x && a.y == b.y;
}
template <class T> HIP_CPU_INLINE bool operator==(hip_cpu_vector<T, 3> a, hip_cpu_vector<T, 3> b) {
    return a.x == b.x && a.y == b.y && a.z == b.z;
}
template <class T> HIP_CPU_INLINE bool operator==(hip_cpu_vector<T, 4> a, hip_cpu_vector<T, 4> b) {
    return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w;
}
template <class T, int N> HIP_CPU_INLINE bool operator!=(hip_cpu_vector<T, N> a, hip_cpu_vector<T, N> b) {
    return !(a == b);
}

#define HIP_CPU_VECTORS(name, T)                                               \
    using name##2 = hip_cpu_vector<T, 2>;                                      \
    using name##3 = hip_cpu_vector<T, 3>;                                      \
    using name##4 = hip_cpu_vector<T, 4>;                                      \
    HIP_CPU_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; }         \
    HIP_CPU_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    HIP_CPU_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HIP_CPU_VECTORS(char, signed char)
HIP_CPU_VECTORS(uchar, unsigned char)
HIP_CPU_VECTORS(short, short)
HIP_CPU_VECTORS(ushort, unsigned short)
HIP_CPU_VECTORS(int, int)
HIP_CPU_VECTORS(uint, unsigned int)
HIP_CPU_VECTORS(long, long)
HIP_CPU_VECTORS(ulong, unsigned long)
HIP_CPU_VECTORS(longlong, long long)
HIP_CPU_VECTORS(ulonglong, unsigned long long)
HIP_CPU_VECTORS(float, float)
HIP_CPU_VECTORS(double, double)
