// RDNA 4 loads bytes and halves into scalars, from any byte or half. The simulator rounded their addresses down to
// whole words, so that byte 1 was byte 0. Found by `chain<float>` on gfx1201, which reads the functor of a step in
// this way: after products, convolutions and scores of attention it computed another function than the one asked
// for.
#include "kernel.h"

static const char SOURCE[] = "#define LOAD(place, instruction) \\\n"
                             "    asm volatile(instruction \"\\n s_wait_kmcnt 0\" : \"=s\"(word) : \"s\"(words)); \\\n"
                             "    words[place] = word\n"
                             "extern \"C\" __global__ void kernel(unsigned *words) {\n"
                             "    unsigned word;\n"
                             "    LOAD(2, \"s_load_u8 %0, %1, 0x1\");\n"
                             "    LOAD(3, \"s_load_i8 %0, %1, 0x7\");\n"
                             "    LOAD(4, \"s_load_u16 %0, %1, 0x2\");\n"
                             "    LOAD(5, \"s_load_i16 %0, %1, 0x6\");\n"
                             "    LOAD(6, \"s_load_b32 %0, %1, 0x4\");\n"
                             "}\n";

int main(void) {
    unsigned words[WORDS] = {0x44332211u, 0x88776655u};
    static const char *const names[] = {"byte 1", "signed byte 7", "half at 2", "signed half at 6", "word at 4"};
    static const unsigned expected[] = {0x22u, 0xffffff88u, 0x4433u, 0xffff8877u, 0x88776655u};
    run(gpu("gfx12"), SOURCE, words, 1);
    return compare(words + 2, expected, 5, names);
}
