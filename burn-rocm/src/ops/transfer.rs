//! Transfers between the host and devices, and from one device to another.

use std::sync::Arc;

use burn_backend::TensorData;
use burn_std::{BoolStore, Bytes, DType};
use hip::Device;

use super::cast::cast;
use super::copy::contiguous;
use crate::burn;
use crate::device::RocmDevice;
use crate::dtype::kernel_type;
use crate::error::invalid;
use crate::layout::count;
use crate::staging;
use crate::tensor::RocmTensor;

/// Uploads the host's data as a tensor of `dtype`.
pub fn upload(data: TensorData, dtype: DType, device: &RocmDevice) -> hip::Result<RocmTensor> {
    kernel_type(dtype)?;
    let (bytes, shape, _) = burn::parts(data);
    let size = count(shape.as_slice()).and_then(|count| count.checked_mul(dtype.size()));
    let Some(size) = size.filter(|&size| size <= bytes.len()) else {
        return invalid(
            "from_data",
            format!("the bytes of {:?} of {}", shape.as_slice(), dtype.name()),
            format!("{} bytes", bytes.len()),
        );
    };
    let device = device.open()?;
    let buffer = match staging::upload(&device, bytes) {
        Ok(buffer) => buffer?,
        Err(bytes) => device.upload(&bytes[..size])?,
    };
    RocmTensor::new(buffer, shape, dtype)
}

/// Uploads the host's data as bools. Any element but 0 is true, and becomes a 1: readers on the host
/// rely on it.
pub(crate) fn upload_bools(data: TensorData, device: &RocmDevice) -> hip::Result<RocmTensor> {
    let dtype = bool_dtype(burn::dtype(&data));
    let (numbers, others) = match dtype {
        DType::Bool(BoolStore::U8) => (DType::U8, data.as_bytes().iter().any(|&byte| byte > 1)),
        DType::Bool(BoolStore::U32) => {
            let mut words = data.as_bytes().chunks_exact(4);
            (DType::U32, words.any(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]) > 1))
        }
        native => return upload(data, native, device),
    };
    match others {
        true => cast(upload(data, numbers, device)?, dtype),
        false => upload(data, dtype, device),
    }
}

/// The dtype of a bool tensor made from host data: bytes and 32-bit words count as bools of that
/// store.
fn bool_dtype(dtype: DType) -> DType {
    match dtype {
        DType::U8 => DType::Bool(BoolStore::U8),
        DType::U32 => DType::Bool(BoolStore::U32),
        other => other,
    }
}

/// Elements on the host. The vector's element type has the size of the tensor's elements, so the
/// bytes are aligned for them.
enum Elements {
    Bytes(Vec<u8>),
    Halves(Vec<u16>),
    Words(Vec<u32>),
    Doubles(Vec<u64>),
}

impl Elements {
    fn new(tensor: &RocmTensor) -> Self {
        let n = tensor.len();
        match tensor.dtype_size() {
            1 => Self::Bytes(vec![0; n]),
            2 => Self::Halves(vec![0; n]),
            4 => Self::Words(vec![0; n]),
            _ => Self::Doubles(vec![0; n]),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Bytes(elements) => elements,
            Self::Halves(elements) => bytemuck::cast_slice_mut(elements),
            Self::Words(elements) => bytemuck::cast_slice_mut(elements),
            Self::Doubles(elements) => bytemuck::cast_slice_mut(elements),
        }
    }

    fn of(self, tensor: &RocmTensor) -> TensorData {
        let bytes = match self {
            Self::Bytes(elements) => Bytes::from_elems(elements),
            Self::Halves(elements) => Bytes::from_elems(elements),
            Self::Words(elements) => Bytes::from_elems(elements),
            Self::Doubles(elements) => Bytes::from_elems(elements),
        };
        TensorData::from_bytes(bytes, tensor.layout().shape().clone(), burn::read_dtype(tensor.dtype_of()))
    }
}

/// The tensor's elements on the host. Waits for the device.
pub(crate) fn read(tensor: RocmTensor) -> hip::Result<TensorData> {
    let (data, fault) = read_with_fault(tensor)?;
    fault.map_or(Ok(data), Err)
}

/// The tensor's elements on the host, and its fault if a kernel found an index out of range or a
/// division by zero. Burn's reads return only the fault; with this function an app can find out
/// which elements it concerns. Waits for the device.
///
/// # Errors
/// An error of the device.
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use burn_rocm::{Rocm, RocmDevice, read_with_fault};
///
/// let device = RocmDevice::default();
/// let table = Tensor::<Rocm, 1>::from_floats([1.0, 2.0], &device);
/// let indices = Tensor::<Rocm, 1, Int>::from_ints([1, 7], &device);
/// let picked = table.select(0, indices); // there is no element 7
/// let (data, fault) = read_with_fault(picked.into_primitive().tensor())?;
/// assert_eq!(data.to_vec::<f32>().expect("f32"), [2.0, 0.0]);
/// println!("{}", fault.expect("the index out of range"));
/// # Ok::<(), burn_rocm::RocmError>(())
/// ```
pub fn read_with_fault(tensor: RocmTensor) -> hip::Result<(TensorData, Option<hip::Error>)> {
    let tensor = contiguous(tensor)?;
    let mut elements = Elements::new(&tensor);
    let (from, to) = (tensor.byte_offset(), elements.bytes());
    tensor.settle()?;
    let fault = tensor.hip_device().read_with_fault(tensor.buffer(), from, to)?;
    Ok((elements.of(&tensor), fault))
}

/// The elements of several tensors on the host. Waits as [`read_parts`] does. A replay may come
/// between the copies that put views in row-major order.
pub(crate) fn read_all(tensors: Vec<RocmTensor>) -> hip::Result<Vec<TensorData>> {
    let mut readings = tensors.into_iter().map(Reading::new).collect::<hip::Result<Vec<_>>>()?;
    read_parts(readings.iter_mut().map(Reading::part).collect())?;
    Ok(readings.into_iter().map(Reading::data).collect())
}

/// A tensor that is read, and room for its elements on the host.
pub(crate) struct Reading {
    tensor: RocmTensor,
    elements: Elements,
}

impl Reading {
    pub(crate) fn new(tensor: RocmTensor) -> hip::Result<Self> {
        let tensor = contiguous(tensor)?;
        let elements = Elements::new(&tensor);
        Ok(Self { tensor, elements })
    }

    pub(crate) fn part(&mut self) -> Part<'_> {
        (&self.tensor, self.elements.bytes())
    }

    /// The elements, once they have been read.
    pub(crate) fn data(self) -> TensorData {
        self.elements.of(&self.tensor)
    }
}

/// A contiguous tensor, and the bytes on the host that its elements are copied to.
pub(crate) type Part<'a> = (&'a RocmTensor, &'a mut [u8]);

/// Reads several tensors with one wait for each device that holds any of them, or for each 64 MiB of
/// a device's. No other thread's replay comes between the copies of a device's tensors.
pub(crate) fn read_parts(parts: Vec<Part<'_>>) -> hip::Result<()> {
    parts.iter().try_for_each(|(tensor, _)| tensor.settle())?;
    let mut devices: Vec<(&Arc<Device>, Vec<hip::Read<'_>>)> = Vec::new();
    for (tensor, out) in parts {
        let read = hip::Read { buffer: tensor.buffer(), byte_offset: tensor.byte_offset(), out };
        match devices.iter_mut().find(|(device, _)| Arc::ptr_eq(device, tensor.hip_device())) {
            Some((_, reads)) => reads.push(read),
            None => devices.push((tensor.hip_device(), vec![read])),
        }
    }
    devices.into_iter().try_for_each(|(device, reads)| device.read_all(reads))
}

/// The tensor itself if it is on `device`, else a copy there. Events order the copy between the two
/// devices.
pub(crate) fn to_device(tensor: RocmTensor, device: &RocmDevice) -> hip::Result<RocmTensor> {
    if tensor.rocm_device() == *device {
        return Ok(tensor);
    }
    let target = device.open()?;
    let tensor = contiguous(tensor)?;
    tensor.settle()?;
    let bytes = tensor.len() * tensor.dtype_size();
    let buffer = target.copy_from_device(tensor.buffer(), tensor.byte_offset(), bytes)?;
    RocmTensor::new(buffer, tensor.layout().shape().clone(), tensor.dtype_of())
}
