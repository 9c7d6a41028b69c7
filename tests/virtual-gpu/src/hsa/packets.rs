//! The packet processor of a queue (HSA 1.2, section 2.9; `hsa_ext_amd.h` for barrier-value packets).

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::bell::GLANCE;
use super::counter_file::Row;
use super::log::{self, trace};
use super::ring::{PACKET, Ring};
use super::runtime::{now, runtime};
use super::signals::Condition;
use super::types::{
    BarrierPacket, BarrierValuePacket, DispatchPacket, FORMAT_BARRIER_VALUE, QueueHead, packet_type,
};
use super::{SignalHandle, Status};
use crate::dispatch::{Geometry, KernelDescriptor, Launch, LaunchError, Statistics};
use crate::isa::{FaultKind, GlobalRaces};

/// The interval at which an idle queue checks for packets that came without a doorbell.
const IDLE: Duration = Duration::from_millis(100);

/// Executes a queue's packets.
pub(super) struct Processor {
    ring: Arc<Ring>,
}

impl Processor {
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        Self { ring }
    }

    /// Executes packets until the queue is destroyed.
    pub(super) fn run(self) {
        let mut index = 0;
        while let Some(header) = self.next(index) {
            let kind = header & 0xff;
            let start = now();
            let (completion, result) = match kind {
                packet_type::DISPATCH => {
                    let packet = self.read::<DispatchPacket>(index);
                    (packet.completion, self.dispatch(index, &packet))
                }
                packet_type::BARRIER_AND | packet_type::BARRIER_OR => {
                    let packet = self.read::<BarrierPacket>(index);
                    self.barrier(index, kind == packet_type::BARRIER_AND, &packet);
                    (packet.completion, Ok(()))
                }
                packet_type::VENDOR => {
                    let packet = self.read::<BarrierValuePacket>(index);
                    (packet.completion, self.barrier_value(index, &packet))
                }
                other => {
                    trace!("#{index}: packets of type {other} are not executed");
                    (SignalHandle::default(), Err(Status::INVALID_PACKET_FORMAT))
                }
            };
            if let Err(status) = result {
                self.fail(status);
            }
            self.header(index).store(packet_type::INVALID, Ordering::Release);
            index += 1;
            self.ring.queue().read_index.store(index, Ordering::Release);
            completion.complete(start);
        }
    }

    /// Waits for the next packet and returns its header; `None` once the queue is to be destroyed.
    fn next(&self, index: u64) -> Option<u16> {
        let test = || {
            if self.ring.stop.load(Ordering::Acquire) {
                return Some(None);
            }
            if index >= self.ring.queue().write_index.load(Ordering::Acquire) {
                return None;
            }
            let header = self.header(index).load(Ordering::Acquire);
            (header & 0xff != packet_type::INVALID).then_some(Some(header))
        };
        // Without a deadline the wait ends only by the test.
        runtime().bell.wait(None, IDLE, test).flatten()
    }

    /// A packet's header.
    fn header(&self, index: u64) -> &AtomicU16 {
        // SAFETY: the packet lies in the ring, which lives as long as `self.ring`. Producers write headers atomically
        // (HSA 1.2, section 2.9.1).
        unsafe { AtomicU16::from_ptr(self.ring.packet(index).cast()) }
    }

    /// Reads a packet, which its producer has published.
    fn read<T: Copy>(&self, index: u64) -> T {
        const { assert!(size_of::<T>() == PACKET) }
        // SAFETY: the packet lies in the ring, and its producer does not touch it until the read index has passed it.
        // Every packet type is plain numbers.
        unsafe { self.ring.packet(index).cast::<T>().read() }
    }

    fn inactive(&self) -> bool {
        self.ring.inactive.load(Ordering::Acquire)
    }

    /// Puts the queue into its error state: the callback is called once; later packets complete
    /// without being executed, so that nobody waits for them forever.
    fn fail(&self, status: Status) {
        if self.ring.inactive.swap(true, Ordering::AcqRel) {
            return;
        }
        let queue = std::ptr::from_ref(&self.ring.queue().head).cast_mut();
        match self.ring.callback {
            Some(callback) => callback(status, queue.cast::<QueueHead>(), self.ring.data as *mut _),
            None => log::say(format_args!("a queue without an error callback failed: {status:?}")),
        }
    }

    fn dispatch(&self, index: u64, packet: &DispatchPacket) -> Result<(), Status> {
        if self.inactive() {
            return Ok(());
        }
        let begin = now();
        let result = self.launch(index, packet);
        let ms = (now() - begin) as f64 / 1e6;
        trace!("#{index} dispatch took {ms:.3} ms");
        let error = match result {
            Err(error) => error,
            Ok(Statistics { workgroups, instructions, .. }) => {
                if runtime().settings.statistics {
                    let name = self.kernel_name(packet.kernel);
                    log::say(format_args!(
                        "{workgroups} workgroups, {instructions} wave instructions, {ms:.3} ms: {name}"
                    ));
                }
                return Ok(());
            }
        };
        let status = match &error {
            LaunchError::NoKernel(_) => Status::INVALID_CODE_OBJECT,
            LaunchError::Invalid(_) => Status::INVALID_PACKET_FORMAT,
            LaunchError::Fault(report) => match report.fault.kind {
                FaultKind::Memory { .. }
                | FaultKind::Misaligned { .. }
                | FaultKind::GlobalRace { .. }
                | FaultKind::WildJump => Status::MEMORY_FAULT,
                FaultKind::Lds { .. } | FaultKind::LdsRace { .. } | FaultKind::Scratch { .. } => {
                    Status::MEMORY_APERTURE_VIOLATION
                }
                FaultKind::Trap(_) => Status::EXCEPTION,
                _ => Status::ILLEGAL_INSTRUCTION,
            },
        };
        match &error {
            LaunchError::Fault(_) => log::say(format_args!("{error}")),
            other => log::say(format_args!("a launch of {}: {other}", self.kernel_name(packet.kernel))),
        }
        Err(status)
    }

    fn kernel_name(&self, kernel: u64) -> String {
        let kernels = runtime().kernels.read().unwrap_or_else(PoisonError::into_inner);
        kernels.get(&kernel).map_or_else(|| format!("{kernel:#x}"), |kernel| kernel.name.clone())
    }

    fn launch(&self, index: u64, packet: &DispatchPacket) -> Result<Statistics, LaunchError> {
        let runtime = runtime();
        let kernel = {
            let kernels = runtime.kernels.read().unwrap_or_else(PoisonError::into_inner);
            kernels.get(&packet.kernel).cloned()
        };
        let Some(kernel) = kernel.filter(|kernel| kernel.gpu == self.ring.gpu) else {
            return Err(LaunchError::NoKernel(packet.kernel));
        };
        trace!("#{index} dispatch {} {packet:x?}", kernel.name);
        // SAFETY: the kernel is loaded, and the loader has checked that its whole descriptor lies in the code object.
        // The application guarantees that it does not destroy the executable before the packet completes.
        let descriptor = unsafe { (packet.kernel as *const [u8; KernelDescriptor::SIZE]).read() };
        let descriptor = KernelDescriptor::parse(&descriptor);
        let geometry = Geometry::new(packet.setup & 3, packet.grid, packet.workgroup)?;
        // A lone wave races with nobody.
        let several = geometry.group_count() > 1 || geometry.waves() > 1;
        let races = runtime.settings.races && several;
        let statistics = runtime.engine.run(Launch {
            name: kernel.name.clone(),
            descriptor,
            entry: packet.kernel.wrapping_add_signed(descriptor.entry),
            geometry,
            lds_size: packet.group_size,
            private_size: packet.private_size,
            kernarg: packet.kernarg,
            packet: self.ring.packet(index) as u64,
            queue: std::ptr::from_ref(self.ring.queue()) as u64,
            id: index,
            behaviour: runtime.behaviour(),
            races: races.then(|| Arc::new(GlobalRaces::new(geometry.waves()))),
            cancelled: Arc::clone(&self.ring.stop),
            memory: &runtime.gpus[self.ring.gpu].memory,
            code: &runtime.code,
        })?;
        if let Some(file) = &runtime.counters {
            let row = Row {
                kernel: &kernel.name,
                geometry,
                vgprs: descriptor.vgprs(),
                lds_size: packet.group_size,
                private_size: packet.private_size.max(descriptor.private_size),
            };
            if let Err(error) = file.add(&row, &statistics.counters) {
                log::say(format_args!("the counters of {} can't be written: {error}", kernel.name));
            }
        }
        Ok(statistics)
    }

    /// Waits until all signals are 0, or one of them.
    fn barrier(&self, index: u64, all: bool, packet: &BarrierPacket) {
        trace!("#{index} barrier all={all} {:x?}", packet.dependencies);
        let mut signals = packet.dependencies.into_iter().filter_map(SignalHandle::get).peekable();
        if signals.peek().is_none() {
            return;
        }
        let signals: Vec<_> = signals.collect();
        self.wait(|| {
            let mut met = signals.iter().map(|signal| signal.value.load(Ordering::Acquire) == 0);
            if all { met.all(|met| met) } else { met.any(|met| met) }
        });
    }

    fn barrier_value(&self, index: u64, packet: &BarrierValuePacket) -> Result<(), Status> {
        trace!("#{index} barrier value {packet:x?}");
        if packet.format != FORMAT_BARRIER_VALUE {
            return Err(Status::INVALID_PACKET_FORMAT);
        }
        let condition = Condition::new(packet.condition).ok_or(Status::INVALID_PACKET_FORMAT)?;
        if let Some(signal) = packet.signal.get() {
            self.wait(|| condition.holds(signal.value.load(Ordering::Acquire) & packet.mask, packet.value));
        }
        Ok(())
    }

    /// Waits until a test holds, or the queue is to be destroyed.
    fn wait(&self, test: impl Fn() -> bool) {
        let done = || (test() || self.ring.stop.load(Ordering::Acquire)).then_some(());
        runtime().bell.wait(None, GLANCE, done);
    }
}
