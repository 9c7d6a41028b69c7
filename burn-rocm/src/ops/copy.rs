//! Copies on a device: to row-major order, and over a part of another tensor.

use hip::{Functor, KernelName, Template};

use super::launch::{Operand, Output, Walk, is_packed, put_off_over, views};
use crate::arg::Arg;
use crate::dtype::raw_type;
use crate::error::invalid;
use crate::layout::collapse;
use crate::tensor::RocmTensor;
use crate::waiting::enqueue_readers;

/// The tensor with its elements in row-major order.
pub(crate) fn contiguous(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if tensor.is_contiguous() { Ok(tensor) } else { copy(&tensor) }
}

/// The tensor as the contiguous kernels take it: row-major, beginning at an aligned address.
pub(crate) fn packed(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if is_packed(&tensor) { Ok(tensor) } else { copy(&tensor) }
}

/// A copy in row-major order, in a buffer of its own.
pub(crate) fn copy(tensor: &RocmTensor) -> hip::Result<RocmTensor> {
    let out = tensor.empty_like()?;
    if tensor.is_contiguous() {
        let bytes = tensor.len() * tensor.dtype_size();
        if bytes > 0 {
            out.hip_device().copy(tensor.buffer(), tensor.byte_offset(), out.buffer(), 0, bytes)?;
        }
        return Ok(out);
    }
    if suits_a_chain(tensor) {
        let input = (tensor, tensor.layout().strides());
        if put_off_over("copy", Functor::Cast, tensor.dims(), &[input], &[], &out)? {
            return Ok(out);
        }
    }
    let raw = raw_type(tensor.kernel_type()?);
    if let Some(matrices) = Transposed::of(tensor) {
        if let Some(narrow) = matrices.narrow(out.dtype_size(), out.hip_device().info().compute_units) {
            narrow.copy(tensor, &out, Template::copy_narrow.ty(raw).int(narrow.to_planes.into()))?;
            return Ok(out);
        }
        if matrices.are_large() {
            matrices.copy(tensor, &out, Template::copy_transposed.ty(raw))?;
            return Ok(out);
        }
    }
    let kernel = Template::copy_strided.ty(raw);
    if !in_units(tensor, &out)? {
        Walk::new("copy", kernel, tensor.dims(), &[Operand::whole(tensor)], Output::Row(&out)).launch()?;
    }
    Ok(out)
}

/// Whether the copy may be a step of a chain of deferred ops. If a sum follows, the chain never
/// stores the copy. A small copy gains nothing, because it costs a launch either way. A chain reads
/// four neighbours at a time, so only outer axes may be permuted or repeated.
fn suits_a_chain(tensor: &RocmTensor) -> bool {
    const GROUP: usize = 4;
    const LEAST_BYTES: usize = 1 << 20;
    if tensor.len() * tensor.dtype_size() < LEAST_BYTES {
        return false;
    }
    let merged = collapse(tensor.dims(), [tensor.layout().strides()]);
    let (shape, strides) = (&merged.shape, &merged.strides[0]);
    let whole = |stride: &isize| stride.unsigned_abs().is_multiple_of(GROUP);
    shape.last().is_some_and(|run| run.is_multiple_of(GROUP))
        && strides.split_last().is_some_and(|(&step, outer)| step == 1 && outer.iter().all(whole))
        && tensor.layout().offset().is_multiple_of(GROUP)
}

/// Copies 16 bytes at a time if the tensor consists of contiguous runs of such units, for example
/// if only outer axes are permuted. Returns whether it copied.
fn in_units(tensor: &RocmTensor, out: &RocmTensor) -> hip::Result<bool> {
    const BYTES: usize = 16;
    if out.hip_device().block_threads() == 1 {
        return Ok(false); // a core copies a run element by element just as fast
    }
    let per_unit = BYTES / tensor.dtype_size();
    let merged = collapse(tensor.dims(), [tensor.layout().strides()]);
    let (mut shape, mut strides) = (merged.shape, merged.strides[0].clone());
    let (Some(run), Some(&step)) = (shape.last_mut(), strides.last()) else { return Ok(false) };
    let whole = |stride: &isize| stride.unsigned_abs().is_multiple_of(per_unit);
    let outer = strides.len() - 1;
    if step != 1
        || !run.is_multiple_of(per_unit)
        || !strides[..outer].iter().all(whole)
        || !tensor.layout().offset().is_multiple_of(per_unit)
    {
        return Ok(false);
    }
    *run /= per_unit;
    for stride in &mut strides[..outer] {
        *stride /= per_unit as isize;
    }
    let kernel = Template::copy_strided_units.int(BYTES as i32);
    let from = Operand::units(tensor, &strides, BYTES);
    Walk::new("copy", kernel, &shape, &[from], Output::Row(out)).units(BYTES).launch()?;
    Ok(true)
}

/// A packed tensor that the caller may write: this tensor if nobody else holds its buffer, else a
/// copy.
pub(crate) fn writable(mut tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if is_packed(&tensor) && tensor.can_overwrite() { Ok(tensor) } else { copy(&tensor) }
}

/// Checks that an op may write the tensor's memory, even if others hold it, and enqueues the
/// deferred ops that still have to read it.
pub(crate) fn may_be_written(op: &'static str, tensor: &RocmTensor) -> hip::Result<()> {
    if !tensor.layout().names_each_once() {
        return invalid(op, "a target whose elements have memory of their own", "an expanded tensor");
    }
    let memory = tensor.shared_buffer()?;
    if memory.is_read_only() {
        return invalid(op, "a target that may be written", "read-only memory of another library");
    }
    // Compares memory, because two imports of the same memory of another library are two buffers.
    enqueue_readers(|buffer| buffer.overlaps(memory))
}

/// Copies `value` to `region`, a view of the target.
pub(crate) fn assign(op: &'static str, region: &RocmTensor, value: &RocmTensor) -> hip::Result<()> {
    if region.dims() != value.dims() {
        return invalid(op, format!("a value of shape {:?}", region.dims()), format!("{:?}", value.dims()));
    }
    if region.is_empty() {
        return Ok(());
    }
    if region.is_contiguous() && value.is_contiguous() {
        let bytes = region.len() * region.dtype_size();
        let (from, to) = (value.byte_offset(), region.byte_offset());
        return region.hip_device().copy(value.buffer(), from, region.buffer(), to, bytes);
    }
    let kernel = Template::copy_to_strided.ty(raw_type(region.kernel_type()?));
    Walk::new(op, kernel, region.dims(), &[Operand::whole(value)], Output::Last(Operand::whole(region)))
        .launch()
}

/// A batch of transposed matrices: the stride of rows is 1, that of columns is positive.
struct Transposed {
    batches: usize,
    rows: usize,
    columns: usize,
    batch_stride: usize,
    column_stride: usize,
}

impl Transposed {
    /// The tile side of `copy_transposed`. It takes no matrices of fewer columns.
    const TILE: usize = 32;
    /// Fewest rows for `copy_transposed`. With fewer, most of a tile would be empty.
    const LEAST_ROWS: usize = 8;

    fn of(tensor: &RocmTensor) -> Option<Self> {
        let merged = collapse(tensor.dims(), [tensor.layout().strides()]);
        let strides = merged.strides[0].as_slice();
        let (batches, batch_stride, rows, columns, column_stride) = match (merged.shape.as_slice(), strides) {
            (&[rows, columns], &[1, c]) => (1, 0, rows, columns, c),
            (&[batches, rows, columns], &[b, 1, c]) => (batches, b, rows, columns, c),
            _ => return None,
        };
        (batch_stride >= 0 && column_stride > 0).then_some(Self {
            batches,
            rows,
            columns,
            batch_stride: batch_stride as usize,
            column_stride: column_stride as usize,
        })
    }

    /// Whether the matrices fill the tiles of `copy_transposed`.
    fn are_large(&self) -> bool {
        self.rows >= Self::LEAST_ROWS && self.columns >= Self::TILE
    }

    /// The matrices as `copy_narrow` copies them. `None` if no side is short, or if the copy is so
    /// small that another kernel is as fast. `size` is that of an element in bytes.
    fn narrow(&self, size: usize, compute_units: u32) -> Option<Narrow> {
        let &Self { batches, rows, columns, batch_stride, column_stride } = self;
        let is_short = |extent: usize| extent <= Narrow::MOST_WIDTH;
        // Whether x has rows of few elements that follow each other, and the result has planes.
        let to_planes = column_stride == rows && is_short(rows) && rows <= columns;
        let (len, width) = if to_planes { (columns, rows) } else { (rows, columns) };
        let bytes = batches.saturating_mul(len).saturating_mul(width).saturating_mul(size);
        let few_tiles = bytes / Narrow::TILE_BYTES < compute_units as usize / Narrow::UNITS_OF_A_TILE;
        if !is_short(width) || bytes < Narrow::LEAST_BYTES || few_tiles {
            return None;
        }
        let (unit, most) = (16 / size, Narrow::TILE_BYTES / size);
        let longest = most / width / unit * unit;
        let parts = len.div_ceil(longest);
        // Equal parts, each a multiple of 16 bytes.
        let run = len.div_ceil(parts).next_multiple_of(unit);
        let whole = parts == 1 && (!to_planes || batch_stride == len * width);
        let matrices = match whole {
            // As many as fit, or fewer so that each compute unit gets two tiles.
            true => (most / (len * width)).min(batches.div_ceil(2 * compute_units as usize)).max(1),
            false if len < Self::TILE => return None,
            false => 1,
        };
        let tiles = batches.div_ceil(matrices) * parts;
        let plane_stride = if to_planes { 0 } else { column_stride };
        Some(Narrow { batches, len, width, matrices, run, batch_stride, plane_stride, to_planes, tiles })
    }

    fn copy(&self, tensor: &RocmTensor, out: &RocmTensor, kernel: KernelName) -> hip::Result<()> {
        let device = out.hip_device();
        let dims = [self.batches, self.rows, self.columns, self.batch_stride, self.column_stride];
        // On a GPU a block transposes 64 x 64 elements of 4 bytes in registers, if whole units of 16
        // bytes follow each other.
        let unit = 16 / out.dtype_size();
        let squares = device.block_threads() > 1 && dims[1..].iter().all(|dim| dim.is_multiple_of(unit));
        let side = if squares { 2 * Self::TILE } else { Self::TILE };
        let tiles = self.batches * self.rows.div_ceil(side) * self.columns.div_ceil(side);
        let grid = device.grid_rows(tiles, usize::MAX);
        let dims = dims.map(|value| Arg::U64(value as u64));
        // The view is dense in another order, or has gaps between columns. The kernel reads only
        // elements within its span.
        views("copy", device, kernel, grid, &dims, &[Some(tensor)], &[], out)
    }
}

/// Matrices with one short side, as `copy_narrow` copies them between rows `[len, width]` and
/// planes `[width, len]`.
#[derive(Debug)]
struct Narrow {
    batches: usize,
    len: usize,
    width: usize,
    /// The whole matrices of a tile.
    matrices: usize,
    /// The rows of a tile.
    run: usize,
    batch_stride: usize,
    plane_stride: usize,
    to_planes: bool,
    tiles: usize,
}

impl Narrow {
    /// The longest short side. On an H200, `copy_transposed` takes 44 us for `[256, 4096, 32]` in
    /// bf16 and 42 us for its transpose, and `copy_narrow` takes 49 and 55 us. With 16 instead of
    /// 32, `copy_transposed` takes 74 and 173 us, and `copy_narrow` 51 and 56 us.
    const MOST_WIDTH: usize = 24;
    /// There must be a tile for every so many compute units. On an H200, `copy_narrow` takes 2.2 us
    /// for 38 tiles, and `copy_transposed` 3.1 us in one direction and 1.9 us in the other. For 9
    /// tiles they take 2.0 us, and 2.0 and 1.5 us.
    const UNITS_OF_A_TILE: usize = 4;
    /// A smaller copy takes the time of a launch in any kernel.
    const LEAST_BYTES: usize = 2048;
    /// `NarrowTile::BYTES` in `copy.hip`.
    const TILE_BYTES: usize = 7680;

    fn copy(&self, tensor: &RocmTensor, out: &RocmTensor, kernel: KernelName) -> hip::Result<()> {
        let device = out.hip_device();
        let elements = self.run.min(self.len) * self.width * self.matrices;
        let grid = device.grid_rows(self.tiles, (elements * out.dtype_size()).div_ceil(16));
        let wide = |value: usize| Arg::U64(value as u64);
        let short = |value: usize| Arg::U32(value as u32);
        let dims = [
            wide(self.batches),
            wide(self.len),
            short(self.width),
            short(self.matrices),
            short(self.run),
            wide(self.batch_stride),
            wide(self.plane_stride),
        ];
        // As for `copy_transposed`, the kernel reads only elements within the view's span.
        views("copy", device, kernel, grid, &dims, &[Some(tensor)], &[], out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(batches: usize, rows: usize, columns: usize, size: usize) -> Option<[usize; 4]> {
        let matrices =
            Transposed { batches, rows, columns, batch_stride: rows * columns, column_stride: rows };
        let narrow = matrices.narrow(size, 132)?;
        let elements = narrow.matrices * narrow.run.min(narrow.len) * narrow.width;
        assert!(elements * size <= Narrow::TILE_BYTES, "{narrow:?}");
        assert!((narrow.run * size).is_multiple_of(16), "{narrow:?}");
        Some([narrow.to_planes.into(), narrow.matrices, narrow.run, narrow.tiles])
    }

    #[test]
    fn narrow_matrices_are_cut_into_tiles() {
        // The weights of ResNet-50's windows of 3 x 3 in bf16, and back.
        assert_eq!(narrow(64, 9, 64, 2), None);
        assert_eq!(narrow(128, 9, 128, 2), Some([1, 1, 128, 128]));
        assert_eq!(narrow(512, 9, 512, 2), Some([1, 1, 256, 1024]));
        assert_eq!(narrow(512, 512, 9, 2), Some([0, 1, 256, 1024]));
        // Images.
        assert_eq!(narrow(16, 50176, 3, 2), Some([0, 1, 1256, 640]));
        // Many small matrices.
        assert_eq!(narrow(65536, 9, 16, 2), Some([1, 26, 16, 2521]));
        assert_eq!(narrow(1, 9, 64, 2), None);
        assert_eq!(narrow(8, 64, 64, 4), None);
        for size in [1, 2, 4, 8] {
            for short in 2..=40 {
                for (batches, long) in [(1, 5000), (100, 300), (1000, 32), (5000, 7), (10_000, 1)] {
                    narrow(batches, short, long, size);
                    narrow(batches, long, short, size);
                }
            }
        }
    }
}
