//! Pooling over three axes, which Burn does not have. Fields, configs and semantics follow Burn's
//! 2-D modules.

#[path = "../../../burn-rocm/nn/src/pool/options.rs"]
mod options;

use burn::module::Module;
use burn::nn::PaddingConfig3d;
use burn::tensor::Tensor;
use burn::tensor::module::{avg_pool2d, max_pool2d};
use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions};
use burn_rocm::fused::Pool3d;

use crate::fuse::Route;
use crate::ops::pool::{AvgOp, MaxOp};
pub use options::{AvgPool3dConfig, MaxPool3dConfig};
use options::{check_strides, pads};

/// The largest element of each window, by one kernel. The gradient is one MIOpen call or one
/// kernel.
///
/// Other backends run Burn's 2-D pooling twice: over the planes, then over the depth of the result.
/// Elements and gradients are the same. Among equal elements, the first receives the gradient. A NaN
/// is its window's maximum, and among several the last receives the gradient.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::MaxPool3dConfig;
///
/// let pool = MaxPool3dConfig::new([2, 2, 2]).init();
/// let output = pool.forward(Tensor::<5>::ones([1, 3, 4, 4, 4], &device));
/// assert_eq!(output.dims(), [1, 3, 2, 2, 2]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct MaxPool3d {
    /// The window's stride.
    pub stride: [usize; 3],
    /// Depth, height and width of the window.
    pub kernel_size: [usize; 3],
    /// The padding.
    #[module(skip)]
    pub padding: PaddingConfig3d,
    /// The distance between the window's elements.
    pub dilation: [usize; 3],
    /// Whether an incomplete last window counts (ceil mode).
    pub ceil_mode: bool,
}

impl MaxPool3d {
    /// The maxima.
    ///
    /// # Shapes
    /// - input: `[batch, channels, depth_in, height_in, width_in]`
    /// - output: `[batch, channels, depth_out, height_out, width_out]`
    pub fn forward(&self, input: Tensor<5>) -> Tensor<5> {
        let (input, padding) = padded(input, &self.padding, self.kernel_size, self.stride, f32::NEG_INFINITY);
        let Self { stride, kernel_size, dilation, ceil_mode, .. } = *self;
        let pool = Pool3d { kernel_size, stride, padding, dilation, ceil_mode };
        match Route::of("MaxPool3d", &input) {
            Some(route) => {
                let op = MaxOp { pool, x: input.dims(), indexed: route.records() };
                route.unary(op, input)
            }
            None => twice(input, pool, |x, [k, s, p, d]| {
                let options = MaxPoolOptions::new(k).with_stride(s).with_padding(p).with_dilation(d);
                max_pool2d(x, options.with_ceil_mode(ceil_mode))
            }),
        }
    }
}

/// The mean of each window. Forward and backward each take one MIOpen call or one kernel.
///
/// Other backends run Burn's 2-D pooling twice: over the planes, then over the depth of the result.
///
/// If padding differs before and after an axis (`Same` with windows of an even size), the module
/// copies the input with its padding first. Without `count_include_pad`, a second pooling then finds
/// the share of each window that is in the input, as in Burn's 2-D module.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::AvgPool3dConfig;
///
/// let pool = AvgPool3dConfig::new([2, 2, 2]).init();
/// let output = pool.forward(Tensor::<5>::ones([1, 3, 4, 4, 4], &device));
/// assert_eq!(output.dims(), [1, 3, 2, 2, 2]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct AvgPool3d {
    /// The window's stride.
    pub stride: [usize; 3],
    /// Depth, height and width of the window.
    pub kernel_size: [usize; 3],
    /// The padding.
    #[module(skip)]
    pub padding: PaddingConfig3d,
    /// Whether the padding's zeros count in the mean.
    pub count_include_pad: bool,
    /// Whether an incomplete last window counts (ceil mode).
    pub ceil_mode: bool,
}

impl AvgPool3d {
    /// The means.
    ///
    /// # Shapes
    /// - input: `[batch, channels, depth_in, height_in, width_in]`
    /// - output: `[batch, channels, depth_out, height_out, width_out]`
    pub fn forward(&self, input: Tensor<5>) -> Tensor<5> {
        let padded = |input| padded(input, &self.padding, self.kernel_size, self.stride, 0.0);
        let ([_, _, depth, height, width], device, dtype) = (input.dims(), input.device(), input.dtype());
        let (input, padding) = padded(input);
        let is_copy = input.dims()[2..] != [depth, height, width];
        let means = self.means(input, padding);
        if self.count_include_pad || !is_copy {
            return means;
        }
        // The padding of a copy counts. `Same` pads by less than a window, so no share is 0.
        let (ones, padding) = padded(Tensor::ones([1, 1, depth, height, width], (&device, dtype)));
        means / self.means(ones, padding)
    }

    /// The means of an input to which this padding is still to be applied.
    fn means(&self, input: Tensor<5>, padding: [usize; 3]) -> Tensor<5> {
        let Self { stride, kernel_size, count_include_pad, ceil_mode, .. } = *self;
        let pool = Pool3d { kernel_size, stride, padding, dilation: [1; 3], ceil_mode };
        match Route::of("AvgPool3d", &input) {
            Some(route) => {
                let op = AvgOp { pool, x: input.dims(), count_include_pad };
                route.unary(op, input)
            }
            None => twice(input, pool, |x, [k, s, p, _]| {
                let options = AvgPoolOptions::new(k).with_stride(s).with_padding(p);
                let options = options.with_count_include_pad(count_include_pad);
                avg_pool2d(x, options.with_ceil_mode(ceil_mode))
            }),
        }
    }
}

/// The input, and the padding that the pooling must apply. Pads the input here, and returns a
/// padding of 0, if the padding differs before and after an axis.
fn padded(
    input: Tensor<5>,
    padding: &PaddingConfig3d,
    kernel_size: [usize; 3],
    stride: [usize; 3],
    value: f32,
) -> (Tensor<5>, [usize; 3]) {
    let dims = input.dims();
    let pairs = pads(padding, dims, kernel_size, stride);
    if pairs.iter().all(|(before, after)| before == after) {
        return (input, pairs.map(|(before, _)| before));
    }
    let (mut whole, mut inside) = (dims, dims.map(|dim| 0..dim));
    for (axis, (before, after)) in pairs.into_iter().enumerate() {
        whole[axis + 2] += before + after;
        inside[axis + 2] = before..before + dims[axis + 2];
    }
    // Burn's `pad` would fill in the backend's default dtype.
    let around = Tensor::full(whole, value, (&input.device(), input.dtype()));
    (around.slice_assign(inside, input), [0; 3])
}

/// A window's size, stride, padding and dilation, each for height and width.
type Plane = [[usize; 2]; 4];

/// A pooling over three axes as one over height and width, then one over depth.
fn twice(x: Tensor<5>, pool: Pool3d, plane: impl Fn(Tensor<4>, Plane) -> Tensor<4>) -> Tensor<5> {
    check_strides(pool.stride);
    let [batch, channels, depth, height, width] = x.dims();
    let lists = [pool.kernel_size, pool.stride, pool.padding, pool.dilation];
    let planes = x.reshape([batch, channels * depth, height, width]);
    let planes = plane(planes, lists.map(|[_, height, width]| [height, width]));
    let [_, _, height, width] = planes.dims();
    let columns = planes.reshape([batch, channels, depth, height * width]);
    // Along the other axis, the window has one element and stride 1.
    let across = [1, 1, 0, 1];
    let out = plane(columns, std::array::from_fn(|list| [lists[list][0], across[list]]));
    let depth = out.dims()[2];
    out.reshape([batch, channels, depth, height, width])
}
