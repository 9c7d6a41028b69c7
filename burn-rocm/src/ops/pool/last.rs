//! Pooling of tensors whose channels are innermost in memory (NHWC), where the setting puts them
//! there.
//!
//! Averages: the kernels over three axes see a sample as one plane `[height, width, channels]`, with
//! a window of one channel. They move no more bytes than in row-major order.
//!
//! Maxima: the row-major kernels or MIOpen compute them between two copies. The kernels over three
//! axes would need no copy, but their indices count elements of `[height, width, channels]`, which
//! four passes over the indices convert. For windows that halve both axes, 2-byte elements and
//! 4-byte indices, the passes of a training step move 32 bytes for each output (a division, a check,
//! a product and a sum, each 8), and the copies 40. In return, the kernels over two axes divide
//! less: those over three took 19 times as long as their bytes need on an H200, in the gradient.
//! MIOpen's NHWC pooling is no third way: it wraps its row-major kernels in the same copies.

use hip::Template;

use super::{MAX_SIZE, Window, kernel};
use crate::ops::channels_last::{self, from_rows, is_channels_last, packed_rows};
use crate::ops::launch::MAX_REACH;
use crate::tensor::RocmTensor;

/// Whether `x` has its channels last, and its pooling keeps them there. A tensor of one row may be a
/// line, whose neighbours compute in the order of rank 3.
pub(super) fn is_kept(x: &RocmTensor) -> hip::Result<bool> {
    Ok(is_channels_last(x) && x.dims()[2] > 1 && channels_last::is_on(x.dtype_of())?)
}

/// The tensor with its channels last.
pub(super) fn keep(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    from_rows(packed_rows(tensor)?)
}

/// The window over height, width and channels, if the averages of `x` keep its channels last and
/// each window has an element of `x`.
pub(super) fn window<const D: usize>(window: &Window<D>, x: &RocmTensor) -> hip::Result<Option<Window<3>>> {
    let whole = !window.ceil && window.dilation == [1; D];
    let full = whole && window.padding.iter().zip(&window.size).all(|(padding, size)| padding < size);
    if D != 2 || !full || !is_counted(x) || !is_kept(x)? {
        return Ok(None);
    }
    let with = |list: [usize; D], channel: usize| [list[0], list[1], channel];
    Ok(Some(Window {
        size: with(window.size, 1),
        stride: with(window.stride, 1),
        padding: with(window.padding, 0),
        dilation: [1; 3],
        ceil: false,
    }))
}

/// The window of an adaptive pooling to `size`, if it keeps the channels of `x` last and all its
/// windows are alike.
pub(super) fn divided(x: &RocmTensor, size: [usize; 2]) -> hip::Result<Option<Window<3>>> {
    let &[_, _, height, width] = x.dims() else { return Ok(None) };
    let divides = |whole: usize, part: usize| part > 0 && whole > 0 && whole.is_multiple_of(part);
    if !divides(height, size[0]) || !divides(width, size[1]) || !is_counted(x) || !is_kept(x)? {
        return Ok(None);
    }
    let window = [height / size[0], width / size[1], 1];
    Ok(Some(Window { size: window, stride: window, padding: [0; 3], dilation: [1; 3], ceil: false }))
}

/// Whether the kernels can count the positions in a sample.
fn is_counted(x: &RocmTensor) -> bool {
    x.dims()[1] < MAX_SIZE && x.dims()[1..].iter().product::<usize>() <= MAX_REACH
}

/// The shape of a tensor of shape `x` as the kernels see it: `[batch, 1, height, width, channels]`.
fn seen(x: &[usize]) -> [usize; 5] {
    [x[0], 1, x[2], x[3], x[1]]
}

/// A new tensor for the rows of a tensor of shape `x`, with the dtype of `like`.
fn rows_for(x: &[usize], like: &RocmTensor) -> hip::Result<RocmTensor> {
    RocmTensor::empty(like.hip_device(), vec![x[0], x[2], x[3], x[1]], like.dtype_of())
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
    let out = rows_for(y, &rows)?;
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
    let out = rows_for(x, &grad)?;
    if !out.is_empty() {
        let seen = seen(x);
        let name = Template::avg_pool3d_backward.ty(grad.kernel_type()?);
        let shapes = (&seen[..], &y[..], window.value(&seen, &y));
        kernel(op, name, shapes, Some(count_include_pad), &[&grad], &[], &[&out])?;
    }
    from_rows(out)
}
