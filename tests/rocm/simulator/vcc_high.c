// In a wave of 32 lanes a mask has 32 bits, and VCC_HI is a scalar register like others: compilers keep values there.
// The simulator set it to 0 where an instruction wrote a mask to VCC. Found by ctc_posterior of f64 on gfx1100, which
// keeps the high word of an address in it, and read from an address of 32 bits.
#include "kernel.h"

static const char SOURCE[] =
    "#define COMPUTE(place, instruction) \\\n"
    "    asm volatile(\"s_mov_b32 vcc_hi, 0x1234\\n\" instruction \"\\n s_mov_b32 %0, vcc_hi\" \\\n"
    "                 : \"=s\"(word) : \"v\"(lane) : \"vcc\"); \\\n"
    "    words[place] = word\n"
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned lane = threadIdx.x, word;\n"
    "    COMPUTE(0, \"v_cmp_le_u32 vcc_lo, 0, %1\");\n"
    "    COMPUTE(1, \"v_cmp_le_u32_e64 vcc_lo, 0, %1\");\n"
    "    COMPUTE(2, \"v_add_co_u32 %1, vcc_lo, %1, %1\");\n"
    "    COMPUTE(3, \"s_mov_b32 vcc_lo, -1\");\n"
    "    COMPUTE(4, \"s_mov_b64 vcc, 0\");\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {0};
    static const char *const names[] = {"VCC_HI after a comparison", "after one in the long form",
                                        "after an addition with a carry", "after a write of VCC_LO",
                                        "after a write of VCC"};
    static const unsigned expected[] = {0x1234, 0x1234, 0x1234, 0x1234, 0};
    run(gpu("gfx1"), SOURCE, words, 1);
    return compare(words, expected, 5, names);
}
