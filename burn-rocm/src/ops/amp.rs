//! Casts of many tensors at once, and the unscaling of gradients.

use std::sync::Arc;

use burn_std::{DType, Shape};
use hip::{Device, Error as RocmError, Template};

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
    /// An f32 in device memory.
    Tensor(&'a RocmTensor),
}

fn unscale_by(
    grads: Vec<RocmTensor>,
    factor: Factor<'_>,
) -> Result<(Vec<RocmTensor>, Vec<RocmTensor>), RocmError> {
    const OP: &str = "unscale";
    let template = match factor {
        Factor::Number(_) => Template::optim_unscale,
        Factor::Tensor(_) => Template::optim_unscale_replayed,
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
    let mut flags: Vec<RocmTensor> = Vec::new();
    for Group { device, key: kernel, rows } in &groups {
        let at = flags.iter().position(|flag| Arc::ptr_eq(flag.hip_device(), device));
        let at = match at {
            Some(at) => at,
            None => {
                flags.push(no_flag(device)?);
                flags.len() - 1
            }
        };
        for (table, _) in tables(OP, device, rows)? {
            let writes = Writes { of_row: 1, buffers: 1 };
            match factor {
                Factor::Number(factor) => {
                    table.launch(OP, *kernel, &[Arg::F32(factor)], &[Some(&flags[at])], writes)?;
                }
                Factor::Tensor(factor) => {
                    table.launch(OP, *kernel, &[], &[Some(factor), Some(&flags[at])], writes)?;
                }
            }
        }
    }
    Ok((all, flags))
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

/// A loss's scale in device memory, for steps in a graph.
#[derive(Debug)]
pub struct Scale {
    /// The finite steps since the scale changed, and the steps skipped: u32 of shape `[2]`.
    counts: RocmTensor,
    /// The scale and `1 / scale`: f32 of shape `[1]` each.
    scale: RocmTensor,
    inverse: RocmTensor,
    /// Both.
    factors: RocmTensor,
}

/// The copy changes on its own.
impl Clone for Scale {
    fn clone(&self) -> Self {
        let copies = copy(&self.counts).and_then(|counts| Self::of(counts, copy(&self.factors)?));
        copies.unwrap_or_else(|error| raise(error))
    }
}

/// The place of `1 / scale` behind the scale, in elements: at the next 16 bytes, where a kernel's
/// argument may begin.
const INVERSE: usize = 4;

impl Scale {
    fn of(counts: RocmTensor, factors: RocmTensor) -> Result<Self, RocmError> {
        let at = |start| narrow(factors.clone(), 0, start, 1);
        Ok(Self { counts, scale: at(0)?, inverse: at(INVERSE)?, factors })
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
        let [scale, inverse] = [scale, 1.0 / scale].map(|factor| u64::from(factor.to_bits()));
        let counts = words(&device, Shape::from([2]), DType::U32, &[counts])?;
        Self::of(counts, words(&device, Shape::from([6]), DType::F32, &[scale, 0, inverse])?)
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

    /// [`unscale`] with `1 / scale`, for gradients of the scale's device. The flag says whether one
    /// is not finite.
    ///
    /// # Errors
    /// As [`unscale`]; `Invalid` for a gradient on another device.
    pub fn unscale(&self, grads: Vec<RocmTensor>) -> Result<(Vec<RocmTensor>, RocmTensor), RocmError> {
        let (grads, mut flags) = unscale_by(grads, Factor::Tensor(&self.inverse))?;
        if flags.is_empty() {
            return Ok((grads, no_flag(self.factors.hip_device())?));
        }
        match (flags.pop(), flags.is_empty()) {
            (Some(flag), true) if Arc::ptr_eq(flag.hip_device(), self.factors.hip_device()) => {
                Ok((grads, flag))
            }
            (flag, _) => {
                let found = format!("those of {} devices", flags.len() + flag.map_or(0, |_| 1));
                invalid("unscale", "gradients on the device of the loss's scale", found)
            }
        }
    }

    /// Sets the scale for the next step, and counts this one.
    ///
    /// # Errors
    /// An error of the device.
    pub fn update(&self, flag: &RocmTensor, by: Growth) -> Result<(), RocmError> {
        let mut settings = [0.0; 12];
        settings[..3].copy_from_slice(&[by.growth, by.backoff, by.interval as f64]);
        let device = flag.hip_device();
        let kernel = Template::optim_rescale.name();
        let outputs = [&self.counts, &self.factors];
        rows("rescale", device, kernel, device.grid(1), &[Arg::F64x12(settings)], &[flag], &[], &outputs)
    }
}
