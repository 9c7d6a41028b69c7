//! Lockstep mode runs blocks of many threads on one core, to find mistakes in kernels without a
//! GPU.
//!
//! Each thread of a block is a coroutine. The scheduler picks a runnable thread at random, by a
//! seed, and runs it to its next barrier or warp-level operation, or to its end. Blocks run one
//! after another, also in random order. A mistake ends the launch with a fault that describes it:
//!
//! - a barrier that some threads of the block do not reach, because they have returned or wait at
//!   another barrier;
//! - a shuffle from a lane that is not at the same call (warps may diverge as on hardware; the
//!   lanes at the lowest address go first);
//! - a write outside an array in shared memory: each array lies between fences, and is filled with
//!   0xff before a block begins;
//! - an overflow of a thread's stack, or too much shared memory in a block;
//! - an access to an invalid address, for example through an uninitialised index.

mod block;
mod memory;
mod trap;

use crate::{
    abi::{Dim3, Kernel, LaunchRecord, LaunchShape},
    runtime::Fault,
};
use block::{Block, Stacks};
use hip_sys::{hipErrorIllegalAddress, hipErrorLaunchFailure};
use memory::SharedMemory;
use std::{
    ffi::c_void,
    sync::{Mutex, PoisonError},
};

/// A kernel's mistake.
#[derive(Debug)]
enum Mistake {
    /// A mistake with threads; HIP's status is a launch failure.
    Threads(String),
    /// A mistake with memory; HIP's status is an illegal address.
    Memory(String),
}

/// Locked during a launch: only one runs at a time on all devices, because kernels reach the
/// scheduler through a static variable of their translation unit.
static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);

/// The memory that launches reuse.
struct Machine {
    stacks: Stacks,
    shared: SharedMemory,
}

/// Runs a launch.
///
/// # Safety
/// `arguments` has a pointer to each of the kernel's arguments. A correct kernel's accesses with
/// them stay inside valid memory.
pub(crate) unsafe fn run(
    kernel: &Kernel,
    shape: &LaunchShape,
    arguments: *mut *mut c_void,
    wave: u32,
    seed: u64,
) -> Result<(), Fault> {
    let mut machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let machine =
        machine.get_or_insert_with(|| Machine { stacks: Stacks::default(), shared: SharedMemory::new() });
    let threads = shape.block.count() as usize;
    trap::install();
    // SAFETY: the caller's.
    let segment = unsafe { kernel.segment(arguments) };
    let result = (|| {
        machine.stacks.provide(threads).map_err(|error| {
            Mistake::Threads(format!("no memory for the stacks of a block of {threads} threads: {error}"))
        })?;
        let mut random = Random::new(seed);
        let blocks = shape.grid.count();
        // A random start and a random stride that is coprime to the count visit each block once, in
        // an irregular order.
        let stride =
            (0..).map(|_| random.below(blocks) | 1).find(|stride| gcd(*stride, blocks) == 1).unwrap_or(1);
        let first = random.below(blocks);
        for i in 0..blocks {
            let index =
                ((u128::from(first) + u128::from(i) * u128::from(stride)) % u128::from(blocks)) as u64;
            machine.shared.begin(shape.shared_bytes);
            let record = LaunchRecord {
                grid: shape.grid,
                block_dim: shape.block,
                first: index,
                count: 1,
                dynamic_shared: machine.shared.dynamic(),
                thread: Dim3 { x: 0, y: 0, z: 0 },
                block: shape.grid.at(index),
                wave: wave as i32,
                lane: 0,
                sync: Some(block::sync),
                shared: Some(block::shared),
                shuffle: Some(block::shuffle),
                ballot: Some(block::ballot),
                arguments: segment.as_ptr().cast(),
                scratch: None,
            };
            let mut block = Block::new(kernel, arguments, record, &mut machine.shared, &mut random);
            // SAFETY: the caller's; the machine is locked, so no other block runs.
            unsafe { block.run(&mut machine.stacks) }
                .map_err(|mistake| mistake.in_block(shape.grid.at(index)))?;
        }
        Ok(())
    })();
    result.map_err(|mistake: Mistake| {
        let (status, text) = match mistake {
            Mistake::Threads(text) => (hipErrorLaunchFailure, text),
            Mistake::Memory(text) => (hipErrorIllegalAddress, text),
        };
        Fault {
            status,
            text: format!(
                "kernel {}: {text} (BURN_ROCM_CPU_WAVE={wave} BURN_ROCM_CPU_SEED={seed})",
                kernel.name
            ),
        }
    })
}

impl Mistake {
    /// Found by the processor.
    fn division(thread: usize) -> Self {
        Self::Threads(format!("thread {thread} divides an integer by zero, or the smallest one by -1"))
    }

    /// Found by the processor.
    fn wild_access(thread: usize, address: usize) -> Self {
        Self::Memory(format!("thread {thread} accesses the address {address:#x}, where nothing is"))
    }

    fn in_block(self, block: Dim3) -> Self {
        let place = format!("block ({}, {}, {}): ", block.x, block.y, block.z);
        match self {
            Self::Threads(text) => Self::Threads(place + &text),
            Self::Memory(text) => Self::Memory(place + &text),
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// SplitMix64 (Steele, Lea and Flood 2014), good enough to choose threads.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A random number below `n`, which must not be 0.
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(n)) >> 64) as u64
    }
}
