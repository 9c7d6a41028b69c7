//! What the CPU's rocBLAS and MIOpen share: vectors, element types, products, sums of rows, scratch memory.

pub(crate) mod device;
pub(crate) mod element;
pub(crate) mod halves;
pub(crate) mod multiply;
pub(crate) mod rows;
pub(crate) mod scratch;
pub(crate) mod shared;
pub(crate) mod simd;
