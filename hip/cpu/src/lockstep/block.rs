//! One block: its threads, who may go on, and what they ask for.

use super::{
    Mistake, Random,
    memory::SharedMemory,
    switch::{Context, Stacks, switch},
};
use crate::abi::{Kernel, LaunchRecord};
use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nothing: it can go on.
    Ready,
    /// The block's barrier, called from this address.
    Barrier(usize),
    /// The lanes of its warp, at the call with this return address.
    Warp(usize, Exchange),
    /// It returned.
    Done,
}

/// A warp-level operation. The pointers lead into the waiting thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    Shuffle { value: *const c_void, out: *mut c_void, bytes: u32, source: c_int },
    Ballot { predicate: bool, out: *mut u64 },
}

struct Thread {
    context: Context,
    wait: Wait,
}

/// A block while it runs.
pub(super) struct Block<'a> {
    kernel: &'a Kernel,
    arguments: *mut *mut c_void,
    record: LaunchRecord,
    shared: &'a mut SharedMemory,
    stacks: &'a mut Stacks,
    random: &'a mut Random,
    threads: Vec<Thread>,
    scheduler: Context,
    running: usize,
    /// A coroutine has the core, not the scheduler.
    inside: bool,
    mistake: Option<Mistake>,
}

thread_local! {
    /// The block that this thread of the host runs.
    static RUNNING: Cell<*mut c_void> = const { Cell::new(null_mut()) };
}

fn running() -> *mut Block<'static> {
    RUNNING.get().cast()
}

/// A coroutine's life: one thread of the kernel.
unsafe extern "C" fn thread(block: *mut c_void) -> ! {
    let block = block.cast::<Block<'_>>();
    // SAFETY: the scheduler keeps the block alive while any of its coroutines runs; the launch's caller vouches for
    // the arguments.
    unsafe { ((*block).kernel.run)((*block).arguments, &raw const (*block).record) };
    loop {
        // SAFETY: as above.
        unsafe { suspend(block, Wait::Done) };
    }
}

/// Gives the core back to the scheduler.
///
/// # Safety
/// Called by the running coroutine of this block.
unsafe fn suspend(block: *mut Block<'_>, wait: Wait) {
    // SAFETY: the caller's. No reference into the block lives across the switch.
    unsafe {
        let running = (*block).running;
        let threads = &mut (*block).threads;
        threads[running].wait = wait;
        let own = &raw mut threads[running].context;
        let scheduler = (*block).scheduler;
        switch(own, scheduler);
    }
}

pub(super) unsafe extern "C" fn sync(site: *const c_void) {
    // SAFETY: kernels call this from a coroutine of the running block.
    unsafe { suspend(running(), Wait::Barrier(site as usize)) };
}

pub(super) unsafe extern "C" fn shared(
    key: *const c_void,
    bytes: u64,
    align: u64,
    name: *const c_char,
) -> *mut c_void {
    let block = running();
    // SAFETY: as in `sync`; the name is a literal.
    let array = unsafe {
        (*block).shared.array(key, bytes, align, || CStr::from_ptr(name).to_string_lossy().into_owned())
    };
    match array {
        Ok(array) => array,
        Err(mistake) => {
            // SAFETY: as in `sync`.
            unsafe { (*block).mistake = Some(mistake) };
            loop {
                // SAFETY: as in `sync`. The scheduler ends the launch: this never comes back.
                unsafe { suspend(block, Wait::Ready) };
            }
        }
    }
}

pub(super) unsafe extern "C" fn shuffle(
    site: *const c_void,
    value: *const c_void,
    out: *mut c_void,
    bytes: u32,
    source: c_int,
) {
    // SAFETY: as in `sync`.
    unsafe { suspend(running(), Wait::Warp(site as usize, Exchange::Shuffle { value, out, bytes, source })) };
}

pub(super) unsafe extern "C" fn ballot(site: *const c_void, predicate: c_int) -> u64 {
    let mut mask = 0;
    let exchange = Exchange::Ballot { predicate: predicate != 0, out: &raw mut mask };
    // SAFETY: as in `sync`.
    unsafe { suspend(running(), Wait::Warp(site as usize, exchange)) };
    mask
}

/// Ends the launch from a signal's handler, if it is a thread of a kernel that the signal stopped; `false` if not.
///
/// # Safety
/// Called by a handler, which may be left without returning.
pub(super) unsafe fn trap(mistake: impl FnOnce(usize) -> Mistake) -> bool {
    let block = running();
    // SAFETY: not null: the block that this thread of the host runs.
    if block.is_null() || unsafe { !(*block).inside } {
        return false;
    }
    let mut abandoned = null_mut();
    // SAFETY: a coroutine has the core, so that the scheduler waits in its switch.
    unsafe {
        (*block).mistake = Some(mistake((*block).running));
        switch(&raw mut abandoned, (*block).scheduler);
    }
    true
}

impl<'a> Block<'a> {
    pub(super) fn new(
        kernel: &'a Kernel,
        arguments: *mut *mut c_void,
        record: LaunchRecord,
        shared: &'a mut SharedMemory,
        stacks: &'a mut Stacks,
        random: &'a mut Random,
    ) -> Self {
        let count = record.block_dim.count() as usize;
        let threads = (0..count).map(|_| Thread { context: null_mut(), wait: Wait::Ready }).collect();
        Self {
            kernel,
            arguments,
            record,
            shared,
            stacks,
            random,
            threads,
            scheduler: null_mut(),
            running: 0,
            inside: false,
            mistake: None,
        }
    }

    /// Runs the block to its end, or to the first mistake.
    ///
    /// # Safety
    /// The kernel's code and arguments fit together; no other block of the process runs.
    pub(super) unsafe fn run(&mut self) -> Result<(), Mistake> {
        let block: *mut Self = self;
        for index in 0..self.threads.len() {
            // SAFETY: an earlier block's coroutines are not switched to any more.
            self.threads[index].context = unsafe { self.stacks.start(index, thread, block.cast()) };
        }
        RUNNING.set(block.cast());
        // SAFETY: this block's coroutines, from the thread that started them.
        let done = unsafe { schedule(block) };
        RUNNING.set(null_mut());
        done?;
        self.shared.check()
    }

    fn waves(&self) -> usize {
        self.threads.len().div_ceil(self.record.wave as usize)
    }

    fn lanes(&self, wave: usize) -> std::ops::Range<usize> {
        let size = self.record.wave as usize;
        wave * size..((wave + 1) * size).min(self.threads.len())
    }

    /// Whether something can happen in this warp before the block's barrier opens.
    fn can_go_on(&self, wave: usize) -> bool {
        self.lanes(wave).any(|thread| matches!(self.threads[thread].wait, Wait::Ready | Wait::Warp(..)))
    }

    /// Lets the lanes at the lowest call among those of a warp in which no lane can run exchange their values.
    fn exchange(&mut self, wave: usize) -> Result<(), Mistake> {
        let lanes = self.lanes(wave);
        let call = |thread: usize| match self.threads[thread].wait {
            Wait::Warp(site, exchange) => Some((site, exchange)),
            _ => None,
        };
        let Some(site) = lanes.clone().filter_map(|thread| call(thread).map(|(site, _)| site)).min() else {
            return Ok(());
        };
        let here: Vec<(usize, Exchange)> = lanes
            .clone()
            .filter_map(|thread| {
                call(thread).filter(|(at, _)| *at == site).map(|(_, exchange)| (thread, exchange))
            })
            .collect();
        let mask = here.iter().fold(0u64, |mask, (thread, exchange)| match exchange {
            Exchange::Ballot { predicate: true, .. } => mask | 1 << (thread - lanes.start),
            _ => mask,
        });
        for (thread, exchange) in &here {
            match *exchange {
                // SAFETY: the waiting thread's variable.
                Exchange::Ballot { out, .. } => unsafe { out.write(mask) },
                Exchange::Shuffle { out, bytes, source, .. } => {
                    let lane = thread - lanes.start;
                    let from = usize::try_from(source).ok().map(|source| lanes.start + source);
                    let found = here.iter().find(|(other, _)| Some(*other) == from);
                    let Some((_, Exchange::Shuffle { value, bytes: size, .. })) = found else {
                        let why = match from
                            .filter(|from| lanes.contains(from))
                            .map(|from| self.threads[from].wait)
                        {
                            None => "is not in the warp".to_owned(),
                            Some(Wait::Done) => "has returned".to_owned(),
                            Some(Wait::Barrier(_)) => "waits at a barrier".to_owned(),
                            Some(_) => "is at another call".to_owned(),
                        };
                        return Err(Mistake::Threads(format!(
                            "thread {thread} (lane {lane}) shuffles from lane {source}, which {why}"
                        )));
                    };
                    if *size != bytes {
                        return Err(Mistake::Threads(format!(
                            "thread {thread} shuffles {bytes} bytes from {size}"
                        )));
                    }
                    // SAFETY: both threads wait, so that their variables live; `out` is no thread's `value`.
                    unsafe {
                        std::ptr::copy_nonoverlapping(value.cast::<u8>(), out.cast::<u8>(), bytes as usize)
                    };
                }
            }
        }
        for (thread, _) in here {
            self.threads[thread].wait = Wait::Ready;
        }
        Ok(())
    }

    /// All threads wait at a barrier or have returned: opens it if it is one and the same for all.
    fn open_barrier(&mut self) -> Result<(), Mistake> {
        let site = |thread: &Thread| match thread.wait {
            Wait::Barrier(site) => Some(site),
            _ => None,
        };
        let Some((waiting, first)) =
            self.threads.iter().enumerate().find_map(|(i, thread)| site(thread).map(|site| (i, site)))
        else {
            return Ok(());
        };
        if let Some(other) = self.threads.iter().position(|thread| site(thread) != Some(first)) {
            let what = if self.threads[other].wait == Wait::Done {
                "has returned"
            } else {
                "waits at another barrier"
            };
            return Err(Mistake::Threads(format!(
                "divergent barrier: thread {waiting} waits at a barrier that thread {other} does not reach: it {what}"
            )));
        }
        self.shared.check()?;
        for thread in &mut self.threads {
            thread.wait = Wait::Ready;
        }
        Ok(())
    }
}

/// Resumes threads until all have returned.
///
/// # Safety
/// `block` is alive, and its coroutines were started by this thread of the host.
unsafe fn schedule(block: *mut Block<'_>) -> Result<(), Mistake> {
    let mut waves: Vec<usize> = Vec::new();
    let mut ready: Vec<usize> = Vec::new();
    loop {
        // SAFETY: the caller's; no coroutine runs until the switch below, and none of these references lives on there.
        let this = unsafe { &mut *block };
        waves.clear();
        waves.extend((0..this.waves()).filter(|wave| this.can_go_on(*wave)));
        if waves.is_empty() {
            if this.threads.iter().all(|thread| thread.wait == Wait::Done) {
                return Ok(());
            }
            this.open_barrier()?;
            continue;
        }
        let wave = waves[this.random.below(waves.len() as u64) as usize];
        ready.clear();
        ready.extend(this.lanes(wave).filter(|thread| this.threads[*thread].wait == Wait::Ready));
        if ready.is_empty() {
            this.exchange(wave)?;
            continue;
        }
        // All that can run of this warp, in a random order: another warp's turn comes between two waits.
        while !ready.is_empty() {
            // SAFETY: as above.
            let this = unsafe { &mut *block };
            let thread = ready.swap_remove(this.random.below(ready.len() as u64) as usize);
            this.running = thread;
            this.record.thread = this.record.block_dim.at(thread as u64);
            this.record.lane = (thread % this.record.wave as usize) as c_int;
            let to = this.threads[thread].context;
            this.inside = true;
            // SAFETY: the coroutine was started or has suspended itself.
            unsafe { switch(&raw mut (*block).scheduler, to) };
            // SAFETY: the coroutine has suspended itself.
            let this = unsafe { &mut *block };
            this.inside = false;
            if let Some(mistake) = this.mistake.take() {
                return Err(mistake);
            }
        }
    }
}
