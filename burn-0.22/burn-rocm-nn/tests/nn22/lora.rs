//! Adapters: PyTorch's gradients, and training.

use burn::module::{Lora, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_rocm_nn_022::language::lora::{LoraConfig, LoraLinear, Peft, Targets};
use burn_rocm_nn_022::optim::{AdamWConfig, GradientsParams};

use crate::lora_reference::{FLOATS, LAYERS, Matrix, folder, hold, reference, results};
use crate::worlds::{Ty, v22};

#[derive(Module, Debug)]
struct Network {
    first: LoraLinear,
    second: LoraLinear,
    head: LoraLinear,
}

fn tensor(matrix: &Matrix, device: &Device, dtype: DType) -> Tensor<2> {
    let data = TensorData::new(matrix.values.clone(), [matrix.rows, matrix.columns]);
    Tensor::from_data(data, (device, dtype))
}

fn linear(name: &str, device: &Device, dtype: DType) -> Linear {
    let of = |kind: &str| reference(&format!("base.{name}.{kind}"));
    let weight = tensor(&of("weight").transposed(), device, dtype);
    let bias = (name != "blocks.1.out_proj").then(|| tensor(&of("bias"), device, dtype).squeeze_dim::<1>(0));
    Linear { weight: Param::from_tensor(weight), bias: bias.map(Param::from_tensor) }
}

impl Network {
    fn read(device: &Device, dtype: DType) -> Self {
        let peft = Peft::read(&folder()).unwrap();
        let layer = |name: &str| peft.adapt(name, linear(name, device, dtype)).unwrap();
        Self { first: layer("blocks.0.q_proj"), second: layer("blocks.1.out_proj"), head: layer("head") }
    }

    fn loss(&self, device: &Device, dtype: DType) -> [Tensor<2>; 2] {
        let x = tensor(&reference("x"), device, dtype);
        let output = self.head.forward(self.second.forward(self.first.forward(x).tanh()).tanh());
        let loss = (output.clone() - tensor(&reference("target"), device, dtype)).powi_scalar(2).mean();
        [output, loss.reshape([1, 1])]
    }
}

fn numbers(tensor: Tensor<2>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

#[test]
fn gradients_are_those_of_pytorch() {
    for device in [Device::rocm(0).autodiff(), Device::flex().autodiff()] {
        // The units of rounding. In f64 the reference is off as well.
        for (dtype, unit) in [(DType::F64, 2f64.powi(-52)), (DType::F32, 2f64.powi(-24))] {
            let network = Network::read(&device, dtype);
            let [output, loss] = network.loss(&device, dtype);
            let grads = loss.clone().backward();
            let mut found = vec![numbers(output), numbers(loss)];
            for layer in [&network.first, &network.second] {
                let adapter = layer.adapter.as_ref().expect("an adapter");
                for param in [&adapter.a, &adapter.b] {
                    assert_eq!(param.val().dtype(), dtype);
                    found.push(numbers(param.val().grad(&grads).expect("a gradient")));
                }
                assert!(layer.base.weight.val().grad(&grads).is_none(), "the layer is frozen");
            }
            for (limited, found) in results().iter().zip(found) {
                hold(limited, &found, unit);
            }
        }
    }
}

#[test]
fn only_adapters_are_trained() {
    let device = Device::rocm(0).autodiff();
    let mut network = Network::read(&device, DType::F32);
    let base = |network: &Network| {
        [&network.first, &network.second, &network.head].map(|layer| numbers(layer.base.weight.val()))
    };
    let value = |network: &Network| numbers(network.loss(&device, DType::F32)[1].clone())[0];
    let (before, loss) = (base(&network), value(&network));
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
    for _ in 0..30 {
        let grads = network.loss(&device, DType::F32)[1].clone().backward();
        let grads = GradientsParams::from_grads(grads, &network);
        assert_eq!(grads.len(), 4);
        network = optimizer.step(1e-2, network, grads);
    }
    assert_eq!(base(&network), before, "frozen layers keep their bits");
    assert!(value(&network) < 0.7 * loss, "the loss falls");

    // PEFT's file has the trained matrices, and the merged weights have them too.
    let (name, rank, scale) = LAYERS[0];
    let (layer, pair) = network.first.pair().unwrap().expect("an adapter");
    assert_eq!((layer.as_str(), pair.a.shape, pair.b.shape), (name, [rank, 10], [12, rank]));
    let old = FLOATS.tensor("adapter_model.safetensors", &format!("base_model.model.{name}.lora_A.weight"));
    assert_ne!(pair.a.data().iter::<f64>().collect::<Vec<_>>(), old.values);
    let merged = numbers(network.first.merged().unwrap().weight.val());
    let (a, b): (Vec<f64>, Vec<f64>) = (pair.a.data().iter().collect(), pair.b.data().iter().collect());
    for (k, found) in merged.into_iter().enumerate() {
        let (input, output) = (k / 12, k % 12);
        let term = |r: usize| scale * a[r * 10 + input] * b[output * rank + r];
        let expected = before[0][k] + (0..rank).map(term).sum::<f64>();
        let whole = before[0][k].abs() + (0..rank).map(|r| term(r).abs()).sum::<f64>();
        let limit = 1.01 * whole * (rank + 5) as f64 * 2f64.powi(-24);
        assert!((found - expected).abs() <= limit, "{k}: {found}, not {expected}");
    }
}

/// An adapter of Burn in the frozen layer is merged as well. The other one is new, so it adds 0.
#[test]
fn an_adapter_of_burn_is_merged_too() {
    let layer: Linear = LinearConfig::new(6, 4).init(&v22::device());
    let layer = v22::filled(layer.apply_lora(Lora::new(2, 4.0)), Ty::F32);
    let expected = numbers(layer.weight.val());
    let lora = LoraConfig::new(2, Targets::names(["layer"])).build().unwrap();
    let merged = lora.adapt("layer", layer).merged().unwrap();
    for (found, expected) in numbers(merged.weight.val()).into_iter().zip(expected) {
        // A weight is `w + 2 (a b + c d)` of numbers below 2, and is rounded four times.
        let limit = 18.0 * 4.0 * 2f64.powi(-24);
        assert!((found - expected).abs() <= limit, "{found}, not {expected}");
    }
}

/// As for a model that only serves. Burn's `train` makes it trainable.
#[test]
fn adapters_of_a_model_without_autodiff() {
    let device = Device::rocm(0);
    let network = Network::read(&device, DType::F32);
    let output = network.first.forward(tensor(&reference("x"), &device, DType::F32));
    assert!(!output.is_autodiff());
    let trained = network.train().first.adapter.expect("an adapter");
    assert!(trained.a.is_require_grad() && trained.b.is_require_grad());
}
