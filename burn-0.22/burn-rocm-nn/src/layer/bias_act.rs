//! A bias and an activation after a product or a convolution.

use burn::tensor::Tensor;

use super::{Act, composed};
use crate::fuse::{Route, primitive, wrap};
use crate::ops::layer::BiasAct;

/// `act(x + bias)`, with the bias along an axis.
pub(super) fn bias_act<const D: usize>(
    module: &'static str,
    act: Act,
    x: Tensor<D>,
    bias: Option<Tensor<1>>,
    axis: usize,
) -> Tensor<D> {
    match (Route::of(module, &x), bias) {
        (Some(route), Some(bias)) => {
            wrap(route.apply(BiasAct { act: act.fused(), axis }, [primitive(x), primitive(bias)]).0)
        }
        (Some(route), None) => route.unary(BiasAct { act: act.fused(), axis }, x),
        (None, None) => composed(act, x),
        (None, Some(bias)) => {
            let mut shape = [1; D];
            shape[axis] = bias.dims()[0];
            composed(act, x + bias.reshape(shape))
        }
    }
}
