//! The ops of layers.

use burn_rocm::fused::{self, Act, Conv2dOptions, LinearGelu};
use burn_rocm::{RocmError, RocmTensor};

use super::{Applied, Gradients, Kept, Op};

/// The inputs are the product and, if there is one, the bias.
#[derive(Debug)]
pub(crate) struct BiasAct {
    pub(crate) act: Act,
    pub(crate) axis: usize,
}

impl BiasAct {
    /// ReLU's gradient reads the output, which the next op keeps anyway. So the product need not be
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
        let y = fused::bias_act(self.act, x, inputs.next(), self.axis)?;
        let saved = if self.reads_output() { vec![y.clone()] } else { vec![] };
        Ok((y, saved))
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let mut read = kept.inputs.into_iter().flatten().chain(kept.saved);
        let x = read.next().expect("the product or the output is kept");
        let by_bias = wanted.get(1) == Some(&true);
        let (by_x, by_bias) = fused::bias_act_backward(self.act, x, read.next(), grad, self.axis, by_bias)?;
        let mut found = [Some(by_x), by_bias].into_iter();
        Ok([(); N].map(|()| found.next().flatten()))
    }
}

/// The ReLU of a convolution. The inputs are the convolution's input, the weight and, if there is a
/// third tensor, the bias. The gradient reads the output instead of the convolution's result.
#[derive(Debug)]
pub(crate) struct ConvRelu(pub(crate) Conv2dOptions);

impl<const N: usize> Op<N> for ConvRelu {
    fn names(&self) -> [&'static str; 2] {
        ["nn_conv_act", "nn_conv_act_backward"]
    }

    fn reads(&self) -> [bool; N] {
        std::array::from_fn(|k| k < 2)
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let (x, weight) = (inputs.next().expect("the input"), inputs.next().expect("the weight"));
        let y = fused::conv_act(Act::Relu, x, weight, inputs.next(), self.0)?;
        Ok((y.clone(), vec![y]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let [x, weight] = kept.first();
        let [y] = kept.saved.try_into().expect("the output");
        let asked = std::array::from_fn(|k| wanted.get(k) == Some(&true));
        let mut found = fused::conv_relu_backward(x, weight, y, grad, self.0, asked)?.into_iter();
        Ok([(); N].map(|()| found.next().flatten()))
    }
}

#[derive(Debug)]
pub(crate) struct AddActOp(pub(crate) Act);

impl AddActOp {
    /// ReLU's gradient reads the output, which the next op keeps anyway. So neither input need be
    /// kept.
    fn reads_output(&self) -> bool {
        self.0 == Act::Relu
    }
}

impl Op<2> for AddActOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_add_act", "nn_add_act_backward"]
    }

    fn reads(&self) -> [bool; 2] {
        [!self.reads_output(); 2]
    }

    fn memory_bound(&self) -> bool {
        !self.reads_output()
    }

    fn forward(&self, [a, b]: [RocmTensor; 2]) -> Result<Applied, RocmError> {
        let y = fused::add_act(self.0, a, b)?;
        let saved = if self.reads_output() { vec![y.clone()] } else { vec![] };
        Ok((y, saved))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<2>, _: [bool; 2]) -> Gradients<2> {
        let found = match kept.saved.pop() {
            Some(y) => fused::relu_backward(y, grad)?,
            None => {
                let [a, b] = kept.first();
                fused::add_act_backward(self.0, a, b, grad)?
            }
        };
        Ok([Some(found.clone()), Some(found)])
    }
}

#[derive(Debug)]
pub(crate) struct MulAddOp;

impl Op<3> for MulAddOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_mul_add", "nn_mul_add_backward"]
    }

    fn reads(&self) -> [bool; 3] {
        [true, true, false]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, [a, b, c]: [RocmTensor; 3]) -> Result<Applied, RocmError> {
        Ok((fused::mul_add(a, b, c)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<3>, wanted: [bool; 3]) -> Gradients<3> {
        let by_c = wanted[2].then(|| grad.clone());
        if !wanted[0] && !wanted[1] {
            return Ok([None, None, by_c]);
        }
        let [a, b] = kept.first();
        let (by_a, by_b) = fused::mul_add_backward(a, b, grad)?;
        Ok([Some(by_a), Some(by_b), by_c])
    }
}

/// The inputs are `onto`, the product and the bias. None of them is kept, so the sum overwrites the
/// product.
#[derive(Debug)]
pub(crate) struct BiasAdd;

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

/// `onto + (x W + b)`, in one call where hipBLASLt computes it. The inputs are `onto`, the layer's
/// input, its weight and its bias.
#[derive(Debug)]
pub(crate) struct LinearAddOp;

impl Op<4> for LinearAddOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_linear_add", "nn_linear_add_backward"]
    }

    fn reads(&self) -> [bool; 4] {
        [false, true, true, false]
    }

    fn forward(&self, [onto, x, weight, bias]: [RocmTensor; 4]) -> Result<Applied, RocmError> {
        Ok((fused::linear_add(onto, x, weight, bias)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<4>, wanted: [bool; 4]) -> Gradients<4> {
        let (x, weight) = (kept.input(1)?, kept.input(2)?);
        let [by_onto, by_x, by_weight, by_bias] = wanted;
        let onto = by_onto.then(|| grad.clone());
        let found = fused::linear_backward(x, weight, grad, [by_x, by_weight, by_bias])?;
        Ok([onto, found.x, found.weight, found.bias])
    }
}

/// `max(x W + b, 0)`, in one call where hipBLASLt computes it. The inputs are the layer's input,
/// its weight and, if there is one, its bias.
#[derive(Debug)]
pub(crate) struct LinearReluOp;

impl<const N: usize> Op<N> for LinearReluOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_linear_relu", "nn_linear_relu_backward"]
    }

    fn reads(&self) -> [bool; N] {
        std::array::from_fn(|k| k < 2)
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let (x, weight) = (inputs.next().expect("the input"), inputs.next().expect("the weight"));
        let y = fused::linear_relu(x, weight, inputs.next())?;
        Ok((y.clone(), vec![y]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let (x, weight) = (kept.input(0)?, kept.input(1)?);
        let [y] = kept.saved.try_into().expect("the output");
        let axis = x.dims().len() - 1;
        let by_bias = wanted.get(2) == Some(&true);
        let (grad, bias) = fused::bias_act_backward(Act::Relu, y, None, grad, axis, by_bias)?;
        let found = fused::linear_backward(x, weight, grad, [wanted[0], wanted[1], false])?;
        let mut found = [found.x, found.weight, bias].into_iter();
        Ok([(); N].map(|()| found.next().flatten()))
    }
}

/// Two linear layers with GELU by tanh between them, and a sum after them if there is a sixth
/// input. The inputs are the first layer's input, both layers' weight and bias, and what is added.
#[derive(Debug)]
pub(crate) struct FeedForwardOp;

impl<const N: usize> Op<N> for FeedForwardOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_feed_forward", "nn_feed_forward_backward"]
    }

    fn reads(&self) -> [bool; N] {
        std::array::from_fn(|k| k == 0 || k == 1 || k == 3)
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().expect("five inputs");
        let (x, w1, b1, w2, b2) = (next(), next(), next(), next(), next());
        let LinearGelu { out: hidden, before } = fused::linear_gelu_tanh(x, w1, b1)?;
        let out = match inputs.next() {
            Some(onto) => fused::linear_add(onto, hidden.clone(), w2, b2)?,
            None => fused::linear(hidden.clone(), w2, Some(b2))?,
        };
        Ok((out, vec![hidden, before]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let (x, w1, w2) = (kept.input(0)?, kept.input(1)?, kept.input(3)?);
        let [hidden, before] = kept.saved.try_into().expect("two tensors are saved");
        let wants = |k: usize| wanted.get(k) == Some(&true);
        let onto = wants(5).then(|| grad.clone());
        let outer = fused::linear_backward(hidden, w2.clone(), grad.clone(), [false, wants(3), wants(4)])?;
        let mut found = [None, None, None, outer.weight, outer.bias, onto];
        if wants(0) || wants(1) || wants(2) {
            let [grad, bias] = fused::gelu_tanh_linear_backward(grad, w2, before)?;
            let inner = fused::linear_backward(x, w1, grad, [wants(0), wants(1), false])?;
            (found[0], found[1], found[2]) = (inner.x, inner.weight, Some(bias));
        }
        let mut found = found.into_iter();
        Ok([(); N].map(|()| found.next().flatten()))
    }
}
