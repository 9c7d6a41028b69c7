//! Losses and softmax.

use burn::nn::loss as burns;
use burn::tensor::activation::{self, log_softmax};
use burn::tensor::{DType, Int, Tensor};
use burn_rocm::RocmDevice;
use burn_rocm_nn::loss as own;

use super::{B, Case, HALVES, held, pass, step, uniform};
use crate::gpu::cases::Bar;

/// Targets: row `i` has class `i % classes`.
fn targets(rows: usize, classes: usize, device: &RocmDevice) -> Tensor<B, 1, Int> {
    Tensor::<B, 1, Int>::arange(0..rows as i64, device).remainder_scalar(classes as i64)
}

/// Cross entropy, forward and backward.
fn cross_entropy(rows: usize, classes: usize, dtype: DType) -> Case {
    let name = format!("cross entropy [{rows}, {classes}] {}, forward and backward", dtype.name());
    Case::new(name, move |device| {
        let (x, t) = (uniform([rows, classes], dtype, device), targets(rows, classes, device));
        let (theirs, ours) =
            (burns::CrossEntropyLoss::<B>::new(None, device), own::CrossEntropyLoss::<B>::new(None, device));
        let of_ours = t.clone();
        [
            step(x.clone(), move |x| theirs.forward(x, t.clone())),
            step(x, move |x| ours.forward(x, of_ours.clone())),
        ]
    })
}

/// Cross entropy forward, without autodiff.
fn cross_entropy_forward(rows: usize, classes: usize) -> Case {
    Case::new(format!("cross entropy [{rows}, {classes}] f32, forward"), move |device| {
        let scores = uniform([rows, classes], DType::F32, device).inner();
        let targets = targets(rows, classes, device).inner();
        let (theirs, ours) =
            (burns::CrossEntropyLoss::new(None, device), own::CrossEntropyLoss::new(None, device));
        let (x, t) = (scores.clone(), targets.clone());
        [
            held(device, move || theirs.forward(scores.clone(), targets.clone())),
            held(device, move || ours.forward(x.clone(), t.clone())),
        ]
    })
}

/// The loss of log-probabilities, beside the ops by which Burn's cross entropy computes it.
fn nll(rows: usize, classes: usize) -> Case {
    let name = format!("negative log-likelihood [{rows}, {classes}] f32, forward and backward");
    Case::new(name, move |device| {
        let x = log_softmax(uniform([rows, classes], DType::F32, device), 1);
        let t = targets(rows, classes, device);
        let ours = own::NllLossConfig::new().init::<B>(device);
        let of_ours = t.clone();
        [
            step(x.clone(), move |x| x.gather(1, t.clone().reshape([rows, 1])).mean().neg()),
            step(x, move |x| ours.forward(x, of_ours.clone())),
        ]
    })
}

fn binary_cross_entropy(rows: usize, columns: usize) -> Case {
    let name = format!("binary cross entropy of logits [{rows}, {columns}] f32, forward and backward");
    Case::new(name, move |device| {
        let x = uniform([rows, columns], DType::F32, device);
        let t = x.clone().greater_elem(0.0).int();
        let theirs = burns::BinaryCrossEntropyLossConfig::new().with_logits(true).init::<B>(device);
        let ours = own::BinaryCrossEntropyLossConfig::new().with_logits(true).init::<B>(device);
        let of_ours = t.clone();
        [
            step(x.clone(), move |x| theirs.forward(x, t.clone())),
            step(x, move |x| ours.forward(x, of_ours.clone())),
        ]
    })
}

/// A mean loss over residuals.
fn of_differences<const N: usize>(
    name: &str,
    shape: [usize; N],
    both_tracked: bool,
    composed: impl Fn(Tensor<B, N>, Tensor<B, N>) -> Tensor<B, 1> + 'static,
    fused: impl Fn(Tensor<B, N>, Tensor<B, N>) -> Tensor<B, 1> + 'static,
) -> Case {
    Case::new(format!("{name} {shape:?} f32, forward and backward"), move |device| {
        let [a, b] = [(); 2].map(|()| uniform(shape, DType::F32, device));
        let b = b.set_require_grad(both_tracked);
        let of_fused = b.clone();
        [step(a.clone(), move |a| composed(a, b.clone())), step(a, move |a| fused(a, of_fused.clone()))]
    })
}

fn mse(name: &str, rows: usize, both_tracked: bool) -> Case {
    of_differences(
        name,
        [rows, 4096],
        both_tracked,
        |a, b| burns::MseLoss::new().forward(a, b, burns::Reduction::Mean),
        |a, b| own::MseLoss::new().forward(a, b, own::Reduction::Mean),
    )
}

fn softmax(rows: usize, dtype: DType) -> Case {
    let fused = |x| burn_rocm_nn::activation::softmax(x, 1);
    Case::unary("softmax", [rows, 4096], dtype, |x| activation::softmax(x, 1), fused)
}

pub(super) fn cases(rows: usize) -> Vec<Case> {
    let f32 = DType::F32;
    let (huber, own_huber) = (burns::HuberLossConfig::new(0.5).init(), own::HuberLossConfig::new(0.5).init());
    let mut all = vec![
        cross_entropy_forward(rows, 4096).moves(rows as f64 * 4096.0 * 4.0, Bar::Rate(3.5e12)),
        cross_entropy(rows, 4096, f32),
        cross_entropy(64, 10, f32),
        nll(rows, 4096),
        binary_cross_entropy(rows, 4096),
        softmax(rows, f32),
        Case::unary(
            "log_softmax",
            [rows, 4096],
            f32,
            |x| log_softmax(x, 1),
            |x| burn_rocm_nn::activation::log_softmax(x, 1),
        ),
        mse("mean squared error", rows, false),
        mse("mean squared error of two tracked", rows, true),
        of_differences(
            "Huber loss",
            [rows, 4096],
            false,
            move |a, b| huber.forward(a, b, burns::Reduction::Mean),
            move |a, b| own_huber.forward(a, b, own::Reduction::Mean),
        ),
    ];
    for dtype in HALVES {
        // Forward reads the scores; backward reads them and writes their gradient.
        let bytes = 3.0 * pass([rows, 4096], dtype);
        all.extend([cross_entropy(rows, 4096, dtype).moves(bytes, Bar::OfCopy(0.9)), softmax(rows, dtype)]);
    }
    all
}
