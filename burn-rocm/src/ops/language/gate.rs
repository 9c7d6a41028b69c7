//! Gated linear units, of two tensors or of the halves of one.

use hip::{Error as RocmError, Functor, Template};

use crate::arg::Arg;
use crate::error::invalid;
use crate::ops::channels_last::{Operands, from_rows, same_order};
use crate::ops::copy::packed;
use crate::ops::launch::{is_packed, views, views_to_views};
use crate::ops::view::narrow;
use crate::tensor::{RocmTensor, check_gradient, float_type, one_device, one_dtype};

/// The activation of a gated linear unit ([Shazeer 2020](https://arxiv.org/abs/2002.05202)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `z sigmoid(z)`: SwiGLU.
    Silu,
    /// `z Phi(z)`, the exact form: GeGLU.
    Gelu,
    /// `0.5 z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))`: GeGLU by the approximation with tanh.
    GeluTanh,
}

impl Gate {
    /// The number in `projection.h`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Silu => 1,
            Self::Gelu => 2,
            Self::GeluTanh => 3,
        }
    }

    fn functor(self) -> Functor {
        match self {
            Self::Silu => Functor::Silu,
            Self::Gelu => Functor::Gelu,
            Self::GeluTanh => Functor::GeluTanh,
        }
    }
}

/// Rows of neighbouring elements, the same distance apart.
#[derive(Clone, Copy)]
struct Rows {
    count: usize,
    len: usize,
}

/// The distance between the rows of a tensor whose last axis is the row; `None` if they are not
/// equally far apart or their elements are not contiguous.
fn step(tensor: &RocmTensor) -> Option<usize> {
    let (dims, strides) = (tensor.dims(), tensor.layout().strides());
    let (&len, outer) = dims.split_last()?;
    if len > 1 && strides[outer.len()] != 1 {
        return None;
    }
    // From the innermost axis out: each must be a whole number of the inner ones apart.
    let mut found: Option<(usize, usize)> = None;
    for (axis, &dim) in outer.iter().enumerate().rev().filter(|&(_, &dim)| dim > 1) {
        let stride = usize::try_from(strides[axis]).ok()?;
        found = match found {
            None => Some((stride, stride.checked_mul(dim)?)),
            Some((step, next)) if next == stride => Some((step, stride.checked_mul(dim)?)),
            Some(_) => return None,
        };
    }
    Some(found.map_or(len, |(step, _)| step))
}

/// Operands of one shape with the distances between their rows. Packs those that have no rows.
fn by_rows<const N: usize>(tensors: [RocmTensor; N]) -> hip::Result<(Rows, [RocmTensor; N], [usize; N])> {
    let (dims, all) = (tensors[0].dims().to_vec(), tensors[0].len());
    if tensors.iter().all(is_packed) {
        return Ok((Rows { count: 1, len: all }, tensors, [all; N]));
    }
    let len = dims.last().copied().unwrap_or(1);
    let mut steps = [len; N];
    let mut failed = None;
    let mut at = 0;
    let tensors = tensors.map(|tensor| {
        let own = step(&tensor);
        let tensor = match own {
            Some(_) => tensor,
            None => packed(tensor.clone()).unwrap_or_else(|error| {
                failed = Some(error);
                tensor
            }),
        };
        steps[at] = own.unwrap_or(len);
        at += 1;
        tensor
    });
    match failed {
        Some(error) => Err(error),
        None => Ok((Rows { count: all.checked_div(len).unwrap_or(0), len }, tensors, steps)),
    }
}

fn check(op: &'static str, gate: &RocmTensor, up: &RocmTensor) -> hip::Result<hip::DType> {
    one_device(op, &[gate, up])?;
    one_dtype(op, &[gate, up])?;
    let ty = float_type(op, gate)?;
    match gate.dims() == up.dims() {
        true => Ok(ty),
        false => invalid(op, format!("operands of shape {:?}", gate.dims()), format!("{:?}", up.dims())),
    }
}

/// `act(gate) * up` of two tensors of the same shape. Rows that are equally far apart, such as the
/// halves of one product's rows, are read in place.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ; `Unsupported` for integers; an error of the
/// device.
pub fn gated(act: Gate, gate: RocmTensor, up: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "gated";
    let [gate, up] = match same_order([gate, up])? {
        Operands::Rows([gate, up]) => return from_rows(gated(act, gate, up)?),
        Operands::Given(given) => given,
    };
    let ty = check(OP, &gate, &up)?;
    let out = gate.empty_like()?;
    if out.is_empty() {
        return Ok(out);
    }
    let (Rows { count, len }, [gate, up], steps) = by_rows([gate, up])?;
    let dims = [count, len, steps[0], steps[1]].map(|n| Arg::U64(n as u64));
    let (device, kernel) = (out.hip_device(), Template::gated.functor(act.functor()).ty(ty));
    let grid = device.grid_bytes(out.len() * out.dtype_size());
    views(OP, device, kernel, grid, &dims, &[Some(&gate), Some(&up)], &[], &out)?;
    Ok(out)
}

/// The gradients of [`gated`] with respect to `gate` and `up`.
///
/// # Errors
/// As for [`gated`], and `Invalid` for a gradient of another shape or dtype.
pub fn gated_backward(
    act: Gate,
    gate: RocmTensor,
    up: RocmTensor,
    grad: RocmTensor,
) -> Result<(RocmTensor, RocmTensor), RocmError> {
    const OP: &str = "gated_backward";
    check(OP, &gate, &up)?;
    check_gradient(OP, &gate, &grad)?;
    let (by_gate, by_up) = (gate.empty_like()?, up.empty_like()?);
    backward(OP, act, [gate, up, grad], [&by_gate, &by_up])?;
    Ok((by_gate, by_up))
}

/// `act(gate) * up`, where `gate` and `up` are the first and second half of the last axis, such as
/// the halves of a product with both layers' weights.
///
/// # Shapes
/// - `both`: `[.., 2 features]`
/// - output: `[.., features]`
///
/// # Errors
/// `Invalid` for an odd last axis; otherwise as for [`gated`].
pub fn gated_halves(act: Gate, both: RocmTensor) -> Result<RocmTensor, RocmError> {
    let [gate, up] = halves("gated_halves", &both)?;
    gated(act, gate, up)
}

/// The gradient of [`gated_halves`] with respect to `both`, written without a copy of its halves.
///
/// # Errors
/// As for [`gated_halves`], and `Invalid` for a gradient of another shape or dtype.
pub fn gated_halves_backward(act: Gate, both: RocmTensor, grad: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "gated_halves_backward";
    float_type(OP, &both)?;
    let [gate, up] = halves(OP, &both)?;
    check_gradient(OP, &gate, &grad)?;
    let out = both.empty_like()?;
    let [by_gate, by_up] = halves(OP, &out)?;
    backward(OP, act, [gate, up, grad], [&by_gate, &by_up])?;
    Ok(out)
}

/// Launches the gradient into two outputs whose rows are equally far apart.
fn backward(
    op: &'static str,
    act: Gate,
    operands: [RocmTensor; 3],
    [by_gate, by_up]: [&RocmTensor; 2],
) -> hip::Result<()> {
    if by_gate.is_empty() {
        return Ok(());
    }
    let [gate, up, grad] = operands;
    let grad = packed(grad)?;
    let all = [gate, up, by_gate.clone(), by_up.clone()];
    let (Rows { count, len }, [gate, up, by_gate, by_up], steps) = by_rows(all)?;
    let dims = [&[count, len], &steps[..]].concat();
    let dims: Vec<Arg> = dims.into_iter().map(|n| Arg::U64(n as u64)).collect();
    let device = gate.hip_device();
    let kernel = Template::gated_backward.functor(act.functor()).ty(gate.kernel_type()?);
    let grid = device.grid_bytes(grad.len() * grad.dtype_size());
    let inputs = [Some(&gate), Some(&up), Some(&grad)];
    views_to_views(op, device, kernel, (grid, 0), &dims, &inputs, &[], &[Some(&by_gate), Some(&by_up)])
}

/// The halves of the last axis.
fn halves(op: &'static str, both: &RocmTensor) -> hip::Result<[RocmTensor; 2]> {
    match both.dims().last() {
        Some(&len) if len.is_multiple_of(2) => {
            let axis = both.dims().len() - 1;
            let half = |at| narrow(both.clone(), axis, at * (len / 2), len / 2);
            Ok([half(0)?, half(1)?])
        }
        _ => invalid(op, "a last axis with two halves", format!("{:?}", both.dims())),
    }
}

/// [`gated`] with SiLU.
///
/// # Errors
/// As for [`gated`].
pub fn silu_mul(a: RocmTensor, b: RocmTensor) -> Result<RocmTensor, RocmError> {
    gated(Gate::Silu, a, b)
}

/// The gradients of [`silu_mul`] with respect to `a` and `b`.
///
/// # Errors
/// As for [`gated_backward`].
pub fn silu_mul_backward(
    a: RocmTensor,
    b: RocmTensor,
    grad: RocmTensor,
) -> Result<(RocmTensor, RocmTensor), RocmError> {
    gated_backward(Gate::Silu, a, b, grad)
}
