//! Signals: an access that the processor refuses ends the launch rather than the process.

use super::{Mistake, block::trap};
use std::{
    ffi::{c_int, c_void},
    sync::OnceLock,
};

const SIGNALS: [c_int; 3] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE];

/// What handled the signals before.
static BEFORE: OnceLock<[libc::sigaction; 3]> = OnceLock::new();

/// Handles the signals from now on; those that no kernel caused go where they went before.
pub(super) fn install() {
    BEFORE.get_or_init(|| {
        SIGNALS.map(|signal| {
            // SAFETY: all zeros is a `sigaction`: the default one.
            let (mut ours, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
            ours.sa_sigaction = on_signal as *const () as usize;
            // On the stack for signals, since a thread's own may be full; unblocked, since the
            // handler does not return.
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            // SAFETY: the handler is one for `SA_SIGINFO`.
            unsafe { libc::sigaction(signal, &ours, &mut before) };
            before
        })
    });
}

unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel gives `SA_SIGINFO` handlers the signal's facts.
    let address = unsafe { (*info).si_addr() } as usize;
    let mistake = |thread| match signal {
        libc::SIGFPE => Mistake::Threads(format!("thread {thread} divides an integer by zero")),
        _ => Mistake::Memory(format!("thread {thread} accesses the address {address:#x}, where nothing is")),
    };
    // The handler is left without a return, which is all right by `SA_NODEFER`.
    if !trap(mistake)
        && let (Some(before), Some(index)) = (BEFORE.get(), SIGNALS.iter().position(|known| *known == signal))
    {
        // Happens again on return, and is then handled as before.
        // SAFETY: what `sigaction` gave.
        unsafe { libc::sigaction(signal, &before[index], std::ptr::null_mut()) };
    }
}
