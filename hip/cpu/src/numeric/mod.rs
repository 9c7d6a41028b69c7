//! Shared by the CPU device's rocBLAS and MIOpen: vectors, element types, matrix products, sums of
//! rows, scratch memory.

pub(crate) mod device;
pub(crate) mod element;
pub(crate) mod fp8;
pub(crate) mod halves;
pub(crate) mod multiply;
pub(crate) mod rows;
pub(crate) mod scratch;
pub(crate) mod shared;
pub(crate) mod simd;
