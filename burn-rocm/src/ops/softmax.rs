//! Softmax and its logarithm along an axis, with their gradients.

use hip::{Error as RocmError, Grid, Template};

use super::copy::packed;
use super::reduce::Lines;
use crate::arg::Arg;
use crate::tensor::{RocmTensor, check_gradient, float_type};

/// The gradient with respect to the input, from the output and the output's gradient.
fn backward(
    op: &'static str,
    names: [Template; 2],
    output: RocmTensor,
    grad: RocmTensor,
    axis: usize,
) -> hip::Result<RocmTensor> {
    float_type(op, &output)?;
    check_gradient(op, &output, &grad)?;
    let ty = output.kernel_type()?;
    let lines = Lines::new(op, packed(output)?, axis)?;
    let grad = packed(grad)?;
    let out = grad.empty_like()?;
    if !out.is_empty() {
        let names = names.map(|name| name.ty(ty));
        lines.launch(op, names, lines.kept_row_grid(), 1, &[], [&[&grad], &[&out]])?;
    }
    Ok(out)
}

/// The grid of kernels in which a team of lanes of one warp takes a row and keeps it in registers,
/// and the team's size. `None` for rows that are too long for a warp, or that don't begin and end at
/// multiples of 16 bytes.
fn team_grid(lines: &Lines) -> Option<(Grid, u32)> {
    // A lane keeps at most 64 bytes of the type in which it computes (`KeptRow` in `rows.h`).
    const KEPT: usize = 64;
    let (x, len) = (&lines.tensor, lines.len);
    let (device, size) = (x.hip_device(), x.dtype_size());
    let (threads, warp) = (device.block_threads(), device.info().warp_size);
    let lanes = (len * size).div_ceil(16).next_power_of_two().min(warp as usize);
    let fits = len * size.max(4) <= KEPT * lanes;
    let whole = (len * size).is_multiple_of(16) && x.byte_offset().is_multiple_of(16);
    if lines.inner != 1 || threads < warp.max(2) || !fits || !whole {
        return None;
    }
    let rows = lines.outer.div_ceil(threads as usize / lanes);
    Some((Grid { threads, ..device.grid_rows(rows, threads as usize) }, lanes as u32))
}

/// Launches the row or the column kernel of `names` along the axis. For rows that a part of a warp
/// can keep ([`team_grid`]), it launches `short` instead.
fn along(
    op: &'static str,
    names: [Template; 2],
    short: Option<Template>,
    tensor: RocmTensor,
    axis: usize,
) -> hip::Result<RocmTensor> {
    float_type(op, &tensor)?;
    let ty = tensor.kernel_type()?;
    let lines = Lines::new(op, tensor, axis)?;
    let input = &lines.tensor;
    let out = input.empty_like()?;
    if !out.is_empty() {
        let [row, column] = names.map(|name| name.ty(ty));
        match (short, team_grid(&lines)) {
            (Some(short), Some((grid, lanes))) => {
                lines.launch(op, [short.ty(ty), column], grid, 1, &[Arg::U32(lanes)], [&[], &[&out]])?;
            }
            _ => lines.launch(op, [row, column], lines.kept_row_grid(), 1, &[], [&[], &[&out]])?,
        }
    }
    lines.restore(out)
}

/// `exp(x - max) / sum(exp(x - max))` along an axis.
///
/// # Errors
/// `Invalid` for an axis beyond the rank of `x`; `Unsupported` for integers; an error of the
/// device.
pub fn softmax(x: RocmTensor, axis: usize) -> Result<RocmTensor, RocmError> {
    let names = [Template::softmax_rows, Template::softmax_columns];
    along("softmax", names, Some(Template::softmax_short_rows), x, axis)
}

/// The gradient of [`softmax`], from its output `y`: `y (grad - sum(grad y))`.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ, or for an axis beyond the rank of `y`;
/// `Unsupported` for integers; an error of the device.
pub fn softmax_backward(y: RocmTensor, grad: RocmTensor, axis: usize) -> Result<RocmTensor, RocmError> {
    let names = [Template::softmax_rows_backward, Template::softmax_columns_backward];
    backward("softmax_backward", names, y, grad, axis)
}

/// The softmax of `-x`.
pub(crate) fn softmin(tensor: RocmTensor, axis: usize) -> hip::Result<RocmTensor> {
    along("softmin", [Template::softmin_rows, Template::softmin_columns], None, tensor, axis)
}

/// `x - max - log(sum(exp(x - max)))` along an axis.
///
/// # Errors
/// `Invalid` for an axis beyond the rank of `x`; `Unsupported` for integers; an error of the
/// device.
pub fn log_softmax(x: RocmTensor, axis: usize) -> Result<RocmTensor, RocmError> {
    let names = [Template::log_softmax_rows, Template::log_softmax_columns];
    along("log_softmax", names, Some(Template::log_softmax_short_rows), x, axis)
}

/// The gradient of [`log_softmax`], from its output `y`: `grad - exp(y) sum(grad)`.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ, or for an axis beyond the rank of `y`;
/// `Unsupported` for integers; an error of the device.
pub fn log_softmax_backward(y: RocmTensor, grad: RocmTensor, axis: usize) -> Result<RocmTensor, RocmError> {
    let names = [Template::log_softmax_rows_backward, Template::log_softmax_columns_backward];
    backward("log_softmax_backward", names, y, grad, axis)
}
