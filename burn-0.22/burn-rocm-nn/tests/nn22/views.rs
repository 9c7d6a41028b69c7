//! Inputs with other layouts in memory, and batches of nothing.

use crate::worlds::{assert_same_convolutions, assert_same_sums, same_as_021};

/// A view `[4, 5, 3]` of a leaf `[7, 5, 8]`: every other row and the middle columns.
macro_rules! view {
    ($v:ident, $leaf:expr) => {
        $leaf.clone().swap_dims(0, 2).slice([2..6, 0..5, 1..7]).slice_dim(2, $v::s![..;2])
    };
}

/// Burn 0.22's own linear layers need one more launch for a view, and `SwiGlu` repeats it where its
/// forward pass is recomputed.
#[test]
fn layers_take_views() {
    for act in 0..3 {
        same_as_021!("LinearAct of a view", 1, assert_same_sums, |v, nn, ty| {
            let act = [nn::Act::Relu, nn::Act::Gelu, nn::Act::Silu][act];
            let leaf = v::leaf::<3>(1, [7, 5, 8], ty);
            let layer = v::filled(nn::LinearActConfig::new(3, 4, act).init(&v::device()), ty);
            v::results(layer.forward(view!(v, leaf)), &[&leaf], &layer)
        });
        same_as_021!("ConvAct of a view", 0, assert_same_convolutions, |v, nn, ty| {
            let act = [nn::Act::Relu, nn::Act::Gelu, nn::Act::Silu][act];
            let leaf = v::leaf::<3>(1, [7, 5, 8], ty);
            let layer = v::filled(nn::ConvActConfig::new([4, 2], [2, 2], act).init(&v::device()), ty);
            v::results(layer.forward(view!(v, leaf).unsqueeze::<4>()), &[&leaf], &layer)
        });
    }
    same_as_021!("SwiGlu of a view", 4, assert_same_sums, |v, nn, ty| {
        let leaf = v::leaf::<3>(1, [7, 5, 8], ty);
        let layer = v::filled(nn::SwiGluConfig::new(3, 4).with_bias(true).init(&v::device()), ty);
        v::results(layer.forward(view!(v, leaf)), &[&leaf], &layer)
    });
    same_as_021!("LayerNorm of a view", 0, |v, nn, ty| {
        let leaf = v::leaf::<3>(1, [7, 5, 8], ty);
        let layer = v::filled(nn::LayerNormConfig::new(3).init(&v::device()), ty);
        v::results(layer.forward(view!(v, leaf)), &[&leaf], &layer)
    });
}

#[test]
fn losses_take_views() {
    same_as_021!("MSE of views", 0, |v, nn, ty| {
        let (leaf, other) = (v::leaf::<3>(1, [7, 5, 8], ty), v::tensor::<3>(2, [3, 5, 4], ty));
        let loss = nn::loss::MseLoss::new();
        let out = loss.forward(view!(v, leaf), other.swap_dims(0, 2), nn::loss::Reduction::Mean);
        v::results(out, &[&leaf], &v::NONE)
    });
    same_as_021!("Huber loss of views", 0, |v, nn, ty| {
        let (leaf, other) = (v::leaf::<3>(1, [7, 5, 8], ty), v::tensor::<3>(2, [3, 5, 4], ty));
        let loss = nn::loss::HuberLossConfig::new(0.7).init();
        v::results(loss.forward_no_reduction(view!(v, leaf), other.swap_dims(0, 2)), &[&leaf], &v::NONE)
    });
    let labels: Vec<i64> = (0..60).map(|k| k % 7 % 2).collect();
    same_as_021!("binary cross entropy of views", 0, |v, nn, ty| {
        let leaf = v::leaf::<3>(1, [7, 5, 8], ty);
        let config = nn::loss::BinaryCrossEntropyLossConfig::new().with_logits(true);
        let loss = config.with_weights(Some(vec![0.5, 1.0, 2.0])).init(&v::device());
        let labels = v::ints(labels.clone(), [3, 5, 4]).swap_dims(0, 2);
        v::results(loss.forward(view!(v, leaf), labels), &[&leaf], &v::NONE)
    });
}

/// Empty results, and gradients of parameters that are zeros.
#[test]
fn batches_of_nothing() {
    same_as_021!("layers of nothing", 2, |v, nn, ty| {
        let x = v::leaf::<3>(1, [0, 5, 3], ty);
        let act = v::filled(nn::LinearActConfig::new(3, 4, nn::Act::Gelu).init(&v::device()), ty);
        let gated = v::filled(nn::SwiGluConfig::new(3, 4).with_bias(true).init(&v::device()), ty);
        let mut found = v::results(act.forward(x.clone()), &[&x], &act);
        found.extend(v::results(gated.forward(x.clone()), &[&x], &gated));
        assert!(found.iter().flatten().all(|value| *value == 0.0), "{found:?}");
        found
    });
    same_as_021!("losses of nothing", 0, |v, nn, ty| {
        let (x, y) = (v::leaf::<3>(1, [0, 5, 3], ty), v::tensor::<3>(2, [0, 5, 3], ty));
        let mean = nn::loss::MseLoss::new().forward(x.clone(), y.clone(), nn::loss::Reduction::Mean);
        let loss = nn::loss::HuberLossConfig::new(1.0).init();
        let sum = loss.forward(x.clone(), y, nn::loss::Reduction::Sum);
        let found = vec![v::read(mean), v::read(sum)];
        assert!(found[0][0].is_nan() && found[1][0] == 0.0, "{found:?}");
        found
    });
}
