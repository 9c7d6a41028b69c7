//! Modules whose products hipBLASLt joins with what follows them: values, gradients and training, as
//! the modules' own tests check them.

use burn::module::Module;
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

/// With `auto`, a module's test may end before the third use of a shape: see
/// `stored_choices_join_as_on_does`.
#[test]
fn modules_compute_the_same_with_hipblaslt() {
    for test in TESTS {
        let text = again(&["--exact", test], &[("BURN_ROCM_HIPBLASLT", "on")]);
        assert!(text.contains("1 passed"), "{test}: {text}");
    }
}

/// An encoder layer's steps in a process of the tests below: the products that hipBLASLt joins in the
/// fourth, when the shapes have been timed, and the loss.
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
        <Ours as burn::tensor::backend::Backend>::seed(&Default::default(), 20);
        // A record draws the parameters in their order, not in the order in which a path reads them.
        let encoder = config.init::<Ours>(&Default::default());
        let record = encoder.clone().into_record();
        let encoder = encoder.load_record(record);
        let x = tensor::<Ours, 3>(&uniform(&Random::new(), &[4, 32, 16]), DType::F32).require_grad();
        let step = || {
            let out = encoder.forward(TransformerEncoderInput::new(x.clone()));
            let loss = (out.clone() * out).mean();
            let gradients = loss.backward();
            (loss.into_scalar(), x.grad(&gradients).unwrap().abs().sum().into_scalar())
        };
        for _ in 0..3 {
            step();
        }
        let ((loss, gradient), lines) = during(step);
        println!("{name} loss {loss} {gradient}");
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
    assert_eq!(joined(&steps(&[("BURN_ROCM_HIPBLASLT", "on")])), ALL);
}

/// The choices of `auto` come from the tuning store, all replaced by hipBLASLt's first algorithm. So
/// the products that `on` joins are joined, and loss and gradient are those of a process without
/// hipBLASLt.
#[test]
fn stored_choices_join_as_on_does() {
    let folder = std::env::temp_dir().join(format!("burn-rocm-joined-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let auto = [("BURN_ROCM_HIPBLASLT", "auto"), ("BURN_ROCM_CACHE_DIR", folder.to_str().unwrap())];
    steps(&auto);
    for file in std::fs::read_dir(folder.join("tuning")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let first = |line: &str| {
            if line.starts_with("solution ") { "solution 1\n".into() } else { format!("{line}\n") }
        };
        std::fs::write(&path, text.lines().map(first).collect::<String>()).unwrap();
    }
    let text = steps(&auto);
    // And products that nothing follows, which `on` leaves to rocBLAS.
    let (found, least) = (joined(&text), ALL.as_flattened().as_flattened());
    assert!(
        found.as_flattened().as_flattened().iter().zip(least).all(|(found, least)| found >= least),
        "{text}"
    );
    let figures = |text: &str| -> Vec<f64> {
        let lines = text.lines().filter_map(|line| line.split_once(" loss "));
        lines
            .flat_map(|(_, rest)| rest.split(' ').map(|figure| figure.parse().unwrap()).collect::<Vec<_>>())
            .collect()
    };
    let (found, expected) = (figures(&text), figures(&steps(&[("BURN_ROCM_HIPBLASLT", "off")])));
    assert_eq!(expected.len(), 4, "{text}");
    // A layer's sums of at most 128 terms, ten products one after the other: 2^11 roundings of f32.
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 2f64.powi(11 - 24) * b.abs();
    assert!(found.iter().zip(&expected).all(near), "{found:?} instead of {expected:?}");
    let _ = std::fs::remove_dir_all(&folder);
}

/// What `a_step` prints with these settings, and with one seed in each process.
fn steps(settings: &[(&str, &str)]) -> String {
    let arguments = ["--ignored", "--exact", "joined_products::a_step", "--nocapture"];
    let fixed = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_TEST_SEED", "20")];
    again(&arguments, &[&fixed, settings].concat())
}

/// With exact GELU and with GELU by tanh: the joined products of self-attention, of sums and of
/// feed-forward layers, forward and backward.
const ALL: [[[usize; 2]; 3]; 2] = [[[1, 1], [2, 2], [0, 0]], [[1, 1], [1, 1], [2, 2]]];

/// As [`ALL`], what a process has printed.
fn joined(text: &str) -> [[[usize; 2]; 3]; 2] {
    let of = |op: &str| text.lines().filter(|line| *line == format!("{op} f32")).count();
    let ops = ["nn_self_attention", "nn_linear_add", "nn_feed_forward"];
    ["exact", "tanh"]
        .map(|name| ops.map(|op| [of(&format!("{name} {op}")), of(&format!("{name} {op}_backward"))]))
}
