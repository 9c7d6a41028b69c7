//! Tensors over memory that another library allocated.

use core::ffi::c_void;
use core::slice;

use burn_std::DType;
use hip::ForeignMemory;

use super::dlpack::{
    DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_VERSION, DLTensor,
    device_name, dtype_of,
};
use super::dlpack_device;
use crate::device::RocmDevice;
use crate::dtype::kernel_type;
use crate::error::invalid;
use crate::layout::{Layout, count};
use crate::tensor::RocmTensor;
use crate::waiting::enqueue_own;

/// A tensor over memory that another library allocated. Nothing is copied.
///
/// `pointer` is the address of element (0, 0, ...) on the device. `strides` are in elements, and
/// may be negative or 0; `None` stands for row-major order. The pointer needs the alignment of one
/// element only.
///
/// `keeper` is called once, when nobody needs the memory any more: the tensor, its views and the
/// graphs that use it are gone, and the device is past the work that uses the memory. For a shape
/// without elements, only the work that was enqueued before the import counts. The thread that
/// drops the last of these calls the keeper, or one that later reads, waits, or imports a tensor.
/// If the process ends first, nobody calls it. A panic in it becomes an error of the next read or
/// `sync`.
///
/// Ops never write the memory, because the tensor counts as shared. [`graph::write`] does.
///
/// # Errors
/// `Invalid` for a null or misaligned pointer, for a number of strides other than that of dims, and
/// for a size that overflows; `Unsupported` for a quantised dtype; an error of the device. The
/// keeper is then dropped without being called.
///
/// # Safety
/// - All elements that shape and strides reach are memory of the device's kind ([`dlpack_device`])
///   which the device can access, and hold values of `dtype`; a bool is 0 or 1. This stays so until
///   the keeper is called.
/// - The backend's stream reads the elements from now on, and writes them in [`graph::write`]. What
///   others do with them is ordered with that stream (the module's text says how).
///
/// [`graph::write`]: crate::graph::write
pub unsafe fn from_raw(
    device: &RocmDevice,
    pointer: *mut c_void,
    shape: &[usize],
    strides: Option<&[isize]>,
    dtype: DType,
    keeper: impl FnOnce() + Send + 'static,
) -> hip::Result<RocmTensor> {
    let parts = Parts { pointer: pointer as usize, shape, strides, dtype, read_only: false };
    // SAFETY: the caller's promise.
    unsafe { parts.import("interop::from_raw", device, Box::new(keeper)) }
}

/// A tensor over the memory of DLPack's `DLManagedTensor`, the struct of a capsule named
/// `dltensor`. Nothing is copied.
///
/// On success the tensor owns `managed`, and calls its deleter as [`from_raw`] calls its keeper.
/// The caller must then mark the capsule as used, by the name `used_dltensor`.
///
/// # Errors
/// `Invalid` if `managed` is null, on another device or not aligned to its elements, if its dtype
/// has vectors or is not one of this backend's, or if its sizes overflow or are negative; an error
/// of the device. The caller then still owns `managed`, and the deleter has not been called.
///
/// # Safety
/// `managed` is null or follows DLPack's specification, and nobody else owns it. As for
/// [`from_raw`], what others do with the elements is ordered with the backend's stream.
pub unsafe fn from_dlpack(device: &RocmDevice, managed: *mut DLManagedTensor) -> hip::Result<RocmTensor> {
    const OP: &str = "interop::from_dlpack";
    // SAFETY: the caller says that a pointer other than null is valid.
    let Some(found) = (unsafe { managed.as_ref() }) else {
        return invalid(OP, "a managed tensor", "null");
    };
    let owned = Managed(managed);
    // SAFETY: the caller's promise about the struct. The deleter is called once, by the keeper.
    unsafe {
        import(OP, device, &found.dl_tensor, false, move || {
            let Managed(managed) = owned.whole();
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
        })
    }
}

/// A tensor over the memory of DLPack's `DLManagedTensorVersioned`, the struct of a capsule named
/// `dltensor_versioned`. Nothing is copied.
///
/// As [`from_dlpack`]. The name of a used capsule is `used_dltensor_versioned`. If the struct has
/// the flag for read-only memory, `graph::write` refuses the tensor.
///
/// # Errors
/// As for [`from_dlpack`]; `Invalid` also if the struct's major version is not 1.
///
/// # Safety
/// As for [`from_dlpack`].
pub unsafe fn from_dlpack_versioned(
    device: &RocmDevice,
    managed: *mut DLManagedTensorVersioned,
) -> hip::Result<RocmTensor> {
    const OP: &str = "interop::from_dlpack_versioned";
    if managed.is_null() {
        return invalid(OP, "a managed tensor", "null");
    }
    // SAFETY: the caller says that the pointer is valid. This field is there in every version.
    let version = unsafe { (*managed).version };
    if version.major != DLPACK_VERSION.major {
        let expected = format!("DLPack {}.x", DLPACK_VERSION.major);
        return invalid(OP, expected, format!("{}.{}", version.major, version.minor));
    }
    // SAFETY: as above, and the version says that the layout is this one.
    let found = unsafe { &*managed };
    let read_only = found.flags & DLPACK_FLAG_BITMASK_READ_ONLY != 0;
    let owned = Managed(managed);
    // SAFETY: the caller's promise about the struct. The deleter is called once, by the keeper.
    unsafe {
        import(OP, device, &found.dl_tensor, read_only, move || {
            let Managed(managed) = owned.whole();
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
        })
    }
}

/// A managed tensor that this module owns once its import has succeeded.
struct Managed<T>(*mut T);

// SAFETY: DLPack lets the consumer call the deleter from any thread.
unsafe impl<T> Send for Managed<T> {}

impl<T> Managed<T> {
    /// The whole value: a closure that names only the field would capture only the pointer.
    fn whole(self) -> Self {
        self
    }
}

/// # Safety
/// As [`from_dlpack`]; `keeper` releases the managed tensor.
unsafe fn import(
    op: &'static str,
    device: &RocmDevice,
    found: &DLTensor,
    read_only: bool,
    keeper: impl FnOnce() + Send + 'static,
) -> hip::Result<RocmTensor> {
    let own = dlpack_device(device)?;
    if found.device != own {
        return invalid(op, format!("memory of {} ({device})", device_name(own)), device_name(found.device));
    }
    let Some(dtype) = dtype_of(found.dtype) else {
        let expected = "a dtype of 8 to 64 bits that this backend has, and 1 lane";
        return invalid(op, expected, format!("{:?}", found.dtype));
    };
    let rank = usize::try_from(found.ndim).ok().filter(|&rank| rank == 0 || !found.shape.is_null());
    let Some(rank) = rank else {
        return invalid(op, "dims with their sizes", format!("{} dims, {:?}", found.ndim, found.shape));
    };
    let numbers = |at: *const i64| match rank {
        0 => &[],
        // SAFETY: by DLPack's specification there is one number for each dim.
        _ => unsafe { slice::from_raw_parts(at, rank) },
    };
    let sizes = numbers(found.shape);
    let Ok(shape) = sizes.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>() else {
        return invalid(op, "sizes of at least 0", format!("{sizes:?}"));
    };
    let strides = match found.strides.is_null() {
        true => None,
        false => Some(numbers(found.strides).iter().map(|&by| by as isize).collect::<Vec<_>>()),
    };
    let pointer =
        usize::try_from(found.byte_offset).ok().and_then(|offset| found.data.addr().checked_add(offset));
    let Some(pointer) = pointer.filter(|_| !found.data.is_null() || shape.contains(&0)) else {
        return invalid(op, "an address", format!("{:?} + {} bytes", found.data, found.byte_offset));
    };
    let parts = Parts { pointer, shape: &shape, strides: strides.as_deref(), dtype, read_only };
    // SAFETY: the caller's promise.
    unsafe { parts.import(op, device, Box::new(keeper)) }
}

/// A tensor in foreign memory.
struct Parts<'a> {
    /// The address of element (0, 0, ...).
    pointer: usize,
    shape: &'a [usize],
    strides: Option<&'a [isize]>,
    dtype: DType,
    read_only: bool,
}

impl Parts<'_> {
    /// # Safety
    /// As [`from_raw`].
    unsafe fn import(
        self,
        op: &'static str,
        device: &RocmDevice,
        keeper: Box<dyn FnOnce() + Send>,
    ) -> hip::Result<RocmTensor> {
        let Self { pointer, shape, strides, dtype, read_only } = self;
        let size = kernel_type(dtype)?.size();
        let strides = compact(op, shape, strides)?;
        let hip_device = device.open()?;
        // The op that this thread put off comes before the import, as it comes before any op.
        let _ = enqueue_own();
        if shape.contains(&0) {
            let empty = RocmTensor::empty(&hip_device, shape.to_vec(), dtype)?;
            hip_device.after_queued_work(keeper);
            return Ok(empty);
        }
        if pointer == 0 || !pointer.is_multiple_of(size) {
            let expected = format!("an address that {size} divides, for {}", dtype.name());
            return invalid(op, expected, format!("{pointer:#x}"));
        }
        let Some((address, bytes)) = range(pointer, size, shape, &strides) else {
            let found = format!("{shape:?} with strides {strides:?} at {pointer:#x}");
            return invalid(op, "a range of addresses", found);
        };
        // SAFETY: the range is that of the elements, of which the caller says that the device can
        // access them until the keeper is called.
        let adopted = unsafe { hip_device.adopt(ForeignMemory { address, bytes, read_only, keeper }) };
        let (buffer, start) = adopted?;
        // The size of an element divides both: the pointer, and the address at which the buffer
        // begins.
        let offset = (start + (pointer - address)) / size;
        let layout = Layout::strided(op, shape.to_vec(), &strides, offset as isize)?;
        RocmTensor::over(buffer, layout, dtype)
    }
}

/// The strides of these dims. Those of dims of size 1 do not matter, so they become as in row-major
/// order.
fn compact(op: &'static str, shape: &[usize], strides: Option<&[isize]>) -> hip::Result<Vec<isize>> {
    if count(shape).is_none() {
        return invalid(op, "at most isize::MAX elements", format!("{shape:?}"));
    }
    let mut all = Layout::contiguous(shape.to_vec()).strides().to_vec();
    if let Some(strides) = strides {
        if strides.len() != shape.len() {
            return invalid(op, format!("{} strides", shape.len()), format!("{strides:?}"));
        }
        for ((own, &by), &dim) in all.iter_mut().zip(strides).zip(shape) {
            if dim > 1 {
                *own = by;
            }
        }
    }
    Ok(all)
}

/// The address and the length in bytes of all elements. `None` if they do not fit the address
/// space, or reach further than half of it.
fn range(pointer: usize, size: usize, shape: &[usize], strides: &[isize]) -> Option<(usize, usize)> {
    let (mut low, mut high) = (pointer as i128, pointer as i128);
    for (&dim, &stride) in shape.iter().zip(strides) {
        let reach = (dim as i128 - 1).checked_mul(stride as i128)?.checked_mul(size as i128)?;
        let end = if reach < 0 { &mut low } else { &mut high };
        *end = end.checked_add(reach)?;
    }
    let end = high.checked_add(size as i128)?;
    let address = usize::try_from(low).ok().filter(|&address| address > 0)?;
    usize::try_from(end).ok()?;
    Some((address, isize::try_from(end - low).ok()? as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_all_elements() {
        assert_eq!(range(1000, 4, &[], &[]), Some((1000, 4)));
        assert_eq!(range(1000, 4, &[2, 3], &[3, 1]), Some((1000, 24)));
        assert_eq!(range(1000, 4, &[2, 3], &[-10, 2]), Some((960, 60)));
        assert_eq!(range(1000, 2, &[5], &[0]), Some((1000, 2)));
        for (pointer, shape, stride) in [
            (1000, usize::MAX, 1),
            (1000, 3, isize::MAX),
            (1000, 3, isize::MIN),
            (1000, 251, -4),
            (usize::MAX - 7, 3, 1),
            (8, isize::MAX as usize / 4 + 1, 1),
        ] {
            assert_eq!(range(pointer, 4, &[shape], &[stride]), None, "{pointer} {shape} {stride}");
        }
    }
}
