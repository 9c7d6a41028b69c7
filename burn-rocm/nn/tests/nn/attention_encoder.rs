//! Compares `TransformerEncoder` with Burn's: values, gradients, records, decoding and training.

use burn::module::AutodiffModule;
use burn::nn::activation::ActivationConfig;
use burn::nn::transformer as theirs;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn::attention::generate_autoregressive_mask;
use burn_rocm_nn::transformer as ours;
use burn_rocm_tests::assert_close;
use burn_rocm_tests::trace::during;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::attention::{bools, drawn_bools, loaded, made, saved};
use crate::support::*;

/// The encoder, with Burn's config or with this crate's.
macro_rules! encoder {
    ($api:ident, $B:ident, $norm_first:expr) => {
        $api::TransformerEncoderConfig::new(8, 12, 2, 2)
            .with_dropout(0.0)
            .with_norm_first($norm_first)
            .init::<$B>(&Default::default())
    };
}

/// The output, and the gradients of the input and of one parameter of each kind.
macro_rules! encoded {
    ($B:ident, $api:ident, $norm_first:expr, $record:expr, $data:expr, $masks:expr) => {{
        let module = loaded(encoder!($api, $B, $norm_first), $record);
        let x = tensor::<$B, 3>($data, DType::F32).require_grad();
        let mut input = $api::TransformerEncoderInput::new(x.clone());
        if let Some((pad, attn)) = $masks {
            input = input.mask_pad(bools(pad)).mask_attn(bools(attn));
        }
        let out = module.forward(input);
        let grads = (out.clone() * out.clone().exp()).mean().backward();
        let mut all = vec![out.into_data(), x.grad(&grads).unwrap().into_data()];
        all.extend(gradients_of(&module, &grads));
        all
    }};
}

/// With enough rows for one product of queries, keys and values, and with fewer; also with one
/// batch and with one token.
#[test]
fn encoder_and_its_gradients() {
    let random = Random::new();
    for (norm_first, [batch, sequence]) in [false, true]
        .into_iter()
        .flat_map(|first| [[3, 7], [5, 9], [1, 33], [33, 1]].map(|size| (first, size)))
    {
        let data = uniform(&random, &[batch, sequence, 8]);
        let pad = drawn_bools(&random, &[batch, sequence], 0.3);
        let attn = drawn_bools(&random, &[batch, sequence, sequence], 0.3);
        let record = saved(encoder!(theirs, Oracle, norm_first));
        for masks in [None, Some((&pad, &attn))] {
            let what =
                format!("encoder, norm first {norm_first}, {batch} of {sequence}, masks {}", masks.is_some());
            against_burn!(what, Tolerance::of(DType::F32).times(200.0), |B|
                theirs encoded!(B, theirs, norm_first, &record, &data, masks),
                ours encoded!(B, ours, norm_first, &record, &data, masks)
            );
        }
    }
}

/// A layer gives the same as an encoder that consists of it.
#[test]
fn one_layer() {
    let random = Random::new();
    let data = uniform(&random, &[5, 9, 8]);
    let pad = drawn_bools(&random, &[5, 9], 0.3);
    for norm_first in [false, true] {
        let module = made(encoder!(ours, Ours, norm_first));
        let x = tensor::<Ours, 3>(&data, DType::F32);
        let layer = module.layers[1].forward(x.clone(), Some(bools(&pad)), None);
        let alone = ours::TransformerEncoder { layers: vec![module.layers[1].clone()], ..module.clone() };
        let encoder = alone.forward(ours::TransformerEncoderInput::new(x).mask_pad(bools(&pad)));
        assert_close(&"a layer", &[layer.into_data()], &[encoder.into_data()], Tolerance::EXACT);
    }
}

/// The kernels of a training step of two layers: one copy before and one after the layers, none
/// between products except those that pack a layer's parameters and split their gradients. In each
/// sub-layer, one kernel adds the bias and the sum.
#[test]
fn which_kernels_run() {
    for norm_first in [false, true] {
        let record = saved(encoder!(theirs, Oracle, norm_first));
        let data = uniform(&Random::new(), &[5, 9, 8]);
        let module = loaded(encoder!(ours, Ours, norm_first), &record);
        let x = tensor::<Ours, 3>(&data, DType::F32).require_grad();
        let ((), lines) = during(|| {
            let out = module.forward(ours::TransformerEncoderInput::new(x.clone()));
            assert!(x.grad(&out.sum().backward()).is_some());
        });
        let of = |op: &str| lines.iter().filter(|line| line.starts_with(op)).count();
        let copies = |op: &str| of(&format!("{op} f32: kernel copy_"));
        assert_eq!([copies("nn_swap_leading"), copies("nn_swap_leading_backward")], [2, 2], "{lines:#?}");
        if hip::matmul_route() != Ok(hip::Route::Own) {
            let packing = [copies("nn_self_attention"), copies("nn_self_attention_backward")];
            assert_eq!(packing, [0, 2 * 3], "{lines:#?}");
            let all = lines.iter().filter(|line| line.contains("kernel copy_")).count();
            assert_eq!(all, 4 + 2 * 3, "{lines:#?}");
        }
        assert_eq!(of("nn_bias_add f32: kernel bias_add<f32>"), 2 * 2, "{lines:#?}");
        // Only gradients are added: a sub-layer's input has two. A norm adds its own gradient to
        // the other.
        assert_eq!(of("float_add"), if norm_first { 0 } else { 2 * 2 }, "{lines:#?}");
        // The biases of the output layers and of the position-wise layers are added elsewhere.
        assert!(!lines.iter().any(|line| line.starts_with("linear f32: kernel")), "{lines:#?}");
    }
}

/// In training, dropout comes between a sub-layer's bias and its sum. In inference one kernel
/// computes both.
#[test]
fn sums_are_joined_where_nothing_is_dropped() {
    let config = ours::TransformerEncoderConfig::new(8, 12, 2, 1).with_dropout(0.3);
    let module = made(config.init::<Ours>(&Default::default()));
    let x = tensor::<Ours, 3>(&uniform(&Random::new(), &[5, 9, 8]), DType::F32);
    let joined =
        |lines: Vec<String>| lines.iter().filter(|line| line.starts_with("nn_bias_add f32: kernel")).count();
    let (_, training) = during(|| module.forward(ours::TransformerEncoderInput::new(x.clone())));
    let valid = module.valid();
    let (_, inference) = during(|| valid.forward(ours::TransformerEncoderInput::new(x.clone().inner())));
    assert_eq!([joined(training), joined(inference)], [0, 2]);
}

#[test]
fn a_record_loads_into_burns_encoder_and_back() {
    let module = made(encoder!(ours, Ours, true));
    let bytes = saved(module.clone());
    let burns = loaded(encoder!(theirs, Oracle, true), &bytes);
    let (one, other) = (&module.layers[1].norm_2.gamma, &burns.layers[1].norm_2.gamma);
    assert_close(&"in Burn's", &[other.val().into_data()], &[one.val().into_data()], Tolerance::EXACT);
    let again = saved(loaded(encoder!(ours, Ours, true), &saved(burns)));
    assert!(again == bytes, "the same bytes");
}

#[test]
fn it_prints_as_burns() {
    assert_eq!(encoder!(ours, Ours, true).to_string(), encoder!(theirs, Oracle, true).to_string());
    let (ours, theirs) = (encoder!(ours, Ours, true), encoder!(theirs, Oracle, true));
    assert_eq!(ours.layers[0].pwff.to_string(), theirs.layers[0].pwff.to_string());
}

#[test]
fn autoregressive_inference() {
    type B = burn_rocm::Rocm;
    let data = uniform(&Random::new(), &[2, 5, 8]).convert::<f32>();
    let x = Tensor::<B, 3>::from_data(data, &Default::default());
    for norm_first in [false, true] {
        let module = made(encoder!(ours, B, norm_first));
        let mask = generate_autoregressive_mask(2, 5, &x.device());
        let whole = module.forward(ours::TransformerEncoderInput::new(x.clone()).mask_attn(mask));
        let mut cache = module.new_autoregressive_cache();
        let tokens = (1..=5)
            .map(|n| {
                let input = ours::TransformerEncoderInput::new(x.clone().narrow(1, 0, n));
                module.forward_autoregressive_inference(input, &mut cache).narrow(1, n - 1, 1)
            })
            .collect();
        let tokens = Tensor::cat(tokens, 1).into_data();
        let tolerance = Tolerance::of(DType::F32).times(200.0);
        assert_close(&format!("norm first {norm_first}"), &[tokens], &[whole.into_data()], tolerance);
    }
}

#[test]
fn a_cache_of_another_encoder_is_an_error() {
    type B = burn_rocm::Rocm;
    let of = |layers| ours::TransformerEncoderConfig::new(8, 12, 2, layers).init::<B>(&Default::default());
    let mut cache = of(3).new_autoregressive_cache();
    let input = ours::TransformerEncoderInput::new(Tensor::ones([1, 2, 8], &Default::default()));
    let module = of(2);
    catch_unwind(AssertUnwindSafe(|| module.forward_autoregressive_inference(input, &mut cache)))
        .expect_err("three layers for two");
    assert!(matches!(take_last_error(), Some(RocmError::Invalid { op: "transformer_encoder", .. })));
}

/// The losses of fifty steps of Adam from the same parameters.
macro_rules! losses {
    ($B:ident, $api:ident, $record:expr, $input:expr, $target:expr) => {{
        let device = Default::default();
        let mut module = loaded(encoder!($api, $B, true), $record);
        let mut optimizer = AdamConfig::new().init();
        let target = tensor::<$B, 3>($target, DType::F32);
        let mut losses = Vec::new();
        for _ in 0..50 {
            let input = $api::TransformerEncoderInput::new(tensor::<$B, 3>($input, DType::F32));
            let distance = module.forward(input) - target.clone();
            let loss = (distance.clone() * distance).mean();
            losses.push(loss.clone().into_scalar() as f64);
            let grads = GradientsParams::from_grads(loss.backward(), &module);
            module = optimizer.step(1e-3, module, grads);
        }
        <$B as Backend>::sync(&device).unwrap();
        losses
    }};
}

#[test]
fn it_trains_as_burns() {
    let random = Random::new();
    let (input, target) = (uniform(&random, &[4, 6, 8]), uniform(&random, &[4, 6, 8]));
    let record = saved(encoder!(theirs, Oracle, true));
    let theirs: Vec<f64> = losses!(Oracle, theirs, &record, &input, &target);
    let ours: Vec<f64> = losses!(Ours, ours, &record, &input, &target);
    assert!(theirs[49] < 0.9 * theirs[0], "it learns: {theirs:?}");
    for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert!((ours - theirs).abs() < 1e-4, "step {step}: {ours} instead of {theirs}");
    }
}

/// The position-wise layers with each kind of activation: those that are fused with the first
/// layer's bias, and one that is not.
#[test]
fn position_wise_layers() {
    let random = Random::new();
    let record = saved(theirs::PositionWiseFeedForwardConfig::new(5, 9).init::<Oracle>(&Default::default()));
    let kinds = [
        (ActivationConfig::Gelu, Some("nn_bias_act f32: kernel bias_act<Gelu, f32>")),
        (ActivationConfig::Relu, Some("nn_bias_act f32: kernel bias_act<Relu, f32>")),
        (ActivationConfig::GeluApproximate, None),
    ];
    for (activation, joined) in kinds {
        let data = uniform(&random, &[3, 4, 5]);
        macro_rules! run {
            ($B:ident, $api:ident) => {{
                let config = $api::PositionWiseFeedForwardConfig::new(5, 9)
                    .with_dropout(0.0)
                    .with_activation(activation.clone());
                let module = loaded(config.init::<$B>(&Default::default()), &record);
                let x = tensor::<$B, 3>(&data, DType::F32).require_grad();
                let out = module.forward(x.clone() * 1.0);
                let grads = (out.clone() * out.clone()).sum().backward();
                let mut all = vec![out.into_data(), x.grad(&grads).unwrap().into_data()];
                all.extend(gradients_of(&module, &grads));
                all
            }};
        }
        against_burn!(format!("{activation:?}"), Tolerance::of(DType::F32).times(200.0), |B|
            theirs run!(B, theirs),
            ours run!(B, ours)
        );
        let (_, lines) = during(|| run!(Ours, ours));
        if std::env::var("BURN_ROCM_HIPBLASLT").is_ok_and(|mode| mode != "off") {
            continue; // `joined_products` checks what then runs
        }
        let of = |op: &str| lines.iter().filter(|line| line.starts_with(op)).count();
        let fused = usize::from(joined.is_some());
        assert_eq!((of("nn_bias_act f32: "), of(joined.unwrap_or("nn_"))), (fused, fused), "{lines:#?}");
        assert_eq!(of("float_gelu") + of("float_relu") + of("gelu") + of("relu"), 0, "{lines:#?}");
    }
}

/// Each option and each mask separately.
#[test]
fn options_one_by_one() {
    let random = Random::new();
    let data = uniform(&random, &[3, 7, 8]);
    let (pad, attn) = (drawn_bools(&random, &[3, 7], 0.3), drawn_bools(&random, &[3, 7, 7], 0.3));
    let record = saved(encoder!(theirs, Oracle, false));
    for (quiet, activation, padded, masked) in [
        (true, ActivationConfig::Gelu, false, false),
        (true, ActivationConfig::Gelu, true, true),
        (false, ActivationConfig::Relu, true, false),
        (false, ActivationConfig::Gelu, false, true),
        (false, ActivationConfig::Sigmoid, false, false),
    ] {
        macro_rules! run {
            ($B:ident, $api:ident) => {{
                let config = $api::TransformerEncoderConfig::new(8, 12, 2, 2)
                    .with_dropout(0.0)
                    .with_quiet_softmax(quiet)
                    .with_activation(activation.clone());
                let module = loaded(config.init::<$B>(&Default::default()), &record);
                let x = tensor::<$B, 3>(&data, DType::F32).require_grad();
                let mut input = $api::TransformerEncoderInput::new(x.clone());
                if padded {
                    input = input.mask_pad(bools(&pad));
                }
                if masked {
                    input = input.mask_attn(bools(&attn));
                }
                let out = module.forward(input);
                let grads = (out.clone() * out.clone().exp()).mean().backward();
                let mut all = vec![out.into_data(), x.grad(&grads).unwrap().into_data()];
                all.extend(gradients_of(&module, &grads));
                all
            }};
        }
        let what = format!("quiet {quiet}, {activation:?}, pad {padded}, attn {masked}");
        against_burn!(what, Tolerance::of(DType::F32).times(200.0), |B|
            theirs run!(B, theirs),
            ours run!(B, ours)
        );
    }
}

/// In training each call drops other scores, and every parameter has a gradient. In inference
/// nothing is dropped.
#[test]
fn dropout_is_of_training_alone() {
    let random = Random::new();
    let config = |dropout| ours::TransformerEncoderConfig::new(8, 12, 2, 2).with_dropout(dropout);
    let record = saved(config(0.0).init::<Ours>(&Default::default()));
    let x = tensor::<Ours, 3>(&uniform(&random, &[3, 7, 8]), DType::F32);
    // A new module for each pass. While one thread records an op on parameters that had a backward
    // pass before, another thread's clean-up may drop their graph (burn-autodiff 0.21,
    // `GraphMutexClient::register` between its two locks), and a gradient is then missing. Other
    // tests are such threads.
    let fresh = |p| loaded(config(p).init::<Ours>(&Default::default()), &record);
    let run = |module: ours::TransformerEncoder<Ours>| {
        let module = &module;
        let out = module.forward(ours::TransformerEncoderInput::new(x.clone()));
        let grads = out.clone().sin().sum().backward();
        let gradients = gradients_of(module, &grads);
        assert!(gradients.iter().all(|data| data.iter::<f32>().all(f32::is_finite)));
        out.into_data()
    };
    let [first, second] = [run(fresh(0.4)), run(fresh(0.4))];
    assert!(first != second && first != run(fresh(0.0)), "each call drops others");
    assert!(first.iter::<f32>().all(f32::is_finite));
    let infer = |module: ours::TransformerEncoder<Ours>| {
        module.valid().forward(ours::TransformerEncoderInput::new(x.clone().inner())).into_data()
    };
    assert_eq!(infer(fresh(0.4)), infer(fresh(0.0)));
}
