//! Pooling of tensors whose channels are innermost in memory (NHWC), where the setting puts them
//! there. The kernels of `pool_last.hip` read and write this order, so nothing is copied, and a
//! thread accesses 16 bytes of neighbouring channels. Indices of maxima have this order too.
//!
//! The libraries are no way to maxima in this order. MIOpen wraps its row-major kernels in
//! transpositions, and cuDNN returns no indices.

use burn_std::DType;
use hip::{Fault, KernelName, Template};

use super::Window;
use crate::arg::Arg;
use crate::burn::NAN_IS_MAXIMUM;
use crate::ops::channels_last::{self, from_rows, is_channels_last, packed_rows};
use crate::ops::launch::{MAX_REACH, rows};
use crate::tensor::RocmTensor;

/// Whether `x` has its channels last, and its pooling keeps them there. A tensor of one row may be a
/// line, whose neighbours compute in the order of rank 3.
pub(super) fn is_kept(x: &RocmTensor) -> hip::Result<bool> {
    let kept = is_channels_last(x) && x.dims()[2] > 1 && x.dims()[1] <= MAX_REACH;
    Ok(kept && channels_last::is_on(x.dtype_of())?)
}

/// The window of an adaptive pooling to `size`, if it keeps the channels of `x` last and all its
/// windows are alike.
pub(super) fn divided(x: &RocmTensor, size: [usize; 2]) -> hip::Result<Option<Window<2>>> {
    let &[_, _, height, width] = x.dims() else { return Ok(None) };
    let divides = |whole: usize, part: usize| part > 0 && whole > 0 && whole.is_multiple_of(part);
    if !divides(height, size[0]) || !divides(width, size[1]) || !is_kept(x)? {
        return Ok(None);
    }
    let window = [height / size[0], width / size[1]];
    Ok(Some(Window { size: window, stride: window, padding: [0; 2], dilation: [1; 2], ceil: false }))
}

/// A new tensor for the rows of a tensor of shape `x`.
fn rows_for(x: &[usize], like: &RocmTensor, dtype: DType) -> hip::Result<RocmTensor> {
    RocmTensor::empty(like.hip_device(), vec![x[0], x[2], x[3], x[1]], dtype)
}

/// A pooling between tensors of shapes `x` and `y`.
struct Pooling<'a, const D: usize> {
    op: &'static str,
    x: &'a [usize],
    y: &'a [usize],
    window: &'a Window<D>,
    switches: &'a [bool],
}

impl<const D: usize> Pooling<'_, D> {
    fn launch(
        &self,
        kernel: KernelName,
        inputs: &[&RocmTensor],
        fault: &[Arg],
        outputs: &[&RocmTensor],
    ) -> hip::Result<()> {
        let [batch, channels] = [self.x[0], self.x[1]];
        let first = [Arg::U64(batch as u64), Arg::U32(channels as u32), self.window.value(self.x, self.y)];
        let switches = self.switches.iter().map(|&on| Arg::I32(on.into()));
        let dims: Vec<Arg> = first.into_iter().chain(switches).collect();
        let device = outputs[0].hip_device();
        rows(self.op, device, kernel, device.grid(outputs[0].len()), &dims, inputs, fault, outputs)
    }
}

/// [`super::maxima`] of shape `y`.
pub(super) fn maxima<const D: usize>(
    op: &'static str,
    x: RocmTensor,
    y: &[usize],
    window: &Window<D>,
    index: Option<DType>,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let shape = x.dims().to_vec();
    let x = packed_rows(x)?;
    let out = rows_for(y, &x, x.dtype_of())?;
    let indices = match index {
        Some(index) => rows_for(y, &x, index)?,
        None => RocmTensor::empty(x.hip_device(), vec![0], DType::I32)?,
    };
    if !out.is_empty() {
        let kernel = Template::max_pool2d_last.ty(x.kernel_type()?).ty(indices.kernel_type()?);
        let pooling = Pooling { op, x: &shape, y, window, switches: &[index.is_some(), NAN_IS_MAXIMUM] };
        pooling.launch(kernel, &[&x], &[], &[&out, &indices])?;
    }
    Ok((from_rows(out)?, if index.is_some() { from_rows(indices)? } else { indices }))
}

/// [`super::max_gradient`] for an input of shape `x` with its channels last.
pub(super) fn max_gradient<const D: usize>(
    op: &'static str,
    x: &[usize],
    window: &Window<D>,
    grad: RocmTensor,
    indices: RocmTensor,
) -> hip::Result<RocmTensor> {
    let y = grad.dims().to_vec();
    let (grad, indices) = (packed_rows(grad)?, packed_rows(indices)?);
    let out = rows_for(x, &grad, grad.dtype_of())?;
    if !out.is_empty() {
        let kernel = Template::max_pool2d_last_backward.ty(grad.kernel_type()?).ty(indices.kernel_type()?);
        let pooling = Pooling { op, x, y: &y, window, switches: &[] };
        pooling.launch(kernel, &[&grad, &indices], &[Arg::Flag(op, Fault::Index)], &[&out])?;
    }
    from_rows(out)
}

/// [`super::average`] of shape `y`.
pub(super) fn average<const D: usize>(
    op: &'static str,
    x: RocmTensor,
    y: &[usize],
    window: &Window<D>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    let shape = x.dims().to_vec();
    let x = packed_rows(x)?;
    let out = rows_for(y, &x, x.dtype_of())?;
    if !out.is_empty() {
        let kernel = Template::avg_pool2d_last.ty(x.kernel_type()?);
        let pooling = Pooling { op, x: &shape, y, window, switches: &[count_include_pad] };
        pooling.launch(kernel, &[&x], &[], &[&out])?;
    }
    from_rows(out)
}

/// [`super::average_gradient`] for an input of shape `x` with its channels last.
pub(super) fn average_gradient<const D: usize>(
    op: &'static str,
    x: &[usize],
    grad: RocmTensor,
    window: &Window<D>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    let y = grad.dims().to_vec();
    let grad = packed_rows(grad)?;
    let out = rows_for(x, &grad, grad.dtype_of())?;
    if !out.is_empty() {
        let kernel = Template::avg_pool2d_last_backward.ty(grad.kernel_type()?);
        let pooling = Pooling { op, x, y: &y, window, switches: &[count_include_pad] };
        pooling.launch(kernel, &[&grad], &[], &[&out])?;
    }
    from_rows(out)
}
