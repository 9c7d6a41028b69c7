//! Parameters that a captured step can't write in place: the error says why. Both versions of Burn
//! compile this file.

use burn::module::Param;
use burn::optim::GradientsParams;
#[allow(unused_imports, reason = "only Burn 0.21 has `step` in this trait")]
use burn::optim::Optimizer;
use burn::tensor::Distribution;
use burn_rocm::graph::Graph;
use burn_rocm::{RocmDevice, RocmError};

use crate::replays::alone;
use crate::small::batch;
use crate::world::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use crate::world::nn::optim::SgdConfig;
use crate::world::{Linear, MultiHeadAttention, Tracked, tracking};

/// The reason for which SGD refuses to be captured.
fn refused(captured: Result<(), RocmError>) -> String {
    match captured {
        Err(RocmError::Capture { op: "sgd", reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// A layer with its weight in columns. Its first step that is not captured puts the weight in rows.
#[test]
fn a_weight_that_is_not_contiguous() {
    let _alone = alone();
    let capture = |steps_before: usize| {
        // Burn 0.21 does not train a weight that it initialised with `LinearLayout::Col`.
        let weight = Tracked::<2>::random([3, 36], Distribution::Default, &tracking()).transpose();
        let layer = Linear { weight: Param::from_tensor(weight), bias: None };
        let (mut model, mut optimizer) = (Some(layer), SgdConfig::new().init());
        let x: Tracked<2> = batch(0).images.flatten(1, 2);
        let mut step = || {
            let taken = model.take().expect("put back below");
            let loss = taken.forward(x.clone()).powf_scalar(2.0).mean();
            let grads = GradientsParams::from_grads(loss.backward(), &taken);
            model = Some(optimizer.step(0.01, taken, grads));
        };
        (0..steps_before).for_each(|_| step());
        Graph::capture_after(&RocmDevice::new(0), 0, step).map(drop)
    };
    let reason = refused(capture(0));
    assert!(reason.contains("not contiguous") && reason.contains("take a step before"), "{reason}");
    capture(1).unwrap();
}

/// An attention's weights hold the parameters from which they are computed when they are used.
#[test]
fn weights_of_an_attentions_output() {
    let _alone = alone();
    let capture = |keeps_weights: bool| {
        let attention: MultiHeadAttention =
            MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).init(&tracking());
        let (mut model, mut optimizer) = (Some(attention), SgdConfig::new().init());
        // Enough tokens for one product that makes queries, keys and values.
        let x = Tracked::<3>::ones([2, 16, 8], &tracking());
        let mut step = || {
            let taken = model.take().expect("put back below");
            let output = taken.forward(MhaInput::self_attn(x.clone()));
            let weights = Some(output.weights).filter(|_| keeps_weights);
            let loss = output.context.powf_scalar(2.0).mean();
            let grads = GradientsParams::from_grads(loss.backward(), &taken);
            model = Some(optimizer.step(0.01, taken, grads));
            drop(weights);
        };
        step();
        Graph::capture_after(&RocmDevice::new(0), 0, step).map(drop)
    };
    let reason = refused(capture(true));
    assert!(reason.contains("the weights of an attention's output"), "{reason}");
    capture(false).unwrap();
}
