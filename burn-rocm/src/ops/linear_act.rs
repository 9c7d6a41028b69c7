//! A linear layer with the sum or the activation after it.

use hip::{Error as RocmError, LtActivation};

use super::activation::{Act, bias_act, bias_add};
use super::linear::product_of_rows;
use super::lt::{self, Follows};
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
