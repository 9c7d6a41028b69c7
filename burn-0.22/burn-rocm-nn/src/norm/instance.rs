//! Instance norm.

use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Tensor};

use super::group::group_norm;
use super::{InstanceNormConfig, composed, shared};
use crate::fuse::Route;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, where mean and variance are taken over
/// each channel of each sample ([Ulyanov, Vedaldi and Lempitsky
/// 2016](https://arxiv.org/abs/1607.08022)).
///
/// Made by [`InstanceNormConfig`]. It is a [`GroupNorm`](crate::GroupNorm) with one group for each
/// channel.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::{InstanceNorm, InstanceNormConfig};
///
/// let norm: InstanceNorm = InstanceNormConfig::new(3).init(&device);
/// let output = norm.forward(Tensor::<4>::ones([2, 3, 8, 8], &device));
/// assert_eq!(output.dims(), [2, 3, 8, 8]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct InstanceNorm {
    /// The scale of each channel.
    pub gamma: Option<Param<Tensor<1>>>,
    /// The shift of each channel.
    pub beta: Option<Param<Tensor<1>>>,
    /// The number of channels.
    pub num_channels: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether gamma and beta are used.
    pub affine: bool,
}

impl ModuleDisplay for InstanceNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let content = content.add("num_channels", &self.num_channels).add("epsilon", &self.epsilon);
        content.add("affine", &self.affine).optional()
    }
}

impl InstanceNormConfig {
    /// The module, with gamma 1 and beta 0.
    pub fn init(&self, device: &Device) -> InstanceNorm {
        InstanceNorm {
            gamma: self.affine.then(|| Initializer::Ones.init([self.num_channels], device)),
            beta: self.affine.then(|| Initializer::Zeros.init([self.num_channels], device)),
            num_channels: self.num_channels,
            epsilon: self.epsilon,
            affine: self.affine,
        }
    }
}

impl InstanceNorm {
    /// Normalises each channel of each sample.
    ///
    /// # Shapes
    /// - input, output: `[batch_size, num_channels, ..]`
    ///
    /// # Panics
    /// If the input's number of channels is not `num_channels`, or if `affine` is true and gamma or
    /// beta is missing.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let Some(route) = Route::of("InstanceNorm", &input) else {
            let norm = burn::nn::InstanceNorm {
                gamma: self.gamma.as_ref().map(shared),
                beta: self.beta.as_ref().map(shared),
                num_channels: self.num_channels,
                epsilon: self.epsilon,
                affine: self.affine,
            };
            let params = self.gamma.as_ref().map(|gamma| gamma.val().dtype());
            return composed(params, input, |input| norm.forward(input));
        };
        let params = [&self.gamma, &self.beta].map(|param| param.as_ref().map(Param::val));
        group_norm(&route, input, params, self.affine, [self.num_channels; 2], self.epsilon)
    }
}
