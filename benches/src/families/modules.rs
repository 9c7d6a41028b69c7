//! The ops of neural network modules.

use super::*;

pub(super) fn softmax(family: &mut Family<'_>) {
    for n in SIZES {
        for (dim, shape) in [(1, [n / 64, 64]), (0, [64, n / 64]), (1, [4, n / 4])] {
            case!(
                family,
                times(n),
                format!("softmax, log_softmax {dim} f32 {shape:?}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| {
                    let _ = B::softmax(s.clone(), dim);
                    B::log_softmax(s.clone(), dim)
                }
            );
        }
    }
}

pub(super) fn norm(family: &mut Family<'_>) {
    for n in SIZES {
        for width in [64, 1024] {
            case!(
                family,
                times(n),
                format!("layer_norm f32 {}x{width}", n / width),
                |B, device| {
                    (
                        floats::<B>(device, DType::F32, &[n / width, width]),
                        [(); 2].map(|()| floats::<B>(device, DType::F32, &[width])),
                    )
                },
                |s| B::layer_norm(s.0.clone(), s.1[0].clone(), Some(s.1[1].clone()), 1e-5)
            );
        }
    }
}

pub(super) fn products(family: &mut Family<'_>) {
    for dtype in [DType::F32, DType::F64] {
        for [batch, m, k, n] in
            [[1, 32, 32, 32], [1, 128, 784, 512], [16, 64, 64, 64], [1, 512, 512, 512], [1, 1, 1024, 1024]]
        {
            case!(
                family,
                times(m * n * k / 64),
                format!("matmul {} {batch}x{m}x{k}x{n}", dtype.name()),
                |B, device| {
                    [floats::<B>(device, dtype, &[batch, m, k]), floats::<B>(device, dtype, &[batch, k, n])]
                },
                |s| B::float_matmul(s[0].clone(), s[1].clone())
            );
        }
    }
    case!(
        family,
        1,
        "int_matmul i32 256",
        |B, device| [(); 2].map(|()| ints::<B>(device, DType::I32, &[256, 256], 9)),
        |s| B::int_matmul(s[0].clone(), s[1].clone())
    );
    case!(
        family,
        times(1 << 15),
        "linear 64x256x128 f32",
        |B, device| {
            (
                floats::<B>(device, DType::F32, &[64, 256]),
                floats::<B>(device, DType::F32, &[256, 128]),
                floats::<B>(device, DType::F32, &[128]),
            )
        },
        |s| B::linear(s.0.clone(), s.1.clone(), Some(s.2.clone()))
    );
}

pub(super) fn convolutions(family: &mut Family<'_>) {
    for dtype in [DType::F32, DType::F64] {
        let name = dtype.name();
        case!(
            family,
            1,
            format!("conv1d {name}"),
            |B, device| [floats::<B>(device, dtype, &[8, 16, 256]), floats::<B>(device, dtype, &[32, 16, 5])],
            |s| { B::conv1d(s[0].clone(), s[1].clone(), None, ConvOptions::new([1], [2], [1], 1)) }
        );
        let options = || ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        case!(
            family,
            1,
            format!("conv2d {name}"),
            |B, device| [
                floats::<B>(device, dtype, &[8, 16, 28, 28]),
                floats::<B>(device, dtype, &[32, 16, 3, 3])
            ],
            |s| { B::conv2d(s[0].clone(), s[1].clone(), None, options()) }
        );
        case!(
            family,
            1,
            format!("conv2d backward {name}"),
            |B, device| {
                [
                    floats::<B>(device, dtype, &[8, 16, 28, 28]),
                    floats::<B>(device, dtype, &[32, 16, 3, 3]),
                    floats::<B>(device, dtype, &[8, 32, 28, 28]),
                ]
            },
            |s| {
                let _ = B::conv2d_x_backward(s[0].clone(), s[1].clone(), s[2].clone(), options());
                B::conv2d_weight_backward(s[0].clone(), s[1].clone(), s[2].clone(), options())
            }
        );
        case!(
            family,
            1,
            format!("conv2d depthwise {name}"),
            |B, device| [
                floats::<B>(device, dtype, &[8, 32, 28, 28]),
                floats::<B>(device, dtype, &[32, 1, 3, 3])
            ],
            |s| { B::conv2d(s[0].clone(), s[1].clone(), None, ConvOptions::new([1, 1], [1, 1], [1, 1], 32)) }
        );
        case!(
            family,
            1,
            format!("conv3d {name}"),
            |B, device| [
                floats::<B>(device, dtype, &[2, 4, 16, 16, 16]),
                floats::<B>(device, dtype, &[8, 4, 3, 3, 3])
            ],
            |s| { B::conv3d(s[0].clone(), s[1].clone(), None, ConvOptions::new([1; 3], [1; 3], [1; 3], 1)) }
        );
        case!(
            family,
            1,
            format!("conv_transpose2d {name}"),
            |B, device| [
                floats::<B>(device, dtype, &[8, 16, 14, 14]),
                floats::<B>(device, dtype, &[16, 32, 3, 3])
            ],
            |s| {
                B::conv_transpose2d(
                    s[0].clone(),
                    s[1].clone(),
                    None,
                    ConvTransposeOptions::new([2, 2], [1, 1], [1, 1], [1, 1], 1),
                )
            }
        );
    }
    case!(family, 1, "unfold4d f32", |B, device| floats::<B>(device, DType::F32, &[8, 16, 28, 28]), |s| {
        B::unfold4d(s.clone(), [3, 3], UnfoldOptions::new([1, 1], [1, 1], [1, 1]))
    });
}

pub(super) fn pools(family: &mut Family<'_>) {
    for [batch, channels, size] in [[1, 4, 16], [16, 32, 28]] {
        let shape = [batch, channels, size, size];
        let half = [batch, channels, size / 2, size / 2];
        let n = batch * channels * size * size;
        case!(
            family,
            times(n),
            format!("max_pool2d {shape:?}"),
            |B, device| floats::<B>(device, DType::F32, &shape),
            |s| { B::max_pool2d(s.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false) }
        );
        case!(
            family,
            times(n),
            format!("max_pool2d with indices and its gradient {shape:?}"),
            |B, device| { [floats::<B>(device, DType::F32, &shape), floats::<B>(device, DType::F32, &half)] },
            |s| {
                let out = B::max_pool2d_with_indices(s[0].clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
                B::max_pool2d_with_indices_backward(
                    s[0].clone(),
                    [2, 2],
                    [2, 2],
                    [0, 0],
                    [1, 1],
                    false,
                    s[1].clone(),
                    out.indices,
                )
            }
        );
        case!(
            family,
            times(n),
            format!("avg_pool2d and its gradient {shape:?}"),
            |B, device| { [floats::<B>(device, DType::F32, &shape), floats::<B>(device, DType::F32, &half)] },
            |s| {
                let _ = B::avg_pool2d(s[0].clone(), [2, 2], [2, 2], [0, 0], true, false);
                B::avg_pool2d_backward(s[0].clone(), s[1].clone(), [2, 2], [2, 2], [0, 0], true, false)
            }
        );
        case!(
            family,
            times(n),
            format!("adaptive_avg_pool2d and its gradient {shape:?}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &shape),
                    floats::<B>(device, DType::F32, &[batch, channels, 7, 7]),
                ]
            },
            |s| {
                let _ = B::adaptive_avg_pool2d(s[0].clone(), [7, 7]);
                B::adaptive_avg_pool2d_backward(s[0].clone(), s[1].clone())
            }
        );
    }
}

pub(super) fn interpolations(family: &mut Family<'_>) {
    for size in [16, 64] {
        for mode in [
            InterpolateMode::Nearest,
            InterpolateMode::Bilinear,
            InterpolateMode::Bicubic,
            InterpolateMode::Lanczos3,
        ] {
            let options = || InterpolateOptions::new(mode.clone());
            case!(
                family,
                times(8 * size * size),
                format!("{mode:?} {size} doubled"),
                |B, device| floats::<B>(device, DType::F32, &[2, 4, size, size]),
                |s| { B::interpolate(s.clone(), [2 * size, 2 * size], options()) }
            );
        }
        case!(
            family,
            times(8 * size * size),
            format!("grid_sample_2d {size}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &[2, 4, size, size]),
                    floats::<B>(device, DType::F32, &[2, size, size, 2]),
                ]
            },
            |s| B::float_grid_sample_2d(s[0].clone(), s[1].clone(), GridSampleOptions::default())
        );
    }
}

pub(super) fn transforms(family: &mut Family<'_>) {
    for [batch, n] in [[4, 256], [64, 1024], [1, 1 << 16]] {
        case!(
            family,
            times(batch * n),
            format!("rfft {batch}x{n}"),
            |B, device| floats::<B>(device, DType::F32, &[batch, n]),
            |s| B::rfft(s.clone(), 1, None)
        );
        case!(
            family,
            times(batch * n),
            format!("irfft {batch}x{n}"),
            |B, device| [(); 2].map(|()| floats::<B>(device, DType::F32, &[batch, n / 2 + 1])),
            |s| { B::irfft(s[0].clone(), s[1].clone(), 1, None) }
        );
    }
}
