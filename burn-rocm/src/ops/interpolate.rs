//! Resizing of images and its gradient, and sampling of images at given points.

use burn_std::{DType, Slice};
use hip::Template;

use super::copy::{copy, packed};
use super::create::full_on;
use super::launch::rows;
use super::view::slice;
use crate::arg::Arg;
use crate::burn::TIES_TO_EVEN;
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// The interpolation mode, numbered as in `interpolate.hip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Nearest = 0,
    /// The pixel that holds the output pixel's centre. ([`Self::Nearest`] takes the pixel that
    /// holds its upper left corner.)
    NearestExact = -1,
    Bilinear = 1,
    Bicubic = 2,
    Lanczos3 = 3,
}

/// The value of a sample outside the image, numbered as in `interpolate.hip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Padding {
    Zeros = 0,
    Border = 1,
    Reflection = 2,
}

/// Weights in a row of the tables (`TAPS` of `interpolate.hip`).
const TAPS: usize = 6;

/// The largest index that the kernels handle.
const MAX_SIZE: usize = 1 << 30;

/// The sizes `[batch, channels, height, width]` of images. Checks that the images have pixels.
fn image(op: &'static str, x: &[usize]) -> hip::Result<[usize; 4]> {
    match *x {
        [batch, channels, height, width] if [height, width].iter().all(|n| (1..MAX_SIZE).contains(n)) => {
            Ok([batch, channels, height, width])
        }
        _ => invalid(op, "an input [batch, channels, height, width] with pixels", format!("{x:?}")),
    }
}

fn sized(op: &'static str, size: [usize; 2]) -> hip::Result<()> {
    match size.iter().all(|&n| n < MAX_SIZE) {
        true => Ok(()),
        false => invalid(op, format!("a size below {MAX_SIZE}"), format!("{size:?}")),
    }
}

fn u(value: usize) -> Arg {
    Arg::U32(value as u32)
}

/// The distance between neighbouring outputs, in input pixels.
fn ratio(mode: Mode, input: usize, output: usize, align_corners: bool) -> f64 {
    match mode {
        // The centre of a pixel is a corner in a grid of twice as many pixels. The quotient is
        // rounded up. Otherwise a product that should be a whole number could fall just below it.
        Mode::NearestExact => (input as f64 / (2 * output) as f64).next_up(),
        Mode::Nearest => input as f64 / output as f64,
        _ if align_corners => (input - 1) as f64 / output.saturating_sub(1).max(1) as f64,
        _ => input as f64 / output as f64,
    }
}

/// The weights and the input indices for each output row, then for each output column.
fn tables(
    op: &'static str,
    like: &RocmTensor,
    from: [usize; 2],
    to: [usize; 2],
    mode: Mode,
    align_corners: bool,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let device = like.hip_device();
    let [y, x] = [0, 1].map(|axis| Arg::F64(ratio(mode, from[axis], to[axis], align_corners)));
    let (lines, kernel_mode) = match mode {
        Mode::NearestExact => (to.map(|n| 2 * n), Mode::Nearest),
        mode => (to, mode),
    };
    let count = lines[0] + lines[1];
    let dtype = if like.dtype_of() == DType::F64 { DType::F64 } else { DType::F32 };
    let weights = RocmTensor::empty(device, vec![count, TAPS], dtype)?;
    let spans = RocmTensor::empty(device, vec![count, 2], DType::I32)?;
    let sizes = [u(from[0]), u(from[1]), u(lines[0]), u(lines[1])];
    let options = [Arg::I32(kernel_mode as i32), Arg::I32(align_corners as i32), y, x];
    let name = Template::interpolate_table.ty(weights.kernel_type()?);
    rows(op, device, name, device.grid(count), &[sizes, options].concat(), &[], &[], &[&weights, &spans])?;
    if mode == Mode::NearestExact {
        let centres = |table: RocmTensor| copy(&slice(table, &[Slice::new(1, None, 2), Slice::full()])?);
        return Ok((centres(weights)?, centres(spans)?));
    }
    Ok((weights, spans))
}

/// `x` resized to `size`.
pub(crate) fn interpolate(
    x: RocmTensor,
    size: [usize; 2],
    mode: Mode,
    align_corners: bool,
) -> hip::Result<RocmTensor> {
    let op = "interpolate";
    let [batch, channels, height, width] = image(op, x.dims())?;
    sized(op, size)?;
    let x = packed(x)?;
    let device = x.hip_device();
    let out = RocmTensor::empty(device, vec![batch, channels, size[0], size[1]], x.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    let (weights, spans) = tables(op, &x, [height, width], size, mode, align_corners)?;
    let dims = [Arg::U64((batch * channels) as u64), u(height), u(width), u(size[0]), u(size[1])];
    let name = Template::interpolate.ty(x.kernel_type()?);
    rows(op, device, name, device.grid(out.len()), &dims, &[&x, &weights, &spans], &[], &[&out])?;
    Ok(out)
}

/// The gradient with respect to the input of [`interpolate`].
pub(crate) fn interpolate_backward(
    x: RocmTensor,
    grad: RocmTensor,
    size: [usize; 2],
    mode: Mode,
    align_corners: bool,
) -> hip::Result<RocmTensor> {
    let op = "interpolate_backward";
    one_device(op, &[&x, &grad])?;
    one_dtype(op, &[&x, &grad])?;
    let [batch, channels, height, width] = image(op, x.dims())?;
    sized(op, size)?;
    let expected = [batch, channels, size[0], size[1]];
    if grad.dims() != expected {
        return invalid(op, format!("a gradient of shape {expected:?}"), format!("{:?}", grad.dims()));
    }
    let device = grad.hip_device();
    if grad.is_empty() {
        return full_on(device, x.dims().to_vec(), 0i64.into(), x.dtype_of());
    }
    let grad = packed(grad)?;
    let device = grad.hip_device();
    let out = RocmTensor::empty(device, x.dims().to_vec(), x.dtype_of())?;
    let (weights, spans) = tables(op, &grad, [height, width], size, mode, align_corners)?;
    let reach = RocmTensor::empty(device, vec![height + width, 2], DType::I32)?;
    let sizes = [u(height), u(width), u(size[0]), u(size[1])];
    let name = Template::interpolate_reach.name();
    rows(op, device, name, device.grid(height + width), &sizes, &[&spans], &[], &[&reach])?;
    let dims = [&[Arg::U64((batch * channels) as u64)], &sizes[..]].concat();
    let name = Template::interpolate_backward.ty(grad.kernel_type()?);
    let inputs = [&grad, &weights, &spans, &reach];
    rows(op, device, name, device.grid(out.len()), &dims, &inputs, &[], &[&out])?;
    Ok(out)
}

/// Samples each plane of `x` at the points `grid` `[batch, height, width, 2]`, whose coordinates -1
/// and 1 are the image's edges.
pub(crate) fn grid_sample(
    x: RocmTensor,
    grid: RocmTensor,
    mode: Mode,
    padding: Padding,
    align_corners: bool,
) -> hip::Result<RocmTensor> {
    let op = "grid_sample_2d";
    // `Nearest` already samples the pixel whose centre is nearest.
    let mode = if mode == Mode::NearestExact { Mode::Nearest } else { mode };
    one_device(op, &[&x, &grid])?;
    one_dtype(op, &[&x, &grid])?;
    let [batch, channels, height, width] = image(op, x.dims())?;
    let &[of, out_height, out_width, 2] = grid.dims() else {
        return invalid(op, "a grid [batch, height, width, 2]", format!("{:?}", grid.dims()));
    };
    if of != batch {
        return invalid(op, format!("a grid of batch {batch}"), format!("{:?}", grid.dims()));
    }
    let (x, grid) = (packed(x)?, packed(grid)?);
    let device = x.hip_device();
    let out = RocmTensor::empty(device, vec![batch, channels, out_height, out_width], x.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    // One thread samples a point in several channels: as many as leave enough threads to fill the
    // device.
    let points = out_height * out_width;
    let groups = ENOUGH_ITEMS.div_ceil(batch * points).min(channels);
    let dims = [
        Arg::U64(batch as u64),
        u(channels),
        u(groups),
        u(height),
        u(width),
        Arg::U64(points as u64),
        Arg::I32(mode as i32),
        Arg::I32(padding as i32),
        Arg::I32(align_corners as i32),
        Arg::I32(TIES_TO_EVEN as i32),
    ];
    // The most pixels along one axis that a sample reads.
    let taps = match mode {
        Mode::Nearest | Mode::NearestExact | Mode::Bilinear => 2,
        Mode::Bicubic => 4,
        Mode::Lanczos3 => 6,
    };
    let name = Template::grid_sample_2d.ty(x.kernel_type()?).int(taps);
    let launch = device.grid(batch * groups * points);
    rows(op, device, name, launch, &dims, &[&x, &grid], &[], &[&out])?;
    Ok(out)
}

/// Work items that keep the largest devices busy.
const ENOUGH_ITEMS: usize = 1 << 16;
