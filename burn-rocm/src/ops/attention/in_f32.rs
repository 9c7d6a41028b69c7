//! Attention of f32 without mask, bias, softcap and dropout by larger tiles for each thread
//! (`attention_f32.hip`), and its gradients (`attention_f32_backward.hip`). No scores are stored.
//! For 65 to 128 features, GPUs with enough shared memory have kernels that keep operands there
//! (`attention_f32_kept.hip`, `attention_f32_kept_backward.hip`).

use burn_std::DType;
use hip::{Device, Grid, Template};

use super::softmax::is_readable;
use super::strides;
use super::window::Window;
use crate::arg::Arg;
use crate::ops::copy::packed;
use crate::ops::launch::views_to_with;
use crate::tensor::RocmTensor;

/// Queries of a tile (`ROWS` of `attention_f32.hip`).
const ROWS: usize = 128;
/// Elements of one memory access (`WIDTH`).
const WIDTH: usize = 4;
/// Numbers of threads that share rows (`TEAM`). The kernel has a variant for each.
const TEAMS: [usize; 2] = [8, 16];
/// Columns of values of a thread (`SIZE`).
const VALUES: usize = 8;
/// The teams of a block (`TEAMS`).
const TEAMS_OF_BLOCK: usize = 16;
/// Queries, keys or features of a tile of the gradients (`SIZE` of `attention_f32_backward.hip`).
const SIZE: usize = 64;
/// The threads of a block of the gradients' kernels.
const BACKWARD_THREADS: u32 = 128;
/// The most features and values of the kernels that keep operands (`FEATURES`).
const KEPT_FEATURES: usize = 128;
/// The team of `attention_f32_kept`.
const KEPT_TEAM: usize = 8;
/// The bytes of shared memory of a block of `attention_f32_kept`, and of its gradients' kernel
/// (`FLOATS`).
const KEPT_BYTES: u32 = 115_712;
const KEPT_BYTES_BACKWARD: u32 = 115_456;

/// Whether the kernels of this file take tensors of these sizes, once they are readable: `queries` with
/// `width` features each, and keys with as many and `values` values.
fn takes(device: &Device, ty: hip::DType, queries: usize, width: usize, values: usize) -> bool {
    ty == hip::DType::F32
        && device.block_threads() == 256
        && queries > ROWS / 2
        && [width, values].iter().all(|&columns| columns > 0 && columns.is_multiple_of(WIDTH))
        && TEAMS.into_iter().any(|team| values <= team * VALUES)
}

/// Whether the kernels of this file compute attention and its gradients, without a mask and dropout.
pub(super) fn trains(device: &Device, ty: hip::DType, queries: usize, width: usize, values: usize) -> bool {
    takes(device, ty, queries, width, values) && width.max(values) <= 2 * SIZE
}

/// The tensor, or a packed copy if the kernels cannot read it.
pub(super) fn readable(tensor: &RocmTensor) -> hip::Result<RocmTensor> {
    if is_readable(tensor) { Ok(tensor.clone()) } else { packed(tensor.clone()) }
}

/// The kernel for a call.
pub(super) struct InF32<'a> {
    inputs: [&'a RocmTensor; 3],
    team: usize,
    /// Whether it keeps its queries in shared memory.
    kept: bool,
}

impl<'a> InF32<'a> {
    /// The kernel for queries `[batch, heads, queries, features]` and their keys and values; `None` if
    /// it does not take them, or if most of its tile would be empty.
    pub(super) fn of(inputs: [&'a RocmTensor; 3]) -> hip::Result<Option<Self>> {
        let [query, key, value] = inputs;
        let (&[_, _, queries, width], &[.., values]) = (query.dims(), value.dims()) else { return Ok(None) };
        let device = query.hip_device();
        let fits = takes(device, query.kernel_type()?, queries, width, values)
            && [query, key, value].into_iter().all(is_readable);
        let team = TEAMS.into_iter().find(|&team| values <= team * VALUES);
        let kept = values > TEAMS[0] * VALUES
            && width.max(values) <= KEPT_FEATURES
            && device.info().holds_two_copying_blocks(KEPT_BYTES);
        Ok(team.filter(|_| fits).map(|team| Self { inputs, team, kept }))
    }

    /// `softmax(window(scale q k^T)) v`, written to `out`, which is packed. `shape` is that of
    /// padded sequences. `sums` receives what the gradient needs of each row.
    pub(super) fn launch(
        &self,
        op: &'static str,
        shape: Arg,
        (scale, window): (f64, Window),
        out: &RocmTensor,
        sums: Option<&RocmTensor>,
    ) -> hip::Result<()> {
        let [query, ..] = self.inputs;
        let (device, &[batch, heads, queries, _]) = (query.hip_device(), query.dims()) else {
            return crate::error::invalid(op, "rank 4", format!("{:?}", query.dims()));
        };
        let inputs = self.inputs.map(Some);
        let dims: Vec<Arg> = [shape].into_iter().chain(inputs.map(strides)).collect();
        let scalars = [Arg::F32(scale as f32), window.arg()];
        let tiles = batch * heads * queries.div_ceil(ROWS);
        let (kernel, team, bytes) = if self.kept {
            (Template::attention_f32_kept.ty(hip::DType::F32), KEPT_TEAM, KEPT_BYTES)
        } else {
            (Template::attention_f32.ty(hip::DType::F32).int(self.team as i32), self.team, 0)
        };
        let threads = (TEAMS_OF_BLOCK * team) as u32;
        let grid = Grid { blocks: device.grid_rows(tiles, usize::MAX).blocks, threads };
        views_to_with(op, device, kernel, (grid, bytes), &dims, &inputs, &scalars, &[Some(out), sums])
    }
}

/// The kernel for the gradients of a call.
pub(super) struct InF32Backward<'a> {
    /// Query, key, value, and the output's gradient.
    inputs: [&'a RocmTensor; 4],
    /// Groups of features.
    parts: usize,
    /// Tiles of keys, of all heads of keys.
    items: usize,
}

impl<'a> InF32Backward<'a> {
    /// The kernel for queries `[batch, heads, queries, features]`, their keys and values, and the output's
    /// gradient; `None` if it does not take them.
    pub(super) fn of(inputs: [&'a RocmTensor; 4]) -> hip::Result<Option<Self>> {
        let [query, key, value, _] = inputs;
        let (&[_, _, queries, width], &[batch, shared, keys, _], &[.., values]) =
            (query.dims(), key.dims(), value.dims())
        else {
            return Ok(None);
        };
        let items = batch * shared * keys.div_ceil(SIZE);
        let fits = trains(query.hip_device(), query.kernel_type()?, queries, width, values)
            && u32::try_from(items).is_ok()
            && inputs.into_iter().all(is_readable);
        let parts = width.max(values).div_ceil(SIZE);
        Ok(fits.then_some(Self { inputs, parts, items }))
    }

    /// The gradients of queries (if wanted), keys and values, written to packed tensors. `rows` are the
    /// sums that the forward pass kept of each row, and the dot product of its output and its gradient.
    pub(super) fn launch(
        &self,
        op: &'static str,
        shape: Arg,
        (scale, window): (f64, Window),
        rows: [&RocmTensor; 2],
        [by_query, by_key, by_value]: [Option<&RocmTensor>; 3],
    ) -> hip::Result<()> {
        let [query, ..] = self.inputs;
        let (device, &[batch, heads, queries, _]) = (query.hip_device(), query.dims()) else {
            return crate::error::invalid(op, "rank 4", format!("{:?}", query.dims()));
        };
        // The number of tiles of keys that blocks have taken, and for each tile of queries the number
        // of tiles of keys that were added to its gradient.
        let words = 1 + batch * heads * queries.div_ceil(SIZE);
        let state = RocmTensor::empty(device, [words], DType::U32)?;
        device.fill_bytes(state.buffer(), 0, 0, words * size_of::<u32>())?;
        let dims: Vec<Arg> = [shape].into_iter().chain(self.inputs.map(|t| strides(Some(t)))).collect();
        let inputs: Vec<Option<&RocmTensor>> = self.inputs.into_iter().chain(rows).map(Some).collect();
        let scalars = [Arg::F32(scale as f32), window.arg()];
        let outputs = [by_query, by_key, by_value, Some(&state)];
        let blocks = device.grid_rows(self.items, usize::MAX).blocks;
        let grid = Grid { blocks, threads: BACKWARD_THREADS };
        let kept = self.parts > 1 && device.info().holds_two_copying_blocks(KEPT_BYTES_BACKWARD);
        let (kernel, bytes) = if kept {
            (Template::attention_f32_kept_backward.ty(hip::DType::F32), KEPT_BYTES_BACKWARD)
        } else {
            (Template::attention_f32_backward.ty(hip::DType::F32).int(self.parts as i32), 0)
        };
        views_to_with(op, device, kernel, (grid, bytes), &dims, &inputs, &scalars, &outputs)
    }
}
