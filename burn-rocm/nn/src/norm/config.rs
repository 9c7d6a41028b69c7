//! The configurations of the norms. Both versions of Burn compile this file.

use burn::config::Config;

use crate::fuse::refuse;

/// Configuration of [`LayerNorm`](super::LayerNorm).
#[derive(Config, Debug)]
pub struct LayerNormConfig {
    /// The size of the last axis.
    pub d_model: usize,
    /// Added to the variance. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether there is a beta. Default: true
    #[config(default = true)]
    pub bias: bool,
}

/// Configuration of [`GroupNorm`](super::GroupNorm).
#[derive(Config, Debug)]
pub struct GroupNormConfig {
    /// The number of groups, which divides the channels.
    pub num_groups: usize,
    /// The number of channels.
    pub num_channels: usize,
    /// Added to the variance. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether there are gamma and beta, with one value for each channel. Default: `true`
    #[config(default = true)]
    pub affine: bool,
}

impl GroupNormConfig {
    /// Panics if the groups do not divide the channels.
    pub(super) fn check(&self) {
        let Self { num_groups, num_channels, .. } = *self;
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            let expected = format!("groups that divide {num_channels} channels");
            refuse("GroupNormConfig", expected, num_groups.to_string());
        }
    }
}

/// Configuration of [`InstanceNorm`](super::InstanceNorm).
#[derive(Config, Debug)]
pub struct InstanceNormConfig {
    /// The number of channels.
    pub num_channels: usize,
    /// Added to the variance. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether there are gamma and beta, with one value for each channel. Default: `true`
    #[config(default = true)]
    pub affine: bool,
}

/// Configuration of [`RmsNorm`](super::RmsNorm).
#[derive(Config, Debug)]
pub struct RmsNormConfig {
    /// The size of the last axis.
    pub d_model: usize,
    /// Added to the mean of squares. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
}

impl RmsNormConfig {
    /// Panics if epsilon is not positive.
    pub(super) fn check(&self) {
        let epsilon = self.epsilon;
        if epsilon.is_nan() || epsilon <= 0.0 {
            refuse("RmsNormConfig", "a positive epsilon", epsilon.to_string());
        }
    }
}
