//! Norms, forward and backward.

use burn::nn;
use burn::tensor::DType;
use burn_rocm_nn as ours;

use super::{B, Case, HALVES, converted, held, step, uniform};
use crate::gpu::cases::Bar;

/// Forward and backward of a module of either crate, with the parameters' gradients.
macro_rules! case {
    ($name:literal, $shape:expr, $config:ident($($size:expr),*)) => {
        case!($name, $shape, $config($($size),*), DType::F32)
    };
    ($name:literal, $shape:expr, $config:ident($($size:expr),*), $dtype:expr) => {{
        let (shape, dtype): (_, DType) = ($shape, $dtype);
        let name = format!("{} {shape:?} {}, forward and backward", $name, dtype.name());
        Case::new(name, move |device| {
            let theirs = converted(nn::$config::new($($size),*).init::<B>(device), dtype);
            let ours = converted(ours::$config::new($($size),*).init::<B>(device), dtype);
            [
                step(uniform(shape, dtype, device), move |x| theirs.forward(x)),
                step(uniform(shape, dtype, device), move |x| ours.forward(x)),
            ]
        })
    }};
}

/// Layer norm forward, without autodiff.
fn layer_norm_forward(rows: usize, columns: usize) -> Case {
    Case::new(format!("layer norm [{rows}, {columns}] f32, forward"), move |device| {
        let x = uniform([rows, columns], DType::F32, device).inner();
        let theirs = nn::LayerNormConfig::new(columns).init(device);
        let ours = ours::LayerNormConfig::new(columns).init(device);
        let y = x.clone();
        [held(device, move || theirs.forward(x.clone())), held(device, move || ours.forward(y.clone()))]
    })
}

pub(super) fn cases(rows: usize, images: usize) -> Vec<Case> {
    // The bytes of one pass over the tensor. Forward makes two passes (one read, one write) and
    // backward three (two reads, one write). One more writes the ones that `backward` starts from.
    let pass = rows as f64 * 4096.0 * 4.0;
    let mut all = vec![
        layer_norm_forward(rows, 4096).moves(2.0 * pass, Bar::OfCopy(0.9)),
        case!("layer norm", [rows, 4096], LayerNormConfig(4096)).moves(6.0 * pass, Bar::OfCopy(0.9)),
        case!("layer norm", [rows * 4, 1024], LayerNormConfig(1024)),
        case!("RMS norm", [rows, 4096], RmsNormConfig(4096)),
        case!("batch norm", [images, 64, 112, 112], BatchNormConfig(64)),
        case!("batch norm", [images, 512, 7, 7], BatchNormConfig(512)),
        case!("group norm, 32 groups", [images, 128, 56, 56], GroupNormConfig(32, 128)),
        case!("group norm, 8 groups", [images, 128, 56, 56], GroupNormConfig(8, 128)),
        case!("instance norm", [images, 64, 112, 112], InstanceNormConfig(64)),
    ];
    all.extend(HALVES.map(|dtype| case!("layer norm", [rows, 4096], LayerNormConfig(4096), dtype)));
    all
}
