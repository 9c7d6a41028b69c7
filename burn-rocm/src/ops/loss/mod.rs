//! Losses and their gradients. This file holds what several of them share.

pub(crate) mod classes;
pub(crate) mod ctc;
pub(crate) mod elements;

use hip::{Device, Grid, Template};

use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::copy::packed;
use crate::ops::launch::views;
use crate::tensor::{RocmTensor, one_device};

/// The most items that a single block takes. With several blocks, one more launch joins their sums.
const ONE_BLOCK: usize = 1 << 14;

/// A grid over items.
fn items_grid(device: &Device, items: usize) -> Grid {
    let grid = device.grid(items);
    if items <= ONE_BLOCK { Grid { blocks: 1, ..grid } } else { grid }
}

/// A buffer for each block's sums; `None` if there is only one block.
fn room(like: &RocmTensor, grid: Grid) -> hip::Result<Option<RocmTensor>> {
    let sums =
        || RocmTensor::empty(like.hip_device(), [grid.blocks as usize, 2], compute_dtype(like.dtype_of()));
    (grid.blocks > 1).then(sums).transpose()
}

/// Adds up the blocks' sums to the loss.
fn total(
    op: &'static str,
    partial: Option<&RocmTensor>,
    weight: Option<&RocmTensor>,
    divisor: f64,
    out: &RocmTensor,
) -> hip::Result<()> {
    let Some(partial) = partial else { return Ok(()) };
    let parts = partial.dims()[0];
    let kernel = Template::loss_total.ty(out.kernel_type()?);
    // A single block computes this, so the block is large. A thread takes eight parts.
    let info = out.hip_device().info();
    let wanted = parts.div_ceil(8).next_power_of_two().min(info.max_threads_per_block as usize) as u32;
    let grid = Grid { blocks: 1, threads: wanted.max(info.warp_size).min(info.max_threads_per_block) };
    let (dims, scalars) = ([Arg::U64(parts as u64)], [Arg::F64(divisor)]);
    views(op, out.hip_device(), kernel, grid, &dims, &[Some(partial), weight], &scalars, out)
}

/// Checks the gradient of a reduced loss: one element, of `x`'s dtype and on `x`'s device.
fn one_gradient(op: &'static str, x: &RocmTensor, grad: RocmTensor) -> hip::Result<RocmTensor> {
    one_device(op, &[x, &grad])?;
    if grad.dims() != [1] || grad.dtype_of() != x.dtype_of() {
        let found = format!("{:?} of {}", grad.dims(), grad.dtype_of().name());
        return invalid(op, format!("a gradient of shape [1] of {}", x.dtype_of().name()), found);
    }
    packed(grad)
}
