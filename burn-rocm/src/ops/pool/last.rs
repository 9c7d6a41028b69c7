//! Pooling of tensors whose channels are innermost in memory (NHWC). The kernels over three axes see
//! a sample as one plane `[height, width, channels]`, with a window of one channel.

use burn_std::DType;
use hip::{Fault, Functor, Template};

use super::{MAX_SIZE, Window, kernel};
use crate::arg::Arg;
use crate::ops::binary::{binary, scalar};
use crate::ops::cast::cast;
use crate::ops::channels_last::{from_rows, is_channels_last, packed_rows};
use crate::ops::copy::packed;
use crate::ops::create::arange;
use crate::ops::launch::MAX_REACH;
use crate::ops::unary::clamp;
use crate::tensor::RocmTensor;

/// The window over height, width and channels, if `x` has its channels last and each window has an
/// element of `x`: the index of an empty window names no channel.
pub(super) fn window<const D: usize>(window: &Window<D>, x: &RocmTensor) -> Option<Window<3>> {
    let whole = !window.ceil && window.dilation == [1; D];
    let full = whole && window.padding.iter().zip(&window.size).all(|(padding, size)| padding < size);
    if D != 2 || !full || !is_channels_last(x) || !is_counted(x) {
        return None;
    }
    let with = |list: [usize; D], channel: usize| [list[0], list[1], channel];
    Some(Window {
        size: with(window.size, 1),
        stride: with(window.stride, 1),
        padding: with(window.padding, 0),
        dilation: [1; 3],
        ceil: false,
    })
}

/// The window of an adaptive pooling to `size`, if `x` has its channels last and all its windows are
/// alike.
pub(super) fn divided(x: &RocmTensor, size: [usize; 2]) -> Option<Window<3>> {
    let &[_, _, height, width] = x.dims() else { return None };
    let divides = |whole: usize, part: usize| part > 0 && whole > 0 && whole.is_multiple_of(part);
    if !is_channels_last(x) || !divides(height, size[0]) || !divides(width, size[1]) || !is_counted(x) {
        return None;
    }
    let window = [height / size[0], width / size[1], 1];
    Some(Window { size: window, stride: window, padding: [0; 3], dilation: [1; 3], ceil: false })
}

/// Whether the kernels can count the positions in a sample.
fn is_counted(x: &RocmTensor) -> bool {
    x.dims()[1] < MAX_SIZE && x.dims()[1..].iter().product::<usize>() <= MAX_REACH
}

/// The shape of a tensor of shape `x` as the kernels see it: `[batch, 1, height, width, channels]`.
fn seen(x: &[usize]) -> [usize; 5] {
    [x[0], 1, x[2], x[3], x[1]]
}

/// An empty tensor for the rows of a tensor of shape `x`.
fn rows_for(x: &[usize], like: &RocmTensor, dtype: DType) -> hip::Result<RocmTensor> {
    RocmTensor::empty(like.hip_device(), vec![x[0], x[2], x[3], x[1]], dtype)
}

/// [`super::maxima`] of shape `y`.
pub(super) fn maxima(
    op: &'static str,
    x: RocmTensor,
    y: &[usize],
    window: Window<3>,
    index: Option<DType>,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let shape = x.dims().to_vec();
    let rows = packed_rows(x)?;
    let out = rows_for(y, &rows, rows.dtype_of())?;
    let places = match index {
        Some(_) => rows_for(y, &rows, DType::I32)?,
        None => RocmTensor::empty(rows.hip_device(), [0], DType::I32)?,
    };
    if !out.is_empty() {
        let (x, y) = (seen(&shape), seen(y));
        let name = Template::max_pool3d.ty(rows.kernel_type()?);
        let shapes = (&x[..], &y[..], window.value(&x, &y));
        kernel(op, name, shapes, Some(index.is_some()), &[&rows], &[], &[&out, &places])?;
    }
    let Some(index) = index else { return Ok((from_rows(out)?, places)) };
    // A place is `(row * width + column) * channels + channel`.
    let pixels = match shape[1] {
        0 | 1 => places,
        channels => scalar(op, Functor::Div, places, (channels as i64).into())?,
    };
    Ok((from_rows(out)?, from_rows(cast(pixels, index)?)?))
}

/// [`super::max_gradient`] for an input of shape `x` with its channels last.
pub(super) fn max_gradient(
    op: &'static str,
    x: &[usize],
    window: Window<3>,
    grad: RocmTensor,
    indices: RocmTensor,
) -> hip::Result<RocmTensor> {
    let y = seen(grad.dims());
    let (grad, pixels) = (packed_rows(grad)?, packed_rows(indices)?);
    let out = rows_for(x, &grad, grad.dtype_of())?;
    if !out.is_empty() {
        // An index that names no pixel must name no element either.
        let count = (x[2] * x[3]) as i64;
        let pixels = clamp(op, pixels, Some((-2i64).into()), Some(count.into()))?;
        let pixels = cast(pixels, DType::I32)?;
        let first = scalar(op, Functor::Mul, pixels, (x[1] as i64).into())?;
        let channels = arange(&grad.rocm_device(), 0..x[1] as i64, 1, DType::I32)?;
        let places = packed(binary(op, Functor::Add, first, channels)?)?;
        let name = Template::max_pool3d_backward.ty(grad.kernel_type()?);
        let seen = seen(x);
        let shapes = (&seen[..], &y[..], window.value(&seen, &y));
        let fault = [Arg::Flag(op, Fault::Index)];
        kernel(op, name, shapes, None, &[&grad, &places], &fault, &[&out])?;
    }
    from_rows(out)
}

/// [`super::average`] of shape `y`.
pub(super) fn average(
    op: &'static str,
    x: RocmTensor,
    y: &[usize],
    window: Window<3>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    let x_seen = seen(x.dims());
    let rows = packed_rows(x)?;
    let out = rows_for(y, &rows, rows.dtype_of())?;
    if !out.is_empty() {
        let y = seen(y);
        let name = Template::avg_pool3d.ty(rows.kernel_type()?);
        let shapes = (&x_seen[..], &y[..], window.value(&x_seen, &y));
        kernel(op, name, shapes, Some(count_include_pad), &[&rows], &[], &[&out])?;
    }
    from_rows(out)
}

/// [`super::average_gradient`] for an input of shape `x` with its channels last.
pub(super) fn average_gradient(
    op: &'static str,
    x: &[usize],
    grad: RocmTensor,
    window: Window<3>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    let y = seen(grad.dims());
    let grad = packed_rows(grad)?;
    let out = rows_for(x, &grad, grad.dtype_of())?;
    if !out.is_empty() {
        let seen = seen(x);
        let name = Template::avg_pool3d_backward.ty(grad.kernel_type()?);
        let shapes = (&seen[..], &y[..], window.value(&seen, &y));
        kernel(op, name, shapes, Some(count_include_pad), &[&grad], &[], &[&out])?;
    }
    from_rows(out)
}
