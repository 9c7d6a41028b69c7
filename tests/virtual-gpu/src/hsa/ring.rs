//! A queue and its ring of packets.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Status;
use super::types::{Queue, QueueHead};
use crate::memory::Pages;

/// A packet's bytes.
pub(super) const PACKET: usize = 64;
/// `callback(status, queue, data)`, called once when a queue fails.
pub type ErrorCallback = extern "C" fn(status: Status, queue: *mut QueueHead, data: *mut c_void);

/// A queue and its ring, which its owner and its processor share.
pub(super) struct Ring {
    /// The queue, then its packets.
    pub(super) pages: Pages,
    pub(super) gpu: usize,
    pub(super) callback: Option<ErrorCallback>,
    pub(super) data: usize,
    /// Whether the queue is to be destroyed.
    pub(super) stop: Arc<AtomicBool>,
    /// Whether the application or an error stopped execution.
    pub(super) inactive: AtomicBool,
}

impl Ring {
    /// The queue.
    pub(super) fn queue(&self) -> &Queue {
        // SAFETY: `hsa_queue_create` wrote a `Queue` at the start of the pages, which live as long
        // as `self`. The fields that change are atomic.
        unsafe { &*self.pages.as_ptr().cast::<Queue>() }
    }

    /// A pointer to a packet.
    pub(super) fn packet(&self, index: u64) -> *mut u8 {
        let head = &self.queue().head;
        let place = (index & u64::from(head.size - 1)) as usize * PACKET;
        (head.base as *mut u8).wrapping_add(place)
    }
}
