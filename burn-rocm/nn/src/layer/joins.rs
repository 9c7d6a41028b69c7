//! Sums and products of tensors, fused with the op after them.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::{RocmError, RocmTensor, fused};

use super::{Act, composed};
use crate::fuse::{Applied, Gradients, Kept, Op, Route, primitive, say_composed, wrap};

/// The activation of a sum, for example at the end of a residual block. One kernel computes it, and
/// one kernel both gradients. Burn's ops compute inputs of different shapes, which broadcast.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::{Act, AddAct};
///
/// let x = Tensor::<Rocm, 1>::ones([4], &device);
/// let output = AddAct::new(Act::Relu).forward(x.clone(), -x * 2.0);
/// assert_eq!(output.max().into_scalar(), 0.0);
/// ```
#[derive(Module, Clone, Debug)]
pub struct AddAct {
    /// The activation.
    pub activation: Act,
}

impl AddAct {
    /// The module.
    pub fn new(activation: Act) -> Self {
        Self { activation }
    }

    /// `act(a + b)`.
    ///
    /// # Shapes
    /// - a, b, output: `[..]`
    pub fn forward<B: Backend, const D: usize>(&self, a: Tensor<B, D>, b: Tensor<B, D>) -> Tensor<B, D> {
        match Route::<B>::of("AddAct") {
            Some(route) if a.dims() == b.dims() => {
                wrap(route.apply(AddActOp(self.activation), [primitive(a), primitive(b)]).0)
            }
            _ => {
                say_composed::<B>("AddAct", "its inputs differ in shape");
                composed(self.activation, a + b)
            }
        }
    }
}

#[derive(Debug)]
struct AddActOp(Act);

impl AddActOp {
    /// ReLU's gradient reads the output, which the next op keeps anyway. So neither input is kept.
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
        let y = fused::add_act(self.0.fused(), a, b)?;
        let saved = if self.reads_output() { vec![y.clone()] } else { vec![] };
        Ok((y, saved))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<2>, _: [bool; 2]) -> Gradients<2> {
        let found = match kept.saved.pop() {
            Some(y) => fused::relu_backward(y, grad)?,
            None => {
                let [a, b] = kept.first();
                fused::add_act_backward(self.0.fused(), a, b, grad)?
            }
        };
        Ok([Some(found.clone()), Some(found)])
    }
}

/// Element-wise `a * b + c` in one kernel, and the gradients with respect to both factors in
/// another. Burn's ops compute inputs of different shapes, which broadcast.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::MulAdd;
///
/// let x = Tensor::<Rocm, 1>::ones([4], &device) * 3.0;
/// let output = MulAdd::new().forward(x.clone(), x.clone(), x);
/// assert_eq!(output.max().into_scalar(), 12.0);
/// ```
#[derive(Module, Clone, Debug, Default)]
pub struct MulAdd {}

impl MulAdd {
    /// The module.
    pub fn new() -> Self {
        Self {}
    }

    /// `a * b + c`.
    ///
    /// # Shapes
    /// - a, b, c, output: `[..]`
    pub fn forward<B: Backend, const D: usize>(
        &self,
        a: Tensor<B, D>,
        b: Tensor<B, D>,
        c: Tensor<B, D>,
    ) -> Tensor<B, D> {
        match Route::<B>::of("MulAdd") {
            Some(route) if a.dims() == b.dims() && b.dims() == c.dims() => {
                wrap(route.apply(MulAddOp, [primitive(a), primitive(b), primitive(c)]).0)
            }
            _ => {
                say_composed::<B>("MulAdd", "its inputs differ in shape");
                a * b + c
            }
        }
    }
}

#[derive(Debug)]
struct MulAddOp;

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
