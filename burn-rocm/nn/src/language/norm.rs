//! RMS norm with the residual connection.

use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use burn_rocm::fused::RmsOptions;

use super::NormConfig;
use crate::fuse::{Route, primitive, refuse, wrap};
use crate::ops::language::{Handed, NormedOp, ResidualSumOp};

impl NormConfig {
    /// The module, with a scale of 1.
    ///
    /// # Panics
    /// If epsilon is not positive.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Norm<B> {
        self.check();
        let initializer = if self.adds_one { Initializer::Zeros } else { Initializer::Ones };
        let weight = initializer.init([self.d_model], device);
        Norm { weight, epsilon: self.epsilon, adds_one: self.adds_one }
    }
}

/// RMS norm along the last axis, `x / sqrt(mean(x^2) + epsilon) * weight` ([Zhang and Sennrich
/// 2019](https://arxiv.org/abs/1910.07467)), or with `1 + weight` as in Gemma.
///
/// Made by [`NormConfig`]. Each method takes one kernel. The gradient takes one kernel, one more
/// that joins the sums of the weight's gradient, and four small ones of `[d_model]` with `1 +
/// weight`. As for [`RmsNorm`](crate::RmsNorm), the weight may be f32 with an input of f16 or bf16.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::language::{Norm, NormConfig};
///
/// let norm: Norm<Rocm> = NormConfig::new(16).init(&device);
/// let (x, residual) = (Tensor::<Rocm, 2>::ones([2, 16], &device), Tensor::ones([2, 16], &device));
/// let (sum, normed) = norm.forward_residual(x, residual);
/// assert_eq!([sum.dims(), normed.dims()], [[2, 16]; 2]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Norm<B: Backend> {
    /// The scale, or the scale minus 1.
    pub weight: Param<Tensor<B, 1>>,
    /// Added to the mean of squares.
    pub epsilon: f64,
    /// Whether the scale is 1 + the weight.
    pub adds_one: bool,
}

impl<B: Backend> Norm<B> {
    pub(super) fn options(&self) -> RmsOptions {
        RmsOptions { epsilon: self.epsilon, shift: f64::from(u8::from(self.adds_one)) }
    }

    /// Normalises along the last axis.
    ///
    /// # Shapes
    /// - x, output: `[.., d_model]`
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        match Route::<B>::of("Norm") {
            Some(route) => {
                let op = NormedOp { options: self.options(), handed: None };
                wrap(route.apply(op, [primitive(x), primitive(self.weight.val())]).0)
            }
            None => composed(x, self.weight.val(), self.options()),
        }
    }

    /// The sum of a residual connection, `residual + x`, and its norm. The norm is that of the
    /// rounded sum.
    ///
    /// # Shapes
    /// - x, residual, outputs: `[.., d_model]`
    pub fn forward_residual<const D: usize>(
        &self,
        x: Tensor<B, D>,
        residual: Tensor<B, D>,
    ) -> (Tensor<B, D>, Tensor<B, D>) {
        let (sum, normed) = residual_norm(x, residual, None, Some(self));
        (sum, normed.expect("there is a norm after"))
    }

    /// A norm before the residual connection: `residual + norm(x)`.
    ///
    /// # Shapes
    /// - x, residual, output: `[.., d_model]`
    pub fn forward_before<const D: usize>(&self, x: Tensor<B, D>, residual: Tensor<B, D>) -> Tensor<B, D> {
        residual_norm(x, residual, Some(self), None).0
    }
}

/// A residual connection between two norms, in one kernel: `sum = residual + before(x)`, and
/// `after(sum)`. Either norm may be missing. A norm's result and the sum are rounded before they
/// are used, as separate ops would.
///
/// # Shapes
/// - x, residual, outputs: `[.., d_model]`
///
/// # Panics
/// With [`Invalid`](burn_rocm::RocmError::Invalid) if shapes or dtypes do not fit, or if the norms
/// have different epsilons or only one adds 1.
pub fn residual_norm<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    residual: Tensor<B, D>,
    before: Option<&Norm<B>>,
    after: Option<&Norm<B>>,
) -> (Tensor<B, D>, Option<Tensor<B, D>>) {
    let mut options = before.into_iter().chain(after).map(Norm::options);
    let first = options.next().unwrap_or(RmsOptions { epsilon: 1.0, shift: 0.0 });
    if let Some(second) = options.find(|second| *second != first) {
        refuse("residual_norm", format!("two norms with {first:?}"), format!("{second:?}"));
    }
    let Some(route) = Route::<B>::of("residual_norm") else {
        let x = before.map_or(x.clone(), |norm| norm.forward(x));
        let sum = residual + x;
        return (sum.clone(), after.map(|norm| norm.forward(sum)));
    };
    let weight = after.map(|norm| primitive(norm.weight.val()));
    let handed = Handed::default();
    let inner = weight.clone().map(|weight| (route.inner(weight), handed.clone()));
    let op = ResidualSumOp { options: first, after: inner };
    let sum = match before {
        None => route.apply(op, [primitive(x), primitive(residual)]).0,
        Some(norm) => route.apply(op, [primitive(x), primitive(residual), primitive(norm.weight.val())]).0,
    };
    let normed = weight.map(|weight| {
        let op = NormedOp { options: first, handed: Some(handed) };
        wrap(route.apply(op, [sum.clone(), weight]).0)
    });
    (wrap(sum), normed)
}

/// The norm, composed of Burn's ops. f16 and bf16 are computed in f32.
pub(super) fn composed<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    weight: Tensor<B, 1>,
    RmsOptions { epsilon, shift }: RmsOptions,
) -> Tensor<B, D> {
    let dtype = x.dtype();
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let x = x.cast(wide);
    let scale = (x.clone() * x.clone()).mean_dim(D - 1).add_scalar(epsilon).sqrt();
    (x / scale * weight.cast(wide).add_scalar(shift).unsqueeze()).cast(dtype)
}

impl<B: Backend> ModuleDisplay for Norm<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model] = self.weight.shape().dims();
        let content = content.add("d_model", &d_model).add("epsilon", &self.epsilon);
        content.add("adds_one", &self.adds_one).optional()
    }
}
