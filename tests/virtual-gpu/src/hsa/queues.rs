//! Queues (HSA 1.2, section 2.5). `packets.rs` processes what is written to them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::agents::Agent;
use super::log::trace;
use super::packets::Processor;
use super::ring::{ErrorCallback, PACKET, Ring};
use super::runtime::{lock, runtime};
use super::types::{Queue, QueueHead, SIGNAL_KIND_DOORBELL, packet_type};
use super::{AgentHandle, Status, signals};
use crate::isa::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::memory::Pages;

/// The largest queue, in packets: what the agent reports.
const MAX_PACKETS: u32 = 131_072;

struct Running {
    ring: Arc<Ring>,
    thread: JoinHandle<()>,
}

/// By the queue's address.
static QUEUES: Mutex<BTreeMap<u64, Running>> = Mutex::new(BTreeMap::new());
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// Makes a queue for a GPU, with a thread that executes the queue's packets one after the other.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_queue_create(
    agent: AgentHandle,
    size: u32,
    kind: u32,
    callback: Option<ErrorCallback>,
    data: *mut c_void,
    _private_size: u32,
    _group_size: u32,
    queue: Option<&mut MaybeUninit<*mut QueueHead>>,
) -> Status {
    let (Some(agent), Some(queue)) = (agent.get(), queue) else { return Status::INVALID_ARGUMENT };
    let Agent::Gpu(gpu) = agent else { return Status::INVALID_QUEUE_CREATION };
    if !size.is_power_of_two() || size > MAX_PACKETS || kind > 2 {
        return Status::INVALID_ARGUMENT;
    }
    let offset = size_of::<Queue>().next_multiple_of(4096);
    let length = offset + size as usize * PACKET;
    let Ok(pages) = Pages::new(length) else { return Status::OUT_OF_RESOURCES };
    let Some(doorbell) = signals::create(-1, SIGNAL_KIND_DOORBELL) else { return Status::OUT_OF_RESOURCES };
    let start = pages.start();
    let base = start + offset as u64;
    let id = LAST_ID.fetch_add(1, Ordering::Relaxed);
    let head = QueueHead { kind, features: 1, base, doorbell, size, reserved1: 0, id };
    let contents = Queue {
        head,
        reserved1: [0; 4],
        write_index: AtomicU64::new(0),
        group_aperture: SHARED_APERTURE,
        private_aperture: PRIVATE_APERTURE,
        reserved2: [0; 14],
        read_index: AtomicU64::new(0),
        read_index_offset: std::mem::offset_of!(Queue, read_index) as u32,
        reserved3: [0; 541],
    };
    // SAFETY: the pages were just made, are aligned to 4096 and longer than `offset`, which is at least a `Queue`.
    unsafe { pages.as_ptr().cast::<Queue>().write(contents) };
    if let Some(doorbell) = doorbell.get() {
        doorbell.queue.store(start, Ordering::Relaxed);
    }
    let (stop, inactive) = (Arc::default(), AtomicBool::new(false));
    let ring = Arc::new(Ring { pages, gpu, callback, data: data as usize, stop, inactive });
    for index in 0..size.into() {
        // SAFETY: the packet lies in the ring, which nobody else knows yet.
        unsafe { ring.packet(index).cast::<u16>().write(packet_type::INVALID) };
    }
    runtime().share(start, length);
    let processor = Processor::new(Arc::clone(&ring));
    let thread = std::thread::Builder::new().name(format!("virtual-gpu-queue-{id}"));
    let Ok(thread) = thread.spawn(move || processor.run()) else {
        runtime().unshare(start);
        signals::destroy(doorbell);
        return Status::OUT_OF_RESOURCES;
    };
    lock(&QUEUES).insert(start, Running { ring, thread });
    trace!("hsa_queue_create GPU {gpu}, {size} packets -> {start:#x}, id {id}");
    queue.write(start as *mut QueueHead);
    Status::SUCCESS
}

/// Destroys a queue. A launch in progress is abandoned, and packets that have not been executed are
/// dropped.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_queue_destroy(queue: *mut QueueHead) -> Status {
    trace!("hsa_queue_destroy {queue:?}");
    let start = queue as u64;
    let Some(Running { ring, thread }) = lock(&QUEUES).remove(&start) else { return Status::INVALID_QUEUE };
    ring.stop.store(true, Ordering::Release);
    runtime().bell.ring();
    // A thread that panicked has already reported it.
    let _ = thread.join();
    runtime().unshare(start);
    signals::destroy(ring.queue().head.doorbell);
    Status::SUCCESS
}

/// Stops the execution of a queue's packets.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_queue_inactivate(queue: *mut QueueHead) -> Status {
    match lock(&QUEUES).get(&(queue as u64)) {
        Some(running) => {
            running.ring.inactive.store(true, Ordering::Release);
            Status::SUCCESS
        }
        None => Status::INVALID_QUEUE,
    }
}

/// The next packet to execute.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_queue_load_read_index_relaxed(queue: Option<&Queue>) -> u64 {
    hsa_queue_load_read_index_scacquire(queue)
}

/// The next packet to execute.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_queue_load_read_index_scacquire(queue: Option<&Queue>) -> u64 {
    queue.map_or(0, |queue| queue.read_index.load(Ordering::Acquire))
}

/// The next packet to write.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_queue_load_write_index_relaxed(queue: Option<&Queue>) -> u64 {
    queue.map_or(0, |queue| queue.write_index.load(Ordering::Relaxed))
}

/// Takes packets to write, and returns the first one's number.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_queue_add_write_index_screlease(queue: Option<&Queue>, count: u64) -> u64 {
    queue.map_or(0, |queue| queue.write_index.fetch_add(count, Ordering::AcqRel))
}

/// Sets a queue's priority. Does nothing, because all queues are equal.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_queue_set_priority(queue: *mut QueueHead, priority: u32) -> Status {
    trace!("hsa_amd_queue_set_priority {queue:?} {priority}");
    if priority > 2 { Status::INVALID_ARGUMENT } else { Status::SUCCESS }
}

/// Limits a queue to some compute units. Does nothing, because results do not depend on it.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_queue_cu_set_mask(
    queue: *const QueueHead,
    count: u32,
    _mask: *const u32,
) -> Status {
    trace!("hsa_amd_queue_cu_set_mask {queue:?} {count}");
    Status::SUCCESS
}
