//! Descriptors of poolings, activations and reductions: what the caller set, and what a provider keeps with it.

use super::{Outcome, give, object_mut, status, take};
use crate::require;
use core::ffi::c_int;
use core::ops::Deref;
use miopen_sys::*;

/// What a provider keeps with a descriptor of `V`: the descriptor of the library below, say.
pub trait Own<V>: Sized {
    /// For a descriptor that was not set yet.
    fn new() -> Outcome<Self>;

    /// Takes over what the descriptor is set to; refuses what can't be served.
    fn set(&mut self, values: &V) -> Outcome;
}

/// Nothing.
impl<V> Own<V> for () {
    fn new() -> Outcome {
        Ok(())
    }

    fn set(&mut self, _: &V) -> Outcome {
        Ok(())
    }
}

/// What a descriptor's pointer points to.
pub struct Described<V, O> {
    values: V,
    /// The provider's.
    pub own: O,
}

impl<V, O> Deref for Described<V, O> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.values
    }
}

impl<V, O: Own<V>> Described<V, O> {
    fn set(&mut self, values: V) -> Outcome {
        self.own.set(&values)?;
        self.values = values;
        Ok(())
    }
}

/// Makes a descriptor with MIOpen's defaults.
///
/// # Safety
/// A non-null `to` is valid for a write.
pub unsafe extern "C" fn create<V: Default, O: Own<V>, P>(to: *mut *mut P) -> miopenStatus_t {
    status(|| {
        let values = V::default();
        let mut own = O::new()?;
        own.set(&values)?;
        // SAFETY: the caller's out-pointer.
        unsafe { give(to, Described { values, own }) }
    })
}

/// Destroys what [`create`] made.
///
/// # Safety
/// A non-null `descriptor` came from [`create`] for `V` and `O` and is not used again.
pub unsafe extern "C" fn destroy<V, O, P>(descriptor: *mut P) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    status(|| unsafe { take::<Described<V, O>, _>(descriptor) })
}

/// What a pooling descriptor says.
#[derive(Clone)]
pub struct Pooling {
    /// Maxima or averages.
    pub mode: miopenPoolingMode_t,
    /// The window's lengths, of two axes or three.
    pub window: Vec<usize>,
    /// Padding at each end of an axis, shorter than the window.
    pub pad: Vec<usize>,
    /// Steps of the window.
    pub stride: Vec<usize>,
    /// The type of the workspace's indices.
    pub index: miopenIndexType_t,
    /// What an index counts.
    pub index_mode: miopenPoolingWorkspaceIndexMode_t,
}

impl Default for Pooling {
    fn default() -> Self {
        Pooling {
            mode: miopenPoolingMax,
            window: vec![1; 2],
            pad: vec![0; 2],
            stride: vec![1; 2],
            index: miopenIndexUint8,
            index_mode: miopenPoolingWorkspaceIndexMask,
        }
    }
}

impl Pooling {
    /// Bytes of an index.
    pub fn index_size(&self) -> usize {
        match self.index {
            miopenIndexUint8 => 1,
            miopenIndexUint16 => 2,
            miopenIndexUint32 => 4,
            _ => 8,
        }
    }

    /// Bytes of workspace for so many results: the indices of maxima.
    pub fn workspace(&self, results: usize) -> usize {
        if self.mode == miopenPoolingMax { results * self.index_size() } else { 0 }
    }
}

/// Sets a pooling's mode and sizes.
///
/// # Safety
/// A non-null descriptor came from [`create`] and is not destroyed; non-null lists have `nbDims` values.
pub unsafe extern "C" fn miopenSetNdPoolingDescriptor<O: Own<Pooling>>(
    poolDesc: miopenPoolingDescriptor_t,
    mode: miopenPoolingMode_t,
    nbDims: c_int,
    windowDimA: *const c_int,
    padA: *const c_int,
    stridesA: *const c_int,
) -> miopenStatus_t {
    status(|| {
        require(matches!(nbDims, 2 | 3), miopenStatusBadParm)?;
        let lists = [windowDimA, padA, stridesA];
        require(lists.iter().all(|list| !list.is_null()), miopenStatusBadParm)?;
        // SAFETY: the caller's lists of `nbDims` values.
        let lists = lists.map(|list| unsafe { core::slice::from_raw_parts(list, nbDims as usize) });
        let [window, pad, stride] = lists;
        require(mode.name().is_some(), miopenStatusBadParm)?;
        require(window.iter().chain(stride).all(|&value| value >= 1), miopenStatusBadParm)?;
        // A pad as long as the window would make windows that touch no pixel.
        let pads = window.iter().zip(pad).all(|(&window, &pad)| pad >= 0 && pad < window);
        require(pads, miopenStatusBadParm)?;
        let [window, pad, stride] = lists.map(|list| list.iter().map(|&value| value as usize).collect());
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Pooling, O>, _>(poolDesc) }?;
        let Pooling { index, index_mode, .. } = own.values;
        own.set(Pooling { mode, window, pad, stride, index, index_mode })
    })
}

/// Sets the type of a pooling's indices.
///
/// # Safety
/// A non-null descriptor came from [`create`] and is not destroyed.
pub unsafe extern "C" fn miopenSetPoolingIndexType<O>(
    poolDesc: miopenPoolingDescriptor_t,
    index_type: miopenIndexType_t,
) -> miopenStatus_t {
    status(|| {
        require(index_type.name().is_some(), miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        unsafe { object_mut::<Described<Pooling, O>, _>(poolDesc) }?.values.index = index_type;
        Ok(())
    })
}

/// Sets what a pooling's indices count.
///
/// # Safety
/// As [`miopenSetPoolingIndexType`].
pub unsafe extern "C" fn miopenSetPoolingWorkSpaceIndexMode<O>(
    poolDesc: miopenPoolingDescriptor_t,
    workspace_index: miopenPoolingWorkspaceIndexMode_t,
) -> miopenStatus_t {
    status(|| {
        require(workspace_index.name().is_some(), miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        unsafe { object_mut::<Described<Pooling, O>, _>(poolDesc) }?.values.index_mode = workspace_index;
        Ok(())
    })
}

/// What an activation descriptor says.
#[derive(Clone, Copy)]
pub struct Activation {
    /// The function.
    pub mode: miopenActivationMode_t,
    /// Its parameters.
    pub parameters: [f64; 3],
}

impl Default for Activation {
    fn default() -> Self {
        Activation { mode: miopenActivationPASTHRU, parameters: [0.0; 3] }
    }
}

/// Sets an activation.
///
/// # Safety
/// As [`miopenSetPoolingIndexType`].
pub unsafe extern "C" fn miopenSetActivationDescriptor<O: Own<Activation>>(
    activDesc: miopenActivationDescriptor_t,
    mode: miopenActivationMode_t,
    activAlpha: f64,
    activBeta: f64,
    activGamma: f64,
) -> miopenStatus_t {
    status(|| {
        require(mode.name().is_some(), miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Activation, O>, _>(activDesc) }?;
        own.set(Activation { mode, parameters: [activAlpha, activBeta, activGamma] })
    })
}

/// What a reduction's descriptor says.
#[derive(Clone, Copy)]
pub struct Reduction {
    /// The operation.
    pub op: miopenReduceTensorOp_t,
    /// The type that it is computed in.
    pub compute: miopenDataType_t,
    /// What becomes of NaN.
    pub nan: miopenNanPropagation_t,
    /// Whether indices are asked for of an operation that picks an element.
    pub indices: bool,
}

impl Default for Reduction {
    fn default() -> Self {
        Reduction {
            op: MIOPEN_REDUCE_TENSOR_ADD,
            compute: miopenFloat,
            nan: MIOPEN_NOT_PROPAGATE_NAN,
            indices: false,
        }
    }
}

impl Reduction {
    /// Bytes of the indices of so many results.
    pub fn index_bytes(&self, results: usize) -> usize {
        if self.indices { results * size_of::<i32>() } else { 0 }
    }
}

/// Checks that a reduction's result is its operand with some axes of length 1; each is given by its lengths and type.
pub fn check_reduced(
    (a, a_type): (&[usize], miopenDataType_t),
    (c, c_type): (&[usize], miopenDataType_t),
) -> Outcome {
    let fits = a.len() == c.len() && a.iter().zip(c).all(|(a, c)| a == c || *c == 1);
    require(fits && a_type == c_type, miopenStatusBadParm)
}

/// Sets a reduction.
///
/// # Safety
/// As [`miopenSetPoolingIndexType`].
pub unsafe extern "C" fn miopenSetReduceTensorDescriptor<O: Own<Reduction>>(
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    reduceTensorOp: miopenReduceTensorOp_t,
    reduceTensorCompType: miopenDataType_t,
    reduceTensorNanOpt: miopenNanPropagation_t,
    reduceTensorIndices: miopenReduceTensorIndices_t,
    reduceTensorIndicesType: miopenIndicesType_t,
) -> miopenStatus_t {
    status(|| {
        let known = reduceTensorOp.name().is_some()
            && reduceTensorNanOpt.name().is_some()
            && reduceTensorIndices.name().is_some();
        require(known, miopenStatusBadParm)?;
        let compute = matches!(reduceTensorCompType, miopenFloat | miopenHalf | miopenDouble);
        require(compute, miopenStatusBadParm)?;
        // The only type of indices that MIOpen has.
        require(reduceTensorIndicesType == MIOPEN_32BIT_INDICES, miopenStatusBadParm)?;
        let picks = matches!(
            reduceTensorOp,
            MIOPEN_REDUCE_TENSOR_MIN | MIOPEN_REDUCE_TENSOR_MAX | MIOPEN_REDUCE_TENSOR_AMAX
        );
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Reduction, O>, _>(reduceTensorDesc) }?;
        own.set(Reduction {
            op: reduceTensorOp,
            compute: reduceTensorCompType,
            nan: reduceTensorNanOpt,
            indices: picks && reduceTensorIndices == MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES,
        })
    })
}
