//! A linear layer with the sum or the activation after it.

use hip::{Error as RocmError, Functor, LtActivation};

use super::activation::{Act, bias_act, bias_add};
use super::binary::{binary, scalar};
use super::linear::{bias_backward, linear, product_of_rows, x_backward};
use super::lt::{self, Follows};
use super::unary::{clamp, unary};
use crate::tensor::RocmTensor;

/// `onto + (x W + b)`: by one product if hipBLASLt joins products
/// ([`joins_products`](crate::fused::joins_products)), else by a product and a kernel.
///
/// # Shapes
/// - `x`: `[.., in]`
/// - `weight`: `[in, out]`
/// - `bias`: `[out]`
/// - `onto`, output: `[.., out]`
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers; an error of the
/// device.
pub fn linear_add(
    onto: RocmTensor,
    x: RocmTensor,
    weight: RocmTensor,
    bias: RocmTensor,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "linear_add";
    let by_two = |onto: RocmTensor, x, weight, bias| bias_add(onto, product_of_rows(OP, x, weight)?, bias);
    if lt::asked() {
        let today = || by_two(onto.clone(), x.clone(), weight.clone(), bias.clone()).map(drop);
        let follows = Follows { bias: Some(&bias), ..Follows::default() };
        if let Some((out, _)) = lt::forward(&x, &weight, Some(&onto), follows, today)? {
            return Ok(out);
        }
    }
    by_two(onto, x, weight, bias)
}

/// `max(x W + b, 0)`: by one product if hipBLASLt joins products
/// ([`joins_products`](crate::fused::joins_products)), else by a product and a kernel.
///
/// Its gradient reads the output ([`bias_act_backward`](crate::fused::bias_act_backward)). The
/// libraries' maximum may give 0 for a NaN; the kernel gives NaN.
///
/// # Shapes
/// - `x`: `[.., in]`
/// - `weight`: `[in, out]`
/// - `bias`: `[out]`
/// - output: `[.., out]`
///
/// # Errors
/// As for [`linear_add`].
pub fn linear_relu(
    x: RocmTensor,
    weight: RocmTensor,
    bias: Option<RocmTensor>,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "linear_relu";
    let by_two = |x: RocmTensor, weight, bias| {
        let axis = x.dims().len().saturating_sub(1);
        bias_act(Act::Relu, product_of_rows(OP, x, weight)?, bias, axis)
    };
    if lt::asked() {
        let today = || by_two(x.clone(), weight.clone(), bias.clone()).map(drop);
        let activation = Some(LtActivation::Relu);
        let follows = Follows { bias: bias.as_ref(), activation, ..Follows::default() };
        if let Some((out, _)) = lt::forward(&x, &weight, None, follows, today)? {
            return Ok(out);
        }
    }
    by_two(x, weight, bias)
}

/// The output of a linear layer with GELU by tanh after it, and GELU's input.
#[derive(Clone, Debug)]
pub struct LinearGelu {
    /// `[.., out]`.
    pub out: RocmTensor,
    /// `x W + b`: `[.., out]`.
    pub before: RocmTensor,
}

/// `gelu(x W + b)` with the approximation `0.5 z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))`
/// ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)): by one product if hipBLASLt joins
/// products ([`joins_products`](crate::fused::joins_products)), else by a product and several kernels.
///
/// # Shapes
/// - `x`: `[.., in]`
/// - `weight`: `[in, out]`
/// - `bias`: `[out]`
///
/// # Errors
/// As for [`linear_add`].
pub fn linear_gelu_tanh(
    x: RocmTensor,
    weight: RocmTensor,
    bias: RocmTensor,
) -> Result<LinearGelu, RocmError> {
    let by_two = |x, weight, bias| -> hip::Result<LinearGelu> {
        let before = linear(x, weight, Some(bias))?;
        Ok(LinearGelu { out: gelu(before.clone())?, before })
    };
    if lt::asked() {
        let today = || by_two(x.clone(), weight.clone(), bias.clone()).map(drop);
        let activation = Some(LtActivation::GeluTanh);
        let follows = Follows { bias: Some(&bias), activation, keeps: true, ..Follows::default() };
        if let Some((out, Some(before))) = lt::forward(&x, &weight, None, follows, today)? {
            return Ok(LinearGelu { out, before });
        }
    }
    by_two(x, weight, bias)
}

/// The gradients with respect to [`LinearGelu::before`] and to the bias of [`linear_gelu_tanh`].
/// Its output goes through a linear layer with `weight`; `grad` is the gradient of that layer's
/// output.
///
/// # Shapes
/// - `grad`: `[.., last]`
/// - `weight`: `[out, last]`
/// - `before`, first gradient: `[.., out]`
/// - second gradient: `[out]`
///
/// # Errors
/// As for [`linear_add`].
pub fn gelu_tanh_linear_backward(
    grad: RocmTensor,
    weight: RocmTensor,
    before: RocmTensor,
) -> Result<[RocmTensor; 2], RocmError> {
    let by_two = |grad, weight, before| -> hip::Result<[RocmTensor; 2]> {
        let out = binary(OP_BACKWARD, Functor::Mul, x_backward(weight, grad)?, gelu_derivative(before)?)?;
        Ok([out.clone(), bias_backward(out)?])
    };
    if lt::asked() {
        let today = || by_two(grad.clone(), weight.clone(), before.clone()).map(drop);
        if let Some(both) = lt::gelu_gradient(&grad, &weight, &before, today)? {
            return Ok(both);
        }
    }
    by_two(grad, weight, before)
}

const OP: &str = "linear_gelu_tanh";
const OP_BACKWARD: &str = "gelu_tanh_linear_backward";
/// `sqrt(2 / pi)`
const FACTOR: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044715;

/// `1 + c z^2`.
fn one_and_square(z: &RocmTensor, c: f64) -> hip::Result<RocmTensor> {
    let square = binary(OP, Functor::Mul, z.clone(), z.clone())?;
    scalar(OP, Functor::Add, scalar(OP, Functor::Mul, square, c.into())?, 1f64.into())
}

/// `tanh(FACTOR (z + CUBIC z^3))`.
fn tanh_of(z: &RocmTensor) -> hip::Result<RocmTensor> {
    let inner = binary(OP, Functor::Mul, one_and_square(z, CUBIC)?, z.clone())?;
    unary(OP, Functor::Tanh, scalar(OP, Functor::Mul, inner, FACTOR.into())?)
}

/// `0.5 (1 + t)`.
fn half_of_one_and(t: RocmTensor) -> hip::Result<RocmTensor> {
    scalar(OP, Functor::Mul, scalar(OP, Functor::Add, t, 1f64.into())?, 0.5f64.into())
}

fn gelu(z: RocmTensor) -> hip::Result<RocmTensor> {
    binary(OP, Functor::Mul, half_of_one_and(tanh_of(&z)?)?, z)
}

/// `0.5 (1 + t) + 0.5 z (1 - t^2) FACTOR (1 + 3 CUBIC z^2)`.
fn gelu_derivative(z: RocmTensor) -> hip::Result<RocmTensor> {
    // Beyond this it is 0 or 1 in all types. In f16, the square of 256 is infinite.
    let z = clamp(OP, z, Some((-32.0).into()), Some(32.0.into()))?;
    let t = tanh_of(&z)?;
    let slope = binary(OP, Functor::Mul, one_and_square(&t, -1.0)?, z.clone())?;
    let slope = binary(OP, Functor::Mul, slope, one_and_square(&z, 3.0 * CUBIC)?)?;
    let slope = scalar(OP, Functor::Mul, slope, (0.5 * FACTOR).into())?;
    binary(OP, Functor::Add, half_of_one_and(t)?, slope)
}
