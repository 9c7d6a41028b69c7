// rocblas_isamax: the index of the element with the largest absolute value. On gfx942, the simulator of July 2026 gave
// wrong indices for more than 64 elements (one wave). With all mends they are right. It is not known which mend it was.
#include <dlfcn.h>

#include "kernel.h"

#define MOST 5000

typedef struct handle *Handle;

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) need(1, name);
    return found;
}

int main(void) {
    // Debian's rocBLAS has no kernels for gfx950, and would end the process.
    if (strncmp(gpu("gfx"), "gfx950", 6) == 0) {
        printf("skipped: gfx950\n");
        return 77;
    }
    // Of ROCm 7 and 6. Opened late, because the other programs need no rocBLAS.
    void *library = dlopen("librocblas.so.5", RTLD_NOW);
    if (!library) library = dlopen("librocblas.so.4", RTLD_NOW);
    if (!library) {
        printf("skipped: there is no rocBLAS: %s\n", dlerror());
        return 77;
    }
    int (*create)(Handle *) = function(library, "rocblas_create_handle");
    int (*isamax)(Handle, int, const float *, int, int *) = function(library, "rocblas_isamax");
    Handle rocblas;
    NEED(create(&rocblas));

    static float x[MOST];
    float *device;
    NEED(hipMalloc((void **)&device, sizeof x));
    static const int counts[] = {1, 31, 32, 33, 63, 64, 65, 100, 128, 129, 1000, 1024, 1025, MOST};
    int wrong = 0;
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; ++i) {
        int count = counts[i];
        const int places[] = {0, count / 3, count / 2, count - 1};
        for (unsigned k = 0; k < sizeof places / sizeof *places; ++k) {
            int at = places[k];
            for (int j = 0; j < count; ++j) x[j] = (float)(j % 7) - 3.0f;
            x[at] = k % 2 ? -9.0f : 9.0f;
            NEED(hipMemcpy(device, x, count * sizeof *x, hipMemcpyHostToDevice));
            int place = 0;
            NEED(isamax(rocblas, count, device, 1, &place));
            // rocBLAS counts from 1.
            if (place == at + 1) continue;
            printf("of %d elements: %d, expected %d\n", count, place, at + 1);
            wrong = 1;
        }
    }
    if (!wrong) printf("right\n");
    return wrong;
}
