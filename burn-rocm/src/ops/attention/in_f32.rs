//! Attention of f32 without mask, bias, softcap and dropout by larger tiles for each thread
//! (`attention_f32.hip`). No scores are stored.

use hip::{Grid, Template};

use super::softmax::is_readable;
use super::strides;
use super::window::Window;
use crate::arg::Arg;
use crate::ops::launch::views_to;
use crate::tensor::RocmTensor;

/// Queries of a tile (`ROWS` of `attention_f32.hip`).
const ROWS: usize = 128;
/// Threads of a block (`THREADS`).
const THREADS: u32 = 128;
/// Elements of one memory access (`WIDTH`).
const WIDTH: usize = 4;
/// Values of a group (`PART`).
const PART: usize = 32;
/// The groups of values that the kernel has variants for.
const GROUPS: [usize; 2] = [2, 4];

/// The kernel for a call.
pub(super) struct InF32<'a> {
    inputs: [&'a RocmTensor; 3],
    groups: usize,
}

impl<'a> InF32<'a> {
    /// The kernel for queries `[batch, heads, queries, features]` and their keys and values; `None` if
    /// it does not take them, or if most of its tile would be empty.
    pub(super) fn of(inputs: [&'a RocmTensor; 3]) -> hip::Result<Option<Self>> {
        let [query, key, value] = inputs;
        let (&[_, _, queries, width], &[.., values]) = (query.dims(), value.dims()) else { return Ok(None) };
        let fits = query.kernel_type()? == hip::DType::F32
            && query.hip_device().block_threads() == 256
            && queries > ROWS / 2
            && [width, values].iter().all(|&columns| columns > 0 && columns.is_multiple_of(WIDTH))
            && [query, key, value].into_iter().all(is_readable);
        let groups = GROUPS.into_iter().find(|&groups| values <= groups * PART);
        Ok(groups.filter(|_| fits).map(|groups| Self { inputs, groups }))
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
        let grid = Grid { blocks: device.grid_rows(tiles, usize::MAX).blocks, threads: THREADS };
        let kernel = Template::attention_f32.ty(hip::DType::F32).int(self.groups as i32);
        views_to(op, device, kernel, grid, &dims, &inputs, &scalars, &[Some(out), sums])
    }
}
