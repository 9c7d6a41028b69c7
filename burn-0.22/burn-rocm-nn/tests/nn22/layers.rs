//! Activations, layers and pooling.

use burn::nn::pool::AvgPool2dConfig;
use burn::nn::{PaddingConfig2d, PaddingConfig3d};
use burn::tensor::{Device, Tensor};
use burn_rocm_nn_022::{AvgPool3dConfig, MaxPool3dConfig};

use crate::worlds::{as_burns, assert_same_convolutions, same_as_021, uniform};

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

/// A NaN is its window's maximum, and in ceil mode no window starts in the padding behind the input.
/// On burn-flex the module is Burn's pooling over two axes, twice. The gradients are sums of ones.
#[test]
fn maxima_of_nan_in_ceil_mode() {
    let number = |x: f64| if x > 1.0 { f32::NAN } else { x as f32 };
    let numbers: Vec<f32> = uniform(1, 420).into_iter().map(number).collect();
    let pool = MaxPool3dConfig::new([2, 3, 2])
        .with_strides([1, 2, 2])
        .with_padding(PaddingConfig3d::Explicit(1, 0, 1))
        .with_ceil_mode(true)
        .init();
    let run = |device: Device| {
        let x: Tensor<5> = Tensor::<1>::from_floats(numbers.as_slice(), &device).reshape([1, 2, 5, 6, 7]);
        let x = x.require_grad();
        let y = pool.forward(x.clone());
        let grads = y.clone().sum().backward();
        let by_x = x.grad(&grads).unwrap();
        // `None` is a NaN.
        let numbers = |tensor: Tensor<5>| -> Vec<Option<f32>> {
            tensor.into_data().iter::<f32>().map(|x| (!x.is_nan()).then_some(x)).collect()
        };
        (y.dims(), numbers(y), numbers(by_x))
    };
    let found = run(Device::rocm(0).autodiff());
    assert_eq!(found.0, [1, 2, 6, 3, 4]);
    assert_eq!(found, run(Device::flex().autodiff()));
}

/// Padding on one side counts only with `count_include_pad`, as in Burn's module for two axes. The
/// sums of whole numbers and their eighths are exact, so both divide the same numbers.
#[test]
fn averages_with_more_padding_behind() {
    let numbers: Vec<f32> = uniform(1, 210).into_iter().map(|x| (4.0 * x).round() as f32).collect();
    for device in [Device::rocm(0), Device::flex()] {
        let x: Tensor<4> = Tensor::<1>::from_floats(numbers.as_slice(), &device).reshape([1, 5, 6, 7]);
        for include in [false, true] {
            let of_volumes = AvgPool3dConfig::new([1, 2, 4])
                .with_strides([1, 1, 2])
                .with_padding(PaddingConfig3d::Same)
                .with_count_include_pad(include)
                .init();
            let of_planes = AvgPool2dConfig::new([2, 4])
                .with_strides([1, 2])
                .with_padding(PaddingConfig2d::Same)
                .with_count_include_pad(include)
                .init();
            let found = of_volumes.forward(x.clone().reshape([1, 1, 5, 6, 7])).reshape([1, 5, 6, 4]);
            found.into_data().assert_eq(&of_planes.forward(x.clone()).into_data(), true);
        }
        let pool = AvgPool3dConfig::new([2; 3])
            .with_strides([1; 3])
            .with_padding(PaddingConfig3d::Same)
            .with_count_include_pad(false)
            .init();
        let means = pool.forward(Tensor::<5>::ones([1, 1, 3, 3, 3], &device));
        assert_eq!(means.dims(), [1, 1, 3, 3, 3]);
        assert!(means.into_data().iter::<f32>().all(|mean| mean == 1.0));
    }
}
