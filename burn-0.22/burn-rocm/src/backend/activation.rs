//! Activations and their gradients.

use burn_backend::Scalar;
use burn_backend::ops::ActivationOps;
use burn_rocm_macros::traced;
use hip::Functor;

use super::Rocm;
use crate::error::OrRaise;
use crate::ops::{activation, binary, softmax, unary};
use crate::tensor::RocmTensor;

#[traced]
impl ActivationOps<Self> for Rocm {
    fn leaky_relu(tensor: RocmTensor, negative_slope: Scalar) -> RocmTensor {
        unary::unary2("leaky_relu", Functor::LeakyRelu, tensor, negative_slope, 0.0.into()).or_raise()
    }

    fn relu(tensor: RocmTensor) -> RocmTensor {
        unary::unary("relu", Functor::Relu, tensor).or_raise()
    }

    fn relu_backward(output: RocmTensor, grad: RocmTensor) -> RocmTensor {
        activation::relu_backward(output, grad).or_raise()
    }

    fn gelu(tensor: RocmTensor) -> RocmTensor {
        unary::unary("gelu", Functor::Gelu, tensor).or_raise()
    }

    fn prelu(tensor: RocmTensor, alpha: RocmTensor) -> RocmTensor {
        binary::binary("prelu", Functor::Prelu, tensor, alpha).or_raise()
    }

    fn gelu_backward(x: RocmTensor, grad: RocmTensor) -> RocmTensor {
        binary::binary("gelu_backward", Functor::GeluBackward, x, grad).or_raise()
    }

    fn sigmoid(tensor: RocmTensor) -> RocmTensor {
        unary::unary("sigmoid", Functor::Sigmoid, tensor).or_raise()
    }

    fn sigmoid_backward(output: RocmTensor, grad: RocmTensor) -> RocmTensor {
        binary::binary("sigmoid_backward", Functor::SigmoidBackward, output, grad).or_raise()
    }

    fn hard_sigmoid(tensor: RocmTensor, alpha: Scalar, beta: Scalar) -> RocmTensor {
        unary::unary2("hard_sigmoid", Functor::HardSigmoid, tensor, alpha, beta).or_raise()
    }

    fn log_sigmoid(tensor: RocmTensor) -> RocmTensor {
        unary::unary("log_sigmoid", Functor::LogSigmoid, tensor).or_raise()
    }

    fn log_sigmoid_backward(x: RocmTensor, grad: RocmTensor) -> RocmTensor {
        binary::binary("log_sigmoid_backward", Functor::LogSigmoidBackward, x, grad).or_raise()
    }

    fn softmax(tensor: RocmTensor, dim: usize) -> RocmTensor {
        softmax::softmax(tensor, dim).or_raise()
    }

    fn softmin(tensor: RocmTensor, dim: usize) -> RocmTensor {
        softmax::softmin(tensor, dim).or_raise()
    }

    fn log_softmax(tensor: RocmTensor, dim: usize) -> RocmTensor {
        softmax::log_softmax(tensor, dim).or_raise()
    }
}
