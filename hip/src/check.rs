//! Checks that follow each op, for debugging: that its results are finite numbers
//! ([`Config::check_finite`](crate::Config::check_finite)), and that the device has computed it
//! without an error ([`Config::sync_each_op`](crate::Config::sync_each_op)).
//!
//! A thread lists the buffers that its running op writes. Those that are still alive when the op
//! ends are its results.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use hip_kernels::{DType, Template};

use crate::error::Result;
use crate::memory::buffer::Buffer;
use crate::memory::fault::Fault;
use crate::settings::{CheckFinite, settings};
use crate::watch::{CHECK, RUNNING, Running, SYNC, check_by, watched};

/// Elements that an op writes.
struct Written {
    buffer: Weak<Buffer>,
    dtype: DType,
    byte_offset: usize,
    count: usize,
}

thread_local! {
    static WRITTEN: RefCell<Vec<Written>> = const { RefCell::new(Vec::new()) };
}

/// Whether anything follows an op.
#[inline]
pub fn checks_ops() -> bool {
    watched() & (CHECK | SYNC) != 0
}

/// Tells that the thread's running op writes `count` contiguous elements from byte `byte_offset` of
/// the buffer on.
#[inline]
pub fn op_writes(buffer: &Arc<Buffer>, dtype: DType, byte_offset: usize, count: usize) {
    if checks_ops() && !RUNNING.get().op.is_empty() {
        check_by(op_ended);
        op_does_not_write(buffer);
        let written = Written { buffer: Arc::downgrade(buffer), dtype, byte_offset, count };
        // It fails only while the thread ends.
        let _ = WRITTEN.try_with(|all| all.borrow_mut().push(written));
    }
}

/// Takes back [`op_writes`]. The list then has no weak reference to the buffer.
#[inline]
pub fn op_does_not_write(buffer: &Arc<Buffer>) {
    if checks_ops() {
        let _ = WRITTEN.try_with(|all| {
            all.borrow_mut().retain(|written| !std::ptr::eq(written.buffer.as_ptr(), Arc::as_ptr(buffer)));
        });
    }
}

/// Checks the results of an op that ends. An error of the device is recorded: the next read or sync
/// returns it.
#[cold]
fn op_ended(running: &Running) {
    let all = WRITTEN.try_with(RefCell::take).unwrap_or_default();
    if std::thread::panicking() {
        return;
    }
    let watched = watched();
    let mut waited: Vec<usize> = Vec::new();
    for written in &all {
        let Some(buffer) = written.buffer.upgrade() else { continue };
        let device = buffer.device();
        if watched & CHECK != 0
            && written.dtype.is_float()
            && let Err(error) = launch(running.op, &buffer, written)
        {
            device.context.record(error);
        }
        let index = device.info().index;
        if watched & SYNC == 0 || device.captures.any() || waited.contains(&index) {
            continue;
        }
        waited.push(index);
        if let Err(error) = device.compute.synchronize() {
            log::error!("{running}: {error}");
            device.context.record(error);
        }
    }
}

fn launch(op: &'static str, buffer: &Buffer, written: &Written) -> Result<()> {
    let infinite = u32::from(settings()?.check_finite == CheckFinite::All);
    let device = buffer.device();
    let launch = device.launch(Template::check_finite.ty(written.dtype))?;
    let launch = launch.flag(op, Fault::NotFinite).value(written.count as u64).value(infinite);
    // Passed as an output, so that the buffer gets the fault's ticket. The kernel only reads it.
    let launch = launch.output(buffer, written.byte_offset);
    // SAFETY: the parameters are those of `check.hip`. The caller of `op_writes` has made these
    // elements' tensor, which checks that they lie inside the buffer.
    unsafe { launch.submit(device.grid(written.count), 0) }
}
