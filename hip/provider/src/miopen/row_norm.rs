//! Norms of rows: layer norm, T5 layer norm and group norm.

use super::tensor::operand;
use super::{Handle, Operand, Outcome, answer, with};
use crate::require;
use core::ffi::c_void;
use miopen_sys::*;

/// The rows of a call, each normalised by itself. The tensors are packed and of one type.
pub struct Rows<'a, H: Handle> {
    /// The number of rows.
    pub rows: usize,
    /// Values of a row.
    pub length: usize,
    /// The number of rows in a sample that have their own parameters: for group norm the number of
    /// groups, else 1.
    pub groups: usize,
    /// Consecutive values that share a weight.
    pub share: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// The input.
    pub x: Operand<'a, H>,
}

/// The other arguments of layer norm's gradient.
pub struct RowGradient<'a, H: Handle> {
    /// The gradient with respect to the output.
    pub dy: Operand<'a, H>,
    /// The gradient with respect to the input.
    pub dx: Operand<'a, H>,
    /// The mean of each row.
    pub mean: Operand<'a, H>,
    /// `1 / sqrt(variance + epsilon)` of each row.
    pub rstd: Operand<'a, H>,
    /// A weight for each place of a row.
    pub weight: Option<Operand<'a, H>>,
    /// The gradients with respect to weight and bias, if wanted.
    pub parameters: Option<[Operand<'a, H>; 2]>,
}

/// The other arguments of the forward norms.
pub struct Normalised<'a, H: Handle> {
    /// The output.
    pub y: Operand<'a, H>,
    /// The mean of each row.
    pub mean: Operand<'a, H>,
    /// `1 / sqrt(variance + epsilon)` of each row.
    pub rstd: Operand<'a, H>,
    /// Weight and bias.
    pub parameters: Option<[Operand<'a, H>; 2]>,
}

/// Norms of rows of a provider.
pub trait RowNorms: Handle {
    /// Layer norm and group norm.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn norm_forward(&self, rows: &Rows<'_, Self>, to: &Normalised<'_, Self>) -> Outcome;

    /// T5 layer norm (RMS norm), which divides by the root of the mean square and subtracts no
    /// mean.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn t5_norm(
        &self,
        rows: &Rows<'_, Self>,
        weight: &Operand<'_, Self>,
        y: &Operand<'_, Self>,
        rstd: Option<&Operand<'_, Self>>,
    ) -> Outcome;

    /// The gradient of layer norm.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn layer_norm_backward(&self, rows: &Rows<'_, Self>, call: &RowGradient<'_, Self>) -> Outcome;
}

impl<'a, H: Handle> Rows<'a, H> {
    /// The rows of layer norm: all axes from `normalized_dim` on are one row.
    fn layers(x: Operand<'a, H>, normalized_dim: i32, epsilon: f32) -> Outcome<Self> {
        let axis = usize::try_from(normalized_dim).map_err(|_| miopenStatusBadParm)?;
        require(axis < x.dims.len(), miopenStatusBadParm)?;
        x.require_packed()?;
        let (rows, length) = (x.dims[..axis].iter().product(), x.dims[axis..].iter().product());
        Ok(Rows { rows, length, groups: 1, share: 1, epsilon, x })
    }

    /// Refuses tensors that have another type than the input or are not packed.
    fn check_types(&self, others: &[&Operand<'_, H>]) -> Outcome {
        for other in others {
            require(other.data == self.x.data, miopenStatusBadParm)?;
            other.require_packed()?;
        }
        Ok(())
    }

    /// As [`Rows::check_types`]; each tensor must also have `count` values.
    fn check(&self, others: &[&Operand<'_, H>], count: usize) -> Outcome {
        require(others.iter().all(|other| other.count() == count), miopenStatusBadParm)?;
        self.check_types(others)
    }

    /// As [`Rows::check_types`]; each tensor must also have the input's shape.
    fn check_alike(&self, others: &[&Operand<'_, H>]) -> Outcome {
        require(others.iter().all(|other| other.dims == self.x.dims), miopenStatusBadParm)?;
        self.check_types(others)
    }

    /// A weight or bias, with a value for each place of a row or each channel.
    ///
    /// # Safety
    /// The caller's descriptor.
    unsafe fn parameter(
        &self,
        descriptor: miopenTensorDescriptor_t,
        at: *const c_void,
    ) -> Outcome<Operand<'a, H>> {
        // SAFETY: the caller vouches for it.
        let own = unsafe { operand::<H>(descriptor, at) }?;
        self.check(&[&own], self.groups * self.length / self.share)?;
        Ok(own)
    }
}

/// Whether MIOpen reads weight and bias in this mode.
fn has_parameters(mode: miopenNormMode_t) -> Outcome<bool> {
    match mode {
        MIOPEN_ELEMENTWISE_AFFINE => Ok(false),
        MIOPEN_WEIGHT_BIAS => Ok(true),
        _ => Err(miopenStatusBadParm),
    }
}

#[rustfmt::skip] // One line of arguments a group, here and below.
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenLayerNormForward<H: RowNorms>(
    handle: miopenHandle_t, mode: miopenNormMode_t, xDesc: miopenTensorDescriptor_t, x: *const c_void,
    weightDesc: miopenTensorDescriptor_t, weight: *const c_void, biasDesc: miopenTensorDescriptor_t,
    bias: *const c_void, epsilon: f32, normalized_dim: i32, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
    meanDesc: miopenTensorDescriptor_t, mean: *mut c_void, rstdDesc: miopenTensorDescriptor_t, rstd: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let rows = Rows::layers(operand::<H>(xDesc, x)?, normalized_dim, epsilon)?;
            let parameters = [(weightDesc, weight), (biasDesc, bias)];
            let results = [(yDesc, y), (meanDesc, mean), (rstdDesc, rstd)];
            forward(handle, &rows, mode, parameters, results)
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenGroupNormForward<H: RowNorms>(
    handle: miopenHandle_t, mode: miopenNormMode_t, xDesc: miopenTensorDescriptor_t, x: *const c_void,
    weightDesc: miopenTensorDescriptor_t, weight: *const c_void, biasDesc: miopenTensorDescriptor_t,
    bias: *const c_void, num_groups: u64, epsilon: f32, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
    meanDesc: miopenTensorDescriptor_t, mean: *mut c_void, rstdDesc: miopenTensorDescriptor_t, rstd: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let x = operand::<H>(xDesc, x)?;
            x.require_packed()?;
            let (batch, channels, share) = x.planes()?;
            let groups = num_groups as usize;
            // Also refuses 0 groups, and a negative number, which is huge as a `usize`.
            require(channels.is_multiple_of(groups), miopenStatusBadParm)?;
            let length = channels / groups * share;
            let rows = Rows { rows: batch * groups, length, groups, share, epsilon, x };
            let parameters = [(weightDesc, weight), (biasDesc, bias)];
            let results = [(yDesc, y), (meanDesc, mean), (rstdDesc, rstd)];
            forward(handle, &rows, mode, parameters, results)
        })
    }
}

/// Checks the other tensors of a forward norm and runs it.
///
/// # Safety
/// The caller's descriptors and buffers.
unsafe fn forward<H: RowNorms>(
    handle: &H,
    rows: &Rows<'_, H>,
    mode: miopenNormMode_t,
    [(weight, weight_at), (bias, bias_at)]: [(miopenTensorDescriptor_t, *const c_void); 2],
    [(y, y_at), (mean, mean_at), (rstd, rstd_at)]: [(miopenTensorDescriptor_t, *mut c_void); 3],
) -> Outcome {
    // SAFETY: the caller's descriptors and buffers.
    unsafe {
        let y = operand::<H>(y, y_at)?;
        let (mean, rstd) = (operand::<H>(mean, mean_at)?, operand::<H>(rstd, rstd_at)?);
        rows.check_alike(&[&y])?;
        rows.check(&[&mean, &rstd], rows.rows)?;
        let parameters = match has_parameters(mode)? {
            true => Some([rows.parameter(weight, weight_at)?, rows.parameter(bias, bias_at)?]),
            false => None,
        };
        handle.norm_forward(rows, &Normalised { y, mean, rstd, parameters })
    }
}

/// The last axis is a row. `rstd` may be null.
#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenT5LayerNormForward<H: RowNorms>(
    handle: miopenHandle_t, mode: miopenNormMode_t, xDesc: miopenTensorDescriptor_t, x: *const c_void,
    weightDesc: miopenTensorDescriptor_t, weight: *const c_void, epsilon: f32, yDesc: miopenTensorDescriptor_t,
    y: *mut c_void, rstdDesc: miopenTensorDescriptor_t, rstd: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            // MIOpen reads a weight even in the mode without one.
            require(mode == MIOPEN_WEIGHT_BIAS_T5, miopenStatusNotImplemented)?;
            let x = operand::<H>(xDesc, x)?;
            let last = x.dims.len() as i32 - 1;
            let rows = Rows::layers(x, last, epsilon)?;
            let y = operand::<H>(yDesc, y)?;
            rows.check_alike(&[&y])?;
            let weight = rows.parameter(weightDesc, weight)?;
            let rstd = (!rstd.is_null()).then(|| operand::<H>(rstdDesc, rstd)).transpose()?;
            if let Some(rstd) = &rstd {
                rows.check(&[rstd], rows.rows)?;
            }
            handle.t5_norm(&rows, &weight, &y, rstd.as_ref())
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenGetLayerNormBackwardWorkspaceSize<H: RowNorms>(
    handle: miopenHandle_t, mode: miopenNormMode_t, dyDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t, _weightDesc: miopenTensorDescriptor_t, meanDesc: miopenTensorDescriptor_t,
    rstdDesc: miopenTensorDescriptor_t, normalized_dim: i32, dxDesc: miopenTensorDescriptor_t,
    _dwDesc: miopenTensorDescriptor_t, _dbDesc: miopenTensorDescriptor_t, sizeInBytes: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    unsafe {
        with::<H>(handle, |_| {
            has_parameters(mode)?;
            let of = |descriptor| operand::<H>(descriptor, core::ptr::null());
            let rows = Rows::layers(of(xDesc)?, normalized_dim, 0.0)?;
            rows.check_alike(&[&of(dyDesc)?, &of(dxDesc)?])?;
            rows.check(&[&of(meanDesc)?, &of(rstdDesc)?], rows.rows)?;
            answer(sizeInBytes, 0)
        })
    }
}

/// The gradient with respect to `x`, and those with respect to weight and bias unless both `dw` and
/// `db` are null.
#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenLayerNormBackward<H: RowNorms>(
    handle: miopenHandle_t, mode: miopenNormMode_t, _workspace: *mut c_void, _workspaceSizeInBytes: usize,
    dyDesc: miopenTensorDescriptor_t, dy: *const c_void, xDesc: miopenTensorDescriptor_t, x: *const c_void,
    weightDesc: miopenTensorDescriptor_t, weight: *const c_void, meanDesc: miopenTensorDescriptor_t,
    mean: *const c_void, rstdDesc: miopenTensorDescriptor_t, rstd: *const c_void, normalized_dim: i32,
    dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, dwDesc: miopenTensorDescriptor_t, dw: *mut c_void,
    dbDesc: miopenTensorDescriptor_t, db: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let rows = Rows::layers(operand::<H>(xDesc, x)?, normalized_dim, 0.0)?;
            let (dy, dx) = (operand::<H>(dyDesc, dy)?, operand::<H>(dxDesc, dx)?);
            rows.check_alike(&[&dy, &dx])?;
            let (mean, rstd) = (operand::<H>(meanDesc, mean)?, operand::<H>(rstdDesc, rstd)?);
            rows.check(&[&mean, &rstd], rows.rows)?;
            let weight = match has_parameters(mode)? {
                true => Some(rows.parameter(weightDesc, weight)?),
                false => None,
            };
            let parameters = match dw.is_null() && db.is_null() {
                true => None,
                false => Some([rows.parameter(dwDesc, dw)?, rows.parameter(dbDesc, db)?]),
            };
            handle.layer_norm_backward(&rows, &RowGradient { dy, dx, mean, rstd, weight, parameters })
        })
    }
}
