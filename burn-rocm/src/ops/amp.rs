//! Casts of many tensors at once, and the unscaling of gradients.

use std::sync::Arc;

use burn_std::{DType, Shape};
use hip::{Device, Error as RocmError, KernelName, Template};

use crate::arg::Arg;
use crate::device::RocmDevice;
use crate::dtype::kernel_type;
use crate::error::{invalid, raise, unsupported};
use crate::ops::cast::cast;
use crate::ops::channels_last::{from_rows, is_channels_last, rows_of};
use crate::ops::copy::{copy, packed};
use crate::ops::create::full_on;
use crate::ops::launch::rows;
use crate::ops::multi_tensor::{Group, Writes, group, tables};
use crate::ops::view::narrow;
use crate::recording::words;
use crate::tensor::RocmTensor;

/// Casts the tensors to the float type `dtype`. Casts between f32 and f16 or bf16 take one launch
/// for up to 165 tensors.
///
/// # Errors
/// `Unsupported` for a dtype that is not a float type; an error of the device.
pub fn cast_all(tensors: Vec<RocmTensor>, dtype: DType) -> Result<Vec<RocmTensor>, RocmError> {
    const OP: &str = "cast_all";
    let to = kernel_type(dtype)?;
    for found in tensors.iter().map(RocmTensor::dtype_of).chain([dtype]) {
        if !found.is_float() {
            return unsupported(OP, found);
        }
    }
    let mut groups = Vec::new();
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let from = tensor.kernel_type()?;
        let together = from != to
            && from != hip::DType::F64
            && [from, to].contains(&hip::DType::F32)
            && to != hip::DType::F64;
        if !together || tensor.is_empty() {
            all.push(cast(tensor, dtype)?);
            continue;
        }
        let last = is_channels_last(&tensor);
        let tensor = packed(if last { rows_of(tensor)? } else { tensor })?;
        let out = RocmTensor::empty(tensor.hip_device(), tensor.layout().shape().clone(), dtype)?;
        let device = tensor.hip_device().clone();
        let kernel = Template::optim_cast.ty(from).ty(to);
        group(&mut groups, &device, kernel).rows.push(vec![tensor, out.clone()]);
        all.push(if last { from_rows(out)? } else { out });
    }
    for Group { device, key: kernel, rows } in &groups {
        for (table, _) in tables(OP, device, rows)? {
            table.launch(OP, *kernel, &[], &[], Writes { of_row: 1, buffers: 0 })?;
        }
    }
    Ok(all)
}

/// Multiplies the gradients by `factor`. Returns them in f32 (f64 gradients stay f64) and one flag
/// for each device, a u32 tensor of shape `[1]`: 1 if an element of a result on that device is
/// infinite or NaN, else 0. One launch takes up to 165 gradients of a dtype. Does not wait for the
/// device.
///
/// Overwrites f32 and f64 gradients that have no other owner.
///
/// # Errors
/// `Unsupported` for a gradient that is not of a float type; an error of the device.
pub fn unscale(grads: Vec<RocmTensor>, factor: f32) -> Result<(Vec<RocmTensor>, Vec<RocmTensor>), RocmError> {
    unscale_by(grads, Factor::Number(factor))
}

/// What gradients are multiplied by.
#[derive(Clone, Copy)]
enum Factor<'a> {
    Number(f32),
    /// `1 / scale` of a scale. With a `Growth`, the launch also sets the scale for the next step.
    Scale(&'a Scale, Option<Growth>),
}

fn unscale_by(
    grads: Vec<RocmTensor>,
    factor: Factor<'_>,
) -> Result<(Vec<RocmTensor>, Vec<RocmTensor>), RocmError> {
    const OP: &str = "unscale";
    let template = match factor {
        Factor::Number(_) => Template::optim_unscale,
        Factor::Scale(..) => Template::optim_unscale_replayed,
    };
    if let Some(other) = grads.iter().find(|grad| !grad.dtype_of().is_float()) {
        return unsupported(OP, other.dtype_of());
    }
    let mut groups = Vec::new();
    let mut all = Vec::with_capacity(grads.len());
    for grad in grads {
        let from = grad.kernel_type()?;
        let (dtype, to) = match from {
            hip::DType::F64 => (DType::F64, hip::DType::F64),
            _ => (DType::F32, hip::DType::F32),
        };
        let last = is_channels_last(&grad);
        let mut grad = packed(if last { rows_of(grad)? } else { grad })?;
        let out = match from == to && grad.can_overwrite() {
            true => grad.clone(),
            false => RocmTensor::empty(grad.hip_device(), grad.layout().shape().clone(), dtype)?,
        };
        if !out.is_empty() {
            let device = out.hip_device().clone();
            let kernel = template.ty(from).ty(to);
            group(&mut groups, &device, kernel).rows.push(vec![grad, out.clone()]);
        }
        all.push(if last { from_rows(out)? } else { out });
    }
    if let Factor::Scale(scale, _) = factor {
        let own = scale.factors.hip_device();
        if let Some(other) = groups.iter().find(|group| !Arc::ptr_eq(&group.device, own)) {
            let found = format!("{:?}", other.device);
            return invalid(OP, "gradients on the device of the loss's scale", found);
        }
    }
    let flags = launch_all(OP, &groups, factor);
    if flags.is_err()
        && let Factor::Scale(Scale { counts, .. }, _) = factor
    {
        // An earlier launch may have set a word that the last one clears. The first error counts.
        let word = size_of::<u32>();
        let at = counts.byte_offset() + 2 * word;
        let _ = counts.hip_device().fill_bytes(counts.buffer(), at, 0, 2 * word);
    }
    Ok((all, flags?))
}

/// Launches the kernels of all groups, and returns the flags.
fn launch_all(
    op: &'static str,
    groups: &[Group<KernelName>],
    factor: Factor<'_>,
) -> Result<Vec<RocmTensor>, RocmError> {
    let mut flags: Vec<RocmTensor> = Vec::new();
    for (g, Group { device, key: kernel, rows }) in groups.iter().enumerate() {
        let at = flags.iter().position(|flag| Arc::ptr_eq(flag.hip_device(), device));
        let at = match at {
            Some(at) => at,
            None => {
                flags.push(match factor {
                    Factor::Number(_) => no_flag(device)?,
                    Factor::Scale(..) => RocmTensor::empty(device, Shape::from([1]), DType::U32)?,
                });
                flags.len() - 1
            }
        };
        let tables = tables(op, device, rows)?;
        let count = tables.len();
        for (t, (table, _)) in tables.into_iter().enumerate() {
            match factor {
                Factor::Number(factor) => {
                    let writes = Writes { of_row: 1, buffers: 1 };
                    table.launch(op, *kernel, &[Arg::F32(factor)], &[Some(&flags[at])], writes)?;
                }
                Factor::Scale(Scale { counts, factors, .. }, growth) => {
                    let is_last = g + 1 == groups.len() && t + 1 == count;
                    let [by, less, every] = Growth::args(growth);
                    let scalars = [by, less, every, Arg::U32(is_last.into())];
                    let buffers = [Some(factors), Some(counts), Some(&flags[at])];
                    let written = if growth.is_some() { 3 } else { 1 };
                    table.launch(op, *kernel, &scalars, &buffers, Writes { of_row: 1, buffers: written })?;
                }
            }
        }
    }
    Ok(flags)
}

/// A flag that is not set.
fn no_flag(device: &Arc<Device>) -> Result<RocmTensor, RocmError> {
    full_on(device, Shape::from([1]), 0i64.into(), DType::U32)
}

/// Whether any flag of [`unscale`] is set. Waits once for each device. In an estimate of memory none
/// is, because a step that is taken needs more memory than one that is skipped.
///
/// # Errors
/// An error of the device, including one that it recorded earlier.
pub fn any_set(flags: Vec<RocmTensor>) -> Result<bool, RocmError> {
    if flags.first().is_some_and(|flag| flag.hip_device().is_dry()) {
        return Ok(false);
    }
    let read = crate::ops::transfer::read_all(flags)?;
    Ok(read.iter().any(|data| data.iter::<u32>().any(|flag| flag != 0)))
}

/// How a loss's scale follows overflows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Multiplies the scale after `interval` steps in a row with finite gradients.
    pub growth: f64,
    /// Multiplies the scale after a step whose gradients overflowed.
    pub backoff: f64,
    /// The number of steps.
    pub interval: usize,
}

impl Growth {
    /// A kernel's arguments; an interval below 0 leaves the scale as it is.
    fn args(by: Option<Self>) -> [Arg; 3] {
        let by = by.map_or([-1.0; 3], |by| [by.growth, by.backoff, by.interval as f64]);
        by.map(Arg::F64)
    }
}

/// A loss's scale in device memory, for steps in a graph.
#[derive(Debug)]
pub struct Scale {
    /// The finite steps since the scale changed, the steps skipped, and two words that are 0
    /// between steps (`optim.hip`): u32 of shape `[4]`.
    counts: RocmTensor,
    /// The scale: f32 of shape `[1]`.
    scale: RocmTensor,
    /// The scale, and `1 / scale` at [`INVERSE`].
    factors: RocmTensor,
}

/// The copy changes on its own.
impl Clone for Scale {
    fn clone(&self) -> Self {
        let copies = copy(&self.counts).and_then(|counts| Self::of(counts, copy(&self.factors)?));
        copies.unwrap_or_else(|error| raise(error))
    }
}

/// The place of `1 / scale` behind the scale, in elements (`optim.hip`).
const INVERSE: usize = 4;

impl Scale {
    fn of(counts: RocmTensor, factors: RocmTensor) -> Result<Self, RocmError> {
        Ok(Self { counts, scale: narrow(factors.clone(), 0, 0, 1)?, factors })
    }

    /// A scale on this device, after this many finite and skipped steps. If this thread is
    /// capturing, the scale is no part of the graph.
    ///
    /// # Errors
    /// `Invalid` for counts beyond 32 bits; an error of the device.
    pub fn new(device: &RocmDevice, scale: f32, finite: usize, skipped: usize) -> Result<Self, RocmError> {
        let [Ok(finite), Ok(skipped)] = [finite, skipped].map(u32::try_from) else {
            return invalid("Scale", "counts below 2^32", format!("{finite} and {skipped}"));
        };
        let device = device.open()?;
        let counts = u64::from(finite) | u64::from(skipped) << 32;
        let mut factors = [0; INVERSE / 2 + 1];
        factors[0] = u64::from(scale.to_bits());
        factors[INVERSE / 2] = u64::from((1.0 / scale).to_bits());
        let counts = words(&device, Shape::from([4]), DType::U32, &[counts, 0])?;
        Self::of(counts, words(&device, Shape::from([2 * factors.len()]), DType::F32, &factors)?)
    }

    /// The scale, an f32 of shape `[1]` that follows the steps.
    pub fn factor(&self) -> RocmTensor {
        self.scale.clone()
    }

    /// The scale, the finite steps since it changed, and the steps skipped. Waits for the device.
    ///
    /// # Errors
    /// `Capture` in a capture; an error of the device.
    pub fn read(&self) -> Result<(f32, usize, usize), RocmError> {
        let all = crate::ops::transfer::read_all(vec![self.counts.clone(), self.scale.clone()])?;
        let counts: Vec<usize> = all[0].iter::<u32>().map(|count| count as usize).collect();
        let scale: Vec<f32> = all[1].iter::<f32>().collect();
        Ok((scale[0], counts[0], counts[1]))
    }

    /// [`unscale`] with `1 / scale`. The flag says whether a gradient is not finite.
    ///
    /// # Errors
    /// As [`unscale`]; `Invalid` for a gradient on another device than the scale's.
    pub fn unscale(&self, grads: Vec<RocmTensor>) -> Result<(Vec<RocmTensor>, RocmTensor), RocmError> {
        self.unscale_with(grads, None)
    }

    /// [`unscale`](Self::unscale) and [`update`](Self::update) by its flag, with one launch fewer. Only
    /// for models that are not divided among devices, whose flags would have to agree first.
    ///
    /// # Errors
    /// As [`unscale`](Self::unscale).
    pub fn unscale_and_update(
        &self,
        grads: Vec<RocmTensor>,
        by: Growth,
    ) -> Result<(Vec<RocmTensor>, RocmTensor), RocmError> {
        self.unscale_with(grads, Some(by))
    }

    fn unscale_with(
        &self,
        grads: Vec<RocmTensor>,
        by: Option<Growth>,
    ) -> Result<(Vec<RocmTensor>, RocmTensor), RocmError> {
        let (grads, mut flags) = unscale_by(grads, Factor::Scale(self, by))?;
        if let Some(flag) = flags.pop() {
            return Ok((grads, flag));
        }
        let flag = no_flag(self.factors.hip_device())?;
        if let Some(by) = by {
            self.update(&flag, by)?;
        }
        Ok((grads, flag))
    }

    /// Sets the scale for the next step, and counts this one.
    ///
    /// # Errors
    /// An error of the device.
    pub fn update(&self, flag: &RocmTensor, by: Growth) -> Result<(), RocmError> {
        let device = flag.hip_device();
        let kernel = Template::optim_rescale.name();
        let outputs = [&self.counts, &self.factors];
        rows("rescale", device, kernel, device.grid(1), &Growth::args(Some(by)), &[flag], &[], &outputs)
    }
}
