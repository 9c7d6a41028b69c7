//! Compares `MultiHeadAttention` with Burn's: values, gradients of inputs and parameters, records.

use burn::module::Module;
use burn::nn::attention as theirs;
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Tensor};
use burn_rocm_nn::attention::{
    MhaCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn_rocm_tests::assert_close;
use burn_rocm_tests::trace::during;

use crate::support::*;

/// A module's record as bytes.
pub(crate) fn saved<B: Backend, M: Module<B>>(module: M) -> Vec<u8> {
    NamedMpkBytesRecorder::<FullPrecisionSettings>::new().record(module.into_record(), ()).unwrap()
}

/// The module with initialised parameters. Burn initialises them at their first use, and a clone of
/// an uninitialised module would draw others.
pub(crate) fn made<B: Backend, M: Module<B>>(module: M) -> M {
    let bytes = saved(module.clone());
    loaded(module, &bytes)
}

/// The module with the parameters of these bytes.
pub(crate) fn loaded<B: Backend, M: Module<B>>(module: M, bytes: &[u8]) -> M {
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
    module.load_record(recorder.load(bytes.to_vec(), &Default::default()).unwrap())
}

/// A bool tensor.
pub(crate) fn bools<B: Backend, const D: usize>(bools: &TensorData) -> Tensor<B, D, Bool> {
    Tensor::from_data(bools.clone(), &Default::default())
}

pub(crate) fn drawn_bools(random: &Random, shape: &[usize], share: f64) -> TensorData {
    let values: Vec<bool> = (0..shape.iter().product()).map(|_| random.uniform(0.0, 1.0) < share).collect();
    TensorData::new(values, shape.to_vec())
}

/// One call: two sequences, and masks if there are any.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) query: TensorData,
    pub(crate) key: TensorData,
    pub(crate) value: TensorData,
    pub(crate) mask_pad: Option<TensorData>,
    pub(crate) mask_attn: Option<TensorData>,
    /// The factors of the context before it is summed.
    pub(crate) context: TensorData,
    pub(crate) weights: TensorData,
}

impl Call {
    pub(crate) fn new(
        random: &Random,
        [batch, queries, keys, d_model, heads]: [usize; 5],
        masks: [bool; 2],
    ) -> Self {
        Self {
            query: uniform(random, &[batch, queries, d_model]),
            key: uniform(random, &[batch, keys, d_model]),
            value: uniform(random, &[batch, keys, d_model]),
            mask_pad: masks[0].then(|| drawn_bools(random, &[batch, keys], 0.3)),
            mask_attn: masks[1].then(|| drawn_bools(random, &[batch, queries, keys], 0.4)),
            context: uniform(random, &[batch, queries, d_model]),
            weights: uniform(random, &[batch, heads, queries, keys]),
        }
    }
}

/// The context, the weights, and the gradients of inputs and parameters. The loss uses the weights
/// too.
macro_rules! mha_of {
    ($B:ident, $module:expr, $Input:ident of $api:ident, $call:expr) => {{
        let (module, call) = ($module, $call);
        let leaf = |data: &TensorData| tensor::<$B, 3>(data, DType::F32).require_grad();
        let inputs = [leaf(&call.query), leaf(&call.key), leaf(&call.value)];
        let [query, key, value] = inputs.clone();
        let mut input = $api::$Input::new(query, key, value);
        if let Some(mask) = &call.mask_pad {
            input = input.mask_pad(bools(mask));
        }
        if let Some(mask) = &call.mask_attn {
            input = input.mask_attn(bools(mask));
        }
        let output = module.forward(input);
        let weights: Tensor<$B, 4> = output.weights.clone();
        let context = output.context;
        let loss = (context.clone() * tensor::<$B, 3>(&call.context, DType::F32)).sum()
            + (weights.clone() * tensor::<$B, 4>(&call.weights, DType::F32)).sum();
        let grads = loss.backward();
        let mut all = vec![context.into_data(), weights.into_data()];
        all.extend(inputs.iter().map(|input| input.grad(&grads).unwrap().into_data()));
        for linear in [&module.query, &module.key, &module.value, &module.output] {
            all.push(linear.weight.grad(&grads).unwrap().into_data());
            all.push(linear.bias.as_ref().unwrap().grad(&grads).unwrap().into_data());
        }
        all
    }};
}
pub(crate) use mha_of;

use burn_rocm_nn::attention as ours;

#[test]
fn attention_and_its_gradients() {
    let random = Random::new();
    for (sizes, masks, quiet) in [
        ([2, 5, 5, 12, 3], [false, false], false),
        ([1, 7, 9, 8, 2], [true, false], false),
        ([2, 33, 40, 8, 1], [false, true], true),
        ([3, 6, 4, 12, 2], [true, true], false),
        ([2, 1, 65, 12, 4], [true, true], true),
    ] {
        let [.., d_model, heads] = sizes;
        let call = Call::new(&random, sizes, masks);
        let config =
            theirs::MultiHeadAttentionConfig::new(d_model, heads).with_dropout(0.0).with_quiet_softmax(quiet);
        let record = saved(config.init::<Oracle>(&Default::default()));
        let what = format!("attention {sizes:?} {masks:?} quiet {quiet}");
        against_burn!(what, Tolerance::of(DType::F32).times(100.0), |B|
            theirs mha_of!(B, loaded(config.init::<B>(&Default::default()), &record), MhaInput of theirs, &call),
            ours mha_of!(
                B,
                loaded(
                    MultiHeadAttentionConfig::new(d_model, heads)
                        .with_dropout(0.0)
                        .with_quiet_softmax(quiet)
                        .init::<B>(&Default::default()),
                    &record
                ),
                MhaInput of ours,
                &call
            )
        );
    }
}

/// If every key of a batch is padding, Burn's finite score for padding gives each key the same
/// weight. Also a score that is not far below the others.
#[test]
fn rows_of_masked_keys_alone() {
    let random = Random::new();
    for min_float in [-1.0e4, -0.5] {
        let mut call = Call::new(&random, [2, 4, 3, 8, 2], [true, false]);
        call.mask_pad = Some(TensorData::new(vec![true, true, true, false, true, false], [2, 3]));
        let config = theirs::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).with_min_float(min_float);
        let record = saved(config.init::<Oracle>(&Default::default()));
        against_burn!(format!("masked with {min_float}"), Tolerance::of(DType::F32).times(100.0), |B|
            theirs mha_of!(B, loaded(config.init::<B>(&Default::default()), &record), MhaInput of theirs, &call),
            ours mha_of!(
                B,
                loaded(
                    MultiHeadAttentionConfig::new(8, 2)
                        .with_dropout(0.0)
                        .with_min_float(min_float)
                        .init::<B>(&Default::default()),
                    &record
                ),
                MhaInput of ours,
                &call
            )
        );
    }
}

fn plain<B: Backend>(dropout: f64) -> MultiHeadAttention<B> {
    made(MultiHeadAttentionConfig::new(12, 3).with_dropout(dropout).init(&Default::default()))
}

#[test]
fn a_record_loads_into_burns_module_and_back() {
    let module = plain::<Ours>(0.0);
    let bytes = saved(module.clone());
    let burns =
        theirs::MultiHeadAttentionConfig::new(12, 3).with_dropout(0.0).init::<Oracle>(&Default::default());
    let burns = loaded(burns, &bytes);
    let (ours, theirs) = (module.key.weight.val().into_data(), burns.key.weight.val().into_data());
    assert_close(&"a weight in Burn's module", &[theirs], &[ours], Tolerance::EXACT);
    assert_eq!(saved(loaded(plain::<Ours>(0.0), &saved(burns))), bytes, "and back");
}

#[test]
fn it_prints_as_burns() {
    let ours = MultiHeadAttentionConfig::new(8, 2).init::<Ours>(&Default::default());
    let theirs = theirs::MultiHeadAttentionConfig::new(8, 2).init::<Oracle>(&Default::default());
    assert_eq!(ours.to_string(), theirs.to_string());
}

/// Decoding token by token gives the same as the whole sequence with an autoregressive mask.
#[test]
fn autoregressive_decoding() {
    fn decode<B: Backend>(module: &MultiHeadAttention<B>, x: Tensor<B, 3>) -> [TensorData; 2] {
        let [batch, sequence, _] = x.dims();
        let mask = generate_autoregressive_mask(batch, sequence, &x.device());
        let whole = module.forward(MhaInput::self_attn(x.clone()).mask_attn(mask)).context;
        let mut cache = MhaCache::autoregressive();
        let tokens = (1..=sequence)
            .map(|n| {
                let input = MhaInput::self_attn(x.clone().narrow(1, 0, n));
                module.forward_cache(input, &mut cache).context.narrow(1, n - 1, 1)
            })
            .collect();
        [whole.into_data(), Tensor::cat(tokens, 1).into_data()]
    }
    let data = uniform(&Random::new(), &[3, 6, 12]);
    let x = Tensor::<burn_rocm::Rocm, 3>::from_data(data.clone().convert::<f32>(), &Default::default());
    let [whole, tokens] = decode(&plain(0.1), x);
    assert_close(&"decoded", &[tokens], &[whole], Tolerance::of(DType::F32).times(100.0));
    // With constant keys and values.
    let (module, mut cache) = (plain::<Ours>(0.0), MhaCache::autoregressive_cross_attention());
    let of = |len| {
        Tensor::<Ours, 3>::from_data(data.clone().convert::<f32>(), &Default::default()).narrow(1, 0, len)
    };
    let memory = of(5);
    let first = MhaInput::new(of(1), memory.clone(), memory.clone());
    let one = module.forward_cache(first.clone(), &mut cache).context;
    assert_close(
        &"the first token",
        &[one.into_data()],
        &[module.forward(first).context.into_data()],
        Tolerance::EXACT,
    );
    let other = memory.zeros_like();
    let two = module.forward_cache(MhaInput::new(of(2), other.clone(), other), &mut cache).context;
    let whole = module.forward(MhaInput::new(of(2), memory.clone(), memory)).context;
    let tolerance = Tolerance::of(DType::F32).times(100.0);
    assert_close(&"two tokens", &[two.into_data()], &[whole.into_data()], tolerance);
}

/// Weights cost nothing until they are used. Two uses take one computation.
#[test]
fn weights_are_made_when_they_are_asked_for() {
    let module = plain::<Ours>(0.0);
    let x = tensor::<Ours, 3>(&uniform(&Random::new(), &[2, 5, 12]), DType::F32);
    let (output, lines) = during(|| module.forward(MhaInput::self_attn(x)));
    let count = |lines: &[String], op: &str| lines.iter().filter(|line| line.starts_with(op)).count();
    assert_eq!(count(&lines, "nn_attention f32: kernel masked_softmax_rows<f32>"), 1, "{lines:#?}");
    assert_eq!(count(&lines, "nn_attention_weights f32"), 0, "{lines:#?}");
    let copy = output.clone();
    let (_, lines) = during(|| (output.weights.dims(), output.weights.clone(), output.weights.into_tensor()));
    assert_eq!(count(&lines, "nn_attention_weights f32: kernel masked_softmax_rows<f32>"), 1, "{lines:#?}");
    let sums = Tensor::from(copy.weights).sum_dim(3).into_data();
    assert!(sums.iter::<f32>().all(|sum| (sum - 1.0).abs() < 1e-5), "{sums:?}");
}

/// With more scores than the limit, the tiled kernels compute without storing any. 10^8 scores are
/// too many for lockstep's coroutines.
#[test]
fn long_sequences_keep_no_scores_natively() {
    let module: MultiHeadAttention<Ours> =
        MultiHeadAttentionConfig::new(5, 5).with_dropout(0.0).init(&Default::default());
    let x = tensor::<Ours, 3>(&uniform(&Random::new(), &[1, 4096, 5]), DType::F32).require_grad();
    let (_, lines) = during(|| module.forward(MhaInput::self_attn(x)).context.sum().backward());
    for op in [
        "nn_self_attention f32: kernel attention<f32, 2>",
        "nn_self_attention_backward f32: kernel attention_dots<f32>",
        "nn_self_attention_backward f32: kernel attention_backward_queries<f32, 0>",
        "nn_self_attention_backward f32: kernel attention_backward_keys<f32, 0>",
    ] {
        assert_eq!(lines.iter().filter(|line| line.starts_with(op)).count(), 1, "{op} in {lines:#?}");
    }
}

/// On a backend without a route, Burn's own ops run.
#[test]
fn other_backends_compose_it() {
    let random = Random::new();
    let call = Call::new(&random, [2, 5, 6, 12, 3], [true, true]);
    for quiet in [false, true] {
        let config = theirs::MultiHeadAttentionConfig::new(12, 3).with_dropout(0.0).with_quiet_softmax(quiet);
        let burns = made(config.init::<Oracle>(&Default::default()));
        let record = saved(burns.clone());
        let module = MultiHeadAttentionConfig::new(12, 3).with_dropout(0.0).with_quiet_softmax(quiet);
        let module = loaded(module.init::<Oracle>(&Default::default()), &record);
        let ours = mha_of!(Oracle, module, MhaInput of ours, &call);
        let theirs = mha_of!(Oracle, burns, MhaInput of theirs, &call);
        assert_close(&"composed", &ours, &theirs, Tolerance::of(DType::F32).times(10.0));
    }
}
