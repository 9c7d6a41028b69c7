//! The backend type and its traits. The op traits, one file each, only delegate to [`crate::ops`].

mod activation;
mod bool;
mod defaults;
#[cfg(feature = "distributed")]
mod distributed;
mod float;
mod int;
mod module;
mod options;
mod primitive;
mod quantized;
mod transaction;

use core::fmt;
use core::marker::PhantomData;

use burn_backend::{Backend, BackendTypes, DTypeUsage, DTypeUsageSet, Element, ExecutionError, TensorData};
use burn_ir::{BackendIr, HandleKind, TensorHandle};
use burn_rocm_macros::traced;
use burn_std::DType;

use crate::device::RocmDevice;
use crate::error::{execution, raise};
use crate::ops::{fft, random};
use crate::qtensor::{Format, RocmQTensor};
use crate::staging;
use crate::tensor::RocmTensor;
pub(crate) use defaults::inherit_defaults;

/// The backend. `F`, `I` and `B` are the default element types of float, int and bool tensors. A
/// tensor may have any other supported dtype.
///
/// # Default dtypes belong to a device
///
/// Burn keeps one set of default dtypes for each *device*, not for each backend type. The first
/// type that makes a tensor on a device sets them, once for the whole process. A program that uses
/// `Rocm<bf16>` and then `Rocm<f32>` on one device gets bf16 from `Tensor::<Rocm<f32>, 1>::ones`,
/// and its gradients and reads (`as_slice::<f32>`) have a dtype that it does not expect. A type
/// that finds defaults other than its own warns once through `log`. Such a program has three ways
/// out:
///
/// - name the dtype where it makes a tensor: `Tensor::<B, 1>::ones([2], (&device, DType::F32))`;
/// - use one type only, and set its defaults before the first tensor is made on the device;
/// - use a device for each type, if there are several.
///
/// ```standalone_crate
/// use burn::tensor::{FloatDType, IntDType, Tensor, set_default_dtypes};
/// use burn_rocm::{Rocm, RocmDevice};
///
/// let device = RocmDevice::default();
/// // Fails if the device already has its defaults.
/// set_default_dtypes::<Rocm>(&device, FloatDType::BF16, IntDType::I32).unwrap();
/// assert_eq!(Tensor::<Rocm, 1>::ones([2], &device).dtype(), FloatDType::BF16.into());
/// ```
pub struct Rocm<F = f32, I = i32, B = u8> {
    types: PhantomData<Types<F, I, B>>,
}

/// `Send` and `Sync` for every element type, because no element is stored.
type Types<F, I, B> = fn() -> (F, I, B);

impl<F, I, B> Clone for Rocm<F, I, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F, I, B> Copy for Rocm<F, I, B> {}

impl<F, I, B> Default for Rocm<F, I, B> {
    fn default() -> Self {
        Self { types: PhantomData }
    }
}

impl<F, I, B> fmt::Debug for Rocm<F, I, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rocm")
    }
}

/// The element types that float tensors may have by default.
pub trait FloatElement: Element {}
/// The element types that int tensors may have by default.
pub trait IntElement: Element {}
/// The element types that bool tensors may be stored as by default: `u8` and `bool` take one byte,
/// `u32` takes four.
pub trait BoolElement: Element {}

/// Passes every float, int and bool element type of [`Rocm`] to another macro, as three lists:
/// `element_types!(table)` is `table! { [f64 f32 ..] [i64 i32 ..] [bool u8 u32] }`.
#[doc(hidden)]
#[macro_export]
macro_rules! element_types {
    ($then:ident) => {
        $then! {
            [f64 f32 $crate::f16 $crate::bf16]
            [i64 i32 i16 i8 u64 u32 u16 u8]
            [::core::primitive::bool u8 u32]
        }
    };
}

macro_rules! elements {
    ([$($float:ty)*] [$($int:ty)*] [$($bool:ty)*]) => {
        $(impl FloatElement for $float {})*
        $(impl IntElement for $int {})*
        $(impl BoolElement for $bool {})*
    };
}
element_types!(elements);

impl<F: FloatElement, I: IntElement, B: BoolElement> BackendTypes for Rocm<F, I, B> {
    type Device = RocmDevice;
    type FloatTensorPrimitive = RocmTensor;
    type FloatElem = F;
    type IntTensorPrimitive = RocmTensor;
    type IntElem = I;
    type BoolTensorPrimitive = RocmTensor;
    type BoolElem = B;
    type QuantizedTensorPrimitive = RocmQTensor;
}

#[traced]
impl<F: FloatElement, I: IntElement, B: BoolElement> Backend for Rocm<F, I, B> {
    fn name(_device: &RocmDevice) -> String {
        "rocm".into()
    }

    fn seed(device: &RocmDevice, seed: u64) {
        random::seed(device, seed);
    }

    fn sync(device: &RocmDevice) -> Result<(), ExecutionError> {
        device.synchronize().map_err(execution)
    }

    /// Runs `func`. What it allocates on this thread comes from memory that is reserved for such
    /// persistent allocations.
    fn memory_persistent_allocations<Output: Send, Input: Send, Func: Fn(Input) -> Output + Send>(
        device: &RocmDevice,
        input: Input,
        func: Func,
    ) -> Output {
        match device.open() {
            Ok(device) => device.pool().persistently(|| func(input)),
            Err(error) => raise(error),
        }
    }

    /// Waits for the device, then returns the memory pool's unused memory and unused pinned host
    /// memory to the driver.
    fn memory_cleanup(device: &RocmDevice) {
        let cleared = device.open().and_then(|device| {
            fft::forget_tables(&device);
            device.memory_cleanup()
        });
        if let Err(error) = cleared {
            raise(error);
        }
    }

    /// Moves the data into pinned memory, from which `from_data` on that device uploads without
    /// another copy.
    fn staging<'a, Iter>(data: Iter, device: &RocmDevice)
    where
        Iter: Iterator<Item = &'a mut TensorData>,
    {
        match device.open() {
            Ok(device) => data.for_each(|data| staging::pin(&device, data)),
            Err(error) => raise(error),
        }
    }

    fn dtype_usage(device: &RocmDevice, dtype: DType) -> DTypeUsageSet {
        match dtype {
            DType::Bool(_) => {
                defaults::are_set(device);
                DTypeUsage::Storage | DTypeUsage::Arithmetic
            }
            // Quantised types have their own matrix products. Their other ops compute on
            // dequantised floats.
            DType::QFloat(scheme) if Format::of("dtype_usage", &scheme, &[]).is_err() => {
                DTypeUsageSet::empty()
            }
            // No dtype claims matrix units, because not every GPU has them.
            _ => DTypeUsage::Storage | DTypeUsage::Arithmetic,
        }
    }

    /// The number of devices of the chosen provider, 0 if no provider has a device.
    fn device_count(_type_id: u16) -> usize {
        hip::Device::count().unwrap_or(0)
    }
}

impl<F: FloatElement, I: IntElement, B: BoolElement> BackendIr for Rocm<F, I, B> {
    type Handle = HandleKind<Self>;

    fn float_tensor(handle: TensorHandle<Self::Handle>) -> RocmTensor {
        match handle.handle {
            HandleKind::Float(tensor) => tensor,
            other => panic!("expected a float handle, found {}", other.name()),
        }
    }

    fn int_tensor(handle: TensorHandle<Self::Handle>) -> RocmTensor {
        match handle.handle {
            HandleKind::Int(tensor) => tensor,
            other => panic!("expected an int handle, found {}", other.name()),
        }
    }

    fn bool_tensor(handle: TensorHandle<Self::Handle>) -> RocmTensor {
        match handle.handle {
            HandleKind::Bool(tensor) => tensor,
            other => panic!("expected a bool handle, found {}", other.name()),
        }
    }

    fn quantized_tensor(handle: TensorHandle<Self::Handle>) -> RocmQTensor {
        match handle.handle {
            HandleKind::Quantized(tensor) => tensor,
            other => panic!("expected a quantized handle, found {}", other.name()),
        }
    }

    fn float_tensor_handle(tensor: RocmTensor) -> Self::Handle {
        HandleKind::Float(tensor)
    }

    fn int_tensor_handle(tensor: RocmTensor) -> Self::Handle {
        HandleKind::Int(tensor)
    }

    fn bool_tensor_handle(tensor: RocmTensor) -> Self::Handle {
        HandleKind::Bool(tensor)
    }

    fn quantized_tensor_handle(tensor: RocmQTensor) -> Self::Handle {
        HandleKind::Quantized(tensor)
    }
}
