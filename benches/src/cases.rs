//! The cases of the CPU device, generic over the backend.

use crate::Options;
use crate::median::median;
use crate::table::Row;
use burn::backend::Autodiff;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Distribution, Int, Tensor, activation};
use burn_backend::ops::{AttentionModuleOptions, ConvOptions};
use burn_backend::{Backend, TensorMetadata};
use burn_rocm_examples::model::{Kind, Model};
use std::time::Instant;

pub(crate) type Ours = burn_rocm::Rocm;
pub(crate) type Peer = burn_flex::Flex;

/// The median seconds of two bodies that take turns.
pub(crate) fn compare(options: &Options, mut ours: impl FnMut(), mut peer: impl FnMut()) -> (f64, f64) {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..options.warmup + options.iterations {
        for (side, body) in [&mut ours as &mut dyn FnMut(), &mut peer].into_iter().enumerate() {
            let start = Instant::now();
            body();
            if round >= options.warmup {
                times[side].push(start.elapsed().as_secs_f64());
            }
        }
    }
    let [ours, peer] = times.map(|times| median(times).expect("a round"));
    (ours, peer)
}

pub(crate) fn sync<B: Backend>(device: &B::Device) {
    B::sync(device).expect("the device finishes");
}

/// A row that runs the same generic body on both backends. `$setup` makes the state; `$body` is
/// timed, with a sync.
macro_rules! row {
    ($options:expr, $rows:expr, $case:expr, $bar:expr, $setup:ident, $body:ident $(, $arg:expr)*) => {{
        let (device, peer_device) = (Default::default(), Default::default());
        let a = $setup::<Ours>(&device $(, $arg)*);
        let b = $setup::<Peer>(&peer_device $(, $arg)*);
        let (ours, peer) = compare(
            $options,
            || { $body::<Ours>(&a $(, $arg)*); sync::<Ours>(&device) },
            || { $body::<Peer>(&b $(, $arg)*); sync::<Peer>(&peer_device) },
        );
        let row = Row { case: $case.to_string(), ours, peer: Some(peer), bar: $bar };
        eprintln!("{}: {:.2}", row.case, ours / peer);
        $rows.push(row);
    }};
}

fn pair<B: Backend>(device: &B::Device, n: usize) -> [Tensor<B, 2>; 2] {
    [(); 2].map(|()| Tensor::random([n, n], Distribution::Uniform(-1.0, 1.0), device))
}

fn product<B: Backend>([a, b]: &[Tensor<B, 2>; 2], _: usize) {
    let _ = a.clone().matmul(b.clone());
}

pub(crate) fn matmul(options: &Options, rows: &mut Vec<Row>) {
    for n in [512, 1024] {
        row!(options, rows, format!("matmul {n} f32"), 1.05, pair, product, n);
    }
}

/// Elements of the element-wise cases.
const ELEMENTS: usize = 16 << 20;

fn long<B: Backend>(device: &B::Device) -> [Tensor<B, 1>; 2] {
    [(); 2].map(|()| Tensor::random([ELEMENTS], Distribution::Uniform(-1.0, 1.0), device))
}

fn add<B: Backend>([a, b]: &[Tensor<B, 1>; 2]) {
    let _ = a.clone() + b.clone();
}

fn gelu<B: Backend>([a, _]: &[Tensor<B, 1>; 2]) {
    let _ = activation::gelu(a.clone());
}

fn exp<B: Backend>([a, _]: &[Tensor<B, 1>; 2]) {
    let _ = a.clone().exp();
}

pub(crate) fn elementwise(options: &Options, rows: &mut Vec<Row>) {
    row!(options, rows, "add 16 M f32", 0.8, long, add);
    row!(options, rows, "gelu 16 M f32", 0.8, long, gelu);
    row!(options, rows, "exp 16 M f32", 0.8, long, exp);
}

fn total<B: Backend>([a, _]: &[Tensor<B, 2>; 2], _: usize) {
    let _ = a.clone().sum();
}

fn total_rows<B: Backend>([a, _]: &[Tensor<B, 2>; 2], _: usize) {
    let _ = a.clone().sum_dim(1);
}

fn total_columns<B: Backend>([a, _]: &[Tensor<B, 2>; 2], _: usize) {
    let _ = a.clone().sum_dim(0);
}

pub(crate) fn reduce(options: &Options, rows: &mut Vec<Row>) {
    row!(options, rows, "sum 4096x4096 f32", 0.8, pair, total, 4096);
    row!(options, rows, "sum_dim 1 4096x4096 f32", 0.8, pair, total_rows, 4096);
    row!(options, rows, "sum_dim 0 4096x4096 f32", 0.8, pair, total_columns, 4096);
}

fn soft<B: Backend>([a, _]: &[Tensor<B, 2>; 2], _: usize) {
    let _ = activation::softmax(a.clone(), 1);
}

pub(crate) fn softmax(options: &Options, rows: &mut Vec<Row>) {
    row!(options, rows, "softmax 4096x4096 f32", 0.8, pair, soft, 4096);
}

/// Queries, keys and values `[1, heads, sequence, width]`, stored as in models:
/// `[1, sequence, heads, width]`.
fn heads<B: Backend>(
    device: &B::Device,
    [heads, queries, keys, width]: [usize; 4],
    _: bool,
) -> [Tensor<B, 4>; 3] {
    [queries, keys, keys].map(|length| {
        let shape = [1, length, heads, width];
        Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), device).swap_dims(1, 2)
    })
}

fn attend<B: Backend>(inputs: &[Tensor<B, 4>; 3], _: [usize; 4], is_causal: bool) {
    let [q, k, v] = inputs.clone().map(|t| t.into_primitive().tensor());
    let options = AttentionModuleOptions { is_causal, ..Default::default() };
    let _ = B::attention(q, k, v, None, None, options);
}

pub(crate) fn attention(options: &Options, rows: &mut Vec<Row>) {
    for (shape, causal) in [
        ([8, 64, 64, 64], false),
        ([8, 256, 256, 64], false),
        ([8, 1024, 1024, 64], false),
        ([8, 1024, 1024, 64], true),
        ([4, 512, 512, 128], true),
        ([8, 1, 1024, 64], false),
        ([8, 16, 1024, 64], true),
    ] {
        let [count, queries, keys, width] = shape;
        let kind = if causal { ", causal" } else { "" };
        let case = format!("attention {count} heads, {queries} x {keys} x {width} f32{kind}");
        row!(options, rows, case, 1.0, heads, attend, shape, causal);
    }
}

fn chain<B: Backend>([a, b]: &[Tensor<B, 2>; 2], _: usize) {
    let mut kept = vec![a.clone()];
    for i in 0..1000 {
        kept.push(kept[i].clone() + b.clone());
    }
}

pub(crate) fn overhead(options: &Options, rows: &mut Vec<Row>) {
    // There is no bar, because only a GPU shows what a launch costs compared with such a small op.
    row!(options, rows, "1000 additions of 32x32 f32, results kept", f64::INFINITY, pair, chain, 32);
}

/// The tensors of a 3x3 convolution of the example CNN at batch 128: input, weights, gradient of
/// the output.
fn layer<B: Backend>(device: &B::Device, [from, to, size]: [usize; 3]) -> [Tensor<B, 4>; 3] {
    [[128, from, size, size], [to, from, 3, 3], [128, to, size, size]]
        .map(|shape| Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), device))
}

fn forward<B: Backend>([x, w, _]: &[Tensor<B, 4>; 3], _: [usize; 3]) {
    let out = B::conv2d(
        x.clone().into_primitive().tensor(),
        w.clone().into_primitive().tensor(),
        None,
        ConvOptions::new([1, 1], [1, 1], [1, 1], 1),
    );
    assert_eq!(out.shape().num_dims(), 4);
}

fn backward<B: Backend>([x, w, g]: &[Tensor<B, 4>; 3], _: [usize; 3]) {
    let [x, w, g] = [x, w, g].map(|t| t.clone().into_primitive().tensor());
    let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    let _ = B::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options.clone());
    let _ = B::conv2d_weight_backward(x, w, g, options);
}

pub(crate) fn conv(options: &Options, rows: &mut Vec<Row>) {
    for [from, to, size] in [[1, 32, 28], [32, 64, 14]] {
        let case = format!("conv2d {from}->{to} 3x3 on {size}x{size}, batch 128");
        row!(options, rows, format!("{case}, forward"), 0.5, layer, forward, [from, to, size]);
        row!(options, rows, format!("{case}, backward"), 0.5, layer, backward, [from, to, size]);
    }
}

/// One training step: forward, loss, backward, Adam.
pub(crate) fn step<B: AutodiffBackend>(
    model: Model<B>,
    optimizer: &mut impl Optimizer<Model<B>, B>,
    (images, labels): (Tensor<B, 3>, Tensor<B, 1, Int>),
) -> Model<B> {
    let logits = model.forward(images);
    let loss = burn::nn::loss::CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels);
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    optimizer.step(1e-3, model, grads)
}

/// A random batch of 28x28 images with labels.
pub(crate) fn batch<B: Backend>(device: &B::Device, size: usize) -> (Tensor<B, 3>, Tensor<B, 1, Int>) {
    let images = Tensor::random([size, 28, 28], Distribution::Normal(0.0, 1.0), device);
    let labels = Tensor::<B, 1, Int>::arange(0..size as i64, device).remainder_scalar(10);
    (images, labels)
}

/// A closure that holds a training loop's state. Each call takes one step and waits for it.
fn trainer<B: AutodiffBackend>(kind: Kind, size: usize) -> impl FnMut() {
    let device = B::Device::default();
    let data = batch::<B>(&device, size);
    let mut model = Some(kind.init::<B>(&device));
    let mut optimizer = AdamConfig::new().init();
    move || {
        model = model.take().map(|model| step(model, &mut optimizer, data.clone()));
        sync::<B>(&device);
    }
}

pub(crate) fn train(options: &Options, rows: &mut Vec<Row>) {
    for (kind, bar) in [(Kind::Mlp, 0.8), (Kind::Cnn, 0.5)] {
        let (ours, peer) =
            compare(options, trainer::<Autodiff<Ours>>(kind, 128), trainer::<Autodiff<Peer>>(kind, 128));
        let case = format!("{} Adam step, batch 128", kind.name());
        eprintln!("{case}: {:.2}", ours / peer);
        rows.push(Row { case, ours, peer: Some(peer), bar });
    }
}
