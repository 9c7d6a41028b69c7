// Runs MIOpen's static implicit-GEMM solvers for matrix cores (`*_xdlops`), each forced by its number, and compares the
// results with sums in f64.
//
//   xdlops list           the names of the cases: solver, direction, type
//   xdlops CASE           runs one. Its exit status is 0 if all values are right, 1 if a value is wrong, 3 if MIOpen
//                         refuses the solver, 4 if the process was aborted, as LLVM does where it can't
//                         compile, and 2 for any other error
//
// MIOpen's own log must name the solver, so a result of another one is an error. With RJ_LOG=1 rocjitsu says whether
// the kernel used the matrix cores. The program sets the variables that enable solvers which MIOpen leaves out by
// default.
//
// On gfx942, with Debian's MIOpen 3.5.1 (docs/simulated.md has the evidence):
//
//   f32, f16      right: the three forward solvers and BwdDataV4R1
//   bf16          aborted: the same four. gfx942 has no such instruction, and AMD's later MIOpen refuses them
//   all types     refused: BwdDataV1R1, WrwV4R4 and its padded form, whatever the sizes
#include <fcntl.h>
#include <hip/hip_runtime_api.h>
#include <math.h>
#include <miopen/miopen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vector>

typedef enum { FORWARD, DATA, WEIGHTS } Direction;
static const char *const DIRECTIONS[] = {"forward", "data", "weights"};

// The numbers are those of MIOpen's registry, which never gives one out twice.
static const struct {
    const char *name;
    uint64_t id;
    Direction direction;
    // Images, channels in and out, height and width, the square filter's side, and its padding, for which MIOpen takes
    // the solver. "Padded" ones take only products whose sizes their blocks don't divide.
    int n, c, k, h, w, filter, pad;
} SOLVERS[] = {
    {"ConvHipImplicitGemmForwardV4R4Xdlops", 64, FORWARD, 1, 16, 32, 8, 8, 3, 1},
    {"ConvHipImplicitGemmForwardV4R4Xdlops_Padded_Gemm", 81, FORWARD, 1, 5, 20, 7, 9, 3, 1},
    {"ConvHipImplicitGemmForwardV4R5Xdlops", 80, FORWARD, 2, 16, 32, 8, 8, 3, 1},
    {"ConvHipImplicitGemmBwdDataV1R1Xdlops", 57, DATA, 1, 16, 32, 8, 8, 3, 1},
    {"ConvHipImplicitGemmBwdDataV4R1Xdlops", 60, DATA, 1, 32, 32, 8, 8, 1, 0},
    {"ConvHipImplicitGemmWrwV4R4Xdlops", 73, WEIGHTS, 1, 16, 32, 8, 8, 3, 1},
    {"ConvHipImplicitGemmWrwV4R4Xdlops_Padded_Gemm", 83, WEIGHTS, 1, 5, 20, 7, 9, 3, 1},
};

// `unit` is the greatest relative error of rounding a value to the type.
static const struct {
    const char *name;
    miopenDataType_t type;
    unsigned size;
    double unit;
} TYPES[] = {{"f32", miopenFloat, 4, 0x1p-24}, {"f16", miopenHalf, 2, 0x1p-11}, {"bf16", miopenBFloat16, 2, 0x1p-8}};

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

static void need(int status, const char *what) {
    if (status == 0) return;
    printf("%s: error %d\n", what, status);
    exit(2);
}
#define NEED(call) need((int)(call), #call)

// What MIOpen says goes to this file.
static char said_path[] = "/tmp/xdlops-XXXXXX";
static char *said(void) {
    fflush(stderr);
    FILE *file = fopen(said_path, "r");
    if (!file) need(1, said_path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = (char *)calloc(size + 1, 1);
    if (fread(text, 1, size, file) != (size_t)size) need(1, "reading MIOpen's log");
    fclose(file);
    return text;
}
static void remove_said(void) { unlink(said_path); }

// Prints the end of MIOpen's log, where LLVM says what it could not compile before it aborts. A handler may not call
// more than this.
static void aborted(int) {
    static char text[4096];
    int file = open(said_path, O_RDONLY);
    lseek(file, -(off_t)sizeof text, SEEK_END);
    ssize_t size = read(file, text, sizeof text), from = 0;
    for (ssize_t at = 0; at + 1 < size; ++at)
        if (text[at] == '\n') from = at + 1;
    if (size > from && write(1, "aborted: ", 9) && write(1, text + from, size - from)) unlink(said_path);
    _exit(4);
}

// Prints the lines of MIOpen's log that contain the words.
static int lines(const char *text, const char *words, const char *other) {
    int found = 0;
    for (const char *line = text; *line;) {
        const char *end = strchrnul(line, '\n');
        char *copy = strndup(line, end - line);
        if (strstr(copy, words) && strstr(copy, other)) {
            if (++found <= 3) printf("  %.300s\n", copy);
        }
        free(copy);
        line = *end ? end + 1 : end;
    }
    return found;
}

static double value_of(int type, const void *data, size_t at) {
    if (type == 0) return ((const float *)data)[at];
    unsigned bits = ((const unsigned short *)data)[at];
    if (type == 2) {
        bits <<= 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

// A multiple of 1/128 between -1 and 1, which every type holds exactly.
static double draw(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return ((int)(*state >> 24) - 128) / 128.0;
}

static void store(int type, void *data, size_t at, double value) {
    float single = (float)value;
    unsigned bits;
    memcpy(&bits, &single, 4);
    if (type == 0) {
        ((float *)data)[at] = single;
    } else if (type == 2) {
        ((unsigned short *)data)[at] = bits >> 16;
    } else {
        unsigned half = value == 0 ? 0 : (bits >> 31) << 15 | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023);
        ((unsigned short *)data)[at] = half;
    }
}

int main(int count, char **arguments) {
    int solver = -1, type = -1;
    for (int s = 0; s < COUNT(SOLVERS); ++s) {
        for (int t = 0; t < COUNT(TYPES); ++t) {
            char name[200];
            snprintf(name, sizeof name, "%s.%s.%s", SOLVERS[s].name, DIRECTIONS[SOLVERS[s].direction], TYPES[t].name);
            if (count == 2 && strcmp(arguments[1], "list") == 0) puts(name);
            if (count == 2 && strcmp(arguments[1], name) == 0) solver = s, type = t;
        }
    }
    if (count == 2 && strcmp(arguments[1], "list") == 0) return 0;
    if (solver < 0) {
        printf("usage: %s list | CASE\n", arguments[0]);
        return 2;
    }
    setenv("MIOPEN_LOG_LEVEL", "6", 1);
    setenv("MIOPEN_DEBUG_CONV_IMPLICIT_GEMM_HIP_BWD_V1R1_XDLOPS", "1", 1);
    setenv("MIOPEN_DEBUG_CONV_IMPLICIT_GEMM_HIP_BWD_V4R1_XDLOPS", "1", 1);
    setenv("MIOPEN_DEBUG_ENABLE_DEPRECATED_SOLVERS", "1", 1);
    int file = mkstemp(said_path);
    if (file < 0 || dup2(file, 2) < 0) need(1, said_path);
    atexit(remove_said);
    signal(SIGABRT, aborted);

    const Direction direction = SOLVERS[solver].direction;
    const uint64_t id = SOLVERS[solver].id;
    const int n = SOLVERS[solver].n, c = SOLVERS[solver].c, k = SOLVERS[solver].k, h = SOLVERS[solver].h,
              w = SOLVERS[solver].w, filter = SOLVERS[solver].filter, pad = SOLVERS[solver].pad;
    const int height = h + 2 * pad - filter + 1, width = w + 2 * pad - filter + 1;
    const int dims[3][4] = {{n, c, h, w}, {k, c, filter, filter}, {n, k, height, width}};
    enum { X, W, Y };
    miopenHandle_t handle;
    miopenTensorDescriptor_t descriptors[3];
    miopenConvolutionDescriptor_t convolution;
    NEED(miopenCreateWithStream(&handle, NULL));
    NEED(miopenCreateConvolutionDescriptor(&convolution));
    NEED(miopenInitConvolutionDescriptor(convolution, miopenConvolution, pad, pad, 1, 1, 1, 1));
    void *host[3], *device[3];
    size_t sizes[3];
    unsigned state = 1;
    for (int i = X; i <= Y; ++i) {
        NEED(miopenCreateTensorDescriptor(&descriptors[i]));
        NEED(miopenSet4dTensorDescriptor(descriptors[i], TYPES[type].type, dims[i][0], dims[i][1], dims[i][2],
                                         dims[i][3]));
        sizes[i] = (size_t)dims[i][0] * dims[i][1] * dims[i][2] * dims[i][3];
        host[i] = malloc(sizes[i] * TYPES[type].size);
        // The result begins as NaN.
        if (i == (direction == FORWARD ? Y : direction == DATA ? X : W))
            memset(host[i], 0xff, sizes[i] * TYPES[type].size);
        else
            for (size_t at = 0; at < sizes[i]; ++at) store(type, host[i], at, draw(&state));
        NEED(hipMalloc(&device[i], sizes[i] * TYPES[type].size));
        NEED(hipMemcpy(device[i], host[i], sizes[i] * TYPES[type].size, hipMemcpyHostToDevice));
    }

    // Both operands and the result, in the order of MIOpen's arguments.
    static const int ORDER[3][3] = {{W, X, Y}, {Y, W, X}, {Y, X, W}};
    const int a = ORDER[direction][0], b = ORDER[direction][1], out = ORDER[direction][2];
    static miopenStatus_t (*const SPACE[])(miopenHandle_t, miopenTensorDescriptor_t, miopenTensorDescriptor_t,
                                           miopenConvolutionDescriptor_t, miopenTensorDescriptor_t, uint64_t,
                                           size_t *) = {miopenConvolutionForwardGetSolutionWorkspaceSize,
                                                        miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
                                                        miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize};
    static miopenStatus_t (*const COMPILE[])(miopenHandle_t, miopenTensorDescriptor_t, miopenTensorDescriptor_t,
                                             miopenConvolutionDescriptor_t, miopenTensorDescriptor_t, uint64_t) = {
        miopenConvolutionForwardCompileSolution, miopenConvolutionBackwardDataCompileSolution,
        miopenConvolutionBackwardWeightsCompileSolution};
    static miopenStatus_t (*const RUN[])(miopenHandle_t, miopenTensorDescriptor_t, const void *,
                                         miopenTensorDescriptor_t, const void *, miopenConvolutionDescriptor_t,
                                         miopenTensorDescriptor_t, void *, void *, size_t, uint64_t) = {
        miopenConvolutionForwardImmediate, miopenConvolutionBackwardDataImmediate,
        miopenConvolutionBackwardWeightsImmediate};
    size_t bytes = 0;
    void *space = NULL;
    int status = SPACE[direction](handle, descriptors[a], descriptors[b], convolution, descriptors[out], id, &bytes);
    if (status == 0)
        status = COMPILE[direction](handle, descriptors[a], descriptors[b], convolution, descriptors[out], id);
    if (status != 0) {
        char *text = said();
        printf("refused, status %d\n", status);
        lines(text, "not applicable", "");
        lines(text, "error:", "");
        lines(text, "Error", "");
        return 3;
    }
    if (bytes) NEED(hipMalloc(&space, bytes));
    NEED(RUN[direction](handle, descriptors[a], device[a], descriptors[b], device[b], convolution, descriptors[out],
                        device[out], space, bytes, id));
    NEED(hipDeviceSynchronize());
    NEED(hipMemcpy(host[out], device[out], sizes[out] * TYPES[type].size, hipMemcpyDeviceToHost));

    char *text = said();
    char named[200];
    snprintf(named, sizeof named, "solver_id = %s,", SOLVERS[solver].name);
    if (!lines(text, named, "Immediate")) {
        printf("MIOpen's log does not name the solver: it has no \"%s\"\n", named);
        return 2;
    }
    lines(text, "kernel_name = gridwise", "");
    lines(text, "mfma", "");

    // The sum and the sum of absolute values of each element of the result.
    std::vector<double> sums(sizes[out]), absolute(sizes[out]);
    std::vector<int> terms(sizes[out]);
    for (int in = 0; in < n; ++in)
        for (int ik = 0; ik < k; ++ik)
            for (int ic = 0; ic < c; ++ic)
                for (int iy = 0; iy < height; ++iy)
                    for (int ix = 0; ix < width; ++ix)
                        for (int fy = 0; fy < filter; ++fy)
                            for (int fx = 0; fx < filter; ++fx) {
                                const int ih = iy + fy - pad, iw = ix + fx - pad;
                                if (ih < 0 || ih >= h || iw < 0 || iw >= w) continue;
                                const size_t at[3] = {((size_t)(in * c + ic) * h + ih) * w + iw,
                                                      ((size_t)(ik * c + ic) * filter + fy) * filter + fx,
                                                      ((size_t)(in * k + ik) * height + iy) * width + ix};
                                const double product =
                                    value_of(type, host[a], at[a]) * value_of(type, host[b], at[b]);
                                sums[at[out]] += product;
                                absolute[at[out]] += fabs(product);
                                ++terms[at[out]];
                            }
    int wrong = 0;
    double worst = 0;
    for (size_t at = 0; at < sizes[out]; ++at) {
        // Each addition in f32 rounds a partial sum, and the result is rounded once to the type.
        const double bound = terms[at] * 0x1p-24 * absolute[at] + TYPES[type].unit * fabs(sums[at]) + 0x1p-24;
        const double found = value_of(type, host[out], at), error = fabs(found - sums[at]);
        if (error / bound > worst) worst = error / bound;
        if (error <= bound) continue;
        if (++wrong <= 3) printf("element %zu: %.9g, expected %.9g within %.2g\n", at, found, sums[at], bound);
    }
    printf("%s: %d of %zu values wrong, errors at most %.2g of the bound\n", wrong ? "wrong" : "right", wrong,
           sizes[out], worst);
    return wrong != 0;
}
