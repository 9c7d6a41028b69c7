//! A device's properties, as its driver reports them.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::path::Path;

use hip_sys::{Hip, hipDeviceAttribute_t};

use crate::device::apu::{Apu, Reported};
use crate::error::{Error, Result, check};
use crate::provider::Provider;
use crate::provider::kind::ProviderKind;
use crate::settings::{ApuMemory, settings_by_now};

/// Whose memory a device has. Other libraries that exchange memory with it must know this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemorySpace {
    /// An AMD GPU's.
    Rocm,
    /// An NVIDIA GPU's.
    Cuda,
    /// The host's.
    Host,
}

/// A device's properties, as its driver reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's index.
    pub index: usize,
    /// Whose memory it has. The provider says this, because HIP does not.
    pub memory: MemorySpace,
    /// The marketing name, or the architecture if the driver gives none.
    pub name: String,
    /// The full architecture name, such as `gfx90a:sramecc+:xnack-`.
    pub arch: String,
    /// Bytes of memory, as `hipDeviceTotalMem` gives them.
    pub total_memory: usize,
    /// Its memory, if it is an integrated GPU (APU).
    pub apu: Option<Apu>,
    /// Compute units.
    pub compute_units: u32,
    /// Threads in a warp (AMD calls it a wave).
    pub warp_size: u32,
    /// The most threads that a block may have.
    pub max_threads_per_block: u32,
    /// The most threads that can be resident on a compute unit.
    pub max_threads_per_compute_unit: u32,
    /// Bytes of shared memory that a block may have.
    pub shared_memory_per_block: usize,
    /// Bytes of shared memory that a block may have if its launch asks for them. On NVIDIA's GPUs
    /// this is more than [`shared_memory_per_block`](Self::shared_memory_per_block).
    pub shared_memory_optin: usize,
    /// `hipDriverGetVersion`.
    pub driver_version: i32,
    /// `hipRuntimeGetVersion`: major * 10,000,000 + minor * 100,000 + patch.
    pub runtime_version: i32,
}

impl DeviceInfo {
    /// What the tuning store calls such a device: results of timing hold for all of them.
    pub(crate) fn tuned_as(&self) -> String {
        format!("{}, {}, {} compute units", self.name, self.arch, self.compute_units)
    }

    /// Bytes of memory that the pool may have: [`total_memory`](Self::total_memory), or what the kernel
    /// lets an integrated GPU use of the host's memory if that is more.
    pub fn usable_memory(&self) -> usize {
        self.apu.as_ref().map_or(self.total_memory, |apu| apu.total(self.total_memory))
    }

    pub(crate) fn query(provider: &Provider, index: usize) -> Result<Self> {
        let hip = provider.hip();
        let device = index as c_int;
        let attribute = |which| attribute(hip, device, which);
        let mut total_memory = 0;
        let mut name = [0 as c_char; 256];
        // SAFETY: the functions are HIP's; the pointers are to a usize and to 256 bytes, and the
        // call states that length.
        unsafe {
            check(hip, "hipDeviceTotalMem", (hip.hipDeviceTotalMem)(&mut total_memory, device))?;
            let status = (hip.hipDeviceGetName)(name.as_mut_ptr(), name.len() as c_int, device);
            check(hip, "hipDeviceGetName", status)?;
        }
        let arch = architecture(hip, device)?;
        let name = match text(&name) {
            name if name.is_empty() => arch.clone(),
            name => name,
        };
        let versions = provider.versions();
        // A HIP that does not know an attribute does not have what it tells of either.
        let known = |which| attribute(which).unwrap_or(0);
        let reported = Reported {
            integrated: known(hip_sys::hipDeviceAttributeIntegrated) != 0,
            managed: hip.hipMallocManaged.is_some() && known(hip_sys::hipDeviceAttributeManagedMemory) != 0,
            pci: [
                known(hip_sys::hipDeviceAttributePciDomainID),
                known(hip_sys::hipDeviceAttributePciBusId),
                known(hip_sys::hipDeviceAttributePciDeviceId),
            ],
            total: total_memory,
        };
        let shared_memory_per_block = attribute(hip_sys::hipDeviceAttributeMaxSharedMemoryPerBlock)? as usize;
        let optin = known(hip_sys::hipDeviceAttributeSharedMemPerBlockOptin) as usize;
        // An invalid setting fails elsewhere, with its reason.
        // A survey must not fix the settings.
        let setting = settings_by_now().map_or(ApuMemory::Auto, |settings| settings.apu_memory);
        Ok(Self {
            apu: Apu::of(reported, setting, Path::new("/")),
            index,
            memory: match provider.kind() {
                ProviderKind::Rocm => MemorySpace::Rocm,
                ProviderKind::Cuda => MemorySpace::Cuda,
                ProviderKind::Cpu => MemorySpace::Host,
            },
            name,
            arch,
            total_memory,
            compute_units: attribute(hip_sys::hipDeviceAttributeMultiprocessorCount)?.max(1),
            warp_size: attribute(hip_sys::hipDeviceAttributeWarpSize)?.max(1),
            max_threads_per_block: attribute(hip_sys::hipDeviceAttributeMaxThreadsPerBlock)?.max(1),
            max_threads_per_compute_unit: attribute(hip_sys::hipDeviceAttributeMaxThreadsPerMultiProcessor)?
                .max(1),
            shared_memory_per_block,
            shared_memory_optin: optin.max(shared_memory_per_block),
            driver_version: versions.driver,
            runtime_version: versions.runtime,
        })
    }
}

fn attribute(hip: &Hip, device: c_int, which: hipDeviceAttribute_t) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the function is HIP's; it writes one int.
    let status = unsafe { (hip.hipDeviceGetAttribute)(&mut value, which, device) };
    check(hip, "hipDeviceGetAttribute", status)?;
    Ok(value.max(0) as u32)
}

/// `gcnArchName`, read through a symbol that fixes the struct's layout.
fn architecture(hip: &Hip, device: c_int) -> Result<String> {
    // SAFETY: both structs are plain numbers and characters (zero is valid) of the sizes that HIP
    // writes.
    unsafe {
        if let Some(get) = hip.hipGetDevicePropertiesR0600 {
            let mut properties = MaybeUninit::<hip_sys::hipDeviceProp_tR0600>::zeroed().assume_init();
            check(hip, "hipGetDevicePropertiesR0600", get(&mut properties, device))?;
            return Ok(text(&properties.gcnArchName));
        }
        if let Some(get) = hip.hipGetDeviceProperties {
            let mut properties = MaybeUninit::<hip_sys::hipDeviceProp_tR0000>::zeroed().assume_init();
            check(hip, "hipGetDeviceProperties", get(&mut properties, device))?;
            return Ok(text(&properties.gcnArchName));
        }
    }
    Err(Error::NotAvailable {
        reason: "HIP has neither hipGetDevicePropertiesR0600 nor hipGetDeviceProperties".into(),
        searched: Vec::new(),
    })
}

fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&c| c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(
        |_| String::from_utf8_lossy(&bytes).into_owned(),
        |text| text.to_string_lossy().trim().to_owned(),
    )
}
