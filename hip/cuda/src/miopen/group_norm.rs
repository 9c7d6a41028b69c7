//! Group norm, forward, on a kernel of this provider's own: cuDNN has it in graphs alone.

use super::handle::with;
use super::status::{Outcome, check_buffer, require};
use super::tensor::{Tensor, tensor};
use crate::own_kernels;
use core::ffi::c_void;
use miopen_sys::*;

/// `own.cu`'s.
#[repr(C)]
struct Norm {
    rows: i64,
    length: i64,
    groups: i64,
    channels: i64,
    share: i64,
    epsilon: f32,
}

fn kernel(data: miopenDataType_t) -> Outcome<&'static str> {
    Ok(match data {
        miopenFloat => "norm_forward<float>",
        miopenHalf => "norm_forward<f16>",
        miopenBFloat16 => "norm_forward<bf16>",
        _ => return Err(miopenStatusNotImplemented),
    })
}

/// Weight and bias, which MIOpen reads only with `MIOPEN_WEIGHT_BIAS`: of `count` values each.
///
/// # Safety
/// Non-null descriptors are live.
unsafe fn parameters(
    mode: miopenNormMode_t,
    x: &Tensor,
    given: [(miopenTensorDescriptor_t, *const c_void); 2],
    count: usize,
) -> Outcome<[*const c_void; 2]> {
    match mode {
        MIOPEN_ELEMENTWISE_AFFINE => return Ok([core::ptr::null(); 2]),
        MIOPEN_WEIGHT_BIAS => {}
        _ => return Err(miopenStatusBadParm),
    }
    for (descriptor, pointer) in given {
        // SAFETY: the caller vouches for it.
        let own = unsafe { tensor(descriptor) }?;
        require(own.count() == count && own.data == x.data, miopenStatusBadParm)?;
        own.require_packed()?;
        check_buffer(pointer, own.bytes())?;
    }
    Ok(given.map(|(_, pointer)| pointer))
}

/// The tensors of a call: `x`, `y`, and the two statistics of each row.
struct Forward {
    x: *const c_void,
    y: *mut c_void,
    mean: *mut c_void,
    rstd: *mut c_void,
    parameters: [*const c_void; 2],
}

/// # Safety
/// The buffers hold what `norm` says.
unsafe fn launch(
    stream: miopenAcceleratorQueue_t,
    data: miopenDataType_t,
    mut norm: Norm,
    call: Forward,
) -> Outcome {
    let Forward { mut x, mut y, mut mean, mut rstd, parameters: [mut weight, mut bias] } = call;
    // A block a row.
    let items = norm.rows as u64 * 256;
    let mut arguments = [
        (&raw mut norm).cast(),
        (&raw mut x).cast(),
        (&raw mut weight).cast(),
        (&raw mut bias).cast(),
        (&raw mut y).cast(),
        (&raw mut mean).cast(),
        (&raw mut rstd).cast(),
    ];
    // SAFETY: the kernel's arguments; the buffers are the caller's.
    unsafe { own_kernels::launch(kernel(data)?, items, stream, &mut arguments) }
        .map_err(|_| miopenStatusInternalError)
}

/// Refuses tensors that are not packed, of another type than `x`, or without memory of their size.
fn checked(x: &Tensor, others: &[(&Tensor, *const c_void)]) -> Outcome {
    for (tensor, pointer) in others {
        require(tensor.data == x.data, miopenStatusBadParm)?;
        tensor.require_packed()?;
        check_buffer(*pointer, tensor.bytes())?;
    }
    Ok(())
}

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
    with(handle, |handle| unsafe {
        let (xt, yt, means, rstds) = (tensor(xDesc)?, tensor(yDesc)?, tensor(meanDesc)?, tensor(rstdDesc)?);
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
        launch(handle.stream, xt.data, norm, Forward { x, y, mean, rstd, parameters })
    })
}
