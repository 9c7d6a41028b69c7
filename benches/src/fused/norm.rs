//! Norms, forward and backward.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_rocm_nn as ours;

use super::{B, Case, HALVES, converted, held, pass, step, uniform};
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

/// A module's leaves in another dtype, running statistics too.
struct Narrowed(FloatDType);

impl ModuleMapper<B> for Narrowed {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|tensor| {
            let tracked = tensor.is_require_grad();
            tensor.detach().cast(self.0).set_require_grad(tracked)
        })
    }
}

/// Batch norm in a half, forward and backward. Burn's needs its running statistics in that type too.
fn batch_norm(shape: [usize; 4], dtype: DType) -> Case {
    Case::new(format!("batch norm {shape:?} {}, forward and backward", dtype.name()), move |device| {
        let theirs = nn::BatchNormConfig::new(shape[1]).init::<B>(device).map(&mut Narrowed(dtype.into()));
        let ours = converted(ours::BatchNormConfig::new(shape[1]).init::<B>(device), dtype);
        [
            step(uniform(shape, dtype, device), move |x| theirs.forward(x)),
            step(uniform(shape, dtype, device), move |x| ours.forward(x)),
        ]
    })
}

pub(super) fn cases(rows: usize, images: usize) -> Vec<Case> {
    // Layer norm forward makes two passes over the tensor (one read, one write) and backward three
    // (two reads, one write). One more writes the ones that `backward` starts from.
    let table = [rows, 4096];
    let f32_pass = pass(table, DType::F32);
    let mut all = vec![
        layer_norm_forward(rows, 4096).moves(2.0 * f32_pass, Bar::OfCopy(0.9)),
        case!("layer norm", table, LayerNormConfig(4096)).moves(6.0 * f32_pass, Bar::OfCopy(0.9)),
        case!("layer norm", [rows * 4, 1024], LayerNormConfig(1024)),
        case!("RMS norm", [rows, 4096], RmsNormConfig(4096)),
        case!("batch norm", [images, 64, 112, 112], BatchNormConfig(64)),
        case!("batch norm", [images, 512, 7, 7], BatchNormConfig(512)),
        case!("group norm, 32 groups", [images, 128, 56, 56], GroupNormConfig(32, 128)),
        case!("group norm, 8 groups", [images, 128, 56, 56], GroupNormConfig(8, 128)),
        case!("instance norm", [images, 64, 112, 112], InstanceNormConfig(64)),
    ];
    for dtype in HALVES {
        let bytes = 6.0 * pass(table, dtype);
        all.push(case!("layer norm", table, LayerNormConfig(4096), dtype).moves(bytes, Bar::OfCopy(0.9)));
        // A channel does not fit into registers, so it is read once for its statistics and once more.
        // Forward makes three passes and backward five, and one more writes the ones.
        let shape = [images, 64, 112, 112];
        all.push(batch_norm(shape, dtype).moves(9.0 * pass(shape, dtype), Bar::OfCopy(0.9)));
    }
    all
}
