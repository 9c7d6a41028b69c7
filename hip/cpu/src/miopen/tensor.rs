//! Tensor descriptors, and the functions on plain tensors: set and broadcast arithmetic.

use super::handle::in_order;
use super::status::{
    Outcome, answer, give, input, object, object_mut, output, require, scalar, status, take,
};
use crate::numeric::element::{Element, Real};
use core::ffi::{c_int, c_void};
use half::{bf16, f16};
use miopen_sys::*;

/// What a `miopenTensorDescriptor_t` points to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tensor {
    pub(crate) data: miopenDataType_t,
    pub(crate) dims: Vec<usize>,
    pub(crate) strides: Vec<usize>,
}

/// Dimensions that a descriptor holds at most.
const MAX_DIMS: usize = 12;

fn packed(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

impl Tensor {
    /// Elements.
    pub(crate) fn count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Elements from the first to past the last in memory.
    pub(crate) fn span(&self) -> usize {
        if self.count() == 0 {
            return 0;
        }
        1 + self.dims.iter().zip(&self.strides).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>()
    }

    /// Whether elements lie in row-major order without gaps. Strides of axes of length 1 don't matter.
    pub(crate) fn is_packed(&self) -> bool {
        let expected = packed(&self.dims);
        (0..self.dims.len()).all(|axis| self.dims[axis] == 1 || self.strides[axis] == expected[axis])
    }

    /// `Err` unless packed: the layouts that this library computes.
    pub(crate) fn require_packed(&self) -> Outcome {
        require(self.is_packed(), miopenStatusNotImplemented)
    }

    /// Batch, channels and pixels of a packed tensor of rank 2 to 5.
    pub(crate) fn planes(&self) -> Outcome<(usize, usize, usize)> {
        require((2..=5).contains(&self.dims.len()), miopenStatusBadParm)?;
        Ok((self.dims[0], self.dims[1], self.dims[2..].iter().product()))
    }

    fn set(&mut self, data: miopenDataType_t, dims: &[c_int], strides: Option<&[c_int]>) -> Outcome {
        require(data.name().is_some(), miopenStatusBadParm)?;
        require(dims.iter().all(|&dim| dim > 0), miopenStatusBadParm)?;
        let dims: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
        let strides = match strides {
            None => packed(&dims),
            Some(strides) => {
                require(strides.iter().all(|&stride| stride >= 0), miopenStatusBadParm)?;
                strides.iter().map(|&stride| stride as usize).collect()
            }
        };
        *self = Tensor { data, dims, strides };
        Ok(())
    }
}

/// The tensor of a descriptor argument, which has been set.
///
/// # Safety
/// A non-null `descriptor` came from `miopenCreateTensorDescriptor` and is not destroyed.
pub(super) unsafe fn tensor<'a>(descriptor: miopenTensorDescriptor_t) -> Outcome<&'a Tensor> {
    // SAFETY: the caller vouches for it.
    let tensor = unsafe { object::<Tensor, _>(descriptor) }?;
    require(!tensor.dims.is_empty(), miopenStatusBadParm)?;
    Ok(tensor)
}

pub(super) unsafe extern "C" fn miopenCreateTensorDescriptor(
    tensorDesc: *mut miopenTensorDescriptor_t,
) -> miopenStatus_t {
    let empty = Tensor { data: miopenFloat, dims: Vec::new(), strides: Vec::new() };
    // SAFETY: the caller's out-pointer.
    status(|| unsafe { give(tensorDesc, empty) })
}

pub(super) unsafe extern "C" fn miopenDestroyTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    status(|| unsafe { take::<Tensor, _>(tensorDesc) })
}

pub(super) unsafe extern "C" fn miopenSet4dTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
    dataType: miopenDataType_t,
    n: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    status(|| unsafe { object_mut::<Tensor, _>(tensorDesc) }?.set(dataType, &[n, c, h, w], None))
}

pub(super) unsafe extern "C" fn miopenSetTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
    dataType: miopenDataType_t,
    nbDims: c_int,
    dimsA: *const c_int,
    stridesA: *const c_int,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller's descriptor.
        let tensor = unsafe { object_mut::<Tensor, _>(tensorDesc) }?;
        require((1..=MAX_DIMS as c_int).contains(&nbDims) && !dimsA.is_null(), miopenStatusBadParm)?;
        // SAFETY: the caller's arrays of `nbDims` values; strides may be null.
        let (dims, strides) = unsafe {
            (
                core::slice::from_raw_parts(dimsA, nbDims as usize),
                (!stridesA.is_null()).then(|| core::slice::from_raw_parts(stridesA, nbDims as usize)),
            )
        };
        tensor.set(dataType, dims, strides)
    })
}

pub(super) unsafe extern "C" fn miopenGetTensorDescriptorSize(
    tensorDesc: miopenTensorDescriptor_t,
    size: *mut c_int,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor and out-pointer.
    status(|| unsafe { answer(size, object::<Tensor, _>(tensorDesc)?.dims.len() as c_int) })
}

pub(super) unsafe extern "C" fn miopenGetTensorDescriptor(
    tensorDesc: miopenTensorDescriptor_t,
    dataType: *mut miopenDataType_t,
    dimsA: *mut c_int,
    stridesA: *mut c_int,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller's descriptor; each out-pointer may be null, and else holds as many values as the
        // descriptor has dimensions.
        unsafe {
            let tensor = object::<Tensor, _>(tensorDesc)?;
            if !dataType.is_null() {
                dataType.write(tensor.data);
            }
            for (to, values) in [(dimsA, &tensor.dims), (stridesA, &tensor.strides)] {
                if !to.is_null() {
                    for (axis, &value) in values.iter().enumerate() {
                        to.add(axis).write(value as c_int);
                    }
                }
            }
        }
        Ok(())
    })
}

/// Calls `visit` with every element's coordinates.
pub(super) fn for_each_index(dims: &[usize], mut visit: impl FnMut(&[usize])) {
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

/// The offset of coordinates; an axis of length 1 is broadcast.
pub(super) fn at(tensor: &Tensor, index: &[usize]) -> usize {
    (0..index.len())
        .map(|axis| if tensor.dims[axis] == 1 { 0 } else { index[axis] * tensor.strides[axis] })
        .sum()
}

unsafe fn fill<T: Copy>(tensor: &Tensor, y: *mut c_void, value: T) -> Outcome {
    // SAFETY: the caller's buffer.
    let y = unsafe { output::<T>(y, tensor.span()) }?;
    if tensor.is_packed() {
        y.fill(value);
    } else {
        for_each_index(&tensor.dims, |index| y[at(tensor, index)] = value);
    }
    Ok(())
}

pub(super) unsafe extern "C" fn miopenSetTensor(
    handle: miopenHandle_t,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    alpha: *const c_void,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // SAFETY: the caller's handle, descriptor, buffer, and a host scalar of the tensor's type.
        unsafe {
            let tensor = tensor(yDesc)?;
            require(!alpha.is_null(), miopenStatusBadParm)?;
            match tensor.data {
                miopenDouble => fill(tensor, y, alpha.cast::<f64>().read_unaligned()),
                miopenFloat => fill(tensor, y, alpha.cast::<f32>().read_unaligned()),
                miopenInt32 => fill(tensor, y, alpha.cast::<i32>().read_unaligned()),
                miopenHalf | miopenBFloat16 => fill(tensor, y, alpha.cast::<u16>().read_unaligned()),
                miopenInt8 => fill(tensor, y, alpha.cast::<i8>().read_unaligned()),
                _ => Err(miopenStatusNotImplemented),
            }
        }
    })
}

/// The tensors and scalars of [`miopenOpTensor`].
struct Operation<'a> {
    op: miopenTensorOp_t,
    a: (&'a Tensor, *const c_void, f64),
    b: (&'a Tensor, *const c_void, f64),
    c: (&'a Tensor, *mut c_void, f64),
}

unsafe fn operate<T: Element>(o: &Operation<'_>) -> Outcome {
    // SAFETY: the caller's buffers; `c` may be `a` or `b` itself, so elements are read and written through pointers.
    let (a, b, c) = unsafe {
        input::<T>(o.a.1, o.a.0.span())?;
        input::<T>(o.b.1, o.b.0.span())?;
        output::<T>(o.c.1, o.c.0.span())?;
        (o.a.1.cast::<T>(), o.b.1.cast::<T>(), o.c.1.cast::<T>())
    };
    let (alpha, alpha2, beta) = (T::Acc::from_f64(o.a.2), T::Acc::from_f64(o.b.2), T::Acc::from_f64(o.c.2));
    for_each_index(&o.c.0.dims, |index| {
        // SAFETY: coordinates are inside the descriptors, whose spans were checked above.
        unsafe {
            let left = (*a.add(at(o.a.0, index))).widen() * alpha;
            let right = (*b.add(at(o.b.0, index))).widen() * alpha2;
            let mut value = match o.op {
                miopenTensorOpAdd => left + right,
                miopenTensorOpMul => left * right,
                miopenTensorOpMin => left.min(right),
                _ => left.max(right),
            };
            let to = c.add(at(o.c.0, index));
            if o.c.2 != 0.0 {
                value += (*to).widen() * beta;
            }
            *to = T::narrow(value);
        }
    });
    Ok(())
}

pub(super) unsafe extern "C" fn miopenOpTensor(
    handle: miopenHandle_t,
    tensorOp: miopenTensorOp_t,
    alpha1: *const c_void,
    aDesc: miopenTensorDescriptor_t,
    A: *const c_void,
    alpha2: *const c_void,
    bDesc: miopenTensorDescriptor_t,
    B: *const c_void,
    beta: *const c_void,
    cDesc: miopenTensorDescriptor_t,
    C: *mut c_void,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // SAFETY: the caller's handle, descriptors, scalars and buffers.
        unsafe {
            let (a, b, c) = (tensor(aDesc)?, tensor(bDesc)?, tensor(cDesc)?);
            require(tensorOp.name().is_some(), miopenStatusBadParm)?;
            require(a.data == c.data && b.data == c.data, miopenStatusBadParm)?;
            require(a.dims == c.dims && b.dims.len() == c.dims.len(), miopenStatusBadParm)?;
            require(b.dims.iter().zip(&c.dims).all(|(b, c)| b == c || *b == 1), miopenStatusBadParm)?;
            let operation = Operation {
                op: tensorOp,
                a: (a, A, scalar(alpha1, a.data)?),
                b: (b, B, scalar(alpha2, a.data)?),
                c: (c, C, scalar(beta, a.data)?),
            };
            match c.data {
                miopenFloat => operate::<f32>(&operation),
                miopenHalf => operate::<f16>(&operation),
                miopenBFloat16 => operate::<bf16>(&operation),
                miopenDouble => operate::<f64>(&operation),
                _ => Err(miopenStatusNotImplemented),
            }
        }
    })
}
