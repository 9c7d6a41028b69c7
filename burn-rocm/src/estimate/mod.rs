//! Estimates of the memory that a step takes, before anything is allocated.

mod kinds;

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use hip::{Dry, Error, MemoryKind, MemoryRecord};

use crate::backend::inherit_defaults;
use crate::device::RocmDevice;
use crate::error::{keep, says, take_last_error};
use crate::ops::{fft, random};
use crate::waiting::enqueue_own;

/// What a step takes of a device's memory. Its `Display` is a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// The most bytes in use at once, as [`MemorySummary`](crate::MemorySummary) counts them.
    pub peak_allocated: usize,
    /// The most bytes that the pool holds from the driver at once.
    pub peak_reserved: usize,
    /// The bytes in use at the peak, by kind.
    pub kinds: [(MemoryKind, usize); 5],
    /// The bytes whose kind was guessed, because no [label](MemoryKind::label) says it. A part of
    /// `peak_allocated`.
    pub guessed: usize,
    /// All allocations, for [`MemoryRecord::svg`] and [`MemoryRecord::at_peak`]. Its times are
    /// those of the estimate.
    pub record: MemoryRecord,
}

impl Estimate {
    /// The bytes of a kind at the peak.
    pub fn kind(&self, kind: MemoryKind) -> usize {
        self.kinds[kind as usize].1
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        for (kind, bytes) in self.kinds {
            writeln!(f, "{kind:<14}{:>12.2} MiB", mib(bytes))?;
        }
        writeln!(f, "{:<14}{:>12.2} MiB", "peak allocated", mib(self.peak_allocated))?;
        write!(f, "{:<14}{:>12.2} MiB", "peak reserved", mib(self.peak_reserved))
    }
}

/// What `step` takes of the default device's memory; see [`RocmDevice::estimate_memory`].
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_rocm::{Rocm, estimate_memory};
///
/// let estimate = estimate_memory(|device| {
///     let ones = Tensor::<Rocm, 2>::ones([512, 512], device);
///     ones.clone().matmul(ones)
/// })?;
/// println!("{estimate}");
/// assert_eq!(estimate.peak_allocated, 2 * 4 * 512 * 512);
/// # Ok::<(), burn_rocm::RocmError>(())
/// ```
///
/// # Errors
/// As [`RocmDevice::estimate_memory`].
pub fn estimate_memory<T>(step: impl FnOnce(&RocmDevice) -> T) -> Result<Estimate, Error> {
    RocmDevice::default().estimate_memory(step)
}

/// The largest batch whose step fits the default device's free memory; see
/// [`RocmDevice::largest_batch`].
///
/// # Errors
/// As [`RocmDevice::largest_batch`].
pub fn largest_batch<T>(step: impl FnMut(&RocmDevice, usize) -> T) -> Result<usize, Error> {
    RocmDevice::default().largest_batch(None, step)
}

impl RocmDevice {
    /// What `step` takes of this device's memory, if no other tensor is on it. `step` gets a dry
    /// device, which hands out addresses, runs nothing and allocates no device memory. `step` has
    /// to make its model, its optimizer and its batch on that device. What it returns is dropped.
    ///
    /// The optimizer has no state in the first training step, so the second one has the larger
    /// peak: let `step` take both.
    ///
    /// # Errors
    /// `Dry` with the op's name if `step` reads a tensor, copies one to another device or joins a
    /// collective; the error of an op that fails, such as `Invalid` for a tensor of another device;
    /// `Capture` if this thread captures a graph.
    ///
    /// # Panics
    /// If `step` panics for another reason than one of burn-rocm's errors on this thread.
    pub fn estimate_memory<T>(&self, step: impl FnOnce(&Self) -> T) -> Result<Estimate, Error> {
        estimate(self, None, step)
    }

    /// The largest `n` for which `step(device, n)` fits `limit` bytes. `None` is the memory that is
    /// free or cached in the pool now, at most up to the pool's limit. Each trial is an
    /// [estimate](Self::estimate_memory) with a pool of that limit, which makes room as the real
    /// pool does. A step that runs out of memory does not fit, also if it returns the error or goes on
    /// without the tensor. The trials double `n`, then halve the interval. They assume that a
    /// smaller batch fits if a larger one does.
    ///
    /// # Errors
    /// `OutOfMemory` if 1 does not fit; `Invalid` if the step's memory does not grow with `n`, as
    /// when the step cuts its batch into pieces of a fixed size; those of
    /// [`estimate_memory`](Self::estimate_memory).
    pub fn largest_batch<T>(
        &self,
        limit: impl Into<Option<usize>>,
        mut step: impl FnMut(&Self, usize) -> T,
    ) -> Result<usize, Error> {
        let limit = match limit.into() {
            Some(limit) => limit,
            None => self.open()?.available_memory()?,
        };
        let mut trial = |n: usize| Ok(Trial::of(&estimate(self, Some(limit), |device| step(device, n))?));
        let first = trial(1)?;
        let (mut fits, mut last) = (1usize, first);
        let endless = |fits: usize| Error::Invalid {
            op: "largest_batch",
            expected: "a step that needs more memory for a larger batch".into(),
            found: format!("no more for twice {fits} than for {fits}"),
        };
        let mut too_many = loop {
            let more = fits.checked_mul(2).ok_or_else(|| endless(fits))?;
            let Some(next) = if_it_fits(trial(more))? else { break more };
            if more >= 1024 && next.grows_no_more(&last, &first) {
                return Err(endless(fits));
            }
            (fits, last) = (more, next);
        };
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            match if_it_fits(trial(middle))? {
                Some(_) => fits = middle,
                None => too_many = middle,
            }
        }
        Ok(fits)
    }
}

/// What the search for the largest batch compares.
#[derive(Clone, Copy)]
struct Trial {
    peak: usize,
    allocations: usize,
    /// The bytes of all allocations together.
    total: usize,
}

impl Trial {
    fn of(estimate: &Estimate) -> Self {
        let sizes = || estimate.record.events.iter().filter(|event| event.allocated).map(|event| event.bytes);
        Self { peak: estimate.peak_allocated, allocations: sizes().count(), total: sizes().sum() }
    }

    /// Whether no larger batch can take more memory: nothing depends on its size, or the step cuts
    /// it into pieces. The peak alone does not show it. It stays the same as long as it is the
    /// optimizer's.
    fn grows_no_more(&self, half: &Self, first: &Self) -> bool {
        let cuts = self.allocations >= 16 * first.allocations;
        self.peak == half.peak && (self.total == half.total || cuts)
    }
}

/// `None` if the trial ran out of memory.
fn if_it_fits(trial: Result<Trial, Error>) -> Result<Option<Trial>, Error> {
    match trial {
        Err(Error::OutOfMemory { .. }) => Ok(None),
        result => result.map(Some),
    }
}

fn estimate<T>(
    device: &RocmDevice,
    limit: Option<usize>,
    step: impl FnOnce(&RocmDevice) -> T,
) -> Result<Estimate, Error> {
    let real = device.open()?;
    real.refuse_captured("an estimate", "what the step makes is no part of the graph")?;
    // Otherwise the step's first op would enqueue it.
    enqueue_own()?;
    let dry = Dry::new(&real, limit)?;
    let stand_in = RocmDevice::new(dry.device().info().index);
    inherit_defaults(device, &stand_in);
    let (outcome, record) = dry.device().pool().record(|| {
        let outcome = catch_unwind(AssertUnwindSafe(|| step(&stand_in)));
        // An error stays with the op's result, which is dropped.
        let _ = enqueue_own();
        outcome
    });
    let summary = dry.device().pool().summary();
    fft::forget_tables(dry.device());
    random::forget(stand_in.index);
    let result = match outcome {
        Ok(result) => result,
        Err(panic) => match take_last_error() {
            Some(error) if says(&*panic, &error) => return Err(error),
            other => {
                other.into_iter().for_each(keep);
                resume_unwind(panic)
            }
        },
    };
    drop(result);
    // An error of a deferred op, which no read has reported.
    dry.device().flush()?;
    // The step may have returned the error, or dropped it.
    if limit.is_some()
        && let Some(error) = dry.device().pool().failure()
    {
        return Err(error);
    }
    let at_peak = kinds::at_peak(&record);
    let mut bytes = at_peak.bytes.into_iter();
    Ok(Estimate {
        peak_allocated: summary.allocated.peak,
        peak_reserved: summary.peak_reserved,
        kinds: MemoryKind::ALL.map(|kind| (kind, bytes.next().unwrap_or(0))),
        guessed: at_peak.guessed,
        record,
    })
}
