//! Pinned memory on the CPU device, whose functions are counted and made to fail.

use super::*;
use crate::device::Device;
use crate::memory::transfer::Read;
use crate::provider::Provider;
use hip_sys::*;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;

thread_local! {
    /// The arguments of each `hipHostMalloc` call.
    static ASKED: RefCell<Vec<(usize, c_uint)>> = const { RefCell::new(Vec::new()) };
    /// The number of live pinned blocks, and its limit.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Once there are more live pinned blocks than this, device memory runs out.
    static SHARED: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The flags of each event, and of each event that the host waited for.
    static EVENTS: RefCell<Vec<(usize, c_uint)>> = const { RefCell::new(Vec::new()) };
    static WAITED: RefCell<Vec<c_uint>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn host_malloc(to: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t {
    ASKED.with_borrow_mut(|asked| asked.push((size, flags)));
    if LIVE.get() >= ROOM.get() {
        return hipErrorOutOfMemory;
    }
    LIVE.set(LIVE.get() + 1);
    // SAFETY: the caller's.
    unsafe { (hip_cpu::hip_table().hipHostMalloc)(to, size, flags) }
}

unsafe extern "C" fn host_free(address: *mut c_void) -> hipError_t {
    LIVE.set(LIVE.get() - 1);
    // SAFETY: the caller's.
    unsafe { (hip_cpu::hip_table().hipHostFree)(address) }
}

unsafe extern "C" fn malloc(to: *mut *mut c_void, size: usize) -> hipError_t {
    if LIVE.get() > SHARED.get() {
        return hipErrorOutOfMemory;
    }
    // SAFETY: the caller's.
    unsafe { (hip_cpu::hip_table().hipMalloc)(to, size) }
}

unsafe extern "C" fn event_create(event: *mut hipEvent_t, flags: c_uint) -> hipError_t {
    // SAFETY: the caller's.
    unsafe {
        let status = (hip_cpu::hip_table().hipEventCreateWithFlags)(event, flags);
        EVENTS.with_borrow_mut(|events| events.push((*event as usize, flags)));
        status
    }
}

unsafe extern "C" fn event_wait(event: hipEvent_t) -> hipError_t {
    let flags = EVENTS.with_borrow(|events| events.iter().find(|(e, _)| *e == event as usize).copied());
    WAITED.with_borrow_mut(|waited| waited.extend(flags.map(|(_, flags)| flags)));
    // SAFETY: the caller's.
    unsafe { (hip_cpu::hip_table().hipEventSynchronize)(event) }
}

fn provider() -> &'static Provider {
    Provider::altered(|hip| {
        hip.hipHostMalloc = host_malloc;
        hip.hipHostFree = host_free;
        hip.hipMalloc = malloc;
        hip.hipEventCreateWithFlags = event_create;
        hip.hipEventSynchronize = event_wait;
    })
}

fn staging() -> Staging {
    Staging::new(&Arc::new(Context::new(provider(), 0, 0)))
}

#[test]
fn a_large_block_is_as_large_as_asked_for() {
    let staging = staging();
    for (asked, pinned) in [(1, SMALL), (3 << 20, 4 << 20), (MOST_HOST, MOST_HOST)] {
        assert_eq!(staging.take_host_block(asked).unwrap().size, pinned);
    }
    let large = MOST_HOST + (1 << 20) + 1;
    assert_eq!(staging.take_host_block(large).unwrap().size, large);
    assert_eq!(host_size(33 << 30), 33 << 30);
    assert_eq!(host_size(usize::MAX), usize::MAX);
}

/// The bytes of the kept blocks, the least first.
fn kept(staging: &Staging) -> Vec<usize> {
    let mut sizes: Vec<_> = staging.state().free_host.iter().map(|block| block.size).collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn blocks_that_were_reserved_are_not_pinned_again() {
    let staging = staging();
    // One of them is there already.
    staging.give_host_block(staging.take_host_block(3 << 20).unwrap());
    staging.reserve_host(&[3 << 20, 100, 3 << 20, 1 << 20]).unwrap();
    assert_eq!(kept(&staging), [SMALL, 1 << 20, 4 << 20, 4 << 20]);
    ASKED.take();
    let sizes = [4 << 20, 3 << 20, 1 << 20, 50_000];
    let blocks: Vec<_> = sizes.map(|bytes| staging.take_host_block(bytes).unwrap()).into();
    assert!(ASKED.take().is_empty());
    blocks.into_iter().for_each(|block| staging.give_host_block(block));
    staging.reserve_host(&[]).unwrap();
    assert_eq!(kept(&staging).len(), 4);
}

#[test]
fn reserving_takes_the_place_of_what_was_kept() {
    let staging = staging();
    for _ in 0..2 {
        staging.reserve_host(&[MOST_HOST / 4, MOST_HOST / 2]).unwrap();
    }
    let half = MOST_HOST / 2;
    assert_eq!(kept(&staging), [half / 2, half]);
    staging.reserve_host(&[half, half - 1]).unwrap();
    assert_eq!(kept(&staging), [half, half]);
    assert_eq!(LIVE.get(), 2);
    for sizes in [&[half, half, 1][..], &[MOST_HOST + 1], &[usize::MAX, usize::MAX]] {
        let refused = staging.reserve_host(sizes);
        let Err(Error::Invalid { op: "warm_up_pinned", expected, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert!(expected.contains("268435456"), "{expected}");
    }
    assert_eq!(kept(&staging), [half, half], "nothing has changed");
}

#[test]
fn what_could_be_reserved_before_a_failure_is_kept() {
    let staging = staging();
    ROOM.set(2);
    let refused = staging.reserve_host(&[1 << 20, 2 << 20, 4 << 20]);
    assert!(matches!(refused, Err(Error::Device { call: "hipHostMalloc", .. })), "{refused:?}");
    assert_eq!((kept(&staging), LIVE.get()), (vec![1 << 20, 2 << 20], 2));
    assert!(staging.state().used_host.is_empty());
    ROOM.set(usize::MAX);
}

#[test]
fn memory_that_is_kept_goes_back_before_a_failure_is_reported() {
    let staging = staging();
    ROOM.set(3);
    let kept: Vec<_> = (0..3).map(|_| staging.take_host_block(SMALL).unwrap()).collect();
    let refused = staging.take_host_block(SMALL);
    assert!(matches!(refused, Err(Error::Device { call: "hipHostMalloc", .. })), "nothing is kept yet");
    for block in kept {
        staging.give_host_block(block);
    }
    assert_eq!(LIVE.get(), 3);
    let larger = staging.take_host_block(4 * SMALL).expect("three blocks were free");
    assert_eq!((larger.size, LIVE.get()), (4 * SMALL, 1));
    staging.give_chunk(staging.take_chunk().unwrap());
    staging.give_chunk(staging.take_chunk().unwrap());
    assert_eq!(LIVE.get(), 2, "one block and one chunk");
    assert!(staging.take_host_block(8 * SMALL).is_ok());
    ROOM.set(usize::MAX);
}

#[test]
fn pinned_memory_that_is_kept_goes_back_before_an_allocation_fails() {
    let device = Arc::new(Device::new(provider(), 0).unwrap());
    let in_use = LIVE.get();
    let chunk = device.staging.take_chunk().unwrap();
    SHARED.set(in_use);
    let refused = device.alloc(100 << 20);
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "the chunk is in use");
    device.staging.give_chunk(chunk);
    assert_eq!(LIVE.get(), in_use + 1, "it is kept");
    assert!(device.alloc(100 << 20).is_ok());
    assert_eq!(LIVE.get(), in_use);
    SHARED.set(usize::MAX);
}

#[test]
fn chunks_of_reads_that_fail_are_not_counted() {
    let device = Arc::new(Device::new(provider(), 0).unwrap());
    let buffer = device.alloc(10 * CHUNK).unwrap();
    let mut out = vec![0; 10 * CHUNK];
    // There is room for one more chunk. A read takes two, and a read of several buffers takes
    // ten.
    ROOM.set(LIVE.get() + 1);
    for _ in 0..20 {
        assert!(device.read(&buffer, 0, &mut out).is_err());
        assert!(device.read_all(vec![Read { buffer: &buffer, byte_offset: 0, out: &mut out }]).is_err());
    }
    let state = device.staging.state();
    assert_eq!((state.chunks, state.free_chunks.len()), (1, 1));
    drop(state);
    ROOM.set(usize::MAX);
    device.read(&buffer, 0, &mut out).unwrap();
}

#[test]
fn what_the_device_writes_for_the_host_is_visible_to_it() {
    let device = Arc::new(Device::new(provider(), 0).unwrap());
    // Kernels write fault words directly, and nothing has to wait for them.
    let words = ASKED.take();
    assert!(!words.is_empty() && words.iter().all(|(_, flags)| flags & hipHostMallocCoherent != 0));
    let mut out = vec![0; 3 * CHUNK];
    let buffer = device.upload(&out).unwrap();
    device.read(&buffer, 0, &mut out[..100]).unwrap();
    device.read(&buffer, 0, &mut out).unwrap();
    device.read_all(vec![Read { buffer: &buffer, byte_offset: 0, out: &mut out }]).unwrap();
    let copies = ASKED.take();
    assert!(copies.iter().all(|(_, flags)| *flags == hipHostMallocPortable), "{copies:?}");
    let waited = WAITED.take();
    assert!(waited.len() >= 5, "{waited:?}");
    assert!(waited.iter().all(|flags| flags & hipEventReleaseToSystem != 0), "{waited:x?}");
    let ordering = EVENTS.with_borrow(|events| events.iter().filter(|(_, flags)| *flags == 2).count());
    assert!(ordering > 0, "streams wait for events without that fence");
}
