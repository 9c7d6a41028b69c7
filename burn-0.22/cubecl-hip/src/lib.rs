//! burn-rocm's devices, as a replacement for CubeCL's HIP runtime in Burn 0.22.
//!
//! Burn lists, names and describes ROCm devices through `cubecl_hip`. This crate answers from
//! burn-rocm's provider. It runs no CubeCL kernel: a launch through a [`Client`] does nothing, and
//! each read, check and sync fails. Burn's tensors use `burn-cubecl`, the other crate that
//! burn-rocm patches in.

mod server;

use cubecl_common::device::{Device as _, DeviceId};
use cubecl_runtime::client::Client;
pub use cubecl_runtime::device::AmdDevice;
use cubecl_runtime::runtime::{DeviceUtilization, UtilizationUnavailable};
use cubecl_zspace::{Shape, Strides};

use crate::server::Inert;

/// Replaces CubeCL's HIP runtime.
#[derive(Debug, Clone)]
pub struct HipRuntime;

impl HipRuntime {
    /// A client that has the device's properties and computes nothing.
    ///
    /// # Panics
    /// If the provider has no such device.
    pub fn client(device: &AmdDevice) -> Client {
        // Checked here, where the caller sees the reason. If the service's own thread panicked,
        // CubeCL would only log it.
        if let Err(error) = hip::Device::get(device.index) {
            panic!("rocm:{}: {error}", device.index);
        }
        Client::load::<Inert>(device.to_id())
    }

    /// burn-rocm reads tensors in any layout.
    pub fn can_read_tensor(_shape: &Shape, _strides: &Strides) -> bool {
        true
    }

    /// The devices of burn-rocm's provider; none if no provider is available.
    pub fn enumerate_all_devices() -> Vec<DeviceId> {
        let count = hip::Device::count().unwrap_or(0);
        (0..count).map(|index| AmdDevice::new(index).to_id()).collect()
    }

    /// The devices of the same kind: all devices of the provider.
    pub fn enumerate_devices_like(_device: DeviceId) -> Vec<DeviceId> {
        Self::enumerate_all_devices()
    }

    /// Checks that the provider has this device.
    ///
    /// # Errors
    /// The number of the provider's devices, if this is not one of them.
    pub fn find_device(device: DeviceId) -> Result<(), usize> {
        let devices = Self::enumerate_all_devices();
        if devices.contains(&device) { Ok(()) } else { Err(devices.len()) }
    }

    /// Whether a provider has a device.
    pub fn is_available() -> bool {
        !Self::enumerate_all_devices().is_empty()
    }

    /// # Errors
    /// Always: burn-rocm reads no utilization counter.
    pub fn utilization(_device: &AmdDevice) -> Result<DeviceUtilization, UtilizationUnavailable> {
        Err(UtilizationUnavailable::RuntimeReadsNoCounter)
    }
}
