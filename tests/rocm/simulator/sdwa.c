// Sub-dword operands (SDWA) of gfx9. |x| and -x of an f16 concern bit 15; of a whole dword they count too; and an
// operand may be an SGPR. The simulator took bit 31, left |x| and -x of dwords out, and read a VGPR for the SGPR.
// Found by atan2 of f16, whose kernel holds v_cvt_f32_f16_sdwa v34, |v6| src0_sel:WORD_1.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned x = words[0], y = words[1], scalar = __builtin_amdgcn_readfirstlane(words[0]), r;\n"
    "#define TO_F32(operand, word) asm volatile(\"v_cvt_f32_f16_sdwa %0, \" operand \\\n"
    "    \" dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:\" word : \"=v\"(r) : \"v\"(x))\n"
    "    TO_F32(\"|%1|\", \"WORD_0\"); words[0] = r;\n"
    "    TO_F32(\"|%1|\", \"WORD_1\"); words[1] = r;\n"
    "    TO_F32(\"-%1\", \"WORD_1\"); words[2] = r;\n"
    "    TO_F32(\"-|%1|\", \"WORD_1\"); words[3] = r;\n"
    "#define WHOLE \" dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD\"\n"
    "    asm volatile(\"v_add_f32_sdwa %0, -%1, |%2|\" WHOLE : \"=v\"(r) : \"v\"(y), \"v\"(y)); words[4] = r;\n"
    "#define WORDS_OF \" dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:WORD_0\"\n"
    "    asm volatile(\"v_add_u32_sdwa %0, %1, %2\" WORDS_OF : \"=v\"(r) : \"s\"(scalar), \"v\"(y)); words[5] = r;\n"
    "}\n";

int main(void) {
    // The f16 -2 in both words of the first, the f32 -2 in the second.
    unsigned words[WORDS] = {0xc000c000u, 0xc0000000u};
    static const char *const names[] = {"|low f16|", "|high f16|", "-high f16", "-|high f16|", "-f32 + |f32|", "SGPR"};
    static const unsigned expected[] = {0x40000000u, 0x40000000u, 0x40000000u, 0xc0000000u, 0x40800000u, 0xc000u};
    const char *architecture = gpu("gfx9");
    run(architecture, SOURCE, words, 1);
    return compare(words, expected, 6, names);
}
