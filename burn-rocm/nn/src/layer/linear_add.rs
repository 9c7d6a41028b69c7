//! A linear layer and a sum, for example at the end of a transformer's sub-layer.

use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::module::linear;

use crate::fuse::{Route, primitive, say_composed, wrap};
use crate::ops::layer::{BiasAdd, LinearAddOp};

/// `onto + layer(x)`: one kernel after the product adds the bias and `onto`, or hipBLASLt does so with
/// the product.
pub(crate) fn linear_add<B: Backend, const D: usize>(
    module: &'static str,
    layer: &Linear<B>,
    x: Tensor<B, D>,
    onto: Tensor<B, D>,
) -> Tensor<B, D> {
    match (Route::<B>::of(module), &layer.bias) {
        (Some(route), Some(bias)) if route.joins_products(&x.device()) => {
            let inputs =
                [primitive(onto), primitive(x), primitive(layer.weight.val()), primitive(bias.val())];
            wrap(route.apply(LinearAddOp, inputs).0)
        }
        (Some(route), Some(bias)) => {
            let product = primitive(linear(x, layer.weight.val(), None));
            wrap(route.apply(BiasAdd, [primitive(onto), product, primitive(bias.val())]).0)
        }
        _ => {
            say_composed::<B>(module, "a layer before a sum has no bias");
            onto + layer.forward(x)
        }
    }
}
