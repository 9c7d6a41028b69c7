// A literal constant of an operand of f64 is the high word, and its low word is 0. The simulator took it for the low
// word, so that 3.0 was a denormal. On RDNA every instruction may have one, on CDNA the short forms. Found by nearly
// all of f64 on gfx1100 and gfx1201: exp, cos, powers and conversions to integers, which divide by 2^32.
#include "kernel.h"

static const char SOURCE[] =
    "#if __GFX9__\n"
    "#define VCC \"vcc\"\n"
    "#else\n"
    "#define VCC \"vcc_lo\"\n"
    "#endif\n"
    "#define COMPUTE(place, instruction) \\\n"
    "    asm volatile(instruction : \"=v\"(result[place]) : \"v\"(x), \"v\"(y))\n"
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    double *result = (double *)words, x = result[0], y = result[1];\n"
    "    COMPUTE(0, \"v_rcp_f64_e32 %0, 0x40100000\");\n"
    "    asm volatile(\"v_cmp_gt_f64_e32 \" VCC \", 0x40080000, %1\\n\"\n"
    "                 \"v_cndmask_b32_e64 %0, 0, 1, \" VCC : \"=v\"(words[2]) : \"v\"(y) : \"vcc\");\n"
    "    words[3] = 0;\n"
    "#if !__GFX9__\n"
    "    COMPUTE(2, \"v_mul_f64 %0, %1, 0x40080000\");\n"
    "    COMPUTE(3, \"v_add_f64 %0, 0x40080000, %1\");\n"
    "    COMPUTE(4, \"v_fma_f64 %0, %1, 0xc1f00000, %2\");\n"
    "#endif\n"
    "}\n";

int main(void) {
    const char *architecture = gpu("gfx");
    static const double given[] = {5, 0.5};
    double values[5] = {0.25, 0, 15, 8, 5 * -4294967296.0 + 0.5};
    static const char *const names[] = {
        "1 / 4, low word",           "1 / 4, high word",          "3 > 0.5",         "",
        "5 * 3, low word",           "5 * 3, high word",          "3 + 5, low word", "3 + 5, high word",
        "5 * -2^32 + 0.5, low word", "5 * -2^32 + 0.5, high word"};
    unsigned words[WORDS] = {0}, expected[10];
    memcpy(words, given, sizeof given);
    memcpy(expected, values, sizeof values);
    expected[2] = 1;
    run(architecture, SOURCE, words, 1);
    return compare(words, expected, strncmp(architecture, "gfx9", 4) == 0 ? 4 : 10, names);
}
