//! Burn backend for AMD GPUs on rocBLAS, MIOpen and HIP kernels
