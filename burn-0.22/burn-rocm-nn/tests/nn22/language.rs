//! The parts of a language model's layer.

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_rocm_nn_022::language::{AttentionRule, DecoderConfig, Positions, attention};

use crate::attention::refused;
use crate::worlds::{assert_same_but_for_a_sum, same_as_021};

#[test]
fn gated_units() {
    for kind in 0..3 {
        same_as_021!("gated", 0, |v, nn, ty| {
            use nn::language::GateKind::{Gelu, GeluTanh, Silu};
            let [a, b] = [1, 2].map(|tag| v::leaf::<2>(tag, [7, 37], ty));
            let kind = [Silu, Gelu, GeluTanh][kind];
            v::results(nn::language::gated(kind, a.clone(), b.clone()), &[&a, &b], &v::NONE)
        });
        same_as_021!("gated halves", 0, |v, nn, ty| {
            use nn::language::GateKind::{Gelu, GeluTanh, Silu};
            let x = v::leaf::<3>(1, [2, 5, 48], ty);
            let kind = [Silu, Gelu, GeluTanh][kind];
            v::results(nn::language::gated_halves(kind, x.clone()), &[&x], &v::NONE)
        });
    }
}

/// Burn 0.22 can't add the norm's gradient to one that is there already: a launch more.
#[test]
fn norms_with_a_residual() {
    for adds_one in [false, true] {
        same_as_021!("norm", 0, |v, nn, ty| {
            let x = v::leaf::<3>(1, [2, 5, 48], ty);
            let config = nn::language::NormConfig::new(48).with_adds_one(adds_one);
            let norm = v::filled(config.init(&v::device()), ty);
            v::results(norm.forward(x.clone()), &[&x], &norm)
        });
        same_as_021!("sum and norm", 1, assert_same_but_for_a_sum, |v, nn, ty| {
            let [x, residual] = [1, 2].map(|tag| v::leaf::<3>(tag, [2, 5, 48], ty));
            let config = nn::language::NormConfig::new(48).with_adds_one(adds_one);
            let norm = v::filled(config.init(&v::device()), ty);
            let (sum, normed) = norm.forward_residual(x.clone(), residual.clone());
            v::results(sum.neg() + normed, &[&x, &residual], &norm)
        });
        same_as_021!("norm, then the sum", 0, |v, nn, ty| {
            let [x, residual] = [1, 2].map(|tag| v::leaf::<3>(tag, [2, 5, 48], ty));
            let config = nn::language::NormConfig::new(48).with_adds_one(adds_one);
            let norm = v::filled(config.init(&v::device()), ty);
            v::results(norm.forward_before(x.clone(), residual.clone()), &[&x, &residual], &norm)
        });
    }
}

#[test]
fn rotary_embeddings() {
    for interleaved in [false, true] {
        same_as_021!("rotary embedding", 0, |v, nn, ty| {
            use nn::language::{Positions, RotaryConfig};
            let x = v::leaf::<3>(1, [2, 5, 8 * 16], ty);
            let config = RotaryConfig::new(16).with_interleaved(interleaved);
            let heads = config.init(&v::device()).forward(x.clone(), [2, 3], &Positions::FromZero, None);
            let of_key = heads.key.narrow(1, 0, 2) + heads.value.narrow(1, 1, 2);
            v::results(heads.query * of_key, &[&x], &v::NONE)
        });
        same_as_021!("rotary embedding with norms", 0, |v, nn, ty| {
            use nn::language::{NormConfig, Positions, RotaryConfig};
            let x = v::leaf::<3>(1, [2, 5, 8 * 16], ty);
            let norm = v::filled(NormConfig::new(16).init(&v::device()), ty);
            let config = RotaryConfig::new(16).with_rotated(Some(8)).with_interleaved(interleaved);
            let norms = Some([&norm, &norm]);
            let heads = config.init(&v::device()).forward(x.clone(), [2, 3], &Positions::FromZero, norms);
            v::results(heads.query * (heads.key.narrow(1, 0, 2)), &[&x], &norm)
        });
    }
}

#[test]
fn a_decoder_without_cross_attention_refuses_an_encoder() {
    let device = Device::rocm(0);
    let decoder = DecoderConfig::new(24, 40, 1, 4).init(&device);
    let tokens = || Tensor::<3>::zeros([1, 2, 24], &device);
    refused("Decoder", "tokens of an encoder", || {
        decoder.forward(tokens(), &Positions::FromZero, Some(tokens()))
    });
}

/// A plain query counts as a constant.
#[test]
fn keys_of_a_plain_query_get_gradients() {
    let rule = AttentionRule { softcap: Some(2.0), ..AttentionRule::default() };
    for device in [Device::rocm(0), Device::flex()] {
        let query = Tensor::<4>::ones([1, 2, 3, 8], &device);
        let random = Distribution::Default;
        let key = Tensor::<4>::random([1, 2, 3, 8], random, &device.clone().autodiff()).require_grad();
        let found = attention(query, key.clone(), key.clone(), &rule);
        let grads = found.sum().backward();
        assert!(key.grad(&grads).is_some(), "{device:?}");
    }
}

/// Burn's ops compute a softcap that needs a gradient, and any softcap on another backend's device.
/// They hide the same keys as the fused op. `language_layers/decoder.rs` derives the limit.
#[test]
fn softcaps_hide_the_same_keys_in_burns_ops() {
    let limit = 2.0 * 2.0 * (2.0 * (10.0 * 11.4 + 8.0 * 5.0) + 20.0 + 20.0) * 2f64.powi(-24);
    let rocm = Device::rocm(0);
    for (causal, window, [queries, keys]) in [
        (true, None, [5, 3]),
        (true, Some(2), [6, 2]),
        (false, Some(2), [9, 3]),
        (true, Some(usize::MAX), [4, 4]),
    ] {
        let rule = AttentionRule { softcap: Some(5.0), causal, window, ..AttentionRule::default() };
        let [q, k, v] = [queries, keys, keys].map(|length| {
            Tensor::<4>::random([1, 2, length, 8], Distribution::Uniform(-2.0, 2.0), (&rocm, DType::F32))
        });
        let expected = attention(q.clone(), k.clone(), v.clone(), &rule).into_data();
        for device in [rocm.clone().autodiff(), Device::flex()] {
            let [q, k, v] = [&q, &k, &v].map(|x| Tensor::<4>::from_data(x.to_data(), (&device, DType::F32)));
            let found = attention(q, k, v, &rule).into_data();
            for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
                let what = format!("{device:?}, causal {causal}, window {window:?}, {queries} queries");
                assert!((found - expected).abs() <= limit, "{what}: {found}, expected {expected}");
            }
        }
    }
    let x = Tensor::<4>::ones([1, 1, 2, 8], &rocm.autodiff());
    let attend = |rule: AttentionRule| attention(x.clone(), x.clone(), x.clone(), &rule);
    let rule = AttentionRule { softcap: Some(5.0), ..AttentionRule::default() };
    refused("attention", "0", || attend(AttentionRule { window: Some(0), ..rule }));
    refused("attention", "-1", || attend(AttentionRule { softcap: Some(-1.0), ..rule }));
}
