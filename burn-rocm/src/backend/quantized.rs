//! Quantised tensor ops: none is computed yet, each says so. The other methods of the trait are Burn's, composed
//! of these.

use burn_backend::ops::QTensorOps;
use burn_backend::quantization::{QuantScheme, QuantizationParametersPrimitive};
use burn_backend::{ExecutionError, TensorData};
use burn_rocm_macros::traced;
use burn_std::{FloatDType, Shape, Slice};

use super::{BoolElement, FloatElement, IntElement, Rocm};
use crate::device::RocmDevice;
use crate::error::{OrRaise, execution, unsupported};
use crate::qtensor::RocmQTensor;
use crate::tensor::RocmTensor;

#[traced]
impl<F: FloatElement, I: IntElement, B: BoolElement> QTensorOps<Self> for Rocm<F, I, B> {
    fn q_from_data(data: TensorData, _device: &RocmDevice) -> RocmQTensor {
        unsupported("q_from_data", data.dtype.name()).or_raise()
    }

    fn quantize(
        tensor: RocmTensor,
        _scheme: &QuantScheme,
        _qparams: QuantizationParametersPrimitive<Self>,
    ) -> RocmQTensor {
        unsupported("quantize", tensor.dtype_of().name()).or_raise()
    }

    fn quantize_dynamic(tensor: RocmTensor, _scheme: &QuantScheme) -> RocmQTensor {
        unsupported("quantize_dynamic", tensor.dtype_of().name()).or_raise()
    }

    fn dequantize(tensor: RocmQTensor, _dtype: FloatDType) -> RocmTensor {
        unsupported("dequantize", tensor.dtype_name()).or_raise()
    }

    fn q_to_device(tensor: RocmQTensor, _device: &RocmDevice) -> RocmQTensor {
        unsupported("q_to_device", tensor.dtype_name()).or_raise()
    }

    fn q_reshape(tensor: RocmQTensor, _shape: Shape) -> RocmQTensor {
        unsupported("q_reshape", tensor.dtype_name()).or_raise()
    }

    fn q_expand(tensor: RocmQTensor, _shape: Shape) -> RocmQTensor {
        unsupported("q_expand", tensor.dtype_name()).or_raise()
    }

    fn q_swap_dims(tensor: RocmQTensor, _dim1: usize, _dim2: usize) -> RocmQTensor {
        unsupported("q_swap_dims", tensor.dtype_name()).or_raise()
    }

    fn q_permute(tensor: RocmQTensor, _axes: &[usize]) -> RocmQTensor {
        unsupported("q_permute", tensor.dtype_name()).or_raise()
    }

    fn q_flip(tensor: RocmQTensor, _axes: &[usize]) -> RocmQTensor {
        unsupported("q_flip", tensor.dtype_name()).or_raise()
    }

    fn q_select(tensor: RocmQTensor, _dim: usize, _indices: RocmTensor) -> RocmQTensor {
        unsupported("q_select", tensor.dtype_name()).or_raise()
    }

    fn q_slice(tensor: RocmQTensor, _slices: &[Slice]) -> RocmQTensor {
        unsupported("q_slice", tensor.dtype_name()).or_raise()
    }

    fn q_device(tensor: &RocmQTensor) -> RocmDevice {
        tensor.values.device()
    }

    async fn q_into_data(tensor: RocmQTensor) -> Result<TensorData, ExecutionError> {
        unsupported("q_into_data", tensor.dtype_name()).map_err(execution)
    }
}
