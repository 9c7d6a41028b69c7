//! What a unit of a divided model may hold.

use burn::tensor::FloatDType;
use burn_rocm::RocmError;

use crate::*;

/// One linear layer, used twice.
#[derive(Module, Debug)]
struct Tied {
    first: Linear,
    again: Linear,
}

fn linear(from: usize, to: usize, seed: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).init(device).map(&mut Fill(1000 * seed))
}

impl Tied {
    fn new(device: &Device) -> Self {
        let first = linear(7, 7, 1, device);
        Self { again: first.clone(), first }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.again.forward(activation::tanh(self.first.forward(x)))
    }
}

/// The gradient of a parameter that a unit holds twice is that of both uses.
#[test]
fn a_unit_may_hold_a_parameter_twice() {
    let Some(count) = devices("units::a_unit_may_hold_a_parameter_twice") else { return };
    const RATE: f64 = 0.5;
    let device = Device::rocm(0).autodiff();
    let block = Tied::new(&device);
    let (x, y) = samples(&[1, 2, 3], &device);
    let x = block.forward(linear(FEATURES, 7, 0, &device).forward(x));
    let grads = (linear(7, 1, 2, &device).forward(x) - y).powi_scalar(2).mean().backward();
    let weight = block.first.weight.val();
    let grad = weight.grad(&grads).expect("the weight is used");
    let expected: Vec<f64> = (weight.inner() - grad * RATE).into_data().iter::<f64>().collect();

    let found = on_ranks(count, |ranks, device| {
        let config = ShardedModelConfig::new(SgdConfig::new());
        let (first, last) = (|| linear(FEATURES, 7, 0, &device), || linear(7, 1, 2, &device));
        let mut model = ShardedModel::build(&ranks, config, first, 1, |_| Tied::new(&device), last).unwrap();
        let (x, y) = samples(&[1, 2, 3], &device);
        model.step(
            RATE,
            Share::EVEN,
            |first: &Linear| first.forward(x.clone()),
            |_, block: &Tied, x| block.forward(x),
            |last: &Linear, x| (last.forward(x) - y).powi_scalar(2).mean(),
        );
        let block = model.whole_block(0);
        [block.first, block.again].map(|layer| numbers(&layer, None).remove(0))
    });
    for found in found.into_iter().flatten() {
        agree("a weight used twice", &[found], &[Some(expected.clone())], 1);
    }
}

/// The loss can't be scaled, so f16 is refused.
#[test]
fn f16_is_refused() {
    let Some(count) = devices("units::f16_is_refused") else { return };
    let errors = on_ranks(count, |ranks, device| {
        let unit = || linear(7, 7, 0, &device);
        let config = ShardedModelConfig::new(AdamWConfig::new()).with_dtype(FloatDType::F16);
        ShardedModel::build(&ranks, config, unit, 1, |_| unit(), unit).map(drop).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, RocmError::Unsupported { dtype: Some("f16"), .. }), "{error}");
    }
}
