//! What a thread's capture reads from device memory, because it changes from replay to replay: the
//! place in the device's random numbers, and learning rates.
//!
//! An op asks [`with`] whether it is being recorded. Its tensors are made outside the capture
//! ([`words`]), so they have their contents before the first replay.

use std::cell::RefCell;
use std::sync::Arc;

use burn_std::{DType, Shape};
use hip::Device;

use crate::tensor::RocmTensor;

/// What the graph of a capture will set before each replay.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// The seed and the number of the graph's first random op, two u64, and how many random ops
    /// were recorded.
    pub(crate) random: Option<(RocmTensor, u64)>,
    /// The learning rates, one f64 each, and their values.
    pub(crate) rates: Vec<(RocmTensor, f64)>,
    /// The clocks that the graph advances, by the address of the parameter's first moment.
    pub(crate) clocks: Vec<(usize, RocmTensor)>,
}

thread_local! {
    /// The recordings of the thread's captures, by the device's index. A capture that was abandoned
    /// leaves its recording, which nobody asks for: the next capture replaces it.
    static RECORDINGS: RefCell<Vec<(usize, Recording)>> = const { RefCell::new(Vec::new()) };
}

/// Begins a recording for the device with this index.
pub(crate) fn begin(device: usize) {
    RECORDINGS.with_borrow_mut(|all| {
        all.retain(|(index, _)| *index != device);
        all.push((device, Recording::default()));
    });
}

/// Ends the device's recording. Empty if there is none.
pub(crate) fn end(device: usize) -> Recording {
    RECORDINGS.with_borrow_mut(|all| match all.iter().position(|(index, _)| *index == device) {
        Some(at) => all.swap_remove(at).1,
        None => Recording::default(),
    })
}

/// Calls `f` with the device's recording. `None` if this thread is not recording the device's ops.
pub(crate) fn with<T>(device: usize, f: impl FnOnce(&mut Recording) -> T) -> Option<T> {
    // The thread may be capturing another device's ops.
    if !hip::is_capturing() || !Device::get(device).is_ok_and(|device| device.is_capturing()) {
        return None;
    }
    RECORDINGS.with_borrow_mut(|all| {
        let recording = all.iter_mut().find(|(index, _)| *index == device)?;
        Some(f(&mut recording.1))
    })
}

/// Whether this thread is recording the ops of the device with this index.
pub(crate) fn is_recording(device: usize) -> bool {
    with(device, |_| ()).is_some()
}

/// A tensor over these words that is no part of the capture: it has them at once.
///
/// # Errors
/// Those of the upload.
pub(crate) fn words(
    device: &Arc<Device>,
    shape: Shape,
    dtype: DType,
    words: &[u64],
) -> hip::Result<RocmTensor> {
    let buffer = hip::uncaptured(|| device.upload(bytemuck::cast_slice(words)))?;
    RocmTensor::new(buffer, shape, dtype)
}
