//! What Burn asks of devices and of tensors.

use burn_backend::quantization::{QuantScheme, QuantStore};
use burn_backend::{DeviceId, DeviceOps, QTensorPrimitive, TensorMetadata};
use burn_std::device::Device;
use burn_std::{DType, Shape};

use crate::device::RocmDevice;
use crate::qtensor::RocmQTensor;
use crate::tensor::RocmTensor;

impl Device for RocmDevice {
    fn from_id(device_id: DeviceId) -> Self {
        Self::new(device_id.index_id as usize)
    }

    fn to_id(&self) -> DeviceId {
        DeviceId { type_id: 0, index_id: self.index as u16 }
    }
}

impl DeviceOps for RocmDevice {}

impl RocmTensor {
    /// The device that holds the buffer, as Burn's device.
    pub fn device(&self) -> RocmDevice {
        self.rocm_device()
    }
}

impl TensorMetadata for RocmTensor {
    fn dtype(&self) -> DType {
        self.dtype_of()
    }

    fn shape(&self) -> Shape {
        self.layout().shape().clone()
    }

    fn rank(&self) -> usize {
        self.layout().rank()
    }
}

impl TensorMetadata for RocmQTensor {
    fn dtype(&self) -> DType {
        DType::QFloat(*self.scheme_of())
    }

    fn shape(&self) -> Shape {
        self.layout().shape().clone()
    }

    fn rank(&self) -> usize {
        self.layout().rank()
    }
}

impl QTensorPrimitive for RocmQTensor {
    fn scheme(&self) -> &QuantScheme {
        self.scheme_of()
    }

    fn default_scheme() -> QuantScheme {
        QuantScheme::default().with_store(QuantStore::Native)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        let device = RocmDevice::new(5);
        assert_eq!(RocmDevice::from_id(device.to_id()), device);
        assert_eq!(device.to_id().type_id, 0);
    }
}
