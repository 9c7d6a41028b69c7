// A raw buffer is out of range from num_records on, counted with the offset in an SGPR (AMD's Vega ISA, 8.1.5), and a
// load past it gives 0. The simulator left the SGPR out. Found by rocblas_sgemm NT of 100x129x63, whose last tile reads
// past the matrix.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    auto buffer = __builtin_amdgcn_make_buffer_rsrc(words, 0, 16, 0x27000);\n"
    "    unsigned base = __builtin_amdgcn_readfirstlane(words[64]), lane = threadIdx.x * 4;\n"
    "    unsigned inside = __builtin_amdgcn_raw_buffer_load_b32(buffer, lane, base, 0);\n"
    "    __syncthreads();\n"
    "    words[threadIdx.x] = inside;\n"
    "}\n";

int main(void) {
    // A buffer of four words. The offset in the SGPR is two words.
    unsigned words[WORDS] = {11, 12, 13, 14, 15, 16, 17, 18};
    words[64] = 8;
    static const char *const names[] = {"word 2", "word 3", "past the end", "past the end"};
    static const unsigned expected[] = {13, 14, 0, 0};
    const char *architecture = gpu("gfx9");
    run(architecture, SOURCE, words, 4);
    return compare(words, expected, 4, names);
}
