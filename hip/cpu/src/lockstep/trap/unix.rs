//! Unix: signal handlers. They make a kernel's invalid access end the launch instead of the process.

use crate::lockstep::{Mistake, block::trap};
use std::{
    ffi::{c_int, c_void},
    sync::OnceLock,
};

const SIGNALS: [c_int; 3] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE];

/// The handlers that were installed before.
static BEFORE: OnceLock<[libc::sigaction; 3]> = OnceLock::new();

/// Installs the handlers. Signals that no kernel caused go to the earlier handlers.
pub(in crate::lockstep) fn install() {
    BEFORE.get_or_init(|| {
        SIGNALS.map(|signal| {
            // SAFETY: all zeros is a valid `sigaction`, the default one.
            let (mut ours, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
            ours.sa_sigaction = on_signal as *const () as usize;
            // The handler uses the signal stack, because the thread's stack may be full. The signal
            // stays unblocked, because the handler may not return.
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            // SAFETY: the handler has the signature for `SA_SIGINFO`.
            unsafe { libc::sigaction(signal, &ours, &mut before) };
            before
        })
    });
}

unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the operating system passes a valid `info` to `SA_SIGINFO` handlers.
    let address = unsafe { (*info).si_addr() } as usize;
    let mistake = |thread| match signal {
        // x86-64 raises it for the smallest integer divided by -1 too.
        libc::SIGFPE => Mistake::division(thread),
        _ => Mistake::wild_access(thread, address),
    };
    // `trap` may leave the handler without a return, which `SA_NODEFER` allows.
    if !trap(mistake)
        && let (Some(before), Some(index)) = (BEFORE.get(), SIGNALS.iter().position(|known| *known == signal))
    {
        // The access is repeated on return, and the earlier handler then gets the signal. SAFETY:
        // `sigaction` returned this handler.
        unsafe { libc::sigaction(signal, &before[index], std::ptr::null_mut()) };
    }
}
