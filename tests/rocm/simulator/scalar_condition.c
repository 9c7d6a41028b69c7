// s_flbit, s_ff0, s_ff1 and s_brev leave the condition code (SCC) as it is. The simulator set it if the result was not
// 0. Found by deform_conv2d without a mask, whose kernel has s_flbit_i32_b32 between a comparison and the choice by it.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned one = __builtin_amdgcn_readfirstlane(words[0]), zero = one - 1, chosen, counted;\n"
    "#define AFTER(instruction, from) asm volatile(\"s_cmp_lg_u32 %2, 1\\n \" instruction \" %1, %3\\n\" \\\n"
    "    \" s_cselect_b32 %0, 7, 5\" : \"=s\"(chosen), \"=&s\"(counted) : \"s\"(one), \"s\"(from) : \"scc\")\n"
    "    AFTER(\"s_flbit_i32_b32\", one); words[0] = chosen; words[1] = counted;\n"
    "    AFTER(\"s_ff0_i32_b32\", one); words[2] = chosen; words[3] = counted;\n"
    "    AFTER(\"s_ff1_i32_b32\", zero); words[4] = chosen; words[5] = counted;\n"
    "    AFTER(\"s_brev_b32\", one); words[6] = chosen; words[7] = counted;\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {1};
    static const char *const names[] = {"after s_flbit", "s_flbit", "after s_ff0", "s_ff0",
                                        "after s_ff1", "s_ff1", "after s_brev", "s_brev"};
    static const unsigned expected[] = {5, 31, 5, 1, 5, 0xffffffffu, 5, 0x80000000u};
    const char *architecture = gpu("gfx9");
    run(architecture, SOURCE, words, 1);
    return compare(words, expected, 8, names);
}
