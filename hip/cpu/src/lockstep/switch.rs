//! Coroutines: stacks, and the switch between them. A few instructions of assembly rather than `ucontext`, whose switch
//! makes a system call each way: 8 ns a switch on an EPYC 9004.

use std::{
    alloc::{Layout, alloc},
    arch::naked_asm,
    ffi::c_void,
};

/// Bytes of a thread's stack: kernels keep at most a few small arrays there.
const STACK: usize = 64 << 10;
/// Its lowest bytes, which nobody may touch. Kernels are compiled so that none steps over them.
const GUARD: usize = 4096;

/// A suspended coroutine, or the scheduler while one runs: its stack pointer.
pub(super) type Context = *mut c_void;

/// One stack a thread of a block, used again by every block and never freed.
#[derive(Default)]
pub(super) struct Stacks {
    all: Vec<*mut u8>,
}

// SAFETY: the stacks are plain memory, used by one launch at a time.
unsafe impl Send for Stacks {}

const LAYOUT: Layout = match Layout::from_size_align(STACK, STACK) {
    Ok(layout) => layout,
    Err(_) => panic!("a whole number of pages"),
};

impl Stacks {
    /// Makes sure that there are so many.
    pub(super) fn provide(&mut self, count: usize) -> Result<(), ()> {
        while self.all.len() < count {
            // SAFETY: the layout has a size.
            let stack = unsafe { alloc(LAYOUT) };
            if stack.is_null() {
                return Err(());
            }
            // SAFETY: whole pages of a stack that is never freed. Where it fails, an overrun isn't found.
            unsafe { libc::mprotect(stack.cast(), GUARD, libc::PROT_NONE) };
            self.all.push(stack);
        }
        Ok(())
    }

    /// A coroutine that calls `entry(argument)` when first switched to. `entry` must not return.
    ///
    /// # Safety
    /// No coroutine on this stack is switched to any more.
    pub(super) unsafe fn start(
        &mut self,
        thread: usize,
        entry: unsafe extern "C" fn(*mut c_void) -> !,
        argument: *mut c_void,
    ) -> Context {
        // SAFETY: the frame that `switch` restores, at the top of the stack, 16-byte aligned as both ABIs want.
        unsafe {
            let top = self.all[thread].add(STACK).cast::<usize>();
            let frame = top.sub(FRAME_WORDS);
            frame.write_bytes(0, FRAME_WORDS);
            frame.add(ENTRY_WORD).write(entry as usize);
            frame.add(ARGUMENT_WORD).write(argument as usize);
            frame.add(RESUME_WORD).write(first as *const () as usize);
            frame.cast()
        }
    }
}

/// Saves the running context in `from` and goes on in `to`.
///
/// # Safety
/// `to` is a context that was saved or started and not gone on in since.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switch(from: *mut Context, to: Context) {
    // The callee-saved registers of the System V ABI.
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

// r15, r14, r13, r12, rbx, rbp, the address to return to; then what makes the stack 16-byte aligned at `first`.
#[cfg(target_arch = "x86_64")]
const FRAME_WORDS: usize = 8;
#[cfg(target_arch = "x86_64")]
const ENTRY_WORD: usize = 3;
#[cfg(target_arch = "x86_64")]
const ARGUMENT_WORD: usize = 2;
#[cfg(target_arch = "x86_64")]
const RESUME_WORD: usize = 6;

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn first() {
    naked_asm!("mov rdi, r13", "and rsp, -16", "call r12", "ud2")
}

/// Saves the running context in `from` and goes on in `to`.
///
/// # Safety
/// `to` is a context that was saved or started and not gone on in since.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switch(from: *mut Context, to: Context) {
    // The callee-saved registers of AAPCS64.
    naked_asm!(
        "sub sp, sp, #160",
        "stp x19, x20, [sp, #0]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov sp, x1",
        "ldp x19, x20, [sp, #0]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #160",
        "ret",
    )
}

// x19, x20, ..., x29, x30, d8 to d15.
#[cfg(target_arch = "aarch64")]
const FRAME_WORDS: usize = 20;
#[cfg(target_arch = "aarch64")]
const ENTRY_WORD: usize = 0;
#[cfg(target_arch = "aarch64")]
const ARGUMENT_WORD: usize = 1;
#[cfg(target_arch = "aarch64")]
const RESUME_WORD: usize = 11;

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn first() {
    naked_asm!("mov x0, x20", "blr x19", "brk #1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    struct Pair {
        main: Context,
        other: Context,
        count: u64,
        sum: f64,
    }

    unsafe extern "C" fn counts(pair: *mut c_void) -> ! {
        let pair = pair.cast::<Pair>();
        let mut local = 0.5;
        loop {
            // SAFETY: the test's pair outlives the coroutine.
            unsafe {
                (*pair).count += 1;
                local += 1.0;
                (*pair).sum = local;
                switch(&raw mut (*pair).other, (*pair).main);
            }
        }
    }

    #[test]
    fn a_coroutine_keeps_its_state() {
        let mut stacks = Stacks::default();
        stacks.provide(1).unwrap();
        let mut pair = Pair { main: std::ptr::null_mut(), other: std::ptr::null_mut(), count: 0, sum: 0.0 };
        let start = Instant::now();
        let rounds = 1_000_000;
        // SAFETY: one coroutine on the stack, switched to and back in turn.
        unsafe {
            let pair = &raw mut pair;
            (*pair).other = stacks.start(0, counts, pair.cast());
            for _ in 0..rounds {
                switch(&raw mut (*pair).main, (*pair).other);
            }
        }
        println!("{:.1} ns a switch", start.elapsed().as_secs_f64() * 1e9 / (2.0 * rounds as f64));
        assert_eq!((pair.count, pair.sum), (rounds, rounds as f64 + 0.5));
    }
}
