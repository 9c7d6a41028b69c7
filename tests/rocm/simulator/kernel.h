// What the programs of this folder share: a kernel of one wave, compiled by hipRTC, on an array of words.
//
// Each program shows one fault of AMD's simulator rocjitsu of July 2026. It says `right`, or what was wrong, and its
// exit status is 0, 1 if a value is wrong, or 77 where the GPU lacks the instructions.
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS 256

static void need(int status, const char *what) {
    if (status != 0) {
        fprintf(stderr, "%s: error %d\n", what, status);
        exit(2);
    }
}
#define NEED(call) need((int)(call), #call)

// The name of the GPU's architecture, for instance gfx942. Ends the program if it does not begin with `prefix`.
static const char *gpu(const char *prefix) {
    static hipDeviceProp_t properties;
    NEED(hipGetDeviceProperties(&properties, 0));
    if (strncmp(properties.gcnArchName, prefix, strlen(prefix)) != 0) {
        printf("skipped: %s is not of %s\n", properties.gcnArchName, prefix);
        exit(77);
    }
    return properties.gcnArchName;
}

// The code object of a source, by hipRTC. The end of the process frees it.
static char *compile(const char *architecture, const char *source) {
    char target[300];
    snprintf(target, sizeof target, "--offload-arch=%s", architecture);
    const char *options[] = {target, "-O3"};
    hiprtcProgram program;
    NEED(hiprtcCreateProgram(&program, source, "kernel.hip", 0, NULL, NULL));
    if (hiprtcCompileProgram(program, 2, options) != HIPRTC_SUCCESS) {
        size_t size;
        NEED(hiprtcGetProgramLogSize(program, &size));
        char *log = calloc(size + 1, 1);
        NEED(hiprtcGetProgramLog(program, log));
        fprintf(stderr, "%s\n", log);
        exit(2);
    }
    size_t size;
    NEED(hiprtcGetCodeSize(program, &size));
    char *code = malloc(size);
    NEED(hiprtcGetCode(program, code));
    return code;
}

// Runs `extern "C" __global__ void kernel(unsigned *words)` with one block of `x` times `y` threads on the words.
static inline void run_block(const char *architecture, const char *source, unsigned words[WORDS], unsigned x,
                             unsigned y) {
    char *code = compile(architecture, source);
    hipModule_t module;
    hipFunction_t kernel;
    NEED(hipModuleLoadData(&module, code));
    NEED(hipModuleGetFunction(&kernel, module, "kernel"));
    void *device;
    NEED(hipMalloc(&device, WORDS * 4));
    NEED(hipMemcpy(device, words, WORDS * 4, hipMemcpyHostToDevice));
    void *arguments[] = {&device};
    NEED(hipModuleLaunchKernel(kernel, 1, 1, 1, x, y, 1, 0, NULL, arguments, NULL));
    NEED(hipDeviceSynchronize());
    NEED(hipMemcpy(words, device, WORDS * 4, hipMemcpyDeviceToHost));
}

// As run_block, in one dimension.
static inline void run(const char *architecture, const char *source, unsigned words[WORDS], unsigned threads) {
    run_block(architecture, source, words, threads, 1);
}

// Says which words are not those expected. Returns the exit status of the program.
static inline int compare(const unsigned *words, const unsigned *expected, unsigned count, const char *const *names) {
    int wrong = 0;
    for (unsigned i = 0; i < count; ++i) {
        if (words[i] == expected[i]) continue;
        printf("%s: 0x%08x, expected 0x%08x\n", names[i], words[i], expected[i]);
        wrong = 1;
    }
    if (!wrong) printf("right\n");
    return wrong;
}
