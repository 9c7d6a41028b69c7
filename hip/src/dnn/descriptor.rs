//! MIOpen's descriptors, each wrapped the moment it exists and destroyed on drop.

use std::ptr;
use std::sync::Once;

use miopen_sys::*;

use super::check;
use crate::settings::allow_fallback;
use crate::{Error, Result};

macro_rules! descriptor {
    ($(#[$meta:meta])* $name:ident, $raw:ty, $create:ident, $destroy:ident) => {
        $(#[$meta])*
        pub(super) struct $name {
            table: &'static Miopen,
            raw: $raw,
        }

        // SAFETY: a descriptor is plain data in MIOpen's heap, tied to no thread or handle. Calls
        // only read it once it is set. The setters here take `&mut self` or run before it is
        // shared.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            fn create(table: &'static Miopen) -> Result<Self> {
                let mut raw = ptr::null_mut();
                // SAFETY: `raw` outlives the call.
                let status = unsafe { (table.$create)(&mut raw) };
                check(table, stringify!($create), status, String::new)?;
                Ok(Self { table, raw })
            }

            /// Valid for as long as `self`.
            pub(super) fn raw(&self) -> $raw {
                self.raw
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the descriptor is valid; calls that used it have returned, and MIOpen
                // keeps no reference.
                let status = unsafe { (self.table.$destroy)(self.raw) };
                if let Err(error) = check(self.table, stringify!($destroy), status, String::new) {
                    log::warn!("{error}");
                }
            }
        }
    };
}

descriptor!(
    /// A tensor's dtype, shape and strides.
    TensorDesc, miopenTensorDescriptor_t, miopenCreateTensorDescriptor, miopenDestroyTensorDescriptor
);
descriptor!(
    /// A convolution's padding, stride, dilation and groups.
    ConvolutionDesc,
    miopenConvolutionDescriptor_t,
    miopenCreateConvolutionDescriptor,
    miopenDestroyConvolutionDescriptor
);
descriptor!(
    /// A pooling's mode, window, padding and stride.
    PoolingDesc, miopenPoolingDescriptor_t, miopenCreatePoolingDescriptor, miopenDestroyPoolingDescriptor
);
descriptor!(
    /// An activation's mode and parameters.
    ActivationDesc,
    miopenActivationDescriptor_t,
    miopenCreateActivationDescriptor,
    miopenDestroyActivationDescriptor
);
descriptor!(
    /// The arguments of a fusion plan's ops for one call.
    OperatorArgs, miopenOperatorArgs_t, miopenCreateOperatorArgs, miopenDestroyOperatorArgs
);
descriptor!(
    /// A reduction's op, type, and whether it gives indices.
    ReduceTensorDesc,
    miopenReduceTensorDescriptor_t,
    miopenCreateReduceTensorDescriptor,
    miopenDestroyReduceTensorDescriptor
);

impl TensorDesc {
    /// A packed, row-major tensor.
    pub(super) fn packed(
        table: &'static Miopen,
        op: &'static str,
        data_type: miopenDataType_t,
        shape: &[usize],
    ) -> Result<Self> {
        let (dims, strides) = packed(op, shape)?;
        Self::strided(table, op, data_type, &dims, &strides)
    }

    /// A tensor of rank 3 or more without gaps, whose second axis is the innermost one in memory.
    pub(super) fn channels_last(
        table: &'static Miopen,
        op: &'static str,
        data_type: miopenDataType_t,
        shape: &[usize],
    ) -> Result<Self> {
        let (dims, strides) = channels_last(op, shape)?;
        Self::strided(table, op, data_type, &dims, &strides)
    }

    /// `dims` and `strides` are equally long.
    fn strided(
        table: &'static Miopen,
        op: &'static str,
        data_type: miopenDataType_t,
        dims: &[i32],
        strides: &[i32],
    ) -> Result<Self> {
        let this = Self::create(table)?;
        // SAFETY: both arrays hold `dims.len()` values, which MIOpen copies.
        let status = unsafe {
            (table.miopenSetTensorDescriptor)(
                this.raw,
                data_type,
                dims.len() as i32,
                dims.as_ptr(),
                strides.as_ptr(),
            )
        };
        check(table, "miopenSetTensorDescriptor", status, || format!("{op}: {dims:?} by {strides:?}"))?;
        Ok(this)
    }
}

/// The dimensions and packed strides as C ints.
fn packed(op: &'static str, shape: &[usize]) -> Result<(Vec<i32>, Vec<i32>)> {
    let dims = ints(op, shape)?;
    let mut strides = vec![1i32; dims.len()];
    for at in (1..dims.len()).rev() {
        strides[at - 1] = strides[at].checked_mul(dims[at].max(1)).ok_or_else(|| too_large(op, shape))?;
    }
    Ok((dims, strides))
}

/// The dimensions as C ints, and the strides of a tensor whose second axis is the innermost one.
fn channels_last(op: &'static str, shape: &[usize]) -> Result<(Vec<i32>, Vec<i32>)> {
    let mut inner = shape.to_vec();
    let channels = inner.remove(1);
    inner.push(channels);
    let (_, mut strides) = packed(op, &inner)?;
    if let Some(channel) = strides.pop() {
        strides.insert(1, channel);
    }
    Ok((ints(op, shape)?, strides))
}

/// Sizes as C ints; `Invalid` if one does not fit.
pub(super) fn ints(op: &'static str, values: &[usize]) -> Result<Vec<i32>> {
    values.iter().map(|&value| i32::try_from(value).map_err(|_| too_large(op, values))).collect()
}

fn too_large(op: &'static str, found: &[usize]) -> Error {
    Error::invalid(op, format!("dimensions and strides of at most {}", i32::MAX), format!("{found:?}"))
}

impl ConvolutionDesc {
    /// A convolution with this padding, stride and dilation, each with one number for each axis.
    pub(super) fn of(
        table: &'static Miopen,
        op: &'static str,
        [padding, stride, dilation]: [&[usize]; 3],
        groups: usize,
    ) -> Result<Self> {
        let (padding, stride, dilation) = (ints(op, padding)?, ints(op, stride)?, ints(op, dilation)?);
        let groups = ints(op, &[groups])?[0];
        let this = Self::create(table)?;
        // SAFETY: the three arrays have the same length, which the caller has checked, and MIOpen
        // copies them.
        let status = unsafe {
            (table.miopenInitConvolutionNdDescriptor)(
                this.raw,
                padding.len() as i32,
                padding.as_ptr(),
                stride.as_ptr(),
                dilation.as_ptr(),
                miopenConvolution,
            )
        };
        check(table, "miopenInitConvolutionNdDescriptor", status, || {
            format!("padding {padding:?}, stride {stride:?}, dilation {dilation:?}")
        })?;
        // SAFETY: the descriptor is valid.
        let status = unsafe { (table.miopenSetConvolutionGroupCount)(this.raw, groups) };
        check(table, "miopenSetConvolutionGroupCount", status, || groups.to_string())?;
        Ok(this)
    }

    /// Sets an attribute.
    pub(super) fn set(&mut self, attribute: miopenConvolutionAttrib_t, value: i32) -> Result<()> {
        // SAFETY: the descriptor is valid.
        let status = unsafe { (self.table.miopenSetConvolutionAttribute)(self.raw, attribute, value) };
        check(self.table, "miopenSetConvolutionAttribute", status, || format!("{attribute:?} = {value}"))
    }
}

impl ConvolutionDesc {
    /// Sets MIOpen's find mode, which its variable `MIOPEN_FIND_MODE` sets otherwise. A MIOpen
    /// without the function, such as that of ROCm 5.7, keeps its own, which is logged once, or
    /// is an error ([`Config::strict`](crate::Config::strict)).
    pub(super) fn set_find_mode(&mut self, mode: miopenConvolutionFindMode_t) -> Result<()> {
        let Some(set) = self.table.miopenSetConvolutionFindMode else {
            static SAID: Once = Once::new();
            let expected =
                "a MIOpen with miopenSetConvolutionFindMode, or else `auto`, `immediate` or `find`";
            let found = "an older one, with which the other values act as `find`";
            let error = allow_fallback(Error::config("BURN_ROCM_CONV_FIND", expected, found))?;
            SAID.call_once(|| log::warn!("{error}"));
            return Ok(());
        };
        // SAFETY: the descriptor is valid.
        let status = unsafe { set(self.raw, mode) };
        check(self.table, "miopenSetConvolutionFindMode", status, || format!("{mode:?}"))
    }
}

impl OperatorArgs {
    pub(super) fn new(table: &'static Miopen) -> Result<Self> {
        Self::create(table)
    }
}

/// A fusion plan: a sequence of ops, which MIOpen compiles to one kernel.
pub(super) struct FusionPlan {
    table: &'static Miopen,
    raw: miopenFusionPlanDescriptor_t,
}

// SAFETY: a plan is plain data in MIOpen's heap, tied to no thread. It is compiled before it is
// shared, and runs under the handle's lock.
unsafe impl Send for FusionPlan {}
// SAFETY: as above.
unsafe impl Sync for FusionPlan {}

impl FusionPlan {
    /// A plan for an input, without ops.
    pub(super) fn new(table: &'static Miopen, input: &TensorDesc) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the descriptor is valid, and copied.
        let status = unsafe { (table.miopenCreateFusionPlan)(&mut raw, miopenVerticalFusion, input.raw) };
        check(table, "miopenCreateFusionPlan", status, String::new)?;
        Ok(Self { table, raw })
    }

    /// Valid for as long as `self`.
    pub(super) fn raw(&self) -> miopenFusionPlanDescriptor_t {
        self.raw
    }
}

impl Drop for FusionPlan {
    fn drop(&mut self) {
        // SAFETY: the plan is valid; calls that used it have returned, and MIOpen keeps no
        // reference.
        let status = unsafe { (self.table.miopenDestroyFusionPlan)(self.raw) };
        if let Err(error) = check(self.table, "miopenDestroyFusionPlan", status, String::new) {
            log::warn!("{error}");
        }
    }
}

impl PoolingDesc {
    pub(super) fn new(
        table: &'static Miopen,
        mode: miopenPoolingMode_t,
        window: &[i32],
        padding: &[i32],
        stride: &[i32],
        index: miopenIndexType_t,
    ) -> Result<Self> {
        let this = Self::create(table)?;
        // SAFETY: the caller's three arrays have the same length, and MIOpen copies them.
        let status = unsafe {
            (table.miopenSetNdPoolingDescriptor)(
                this.raw,
                mode,
                window.len() as i32,
                window.as_ptr(),
                padding.as_ptr(),
                stride.as_ptr(),
            )
        };
        check(table, "miopenSetNdPoolingDescriptor", status, || {
            format!("{mode:?}, window {window:?}, padding {padding:?}, stride {stride:?}")
        })?;
        // SAFETY: the descriptor is valid.
        let status = unsafe { (table.miopenSetPoolingIndexType)(this.raw, index) };
        check(table, "miopenSetPoolingIndexType", status, || format!("{index:?}"))?;
        // SAFETY: the descriptor is valid.
        let status =
            unsafe { (table.miopenSetPoolingWorkSpaceIndexMode)(this.raw, miopenPoolingWorkspaceIndexImage) };
        check(table, "miopenSetPoolingWorkSpaceIndexMode", status, String::new)?;
        Ok(this)
    }
}

impl ActivationDesc {
    pub(super) fn new(
        table: &'static Miopen,
        mode: miopenActivationMode_t,
        [alpha, beta, gamma]: [f64; 3],
    ) -> Result<Self> {
        let this = Self::create(table)?;
        // SAFETY: the descriptor is valid.
        let status = unsafe { (table.miopenSetActivationDescriptor)(this.raw, mode, alpha, beta, gamma) };
        check(table, "miopenSetActivationDescriptor", status, || format!("{mode:?}"))?;
        Ok(this)
    }
}

impl ReduceTensorDesc {
    pub(super) fn new(
        table: &'static Miopen,
        op: miopenReduceTensorOp_t,
        compute: miopenDataType_t,
        indices: miopenReduceTensorIndices_t,
    ) -> Result<Self> {
        let this = Self::create(table)?;
        // SAFETY: the descriptor is valid.
        let status = unsafe {
            (table.miopenSetReduceTensorDescriptor)(
                this.raw,
                op,
                compute,
                MIOPEN_PROPAGATE_NAN,
                indices,
                MIOPEN_32BIT_INDICES,
            )
        };
        check(table, "miopenSetReduceTensorDescriptor", status, || format!("{op:?}, {compute:?}"))?;
        Ok(this)
    }
}

#[cfg(test)]
mod tests {
    use super::{channels_last, packed};

    #[test]
    fn packed_strides() {
        assert_eq!(packed("t", &[2, 3, 4, 5]).unwrap().1, [60, 20, 5, 1]);
        assert_eq!(packed("t", &[2, 1, 1, 1]).unwrap().1, [1, 1, 1, 1]);
        let (dims, strides) = channels_last("t", &[2, 3, 4, 5]).unwrap();
        assert_eq!((dims, strides), (vec![2, 3, 4, 5], vec![60, 1, 15, 3]));
        assert_eq!(channels_last("t", &[4, 3, 1, 1]).unwrap().1, [3, 1, 3, 3]);
        assert!(packed("t", &[1, 1 << 31]).is_err());
        assert!(packed("t", &[1, 1 << 16, 1 << 16]).is_err(), "a stride past i32");
    }
}
