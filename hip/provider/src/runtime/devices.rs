//! Devices and their properties.

use super::{Status, api, put};
use crate::require;
use core::ffi::{c_char, c_int, c_uint};
use hip_sys::*;

/// A provider's devices, by index. A call for a device that does not exist returns
/// `hipErrorNoDevice` or `hipErrorInvalidDevice`.
pub trait Devices {
    /// The number of devices.
    fn count() -> Status<usize>;

    /// Checks that the device exists.
    fn check(index: c_int) -> Status;

    /// Makes a device current for the calling thread.
    fn choose(index: c_int) -> Status;

    /// The calling thread's device.
    fn current() -> Status<c_int>;

    /// Lets the calling thread's device reach the memory of another.
    fn enable_peer(peer: c_int) -> Status;

    /// The device's name.
    fn name(index: c_int) -> Status<String>;

    /// An attribute of a device.
    fn attribute(index: c_int, which: hipDeviceAttribute_t) -> Status<c_int>;

    /// A device's memory in bytes.
    fn total_memory(index: c_int) -> Status<usize>;

    /// Free and total bytes of the calling thread's device.
    fn memory() -> Status<(usize, usize)>;

    /// The architecture that code is compiled for, such as `gfx90a`.
    fn architecture(index: c_int) -> Status<String>;

    /// Whether one device can access another's memory.
    fn can_access(index: c_int, peer: c_int) -> Status<bool>;

    /// The runtime's version in HIP's scheme: major * 10,000,000 + minor * 100,000 + patch.
    fn version() -> Status<c_int>;
}

/// The element of `all` that belongs to a device index.
pub fn device<T>(all: &[T], index: c_int) -> Status<&T> {
    require(!all.is_empty(), hipErrorNoDevice)?;
    usize::try_from(index).ok().and_then(|index| all.get(index)).ok_or(hipErrorInvalidDevice)
}

macro_rules! answers {
    ($( $(#[$doc:meta])* $name:ident($out:ident: $t:ty $(, $more:ident: $m:ty)*) => $answer:expr; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The out-pointer is null or may be written to, by HIP's contract.
        pub(super) unsafe extern "C" fn $name<D: Devices>($out: *mut $t $(, $more: $m)*) -> hipError_t {
            // SAFETY: the caller's, by HIP's contract.
            api(|| unsafe { put($out, $answer) })
        }
    )* };
}
answers! {
    /// Gives the calling thread's device.
    hipGetDevice(index: c_int) => D::current()?;
    /// Gives one integer fact about a device.
    hipDeviceGetAttribute(value: c_int, which: hipDeviceAttribute_t, index: c_int) => D::attribute(index, which)?;
    /// Gives a device's memory in bytes.
    hipDeviceTotalMem(bytes: usize, index: hipDevice_t) => D::total_memory(index)?;
    /// Gives the driver's version, and the runtime's.
    hipDriverGetVersion(version: c_int) => D::version()?;
    /// Says whether one device can reach another's memory.
    hipDeviceCanAccessPeer(can: c_int, index: c_int, peer: c_int) => c_int::from(D::can_access(index, peer)?);
    /// Gives properties in the layout of HIP 6.0 and later. Only the architecture is filled in.
    hipGetDevicePropertiesR0600(properties: hipDeviceProp_tR0600, index: c_int) => hipDeviceProp_tR0600 {
        before: [0; 1160],
        gcnArchName: property(&D::architecture(index)?),
        after: [0; 56],
    };
    /// Gives properties in the layout before HIP 6.0. Only the architecture is filled in.
    hipGetDeviceProperties(properties: hipDeviceProp_tR0000, index: c_int) => hipDeviceProp_tR0000 {
        before: [0; 396],
        gcnArchName: property(&D::architecture(index)?),
        after: [0; 140],
    };
}

/// A text, cut to 255 characters and padded with NULs.
fn property(text: &str) -> [c_char; 256] {
    let mut name = [0; 256];
    name[..255].iter_mut().zip(text.bytes()).for_each(|(out, byte)| *out = byte as c_char);
    name
}

/// Initialises the runtime.
///
/// # Safety
/// No precondition: the signature is that of the table.
pub(super) unsafe extern "C" fn hipInit<D: Devices>(flags: c_uint) -> hipError_t {
    api(|| match flags {
        0 => D::check(0),
        _ => Err(hipErrorInvalidValue),
    })
}

/// Counts the devices.
///
/// # Safety
/// The out-pointer is null or may be written to, by HIP's contract.
pub(super) unsafe extern "C" fn hipGetDeviceCount<D: Devices>(count: *mut c_int) -> hipError_t {
    api(|| {
        let devices = D::count()?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(count, devices as c_int) }?;
        if devices == 0 { Err(hipErrorNoDevice) } else { Ok(()) }
    })
}

/// Gives the current device's free and total memory in bytes.
///
/// # Safety
/// The out-pointers are null or may be written to, by HIP's contract.
pub(super) unsafe extern "C" fn hipMemGetInfo<D: Devices>(free: *mut usize, total: *mut usize) -> hipError_t {
    api(|| {
        let (left, all) = D::memory()?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(free, left) }?;
        // SAFETY: as above.
        unsafe { put(total, all) }
    })
}

/// Makes a device current for the calling thread.
///
/// # Safety
/// As [`hipInit`].
pub(super) unsafe extern "C" fn hipSetDevice<D: Devices>(index: c_int) -> hipError_t {
    api(|| D::choose(index))
}

/// Lets the calling thread's device reach the memory of another.
///
/// # Safety
/// As [`hipInit`].
pub(super) unsafe extern "C" fn hipDeviceEnablePeerAccess<D: Devices>(
    peer: c_int,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        require(flags == 0, hipErrorInvalidValue)?;
        require(D::current()? != peer, hipErrorInvalidDevice)?;
        D::enable_peer(peer)
    })
}

/// Gives a device's name, cut to `len` characters including the NUL.
///
/// # Safety
/// The caller has room for `len` characters, by HIP's contract.
pub(super) unsafe extern "C" fn hipDeviceGetName<D: Devices>(
    name: *mut c_char,
    len: c_int,
    index: hipDevice_t,
) -> hipError_t {
    api(|| {
        D::check(index)?;
        require(!name.is_null() && len > 0, hipErrorInvalidValue)?;
        let text = D::name(index)?;
        let fits = text.len().min(len as usize - 1);
        // SAFETY: the caller's memory, which may be uninitialised, has room for `fits` characters
        // and the NUL.
        unsafe {
            name.copy_from_nonoverlapping(text.as_ptr().cast(), fits);
            name.add(fits).write(0);
        }
        Ok(())
    })
}
