//! The parts of a tensor that Burn's other crates use for CubeCL kernels.
//!
//! burn-vision's GPU code for connected components is written for the tensors of Burn's CubeCL
//! backend. It compiles against this module. Before burn-vision launches a kernel, it asks the
//! tensor's client for plane instructions. This client has none, so burn-vision computes on the
//! host instead. `burn-cubecl`'s tests run these ops.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use burn_backend::cubecl::Device;
use burn_std::{DType, Shape};
use cubecl::client::Client;
use cubecl::hip::{AmdDevice, HipRuntime};
use cubecl::prelude::TensorArg;

use crate::error::raise;
use crate::tensor::RocmTensor;

/// The fields of a tensor of Burn's CubeCL backend.
#[non_exhaustive]
pub struct CubeFields {
    /// Knows the device's properties and runs no kernel.
    pub client: Client,
    /// The device.
    pub device: Device,
    /// The elements' type.
    pub dtype: DType,
    /// The tensor's shape.
    pub meta: CubeShape,
    /// No memory of CubeCL.
    pub handle: (),
}

/// A shape, with the methods of CubeCL's metadata.
#[derive(Debug)]
pub struct CubeShape(Shape);

impl CubeShape {
    /// Sizes of the dimensions.
    pub fn shape(&self) -> &Shape {
        &self.0
    }

    /// The number of elements.
    pub fn num_elements(&self) -> usize {
        self.0.num_elements()
    }
}

type Key = (usize, DType, Vec<usize>);

/// One value for each device, dtype and shape that such code asks about. It is kept for as long as
/// the program runs, because the code holds references to these fields and the tensor itself does
/// not have them.
static FIELDS: LazyLock<Mutex<HashMap<Key, &'static CubeFields>>> = LazyLock::new(Default::default);

impl core::ops::Deref for RocmTensor {
    type Target = CubeFields;

    fn deref(&self) -> &CubeFields {
        let device = self.rocm_device();
        let key = (device.index, self.dtype_of(), self.dims().to_vec());
        let mut all = FIELDS.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key).or_insert_with(|| {
            Box::leak(Box::new(CubeFields {
                client: HipRuntime::client(&AmdDevice::new(device.index)),
                device: device.into(),
                dtype: self.dtype_of(),
                meta: CubeShape(self.layout().shape().clone()),
                handle: (),
            }))
        })
    }
}

/// # Panics
/// With `Unsupported`.
fn no_kernel() -> ! {
    let what = Some("tensors of burn-rocm".into());
    raise(hip::Error::Unsupported { op: "a kernel of CubeCL", dtype: None, what })
}

impl RocmTensor {
    /// The tensor as an argument of a kernel.
    ///
    /// # Panics
    /// With `Unsupported`: no kernel of CubeCL can read it.
    pub fn into_tensor_arg(self) -> TensorArg {
        no_kernel()
    }

    /// A copy by a kernel of CubeCL.
    ///
    /// # Panics
    /// With `Unsupported`.
    pub fn copy(&self) -> Self {
        no_kernel()
    }

    /// A tensor in memory of CubeCL.
    ///
    /// # Panics
    /// With `Unsupported`.
    pub fn new_contiguous(_: Client, _: Device, _: Shape, _: (), _: DType) -> Self {
        no_kernel()
    }
}

/// The functions of Burn's CubeCL backend that such code calls around its kernels. Each panics with
/// `Unsupported`.
pub mod ops {
    use burn_backend::TensorData;
    use burn_std::Shape;

    use super::{RocmTensor, no_kernel};

    /// New tensors.
    pub mod numeric {
        use burn_backend::cubecl::Device;
        use burn_std::{DType, Shape};
        use cubecl::client::Client;
        use cubecl::prelude::InputScalar;

        use super::{RocmTensor, no_kernel};

        /// Zeros.
        ///
        /// # Panics
        /// With `Unsupported`.
        pub fn zeros_client(_: Client, _: Device, _: Shape, _: DType) -> RocmTensor {
            no_kernel()
        }

        /// One value everywhere.
        ///
        /// # Panics
        /// With `Unsupported`.
        pub fn full_device_dtype(_: Client, _: Shape, _: Device, _: InputScalar, _: DType) -> RocmTensor {
            no_kernel()
        }

        /// Memory for a result.
        ///
        /// # Panics
        /// With `Unsupported`.
        pub fn empty_device_dtype(_: Client, _: Device, _: Shape, _: DType) -> RocmTensor {
            no_kernel()
        }
    }

    /// The elements.
    ///
    /// # Panics
    /// With `Unsupported`.
    pub fn into_data_sync(_: RocmTensor) -> TensorData {
        no_kernel()
    }

    /// Another shape.
    ///
    /// # Panics
    /// With `Unsupported`.
    pub fn reshape(_: RocmTensor, _: Shape) -> RocmTensor {
        no_kernel()
    }

    /// A part of the tensor.
    ///
    /// # Panics
    /// With `Unsupported`.
    pub fn slice(_: RocmTensor, _: &[core::ops::Range<usize>]) -> RocmTensor {
        no_kernel()
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::TensorMetadata;
    use burn_std::BoolStore;
    use cubecl::features::Plane;

    use super::*;
    use crate::device::RocmDevice;
    use crate::error::take_last_error;
    use crate::ops::create;

    fn image(shape: [usize; 2]) -> RocmTensor {
        let dtype = DType::Bool(BoolStore::U8);
        create::full(&RocmDevice::new(0), shape.into(), true.into(), dtype).expect("the CPU device at least")
    }

    /// burn-vision computes on the host if the image has more than one pixel and the client has no
    /// plane instructions.
    #[test]
    fn what_burn_vision_reads() {
        let image = image([3, 4]);
        assert_eq!(image.meta.shape(), &Shape::from([3, 4]));
        assert_eq!(image.meta.num_elements(), 12);
        assert_eq!(image.dtype, TensorMetadata::dtype(&image));
        assert_eq!(image.device, TensorMetadata::device(&image));
        assert!(!image.client.properties().features.plane.contains(Plane::Ops));
    }

    #[test]
    fn fields_are_made_once_for_a_shape() {
        let (first, second, other) = (image([3, 4]), image([3, 4]), image([4, 3]));
        assert!(core::ptr::eq(&*first, &*second));
        assert!(!core::ptr::eq(&*first, &*other));
    }

    #[test]
    fn an_argument_of_a_kernel_is_a_typed_error() {
        let image = image([2, 2]);
        let caught = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| image.into_tensor_arg()));
        assert!(caught.is_err());
        assert!(matches!(take_last_error(), Some(hip::Error::Unsupported { .. })));
    }
}
