//! Scaled dot-product attention with a gradient and dropout: by tiled kernels that store no scores,
//! or by products.

use std::cmp::Reverse;

use hip::{Error as RocmError, Template};

use super::cores::{Cores, Scores, is_writable};
use super::options::{Attended, AttentionOptions, AttentionPath};
use super::softmax::Joined;
use super::{LEAST_QUERIES, OP, TILE, expand, strides};
use crate::arg::{Arg, compute};
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::copy::{assign, contiguous, packed};
use crate::ops::launch::{rows, views, views_to};
use crate::ops::mask::check_mask;
use crate::ops::matmul::{Request, is_one_batch, product, product_to};
use crate::ops::view::{permute, transpose};
use crate::tensor::{RocmTensor, float_type, one_device, one_dtype};

const BACKWARD: &str = "attention_backward";

/// `WIDEST` of `attention_backward.hip`: the most features of a query, key or value that its tiles
/// hold.
const WIDEST: usize = 128;

/// An operand of a product. It is the tensor itself if the heads are equally spaced over all
/// batches, as for tokens `[sequence, batch, features]`; else a packed copy.
fn operand(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if is_one_batch(&tensor) { Ok(tensor) } else { contiguous(tensor) }
}

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

/// The implementation of a call.
#[derive(Clone, Copy)]
enum Path {
    Cores(Cores),
    Tiled,
    Composed,
}

/// A call with checked inputs.
struct Call<'a> {
    op: &'static str,
    /// Batch, heads, queries, keys, features.
    sizes: [usize; 5],
    mask: Option<RocmTensor>,
    scale: f64,
    options: &'a AttentionOptions,
    ty: hip::DType,
}

impl<'a> Call<'a> {
    fn new(
        op: &'static str,
        query: &RocmTensor,
        key: &RocmTensor,
        mask: Option<RocmTensor>,
        options: &'a AttentionOptions,
    ) -> hip::Result<Self> {
        one_device(op, &[query, key])?;
        one_dtype(op, &[query, key])?;
        let ty = float_type(op, query)?;
        let found = || format!("{:?} and {:?}", query.dims(), key.dims());
        let (&[batch, heads, queries, width], &[others, key_heads, keys, key_width]) =
            (query.dims(), key.dims())
        else {
            return invalid(op, "queries and keys of rank 4", found());
        };
        if (batch, heads, width) != (others, key_heads, key_width) || width == 0 {
            return invalid(
                op,
                "queries and keys with the same batch, heads and features (at least 1)",
                found(),
            );
        }
        if let Some(dropout) = &options.dropout {
            dropout.check(op, query)?;
        }
        if [queries, keys].iter().any(|&n| n > i32::MAX as usize) {
            return invalid(op, format!("sequences of at most {}", i32::MAX), found());
        }
        let mask = mask
            .map(|mask| {
                one_device(op, &[query, &mask])?;
                check_mask(op, &mask)?;
                expand(mask, &[batch, heads, queries, keys])
            })
            .transpose()?;
        let scale = options.scale.unwrap_or(1.0 / (width as f64).sqrt());
        Ok(Self { op, sizes: [batch, heads, queries, keys, width], mask, scale, options, ty })
    }

    fn check_value(&self, query: &RocmTensor, value: &RocmTensor) -> hip::Result<()> {
        one_device(self.op, &[query, value])?;
        one_dtype(self.op, &[query, value])?;
        let [batch, heads, _, keys, _] = self.sizes;
        match value.dims() {
            dims if dims.len() == 4 && dims[..3] == [batch, heads, keys] => Ok(()),
            dims => invalid(self.op, format!("values [{batch}, {heads}, {keys}, ..]"), format!("{dims:?}")),
        }
    }

    fn check(&self, name: &str, tensor: &RocmTensor, like: &RocmTensor, dims: &[usize]) -> hip::Result<()> {
        one_device(self.op, &[like, tensor])?;
        one_dtype(self.op, &[like, tensor])?;
        if tensor.dims() != dims {
            return invalid(self.op, format!("{name} {dims:?}"), format!("{:?}", tensor.dims()));
        }
        Ok(())
    }

    /// The implementation of this call.
    fn route(&self, query: &RocmTensor, values: usize) -> hip::Result<Path> {
        let [batch, heads, queries, keys, width] = self.sizes;
        let composed = self.options.path == AttentionPath::Composed;
        if composed || self.sizes.contains(&0) || values == 0 {
            return Ok(Path::Composed);
        }
        let asked = self.options.path == AttentionPath::Tiled;
        if (asked || queries >= LEAST_QUERIES)
            && let Some(cores) = Cores::of(query, values, true)?
        {
            return Ok(Path::Cores(cores));
        }
        let threads = query.hip_device().grid_rows(1, usize::MAX).threads;
        let possible = width.max(values) <= WIDEST && (threads == 256 || threads == 1);
        if asked {
            let expected = format!("heads of at most {WIDEST} features, blocks of 256 threads");
            let found = || format!("{width} and {values} features, {threads} threads");
            return if possible { Ok(Path::Tiled) } else { invalid(self.op, expected, found()) };
        }
        let scores =
            [batch, heads, queries, keys].iter().fold(query.dtype_size(), |n, &dim| n.saturating_mul(dim));
        // The tiled kernels compute the scores twice more for the gradient, and without matrix
        // units. So they pay off only if memory is short.
        let most = self.options.scores.map_or_else(hip::attention_scores, Ok)?;
        let tiled = possible && queries >= LEAST_QUERIES && scores > most;
        Ok(if tiled { Path::Tiled } else { Path::Composed })
    }

    /// What the kernels on matrix cores do with a score.
    fn scores(&self) -> Scores<'_> {
        Scores {
            mask: self.mask.as_ref(),
            bias: None,
            scale: self.scale,
            softcap: None,
            causal: self.options.causal,
            fill: self.options.fill,
            quiet: self.options.quiet,
            dropout: self.dropout(),
        }
    }

    /// What the gradient needs of each row: the base of the exponentials, and the reciprocal of
    /// their sum.
    fn sums(&self, query: &RocmTensor) -> hip::Result<RocmTensor> {
        let [batch, heads, queries, ..] = self.sizes;
        RocmTensor::empty(query.hip_device(), [batch, heads, queries, 2], compute_dtype(query.dtype_of()))
    }

    fn on(&self, cores: Cores, [query, key, value]: [&RocmTensor; 3]) -> hip::Result<Attended> {
        let [batch, heads, queries, ..] = self.sizes;
        let out = in_order_of(query, [batch, heads, queries, value.dims()[3]], is_writable)?;
        let sums = self.sums(query)?;
        cores.forward(self.op, [query, key, value], &self.scores(), &out, Some(&sums))?;
        Ok(Attended { out: out.clone(), kept: vec![out, sums] })
    }

    /// The gradients on matrix cores, written to `given` or to new tensors.
    fn on_backward(
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
        cores.backward(self.op, inputs, &self.scores(), read, found.each_ref().map(Option::as_ref))?;
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

    fn mask_size(&self) -> Arg {
        Arg::U32(self.mask.as_ref().map_or(1, RocmTensor::dtype_size) as u32)
    }

    /// The kernels' dropout arguments: seed, call, whether scores are dropped, the largest random
    /// word that drops a score, and the factor of the scores that stay.
    fn dropout(&self) -> [Arg; 5] {
        let dropout = self.options.dropout.filter(|dropout| dropout.prob > 0.0);
        let (seed, call, prob) = dropout.map_or((0, 0, 0.0), |d| (d.seed, d.call, d.prob));
        // A random word below prob * 2^32 drops its score.
        let words = (prob * 4294967296.0).round().max(1.0);
        let factor = if prob < 1.0 { 1.0 / (1.0 - prob) } else { 0.0 };
        [
            Arg::U64(seed),
            Arg::U64(call),
            Arg::U32(dropout.is_some() as u32),
            Arg::U32((words - 1.0) as u32),
            compute(factor.into(), self.ty),
        ]
    }

    fn compute(&self, value: f64) -> Arg {
        compute(value.into(), self.ty)
    }

    /// Whether nothing (mask, causality, dropout) stands between the scores and the softmax.
    fn is_plain(&self) -> bool {
        self.mask.is_none()
            && !self.options.causal
            && self.options.dropout.is_none_or(|dropout| dropout.prob == 0.0)
    }

    /// The scores' shape as an argument of the kernels over rows.
    fn shape(&self) -> Arg {
        let [batch, heads, queries, keys, _] = self.sizes.map(|n| n as i64);
        Arg::I64x4([batch * heads * queries, heads, queries, keys])
    }

    /// The weights, which overwrite the scores.
    fn weights(&self, query: RocmTensor, key: RocmTensor) -> hip::Result<RocmTensor> {
        let [batch, heads, queries, keys, _] = self.sizes;
        if self.is_plain()
            && let Some(joined) = Joined::of(self.op, &query, &key)?
        {
            return joined.softmax(self.scale, self.options.quiet);
        }
        let request = Request::new(self.op, self.scale);
        let scores = product(request, operand(query)?, transpose(operand(key)?)?)?;
        if scores.is_empty() {
            return Ok(scores);
        }
        if self.is_plain() && !self.options.quiet {
            self.by_rows(Template::masked_softmax_rows, &[&scores], &scores)?;
            return Ok(scores);
        }
        let mut scalars = vec![
            self.mask_size(),
            self.compute(self.options.fill),
            Arg::U32(self.options.causal as u32),
            Arg::U32(self.options.quiet as u32),
        ];
        scalars.extend(self.dropout());
        let kernel = Template::attention_weights.ty(self.ty);
        let device = scores.hip_device();
        let grid = device.grid_kept_rows(batch * heads * queries, keys);
        let dims = [self.shape(), strides(self.mask.as_ref())];
        views(self.op, device, kernel, grid, &dims, &[Some(&scores), self.mask.as_ref()], &scalars, &scores)?;
        Ok(scores)
    }

    /// A kernel over the rows of tensors shaped like the scores.
    fn by_rows(&self, kernel: Template, inputs: &[&RocmTensor], out: &RocmTensor) -> hip::Result<()> {
        let [batch, heads, queries, keys, _] = self.sizes;
        let (device, lines) = (out.hip_device(), batch * heads * queries);
        let dims = [Arg::U64(lines as u64), Arg::U64(keys as u64)];
        let kernel = kernel.ty(self.ty);
        rows(self.op, device, kernel, device.grid_kept_rows(lines, keys), &dims, inputs, &[], &[out])
    }

    /// The gradient with respect to the scores, written over `grad`, the weights' gradient.
    fn scores_backward(&self, weights: &RocmTensor, grad: RocmTensor) -> hip::Result<RocmTensor> {
        let [batch, heads, queries, keys, _] = self.sizes;
        let mut grad = packed(grad)?;
        let out = match grad.can_overwrite() {
            true => grad.clone(),
            false => grad.empty_like()?,
        };
        if out.is_empty() {
            return Ok(out);
        }
        if self.is_plain() {
            self.by_rows(Template::softmax_rows_backward, &[weights, &grad], &out)?;
            return Ok(out);
        }
        let device = grad.hip_device();
        let mut scalars = vec![self.mask_size()];
        scalars.extend(self.dropout());
        let kernel = Template::attention_weights_backward.ty(self.ty);
        let grid = device.grid_kept_rows(batch * heads * queries, keys);
        let dims = [self.shape(), strides(self.mask.as_ref())];
        let inputs = [Some(weights), Some(&grad), self.mask.as_ref()];
        views(self.op, device, kernel, grid, &dims, &inputs, &scalars, &out)?;
        Ok(out)
    }

    /// The gradients with respect to queries and keys from the scores' gradient, written to the
    /// given tensors.
    fn products(
        &self,
        [query, key]: [RocmTensor; 2],
        scores: RocmTensor,
        [by_query, by_key]: [Option<&RocmTensor>; 2],
    ) -> hip::Result<()> {
        let request = Request::gradient(self.op, self.scale);
        if let Some(place) = by_query {
            product_to(request, scores.clone(), operand(key)?, place)?;
        }
        if let Some(place) = by_key {
            product_to(request, transpose(scores)?, operand(query)?, place)?;
        }
        Ok(())
    }

    /// The shape arguments of the tiled kernels: the sizes, and the strides of `operands` and of
    /// the mask.
    fn tile_dims(&self, values: usize, operands: &[Option<&RocmTensor>]) -> Vec<Arg> {
        let [batch, heads, queries, keys, width] = self.sizes;
        let shape = [batch * heads, heads, queries, keys, width, values].map(|n| n as i64);
        [Arg::I64x6(shape)].into_iter().chain(operands.iter().map(|&t| strides(t))).collect()
    }

    fn tiled(&self, [query, key, value]: [&RocmTensor; 3]) -> hip::Result<Attended> {
        let [batch, heads, queries, _, _] = self.sizes;
        let (device, values) = (query.hip_device(), value.dims()[3]);
        let out = RocmTensor::empty(device, [batch, heads, queries, values], query.dtype_of())?;
        let sums = self.sums(query)?;
        let inputs = [Some(query), Some(key), Some(value), self.mask.as_ref(), None];
        let mut scalars = vec![
            self.compute(self.scale),
            self.compute(0.0),
            Arg::U32(self.options.causal as u32),
            self.mask_size(),
            self.compute(self.options.fill),
            Arg::U32(self.options.quiet as u32),
        ];
        scalars.extend(self.dropout());
        let grid = device.grid_rows(batch * heads * queries.div_ceil(TILE), usize::MAX);
        let kernel = Template::attention.ty(self.ty).int(2);
        let dims = self.tile_dims(values, &inputs);
        views_to(self.op, device, kernel, grid, &dims, &inputs, &scalars, &[Some(&out), Some(&sums)])?;
        Ok(Attended { out: out.clone(), kept: vec![out, sums] })
    }

    fn tiled_backward(
        &self,
        [query, key, value]: [&RocmTensor; 3],
        [out, sums]: [&RocmTensor; 2],
        grad: &RocmTensor,
        wanted: [bool; 3],
    ) -> hip::Result<[Option<RocmTensor>; 3]> {
        let [batch, heads, queries, keys, width] = self.sizes;
        let (device, values, pairs) = (query.hip_device(), value.dims()[3], batch * heads);
        let dots = RocmTensor::empty(device, [batch, heads, queries], compute_dtype(query.dtype_of()))?;
        let dims = [pairs * queries, heads, queries, values].map(|n| Arg::I64(n as i64));
        let dims: Vec<Arg> = dims.into_iter().chain([strides(Some(grad))]).collect();
        let kernel = Template::attention_dots.ty(self.ty);
        let grid = device.grid_rows(pairs * queries, values);
        views(self.op, device, kernel, grid, &dims, &[Some(out), Some(grad)], &[], &dots)?;
        let operands = [Some(query), Some(key), Some(value), Some(grad), self.mask.as_ref()];
        let dims = self.tile_dims(values, &operands);
        let inputs: Vec<Option<&RocmTensor>> =
            operands.into_iter().chain([Some(sums), Some(&dots)]).collect();
        let mut scalars = vec![
            self.compute(self.scale),
            self.compute(self.options.fill),
            Arg::U32(self.options.causal as u32),
            self.mask_size(),
        ];
        scalars.extend(self.dropout());
        let launch = |template: Template, length: usize, outputs: &[Option<&RocmTensor>]| {
            let grid = device.grid_rows(pairs * length.div_ceil(TILE), usize::MAX);
            let kernel = template.ty(self.ty);
            views_to(self.op, device, kernel, grid, &dims, &inputs, &scalars, outputs)
        };
        let like =
            |length, features| RocmTensor::empty(device, [batch, heads, length, features], query.dtype_of());
        let by_query = wanted[0].then(|| like(queries, width)).transpose()?;
        if let Some(by_query) = &by_query {
            launch(Template::attention_backward_queries, queries, &[Some(by_query)])?;
        }
        let (mut by_key, mut by_value) = (None, None);
        if wanted[1] || wanted[2] {
            let (k, v) = (like(keys, width)?, like(keys, values)?);
            launch(Template::attention_backward_keys, keys, &[Some(&k), Some(&v)])?;
            by_key = wanted[1].then_some(k);
            by_value = wanted[2].then_some(v);
        }
        Ok([by_query, by_key, by_value])
    }
}

/// `softmax(mask(dropout(scale * query key^T))) value`.
///
/// # Shapes
/// - `query`: `[batch, heads, queries, features]`
/// - `key`: `[batch, heads, keys, features]`
/// - `value`: `[batch, heads, keys, values]`
/// - `mask`: bools that broadcast to `[batch, heads, queries, keys]`; true hides a key
///
/// Operands are read without a copy, with one exception: [`Composed`](AttentionPath::Composed)
/// packs an operand whose heads are not equally spaced over all batches. The heads of tokens
/// `[sequence, batch, features]` are equally spaced, those of `[batch, sequence, features]` are
/// not.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit, if the probability is outside 0..=1, or if
/// [`AttentionPath::Tiled`] does not take the heads; `Unsupported` for integers; an error of the
/// device.
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
    product_to(Request::new(OP, 1.0), weights.clone(), operand(value)?, &out)?;
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
            let (grad, gradient) = (operand(grad)?, Request::gradient(BACKWARD, 1.0));
            if let Some(place) = by_value {
                product_to(gradient, transpose(weights.clone())?, grad.clone(), place)?;
            }
            if by_query.is_some() || by_key.is_some() {
                let joined = if call.is_plain() { Joined::of(BACKWARD, &grad, &value)? } else { None };
                let scores = match joined {
                    Some(joined) => joined.softmax_backward(weights)?,
                    None => {
                        let by_weights = product(gradient, grad, transpose(operand(value)?)?)?;
                        call.scores_backward(weights, by_weights)?
                    }
                };
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
