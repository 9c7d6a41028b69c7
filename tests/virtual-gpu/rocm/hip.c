// Kernels of every kind through the real HIP and hipRTC, each against its result on the host.
//
//   hip all         everything but faults, on one GPU
//   hip printf      a kernel that prints three lines
//   hip peers       two GPUs: VIRTUAL_GPU_DEVICES=2
//   hip overrun     a kernel that writes one element too many: HIP must return hipErrorIllegalAddress
//   hip freed       a kernel that writes to freed memory: likewise
#include "common.h"

#include <math.h>
#include <string.h>

static const char *source =
    "extern \"C\" __global__ void add(const float *a, const float *b, float *c, int n) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) c[i] = a[i] + b[i];\n"
    "}\n"
    "extern \"C\" __global__ void sum(const int *in, int *out, int n) {\n"
    "    __shared__ int part[256];\n"
    "    int i = blockIdx.x * 256 + threadIdx.x;\n"
    "    part[threadIdx.x] = i < n ? in[i] : 0;\n"
    "    for (int step = 128; step > 0; step /= 2) {\n"
    "        __syncthreads();\n"
    "        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];\n"
    "    }\n"
    "    if (threadIdx.x == 0) atomicAdd(out, part[0]);\n"
    "}\n"
    // Private memory: the index is not known to the compiler.
    "extern \"C\" __global__ void sort(int *rows) {\n"
    "    int row[33], *mine = rows + 33 * (blockIdx.x * blockDim.x + threadIdx.x);\n"
    "    for (int i = 0; i < 33; i++) row[i] = mine[i];\n"
    "    for (int i = 1; i < 33; i++)\n"
    "        for (int j = i; j > 0 && row[j - 1] > row[j]; j--) {\n"
    "            int other = row[j]; row[j] = row[j - 1]; row[j - 1] = other;\n"
    "        }\n"
    "    for (int i = 0; i < 33; i++) mine[i] = row[i];\n"
    "}\n"
    // Every block waits for all others.
    "extern \"C\" __global__ void meet(unsigned *count, unsigned *seen) {\n"
    "    if (threadIdx.x == 0) {\n"
    "        __atomic_fetch_add(count, 1u, __ATOMIC_ACQ_REL);\n"
    "        while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < gridDim.x) {}\n"
    "        seen[blockIdx.x] = gridDim.x;\n"
    "    }\n"
    "}\n"
    "extern \"C\" __global__ void lanes(int *out) {\n"
    "    unsigned long long mask = __ballot(threadIdx.x % 3 == 0);\n"
    "    out[threadIdx.x] = __shfl_xor((int)threadIdx.x, 5) + (__popcll(mask) << 16);\n"
    "}\n"
    "extern \"C\" __global__ void heap(int **cells, int *out, int step) {\n"
    "    if (step == 0) {\n"
    "        cells[threadIdx.x] = (int *)malloc(8);\n"
    "        cells[threadIdx.x][1] = threadIdx.x * 3;\n"
    "    } else {\n"
    "        out[threadIdx.x] = cells[threadIdx.x][1];\n"
    "        free(cells[threadIdx.x]);\n"
    "    }\n"
    "}\n"
    "__device__ int table[4] = {1, 10, 100, 1000};\n"
    "extern \"C\" __global__ void globals(int *out) { out[threadIdx.x] = table[threadIdx.x % 4]; }\n"
    "extern \"C\" __global__ void fill(int *out, int n) { out[blockIdx.x * blockDim.x + threadIdx.x] = n; }\n"
    "extern \"C\" __global__ void print() { printf(\"thread %d of %s\\n\", (int)threadIdx.x, \"three\"); }\n";

static void vectors(int n) {
    float *a = malloc(4 * n), *b = malloc(4 * n), *c = malloc(4 * n);
    for (int i = 0; i < n; i++) a[i] = 0.5f * i, b[i] = 1.0f / (i + 1);
    void *da = device(a, 4 * n), *db = device(b, 4 * n), *dc = device(NULL, 4 * n);
    void *arguments[] = {&da, &db, &dc, &n};
    CHECK(launch("add", (n + 255) / 256, 256, 0, arguments));
    CHECK(hipMemcpy(c, dc, 4 * n, hipMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(c[i] == a[i] + b[i]);
    CHECK(hipFree(da)), CHECK(hipFree(db)), CHECK(hipFree(dc));
    free(a), free(b), free(c);
}

static void sums(int n) {
    int *in = malloc(4 * n), expected = 0, found;
    for (int i = 0; i < n; i++) expected += in[i] = i * 7 % 1001 - 500;
    void *din = device(in, 4 * n), *dout = device(NULL, 4), *arguments[] = {&din, &dout, &n};
    CHECK(launch("sum", (n + 255) / 256, 256, 0, arguments));
    CHECK(hipMemcpy(&found, dout, 4, hipMemcpyDeviceToHost));
    EXPECT(found == expected);
    CHECK(hipFree(din)), CHECK(hipFree(dout));
    free(in);
}

static void sorts(void) {
    enum { ROWS = 192 };
    static int rows[ROWS][33];
    for (int i = 0; i < ROWS * 33; i++) rows[i / 33][i % 33] = (i * 7919 + 13) % 10007;
    void *memory = device(rows, sizeof rows), *arguments[] = {&memory};
    long before[ROWS] = {0};
    for (int r = 0; r < ROWS; r++) for (int i = 0; i < 33; i++) before[r] += rows[r][i];
    CHECK(launch("sort", 3, 64, 0, arguments));
    CHECK(hipMemcpy(rows, memory, sizeof rows, hipMemcpyDeviceToHost));
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 33; i++) before[r] -= rows[r][i];
        EXPECT(before[r] == 0);
        for (int i = 1; i < 33; i++) EXPECT(rows[r][i - 1] <= rows[r][i]);
    }
    CHECK(hipFree(memory));
}

static void meetings(int blocks) {
    unsigned *seen = malloc(4 * blocks);
    void *count = device(NULL, 4), *dseen = device(NULL, 4 * blocks), *arguments[] = {&count, &dseen};
    CHECK(launch("meet", blocks, 64, 0, arguments));
    CHECK(hipMemcpy(seen, dseen, 4 * blocks, hipMemcpyDeviceToHost));
    for (int i = 0; i < blocks; i++) EXPECT(seen[i] == blocks);
    CHECK(hipFree(count)), CHECK(hipFree(dseen));
    free(seen);
}

static void lane_exchange(void) {
    int out[64];
    void *memory = device(NULL, sizeof out), *arguments[] = {&memory};
    CHECK(launch("lanes", 1, 64, 0, arguments));
    CHECK(hipMemcpy(out, memory, sizeof out, hipMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) {
        int count = 0;
        for (int lane = i / 32 * 32; lane < i / 32 * 32 + 32; lane++) count += lane % 3 == 0;
        EXPECT(out[i] == (i ^ 5) + (count << 16));
    }
    CHECK(hipFree(memory));
}

static void device_heap(void) {
    int out[40], step = 0;
    void *cells = device(NULL, 40 * sizeof(int *)), *memory = device(NULL, sizeof out);
    void *arguments[] = {&cells, &memory, &step};
    CHECK(launch("heap", 1, 40, 0, arguments));
    step = 1;
    CHECK(launch("heap", 1, 40, 0, arguments));
    CHECK(hipMemcpy(out, memory, sizeof out, hipMemcpyDeviceToHost));
    for (int i = 0; i < 40; i++) EXPECT(out[i] == i * 3);
    CHECK(hipFree(cells)), CHECK(hipFree(memory));
}

static void global_variables(void) {
    int out[8], value = 11;
    hipDeviceptr_t table;
    size_t size;
    CHECK(hipModuleGetGlobal(&table, &size, module, "table"));
    EXPECT(size == 16);
    CHECK(hipMemcpy((char *)table + 4, &value, 4, hipMemcpyHostToDevice));
    void *memory = device(NULL, sizeof out), *arguments[] = {&memory};
    CHECK(launch("globals", 1, 8, 0, arguments));
    CHECK(hipMemcpy(out, memory, sizeof out, hipMemcpyDeviceToHost));
    int expected[4] = {1, 11, 100, 1000};
    for (int i = 0; i < 8; i++) EXPECT(out[i] == expected[i % 4]);
    CHECK(hipFree(memory));
}

// Two streams, an event between, a graph, memory in stream order, and times.
static void streams(void) {
    enum { N = 1 << 16 };
    static int host[N];
    hipStream_t first, second;
    hipEvent_t begin, end;
    hipGraph_t graph;
    hipGraphExec_t program;
    hipFunction_t fill;
    void *memory;
    int n = 5;
    CHECK(hipModuleGetFunction(&fill, module, "fill"));
    CHECK(hipStreamCreate(&first));
    CHECK(hipStreamCreateWithFlags(&second, hipStreamNonBlocking));
    CHECK(hipEventCreate(&begin)), CHECK(hipEventCreate(&end));
    CHECK(hipMallocAsync(&memory, sizeof host, first));
    void *arguments[] = {&memory, &n};
    CHECK(hipEventRecord(begin, first));
    CHECK(hipModuleLaunchKernel(fill, N / 256, 1, 1, 256, 1, 1, 0, first, arguments, NULL));
    CHECK(hipEventRecord(end, first));
    CHECK(hipStreamWaitEvent(second, end, 0));
    CHECK(hipMemcpyAsync(host, memory, sizeof host, hipMemcpyDeviceToHost, second));
    CHECK(hipStreamSynchronize(second));
    for (int i = 0; i < N; i++) EXPECT(host[i] == 5);
    float ms = -1;
    CHECK(hipEventElapsedTime(&ms, begin, end));
    EXPECT(ms > 0 && ms < 60000);
    n = 6;
    CHECK(hipStreamBeginCapture(first, hipStreamCaptureModeGlobal));
    CHECK(hipMemsetAsync(memory, 1, sizeof host, first));
    CHECK(hipModuleLaunchKernel(fill, N / 512, 1, 1, 256, 1, 1, 0, first, arguments, NULL));
    CHECK(hipMemcpyAsync(host, memory, sizeof host, hipMemcpyDeviceToHost, first));
    CHECK(hipStreamEndCapture(first, &graph));
    CHECK(hipGraphInstantiate(&program, graph, NULL, NULL, 0));
    for (int times = 0; times < 3; times++) {
        memset(host, 0, sizeof host);
        CHECK(hipGraphLaunch(program, first));
        CHECK(hipStreamSynchronize(first));
        for (int i = 0; i < N; i++) EXPECT(host[i] == (i < N / 2 ? 6 : 0x01010101));
    }
    CHECK(hipGraphExecDestroy(program)), CHECK(hipGraphDestroy(graph));
    CHECK(hipFreeAsync(memory, first));
    CHECK(hipStreamDestroy(first)), CHECK(hipStreamDestroy(second));
    CHECK(hipEventDestroy(begin)), CHECK(hipEventDestroy(end));
}

// Device 1 reads and writes memory of device 0.
static void peers(void) {
    enum { N = 1000 };
    static int host[N];
    int count, possible, n = 9;
    CHECK(hipGetDeviceCount(&count));
    EXPECT(count == 2);
    CHECK(hipSetDevice(0));
    void *first = device(NULL, sizeof host);
    CHECK(hipSetDevice(1));
    compile(source, NULL, 0);
    void *second = device(NULL, sizeof host), *arguments[] = {&second, &n};
    CHECK(launch("fill", N / 100, 100, 0, arguments));
    CHECK(hipMemcpyPeer(first, 0, second, 1, sizeof host));
    CHECK(hipMemcpy(host, first, sizeof host, hipMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) EXPECT(host[i] == 9);
    CHECK(hipDeviceCanAccessPeer(&possible, 1, 0));
    EXPECT(possible == 1);
    CHECK(hipDeviceEnablePeerAccess(0, 0));
    arguments[0] = &first, n = 10;
    CHECK(launch("fill", N / 100, 100, 0, arguments));
    CHECK(hipMemcpy(host, first, sizeof host, hipMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) EXPECT(host[i] == 10);
}

static int faults(int freed) {
    int n = 3;
    void *memory = device(NULL, 4 * 255), *arguments[] = {&memory, &n};
    if (freed) CHECK(hipFree(memory));
    int status = launch("fill", 1, 256, 0, arguments);
    printf("status %d, and the process lives\n", status);
    return status == hipErrorIllegalAddress ? 0 : 1;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "all";
    if (!strcmp(what, "peers")) return peers(), puts("peers: right"), 0;
    compile(source, NULL, 0);
    if (!strcmp(what, "overrun")) return faults(0);
    if (!strcmp(what, "freed")) return faults(1);
    if (!strcmp(what, "printf")) return launch("print", 1, 3, 0, NULL);
    for (int n = 1; n < 100000; n = n * 3 + 1) vectors(n), sums(n);
    sorts();
    meetings(2), meetings(300);
    lane_exchange();
    device_heap();
    global_variables();
    streams();
    puts("all: right");
    return 0;
}
