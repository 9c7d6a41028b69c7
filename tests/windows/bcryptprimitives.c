/* A stand-in for Windows's bcryptprimitives.dll, which wine 8 lacks and every Rust program needs. For tests only. */
#include <stddef.h>

__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *buffer, unsigned long bytes);

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *buffer, size_t bytes) {
    return SystemFunction036(buffer, (unsigned long)bytes);
}
