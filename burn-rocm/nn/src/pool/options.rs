//! The options of pooling over three axes, and how they are displayed. Both versions of Burn
//! compile this file.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, ModuleDisplay};
use burn::nn::PaddingConfig3d;

use super::{AvgPool3d, MaxPool3d};
use crate::fuse::refuse;

/// Configuration of [`MaxPool3d`].
#[derive(Config, Debug)]
pub struct MaxPool3dConfig {
    /// Depth, height and width of the window.
    pub kernel_size: [usize; 3],
    /// The window's stride.
    #[config(default = "kernel_size")]
    pub strides: [usize; 3],
    /// The padding. If the total padding of `Same` is odd, the end of the axis gets one more than
    /// the start.
    #[config(default = "PaddingConfig3d::Valid")]
    pub padding: PaddingConfig3d,
    /// The distance between the window's elements.
    #[config(default = "[1, 1, 1]")]
    pub dilation: [usize; 3],
    /// Whether an incomplete last window counts (ceil mode).
    #[config(default = "false")]
    pub ceil_mode: bool,
}

impl MaxPool3dConfig {
    /// The module.
    pub fn init(&self) -> MaxPool3d {
        let Self { kernel_size, strides: stride, padding, dilation, ceil_mode } = self.clone();
        MaxPool3d { stride, kernel_size, padding, dilation, ceil_mode }
    }
}

impl ModuleDisplay for MaxPool3d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("kernel_size", &format!("{:?}", self.kernel_size))
            .add("stride", &format!("{:?}", self.stride))
            .add_debug_attribute("padding", &self.padding)
            .add("dilation", &format!("{:?}", self.dilation))
            .add("ceil_mode", &self.ceil_mode)
            .optional()
    }
}

/// Configuration of [`AvgPool3d`].
#[derive(Config, Debug)]
pub struct AvgPool3dConfig {
    /// Depth, height and width of the window.
    pub kernel_size: [usize; 3],
    /// The window's stride.
    #[config(default = "kernel_size")]
    pub strides: [usize; 3],
    /// The padding. If the total padding of `Same` is odd, the end of the axis gets one more than
    /// the start.
    #[config(default = "PaddingConfig3d::Valid")]
    pub padding: PaddingConfig3d,
    /// Whether the padding's zeros count in the mean.
    #[config(default = "true")]
    pub count_include_pad: bool,
    /// Whether an incomplete last window counts (ceil mode).
    #[config(default = "false")]
    pub ceil_mode: bool,
}

impl AvgPool3dConfig {
    /// The module.
    pub fn init(&self) -> AvgPool3d {
        let Self { kernel_size, strides: stride, padding, count_include_pad, ceil_mode } = self.clone();
        AvgPool3d { stride, kernel_size, padding, count_include_pad, ceil_mode }
    }
}

impl ModuleDisplay for AvgPool3d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("kernel_size", &format!("{:?}", self.kernel_size))
            .add("stride", &format!("{:?}", self.stride))
            .add_debug_attribute("padding", &self.padding)
            .add("count_include_pad", &self.count_include_pad)
            .add("ceil_mode", &self.ceil_mode)
            .optional()
    }
}

/// The padding before and after each axis, for an input of shape `dims`.
pub(super) fn pads(
    padding: &PaddingConfig3d,
    dims: [usize; 5],
    kernel_size: [usize; 3],
    stride: [usize; 3],
) -> [(usize, usize); 3] {
    match *padding {
        PaddingConfig3d::Valid => [(0, 0); 3],
        PaddingConfig3d::Explicit(depth, height, width) => [depth, height, width].map(|pad| (pad, pad)),
        PaddingConfig3d::Same => {
            check_strides(stride);
            std::array::from_fn(|axis| {
                let steps = dims[axis + 2].div_ceil(stride[axis]).saturating_sub(1);
                let whole = (steps * stride[axis] + kernel_size[axis]).saturating_sub(dims[axis + 2]);
                (whole / 2, whole - whole / 2)
            })
        }
    }
}

/// Checks that the strides are at least 1, as the fused ops do.
pub(super) fn check_strides(stride: [usize; 3]) {
    if stride.contains(&0) {
        refuse("pool3d", "strides of at least 1", format!("{stride:?}"));
    }
}
