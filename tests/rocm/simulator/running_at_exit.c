// A process may end while its GPU still computes: the driver stops the GPU. The simulator is a thread of the process.
// It went on while HSA freed the memory of the kernel, so that the next fetch of an instruction ended the process by a
// signal, in some runs. Found by tests that had passed and did not wait for their last kernel.
#include "kernel.h"

#include <sys/wait.h>
#include <unistd.h>

static const char SOURCE[] = "extern \"C\" __global__ void kernel(unsigned *words) {\n"
                             "    unsigned x = threadIdx.x;\n"
                             "    for (unsigned i = 0; i < 1u << 17; ++i) x = x * x + 1013904223u;\n"
                             "    words[threadIdx.x] = x;\n"
                             "}\n";

static void launch(void) {
    char *code = compile(gpu("gfx"), SOURCE);
    hipModule_t module;
    hipFunction_t kernel;
    NEED(hipModuleLoadData(&module, code));
    NEED(hipModuleGetFunction(&kernel, module, "kernel"));
    // HIP does not wait for this stream when the process ends.
    hipStream_t stream;
    NEED(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    void *device;
    NEED(hipMalloc(&device, WORDS * 4));
    void *arguments[] = {&device};
    NEED(hipModuleLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, stream, arguments, NULL));
}

int main(void) {
    for (int i = 0; i < 8; ++i) {
        pid_t child = fork();
        if (child == 0) {
            launch();
            return 0;
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child) return 2;
        if (WIFSIGNALED(status)) {
            printf("process %d: ended by signal %d\n", i, WTERMSIG(status));
            return 1;
        }
        if (WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
    }
    printf("right\n");
    return 0;
}
