//! Adapters of layers with quantised weights: PyTorch's gradients, training, devices.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_rocm::f16;
use burn_rocm_nn_022::language::lora::{LoraLayer, Peft};
use burn_rocm_nn_022::language::quant::{
    GroupScales, GroupZeros, GroupedWeights, QuantLinear, QuantWeight, WeightParts,
};
use burn_rocm_nn_022::optim::{AdamWConfig, GradientsParams};

use crate::again::again;
use crate::lora_reference::{LAYERS, Limited, Matrix, QUANTISED, hold};

/// The network of quantised weights of `tests/llama/lora.py`.
#[derive(Module, Debug)]
struct Network {
    first: LoraLayer<QuantLinear>,
    second: LoraLayer<QuantLinear>,
    head: LoraLayer<QuantLinear>,
}

fn tensor(name: &str, device: &Device) -> Tensor<2> {
    let Matrix { rows, columns, values } = QUANTISED.reference(name);
    Tensor::from_data(TensorData::new(values, [rows, columns]), (device, DType::F32))
}

fn linear(name: &str) -> QuantLinear {
    let of = |kind: &str| QUANTISED.reference(&format!("{kind}.{name}"));
    let (codes, zeros, scales) = (of("codes"), of("zeros"), of("scales"));
    let (bits, group) = match name {
        "blocks.0.q_proj" => (4, 32),
        "blocks.1.out_proj" => (8, 32),
        _ => (8, 64),
    };
    let weights = GroupedWeights {
        shape: [codes.rows, codes.columns],
        bits,
        group: Some(group),
        scales: GroupScales::F16(scales.values.iter().map(|&x| f16::from_f64(x).to_bits()).collect()),
        zeros: GroupZeros::Each(zeros.values.iter().map(|&x| x as u8).collect()),
        order: None,
    };
    let code = |out: usize, input: usize| codes.values[out * codes.columns + input] as u8;
    let parts = WeightParts::grouped(weights, code).unwrap();
    let weight = QuantWeight::upload(&parts, &Default::default()).unwrap();
    let bias = (name != "blocks.1.out_proj")
        .then(|| tensor(&format!("base.{name}.bias"), &Device::rocm(0)).squeeze_dim::<1>(0));
    QuantLinear::new(weight, bias).unwrap()
}

impl Network {
    fn read() -> Self {
        Self::on(&Device::rocm(0))
    }

    fn on(device: &Device) -> Self {
        let peft = Peft::read(&QUANTISED.folder()).unwrap();
        let layer = |name: &str| peft.adapt(name, linear(name).to_device(device)).unwrap();
        Self { first: layer("blocks.0.q_proj"), second: layer("blocks.1.out_proj"), head: layer("head") }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(self.second.forward(self.first.forward(x).tanh()).tanh())
    }

    fn loss(&self, device: &Device) -> [Tensor<2>; 2] {
        let output = self.forward(tensor("x", device));
        let loss = (output.clone() - tensor("target", device)).powi_scalar(2).mean();
        [output, loss.reshape([1, 1])]
    }
}

fn numbers(tensor: Tensor<2>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

#[test]
fn gradients_are_those_of_pytorch() {
    let device = Device::rocm(0).autodiff();
    compare_gradients(&Network::read(), &device);
}

#[test]
fn gradients_with_checkpointing_are_those_of_pytorch() {
    let device = Device::rocm(0).autodiff().gradient_checkpointing();
    let strategy = device.gradient_checkpointing_strategy();
    let network = Network::on(&device);
    assert_eq!(network.devices()[0].gradient_checkpointing_strategy(), strategy);
    compare_gradients(&network, &device);
    // As with parameters, the model's strategy stays when it moves.
    let network = network.fork(&Device::rocm(0).autodiff());
    assert_eq!(network.devices()[0].gradient_checkpointing_strategy(), strategy);
    compare_gradients(&network, &device);
}

fn compare_gradients(network: &Network, device: &Device) {
    let [output, loss] = network.loss(device);
    let grads = loss.clone().backward();
    let mut found = vec![numbers(output), numbers(loss)];
    for layer in [&network.first, &network.second] {
        let adapter = layer.adapter.as_ref().expect("an adapter");
        for param in [&adapter.a, &adapter.b] {
            found.push(numbers(param.val().grad(&grads).expect("a gradient")));
        }
    }
    assert_eq!(GradientsParams::from_grads(grads, network).len(), 4, "only adapters are trained");
    for (limited, found) in QUANTISED.results().iter().zip(found) {
        hold(limited, &found, 2f64.powi(-24));
    }
}

/// Two outputs of the same numbers, each with its own order of sums.
fn same(network: &Network, expected: &[f64], found: &[f64]) {
    let adapters = [&network.first, &network.second].map(|layer| {
        let adapter = layer.adapter.as_ref().expect("an adapter");
        [&adapter.a, &adapter.b].map(|param| {
            let [rows, columns] = param.val().dims();
            Matrix { rows, columns, values: numbers(param.val()) }
        })
    });
    let Limited { name, magnitude, roundings, .. } = QUANTISED.results_with(&adapters).remove(0);
    let expected = Matrix { values: expected.to_vec(), ..magnitude.clone() };
    hold(&Limited { name, expected, magnitude, roundings }, found, 2.0 * 2f64.powi(-24));
}

#[test]
fn only_adapters_are_trained() {
    let device = Device::rocm(0).autodiff();
    let mut network = Network::read();
    let value = |network: &Network| numbers(network.loss(&device)[1].clone())[0];
    let before = value(&network);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
    for _ in 0..30 {
        let grads = network.loss(&device)[1].clone().backward();
        network = optimizer.step(1e-2, network.clone(), GradientsParams::from_grads(grads, &network));
    }
    assert!(value(&network) < 0.7 * before, "the loss falls: {before} to {}", value(&network));
    assert_eq!(network.num_params(), LAYERS[0].1 * (70 + 40) + LAYERS[1].1 * (40 + 33));
    let expected = numbers(network.forward(tensor("x", &device)));
    let plain = network.valid().forward(tensor("x", &Device::rocm(0)));
    assert!(!plain.is_autodiff());
    same(&network, &expected, &numbers(plain));
    let other = Network::read().load_record(network.clone().into_record());
    same(&network, &expected, &numbers(other.forward(tensor("x", &device))));
    assert!(network.first.merged().is_err());
}

/// Burn's evaluator and learners take the first device of a model.
#[test]
fn models_of_quantised_layers_alone_have_a_device() {
    let device = Device::rocm(0);
    let first = |model: &Vec<QuantLinear>| {
        let devices = model.devices();
        assert_eq!(devices, std::slice::from_ref(&device));
        devices[0].is_autodiff()
    };
    for name in ["blocks.0.q_proj", "blocks.1.out_proj"] {
        let model = vec![linear(name), linear(name)];
        assert!(!first(&model));
        assert!(first(&model.clone().train()));
        assert!(!first(&model.train().valid()));
    }
    let network = Network::read();
    assert!(network.devices()[0].is_autodiff(), "as the adapters have");
    assert!(!network.valid().devices()[0].is_autodiff());
}

#[test]
fn layers_move_to_another_device() {
    if std::env::var_os("BURN_ROCM_CPU_DEVICES").is_none() {
        let name = "lora_quant::layers_move_to_another_device";
        again(&["--exact", name], &[("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")]);
        return;
    }
    let second = Device::rocm(1).autodiff();
    let moved = Network::read().fork(&second);
    assert_eq!(moved.devices(), std::slice::from_ref(&second));
    let output = moved.forward(tensor("x", &second));
    assert_eq!(output.device(), second);
    hold(&QUANTISED.results()[0], &numbers(output.clone()), 2f64.powi(-24));
    assert_eq!(GradientsParams::from_grads(output.sum().backward(), &moved).len(), 4);
}
