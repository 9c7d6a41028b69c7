//! Attention without mask and dropout: forward alone, as in inference, and forward and backward.
//! PyTorch's rows force one of its kernels: FlashAttention-2 in bf16 and f16, and the
//! memory-efficient kernel in f32. cuDNN's, in bf16 and f16, has a column of its own.

use std::collections::BTreeMap;

use burn::tensor::{Distribution, Tensor};
use burn_backend::ops::{AttentionModuleOptions, ModuleOps};
use burn_backend::{Backend, DType};
use burn_rocm::fused::{AttentionOptions, attention, attention_backward};
use burn_rocm::graph::Graph;
use burn_rocm::{Rocm, RocmDevice, RocmTensor};

use super::cases::{Bar, Case, Group, Timed, Work};
use crate::{Options, Precision};

/// Batch, heads, length and features.
const SIZES: [[usize; 4]; 5] =
    [[16, 12, 512, 64], [4, 12, 2048, 64], [4, 12, 4096, 64], [1, 12, 8192, 64], [2, 16, 4096, 128]];

/// How often a graph calls attention, so that the time of its launch does not count.
const CALLS: usize = 10;

/// What the peer's names of cuDNN's rows end in.
const CUDNN: &str = ", cuDNN";

#[derive(Clone, Copy)]
struct How {
    precision: Precision,
    causal: bool,
    backward: bool,
}

impl How {
    fn bar(self) -> Bar {
        match (self.precision, self.backward) {
            (Precision::F32, _) => Bar::OfTorch(1.1),
            (Precision::Bf16, false) => Bar::OfTorch(1.25),
            (Precision::Bf16, true) => Bar::OfTorch(1.4),
            (Precision::F16, _) => Bar::OfBf16(1.05),
        }
    }
}

/// The rows.
pub(crate) fn cases(options: &Options) -> Vec<Case<Rocm>> {
    let mut all = Vec::new();
    for &precision in &options.precision {
        for [batch, heads, length, features] in SIZES {
            let sizes = [batch, heads, (length / options.shrink).max(1), features];
            for (causal, backward) in [(false, false), (false, true), (true, false), (true, true)] {
                all.push(case(sizes, How { precision, causal, backward }));
            }
        }
    }
    all.retain(|case| options.names(&case.name));
    all
}

fn case(sizes: [usize; 4], how: How) -> Case<Rocm> {
    let [batch, heads, length, features] = sizes;
    let causal = if how.causal { ", causal" } else { "" };
    let pass = if how.backward { "forward and backward" } else { "forward" };
    let precision = how.precision.suffix();
    Case {
        group: Group::Attention,
        name: format!("attention {batch}x{heads}x{length}x{features}{precision}{causal}, {pass}"),
        work: Work::Ops(CALLS as f64),
        bar: how.bar(),
        make: Box::new(move |device| timed(sizes, how, device)),
    }
}

/// Queries, keys, values and the result's gradient, of different random numbers, because a GPU's power
/// draw, and so its clock, depends on the operands' bits. They lie as in a linear layer's output:
/// `[batch, length, heads, features]`, seen as `[batch, heads, length, features]`.
fn operands(
    [batch, heads, length, features]: [usize; 4],
    precision: Precision,
    device: &RocmDevice,
) -> [RocmTensor; 4] {
    let dtype = match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::F16 => DType::F16,
    };
    <Rocm as Backend>::seed(device, 1);
    [(); 4].map(|()| {
        let (shape, uniform) = ([batch, length, heads, features], Distribution::Uniform(-0.5, 0.5));
        let tensor = Tensor::<Rocm, 4>::random(shape, uniform, (device, dtype));
        tensor.swap_dims(1, 2).into_primitive().tensor()
    })
}

/// Replays of a graph of [`CALLS`] calls, which the first one captures.
fn timed(sizes: [usize; 4], how: How, device: &RocmDevice) -> Timed {
    let [query, key, value, grad] = operands(sizes, how.precision, device);
    let device = device.clone();
    let call = move || {
        let [q, k, v] = [&query, &key, &value].map(RocmTensor::clone);
        if !how.backward {
            let options = AttentionModuleOptions { is_causal: how.causal, ..Default::default() };
            drop(<Rocm as ModuleOps<Rocm>>::attention(q, k, v, None, None, options));
            return;
        }
        let options = AttentionOptions { causal: how.causal, ..AttentionOptions::default() };
        let inputs = [q.clone(), k.clone(), v.clone()];
        let kept = attention(q, k, v, None, &options).expect("attention").kept;
        let grads = attention_backward(inputs, None, kept, grad.clone(), &options, [true; 3]);
        drop(grads.expect("the gradient of attention"));
    };
    let mut graph = None;
    let body = move || {
        let (graph, ()) = graph.get_or_insert_with(|| {
            Graph::capture(&device, || (0..CALLS).for_each(|_| call())).expect("the calls are captured")
        });
        graph.replay().expect("a replay");
    };
    Timed { body: Box::new(body), losses: None }
}

/// Takes the rows of cuDNN's kernels from PyTorch's, under the names of the cases.
pub(crate) fn of_cudnn(torch: &mut BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let (mut cudnn, mut others) = (BTreeMap::new(), BTreeMap::new());
    for (name, seconds) in std::mem::take(torch) {
        match name.strip_suffix(CUDNN) {
            Some(case) => cudnn.insert(case.to_string(), seconds),
            None => others.insert(name, seconds),
        };
    }
    *torch = others;
    cudnn
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorPrimitive;

    use super::*;

    #[test]
    fn operands_differ() {
        let tensors = operands([2, 3, 8, 16], Precision::Bf16, &RocmDevice::default());
        let values = tensors.map(|tensor| {
            let tensor = Tensor::<Rocm, 4>::from_primitive(TensorPrimitive::Float(tensor));
            assert_eq!((tensor.dims(), tensor.dtype()), ([2, 3, 8, 16], DType::BF16));
            tensor.into_data().iter::<f32>().collect::<Vec<f32>>()
        });
        for (at, one) in values.iter().enumerate() {
            assert!(one.iter().all(|value| (-0.5..=0.5).contains(value)), "{one:?}");
            for other in &values[..at] {
                let same = one.iter().zip(other).filter(|(a, b)| a == b).count();
                assert!(same < one.len() / 10, "{same} of {} numbers are the same", one.len());
            }
        }
    }
}
