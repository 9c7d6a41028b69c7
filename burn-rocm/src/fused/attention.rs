//! Scaled dot-product attention with its gradient, dropout and all: by tiled kernels that keep no scores, or by
//! products.

use crate::RocmTensor;
use crate::ops::attention::options::{Attended, AttentionOptions};
use crate::ops::attention::trained as attention_trained;
use hip::Error as RocmError;

/// `softmax(mask(dropout(scale * query key^T))) value`.
///
/// # Shapes
/// - `query`: `[batch, heads, queries, features]`
/// - `key`: `[batch, heads, keys, features]`
/// - `value`: `[batch, heads, keys, values]`
/// - `mask`: bools that broadcast to `[batch, heads, queries, keys]`; true hides a key
///
/// Operands are read where they lie. [`Composed`](super::AttentionPath::Composed) packs those in which no one stride
/// leads from each head to the next over all batches: of tokens `[sequence, batch, features]` the heads do, of `[batch,
/// sequence, features]` they do not.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices do not fit, where the probability is outside 0..=1, and where
/// [`AttentionPath::Tiled`](super::AttentionPath::Tiled) is asked for heads that it does not take; `Unsupported` for
/// integers; the device's own.
pub fn attention(
    query: RocmTensor,
    key: RocmTensor,
    value: RocmTensor,
    mask: Option<RocmTensor>,
    options: &AttentionOptions,
) -> Result<Attended, RocmError> {
    attention_trained::attention([query, key, value], mask, options)
}

/// The gradients of [`attention`] by query, key and value, from the output's; `None` for one that is not `wanted`.
/// `kept` is what [`attention`] gave for the same inputs, mask and options. Composed ones lie in memory as their
/// inputs do, where [`Attended::out`] does.
///
/// # Errors
/// As [`attention`]; `Invalid` where the gradient or `kept` has another shape than the output, or what was kept.
pub fn attention_backward(
    inputs: [RocmTensor; 3],
    mask: Option<RocmTensor>,
    kept: Vec<RocmTensor>,
    grad: RocmTensor,
    options: &AttentionOptions,
    wanted: [bool; 3],
) -> Result<[Option<RocmTensor>; 3], RocmError> {
    attention_trained::attention_backward(inputs, mask, kept, grad, options, wanted, None)
}

/// The weights `[batch, heads, queries, keys]` that [`attention`] multiplies the values by, in memory.
///
/// # Errors
/// As [`attention`].
pub fn attention_weights(
    query: RocmTensor,
    key: RocmTensor,
    mask: Option<RocmTensor>,
    options: &AttentionOptions,
) -> Result<RocmTensor, RocmError> {
    attention_trained::attention_weights([query, key], mask, options)
}

/// The gradients of [`attention_weights`] by query and key.
///
/// # Errors
/// As [`attention`]; `Invalid` where the gradient has another shape than the weights.
pub fn attention_weights_backward(
    inputs: [RocmTensor; 2],
    mask: Option<RocmTensor>,
    weights: RocmTensor,
    grad: RocmTensor,
    options: &AttentionOptions,
    wanted: [bool; 2],
) -> Result<[Option<RocmTensor>; 2], RocmError> {
    attention_trained::attention_weights_backward(inputs, mask, weights, grad, options, wanted)
}
