//! A bias and an activation after a product or a convolution.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::{RocmError, RocmTensor, fused};

use super::{Act, composed};
use crate::fuse::{Applied, Gradients, Kept, Op, Route, primitive, wrap};

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
            wrap(route.apply(BiasAct { act, axis }, [primitive(x), primitive(bias)]).0)
        }
        (Some(route), None) => route.unary(BiasAct { act, axis }, x),
        (None, None) => composed(act, x),
        (None, Some(bias)) => {
            let mut shape = [1; D];
            shape[axis] = bias.dims()[0];
            composed(act, x + bias.reshape(shape))
        }
    }
}

/// The inputs are the product and, if there is one, the bias.
#[derive(Debug)]
struct BiasAct {
    act: Act,
    axis: usize,
}

impl BiasAct {
    /// ReLU's gradient reads the output, which the next op keeps anyway. So the product is not
    /// kept, and the output overwrites it.
    fn reads_output(&self) -> bool {
        self.act == Act::Relu
    }
}

impl<const N: usize> Op<N> for BiasAct {
    fn names(&self) -> [&'static str; 2] {
        ["nn_bias_act", "nn_bias_act_backward"]
    }

    fn reads(&self) -> [bool; N] {
        [!self.reads_output(); N]
    }

    fn memory_bound(&self) -> bool {
        !self.reads_output()
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let x = inputs.next().expect("the product comes first");
        let y = fused::bias_act(self.act.fused(), x, inputs.next(), self.axis)?;
        let saved = if self.reads_output() { vec![y.clone()] } else { vec![] };
        Ok((y, saved))
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let mut read = kept.inputs.into_iter().flatten().chain(kept.saved);
        let x = read.next().expect("the product or the output is kept");
        let by_bias = wanted.get(1) == Some(&true);
        let (by_x, by_bias) =
            fused::bias_act_backward(self.act.fused(), x, read.next(), grad, self.axis, by_bias)?;
        let mut found = [Some(by_x), by_bias].into_iter();
        Ok([(); N].map(|()| found.next().flatten()))
    }
}
