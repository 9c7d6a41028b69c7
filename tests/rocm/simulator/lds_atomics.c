// An atomic of LDS in the form without a result changes no register. The simulator wrote the old value to the register
// that the encoding's unused field names, v0, where a kernel finds its thread's id. Found by sample_codes on gfx942,
// which then added to other bins' counts.
#include "kernel.h"

static const char SOURCE[] =
    "#ifdef __GFX12__\n"
    "#define WAIT \"\\n s_wait_dscnt 0\\n\"\n"
    "#else\n"
    "#define WAIT \"\\n s_waitcnt lgkmcnt(0)\\n\"\n"
    "#endif\n"
    "#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)\n"
    "#define ADD \"v_add_nc_u32\"\n"
    "#else\n"
    "#define ADD \"v_add_u32\"\n"
    "#endif\n"
    "#define COMPUTE(place, instruction) \\\n"
    "    asm volatile(\"v_mov_b32 v0, 7\\n v_mov_b32 v1, 8\\n\" instruction WAIT ADD \" %0, v0, v1\" \\\n"
    "                 : \"=v\"(word) : \"v\"(at), \"v\"(pair) : \"v0\", \"v1\", \"memory\"); \\\n"
    "    words[place] = word\n"
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    __shared__ unsigned long long cells[1];\n"
    "    unsigned word;\n"
    "    unsigned long long pair = 5;\n"
    "    auto at = (__attribute__((address_space(3))) unsigned long long *)cells;\n"
    "    *at = 100;\n"
    "    __syncthreads();\n"
    "    COMPUTE(0, \"ds_add_u64 %1, %2\");\n"
    "    COMPUTE(1, \"ds_max_u64 %1, %2\");\n"
    "    words[2] = (unsigned)*at;\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {0};
    static const char *const names[] = {"v0 + v1 after an addition", "after a maximum", "the sum in LDS"};
    static const unsigned expected[] = {15, 15, 105};
    run(gpu("gfx"), SOURCE, words, 1);
    return compare(words, expected, 3, names);
}
