//! The quantised primitive.

use burn_backend::quantization::QuantScheme;
use burn_backend::{QTensorPrimitive, TensorMetadata};
use burn_std::{DType, Shape};

use crate::tensor::RocmTensor;

/// A quantised tensor: its values as stored, and the scheme that says what they mean.
#[derive(Clone, Debug)]
pub struct RocmQTensor {
    pub(crate) values: RocmTensor,
    pub(crate) scheme: QuantScheme,
}

impl RocmQTensor {
    pub(crate) fn dtype_name(&self) -> &'static str {
        DType::QFloat(self.scheme).name()
    }
}

impl TensorMetadata for RocmQTensor {
    fn dtype(&self) -> DType {
        DType::QFloat(self.scheme)
    }

    fn shape(&self) -> Shape {
        self.values.shape()
    }

    fn rank(&self) -> usize {
        self.values.rank()
    }
}

impl QTensorPrimitive for RocmQTensor {
    fn scheme(&self) -> &QuantScheme {
        &self.scheme
    }
}
