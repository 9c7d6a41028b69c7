// RDNA 3 and 4 have instructions on halves of vector registers. The long forms (VOP3, VOP3P) name the register by 8
// bits and its half by op_sel. The simulator read the number of a result as the short form does, by 7 bits with the
// half in the eighth, so that the result for v200 went to v72. Found by attention of f16 of width 80 on gfx1100.
#include "kernel.h"

// The compiler of ROCm 7.2 knows the high halves of gfx11 only.
static const char SOURCE[] =
    "#define COMPUTE(place, instruction) \\\n"
    "    asm volatile(\"v_mov_b32 v1, 0x3c004000\\n v_mov_b32 v2, 0x40400000\\n v_mov_b32 v200, 0xaaaabbbb\\n\" \\\n"
    "                 instruction \"\\n v_mov_b32 %0, v200\" : \"=v\"(word) : : \"v1\", \"v2\", \"v200\"); \\\n"
    "    words[place] = word\n"
    "extern \"C\" __global__ __launch_bounds__(32, 1) void kernel(unsigned *words) {\n"
    "    unsigned word;\n"
    "    COMPUTE(0, \"v_fma_mixlo_f16 v200, v2, v2, 1.0\");\n"
    "    COMPUTE(1, \"v_fma_mixhi_f16 v200, v2, v2, 1.0\");\n"
    "#ifdef __GFX11__\n"
    "    COMPUTE(2, \"v_cvt_f16_f32_e64 v200.l, v2\");\n"
    "    COMPUTE(3, \"v_cvt_f16_f32_e64 v200.h, v2 op_sel:[0,1]\");\n"
    "    COMPUTE(4, \"v_mov_b16_e64 v200.l, v1.h op_sel:[1,0]\");\n"
    "    COMPUTE(5, \"v_mov_b16_e64 v200.h, v1.l op_sel:[0,1]\");\n"
    "    COMPUTE(6, \"v_add_f16_e64 v200.h, v1.l, v1.h op_sel:[0,1,1]\");\n"
    "#else\n"
    "    COMPUTE(2, \"v_cvt_f16_f32_e64 v200, v2\");\n"
    "#endif\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {0};
    static const char *const names[] = {"3 * 3 + 1 in the low half", "3 * 3 + 1 in the high half", "3 in the low half",
                                        "3 in the high half",        "1 in the low half",          "2 in the high half",
                                        "2 + 1 in the high half"};
    static const unsigned expected[] = {0xaaaa4900u, 0x4900bbbbu, 0xaaaa4200u, 0x4200bbbbu,
                                        0xaaaa3c00u, 0x4000bbbbu, 0x4200bbbbu};
    const char *architecture = gpu("gfx1");
    if (architecture[4] == '0') {
        printf("skipped: %s has no instructions on halves of registers\n", architecture);
        return 77;
    }
    run(architecture, SOURCE, words, 1);
    return compare(words, expected, architecture[4] == '1' ? 7 : 3, names);
}
