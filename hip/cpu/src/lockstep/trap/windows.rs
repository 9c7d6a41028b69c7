//! Windows: a vectored exception handler.
//!
//! The handler does not switch stacks itself. It lets the thread go on in [`leave`], which does.

use crate::lockstep::{
    Mistake,
    block::{discard_stacks, is_kernel, trap},
};
use std::{arch::asm, cell::Cell, ffi::c_void, sync::Once};

const ACCESS_VIOLATION: u32 = 0xc000_0005;
const DIVIDE_BY_ZERO: u32 = 0xc000_0094;
/// The smallest integer divided by -1. Other systems, and wine, raise the same as for a zero.
const INTEGER_OVERFLOW: u32 = 0xc000_0095;
const STACK_OVERFLOW: u32 = 0xc000_00fd;
/// An access to the guard page of another thread's stack.
const GUARD_PAGE: u32 = 0x8000_0001;

const CONTINUE_EXECUTION: i32 = -1;
const CONTINUE_SEARCH: i32 = 0;

/// `EXCEPTION_RECORD`.
#[repr(C)]
struct Record {
    code: u32,
    flags: u32,
    outer: *mut Record,
    address: *mut c_void,
    count: u32,
    information: [usize; 15],
}

/// `EXCEPTION_POINTERS`.
#[repr(C)]
struct Pointers {
    record: *mut Record,
    context: *mut c_void,
}

/// The offsets of the stack pointer and of the instruction pointer in x86-64's `CONTEXT`.
const RSP: usize = 0x98;
const RIP: usize = 0xf8;

#[link(name = "kernel32")]
unsafe extern "system" {
    fn AddVectoredExceptionHandler(
        first: u32,
        handler: unsafe extern "system" fn(*mut Pointers) -> i32,
    ) -> *mut c_void;
}

/// Bytes of stack that [`leave`] needs, and less than half of a thread's stack.
const ROOM: usize = 16 << 10;

/// The lowest address of this thread's stack that is in use, from the thread's block of information
/// (`NT_TIB.StackLimit`). A coroutine's stack is the thread's while it runs.
fn stack_limit() -> usize {
    let limit;
    // SAFETY: on x86-64, the block begins at the segment `gs`.
    unsafe { asm!("mov {}, gs:[0x10]", out(reg) limit, options(nostack, readonly, preserves_flags)) };
    limit
}

thread_local! {
    /// The exception's code, and the address that was accessed.
    static RAISED: Cell<(u32, usize)> = const { Cell::new((0, 0)) };
}

/// Installs the handler. Exceptions that no kernel caused go to the other handlers.
pub(in crate::lockstep) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler has the signature that the function asks for.
    ONCE.call_once(|| unsafe {
        AddVectoredExceptionHandler(1, on_exception);
    });
}

unsafe extern "system" fn on_exception(pointers: *mut Pointers) -> i32 {
    // SAFETY: Windows passes a valid record and context.
    let (record, context) = unsafe { (&*(*pointers).record, (*pointers).context.cast::<u8>()) };
    let known = matches!(
        record.code,
        ACCESS_VIOLATION | DIVIDE_BY_ZERO | INTEGER_OVERFLOW | STACK_OVERFLOW | GUARD_PAGE
    );
    if !known || !is_kernel() {
        return CONTINUE_SEARCH;
    }
    let limit = stack_limit();
    let overflow = record.code == STACK_OVERFLOW;
    RAISED.set((record.code, if overflow { limit } else { record.information[1] }));
    // SAFETY: both fields lie in the context. At a function's entry the stack pointer is 8 less than
    // a multiple of 16, and above it lie the return address, which `leave` does not use, and room
    // for four arguments. What the kernel has on its stack is not used any more, so at the stack's
    // end `leave` takes the place of the kernel's last frames.
    unsafe {
        let stack = context.add(RSP).cast::<usize>();
        let pointer = stack.read();
        let near_the_end = pointer.saturating_sub(limit) < ROOM;
        let pointer = if overflow && near_the_end { pointer + ROOM } else { pointer - 64 };
        stack.write(pointer / 16 * 16 - 8);
        context.add(RIP).cast::<u64>().write(leave as *const () as u64);
    }
    CONTINUE_EXECUTION
}

/// Runs in the kernel's place, on its stack.
unsafe extern "system" fn leave() -> ! {
    let (code, address) = RAISED.get();
    if code == STACK_OVERFLOW {
        discard_stacks();
    }
    trap(|thread| match code {
        DIVIDE_BY_ZERO | INTEGER_OVERFLOW => Mistake::division(thread),
        _ => Mistake::wild_access(thread, address),
    });
    // The scheduler drops the thread without resuming it.
    std::process::abort()
}
