//! Ops that are one kernel: one launch, and no copy of a view before it. The few launches of a
//! norm, a bias and an activation in training.
//!
//! The counters belong to the device, so one test here uses the device; others run in processes of
//! their own.
#![allow(missing_docs, clippy::unwrap_used)]

use burn::backend::Autodiff;
use burn::nn::{BatchNormConfig, LayerNormConfig};
use burn::tensor::{Distribution, Tensor, activation};
use burn_rocm::fused::{Act, bias_act, bias_act_backward, layer_norm_backward};
use burn_rocm_tests::*;

#[test]
fn one_launch_each() {
    let d = Default::default();
    let hip = hip::Device::get(0).expect("a device");
    let random = Random::new();
    let of = |shape: &[usize], view| float(&random, shape, DType::F32, view, -1.0, 1.0).float::<R>(&d);
    let launches_of = |body: &dyn Fn() -> burn_backend::tensor::FloatTensor<R>| {
        let before = hip.counters().launches;
        let kept = body();
        hip.sync().expect("an op that was put off is launched");
        let launches = hip.counters().launches - before;
        drop(kept);
        launches
    };
    let check = |name: &str, body: &dyn Fn() -> burn_backend::tensor::FloatTensor<R>| {
        assert_eq!(launches_of(body), 1, "{name}");
    };
    let half = Scalar::Float(0.5);
    // Dense in another order, and with gaps.
    for view in [View::Contiguous, View::Permuted, View::Sliced] {
        let shape = [3, 5, 7];
        let (x, g, slope) = (of(&shape, view), of(&shape, view), of(&[1, 5, 1], View::Contiguous));
        check("relu", &|| R::relu(x.clone()));
        check("leaky_relu", &|| R::leaky_relu(x.clone(), half));
        check("prelu", &|| R::prelu(x.clone(), slope.clone()));
        check("gelu", &|| R::gelu(x.clone()));
        check("sigmoid", &|| R::sigmoid(x.clone()));
        check("hard_sigmoid", &|| R::hard_sigmoid(x.clone(), half, half));
        check("log_sigmoid", &|| R::log_sigmoid(x.clone()));
        check("relu_backward", &|| R::relu_backward(x.clone(), g.clone()));
        check("gelu_backward", &|| R::gelu_backward(x.clone(), g.clone()));
        check("sigmoid_backward", &|| R::sigmoid_backward(x.clone(), g.clone()));
        check("log_sigmoid_backward", &|| R::log_sigmoid_backward(x.clone(), g.clone()));
        if view != View::Sliced {
            for dim in 0..3 {
                check("softmax", &|| R::softmax(x.clone(), dim));
                check("log_softmax", &|| R::log_softmax(x.clone(), dim));
                check("softmin", &|| R::softmin(x.clone(), dim));
            }
        }
        // [batch, sequence, heads, features] as a view [batch, heads, sequence, features], as in
        // models.
        let of = |width| R::float_swap_dims(of(&[2, 40, 3, width], view), 1, 2);
        let (q, k, v, bias) =
            (of(8), of(8), of(6), float(&random, &[1, 3, 1, 40], DType::F32, view, -1.0, 1.0));
        let options = AttentionModuleOptions { softcap: Some(5.0), is_causal: true, scale: None };
        let bias = bias.float::<R>(&d);
        check("attention", &|| {
            R::attention(q.clone(), k.clone(), v.clone(), None, Some(bias.clone()), options)
        });
    }
    let (x, gamma) = (of(&[4, 33], View::Contiguous), of(&[33], View::Contiguous));
    check("layer_norm", &|| R::layer_norm(x.clone(), gamma.clone(), Some(gamma.clone()), 1e-5));
    // A gradient of rows, and with sums over the rows one more launch.
    let at_most_two = |name: &str, body: &dyn Fn() -> burn_backend::tensor::FloatTensor<R>| {
        let launches = launches_of(body);
        assert!((1..=2).contains(&launches), "{name}: {launches}");
    };
    let (x, grad) = (of(&[200, 33], View::Contiguous), of(&[200, 33], View::Contiguous));
    check("bias_act", &|| bias_act(Act::Gelu, x.clone(), Some(gamma.clone()), 1).unwrap());
    at_most_two("bias_act_backward", &|| {
        bias_act_backward(Act::Gelu, x.clone(), Some(gamma.clone()), grad.clone(), 1, true).unwrap().0
    });
    at_most_two("layer_norm_backward", &|| {
        layer_norm_backward(x.clone(), gamma.clone(), grad.clone(), None, 1e-5, true).unwrap().0
    });
}

/// Prints how many launches a step of Burn's own modules takes, forward and backward.
#[test]
#[ignore = "run by the test below, with and without chains"]
fn launches_of_stock_modules() {
    type A = Autodiff<R>;
    let d = Default::default();
    let hip = hip::Device::get(0).expect("a device");
    let say = |name: &str, step: &dyn Fn() -> Tensor<A, 1>| {
        // The first step makes what later ones keep.
        for is_counted in [false, true] {
            hip.sync().unwrap();
            let before = hip.counters().launches;
            let grads = step().backward();
            hip.sync().unwrap();
            let launches = hip.counters().launches - before;
            drop(grads);
            if is_counted {
                println!("{SAID}{name} {launches}");
            }
        }
    };
    let x = Tensor::<A, 2>::random([64, 96], Distribution::Uniform(-1.0, 1.0), &d).require_grad();
    let (norm, bias) =
        (LayerNormConfig::new(96).init::<A>(&d), Tensor::<A, 1>::ones([96], &d).require_grad());
    say("norm", &|| norm.forward(x.clone()).sum());
    say("gelu", &|| activation::gelu(norm.forward(x.clone()) + bias.clone().unsqueeze::<2>()).sum());
    let images = Tensor::<A, 4>::random([4, 8, 6, 6], Distribution::Uniform(-1.0, 1.0), &d).require_grad();
    let norm = BatchNormConfig::new(8).init::<A>(&d);
    say("images", &|| activation::relu(norm.forward(images.clone())).sum());
}

/// Chains take at most three fifths of the launches of Burn's norms in training, with what follows them.
#[test]
fn chains_join_the_training_of_stock_modules() {
    let counts = |chain| -> Vec<(String, u64)> {
        let variables =
            [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_WAVE", "32"), ("BURN_ROCM_CHAIN", chain)];
        let lines = said_by("launches_of_stock_modules", &variables);
        let parts = lines.iter().map(|line| line.split_once(' ').unwrap());
        parts.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect()
    };
    let (single, joined) = (counts("0"), counts("16"));
    assert_eq!(single.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["norm", "gelu", "images"]);
    assert_eq!(joined.len(), single.len());
    for ((name, single), (other, joined)) in single.iter().zip(&joined) {
        assert_eq!(name, other);
        assert!(*joined > 0 && 5 * joined <= 3 * single, "{name}: {joined} instead of {single}");
    }
}
