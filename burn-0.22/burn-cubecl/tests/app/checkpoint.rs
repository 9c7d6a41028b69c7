//! Loads a checkpoint of Burn 0.21 into Burn 0.22 through safetensors.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Device, Tensor};

#[derive(Module, Debug)]
struct Model {
    first: Linear,
    second: Linear,
}

mod before {
    use burn_021 as burn;
    use burn_021::module::Module;
    use burn_021::nn::{Linear, LinearConfig};
    use burn_021::tensor::{Tensor, backend::Backend};
    use burn_flex_021::Flex;
    use burn_store_021::{ModuleSnapshot, SafetensorsStore};

    #[derive(Module, Debug)]
    pub(super) struct Model<B: Backend> {
        first: Linear<B>,
        second: Linear<B>,
    }

    /// Saves a new model and returns its output.
    pub(super) fn save(path: &std::path::Path, x: [[f32; 3]; 2]) -> Vec<f32> {
        let device = Default::default();
        let model = Model::<Flex> {
            first: LinearConfig::new(3, 5).init(&device),
            second: LinearConfig::new(5, 2).with_bias(false).init(&device),
        };
        model.save_into(&mut SafetensorsStore::from_file(path)).expect("saved");
        let y = model.second.forward(model.first.forward(Tensor::<Flex, 2>::from_floats(x, &device)));
        y.into_data().to_vec().expect("f32")
    }
}

#[test]
fn a_checkpoint_of_burn_0_21() {
    let path = std::env::temp_dir().join(format!("burn-rocm-app022-{}.safetensors", std::process::id()));
    let x = [[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]];
    let expected = before::save(&path, x);
    let device = Device::rocm(0);
    let mut model = Model {
        first: LinearConfig::new(3, 5).init(&device),
        second: LinearConfig::new(5, 2).with_bias(false).init(&device),
    };
    let result = model.load_from(&mut SafetensorsStore::from_file(&path)).expect("loaded");
    std::fs::remove_file(&path).expect("it is there");
    assert!(result.missing.is_empty() && result.errors.is_empty(), "{result:?}");
    let y = model.second.forward(model.first.forward(Tensor::<2>::from_floats(x, &device)));
    for (a, b) in y.into_data().try_to_vec::<f32>().unwrap().iter().zip(&expected) {
        // Two sums, of 4 and of 5 terms of at most 4, in any order; the weights are below 1.
        assert!((a - b).abs() <= 9.0 * 20.0 / (1u32 << 24) as f32, "{a}, expected {b}");
    }
}
