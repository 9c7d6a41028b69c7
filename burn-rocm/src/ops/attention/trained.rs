//! Scaled dot-product attention with a gradient and dropout: by tiled kernels that store no scores,
//! or by products.

use std::cmp::Reverse;

use hip::{Error as RocmError, Template};

use super::OP;
use super::call::{Call, Path};
use super::composed::operand;
use super::cores::{Cores, is_writable};
use super::options::{Attended, AttentionOptions};
use super::softmax::Joined;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::copy::{assign, packed};
use crate::ops::matmul::{Request, is_one_batch, product, product_to};
use crate::ops::view::{permute, reshape, transpose};
use crate::tensor::RocmTensor;

const BACKWARD: &str = "attention_backward";

/// A new tensor with the order of axes in memory that `like` has, or a packed one if that order
/// does not `fit`.
fn in_order_of(
    like: &RocmTensor,
    dims: [usize; 4],
    fits: impl Fn(&RocmTensor) -> bool,
) -> hip::Result<RocmTensor> {
    let mut axes = [0, 1, 2, 3];
    axes.sort_by_key(|&axis| Reverse(like.layout().strides()[axis]));
    let place = |axis| axes.iter().position(|&other| other == axis).unwrap_or(axis);
    let new = |dims: [usize; 4]| RocmTensor::empty(like.hip_device(), dims, like.dtype_of());
    let out = permute(new(axes.map(|axis| dims[axis]))?, &[0, 1, 2, 3].map(place))?;
    if fits(&out) {
        return Ok(out);
    }
    drop(out); // its memory serves
    new(dims)
}

impl Call<'_> {
    /// Attention on matrix cores.
    pub(super) fn on(&self, cores: Cores, [query, key, value]: [&RocmTensor; 3]) -> hip::Result<Attended> {
        let [batch, heads, queries, ..] = self.sizes;
        let out = in_order_of(query, [batch, heads, queries, value.dims()[3]], is_writable)?;
        let sums = self.sums(query)?;
        cores.forward(self.op, [query, key, value], &self.sequences, &self.scores(), &out, Some(&sums))?;
        Ok(Attended { out: out.clone(), kept: vec![out, sums] })
    }

    /// The gradients on matrix cores, written to `given` or to new tensors.
    pub(super) fn on_backward(
        &self,
        cores: Cores,
        inputs: [&RocmTensor; 3],
        read: [&RocmTensor; 3],
        wanted: [bool; 3],
        given: Option<[RocmTensor; 3]>,
    ) -> hip::Result<[Option<RocmTensor>; 3]> {
        // One kernel computes the keys' and the values' gradient.
        let either = wanted[1] || wanted[2];
        let direct = given.as_ref().is_none_or(|given| given.iter().all(is_writable));
        let (to, computed) =
            if direct { (given.clone(), [wanted[0], either, either]) } else { (None, [true; 3]) };
        let mut found = places(inputs, computed, to, is_writable)?;
        let to = found.each_ref().map(Option::as_ref);
        cores.backward(self.op, inputs, &self.sequences, &self.scores(), read, to)?;
        if let (false, Some(given)) = (direct, given) {
            for (place, found) in given.iter().zip(found.iter().flatten()) {
                assign(BACKWARD, place, found)?;
            }
            return Ok(given.map(Some));
        }
        for (found, wanted) in found.iter_mut().zip(wanted) {
            if !wanted {
                *found = None;
            }
        }
        Ok(found)
    }
}

/// `softmax(mask(dropout(scale * query key^T))) value`.
///
/// # Shapes
/// - `query`: `[batch, heads, queries, features]`
/// - `key`: `[batch, key heads, keys, features]`; the heads of keys divide those of queries, and head
///   `h` of the queries sees head `h / (heads / key heads)` of the keys, as in Llama
/// - `value`: `[batch, key heads, keys, values]`
/// - `mask`: bools that broadcast to `[batch, heads, queries, keys]`; true hides a key
///
/// Operands are read without a copy, with one exception: [`Composed`](crate::fused::AttentionPath::Composed)
/// packs an operand whose heads are not equally spaced over all batches. The heads of tokens
/// `[sequence, batch, features]` are equally spaced, those of `[batch, sequence, features]` are
/// not. If heads share keys, it also packs queries unless they are contiguous; keys and values are
/// not repeated in memory.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit, if the heads of keys do not divide those of
/// queries, if the window is 0 or the probability outside 0..=1, or if
/// [`AttentionPath::Tiled`](crate::fused::AttentionPath::Tiled) does not take the heads; `Unsupported`
/// for integers; an error of the device.
pub fn attention(
    query: RocmTensor,
    key: RocmTensor,
    value: RocmTensor,
    mask: Option<RocmTensor>,
    options: &AttentionOptions,
) -> Result<Attended, RocmError> {
    let call = Call::new(OP, &query, &key, mask, options)?;
    call.check_value(&query, &value)?;
    let values = value.dims()[3];
    match call.route(&query, values)? {
        Path::Cores(cores) => return call.on(cores, [&query, &key, &value]),
        Path::Tiled => return call.tiled([&query, &key, &value]),
        Path::Composed => {}
    }
    let [batch, heads, queries, ..] = call.sizes;
    // A product must be able to write it.
    let out = in_order_of(&query, [batch, heads, queries, values], is_one_batch)?;
    let weights = call.weights(query, key)?;
    call.product_of_rows(Request::new(OP, 1.0), weights.clone(), operand(value)?, &out)?;
    Ok(Attended { out, kept: vec![weights] })
}

/// The tensors that the gradients are written to: `given`, or a new tensor for each gradient that
/// is wanted, in its input's order of axes if that order `fits`.
fn places<const N: usize>(
    inputs: [&RocmTensor; N],
    wanted: [bool; N],
    given: Option<[RocmTensor; N]>,
    fits: impl Fn(&RocmTensor) -> bool,
) -> hip::Result<[Option<RocmTensor>; N]> {
    if let Some(given) = given {
        return Ok(given.map(Some));
    }
    let mut places = [const { None }; N];
    for ((place, input), wanted) in places.iter_mut().zip(inputs).zip(wanted) {
        if let (true, &[batch, heads, length, features]) = (wanted, input.dims()) {
            *place = Some(in_order_of(input, [batch, heads, length, features], &fits)?);
        }
    }
    Ok(places)
}

/// The gradients of [`attention`] with respect to query, key and value, from the output's gradient;
/// `None` for one that is not `wanted`. `kept` is [`Attended::kept`] for the same inputs, mask and
/// options. On the composed path a gradient has its input's order of axes in memory under the same
/// condition as [`Attended::out`].
///
/// # Errors
/// As [`attention`]; `Invalid` if the gradient's shape is not the output's, or if `kept` is not
/// what such a call keeps.
pub fn attention_backward(
    inputs: [RocmTensor; 3],
    mask: Option<RocmTensor>,
    kept: Vec<RocmTensor>,
    grad: RocmTensor,
    options: &AttentionOptions,
    wanted: [bool; 3],
) -> Result<[Option<RocmTensor>; 3], RocmError> {
    gradients(inputs, mask, kept, grad, options, wanted, None)
}

/// [`attention_backward`], written to the views `given`, if any, which have the inputs' shapes.
pub(super) fn gradients(
    [query, key, value]: [RocmTensor; 3],
    mask: Option<RocmTensor>,
    kept: Vec<RocmTensor>,
    grad: RocmTensor,
    options: &AttentionOptions,
    wanted: [bool; 3],
    given: Option<[RocmTensor; 3]>,
) -> hip::Result<[Option<RocmTensor>; 3]> {
    let call = Call::new(BACKWARD, &query, &key, mask, options)?;
    call.check_value(&query, &value)?;
    let [batch, heads, queries, keys, _] = call.sizes;
    let values = value.dims()[3];
    let route = call.route(&query, values)?;
    let tiled = !matches!(route, Path::Composed);
    let kept = match route {
        // Its output may be a view.
        Path::Cores(_) => kept,
        _ => kept.into_iter().map(packed).collect::<hip::Result<Vec<_>>>()?,
    };
    call.check("a gradient", &grad, &query, &[batch, heads, queries, values])?;
    match kept.as_slice() {
        [out, sums] if tiled => {
            call.check("an output", out, &query, &[batch, heads, queries, values])?;
            if sums.dims() != [batch, heads, queries, 2] || sums.dtype_of() != compute_dtype(query.dtype_of())
            {
                return invalid(BACKWARD, "the sums that attention kept", format!("{:?}", sums.dims()));
            }
            if let Path::Cores(cores) = route {
                let sums = &packed(sums.clone())?;
                return call.on_backward(cores, [&query, &key, &value], [out, sums, &grad], wanted, given);
            }
            let found = call.tiled_backward([&query, &key, &value], [out, sums], &grad, wanted)?;
            let Some(given) = given else { return Ok(found) };
            for (place, found) in given.iter().zip(&found) {
                if let Some(found) = found {
                    assign(BACKWARD, place, found)?;
                }
            }
            Ok(given.map(Some))
        }
        [weights] if !tiled => {
            call.check("weights", weights, &query, &[batch, heads, queries, keys])?;
            let places = places([&query, &key, &value], wanted, given, is_one_batch)?;
            let [by_query, by_key, by_value] = places.each_ref().map(Option::as_ref);
            let (grad, gradient) = (call.rows(grad)?, Request::gradient(BACKWARD, 1.0));
            if let Some(place) = by_value {
                product_to(gradient, transpose(call.rows(weights.clone())?)?, grad.clone(), place)?;
            }
            if by_query.is_some() || by_key.is_some() {
                let joined = if call.is_plain() { Joined::of(BACKWARD, &grad, &value)? } else { None };
                let by_two = || {
                    let value = transpose(operand(value.clone())?)?;
                    call.scores_backward(weights, product(gradient, grad.clone(), value)?)
                };
                let scores = match joined {
                    Some(joined) => {
                        let by_one = || joined.softmax_backward(weights);
                        match joined.is_faster(Template::attention_softmax_backward, by_one, by_two)? {
                            true => by_one()?,
                            false => by_two()?,
                        }
                    }
                    None => by_two()?,
                };
                // Their memory may serve the products.
                drop((grad, value));
                // From the rows of a group to its heads.
                let scores = reshape(scores, &[batch, heads, queries, keys])?;
                call.products([query, key], scores, [by_query, by_key])?;
            }
            Ok(places)
        }
        other => invalid(
            BACKWARD,
            "the tensors that attention kept for these inputs",
            format!("{} tensors", other.len()),
        ),
    }
}

/// The weights `[batch, heads, queries, keys]` by which [`attention`] multiplies the values.
///
/// # Errors
/// As [`attention`].
pub fn attention_weights(
    query: RocmTensor,
    key: RocmTensor,
    mask: Option<RocmTensor>,
    options: &AttentionOptions,
) -> Result<RocmTensor, RocmError> {
    Call::new("attention_weights", &query, &key, mask, options)?.weights(query, key)
}

/// The gradients of [`attention_weights`] with respect to query and key.
///
/// # Errors
/// As [`attention`]; `Invalid` if the gradient has another shape than the weights.
pub fn attention_weights_backward(
    inputs: [RocmTensor; 2],
    mask: Option<RocmTensor>,
    weights: RocmTensor,
    grad: RocmTensor,
    options: &AttentionOptions,
    wanted: [bool; 2],
) -> Result<[Option<RocmTensor>; 2], RocmError> {
    let [query, key] = &inputs;
    let call = Call::new("attention_weights_backward", query, key, mask, options)?;
    let [batch, heads, queries, keys, _] = call.sizes;
    for (name, tensor) in [("weights", &weights), ("a gradient", &grad)] {
        call.check(name, tensor, query, &[batch, heads, queries, keys])?;
    }
    let places = places(inputs.each_ref(), wanted, None, is_one_batch)?;
    let scores = call.scores_backward(&packed(weights)?, grad)?;
    call.products(inputs, scores, places.each_ref().map(Option::as_ref))?;
    Ok(places)
}
