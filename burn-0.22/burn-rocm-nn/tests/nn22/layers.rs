//! Activations, layers and pooling.

use crate::worlds::{as_burns, assert_same_convolutions, same_as_021};

#[test]
fn activations() {
    same_as_021!("SiLU", 0, |v, nn, ty| {
        let x = v::leaf::<2>(1, [7, 37], ty);
        v::results(nn::Silu::new().forward(x.clone()), &[&x], &v::NONE)
    });
    for dim in [0, 1] {
        same_as_021!("softmax", 0, |v, nn, ty| {
            let x = v::leaf::<2>(1, [7, 37], ty);
            v::results(nn::activation::softmax(x.clone(), dim), &[&x], &v::NONE)
        });
        same_as_021!("log-softmax", 0, |v, nn, ty| {
            let x = v::leaf::<2>(1, [7, 37], ty);
            v::results(nn::activation::log_softmax(x.clone(), dim), &[&x], &v::NONE)
        });
    }
}

#[test]
fn linear_layers() {
    for act in 0..3 {
        for bias in [true, false] {
            same_as_021!("LinearAct", 0, |v, nn, ty| {
                let act = [nn::Act::Relu, nn::Act::Gelu, nn::Act::Silu][act];
                let x = v::leaf::<3>(1, [2, 5, 8], ty);
                let config = nn::LinearActConfig::new(8, 12, act).with_bias(bias);
                let layer = v::filled(config.init(&v::device()), ty);
                v::results(layer.forward(x.clone()), &[&x], &layer)
            });
        }
    }
    for bias in [true, false] {
        same_as_021!("SwiGlu", 2, |v, nn, ty| {
            let x = v::leaf::<3>(1, [2, 5, 8], ty);
            let layer = v::filled(nn::SwiGluConfig::new(8, 12).with_bias(bias).init(&v::device()), ty);
            v::results(layer.forward(x.clone()), &[&x], &layer)
        });
        as_burns!("SwiGlu", 16, |v, nn, ty| {
            let x = v::leaf::<3>(1, [2, 5, 8], ty);
            let layer = v::filled(nn::SwiGluConfig::new(8, 12).with_bias(bias).init(&v::device()), ty);
            v::results(layer.forward(x.clone()), &[&x], &layer)
        });
    }
}

#[test]
fn convolutions() {
    for act in 0..3 {
        for padding in 0..3 {
            same_as_021!("ConvAct", 0, assert_same_convolutions, |v, nn, ty| {
                let act = [nn::Act::Relu, nn::Act::Gelu, nn::Act::Silu][act];
                let x = v::leaf::<4>(1, [2, 4, 6, 7], ty);
                let config = nn::ConvActConfig::new([4, 6], [3, 3], act).with_groups(2);
                let config = match padding {
                    0 => config,
                    1 => config.with_padding(v::Padding::Same),
                    _ => config.with_padding(v::Padding::Explicit(1, 2, 1, 2)).with_stride([2, 1]),
                };
                let layer = v::filled(config.init(&v::device()), ty);
                v::results(layer.forward(x.clone()), &[&x], &layer)
            });
        }
    }
}

#[test]
fn sums_and_products() {
    for act in 0..3 {
        same_as_021!("AddAct", 0, |v, nn, ty| {
            let act = [nn::Act::Relu, nn::Act::Gelu, nn::Act::Silu][act];
            let [a, b] = [1, 2].map(|tag| v::leaf::<2>(tag, [7, 37], ty));
            v::results(nn::AddAct::new(act).forward(a.clone(), b.clone()), &[&a, &b], &v::NONE)
        });
    }
    same_as_021!("MulAdd", 0, |v, nn, ty| {
        let [a, b, c] = [1, 2, 3].map(|tag| v::leaf::<2>(tag, [7, 37], ty));
        v::results(nn::MulAdd::new().forward(a.clone(), b.clone(), c.clone()), &[&a, &b, &c], &v::NONE)
    });
}

#[test]
fn pooling_over_three_axes() {
    for same in [true, false] {
        same_as_021!("MaxPool3d", 0, |v, nn, ty| {
            let x = v::leaf::<5>(1, [2, 3, 5, 6, 7], ty);
            let padding = if same { v::Padding3::Same } else { v::Padding3::Explicit(1, 0, 1) };
            let pool = nn::MaxPool3dConfig::new([2, 3, 2]).with_padding(padding).init();
            v::results(pool.forward(x.clone()), &[&x], &v::NONE)
        });
        same_as_021!("AvgPool3d", 0, |v, nn, ty| {
            let x = v::leaf::<5>(1, [2, 3, 5, 6, 7], ty);
            let padding = if same { v::Padding3::Same } else { v::Padding3::Explicit(1, 0, 1) };
            let pool = nn::AvgPool3dConfig::new([2, 3, 2]).with_padding(padding).init();
            v::results(pool.forward(x.clone()), &[&x], &v::NONE)
        });
    }
}
