//! What an allocation of device memory costs on the host.
#![cfg(feature = "cpu")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which counts the calling thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every method passes its arguments on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and `alloc` above gave out the address.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The host's allocations while blocks of some sizes are taken and freed in turn.
fn allocations(device: &std::sync::Arc<hip::Device>) -> usize {
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        let blocks = [100, 5000, 3 << 20].map(|bytes| device.alloc(bytes).unwrap());
        drop(blocks);
    }
    ALLOCATIONS.get() - before
}

#[test]
fn a_cached_block_costs_no_memory_of_the_host() {
    let device = hip::Device::get(0).unwrap();
    allocations(&device);
    assert_eq!(allocations(&device), 0, "without a label");
    let _label = hip::memory_label("step");
    allocations(&device);
    assert_eq!(allocations(&device), 0, "under a label");
    hip::memory_track_ops(true);
    assert_eq!(allocations(&device), 0, "while ops are tracked");
    // A record keeps events, and gives their memory back at its end.
    let (_, record) = device.pool().record(|| allocations(&device));
    assert_eq!(record.events.len(), 600);
    assert_eq!(allocations(&device), 0, "after a record");
}
