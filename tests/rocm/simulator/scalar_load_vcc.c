// VCC is a pair of scalar registers too, into which AMD's compiler loads when it needs one more. The simulator wrote
// the loaded words to the registers of another wave, and ended the process where there was none. Found by
// `chain_rows<Sum, float>` on gfx942, in a training step of the CNN.
#include "kernel.h"

static const char SOURCE[] =
    "#if !__GFX12__\n"
    "#define WAIT \"s_waitcnt lgkmcnt(0)\\n\"\n"
    "#else\n"
    "#define WAIT \"s_wait_kmcnt 0\\n\"\n"
    "#endif\n"
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned low, high;\n"
    "    asm volatile(\"s_load_dword vcc_lo, %2, 0x4\\n s_load_dword vcc_hi, %2, 0x8\\n\" WAIT\n"
    "                 \"s_mov_b32 %0, vcc_lo\\n s_mov_b32 %1, vcc_hi\"\n"
    "                 : \"=s\"(low), \"=s\"(high) : \"s\"(words) : \"vcc\");\n"
    "    words[3] = low;\n"
    "    words[4] = high;\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {0, 0x12345678u, 0x9abcdef0u};
    static const char *const names[] = {"VCC, low word", "VCC, high word"};
    static const unsigned expected[] = {0x12345678u, 0x9abcdef0u};
    run(gpu("gfx"), SOURCE, words, 1);
    return compare(words + 3, expected, 2, names);
}
