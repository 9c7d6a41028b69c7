//! Quantised tensor ops. The element-wise ops that are not here are Burn's defaults, which run
//! float ops on dequantised values.

use burn_backend::ops::{FloatTensorOps, QTensorOps};
use burn_backend::quantization::{QuantPropagation, QuantScheme, QuantizationParametersPrimitive};
use burn_backend::{
    Backend, ExecutionError, TensorData, TensorMetadata, TensorPrimitive, get_or_init_device_settings,
};
use burn_rocm_macros::traced;
use burn_std::{FloatDType, Shape, Slice};

use super::{BurnDevice, Rocm, own};
use crate::error::{OrRaise, execution};
use crate::ops::quantized::{layout, matmul, quantize};
use crate::qtensor::RocmQTensor;
use crate::tensor::RocmTensor;

fn side<B>(tensor: TensorPrimitive<B>) -> matmul::Side
where
    B: Backend<FloatTensorPrimitive = RocmTensor, QuantizedTensorPrimitive = RocmQTensor>,
{
    match tensor {
        TensorPrimitive::Float(tensor) => matmul::Side::Float(tensor),
        TensorPrimitive::QFloat(tensor) => matmul::Side::Quantized(Box::new(tensor)),
    }
}

#[traced]
impl QTensorOps<Self> for Rocm {
    fn q_from_data(data: TensorData, device: &BurnDevice) -> RocmQTensor {
        quantize::upload("q_from_data", &data, &own(device)).or_raise()
    }

    fn quantize(
        tensor: RocmTensor,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Self>,
    ) -> RocmQTensor {
        quantize::quantize("quantize", tensor, scheme, Some((qparams.scales, qparams.global))).or_raise()
    }

    fn quantize_dynamic(tensor: RocmTensor, scheme: &QuantScheme) -> RocmQTensor {
        quantize::quantize("quantize_dynamic", tensor, scheme, None).or_raise()
    }

    fn dequantize(tensor: RocmQTensor, dtype: FloatDType) -> RocmTensor {
        quantize::dequantize("dequantize", &tensor, dtype).or_raise()
    }

    fn q_to_device(tensor: RocmQTensor, device: &BurnDevice) -> RocmQTensor {
        quantize::move_to(tensor, &own(device)).or_raise()
    }

    fn q_reshape(tensor: RocmQTensor, shape: Shape) -> RocmQTensor {
        layout::reshape("q_reshape", tensor, shape.as_slice()).or_raise()
    }

    async fn q_into_data(tensor: RocmQTensor) -> Result<TensorData, ExecutionError> {
        quantize::read("q_into_data", tensor).map_err(execution)
    }

    fn q_expand(tensor: RocmQTensor, shape: Shape) -> RocmQTensor {
        layout::expand(tensor, shape.as_slice()).or_raise()
    }

    fn q_transpose(tensor: RocmQTensor) -> RocmQTensor {
        layout::transpose(tensor).or_raise()
    }

    fn q_swap_dims(tensor: RocmQTensor, dim1: usize, dim2: usize) -> RocmQTensor {
        layout::swap_dims(tensor, dim1, dim2).or_raise()
    }

    fn q_permute(tensor: RocmQTensor, axes: &[usize]) -> RocmQTensor {
        layout::permute(tensor, axes).or_raise()
    }

    fn q_flip(tensor: RocmQTensor, axes: &[usize]) -> RocmQTensor {
        layout::flip(tensor, axes).or_raise()
    }

    fn q_select(tensor: RocmQTensor, dim: usize, indices: RocmTensor) -> RocmQTensor {
        layout::select(tensor, dim, indices).or_raise()
    }

    fn q_slice(tensor: RocmQTensor, slices: &[Slice]) -> RocmQTensor {
        layout::slice(tensor, slices).or_raise()
    }

    fn q_gather(dim: usize, tensor: RocmQTensor, indices: RocmTensor) -> RocmQTensor {
        layout::gather(dim, tensor, indices).or_raise()
    }

    fn q_repeat_dim(tensor: RocmQTensor, dim: usize, times: usize) -> RocmQTensor {
        layout::repeat_dim(tensor, dim, times).or_raise()
    }

    fn q_matmul(lhs: TensorPrimitive<Self>, rhs: TensorPrimitive<Self>) -> TensorPrimitive<Self> {
        // As in Burn's default: the result has the dtype of the float operand. If both operands are
        // quantised, the right one's scheme counts.
        let quantized = match (&lhs, &rhs) {
            (_, TensorPrimitive::QFloat(q)) | (TensorPrimitive::QFloat(q), _) => Some(q),
            _ => None,
        };
        let settings = quantized.map(|q| get_or_init_device_settings::<Self>(&q.device()));
        let dtype = match (&lhs, &rhs, settings) {
            (TensorPrimitive::QFloat(_), TensorPrimitive::QFloat(_), Some(settings)) => settings.float_dtype,
            (TensorPrimitive::Float(float), ..) | (_, TensorPrimitive::Float(float), _) => {
                float.dtype_of().into()
            }
            _ => FloatDType::F32,
        };
        let propagated = quantized
            .filter(|_| {
                settings.is_some_and(|s| matches!(s.quantization.propagation, QuantPropagation::Propagate))
            })
            .map(|q| *q.scheme_of());
        let out = match (lhs, rhs) {
            (TensorPrimitive::Float(lhs), TensorPrimitive::Float(rhs)) => Self::float_matmul(lhs, rhs),
            (lhs, rhs) => matmul::qmatmul(side(lhs), side(rhs), dtype).or_raise(),
        };
        match propagated {
            Some(scheme) => TensorPrimitive::QFloat(Self::quantize_dynamic(out, &scheme)),
            None => TensorPrimitive::Float(out),
        }
    }
}
