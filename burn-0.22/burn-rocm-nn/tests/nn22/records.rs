//! Records: Burn's modules load into this crate's, and the other way round.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn as theirs;
use burn::tensor::{Device, Tensor};
use burn_rocm_nn_022 as ours;

fn values(module: &impl Module) -> Vec<Vec<f32>> {
    struct Read(Vec<Vec<f32>>);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().iter::<f32>().collect());
        }
    }
    let mut read = Read(Vec::new());
    module.visit(&mut read);
    read.0
}

/// Each of two new modules takes the other's parameters.
fn both_ways<A: Module, B: Module>(what: &str, make_a: impl Fn() -> A, make_b: impl Fn() -> B) {
    let (a, b) = (make_a(), make_b());
    let (in_a, in_b) = (values(&a), values(&b));
    assert!(!in_a.is_empty() && in_a != in_b || what.contains("norm"), "{what}: new modules differ");
    assert_eq!(values(&make_b().load_record(a.into_record())), in_a, "{what}: into the second");
    assert_eq!(values(&make_a().load_record(b.into_record())), in_b, "{what}: into the first");
}

#[test]
fn burns_records() {
    let device = &Device::rocm(0);
    both_ways(
        "layer norm",
        || theirs::LayerNormConfig::new(6).init(device),
        || ours::LayerNormConfig::new(6).init(device),
    );
    both_ways(
        "RMS norm",
        || theirs::RmsNormConfig::new(6).init(device),
        || ours::RmsNormConfig::new(6).init(device),
    );
    both_ways(
        "group norm",
        || theirs::GroupNormConfig::new(2, 6).init(device),
        || ours::GroupNormConfig::new(2, 6).init(device),
    );
    both_ways(
        "linear",
        || theirs::LinearConfig::new(3, 4).init(device),
        || ours::LinearActConfig::new(3, 4, ours::Act::Relu).init(device),
    );
    both_ways(
        "convolution",
        || theirs::conv::Conv2dConfig::new([2, 4], [3, 3]).init(device),
        || ours::ConvActConfig::new([2, 4], [3, 3], ours::Act::Relu).init(device),
    );
    both_ways(
        "SwiGLU",
        || theirs::SwiGluConfig::new(3, 4).init(device),
        || ours::SwiGluConfig::new(3, 4).init(device),
    );
    both_ways(
        "attention",
        || theirs::attention::MultiHeadAttentionConfig::new(8, 2).init(device),
        || ours::attention::MultiHeadAttentionConfig::new(8, 2).init(device),
    );
    both_ways(
        "encoder",
        || theirs::transformer::TransformerEncoderConfig::new(8, 16, 2, 2).init(device),
        || ours::transformer::TransformerEncoderConfig::new(8, 16, 2, 2).init(device),
    );
}

/// A layer that appears as Burn's keeps doing so: its name, its parameters' ids, and its state of training.
#[test]
fn layers_like_burns() {
    let device = Device::rocm(0).autodiff();
    let layer = ours::LinearActConfig::new(3, 4, ours::Act::Gelu).init(&device);
    assert_eq!(layer.num_params(), 16);
    let ids = [layer.weight.id, layer.bias.as_ref().unwrap().id];
    let valid = layer.valid();
    assert!(!valid.weight.val().is_autodiff());
    let again = valid.train();
    assert!(again.weight.is_require_grad());
    assert_eq!([again.weight.id, again.bias.as_ref().unwrap().id], ids);
    assert_eq!(layer.devices(), [Device::rocm(0)]);
    let shown = format!("{layer}");
    assert!(shown.contains("d_input: 3") && shown.contains("Gelu"), "{shown}");
}
