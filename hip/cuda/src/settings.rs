//! The process's setting of this provider.

use std::sync::atomic::{AtomicBool, Ordering};

static TF32: AtomicBool = AtomicBool::new(false);

/// Sets whether f32 products and convolutions may round their operands to TF32 (10 bits of
/// fraction). The default is no. Call it before the first rocBLAS or MIOpen handle or descriptor is
/// made.
pub fn allow_tf32(allowed: bool) {
    // Relaxed: the flag publishes no other data.
    TF32.store(allowed, Ordering::Relaxed);
}

/// Whether f32 operands may be rounded to TF32.
pub(crate) fn tf32() -> bool {
    TF32.load(Ordering::Relaxed)
}
