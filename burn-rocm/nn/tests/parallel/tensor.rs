//! Layers that are divided among ranks.

use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn::parallel::{ColumnLinear, RowLinear};

use crate::*;

const IN: usize = 6;
const HIDDEN: usize = 16;
const OUT: usize = 5;

fn numbers(count: usize, first: usize) -> Vec<f64> {
    (first..first + count).map(|i| 0.5 * (1.7 * i as f64).sin()).collect()
}

fn tensor<const D: usize>(shape: [usize; D], first: usize, device: &RocmDevice) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(numbers(shape.iter().product(), first), shape), device)
}

fn layer(from: usize, to: usize, first: usize, device: &RocmDevice) -> Linear<B> {
    let mut layer = LinearConfig::new(from, to).init::<B>(device);
    layer.weight = Param::from_tensor(tensor([from, to], first, device));
    layer.bias = Some(Param::from_tensor(tensor([to], first + 500, device)));
    layer
}

fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn near(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= limit(1), "{what}: {found} instead of {expected}");
    }
}

/// A pair of divided layers has the output and the gradients of the whole ones. The ranks' parts of
/// weights and biases have the matching parts of the whole gradients.
#[test]
fn divided_layers_are_the_whole_ones() {
    let Some(count) = devices("tensor::divided_layers_are_the_whole_ones") else { return };
    let ranks = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let first = ColumnLinear::of(layer(IN, HIDDEN, 0, &device), ranks.communicator());
        let second = RowLinear::of(layer(HIDDEN, OUT, 1000, &device), ranks.communicator());
        let x = tensor([3, 4, IN], 2000, &device).require_grad();
        let y = second.forward(activation::tanh(first.forward(x.clone())));
        let loss = (y.clone() * tensor([3, 4, OUT], 3000, &device)).sum();
        ranks.communicator().meet().unwrap();
        let grads = loss.backward();
        ranks.communicator().meet().unwrap();
        let bias =
            |bias: &Option<Param<Tensor<B, 1>>>| values(bias.as_ref().unwrap().val().grad(&grads).unwrap());
        let columns = first.weight.val().grad(&grads).unwrap().transpose();
        let rows = second.weight.val().grad(&grads).unwrap();
        let parts = [values(columns), bias(&first.bias), values(rows)];
        (parts, [values(y), values(x.grad(&grads).unwrap()), bias(&second.bias)])
    });
    let device = RocmDevice::new(0);
    let (first, second) = (layer(IN, HIDDEN, 0, &device), layer(HIDDEN, OUT, 1000, &device));
    let x = tensor([3, 4, IN], 2000, &device).require_grad();
    let y = second.forward(activation::tanh(first.forward(x.clone())));
    let grads = (y.clone() * tensor([3, 4, OUT], 3000, &device)).sum().backward();
    let bias = |layer: &Linear<B>| values(layer.bias.as_ref().unwrap().val().grad(&grads).unwrap());
    let same = [values(y), values(x.grad(&grads).unwrap()), bias(&second)];
    for (_, found) in &ranks {
        for (what, (found, expected)) in ["output", "input", "bias"].into_iter().zip(found.iter().zip(&same))
        {
            near(what, found, expected);
        }
    }
    let columns = values(first.weight.val().grad(&grads).unwrap().transpose());
    let expected = [columns, bias(&first), values(second.weight.val().grad(&grads).unwrap())];
    for (at, expected) in expected.iter().enumerate() {
        let joined: Vec<f64> = ranks.iter().flat_map(|(parts, _)| parts[at].clone()).collect();
        near(["columns", "bias of columns", "rows"][at], &joined, expected);
    }
}

#[test]
fn features_that_the_ranks_do_not_divide() {
    let Some(count) = devices("tensor::features_that_the_ranks_do_not_divide") else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let odd = || layer(IN + 1, OUT, 0, &device);
        let column = || drop(ColumnLinear::of(odd(), ranks.communicator()));
        let row = || drop(RowLinear::of(odd(), ranks.communicator()));
        for refused in [&column as &dyn Fn(), &row] {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(refused)).expect_err("5 and 7 features");
            let error = take_last_error();
            assert!(matches!(error, Some(RocmError::Invalid { .. })), "{error:?}");
        }
    });
}
