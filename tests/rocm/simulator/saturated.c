// The long form (VOP3) of an addition or subtraction of integers clamps its result to the type's range if the
// instruction asks for it, as AMD's compiler does for `a > b ? a - b : 0`. The simulator left that out. Found by
// attention of f16 on matrix cores, where a NaN of one query became a NaN of others: columns outside an operand were
// loaded instead of being 0.
#include "kernel.h"

static const char SOURCE[] =
    "#if __GFX9__\n"
    "#define U32 \"_u32_e64\"\n"
    "#define I32 \"_i32\"\n"
    "#else\n"
    "#define U32 \"_nc_u32_e64\"\n"
    "#define I32 \"_nc_i32\"\n"
    "#endif\n"
    "#define COMPUTE(place, instruction, x, y) \\\n"
    "    asm volatile(instruction \" %0, %1, %2 clamp\" : \"=v\"(words[place]) : \"v\"(x), \"v\"(y))\n"
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned two = words[0], large = words[1], least = 0x80000000u, greatest = 0x7fffffffu;\n"
    "    COMPUTE(0, \"v_sub\" U32, two, large);\n"
    "    COMPUTE(1, \"v_sub\" U32, large, two);\n"
    "    COMPUTE(2, \"v_subrev\" U32, large, two);\n"
    "    COMPUTE(3, \"v_add\" U32, large, large);\n"
    "    COMPUTE(4, \"v_sub\" I32, least, two);\n"
    "    COMPUTE(5, \"v_add\" I32, greatest, two);\n"
    "    COMPUTE(6, \"v_add\" I32, least, greatest);\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {2, 0xf0000000u};
    static const char *const names[] = {"2 - large", "large - 2", "large subtracted from 2", "large + large",
                                        "least - 2", "greatest + 2", "least + greatest"};
    static const unsigned expected[] = {0, 0xeffffffeu, 0, 0xffffffffu, 0x80000000u, 0x7fffffffu, 0xffffffffu};
    run(gpu("gfx"), SOURCE, words, 1);
    return compare(words, expected, 7, names);
}
