//! Times a training step of an MLP (784-512-256-10, SGD) as Burn runs it beside the replay of its
//! captured graph, and compares the bits of both networks afterwards.
//!
//! `replay [BATCH]...`, by default 64 and 4096.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use burn_autodiff::Autodiff;
use burn_backend::ops::{ActivationOps, FloatTensorOps};
use burn_backend::{AutodiffBackend, Backend, ExecutionError, TensorData, TensorMetadata};
use burn_rocm_022::{BurnDevice, Rocm, RocmDevice, RocmTensor};
use burn_std::Slice;

type Tracked = Autodiff<Rocm>;

const WIDTHS: [usize; 4] = [784, 512, 256, 10];
const RATE: f32 = 0.01;
const ROUNDS: usize = 7;
const STEPS: usize = 200;

fn device() -> BurnDevice {
    #[allow(clippy::useless_conversion, reason = "with the feature `dispatch` Burn's device is another type")]
    RocmDevice::new(0).into()
}

/// Numbers in [-scale, scale).
fn tensor(shape: [usize; 2], scale: f32, seed: u32) -> RocmTensor {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 * 2.0 - 1.0) * scale
    };
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| next()).collect();
    Rocm::float_from_data(TensorData::new(values, shape), &device())
}

/// A network and a batch. The parameters stay in their memory, so that a graph finds them.
struct Training {
    parameters: Vec<Option<RocmTensor>>,
    x: RocmTensor,
    y: RocmTensor,
}

impl Training {
    fn new(batch: usize) -> Self {
        let layers = WIDTHS.windows(2).zip(1..);
        let parameters = layers.flat_map(|(widths, seed)| {
            let scale = (widths[0] as f32).recip().sqrt();
            [tensor([widths[0], widths[1]], scale, seed), tensor([1, widths[1]], scale, seed + 10)]
        });
        let parameters = parameters.map(Some).collect();
        let [inputs, .., outputs] = WIDTHS;
        Self { parameters, x: tensor([batch, inputs], 1.0, 21), y: tensor([batch, outputs], 1.0, 22) }
    }

    /// Forward, mean squared error, backward, and SGD in place.
    fn step(&mut self) {
        let own = |parameter: &Option<RocmTensor>| parameter.clone().expect("taken only in `update`");
        let leaf = |parameter| Tracked::float_set_require_grad(Tracked::from_inner(own(parameter)), true);
        let leaves: Vec<_> = self.parameters.iter().map(leaf).collect();
        let mut x = Tracked::from_inner(self.x.clone());
        for (number, layer) in leaves.chunks(2).enumerate() {
            x = Tracked::float_add(Tracked::float_matmul(x, layer[0].clone()), layer[1].clone());
            if number + 2 < WIDTHS.len() {
                x = Tracked::relu(x);
            }
        }
        let error = Tracked::float_sub(x, Tracked::from_inner(self.y.clone()));
        let loss = Tracked::float_mean(Tracked::float_mul(error.clone(), error));
        let mut gradients = Tracked::backward(loss);
        for (parameter, leaf) in self.parameters.iter_mut().zip(leaves) {
            let gradient = Tracked::grad_remove(&leaf, &mut gradients).expect("each parameter has one");
            drop(leaf);
            update(parameter, gradient);
        }
    }

    fn bits(&self) -> Result<Vec<u32>, ExecutionError> {
        let mut all = Vec::new();
        for parameter in self.parameters.iter().flatten() {
            let mut read = pin!(Rocm::float_into_data(parameter.clone()));
            let Poll::Ready(data) = read.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                unreachable!("reads do not suspend");
            };
            all.extend(data?.iter::<f32>().map(f32::to_bits));
        }
        Ok(all)
    }
}

fn update(parameter: &mut Option<RocmTensor>, gradient: RocmTensor) {
    let change = Rocm::float_mul_scalar(gradient, RATE.into());
    let old = parameter.take().expect("put back below");
    let new = Rocm::float_sub(old.clone(), change);
    assert!(old.can_mut(), "another owner would make this a copy");
    let all: Vec<Slice> = old.shape().iter().map(|&size| Slice::from(0..size)).collect();
    *parameter = Some(Rocm::float_slice_assign(old, &all, new));
}

/// Microseconds a step.
fn time(mut step: impl FnMut() -> Result<(), ExecutionError>) -> Result<f64, ExecutionError> {
    Rocm::sync(&device())?;
    let start = Instant::now();
    for _ in 0..STEPS {
        step()?;
    }
    Rocm::sync(&device())?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / STEPS as f64)
}

fn summary(name: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    println!("  {name:7} median {:8.1} us, least {:8.1} us", times[times.len() / 2], times[0]);
}

fn main() -> Result<(), ExecutionError> {
    let mut batches: Vec<usize> = std::env::args().skip(1).filter_map(|batch| batch.parse().ok()).collect();
    if batches.is_empty() {
        batches = vec![64, 4096];
    }
    let device = device();
    for batch in batches {
        let (mut eager, mut captured) = (Training::new(batch), Training::new(batch));
        for _ in 0..5 {
            eager.step();
            captured.step();
        }
        Rocm::graph_start_capture(&device)?;
        captured.step();
        let graph = Rocm::graph_stop_capture(&device)?;
        // SAFETY: the graph keeps its memory; this thread alone uses the tensors.
        let mut replay = || unsafe { Rocm::graph_replay(&device, &graph) };
        let (mut eagerly, mut replayed) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            eagerly.push(time(|| {
                eager.step();
                Ok(())
            })?);
            replayed.push(time(&mut replay)?);
        }
        println!("MLP, batch {batch}, {:?}", graph.recorded());
        summary("eager", eagerly);
        summary("replay", replayed);
        let equal = eager.bits()? == captured.bits()?;
        println!("  after {} steps of each the parameters' bits are equal: {equal}", 5 + ROUNDS * STEPS);
    }
    Ok(())
}
