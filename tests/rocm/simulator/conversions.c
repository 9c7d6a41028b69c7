// The long form (VOP3) of a conversion takes |x| and -x of its source. The simulator left them out, except in
// v_cvt_f32_f16, in the code for a lane and in that for a wave at once.
// Found by ctc_loss of f16, whose kernel ends with v_cvt_f16_f32_e64 v, -v: every loss had the wrong sign.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned x = words[0], half = words[1], r;\n"
    "    double twice = __builtin_bit_cast(float, words[0]), wide;\n"
    "#define CONVERT(instruction, operand, from, to) \\\n"
    "    asm volatile(instruction \" %0, \" operand : \"=v\"(to) : \"v\"(from))\n"
    "    CONVERT(\"v_cvt_f16_f32_e64\", \"-%1\", x, r); words[0] = r & 0xffffu;\n"
    "    CONVERT(\"v_cvt_f16_f32_e64\", \"|%1|\", x, r); words[1] = r & 0xffffu;\n"
    "    CONVERT(\"v_cvt_f32_f16_e64\", \"-%1\", half, r); words[2] = r;\n"
    "    CONVERT(\"v_cvt_i32_f32_e64\", \"-%1\", x, r); words[3] = r;\n"
    "    CONVERT(\"v_cvt_f64_f32_e64\", \"-%1\", x, wide);\n"
    "    words[4] = (unsigned)(__builtin_bit_cast(unsigned long long, wide) >> 32);\n"
    "    CONVERT(\"v_cvt_f32_f64_e64\", \"-%1\", twice, r); words[5] = r;\n"
    "}\n";

int main(void) {
    // -2 as f32 and as f16.
    unsigned words[WORDS] = {0xc0000000u, 0xc000u};
    static const char *const names[] = {"f16 of -x", "f16 of |x|", "f32 of -half", "i32 of -x",
                                        "f64 of -x", "f32 of -double"};
    static const unsigned expected[] = {0x4000u, 0x4000u, 0x40000000u, 2u, 0x40000000u, 0x40000000u};
    run(gpu("gfx"), SOURCE, words, 1);
    return compare(words, expected, 6, names);
}
