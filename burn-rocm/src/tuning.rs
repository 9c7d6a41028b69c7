//! Results of timing MIOpen's algorithms: kept on disk, managed, and made ahead of a run.
//!
//! A process that finds a convolution's shape here times nothing and compiles one kernel.
//! [`store`] has statistics, clears, exports and imports. [`tune`] times shapes ahead, which the
//! example `burn-rocm-tune` does for the shapes of a run's trace.
//!
//! ```
//! use burn_rocm::RocmDevice;
//! use burn_rocm::tuning::{ConvProblem, store, tune};
//!
//! let line = "convolution forward f32 x 1x2x5x5 w 3x2x3x3 stride 1x1 padding 1x1 dilation 1x1 groups 1";
//! let problem: ConvProblem = line.parse()?;
//! if store().directory().is_some() {
//!     tune(&RocmDevice::default(), &problem)?;
//!     assert!(store().entries().iter().any(|entry| entry.problem == line));
//! }
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```

use hip::Error;

pub use hip::tuning_store as store;
pub use hip::{ConvDesc, ConvDirection, ConvProblem, TuningEntry, TuningStats, TuningStore};

use crate::device::RocmDevice;

/// Times MIOpen's algorithms for a convolution and keeps the fastest in the [`store`]. Returns false
/// without timing if the store has an entry already, if MIOpen refuses the convolution, or if one
/// of its tensors is empty. The tensors take device memory meanwhile.
///
/// # Errors
/// `Config` if the store is off; `NotAvailable` without MIOpen; `OutOfMemory`; `Miopen` if the
/// library fails; those of [`RocmDevice::info`].
pub fn tune(device: &RocmDevice, problem: &ConvProblem) -> Result<bool, Error> {
    let device = device.open()?;
    device.dnn()?.tune(&device, problem)
}
