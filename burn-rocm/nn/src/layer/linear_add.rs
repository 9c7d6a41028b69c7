//! A linear layer and a sum, for example at the end of a transformer's sub-layer.

use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::module::linear;
use burn_rocm::{RocmError, RocmTensor, fused};

use crate::fuse::{Applied, Gradients, Kept, Op, Route, primitive, say_composed, wrap};

/// `onto + layer(x)`: one kernel after the product adds the bias and `onto`.
pub(crate) fn linear_add<B: Backend, const D: usize>(
    module: &'static str,
    layer: &Linear<B>,
    x: Tensor<B, D>,
    onto: Tensor<B, D>,
) -> Tensor<B, D> {
    match (Route::<B>::of(module), &layer.bias) {
        (Some(route), Some(bias)) => {
            let product = primitive(linear(x, layer.weight.val(), None));
            wrap(route.apply(BiasAdd, [primitive(onto), product, primitive(bias.val())]).0)
        }
        _ => {
            say_composed::<B>(module, "a layer ahead of a sum has no bias");
            onto + layer.forward(x)
        }
    }
}

/// The inputs are `onto`, the product and the bias. None of them is kept, so the sum overwrites the
/// product.
#[derive(Debug)]
struct BiasAdd;

impl Op<3> for BiasAdd {
    fn names(&self) -> [&'static str; 2] {
        ["nn_bias_add", "nn_bias_add_backward"]
    }

    fn reads(&self) -> [bool; 3] {
        [false; 3]
    }

    fn forward(&self, [onto, x, bias]: [RocmTensor; 3]) -> Result<Applied, RocmError> {
        Ok((fused::bias_add(onto, x, bias)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<3>, wanted: [bool; 3]) -> Gradients<3> {
        let by_bias = wanted[2].then(|| fused::bias_add_backward(grad.clone())).transpose()?;
        Ok([Some(grad.clone()), Some(grad), by_bias])
    }
}
