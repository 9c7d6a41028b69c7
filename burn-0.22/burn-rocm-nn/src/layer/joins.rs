//! Sums and products of tensors, fused with the op after them.

use burn::module::Module;
use burn::tensor::Tensor;

use super::{Act, composed};
use crate::fuse::{Route, primitive, say_composed, wrap};
use crate::ops::layer::{AddActOp, MulAddOp};

/// The activation of a sum, for example at the end of a residual block. One kernel computes it, and
/// one kernel computes both gradients. Inputs of different shapes broadcast; Burn's ops compute
/// these.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::{Act, AddAct};
///
/// let x = Tensor::<1>::ones([4], &device);
/// let output = AddAct::new(Act::Relu).forward(x.clone(), -x * 2.0);
/// assert_eq!(output.max().into_scalar::<f32>(), 0.0);
/// ```
#[derive(Module, Debug)]
pub struct AddAct {
    /// The activation.
    #[module(skip)]
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
    pub fn forward<const D: usize>(&self, a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        match Route::of("AddAct", &a) {
            Some(route) if a.dims() == b.dims() => {
                wrap(route.apply(AddActOp(self.activation.fused()), [primitive(a), primitive(b)]).0)
            }
            _ => {
                say_composed("AddAct", &a.device(), "its inputs differ in shape");
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
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::MulAdd;
///
/// let x = Tensor::<1>::ones([4], &device) * 3.0;
/// let output = MulAdd::new().forward(x.clone(), x.clone(), x);
/// assert_eq!(output.max().into_scalar::<f32>(), 12.0);
/// ```
#[derive(Module, Debug, Default)]
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
    pub fn forward<const D: usize>(&self, a: Tensor<D>, b: Tensor<D>, c: Tensor<D>) -> Tensor<D> {
        match Route::of("MulAdd", &a) {
            Some(route) if a.dims() == b.dims() && b.dims() == c.dims() => {
                wrap(route.apply(MulAddOp, [primitive(a), primitive(b), primitive(c)]).0)
            }
            _ => {
                say_composed("MulAdd", &a.device(), "its inputs differ in shape");
                a * b + c
            }
        }
    }
}
