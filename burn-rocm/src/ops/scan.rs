//! Cumulative ops along an axis.

use std::sync::Arc;

use burn_std::DType;
use hip::{Device, Grid, KernelName};

use super::launch::rows;
use super::reduce::Lines;
use crate::dtype::Value;
use crate::tensor::RocmTensor;

/// The functor's running result along an axis.
pub(crate) fn scan(
    op: &'static str,
    functor: &'static str,
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
        let dims = [lines.outer, lines.len, tiles.elements, tiles.count].map(|v| Value::U64(v as u64));
        let kernel = KernelName::new("scan_tiles").name(functor).ty(ty);
        rows(op, device, kernel, tiles.grid, &dims, &[input], &[], &[&state, &out])?;
    } else if !out.is_empty() {
        let dims = [lines.outer, lines.len, lines.inner].map(|v| Value::U64(v as u64));
        let kernel = KernelName::new("scan").name(functor).ty(ty);
        let grid = device.grid_rows(lines.outer * lines.inner, lines.len);
        rows(op, device, kernel, grid, &dims, &[input], &[], &[&out])?;
    }
    lines.restore(out)
}

/// `FAN` of `scan.hip`: the tiles of a group, and the groups of a super-group.
const FAN: usize = 32;

/// Rows that are too few to keep the device busy by a block each, cut into tiles.
struct Tiles {
    /// Elements of a tile.
    elements: usize,
    /// Tiles of a row.
    count: usize,
    rows: usize,
    /// Words of a published value.
    words: usize,
    grid: Grid,
}

impl Tiles {
    fn of(lines: &Lines, size: usize) -> Option<Self> {
        let device = lines.tensor.hip_device();
        let threads = device.block_threads();
        let elements = match threads {
            // A core's tile stays in its first cache.
            1 => 4096,
            // `STEPS` of `scan.hip`, 16 bytes each.
            threads => threads as usize * (16 / size) * if size < 4 { 1 } else { 2 },
        };
        let resident = (device.resident_warps() * device.info().warp_size as usize / threads as usize).max(1);
        // A row's own block is quicker for rows of a few tiles.
        if lines.inner != 1 || lines.outer >= resident || lines.len < 4 * elements {
            return None;
        }
        let count = lines.len.div_ceil(elements);
        let blocks = (lines.outer * count).min(resident) as u32;
        let words = size.max(4) / 4;
        Some(Self { elements, count, rows: lines.outer, words, grid: Grid { blocks, threads } })
    }

    /// The counter of tiles taken and what each row's tiles publish, as `Levels` of `scan.hip` has it: all 0.
    fn state(&self, device: &Arc<Device>) -> hip::Result<RocmTensor> {
        let groups = self.count.div_ceil(FAN);
        let published = (self.count + groups + groups.div_ceil(FAN)) * self.words;
        let state = RocmTensor::empty(device, [1 + self.rows * published], DType::U64)?;
        device.fill_bytes(state.buffer(), 0, 0, state.len() * size_of::<u64>())?;
        Ok(state)
    }
}
