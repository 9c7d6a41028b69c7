//! A linear layer and a sum, for example at the end of a transformer's sub-layer.

use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::module::linear;

use crate::fuse::{Route, primitive, say_composed, wrap};
use crate::ops::layer::{BiasAdd, LinearAddOp};

/// `onto + layer(x)`: one kernel after the product adds the bias and `onto`, or hipBLASLt does so with
/// the product.
pub(crate) fn linear_add<const D: usize>(
    module: &'static str,
    layer: &Linear,
    x: Tensor<D>,
    onto: Tensor<D>,
) -> Tensor<D> {
    match (Route::of(module, &x), &layer.bias) {
        (Some(route), Some(bias)) if route.joins_products(&x) => {
            let inputs =
                [primitive(onto), primitive(x), primitive(layer.weight.val()), primitive(bias.val())];
            wrap(route.apply(LinearAddOp, inputs).0)
        }
        (Some(route), Some(bias)) => {
            let product = primitive(linear(x, layer.weight.val(), None));
            wrap(route.apply(BiasAdd, [primitive(onto), product, primitive(bias.val())]).0)
        }
        _ => {
            say_composed(module, &x.device(), "a layer before a sum has no bias");
            onto + layer.forward(x)
        }
    }
}
