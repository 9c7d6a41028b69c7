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
//! | `VIRTUAL_GPU_APU` | 0 | 1: each GPU says that it shares the host's memory (an APU) |
//! | `VIRTUAL_GPU_THREADS` | all cores | the threads that run workgroups; with 1 their order is always the same |
//! | `VIRTUAL_GPU_POISON` | 0 | 1: new device memory (up to 256 MiB each), registers and LDS hold 0xff, NaN as floats |
//! | `VIRTUAL_GPU_YIELD` | 1 | 0: each wave runs until its next barrier, which reveals missing barriers |
//! | `VIRTUAL_GPU_RACES` | 0 | 1: a wave faults at a race in LDS or global memory; see [Races](#races) |
//! | `VIRTUAL_GPU_STATISTICS` | 0 | 1: a line on stderr for each launch: workgroups, instructions of waves, time |
//! | `VIRTUAL_GPU_COUNTERS` | | a file for a table of what each launch did; see [Counters](#counters) |
//! | `VIRTUAL_GPU_LEVEL` | the host's | `portable`, `avx2` or `avx512`: the host's vector instructions to use at most |
//! | `VIRTUAL_GPU_LOG` | | a file, or `stderr`, for a line for each call of the HSA API and each packet |
//!
//! A variable with another value makes `hsa_init` fail, with a line on stderr that says what is expected. A host that
//! lacks the level of `VIRTUAL_GPU_LEVEL` uses its best.
//!
//! # Races
//!
//! With `VIRTUAL_GPU_RACES=1` a wave faults if it and another wave of the launch access the same byte, at
//! least one of them writes it, at most one of the accesses is an atomic, and nothing orders them. The report
//! names the kernel, the program counter, the lane, the address, and the other wave with its program counter.
//! Launches are much slower then.
//!
//! - In LDS, barriers order the waves of a workgroup.
//! - In global memory, barriers do too, and so do atomics on LDS. Waves of different workgroups are ordered only by
//!   atomics on global memory. A wave that executes a load with GLC, SLC or DLC (atomic, volatile or nontemporal) or an
//!   atomic that returns something may have read a flag. So its later accesses race with no access that other
//!   waves made before. Kernels whose last workgroup reduces, or whose workgroups wait for one another, are
//!   therefore not reported.
//! - On gfx1030 an atomic store looks like any other. So a store does not race with atomics that return something,
//!   nor with a load of that kind, nor with a store of the same value. Plain loads do not race with atomics, because
//!   the compiler begins the loop of a floating-point `atomicAdd` with one.
//!
//! - Stores to the host's memory do not race with each other: kernels report faults there, and any report may remain.
//!
//! A missing barrier or a missing atomic shows in this way even if the result is right by luck. Races between launches,
//! or with the host, are not found.
//!
//! Some reports are not of faults. In such a case the machine code does not show what is meant:
//!
//! - Stores of different values to device memory of which any may remain: a scatter by assignment with equal indices.
//! - Atomic loads of workgroup scope in CU mode (`-mcumode`), which have no GLC and look plain.
//! - A scalar load of 3 dwords that the compiler widened to 4, if another wave stores to the fourth.
//!
//! Looking for races in global memory takes 10 to 40 times the memory that a launch touches: 10 for dwords, 20 for
//! halves of them, 40 for bytes. A launch of one wave takes none.
//!
//! # Counters
//!
//! `VIRTUAL_GPU_COUNTERS=FILE` writes a table of tab-separated values with a header, a line for each launch that ended
//! without a fault. Launches are slower then. Processes append to the file; only an empty file gets the header.
//!
//! | column | meaning |
//! |---|---|
//! | `kernel`, `grid`, `block` | the name, the workgroups in x,y,z, the work-items of a workgroup in x,y,z |
//! | `vgprs`, `lds_size`, `private_size` | vector registers a lane, bytes of LDS a workgroup, private bytes a lane |
//! | `waves` | waves that started |
//! | a [class](isa::Class) of instructions, such as `valu_f32` | instructions that waves executed |
//! | the class with `_lanes` | the sum of their active lanes: `lanes / (32 * instructions)` is 1 without divergence |
//! | `load_bytes`, `store_bytes`, `atomic_bytes`, `scalar_bytes` | bytes of global memory that lanes asked for |
//! | `load_lines`, and so on | 64-byte lines that hold them; one that lanes of an instruction share counts once |
//! | `distinct_lines` | 64-byte lines that the launch accessed at least once, by vector or scalar instructions |
//! | `lds_bytes` | bytes that lanes accessed in LDS |
//! | `lds_conflict_cycles` | [extra cycles](isa::Counters#structfield.lds_conflicts) by conflicts in LDS's 32 banks |
//! | `scratch_accesses`, `scratch_bytes` | accesses of lanes to private memory, and their bytes |
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
