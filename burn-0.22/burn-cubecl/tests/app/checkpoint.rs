//! Checkpoints: of Burn 0.21 in Burn 0.22 by way of safetensors, and of every kind of tensor.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Bool, Device, Int, Tensor};

#[derive(Module, Debug)]
struct Model {
    first: Linear,
    second: Linear,
}

/// A tensor of each kind.
#[derive(Module, Debug)]
struct Kinds {
    weights: Param<Tensor<1>>,
    counts: Param<Tensor<1, Int>>,
    mask: Param<Tensor<1, Bool>>,
}

impl Kinds {
    fn new(numbers: [i32; 3], mask: [bool; 3], device: &Device) -> Self {
        let weights = Tensor::from_floats(numbers.map(|n| n as f32), device);
        Self {
            weights: Param::initialized(ParamId::new(), weights),
            counts: Param::initialized(ParamId::new(), Tensor::from_ints(numbers, device)),
            mask: Param::initialized(ParamId::new(), Tensor::from_data(mask, device)),
        }
    }
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

#[test]
fn every_kind_is_saved_and_loaded() {
    let path =
        std::env::temp_dir().join(format!("burn-rocm-app022-kinds-{}.safetensors", std::process::id()));
    let device = Device::rocm(0);
    Kinds::new([3, -5, 7], [true, false, true], &device)
        .save_into(&mut SafetensorsStore::from_file(&path))
        .expect("saved");
    let mut loaded = Kinds::new([0; 3], [false; 3], &device);
    let result = loaded.load_from(&mut SafetensorsStore::from_file(&path)).expect("loaded");
    std::fs::remove_file(&path).expect("it is there");
    assert!(result.missing.is_empty() && result.errors.is_empty(), "{result:?}");
    assert_eq!(loaded.weights.val().into_data().iter::<f32>().collect::<Vec<_>>(), [3.0, -5.0, 7.0]);
    assert_eq!(loaded.counts.val().into_data().iter::<i32>().collect::<Vec<_>>(), [3, -5, 7]);
    assert_eq!(loaded.mask.val().into_data().iter::<bool>().collect::<Vec<_>>(), [true, false, true]);
}
