// What the programs here share: checks, a module compiled by hipRTC, launches, device memory.
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#include <stdio.h>
#include <stdlib.h>

static hipModule_t module;

static void check_at(int line, int status) {
    if (status != 0) {
        printf("line %d: status %d (%s)\n", line, status, hipGetErrorString(status));
        exit(1);
    }
}
#define CHECK(call) check_at(__LINE__, (int)(call))

static void expect_at(int line, int holds, const char *what) {
    if (!holds) {
        printf("line %d: %s does not hold\n", line, what);
        exit(1);
    }
}
#define EXPECT(what) expect_at(__LINE__, (what), #what)

// Compiles a source by hipRTC with these options, and loads it.
static void compile(const char *source, const char *const *more, int count) {
    hiprtcProgram program;
    size_t size;
    const char *options[8] = {"--offload-arch=gfx1030"};
    EXPECT(count < 8);
    for (int i = 0; i < count; i++) options[1 + i] = more[i];
    CHECK(hiprtcCreateProgram(&program, source, "test.hip", 0, NULL, NULL));
    int status = hiprtcCompileProgram(program, 1 + count, options);
    if (status != 0) {
        CHECK(hiprtcGetProgramLogSize(program, &size));
        char *log = malloc(size + 1);
        CHECK(hiprtcGetProgramLog(program, log));
        printf("%s\n", log);
        CHECK(status);
    }
    CHECK(hiprtcGetCodeSize(program, &size));
    char *code = malloc(size);
    CHECK(hiprtcGetCode(program, code));
    CHECK(hiprtcDestroyProgram(&program));
    CHECK(hipModuleLoadData(&module, code));
    free(code);
}

static int launch(const char *name, int blocks, int threads, hipStream_t stream, void **arguments) {
    hipFunction_t function;
    CHECK(hipModuleGetFunction(&function, module, name));
    // A fault may be known before the call returns.
    int status = hipModuleLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
    return status ? status : (int)hipStreamSynchronize(stream);
}

static void *device(const void *host, size_t size) {
    void *memory;
    CHECK(hipMalloc(&memory, size));
    if (host) CHECK(hipMemcpy(memory, host, size, hipMemcpyHostToDevice));
    else CHECK(hipMemset(memory, 0, size));
    return memory;
}
