//! Group norm, forward.

use super::handle::with;
use super::norm_rows::{Forward, Norm, checked, launch, parameters};
use super::tensor::tensor;
use core::ffi::c_void;
use hip_provider::require;
use miopen_sys::*;

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenGroupNormForward(
    handle: miopenHandle_t,
    mode: miopenNormMode_t,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    weightDesc: miopenTensorDescriptor_t,
    weight: *const c_void,
    biasDesc: miopenTensorDescriptor_t,
    bias: *const c_void,
    num_groups: u64,
    epsilon: f32,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    meanDesc: miopenTensorDescriptor_t,
    mean: *mut c_void,
    rstdDesc: miopenTensorDescriptor_t,
    rstd: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (xt, yt, means, rstds) =
                (tensor(xDesc)?, tensor(yDesc)?, tensor(meanDesc)?, tensor(rstdDesc)?);
            require((2..=5).contains(&xt.dims.len()) && xt.dims == yt.dims, miopenStatusBadParm)?;
            let (batch, channels) = (xt.dims[0], xt.dims[1]);
            let pixels: usize = xt.dims[2..].iter().product();
            let groups = num_groups as usize;
            require(groups >= 1 && channels.is_multiple_of(groups), miopenStatusBadParm)?;
            let rows = batch * groups;
            require(means.count() == rows && rstds.count() == rows, miopenStatusBadParm)?;
            checked(xt, &[(xt, x), (yt, y), (means, mean), (rstds, rstd)])?;
            let parameters = parameters(mode, xt, [(weightDesc, weight), (biasDesc, bias)], channels)?;
            let norm = Norm {
                rows: rows as i64,
                length: (channels / groups * pixels) as i64,
                groups: groups as i64,
                channels: (channels / groups) as i64,
                share: pixels as i64,
                epsilon,
            };
            launch(handle.stream, xt.data, true, norm, Forward { x, y, mean, rstd, parameters })
        })
    }
}
