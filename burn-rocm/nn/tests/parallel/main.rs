//! Data parallel training on the CPU provider with two and four devices, a thread for each. The
//! reference is one device with all samples.
#![allow(missing_docs, clippy::unwrap_used)]

mod batch_norm;
mod captured;
mod checkpoint;
mod decoder;
mod deterministic;
mod divided;
mod failures;
mod global;
mod gradients;
mod half;
mod model;
mod order;
mod overlap;
mod processes;
mod sharded;
mod tensor;
mod tied;
mod train;
mod units;
mod whole;

use burn::backend::Autodiff;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData, activation};
use burn_rocm::{Communicator, Rocm, RocmDevice};
use burn_rocm_nn::parallel::DataParallel;
use burn_rocm_nn::{LayerNorm, LayerNormConfig};
use burn_rocm_tests::again;

/// f64, so that rounding is far below what a wrong average changes.
pub(crate) type Inner = Rocm<f64>;
pub(crate) type B = Autodiff<Inner>;

/// Runs a test in processes with two and with four devices. In such a process, returns the number. If
/// `BURN_ROCM_PROVIDER` names another provider, returns the number of its devices instead.
///
/// A collective that never ends is an error after 20 seconds there.
pub(crate) fn devices(test: &str) -> Option<usize> {
    devices_with(test, &[])
}

/// Whether no other provider than the CPU device is named.
pub(crate) fn on_cpu() -> bool {
    std::env::var("BURN_ROCM_PROVIDER").map_or(true, |name| ["", "cpu"].contains(&name.as_str()))
}

/// [`devices`] with more variables.
pub(crate) fn devices_with(test: &str, more: &[(&str, &str)]) -> Option<usize> {
    const DEVICES: &str = "BURN_ROCM_CPU_DEVICES";
    if let Ok(count) = std::env::var(DEVICES) {
        return Some(count.parse().unwrap());
    }
    if !on_cpu() {
        return Some(RocmDevice::all().unwrap().len());
    }
    for count in ["2", "4"] {
        let environment =
            [(DEVICES, count), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_COLLECTIVE_TIMEOUT", "20")];
        again(&["--exact", test], &[&environment, more].concat());
    }
    None
}

/// The launches that pack a bucket. If the device's blocks have many threads, one launch packs the tensors
/// whose size is a multiple of 16 bytes, and another one packs the rest.
pub(crate) fn packing_launches(device: &RocmDevice) -> u64 {
    let device = hip::Device::get(device.index).unwrap();
    if device.info().max_threads_per_block > 1 { 2 } else { 1 }
}

/// Runs a function on each of `count` devices, in a thread for each.
pub(crate) fn on_ranks<T: Send>(count: usize, run: impl Fn(DataParallel) -> T + Sync) -> Vec<T> {
    let devices: Vec<RocmDevice> = (0..count).map(RocmDevice::new).collect();
    let communicators = Communicator::local(&devices).unwrap();
    std::thread::scope(|scope| {
        let run = &run;
        let spawn = |communicator| scope.spawn(move || run(DataParallel::new(communicator)));
        let threads: Vec<_> = communicators.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) const FEATURES: usize = 6;

/// Modules of Burn and of this crate. The biases have an odd number of elements.
#[derive(Module, Debug)]
pub(crate) struct Net<B: Backend> {
    pub(crate) first: Linear<B>,
    pub(crate) norm: LayerNorm<B>,
    pub(crate) last: Vec<Linear<B>>,
    /// Used by some samples only.
    pub(crate) extra: Vec<Linear<B>>,
}

impl<B: AutodiffBackend> Net<B> {
    /// The same parameters for the same seed, on every device.
    pub(crate) fn new(device: &B::Device, seed: usize) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let mut net = Self {
            first: linear(FEATURES, 9),
            norm: LayerNormConfig::new(9).init(device),
            last: vec![linear(9, 7), linear(7, 1)],
            extra: vec![linear(FEATURES, 1), linear(FEATURES, 1), linear(FEATURES, 1)],
        };
        let number = std::cell::Cell::new(100 * seed);
        let fill = |linear: &mut Linear<B>| {
            let drawn = |count: usize| -> Vec<f64> {
                let first = number.replace(number.get() + count);
                (first..first + count).map(|i| 0.5 * (1.7 * i as f64).sin()).collect()
            };
            let [from, to] = linear.weight.dims();
            let weight = TensorData::new(drawn(from * to), [from, to]);
            linear.weight = Param::from_data(weight, device);
            linear.bias = Some(Param::from_data(TensorData::new(drawn(to), [to]), device));
        };
        fill(&mut net.first);
        net.last.iter_mut().chain(&mut net.extra).for_each(fill);
        net
    }

    pub(crate) fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = activation::tanh(self.norm.forward(self.first.forward(x)));
        self.last.iter().fold(x, |x, linear| linear.forward(x))
    }

    /// The mean squared error of these samples of [`sample`].
    pub(crate) fn loss(&self, indices: &[usize], device: &B::Device) -> Tensor<B, 1> {
        let (x, y) = samples(indices, device);
        (self.forward(x) - y).powi_scalar(2).mean()
    }
}

/// The features and the target of a sample.
fn sample(index: usize) -> ([f64; FEATURES], f64) {
    let x = [0.7, 1.3, 2.1, 2.9, 0.3, 1.9].map(|step: f64| (index as f64 * step).sin());
    (x, x[0] * x[1] - x[4])
}

pub(crate) fn samples<B: Backend>(indices: &[usize], device: &B::Device) -> (Tensor<B, 2>, Tensor<B, 2>) {
    let (x, y): (Vec<_>, Vec<f64>) = indices.iter().map(|&index| sample(index)).unzip();
    let x = TensorData::new(x.concat(), [indices.len(), FEATURES]);
    (Tensor::from_data(x, device), Tensor::from_data(TensorData::new(y, [indices.len(), 1]), device))
}

/// The parameters, in the order of the module.
pub(crate) fn parameters<B: Backend>(module: &impl Module<B>) -> Vec<Vec<f64>> {
    struct Read(Vec<Vec<f64>>);
    impl<B: Backend> ModuleVisitor<B> for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0.push(param.val().into_data().iter::<f64>().collect());
        }
    }
    let mut read = Read(Vec::new());
    module.visit(&mut read);
    read.0
}

/// The gradients, in the order of the module.
pub(crate) fn gradients<B: AutodiffBackend>(
    module: &impl Module<B>,
    grads: &GradientsParams,
) -> Vec<Option<Vec<f64>>> {
    struct Read<'a>(&'a GradientsParams, Vec<Option<Vec<f64>>>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let grad = self.0.get::<B::InnerBackend, D>(param.id);
            self.1.push(grad.map(|grad| grad.into_data().iter::<f64>().collect()));
        }
    }
    let mut read = Read(grads, Vec::new());
    module.visit(&mut read);
    read.1
}

/// Some 2^9 sums and products of numbers near 1 make a loss and its gradients, each rounded by 2^-53
/// of it. `steps` steps may each amplify the errors before it, all together by 2^6.
pub(crate) fn limit(steps: usize) -> f64 {
    2f64.powi(9 + 6 - 53) * steps as f64
}
