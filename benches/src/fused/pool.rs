//! Pooling over three axes, beside Burn's 2-D pooling twice.

use burn::tensor::module::{avg_pool2d, max_pool2d};
use burn::tensor::{DType, Tensor};
use burn_rocm_nn::{AvgPool3dConfig, MaxPool3dConfig};

use super::{B, Case};

/// Pools windows of two elements along each axis: over height and width, then over depth.
fn twice(x: Tensor<B, 5>, pool: impl Fn(Tensor<B, 4>, [usize; 2]) -> Tensor<B, 4>) -> Tensor<B, 5> {
    let [batch, channels, depth, height, width] = x.dims();
    let planes = pool(x.reshape([batch, channels * depth, height, width]), [2, 2]);
    let columns = planes.reshape([batch, channels, depth, height / 2 * (width / 2)]);
    pool(columns, [2, 1]).reshape([batch, channels, depth / 2, height / 2, width / 2])
}

pub(super) fn cases(images: usize) -> Vec<Case> {
    let shape = [images.div_ceil(8), 64, 16, 56, 56];
    vec![
        Case::unary(
            "3-D max pooling",
            shape,
            DType::F32,
            |x| twice(x, |x, size| max_pool2d(x, size, size, [0, 0], [1, 1], false)),
            |x| MaxPool3dConfig::new([2; 3]).init().forward(x),
        ),
        Case::unary(
            "3-D average pooling",
            shape,
            DType::F32,
            |x| twice(x, |x, size| avg_pool2d(x, size, size, [0, 0], true, false)),
            |x| AvgPool3dConfig::new([2; 3]).init().forward(x),
        ),
    ]
}
