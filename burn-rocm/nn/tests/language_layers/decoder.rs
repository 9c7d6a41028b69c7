//! The decoder, against the same modules composed of Burn's ops on `burn-flex` in f64.

use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::backend::AutodiffBackend;
use burn_rocm_nn::language::{
    AttentionRule, Decoder, DecoderConfig, GateKind, Positions, RotaryConfig, attention,
};
use burn_rocm_tests::limits::{shares, unit};
use burn_rocm_tests::lockstep::fewer;

use crate::refused;
use crate::support::*;

fn configs() -> Vec<(&'static str, DecoderConfig)> {
    let plain = DecoderConfig::new(24, 40, 2, 4).with_kv_heads(Some(2)).with_head_dim(Some(16));
    let gemma = plain.clone().with_adds_one(true).with_post_norms(true).with_gate(GateKind::GeluTanh);
    vec![
        ("Llama", plain.clone()),
        ("Qwen 2", plain.clone().with_qkv_bias(true)),
        ("Qwen 3", plain.clone().with_head_norms(true).with_epsilon(1e-5)),
        ("Mistral", plain.clone().with_window(Some(3)).with_kv_heads(Some(1))),
        ("Gemma 2", gemma.with_softcap(Some(5.0)).with_scale(Some(0.3125))),
        (
            "a decoder of an encoder",
            plain
                .with_cross(true)
                .with_output_bias(true)
                .with_inner_bias(true)
                .with_rotary(Some(RotaryConfig::new(16).with_rotated(Some(4)).with_interleaved(true))),
        ),
    ]
}

/// Makes each parameter one of this type.
struct Cast(DType);

impl<B: AutodiffBackend> ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = Tensor::from_inner(tensor.inner().cast(self.0)).require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// The output, the gradients of tokens and encoder, and those of all parameters, with the
/// parameters of `bytes`, all in `dtype`.
fn run<B: AutodiffBackend>(
    config: &DecoderConfig,
    bytes: Vec<u8>,
    data: &[TensorData; 3],
    dtype: DType,
) -> Vec<TensorData> {
    let device = Default::default();
    let record = recorder().load::<<Decoder<B> as Module<B>>::Record>(bytes, &device).unwrap();
    let decoder = config.init::<B>(&device).load_record(record).map(&mut Cast(dtype));
    let [tokens, encoded] = [&data[0], &data[1]].map(|data| tensor::<B, 3>(data, dtype).require_grad());
    let out = decoder.forward(tokens.clone(), &Positions::FromZero, config.cross.then(|| encoded.clone()));
    let grads = (out.clone() * tensor::<B, 3>(&data[2], dtype)).sum().backward();
    let mut all = vec![out.into_data(), tokens.grad(&grads).unwrap().into_data()];
    all.extend(encoded.grad(&grads).map(Tensor::into_data));
    all.extend(gradients_of(&decoder, &grads));
    all
}

fn recorder() -> NamedMpkBytesRecorder<FullPrecisionSettings> {
    NamedMpkBytesRecorder::new()
}

/// The error allowed to a result, as a share of its largest element, or of 1 if that is larger: some
/// gradients are 0, such as those of queries that see one key.
///
/// The longest chain of a layer adds these units. Norms of 24 features add `24 + 8` each: two, and
/// one before attention to an encoder. A norm of a head's 16 features adds `16 + 8`. Products of 24
/// features add `24 + 8` each: two, and two for an encoder. Those of 64 add `64 + 8`: one, and one for
/// an encoder; that of 40 adds `40 + 8`. Angles up to 36 radians add `36 + 4`, and the gate 16.
/// Attention sums 16 products and up to 37 keys: `16 + 8 + 2 (37 + 8)`; that to an encoder with 7 keys
/// adds `16 + 8 + 2 (7 + 8)`. That is less than 670. Two layers and the last norm add 1372, and their
/// gradients as much again. A weight's gradient adds up to 37 tokens, `37 + 8`.
///
/// In f32 the units are added without amplification. With terms of both signs, the sum of magnitudes
/// is about `sqrt(n)` times the result, and the roundings' errors are about `sqrt(n)` times less than
/// their bound: the two factors cancel. The same code computes f64. There the limit also allows that
/// the steps together amplify earlier errors by 2^14, and doubles for the reference's own errors. It is
/// still only 1e-8, and a wrong epsilon would change results by 1e-6.
fn share(dtype: DType) -> f64 {
    let chain = 2800.0 * unit(dtype);
    if dtype == DType::F64 { 2.0 * 2f64.powi(14) * chain } else { chain }
}

#[test]
fn outputs_and_gradients() {
    let random = Random::new();
    for (name, config) in fewer(configs(), 2, &random) {
        for (batch, length) in [(2, 5), (1, 1), (1, 37)] {
            let data = [[batch, length, 24], [batch, 7, 24], [batch, length, 24]]
                .map(|shape| uniform(&random, &shape).convert_dtype(DType::F32));
            let decoder = config.init::<Oracle>(&Default::default());
            let bytes = recorder().record(decoder.into_record(), ()).unwrap();
            let reference = run::<Oracle>(&config, bytes.clone(), &data, DType::F64);
            for dtype in [DType::F64, DType::F32] {
                let bounded = |reference: &TensorData| {
                    let largest = reference.iter::<f64>().fold(1.0, |most: f64, x| most.max(x.abs()));
                    let scale = TensorData::full(reference.shape.clone(), largest);
                    [reference.clone(), shares(&scale, share(dtype), dtype)]
                };
                let expected = reference.iter().map(bounded).collect();
                within_limits!(format!("{name}, {batch} of {length} in {dtype:?}"), dtype, expected, |B| {
                    run::<B>(&config, bytes.clone(), &data, dtype)
                });
            }
        }
    }
}

/// Without a gradient, softcaps are fused too.
#[test]
fn inference_gives_the_same() {
    let random = Random::new();
    for (name, config) in configs() {
        let decoder = config.init::<Ours>(&Default::default());
        let [tokens, encoded] =
            [5, 7].map(|length| tensor::<Ours, 3>(&uniform(&random, &[1, length, 24]), DType::F32));
        let trained =
            decoder.forward(tokens.clone(), &Positions::FromZero, config.cross.then(|| encoded.clone()));
        let found = decoder.valid().forward(
            tokens.inner(),
            &Positions::FromZero,
            config.cross.then(|| encoded.inner()),
        );
        let tolerance = Tolerance { absolute: 1e-4, relative: 1e-4 };
        burn_rocm_tests::assert_close(&name, &[found.into_data()], &[trained.into_data()], tolerance);
    }
}

/// A softcap with a gradient, which Burn's ops compute, hides the keys that the fused op hides.
///
/// With `u = 2^-24`: a score is a sum of 8 products of at most 4, divided by the root of 8 and capped
/// to 5. So it is off by at most `(10 * 11.4 + 8 * 5) u`. A weight is off by twice that, by `20 u` for
/// the differences of scores (at most 10), and by `20 u` for exponentials, sums and a product of up to
/// 7 terms. Values are at most 2. Both sides are off.
#[test]
fn softcaps_hide_the_same_keys_with_a_gradient() {
    let random = Random::new();
    let share = 2.0 * (10.0 * 11.4 + 8.0 * 5.0) + 20.0 + 20.0;
    let tolerance = Tolerance { absolute: 2.0 * 2.0 * share * 2f64.powi(-24), relative: 0.0 };
    // The first queries see no key.
    for (causal, window, [queries, keys], blind) in [
        (true, None, [5, 3], 2),
        (true, Some(2), [6, 2], 4),
        (false, Some(2), [9, 3], 5),
        (true, Some(2), [3, 7], 0),
        (true, Some(usize::MAX), [4, 4], 0),
        (false, None, [3, 4], 0),
    ] {
        let what = format!("causal {causal}, window {window:?}, {queries} queries, {keys} keys");
        let rule = AttentionRule { softcap: Some(5.0), causal, window, ..AttentionRule::default() };
        let [q, k, v] = [queries, keys, keys].map(|length| {
            tensor::<Ours, 4>(&uniform(&random, &[1, 2, length, 8]), DType::F32).require_grad()
        });
        let run = || attention(q.clone(), k.clone(), v.clone(), &rule);
        let expected = attention(q.clone().inner(), k.clone().inner(), v.clone().inner(), &rule);
        let (found, expected) = (run().into_data(), expected.into_data());
        burn_rocm_tests::assert_close(&what, &[found], &[expected], tolerance);
        let gradients = |out: Tensor<Ours, 4>| -> Vec<f64> {
            let grads = out.sum().backward();
            let of =
                |x: &Tensor<Ours, 4>| x.grad(&grads).unwrap().into_data().iter::<f64>().collect::<Vec<_>>();
            [&q, &k, &v].map(of).concat()
        };
        assert!(gradients(run()).iter().all(|x| x.is_finite()), "{what}");
        if blind > 0 {
            assert!(gradients(run().narrow(2, 0, blind)).iter().all(|&x| x == 0.0), "{what}");
        }
    }
}

#[test]
fn rules_of_attention_that_do_not_fit_are_refused() {
    let x = Tensor::<Ours, 4>::ones([1, 1, 2, 8], &Default::default());
    let rule = AttentionRule { softcap: Some(5.0), ..AttentionRule::default() };
    let refuses = |found: &str, rule: AttentionRule| {
        refused("attention", found, || attention(x.clone(), x.clone(), x.clone(), &rule));
    };
    refuses("0", AttentionRule { window: Some(0), ..rule });
    // f32 rounds the last one to 0.
    for softcap in [0.0, -1.0, f64::NAN, 1e-50] {
        refuses(&softcap.to_string(), AttentionRule { softcap: Some(softcap), ..rule });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Default::default();
    let config = DecoderConfig::new(24, 40, 1, 4);
    refused("DecoderConfig", "3", || config.clone().with_kv_heads(Some(3)).init::<Ours>(&device));
    refused("DecoderConfig", "4", || DecoderConfig::new(26, 40, 1, 6).init::<Ours>(&device));
    let rotary = Some(RotaryConfig::new(4));
    refused("DecoderConfig", "4", || config.clone().with_rotary(rotary).init::<Ours>(&device));
    let tokens = || Tensor::<Ours, 3>::zeros([1, 2, 24], &device);
    refused("DecoderLayer", "none", || {
        config.clone().with_cross(true).init::<Ours>(&device).forward(tokens(), &Positions::FromZero, None)
    });
    refused("Decoder", "tokens of an encoder", || {
        config.init::<Ours>(&device).forward(tokens(), &Positions::FromZero, Some(tokens()))
    });
}
