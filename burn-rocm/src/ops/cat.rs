//! Concatenation in one launch for all inputs. A table of their addresses and shapes goes to the
//! kernel by value (`Parts` in `copy.hip`).

use hip::{Grid, Launch, Template};

use super::copy::assign;
use super::launch::{max_reach, submit};
use super::view::narrow;
use crate::dtype::raw_type;
use crate::error::invalid;
use crate::layout::collapse;
use crate::tensor::{RocmTensor, check_axis, one_device, one_dtype};

/// `PART_DIMS` of `copy.hip`: the most axes of an input after merging. An input with more axes
/// takes a separate launch.
const DIMS: usize = 4;

/// `PART_PIECE` of `copy.hip`: the elements that a block takes at a time.
const PIECE: usize = 4096;

/// `PART_ROWS` of `copy.hip`, in two factors, because `bytemuck` supports no array of 55. That many
/// inputs fill the 4 KiB of arguments that a launch may pass.
const ROWS: [usize; 2] = [5, 11];

/// The bytes of a unit. A GPU copies whole units if every run of elements consists of them.
const UNIT: usize = 16;

/// `Part` of `copy.hip`: one input.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct Part {
    from: u64,
    to: u64,
    first: u32,
    rank: u32,
    shape: [u32; DIMS],
    stride: [[i32; DIMS]; 2],
}

/// `Parts` of `copy.hip`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Parts {
    rows: u32,
    pieces: u32,
    row: [[Part; ROWS[1]]; ROWS[0]],
}

/// Joins the tensors along an axis.
pub(crate) fn cat(tensors: Vec<RocmTensor>, axis: usize) -> hip::Result<RocmTensor> {
    cat_as("cat", tensors, axis)
}

/// [`cat`], with errors that name another op.
pub(super) fn cat_as(op: &'static str, tensors: Vec<RocmTensor>, axis: usize) -> hip::Result<RocmTensor> {
    let operands: Vec<&RocmTensor> = tensors.iter().collect();
    let Some(&first) = operands.first() else { return invalid(op, "at least one tensor", "none") };
    let device = one_device(op, &operands)?;
    let dtype = one_dtype(op, &operands)?;
    check_axis(op, first, axis)?;
    let mut dims = first.dims().to_vec();
    dims[axis] = 0;
    for tensor in &tensors {
        let mut other = tensor.dims().to_vec();
        let size = other.get(axis).copied().unwrap_or(0);
        if let Some(size) = other.get_mut(axis) {
            *size = dims[axis];
        }
        if other != dims {
            let want = format!("shapes like {:?} except along axis {axis}", first.dims());
            return invalid(op, want, format!("{:?}", tensor.dims()));
        }
        dims[axis] += size;
    }
    let out = RocmTensor::empty(device, dims, dtype)?;
    let mut start = 0;
    let places = tensors.iter().map(|tensor| {
        let size = tensor.dims()[axis];
        start += size;
        narrow(out.clone(), axis, start - size, size)
    });
    fill(op, &out, &tensors, places, false)?;
    Ok(out)
}

/// Copies each input to its place, a view of `out`. With `split`, inputs that can be copied in units
/// have launches of their own.
pub(super) fn fill(
    op: &'static str,
    out: &RocmTensor,
    inputs: &[RocmTensor],
    places: impl Iterator<Item = hip::Result<RocmTensor>>,
    split: bool,
) -> hip::Result<()> {
    let mut copies = Vec::with_capacity(inputs.len());
    for (input, place) in inputs.iter().zip(places) {
        let place = place?;
        match Copy::new(op, input, &place)? {
            _ if input.is_empty() => {}
            Some(copy) => copies.push(copy),
            None => assign(op, &place, input)?,
        }
    }
    launch_split(copies, out, split, &mut submit)
}

/// Takes each launch, to submit or to collect it.
type Go<'f, 'a> = &'f mut dyn FnMut(Launch<'a>, Grid) -> hip::Result<()>;

/// Copies of inputs to their places in `out`, which [`Copies::launches`] turns into launches.
pub(crate) struct Copies<'a> {
    copies: Vec<Copy<'a>>,
    out: &'a RocmTensor,
}

impl<'a> Copies<'a> {
    /// As [`fill`] with `split`. `None` if an input needs a launch of another kernel.
    pub(super) fn new(
        op: &'static str,
        out: &'a RocmTensor,
        inputs: &'a [RocmTensor],
        places: impl Iterator<Item = hip::Result<RocmTensor>>,
    ) -> hip::Result<Option<Self>> {
        let mut copies = Vec::with_capacity(inputs.len());
        for (input, place) in inputs.iter().zip(places) {
            match Copy::new(op, input, &place?)? {
                _ if input.is_empty() => {}
                Some(copy) => copies.push(copy),
                None => return Ok(None),
            }
        }
        Ok(Some(Self { copies, out }))
    }

    /// The launches of the copies, for any stream.
    pub(super) fn launches(self) -> hip::Result<Vec<(Launch<'a>, Grid)>> {
        let mut launches = Vec::new();
        launch_split(self.copies, self.out, true, &mut |launch, grid| {
            launches.push((launch, grid));
            Ok(())
        })?;
        Ok(launches)
    }
}

fn launch_split<'a>(
    copies: Vec<Copy<'_>>,
    out: &'a RocmTensor,
    split: bool,
    go: Go<'_, 'a>,
) -> hip::Result<()> {
    if split && out.hip_device().block_threads() > 1 {
        let per_unit = UNIT / out.dtype_size();
        let (units, elements): (Vec<_>, Vec<_>) =
            copies.into_iter().partition(|copy| copy.is_of_units(per_unit));
        launch(&units, out, go)?;
        return launch(&elements, out, go);
    }
    launch(&copies, out, go)
}

/// An input and the part of the output that it fills, merged to the fewest axes. Offsets and
/// strides count elements.
struct Copy<'a> {
    input: &'a RocmTensor,
    offsets: [usize; 2],
    shape: [usize; DIMS],
    strides: [[isize; DIMS]; 2],
    rank: usize,
}

impl<'a> Copy<'a> {
    /// `None` if the copy has too many axes or elements for the kernel's table.
    fn new(op: &'static str, input: &'a RocmTensor, place: &RocmTensor) -> hip::Result<Option<Self>> {
        let end = input.layout().span().map_or(0, |(_, last)| (last + 1) * input.dtype_size());
        if end > input.buffer().len() {
            return invalid(op, "elements inside the buffer", format!("{:?}", input.layout()));
        }
        let merged = collapse(input.dims(), [input.layout().strides(), place.layout().strides()]);
        let rank = merged.shape.len();
        let reach = |strides: &[isize]| -> usize {
            merged.shape.iter().zip(strides).map(|(&dim, &by)| (dim - 1) * by.unsigned_abs()).sum()
        };
        let most = max_reach();
        if input.is_empty()
            || rank > DIMS
            || input.len() > most
            || merged.strides.iter().any(|strides| reach(strides) > most)
        {
            return Ok(None);
        }
        let mut copy = Self {
            input,
            offsets: [input, place].map(|tensor| tensor.layout().offset()),
            shape: [1; DIMS],
            strides: [[0; DIMS]; 2],
            rank,
        };
        copy.shape[..rank].copy_from_slice(&merged.shape);
        for (to, from) in copy.strides.iter_mut().zip(&merged.strides) {
            to[..rank].copy_from_slice(from);
        }
        Ok(Some(copy))
    }

    /// Whether both sides are runs of whole units of `per` elements that begin at multiples of
    /// `per`.
    fn is_of_units(&self, per: usize) -> bool {
        let Some(last) = self.rank.checked_sub(1) else { return false };
        let whole = |strides: &[isize; DIMS]| {
            strides[last] == 1 && strides[..last].iter().all(|by| by.unsigned_abs().is_multiple_of(per))
        };
        self.shape[last].is_multiple_of(per)
            && self.offsets.iter().all(|at| at.is_multiple_of(per))
            && self.strides.iter().all(whole)
    }

    /// The table's row, in units of `per` elements, and the number of its pieces. `first` is the
    /// index of its first piece.
    fn part(&self, per: usize, first: usize) -> (Part, usize) {
        let mut shape = self.shape.map(|dim| dim as u32);
        let mut stride = self.strides.map(|strides| strides.map(|by| (by / per as isize) as i32));
        if per > 1 {
            // The last axis is a run of whole units.
            let last = self.rank - 1;
            shape[last] /= per as u32;
            stride.iter_mut().for_each(|stride| stride[last] = 1);
        }
        let input = self.input;
        let from = (input.buffer().address() + self.offsets[0] * input.dtype_size()) as u64;
        let to = (self.offsets[1] / per) as u64;
        let part = Part { from, to, first: first as u32, rank: self.rank as u32, shape, stride };
        (part, (input.len() / per).div_ceil(PIECE))
    }
}

/// Copies each input to its place in `out`.
fn launch<'a>(copies: &[Copy<'_>], out: &'a RocmTensor, go: Go<'_, 'a>) -> hip::Result<()> {
    let device = out.hip_device();
    let per_unit = UNIT / out.dtype_size();
    // On the CPU device a core copies a run element by element just as fast.
    let units = device.block_threads() > 1 && copies.iter().all(|copy| copy.is_of_units(per_unit));
    let (per, kernel) = if units {
        (per_unit, Template::cat_units.int(UNIT as i32))
    } else {
        (1, Template::cat.ty(raw_type(out.kernel_type()?)))
    };
    for copies in copies.chunks(ROWS[0] * ROWS[1]) {
        let mut table = Parts { rows: copies.len() as u32, pieces: 0, row: Default::default() };
        let mut pieces = 0;
        for (row, copy) in table.row.as_flattened_mut().iter_mut().zip(copies) {
            let (part, count) = copy.part(per, pieces);
            *row = part;
            pieces += count;
        }
        table.pieces = pieces as u32; // at most 55 * 2^31 / PIECE
        let mut launch = device.launch(kernel)?.value(table);
        for copy in copies {
            launch.reads(copy.input.buffer());
        }
        let bytes = || copies.iter().map(|copy| 2 * copy.input.len() * out.dtype_size()).sum();
        let launch = launch.output(out.buffer(), 0).moves(bytes);
        go(launch, device.grid_rows(pieces, PIECE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn_backend::TensorData;
    use burn_std::{DType, Slice};

    use super::super::slice_assign::slice_assign;
    use super::super::transfer::{read, upload};
    use super::super::view::{flip, reshape, slice, swap_dims};
    use super::*;
    use crate::RocmDevice;

    /// `from`, `from + 1`, ...
    fn numbers(from: usize, dims: &[usize]) -> RocmTensor {
        let values: Vec<f32> = (from..from + dims.iter().product::<usize>()).map(|n| n as f32).collect();
        upload(TensorData::new(values, dims.to_vec()), DType::F32, &RocmDevice::default()).expect("an upload")
    }

    fn values(tensor: RocmTensor) -> Vec<f32> {
        read(tensor).expect("what was computed").iter::<f32>().collect()
    }

    /// One launch copies all inputs of a table, in any layout, and every element reaches its
    /// position.
    #[test]
    fn tensors_one_after_the_other_are_one_launch() {
        for (count, launches) in [(1, 1), (2, 1), (7, 1), (55, 1), (56, 2), (200, 4)] {
            let tensors: Vec<RocmTensor> = (0..count)
                .map(|n| {
                    let rows = 1 + n % 3;
                    let view = match n % 4 {
                        0 => Ok(numbers(1000 * n, &[2, rows, 40])),
                        1 => swap_dims(numbers(1000 * n, &[40, rows, 2]), 0, 2),
                        2 => flip(numbers(1000 * n, &[2, rows, 40]), &[0, 1]),
                        _ => slice(
                            numbers(1000 * n, &[2, rows, 80]),
                            &[Slice::from(0..2), Slice::from(0..rows), Slice::new(0, Some(80), 2)],
                        ),
                    };
                    view.expect("a view")
                })
                .collect();
            let parts: Vec<Vec<f32>> = tensors.iter().cloned().map(values).collect();
            let expected: Vec<f32> = (0..2)
                .flat_map(|half| {
                    parts
                        .iter()
                        .flat_map(move |part| part[half * part.len() / 2..][..part.len() / 2].to_vec())
                })
                .collect();
            let (out, counts) = hip::trace::counting(|| cat(tensors, 1));
            assert_eq!(values(out.expect("it fits")), expected, "{count}");
            assert_eq!((counts.kernels, counts.launches()), (launches, launches), "{count}: {counts:?}");
        }
    }

    /// The key and value cache of a text generator. If nobody else holds it, one launch writes only
    /// the new position, whichever order its axes have. Otherwise one launch writes the whole cache
    /// to a new buffer, and the old cache stays.
    #[test]
    fn a_cache_is_written_in_one_launch() {
        let cut = [Slice::from(0..2), Slice::from(0..3), Slice::from(5..6), Slice::from(0..4)];
        let caches = || {
            let packed = numbers(0, &[2, 3, 8, 4]);
            [packed, swap_dims(numbers(0, &[2, 8, 3, 4]), 1, 2).expect("a view")]
        };
        for (n, cache) in caches().into_iter().enumerate() {
            let before = values(cache.clone());
            let value = numbers(500, &[2, 3, 1, 4]);
            let mut expected = before.clone();
            for (row, new) in values(value.clone()).chunks(4).enumerate() {
                expected[row * 32 + 20..][..4].copy_from_slice(new);
            }
            let address = cache.buffer().address();
            let kept = cache.clone();
            let (copied, counts) = hip::trace::counting(|| slice_assign(cache, &cut, value.clone()));
            let copied = copied.expect("it fits");
            assert_eq!((counts.launches(), counts.kernels), (1, 1), "held twice, cache {n}: {counts:?}");
            assert_ne!(copied.buffer().address(), address);
            assert_eq!(values(copied), expected, "held twice, cache {n}");
            assert_eq!(values(kept.clone()), before, "what is kept, cache {n}");
            let (written, counts) = hip::trace::counting(|| slice_assign(kept, &cut, value));
            let written = written.expect("it fits");
            assert_eq!((counts.launches(), counts.kernels), (1, 1), "held once, cache {n}: {counts:?}");
            assert_eq!(written.buffer().address(), address, "cache {n}");
            assert_eq!(values(written), expected, "held once, cache {n}");
        }
        // Repeated elements share memory, so nothing may be written in place.
        let one = reshape(numbers(7, &[1]), &[1, 1]).expect("a view");
        let row = super::super::view::expand(one, &[1, 3]).expect("a view");
        let cut = [Slice::from(0..1), Slice::from(1..2)];
        let out = slice_assign(row, &cut, numbers(9, &[1, 1])).expect("it fits");
        assert_eq!(values(out), [7.0, 9.0, 7.0]);
    }
}
