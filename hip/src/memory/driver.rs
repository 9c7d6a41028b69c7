//! The driver below the pool, and the fences that order uploads after the last use of their memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::context::Context;
use crate::device::event::Event;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::memory::pool::Backing;

/// The pool's source of memory: plain `hipMalloc` on one device.
pub(crate) struct Driver {
    context: Arc<Context>,
    compute: Arc<Stream>,
    copies: Arc<Stream>,
}

impl Driver {
    pub(crate) fn new(context: &Arc<Context>, compute: &Arc<Stream>, copies: &Arc<Stream>) -> Self {
        Self { context: context.clone(), compute: compute.clone(), copies: copies.clone() }
    }
}

impl Backing for Driver {
    fn allocate(&self, bytes: usize) -> Result<Option<usize>> {
        self.context.bind()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: the function is HIP's; it writes one pointer.
        let status = unsafe { (self.context.hip().hipMalloc)(&mut address, bytes) };
        if status == hip_sys::hipErrorOutOfMemory {
            // SAFETY: the function is HIP's. It clears the thread's last error. Otherwise a library
            // that checks for errors after its next launch would find this one.
            unsafe { (self.context.hip().hipGetLastError)() };
            return Ok(None);
        }
        self.context.check("hipMalloc", status)?;
        if address.is_null() {
            return Err(Error::Device {
                call: "hipMalloc",
                code: 0,
                name: "hipSuccess".into(),
                message: format!("no address for {bytes} bytes"),
            });
        }
        Ok(Some(address as usize))
    }

    fn release(&self, address: usize) {
        if let Err(error) = self.context.bind() {
            self.context.record(error);
        }
        // SAFETY: the function is HIP's; the address came from hipMalloc, and the pool has waited
        // for the device.
        let status = unsafe { (self.context.hip().hipFree)(address as *mut _) };
        self.context.record_status("hipFree", status);
    }

    fn wait(&self) -> Result<()> {
        self.compute.synchronize()?;
        self.copies.synchronize()
    }

    fn free_and_total(&self) -> Result<(usize, usize)> {
        free_and_total(&self.context)
    }
}

pub(crate) fn free_and_total(context: &Context) -> Result<(usize, usize)> {
    context.bind()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the function is HIP's; it writes two usizes.
    let status = unsafe { (context.hip().hipMemGetInfo)(&mut free, &mut total) };
    context.check("hipMemGetInfo", status)?;
    Ok((free, total))
}

/// Numbered points of the compute stream. A freed transfer block carries the number of the point
/// after its last use, so that the copy stream waits for that point only.
#[derive(Default)]
pub(crate) struct TransferFences(Mutex<Fences>);

#[derive(Default)]
struct Fences {
    last: u64,
    passed: u64,
    pending: VecDeque<(u64, Event)>,
}

impl TransferFences {
    /// The number of a new fence after all work of the stream so far.
    pub(crate) fn behind(&self, stream: &Stream, context: &Context) -> u64 {
        let mut fences = self.fences();
        // Recorded under the lock, so that the queue has the events in stream order.
        match stream.mark() {
            Ok(event) => {
                fences.last += 1;
                let number = fences.last;
                fences.pending.push_back((number, event));
                fences.poll();
                number
            }
            Err(error) => {
                context.record(error);
                // Without an event, wait here. Otherwise an upload could overwrite data that is
                // still read.
                let _ = stream.synchronize();
                fences.last
            }
        }
    }

    /// Makes a stream wait for a fence, unless the device is known to have passed it.
    pub(crate) fn wait(&self, stream: &Stream, fence: u64) -> Result<()> {
        if fence == 0 {
            return Ok(());
        }
        let mut fences = self.fences();
        fences.poll();
        if fence <= fences.passed {
            return Ok(());
        }
        match fences.pending.iter().find(|(number, _)| *number >= fence) {
            Some((_, event)) => stream.wait(event),
            None => Ok(()),
        }
    }

    fn fences(&self) -> MutexGuard<'_, Fences> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fences {
    fn poll(&mut self) {
        while self.pending.front().is_some_and(|(_, event)| event.query().unwrap_or(false)) {
            if let Some((number, _)) = self.pending.pop_front() {
                self.passed = number;
            }
        }
    }
}
