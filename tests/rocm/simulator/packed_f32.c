// Packed f32 of gfx90a and gfx94x: an SGPR operand is a pair of words, of which op_sel chooses. The simulator took the
// low word twice. v_pk_mov_b32 chooses both its words by op_sel; the simulator took op_sel_hi for the high one.
// Found by rocblas_sgeam with lda > m, and by powf and log_sigmoid of this backend.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    unsigned long long x = *(unsigned long long *)words, y = *(unsigned long long *)(words + 2), r;\n"
    "    unsigned low = __builtin_amdgcn_readfirstlane(words[2]), high = __builtin_amdgcn_readfirstlane(words[3]);\n"
    "    unsigned long long scalar = (unsigned long long)high << 32 | low;\n"
    "    asm volatile(\"v_pk_mul_f32 %0, %1, %2\" : \"=v\"(r) : \"v\"(x), \"s\"(scalar));\n"
    "    *(unsigned long long *)words = r;\n"
    "    asm volatile(\"v_pk_fma_f32 %0, %1, %2, %1\" : \"=v\"(r) : \"v\"(x), \"s\"(scalar));\n"
    "    *(unsigned long long *)(words + 2) = r;\n"
    "    asm volatile(\"v_pk_mov_b32 %0, %1, %2 op_sel:[1,0]\" : \"=v\"(r) : \"v\"(x), \"v\"(y));\n"
    "    *(unsigned long long *)(words + 4) = r;\n"
    "    asm volatile(\"v_pk_mov_b32 %0, %1, %2 op_sel:[0,1]\" : \"=v\"(r) : \"v\"(x), \"v\"(y));\n"
    "    *(unsigned long long *)(words + 6) = r;\n"
    "}\n";

int main(void) {
    // 1, 2 and 3, 5.
    unsigned words[WORDS] = {0x3f800000u, 0x40000000u, 0x40400000u, 0x40a00000u};
    static const char *const names[] = {"1 * 3", "2 * 5", "1 * 3 + 1", "2 * 5 + 2", "high of x",
                                        "low of y", "low of x", "high of y"};
    static const unsigned expected[] = {0x40400000u, 0x41200000u, 0x40800000u, 0x41400000u,
                                        0x40000000u, 0x40400000u, 0x3f800000u, 0x40a00000u};
    const char *architecture = gpu("gfx9");
    // gfx90a is the first that has the instructions.
    if (strncmp(architecture, "gfx90", 5) == 0 && strncmp(architecture, "gfx90a", 6) != 0) {
        printf("skipped: %s has no packed f32\n", architecture);
        return 77;
    }
    run(architecture, SOURCE, words, 1);
    return compare(words, expected, 8, names);
}
