//! Activations that Burn composes, and those that are joined to the op before them: a bias, a sum, a product.

use hip::{Device, Error as RocmError, Functor, Grid, KernelName, Template};

use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::binary::binary;
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::{flat, rows, views};
use crate::ops::linear::bias_backward;
use crate::ops::reduce::sum_dim_to;
use crate::ops::unary::unary;
use crate::ops::view::reshape;
use crate::tensor::{RocmTensor, check_axis, float_type, one_device, one_dtype};

/// An activation that the kernels join to another op.
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

/// Rows that one thread sums of a column, so that a long plain sum does not lose bits.
const ROWS_A_PART: usize = 256;

/// Packed tensors of one shape and float type.
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

/// `x` seen as `[outer, len, inner]` around an axis, and a bias along that.
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

/// `act(x + bias)`, the bias (`[size of the axis]`) along an axis of `x`; in the place of an `x` that has no other
/// owner.
///
/// # Errors
/// `Invalid` for a bias of another shape, dtype or device, an axis that `x` has not, or integers; the device's own.
pub fn bias_act(
    act: Act,
    x: RocmTensor,
    bias: Option<RocmTensor>,
    axis: usize,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "bias_act";
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

/// The gradients of [`bias_act`] by `x` (of whose shape `grad` is) and, where `by_bias`, by the bias: one kernel,
/// and one that joins the bias' sums where there are several. For ReLU the output serves for `x`, without a bias.
///
/// # Errors
/// As of [`bias_act`], and `Invalid` for a gradient of another shape or dtype.
pub fn bias_act_backward(
    act: Act,
    x: RocmTensor,
    bias: Option<RocmTensor>,
    grad: RocmTensor,
    axis: usize,
    by_bias: bool,
) -> Result<(RocmTensor, Option<RocmTensor>), RocmError> {
    const OP: &str = "bias_act_backward";
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
        _ => sum_dim_to(OP, partial, 0, dtype)?,
    };
    Ok((out, Some(reshape(sums, &[len])?)))
}

/// The parts of `rows` that columns are summed by, and the grid for a thread to take 8 bytes of each row of a part:
/// as many as fill the device, of four rows and more. On the CPU device a core takes many columns.
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

/// `residual + (x + bias)`, the bias along the last axis; in the place of an `x` or a `residual` that has no other
/// owner. What joins a linear layer's product to the input around it.
///
/// # Shapes
/// - `residual`, `x`, output: `[.., features]`
/// - `bias`: `[features]`
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices do not fit, or for integers; the device's own.
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

/// The gradient of [`bias_add`] by the bias: the sum of the output's over all but the last axis. That by `residual`
/// and by `x` is the output's.
///
/// # Errors
/// `Invalid` for a gradient without axes; the device's own.
pub fn bias_add_backward(grad: RocmTensor) -> Result<RocmTensor, RocmError> {
    bias_backward(grad)
}

/// `act(a + b)` of two tensors of one shape.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices differ, or for integers; the device's own.
pub fn add_act(act: Act, a: RocmTensor, b: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "add_act";
    let ([a, b], ty) = alike(OP, [a, b])?;
    map(OP, Template::add_act.functor(act.functor()).ty(ty), &[&a, &b])
}

/// The gradient of [`add_act`], the same by `a` and by `b`.
///
/// # Errors
/// As of [`add_act`].
pub fn add_act_backward(
    act: Act,
    a: RocmTensor,
    b: RocmTensor,
    grad: RocmTensor,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "add_act_backward";
    let ([a, b, grad], ty) = alike(OP, [a, b, grad])?;
    map(OP, Template::add_act_backward.functor(act.functor()).ty(ty), &[&a, &b, &grad])
}

/// `x * sigmoid(x)` of each element.
///
/// # Errors
/// `Unsupported` for integers; the device's own.
pub fn silu(x: RocmTensor) -> Result<RocmTensor, RocmError> {
    unary("silu", Functor::Silu, x)
}

/// The gradient of [`silu`] by `x`: `grad * s * (1 + x * (1 - s))` with `s = sigmoid(x)`, shapes broadcast.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices differ; `Unsupported` for integers; the device's own.
pub fn silu_backward(x: RocmTensor, grad: RocmTensor) -> Result<RocmTensor, RocmError> {
    binary("silu_backward", Functor::SiluBackward, x, grad)
}

/// The gradient of a ReLU from its output.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices differ; the device's own.
pub fn relu_backward(output: RocmTensor, grad: RocmTensor) -> Result<RocmTensor, RocmError> {
    binary("relu_backward", Functor::ReluBackward, output, grad)
}

/// `a * b + c` of three tensors of one shape.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices differ, or for integers; the device's own.
pub fn mul_add(a: RocmTensor, b: RocmTensor, c: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "mul_add";
    let ([a, b, c], ty) = alike(OP, [a, b, c])?;
    map(OP, Template::mul_add.ty(ty), &[&a, &b, &c])
}

/// The gradients of [`mul_add`] by `a` and by `b`; that by `c` is `grad`.
///
/// # Errors
/// As of [`mul_add`].
pub fn mul_add_backward(
    a: RocmTensor,
    b: RocmTensor,
    grad: RocmTensor,
) -> Result<(RocmTensor, RocmTensor), RocmError> {
    mul_backward("mul_add_backward", Functor::Plain, a, b, grad)
}

/// `silu(a) * b` of two tensors of one shape.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices differ, or for integers; the device's own.
pub fn silu_mul(a: RocmTensor, b: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "silu_mul";
    let ([a, b], ty) = alike(OP, [a, b])?;
    map(OP, Template::silu_mul.ty(ty), &[&a, &b])
}

/// The gradients of [`silu_mul`] by `a` and by `b`.
///
/// # Errors
/// As of [`silu_mul`].
pub fn silu_mul_backward(
    a: RocmTensor,
    b: RocmTensor,
    grad: RocmTensor,
) -> Result<(RocmTensor, RocmTensor), RocmError> {
    mul_backward("silu_mul_backward", Functor::Silu, a, b, grad)
}

/// A new tensor of what a kernel makes of packed ones.
fn map(op: &'static str, kernel: KernelName, inputs: &[&RocmTensor]) -> hip::Result<RocmTensor> {
    let out = inputs[0].empty_like()?;
    if !out.is_empty() {
        flat(op, kernel, out.len(), inputs, &[], &[&out])?;
    }
    Ok(out)
}

fn mul_backward(
    op: &'static str,
    functor: Functor,
    a: RocmTensor,
    b: RocmTensor,
    grad: RocmTensor,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let ([a, b, grad], ty) = alike(op, [a, b, grad])?;
    let (by_a, by_b) = (a.empty_like()?, b.empty_like()?);
    if !a.is_empty() {
        let device = a.hip_device();
        let kernel = Template::mul_backward.functor(functor).ty(ty);
        let dims = [Arg::U64(a.len() as u64)];
        rows(op, device, kernel, device.grid(a.len()), &dims, &[&a, &b, &grad], &[], &[&by_a, &by_b])?;
    }
    Ok((by_a, by_b))
}
