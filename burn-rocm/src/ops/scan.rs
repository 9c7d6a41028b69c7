//! Cumulative ops along an axis.

use std::sync::Arc;

use burn_std::DType;
use hip::{Device, Functor, Grid, Template};

use super::launch::rows;
use super::reduce::Lines;
use crate::arg::Arg;
use crate::tensor::RocmTensor;

/// The cumulative result of the functor along an axis.
pub(crate) fn scan(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    axis: usize,
) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let lines = Lines::new(op, tensor, axis)?;
    let input = &lines.tensor;
    let device = input.hip_device();
    let out = RocmTensor::empty(device, input.layout().shape().clone(), input.dtype_of())?;
    if let Some(tiles) = Tiles::of(&lines, ty.size()) {
        let state = tiles.state(device)?;
        let dims = [lines.outer, lines.len].map(|v| Arg::U64(v as u64));
        let kernel = Template::scan_tiles.functor(functor).ty(ty);
        rows(op, device, kernel, tiles.grid, &dims, &[input], &[], &[&state, &out])?;
    } else if !out.is_empty() {
        let dims = [lines.outer, lines.len, lines.inner].map(|v| Arg::U64(v as u64));
        let kernel = Template::scan.functor(functor).ty(ty);
        let grid = device.grid_rows(lines.outer * lines.inner, lines.len);
        rows(op, device, kernel, grid, &dims, &[input], &[], &[&out])?;
    }
    lines.restore(out)
}

/// How rows are cut into tiles if there are too few rows to fill the device with one block each.
struct Tiles {
    grid: Grid,
    /// The most words in which the tiles publish their results.
    words: usize,
}

impl Tiles {
    fn of(lines: &Lines, size: usize) -> Option<Self> {
        let device = lines.tensor.hip_device();
        let threads = device.block_threads();
        let block = threads as usize;
        // A CPU core scans its rows one element after the other.
        if threads == 1 {
            return None;
        }
        // The smallest tile of `Tiles` in `scan.hip`.
        let elements = block * (16 / size).min(4) * 4;
        let resident = (device.resident_warps() * device.info().warp_size as usize / block).max(1);
        // Rows of only a few tiles are faster with one block each.
        if lines.inner != 1 || lines.outer >= resident || lines.len < 4 * elements {
            return None;
        }
        let tiles = lines.len.div_ceil(elements);
        // Two blocks for each compute unit hold enough elements to keep memory busy.
        let blocks = (lines.outer * tiles).min(2 * device.info().compute_units as usize) as u32;
        let words = lines.outer * (tiles + tiles.div_ceil(block)) * (size.max(4) / 4);
        Some(Self { grid: Grid { blocks, threads }, words })
    }

    /// The state, set to zero: the counter of tiles taken, then the words in which each row's tiles
    /// publish their results.
    fn state(&self, device: &Arc<Device>) -> hip::Result<RocmTensor> {
        let state = RocmTensor::empty(device, [1 + self.words], DType::U64)?;
        device.fill_bytes(state.buffer(), 0, 0, state.len() * size_of::<u64>())?;
        Ok(state)
    }
}
