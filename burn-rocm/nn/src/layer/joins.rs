//! Sums and products of tensors, fused with the op after them.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::{Act, composed};
use crate::fuse::{Route, primitive, say_composed, wrap};
use crate::ops::layer::{AddActOp, MulAddOp};

/// The activation of a sum, for example at the end of a residual block. One kernel computes it, and
/// one kernel computes both gradients. Inputs of different shapes broadcast; Burn's ops compute
/// these.
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
                wrap(route.apply(AddActOp(self.activation.fused()), [primitive(a), primitive(b)]).0)
            }
            _ => {
                say_composed::<B>("AddAct", "its inputs differ in shape");
                composed(self.activation, a + b)
            }
        }
    }
}

/// Element-wise `a * b + c` in one kernel, and the gradients with respect to both factors in
/// another. Inputs of different shapes broadcast; Burn's ops compute these.
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
