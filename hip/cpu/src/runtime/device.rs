//! Devices: their properties, the thread's current device, and their locks.

use super::{
    Host,
    error::Fault,
    machine::{available_memory, cpu, total_memory},
    order, settings,
};
use crate::{abi::SHARED_BYTES, arch::arch_name};
use hip_provider::runtime::{self, Devices, Status};
use hip_sys::*;
use std::{
    cell::Cell,
    collections::HashSet,
    ffi::c_int,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// Resident blocks that native mode reports for a core. A launch has a few blocks for each core, so
/// that other cores can take the blocks of a slow one.
const BLOCKS_PER_CORE: u32 = 4;

/// One device. All devices share only the machine's cores and memory.
pub(crate) struct Device {
    pub(crate) index: usize,
    order: Mutex<()>,
    /// The unreported failure of a kernel.
    fault: Mutex<Option<Fault>>,
    peers: Mutex<HashSet<usize>>,
}

impl Device {
    /// Blocks the device's other work while the guard lives.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        match order::is_on() {
            true => order::lock(),
            false => self.order.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Returns the failure of an earlier kernel, once.
    pub(super) fn check(&self) -> Status {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        fault.map_or(Ok(()), |fault| Err(fault.status))
    }

    /// Keeps the failure of a kernel.
    pub(super) fn set_fault(&self, fault: Fault) {
        super::error::keep_fault(&fault);
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }
}

/// The properties that depend on the mode.
struct Shape {
    warp: u32,
    threads_per_block: u32,
    threads_per_unit: u32,
    units: usize,
}

fn shape() -> Result<Shape, hipError_t> {
    let settings = settings()?;
    Ok(match settings.wave {
        // As on an AMD GPU.
        Some(warp) => {
            Shape { warp, threads_per_block: 1024, threads_per_unit: 2048, units: settings.threads }
        }
        None => Shape {
            warp: 1,
            threads_per_block: 1,
            threads_per_unit: BLOCKS_PER_CORE,
            units: settings.threads,
        },
    })
}

/// The most threads of a block.
pub(super) fn max_block() -> Result<u32, hipError_t> {
    Ok(shape()?.threads_per_block)
}

/// How many blocks of this size are reported as resident on a core.
pub(super) fn blocks_per_unit(threads: u32) -> Result<u32, hipError_t> {
    Ok(shape()?.threads_per_unit / threads.max(1))
}

fn devices() -> Result<&'static [Device], hipError_t> {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    let count = settings()?.devices;
    Ok(DEVICES.get_or_init(|| {
        (0..count)
            .map(|index| Device {
                index,
                order: Mutex::new(()),
                fault: Mutex::new(None),
                peers: Mutex::new(HashSet::new()),
            })
            .collect()
    }))
}

/// A device by its index.
pub(crate) fn device(index: c_int) -> Result<&'static Device, hipError_t> {
    runtime::device(devices()?, index)
}

thread_local! {
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

/// The calling thread's device.
pub(super) fn current() -> Result<&'static Device, hipError_t> {
    device(CURRENT.get())
}

/// The index of the calling thread's device.
pub(crate) fn current_index() -> Status<usize> {
    Ok(current()?.index)
}

impl Devices for Host {
    fn count() -> Status<usize> {
        Ok(devices()?.len())
    }

    fn check(index: c_int) -> Status {
        device(index).map(|_| ())
    }

    fn choose(index: c_int) -> Status {
        device(index)?;
        CURRENT.set(index);
        Ok(())
    }

    fn current() -> Status<c_int> {
        Ok(current()?.index as c_int)
    }

    fn enable_peer(peer: c_int) -> Status {
        let (current, peer) = (current()?, device(peer)?);
        let new = current.peers.lock().unwrap_or_else(PoisonError::into_inner).insert(peer.index);
        if new { Ok(()) } else { Err(hipErrorPeerAccessAlreadyEnabled) }
    }

    fn name(_: c_int) -> Status<String> {
        Ok(cpu().name.clone())
    }

    fn attribute(index: c_int, which: hipDeviceAttribute_t) -> Status<c_int> {
        device(index)?;
        let shape = shape()?;
        Ok(match which {
            hipDeviceAttributeClockRate => cpu().clock_khz,
            hipDeviceAttributeIntegrated => 1,
            hipDeviceAttributeL2CacheSize => cpu().l2_bytes,
            hipDeviceAttributeManagedMemory => 1,
            // It lies on no PCI bus.
            hipDeviceAttributePciBusId | hipDeviceAttributePciDeviceId | hipDeviceAttributePciDomainID => 0,
            hipDeviceAttributeMaxGridDimX => c_int::MAX,
            hipDeviceAttributeMaxThreadsPerBlock => shape.threads_per_block as c_int,
            hipDeviceAttributeMaxThreadsPerMultiProcessor => shape.threads_per_unit as c_int,
            hipDeviceAttributeMultiprocessorCount => shape.units as c_int,
            hipDeviceAttributeMaxSharedMemoryPerBlock => SHARED_BYTES as c_int,
            hipDeviceAttributeSharedMemPerBlockOptin => settings()?.shared as c_int,
            hipDeviceAttributeWarpSize => shape.warp as c_int,
            _ => return Err(hipErrorInvalidValue),
        })
    }

    fn total_memory(index: c_int) -> Status<usize> {
        device(index)?;
        Ok(total_memory())
    }

    fn memory() -> Status<(usize, usize)> {
        current()?;
        let all = total_memory();
        Ok((available_memory().min(all), all))
    }

    fn architecture(index: c_int) -> Status<String> {
        device(index)?;
        Ok(arch_name())
    }

    fn can_access(index: c_int, peer: c_int) -> Status<bool> {
        Ok(device(index)?.index != device(peer)?.index)
    }

    /// The version of ROCm 7.2, whose API this is.
    fn version() -> Status<c_int> {
        Ok(70_200_000)
    }
}
