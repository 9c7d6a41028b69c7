//! Devices: their properties, the thread's current device, and primary contexts.

use super::{Driver, error::from_cuda};
use cudarc::driver::sys as cuda;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use hip_provider::runtime::{self, Devices, Status};
use hip_sys::*;
use std::{
    cell::Cell,
    ffi::{CStr, c_int},
    ptr,
    sync::OnceLock,
};

/// One GPU.
struct Device {
    ordinal: cuda::CUdevice,
    /// Retained at the first use.
    context: OnceLock<Status<Context>>,
}

/// A primary context.
#[derive(Clone, Copy)]
pub(super) struct Context(pub(super) cuda::CUcontext);

// SAFETY: any thread may use a context (CUDA driver API, "Context Management"), and this crate
// never releases primary contexts.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

fn devices() -> Status<&'static [Device]> {
    static DEVICES: OnceLock<Status<Vec<Device>>> = OnceLock::new();
    let found = DEVICES.get_or_init(|| {
        let mut count = 0;
        // SAFETY: the functions are the driver's; each writes through a valid pointer.
        unsafe {
            from_cuda(cuda::cuInit(0))?;
            from_cuda(cuda::cuDeviceGetCount(&mut count))?;
            (0..count)
                .map(|index| {
                    let mut ordinal = 0;
                    from_cuda(cuda::cuDeviceGet(&mut ordinal, index))?;
                    Ok(Device { ordinal, context: OnceLock::new() })
                })
                .collect()
        }
    });
    found.as_deref().map_err(|&status| status)
}

fn device(index: c_int) -> Status<&'static Device> {
    runtime::device(devices()?, index)
}

/// A device's primary context.
pub(super) fn context(index: c_int) -> Status<Context> {
    let device = device(index)?;
    *device.context.get_or_init(|| {
        let mut context = ptr::null_mut();
        // SAFETY: the function is the driver's, the pointer valid.
        from_cuda(unsafe { cuda::cuDevicePrimaryCtxRetain(&mut context, device.ordinal) })?;
        Ok(Context(context))
    })
}

thread_local! {
    /// The thread's device, and whether its context is known to be the thread's current one.
    static CURRENT: Cell<(c_int, bool)> = const { Cell::new((0, false)) };
}

/// Makes the context of the thread's device current, because the driver has no default device.
/// Returns the device's index.
#[inline]
pub(crate) fn ensure() -> Status<c_int> {
    match CURRENT.get() {
        (index, true) => Ok(index),
        (index, false) => bind(index),
    }
}

#[cold]
fn bind(index: c_int) -> Status<c_int> {
    let context = context(index)?;
    // SAFETY: a retained context.
    from_cuda(unsafe { cuda::cuCtxSetCurrent(context.0) })?;
    CURRENT.set((index, true));
    Ok(index)
}

impl Devices for Driver {
    fn count() -> Status<usize> {
        Ok(devices()?.len())
    }

    fn check(index: c_int) -> Status {
        device(index).map(|_| ())
    }

    fn choose(index: c_int) -> Status {
        bind(index).map(|_| ())
    }

    fn current() -> Status<c_int> {
        let (current, bound) = CURRENT.get();
        device(current)?;
        if bound {
            let mut now = ptr::null_mut();
            // SAFETY: the function is the driver's, the pointer valid.
            from_cuda(unsafe { cuda::cuCtxGetCurrent(&mut now) })?;
            // Other code of the process may have made another context current. The next call then
            // makes this one current again.
            CURRENT.set((current, now == context(current)?.0));
        }
        Ok(current)
    }

    fn enable_peer(peer: c_int) -> Status {
        ensure()?;
        let peer = context(peer)?;
        // SAFETY: a retained context.
        from_cuda(unsafe { cuda::cuCtxEnablePeerAccess(peer.0, 0) })
    }

    fn name(index: c_int) -> Status<String> {
        let mut name = [0u8; 256];
        let (room, len, ordinal) = (name.as_mut_ptr().cast(), name.len() as c_int, device(index)?.ordinal);
        // SAFETY: the function is the driver's; `name` has room for `len` characters.
        from_cuda(unsafe { cuda::cuDeviceGetName(room, len, ordinal) })?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    fn attribute(index: c_int, which: hipDeviceAttribute_t) -> Status<c_int> {
        let device = device(index)?;
        let which = match which {
            hipDeviceAttributeClockRate => Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
            hipDeviceAttributeIntegrated => Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED,
            // NVIDIA GPUs have managed memory, but this provider does not offer it.
            hipDeviceAttributeManagedMemory => return Ok(0),
            hipDeviceAttributePciBusId => Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
            hipDeviceAttributePciDeviceId => Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
            hipDeviceAttributePciDomainID => Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
            hipDeviceAttributeL2CacheSize => Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
            hipDeviceAttributeMaxGridDimX => Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
            hipDeviceAttributeMaxThreadsPerBlock => Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
            hipDeviceAttributeMaxThreadsPerMultiProcessor => {
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
            }
            hipDeviceAttributeMultiprocessorCount => Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            hipDeviceAttributeMaxSharedMemoryPerBlock => {
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK
            }
            hipDeviceAttributeSharedMemPerBlockOptin => {
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            }
            hipDeviceAttributeWarpSize => Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE,
            _ => return Err(hipErrorInvalidValue),
        };
        attribute(device, which)
    }

    fn total_memory(index: c_int) -> Status<usize> {
        let device = device(index)?;
        let mut all = 0;
        // SAFETY: the function is the driver's, the pointer valid.
        from_cuda(unsafe { cuda::cuDeviceTotalMem_v2(&mut all, device.ordinal) })?;
        Ok(all)
    }

    fn memory() -> Status<(usize, usize)> {
        ensure()?;
        let (mut left, mut all) = (0, 0);
        // SAFETY: the function is the driver's, the pointers valid.
        from_cuda(unsafe { cuda::cuMemGetInfo_v2(&mut left, &mut all) })?;
        Ok((left, all))
    }

    fn architecture(index: c_int) -> Status<String> {
        architecture(device(index)?)
    }

    fn can_access(index: c_int, peer: c_int) -> Status<bool> {
        let (one, other) = (device(index)?, device(peer)?);
        let mut answer = 0;
        // SAFETY: the function is the driver's, the pointer valid.
        from_cuda(unsafe { cuda::cuDeviceCanAccessPeer(&mut answer, one.ordinal, other.ordinal) })?;
        Ok(answer != 0)
    }

    fn version() -> Status<c_int> {
        let mut number = 0;
        // SAFETY: the function is the driver's, the pointer valid.
        from_cuda(unsafe { cuda::cuDriverGetVersion(&mut number) })?;
        Ok(hip_version(number))
    }
}

fn attribute(device: &Device, which: Attribute) -> Status<c_int> {
    let mut value = 0;
    // SAFETY: the function is the driver's, the pointer valid.
    from_cuda(unsafe { cuda::cuDeviceGetAttribute(&mut value, which, device.ordinal) })?;
    Ok(value)
}

/// CUDA's 1000 * major + 10 * minor in HIP's scheme: major * 10,000,000 + minor * 100,000 + patch.
fn hip_version(cuda: c_int) -> c_int {
    cuda / 1000 * 10_000_000 + cuda % 1000 / 10 * 100_000
}

/// The architecture that code is compiled for, such as `sm_90`. HIP gives it as `gcnArchName`.
fn architecture(device: &Device) -> Status<String> {
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(format!("sm_{major}{minor}"))
}

#[cfg(test)]
mod tests {
    use super::hip_version;

    #[test]
    fn versions_are_in_hips_scheme() {
        assert_eq!(hip_version(13000), 130_000_000);
        assert_eq!(hip_version(12080), 120_800_000);
    }
}
