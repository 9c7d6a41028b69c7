//! Losses, softmax, and layers that end in an activation.

use burn::module::Param;
use burn::nn::Linear;
use burn::nn::loss as burns;
use burn::tensor::activation::{self, relu};
use burn::tensor::{Distribution, Int, Tensor};
use burn_rocm_nn::loss as own;
use burn_rocm_nn::{Act, AddAct, LinearAct};

use super::{B, Case};
use crate::gpu::cases::Bar;

fn uniform<const D: usize>(shape: [usize; D], device: &burn_rocm::RocmDevice) -> Tensor<B, D> {
    Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), device)
}

/// A loss of scores and classes, both ways.
fn cross_entropy(rows: usize, classes: usize) -> Case {
    Case::new(format!("cross entropy [{rows}, {classes}] f32, forward and backward"), move |device| {
        let scores = uniform([rows, classes], device);
        let targets = Tensor::<B, 1, Int>::arange(0..rows as i64, device).remainder_scalar(classes as i64);
        let (theirs, ours) =
            (burns::CrossEntropyLoss::<B>::new(None, device), own::CrossEntropyLoss::<B>::new(None, device));
        let (x, t) = (scores.clone(), targets.clone());
        [
            Box::new(move || {
                let leaf = scores.clone().detach().require_grad();
                drop(leaf.grad(&theirs.forward(leaf.clone(), targets.clone()).backward()));
            }),
            Box::new(move || {
                let leaf = x.clone().detach().require_grad();
                drop(leaf.grad(&ours.forward(leaf.clone(), t.clone()).backward()));
            }),
        ]
    })
}

/// The same forward alone, without autodiff's graph.
fn cross_entropy_forward(rows: usize, classes: usize) -> Case {
    Case::new(format!("cross entropy [{rows}, {classes}] f32, forward"), move |device| {
        let scores = uniform([rows, classes], device).inner();
        let targets =
            Tensor::<B, 1, Int>::arange(0..rows as i64, device).remainder_scalar(classes as i64).inner();
        let (theirs, ours) =
            (burns::CrossEntropyLoss::new(None, device), own::CrossEntropyLoss::new(None, device));
        let (x, t) = (scores.clone(), targets.clone());
        [
            Box::new(move || drop(theirs.forward(scores.clone(), targets.clone()))),
            Box::new(move || drop(ours.forward(x.clone(), t.clone()))),
        ]
    })
}

fn linear_relu(rows: usize, size: usize) -> Case {
    Case::new(format!("linear and ReLU [{rows}, {size}] f32, forward and backward"), move |device| {
        let (x, weight, bias) =
            (uniform([rows, size], device), uniform([size, size], device), uniform([size], device));
        let theirs = Linear {
            weight: Param::from_tensor(weight.clone()),
            bias: Some(Param::from_tensor(bias.clone())),
        };
        let ours = LinearAct::from_burn(theirs.clone(), Act::Relu);
        let y = x.clone();
        [
            Box::new(move || drop(relu(theirs.forward(x.clone().detach().require_grad())).backward())),
            Box::new(move || drop(ours.forward(y.clone().detach().require_grad()).backward())),
        ]
    })
}

pub(super) fn cases(rows: usize) -> Vec<Case> {
    vec![
        cross_entropy_forward(rows, 4096).moves(rows as f64 * 4096.0 * 4.0, Bar::Rate(3.5e12)),
        cross_entropy(rows, 4096),
        cross_entropy(64, 10),
        Case::unary(
            "softmax",
            [rows, 4096],
            |x| activation::softmax(x, 1),
            |x| burn_rocm_nn::activation::softmax(x, 1),
        ),
        Case::unary(
            "log_softmax",
            [rows, 4096],
            |x| activation::log_softmax(x, 1),
            |x| burn_rocm_nn::activation::log_softmax(x, 1),
        ),
        Case::unary(
            "mean squared error",
            [rows, 4096],
            |x| {
                let zeros = x.zeros_like();
                burns::MseLoss::new().forward(x, zeros, burns::Reduction::Mean).unsqueeze()
            },
            |x| {
                let zeros = x.zeros_like();
                own::MseLoss::new().forward(x, zeros, own::Reduction::Mean).unsqueeze()
            },
        ),
        Case::unary(
            "ReLU of a sum",
            [rows, 4096],
            |x| relu(x.clone() + x),
            |x| AddAct::new(Act::Relu).forward(x.clone(), x),
        ),
        linear_relu(rows / 16, 1024),
    ]
}
