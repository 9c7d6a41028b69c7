// Instructions that count the leading sign bits of a scalar give -1 if all bits are equal. The simulator gave 31, and
// else one less than their number. Found by the rotary embedding on gfx1100, which converts a position to f32.
#include "kernel.h"

static const char SOURCE[] = "extern \"C\" __global__ void kernel(unsigned *words) {\n"
                             "    unsigned word;\n"
                             "    asm volatile(\"s_cls_i32 %0, 0\" : \"=s\"(word));\n"
                             "    words[0] = word;\n"
                             "    asm volatile(\"s_cls_i32 %0, -1\" : \"=s\"(word));\n"
                             "    words[1] = word;\n"
                             "    asm volatile(\"s_cls_i32 %0, 1\" : \"=s\"(word));\n"
                             "    words[2] = word;\n"
                             "}\n";

int main(void) {
    unsigned words[WORDS] = {0};
    static const char *const names[] = {"leading sign bits of 0", "of -1", "of 1"};
    static const unsigned expected[] = {0xffffffffu, 0xffffffffu, 31};
    const char *architecture = gpu("gfx1");
    if (architecture[4] == '0') {
        printf("skipped: %s has no s_cls_i32\n", architecture);
        return 77;
    }
    run(architecture, SOURCE, words, 1);
    return compare(words, expected, 3, names);
}
