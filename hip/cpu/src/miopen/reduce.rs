//! `miopenReduceTensor`.

use super::Shared;
use super::handle::in_order;
use super::status::{input, output};
use super::tensor::{Tensor, at, for_each_index, tensor};
use crate::numeric::element::{Element, Real};
use crate::runtime::parallel;
use core::ffi::c_void;
use half::{bf16, f16};
use hip_provider::miopen::{Described, Outcome, Reduction, answer, check_reduced, object, scalar};
use hip_provider::require;
use miopen_sys::*;

/// What a `miopenReduceTensorDescriptor_t` points to.
type Own = Described<Reduction, ()>;

pub(super) unsafe extern "C" fn miopenGetReductionIndicesSize(
    handle: miopenHandle_t,
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    aDesc: miopenTensorDescriptor_t,
    cDesc: miopenTensorDescriptor_t,
    sizeInBytes: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    in_order(handle, |_| unsafe {
        let (a, c) = (tensor(aDesc)?, tensor(cDesc)?);
        check_reduced((&a.dims, a.data), (&c.dims, c.data))?;
        answer(sizeInBytes, object::<Own, _>(reduceTensorDesc)?.index_bytes(c.count()))
    })
}

pub(super) unsafe extern "C" fn miopenGetReductionWorkspaceSize(
    handle: miopenHandle_t,
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    aDesc: miopenTensorDescriptor_t,
    cDesc: miopenTensorDescriptor_t,
    sizeInBytes: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    in_order(handle, |_| unsafe {
        object::<Own, _>(reduceTensorDesc)?;
        let (a, c) = (tensor(aDesc)?, tensor(cDesc)?);
        check_reduced((&a.dims, a.data), (&c.dims, c.data))?;
        answer(sizeInBytes, 0)
    })
}

struct Call<'a> {
    reduction: Reduction,
    a: (&'a Tensor, *const c_void),
    c: (&'a Tensor, *mut c_void),
    indices: Option<*mut c_void>,
    alpha: f64,
    beta: f64,
}

fn reduce<T: Element>(call: &Call<'_>) -> Outcome {
    let (a, c) = (call.a.0, call.c.0);
    // SAFETY: the caller's buffers.
    let (values, to, indices) = unsafe {
        (
            input::<T>(call.a.1, a.span())?,
            Shared(output::<T>(call.c.1, c.span())?.as_mut_ptr()),
            match call.indices {
                Some(indices) => Some(Shared(output::<i32>(indices, c.count())?.as_mut_ptr())),
                None => None,
            },
        )
    };
    // Offsets of the elements that meet in one result, from the first of them; and each result's first.
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
    let op = call.reduction.op;
    let nan = call.reduction.nan == MIOPEN_PROPAGATE_NAN;
    let (alpha, beta) = (call.alpha, call.beta);
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

/// The sum, in blocks, so that the error grows with the square root of the length at most.
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

/// The element that beats all before it, and its index; NaN wins where it is propagated and is passed over else.
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

pub(super) unsafe extern "C" fn miopenReduceTensor(
    handle: miopenHandle_t,
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    indices: *mut c_void,
    indicesSizeInBytes: usize,
    _workspace: *mut c_void,
    _workspaceSizeInBytes: usize,
    alpha: *const c_void,
    aDesc: miopenTensorDescriptor_t,
    A: *const c_void,
    beta: *const c_void,
    cDesc: miopenTensorDescriptor_t,
    C: *mut c_void,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // SAFETY: the caller's handle, descriptors and scalars.
        let call = unsafe {
            let reduction: Reduction = **object::<Own, _>(reduceTensorDesc)?;
            let (a, c) = (tensor(aDesc)?, tensor(cDesc)?);
            check_reduced((&a.dims, a.data), (&c.dims, c.data))?;
            let bytes = reduction.index_bytes(c.count());
            require(indicesSizeInBytes >= bytes, miopenStatusBadParm)?;
            // Double data need double sums; the other types are summed in f32 whatever was asked.
            require(a.data != miopenDouble || reduction.compute == miopenDouble, miopenStatusBadParm)?;
            Call {
                reduction,
                a: (a, A),
                c: (c, C),
                indices: (bytes > 0).then_some(indices),
                alpha: scalar(alpha, a.data)?,
                beta: scalar(beta, a.data)?,
            }
        };
        match call.a.0.data {
            miopenFloat => reduce::<f32>(&call),
            miopenHalf => reduce::<f16>(&call),
            miopenBFloat16 => reduce::<bf16>(&call),
            miopenDouble => reduce::<f64>(&call),
            _ => Err(miopenStatusNotImplemented),
        }
    })
}
