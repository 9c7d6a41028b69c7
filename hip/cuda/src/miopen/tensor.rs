//! Tensor descriptors.

use super::status::{answered, stamp};
use core::ffi::c_int;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, give, object, object_mut, status, take};
use hip_provider::require;
use miopen_sys::*;
use std::ptr;

/// Dimensions that a descriptor of cuDNN's holds, at least and at most.
const DIMS: std::ops::RangeInclusive<usize> = 4..=8;

/// What a `miopenTensorDescriptor_t` points to.
pub(super) struct Tensor {
    pub(super) data: miopenDataType_t,
    pub(super) dims: Vec<usize>,
    pub(super) strides: Vec<usize>,
    /// cuDNN's; ranks below 4 have axes of length 1 behind.
    pub(super) raw: cudnn::cudnnTensorDescriptor_t,
    /// As the weights of a convolution; set where the tensor is packed and of rank 4 or 5.
    filter: cudnn::cudnnFilterDescriptor_t,
    is_filter: bool,
    /// Another whenever it is set.
    pub(super) stamp: u64,
    /// cuDNN refuses it: every call with it does.
    refused: Option<miopenStatus_t>,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: cuDNN's descriptors, or null where creation failed; calls that read them have returned.
        unsafe {
            if !self.raw.is_null() {
                let _ = cudnn::cudnnDestroyTensorDescriptor(self.raw);
            }
            if !self.filter.is_null() {
                let _ = cudnn::cudnnDestroyFilterDescriptor(self.filter);
            }
        }
    }
}

/// cuDNN's name for a type.
fn data_type(data: miopenDataType_t) -> Option<cudnn::cudnnDataType_t> {
    use cudnn::cudnnDataType_t::*;
    Some(match data {
        miopenHalf => CUDNN_DATA_HALF,
        miopenFloat => CUDNN_DATA_FLOAT,
        miopenInt32 => CUDNN_DATA_INT32,
        miopenInt8 => CUDNN_DATA_INT8,
        miopenBFloat16 => CUDNN_DATA_BFLOAT16,
        miopenDouble => CUDNN_DATA_DOUBLE,
        miopenInt64 => CUDNN_DATA_INT64,
        _ => return None,
    })
}

fn packed(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

impl Tensor {
    fn new() -> Outcome<Self> {
        let mut tensor = Tensor {
            data: miopenFloat,
            dims: Vec::new(),
            strides: Vec::new(),
            raw: ptr::null_mut(),
            filter: ptr::null_mut(),
            is_filter: false,
            stamp: stamp(),
            refused: None,
        };
        // SAFETY: the functions are cuDNN's, the pointers valid; `tensor` owns what is made at once.
        unsafe {
            answered(cudnn::cudnnCreateTensorDescriptor(&mut tensor.raw))?;
            answered(cudnn::cudnnCreateFilterDescriptor(&mut tensor.filter))?;
        }
        Ok(tensor)
    }

    /// Elements.
    pub(super) fn count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes from the first element to past the last.
    pub(super) fn bytes(&self) -> usize {
        let last: usize = self.dims.iter().zip(&self.strides).map(|(dim, stride)| (dim - 1) * stride).sum();
        (last + 1) * self.size()
    }

    fn size(&self) -> usize {
        match self.data {
            miopenInt8 => 1,
            miopenHalf | miopenBFloat16 => 2,
            miopenDouble | miopenInt64 => 8,
            _ => 4,
        }
    }

    /// Whether elements lie in row-major order without gaps. Strides of axes of length 1 don't matter.
    fn is_packed(&self) -> bool {
        let expected = packed(&self.dims);
        (0..self.dims.len()).all(|axis| self.dims[axis] == 1 || self.strides[axis] == expected[axis])
    }

    /// `Err` unless packed.
    pub(super) fn require_packed(&self) -> Outcome {
        require(self.is_packed(), miopenStatusNotImplemented)
    }

    /// The descriptor as that of a convolution's weights.
    pub(super) fn filter(&self) -> Outcome<cudnn::cudnnFilterDescriptor_t> {
        require(self.is_filter, miopenStatusNotImplemented)?;
        Ok(self.filter)
    }

    fn set(&mut self, data: miopenDataType_t, dims: &[c_int], strides: Option<&[c_int]>) -> Outcome {
        let raw_type = data_type(data).ok_or(miopenStatusBadParm)?;
        require(dims.iter().all(|&dim| dim > 0), miopenStatusBadParm)?;
        self.stamp = stamp();
        self.data = data;
        self.dims = dims.iter().map(|&dim| dim as usize).collect();
        self.strides = match strides {
            None => packed(&self.dims),
            Some(strides) => {
                require(strides.iter().all(|&stride| stride >= 0), miopenStatusBadParm)?;
                strides.iter().map(|&stride| stride as usize).collect()
            }
        };
        self.is_filter = false;
        self.refused = Some(miopenStatusNotImplemented);
        if self.dims.len() > *DIMS.end() {
            return Ok(());
        }
        let rank = self.dims.len().max(*DIMS.start());
        let as_ints = |values: &[usize]| {
            let mut all: Vec<c_int> = values.iter().map(|&value| value as c_int).collect();
            all.resize(rank, 1);
            all
        };
        let (dims, strides) = (as_ints(&self.dims), as_ints(&self.strides));
        // SAFETY: cuDNN's descriptors; the arrays have `rank` values.
        unsafe {
            let set = cudnn::cudnnSetTensorNdDescriptor(
                self.raw,
                raw_type,
                rank as c_int,
                dims.as_ptr(),
                strides.as_ptr(),
            );
            // Known when a call uses it: MIOpen's descriptors hold more than its functions take.
            self.refused = answered(set).err();
            if matches!(self.dims.len(), 4 | 5) && self.is_packed() {
                let format = cudnn::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
                let set = cudnn::cudnnSetFilterNdDescriptor(
                    self.filter,
                    raw_type,
                    format,
                    rank as c_int,
                    dims.as_ptr(),
                );
                self.is_filter = answered(set).is_ok();
            }
        }
        Ok(())
    }
}

/// The tensor of a descriptor argument, which has been set to what cuDNN takes.
///
/// # Safety
/// A non-null `descriptor` came from `miopenCreateTensorDescriptor` and is not destroyed.
pub(super) unsafe fn tensor<'a>(descriptor: miopenTensorDescriptor_t) -> Outcome<&'a Tensor> {
    // SAFETY: the caller vouches for it.
    let tensor = unsafe { object::<Tensor, _>(descriptor) }?;
    require(!tensor.dims.is_empty(), miopenStatusBadParm)?;
    tensor.refused.map_or(Ok(tensor), Err)
}

pub(super) unsafe extern "C" fn miopenCreateTensorDescriptor(
    tensorDesc: *mut miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's out-pointer.
    status(|| unsafe { give(tensorDesc, Tensor::new()?) })
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
        require((1..=12).contains(&nbDims) && !dimsA.is_null(), miopenStatusBadParm)?;
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
