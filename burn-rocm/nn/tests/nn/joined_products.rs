//! Modules whose products hipBLASLt joins with what follows them: values, gradients and training, as
//! the modules' own tests check them.

use burn::nn::activation::ActivationConfig;
use burn_rocm_tests::again;
use burn_rocm_tests::trace::during;

use crate::support::*;

const TESTS: [&str; 6] = [
    "layer::linear_and_activation",
    "self_attention::values_and_gradients",
    "attention_encoder::encoder_and_its_gradients",
    "attention_encoder::one_layer",
    "attention_encoder::it_trains_as_burns",
    "attention_encoder::position_wise_layers",
];

#[test]
fn modules_compute_the_same_with_hipblaslt() {
    for mode in ["on", "auto"] {
        for test in TESTS {
            // The store would keep what a test times.
            let variables = [("BURN_ROCM_HIPBLASLT", mode), ("BURN_ROCM_TUNING", "0")];
            let text = again(&["--exact", test], &variables);
            assert!(text.contains("1 passed"), "{mode}, {test}: {text}");
        }
    }
}

/// An encoder layer's step in a process of the test below.
#[test]
#[ignore = "run by the test below, with another setting"]
fn a_step() {
    use burn_rocm_nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
    for (name, activation) in [("exact", ActivationConfig::Gelu), ("tanh", ActivationConfig::GeluApproximate)]
    {
        let config = TransformerEncoderConfig::new(16, 32, 2, 1)
            .with_dropout(0.0)
            .with_norm_first(true)
            .with_activation(activation);
        let encoder = config.init::<Ours>(&Default::default());
        let x = tensor::<Ours, 3>(&uniform(&Random::new(), &[4, 32, 16]), DType::F32);
        let (_, lines) =
            during(|| encoder.forward(TransformerEncoderInput::new(x.require_grad())).sum().backward());
        for line in lines.iter().filter(|line| line.contains("hipblasLtMatmul")) {
            println!("{name} {}", line.split_once(':').unwrap().0);
        }
    }
}

/// Queries, keys and values get their bias, and both sums of the layer theirs, from the product. So do
/// the gradients of their biases. With GELU by tanh, the feed-forward layers are one op, in which the
/// activation and its gradient come from products too.
#[test]
fn an_encoder_layer_joins_its_products() {
    let arguments = ["--ignored", "--exact", "joined_products::a_step", "--nocapture"];
    let text = again(&arguments, &[("BURN_ROCM_HIPBLASLT", "on"), ("BURN_ROCM_PROVIDER", "cpu")]);
    let of = |op: &str| text.lines().filter(|line| *line == format!("{op} f32")).count();
    let ops = ["nn_self_attention", "nn_linear_add", "nn_feed_forward"];
    let both = |name: &str| ops.map(|op| [of(&format!("{name} {op}")), of(&format!("{name} {op}_backward"))]);
    assert_eq!(both("exact"), [[1, 1], [2, 2], [0, 0]], "{text}");
    assert_eq!(both("tanh"), [[1, 1], [1, 1], [2, 2]], "{text}");
}
