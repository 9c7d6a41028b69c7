// A kernel finds its thread's ids x, y and z packed in v0, ten bits each, on CDNA 3 and 4 and from RDNA 3 on. The
// simulator put them into v0, v1 and v2 on RDNA 3 and 4, so every thread had y = 0. Found by float_matmul of f16:
// rocBLAS computes a vector times a matrix on gfx1100 by a kernel with blocks of 32 x 16 threads, and summed a 16th of
// it.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    atomicAdd(words + 8 * threadIdx.y + threadIdx.x, 1 + 100 * threadIdx.y);\n"
    "}\n";

#define X 8
#define Y 6

int main(void) {
    unsigned words[WORDS] = {0}, expected[X * Y];
    const char *names[X * Y];
    static char space[X * Y][20];
    for (unsigned i = 0; i < X * Y; ++i) {
        expected[i] = 1 + 100 * (i / X);
        snprintf(space[i], sizeof space[i], "x = %u, y = %u", i % X, i / X);
        names[i] = space[i];
    }
    run_block(gpu("gfx"), SOURCE, words, X, Y);
    return compare(words, expected, X * Y, names);
}
