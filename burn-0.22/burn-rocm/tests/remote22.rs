//! A client of the example `remote-server` over the loopback, beside burn-flex in this process.
#![allow(missing_docs, clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../examples/remote-server.rs"]
mod remote_server;

use std::env::VarError;
use std::net::TcpListener;
use std::thread;

use burn_autodiff::Autodiff;
use burn_backend::ops::*;
use burn_backend::tensor::Device;
use burn_backend::{AutodiffBackend, Backend, TensorData};
use burn_flex::Flex;
use burn_ir::{CustomOpIr, OperationIr, OperationOutput, ScalarIr, TensorIr};
use burn_remote::{ConnectError, HostSpec, RemoteBackend, RemoteDevice};
use burn_router::RouterClient;
use burn_std::future::block_on;

/// Unit roundoff of f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;
const ROWS: usize = 16;
const INPUTS: usize = 32;
const HIDDEN: usize = 24;
const RATE: f32 = 0.1;

/// Starts the server on a port that the system picks.
fn serve(token: Option<&'static str>) -> HostSpec {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    thread::spawn(move || remote_server::serve(listener, token).unwrap());
    HostSpec::websocket(&url)
}

fn device() -> RemoteDevice {
    serve(None).connect(0).unwrap()
}

/// Numbers of at most `most`.
fn numbers(shape: [usize; 2], step: f32, most: f32) -> TensorData {
    TensorData::new((0..shape[0] * shape[1]).map(|i| most * (i as f32 * step).sin()).collect(), shape)
}

/// One SGD step of a perceptron with a hidden layer: the loss before it, and the weights of both layers after it.
fn step<B: AutodiffBackend>(device: &Device<B>) -> [Vec<f64>; 3] {
    let input = |shape, step| B::float_from_data(numbers(shape, step, 1.0), device);
    let weights = |shape: [usize; 2], step| {
        let weights = numbers(shape, step, 1.0 / shape[0] as f32);
        B::float_set_require_grad(B::float_from_data(weights, device), true)
    };
    let (first, second) = (weights([INPUTS, HIDDEN], 0.37), weights([HIDDEN, 1], 0.61));
    let hidden = B::relu(B::float_matmul(input([ROWS, INPUTS], 0.7), first.clone()));
    let error = B::float_sub(B::float_matmul(hidden, second.clone()), input([ROWS, 1], 0.3));
    let loss = B::float_mean(B::float_mul(error.clone(), error));
    let value = read::<B>(loss.clone());
    let grads = B::backward(loss);
    let updated = [first, second].map(|weight| {
        let grad = B::grad(&weight, &grads).expect("a gradient");
        let change = B::InnerBackend::float_mul_scalar(grad, RATE.into());
        read::<B::InnerBackend>(B::InnerBackend::float_sub(B::inner(weight), change))
    });
    let [first, second] = updated;
    [value, first, second]
}

fn read<B: Backend>(tensor: B::FloatTensorPrimitive) -> Vec<f64> {
    block_on(B::float_into_data(tensor)).unwrap().iter::<f64>().collect()
}

#[test]
fn a_step_of_training_is_that_of_flex() {
    let found = step::<Autodiff<RemoteBackend>>(&device());
    let expected = step::<Autodiff<Flex>>(&Default::default());
    // What the layers give is at most 1, as are their inputs, so errors are at most 2, and the loss
    // 4. The gradients are at most 4 / HIDDEN and 4. Each takes at most INPUTS + HIDDEN + ROWS
    // roundings, and squares double the error.
    let roundings = 2.0 * (INPUTS + HIDDEN + ROWS) as f64 * U;
    let (rate, inputs, hidden) = (f64::from(RATE), INPUTS as f64, HIDDEN as f64);
    let most = [4.0, 1.0 / inputs + rate * 4.0 / hidden, 1.0 / hidden + rate * 4.0];
    let bounds = most.map(|most| most * roundings);
    assert!(expected[0][0] > 1e3 * bounds[0], "{expected:?}");
    for (((what, found), expected), bound) in
        ["loss", "first layer", "second layer"].iter().zip(found).zip(expected).zip(bounds)
    {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= bound, "{what}: {a}, expected {b} within {bound:.1e}");
        }
    }
}

#[test]
fn clients_have_the_transforms_of_burn_signal() {
    let device = device();
    let samples: Vec<f32> = (0..8).map(|i| (i as f32 * 0.9).cos()).collect();
    let signal = RemoteBackend::float_from_data(TensorData::new(samples.clone(), [8]), &device);
    let client = signal.client.clone();
    let dtype = burn_std::DType::F32;
    // As burn-signal's client records it: the dim, whether the length is given, the length.
    let scalars = |n: Option<usize>| {
        vec![ScalarIr::UInt(0), ScalarIr::Bool(n.is_some()), ScalarIr::UInt(n.unwrap_or_default() as u64)]
    };
    let empty = |bins: usize| TensorIr::uninit(client.create_empty_handle(), [bins].into(), dtype);
    let op =
        CustomOpIr::with_scalars("signal::rfft", &[signal.into_ir()], &[empty(5), empty(5)], scalars(None));
    let [re, im] = client.register(OperationIr::Custom(op)).outputs();
    let op = CustomOpIr::with_scalars(
        "signal::irfft",
        &[re.clone().into_ir(), im.clone().into_ir()],
        &[empty(8)],
        scalars(Some(8)),
    );
    let back = client.register(OperationIr::Custom(op)).output();
    let (re, im) = (read::<RemoteBackend>(re), read::<RemoteBackend>(im));
    // Sums of 8 terms of at most 1, whose factors are rounded.
    let bound = 8.0 * 16.0 * U;
    for bin in 0..5 {
        let angle = |i: usize| -std::f64::consts::TAU * (bin * i) as f64 / 8.0;
        let sum = |of: fn(f64) -> f64| {
            samples.iter().enumerate().map(|(i, x)| f64::from(*x) * of(angle(i))).sum::<f64>()
        };
        assert!((re[bin] - sum(f64::cos)).abs() <= bound, "bin {bin}: {}", re[bin]);
        assert!((im[bin] - sum(f64::sin)).abs() <= bound, "bin {bin}: {}", im[bin]);
    }
    // Eight bins, each with the error of the first transform.
    for (a, b) in read::<RemoteBackend>(back).iter().zip(&samples) {
        assert!((a - f64::from(*b)).abs() <= 2.0 * bound, "{a}, expected {b}");
    }
}

#[test]
fn a_token_keeps_others_out() {
    let host = serve(Some("let me in"));
    assert!(matches!(host.connect(0), Err(ConnectError::Unauthorized)));
    assert!(matches!(host.clone().with_credential("let me out").connect(0), Err(ConnectError::Unauthorized)));
    let device = host.with_credential("let me in").connect(0).unwrap();
    let ones = RemoteBackend::float_ones([3].into(), &device, burn_std::FloatDType::F32);
    assert_eq!(read::<RemoteBackend>(ones), [1.0; 3]);
}

#[test]
fn a_token_that_is_not_utf8_is_refused() {
    assert_eq!(remote_server::token(Err(VarError::NotPresent)), Ok(None));
    assert_eq!(remote_server::token(Ok("let me in".into())), Ok(Some("let me in".into())));
    let error = remote_server::token(Err(VarError::NotUnicode("let me in".into()))).unwrap_err();
    assert!(error.contains("BURN_REMOTE_TOKEN") && !error.contains("let me in"), "{error}");
}
