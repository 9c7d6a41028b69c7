//! Norms, forward and backward.

use burn::module::Param;
use burn::nn;
use burn::tensor::{Distribution, Tensor};
use burn_rocm::RocmDevice;
use burn_rocm_nn as ours;

use super::{B, Case};
use crate::gpu::cases::Bar;

/// Forward and backward of a module made of either crate, the parameters' gradients too.
macro_rules! case {
    ($name:literal, $shape:expr, $config:ident($($size:expr),*)) => {{
        let shape = $shape;
        Case::new(format!("{} {shape:?} f32, forward and backward", $name), move |device| {
            [
                steps(shape, device, {
                    let module = nn::$config::new($($size),*).init::<B>(device);
                    move |x| module.forward(x)
                }),
                steps(shape, device, {
                    let module = ours::$config::new($($size),*).init::<B>(device);
                    move |x| module.forward(x)
                }),
            ]
        })
    }};
}

/// Forward alone, without autodiff's graph.
fn layer_norm_forward(rows: usize, columns: usize) -> Case {
    Case::new(format!("layer norm [{rows}, {columns}] f32, forward"), move |device| {
        let x = Tensor::<B, 2>::random([rows, columns], Distribution::Uniform(-1.0, 1.0), device).inner();
        let theirs = nn::LayerNormConfig::new(columns).init(device);
        let ours = ours::LayerNormConfig::new(columns).init(device);
        let y = x.clone();
        [Box::new(move || drop(theirs.forward(x.clone()))), Box::new(move || drop(ours.forward(y.clone())))]
    })
}

fn steps<const D: usize>(
    shape: [usize; D],
    device: &RocmDevice,
    forward: impl Fn(Tensor<B, D>) -> Tensor<B, D> + 'static,
) -> Box<dyn FnMut()> {
    let x = Param::from_tensor(Tensor::<B, D>::random(shape, Distribution::Uniform(-1.0, 1.0), device));
    Box::new(move || drop(forward(x.val()).backward()))
}

pub(super) fn cases(rows: usize, images: usize) -> Vec<Case> {
    // A pass over the table. Forward reads and writes one, backward reads two and writes one; the gradient that `backward` starts
    // from, ones, is written too.
    let pass = rows as f64 * 4096.0 * 4.0;
    vec![
        layer_norm_forward(rows, 4096).moves(2.0 * pass, Bar::OfCopy(0.9)),
        case!("layer norm", [rows, 4096], LayerNormConfig(4096)).moves(6.0 * pass, Bar::OfCopy(0.9)),
        case!("layer norm", [rows * 4, 1024], LayerNormConfig(1024)),
        case!("RMS norm", [rows, 4096], RmsNormConfig(4096)),
        case!("batch norm", [images, 64, 112, 112], BatchNormConfig(64)),
        case!("batch norm", [images, 512, 7, 7], BatchNormConfig(512)),
        case!("group norm, 32 groups", [images, 128, 56, 56], GroupNormConfig(32, 128)),
        case!("group norm, 8 groups", [images, 128, 56, 56], GroupNormConfig(8, 128)),
        case!("instance norm", [images, 64, 112, 112], InstanceNormConfig(64)),
    ]
}
