//! Windows: a vectored exception handler.
//!
//! The handler does not switch stacks itself. It lets the thread go on in [`leave`], which does. An
//! overflow of a thread's stack still ends the process, because no room is left to handle it.

use crate::lockstep::{
    Mistake,
    block::{is_kernel, trap},
};
use std::{cell::Cell, ffi::c_void, sync::Once};

const ACCESS_VIOLATION: u32 = 0xc000_0005;
const DIVIDE_BY_ZERO: u32 = 0xc000_0094;

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
    if !matches!(record.code, ACCESS_VIOLATION | DIVIDE_BY_ZERO) || !is_kernel() {
        return CONTINUE_SEARCH;
    }
    RAISED.set((record.code, record.information[1]));
    // SAFETY: both fields lie in the context. At a function's entry the stack pointer is 8 less than
    // a multiple of 16, and above it lie the return address, which `leave` does not use, and room
    // for four arguments. What the kernel has on its stack is not used any more.
    unsafe {
        let stack = context.add(RSP).cast::<u64>();
        stack.write((stack.read() - 64) / 16 * 16 - 8);
        context.add(RIP).cast::<u64>().write(leave as *const () as u64);
    }
    CONTINUE_EXECUTION
}

/// Runs in the kernel's place, on its stack.
unsafe extern "system" fn leave() -> ! {
    let (code, address) = RAISED.get();
    trap(|thread| match code {
        DIVIDE_BY_ZERO => Mistake::Threads(format!("thread {thread} divides an integer by zero")),
        _ => Mistake::Memory(format!("thread {thread} accesses the address {address:#x}, where nothing is")),
    });
    // The scheduler drops the thread without resuming it.
    std::process::abort()
}
