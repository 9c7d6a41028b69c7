//! Activations that Burn composes from several ops, and activations fused with the bias, sum or
//! product before them.

use hip::{Device, Error as RocmError, Functor, Grid, KernelName, Template};

use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::binary::binary;
use crate::ops::cast::cast;
use crate::ops::channels_last::{Operands, from_rows, is_channels_last, rows_of, same_order};
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::{flat, rows, views};
use crate::ops::linear::bias_backward;
use crate::ops::norm::sum_partials;
use crate::ops::reduce::sum_dim_to;
use crate::ops::unary::unary;
use crate::ops::view::reshape;
use crate::tensor::{RocmTensor, check_axis, float_type, one_device, one_dtype};

/// An activation that a kernel computes together with another op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `max(z, 0)`.
    Relu,
    /// `z Phi(z)`, the exact form ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// `z sigmoid(z)`.
    Silu,
}

impl Act {
    fn functor(self) -> Functor {
        match self {
            Self::Relu => Functor::Relu,
            Self::Gelu => Functor::Gelu,
            Self::Silu => Functor::Silu,
        }
    }
}

/// The most rows of a column that one thread sums, because a long running sum loses precision.
const ROWS_A_PART: usize = 256;

/// The most parts of a sum that one block adds up: with 1024 threads for 16 columns, 32 a thread.
const FEW_PARTS: usize = 2048;

/// Packs the tensors. Checks that they agree in device, shape and float dtype.
fn alike<const N: usize>(
    op: &'static str,
    tensors: [RocmTensor; N],
) -> hip::Result<([RocmTensor; N], hip::DType)> {
    let all: Vec<&RocmTensor> = tensors.iter().collect();
    one_device(op, &all)?;
    one_dtype(op, &all)?;
    let ty = float_type(op, all[0])?;
    if let Some(other) = all.iter().find(|other| other.dims() != all[0].dims()) {
        return invalid(op, format!("operands of shape {:?}", all[0].dims()), format!("{:?}", other.dims()));
    }
    let mut failed = None;
    let tensors = tensors.map(|tensor| {
        packed(tensor.clone()).unwrap_or_else(|error| {
            failed = Some(error);
            tensor
        })
    });
    failed.map_or(Ok((tensors, ty)), Err)
}

/// `x` seen as `[outer, len, inner]` around an axis, and a bias `[len]` along that axis.
struct Biased {
    x: RocmTensor,
    bias: Option<RocmTensor>,
    ty: hip::DType,
    outer: usize,
    len: usize,
    inner: usize,
}

impl Biased {
    fn new(op: &'static str, x: RocmTensor, bias: Option<RocmTensor>, axis: usize) -> hip::Result<Self> {
        check_axis(op, &x, axis)?;
        let ty = float_type(op, &x)?;
        let dims = x.dims();
        let (outer, len, inner) =
            (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product());
        if let Some(bias) = &bias {
            one_device(op, &[&x, bias])?;
            one_dtype(op, &[&x, bias])?;
            if bias.dims() != [len] {
                return invalid(op, format!("a bias of shape [{len}]"), format!("{:?}", bias.dims()));
            }
        }
        Ok(Self { x: packed(x)?, bias: bias.map(packed).transpose()?, ty, outer, len, inner })
    }

    fn dims(&self, parts: Option<usize>) -> Vec<Arg> {
        let sizes = match (self.inner, parts) {
            (1, Some(parts)) => vec![self.outer, self.len, parts],
            (_, Some(parts)) => vec![self.outer, self.len, self.inner, parts],
            (_, None) => vec![self.outer, self.len, self.inner],
        };
        sizes.into_iter().map(|n| Arg::U64(n as u64)).collect()
    }
}

/// `act(x + bias)`, with a bias along one axis of `x`. Overwrites `x` if it has no other owner.
///
/// # Shapes
/// - `x`, output: any
/// - `bias`: `[size of the axis]`
///
/// # Errors
/// `Invalid` for a bias of another shape, dtype or device, or an axis beyond the rank of `x`;
/// `Unsupported` for integers; an error of the device.
pub fn bias_act(
    act: Act,
    x: RocmTensor,
    bias: Option<RocmTensor>,
    axis: usize,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "bias_act";
    if axis == 1 && is_channels_last(&x) {
        return from_rows(bias_act(act, rows_of(x)?, bias, 3)?);
    }
    let mut biased = Biased::new(OP, x, bias, axis)?;
    let out = if biased.x.can_overwrite() { biased.x.clone() } else { biased.x.empty_like()? };
    if out.is_empty() {
        return Ok(out);
    }
    let kernel = Template::bias_act.functor(act.functor()).ty(biased.ty);
    let inputs = [Some(&biased.x), biased.bias.as_ref()];
    let device = out.hip_device();
    views(OP, device, kernel, device.grid(out.len()), &biased.dims(None), &inputs, &[], &out)?;
    Ok(out)
}

/// The gradients of [`bias_act`] with respect to `x` and, if `by_bias`, to the bias. One kernel
/// computes both; if several blocks share one sum of the bias gradient, a second kernel adds up
/// their parts. `grad` has the shape of `x`. For ReLU the caller may pass the output as `x`,
/// without a bias.
///
/// # Errors
/// As for [`bias_act`], and `Invalid` for a gradient of another shape or dtype.
pub fn bias_act_backward(
    act: Act,
    x: RocmTensor,
    bias: Option<RocmTensor>,
    grad: RocmTensor,
    axis: usize,
    by_bias: bool,
) -> Result<(RocmTensor, Option<RocmTensor>), RocmError> {
    const OP: &str = "bias_act_backward";
    if axis == 1 && is_channels_last(&x) && grad.dims() == x.dims() {
        let (out, by_bias) = bias_act_backward(act, rows_of(x)?, bias, rows_of(grad)?, 3, by_bias)?;
        return Ok((from_rows(out)?, by_bias));
    }
    let ([x, grad], _) = alike(OP, [x, grad])?;
    let biased = Biased::new(OP, x, bias, axis)?;
    let (dtype, len) = (biased.x.dtype_of(), biased.len);
    let out = biased.x.empty_like()?;
    let device = out.hip_device();
    if out.is_empty() {
        let zeros = by_bias.then(|| full_on(device, [len], 0i64.into(), dtype)).transpose()?;
        return Ok((out, zeros));
    }
    let units = device.info().compute_units as usize;
    let (template, parts, grid) = match biased.inner {
        1 => {
            let (parts, grid) = columns(device, biased.outer, len, biased.ty);
            (Template::bias_act_columns_backward, parts, grid)
        }
        inner => {
            let parts = (4 * units).div_ceil(len).min(biased.outer);
            (Template::bias_act_planes_backward, parts, device.grid_rows(parts * len, inner))
        }
    };
    let partial = RocmTensor::empty(device, [parts, len], compute_dtype(dtype))?;
    let kernel = template.functor(act.functor()).ty(biased.ty);
    let inputs = [Some(&biased.x), biased.bias.as_ref(), Some(&grad), Some(&partial)];
    views(OP, device, kernel, grid, &biased.dims(Some(parts)), &inputs, &[], &out)?;
    hip::carry_faults([out.buffer()], [partial.buffer()]); // written too
    if !by_bias {
        return Ok((out, None));
    }
    let sums = match parts {
        1 => cast(partial, dtype)?,
        // One launch, in which a thread adds up few of them.
        2..=FEW_PARTS => sum_partials(OP, &reshape(partial, &[1, parts, len])?, dtype)?,
        _ => sum_dim_to(OP, partial, 0, dtype)?,
    };
    Ok((out, Some(reshape(sums, &[len])?)))
}

/// The number of parts into which the rows are cut for sums of columns, and the grid. A thread
/// reads 8 bytes of each row of its part. There are enough parts to fill the device, but each has
/// at least four rows. On the CPU device a core takes many columns.
fn columns(device: &Device, rows: usize, len: usize, ty: hip::DType) -> (usize, Grid) {
    let least = rows.div_ceil(ROWS_A_PART);
    let lanes = 8 / ty.size();
    let width = if len.is_multiple_of(lanes) { lanes } else { 1 };
    if device.block_threads() == 1 {
        let units = device.info().compute_units as usize;
        return (least.max((units * 256).div_ceil(len)).min(rows), device.grid(rows * len));
    }
    let wanted = device.resident_warps() * device.info().warp_size as usize;
    let parts = (wanted * width).div_ceil(len).min(rows.div_ceil(4)).max(least);
    (parts, device.grid_bytes(16 * (parts * len).div_ceil(width)))
}

/// `residual + (x + bias)`, with the bias along the last axis: adds a linear layer's product to a
/// residual connection. Overwrites `x` or `residual` if it has no other owner.
///
/// # Shapes
/// - `residual`, `x`, output: `[.., features]`
/// - `bias`: `[features]`
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers; an error of the
/// device.
pub fn bias_add(residual: RocmTensor, x: RocmTensor, bias: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "bias_add";
    let ([mut residual, x], ty) = alike(OP, [residual, x])?;
    let Some(axis) = x.dims().len().checked_sub(1) else { return invalid(OP, "at least one axis", "none") };
    let mut biased = Biased::new(OP, x, Some(bias), axis)?;
    let out = if biased.x.can_overwrite() {
        biased.x.clone()
    } else if residual.can_overwrite() {
        residual.clone()
    } else {
        residual.empty_like()?
    };
    if out.is_empty() {
        return Ok(out);
    }
    let kernel = Template::bias_add.ty(ty);
    let dims = [biased.outer, biased.len].map(|n| Arg::U64(n as u64));
    let inputs = [Some(&residual), Some(&biased.x), biased.bias.as_ref()];
    let device = out.hip_device();
    views(OP, device, kernel, device.grid(out.len()), &dims, &inputs, &[], &out)?;
    Ok(out)
}

/// The gradient of [`bias_add`] with respect to the bias: the sum of `grad`, the output's gradient,
/// over all but the last axis. The gradients with respect to `residual` and `x` are `grad` itself.
///
/// # Errors
/// `Invalid` for a gradient without axes; an error of the device.
pub fn bias_add_backward(grad: RocmTensor) -> Result<RocmTensor, RocmError> {
    bias_backward(grad)
}

/// `act(a + b)` of two tensors of the same shape.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ; `Unsupported` for integers; an error of the
/// device.
pub fn add_act(act: Act, a: RocmTensor, b: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "add_act";
    let [a, b] = match same_order([a, b])? {
        Operands::Rows([a, b]) => return from_rows(add_act(act, a, b)?),
        Operands::Given(given) => given,
    };
    let ([a, b], ty) = alike(OP, [a, b])?;
    map(OP, Template::add_act.functor(act.functor()).ty(ty), &[&a, &b])
}

/// The gradient of [`add_act`], which is the same with respect to `a` and to `b`.
///
/// # Errors
/// As for [`add_act`].
pub fn add_act_backward(
    act: Act,
    a: RocmTensor,
    b: RocmTensor,
    grad: RocmTensor,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "add_act_backward";
    let [a, b, grad] = match same_order([a, b, grad])? {
        Operands::Rows([a, b, grad]) => return from_rows(add_act_backward(act, a, b, grad)?),
        Operands::Given(given) => given,
    };
    let ([a, b, grad], ty) = alike(OP, [a, b, grad])?;
    map(OP, Template::add_act_backward.functor(act.functor()).ty(ty), &[&a, &b, &grad])
}

/// `x * sigmoid(x)` of each element.
///
/// # Errors
/// `Unsupported` for integers; an error of the device.
pub fn silu(x: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "silu";
    float_type(OP, &x)?;
    unary(OP, Functor::Silu, x)
}

/// The gradient of [`silu`]: `grad * s * (1 + x * (1 - s))` with `s = sigmoid(x)`. Shapes
/// broadcast.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ; `Unsupported` for integers; an error of the
/// device.
pub fn silu_backward(x: RocmTensor, grad: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "silu_backward";
    float_type(OP, &x)?;
    binary(OP, Functor::SiluBackward, x, grad)
}

/// The gradient of a ReLU from its output: `grad` where the output is positive, else 0.
///
/// # Errors
/// As for [`silu_backward`].
pub fn relu_backward(output: RocmTensor, grad: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "relu_backward";
    float_type(OP, &output)?;
    binary(OP, Functor::ReluBackward, output, grad)
}

/// `a * b + c` of three tensors of the same shape.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ; `Unsupported` for integers; an error of the
/// device.
pub fn mul_add(a: RocmTensor, b: RocmTensor, c: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "mul_add";
    let [a, b, c] = match same_order([a, b, c])? {
        Operands::Rows([a, b, c]) => return from_rows(mul_add(a, b, c)?),
        Operands::Given(given) => given,
    };
    let ([a, b, c], ty) = alike(OP, [a, b, c])?;
    map(OP, Template::mul_add.ty(ty), &[&a, &b, &c])
}

/// The gradients of [`mul_add`] with respect to `a` and `b`. The gradient with respect to `c` is
/// `grad` itself.
///
/// # Errors
/// As for [`mul_add`].
pub fn mul_add_backward(
    a: RocmTensor,
    b: RocmTensor,
    grad: RocmTensor,
) -> Result<(RocmTensor, RocmTensor), RocmError> {
    const OP: &str = "mul_add_backward";
    let ([a, b, grad], ty) = alike(OP, [a, b, grad])?;
    let (by_a, by_b) = (a.empty_like()?, b.empty_like()?);
    if !a.is_empty() {
        let (device, kernel) = (a.hip_device(), Template::mul_backward.ty(ty));
        let dims = [Arg::U64(a.len() as u64)];
        rows(OP, device, kernel, device.grid(a.len()), &dims, &[&a, &b, &grad], &[], &[&by_a, &by_b])?;
    }
    Ok((by_a, by_b))
}

/// Launches an element-wise kernel over packed tensors into a new tensor.
fn map(op: &'static str, kernel: KernelName, inputs: &[&RocmTensor]) -> hip::Result<RocmTensor> {
    let out = inputs[0].empty_like()?;
    if !out.is_empty() {
        flat(op, kernel, out.len(), inputs, &[], &[&out])?;
    }
    Ok(out)
}
