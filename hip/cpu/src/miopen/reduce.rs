//! Reductions.

use super::Shared;
use super::handle::{Handle, Operand};
use super::status::{input, output};
use crate::numeric::element::{Element, Real};
use crate::runtime::{enqueue, parallel};
use core::ffi::c_void;
use core::ops::Deref;
use half::{bf16, f16};
use hip_provider::miopen::{Described, Outcome, Reduction, ReductionMemory, Reductions, Tensor, scalar};
use hip_provider::require;
use miopen_sys::*;

/// A descriptor of a reduction.
type Own = Described<Reduction, ()>;

/// Calls `visit` with the coordinates of every element, in row-major order.
fn for_each_index(dims: &[usize], mut visit: impl FnMut(&[usize])) {
    if dims.contains(&0) {
        return;
    }
    let mut at = vec![0; dims.len()];
    loop {
        visit(&at);
        let mut axis = dims.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            at[axis] += 1;
            if at[axis] < dims[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}

/// The offset of an element; an axis of length 1 is broadcast.
fn at(tensor: &Tensor, index: &[usize]) -> usize {
    (0..index.len())
        .map(|axis| if tensor.dims[axis] == 1 { 0 } else { index[axis] * tensor.strides[axis] })
        .sum()
}

/// A tensor of a call, without its descriptor.
struct Side {
    tensor: Tensor,
    at: *mut c_void,
}

impl Side {
    fn new(operand: &Operand<'_>) -> Self {
        Self { tensor: Tensor::clone(operand), at: operand.at }
    }
}

impl Deref for Side {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

fn reduce<T: Element>(
    reduction: Reduction,
    [a, c]: &[Side; 2],
    indices: *mut c_void,
    [alpha, beta]: [f64; 2],
) -> Outcome {
    // SAFETY: the caller's buffers.
    let (values, to, indices) = unsafe {
        (
            input::<T>(a.at, a.span())?,
            Shared(output::<T>(c.at, c.span())?.as_mut_ptr()),
            match reduction.indices {
                true => Some(Shared(output::<i32>(indices, c.count())?.as_mut_ptr())),
                false => None,
            },
        )
    };
    // `offsets` has the offsets of one result's elements from its first element. `results` has the
    // first element and the place of each result.
    let mut offsets = Vec::new();
    let reduced: Vec<usize> =
        (0..a.dims.len()).map(|axis| if c.dims[axis] == 1 { a.dims[axis] } else { 1 }).collect();
    for_each_index(&reduced, |index| {
        offsets.push((0..index.len()).map(|i| index[i] * a.strides[i]).sum::<usize>())
    });
    let mut results = Vec::with_capacity(c.count());
    for_each_index(&c.dims, |index| {
        results.push(((0..index.len()).map(|i| index[i] * a.strides[i]).sum::<usize>(), at(c, index)));
    });
    let each = (1usize << 13).div_ceil(offsets.len().max(1));
    let op = reduction.op;
    let nan = reduction.nan == MIOPEN_PROPAGATE_NAN;
    parallel(results.len().div_ceil(each), |task| {
        let own = results.iter().enumerate().skip(task * each).take(each);
        for (result, &(first, place)) in own {
            let elements = offsets.iter().map(|offset| values[first + offset].widen());
            let zero = T::Acc::default();
            let (value, index) = match op {
                MIOPEN_REDUCE_TENSOR_MUL => (elements.fold(T::Acc::ONE, |a, b| a * b), 0),
                MIOPEN_REDUCE_TENSOR_MIN => pick(elements, T::Acc::MAX, nan, |new, old| new < old),
                MIOPEN_REDUCE_TENSOR_MAX => pick(elements, T::Acc::MIN, nan, |new, old| new > old),
                MIOPEN_REDUCE_TENSOR_AMAX => pick(elements.map(Real::abs), zero, nan, |new, old| new > old),
                MIOPEN_REDUCE_TENSOR_NORM1 => (sum(elements.map(Real::abs)), 0),
                MIOPEN_REDUCE_TENSOR_NORM2 => (sum(elements.map(|v| v * v)).sqrt(), 0),
                MIOPEN_REDUCE_TENSOR_AVG => (sum(elements) / T::Acc::from_f64(offsets.len() as f64), 0),
                _ => (sum(elements), 0),
            };
            let mut value = value * T::Acc::from_f64(alpha);
            // SAFETY: inside the buffers; each result is one task's alone.
            unsafe {
                let to = to.get().add(place);
                if beta != 0.0 {
                    value += (*to).widen() * T::Acc::from_f64(beta);
                }
                *to = T::narrow(value);
                if let Some(indices) = &indices {
                    *indices.get().add(result) = index;
                }
            }
        }
    });
    Ok(())
}

/// The sum. Blocks of 64 elements are added in `f64`, so that the error does not grow with the
/// length.
fn sum<A: Real>(elements: impl Iterator<Item = A>) -> A {
    let (mut total, mut block, mut count) = (0.0f64, A::default(), 0);
    for element in elements {
        block += element;
        count += 1;
        if count == 64 {
            total += block.to_f64();
            (block, count) = (A::default(), 0);
        }
    }
    A::from_f64(total + block.to_f64())
}

/// The first element that beats all others, and its index. If `nan`, the first NaN wins; otherwise
/// NaN is ignored.
fn pick<A: Real>(
    elements: impl Iterator<Item = A>,
    start: A,
    nan: bool,
    beats: impl Fn(A, A) -> bool,
) -> (A, i32) {
    let mut best = (start, 0);
    for (index, element) in elements.enumerate() {
        if beats(element, best.0) || (nan && element.is_nan() && !best.0.is_nan()) {
            best = (element, index as i32);
        }
    }
    best
}

impl Reductions for Handle {
    type Own = ();

    fn reduction_workspace(
        &self,
        _: &Own,
        _: &Described<Tensor, ()>,
        _: &Described<Tensor, ()>,
    ) -> Outcome<usize> {
        Ok(0)
    }

    unsafe fn reduce(
        &self,
        reduction: &Own,
        a: &Operand<'_>,
        c: &Operand<'_>,
        memory: &ReductionMemory,
    ) -> Outcome {
        // f64 data need f64 sums. Other types are summed in f32, whatever the descriptor says.
        require(a.data != miopenDouble || reduction.compute == miopenDouble, miopenStatusBadParm)?;
        let run = match a.data {
            miopenFloat => reduce::<f32>,
            miopenHalf => reduce::<f16>,
            miopenBFloat16 => reduce::<bf16>,
            miopenDouble => reduce::<f64>,
            _ => return Err(miopenStatusNotImplemented),
        };
        // SAFETY: the provider read the scalars.
        let scalars = unsafe { [scalar(memory.scalars[0], a.data)?, scalar(memory.scalars[1], a.data)?] };
        let (reduction, indices, sides) = (**reduction, memory.indices, [Side::new(a), Side::new(c)]);
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(move || run(reduction, &sides, indices, scalars)) }
    }
}
