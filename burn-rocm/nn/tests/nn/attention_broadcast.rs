//! Masks, keys and values that broadcast, as in Burn's modules.

use burn::nn::attention as theirs;
use burn::nn::transformer as their_transformer;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn::attention as ours;
use burn_rocm_nn::transformer as our_transformer;
use burn_rocm_tests::trace::during;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::attention::{Call, bools, drawn_bools, loaded, made, mha_of, saved};
use crate::support::*;

/// Runs the same call on Burn's module and on this one, with 12 features and 3 heads.
fn compare(what: &str, call: &Call) {
    let config = theirs::MultiHeadAttentionConfig::new(12, 3).with_dropout(0.0);
    let record = saved(config.init::<Oracle>(&Default::default()));
    let own = ours::MultiHeadAttentionConfig::new(12, 3).with_dropout(0.0);
    against_burn!(what, Tolerance::of(DType::F32).times(100.0), |B|
        theirs mha_of!(B, loaded(config.init::<B>(&Default::default()), &record), MhaInput of theirs, call),
        ours mha_of!(B, loaded(own.init::<B>(&Default::default()), &record), MhaInput of ours, call)
    );
}

/// Each axis of both masks has its full size or size 1.
#[test]
fn masks_broadcast_as_burns() {
    let random = Random::new();
    let [batch, queries, keys] = [2, 4, 3];
    let of = |sizes: &[usize]| -> Vec<Vec<usize>> {
        sizes.iter().fold(vec![vec![]], |shapes, &size| {
            shapes.iter().flat_map(|shape| [1, size].map(|n| [&shape[..], &[n]].concat())).collect()
        })
    };
    let none = [vec![]];
    for pad in none.iter().chain(&of(&[batch, keys])) {
        for attn in none.iter().chain(&of(&[batch, queries, keys])) {
            let mut call = Call::new(&random, [batch, queries, keys, 12, 3], [false; 2]);
            let mask = |shape: &Vec<usize>| (!shape.is_empty()).then(|| drawn_bools(&random, shape, 0.4));
            (call.mask_pad, call.mask_attn) = (mask(pad), mask(attn));
            compare(&format!("mask_pad {pad:?}, mask_attn {attn:?}"), &call);
        }
    }
}

/// Keys or values of batch 1 serve the queries of all batches.
#[test]
fn keys_and_values_of_one_batch_serve_all_queries() {
    let random = Random::new();
    let [queries, keys] = [4, 5];
    for batch in [1, 2, 3] {
        for [of_keys, of_values] in [[1, 1], [1, batch], [batch, 1]] {
            for masks in [None, Some([1, 1]), Some([batch, 1]), Some([1, batch])] {
                let mut call = Call::new(&random, [batch, queries, keys, 12, 3], [false; 2]);
                call.key = uniform(&random, &[of_keys, keys, 12]);
                call.value = uniform(&random, &[of_values, keys, 12]);
                if let Some([pad, attn]) = masks {
                    call.mask_pad = Some(drawn_bools(&random, &[pad, keys], 0.3));
                    call.mask_attn = Some(drawn_bools(&random, &[attn, queries, keys], 0.3));
                }
                let what =
                    format!("{batch} of queries, {of_keys} of keys, {of_values} of values, masks {masks:?}");
                compare(&what, &call);
            }
        }
    }
}

/// Batches that do not fit give an error. Burn's module panics too.
#[test]
fn what_does_not_broadcast_is_refused() {
    fn refused(what: &str, module: &ours::MultiHeadAttention<Ours>, input: ours::MhaInput<Ours>) {
        catch_unwind(AssertUnwindSafe(|| drop(module.forward(input)))).expect_err(what);
        let error = take_last_error();
        assert!(matches!(error, Some(RocmError::Invalid { .. })), "{what}: {error:?}");
    }
    let module = made(ours::MultiHeadAttentionConfig::new(12, 3).init::<Ours>(&Default::default()));
    let ones = |shape| Tensor::<Ours, 3>::ones(shape, &Default::default());
    let [one, two, three] = [1, 2, 3].map(|batch| ones([batch, 4, 12]));
    for [query, key, value] in [[&one, &two, &two], [&two, &three, &three], [&three, &one, &two]] {
        let input = ours::MhaInput::new(query.clone(), key.clone(), value.clone());
        refused(&format!("{:?} and {:?}", query.dims(), key.dims()), &module, input);
    }
    let mask = |shape: &[usize]| drawn_bools(&Random::new(), shape, 0.5);
    for (pad, attn) in [([3, 4], [1, 4, 4]), ([2, 4], [3, 4, 4]), ([2, 3], [2, 4, 4]), ([2, 4], [2, 3, 4])] {
        let input = ours::MhaInput::self_attn(two.clone());
        let input = input.mask_pad(bools(&mask(&pad))).mask_attn(bools(&mask(&attn)));
        refused(&format!("masks {pad:?} and {attn:?}"), &module, input);
    }
}

macro_rules! encoder {
    ($api:ident, $B:ident) => {
        $api::TransformerEncoderConfig::new(8, 12, 2, 3).with_dropout(0.0).init::<$B>(&Default::default())
    };
}

/// The encoder's input with both masks.
macro_rules! masked {
    ($api:ident, $x:expr, $masks:expr) => {
        $api::TransformerEncoderInput::new($x).mask_pad(bools(&$masks[0])).mask_attn(bools(&$masks[1]))
    };
}

#[test]
fn an_encoders_masks_broadcast_as_burns() {
    let random = Random::new();
    let data = uniform(&random, &[2, 5, 8]);
    let record = saved(encoder!(their_transformer, Oracle));
    for (pad, attn) in [([2, 5], [1, 5, 5]), ([1, 5], [2, 5, 5]), ([2, 1], [1, 5, 1]), ([2, 5], [2, 1, 5])] {
        let masks = [drawn_bools(&random, &pad, 0.3), drawn_bools(&random, &attn, 0.3)];
        macro_rules! run {
            ($B:ident, $api:ident) => {{
                let module = loaded(encoder!($api, $B), &record);
                let x = tensor::<$B, 3>(&data, DType::F32).require_grad();
                let out = module.forward(masked!($api, x.clone(), masks));
                let mut cache = module.new_autoregressive_cache();
                let cached =
                    module.forward_autoregressive_inference(masked!($api, x.clone(), masks), &mut cache);
                let grads = (out.clone() * out.clone().exp()).mean().backward();
                let mut all = vec![out.into_data(), cached.into_data(), x.grad(&grads).unwrap().into_data()];
                all.extend(gradients_of(&module, &grads));
                all
            }};
        }
        against_burn!(format!("mask_pad {pad:?}, mask_attn {attn:?}"), Tolerance::of(DType::F32).times(200.0), |B|
            theirs run!(B, their_transformer),
            ours run!(B, our_transformer)
        );
    }
}

/// An encoder of three layers joins its masks in one launch.
#[test]
fn an_encoder_joins_its_masks_once() {
    fn launches<B: Backend>(shapes: ([usize; 2], [usize; 3])) -> [usize; 2] {
        let random = Random::new();
        let module = made(encoder!(our_transformer, B));
        let masks = [drawn_bools(&random, &shapes.0, 0.3), drawn_bools(&random, &shapes.1, 0.3)];
        let x = Tensor::<B, 3>::ones([2, 5, 8], &Default::default());
        let is_joint = |line: &&String| line.starts_with("bool_or") && line.contains(": kernel");
        let count = |lines: Vec<String>| lines.iter().filter(is_joint).count();
        let (_, forward) = during(|| module.forward(masked!(our_transformer, x.clone(), masks)));
        let mut cache = module.new_autoregressive_cache();
        let input = masked!(our_transformer, x, masks);
        let (_, cached) = during(|| module.forward_autoregressive_inference(input, &mut cache));
        [count(forward), count(cached)]
    }
    for shapes in [([2, 5], [2, 5, 5]), ([2, 5], [1, 5, 5])] {
        assert_eq!(launches::<Ours>(shapes), [1, 1], "training, {shapes:?}");
        assert_eq!(launches::<burn_rocm::Rocm>(shapes), [1, 1], "inference, {shapes:?}");
    }
}
