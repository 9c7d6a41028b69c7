//! Work ahead of time, so that a program's first steps take no longer than the others.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hip::Error;

use crate::device::RocmDevice;
use crate::error::of_panic;
use crate::graph::WARM_UPS;
use crate::ops::random::Aside;

/// Runs `step` [`WARM_UPS`] times and waits for the device. Then the kernels of the step are
/// compiled and loaded, MIOpen has chosen its algorithms, and the memory pool holds the memory that
/// a step takes. Returns what the last run returned.
///
/// The random numbers of all devices go on afterwards as if `step` had not run: this thread draws
/// from copies of their sequences meanwhile, and a seed that `step` sets changes the copies only.
///
/// `step` should work on copies of what it changes. `burn_rocm_nn::warm_up` passes it a copy of a
/// module and of an optimizer. What this function can't undo:
///
/// - what `step` writes elsewhere: tensors that it assigns to variables of the app,
///   [`graph::write`](crate::graph::write), replays of graphs, files, logs;
/// - random numbers that *other* threads draw because of `step`;
/// - statistics: peaks of memory, counters, profiles;
/// - MIOpen's choices. A later step may take another algorithm than without the warm-up, and its
///   result may differ in the last digits. It does not with
///   [`Config::deterministic`](hip::Config::deterministic).
///
/// ```standalone_crate
/// use burn::tensor::backend::Backend;
/// use burn::tensor::{Distribution, Tensor};
/// use burn_rocm::{Rocm, RocmDevice, warm_up};
///
/// let device = RocmDevice::default();
/// Rocm::<f32>::seed(&device, 7);
/// let step = || Tensor::<Rocm, 2>::random([8, 8], Distribution::Default, &device).sum().into_scalar();
/// let ahead = warm_up(&device, step)?;
/// // The third sum is the one that the last of the three runs drew.
/// assert_eq!([step(), step(), step()][2], ahead);
/// # Ok::<(), burn_rocm::RocmError>(())
/// ```
///
/// # Errors
/// That of an op in `step` that fails, such as `OutOfMemory`. `Capture` if this thread is capturing
/// a graph. An error that earlier work on the device left, as
/// [`RocmDevice::synchronize`] reports it. Random numbers go on as before in every case.
///
/// # Panics
/// If `step` panics for another reason than an op that fails.
pub fn warm_up<T>(device: &RocmDevice, mut step: impl FnMut() -> T) -> Result<T, Error> {
    device.open()?.refuse_captured("a warm-up", "its steps would become part of the graph")?;
    let _aside = Aside::begin();
    let mut run = || catch_unwind(AssertUnwindSafe(&mut step)).map_err(of_panic);
    for _ in 1..WARM_UPS {
        run()?;
    }
    let result = run()?;
    device.synchronize()?;
    Ok(result)
}

/// Pins host memory ahead: afterwards `Backend::staging` finds a block for data of each of these
/// sizes in bytes, for all at the same time, without asking the driver. Staging leaves data of up
/// to 64 KiB where it is.
///
/// The device keeps up to 256 MiB of pinned blocks, until `Backend::memory_cleanup`. To make room,
/// it may free kept blocks of other sizes.
///
/// ```
/// use burn_rocm::{RocmDevice, RocmError, warm_up_pinned};
///
/// let device = RocmDevice::default();
/// // Two batches of 64 images in flight.
/// let images = 64 * 3 * 224 * 224 * 4;
/// warm_up_pinned(&device, &[images; 2])?;
/// let refused = warm_up_pinned(&device, &[images; 20]);
/// assert!(matches!(refused, Err(RocmError::Invalid { .. })));
/// # Ok::<(), RocmError>(())
/// ```
///
/// # Errors
/// `Invalid` for sizes of more than 256 MiB together, each rounded up to a power of two; `Device` if
/// the host can't pin that much memory; those of [`RocmDevice::info`].
pub fn warm_up_pinned(device: &RocmDevice, sizes: &[usize]) -> Result<(), Error> {
    device.open()?.reserve_host(sizes)
}
