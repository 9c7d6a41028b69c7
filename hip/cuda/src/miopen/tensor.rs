//! cuDNN's tensor descriptors.

use super::status::{answered, stamp};
use core::ffi::c_int;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, Own, Tensor};
use hip_provider::require;
use miopen_sys::*;
use std::ptr;

/// The ranks that a cuDNN descriptor may have.
const DIMS: std::ops::RangeInclusive<usize> = 4..=8;

/// cuDNN's descriptors.
pub(super) struct Raw {
    /// Ranks below 4 are padded with axes of length 1 at the end.
    pub(super) raw: cudnn::cudnnTensorDescriptor_t,
    /// The tensor as a convolution's weights; set if it is of rank 4 or 5 and has no
    /// gaps, in row-major order or with the channels innermost.
    filter: cudnn::cudnnFilterDescriptor_t,
    is_filter: bool,
    /// Changes to a new number whenever the descriptor is set.
    pub(super) stamp: u64,
    /// The status with which every call refuses the tensor, if cuDNN does not support it.
    refused: Option<miopenStatus_t>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: cuDNN's descriptors, or null if creation failed; calls that read them have
        // returned.
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
fn data_type(data: miopenDataType_t) -> cudnn::cudnnDataType_t {
    use cudnn::cudnnDataType_t::*;
    match data {
        miopenHalf => CUDNN_DATA_HALF,
        miopenFloat => CUDNN_DATA_FLOAT,
        miopenInt32 => CUDNN_DATA_INT32,
        miopenInt8 => CUDNN_DATA_INT8,
        miopenBFloat16 => CUDNN_DATA_BFLOAT16,
        miopenDouble => CUDNN_DATA_DOUBLE,
        _ => CUDNN_DATA_INT64,
    }
}

impl Raw {
    /// The tensor's descriptor as a convolution's weights.
    pub(super) fn filter(&self) -> Outcome<cudnn::cudnnFilterDescriptor_t> {
        require(self.is_filter, miopenStatusNotImplemented)?;
        Ok(self.filter)
    }
}

impl Own<Tensor> for Raw {
    fn new() -> Outcome<Self> {
        let (raw, filter) = (ptr::null_mut(), ptr::null_mut());
        let mut own = Raw { raw, filter, is_filter: false, stamp: stamp(), refused: None };
        // SAFETY: the functions are cuDNN's, the pointers valid. `own` owns each descriptor from
        // its creation on.
        unsafe {
            answered(cudnn::cudnnCreateTensorDescriptor(&mut own.raw))?;
            answered(cudnn::cudnnCreateFilterDescriptor(&mut own.filter))?;
        }
        Ok(own)
    }

    fn set(&mut self, values: &Tensor) -> Outcome {
        self.stamp = stamp();
        self.is_filter = false;
        self.refused = Some(miopenStatusNotImplemented);
        if values.dims.is_empty() || values.dims.len() > *DIMS.end() {
            return Ok(());
        }
        let raw_type = data_type(values.data);
        let rank = values.dims.len().max(*DIMS.start());
        let as_ints = |values: &[usize]| {
            let ints = values.iter().map(|&value| c_int::try_from(value).ok());
            let mut all = ints.collect::<Option<Vec<_>>>()?;
            all.resize(rank, 1);
            Some(all)
        };
        let (Some(lengths), Some(steps)) = (as_ints(&values.dims), as_ints(&values.strides)) else {
            return Ok(());
        };
        let (dims, strides, count) = (lengths.as_ptr(), steps.as_ptr(), rank as c_int);
        // SAFETY: cuDNN's descriptors; the arrays have `rank` values.
        unsafe {
            let set = cudnn::cudnnSetTensorNdDescriptor(self.raw, raw_type, count, dims, strides);
            // Only the calls report the refusal, because a MIOpen descriptor may hold a tensor that
            // no function supports.
            self.refused = answered(set).err();
            let last = values.is_channels_last();
            if matches!(values.dims.len(), 4 | 5) && (last || values.is_packed()) {
                // The lengths are in the order of NCHW with either format.
                let format = match last {
                    true => cudnn::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
                    false => cudnn::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
                };
                let set = cudnn::cudnnSetFilterNdDescriptor(self.filter, raw_type, format, count, dims);
                self.is_filter = answered(set).is_ok();
            }
        }
        Ok(())
    }

    fn check(&self) -> Outcome {
        self.refused.map_or(Ok(()), Err)
    }
}
