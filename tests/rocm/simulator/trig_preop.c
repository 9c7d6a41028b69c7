// v_trig_preop_f64 gives 53 binary digits of 2/pi, from which sin and cos of f64 reduce a large angle. The simulator
// lacked the instruction, and ended the process. Found by this backend's Fourier transforms, whose table of sines is
// computed in f64. By AMD's ISAs, (S0's exponent > 1077 ? exponent - 1077 : 0) + 53 * S1[4:0] is the place of the first
// digit, by which the digits are scaled.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    double x = 1.0, first, second;\n"
    "    asm volatile(\"v_trig_preop_f64 %0, %1, 0\" : \"=v\"(first) : \"v\"(x));\n"
    "    asm volatile(\"v_trig_preop_f64 %0, %1, 1\" : \"=v\"(second) : \"v\"(x));\n"
    "    *(double *)words = first;\n"
    "    *(double *)(words + 2) = first + second;\n"
    "}\n";

int main(void) {
    unsigned words[WORDS] = {0};
    static const char *const names[] = {"53 digits, low", "53 digits, high", "2/pi, low", "2/pi, high"};
    static const unsigned expected[] = {0x6dc9c882u, 0x3fe45f30u, 0x6dc9c883u, 0x3fe45f30u};
    run(gpu("gfx"), SOURCE, words, 1);
    return compare(words, expected, 4, names);
}
