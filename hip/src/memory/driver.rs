//! The driver below the pool, and the fences that order uploads after the last use of their memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::apu::{Apu, ApuAllocation};
use crate::device::context::Context;
use crate::device::event::Event;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::memory::pool::Backing;

/// The pool's source of memory: plain `hipMalloc` on one device. On an integrated GPU, perhaps
/// `hipMallocManaged` too.
pub(crate) struct Driver {
    context: Arc<Context>,
    compute: Arc<Stream>,
    copies: Arc<Stream>,
    apu: Option<Apu>,
    /// The regions of managed memory, as address and bytes.
    managed: Mutex<BTreeMap<usize, usize>>,
}

impl Driver {
    pub(crate) fn new(
        context: &Arc<Context>,
        compute: &Arc<Stream>,
        copies: &Arc<Stream>,
        apu: Option<Apu>,
    ) -> Self {
        let (context, compute, copies) = (context.clone(), compute.clone(), copies.clone());
        Self { context, compute, copies, apu, managed: Mutex::default() }
    }

    fn managed_regions(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.managed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A region by `hipMallocManaged`; `None` if the host has too little memory left.
    fn allocate_managed(&self, apu: &Apu, bytes: usize) -> Result<Option<usize>> {
        let Some(allocate) = self.context.hip().hipMallocManaged else { return Ok(None) };
        // Held to the end, so that two threads don't take the same memory.
        let mut regions = self.managed_regions();
        if bytes > apu.left(regions.values().sum()) {
            return Ok(None);
        }
        let call = |address: &mut *mut _| {
            // SAFETY: the function is HIP's; it writes one pointer.
            unsafe { allocate(address, bytes, hip_sys::hipMemAttachGlobal) }
        };
        let address = self.allocate_by("hipMallocManaged", bytes, call)?;
        regions.extend(address.map(|address| (address, bytes)));
        Ok(address)
    }

    /// The address that a function of HIP gives; `None` if it has too little memory.
    fn allocate_by(
        &self,
        name: &'static str,
        bytes: usize,
        call: impl FnOnce(&mut *mut std::ffi::c_void) -> hip_sys::hipError_t,
    ) -> Result<Option<usize>> {
        self.context.bind()?;
        let mut address = std::ptr::null_mut();
        let status = call(&mut address);
        if status == hip_sys::hipErrorOutOfMemory {
            // SAFETY: the function is HIP's. It clears the thread's last error. Otherwise a library
            // that checks for errors after its next launch would find this one.
            unsafe { (self.context.hip().hipGetLastError)() };
            return Ok(None);
        }
        self.context.check(name, status)?;
        if address.is_null() {
            return Err(Error::Device {
                call: name,
                code: 0,
                name: "hipSuccess".into(),
                message: format!("no address for {bytes} bytes"),
            });
        }
        Ok(Some(address as usize))
    }
}

impl Backing for Driver {
    fn allocate(&self, bytes: usize) -> Result<Option<usize>> {
        if let Some(apu) = self.apu.as_ref().filter(|apu| apu.allocation == ApuAllocation::Managed) {
            return self.allocate_managed(apu, bytes);
        }
        // SAFETY: the function is HIP's; it writes one pointer.
        let call = |address: &mut *mut _| unsafe { (self.context.hip().hipMalloc)(address, bytes) };
        let address = self.allocate_by("hipMalloc", bytes, call)?;
        let apu = self.apu.as_ref().filter(|apu| apu.allocation == ApuAllocation::DeviceThenManaged);
        match apu.filter(|_| address.is_none()).map(|apu| self.allocate_managed(apu, bytes)) {
            None => Ok(address),
            // Some APUs report managed memory and have none (docs/decisions/043).
            Some(Err(Error::Device { code, .. })) if code == hip_sys::hipErrorNotSupported as i32 => Ok(None),
            Some(managed) => managed,
        }
    }

    fn managed(&self) -> usize {
        self.managed_regions().values().sum()
    }

    fn release(&self, address: usize) {
        if let Err(error) = self.context.bind() {
            self.context.record(error);
        }
        self.managed_regions().remove(&address);
        // SAFETY: the function is HIP's; the address came from hipMalloc or hipMallocManaged, and the
        // pool has waited for the device.
        let status = unsafe { (self.context.hip().hipFree)(address as *mut _) };
        self.context.record_status("hipFree", status);
    }

    fn wait(&self) -> Result<()> {
        self.compute.synchronize()?;
        self.copies.synchronize()
    }

    fn free_and_total(&self) -> Result<(usize, usize)> {
        let (free, total) = free_and_total(&self.context)?;
        Ok(match &self.apu {
            Some(apu) => (apu.free(free, self.managed()), apu.total(total)),
            None => (free, total),
        })
    }
}

/// Free and total bytes, as HIP reports them.
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

#[cfg(all(test, feature = "cpu"))]
mod tests;
