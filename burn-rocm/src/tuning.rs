//! Results of timing MIOpen's and rocBLAS's algorithms: kept on disk, managed, and made ahead of a run.
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

use std::path::Path;

use hip::Error;

pub use hip::tuning_store as store;
pub use hip::{ConvDesc, ConvDirection, ConvProblem, TunableOpCount, TuningEntry, TuningStats, TuningStore};

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

/// Writes what the [`store`] has of this device's matrix products as a file for PyTorch's TunableOp
/// (`PYTORCH_TUNABLEOP_FILENAME`). `validators` are those that PyTorch expects besides
/// `GCN_ARCH_NAME` and `ROCBLAS_VERSION`, by name and value (`torch.cuda.tunable.get_validators()`).
/// Entries that such a file can't express are counted as left out.
///
/// # Errors
/// `Invalid` for a file that can't be written or a validator with a comma; `Config` if the store is
/// off; `NotAvailable` without rocBLAS; those of [`RocmDevice::info`].
pub fn export_tunable_op(
    device: &RocmDevice,
    file: &Path,
    validators: &[(&str, &str)],
) -> Result<TunableOpCount, Error> {
    device.open()?.blas()?.export_tunable_op(file, validators)
}

/// Adds the rocBLAS solutions of a file of PyTorch's TunableOp to the [`store`], where
/// `BURN_ROCM_GEMM_FIND=auto` uses them. The faster one stays if the store has the product already.
/// Lines for other libraries or operations are counted as left out.
///
/// # Errors
/// `Invalid` for a file that can't be read or has another format, and for one of another
/// architecture or another rocBLAS; nothing was added then. `Config` if the store is off;
/// `NotAvailable` without rocBLAS; those of [`RocmDevice::info`].
pub fn import_tunable_op(device: &RocmDevice, file: &Path) -> Result<TunableOpCount, Error> {
    device.open()?.blas()?.import_tunable_op(file)
}
