//! The configurations of the layers. Both versions of Burn compile this file.

use burn::config::Config;
use burn::module::Initializer;
use burn::nn::conv::Conv2dConfig;
use burn::nn::{LinearConfig, LinearLayout, PaddingConfig2d};

use super::Act;
use crate::fuse::refuse;

/// Configuration of [`ConvAct`](super::ConvAct): Burn's `Conv2dConfig` and an activation.
#[derive(Config, Debug)]
pub struct ConvActConfig {
    /// The numbers of input and output channels.
    pub channels: [usize; 2],
    /// Height and width of the window.
    pub kernel_size: [usize; 2],
    /// The activation.
    pub activation: Act,
    /// The window's stride.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// The distance between the window's elements.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// The number of groups of channels.
    #[config(default = "1")]
    pub groups: usize,
    /// The padding.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether there is a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How to initialise the parameters.
    #[config(default = "Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }")]
    pub initializer: Initializer,
}

impl ConvActConfig {
    /// Burn's layer.
    pub(super) fn conv(&self) -> Conv2dConfig {
        Conv2dConfig::new(self.channels, self.kernel_size)
            .with_stride(self.stride)
            .with_dilation(self.dilation)
            .with_groups(self.groups)
            .with_padding(self.padding.clone())
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
    }
}

/// The padding of an input of `dims`, if it is the same before and after each axis.
pub(super) fn even_padding(
    padding: &PaddingConfig2d,
    [_, _, height, width]: [usize; 4],
    kernel_size: [usize; 2],
    stride: [usize; 2],
) -> Option<[usize; 2]> {
    match *padding {
        PaddingConfig2d::Valid => Some([0, 0]),
        PaddingConfig2d::Explicit(top, left, bottom, right) => {
            (top == bottom && left == right).then_some([top, left])
        }
        PaddingConfig2d::Same => {
            if stride.contains(&0) {
                refuse("conv_act", "a stride of at least 1", format!("{stride:?}"));
            }
            let whole = |axis: usize, size: usize| {
                let steps = size.div_ceil(stride[axis]).saturating_sub(1);
                (steps * stride[axis] + kernel_size[axis]).saturating_sub(size)
            };
            let whole = [whole(0, height), whole(1, width)];
            whole.iter().all(|whole| whole % 2 == 0).then_some(whole.map(|whole| whole / 2))
        }
    }
}

/// Configuration of [`LinearAct`](super::LinearAct): Burn's `LinearConfig` and an activation.
#[derive(Config, Debug)]
pub struct LinearActConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the output.
    pub d_output: usize,
    /// The activation.
    pub activation: Act,
    /// Whether there is a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How to initialise the parameters.
    #[config(default = "Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }")]
    pub initializer: Initializer,
    /// The weight's layout in memory.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl LinearActConfig {
    /// Burn's layer.
    pub(super) fn linear(&self) -> LinearConfig {
        LinearConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout)
    }
}

/// Configuration of [`SwiGlu`](super::SwiGlu).
#[derive(Config, Debug)]
pub struct SwiGluConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the output.
    pub d_output: usize,
    /// Whether the linear layers have a bias.
    #[config(default = false)]
    pub bias: bool,
    /// How to initialise the parameters.
    #[config(default = "Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }")]
    pub initializer: Initializer,
    /// The weights' layout in memory.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl SwiGluConfig {
    /// Each of Burn's two layers.
    pub(super) fn linear(&self) -> LinearConfig {
        LinearConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout)
    }
}
