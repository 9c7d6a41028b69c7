//! A module that composes Burn's ops says so once, with the reason.
#![allow(missing_docs, clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use burn::backend::Autodiff;
use burn::nn::activation::ActivationConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Tensor};
use burn_flex::Flex;
use burn_rocm::Rocm;
use burn_rocm_nn::MulAdd;
use burn_rocm_nn::amp::{GradScalerConfig, Precision};
use burn_rocm_nn::loss::{CrossEntropyLossConfig, HuberLossConfig, MseLoss, Reduction};
use burn_rocm_nn::optim::{AdamConfig, AdamWConfig, SgdConfig};
use burn_rocm_nn::transformer::PositionWiseFeedForwardConfig;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A logger that keeps what this crate says.
struct Keeper;

impl log::Log for Keeper {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("burn_rocm_nn")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            SAID.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// What is said while this runs.
fn said(run: impl FnOnce()) -> Vec<String> {
    run();
    std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs what Burn refuses.
fn refused<T>(run: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
}

fn ones<B: Backend>(width: usize) -> Tensor<B, 2> {
    Tensor::ones([2, width], &Default::default())
}

/// A product of these widths and a sum.
fn mul_add<B: Backend>([a, b]: [usize; 2]) {
    MulAdd::new().forward(ones::<B>(a), ones(b), ones(b));
}

/// A step of each optimizer, and one in f16 that scales the loss.
fn train<B: AutodiffBackend>() {
    let linear: Linear<B> = LinearConfig::new(3, 2).init(&Default::default());
    let grads =
        |linear: &Linear<B>| GradientsParams::from_grads(linear.forward(ones(3)).sum().backward(), linear);
    let linear = AdamConfig::new().init().step(0.1, linear.clone(), grads(&linear));
    let linear = AdamWConfig::new().init().step(0.1, linear.clone(), grads(&linear));
    let mut optimizer = SgdConfig::new().init();
    let linear = optimizer.step(0.1, linear.clone(), grads(&linear));
    Precision::new(FloatDType::F16).convert(&linear);
    GradScalerConfig::new().init().step(&mut optimizer, 0.1, linear.clone(), grads(&linear));
}

#[test]
fn a_module_says_once_why_it_composes() {
    log::set_logger(&Keeper).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    type Case<'a> = (&'a [&'a str], &'a str, &'a dyn Fn());
    let cases: [Case<'_>; 9] = [
        (&[], "", &|| mul_add::<Rocm>([3, 3])),
        (&["MulAdd"], "differ in shape", &|| mul_add::<Rocm>([1, 3])),
        (&["MulAdd"], "not burn-rocm's backend", &|| mul_add::<Flex>([3, 3])),
        (&[], "", &train::<Autodiff<Rocm>>),
        (
            &["Adam", "AdamW", "Sgd", "Precision", "GradScaler"],
            "not burn-rocm's backend",
            &train::<Autodiff<Flex>>,
        ),
        (&["MseLoss"], "no mean over the batch", &|| {
            refused(|| MseLoss::new().forward(ones::<Rocm>(3), ones(3), Reduction::BatchMean));
        }),
        (&["HuberLoss"], "no mean over the batch", &|| {
            let loss = HuberLossConfig::new(1.0).init();
            refused(|| loss.forward(ones::<Rocm>(3), ones(3), Reduction::BatchMean));
        }),
        (&["CrossEntropyLoss"], "pad tokens", &|| {
            let tokens = Some((2..100).collect());
            let loss = CrossEntropyLossConfig::new().with_pad_tokens(tokens).init(&Default::default());
            loss.forward(ones::<Rocm>(3), Tensor::from_ints([0, 1], &Default::default()));
        }),
        (&["PositionWiseFeedForward"], "no fused op has its activation", &|| {
            let config = PositionWiseFeedForwardConfig::new(3, 4).with_activation(ActivationConfig::Tanh);
            config.init(&Default::default()).forward(ones::<Rocm>(3));
        }),
    ];
    for (modules, reason, run) in cases {
        let lines = said(run);
        assert_eq!(lines.len(), modules.len(), "{lines:?}");
        for (line, module) in lines.iter().zip(modules) {
            assert!(line.contains(&format!(" {module} on ")) && line.contains(reason), "{line}");
        }
        assert_eq!(said(run), [""; 0]);
    }
}
