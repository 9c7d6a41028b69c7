// A wave of RDNA has 106 scalar registers. The simulator gave it 104 on gfx1100, so that s104 and s105 were the next
// wave's s0 and s1, and took s102 and s103 for the address of private memory, as on older GPUs, where they are an
// operand but not where something is loaded into them. Found by the gradient of GELU in f64, which keeps an address in
// s104.
#include "kernel.h"

static const char SOURCE[] =
    "#ifdef __GFX12__\n"
    "#define LOADED \"s_load_b64 s[102:103], %1, null\\n s_wait_kmcnt 0\\n\"\n"
    "#elif defined(__GFX11__)\n"
    "#define LOADED \"s_load_b64 s[102:103], %1, null\\n s_waitcnt lgkmcnt(0)\\n\"\n"
    "#else\n"
    "#define LOADED \"s_load_dwordx2 s[102:103], %1, null\\n s_waitcnt lgkmcnt(0)\\n\"\n"
    "#endif\n"
    "extern \"C\" __global__ __launch_bounds__(64) void kernel(unsigned *words) {\n"
    "    unsigned loaded, kept;\n"
    "    asm volatile(LOADED \"s_mov_b32 %0, s103\" : \"=s\"(loaded) : \"s\"(words) : \"s102\", \"s103\");\n"
    "    __syncthreads();\n"
    "    asm volatile(\"s_mov_b32 s104, 5\\n s_mov_b32 s105, 6\" : : : \"s104\", \"s105\");\n"
    "    __syncthreads();\n"
    "    asm volatile(\"s_mov_b32 s0, 7\\n s_mov_b32 s1, 7\" : : : \"s0\", \"s1\");\n"
    "    __syncthreads();\n"
    "    asm volatile(\"s_add_u32 %0, s104, s105\" : \"=s\"(kept) : : \"s104\", \"s105\", \"scc\");\n"
    "    words[2 + threadIdx.x / 32] = kept;\n"
    "    if (threadIdx.x == 0) words[0] = loaded;\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {3, 4};
    static const char *const names[] = {"s103 from memory", "in memory", "s104 + s105 of the first wave",
                                        "s104 + s105 of the second wave"};
    static const unsigned expected[] = {4, 4, 11, 11};
    run(gpu("gfx1"), SOURCE, words, 64);
    return compare(words, expected, 4, names);
}
