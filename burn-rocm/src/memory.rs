//! What holds a device's memory: sums by label, size, thread and op, and a list of the blocks in
//! use.
//!
//! ```
//! use burn::tensor::Tensor;
//! use burn_rocm::{Rocm, RocmDevice, memory_label, memory_summary};
//!
//! let device = RocmDevice::default();
//! let weights = {
//!     let _model = memory_label("model");
//!     Tensor::<Rocm, 2>::ones([256, 256], &device)
//! };
//! let summary = memory_summary(&device)?;
//! println!("{summary}");
//! let model = summary.labels.iter().find(|row| row.name == "model");
//! assert_eq!(model.map(|row| row.used.bytes), Some(4 * 256 * 256));
//! # drop(weights);
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```

use hip::{Error, MemoryRecord, MemorySnapshot, MemorySummary};

use crate::device::RocmDevice;
use crate::waiting::enqueue_own;

/// Sums over the device's memory, also by size, label, thread and op. Its `Display` is a table.
/// [`RocmDevice::reset_peak_memory`] resets its peaks.
///
/// # Errors
/// As [`RocmDevice::info`].
pub fn memory_summary(device: &RocmDevice) -> Result<MemorySummary, Error> {
    // An error stays with the op's result, whose reads report it.
    let _ = enqueue_own();
    Ok(device.open()?.pool().summary())
}

/// Every block of the device's memory that is in use.
///
/// # Errors
/// As [`RocmDevice::info`].
pub fn memory_snapshot(device: &RocmDevice) -> Result<MemorySnapshot, Error> {
    let _ = enqueue_own();
    Ok(device.open()?.pool().snapshot())
}

/// Runs `body`, and records the blocks that all threads allocate on the device and free meanwhile.
/// [`MemoryRecord::svg`] draws the bytes in use over time.
///
/// # Errors
/// As [`RocmDevice::info`]; `body` does not run then.
pub fn memory_record<T>(device: &RocmDevice, body: impl FnOnce() -> T) -> Result<(T, MemoryRecord), Error> {
    let device = device.open()?;
    // An error stays with the op's result, whose reads report it.
    let _ = enqueue_own();
    Ok(device.pool().record(|| {
        let result = body();
        let _ = enqueue_own();
        result
    }))
}
