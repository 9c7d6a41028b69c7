// RDNA 3 and 4 have instructions on halves of vector registers. The long form (VOP3) names the register by 8 bits and its
// half by op_sel. The simulator reads the register's number as the short form does, by 7 bits with the half in the
// eighth, so that the result for v200 goes to the high half of v72. A mend has to tell the two forms apart in
// packed_16bit_vgpr_dst (operand.cpp). Found by attention of f16 of width 80 on gfx1100.
#include "kernel.h"

static const char SOURCE[] =
    "#define COMPUTE(place, instruction) \\\n"
    "    asm volatile(\"v_mov_b32 v1, 0x12345678\\n v_mov_b32 v200, 0xaaaabbbb\\n\" instruction \\\n"
    "                 \"\\n v_mov_b32 %0, v200\" : \"=v\"(word) : : \"v1\", \"v200\"); \\\n"
    "    words[place] = word\n"
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned word;\n"
    "    COMPUTE(0, \"v_mov_b16_e64 v200.l, v1.h op_sel:[1,0]\");\n"
    "    COMPUTE(1, \"v_mov_b16_e64 v200.h, v1.l op_sel:[0,1]\");\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {0};
    static const char *const names[] = {"low half of v200", "high half of v200"};
    static const unsigned expected[] = {0xaaaa1234u, 0x5678bbbbu};
    run(gpu("gfx11"), SOURCE, words, 1);
    return compare(words, expected, 2, names);
}
