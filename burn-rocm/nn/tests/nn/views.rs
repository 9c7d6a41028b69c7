//! Inputs with other layouts in memory, empty batches, targets that are all padding, masks of four
//! bytes a bool.

use burn::module::Param;
use burn::nn::conv::Conv2dConfig;
use burn::nn::loss as burns;
use burn::nn::loss::Reduction;
use burn::nn::{Linear, LinearConfig, SwiGluConfig};
use burn::tensor::Int;
use burn::tensor::backend::AutodiffBackend;
use burn_rocm::Rocm;
use burn_rocm_nn as ours;
use burn_rocm_nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn_rocm_nn::loss;
use burn_rocm_tests::{FLOATS, assert_close};

use crate::attention::{bools, drawn_bools, loaded, saved};
use crate::layer::{ACTS, by_burn};
use crate::support::*;

/// The result of a body for a view `[4, 5, 3]` of a leaf `[7, 5, 8]`, which takes every other row
/// and the middle columns, and the leaf's gradient.
macro_rules! of_view {
    ($B:ident, $data:expr, $dtype:expr, |$x:ident| $out:expr) => {{
        let leaf = tensor::<$B, 3>($data, $dtype).require_grad();
        let $x = leaf.clone().swap_dims(0, 2).slice([2..6, 0..5, 1..7]).slice_dim(2, burn::tensor::s![..;2]);
        let out = $out;
        let grads = (out.clone() * out.clone()).sum().backward();
        vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()]
    }};
}

#[test]
fn layers_take_views() {
    let data = uniform(&Random::new(), &[7, 5, 8]);
    let device = Default::default();
    let record = saved(LinearConfig::new(3, 4).init::<Oracle>(&device));
    let conv = saved(Conv2dConfig::new([4, 2], [2, 2]).init::<Oracle>(&device));
    let gated = saved(SwiGluConfig::new(3, 4).with_bias(true).init::<Oracle>(&device));
    let tolerance = Tolerance::of(DType::F32).times(200.0);
    for act in ACTS {
        against_burn!(format!("linear of rank 3, {act:?}"), tolerance, |B|
            theirs of_view!(B, &data, DType::F32, |x| {
                let layer = loaded(LinearConfig::new(3, 4).init::<B>(&Default::default()), &record);
                by_burn(act, layer.forward(x))
            }),
            ours of_view!(B, &data, DType::F32, |x| {
                let layer = ours::LinearActConfig::new(3, 4, act).init::<B>(&Default::default());
                loaded(layer, &record).forward(x)
            })
        );
        against_burn!(format!("convolution, {act:?}"), tolerance, |B|
            theirs of_view!(B, &data, DType::F32, |x| {
                let layer = loaded(Conv2dConfig::new([4, 2], [2, 2]).init::<B>(&Default::default()), &conv);
                by_burn(act, layer.forward(x.unsqueeze::<4>()))
            }),
            ours of_view!(B, &data, DType::F32, |x| {
                let layer = ours::ConvActConfig::new([4, 2], [2, 2], act).init::<B>(&Default::default());
                loaded(layer, &conv).forward(x.unsqueeze::<4>())
            })
        );
    }
    against_burn!("SwiGLU", tolerance, |B|
        theirs of_view!(B, &data, DType::F32, |x| {
            let layer = SwiGluConfig::new(3, 4).with_bias(true).init::<B>(&Default::default());
            loaded(layer, &gated).forward(x)
        }),
        ours of_view!(B, &data, DType::F32, |x| {
            let layer = ours::SwiGluConfig::new(3, 4).with_bias(true).init::<B>(&Default::default());
            loaded(layer, &gated).forward(x)
        })
    );
}

#[test]
fn losses_of_elements_take_views() {
    let random = Random::new();
    let (data, other) = (uniform(&random, &[7, 5, 8]), uniform(&random, &[3, 5, 4]));
    let labels: Vec<i64> = (0..60).map(|_| random.below(2) as i64).collect();
    let labels = TensorData::new(labels, [3, 5, 4]);
    let huber = (burns::HuberLossConfig::new(0.7).init(), loss::HuberLossConfig::new(0.7).init());
    for dtype in FLOATS {
        let [data, other] = [&data, &other].map(|data| data.clone().convert_dtype(dtype));
        let [signless, others] = [&data, &other].map(magnitudes);
        macro_rules! targets {
            ($B:ident, $data:expr, $dtype:expr) => {
                tensor::<$B, 3>($data, $dtype).swap_dims(0, 2)
            };
        }
        let wide = DType::F64;
        let share = loss_share(60, dtype);
        let mean = Reduction::Mean;
        let reference = of_view!(Oracle, &data, wide, |x| {
            burns::MseLoss::new().forward(x, targets!(Oracle, &other, wide), mean.clone())
        });
        let magnitude =
            of_view!(Oracle, &signless, wide, |x| { squares(x + targets!(Oracle, &others, wide)).mean() });
        let expected = limited(reference, &magnitude, share, dtype);
        within_limits!(format!("mse {dtype:?}"), dtype, expected, |B| of_view!(B, &data, dtype, |x| {
            loss::MseLoss::new().forward(x, targets!(B, &other, dtype), mean.clone())
        }));
        let reference = of_view!(Oracle, &data, wide, |x| {
            huber.0.forward_no_reduction(x, targets!(Oracle, &other, wide))
        });
        let magnitude =
            of_view!(Oracle, &signless, wide, |x| { hubers(x + targets!(Oracle, &others, wide), 0.7) });
        let expected = limited(reference, &magnitude, share, dtype);
        within_limits!(format!("huber {dtype:?}"), dtype, expected, |B| of_view!(B, &data, dtype, |x| {
            huber.1.forward_no_reduction(x, targets!(B, &other, dtype))
        }));
    }
    macro_rules! binary {
        ($B:ident, $from:ident) => {
            of_view!($B, &data, DType::F32, |x| {
                let labels = Tensor::<$B, 3, Int>::from_data(labels.clone(), &Default::default());
                let loss = $from::BinaryCrossEntropyLossConfig::new().with_logits(true);
                let loss = loss.with_weights(Some(vec![0.5, 1.0, 2.0])).init::<$B>(&Default::default());
                loss.forward(x, labels.swap_dims(0, 2))
            })
        };
    }
    against_burn!("binary cross entropy", Tolerance::of(DType::F32).times(30.0), |B|
        theirs binary!(B, burns),
        ours binary!(B, loss)
    );
}

/// An empty batch gives an empty result or the mean of nothing. Gradients of parameters are zeros.
#[test]
fn batches_of_nothing() {
    fn check<B: AutodiffBackend>() {
        let device = B::Device::default();
        let empty = || Tensor::<B, 3>::zeros([0, 5, 3], &device).require_grad();
        let zeros = |data: TensorData| data.iter::<f32>().all(|value| value == 0.0);
        for act in ACTS {
            let (x, layer) = (empty(), ours::LinearActConfig::new(3, 4, act).init::<B>(&device));
            let out = layer.forward(x.clone());
            assert_eq!(out.dims(), [0, 5, 4]);
            let grads = out.sum().backward();
            assert_eq!(x.grad(&grads).unwrap().dims(), [0, 5, 3]);
            assert!(gradients_of(&layer, &grads).into_iter().all(zeros), "{act:?}");
        }
        let (x, layer) = (empty(), ours::SwiGluConfig::new(3, 4).with_bias(true).init::<B>(&device));
        let out = layer.forward(x.clone());
        assert_eq!(out.dims(), [0, 5, 4]);
        let grads = out.sum().backward();
        assert_eq!(x.grad(&grads).unwrap().dims(), [0, 5, 3]);
        assert!(gradients_of(&layer, &grads).into_iter().all(zeros));

        let nan = |out: Tensor<B, 1>| out.into_data().iter::<f32>().all(f32::is_nan);
        let huber = loss::HuberLossConfig::new(1.0).init();
        let x = empty();
        let mean = loss::MseLoss::new().forward(x.clone(), empty(), Reduction::Mean);
        assert_eq!(x.grad(&mean.backward()).unwrap().dims(), [0, 5, 3]);
        assert!(nan(mean) && nan(huber.forward(x.clone(), empty(), Reduction::Mean)));
        let sum = huber.forward(x.clone(), empty(), Reduction::Sum);
        assert!(zeros(sum.clone().into_data()));
        assert_eq!(x.grad(&sum.backward()).unwrap().dims(), [0, 5, 3]);
        assert_eq!(huber.forward_no_reduction(x.clone(), empty()).dims(), [0, 5, 3]);
        let labels = Tensor::<B, 3, Int>::zeros([0, 5, 3], &device);
        let binary = loss::BinaryCrossEntropyLossConfig::new().init::<B>(&device).forward(x.clone(), labels);
        assert_eq!(x.grad(&binary.backward()).unwrap().dims(), [0, 5, 3]);
        assert!(nan(binary));
    }
    check::<Ours>();
    check::<Balanced>();
}

/// Rows that are all padding have no loss and no gradient, but count in the mean.
#[test]
fn targets_that_are_all_padded() {
    let data = uniform(&Random::new(), &[6, 5]);
    for smoothing in [None, Some(0.2)] {
        macro_rules! run {
            ($B:ident, $from:ident) => {{
                let leaf = tensor::<$B, 2>(&data, DType::F32).require_grad();
                let targets = Tensor::<$B, 1, Int>::from_data([2, 4, 2, 2, 4, 4], &Default::default());
                let config = $from::CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![2, 4]));
                let loss = config.with_smoothing(smoothing).init::<$B>(&Default::default());
                let out = loss.forward(leaf.clone(), targets);
                vec![out.clone().into_data(), leaf.grad(&out.backward()).unwrap().into_data()]
            }};
        }
        against_burn!(format!("{smoothing:?}"), Tolerance::of(DType::F32).times(10.0), |B|
            theirs run!(B, burns),
            ours run!(B, loss)
        );
        let ours: Vec<TensorData> = run!(Ours, loss);
        assert!(ours.iter().all(|data| data.iter::<f32>().all(|value| value == 0.0)), "{ours:?}");
    }
}

#[test]
fn masks_of_four_bytes_a_bool() {
    type Wide = Autodiff<Rocm<f32, i32, u32>>;
    let random = Random::new();
    let data = uniform(&random, &[2, 40, 6]);
    let (pad, attn) = (drawn_bools(&random, &[2, 40], 0.3), drawn_bools(&random, &[2, 40, 40], 0.3));
    let config = MultiHeadAttentionConfig::new(6, 2).with_dropout(0.0);
    let record = saved(config.init::<Ours>(&Default::default()));
    macro_rules! run {
        ($B:ident) => {{
            let module: MultiHeadAttention<$B> = loaded(config.init(&Default::default()), &record);
            let x = tensor::<$B, 3>(&data, DType::F32).require_grad();
            let input = MhaInput::self_attn(x.clone()).mask_pad(bools(&pad)).mask_attn(bools(&attn));
            let out = module.forward(input).context;
            let grads = (out.clone() * out.clone()).sum().backward();
            vec![out.into_data(), x.grad(&grads).unwrap().into_data()]
        }};
    }
    let (narrow, wide): (Vec<TensorData>, Vec<TensorData>) = (run!(Ours), run!(Wide));
    assert_close(&"masks", &wide, &narrow, Tolerance::EXACT);
}

/// A frozen bias gets no gradient, and no kernel sums one.
#[test]
fn a_frozen_bias_is_not_summed() {
    let random = Random::new();
    let x = tensor::<Ours, 2>(&uniform(&random, &[600, 4]), DType::F32).require_grad();
    for act in ACTS {
        let plain: Linear<Ours> = LinearConfig::new(4, 3).init(&Default::default());
        let weight = plain.weight.val();
        let bias = plain.bias.unwrap().val().detach();
        let layer = ours::LinearAct::<Ours> {
            weight: Param::from_tensor(weight),
            bias: Some(Param::from_tensor(bias.clone()).set_require_grad(false)),
            activation: act,
        };
        let ((), lines) = burn_rocm_tests::trace::during(|| {
            let grads = layer.forward(x.clone()).sum().backward();
            assert!(x.grad(&grads).is_some() && layer.weight.val().grad(&grads).is_some());
            assert!(layer.bias.as_ref().unwrap().val().grad(&grads).is_none());
        });
        let backward =
            lines.iter().filter(|line| line.starts_with("nn_bias_act_backward f32: kernel")).count();
        assert_eq!(backward, 1, "{act:?}: {lines:#?}");
    }
}
