//! Compares gradients through `Autodiff` with the oracle's.
#![allow(missing_docs, clippy::unwrap_used)]

use burn::backend::Autodiff;
use burn::tensor::{Tensor, activation, backend::AutodiffBackend};
use burn_rocm_tests::*;

/// The gradients of `body`'s output, which is weighted elementwise by fixed numbers and summed,
/// with respect to each input.
fn gradients<B: AutodiffBackend, const N: usize>(
    inputs: &[TensorData; N],
    body: impl Fn([Tensor<B, 2>; N]) -> Tensor<B, 2>,
) -> Vec<TensorData> {
    let device = Default::default();
    let inputs =
        inputs.each_ref().map(|data| Tensor::<B, 2>::from_data(data.clone(), &device).require_grad());
    let out = body(inputs.clone());
    let weights =
        Tensor::arange(0..out.shape().num_elements() as i64, &device).float().sin().reshape(out.shape());
    let grads = (out.clone() * weights).sum().backward();
    let mut results = vec![out.into_data()];
    results
        .extend(inputs.iter().map(|input| input.grad(&grads).expect("every input takes part").into_data()));
    results
}

macro_rules! gradient_tests {
    ($($name:ident: [$($shape:expr),+] in $low:literal .. $high:literal, |$inputs:ident| $body:expr;)*) => {$(
        #[test]
        fn $name() {
            let random = Random::new();
            let inputs = [$($shape),+].map(|shape: [usize; 2]| {
                let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| random.uniform($low, $high) as f32).collect();
                TensorData::new(values, shape)
            });
            let ours = gradients::<Autodiff<R>, _>(&inputs, |$inputs| $body);
            let theirs = gradients::<Autodiff<O>, _>(&inputs, |$inputs| $body);
            assert_close(&stringify!($name), &ours, &theirs, Tolerance { absolute: 2e-5, relative: 2e-5 });
        }
    )*};
}

gradient_tests! {
    add_broadcast: [[5, 7], [1, 7]] in -1.0 .. 1.0, |x| x[0].clone() + x[1].clone();
    sub_broadcast: [[5, 7], [5, 1]] in -1.0 .. 1.0, |x| x[0].clone() - x[1].clone();
    mul_broadcast: [[5, 7], [1, 1]] in -1.0 .. 1.0, |x| x[0].clone() * x[1].clone();
    div_broadcast: [[5, 7], [1, 7]] in 0.5 .. 2.0, |x| x[0].clone() / x[1].clone();
    powf: [[5, 7], [5, 7]] in 0.5 .. 2.0, |x| x[0].clone().powf(x[1].clone());
    scalar_chain: [[4, 9]] in 0.5 .. 2.0, |x| ((x[0].clone() * 3.0 + 1.0) / 2.0 - 0.25).powf_scalar(1.5);
    matmul: [[6, 5], [5, 4]] in -1.0 .. 1.0, |x| x[0].clone().matmul(x[1].clone());
    matmul_transposed: [[5, 6], [4, 5]] in -1.0 .. 1.0, |x| x[0].clone().transpose().matmul(x[1].clone().transpose());
    exp_log: [[3, 8]] in 0.5 .. 2.0, |x| (x[0].clone().exp() + 1.0).log();
    trigonometric: [[3, 8]] in -1.0 .. 1.0, |x| x[0].clone().sin() * x[0].clone().cos() + x[0].clone().tanh();
    square_root: [[3, 8]] in 0.5 .. 2.0, |x| x[0].clone().sqrt().recip();
    error_function: [[3, 8]] in -1.0 .. 1.0, |x| x[0].clone().erf();
    absolute: [[3, 8]] in -1.0 .. 1.0, |x| x[0].clone().abs();
    relu: [[6, 7]] in -1.0 .. 1.0, |x| activation::relu(x[0].clone());
    gelu: [[6, 7]] in -2.0 .. 2.0, |x| activation::gelu(x[0].clone());
    sigmoid: [[6, 7]] in -2.0 .. 2.0, |x| activation::sigmoid(x[0].clone());
    log_sigmoid: [[6, 7]] in -2.0 .. 2.0, |x| activation::log_sigmoid(x[0].clone());
    softmax: [[6, 7]] in -2.0 .. 2.0, |x| activation::softmax(x[0].clone(), 1);
    log_softmax: [[6, 7]] in -2.0 .. 2.0, |x| activation::log_softmax(x[0].clone(), 0);
    sums: [[6, 7]] in -1.0 .. 1.0, |x| x[0].clone().sum_dim(1) + x[0].clone().mean_dim(1) * 2.0;
    maximum: [[6, 7]] in -1.0 .. 1.0, |x| x[0].clone().max_dim(1) - x[0].clone().min_dim(1);
    layouts: [[6, 8]] in -1.0 .. 1.0, |x| x[0].clone().reshape([8, 6]).swap_dims(0, 1).flip([0]) * x[0].clone();
    slices: [[6, 8]] in -1.0 .. 1.0, |x| {
        let corner = x[0].clone().slice([0..2, 0..2]);
        x[0].clone().slice([1..5, 2..7]).slice_assign([0..2, 0..2], corner)
    };
    cat: [[3, 4], [2, 4]] in -1.0 .. 1.0, |x| Tensor::cat(vec![x[0].clone(), x[1].clone(), x[0].clone()], 0);
    masks: [[5, 6]] in -1.0 .. 1.0, |x| x[0].clone().mask_fill(x[0].clone().greater_elem(0.3), 2.0);
    clamps: [[5, 6]] in -1.0 .. 1.0, |x| x[0].clone().clamp(-0.5, 0.5);
    norm: [[5, 6]] in -1.0 .. 1.0, |x| {
        let mean = x[0].clone().mean_dim(1);
        let centred = x[0].clone() - mean;
        centred.clone() / (centred.powi_scalar(2).mean_dim(1) + 1e-5).sqrt()
    };
}

fn convolution<B: AutodiffBackend>(data: &[TensorData; 3]) -> Vec<TensorData> {
    use burn::tensor::{module, ops::ConvOptions};
    let device = Default::default();
    let x = Tensor::<B, 4>::from_data(data[0].clone(), &device).require_grad();
    let w = Tensor::<B, 4>::from_data(data[1].clone(), &device).require_grad();
    let b = Tensor::<B, 1>::from_data(data[2].clone(), &device).require_grad();
    let y =
        module::conv2d(x.clone(), w.clone(), Some(b.clone()), ConvOptions::new([1, 1], [1, 1], [1, 1], 1));
    let y = module::max_pool2d(activation::relu(y), [2, 2], [2, 2], [0, 0], [1, 1], false);
    let y = module::avg_pool2d(y, [2, 2], [1, 1], [1, 1], true, false);
    let grads = y.clone().powi_scalar(2).sum().backward();
    let of = |grad: Option<TensorData>| grad.expect("every input takes part");
    vec![
        y.into_data(),
        of(x.grad(&grads).map(Tensor::into_data)),
        of(w.grad(&grads).map(Tensor::into_data)),
        of(b.grad(&grads).map(Tensor::into_data)),
    ]
}

#[test]
fn convolution_and_pooling() {
    let random = Random::new();
    let data = [vec![2, 3, 8, 8], vec![4, 3, 3, 3], vec![4]].map(|shape| {
        let count: usize = shape.iter().product();
        TensorData::new((0..count).map(|_| random.uniform(-1.0, 1.0) as f32).collect(), shape)
    });
    let (ours, theirs) = (convolution::<Autodiff<R>>(&data), convolution::<Autodiff<O>>(&data));
    assert_close(&"convolution and pooling", &ours, &theirs, Tolerance { absolute: 1e-4, relative: 1e-4 });
}
