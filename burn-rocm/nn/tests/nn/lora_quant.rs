//! Adapters of layers with quantised weights: PyTorch's gradients, training, PEFT's files, devices.

use std::path::Path;

use burn::module::{AutodiffModule, Module, Param};
use burn::tensor::backend::Backend;
use burn_rocm::{RocmDevice, f16};
use burn_rocm_nn::language::lora::{LoraConfig, LoraError, LoraLayer, Peft, Targets};
use burn_rocm_nn::language::quant::{
    GroupScales, GroupZeros, GroupedWeights, QuantLinear, QuantWeight, RoundTo, WeightParts, round_to_nearest,
};
use burn_rocm_nn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn_rocm_tests::again;
use burn_rocm_tests::limits::unit;

use crate::lora_reference::{LAYERS, Limited, Matrix, QUANTISED, hold};
use crate::support::{DType, Ours, Random, Tensor, TensorData};

/// The network of quantised weights of `tests/llama/lora.py`.
#[derive(Module, Debug)]
struct Network<B: Backend> {
    first: LoraLayer<B, QuantLinear>,
    second: LoraLayer<B, QuantLinear>,
    head: LoraLayer<B, QuantLinear>,
}

fn tensor<B: Backend>(matrix: &Matrix) -> Tensor<B, 2> {
    let data = TensorData::new(matrix.values.clone(), [matrix.rows, matrix.columns]);
    Tensor::from_data(data, (&Default::default(), DType::F32))
}

fn weight(name: &str) -> QuantWeight {
    let of = |kind: &str| QUANTISED.reference(&format!("{kind}.{name}"));
    let bytes = |kind: &str| of(kind).values.into_iter().map(|x| x as u8).collect::<Vec<_>>();
    let (codes, scales) = (of("codes"), of("scales").values);
    let (bits, group) = match name {
        "blocks.0.q_proj" => (4, 32),
        "blocks.1.out_proj" => (8, 32),
        _ => (8, 64),
    };
    let weights = GroupedWeights {
        shape: [codes.rows, codes.columns],
        bits,
        group: Some(group),
        scales: GroupScales::F16(scales.into_iter().map(|x| f16::from_f64(x).to_bits()).collect()),
        zeros: GroupZeros::Each(bytes("zeros")),
        order: None,
    };
    let code = |out: usize, input: usize| codes.values[out * codes.columns + input] as u8;
    QuantWeight::upload(&WeightParts::grouped(weights, code).unwrap(), &RocmDevice::default()).unwrap()
}

fn linear<B: Backend>(name: &str) -> QuantLinear {
    let bias = (name != "blocks.1.out_proj")
        .then(|| tensor::<B>(&QUANTISED.reference(&format!("base.{name}.bias"))).squeeze_dim::<1>(0));
    QuantLinear::new(weight(name), bias).unwrap()
}

impl<B: Backend> Network<B> {
    fn read(folder: &Path) -> Self {
        let peft = Peft::read(folder).unwrap();
        let layer = |name: &str| peft.adapt(name, linear::<B>(name)).unwrap();
        Self { first: layer("blocks.0.q_proj"), second: layer("blocks.1.out_proj"), head: layer("head") }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.head.forward(self.second.forward(self.first.forward(x).tanh()).tanh())
    }

    fn loss(&self) -> [Tensor<B, 2>; 2] {
        let output = self.forward(tensor(&QUANTISED.reference("x")));
        let loss = (output.clone() - tensor(&QUANTISED.reference("target"))).powi_scalar(2).mean();
        [output, loss.reshape([1, 1])]
    }
}

fn numbers<B: Backend>(tensor: Tensor<B, 2>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

#[test]
fn gradients_are_those_of_pytorch() {
    let network = Network::<Ours>::read(&QUANTISED.folder());
    assert!(network.head.adapter.is_none());
    let [output, loss] = network.loss();
    let grads = loss.clone().backward();
    let mut found = vec![numbers(output), numbers(loss)];
    for layer in [&network.first, &network.second] {
        let adapter = layer.adapter.as_ref().expect("an adapter");
        for param in [&adapter.a, &adapter.b] {
            assert_eq!(param.val().dtype(), DType::F32);
            found.push(numbers(param.val().grad(&grads).expect("a gradient")));
        }
    }
    assert_eq!(GradientsParams::from_grads(grads, &network).len(), 4, "only adapters are trained");
    let results = QUANTISED.results();
    for (limited, found) in results.iter().zip(&found) {
        hold(limited, found, unit(DType::F32));
    }
    // Seven rows are the product of another kernel than twenty.
    let few = |matrix: &Matrix| Matrix {
        rows: 7,
        columns: matrix.columns,
        values: matrix.values[..7 * matrix.columns].to_vec(),
    };
    let Limited { ref name, ref expected, ref magnitude, roundings } = results[0];
    let (expected, magnitude) = (few(expected), few(magnitude));
    let limited = Limited { name: name.clone(), expected, magnitude, roundings };
    let x = few(&QUANTISED.reference("x"));
    hold(&limited, &numbers(network.forward(tensor(&x))), unit(DType::F32));
}

/// Two outputs of the same numbers. Matrices of adapters may lie in memory in other orders, so each
/// output has its own order of sums.
fn same(network: &Network<Ours>, expected: &[f64], found: &[f64]) {
    let adapters = [&network.first, &network.second].map(|layer| {
        let adapter = layer.adapter.as_ref().expect("an adapter");
        [&adapter.a, &adapter.b].map(|param| {
            let [rows, columns] = param.val().dims();
            Matrix { rows, columns, values: numbers(param.val()) }
        })
    });
    let Limited { name, magnitude, roundings, .. } = QUANTISED.results_with(&adapters).remove(0);
    let expected = Matrix { values: expected.to_vec(), ..magnitude.clone() };
    hold(&Limited { name, expected, magnitude, roundings }, found, 2.0 * unit(DType::F32));
}

#[test]
fn only_adapters_are_trained_and_written() {
    let mut network = Network::<Ours>::read(&QUANTISED.folder());
    let floats = |network: &Network<Ours>| {
        [&network.first, &network.second, &network.head]
            .map(|layer| layer.base.weight().dequantize(DType::F32).unwrap())
            .map(|floats| burn_rocm::fused::read_all(vec![floats]).unwrap())
    };
    let loss = |network: &Network<Ours>| numbers(network.loss()[1].clone())[0];
    let (weights, before) = (floats(&network), loss(&network));
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
    for _ in 0..30 {
        let grads = GradientsParams::from_grads(network.loss()[1].clone().backward(), &network);
        network = optimizer.step(1e-2, network, grads);
    }
    assert_eq!(optimizer.to_record().len(), 4, "states of the adapters' parameters alone");
    assert_eq!(floats(&network), weights, "codes keep their bits");
    assert!(loss(&network) < 0.7 * before, "the loss falls: {before} to {}", loss(&network));
    let count = |name: usize| LAYERS[name].1 * [70 + 40, 40 + 33][name];
    assert_eq!(network.num_params(), count(0) + count(1));
    let shown =
        "QuantLinear {\n      d_input: 70\n      d_output: 40\n      format: Int4\n      bias: true\n";
    assert!(format!("{network}").contains(shown), "{network}");

    // PEFT's folder has the trained adapters, which another network reads.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lora-quantised");
    let lora = Peft::read(&QUANTISED.folder()).unwrap().lora().clone();
    let pairs = [&network.first, &network.second].map(|layer| layer.pair().unwrap().unwrap());
    Peft::new(lora, pairs).unwrap().write(&folder).unwrap();
    let again = Network::<Ours>::read(&folder);
    let pair = |network: &Network<Ours>| {
        [&network.first, &network.second].map(|layer| layer.pair().unwrap().expect("an adapter"))
    };
    assert_eq!(pair(&again), pair(&network));
    let x = || QUANTISED.reference("x");
    let expected = numbers(network.forward(tensor(&x())));
    same(&network, &expected, &numbers(again.forward(tensor(&x()))));
    // So do a copy without autodiff, and a record.
    same(&network, &expected, &numbers(network.valid().forward(tensor(&x()))));
    let other = Network::<Ours>::read(&QUANTISED.folder()).load_record(network.clone().into_record());
    assert_eq!(pair(&other), pair(&network));
    same(&network, &expected, &numbers(other.forward(tensor(&x()))));

    let error = network.first.merged().expect_err("codes can't be added to");
    assert!(matches!(error, LoraError::Layer { .. }), "{error}");
}

/// All numbers are whole and below 2^24, so products and gradients are exact.
#[test]
fn new_adapters_change_nothing() {
    let random = Random::new();
    let [outs, inputs] = [1 + random.below(40), 1 + random.below(200)];
    // Each group of a row has the greatest number, so that its scale is 1.
    let number = |at: usize| match at % inputs % RoundTo::Int8.group() {
        0 => 127.0,
        _ => random.below(255) as f32 - 127.0,
    };
    let whole: Vec<f32> = (0..outs * inputs).map(number).collect();
    let parts = round_to_nearest(&whole, [outs, inputs], RoundTo::Int8).unwrap();
    let weight = QuantWeight::upload(&parts, &RocmDevice::default()).unwrap();
    let base = QuantLinear::new::<Ours>(weight, None).unwrap();
    let lora = LoraConfig::new(2, Targets::All).build().unwrap();
    let layer: LoraLayer<Ours, QuantLinear> = lora.adapt("layer", base);
    let x: Vec<f32> = (0..3 * inputs).map(|_| random.below(9) as f32 - 4.0).collect();
    let input = Tensor::<Ours, 2>::from_data(TensorData::new(x.clone(), [3, inputs]), &Default::default());
    let input = input.require_grad();
    let output = layer.forward(input.clone());
    let grads = output.clone().sum().backward();
    let sum = |row: usize, out: usize| -> f32 {
        (0..inputs).map(|at| x[row * inputs + at] * whole[out * inputs + at]).sum()
    };
    let expected: Vec<f64> =
        (0..3).flat_map(|row| (0..outs).map(move |out| (row, out))).map(|(r, o)| sum(r, o).into()).collect();
    assert_eq!(numbers(output), expected);
    let of_x = |input: usize| -> f64 { (0..outs).map(|out| f64::from(whole[out * inputs + input])).sum() };
    let expected: Vec<f64> = (0..3).flat_map(|_| (0..inputs).map(of_x)).collect();
    assert_eq!(numbers(input.grad(&grads).unwrap()), expected);
    // B has a gradient at once, A's is 0 because B is.
    let adapter = layer.adapter.as_ref().expect("an adapter");
    let grad = |param: &Param<Tensor<Ours, 2>>| numbers(param.val().grad(&grads).expect("a gradient"));
    assert!(grad(&adapter.a).iter().all(|&g| g == 0.0));
    assert_eq!(grad(&adapter.b).len(), 2 * outs);
}

#[test]
fn layers_move_to_another_device() {
    if std::env::var_os("BURN_ROCM_CPU_DEVICES").is_none() {
        let name = "lora_quant::layers_move_to_another_device";
        let environment = [("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")];
        let text = again(&["--exact", name], &environment);
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    let second = RocmDevice::new(1);
    let moved = Network::<Ours>::read(&QUANTISED.folder()).fork(&second);
    assert_eq!(moved.devices(), std::slice::from_ref(&second));
    let output = moved.forward(tensor::<Ours>(&QUANTISED.reference("x")).to_device(&second));
    assert_eq!(output.device(), second);
    hold(&QUANTISED.results()[0], &numbers(output.clone()), unit(DType::F32));
    let grads = GradientsParams::from_grads(output.sum().backward(), &moved);
    assert_eq!(grads.len(), 4);
}
