//! RMS norm.

use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Tensor};

use super::{RmsNormConfig, composed, shared};
use crate::fuse::{Route, primitive, wrap};
use crate::ops::norm::RmsNormOp;

impl RmsNormConfig {
    /// The module, with gamma 1.
    ///
    /// # Panics
    /// If epsilon is not positive.
    pub fn init(&self, device: &Device) -> RmsNorm {
        self.check();
        RmsNorm { gamma: Initializer::Ones.init([self.d_model], device), epsilon: self.epsilon }
    }
}

/// `x / sqrt(mean(x^2) + epsilon) * gamma` along the last axis ([Zhang and Sennrich
/// 2019](https://arxiv.org/abs/1910.07467)).
///
/// Made by [`RmsNormConfig`]. Forward takes one kernel or MIOpen call. The gradient takes one
/// kernel, and one more that joins the sums of gamma's gradient. f64 is computed in f64, whereas
/// Burn's module computes the mean of squares in f32.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::{RmsNorm, RmsNormConfig};
///
/// let norm: RmsNorm = RmsNormConfig::new(16).init(&device);
/// let output = norm.forward(Tensor::<2>::ones([2, 16], &device));
/// assert_eq!(output.dims(), [2, 16]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct RmsNorm {
    /// The scale.
    pub gamma: Param<Tensor<1>>,
    /// Added to the mean of squares.
    pub epsilon: f64,
}

impl RmsNorm {
    /// Normalises along the last axis.
    ///
    /// # Shapes
    /// - x, output: `[.., d_model]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match Route::of("RmsNorm", &x) {
            Some(route) => {
                let op = RmsNormOp { epsilon: self.epsilon };
                wrap(route.apply(op, [primitive(x), primitive(self.gamma.val())]).0)
            }
            None => {
                let norm = burn::nn::RmsNorm { gamma: shared(&self.gamma), epsilon: self.epsilon };
                composed(Some(self.gamma.val().dtype()), x, |x| norm.forward(x))
            }
        }
    }
}

impl ModuleDisplay for RmsNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model] = self.gamma.shape().dims();
        content.add("d_model", &d_model).add("epsilon", &self.epsilon).optional()
    }
}
