//! Tensors: their descriptors, and the tensors of a call.

use super::{Described, Handle, Outcome, Own, object, object_mut, status};
use crate::require;
use core::ffi::{c_int, c_void};
use core::ops::Deref;
use miopen_sys::*;

/// The highest rank of a descriptor.
const MAX_DIMS: c_int = 12;

/// The most bytes of a tensor: as many as an address space holds. So products of lengths and
/// strides fit into a `usize`.
const MAX_BYTES: usize = isize::MAX as usize;

/// The values of a tensor descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// The type of the elements.
    pub data: miopenDataType_t,
    /// The lengths of the axes; empty before the descriptor is set.
    pub dims: Vec<usize>,
    /// The strides of the axes, in elements.
    pub strides: Vec<usize>,
}

impl Default for Tensor {
    fn default() -> Self {
        Tensor::packed(miopenFloat, Vec::new())
    }
}

impl Tensor {
    /// A tensor in row-major order without gaps.
    pub fn packed(data: miopenDataType_t, dims: Vec<usize>) -> Self {
        let mut strides = vec![1; dims.len()];
        for axis in (1..dims.len()).rev() {
            strides[axis - 1] = strides[axis] * dims[axis];
        }
        Tensor { data, dims, strides }
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Elements in memory from the first to one past the last.
    pub fn span(&self) -> usize {
        1 + self.dims.iter().zip(&self.strides).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>()
    }

    /// Bytes in memory from the first element to the end of the last.
    pub fn bytes(&self) -> usize {
        let size = match self.data {
            miopenInt8 => 1,
            miopenHalf | miopenBFloat16 => 2,
            miopenDouble | miopenInt64 => 8,
            _ => 4,
        };
        self.span() * size
    }

    /// Whether the elements are in row-major order without gaps. Strides of axes of length 1 don't
    /// matter.
    pub fn is_packed(&self) -> bool {
        let mut expected = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            expected *= dim;
            fits
        })
    }

    /// Whether the second axis is the innermost one in memory and the strides are those of such a
    /// tensor without gaps. False for a tensor that is also packed, if its strides do not show the
    /// difference.
    pub fn is_channels_last(&self) -> bool {
        let rank = self.dims.len();
        if rank < 3 || self.strides == Tensor::packed(self.data, self.dims.clone()).strides {
            return false;
        }
        let mut expected = 1;
        let order = [1].into_iter().chain((2..rank).rev()).chain([0]);
        order.into_iter().all(|axis| {
            let fits = self.strides[axis] == expected;
            expected *= self.dims[axis];
            fits
        })
    }

    /// `miopenStatusNotImplemented` unless packed.
    pub fn require_packed(&self) -> Outcome {
        require(self.is_packed(), miopenStatusNotImplemented)
    }

    /// Samples, channels and elements per channel of a packed tensor of rank 2 to 5.
    pub fn planes(&self) -> Outcome<(usize, usize, usize)> {
        require((2..=5).contains(&self.dims.len()), miopenStatusBadParm)?;
        Ok((self.dims[0], self.dims[1], self.dims[2..].iter().product()))
    }

    /// `miopenStatusBadParm` unless the other has this one's lengths and type.
    pub(super) fn require_alike(&self, other: &Tensor) -> Outcome {
        require(other.dims == self.dims && other.data == self.data, miopenStatusBadParm)
    }
}

/// Sets a tensor's type, lengths and strides. `miopenStatusBadParm` if it would not fit an address
/// space in the widest type.
///
/// # Safety
/// The caller's descriptor and arrays of `nbDims` values; the strides may be null.
pub(super) unsafe extern "C" fn miopenSetTensorDescriptor<O: Own<Tensor>>(
    tensorDesc: miopenTensorDescriptor_t,
    dataType: miopenDataType_t,
    nbDims: c_int,
    dimsA: *const c_int,
    stridesA: *const c_int,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Tensor, O>, _>(tensorDesc) }?;
        require((1..=MAX_DIMS).contains(&nbDims) && !dimsA.is_null(), miopenStatusBadParm)?;
        require(dataType.name().is_some(), miopenStatusBadParm)?;
        let read = |list, least| {
            // SAFETY: the caller's array of `nbDims` values.
            let values: &[c_int] = unsafe { core::slice::from_raw_parts(list, nbDims as usize) };
            require(values.iter().all(|&value| value >= least), miopenStatusBadParm)?;
            Ok(values.iter().map(|&value| value as usize).collect())
        };
        let dims: Vec<usize> = read(dimsA, 1)?;
        // In the widest type, of 8 bytes.
        let bytes = dims.iter().try_fold(8usize, |bytes, &dim| bytes.checked_mul(dim));
        require(bytes.is_some_and(|bytes| bytes <= MAX_BYTES), miopenStatusBadParm)?;
        let mut tensor = Tensor::packed(dataType, dims);
        if !stridesA.is_null() {
            tensor.strides = read(stridesA, 0)?;
            let steps = tensor.dims.iter().zip(&tensor.strides);
            let last: u128 = steps.map(|(&dim, &stride)| (dim as u128 - 1) * stride as u128).sum();
            require(last < MAX_BYTES as u128 / 8, miopenStatusBadParm)?;
        }
        own.set(tensor)
    })
}

/// The tensor of a descriptor argument. Refuses a tensor that is not set or that the provider does
/// not support.
///
/// # Safety
/// A non-null `descriptor` came from `miopenCreateTensorDescriptor` and is not destroyed.
pub(super) unsafe fn tensor<'a, H: Handle>(
    descriptor: miopenTensorDescriptor_t,
) -> Outcome<&'a Described<Tensor, H::Tensor>> {
    // SAFETY: the caller vouches for it.
    let tensor = unsafe { object::<Described<Tensor, H::Tensor>, _>(descriptor) }?;
    require(!tensor.dims.is_empty(), miopenStatusBadParm)?;
    tensor.own.check()?;
    Ok(tensor)
}

/// A tensor of a call. The provider checks its address.
pub struct Operand<'a, H: Handle> {
    tensor: &'a Described<Tensor, H::Tensor>,
    /// The address of the first element.
    pub at: *mut c_void,
}

impl<H: Handle> Deref for Operand<'_, H> {
    type Target = Described<Tensor, H::Tensor>;

    fn deref(&self) -> &Self::Target {
        self.tensor
    }
}

/// The tensor of a call from its descriptor and address.
///
/// # Safety
/// As [`tensor`].
pub(super) unsafe fn operand<'a, H: Handle>(
    descriptor: miopenTensorDescriptor_t,
    at: *const c_void,
) -> Outcome<Operand<'a, H>> {
    // SAFETY: the caller vouches for it.
    Ok(Operand { tensor: unsafe { tensor::<H>(descriptor) }?, at: at.cast_mut() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_tell_where_the_channels_are() {
        let tensor = |dims: [usize; 4], strides: [usize; 4]| Tensor {
            data: miopenFloat,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
        };
        assert!(tensor([2, 3, 4, 5], [60, 1, 15, 3]).is_channels_last());
        assert!(!tensor([2, 3, 4, 5], [60, 20, 5, 1]).is_channels_last(), "packed");
        assert!(!tensor([2, 3, 4, 5], [120, 1, 15, 3]).is_channels_last(), "a gap");
        // One element in memory order either way, but the strides differ.
        let point = tensor([2, 3, 1, 1], [3, 1, 3, 3]);
        assert!(point.is_channels_last() && point.is_packed());
        assert!(!tensor([2, 3, 1, 1], [3, 1, 1, 1]).is_channels_last());
        assert!(!tensor([1, 1, 1, 1], [1, 1, 1, 1]).is_channels_last());
    }
}
