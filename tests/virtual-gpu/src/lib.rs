//! A virtual gfx1030 for tests.
//!
//! This package builds a `libhsa-runtime64.so.1` that stands in for AMD's HSA runtime. It presents
//! one or more gfx1030 (RDNA 2) GPUs and executes their machine code on the CPU. Everything above
//! it (HIP, hipRTC, rocBLAS, MIOpen) is AMD's own and unmodified. So a program that uses ROCm runs
//! on a machine without a GPU. Its results count; its timings don't.
//!
//! `install.sh ROOT` builds the library and puts it into `ROOT/opt/virtual-gpu`. A program uses it
//! with `LD_LIBRARY_PATH=/opt/virtual-gpu`.
//!
//! Every memory access is checked against the allocations, to the byte. A kernel that accesses
//! anything else stops its queue, but not the process: HIP returns `hipErrorIllegalAddress`, and a
//! line on stderr names the kernel, the program counter, the lane, the address and the nearest
//! allocation.
//!
//! # Settings
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `VIRTUAL_GPU_DEVICES` | 1 | how many GPUs there are |
//! | `VIRTUAL_GPU_MEMORY_MIB` | 8192 | the memory of each GPU |
//! | `VIRTUAL_GPU_UNITS` | 72 | the compute units that each GPU reports; HIP shows half of them |
//! | `VIRTUAL_GPU_THREADS` | all cores | the threads that run workgroups; with 1 their order is always the same |
//! | `VIRTUAL_GPU_POISON` | 0 | 1: new device memory (up to 256 MiB each), registers and LDS hold 0xff, NaN as floats |
//! | `VIRTUAL_GPU_YIELD` | 1 | 0: each wave runs until its next barrier, which reveals missing barriers |
//! | `VIRTUAL_GPU_RACES` | 0 | 1: a wave faults if it accesses LDS that another wave has written since the last barrier |
//! | `VIRTUAL_GPU_STATISTICS` | 0 | 1: a line on stderr for each launch: workgroups, instructions of waves, time |
//! | `VIRTUAL_GPU_LEVEL` | the host's | `portable` or `avx2`: vector instructions of the host below its best |
//! | `VIRTUAL_GPU_LOG` | | a file, or `stderr`, for a line for each call of the HSA API and each packet |
//!
//! # Structure
//!
//! [`memory`] records what a GPU may access. [`isa`] executes waves. [`dispatch`] distributes the
//! workgroups of a launch over threads. [`hsa`] is the C API above them, as specified in the HSA
//! Runtime Programmer's Reference Manual 1.2 and AMD's `hsa_ext_amd.h`.

pub mod dispatch;
pub mod hsa;
pub mod isa;
pub mod memory;
pub mod settings;
