//! Scaled dot-product attention: one tiled kernel that keeps the scores on the chip, or a product,
//! masks, a softmax and a second product for heads that are too wide for the kernel's tiles.

use burn_std::DType;
use hip::{Device, Error as RocmError, Functor, Template};

use super::call::Path;
use super::cores::{Cores, Scores};
use super::in_f32::InF32;
use super::options::{AttentionDropout, AttentionInferenceOptions, check_softcap};
use super::sequences::Sequences;
use super::window::Window;
use super::{OP, TILE, expand, group_of, grouped_dims, has_tiled, least_queries, mask_size, strides};
use crate::arg::{Arg, compute};
use crate::error::invalid;
use crate::layout::broadcast_shape;
use crate::ops::binary::{binary, dense_map, scalar};
use crate::ops::copy::packed;
use crate::ops::launch::{rows, views_to};
use crate::ops::mask::{check_mask, mask_fill};
use crate::ops::matmul::{Request, matmul, product};
use crate::ops::unary::unary;
use crate::ops::view::{narrow, reshape, transpose};
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// `WIDEST` of `attention.hip`: the most features of a query, key or value that its tiles hold.
pub(super) const WIDEST: usize = 256;

/// A call with checked inputs. All have the same batch. Queries, mask and bias have the same heads,
/// and so have keys and values, each of which `group` heads of queries share.
struct Call {
    query: RocmTensor,
    key: RocmTensor,
    value: RocmTensor,
    mask: Option<RocmTensor>,
    bias: Option<RocmTensor>,
    scale: f64,
    softcap: Option<f64>,
    group: usize,
    window: Window,
}

/// `softmax(window(mask(softcap(scale * query key^T)) + bias)) value`, without a gradient. Causality
/// and the window hide keys whatever their scores and biases are, NaN included. A query whose keys are
/// all hidden gives zeros.
///
/// # Shapes
/// - `query`: `[batch, heads, queries, features]`
/// - `key`: `[batch, key heads, keys, features]`; the heads of keys divide those of queries, and head
///   `h` of the queries sees head `h / (heads / key heads)` of the keys, as in Llama
/// - `value`: `[batch, key heads, keys, values]`
/// - `mask`: bools that broadcast to `[batch, heads, queries, keys]`; true hides a key
/// - `bias`: floats that broadcast to the same shape
/// - output: `[batch, heads, queries, values]`
///
/// Batches broadcast, and so does one head of queries.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit, if the heads of keys do not divide those of
/// queries, or if the window is 0 or the softcap is not above 0; `Unsupported` for integers; an error
/// of the device.
pub fn attention_inference(
    query: RocmTensor,
    key: RocmTensor,
    value: RocmTensor,
    mask: Option<RocmTensor>,
    bias: Option<RocmTensor>,
    options: &AttentionInferenceOptions,
) -> Result<RocmTensor, RocmError> {
    let call = Call::new(query, key, value, mask, bias, options)?;
    match call.path()? {
        Path::Cores(cores) => call.on(cores),
        Path::Tiled => call.tiled(),
        Path::Composed => call.composed(),
    }
}

/// The implementation of attention without a gradient, for these numbers of queries and keys and
/// heads of at most `widest` features, and why it is not the one before it in [`Path`].
pub(crate) fn path(
    device: &Device,
    dtype: DType,
    [queries, keys]: [usize; 2],
    widest: usize,
) -> hip::Result<(Path, &'static str)> {
    if queries < least_queries(device) {
        return Ok((Path::Composed, "fewer than 32 queries"));
    }
    // The kernels count in 32 bits.
    if queries.max(keys) > i32::MAX as usize {
        return Ok((Path::Composed, "sequences of 2^31 or more"));
    }
    let why = match Cores::of(device, dtype, widest, false)? {
        Ok(cores) => return Ok((Path::Cores(cores), "")),
        Err(why) => why,
    };
    let tiled = widest <= WIDEST && has_tiled(device);
    Ok((if tiled { Path::Tiled } else { Path::Composed }, why))
}

impl Call {
    fn new(
        query: RocmTensor,
        key: RocmTensor,
        value: RocmTensor,
        mask: Option<RocmTensor>,
        bias: Option<RocmTensor>,
        options: &AttentionInferenceOptions,
    ) -> hip::Result<Self> {
        let named = [(Some(&query), "query"), (Some(&key), "key"), (Some(&value), "value")];
        let optional = [(mask.as_ref(), "mask"), (bias.as_ref(), "bias")];
        for (tensor, name) in named.into_iter().chain(optional) {
            let Some(tensor) = tensor else { continue };
            one_device(OP, &[&query, tensor])?;
            if tensor.dims().len() != 4 {
                return invalid(OP, format!("a {name} of rank 4"), format!("{:?}", tensor.dims()));
            }
        }
        one_dtype(OP, &[&query, &key, &value])?;
        if let Some(bias) = &bias {
            one_dtype(OP, &[&query, bias])?;
        }
        if let Some(mask) = &mask {
            check_mask(OP, mask)?;
        }
        check_softcap(OP, options.softcap, query.dtype_of())?;
        let (width, keys) = (query.dims()[3], key.dims()[2]);
        if width == 0 || key.dims()[3] != width {
            let found = format!("{:?} and {:?}", query.dims(), key.dims());
            return invalid(OP, "queries and keys with the same number of features, at least 1", found);
        }
        if value.dims()[2] != keys {
            return invalid(OP, format!("{keys} values, one for each key"), format!("{:?}", value.dims()));
        }
        let queries = query.dims()[2];
        let batch = broadcast_shape(OP, &query.dims()[..1], &key.dims()[..1])?;
        let batch = broadcast_shape(OP, batch.as_slice(), &value.dims()[..1])?[0];
        let key_heads = broadcast_shape(OP, &key.dims()[1..2], &value.dims()[1..2])?[0];
        let heads = if query.dims()[1] == 1 { key_heads } else { query.dims()[1] };
        let key_heads = if heads == 0 && key_heads == 1 { 0 } else { key_heads };
        let Some(group) = group_of(heads, key_heads) else {
            let expected = format!("heads of keys and values that divide {heads} heads of queries");
            return invalid(OP, expected, format!("{:?} and {:?}", key.dims(), value.dims()));
        };
        let over = |tensor: RocmTensor, heads: usize| {
            let shape = [batch, heads, tensor.dims()[2], tensor.dims()[3]];
            expand(tensor, &shape)
        };
        let scores = [batch, heads, queries, keys];
        let over_scores =
            |tensor: Option<RocmTensor>| tensor.map(|tensor| expand(tensor, &scores)).transpose();
        let window = Window::new(OP, options.causal, options.window, [queries, keys])?;
        // Keys at the start that no query sees, as in decoding with a cache.
        let unseen = window.unseen(queries, keys);
        let seen = |tensor: RocmTensor, axis: usize| match unseen {
            0 => Ok(tensor),
            _ => narrow(tensor, axis, unseen, keys - unseen),
        };
        let seen_scores = |tensor: Option<RocmTensor>| tensor.map(|tensor| seen(tensor, 3)).transpose();
        Ok(Self {
            scale: options.scale.unwrap_or(1.0 / (width as f64).sqrt()),
            softcap: options.softcap,
            group,
            window: Window::new(OP, options.causal, options.window, [queries, keys - unseen])?,
            mask: seen_scores(over_scores(mask)?)?,
            bias: seen_scores(over_scores(bias)?)?,
            query: over(query, heads)?,
            key: seen(over(key, key_heads)?, 2)?,
            value: seen(over(value, key_heads)?, 2)?,
        })
    }

    /// The implementation of this call. Tells the summary if 16-bit operands don't go to matrix
    /// cores.
    fn path(&self) -> hip::Result<Path> {
        let (device, dtype) = (self.query.hip_device(), self.query.dtype_of());
        let [queries, keys] = [&self.query, &self.key].map(|tensor| tensor.dims()[2]);
        let widest = self.query.dims()[3].max(self.value.dims()[3]);
        let (path, why) = path(device, dtype, [queries, keys], widest)?;
        if dtype.size() == 2 && !matches!(path, Path::Cores(_)) {
            hip::trace::fell_back(|| format!("not on matrix cores: {why}"));
        }
        Ok(path)
    }

    /// Computes the call on matrix cores.
    fn on(self, cores: Cores) -> hip::Result<RocmTensor> {
        let &[batch, heads, queries, _] = self.query.dims() else {
            return invalid(OP, "rank 4", format!("{:?}", self.query.dims()));
        };
        let dims = [batch, heads, queries, self.value.dims()[3]];
        let out = RocmTensor::empty(self.query.hip_device(), dims, self.query.dtype_of())?;
        if out.is_empty() {
            return Ok(out);
        }
        let scores = Scores {
            mask: self.mask.as_ref(),
            bias: self.bias.as_ref(),
            scale: self.scale,
            softcap: self.softcap,
            window: self.window,
            fill: f64::NEG_INFINITY,
            quiet: false,
            dropout: AttentionDropout::args(None, self.query.kernel_type()?),
        };
        let inputs = [&self.query, &self.key, &self.value];
        cores.forward(OP, inputs, &Sequences::Padded, &scores, &out, None)?;
        Ok(out)
    }

    /// Computes the call with the tiled kernel, which reads views without a copy.
    fn tiled(self) -> hip::Result<RocmTensor> {
        let ty = self.query.kernel_type()?;
        let &[batch, heads, queries, width] = self.query.dims() else {
            return invalid(OP, "rank 4", format!("{:?}", self.query.dims()));
        };
        let (keys, values) = (self.key.dims()[2], self.value.dims()[3]);
        let device = self.query.hip_device();
        let out = RocmTensor::empty(device, [batch, heads, queries, values], self.query.dtype_of())?;
        if out.is_empty() {
            return Ok(out);
        }
        let shape = Sequences::Padded.shape([batch, heads, queries, keys, width], values, self.group);
        let masked = self.mask.is_some() || self.bias.is_some();
        let operands = [&self.query, &self.key, &self.value];
        if let Some(kernel) = InF32::of(operands)?.filter(|_| !masked && self.softcap.is_none()) {
            kernel.launch(OP, shape, (self.scale, self.window), &out, None)?;
            return Ok(out);
        }
        let [query, key, value] = operands.map(Some);
        let inputs = [query, key, value, self.mask.as_ref(), self.bias.as_ref(), None];
        let dims: Vec<Arg> =
            [shape].into_iter().chain(inputs[..5].iter().map(|&input| strides(input))).collect();
        let mut scalars = vec![
            compute(self.scale.into(), ty),
            compute(self.softcap.unwrap_or(0.0).into(), ty),
            self.window.arg(),
            mask_size(self.mask.as_ref()),
        ];
        let grid = device.grid_rows(batch * heads * queries.div_ceil(TILE), usize::MAX);
        let kernel = Template::attention.ty(ty).int(masked.into());
        // Arguments that only the training kernel reads: fill, quiet, and those of dropout.
        scalars.extend([compute(0.0.into(), ty), Arg::U32(0)]);
        scalars.extend(AttentionDropout::args(None, ty));
        views_to(OP, device, kernel, grid, &dims, &inputs, &scalars, &[Some(&out), None])?;
        Ok(out)
    }

    /// Computes the call with rocBLAS and one kernel for each step, with the scores in memory.
    fn composed(self) -> hip::Result<RocmTensor> {
        let request = Request::new(OP, self.scale);
        let &[batch, heads, queries, _] = self.query.dims() else {
            return invalid(OP, "rank 4", format!("{:?}", self.query.dims()));
        };
        let (keys, values, group) = (self.key.dims()[2], self.value.dims()[3], self.group);
        // The heads of a group are rows of one matrix.
        let rows = |tensor: RocmTensor| match group {
            1 => Ok(tensor),
            _ => reshape(tensor.clone(), &grouped_dims(tensor.dims(), group)),
        };
        let heads_of = |tensor: RocmTensor, columns: usize| match group {
            1 => Ok(tensor),
            _ => reshape(tensor, &[batch, heads, queries, columns]),
        };
        let scores = product(request, rows(self.query)?, transpose(self.key)?)?;
        let mut scores = heads_of(scores, keys)?;
        if let Some(softcap) = self.softcap {
            // The softcap comes before any masking, because tanh would turn -inf into a finite
            // number.
            scores = scalar(OP, Functor::Div, scores, softcap.into())?;
            scores = scalar(OP, Functor::Mul, unary(OP, Functor::Tanh, scores)?, softcap.into())?;
        }
        if let Some(mask) = self.mask {
            scores = mask_fill(OP, scores, mask, f64::NEG_INFINITY.into())?;
        }
        if let Some(bias) = self.bias {
            scores = binary(OP, Functor::Add, scores, bias)?;
        }
        // Last, so that no mask and no bias counts outside the window.
        if self.window.hides() {
            scores = within(self.window, scores)?;
        }
        heads_of(matmul(OP, rows(masked_softmax(scores)?)?, self.value)?, values)
    }
}

/// The softmax along the last axis. A row that holds only -inf becomes zeros.
fn masked_softmax(scores: RocmTensor) -> hip::Result<RocmTensor> {
    let kernel = Template::masked_softmax_rows.ty(scores.kernel_type()?);
    let scores = packed(scores)?;
    let out = scores.empty_like()?;
    if !out.is_empty() {
        let len = scores.dims()[3];
        let lines = scores.len() / len;
        let device = scores.hip_device();
        let dims = [Arg::U64(lines as u64), Arg::U64(len as u64)];
        rows(OP, device, kernel, device.grid_kept_rows(lines, len), &dims, &[&scores], &[], &[&out])?;
    }
    Ok(out)
}

/// Sets scores of keys outside their query's window to -inf.
fn within(window: Window, scores: RocmTensor) -> hip::Result<RocmTensor> {
    let kernel = Template::attention_window.ty(scores.kernel_type()?);
    dense_map(OP, packed(scores)?, |scores, out| {
        let (queries, keys) = (scores.dims()[2], scores.dims()[3]);
        let lines = scores.len() / keys;
        let device = scores.hip_device();
        let dims = [Arg::U64(lines as u64), Arg::U32(queries as u32), Arg::U32(keys as u32), window.arg()];
        rows(OP, device, kernel, device.grid_rows(lines, keys), &dims, &[scores], &[], &[out])
    })
}
