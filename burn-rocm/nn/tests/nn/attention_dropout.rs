//! Dropout of scores: how many scores are dropped, which ones, and that the gradient belongs to the
//! computed function.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::fused::{AttentionDropout, AttentionOptions, AttentionPath, attention, attention_weights};
use burn_rocm_nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn_rocm_tests::{FloatTensorOps, R, Shape, again, assert_close, read_float};

use crate::attention::made;
use crate::support::*;

/// Whether this process runs only this test. If not, starts such a process, because other tests
/// draw from the device's one stream of random numbers.
pub(crate) fn is_alone(test: &str) -> bool {
    if std::env::var_os("BURN_ROCM_TEST_ALONE").is_some() {
        return true;
    }
    let text = again(&["--exact", test], &[("BURN_ROCM_TEST_ALONE", "1")]);
    assert!(text.contains("1 passed"), "{test}: {text}");
    false
}

/// All scores are 1, so a row has one weight for dropped keys and one for the others.
#[test]
fn as_many_are_dropped_as_asked_for() {
    let (pairs, queries, keys) = (6, 40, 300);
    let ones =
        |length| R::float_ones(Shape::from([1, pairs, length, 1]), &Default::default(), DType::F64.into());
    for prob in [0.0, 0.1, 0.5, 0.9, 1.0] {
        let options = AttentionOptions {
            dropout: Some(AttentionDropout::draw(&Default::default(), prob)),
            ..AttentionOptions::default()
        };
        let weights = attention_weights(ones(queries), ones(keys), None, &options).unwrap();
        let weights: Vec<f64> = read_float::<R>(weights).iter::<f64>().collect();
        let mut dropped = 0;
        for (at, row) in weights.chunks(keys).enumerate() {
            let least = row.iter().copied().fold(f64::INFINITY, f64::min);
            let count = row.iter().filter(|&&weight| weight == least).count();
            // exp(1 / (1 - prob)) and exp(0), each divided by their sum.
            let kept = (1.0 / (1.0 - prob)).exp();
            if prob > 0.0 && prob < 1.0 {
                let sum = count as f64 + (keys - count) as f64 * kept;
                let right = |weight: f64| [1.0 / sum, kept / sum].iter().any(|x| (weight - x).abs() < 1e-12);
                assert!(row.iter().all(|&weight| right(weight)), "row {at} with {prob}");
                dropped += count;
            } else {
                assert!(row.iter().all(|&weight| (weight * keys as f64 - 1.0).abs() < 1e-12), "{prob}");
            }
        }
        if prob > 0.0 && prob < 1.0 {
            let n = (pairs * queries * keys) as f64;
            let deviation = (n * prob * (1.0 - prob)).sqrt();
            let distance = (dropped as f64 - n * prob) / deviation;
            assert!(distance.abs() < 6.0, "{dropped} of {n} dropped with {prob}: {distance} deviations");
        }
    }
}

#[test]
fn seed_and_call_say_which() {
    let random = Random::new();
    let draw = || R::float_from_data(uniform(&random, &[1, 2, 40, 8]).convert::<f32>(), &Default::default());
    let (q, k, v) = (draw(), draw(), draw());
    let run = |path, seed, call| {
        let dropout = Some(AttentionDropout { prob: 0.4, seed, call });
        let options = AttentionOptions { dropout, path, ..AttentionOptions::default() };
        read_float::<R>(attention(q.clone(), k.clone(), v.clone(), None, &options).unwrap().out)
    };
    let one = run(AttentionPath::Tiled, 7, 1);
    assert_close(&"again", &[run(AttentionPath::Tiled, 7, 1)], std::slice::from_ref(&one), Tolerance::EXACT);
    let tolerance = Tolerance::of(DType::F32).times(20.0);
    assert_close(&"composed", &[run(AttentionPath::Composed, 7, 1)], std::slice::from_ref(&one), tolerance);
    for (seed, call) in [(8, 1), (7, 2), (7 | 1 << 40, 1), (7, 1 | 1 << 40)] {
        assert!(run(AttentionPath::Tiled, seed, call) != one, "seed {seed}, call {call}");
    }
}

fn module<B: Backend>(prob: f64) -> MultiHeadAttention<B> {
    made(MultiHeadAttentionConfig::new(6, 2).with_dropout(prob).init(&Default::default()))
}

#[test]
fn a_device_that_is_seeded_drops_the_same_again() {
    if !is_alone("attention_dropout::a_device_that_is_seeded_drops_the_same_again") {
        return;
    }
    let module = module::<Ours>(0.5);
    let x = tensor::<Ours, 3>(&uniform(&Random::new(), &[2, 9, 6]), DType::F32);
    let device = x.device();
    let run = || module.forward(MhaInput::self_attn(x.clone())).context.into_data();
    Ours::seed(&device, 5);
    let (first, second) = (run(), run());
    Ours::seed(&device, 5);
    assert_eq!(first, run());
    assert_eq!(second, run());
    assert!(first != second, "each call drops others");
}

/// The weights have the same dropout as the context.
#[test]
fn the_weights_have_the_same_dropout() {
    let (q, kv) = (uniform(&Random::new(), &[1, 7, 6]), uniform(&Random::new(), &[1, 9, 6]));
    let module = module::<Ours>(0.5);
    let (q, kv) = (tensor::<Ours, 3>(&q, DType::F32), tensor::<Ours, 3>(&kv, DType::F32));
    let output = module.forward(MhaInput::new(q, kv.clone(), kv.clone()));
    let value = module.value.forward(kv).reshape([1, 9, 2, 3]).swap_dims(1, 2);
    let context = output.weights.clone().matmul(value).swap_dims(1, 2).reshape([1, 7, 6]);
    let context = module.output.forward(context).into_data();
    let tolerance = Tolerance::of(DType::F32).times(30.0);
    assert_close(&"from the weights", &[context], &[output.context.into_data()], tolerance);
}

/// Nothing is dropped in inference.
#[test]
fn inference_drops_nothing() {
    let module = module::<burn_rocm::Rocm>(0.9);
    let x = Tensor::from_data(uniform(&Random::new(), &[2, 9, 6]).convert::<f32>(), &Default::default());
    let run = || module.forward(MhaInput::self_attn(Tensor::clone(&x))).context.into_data();
    assert_eq!(run(), run());
}

/// Compares the gradient with differences of the loss, each computed after the same seed; in f64.
#[test]
fn the_gradient_is_that_of_the_function() {
    type B = Autodiff<burn_rocm::Rocm<f64>>;
    if !is_alone("attention_dropout::the_gradient_is_that_of_the_function") {
        return;
    }
    let random = Random::new();
    let module = module::<B>(0.4);
    let (at, towards) = (uniform(&random, &[2, 5, 6]), uniform(&random, &[2, 5, 6]));
    let weights = uniform(&random, &[2, 5, 6]);
    let of = |data: &TensorData| Tensor::<B, 3>::from_data(data.clone(), &Default::default());
    let loss = |x: Tensor<B, 3>| {
        B::seed(&x.device(), 11);
        (module.forward(MhaInput::self_attn(x)).context * of(&weights)).sum()
    };
    let x = of(&at).require_grad();
    let grad = x.grad(&loss(x.clone()).backward()).unwrap();
    let slope = (grad * of(&towards).inner()).sum().into_scalar();
    let step = 1e-5;
    let [above, below] = [step, -step].map(|step| loss(of(&at) + of(&towards) * step).into_scalar());
    let found = (above - below) / (2.0 * step);
    assert!((found - slope).abs() < 1e-7 * (1.0 + slope.abs()), "{found} instead of {slope}");
}
