// An inline constant of an f16 operand is of f16. The simulator, where it computed a wave at once, took the bits of the
// f32, whose low half is 0: x != 1 became x != 0. Found by powers of f16, where -0 to the power 0 gave -0.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned x = words[threadIdx.x], r;\n"
    "    unsigned long long lanes;\n"
    "    asm volatile(\"v_cmp_neq_f16_e32 vcc, 1.0, %1\\n s_mov_b64 %0, vcc\" : \"=s\"(lanes) : \"v\"(x) : \"vcc\");\n"
    "    if (threadIdx.x == 0) words[0] = (unsigned)lanes & 7u;\n"
    "    asm volatile(\"v_cmp_lt_f16_e64 %0, %1, -4.0\" : \"=s\"(lanes) : \"v\"(x));\n"
    "    if (threadIdx.x == 0) words[1] = (unsigned)lanes & 7u;\n"
    "    asm volatile(\"v_add_f16_e32 %0, 2.0, %1\" : \"=v\"(r) : \"v\"(x));\n"
    "    if (threadIdx.x == 1) words[2] = r;\n"
    "    asm volatile(\"v_mul_f16_e64 %0, %1, 0.5\" : \"=v\"(r) : \"v\"(x));\n"
    "    if (threadIdx.x == 1) words[3] = r;\n"
    "}\n";

int main(void) {
    // As f16: -0, 1, -8.
    unsigned words[WORDS] = {0x8000u, 0x3c00u, 0xc800u};
    static const char *const names[] = {"lanes with x != 1", "lanes with x < -4", "1 + 2", "1 * 0.5"};
    static const unsigned expected[] = {5u, 4u, 0x4200u, 0x3800u};
    const char *architecture = gpu("gfx9");
    run(architecture, SOURCE, words, 64);
    return compare(words, expected, 4, names);
}
