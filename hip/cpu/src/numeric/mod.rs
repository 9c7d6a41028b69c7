//! What the CPU's rocBLAS and MIOpen share: vector types, element types, the guard of the C boundary.

pub(crate) mod device;
pub(crate) mod element;
pub(crate) mod halves;
pub(crate) mod multiply;
pub(crate) mod rows;
pub(crate) mod scratch;
pub(crate) mod shared;
pub(crate) mod simd;
