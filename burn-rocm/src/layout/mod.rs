//! Where a tensor's elements lie in its buffer: shape, signed strides and offset, all in elements.
//!
//! Every method computes on the metadata alone and does not touch the device. Every layout is
//! derived by the methods here from a contiguous one, or from the layout that another library gave
//! its memory (`interop`). So its elements are always among those of that first layout. The kernel
//! launches rely on this guarantee.

use burn_std::{Shape, Slice, SmallVec};
use hip::Error;

/// The number of dimensions up to which a layout needs no heap allocation.
const INLINE: usize = 6;

/// The strides of a layout, in elements: negative for a flipped axis, 0 for an expanded one.
pub(crate) type Strides = SmallVec<[isize; INLINE]>;

/// Shape, strides and offset of a tensor, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    strides: Strides,
    offset: usize,
}

/// The strides of a row-major tensor of this shape.
fn row_major(shape: &[usize]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, shape.len());
    let mut step = 1usize;
    for (stride, &dim) in strides.iter_mut().zip(shape).rev() {
        *stride = step as isize;
        step *= dim.max(1);
    }
    strides
}

fn invalid<T>(op: &'static str, expected: impl Into<String>, found: impl Into<String>) -> hip::Result<T> {
    Err(Error::Invalid { op, expected: expected.into(), found: found.into() })
}

/// The number of elements of a shape; `None` above `isize::MAX`, so that every position of a view
/// fits the type of its strides.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim))?;
    isize::try_from(count).is_ok().then_some(count)
}

/// The shape to which two operands broadcast: dimensions of size 1 and missing leading dimensions
/// are repeated.
///
/// # Errors
/// `Invalid` if two sizes differ and neither is 1.
pub(crate) fn broadcast_shape(op: &'static str, lhs: &[usize], rhs: &[usize]) -> hip::Result<Shape> {
    let rank = lhs.len().max(rhs.len());
    let at = |shape: &[usize], i: usize| {
        let missing = rank - shape.len();
        if i < missing { 1 } else { shape[i - missing] }
    };
    let mut dims: SmallVec<[usize; INLINE]> = SmallVec::new();
    for i in 0..rank {
        match (at(lhs, i), at(rhs, i)) {
            (a, b) if a == b => dims.push(a),
            (1, b) => dims.push(b),
            (a, 1) => dims.push(a),
            _ => return invalid(op, format!("a shape that broadcasts with {lhs:?}"), format!("{rhs:?}")),
        }
    }
    Ok(Shape::from(dims.to_vec()))
}

impl Layout {
    /// A row-major layout that begins at the buffer's first element.
    pub fn contiguous(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let strides = row_major(shape.as_slice());
        Self { shape, strides, offset: 0 }
    }

    /// A layout of this shape and these strides, whose element (0, 0, ...) is at `offset`.
    ///
    /// # Errors
    /// `Invalid` for a negative `offset`, or if shape and strides differ in rank.
    pub(crate) fn strided(
        op: &'static str,
        shape: impl Into<Shape>,
        strides: &[isize],
        offset: isize,
    ) -> hip::Result<Self> {
        let shape = shape.into();
        match usize::try_from(offset) {
            Ok(offset) if shape.num_dims() == strides.len() => {
                Ok(Self { shape, strides: strides.into(), offset })
            }
            _ => invalid(
                op,
                "an offset inside the buffer and a stride for each axis",
                format!("{strides:?} from {offset} for {shape:?}"),
            ),
        }
    }

    /// Sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Sizes of the dimensions as a slice.
    pub fn dims(&self) -> &[usize] {
        self.shape.as_slice()
    }

    /// Strides in elements.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// The position of element (0, 0, ...) in the buffer, in elements.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.strides.len()
    }

    /// The number of elements of the shape. An expanded element counts once for each repetition.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether the shape has no elements.
    pub fn is_empty(&self) -> bool {
        self.dims().contains(&0)
    }

    /// Whether the elements lie one after the other in row-major order, wherever they start.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for (&dim, &stride) in self.dims().iter().zip(&self.strides).rev() {
            if dim == 0 {
                return true;
            }
            if dim != 1 {
                if stride != step {
                    return false;
                }
                step *= dim as isize;
            }
        }
        true
    }

    /// Whether the strides prove that no two indices share an element. They do not if an axis is
    /// repeated or if windows overlap.
    pub fn names_each_once(&self) -> bool {
        let mut axes: SmallVec<[(usize, usize); INLINE]> =
            self.strides.iter().map(|by| by.unsigned_abs()).zip(self.dims().iter().copied()).collect();
        axes.retain(|&mut (_, dim)| dim != 1);
        axes.sort_unstable();
        let mut reach = 0;
        self.is_empty()
            || axes.iter().all(|&(by, dim)| {
                let apart = by > reach;
                reach += by * (dim - 1);
                apart
            })
    }

    /// The order of axes in which the elements are contiguous, if there is such an order: the
    /// identity for a contiguous layout, another order for a transposed one, `None` for a broadcast
    /// or sliced one.
    pub fn dense_order(&self) -> Option<Vec<usize>> {
        let mut axes: Vec<usize> = (0..self.rank()).collect();
        if self.is_contiguous() {
            return Some(axes);
        }
        axes.sort_by_key(|&axis| core::cmp::Reverse(self.strides[axis]));
        let mut step = 1isize;
        for &axis in axes.iter().rev() {
            match self.dims()[axis] {
                1 => continue,
                dim if self.strides[axis] == step => step *= dim as isize,
                _ => return None,
            }
        }
        Some(axes)
    }

    /// The first and the last position in the buffer that the layout reaches, in elements; `None`
    /// for an empty layout.
    pub fn span(&self) -> Option<(usize, usize)> {
        if self.is_empty() {
            return None;
        }
        let (mut low, mut high) = (self.offset as isize, self.offset as isize);
        for (&dim, &stride) in self.dims().iter().zip(&self.strides) {
            let reach = (dim as isize - 1) * stride;
            if reach < 0 { low += reach } else { high += reach }
        }
        Some((low as usize, high as usize))
    }

    /// Permutes the axes: axis `i` of the result is axis `axes[i]`.
    ///
    /// # Errors
    /// `Invalid` unless `axes` names each axis once.
    pub fn permute(&self, op: &'static str, axes: &[usize]) -> hip::Result<Self> {
        let rank = self.rank();
        let once = (0..rank).all(|axis| axes.iter().filter(|&&a| a == axis).count() == 1);
        if axes.len() != rank || !once {
            return invalid(op, format!("each of the {rank} axes once"), format!("{axes:?}"));
        }
        let dims: Vec<usize> = axes.iter().map(|&a| self.dims()[a]).collect();
        let strides = axes.iter().map(|&a| self.strides[a]).collect();
        Ok(Self { shape: Shape::from(dims), strides, offset: self.offset })
    }

    /// Swaps two axes.
    ///
    /// # Errors
    /// `Invalid` for an axis past the rank.
    pub fn swap_dims(&self, op: &'static str, a: usize, b: usize) -> hip::Result<Self> {
        let mut axes: Vec<usize> = (0..self.rank()).collect();
        if a.max(b) >= axes.len() {
            return invalid(op, format!("axes below {}", axes.len()), format!("{a}, {b}"));
        }
        axes.swap(a, b);
        self.permute(op, &axes)
    }

    /// Reverses the given axes.
    ///
    /// # Errors
    /// `Invalid` for an axis past the rank.
    pub fn flip(&self, op: &'static str, axes: &[usize]) -> hip::Result<Self> {
        let mut out = self.clone();
        for &axis in axes {
            let Some(&dim) = self.dims().get(axis) else {
                return invalid(op, format!("axes below {}", self.rank()), format!("{axes:?}"));
            };
            if dim > 1 {
                let reach = (dim as isize - 1) * out.strides[axis];
                out.offset = (out.offset as isize + reach) as usize;
                out.strides[axis] = -out.strides[axis];
            }
        }
        Ok(out)
    }

    /// Cuts a range with a step out of each axis; axes beyond the slices stay whole. A negative
    /// step walks its range backwards.
    ///
    /// # Errors
    /// `Invalid` for more slices than axes.
    pub fn slice(&self, op: &'static str, slices: &[Slice]) -> hip::Result<Self> {
        if slices.len() > self.rank() {
            return invalid(op, format!("at most {} ranges", self.rank()), format!("{}", slices.len()));
        }
        let mut out = self.clone();
        let mut dims = self.dims().to_vec();
        for (axis, slice) in slices.iter().enumerate() {
            let range = slice.to_range(dims[axis]);
            let len = slice.output_size(dims[axis]);
            let first = if slice.step() < 0 { range.end.saturating_sub(1) } else { range.start };
            // An empty axis leaves the offset alone, because there is no first element.
            if len > 0 {
                out.offset = (out.offset as isize + first as isize * out.strides[axis]) as usize;
            }
            // The step matters only if there is a second element, and is then less than the axis.
            if len > 1 {
                out.strides[axis] *= slice.step();
            }
            dims[axis] = len;
        }
        out.shape = Shape::from(dims);
        Ok(out)
    }

    /// Cuts a range out of one axis.
    ///
    /// # Errors
    /// `Invalid` for an axis past the rank or a range past its size.
    pub fn narrow(&self, op: &'static str, axis: usize, start: usize, len: usize) -> hip::Result<Self> {
        if axis >= self.rank() || start.checked_add(len).is_none_or(|end| end > self.dims()[axis]) {
            return invalid(
                op,
                format!("a range inside {:?}", self.dims()),
                format!("{start}+{len} of axis {axis}"),
            );
        }
        let mut out = self.clone();
        let mut dims = self.dims().to_vec();
        dims[axis] = len;
        if len > 0 {
            out.offset = (out.offset as isize + start as isize * out.strides[axis]) as usize;
        }
        out.shape = Shape::from(dims);
        Ok(out)
    }

    /// Repeats axes of size 1, and missing leading axes, to the shape `target`.
    ///
    /// # Errors
    /// `Invalid` if a size is neither 1 nor the target's, or for a target of more than `isize::MAX`
    /// elements.
    pub fn expand(&self, op: &'static str, target: &[usize]) -> hip::Result<Self> {
        let fail =
            || invalid(op, format!("a shape that expands to {target:?}"), format!("{:?}", self.dims()));
        let Some(missing) = target.len().checked_sub(self.rank()) else { return fail() };
        let mut strides: Strides = SmallVec::from_elem(0, target.len());
        for (axis, (&dim, &stride)) in self.dims().iter().zip(&self.strides).enumerate() {
            match target[missing + axis] {
                want if want == dim => strides[missing + axis] = stride,
                _ if dim == 1 => strides[missing + axis] = 0,
                _ => return fail(),
            }
        }
        if count(target).is_none() {
            return fail();
        }
        Ok(Self { shape: Shape::from(target.to_vec()), strides, offset: self.offset })
    }

    /// The same elements under another shape, or `None` if strides can't express it and the tensor
    /// must be copied.
    ///
    /// # Errors
    /// `Invalid` if the element counts differ.
    pub fn reshape(&self, op: &'static str, target: &[usize]) -> hip::Result<Option<Self>> {
        let Some(count) = count(target).filter(|&count| count == self.len()) else {
            return invalid(
                op,
                format!("{} elements as in {:?}", self.len(), self.dims()),
                format!("{target:?}"),
            );
        };
        let view = |strides| Self { shape: Shape::from(target.to_vec()), strides, offset: self.offset };
        if count == 0 || self.is_contiguous() {
            return Ok(Some(view(row_major(target))));
        }
        // The old axes form runs that are contiguous in themselves. Each new axis must lie within
        // one run.
        let old: SmallVec<[(usize, isize); INLINE]> = self
            .dims()
            .iter()
            .copied()
            .zip(self.strides.iter().copied())
            .filter(|&(dim, _)| dim != 1)
            .collect();
        let mut strides: Strides = SmallVec::from_elem(1, target.len());
        let mut axis = target.len();
        let mut end = old.len();
        while end > 0 {
            let (mut size, step) = old[end - 1];
            let mut start = end - 1;
            while start > 0 && old[start - 1].1 == step * size as isize {
                start -= 1;
                size *= old[start].0;
            }
            let mut covered = 1;
            while covered < size {
                let Some(next) = axis.checked_sub(1) else { return Ok(None) };
                axis = next;
                strides[axis] = step * covered as isize;
                covered *= target[axis];
            }
            if covered != size {
                return Ok(None);
            }
            end = start;
        }
        Ok(Some(view(strides)))
    }

    /// Windows of `size` elements, one every `step` elements along `axis`. That axis then counts
    /// the windows (0 if it is shorter than a window), and a new last axis runs within a window.
    ///
    /// # Errors
    /// `Invalid` for an axis past the rank, a step of 0, or windows of more than `isize::MAX`
    /// elements together.
    pub fn unfold(&self, op: &'static str, axis: usize, size: usize, step: usize) -> hip::Result<Self> {
        if axis >= self.rank() || step == 0 {
            return invalid(
                op,
                format!("an axis of {:?} and a step from 1", self.dims()),
                format!("axis {axis}, step {step}"),
            );
        }
        let mut dims = self.dims().to_vec();
        let mut strides = self.strides.clone();
        dims[axis] = dims[axis].checked_sub(size).map_or(0, |rest| rest / step + 1);
        dims.push(size);
        if count(&dims).is_none() {
            return invalid(
                op,
                format!("windows that fit memory, of {:?}", self.dims()),
                format!("{dims:?}"),
            );
        }
        strides.push(strides[axis]);
        // The step matters only if there is a second window, and is then less than the axis.
        if dims[axis] > 1 {
            strides[axis] *= step as isize;
        }
        Ok(Self { shape: Shape::from(dims), strides, offset: self.offset })
    }
}

/// The fewest axes over which one loop nest walks several operands of the same shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collapsed<const N: usize> {
    /// Sizes of the axes, outermost first; none is 1.
    pub shape: SmallVec<[usize; 8]>,
    /// Strides of each operand over those axes.
    pub strides: [SmallVec<[isize; 8]>; N],
}

impl<const N: usize> Collapsed<N> {
    /// Removes the innermost axis and returns its size and each operand's stride along it.
    pub(crate) fn pop(&mut self) -> Option<(usize, [isize; N])> {
        let dim = self.shape.pop()?;
        Some((dim, self.strides.each_mut().map(|strides| strides.pop().unwrap_or(0))))
    }

    /// Each operand's offset from its first element at every index, with the last axis running
    /// fastest.
    pub(crate) fn offsets(&self) -> Vec<[isize; N]> {
        let mut offsets = vec![[0; N]];
        for (axis, &dim) in self.shape.iter().enumerate() {
            let at =
                |from: [isize; N], i: isize| std::array::from_fn(|n| from[n] + i * self.strides[n][axis]);
            offsets = offsets.iter().flat_map(|&from| (0..dim as isize).map(move |i| at(from, i))).collect();
        }
        offsets
    }
}

/// Drops axes of size 1, and merges neighbouring axes that every operand can walk as one.
pub(crate) fn collapse<const N: usize>(shape: &[usize], operands: [&[isize]; N]) -> Collapsed<N> {
    let mut out = Collapsed { shape: SmallVec::new(), strides: std::array::from_fn(|_| SmallVec::new()) };
    for (axis, &dim) in shape.iter().enumerate() {
        if dim == 1 {
            continue;
        }
        let merges = !out.shape.is_empty()
            && (0..N).all(|n| out.strides[n].last() == Some(&(operands[n][axis] * dim as isize)));
        match (merges, out.shape.last_mut()) {
            (true, Some(last)) => {
                *last *= dim;
                for (strides, operand) in out.strides.iter_mut().zip(operands) {
                    if let Some(stride) = strides.last_mut() {
                        *stride = operand[axis];
                    }
                }
            }
            _ => {
                out.shape.push(dim);
                for (strides, operand) in out.strides.iter_mut().zip(operands) {
                    strides.push(operand[axis]);
                }
            }
        }
    }
    out
}

/// The permutation that undoes `order`.
pub(crate) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut back = vec![0; order.len()];
    for (at, &axis) in order.iter().enumerate() {
        back[axis] = at;
    }
    back
}

#[cfg(test)]
mod tests;
