//! Copies (HSA 1.2, section 2.8; `hsa_ext_amd.h`).

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use super::agents::Agent;
use super::api::Array;
use super::log::{self, trace};
use super::runtime::{lock, now, runtime};
use super::signals::Condition;
use super::{AgentHandle, Dim3, PitchedPointer, SignalHandle, Status};
use crate::memory::Hint;

/// A block of rows and slices to copy.
#[derive(Clone, Copy, Debug)]
struct Rect {
    target: u64,
    source: u64,
    target_pitch: usize,
    target_slice: usize,
    source_pitch: usize,
    source_slice: usize,
    /// Bytes of a row, rows of a slice, slices.
    row: usize,
    rows: usize,
    slices: usize,
}

impl Rect {
    fn line(target: u64, source: u64, size: usize) -> Self {
        let (rows, slices) = (1, 1);
        let (target_pitch, target_slice, source_pitch, source_slice) = (0, 0, 0, 0);
        Self {
            target,
            source,
            target_pitch,
            target_slice,
            source_pitch,
            source_slice,
            row: size,
            rows,
            slices,
        }
    }

    /// The first bytes of each row: the target's and the source's.
    fn each_row(self) -> impl Iterator<Item = (u64, u64)> {
        let places = (0..self.slices).flat_map(move |slice| (0..self.rows).map(move |row| (slice, row)));
        places.map(move |(slice, row)| {
            let target =
                self.target.wrapping_add((slice * self.target_slice + row * self.target_pitch) as u64);
            (target, self.source.wrapping_add((slice * self.source_slice + row * self.source_pitch) as u64))
        })
    }
}

/// A copy in progress.
struct Transfer {
    rect: Rect,
    /// The GPUs whose memory the sides are; none for the host, whose memory is not checked.
    target_gpu: Option<usize>,
    source_gpu: Option<usize>,
    dependencies: Vec<SignalHandle>,
    completion: SignalHandle,
}

impl Transfer {
    /// Whether each side lies in allocations of its GPU. If not, reports it.
    fn is_allowed(&self) -> bool {
        let (mut target_hint, mut source_hint) = (Hint::default(), Hint::default());
        self.rect.each_row().all(|(target, source)| {
            let mut side = |gpu: Option<usize>, at, write, name| {
                let Some(gpu) = gpu else { return true };
                let hint = if write { &mut target_hint } else { &mut source_hint };
                let memory = &runtime().gpus[gpu].memory;
                let allowed = memory.check(at, self.rect.row as u64, write, hint);
                if let Err(error) = allowed {
                    log::say(format_args!("a copy's {name}, {} bytes at {at:#x}: {error}", self.rect.row));
                }
                allowed.is_ok()
            };
            side(self.target_gpu, target, true, "target") && side(self.source_gpu, source, false, "source")
        })
    }

    /// Waits for what the copy depends on, then copies.
    fn run(self) {
        for dependency in &self.dependencies {
            dependency.wait(Condition::Equal, 0, None);
        }
        let start = now();
        if !self.is_allowed() {
            return self.completion.fail(start);
        }
        for (target, source) in self.rect.each_row() {
            // SAFETY: the caller of the API guarantees that both sides are valid until the completion signal is
            // decremented; those in GPUs' memory were just checked. They may overlap.
            unsafe { std::ptr::copy(source as *const u8, target as *mut u8, self.rect.row) };
        }
        self.completion.complete(start);
    }

    /// Runs the copy when its dependencies are met, in the background.
    fn submit(self) -> Status {
        trace!("copy {:x?} after {:x?}, then {:#x}", self.rect, self.dependencies, self.completion.handle);
        if self.rect.row == 0 || self.rect.rows == 0 || self.rect.slices == 0 {
            // There is nothing to copy, but the signal must still be decremented.
        } else if self.rect.target == 0 || self.rect.source == 0 {
            return Status::INVALID_ARGUMENT;
        }
        // Copies that wait for nothing run in order on one thread. A copy that waits has its own
        // thread, so that it does not hold up others.
        if self.dependencies.iter().all(|signal| signal.load() == 0) {
            let mut engine = lock(&ENGINE);
            let sender = engine.get_or_insert_with(|| {
                let (sender, transfers) = channel::<Box<Transfer>>();
                let run = move || transfers.into_iter().for_each(|transfer: Box<Transfer>| transfer.run());
                spawn(run).then_some(sender)
            });
            return match sender.as_ref().map(|sender| sender.send(Box::new(self))) {
                Some(Ok(())) => Status::SUCCESS,
                Some(Err(_)) | None => Status::OUT_OF_RESOURCES,
            };
        }
        if spawn(move || self.run()) { Status::SUCCESS } else { Status::OUT_OF_RESOURCES }
    }
}

/// The thread that copies; `Some(None)` if the system could not start it.
static ENGINE: Mutex<Option<Option<Sender<Box<Transfer>>>>> = Mutex::new(None);

fn spawn(run: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().name("virtual-gpu-copy".into()).spawn(run).is_ok()
}

fn gpu_of(agent: AgentHandle) -> Result<Option<usize>, Status> {
    match agent.get() {
        None => Err(Status::INVALID_AGENT),
        Some(Agent::Cpu) => Ok(None),
        Some(Agent::Gpu(number)) => Ok(Some(number)),
    }
}

/// The GPU against whose memory a side of a copy is checked: that of the agent, if the memory is
/// the agent's own. Callers may name a GPU as the agent of host memory, whether or not it is
/// pinned.
fn checked_gpu(agent: AgentHandle, at: u64) -> Result<Option<usize>, Status> {
    let Some(gpu) = gpu_of(agent)? else { return Ok(None) };
    let allocations = runtime().allocations();
    let found = allocations.range(..=at).next_back().filter(|(_, found)| at < found.end());
    Ok(Some(found.and_then(|(_, found)| found.pool.gpu()).unwrap_or(gpu)))
}

/// Copies `size` bytes once signals are 0, and decrements one at the end.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_async_copy(
    target: *mut c_void,
    target_agent: AgentHandle,
    source: *const c_void,
    source_agent: AgentHandle,
    size: usize,
    count: u32,
    dependencies: Array<SignalHandle>,
    completion: SignalHandle,
) -> Status {
    let sides = checked_gpu(target_agent, target as u64)
        .and_then(|target_gpu| Ok((target_gpu, checked_gpu(source_agent, source as u64)?)));
    let (target_gpu, source_gpu) = match sides {
        Ok(sides) => sides,
        Err(status) => return status,
    };
    let dependencies = dependencies.get(count as usize).to_vec();
    let rect = Rect::line(target as u64, source as u64, size);
    Transfer { rect, target_gpu, source_gpu, dependencies, completion }.submit()
}

/// Copies on an engine of the GPU, of which there is one kind.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_async_copy_on_engine(
    target: *mut c_void,
    target_agent: AgentHandle,
    source: *const c_void,
    source_agent: AgentHandle,
    size: usize,
    count: u32,
    dependencies: Array<SignalHandle>,
    completion: SignalHandle,
    _engine: u32,
    _force: bool,
) -> Status {
    hsa_amd_memory_async_copy(
        target,
        target_agent,
        source,
        source_agent,
        size,
        count,
        dependencies,
        completion,
    )
}

/// Copies rows and slices.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_async_copy_rect(
    target: Option<&PitchedPointer>,
    target_offset: Option<&Dim3>,
    source: Option<&PitchedPointer>,
    source_offset: Option<&Dim3>,
    range: Option<&Dim3>,
    agent: AgentHandle,
    direction: u32,
    count: u32,
    dependencies: Array<SignalHandle>,
    completion: SignalHandle,
) -> Status {
    let (Some(target), Some(target_offset), Some(source), Some(source_offset), Some(range)) =
        (target, target_offset, source, source_offset, range)
    else {
        return Status::INVALID_ARGUMENT;
    };
    let first = |side: &PitchedPointer, offset: &Dim3| {
        let rows = offset.z as usize * side.slice + offset.y as usize * side.pitch;
        (side.base as u64).wrapping_add((rows + offset.x as usize) as u64)
    };
    let rect = Rect {
        target: first(target, target_offset),
        source: first(source, source_offset),
        target_pitch: target.pitch,
        target_slice: target.slice,
        source_pitch: source.pitch,
        source_slice: source.slice,
        row: range.x as usize,
        rows: range.y as usize,
        slices: range.z as usize,
    };
    let gpu = match gpu_of(agent) {
        Ok(gpu) => gpu,
        Err(status) => return status,
    };
    // hsa_amd_copy_direction_t: host to device is 1, device to host 2, device to device 3.
    let target_gpu = gpu.filter(|_| direction & 1 != 0);
    let source_gpu = gpu.filter(|_| direction & 2 != 0);
    let dependencies = dependencies.get(count as usize).to_vec();
    Transfer { rect, target_gpu, source_gpu, dependencies, completion }.submit()
}

/// Copies at once, between any two places.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_memory_copy(target: *mut c_void, source: *const c_void, size: usize) -> Status {
    trace!("hsa_memory_copy {target:?} {source:?} {size}");
    if target.is_null() || source.is_null() {
        return Status::INVALID_ARGUMENT;
    }
    // SAFETY: the caller guarantees `size` bytes on both sides (HSA 1.2, `hsa_memory_copy`). They may overlap.
    unsafe { std::ptr::copy(source.cast::<u8>(), target.cast::<u8>(), size) };
    Status::SUCCESS
}

/// Registers host memory: a hint only.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_memory_register(pointer: *mut c_void, size: usize) -> Status {
    if pointer.is_null() && size != 0 { Status::INVALID_ARGUMENT } else { Status::SUCCESS }
}

/// Takes back [`hsa_memory_register`].
#[unsafe(no_mangle)]
pub extern "C" fn hsa_memory_deregister(_pointer: *mut c_void, _size: usize) -> Status {
    Status::SUCCESS
}

/// Which engines could copy now, a bit for each.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_copy_engine_status(
    _target: AgentHandle,
    _source: AgentHandle,
    engines: Option<&mut MaybeUninit<u32>>,
) -> Status {
    let Some(engines) = engines else { return Status::INVALID_ARGUMENT };
    engines.write(3);
    Status::SUCCESS
}

/// The best engines for a pair of agents. All are alike.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_get_preferred_copy_engine(
    _target: AgentHandle,
    _source: AgentHandle,
    engines: Option<&mut MaybeUninit<u32>>,
) -> Status {
    let Some(engines) = engines else { return Status::INVALID_ARGUMENT };
    engines.write(0);
    Status::SUCCESS
}
