//! What Burn asks of devices and of tensors.

use burn_backend::{
    DeviceId, DeviceOps, DeviceSettings, TensorMetadata, get_device_settings, set_default_dtypes,
};
use burn_std::device::Device;
use burn_std::{BoolStore, DType, Shape};

use crate::device::RocmDevice;
use crate::qtensor::RocmQTensor;
use crate::tensor::RocmTensor;

/// The device type in Burn's traits: the type of Burn's dispatch with the feature `dispatch`, else
/// [`RocmDevice`].
#[cfg(feature = "dispatch")]
pub type BurnDevice = burn_backend::cubecl::Device;
/// The device type in Burn's traits: the type of Burn's dispatch with the feature `dispatch`, else
/// [`RocmDevice`].
#[cfg(not(feature = "dispatch"))]
pub type BurnDevice = RocmDevice;

/// This backend's device for a device of Burn.
///
/// # Panics
/// With `Config` for a device of another runtime.
#[cfg(feature = "dispatch")]
pub(super) fn own(device: &BurnDevice) -> RocmDevice {
    match device {
        BurnDevice::Hip(device) => RocmDevice::new(device.index),
        other => crate::error::raise(hip::Error::Config {
            what: "device".into(),
            expected: "a device of the runtime `rocm`".into(),
            found: format!("{other:?}"),
        }),
    }
}

/// This backend's device for a device of Burn.
#[cfg(not(feature = "dispatch"))]
pub(super) fn own(device: &BurnDevice) -> RocmDevice {
    device.clone()
}

#[cfg(feature = "dispatch")]
impl From<RocmDevice> for BurnDevice {
    fn from(device: RocmDevice) -> Self {
        BurnDevice::from_id(burn_backend::cubecl::RuntimeId::Hip.stamp(device.to_id()))
    }
}

/// Gives a device the default dtypes of another one.
pub(crate) fn inherit_defaults(from: &RocmDevice, to: &RocmDevice) {
    #[allow(clippy::useless_conversion)] // Without Burn's dispatch, both are one type.
    let (from, to): (BurnDevice, BurnDevice) = (from.clone().into(), to.clone().into());
    let set = get_device_settings::<super::Rocm>(&from);
    // Burn refuses only what is set already.
    let _ = set_default_dtypes::<super::Rocm>(&to, set.float_dtype, set.int_dtype, set.bool_dtype);
}

impl Device for RocmDevice {
    fn from_id(device_id: DeviceId) -> Self {
        Self::new(device_id.index_id as usize)
    }

    fn to_id(&self) -> DeviceId {
        DeviceId { type_id: 0, index_id: self.index as u16 }
    }
}

impl DeviceOps for RocmDevice {
    fn defaults(&self) -> DeviceSettings {
        DeviceSettings::new(DType::F32, DType::I32, DType::Bool(BoolStore::U8), Default::default())
    }
}

impl TensorMetadata for RocmTensor {
    type Device = BurnDevice;

    fn dtype(&self) -> DType {
        self.dtype_of()
    }

    fn shape(&self) -> Shape {
        self.layout().shape().clone()
    }

    fn rank(&self) -> usize {
        self.layout().rank()
    }

    #[allow(clippy::useless_conversion)] // The same type without the feature `dispatch`.
    fn device(&self) -> BurnDevice {
        self.rocm_device().into()
    }

    fn can_mut(&self) -> bool {
        self.has_one_holder()
    }
}

impl TensorMetadata for RocmQTensor {
    type Device = BurnDevice;

    fn dtype(&self) -> DType {
        DType::QFloat(*self.scheme_of())
    }

    fn shape(&self) -> Shape {
        self.layout().shape().clone()
    }

    fn rank(&self) -> usize {
        self.layout().rank()
    }

    #[allow(clippy::useless_conversion)] // The same type without the feature `dispatch`.
    fn device(&self) -> BurnDevice {
        self.values().rocm_device().into()
    }

    fn can_mut(&self) -> bool {
        self.values().has_one_holder() && self.scales().has_one_holder()
    }
}
