//! A long training holds no more memory at its end than after its first steps.
//!
//! One test at a time, because they read the device's pool and the process's memory. The long one
//! takes a minute on the CPU device:
//!
//! ```sh
//! cargo test --release --workspace --test growth -- --ignored --nocapture
//! ```
#![allow(missing_docs, clippy::unwrap_used)]

use std::fmt;
use std::sync::{Mutex, PoisonError};

use burn::backend::Autodiff;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};
use burn_rocm::{Rocm, RocmDevice, memory_label, memory_summary};
use burn_rocm_nn::loss::{MseLoss, Reduction};
use burn_rocm_nn::optim::adaptor::OptimizerAdaptor;
use burn_rocm_nn::optim::{Adam, AdamConfig};

type B = Autodiff<Rocm>;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    first: Linear<B>,
    dropout: Dropout,
    second: Linear<B>,
}

struct Training {
    device: RocmDevice,
    model: Option<Mlp<B>>,
    optimizer: OptimizerAdaptor<Adam, Mlp<B>, B>,
    steps: usize,
    last_loss: f32,
}

impl Training {
    fn new() -> Self {
        let device = RocmDevice::default();
        let model = Mlp {
            first: LinearConfig::new(4, 8).init(&device),
            dropout: DropoutConfig::new(0.1).init(),
            second: LinearConfig::new(8, 1).init(&device),
        };
        Self { device, model: Some(model), optimizer: AdamConfig::new().init(), steps: 0, last_loss: 0.0 }
    }

    /// Learns to add four numbers.
    fn step(&mut self) {
        let _label = memory_label("step");
        let x = Tensor::<B, 2>::random([16, 4], Distribution::Uniform(-1.0, 1.0), &self.device);
        let model = self.model.take().unwrap();
        let hidden = model.dropout.forward(relu(model.first.forward(x.clone())));
        let loss = MseLoss::new().forward(model.second.forward(hidden), x.sum_dim(1), Reduction::Mean);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(1e-3, model, grads));
        self.steps += 1;
        if self.steps.is_multiple_of(100) {
            self.last_loss = loss.into_scalar();
        }
    }

    /// Trains up to this number of steps. Each fiftieth step is on a thread of its own.
    fn until(&mut self, steps: usize) {
        while self.steps < steps {
            if self.steps.is_multiple_of(50) {
                let name = format!("step {}", self.steps);
                let thread = std::thread::Builder::new().name(name);
                std::thread::scope(|scope| {
                    thread.spawn_scoped(scope, || self.step()).unwrap().join().unwrap()
                });
            } else {
                self.step();
            }
        }
    }

    fn held(&self) -> Held {
        self.device.synchronize().unwrap();
        let hip = hip::Device::get(self.device.index).unwrap();
        let (stats, summary) = (hip.pool().stats(), memory_summary(&self.device).unwrap());
        Held {
            reserved: stats.reserved,
            in_use: stats.allocated,
            blocks: stats.blocks,
            peak: stats.peak,
            segments: hip.pool().segments().iter().map(|segments| segments.held).sum(),
            labels: summary.labels.len(),
            threads: summary.threads.len(),
            kernels: hip.loaded_kernels(),
            resident: resident(),
        }
    }
}

/// What a training holds.
#[derive(PartialEq)]
struct Held {
    reserved: usize,
    in_use: usize,
    blocks: u64,
    peak: usize,
    segments: u64,
    labels: usize,
    /// Those that allocated a block in use.
    threads: usize,
    /// How many, and their bytes.
    kernels: (usize, usize),
    /// The host's memory of the process, in bytes. 0 if the system does not tell.
    resident: usize,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reserved, in_use, blocks, peak, segments, labels, threads, kernels, resident } = self;
        write!(
            f,
            "reserved {reserved}, in use {in_use} in {blocks} blocks, peak {peak}, segments {segments}, labels \
             {labels}, threads {threads}, kernels {}, resident {resident}",
            kernels.0
        )
    }
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    pages.map_or(0, |pages| pages * 4096)
}

/// Checks that from step `first` to step `last` nothing grows but the host's memory, and that by
/// less than `most` bytes.
fn grows_by_less(first: usize, last: usize, most: usize) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut training = Training::new();
    training.until(first);
    let before = training.held();
    let begun = training.last_loss;
    println!("after {first} steps: {before}");
    training.until(last);
    let after = training.held();
    println!("after {last} steps: {after}");
    println!("loss {begun}, then {}", training.last_loss);
    assert!(training.last_loss.is_finite() && training.last_loss < begun, "it learns");
    let grown = after.resident.saturating_sub(before.resident);
    assert!(grown < most, "{grown} bytes of the host's memory");
    assert!(Held { resident: before.resident, ..after } == before);
}

#[test]
fn hundreds_of_steps_do_not_grow() {
    // The host's allocator still settles.
    grows_by_less(200, 800, 4 << 20);
}

/// A step that left 42 bytes behind would fail.
#[test]
#[ignore = "a minute long"]
fn a_hundred_thousand_steps_do_not_grow() {
    grows_by_less(1000, 100_000, 4 << 20);
}
