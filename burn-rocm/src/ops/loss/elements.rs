//! Element-wise losses (squared error, Huber loss, binary cross entropy) and their gradients.

use hip::{Error as RocmError, Fault, Functor, KernelName, Template};

use super::{items_grid, one_gradient, room, total};
use crate::arg::{Arg, compute};
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::index::index;
use crate::ops::launch::{views, views_to};
use crate::tensor::{RocmTensor, float_type, one_device, one_dtype};

/// A loss of the residual `r`, the difference of two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residual {
    /// `r^2`.
    Squared,
    /// `r^2 / 2` up to `|r| = delta`, and `delta |r| - lin_bias` beyond, with
    /// `lin_bias = delta^2 / 2` ([Huber 1964](https://doi.org/10.1214/aoms/1177703732)).
    Huber {
        /// The `|r|` beyond which the loss is linear.
        delta: f32,
        /// The constant that makes the loss continuous.
        lin_bias: f32,
    },
}

impl Residual {
    fn functor(self) -> Functor {
        match self {
            Self::Squared => Functor::Squared,
            Self::Huber { .. } => Functor::Huber,
        }
    }

    fn parameters(self, ty: hip::DType) -> [Arg; 2] {
        let [p, q] = match self {
            Self::Squared => [0.0, 0.0],
            Self::Huber { delta, lin_bias } => [delta, lin_bias],
        };
        [p, q].map(|value| compute(value.into(), ty))
    }
}

/// How the losses of all elements are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Not at all: one loss for each element.
    Each,
    /// Their sum, `[1]`.
    Sum,
    /// Their mean, `[1]`; NaN if there are no elements.
    Mean,
}

impl Total {
    /// The divisor of the sum of `n` losses.
    fn divisor(self, n: usize) -> f64 {
        if self == Self::Mean { n as f64 } else { 1.0 }
    }
}

/// Packs the two tensors. Checks that they agree in device, shape and float dtype.
fn pair(op: &'static str, a: RocmTensor, b: RocmTensor) -> hip::Result<(RocmTensor, RocmTensor, hip::DType)> {
    one_device(op, &[&a, &b])?;
    one_dtype(op, &[&a, &b])?;
    let ty = float_type(op, &a)?;
    if a.dims() != b.dims() {
        return invalid(op, format!("targets of shape {:?}", a.dims()), format!("{:?}", b.dims()));
    }
    Ok((packed(a)?, packed(b)?, ty))
}

/// The loss of `a - b` for two tensors of the same shape. The result has that shape, or `[1]` if
/// `total` reduces it.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ; `Unsupported` for integers; an error of the
/// device.
pub fn residual_loss(
    kind: Residual,
    a: RocmTensor,
    b: RocmTensor,
    reduce: Total,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "residual_loss";
    let (a, b, ty) = pair(OP, a, b)?;
    let (device, n) = (a.hip_device(), a.len());
    let [p, q] = kind.parameters(ty);
    if reduce == Total::Each {
        return each(OP, kind, &a, Some(&b));
    }
    if n == 0 {
        let value = if reduce == Total::Sum { 0.0 } else { f64::NAN };
        return full_on(device, [1], value.into(), a.dtype_of());
    }
    let out = RocmTensor::empty(device, [1], a.dtype_of())?;
    let grid = items_grid(device, n);
    let partial = room(&a, grid)?;
    let divisor = reduce.divisor(n);
    let inputs = [Some(&a), Some(&b), partial.as_ref()];
    let (dims, scalars) = ([Arg::U64(n as u64)], [p, q, Arg::F64(divisor)]);
    let kernel = Template::residual_loss_sum.functor(kind.functor()).ty(ty);
    views(OP, device, kernel, grid, &dims, &inputs, &scalars, &out)?;
    total(OP, partial.as_ref(), None, divisor, &out)?;
    Ok(out)
}

/// The losses of `a - b`, or of `a` without a `b`.
fn each(op: &'static str, kind: Residual, a: &RocmTensor, b: Option<&RocmTensor>) -> hip::Result<RocmTensor> {
    let ty = a.kernel_type()?;
    let out = a.empty_like()?;
    if !out.is_empty() {
        let kernel = Template::residual_loss.functor(kind.functor()).ty(ty);
        let (dims, device) = ([Arg::U64(out.len() as u64)], out.hip_device());
        let scalars = kind.parameters(ty);
        views(op, device, kernel, device.grid(out.len()), &dims, &[Some(a), b], &scalars, &out)?;
    }
    Ok(out)
}

/// The gradient of [`residual_loss`] with respect to `a` and, if `both`, to `b` (its negative),
/// from the loss' gradient. Takes one launch.
///
/// # Errors
/// As for [`residual_loss`], and `Invalid` for a gradient of another shape than the loss.
pub fn residual_loss_backward(
    kind: Residual,
    a: RocmTensor,
    b: RocmTensor,
    grad: RocmTensor,
    reduce: Total,
    both: bool,
) -> Result<(RocmTensor, Option<RocmTensor>), RocmError> {
    const OP: &str = "residual_loss_backward";
    let (a, b, ty) = pair(OP, a, b)?;
    let [p, _] = kind.parameters(ty);
    let (name, grad, scalars) = match reduce {
        Total::Each => (Template::residual_loss_backward, pair(OP, a.clone(), grad)?.1, vec![p]),
        Total::Sum | Total::Mean => {
            let divisor = Arg::F64(reduce.divisor(a.len()));
            (Template::residual_loss_sum_backward, one_gradient(OP, &a, grad)?, vec![p, divisor])
        }
    };
    gradients(OP, name.functor(kind.functor()).ty(ty), &a, Some(&b), &grad, &scalars, both)
}

/// The gradients with respect to `a` and, if `both`, to `b`, in one launch.
fn gradients(
    op: &'static str,
    kernel: KernelName,
    a: &RocmTensor,
    b: Option<&RocmTensor>,
    grad: &RocmTensor,
    scalars: &[Arg],
    both: bool,
) -> hip::Result<(RocmTensor, Option<RocmTensor>)> {
    let (device, n) = (a.hip_device(), a.len());
    let (by_a, by_b) = (a.empty_like()?, both.then(|| a.empty_like()).transpose()?);
    if n > 0 {
        let (inputs, outputs) = ([Some(a), b, Some(grad)], [Some(&by_a), by_b.as_ref()]);
        let dims = [Arg::U64(n as u64)];
        views_to(op, device, kernel, device.grid(n), &dims, &inputs, scalars, &outputs)?;
    }
    Ok((by_a, by_b))
}

/// The loss of each residual.
///
/// # Errors
/// `Unsupported` for integers; an error of the device.
pub fn loss_of_residuals(kind: Residual, residuals: RocmTensor) -> Result<RocmTensor, RocmError> {
    const OP: &str = "residual_loss";
    float_type(OP, &residuals)?;
    each(OP, kind, &packed(residuals)?, None)
}

/// The gradient of [`loss_of_residuals`].
///
/// # Errors
/// As for [`loss_of_residuals`], and `Invalid` for a gradient of another shape, dtype or device.
pub fn loss_of_residuals_backward(
    kind: Residual,
    residuals: RocmTensor,
    grad: RocmTensor,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "residual_loss_backward";
    let (residuals, grad, ty) = pair(OP, residuals, grad)?;
    let kernel = Template::residual_loss_backward.functor(kind.functor()).ty(ty);
    let [p, _] = kind.parameters(ty);
    Ok(gradients(OP, kernel, &residuals, None, &grad, &[p], false)?.0)
}

/// The target labels of a binary or multi-label classifier, and the options of the loss.
#[derive(Clone, Debug)]
pub struct BinaryTargets {
    /// Whether scores are logits instead of probabilities.
    pub logits: bool,
    /// The labels, 0 or 1: of the scores' shape and an int type.
    pub targets: RocmTensor,
    /// Label smoothing `a`, 0 to 1: a target `y` becomes `y (1 - a) + a / classes`. The number of
    /// classes is the size of the last axis, or 2 for scores with one axis.
    pub smoothing: Option<f32>,
}

/// The checked arguments of both passes.
struct Binary {
    x: RocmTensor,
    targets: RocmTensor,
    weights: Option<RocmTensor>,
    kernel: [KernelName; 2],
    /// The numbers of elements, of columns (0 if weights are by target) and of weights.
    dims: [Arg; 3],
    /// Smoothing (negative: none), classes, divisor, and the fault flag for a target without a
    /// weight.
    scalars: [Arg; 4],
}

impl Binary {
    fn new(
        op: &'static str,
        x: RocmTensor,
        weights: Option<RocmTensor>,
        of: &BinaryTargets,
    ) -> hip::Result<Self> {
        let ty = float_type(op, &x)?;
        one_device(op, &[&x, &of.targets])?;
        if let Some(smoothing) = of.smoothing
            && !(0.0..=1.0).contains(&smoothing)
        {
            return invalid(op, "a smoothing of 0 to 1", smoothing.to_string());
        }
        if of.targets.dims() != x.dims() || x.dims().is_empty() {
            let found = format!("{:?} and {:?}", x.dims(), of.targets.dims());
            return invalid(op, "scores and targets of one shape", found);
        }
        let columns = if x.dims().len() > 1 { x.dims()[x.dims().len() - 1] } else { 0 };
        let classes = if x.dims().len() > 1 { columns } else { 2 };
        let mut count = 0;
        let weights = match weights {
            None => None,
            Some(weights) => {
                one_device(op, &[&x, &weights])?;
                float_type(op, &weights)?;
                count = weights.len();
                if weights.dims().len() != 1 || columns > 0 && count != columns {
                    return invalid(
                        op,
                        format!("weights of {columns} classes"),
                        format!("{:?}", weights.dims()),
                    );
                }
                Some(packed(cast(weights, compute_dtype(x.dtype_of()))?)?)
            }
        };
        let targets = packed(index(op, of.targets.clone())?)?;
        let kind = if of.logits { Functor::BinaryLogits } else { Functor::BinaryProbabilities };
        let of_index = targets.kernel_type()?;
        let kernel = [Template::binary_cross_entropy, Template::binary_cross_entropy_backward]
            .map(|name| name.functor(kind).ty(ty).ty(of_index));
        let dims = [x.len(), columns, count].map(|n| Arg::U64(n as u64));
        let smoothing = of.smoothing.map_or(-1.0, f64::from);
        let [smoothing, classes, divisor] = [smoothing, classes as f64, x.len() as f64].map(Arg::F64);
        let scalars = [smoothing, classes, divisor, Arg::Flag(op, Fault::Index)];
        Ok(Self { x: packed(x)?, targets, weights, kernel, dims, scalars })
    }
}

/// The mean of `-y log(p) - (1 - y) log(1 - p)` over all elements, where `p` is the score or its
/// sigmoid: `[1]`, NaN if there are no elements. Logarithms below -100 become -100.
///
/// `weights` has one weight for each column of `[.., columns]`. For scores with one axis it has one
/// weight for each target value; a target without a weight then weighs 0, and reads of the loss
/// report it.
///
/// # Errors
/// `Invalid` for shapes, types or devices other than described; `Unsupported` for integers instead
/// of floats; an error of the device.
pub fn binary_cross_entropy(
    x: RocmTensor,
    weights: Option<RocmTensor>,
    of: &BinaryTargets,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "binary_cross_entropy";
    let binary = Binary::new(OP, x, weights, of)?;
    let (x, device) = (&binary.x, binary.x.hip_device());
    if x.is_empty() {
        return full_on(device, [1], f64::NAN.into(), x.dtype_of());
    }
    let out = RocmTensor::empty(device, [1], x.dtype_of())?;
    let grid = items_grid(device, x.len());
    let partial = room(x, grid)?;
    let inputs = [Some(x), Some(&binary.targets), binary.weights.as_ref(), partial.as_ref()];
    views(OP, device, binary.kernel[0], grid, &binary.dims, &inputs, &binary.scalars, &out)?;
    total(OP, partial.as_ref(), None, x.len() as f64, &out)?;
    Ok(out)
}

/// The gradient of [`binary_cross_entropy`] with respect to the scores, from the loss' gradient
/// (`[1]`). It is 0 where the loss raised a logarithm to -100. Reading the gradient reports a
/// target without a weight, as reading the loss does.
///
/// # Errors
/// As for [`binary_cross_entropy`].
pub fn binary_cross_entropy_backward(
    x: RocmTensor,
    weights: Option<RocmTensor>,
    of: &BinaryTargets,
    grad: RocmTensor,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "binary_cross_entropy_backward";
    let binary = Binary::new(OP, x, weights, of)?;
    let (x, device) = (&binary.x, binary.x.hip_device());
    let grad = one_gradient(OP, x, grad)?;
    let out = x.empty_like()?;
    if out.is_empty() {
        return Ok(out);
    }
    let inputs = [Some(x), Some(&binary.targets), binary.weights.as_ref(), Some(&grad)];
    views(OP, device, binary.kernel[1], device.grid(x.len()), &binary.dims, &inputs, &binary.scalars, &out)?;
    Ok(out)
}
