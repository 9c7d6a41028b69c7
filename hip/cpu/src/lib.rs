//! AMD's HIP, hipRTC, rocBLAS and MIOpen C API on the host CPU, in process
