//! The HIP C++ kernels of burn-rocm and the table of their instantiations
