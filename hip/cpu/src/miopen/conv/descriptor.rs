//! The convolution descriptor.

use super::super::tensor::Tensor;
use core::ffi::c_int;
use hip_provider::miopen::{Outcome, give, object, object_mut, status, take};
use hip_provider::require;
use miopen_sys::*;

/// What a `miopenConvolutionDescriptor_t` points to.
#[derive(Clone, Debug)]
pub(crate) struct Convolution {
    pub(super) mode: miopenConvolutionMode_t,
    pub(super) pad: Vec<usize>,
    pub(super) stride: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    pub(super) groups: usize,
    /// `MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL`; `None` leaves it to the direction.
    pub(super) alternative: Option<bool>,
}

impl Convolution {
    /// The output for an input and weights.
    pub(super) fn output(&self, x: &Tensor, w: &Tensor) -> Outcome<Tensor> {
        let rank = self.pad.len() + 2;
        require(x.dims.len() == rank && w.dims.len() == rank, miopenStatusBadParm)?;
        let mut dims = vec![x.dims[0], w.dims[0]];
        for axis in 0..rank - 2 {
            let reach = (w.dims[axis + 2] - 1) * self.dilation[axis] + 1;
            let padded = x.dims[axis + 2] + 2 * self.pad[axis];
            require(padded >= reach, miopenStatusBadParm)?;
            dims.push((padded - reach) / self.stride[axis] + 1);
        }
        Ok(Tensor::packed(x.data, dims))
    }
}

/// The descriptor of a call.
///
/// # Safety
/// A non-null `descriptor` came from `miopenCreateConvolutionDescriptor` and is not destroyed.
pub(super) unsafe fn convolution<'a>(descriptor: miopenConvolutionDescriptor_t) -> Outcome<&'a Convolution> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<Convolution, _>(descriptor) }
}

pub(in super::super) unsafe extern "C" fn miopenCreateConvolutionDescriptor(
    convDesc: *mut miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    let usual = Convolution {
        mode: miopenConvolution,
        pad: vec![0; 2],
        stride: vec![1; 2],
        dilation: vec![1; 2],
        groups: 1,
        alternative: None,
    };
    // SAFETY: the caller's out-pointer.
    status(|| unsafe { give(convDesc, usual) })
}

pub(in super::super) unsafe extern "C" fn miopenDestroyConvolutionDescriptor(
    convDesc: miopenConvolutionDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    status(|| unsafe { take::<Convolution, _>(convDesc) })
}

pub(in super::super) unsafe extern "C" fn miopenInitConvolutionNdDescriptor(
    convDesc: miopenConvolutionDescriptor_t,
    spatialDim: c_int,
    padA: *const c_int,
    strideA: *const c_int,
    dilationA: *const c_int,
    c_mode: miopenConvolutionMode_t,
) -> miopenStatus_t {
    status(|| {
        require(c_mode == miopenConvolution || c_mode == miopenTranspose, miopenStatusBadParm)?;
        require(spatialDim == 2 || spatialDim == 3, miopenStatusNotImplemented)?;
        let read = |from: *const c_int, least: c_int| {
            require(!from.is_null(), miopenStatusBadParm)?;
            // SAFETY: the caller's array of `spatialDim` values.
            let values = unsafe { core::slice::from_raw_parts(from, spatialDim as usize) };
            require(values.iter().all(|&value| value >= least), miopenStatusBadParm)?;
            Ok(values.iter().map(|&value| value as usize).collect())
        };
        let (pad, stride, dilation) = (read(padA, 0)?, read(strideA, 1)?, read(dilationA, 1)?);
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Convolution, _>(convDesc) }?;
        *own = Convolution { mode: c_mode, pad, stride, dilation, groups: 1, alternative: None };
        Ok(())
    })
}

pub(in super::super) unsafe extern "C" fn miopenSetConvolutionGroupCount(
    convDesc: miopenConvolutionDescriptor_t,
    groupCount: c_int,
) -> miopenStatus_t {
    status(|| {
        require(groupCount >= 1, miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        unsafe { object_mut::<Convolution, _>(convDesc) }?.groups = groupCount as usize;
        Ok(())
    })
}

pub(in super::super) unsafe extern "C" fn miopenSetConvolutionAttribute(
    convDesc: miopenConvolutionDescriptor_t,
    attr: miopenConvolutionAttrib_t,
    value: c_int,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Convolution, _>(convDesc) }?;
        // Every algorithm here is deterministic.
        match attr {
            MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL => {
                require((-1..=1).contains(&value), miopenStatusBadParm)?;
                own.alternative = (value >= 0).then_some(value == 1);
                Ok(())
            }
            MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC => require((0..=1).contains(&value), miopenStatusBadParm),
            _ => Err(miopenStatusBadParm),
        }
    })
}
