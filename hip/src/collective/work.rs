//! Enqueued collectives.

use std::sync::Arc;

use crate::collective::member::{Member, Running};
use crate::device::collectives::Unjoined;
use crate::error::{Error, Result};
use crate::launch::kernel::Kernel;
use crate::memory::buffer::Buffer;

const NOT_YET: &str = "captured work has not run yet";

/// Refuses a question about captured collectives, which run with each replay.
fn refuse_of_graph(op: &'static str, running: &Running) -> Result<()> {
    match running.capture {
        None => Ok(()),
        Some(_) => Err(Error::Capture { op, reason: "the collectives are part of a graph".into() }),
    }
}

/// Enqueued collectives. It holds their buffers until it is joined; dropping it joins it.
///
/// Ops that are enqueued before [`join`](Self::join) run at the same time as the collectives, so
/// they must not write the collectives' buffers, nor read what the collectives write.
#[must_use = "ops must not use the buffers before it is joined; dropping it joins it"]
pub struct Work {
    ends: Vec<(Arc<Member>, Arc<Running>)>,
    buffers: Vec<Arc<Buffer>>,
    /// The kernels that fill the buffers on the ranks' streams.
    pub(super) kernels: Vec<Arc<Kernel>>,
    /// Until it is joined.
    pub(super) unjoined: Vec<Unjoined>,
    /// Whether the collectives are on the captured stream itself, so that it need not wait for them.
    pub(super) in_order: bool,
}

impl Work {
    pub(super) fn new(buffers: impl Iterator<Item = Arc<Buffer>>) -> Self {
        let (ends, kernels, unjoined) = Default::default();
        Self { ends, buffers: buffers.collect(), kernels, unjoined, in_order: false }
    }

    /// Adds a rank's calls.
    pub(super) fn add(&mut self, member: &Arc<Member>, running: Arc<Running>) {
        self.ends.push((member.clone(), running));
    }

    /// Makes later ops of the ranks' devices wait for the collectives. The host does not wait.
    /// Collectives of a capture are joined in it, at the latest by its end. Another thread than the
    /// capturing one leaves that to its end.
    ///
    /// # Errors
    /// Why they failed, if it is known by now. The device's next read or sync reports a later
    /// failure.
    pub fn join(mut self) -> Result<()> {
        self.wait_on_devices()?;
        self.ends.iter().try_for_each(|(member, running)| member.outcome(running))
    }

    /// Joins, and waits on the host until the collectives have ended.
    ///
    /// # Errors
    /// Why they failed, if they did; `Capture` if this thread captures a graph, or if the
    /// collectives were captured.
    pub fn wait(mut self) -> Result<()> {
        self.wait_on_devices()?;
        for (member, running) in &self.ends {
            member.device.refuse_captured("Work::wait", NOT_YET)?;
            refuse_of_graph("Work::wait", running)?;
            member.wait(running)?;
        }
        Ok(())
    }

    /// Whether the collectives have ended, well or not.
    ///
    /// # Errors
    /// `Device` if HIP reports a failure of the device's work; `Capture` if the collectives were
    /// captured.
    pub fn is_done(&self) -> Result<bool> {
        for (_, running) in &self.ends {
            refuse_of_graph("Work::is_done", running)?;
            if !running.done.query()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the devices' compute streams wait, and lets the buffers and kernels go: their memory's
    /// next user is enqueued behind the wait, and a kernel is unloaded behind the compute stream.
    fn wait_on_devices(&mut self) -> Result<()> {
        let mut waited = Ok(());
        for (member, running) in &self.ends {
            let device = &member.device;
            let stream = match running.capture {
                None => &device.compute,
                Some(number) => match device.captures.in_progress(number) {
                    Some((stream, true)) => stream,
                    // Only its own thread enqueues in a capture. The end of it joins them, and until
                    // then the memory must not have another user.
                    Some((stream, false)) => {
                        let buffers = std::mem::take(&mut self.buffers);
                        stream.keep_in(number, (buffers, std::mem::take(&mut self.unjoined)));
                        continue;
                    }
                    // The capture is over, and its end has joined them.
                    None => continue,
                },
            };
            let joined = if self.in_order { Ok(()) } else { stream.wait(&running.done) };
            if let Err(error) = &joined {
                match running.capture {
                    Some(_) => stream.spoil(error.clone()),
                    // The host waits instead. The first error is the one to return.
                    None => drop(running.done.synchronize()),
                }
            }
            waited = waited.and(joined);
        }
        self.buffers.clear();
        self.kernels.clear();
        self.unjoined.clear();
        waited
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.buffers.is_empty() {
            return;
        }
        if let Err(error) = self.wait_on_devices()
            && let Some((member, _)) = self.ends.first()
        {
            member.device.record(error);
        }
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use std::cell::RefCell;
    use std::ffi::c_uint;

    use hip_kernels::DType;
    use hip_sys::{hipError_t, hipEvent_t, hipStream_t};

    use super::*;
    use crate::device::Device;
    use crate::provider::{Provider, provider};
    use crate::{Communicator, Part, ReduceOp};

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Call {
        Record,
        Wait,
    }

    thread_local! {
        /// What this thread has told HIP: the call, the stream and the event.
        static CALLS: RefCell<Vec<(Call, hipStream_t, hipEvent_t)>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn record(event: hipEvent_t, stream: hipStream_t) -> hipError_t {
        CALLS.with_borrow_mut(|calls| calls.push((Call::Record, stream, event)));
        // SAFETY: the caller passes the handles of the same provider's functions.
        unsafe { (provider().expect("the CPU provider").hip().hipEventRecord)(event, stream) }
    }

    unsafe extern "C" fn wait(stream: hipStream_t, event: hipEvent_t, flags: c_uint) -> hipError_t {
        CALLS.with_borrow_mut(|calls| calls.push((Call::Wait, stream, event)));
        // SAFETY: as above.
        unsafe { (provider().expect("the CPU provider").hip().hipStreamWaitEvent)(stream, event, flags) }
    }

    /// What ends a collective.
    type End = fn(Work);

    /// A CPU device has computed a collective when its call returns, so no result shows whether the
    /// streams wait for each other. The calls of HIP do.
    #[test]
    fn a_join_makes_the_compute_stream_wait_for_the_collective() {
        let provider = Provider::altered(|hip| {
            hip.hipEventRecord = record;
            hip.hipStreamWaitEvent = wait;
        });
        let device = Arc::new(Device::new(provider, 0).expect("a device"));
        let rank = Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0);
        let buffer = Arc::new(device.alloc(16).expect("memory"));
        let part = Part::whole(&buffer);
        let (own, compute) = (rank.member().stream.handle(), device.compute.handle());
        let ends: [(&str, End); 3] = [
            ("join", |work| work.join().expect("a reduction")),
            ("wait", |work| work.wait().expect("a reduction")),
            ("drop", drop),
        ];
        for (name, end) in ends {
            CALLS.take();
            let work = rank.all_reduce(ReduceOp::Sum, DType::F32, 4, part, part).expect("a call");
            let done = work.ends[0].1.done.raw();
            let issued = CALLS.take();
            let before = issued.iter().find(|call| call.0 == Call::Wait).map(|call| (call.1, call.2));
            let (waits, point) = before.expect("the rank's stream waits for the compute stream");
            assert_eq!(waits, own, "{name}");
            assert!(issued.contains(&(Call::Record, compute, point)), "{name}: {issued:?}");
            assert_eq!(issued.last(), Some(&(Call::Record, own, done)), "{name}: {issued:?}");
            end(work);
            assert_eq!(CALLS.take(), [(Call::Wait, compute, done)], "{name}");
        }
    }
}
