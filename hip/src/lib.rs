//! Safe HIP, hipRTC, rocBLAS and MIOpen over run-time chosen providers
