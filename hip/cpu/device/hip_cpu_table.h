// Included at the end of a translation unit of kernels. Defines the table through which the CPU
// device calls them. The table is in the kernels' own namespace, so that no two translation units
// share an instantiation.
#pragma once

struct hip_cpu_entry {
    const char *name;
    void (*run)(void **arguments, const hip_cpu_launch *launch);
    unsigned long long argument_count;
    const unsigned (*layout)[2]; // size and alignment of each argument
};

template <class Signature, Signature KERNEL> struct hip_cpu_kernel;
template <class... P, void (*KERNEL)(P...)> struct hip_cpu_kernel<void (*)(P...), KERNEL> {
    static constexpr unsigned layout[sizeof...(P) + 1][2] = {{sizeof(P), alignof(P)}..., {0, 1}};
    template <unsigned... I> struct Indices {};
    template <unsigned N, unsigned... I> struct Count : Count<N - 1, N - 1, I...> {};
    template <unsigned... I> struct Count<0, I...> {
        using type = Indices<I...>;
    };
    template <unsigned... I> static inline __attribute__((always_inline)) void call(void **arguments, Indices<I...>) {
        (void)arguments;
        KERNEL(*static_cast<P *>(arguments[I])...);
    }
    static void run(void **arguments, const hip_cpu_launch *launch) {
        typename Count<sizeof...(P)>::type indices;
#if HIP_CPU_LOCKSTEP
        hip_cpu_now = launch; // one thread of one block; the scheduler has set which one
        call(arguments, indices);
#else
        hip_cpu_grid = launch->grid;
        hip_cpu_dynamic_shared = launch->dynamic_shared;
        hip_cpu_scratch = launch->scratch;
        unsigned long long x = launch->grid.x, y = launch->grid.y;
        for (unsigned long long b = launch->first, end = b + launch->count; b < end; ++b) {
            hip_cpu_block = dim3{(unsigned)(b % x), (unsigned)(b / x % y), (unsigned)(b / x / y)};
            call(arguments, indices);
        }
#endif
    }
};
template <class... P, void (*KERNEL)(P...)>
constexpr unsigned hip_cpu_kernel<void (*)(P...), KERNEL>::layout[sizeof...(P) + 1][2];

#define HIP_CPU_KERNEL(name, ...)                                                                    \
    {name, hip_cpu_kernel<decltype(&__VA_ARGS__), &__VA_ARGS__>::run,                                \
     sizeof(hip_cpu_kernel<decltype(&__VA_ARGS__), &__VA_ARGS__>::layout) / sizeof(unsigned[2]) - 1, \
     hip_cpu_kernel<decltype(&__VA_ARGS__), &__VA_ARGS__>::layout}
