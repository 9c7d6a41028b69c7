//! Group norm.

use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Tensor};

use super::{GroupNormConfig, both, composed, shared};
use crate::fuse::{Route, primitive, refuse, wrap};
use crate::ops::norm::GroupNormOp;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, where mean and variance are taken over
/// each group of channels of each sample ([Wu and He 2018](https://arxiv.org/abs/1803.08494)).
///
/// Made by [`GroupNormConfig`]. In the forward pass, MIOpen (for 32 groups or more) or one kernel
/// of this project computes the norm, depending on `BURN_ROCM_NORM`. The gradient takes one kernel,
/// and two more that sum the parameters' gradients.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::{GroupNorm, GroupNormConfig};
///
/// let norm: GroupNorm = GroupNormConfig::new(2, 4).init(&device);
/// let output = norm.forward(Tensor::<4>::ones([2, 4, 8, 8], &device));
/// assert_eq!(output.dims(), [2, 4, 8, 8]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct GroupNorm {
    /// The scale of each channel.
    pub gamma: Option<Param<Tensor<1>>>,
    /// The shift of each channel.
    pub beta: Option<Param<Tensor<1>>>,
    /// The number of groups.
    pub num_groups: usize,
    /// The number of channels.
    pub num_channels: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether gamma and beta are used.
    pub affine: bool,
}

impl ModuleDisplay for GroupNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let content = content.add("num_groups", &self.num_groups).add("num_channels", &self.num_channels);
        content.add("epsilon", &self.epsilon).add("affine", &self.affine).optional()
    }
}

impl GroupNormConfig {
    /// The module, with gamma 1 and beta 0.
    ///
    /// # Panics
    /// If the groups do not divide the channels.
    pub fn init(&self, device: &Device) -> GroupNorm {
        self.check();
        GroupNorm {
            gamma: self.affine.then(|| Initializer::Ones.init([self.num_channels], device)),
            beta: self.affine.then(|| Initializer::Zeros.init([self.num_channels], device)),
            num_groups: self.num_groups,
            num_channels: self.num_channels,
            epsilon: self.epsilon,
            affine: self.affine,
        }
    }
}

impl GroupNorm {
    /// Normalises each group.
    ///
    /// # Shapes
    /// - input, output: `[batch_size, num_channels, ..]`
    ///
    /// # Panics
    /// If the input's number of channels is not `num_channels`, or if `affine` is true and gamma or
    /// beta is missing.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let Some(route) = Route::of("GroupNorm", &input) else {
            let norm = burn::nn::GroupNorm {
                gamma: self.gamma.as_ref().map(shared),
                beta: self.beta.as_ref().map(shared),
                num_groups: self.num_groups,
                num_channels: self.num_channels,
                epsilon: self.epsilon,
                affine: self.affine,
            };
            let params = self.gamma.as_ref().map(|gamma| gamma.val().dtype());
            return composed(params, input, |input| norm.forward(input));
        };
        let params = [&self.gamma, &self.beta].map(|param| param.as_ref().map(Param::val));
        group_norm(&route, input, params, self.affine, [self.num_channels, self.num_groups], self.epsilon)
    }
}

/// Runs the fused op. `[channels, groups]` are the module's.
pub(super) fn group_norm<const D: usize>(
    route: &Route,
    input: Tensor<D>,
    [gamma, beta]: [Option<Tensor<1>>; 2],
    affine: bool,
    [channels, groups]: [usize; 2],
    epsilon: f64,
) -> Tensor<D> {
    let dims = input.dims();
    if dims.get(1) != Some(&channels) {
        refuse("group_norm", format!("an input of shape [batch, {channels}, ..]"), format!("{dims:?}"));
    }
    let op = GroupNormOp { groups, epsilon };
    let x = primitive(input);
    wrap(match both(affine, gamma, beta) {
        Some([gamma, beta]) => route.apply(op, [x, primitive(gamma), primitive(beta)]).0,
        None => route.apply(op, [x]).0,
    })
}
