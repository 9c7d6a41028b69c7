//! What a process asks of this provider.

use std::sync::atomic::{AtomicBool, Ordering};

static TF32: AtomicBool = AtomicBool::new(false);

/// Whether f32 products and convolutions may round their operands to TF32 (10 bits of fraction); they may not unless
/// this says so. Call it before the first of them.
pub fn allow_tf32(allowed: bool) {
    // Relaxed: nothing else is published by it.
    TF32.store(allowed, Ordering::Relaxed);
}

/// Whether f32 operands may be rounded to TF32.
pub(crate) fn tf32() -> bool {
    TF32.load(Ordering::Relaxed)
}
