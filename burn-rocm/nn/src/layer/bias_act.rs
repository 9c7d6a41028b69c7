//! A bias and an activation after a product or a convolution.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::{Act, composed};
use crate::fuse::{Route, primitive, wrap};
use crate::ops::layer::BiasAct;

/// `act(x + bias)`, with the bias along an axis.
pub(super) fn bias_act<B: Backend, const D: usize>(
    module: &'static str,
    act: Act,
    x: Tensor<B, D>,
    bias: Option<Tensor<B, 1>>,
    axis: usize,
) -> Tensor<B, D> {
    match (Route::of(module), bias) {
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
