//! Convolutions and image patches by kernels of this project, where MIOpen can't compute them.

use burn_std::DType;
use hip::{ConvDesc, Functor, Template};

use super::options::Options;
use crate::arg::Arg;
use crate::dtype::raw_type;
use crate::error::invalid;
use crate::layout::count;
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::launch::rows;
use crate::ops::reduce::reduce_dim;
use crate::ops::view::reshape;
use crate::tensor::RocmTensor;

/// The largest position along an axis that the kernels handle.
const MAX_SIZE: usize = 1 << 30;

/// Output channels that one thread computes (`CHANNELS` of `conv.hip`).
const CHANNELS: usize = 4;

/// The fewest terms of one part of a sum that is cut into parts. Smaller parts cost more than they
/// save, as for reductions.
const LEAST_PART: usize = 1024;

/// The kernels' struct `Convolution`. It always has three axes; if there are fewer, the outer ones
/// have size 1.
pub(super) fn value(op: &'static str, desc: &ConvDesc) -> hip::Result<Arg> {
    let axes = desc.stride.len();
    let (x, w, y) = (&desc.x[2..], &desc.w[2..], &desc.y[2..]);
    let padded =
        x.iter().zip(&desc.padding).all(|(&x, &p)| p < MAX_SIZE && x < MAX_SIZE && x + 2 * p < MAX_SIZE);
    if !padded || [desc.x[1], desc.w[0], desc.w[1]].iter().any(|&channels| channels >= MAX_SIZE) {
        return invalid(op, format!("channels and padded axes below {MAX_SIZE}"), format!("{desc:?}"));
    }
    // A padded axis is shorter than `MAX_SIZE`, so no window ever takes a step of that size.
    let step = |values: &[usize]| values.iter().map(|&v| v.min(MAX_SIZE)).collect::<Vec<_>>();
    let (stride, dilation) = (step(&desc.stride), step(&desc.dilation));
    let groups = [desc.groups, desc.w[1], desc.w[0] / desc.groups];
    let mut values = [0u32; 21];
    for (to, from) in values.iter_mut().zip(groups) {
        *to = from as u32;
    }
    let rows: [(&[usize], usize); 6] =
        [(x, 1), (y, 1), (w, 1), (&stride, 1), (&desc.padding, 0), (&dilation, 1)];
    for (row, (from, absent)) in rows.into_iter().enumerate() {
        for axis in 0..3 {
            let given = (axis + axes).checked_sub(3).map_or(absent, |axis| from[axis]);
            values[3 + row * 3 + axis] = given as u32;
        }
    }
    Ok(Arg::U32x21(values))
}

/// `x * weight` into `out`.
pub(super) fn forward(
    op: &'static str,
    desc: &ConvDesc,
    [x, weight]: [&RocmTensor; 2],
) -> hip::Result<RocmTensor> {
    let out = RocmTensor::empty(x.hip_device(), desc.y.clone(), x.dtype_of())?;
    let dims = [Arg::U64(desc.x[0] as u64), value(op, desc)?];
    let name = Template::conv_forward.ty(x.kernel_type()?);
    let device = out.hip_device();
    rows(op, device, name, device.grid(out.len()), &dims, &[x, weight], &[], &[&out])?;
    Ok(out)
}

/// The gradient of the input.
pub(super) fn x_backward(
    op: &'static str,
    desc: &ConvDesc,
    [grad, weight]: [&RocmTensor; 2],
) -> hip::Result<RocmTensor> {
    let out = RocmTensor::empty(grad.hip_device(), desc.x.clone(), grad.dtype_of())?;
    let dims = [Arg::U64(desc.x[0] as u64), value(op, desc)?];
    let name = Template::conv_backward_data.ty(grad.kernel_type()?);
    let device = out.hip_device();
    rows(op, device, name, device.grid(out.len()), &dims, &[grad, weight], &[], &[&out])?;
    Ok(out)
}

/// The gradient of the weight.
pub(super) fn weight_backward(
    op: &'static str,
    desc: &ConvDesc,
    [grad, x]: [&RocmTensor; 2],
) -> hip::Result<RocmTensor> {
    let device = grad.hip_device();
    let sizes = value(op, desc)?;
    let width = *desc.y.last().unwrap_or(&1);
    let lines = desc.y[0] * desc.y[2..desc.y.len() - 1].iter().product::<usize>();
    let blocks = desc.w.iter().product::<usize>().div_ceil(CHANNELS);
    let busy = 2 * device.info().compute_units as usize;
    let parts = busy.div_ceil(blocks).min(lines * width / LEAST_PART);
    // The kernel counts the terms of a part in 31 bits.
    let parts = parts.max((lines * width).div_ceil(MAX_SIZE / 2)).clamp(1, lines);
    // Partial sums keep the precision in which they were computed.
    let halves = matches!(grad.dtype_of(), DType::F16 | DType::BF16);
    let summed = if halves { DType::F32 } else { grad.dtype_of() };
    let mut shape = vec![parts];
    shape.extend(&desc.w);
    let sums = RocmTensor::empty(device, shape, summed)?;
    let dims = [Arg::U64(desc.y[0] as u64), Arg::U32(parts as u32), sizes];
    let name = Template::conv_backward_weights.ty(grad.kernel_type()?);
    let grid = device.grid_rows(blocks * parts, (lines / parts) * width);
    rows(op, device, name, grid, &dims, &[grad, x], &[], &[&sums])?;
    let sum = if parts > 1 { reduce_dim(op, Functor::Sum, sums, 0)? } else { sums };
    cast(reshape(sum, &desc.w)?, grad.dtype_of())
}

/// The patches of `x` `[batch, channels, height, width]` under a window:
/// `[batch, channels * window, patches]`.
pub(crate) fn unfold4d(x: RocmTensor, window: [usize; 2], options: &Options) -> hip::Result<RocmTensor> {
    let op = "unfold4d";
    let &[batch, channels, height, width] = x.dims() else {
        return invalid(op, "an input of rank 4", format!("{:?}", x.dims()));
    };
    let dims = [1, 1, height, width];
    let window = [1, 1, window[0], window[1]];
    let Options { stride, padding, dilation, .. } = options;
    let desc = ConvDesc::new(hip::DType::F32, &dims, &window, stride, padding, dilation, 1);
    let desc = desc.map_err(|error| match error {
        hip::Error::Invalid { expected, .. } => hip::Error::Invalid {
            op,
            expected,
            found: format!("input {:?}, window {:?}, {options:?}", x.dims(), &window[2..]),
        },
        other => other,
    })?;
    let sizes = value(op, &desc)?;
    let inner = channels.saturating_mul(window[2]).saturating_mul(window[3]);
    let shape = vec![batch, inner, desc.y[2] * desc.y[3]];
    if count(&shape).is_none() {
        return invalid(
            op,
            "patches that fit memory",
            format!("input {:?}, window {:?}", x.dims(), &window[2..]),
        );
    }
    let x = packed(x)?;
    let device = x.hip_device();
    let out = RocmTensor::empty(device, shape, x.dtype_of())?;
    if !out.is_empty() {
        let dims = [Arg::U64((batch * channels) as u64), sizes];
        let name = Template::conv_patches.ty(raw_type(x.kernel_type()?));
        rows(op, device, name, device.grid(out.len()), &dims, &[&x], &[], &[&out])?;
    }
    Ok(out)
}
