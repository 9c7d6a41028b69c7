// As division.c, of f64: v_div_scale_f64 scales by 2^128, and v_div_fmas_f64 takes that back by the exponent of src2.
// The simulator took back 2^64, scaled a denominator up where its reciprocal and the quotient are both subnormal, and
// compared a numerator's unbiased exponent with -53.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    double x = ((double *)words)[2 * threadIdx.x], y = ((double *)words)[2 * threadIdx.x + 1];\n"
    "    __syncthreads();\n"
    "    ((double *)words)[threadIdx.x] = x / y;\n"
    "}\n";

#define PAIRS 11

int main(void) {
    static const double pairs[PAIRS][2] = {{1, 1.7e308},       {1, 2.2250738585072014e-308},
                                           {1.7e308, 1e-3},    {1, 3},
                                           {1e-250, 3e70},     {1e-320, 3e-320},
                                           {1e-300, 7},        {1e-20, 1e300},
                                           {1.7e308, 1e-290},  {1e-15, 1e290},
                                           {1e-300, 1e280}};
    static const char *const pair_names[PAIRS] = {"1 / 1.7e308",     "1 / least normal", "1.7e308 / 1e-3",
                                                  "1 / 3",           "1e-250 / 3e70",    "1e-320 / 3e-320",
                                                  "1e-300 / 7",      "1e-20 / 1e300",    "1.7e308 / 1e-290",
                                                  "1e-15 / 1e290",   "1e-300 / 1e280"};
    unsigned words[WORDS], expected[2 * PAIRS];
    const char *names[2 * PAIRS];
    memcpy(words, pairs, sizeof pairs);
    for (unsigned i = 0; i < PAIRS; ++i) {
        volatile double quotient = pairs[i][0] / pairs[i][1];
        memcpy(&expected[2 * i], (const double *)&quotient, 8);
        names[2 * i] = names[2 * i + 1] = pair_names[i];
    }
    run(gpu("gfx"), SOURCE, words, PAIRS);
    return compare(words, expected, 2 * PAIRS, names);
}
