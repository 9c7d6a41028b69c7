//! Quantised tensors, deformable convolution, and the CTC loss.

use super::*;
use burn::backend::Autodiff;
use burn::tensor::{Int, Tensor, TensorData, module::ctc_loss};
use burn_backend::TensorPrimitive;
use burn_backend::ops::{DeformConvOptions, QTensorOps};
use burn_backend::quantization::{QuantLevel, QuantScheme, QuantStore, QuantValue};
use burn_backend::tensor::QuantizedTensor;

/// Three schemes: 8-bit values with one scale, 8-bit values with a scale for each 32 of them, and
/// packed 4-bit values with a scale for each 32.
fn schemes() -> [(&'static str, QuantScheme); 3] {
    let scheme =
        |value, store, level| QuantScheme::default().with_value(value).with_store(store).with_level(level);
    [
        ("Q8S", scheme(QuantValue::Q8S, QuantStore::Native, QuantLevel::Tensor)),
        ("Q8S in 32", scheme(QuantValue::Q8S, QuantStore::Native, QuantLevel::block([32]))),
        ("Q4S in 32, packed", scheme(QuantValue::Q4S, QuantStore::PackedU32(0), QuantLevel::block([32]))),
    ]
}

fn quantized<B: Backend>(device: &B::Device, shape: &[usize], scheme: &QuantScheme) -> QuantizedTensor<B> {
    B::quantize_dynamic(floats::<B>(device, DType::F32, shape), scheme)
}

pub(super) fn quantization(family: &mut Family<'_>) {
    for n in SIZES {
        for (name, scheme) in schemes() {
            let shape = [n / 64, 64];
            case!(
                family,
                times(n),
                format!("quantize_dynamic f32 to {name} {n}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| B::quantize_dynamic(s.clone(), &scheme)
            );
            case!(
                family,
                times(n),
                format!("dequantize {name} to f32 {n}"),
                |B, device| quantized::<B>(device, &shape, &scheme),
                |s| B::dequantize(s.clone(), FloatDType::F32)
            );
        }
    }
}

pub(super) fn quantized_products(family: &mut Family<'_>) {
    // One token, and batches of activations, multiplied by a layer's weights.
    for [m, k, n] in [[1, 1024, 1024], [64, 256, 128], [128, 784, 512]] {
        for (name, scheme) in schemes() {
            case!(
                family,
                times(m * k * n / 64),
                format!("q_matmul f32 by {name} {m}x{k}x{n}"),
                |B, device| (
                    floats::<B>(device, DType::F32, &[m, k]),
                    quantized::<B>(device, &[k, n], &scheme)
                ),
                |s| {
                    B::q_matmul(TensorPrimitive::Float(s.0.clone()), TensorPrimitive::QFloat(s.1.clone()))
                }
            );
            case!(
                family,
                times(m * k * n / 64),
                format!("q_matmul {name} by itself {m}x{k}x{n}"),
                |B, device| (
                    quantized::<B>(device, &[m, k], &scheme),
                    quantized::<B>(device, &[k, n], &scheme)
                ),
                |s| {
                    B::q_matmul(TensorPrimitive::QFloat(s.0.clone()), TensorPrimitive::QFloat(s.1.clone()))
                }
            );
        }
    }
}

pub(super) fn deformable(family: &mut Family<'_>) {
    for [batch, channels, size] in [[1, 4, 16], [2, 32, 28], [1, 64, 56]] {
        let x = [batch, channels, size, size];
        let options = || DeformConvOptions::new([1, 1], [1, 1], [1, 1], 1, 1);
        macro_rules! operands {
            ($B:ident, $device:ident) => {
                [
                    floats::<$B>($device, DType::F32, &x),
                    floats::<$B>($device, DType::F32, &[batch, 18, size, size]),
                    floats::<$B>($device, DType::F32, &[channels, channels, 3, 3]),
                    floats::<$B>($device, DType::F32, &[batch, 9, size, size]),
                    floats::<$B>($device, DType::F32, &[channels]),
                    floats::<$B>($device, DType::F32, &x),
                ]
            };
        }
        case!(family, 1, format!("deform_conv2d f32 {x:?}"), |B, device| operands!(B, device), |s| {
            let [x, offset, weight, mask, bias, _] = s.clone();
            B::deform_conv2d(x, offset, weight, Some(mask), Some(bias), options())
        });
        // The peer takes many seconds for these gradients.
        if size > 28 {
            continue;
        }
        case!(
            family,
            1,
            format!("deform_conv2d backward f32 {x:?}"),
            |B, device| operands!(B, device),
            |s| {
                let [x, offset, weight, mask, bias, grad] = s.clone();
                B::deform_conv2d_backward(x, offset, weight, Some(mask), Some(bias), grad, options())
            }
        );
    }
}

/// The log-probabilities, the targets and both lengths.
type Speech<B> = (Tensor<B, 3>, Tensor<B, 2, Int>, Tensor<B, 1, Int>, Tensor<B, 1, Int>);

fn speech<B: Backend>(device: &B::Device, [steps, batch, classes, labels]: [usize; 4]) -> Speech<B> {
    let log_probs = Tensor::random([steps, batch, classes], Distribution::Uniform(-3.0, -0.1), device);
    let targets: Vec<i64> = (0..batch * labels).map(|i| 1 + (i * 7 % (classes - 1)) as i64).collect();
    let lengths = |n: usize| Tensor::from_data(TensorData::new(vec![n as i64; batch], [batch]), device);
    (
        log_probs,
        Tensor::from_data(TensorData::new(targets, [batch, labels]), device),
        lengths(steps),
        lengths(labels),
    )
}

pub(super) fn sequences(family: &mut Family<'_>) {
    // Sizes of word recognition in images, and of letters in speech.
    for dims in [[32, 16, 37, 10], [200, 8, 29, 60]] {
        case!(family, 1, format!("ctc_loss {dims:?}"), |B, device| speech::<B>(device, dims), |s| {
            let (log_probs, targets, inputs, lengths) = s.clone();
            ctc_loss(log_probs, targets, inputs, lengths, 0)
        });
        case!(
            family,
            1,
            format!("ctc_loss and its gradient {dims:?}"),
            |B, device| speech::<Autodiff<B>>(device, dims),
            |s| {
                let (log_probs, targets, inputs, lengths) = s.clone();
                let leaf = log_probs.require_grad();
                ctc_loss(leaf.clone(), targets, inputs, lengths, 0).sum().backward()
            }
        );
    }
}
