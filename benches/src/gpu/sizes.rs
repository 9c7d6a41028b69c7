//! The sizes that the cases and the ceilings share.

use hip::DType;

use crate::Options;

/// This many bytes evict the operands of the last call from a GPU's caches (the H200's L2 has 50
/// MB, the MI300X's Infinity Cache 256).
pub(crate) const BEYOND_CACHES: usize = 512 << 20;

/// How many copies are made of operands that have this many bytes.
pub(crate) fn rotations(bytes: usize) -> usize {
    BEYOND_CACHES.div_ceil(bytes.max(1)).clamp(1, 8)
}

/// The dtypes and sizes of the products.
pub(crate) fn products(options: &Options) -> [(&'static str, DType, usize); 3] {
    let n = |n: usize| n / options.shrink.min(64);
    [("f32", DType::F32, n(4096)), ("bf16", DType::BF16, n(8192)), ("f16", DType::F16, n(8192))]
}

/// Elements of the cumulative sum.
pub(crate) fn scanned(options: &Options) -> usize {
    (1 << 24) / options.shrink
}
