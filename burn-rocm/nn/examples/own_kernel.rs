//! Mish, `x tanh(ln(1 + e^x))` (Misra 2019), by two kernels of this file, forward and backward. The
//! program trains a small layer with it, and once more with Burn's own composed Mish.
//!
//!     cargo run --release -p burn-rocm-nn --example own_kernel

use burn::backend::Autodiff;
use burn::nn::LinearConfig;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor, activation};
use burn_backend::{DType, TensorMetadata};
use burn_rocm::kernel::{self, Kernel, KernelSource, Parameter, Work};
use burn_rocm::{Rocm, RocmDevice, RocmError, RocmTensor};
use burn_rocm_nn::custom::{self, Applied, Gradients, Kept, Op};

const SOURCE: KernelSource<'static> = KernelSource {
    name: "mish.hip",
    source: r#"
__device__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Calls f(i) for each i below n, whatever the launch's blocks and threads are.
template <class F> __device__ void each(size_t n, F f) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}

extern "C" __global__ void mish(size_t n, const float *x, float *y) {
    each(n, [=](size_t i) { y[i] = x[i] * tanhf(softplus(x[i])); });
}

extern "C" __global__ void mish_backward(size_t n, const float *x, const float *grad, float *out) {
    each(n, [=](size_t i) {
        float t = tanhf(softplus(x[i])), sigmoid = 1.0f / (1.0f + expf(-x[i]));
        out[i] = grad[i] * (t + x[i] * (1.0f - t * t) * sigmoid);
    });
}
"#,
    headers: &[],
    options: &[],
};

/// A kernel of [`SOURCE`] that reads `inputs` tensors, and its result.
fn run(name: &str, inputs: &[&RocmTensor]) -> Result<RocmTensor, RocmError> {
    let device = inputs[0].rocm_device();
    let mut parameters = vec![Parameter::Number(DType::U64)];
    parameters.resize(1 + inputs.len(), Parameter::Input(DType::F32));
    parameters.push(Parameter::Output(DType::F32));
    let kernel = Kernel::compile(&device, &SOURCE, name, &parameters)?;
    let (n, mut out) = (inputs[0].len(), kernel::empty(&device, inputs[0].shape(), DType::F32)?);
    let call = kernel.call(Work::Elements(n)).number(n as u64);
    let call = inputs.iter().fold(call, |call, input| call.input(input));
    // SAFETY: the kernels read and write the first n elements; Burn gives a gradient its output's
    // shape, which is x's.
    unsafe { call.output(&mut out).launch()? };
    Ok(out)
}

#[derive(Debug)]
struct Mish;

impl Op<1> for Mish {
    fn names(&self) -> [&'static str; 2] {
        ["mish", "mish_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [true]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((run("mish", &[&x])?, Vec::new()))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([Some(run("mish_backward", &[&kept.input(0)?, &grad])?)])
    }
}

/// Mish by this file's kernels.
///
/// # Errors
/// Those of [`custom::apply`].
pub(crate) fn mish<B: Backend, const D: usize>(x: Tensor<B, D>) -> Result<Tensor<B, D>, RocmError> {
    custom::apply(Mish, [x])
}

/// The losses of ten steps with this activation.
#[allow(dead_code, reason = "a test includes this file")]
fn train(activate: impl Fn(Tensor<B, 2>) -> Tensor<B, 2>) -> Vec<f32> {
    let device = RocmDevice::default();
    B::seed(&device, 7);
    let mut layer = LinearConfig::new(64, 32).init::<B>(&device);
    let mut optimizer = SgdConfig::new().init::<B, _>();
    let x = Tensor::<B, 2>::random([128, 64], Distribution::Default, &device);
    let mut step = || {
        let loss = activate(layer.forward(x.clone())).powf_scalar(2.0).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &layer);
        layer = optimizer.step(0.5, layer.clone(), grads);
        loss.into_scalar()
    };
    (0..10).map(|_| step()).collect()
}

#[allow(dead_code, reason = "a test includes this file")]
type B = Autodiff<Rocm>;

#[allow(dead_code, reason = "a test includes this file")]
fn main() -> Result<(), RocmError> {
    let own = train(|x| mish(x).unwrap_or_else(|error| panic!("{error}")));
    for (step, (own, composed)) in own.iter().zip(train(activation::mish)).enumerate() {
        println!("step {step}: loss {own:.6} with the own kernels, {composed:.6} composed");
    }
    Ok(())
}
