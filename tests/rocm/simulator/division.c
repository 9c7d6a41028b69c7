// A quotient of f32 is correctly rounded, also a subnormal one, by AMD's v_div_scale_f32 and v_div_fmas_f32. The first
// multiplies an operand by 2^64 or 2^-64 where a step between would leave the range. The second takes that back: by
// 2^64 if the biased exponent of src2 is above 127, else by 2^-64. AMD's manuals print 2^32 for both, which the
// simulator followed; tinygrad's simulator of AMD GPUs corrects them. The simulator also looked in f64 whether the
// reciprocal is subnormal, which it never is there, scaled a denominator up where its reciprocal and the quotient are
// both subnormal (as the manuals say; down is right), and compared a numerator's unbiased exponent with -23, where the
// biased one counts. So 1 / 3e38 was 0, and 1 / the least normal number was 2^94.
// Found by float_recip of 3e38 and by a quantized tensor whose greatest value is the least normal number.
#include "kernel.h"

static const char SOURCE[] =
    "extern \"C\" __global__ void kernel(unsigned *words) {\n"
    "    float x = __builtin_bit_cast(float, words[2 * threadIdx.x]);\n"
    "    float y = __builtin_bit_cast(float, words[2 * threadIdx.x + 1]);\n"
    "    __syncthreads();\n"
    "    words[threadIdx.x] = __builtin_bit_cast(unsigned, x / y);\n"
    "}\n";

int main(void) {
    static const float pairs[][2] = {{1, 3e38f},     {1, 1.17549435e-38f}, {3e38f, 1e-3f},     {1, 3},
                                     {1e-30f, 3e8f}, {3e38f, 3e-5f},       {1e-40f, 3e-40f},   {3e38f, 7e37f},
                                     {1e-38f, 7},    {-1, 2.5e38f},        {7e-45f, 3e-45f},   {1e-20f, 1e20f}};
    static const char *const names[] = {"1 / 3e38",     "1 / least normal", "3e38 / 1e-3",   "1 / 3",
                                        "1e-30 / 3e8",  "3e38 / 3e-5",      "1e-40 / 3e-40", "3e38 / 7e37",
                                        "1e-38 / 7",    "-1 / 2.5e38",      "7e-45 / 3e-45", "1e-20 / 1e20"};
    unsigned words[WORDS], expected[12];
    memcpy(words, pairs, sizeof pairs);
    for (unsigned i = 0; i < 12; ++i) {
        volatile float quotient = pairs[i][0] / pairs[i][1];
        memcpy(&expected[i], (const float *)&quotient, 4);
    }
    run(gpu("gfx"), SOURCE, words, 12);
    return compare(words, expected, 12, names);
}
