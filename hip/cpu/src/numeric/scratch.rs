//! Scratch memory that each thread keeps, so that calls in a training loop allocate nothing.

use std::cell::RefCell;

thread_local! {
    static KEPT: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// A block of more bytes than this is freed instead of kept.
const KEEP_BYTES: usize = 64 << 20;

/// Calls `body` with `len` floats of this thread's scratch memory, whose content is unspecified.
///
/// Calls may be nested: an inner call gets another block.
///
/// # Panics
/// If there is not enough memory. The C functions turn the panic into a status.
pub(crate) fn with_scratch<R>(len: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    // `try_with` fails only while the thread ends, which then keeps no blocks.
    let kept = KEPT.try_with(|blocks| blocks.borrow_mut().pop());
    let mut block = kept.ok().flatten().unwrap_or_default();
    if let Some(more) = len.checked_sub(block.len()) {
        if let Err(error) = block.try_reserve_exact(more) {
            panic!("{len} floats of scratch memory: {error}");
        }
        block.resize(len, 0.0);
    }
    let result = body(&mut block[..len]);
    if block.len() * size_of::<f32>() <= KEEP_BYTES {
        let _ = KEPT.try_with(|blocks| blocks.borrow_mut().push(block));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_thread_that_ends_has_scratch_memory() {
        static FOUND: AtomicUsize = AtomicUsize::new(0);
        struct AtEnd;
        impl Drop for AtEnd {
            fn drop(&mut self) {
                FOUND.store(with_scratch(5, |room| room.len()), Ordering::Relaxed);
            }
        }
        thread_local!(static AT_END: AtEnd = const { AtEnd });
        let thread = std::thread::spawn(|| {
            // A thread drops its values in the opposite order of their first uses.
            AT_END.with(|_| ());
            with_scratch(3, |_| ());
        });
        thread.join().unwrap();
        assert_eq!(FOUND.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn too_much_is_a_panic_and_no_abort() {
        let caught = std::panic::catch_unwind(|| with_scratch(usize::MAX / 4, |_| ()));
        let text = caught.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("scratch memory"), "{text}");
    }
}
