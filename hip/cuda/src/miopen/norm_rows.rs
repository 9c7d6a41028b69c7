//! What the norms of rows and groups share: their kernels, which are this provider's own. cuDNN has these norms in
//! graphs alone.

use super::status::check_buffer;
use super::tensor::{Tensor, tensor};
use crate::own_kernels;
use core::ffi::c_void;
use hip_provider::miopen::Outcome;
use hip_provider::require;
use miopen_sys::*;

/// `own.cu`'s.
#[repr(C)]
pub(super) struct Norm {
    pub(super) rows: i64,
    pub(super) length: i64,
    pub(super) groups: i64,
    pub(super) channels: i64,
    pub(super) share: i64,
    pub(super) epsilon: f32,
}

impl Norm {
    /// Rows with a weight for each place.
    pub(super) fn of_rows(rows: usize, length: usize, epsilon: f32) -> Self {
        Norm { rows: rows as i64, length: length as i64, groups: 1, channels: 0, share: 1, epsilon }
    }
}

/// Threads of a block: a row's, where a warp has not enough.
pub(super) const BLOCK: u64 = 256;

/// The kernel, and how many threads it has for a row.
struct Kernel {
    name: &'static str,
    team: u64,
}

/// The kernel for rows of so many pieces of 16 bytes, if they are few enough.
fn kept(data: miopenDataType_t, centred: bool, pieces: i64) -> Outcome<Option<Kernel>> {
    // What a warp keeps in 2 and in 8 pieces a thread, and a block of 256 in 4 and in 8.
    let Some(size) = [64, 256, 1024, 2048].iter().position(|&most| pieces <= most) else { return Ok(None) };
    macro_rules! names {
        ($($data:ident $type:literal)*) => {
            match (data, centred, size) {
                $(
                    ($data, true, 0) => concat!("row_norm<", $type, ", true, 32, 2>"),
                    ($data, true, 1) => concat!("row_norm<", $type, ", true, 32, 8>"),
                    ($data, true, 2) => concat!("row_norm<", $type, ", true, 256, 4>"),
                    ($data, true, _) => concat!("row_norm<", $type, ", true, 256, 8>"),
                    ($data, false, 0) => concat!("row_norm<", $type, ", false, 32, 2>"),
                    ($data, false, 1) => concat!("row_norm<", $type, ", false, 32, 8>"),
                    ($data, false, 2) => concat!("row_norm<", $type, ", false, 256, 4>"),
                    ($data, false, _) => concat!("row_norm<", $type, ", false, 256, 8>"),
                )*
                _ => return Err(miopenStatusNotImplemented),
            }
        };
    }
    let name = names! { miopenFloat "float" miopenHalf "f16" miopenBFloat16 "bf16" };
    Ok(Some(Kernel { name, team: if size < 2 { 32 } else { BLOCK } }))
}

/// The kernel for any rows.
fn any(data: miopenDataType_t, centred: bool) -> Outcome<Kernel> {
    let name = match (data, centred) {
        (miopenFloat, true) => "norm_forward<float, true>",
        (miopenFloat, false) => "norm_forward<float, false>",
        (miopenHalf, true) => "norm_forward<f16, true>",
        (miopenHalf, false) => "norm_forward<f16, false>",
        (miopenBFloat16, true) => "norm_forward<bf16, true>",
        (miopenBFloat16, false) => "norm_forward<bf16, false>",
        _ => return Err(miopenStatusNotImplemented),
    };
    Ok(Kernel { name, team: BLOCK })
}

/// Weight and bias, which MIOpen reads only with `MIOPEN_WEIGHT_BIAS`: of `count` values each.
///
/// # Safety
/// Non-null descriptors are live.
pub(super) unsafe fn parameters(
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
        require(own.count() == count, miopenStatusBadParm)?;
        checked(x, &[(own, pointer)])?;
    }
    Ok(given.map(|(_, pointer)| pointer))
}

/// The tensors of a call: `x`, `y`, and the statistics of each row. Null parameters and statistics are left out.
pub(super) struct Forward {
    pub(super) x: *const c_void,
    pub(super) y: *mut c_void,
    pub(super) mean: *mut c_void,
    pub(super) rstd: *mut c_void,
    pub(super) parameters: [*const c_void; 2],
}

/// Layer norm where `centred`, else T5's.
///
/// # Safety
/// The buffers hold what `norm` says.
pub(super) unsafe fn launch(
    stream: miopenAcceleratorQueue_t,
    data: miopenDataType_t,
    centred: bool,
    mut norm: Norm,
    call: Forward,
) -> Outcome {
    let Forward { mut x, mut y, mut mean, mut rstd, parameters: [mut weight, mut bias] } = call;
    let width = if data == miopenFloat { 4 } else { 8 };
    let aligned = [x, y, weight, bias].into_iter().all(|at| (at as usize).is_multiple_of(16));
    let in_pieces = norm.share == 1 && norm.length % width == 0 && aligned;
    let kernel = match in_pieces {
        true => kept(data, centred, norm.length / width)?,
        false => None,
    };
    let kernel = kernel.map_or_else(|| any(data, centred), Ok)?;
    let items = norm.rows as u64 * kernel.team;
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
    unsafe { own_kernels::launch(kernel.name, items, stream, &mut arguments) }
        .map_err(|_| miopenStatusInternalError)
}

/// Refuses tensors that are not packed, of another type than `x`, or without memory of their size.
pub(super) fn checked(x: &Tensor, others: &[(&Tensor, *const c_void)]) -> Outcome {
    for (tensor, pointer) in others {
        require(tensor.data == x.data, miopenStatusBadParm)?;
        tensor.require_packed()?;
        check_buffer(*pointer, tensor.bytes())?;
    }
    Ok(())
}
