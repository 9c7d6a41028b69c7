//! Ops that are one kernel: one launch, and no copy of a view before it.
//!
//! One test in its own program, because the counters belong to the device.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm_tests::*;

#[test]
fn one_launch_each() {
    let d = Default::default();
    let hip = hip::Device::get(0).expect("a device");
    let random = Random::new();
    let of = |shape: &[usize], view| float(&random, shape, DType::F32, view, -1.0, 1.0).float::<R>(&d);
    let check = |name: &str, body: &dyn Fn() -> burn_backend::tensor::FloatTensor<R>| {
        let before = hip.counters().launches;
        let kept = body();
        hip.sync().expect("an op that was put off is launched");
        let launches = hip.counters().launches - before;
        drop(kept);
        assert_eq!(launches, 1, "{name}");
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
}
