//! Tensor descriptors.

use core::ffi::c_int;
use hip_provider::miopen::{Outcome, give, object, object_mut, status, take};
use hip_provider::require;
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
    /// In the order of its dimensions.
    pub(crate) fn packed(data: miopenDataType_t, dims: Vec<usize>) -> Self {
        let strides = packed(&dims);
        Self { data, dims, strides }
    }

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
        let mut expected = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            expected *= dim;
            fits
        })
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
