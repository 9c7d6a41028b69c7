//! Training steps of ResNet-18 and of a transformer with Burn 0.22.1's own modules, and with
//! burn-rocm-nn's for Burn 0.22. The models, weights, batches and timing are those of `benches
//! --train`. Prints the time of each, and the losses of some steps to compare with those of the
//! other Burn and of PyTorch.

// `models/nets.rs` is compiled once for each set of modules.
#![allow(clippy::duplicate_mod)]

mod models;

#[path = "../../../benches/src/gpu/models/numbers.rs"]
mod numbers;

use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use clap::Parser;

use models::{Trained, fused, stock};
use numbers::numbers;

/// Steps before the timed ones.
const FIRST: usize = 21;
/// The steps, from 0, whose losses are printed.
const LOSSES: [usize; 4] = [0, 1, 5, 20];
const LEARNING_RATE: f64 = 1e-4;

/// Times training steps of Burn 0.22.1's own modules and of burn-rocm-nn's on `Device::rocm(0)`.
#[derive(Parser)]
struct Options {
    /// The number of rounds, whose median is printed.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// A batch of one, to try the program on any device.
    #[arg(long)]
    shrink: bool,
    /// Runs the models whose names contain this text.
    #[arg(long, default_value = "")]
    filter: String,
}

/// Fills the weights with numbers, and every bias with zeros.
struct Fill {
    series: usize,
}

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D < 2 {
            let is_scale = param.to_data().iter::<f32>().all(|value| value == 1.0);
            let zero = |tensor: Tensor<D>| {
                let grad = tensor.is_require_grad();
                tensor.zeros_like().set_require_grad(grad)
            };
            return if is_scale { param } else { param.map(zero) };
        }
        self.series += 1;
        let series = self.series;
        param.map(|tensor| {
            let dims = tensor.dims();
            let inputs: usize = if D == 2 { dims[0] } else { dims[1..].iter().product() };
            let data = numbers(&dims, series, 1.0 / (inputs as f64).sqrt());
            Tensor::from_data(data, &tensor.device()).require_grad()
        })
    }
}

fn train<M: Trained>(
    name: &str,
    size: usize,
    plain: &Device,
    options: &Options,
    mut update: impl FnMut(M, GradientsParams) -> M,
) {
    if !name.contains(&options.filter) {
        return;
    }
    let device = plain.clone().autodiff();
    let batch = M::batch(size, &device);
    // Each step takes the state out, so that the optimizer is the sole owner of the parameters.
    let mut state = Some(M::new(&device).map(&mut Fill { series: 0 }));
    let mut losses = Vec::new();
    let mut step = || {
        let Some(model) = state.take() else { return };
        let loss = model.loss(batch.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        if losses.len() < FIRST {
            losses.push(loss.inner());
        }
        state = Some(update(model, gradients));
    };
    let wait = || plain.sync().expect("the device works");
    let mut timed = |calls: usize| {
        wait();
        let start = Instant::now();
        (0..calls).for_each(|_| step());
        wait();
        start.elapsed().as_secs_f64() / calls as f64
    };
    // The first steps compile kernels and let the libraries choose their algorithms.
    let once = (0..FIRST).map(|_| timed(1)).fold(f64::MAX, f64::min);
    // A round takes about a second, so that its start and end hardly count.
    let calls = (1.0 / once.max(1e-7)).ceil().clamp(4.0, 1000.0) as usize;
    let mut times: Vec<f64> = (0..options.rounds.max(1)).map(|_| timed(calls)).collect();
    times.sort_by(f64::total_cmp);
    let [least, median, most] = [0, times.len() / 2, times.len() - 1].map(|at| times[at] * 1e3);
    println!("{name}: {median:.2} ms ({least:.2} to {most:.2}, {calls} steps a round)");
    for at in LOSSES {
        println!("  loss {at}: {}", losses[at].clone().into_scalar::<f32>());
    }
}

/// Updates a model by Burn's Adam.
fn burn_adam<M: Module>() -> impl FnMut(M, GradientsParams) -> M {
    let mut adam = burn::optim::AdamConfig::new().init();
    move |model, gradients| adam.step(LEARNING_RATE, model, gradients)
}

/// Updates a model by burn-rocm-nn's Adam.
fn fused_adam<M: Module>() -> impl FnMut(M, GradientsParams) -> M {
    let mut adam = burn_rocm_nn::optim::AdamConfig::new().init();
    move |model, gradients| adam.step(LEARNING_RATE, model, gradients)
}

fn main() {
    let options = Options::parse();
    let device = Device::rocm(0);
    let (images, sequences) = if options.shrink { (1, 1) } else { (64, 16) };
    let [resnet, transformer] = [("ResNet-18", images), ("transformer", sequences)]
        .map(|(model, batch)| (format!("{model} Adam step, batch {batch}"), batch));
    let by_nn = |name: &str| format!("{name}, burn-rocm-nn");
    train::<stock::ResNet18>(&resnet.0, resnet.1, &device, &options, burn_adam());
    train::<stock::Transformer>(&transformer.0, transformer.1, &device, &options, burn_adam());
    train::<fused::ResNet18>(&by_nn(&resnet.0), resnet.1, &device, &options, fused_adam());
    train::<fused::Transformer>(&by_nn(&transformer.0), transformer.1, &device, &options, fused_adam());
}
