//! How a product is cut into calls: which operands are copied first, which batches become one tall
//! matrix, and which batches a call takes.

use crate::error::invalid;
use crate::layout::{Collapsed, Layout, collapse};
use crate::ops::copy::{contiguous, copy};
use crate::ops::launch::max_reach;
use crate::ops::view::{expand, narrow, swap_dims};
use crate::tensor::RocmTensor;

/// The strides of a matrix as rocBLAS takes it: one of them is 1.
#[derive(Clone, Copy)]
pub(super) struct Strides {
    pub(super) row: usize,
    pub(super) col: usize,
}

/// The strides of the last two axes, if rocBLAS takes them.
fn matrix(tensor: &RocmTensor) -> Option<Strides> {
    let (&[rows, cols], &[row, col]) =
        (tensor.dims().last_chunk::<2>()?, tensor.layout().strides().last_chunk::<2>()?);
    let fits = |stride: isize, extent: usize| stride > 0 && stride as usize >= extent.max(1);
    if (cols == 1 || col == 1) && (rows == 1 || fits(row, cols)) {
        return Some(Strides { row: if rows == 1 { cols } else { row as usize }, col: 1 });
    }
    if (rows == 1 || row == 1) && (cols == 1 || fits(col, rows)) {
        return Some(Strides { row: 1, col: if cols == 1 { rows } else { col as usize } });
    }
    None
}

/// Whether a single rocBLAS call takes the matrices of all batches without a copy: rocBLAS supports
/// the strides of the last two axes, and the matrices are equally spaced.
pub(crate) fn is_one_batch(tensor: &RocmTensor) -> bool {
    let batch = tensor.dims().len().saturating_sub(2);
    let merged = collapse(&tensor.dims()[..batch], [&tensor.layout().strides()[..batch]]);
    let forward = merged.strides[0].iter().all(|&stride| stride >= 0);
    merged.shape.len() <= 1 && forward && matrix(tensor).is_some()
}

/// An operand or the output of a product, and the strides of its matrices.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) tensor: RocmTensor,
    pub(super) strides: Strides,
}

impl Side {
    /// The tensor with its last two axes as rocBLAS takes them. Copies the matrices if needed, but
    /// no repeated batch.
    fn new(tensor: RocmTensor) -> hip::Result<Self> {
        if let Some(strides) = matrix(&tensor) {
            return Ok(Self { tensor, strides });
        }
        let dims = tensor.dims().to_vec();
        let batch = dims.len() - 2;
        // Copies a repeated batch only once.
        let mut base = tensor;
        for axis in 0..batch {
            if base.layout().strides()[axis] == 0 {
                base = narrow(base, axis, 0, 1)?;
            }
        }
        let tensor = expand(copy(&base)?, &dims)?;
        Ok(Self { tensor, strides: Strides { row: dims[batch + 1], col: 1 } })
    }

    fn batches(&self) -> (&[usize], &[isize]) {
        let (dims, strides) = (self.tensor.dims(), self.tensor.layout().strides());
        (&dims[..dims.len() - 2], &strides[..dims.len() - 2])
    }

    /// Whether all batches share one matrix.
    fn is_shared(&self) -> bool {
        let (dims, strides) = self.batches();
        dims.iter().zip(strides).all(|(&dim, &stride)| stride == 0 || dim == 1)
    }

    /// Whether the batches, in the order of `out`'s batches, are not equally spaced in memory, or
    /// run backwards.
    fn is_scattered(&self, out: &RocmTensor) -> bool {
        let (dims, strides) = self.batches();
        let merged = collapse(dims, [strides, &out.layout().strides()[..dims.len()]]);
        merged.shape.len() > 1 || merged.strides[0].iter().any(|&stride| stride < 0)
    }

    /// Copies the batches one after the other. Each matrix keeps its layout, so runs of elements
    /// stay runs.
    fn together(&self) -> hip::Result<Self> {
        let last = self.tensor.dims().len() - 1;
        let tensor = if self.strides.col == 1 {
            contiguous(self.tensor.clone())?
        } else {
            let turned = swap_dims(self.tensor.clone(), last - 1, last)?;
            swap_dims(contiguous(turned)?, last - 1, last)?
        };
        Self::new(tensor)
    }

    /// All batches as the rows of one tall matrix, if a single stride leads through all rows.
    fn tall(&self) -> hip::Result<Option<Self>> {
        let width = self.tensor.dims()[self.tensor.dims().len() - 1];
        let layout = self.tensor.layout().reshape("matmul", &[self.tensor.len() / width, width])?;
        Ok(layout.and_then(|layout| {
            let tensor = self.tensor.clone().view(layout);
            matrix(&tensor).map(|strides| Self { tensor, strides })
        }))
    }

    /// The matrices of side `at` that a call takes, as a view of rank 3.
    pub(super) fn batch(&self, call: &Call, at: usize, [rows, cols]: [usize; 2]) -> hip::Result<RocmTensor> {
        let start = self.tensor.layout().offset() as isize + call.start[at];
        let strides = [call.stride[at], self.strides.row as isize, self.strides.col as isize];
        let layout = Layout::strided("matmul", [call.count, rows, cols], &strides, start)?;
        Ok(self.tensor.clone().view(layout))
    }
}

/// One call: a batch of products of matrices with one stride each.
pub(super) struct Call {
    /// Rows, columns, and terms of a sum.
    pub(super) sizes: [usize; 3],
    pub(super) count: usize,
    /// The offset of each side's first matrix from the side's start, in elements.
    pub(super) start: [isize; 3],
    /// The distance from each matrix to the next, in elements.
    pub(super) stride: [isize; 3],
}

/// The calls that compute a product, with operands in the layout that the calls need.
pub(super) struct Plan {
    /// Left, right and output.
    pub(super) sides: [Side; 3],
    pub(super) calls: Vec<Call>,
}

impl Plan {
    pub(super) fn new(
        op: &'static str,
        lhs: &RocmTensor,
        rhs: &RocmTensor,
        out: &RocmTensor,
    ) -> hip::Result<Self> {
        let [a, b] = [Side::new(lhs.clone())?, Side::new(rhs.clone())?];
        let Some(strides) = matrix(out) else {
            return invalid(op, "an output layout that rocBLAS can write", format!("{:?}", out.layout()));
        };
        let mut sides = [a, b, Side { tensor: out.clone(), strides }];
        if let Some(plan) = Self::tall(&sides)? {
            return Ok(plan);
        }
        let mut batches = Batches::of(&sides);
        let moved = worth_moving(&sides, batches.calls());
        if moved.contains(&true) {
            for (side, _) in sides.iter_mut().zip(moved).filter(|(_, moved)| *moved) {
                *side = side.together()?;
            }
            if let Some(plan) = Self::tall(&sides)? {
                return Ok(plan);
            }
            batches = Batches::of(&sides);
        }
        let [.., m, n] = *out.dims() else { return invalid(op, "matrices", format!("{:?}", out.dims())) };
        let sizes = [m, n, lhs.dims()[lhs.dims().len() - 1]];
        let Batches { outer, count, stride } = batches;
        let call = |start| Call { sizes, count, start, stride };
        Ok(Self { sides, calls: outer.offsets().into_iter().map(call).collect() })
    }

    /// Multiplies all left batches, as the rows of one tall matrix, by the right side that they
    /// share. `None` if the batches do not share a right side, or if their rows form no tall
    /// matrix.
    ///
    /// A call takes at most 2^31 - 1 rows.
    fn tall([a, b, place]: &[Side; 3]) -> hip::Result<Option<Self>> {
        if !b.is_shared() {
            return Ok(None);
        }
        let (Some(a), Some(place)) = (a.tall()?, place.tall()?) else { return Ok(None) };
        let (&[rows, k], &[_, n]) = (a.tensor.dims(), place.tensor.dims()) else { return Ok(None) };
        let calls = (0..rows).step_by(max_reach()).map(|first| Call {
            sizes: [max_reach().min(rows - first), n, k],
            count: 1,
            start: [first * a.strides.row, 0, first * place.strides.row].map(|at| at as isize),
            stride: [0; 3],
        });
        Ok(Some(Self { calls: calls.collect(), sides: [a, b.clone(), place] }))
    }
}

/// The batch axes, merged where all sides walk them as one. A call takes the innermost axis; each
/// index of the others is a call.
struct Batches {
    outer: Collapsed<3>,
    count: usize,
    stride: [isize; 3],
}

impl Batches {
    fn of(sides: &[Side; 3]) -> Self {
        let mut outer = collapse(sides[2].batches().0, sides.each_ref().map(|side| side.batches().1));
        // rocBLAS has no negative batch strides. An axis with such a stride also takes a call for
        // each index.
        let forward = outer.strides.iter().all(|strides| strides.last().is_none_or(|&stride| stride >= 0));
        let (count, stride) = if forward { outer.pop() } else { None }.unwrap_or((1, [0; 3]));
        Self { outer, count, stride }
    }

    fn calls(&self) -> usize {
        self.outer.shape.iter().product()
    }
}

/// Which operands to copy before a product of `calls` calls: those whose batches are not equally
/// spaced ([`Side::is_scattered`]), if the copy costs less than the calls that it saves.
fn worth_moving([a, b, out]: &[Side; 3], calls: usize) -> [bool; 2] {
    if calls == 1 {
        return [false; 2];
    }
    let scattered = [a, b].map(|side| side.is_scattered(&out.tensor));
    let bytes = |side: &Side, moved| if moved { side.tensor.len() * side.tensor.dtype_size() } else { 0 };
    let copied = bytes(a, scattered[0]) + bytes(b, scattered[1]);
    let launches = 1 + scattered.iter().filter(|&&moved| moved).count();
    // With a shared right side, the copy makes one product of all batches. Otherwise it only saves
    // calls.
    let work = if b.is_shared() { a.batches().0.iter().product() } else { calls };
    // A call takes about 4 us. In that time an H200 copies 8 MB, a GPU of half its memory bandwidth 4
    // MB, and a CPU core 64 KB. `benches/src/bin/product_batches.rs` times both sides.
    let each = out.tensor.hip_device().defaults().copied_a_call;
    match copied <= work.saturating_sub(launches).saturating_mul(each) {
        true => scattered,
        false => [false; 2],
    }
}
