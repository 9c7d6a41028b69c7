//! One block: its threads and their scheduler.

use super::{Mistake, Random, memory::SharedMemory};
use crate::abi::{Dim3, Kernel, LaunchRecord};
use corosensei::stack::DefaultStack;
use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_void},
    io,
    ptr::null_mut,
};

/// Bytes of a thread's stack, on which kernels keep at most a few small arrays. A guard page lies
/// below, and kernels are compiled so that no frame steps over it. There is one exception: gcc for
/// aarch64 assumes a guard of 64 KiB, so a frame that is larger than the actual guard may step over
/// it.
const STACK: usize = 60 << 10;

/// One stack for each thread of a block. All blocks reuse them.
#[derive(Default)]
pub(super) struct Stacks(Vec<DefaultStack>);

impl Stacks {
    /// Ensures that there are at least `count` stacks.
    pub(super) fn provide(&mut self, count: usize) -> io::Result<()> {
        while self.0.len() < count {
            self.0.push(DefaultStack::new(STACK)?);
        }
        Ok(())
    }
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nothing: the thread can run.
    Ready,
    /// The block's barrier, at the call with this return address.
    Barrier(usize),
    /// The other lanes of its warp, at the call with this return address.
    Warp(usize, Exchange),
    /// An array in shared memory, which the scheduler provides at once. The name is a literal.
    Array { key: *const c_void, bytes: u64, align: u64, name: *const c_char },
    /// Nothing more: the thread has returned.
    Done,
}

/// A warp-level operation. The pointers point into the waiting thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    Shuffle { value: *const c_void, out: *mut c_void, bytes: u32, source: c_int },
    Ballot { predicate: bool, out: *mut u64 },
}

/// Why a thread suspends itself.
type Request = Result<Wait, Mistake>;

/// The value that resumes a thread: the array that it asked for, or null.
type Answer = *mut c_void;

type Yielder = corosensei::Yielder<Answer, Request>;

type Coroutine = corosensei::Coroutine<Answer, Request, ()>;

/// A running block.
pub(super) struct Block<'a> {
    kernel: &'a Kernel,
    arguments: *mut *mut c_void,
    record: LaunchRecord,
    shared: &'a mut SharedMemory,
    random: &'a mut Random,
    /// The state of each thread.
    waits: Vec<Wait>,
}

/// The kernel thread that is running.
#[derive(Clone, Copy)]
struct Running {
    thread: usize,
    yielder: *const Yielder,
}

thread_local! {
    /// The kernel thread that this host thread runs; `None` while the scheduler runs.
    static RUNNING: Cell<Option<Running>> = const { Cell::new(None) };
}

/// Suspends this thread until the scheduler resumes it.
///
/// The scheduler may drop a suspended thread without unwinding its stack. So no function between
/// the kernel and this one may allocate, lock or own anything.
fn suspend(request: Request) -> Answer {
    let running = RUNNING.get().expect("kernels call this");
    // SAFETY: the yielder of the running coroutine lives on its stack.
    let answer = unsafe { (*running.yielder).suspend(request) };
    RUNNING.set(Some(running));
    answer
}

pub(super) unsafe extern "C" fn sync(site: *const c_void) {
    suspend(Ok(Wait::Barrier(site as usize)));
}

pub(super) unsafe extern "C" fn shared(
    key: *const c_void,
    bytes: u64,
    align: u64,
    name: *const c_char,
) -> *mut c_void {
    suspend(Ok(Wait::Array { key, bytes, align, name }))
}

pub(super) unsafe extern "C" fn shuffle(
    site: *const c_void,
    value: *const c_void,
    out: *mut c_void,
    bytes: u32,
    source: c_int,
) {
    suspend(Ok(Wait::Warp(site as usize, Exchange::Shuffle { value, out, bytes, source })));
}

pub(super) unsafe extern "C" fn ballot(site: *const c_void, predicate: c_int) -> u64 {
    let mut mask = 0;
    let exchange = Exchange::Ballot { predicate: predicate != 0, out: &raw mut mask };
    suspend(Ok(Wait::Warp(site as usize, exchange)));
    mask
}

/// Called by the handler of a signal. If the signal hit a thread of a kernel, ends the launch and
/// does not return. Otherwise returns `false`.
pub(super) fn trap(mistake: impl FnOnce(usize) -> Mistake) -> bool {
    match RUNNING.get() {
        None => false,
        Some(running) => {
            suspend(Err(mistake(running.thread)));
            true
        }
    }
}

/// Whether this host thread runs a thread of a kernel.
#[cfg(windows)]
pub(super) fn is_kernel() -> bool {
    RUNNING.get().is_some()
}

#[cfg(windows)]
thread_local! {
    /// Whether a thread's stack has overflowed. Its guard pages are then gone.
    static OVERFLOWED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the block's stacks from being used again.
#[cfg(windows)]
pub(super) fn discard_stacks() {
    OVERFLOWED.set(true);
}

/// A block's threads, which give their stacks back on drop.
struct Threads<'a> {
    coroutines: Vec<Coroutine>,
    stacks: &'a mut Stacks,
}

impl Drop for Threads<'_> {
    fn drop(&mut self) {
        #[cfg(windows)]
        let keep = !OVERFLOWED.replace(false);
        #[cfg(not(windows))]
        let keep = true;
        for mut coroutine in self.coroutines.drain(..) {
            // SAFETY: the stack of a kernel's thread owns nothing that must be dropped, as
            // `suspend` says.
            unsafe { coroutine.force_reset() };
            let stack = coroutine.into_stack();
            if keep {
                self.stacks.0.push(stack);
            }
        }
    }
}

impl<'a> Block<'a> {
    pub(super) fn new(
        kernel: &'a Kernel,
        arguments: *mut *mut c_void,
        record: LaunchRecord,
        shared: &'a mut SharedMemory,
        random: &'a mut Random,
    ) -> Self {
        let waits = vec![Wait::Ready; record.block_dim.count() as usize];
        Self { kernel, arguments, record, shared, random, waits }
    }

    /// Runs the block to its end or to its first mistake.
    ///
    /// # Safety
    /// The arguments are the kernel's, and no other block of the process runs.
    pub(super) unsafe fn run(&mut self, stacks: &mut Stacks) -> Result<(), Mistake> {
        // Threads read and the scheduler writes the record through this one pointer.
        let mut record = self.record;
        let record = &raw mut record;
        let (kernel, arguments) = (self.kernel.run, self.arguments);
        let first = stacks.0.len() - self.waits.len();
        let start = |(thread, stack)| {
            Coroutine::with_stack(stack, move |yielder, _| {
                RUNNING.set(Some(Running { thread, yielder }));
                // SAFETY: the caller's; the record outlives the coroutine.
                unsafe { kernel(arguments, record) };
            })
        };
        let coroutines = stacks.0.drain(first..).enumerate().map(start).collect();
        let mut threads = Threads { coroutines, stacks };
        let Dim3 { x, y, z } = self.record.block_dim;
        // Listed once: a division for each switch of threads would cost as much as the switch.
        let positions: Vec<Dim3> =
            (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| Dim3 { x, y, z }))).collect();
        let wave = self.record.wave as usize;
        let resume = |thread: usize, answer| {
            // SAFETY: no thread runs here, so none reads the record.
            unsafe {
                (*record).thread = positions[thread];
                (*record).lane = (thread % wave) as c_int;
            }
            let result = threads.coroutines[thread].resume(answer);
            RUNNING.set(None);
            result.as_yield().unwrap_or(Ok(Wait::Done))
        };
        self.schedule(resume)?;
        self.shared.check()
    }

    fn lanes(&self, wave: usize) -> std::ops::Range<usize> {
        let size = self.record.wave as usize;
        wave * size..((wave + 1) * size).min(self.waits.len())
    }

    /// Whether this warp can continue before the block's barrier opens.
    fn can_go_on(&self, wave: usize) -> bool {
        self.lanes(wave).any(|thread| matches!(self.waits[thread], Wait::Ready | Wait::Warp(..)))
    }

    /// Exchanges the values of the lanes that wait at the call with the lowest address. Called if
    /// no lane of the warp can run.
    fn exchange(&mut self, wave: usize) -> Result<(), Mistake> {
        let lanes = self.lanes(wave);
        let call = |thread: usize| match self.waits[thread] {
            Wait::Warp(site, exchange) => Some((site, exchange)),
            _ => None,
        };
        let Some(site) = lanes.clone().filter_map(|thread| call(thread).map(|(site, _)| site)).min() else {
            return Ok(());
        };
        let here = |thread: usize| call(thread).filter(|(at, _)| *at == site).map(|(_, exchange)| exchange);
        let mask = lanes.clone().fold(0u64, |mask, thread| match here(thread) {
            Some(Exchange::Ballot { predicate: true, .. }) => mask | 1 << (thread - lanes.start),
            _ => mask,
        });
        for thread in lanes.clone() {
            match here(thread) {
                None => {}
                // SAFETY: the waiting thread's variable.
                Some(Exchange::Ballot { out, .. }) => unsafe { out.write(mask) },
                Some(Exchange::Shuffle { out, bytes, source, .. }) => {
                    let lane = thread - lanes.start;
                    let from = usize::try_from(source).ok().map(|source| lanes.start + source);
                    let from = from.filter(|from| lanes.contains(from));
                    let Some(Exchange::Shuffle { value, bytes: size, .. }) = from.and_then(here) else {
                        let why = match from.map(|from| self.waits[from]) {
                            None => "is not in the warp",
                            Some(Wait::Done) => "has returned",
                            Some(Wait::Barrier(_)) => "waits at a barrier",
                            Some(_) => "is at another call",
                        };
                        return Err(Mistake::Threads(format!(
                            "thread {thread} (lane {lane}) shuffles from lane {source}, which {why}"
                        )));
                    };
                    if size != bytes {
                        return Err(Mistake::Threads(format!(
                            "thread {thread} shuffles {bytes} bytes from {size}"
                        )));
                    }
                    // SAFETY: both threads wait, so their variables live, and `out` is not the
                    // `value` of any thread.
                    unsafe {
                        std::ptr::copy_nonoverlapping(value.cast::<u8>(), out.cast::<u8>(), bytes as usize)
                    };
                }
            }
        }
        for wait in &mut self.waits[lanes] {
            if matches!(wait, Wait::Warp(at, _) if *at == site) {
                *wait = Wait::Ready;
            }
        }
        Ok(())
    }

    /// Opens the barrier if all threads wait at the same one. Called if all threads wait at a
    /// barrier or have returned.
    fn open_barrier(&mut self) -> Result<(), Mistake> {
        let site = |wait: &Wait| match wait {
            Wait::Barrier(site) => Some(*site),
            _ => None,
        };
        let Some((waiting, first)) =
            self.waits.iter().enumerate().find_map(|(i, wait)| site(wait).map(|site| (i, site)))
        else {
            return Ok(());
        };
        if let Some(other) = self.waits.iter().position(|wait| site(wait) != Some(first)) {
            let what =
                if self.waits[other] == Wait::Done { "has returned" } else { "waits at another barrier" };
            return Err(Mistake::Threads(format!(
                "divergent barrier: thread {waiting} waits at a barrier that thread {other} does not reach: it {what}"
            )));
        }
        self.shared.check()?;
        self.waits.fill(Wait::Ready);
        Ok(())
    }

    /// Resumes threads until all have returned. `resume` runs a thread and returns what it then
    /// waits for.
    fn schedule(&mut self, mut resume: impl FnMut(usize, Answer) -> Request) -> Result<(), Mistake> {
        let mut waves: Vec<usize> = Vec::new();
        let mut ready: Vec<usize> = Vec::new();
        loop {
            waves.clear();
            let all = 0..self.waits.len().div_ceil(self.record.wave as usize);
            waves.extend(all.filter(|wave| self.can_go_on(*wave)));
            if waves.is_empty() {
                if self.waits.iter().all(|wait| *wait == Wait::Done) {
                    return Ok(());
                }
                self.open_barrier()?;
                continue;
            }
            let wave = waves[self.random.below(waves.len() as u64) as usize];
            ready.clear();
            ready.extend(self.lanes(wave).filter(|thread| self.waits[*thread] == Wait::Ready));
            if ready.is_empty() {
                self.exchange(wave)?;
                continue;
            }
            // Run all ready threads of this warp, in random order. Other warps may run before these
            // threads continue.
            while !ready.is_empty() {
                let thread = ready.swap_remove(self.random.below(ready.len() as u64) as usize);
                let mut wait = resume(thread, null_mut())?;
                while let Wait::Array { key, bytes, align, name } = wait {
                    // SAFETY: `name` is a literal.
                    let name = || unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
                    wait = resume(thread, self.shared.array(key, bytes, align, name)?)?;
                }
                self.waits[thread] = wait;
            }
        }
    }
}
