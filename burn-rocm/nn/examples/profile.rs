//! Profiles training steps of a small transformer encoder, and prints the table. With an argument,
//! also writes the timeline to that file, which <https://ui.perfetto.dev> opens.
//!
//!     cargo run --release -p burn-rocm-nn --example profile -- step.json

use burn::backend::Autodiff;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Int, Tensor};
use burn_rocm::profile::Detail;
use burn_rocm::{Rocm, RocmDevice, profile, region};
use burn_rocm_nn::loss::CrossEntropyLossConfig;
use burn_rocm_nn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn_rocm_nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};

type B = Autodiff<Rocm>;

const WIDTH: usize = 128;
const CLASSES: usize = 10;

#[derive(Module, Debug)]
struct Classifier<B: Backend> {
    encoder: TransformerEncoder<B>,
    head: Linear<B>,
}

impl<B: Backend> Classifier<B> {
    /// The scores of each class, from `[batch, sequence, WIDTH]`.
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 2> {
        let encoded = self.encoder.forward(TransformerEncoderInput::new(x));
        self.head.forward(encoded.mean_dim(1).squeeze_dim(1))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = RocmDevice::default();
    let mut model = Classifier::<B> {
        encoder: TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, 2).init(&device),
        head: LinearConfig::new(WIDTH, CLASSES).init(&device),
    };
    let loss = CrossEntropyLossConfig::new().init(&device);
    let mut optimizer = AdamConfig::new().init();
    let x = Tensor::<B, 3>::random([16, 32, WIDTH], Distribution::Default, &device);
    let classes = Tensor::<B, 1, Int>::arange(0..16, &device).remainder_scalar(CLASSES as i64);

    let mut step = || {
        let loss = {
            let _forward = region("forward");
            loss.forward(model.forward(x.clone()), classes.clone())
        };
        let grads = {
            let _backward = region("backward");
            GradientsParams::from_grads(loss.backward(), &model)
        };
        let _update = region("update");
        model = optimizer.step(1e-3, model.clone(), grads);
        loss.inner()
    };

    // The first steps compile the kernels, and let MIOpen choose its algorithms.
    (0..3).for_each(|_| drop(step()));
    device.measure_bandwidth()?;
    let (loss, profile) = profile(|| (0..10).map(|_| step()).last());
    println!("{profile}");
    if let Some(longest) = profile.rows(Detail::Op).first() {
        println!("the op that takes longest is {}, with {:?} in 10 steps", longest.op, longest.total);
    }
    println!("loss {:.4}", loss.map_or(f32::NAN, |loss| loss.into_scalar()));
    if let Some(file) = std::env::args_os().nth(1) {
        profile.write_chrome_trace(&file)?;
        println!("{} is for https://ui.perfetto.dev", file.display());
    }
    Ok(())
}
