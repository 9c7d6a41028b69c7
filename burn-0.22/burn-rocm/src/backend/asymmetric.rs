//! Convolutions whose padding may differ before and after an axis.

use burn_backend::ops::ConvOptions;
use burn_backend::ops::conv::pad_asymmetric_conv_input;

use super::Rocm;
use super::options::plain;
use crate::error::invalid;
use crate::ops::{conv, view};
use crate::tensor::RocmTensor;

/// If the padding before and after an axis differs, pads the input and returns options without
/// padding. Otherwise returns both unchanged.
pub(super) fn padded<const N: usize>(x: RocmTensor, options: ConvOptions<N>) -> (RocmTensor, ConvOptions<N>) {
    pad_asymmetric_conv_input::<Rocm, N>(x, options)
}

/// The gradient with respect to a convolution's input, whose shape is `x`.
pub(super) fn x_backward<const N: usize>(
    op: &'static str,
    x: &[usize],
    weight: RocmTensor,
    grad: RocmTensor,
    options: ConvOptions<N>,
) -> hip::Result<RocmTensor> {
    if !options.is_asymmetric() {
        return conv::x_backward(op, x, weight, grad, &plain(options.padding_begin(), options));
    }
    let mut whole = x.to_vec();
    let mut spatial = whole.iter_mut().skip(2).zip(options.padding);
    let fits = spatial.all(|(size, (before, behind))| {
        let sum = size.checked_add(before).and_then(|sum| sum.checked_add(behind));
        sum.map(|sum| *size = sum).is_some()
    });
    if x.len() != N + 2 || !fits {
        let expected =
            format!("an input of rank {} with padded axes of at most {} elements", N + 2, usize::MAX);
        return invalid(op, expected, format!("{x:?} and a padding of {:?}", options.padding));
    }
    let unpadded = ConvOptions::new(options.stride, [0; N], options.dilation, options.groups);
    let grad = conv::x_backward(op, &whole, weight, grad, &plain([0; N], unpadded))?;
    options
        .padding
        .iter()
        .enumerate()
        .try_fold(grad, |grad, (axis, &(before, _))| view::narrow(grad, axis + 2, before, x[axis + 2]))
}
