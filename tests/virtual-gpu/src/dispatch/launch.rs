//! A launch, and everything that its workgroups share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::dispatch::{FaultReport, Geometry, KernelDescriptor, LANES, LaunchError};
use crate::isa::{Code, Fault, FaultKind, GlobalRaces, WaveInit};
use crate::memory::AllocationMap;

/// The largest LDS of a workgroup, in bytes.
const MAX_LDS: u32 = 64 << 10;
/// Private memory, beyond what the descriptor says, for calls that the compiler can't foresee. Recursion in HIP's
/// tests stays below it.
const DYNAMIC_STACK: u32 = 16 << 10;

/// How launches behave; from the settings.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Whether registers, LDS and private memory begin as 0xff bytes.
    pub poison: bool,
    /// Whether waves take turns after a barrier.
    pub turns: bool,
    /// Whether conflicting accesses to LDS by different waves with no barrier between them are
    /// faults. For global memory, [`Launch::races`] decides.
    pub races: bool,
    /// Whether waves count what they do.
    pub counters: bool,
}

/// A kernel, its grid, and what it runs on.
#[derive(Debug)]
pub struct Launch {
    /// The kernel's name, for reports.
    pub name: String,
    /// The kernel's descriptor.
    pub descriptor: KernelDescriptor,
    /// The first instruction's address.
    pub entry: u64,
    /// Workgroups and waves.
    pub geometry: Geometry,
    /// LDS per workgroup, in bytes.
    pub lds_size: u32,
    /// Private memory per lane, in bytes.
    pub private_size: u32,
    /// The arguments' address.
    pub kernarg: u64,
    /// The packet's address.
    pub packet: u64,
    /// The queue's address.
    pub queue: u64,
    /// The packet's number in the queue.
    pub id: u64,
    /// How to run it.
    pub behaviour: Behaviour,
    /// Looks for races in global memory, if they are to be found.
    pub races: Option<Arc<GlobalRaces>>,
    /// Set to abandon the launch.
    pub cancelled: Arc<AtomicBool>,
    /// What the GPU may access.
    pub memory: &'static AllocationMap,
    /// The decoded code.
    pub code: &'static Code,
}

impl Launch {
    /// Checks the packet's requests against the kernel. Uses the larger of the two sizes of private
    /// memory.
    ///
    /// # Errors
    /// [`LaunchError::Invalid`] if the kernel can't run in this way.
    pub fn check(&mut self) -> Result<(), LaunchError> {
        let descriptor = &self.descriptor;
        if !descriptor.wave32() {
            return Err(LaunchError::Invalid("the kernel has waves of 64, which the virtual GPU lacks"));
        }
        if self.lds_size < descriptor.group_size {
            return Err(LaunchError::Invalid(
                "the packet gives less LDS than the kernel's descriptor asks for",
            ));
        }
        if self.lds_size > MAX_LDS {
            return Err(LaunchError::Invalid("the packet asks for more than 64 KiB of LDS"));
        }
        let stack = if descriptor.dynamic_stack() { DYNAMIC_STACK } else { 0 };
        let private = self.private_size.max(descriptor.private_size).checked_add(stack);
        self.private_size = private
            .and_then(|size| size.checked_next_multiple_of(16))
            .filter(|&size| size <= 1 << 20)
            .ok_or(LaunchError::Invalid("a lane has more than 1 MiB of private memory"))?;
        Ok(())
    }

    /// Passes a wave's initial state to `with`: SGPRs and VGPRs as the descriptor's bits require
    /// ("Initial Kernel Execution State" in LLVM's guide).
    pub(super) fn start<T>(
        &self,
        group: [u32; 3],
        wave: u32,
        scratch: u64,
        with: impl FnOnce(&WaveInit) -> T,
    ) -> T {
        let descriptor = &self.descriptor;
        let mut sgprs = Vec::with_capacity(32);
        let pair = |address: u64| [address as u32, (address >> 32) as u32];
        if descriptor.private_segment_buffer() {
            // The buffer is swizzled, so offsets are within the lane's memory.
            let [low, high] = pair(scratch);
            sgprs.extend([low, high & 0xffff | 1 << 31, self.private_size * LANES, 0x3180_4000]);
        }
        if descriptor.dispatch_pointer() {
            sgprs.extend(pair(self.packet));
        }
        if descriptor.queue_pointer() {
            sgprs.extend(pair(self.queue));
        }
        if descriptor.kernarg_pointer() {
            sgprs.extend(pair(self.kernarg));
        }
        if descriptor.dispatch_id() {
            sgprs.extend(pair(self.id));
        }
        if descriptor.flat_scratch_init() {
            sgprs.extend(pair(scratch));
        }
        if descriptor.private_segment_size() {
            sgprs.push(self.private_size);
        }
        sgprs.resize(descriptor.user_sgprs(), 0);
        let ids = descriptor.workgroup_ids().into_iter().zip(group);
        sgprs.extend(ids.filter_map(|(enabled, id)| enabled.then_some(id)));
        if descriptor.workgroup_info() {
            sgprs.push(self.geometry.waves());
        }
        if descriptor.private_segment_wave_offset() {
            // The offset is 0, because `scratch` is already the wave's own.
            sgprs.push(0);
        }
        let (ids, exec) = self.geometry.lanes(group, wave);
        let fill = if self.behaviour.poison { u32::MAX } else { 0 };
        let enabled = descriptor.work_item_ids();
        with(&WaveInit {
            pc: self.entry,
            sgprs: &sgprs,
            vgprs: std::array::from_fn(|d| if d < enabled { ids[d] } else { [fill; LANES as usize] }),
            exec,
            vgpr_count: descriptor.vgprs(),
            mode: descriptor.mode(),
            scratch,
            scratch_stride: self.private_size,
            index: wave,
            poison: self.behaviour.poison,
        })
    }

    pub(super) fn report(&self, group: [u32; 3], wave: u32, fault: Fault) -> LaunchError {
        let nearest = fault.kind.address().and_then(|address| self.memory.nearest(address));
        let other = match fault.kind {
            FaultKind::GlobalRace { group, .. } => Some(self.geometry.group(group)),
            _ => None,
        };
        let (kernel, entry) = (self.name.clone(), self.entry);
        LaunchError::Fault(Box::new(FaultReport { kernel, entry, other, group, wave, fault, nearest }))
    }
}
