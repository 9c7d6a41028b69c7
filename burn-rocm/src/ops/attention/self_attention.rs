//! Self-attention with one projection. One product with packed weights computes queries, keys and
//! values. Backward, one product computes the tokens' gradient and one the weights'.

use hip::{Error as RocmError, Template, trace};

use super::options::AttentionOptions;
use super::trained;
use crate::arg::Arg;
use crate::error::invalid;
use crate::ops::copy::{contiguous, copy, packed};
use crate::ops::launch::rows;
use crate::ops::linear::{bias_backward, linear, weight_and_bias_backward, weight_backward, x_product};
use crate::ops::view::{narrow, permute, reshape, swap_dims};
use crate::tensor::{RocmTensor, float_type, one_device, one_dtype};

const OP: &str = "self_attention";
const BACKWARD: &str = "self_attention_backward";

/// The linear layers that make queries, keys and values, in this order.
#[derive(Clone, Debug)]
pub struct Projections {
    /// `[d_model, heads * d_k]` each.
    pub weights: [RocmTensor; 3],
    /// `[heads * d_k]` each.
    pub biases: [RocmTensor; 3],
    /// The number of heads.
    pub heads: usize,
}

/// The result of [`self_attention`].
#[derive(Clone, Debug)]
pub struct SelfAttended {
    /// `[sequence, batch, heads * d_k]`.
    pub out: RocmTensor,
    /// The tensors that the gradient reads besides the tokens: the packed weight, all queries, keys
    /// and values, and [`Attended::kept`](crate::fused::Attended::kept).
    pub kept: Vec<RocmTensor>,
}

/// The gradients of [`self_attention`]; `None` for one that was not asked for.
#[derive(Clone, Debug, Default)]
pub struct SelfAttentionGradients {
    /// With respect to the tokens: `[sequence, batch, d_model]`.
    pub tokens: Option<RocmTensor>,
    /// With respect to the weights of queries, keys and values: `[d_model, heads * d_k]` each, one
    /// after the other in one buffer.
    pub weights: Option<[RocmTensor; 3]>,
    /// With respect to the biases: `[heads * d_k]` each, likewise in one buffer.
    pub biases: Option<[RocmTensor; 3]>,
}

/// sequence, batch, d_model, heads, features of a head.
#[derive(Clone, Copy)]
struct Sizes {
    sequence: usize,
    batch: usize,
    d_model: usize,
    heads: usize,
    d_k: usize,
}

impl Sizes {
    fn new(x: &RocmTensor, width: usize, heads: usize, op: &'static str) -> hip::Result<Self> {
        float_type(op, x)?;
        let &[sequence, batch, d_model] = x.dims() else {
            return invalid(op, "tokens [sequence, batch, features]", format!("{:?}", x.dims()));
        };
        if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
            return invalid(op, format!("heads that divide {width} features"), heads.to_string());
        }
        Ok(Self { sequence, batch, d_model, heads, d_k: width / heads })
    }

    fn width(&self) -> usize {
        self.heads * self.d_k
    }

    /// Views `[batch, heads, sequence, d_k]` of the queries, keys and values in `all`, which has
    /// one row for each token. In a row, each head's query, key and value lie side by side. So the
    /// heads of all batches are equally spaced, and products need no copy.
    fn parts(&self, all: &RocmTensor) -> hip::Result<[RocmTensor; 3]> {
        let Self { sequence, batch, heads, d_k, .. } = *self;
        let all = reshape(all.clone(), &[sequence, batch, heads, 3, d_k])?;
        let part = |at| {
            let part = reshape(narrow(all.clone(), 3, at, 1)?, &[sequence, batch, heads, d_k])?;
            permute(part, &[1, 2, 0, 3])
        };
        Ok([part(0)?, part(1)?, part(2)?])
    }

    /// Packs weights and biases into one tensor `[d_model + 1, heads * 3 * d_k]`, head by head,
    /// with the biases in its last row. Takes one launch.
    fn pack(&self, weights: &[RocmTensor; 3], biases: &[RocmTensor; 3]) -> hip::Result<[RocmTensor; 2]> {
        let Self { d_model, heads, d_k, .. } = *self;
        let columns = 3 * self.width();
        let out = RocmTensor::empty(weights[0].hip_device(), [d_model + 1, columns], weights[0].dtype_of())?;
        let parts =
            weights.iter().chain(biases).map(|part| packed(part.clone())).collect::<hip::Result<Vec<_>>>()?;
        // The largest access size, in bytes, that divides a head's features and every tensor's
        // offset.
        let size = out.dtype_size();
        let even = |bytes: &usize| {
            (d_k * size).is_multiple_of(*bytes)
                && parts.iter().all(|part| part.byte_offset().is_multiple_of(*bytes))
        };
        let bytes = [16, 8, 4].into_iter().filter(|bytes| *bytes > size).find(even).unwrap_or(size);
        let units = out.len() * size / bytes;
        if u32::try_from(units).is_err() {
            return invalid(
                OP,
                format!("projections of fewer than {} units of {bytes} bytes", 1u64 << 32),
                units.to_string(),
            );
        }
        let dims = [Arg::U64(d_model as u64), Arg::U32(heads as u32), Arg::U32((d_k * size / bytes) as u32)];
        let kernel = Template::pack_heads.int(bytes as i32);
        let device = out.hip_device();
        rows(
            OP,
            device,
            kernel,
            device.grid_bytes(units * bytes),
            &dims,
            &parts.iter().collect::<Vec<_>>(),
            &[],
            &[&out],
        )?;
        let weight = narrow(out.clone(), 0, 0, d_model)?;
        Ok([weight, reshape(narrow(out, 0, d_model, 1)?, &[columns])?])
    }

    /// Undoes [`pack`](Self::pack): the three parts, one after the other in one buffer. Takes one
    /// copy.
    fn unpack(&self, packed: RocmTensor, rows: usize, dims: &[usize]) -> hip::Result<[RocmTensor; 3]> {
        let apart = permute(reshape(packed, &[rows, self.heads, 3, self.d_k])?, &[2, 0, 1, 3])?;
        let apart = contiguous(apart)?;
        let part = |at| reshape(narrow(apart.clone(), 0, at, 1)?, dims);
        Ok([part(0)?, part(1)?, part(2)?])
    }
}

/// Self-attention of tokens: `attention(x Wq + bq, x Wk + bk, x Wv + bv)` of each head, with one
/// product for all three projections. The tokens' first axis is the sequence. So the heads of all
/// batches are equally spaced in memory, and no product needs a copy of its operands.
///
/// # Shapes
/// - `x`: `[sequence, batch, d_model]`
/// - `mask`: bools that broadcast to `[batch, heads, sequence, sequence]`; true hides a key
/// - output: `[sequence, batch, heads * d_k]`
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit or the heads do not divide the features; the
/// errors of [`attention`](crate::fused::attention()); `Unsupported` for integers; an error of the
/// device.
pub fn self_attention(
    x: RocmTensor,
    projections: Projections,
    mask: Option<RocmTensor>,
    options: &AttentionOptions,
) -> Result<SelfAttended, RocmError> {
    let Projections { weights, biases, heads } = projections;
    let operands: Vec<&RocmTensor> = [&x].into_iter().chain(&weights).chain(&biases).collect();
    one_device(OP, &operands)?;
    one_dtype(OP, &operands)?;
    let width = weights[0].dims().last().copied().unwrap_or(0);
    let sizes = Sizes::new(&x, width, heads, OP)?;
    for (what, tensors, dims) in
        [("weights", &weights, &[sizes.d_model, width][..]), ("biases", &biases, &[width])]
    {
        if let Some(other) = tensors.iter().find(|tensor| tensor.dims() != dims) {
            return invalid(OP, format!("{what} of shape {dims:?}"), format!("{:?}", other.dims()));
        }
    }
    let [weight, bias] = sizes.pack(&weights, &biases)?;
    let all = linear(x, weight.clone(), Some(bias))?;
    let [query, key, value] = sizes.parts(&all)?;
    let attended = trained::attention(query, key, value, mask, options)?;
    let out = reshape(permute(attended.out, &[2, 0, 1, 3])?, &[sizes.sequence, sizes.batch, width])?;
    Ok(SelfAttended { out, kept: [weight, all].into_iter().chain(attended.kept).collect() })
}

/// The gradients of [`self_attention`] with respect to tokens, weights and biases, each if
/// `wanted`, from the output's gradient. `kept` is [`SelfAttended::kept`] for the same tokens,
/// number of heads, mask and options.
///
/// # Errors
/// As [`self_attention`]; `Invalid` if the gradient's shape is not the output's, or if `kept` is
/// not what such a call keeps.
pub fn self_attention_backward(
    x: RocmTensor,
    heads: usize,
    mask: Option<RocmTensor>,
    kept: Vec<RocmTensor>,
    grad: RocmTensor,
    options: &AttentionOptions,
    wanted: [bool; 3],
) -> Result<SelfAttentionGradients, RocmError> {
    let mut kept = kept.into_iter();
    let (Some(weight), Some(all)) = (kept.next(), kept.next()) else {
        return invalid(BACKWARD, "what self_attention kept", "fewer tensors");
    };
    one_device(BACKWARD, &[&x, &weight, &all, &grad])?;
    one_dtype(BACKWARD, &[&x, &weight, &all, &grad])?;
    let three = weight.dims().last().copied().unwrap_or(0);
    let sizes = Sizes::new(&x, three / 3, heads, BACKWARD)?;
    let Sizes { sequence, batch, d_model, d_k, .. } = sizes;
    let width = sizes.width();
    let expected = [vec![d_model, 3 * width], vec![sequence, batch, 3 * width], vec![sequence, batch, width]];
    for (tensor, dims) in [&weight, &all, &grad].into_iter().zip(&expected) {
        if tensor.dims() != dims {
            let found = format!("{:?}", tensor.dims());
            return invalid(BACKWARD, format!("{dims:?} of these tokens and this number of heads"), found);
        }
    }
    let mut found = SelfAttentionGradients::default();
    if !wanted.contains(&true) {
        return Ok(found);
    }
    let grad = permute(reshape(grad, &[sequence, batch, heads, d_k])?, &[1, 2, 0, 3])?;
    let by_all = RocmTensor::empty(all.hip_device(), [sequence, batch, 3 * width], all.dtype_of())?;
    let (inputs, places) = (sizes.parts(&all)?, sizes.parts(&by_all)?);
    let kept = kept.collect();
    trained::gradients(inputs, mask, kept, grad, options, [true; 3], Some(places))?;
    let (by_weight, bias) = match [wanted[1], wanted[2]] {
        [true, true] => {
            let [weight, bias] = weight_and_bias_backward(x, by_all.clone())?;
            (Some(weight), Some(bias))
        }
        [true, false] => (Some(weight_backward(x, by_all.clone())?), None),
        [false, true] => (None, Some(bias_backward(by_all.clone())?)),
        [false, false] => (None, None),
    };
    if let Some(packed) = by_weight {
        found.weights = Some(sizes.unpack(packed, d_model, &[d_model, width])?);
    }
    if let Some(packed) = bias {
        found.biases = Some(sizes.unpack(packed, 1, &[width])?);
    }
    if wanted[0] {
        // Other devices' gradients can be added to the weights' while this one is computed.
        trace::op_goes_on();
        // A product whose right side is in row-major order is faster than one whose right side is
        // transposed: 628 us against 670 for 8192 x 2304 x 768 in f32 on an H200. The copy moves a
        // fraction of the bytes that the product reads.
        let turned = copy(&swap_dims(weight, 0, 1)?)?;
        found.tokens = Some(x_product(by_all, turned)?);
    }
    Ok(found)
}

/// Swaps the first two axes and packs the result: tokens `[batch, sequence, ..]` become
/// `[sequence, batch, ..]`, or the reverse. Copies nothing if one of the two axes has size 1.
///
/// # Errors
/// `Invalid` for fewer than two axes; an error of the device.
pub fn swap_leading(x: RocmTensor) -> Result<RocmTensor, RocmError> {
    contiguous(swap_dims(x, 0, 1)?)
}
