//! Scratch memory that each thread keeps, so that a call in a training loop allocates nothing.

use std::cell::Cell;

thread_local! {
    static KEPT: Cell<Vec<Vec<f32>>> = const { Cell::new(Vec::new()) };
}

/// Above this many bytes a block is given back to the allocator instead of kept.
const KEEP_BYTES: usize = 64 << 20;

/// Calls `body` with `len` floats of this thread's scratch memory; their content is unspecified.
///
/// Calls nest: an inner call gets another block. With work stealing a thread may run another task in the
/// middle of `body`; that task then is an inner call.
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
