//! Pooling over two and three axes. Pooling over one axis treats a line as a plane of one row.
//!
//! A kernel of this project finds maxima. MIOpen starts each window from the lowest finite number
//! and replaces it by elements that are greater, so its results differ from Burn's for windows of
//! -inf and for NaN. In Burn 0.22 a NaN is always the maximum, in Burn 0.21 only if it comes first,
//! and in MIOpen never. The host can't recognise such inputs without reading them.
//!
//! MIOpen computes averages, whose sums keep NaN, and the gradient of maxima, which depends on the
//! maxima's indices and not on the elements. Where MIOpen lacks the dtype or the options (f64,
//! bf16, dilation, an incomplete window, a tensor or window past 2^31 elements), a kernel computes
//! them.

mod last;
pub(crate) mod pool1d;
pub(crate) mod pool3d;

use burn_backend::ops::conv::calculate_pool_output_size;
use burn_std::DType;
use hip::{Dnn, Fault, KernelName, PoolDesc, PoolMode, Template};

use crate::arg::Arg;
use crate::burn::{NAN_IS_MAXIMUM, WINDOW_MAY_EXCEED_INPUT};
use crate::dtype::{check_indices, is_index};
use crate::error::invalid;
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::{MAX_REACH, rows};
use crate::ops::miopen::{whole, without_library};
use crate::ops::view::reshape;
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// The neighbouring pixels of a line that a thread of a GPU has in the kernels for maxima (`SPAN` of
/// `pool.hip`).
const SPAN: usize = 4;

/// The largest position along an axis that the kernels handle.
const MAX_SIZE: usize = 1 << 30;

/// A pooling's window over two or three axes (`D`), and how it moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<const D: usize> {
    pub size: [usize; D],
    pub stride: [usize; D],
    pub padding: [usize; D],
    pub dilation: [usize; D],
    /// Whether an incomplete last window counts (ceil mode).
    pub ceil: bool,
}

impl Window<2> {
    /// A window over `[N, C, L]` as one over `[N, C, 1, L]`.
    pub(crate) fn line(size: usize, stride: usize, padding: usize, dilation: usize, ceil: bool) -> Self {
        Self { size: [1, size], stride: [1, stride], padding: [0, padding], dilation: [1, dilation], ceil }
    }
}

impl<const D: usize> Window<D> {
    /// The part of an axis that a window covers. `None` if the window is empty, or if 64 bits can't
    /// count the part.
    fn extent(&self, axis: usize) -> Option<usize> {
        self.dilation[axis].checked_mul(self.size[axis].checked_sub(1)?)?.checked_add(1)
    }

    /// The number of windows along an axis of `input` elements, or `None` if no window fits. In ceil
    /// mode, the last window may start in the padding behind the input. Burn's own formula decides:
    /// 0.21 keeps such a window, 0.22 drops it.
    fn windows(&self, axis: usize, input: usize) -> Option<usize> {
        let [size, stride, padding, dilation] =
            [self.size, self.stride, self.padding, self.dilation].map(|list| list[axis]);
        let padded = padding.checked_mul(2)?.checked_add(input)?;
        let excess = if self.ceil && WINDOW_MAY_EXCEED_INPUT { stride.checked_sub(1)? } else { 0 };
        let fits = stride > 0 && dilation > 0 && self.extent(axis)? <= padded.checked_add(excess)?;
        fits.then(|| calculate_pool_output_size(size, stride, padding, dilation, input, self.ceil))
            .filter(|windows| *windows > 0)
    }

    /// The output's shape for an input `[N, C, H, W]` or `[N, C, D, H, W]`.
    fn output(&self, op: &'static str, x: &[usize]) -> hip::Result<Vec<usize>> {
        if x.len() != D + 2 {
            return invalid(op, format!("an input of rank {}", D + 2), format!("{x:?}"));
        }
        let mut out = x.to_vec();
        for axis in 0..D {
            let Some(windows) = self.windows(axis, x[axis + 2]) else {
                return invalid(op, "a window that fits the padded input", format!("{self:?} over {x:?}"));
            };
            out[axis + 2] = windows;
        }
        // The kernels count positions along an axis and within a plane in 31 bits.
        let beyond = |axis: usize| {
            let last = (out[axis + 2] - 1).checked_mul(self.stride[axis]);
            let padded = x[axis + 2] + 2 * self.padding[axis];
            let all = [last, self.extent(axis), Some(padded), Some(self.dilation[axis])];
            all.into_iter().any(|size| size.is_none_or(|size| size >= MAX_SIZE))
        };
        let pixels = x[2..].iter().try_fold(1usize, |pixels, &dim| pixels.checked_mul(dim));
        if pixels.is_none_or(|pixels| pixels > MAX_REACH) || (0..D).any(beyond) {
            let expected = format!("axes below {MAX_SIZE} and planes below {MAX_REACH}");
            return invalid(op, expected, format!("{self:?} over {x:?}"));
        }
        Ok(out)
    }

    /// Whether MIOpen has this pooling: f32 or f16, no dilation, complete windows, padding below
    /// the window's size, and tensors and windows of at most 2^31 - 1 elements. Tells the summary if
    /// not.
    fn miopen(&self, x: &[usize], out: &[usize], dtype: hip::DType) -> bool {
        let complete = Self { ceil: false, ..*self }.output("pool", x).is_ok_and(|complete| complete == out);
        let padding = self.padding.iter().zip(&self.size).all(|(padding, size)| padding < size);
        let count = |sizes: &[usize]| sizes.iter().fold(1, |count: usize, &size| count.saturating_mul(size));
        let small = [x, out, &self.size].into_iter().all(|sizes| count(sizes) <= MAX_REACH);
        let has = complete && padding && small && self.dilation == [1; D] && PoolDesc::takes(dtype);
        if !has {
            hip::trace::fell_back(|| match PoolDesc::takes(dtype) {
                true => {
                    "MIOpen has no pooling with this window (dilation, ceil mode, padding) or so many elements"
                }
                false => "MIOpen's pooling has neither f64 nor bf16",
            });
        }
        has
    }

    fn describe(&self, x: &[usize], y: &[usize], dtype: hip::DType, mode: PoolMode) -> PoolDesc {
        PoolDesc {
            dtype,
            x: x.to_vec(),
            y: y.to_vec(),
            window: self.size.to_vec(),
            stride: self.stride.to_vec(),
            padding: self.padding.to_vec(),
            mode,
            index: hip::DType::I64,
        }
    }

    /// The kernels' struct `Window2` or `Window3`.
    fn value(&self, x: &[usize], y: &[usize]) -> Arg {
        let lists = [&x[2..], &y[2..], &self.size, &self.stride, &self.padding, &self.dilation];
        // Only a stride can be larger. No second window is that far away, so capping the stride
        // changes nothing.
        let entry = |i: usize| lists[i % 6][i / 6].min(MAX_SIZE) as u32;
        match D {
            2 => Arg::U32x12(std::array::from_fn(entry)),
            _ => Arg::U32x18(std::array::from_fn(entry)),
        }
    }

    /// The kernel for two or three axes.
    fn kernel(&self, [two, three]: [Template; 2]) -> Template {
        if D == 2 { two } else { three }
    }
}

/// Runs the call on MIOpen. Returns whether MIOpen did it; if not, a kernel must.
fn served(out: &RocmTensor, call: impl FnOnce(&Dnn) -> hip::Result<()>) -> hip::Result<bool> {
    match out.hip_device().dnn().and_then(call) {
        Ok(()) => Ok(true),
        Err(error) => without_library(error).map(|()| false),
    }
}

/// Launches a pooling kernel over `planes` and the window, with its switches and its fault flag, if
/// it has them.
fn kernel(
    op: &'static str,
    kernel: KernelName,
    shapes: (&[usize], &[usize], Arg),
    switches: &[bool],
    inputs: &[&RocmTensor],
    fault: &[Arg],
    outputs: &[&RocmTensor],
) -> hip::Result<()> {
    let (x, _, window) = shapes;
    let planes = Arg::U64((x[0] * x[1]) as u64);
    let switches = switches.iter().map(|&on| Arg::I32(on.into()));
    let dims: Vec<Arg> = [planes, window].into_iter().chain(switches).collect();
    let (device, len) = (outputs[0].hip_device(), outputs[0].len());
    let threads = device.block_threads() as usize;
    let grid = match outputs[0].dims().last() {
        Some(&width) if threads > 1 && width > 0 => {
            device.grid_rows((len / width * width.div_ceil(SPAN)).div_ceil(threads), threads)
        }
        _ => device.grid(len),
    };
    rows(op, device, kernel, grid, &dims, inputs, fault, outputs)
}

/// The largest element of each window.
pub(crate) fn max<const D: usize>(
    op: &'static str,
    x: RocmTensor,
    window: Window<D>,
) -> hip::Result<RocmTensor> {
    Ok(maxima(op, x, window, None)?.0)
}

/// The largest element of each window, and its index in its plane:
/// `(slice * height + row) * width + column`.
///
/// # Errors
/// `Invalid`, also if the integer type `index` can't hold the indices of such a plane.
pub(crate) fn max_with_indices<const D: usize>(
    op: &'static str,
    x: RocmTensor,
    window: Window<D>,
    index: DType,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    window.output(op, x.dims())?;
    check_indices(op, "pixels in a plane", x.dims()[2..].iter().product(), index)?;
    let (out, indices) = maxima(op, x, window, Some(if is_index(index) { index } else { DType::I64 }))?;
    Ok((out, cast(indices, index)?))
}

/// The maxima and, if `index` names a type, their indices in that type; else the second tensor is
/// empty.
///
/// In 3-D the indices must be `I32`.
fn maxima<const D: usize>(
    op: &'static str,
    x: RocmTensor,
    window: Window<D>,
    index: Option<DType>,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let y = window.output(op, x.dims())?;
    if last::is_kept(&x)? {
        return last::maxima(op, x, &y, &window, index);
    }
    let x = packed(x)?;
    let device = x.hip_device();
    let out = RocmTensor::empty(device, y.clone(), x.dtype_of())?;
    let shape = if index.is_some() { y.clone() } else { vec![0] };
    let indices = RocmTensor::empty(device, shape, index.unwrap_or(DType::I32))?;
    if !out.is_empty() {
        let name = window.kernel([Template::max_pool2d, Template::max_pool3d]).ty(x.kernel_type()?);
        let name = if D == 2 { name.ty(indices.kernel_type()?) } else { name };
        let shapes = (x.dims(), &y[..], window.value(x.dims(), &y));
        kernel(op, name, shapes, &[index.is_some(), NAN_IS_MAXIMUM], &[&x], &[], &[&out, &indices])?;
    }
    Ok((out, indices))
}

/// The gradient with respect to the input of a max pooling.
pub(crate) fn max_backward<const D: usize>(
    op: &'static str,
    x: &RocmTensor,
    window: Window<D>,
    grad: RocmTensor,
    indices: RocmTensor,
) -> hip::Result<RocmTensor> {
    one_device(op, &[x, &grad])?;
    one_dtype(op, &[x, &grad])?;
    if last::is_kept(x)? {
        check_max_gradient(op, x.dims(), window, &grad, &indices)?;
        let indices = for_kernel::<D>(indices)?;
        return last::max_gradient(op, x.dims(), &window, grad, indices);
    }
    max_gradient(op, x.dims(), window, grad, indices)
}

/// Returns the shape of the pooling's output, which `grad` and `indices` have.
fn check_max_gradient<const D: usize>(
    op: &'static str,
    x: &[usize],
    window: Window<D>,
    grad: &RocmTensor,
    indices: &RocmTensor,
) -> hip::Result<Vec<usize>> {
    one_device(op, &[grad, indices])?;
    let y = window.output(op, x)?;
    if grad.dims() != y || indices.dims() != y {
        let found = format!("{:?} and {:?}", grad.dims(), indices.dims());
        return invalid(op, format!("a gradient and indices of shape {y:?}"), found);
    }
    Ok(y)
}

/// Indices in a type that the kernels have.
fn for_kernel<const D: usize>(indices: RocmTensor) -> hip::Result<RocmTensor> {
    let kept = D == 2 && is_index(indices.dtype_of()) || indices.dtype_of() == DType::I32;
    let other = if D == 2 { DType::I64 } else { DType::I32 };
    if kept { Ok(indices) } else { cast(indices, other) }
}

/// The gradient with respect to the input, of shape `x`, of a max pooling. In 3-D the indices are
/// `I32`.
pub(crate) fn max_gradient<const D: usize>(
    op: &'static str,
    x: &[usize],
    window: Window<D>,
    grad: RocmTensor,
    indices: RocmTensor,
) -> hip::Result<RocmTensor> {
    let y = check_max_gradient(op, x, window, &grad, &indices)?;
    let out = RocmTensor::empty(grad.hip_device(), x.to_vec(), grad.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    let ty = grad.kernel_type()?;
    let indices = packed(for_kernel::<D>(indices)?)?;
    let grad = packed(grad)?;
    if window.miopen(x, &y, ty) {
        let desc = PoolDesc { index: indices.kernel_type()?, ..window.describe(x, &y, ty, PoolMode::Max) };
        let places = Some(whole(&indices));
        if served(&out, |dnn| dnn.pool_backward(&desc, whole(&grad), whole(&out), places))? {
            return Ok(out);
        }
    }
    let name = window.kernel([Template::max_pool2d_backward, Template::max_pool3d_backward]).ty(ty);
    let name = if D == 2 { name.ty(indices.kernel_type()?) } else { name };
    let shapes = (x, &y[..], window.value(x, &y));
    let fault = [Arg::Flag(op, Fault::Index)];
    kernel(op, name, shapes, &[], &[&grad, &indices], &fault, &[&out])?;
    Ok(out)
}

fn average_mode(count_include_pad: bool) -> PoolMode {
    if count_include_pad { PoolMode::AverageInclusive } else { PoolMode::AverageExclusive }
}

/// The mean of each window.
pub(crate) fn average<const D: usize>(
    op: &'static str,
    x: RocmTensor,
    window: Window<D>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    let y = window.output(op, x.dims())?;
    let ty = x.kernel_type()?;
    if last::is_kept(&x)? {
        return last::average(op, x, &y, &window, count_include_pad);
    }
    let x = packed(x)?;
    let out = RocmTensor::empty(x.hip_device(), y.clone(), x.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    if window.miopen(x.dims(), &y, ty) {
        let desc = window.describe(x.dims(), &y, ty, average_mode(count_include_pad));
        if served(&out, |dnn| dnn.pool_forward(&desc, whole(&x), whole(&out), None))? {
            return Ok(out);
        }
    }
    let shapes = (x.dims(), &y[..], window.value(x.dims(), &y));
    let name = window.kernel([Template::avg_pool2d, Template::avg_pool3d]).ty(ty);
    kernel(op, name, shapes, &[count_include_pad], &[&x], &[], &[&out])?;
    Ok(out)
}

/// The gradient with respect to the input of an average pooling.
pub(crate) fn average_backward<const D: usize>(
    op: &'static str,
    x: &RocmTensor,
    grad: RocmTensor,
    window: Window<D>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    one_device(op, &[x, &grad])?;
    one_dtype(op, &[x, &grad])?;
    if last::is_kept(x)? {
        check_average_gradient(op, &window.output(op, x.dims())?, &grad)?;
        return last::average_gradient(op, x.dims(), grad, &window, count_include_pad);
    }
    average_gradient(op, x.dims(), grad, window, count_include_pad)
}

fn check_average_gradient(op: &'static str, y: &[usize], grad: &RocmTensor) -> hip::Result<()> {
    match grad.dims() == y {
        true => Ok(()),
        false => invalid(op, format!("a gradient of shape {y:?}"), format!("{:?}", grad.dims())),
    }
}

/// The gradient with respect to the input, of shape `x`, of an average pooling.
pub(crate) fn average_gradient<const D: usize>(
    op: &'static str,
    x: &[usize],
    grad: RocmTensor,
    window: Window<D>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    let y = window.output(op, x)?;
    check_average_gradient(op, &y, &grad)?;
    let out = RocmTensor::empty(grad.hip_device(), x.to_vec(), grad.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    let ty = grad.kernel_type()?;
    let grad = packed(grad)?;
    if window.miopen(x, &y, ty) {
        let desc = window.describe(x, &y, ty, average_mode(count_include_pad));
        if served(&out, |dnn| dnn.pool_backward(&desc, whole(&grad), whole(&out), None))? {
            return Ok(out);
        }
    }
    let shapes = (x, &y[..], window.value(x, &y));
    let name = window.kernel([Template::avg_pool2d_backward, Template::avg_pool3d_backward]).ty(ty);
    kernel(op, name, shapes, &[count_include_pad], &[&grad], &[], &[&out])?;
    Ok(out)
}

/// The number of planes and the sizes of input and output, as arguments of the adaptive kernels.
fn adaptive_dims(x: &[usize], y: [usize; 2]) -> [Arg; 5] {
    let u = |v: usize| Arg::U32(v as u32);
    [Arg::U64((x[0] * x[1]) as u64), u(x[2]), u(x[3]), u(y[0]), u(y[1])]
}

/// Checks that the adaptive kernels can count the planes' pixels.
fn check_planes(op: &'static str, x: &[usize], y: [usize; 2]) -> hip::Result<()> {
    let small = |a: usize, b: usize| {
        a < MAX_SIZE && b < MAX_SIZE && a.checked_mul(b).is_some_and(|pixels| pixels <= MAX_REACH)
    };
    if !small(x[2], x[3]) || !small(y[0], y[1]) {
        let expected = format!("axes below {MAX_SIZE} and planes of at most {MAX_REACH} pixels");
        return invalid(op, expected, format!("{x:?} to {y:?}"));
    }
    Ok(())
}

/// Means of `size` windows that divide the input evenly.
pub(crate) fn adaptive(op: &'static str, x: RocmTensor, size: [usize; 2]) -> hip::Result<RocmTensor> {
    let &[batch, channels, height, width] = x.dims() else {
        return invalid(op, "an input of rank 4", format!("{:?}", x.dims()));
    };
    check_planes(op, x.dims(), size)?;
    if let Some(window) = last::divided(&x, size)? {
        return last::average(op, x, &[batch, channels, size[0], size[1]], &window, false);
    }
    let x = packed(x)?;
    let dims = vec![batch, channels, size[0], size[1]];
    if height * width == 0 {
        return full_on(x.hip_device(), dims, f64::NAN.into(), x.dtype_of());
    }
    let out = RocmTensor::empty(x.hip_device(), dims, x.dtype_of())?;
    if !out.is_empty() {
        let name = Template::adaptive_avg_pool2d.ty(x.kernel_type()?);
        let device = x.hip_device();
        let sizes = adaptive_dims(x.dims(), size);
        rows(op, device, name, device.grid(out.len()), &sizes, &[&x], &[], &[&out])?;
    }
    Ok(out)
}

/// The gradient with respect to the input of [`adaptive`].
pub(crate) fn adaptive_backward(
    op: &'static str,
    x: RocmTensor,
    grad: RocmTensor,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&x, &grad])?;
    one_dtype(op, &[&x, &grad])?;
    if let &[batch, channels, height, width] = grad.dims()
        && x.dims().get(..2) == Some(&[batch, channels])
        && let Some(window) = last::divided(&x, [height, width])?
    {
        return last::average_gradient(op, x.dims(), grad, &window, false);
    }
    adaptive_gradient(op, x.dims(), grad)
}

/// The gradient with respect to the input, of shape `x`, of [`adaptive`].
fn adaptive_gradient(op: &'static str, x: &[usize], grad: RocmTensor) -> hip::Result<RocmTensor> {
    let y = grad.dims().to_vec();
    if x.len() != 4 || y.len() != 4 || x[..2] != y[..2] {
        return invalid(op, format!("a gradient for an input of shape {x:?}"), format!("{y:?}"));
    }
    check_planes(op, x, [y[2], y[3]])?;
    let grad = packed(grad)?;
    if grad.is_empty() {
        return full_on(grad.hip_device(), x.to_vec(), 0i64.into(), grad.dtype_of());
    }
    let out = RocmTensor::empty(grad.hip_device(), x.to_vec(), grad.dtype_of())?;
    if !out.is_empty() {
        let name = Template::adaptive_avg_pool2d_backward.ty(grad.kernel_type()?);
        let device = grad.hip_device();
        let sizes = adaptive_dims(x, [y[2], y[3]]);
        rows(op, device, name, device.grid(out.len()), &sizes, &[&grad], &[], &[&out])?;
    }
    Ok(out)
}

/// [`adaptive`] of `[batch, channels, depth, height, width]`: means within the planes, then along
/// the depth. All windows of a step have one size, so the mean of means is the mean of the box.
/// Types narrower than f32 are computed in f32 and rounded once.
pub(crate) fn adaptive3d(op: &'static str, x: RocmTensor, size: [usize; 3]) -> hip::Result<RocmTensor> {
    let &[batch, channels, depth, height, width] = x.dims() else {
        return invalid(op, "an input of rank 5", format!("{:?}", x.dims()));
    };
    let [out_depth, rows, columns] = size;
    let (x, dtype) = in_f32(x)?;
    let planes = reshape(x, &[batch, channels * depth, height, width])?;
    let planes = adaptive(op, planes, [rows, columns])?;
    let planes = reshape(planes, &[batch, channels, depth, rows * columns])?;
    let out = adaptive(op, planes, [out_depth, rows * columns])?;
    reshape(cast(out, dtype)?, &[batch, channels, out_depth, rows, columns])
}

/// A float tensor as f32 if its type is narrower, and its type.
fn in_f32(tensor: RocmTensor) -> hip::Result<(RocmTensor, DType)> {
    let dtype = tensor.dtype_of();
    let tensor = if matches!(dtype, DType::F16 | DType::BF16) { cast(tensor, DType::F32)? } else { tensor };
    Ok((tensor, dtype))
}

/// The gradient with respect to the input of [`adaptive3d`].
pub(crate) fn adaptive3d_backward(
    op: &'static str,
    x: RocmTensor,
    grad: RocmTensor,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&x, &grad])?;
    one_dtype(op, &[&x, &grad])?;
    let (x, y) = (x.dims(), grad.dims());
    let (&[batch, channels, depth, height, width], &[_, _, out_depth, rows, columns]) = (x, y) else {
        return invalid(op, "an input and a gradient of rank 5", format!("{x:?} and {y:?}"));
    };
    if x[..2] != y[..2] {
        return invalid(op, format!("a gradient for an input of shape {x:?}"), format!("{y:?}"));
    }
    let (grad, dtype) = in_f32(grad)?;
    let grad = reshape(grad, &[batch, channels, out_depth, rows * columns])?;
    let grad = adaptive_gradient(op, &[batch, channels, depth, rows * columns], grad)?;
    let grad = reshape(grad, &[batch, channels * depth, rows, columns])?;
    let grad = adaptive_gradient(op, &[batch, channels * depth, height, width], grad)?;
    reshape(cast(grad, dtype)?, &[batch, channels, depth, height, width])
}
