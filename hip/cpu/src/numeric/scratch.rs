//! Scratch memory that each thread keeps, so that calls in a training loop allocate nothing.

use std::cell::Cell;

thread_local! {
    static KEPT: Cell<Vec<Vec<f32>>> = const { Cell::new(Vec::new()) };
}

/// A block of more bytes than this is freed instead of kept.
const KEEP_BYTES: usize = 64 << 20;

/// Calls `body` with `len` floats of this thread's scratch memory, whose content is unspecified.
///
/// Calls may be nested: an inner call gets another block.
pub(crate) fn with_scratch<R>(len: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut blocks = KEPT.take();
    let mut block = blocks.pop().unwrap_or_default();
    KEPT.set(blocks);
    if block.len() < len {
        block.resize(len, 0.0);
    }
    let result = body(&mut block[..len]);
    if block.len() * size_of::<f32>() <= KEEP_BYTES {
        let mut blocks = KEPT.take();
        blocks.push(block);
        KEPT.set(blocks);
    }
    result
}
