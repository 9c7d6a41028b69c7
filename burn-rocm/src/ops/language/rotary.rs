//! Rotary position embedding of the heads of packed queries, keys and values, with the norms of
//! queries and keys.

use burn_std::DType;
use hip::{Error as RocmError, Grid, Template};

use super::residual_norm::RmsOptions;
use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::views_to;
use crate::ops::norm::{check_rows, sum_partials};
use crate::ops::view::{narrow, permute, reshape};
use crate::tensor::{RocmTensor, float_type, one_device, one_dtype};

const OP: &str = "rotary";
const BACKWARD: &str = "rotary_backward";

/// `MOST_PAIRS` of `rotary.h`: the most pairs of features of a head that are rotated.
pub const MOST_PAIRS: usize = 256;

/// Where a call's tokens are in their sequences. Ints of 32 or 64 bits; the host never reads them.
#[derive(Clone, Debug)]
pub enum RotaryPositions {
    /// Every sequence begins at position 0.
    FromZero,
    /// The position of each sequence's first token, `[batch]`. The others follow.
    Starts(RocmTensor),
    /// The position of each token, `[batch, length]`.
    Each(RocmTensor),
}

/// A rotary embedding of the heads of queries and keys ([Su et al.
/// 2021](https://arxiv.org/abs/2104.09864)).
#[derive(Clone, Debug)]
pub struct Rotary {
    /// The heads of queries.
    pub heads: usize,
    /// The heads of keys, and those of values.
    pub kv_heads: usize,
    /// Radians per position of each pair of features, f32 `[pairs]`. A head's features from `2 *
    /// pairs` on are not rotated.
    pub frequencies: RocmTensor,
    /// The factor of cosines and sines (YaRN's attention factor), else 1.
    pub factor: f64,
    /// Whether features `2 p` and `2 p + 1` are a pair, instead of `p` and `pairs + p`.
    pub interleaved: bool,
    /// Where the tokens are.
    pub positions: RotaryPositions,
    /// What the norms of queries and keys have in common, if there are norms.
    pub norms: RmsOptions,
}

/// The gradients of [`rotary`].
#[derive(Clone, Debug)]
pub struct RotaryGradients {
    /// With respect to the packed queries, keys and values.
    pub x: RocmTensor,
    /// With respect to the weights of the norms of queries and keys, if asked for.
    pub norms: Option<[RocmTensor; 2]>,
}

/// The sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    length: usize,
    width: usize,
    pairs: usize,
}

/// How a launch shares the work.
struct Shares {
    grid: Grid,
    parts: usize,
    team: usize,
    whole: bool,
}

impl Rotary {
    /// Checks the options for packed heads of this shape and device.
    fn sizes(&self, op: &'static str, dims: &[usize], like: &RocmTensor) -> hip::Result<Sizes> {
        let all = self.heads + 2 * self.kv_heads;
        let &[batch, length, features] = dims else {
            return invalid(op, "packed heads [batch, length, features]", format!("{dims:?}"));
        };
        if self.heads == 0 || self.kv_heads == 0 || features == 0 || !features.is_multiple_of(all) {
            let expected = format!("features that {} + 2 * {} heads share", self.heads, self.kv_heads);
            return invalid(op, expected, features.to_string());
        }
        let width = features / all;
        let frequencies = &self.frequencies;
        one_device(op, &[like, frequencies])?;
        let &[pairs] = frequencies.dims() else {
            return invalid(op, "frequencies of rank 1", format!("{:?}", frequencies.dims()));
        };
        if frequencies.dtype_of() != DType::F32 {
            return invalid(op, "frequencies in f32", frequencies.dtype_of().name());
        }
        if pairs > MOST_PAIRS || 2 * pairs > width {
            let expected = format!("at most {} frequencies for heads of {width}", MOST_PAIRS.min(width / 2));
            return invalid(op, expected, pairs.to_string());
        }
        let (positions, shape) = match &self.positions {
            RotaryPositions::FromZero => return Ok(Sizes { batch, length, width, pairs }),
            RotaryPositions::Starts(starts) => (starts, vec![batch]),
            RotaryPositions::Each(positions) => (positions, vec![batch, length]),
        };
        one_device(op, &[like, positions])?;
        if !matches!(positions.dtype_of(), DType::I32 | DType::I64) {
            return invalid(op, "positions in i32 or i64", positions.dtype_of().name());
        }
        if positions.dims() != shape {
            return invalid(op, format!("positions {shape:?}"), format!("{:?}", positions.dims()));
        }
        Ok(Sizes { batch, length, width, pairs })
    }

    fn positions(&self) -> Option<&RocmTensor> {
        match &self.positions {
            RotaryPositions::FromZero => None,
            RotaryPositions::Starts(positions) | RotaryPositions::Each(positions) => Some(positions),
        }
    }

    /// `Sizes` and `Places` of `rotary.h`.
    fn dims(&self, sizes: Sizes, shares: &Shares) -> Vec<Arg> {
        let Sizes { batch, length, width, pairs } = sizes;
        let tokens = batch * length;
        let sizes = [tokens, shares.parts, shares.team, length, self.heads, self.kv_heads, width, pairs];
        let wide = self.positions().is_some_and(|positions| positions.dtype_of() == DType::I64);
        let (strides, step) = match &self.positions {
            RotaryPositions::FromZero => ([0, 0], 1),
            RotaryPositions::Starts(starts) => ([starts.layout().strides()[0], 0], 1),
            RotaryPositions::Each(each) => ([each.layout().strides()[0], each.layout().strides()[1]], 0),
        };
        let places = [i64::from(wide), strides[0] as i64, strides[1] as i64, step];
        vec![Arg::U64x8(sizes.map(|n| n as u64)), Arg::I64x4(places)]
    }

    /// How a launch shares the work; `whole`: whether rows consist of pieces.
    fn shares(&self, x: &RocmTensor, sizes: Sizes, whole: bool) -> hip::Result<Shares> {
        let device = x.hip_device();
        let tokens = sizes.batch * sizes.length;
        let turned = self.heads + self.kv_heads;
        let threads = device.block_threads() as usize;
        let most = (device.info().warp_size as usize).min(threads);
        // `TOGETHER` of `rotary.h`: the pairs that a thread takes at a time.
        let together = 16 / compute_dtype(x.dtype_of()).size();
        let team_of = |each: usize| sizes.pairs.div_ceil(each).max(1).next_power_of_two();
        let whole = whole && 2 * sizes.pairs == sizes.width && team_of(together) <= most && threads > 1;
        let team = team_of(if whole { together } else { 1 }).min(most);
        // One block for each token, or several where tokens alone would leave the device idle.
        let teams = threads / team;
        let wanted = (4 * device.info().compute_units as usize).div_ceil(tokens.max(1));
        let parts = wanted.clamp(1, turned.div_ceil(teams));
        if u32::try_from(tokens * parts).is_err() {
            return invalid(OP, "fewer than 2^32 tokens", tokens.to_string());
        }
        let grid = device.grid_rows(tokens * parts, turned.div_ceil(parts) * team);
        Ok(Shares { grid, parts, team, whole })
    }

    /// `FORM` of `rotary.h`.
    fn form(&self, shares: &Shares) -> i32 {
        i32::from(self.interleaved) + 2 * i32::from(shares.whole)
    }
}

/// The elements of a piece of 16 bytes.
fn lanes(tensor: &RocmTensor) -> usize {
    16 / tensor.dtype_size()
}

/// Whether a packed row of heads consists of pieces of 16 bytes, in each half of the rotated
/// features too.
fn in_pieces(tensor: &RocmTensor, sizes: Sizes) -> bool {
    let lanes = lanes(tensor);
    sizes.width.is_multiple_of(lanes)
        && sizes.pairs.is_multiple_of(lanes)
        && tensor.byte_offset().is_multiple_of(16)
}

/// Checks the norms' weights.
fn check_norms(op: &'static str, x: &RocmTensor, norms: &[RocmTensor; 2], width: usize) -> hip::Result<()> {
    let head = narrow(x.clone(), 2, 0, width)?;
    for weight in norms {
        check_rows(op, &head, weight)?;
    }
    one_dtype(op, &[&norms[0], &norms[1]]).map(|_| ())
}

/// Rotates the queries and keys of packed heads, after the RMS norms of each head's queries and
/// keys if there are `norms` (their weights). Values stay as they are. [`rotary_heads`] gives
/// queries, keys and values as views of the result.
///
/// Overwrites `x` if it has no other owner, and then values are neither read nor written.
///
/// The angle of a pair is its frequency times the position, rounded to f32 (f64 for f64). Its
/// cosine and sine are within `2^-23` of those of this angle.
///
/// # Shapes
/// - `x`, result: `[batch, length, (heads + 2 kv_heads) * head_dim]`: a token's queries, its keys,
///   then its values
/// - `norms`: `[head_dim]` each, of the dtype of `x`, or f32 with an `x` of f16 or bf16
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers; an error of the
/// device.
pub fn rotary(
    x: RocmTensor,
    norms: Option<[RocmTensor; 2]>,
    options: &Rotary,
) -> Result<RocmTensor, RocmError> {
    let Operands { mut x, norms, sizes } = Operands::of(x, norms, options)?;
    let out = if x.can_overwrite() { x.clone() } else { x.empty_like()? };
    if out.is_empty() {
        return Ok(out);
    }
    let device = out.hip_device();
    let frequencies = packed(options.frequencies.clone())?;
    let shares = options.shares(&x, sizes, in_pieces(&x, sizes))?;
    let [query, key] = both(&norms);
    let parameters = query.unwrap_or(&x).kernel_type()?;
    let kernel = Template::rotary.ty(x.kernel_type()?).ty(parameters).int(options.form(&shares));
    let inputs = [options.positions(), Some(&x), query, key, Some(&frequencies)];
    let dims = options.dims(sizes, &shares);
    views_to(OP, device, kernel, shares.grid, &dims, &inputs, &scalars(options), &[Some(&out)])?;
    Ok(out)
}

/// The packed heads and the norms' weights of a rotation, checked and contiguous.
struct Operands {
    x: RocmTensor,
    norms: Option<[RocmTensor; 2]>,
    sizes: Sizes,
}

impl Operands {
    fn of(x: RocmTensor, norms: Option<[RocmTensor; 2]>, options: &Rotary) -> hip::Result<Self> {
        float_type(OP, &x)?;
        let sizes = options.sizes(OP, x.dims(), &x)?;
        let x = packed(x)?;
        let norms = match norms {
            Some(norms) => {
                check_norms(OP, &x, &norms, sizes.width)?;
                let [query, key] = norms;
                Some([packed(query)?, packed(key)?])
            }
            None => None,
        };
        Ok(Self { x, norms, sizes })
    }
}

/// What a kernel that rotates heads for a cache takes, beside the cache's operands.
pub(crate) struct Rotated {
    /// The packed heads `[batch, length, (heads + 2 kv_heads) * width]`, contiguous.
    pub(crate) x: RocmTensor,
    norms: Option<[RocmTensor; 2]>,
    frequencies: RocmTensor,
    /// `Sizes` and `Places` of `rotary.h`.
    pub(crate) dims: Vec<Arg>,
    /// The factor of cosines and sines, the epsilon and the shift of the norms.
    pub(crate) scalars: [Arg; 3],
    /// `FORM` of `rotary.h`.
    pub(crate) form: i32,
    /// Whether the form has `WHOLE`.
    pub(crate) whole: bool,
    grid: Grid,
}

impl Rotated {
    /// Checks the operands as [`rotary`] does.
    pub(crate) fn new(x: RocmTensor, norms: Option<[RocmTensor; 2]>, options: &Rotary) -> hip::Result<Self> {
        let Operands { x, norms, sizes } = Operands::of(x, norms, options)?;
        // A page's vectors begin at multiples of 16 bytes.
        let shares = options.shares(&x, sizes, in_pieces(&x, sizes))?;
        Ok(Self {
            frequencies: packed(options.frequencies.clone())?,
            dims: options.dims(sizes, &shares),
            scalars: scalars(options),
            form: options.form(&shares),
            grid: shares.grid,
            whole: shares.whole,
            norms,
            x,
        })
    }

    /// The type of the norms' weights.
    pub(crate) fn parameters(&self) -> hip::Result<hip::DType> {
        match &self.norms {
            Some([query, _]) => query.kernel_type(),
            None => self.x.kernel_type(),
        }
    }

    /// The kernels' `positions`, `x`, `query_norm`, `key_norm` and `frequency`.
    pub(crate) fn inputs<'a>(&'a self, options: &'a Rotary) -> [Option<&'a RocmTensor>; 5] {
        let [query, key] = both(&self.norms);
        [options.positions(), Some(&self.x), query, key, Some(&self.frequencies)]
    }

    /// Launches `rotary_append` with the cache's sizes and tables; stores queries in `outputs[0]`, and
    /// keys and values in the pages after it.
    pub(crate) fn append(
        &self,
        op: &'static str,
        options: &Rotary,
        paged: Arg,
        tables: [&RocmTensor; 3],
        flag: Arg,
        outputs: [&RocmTensor; 3],
    ) -> hip::Result<()> {
        let inputs: Vec<_> = self.inputs(options).into_iter().chain(tables.map(Some)).collect();
        let dims: Vec<Arg> = self.dims.iter().copied().chain([paged]).collect();
        let scalars: Vec<Arg> = self.scalars.into_iter().chain([flag]).collect();
        let kernel = Template::rotary_append.ty(self.x.kernel_type()?).ty(self.parameters()?).int(self.form);
        let device = self.x.hip_device();
        views_to(op, device, kernel, self.grid, &dims, &inputs, &scalars, &outputs.map(Some))
    }
}

fn both(norms: &Option<[RocmTensor; 2]>) -> [Option<&RocmTensor>; 2] {
    match norms {
        Some([query, key]) => [Some(query), Some(key)],
        None => [None, None],
    }
}

fn scalars(options: &Rotary) -> [Arg; 3] {
    [options.factor, options.norms.epsilon, options.norms.shift].map(Arg::F64)
}

/// The queries, keys and values of packed heads, as views. In memory a token's heads lie side by
/// side, so attention's result has its features in this order too.
///
/// # Shapes
/// - `all`: as the result of [`rotary`]
/// - results: `[batch, heads, length, head_dim]`, and twice `[batch, kv_heads, length, head_dim]`
///
/// # Errors
/// `Invalid` if the heads don't share the features.
pub fn rotary_heads(all: RocmTensor, heads: usize, kv_heads: usize) -> Result<[RocmTensor; 3], RocmError> {
    let total = heads + 2 * kv_heads;
    let width = match all.dims() {
        &[_, _, features] if total > 0 && features.is_multiple_of(total) => features / total,
        other => {
            let expected = format!("[batch, length, features that {heads} + 2 * {kv_heads} heads share]");
            return invalid(OP, expected, format!("{other:?}"));
        }
    };
    let (batch, length) = (all.dims()[0], all.dims()[1]);
    let all = reshape(all, &[batch, length, total, width])?;
    let part = |first, count| permute(narrow(all.clone(), 2, first, count)?, &[0, 2, 1, 3]);
    Ok([part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?])
}

/// The gradients of [`rotary`] and [`rotary_heads`] together, from those of queries, keys and
/// values; one that is missing is 0. `x` and `norms` are the inputs. Without norms the gradient
/// does not depend on `x`, and only its shape counts.
///
/// # Shapes
/// - `grads`: as the results of [`rotary_heads`], in any layout
/// - `shape`: that of `x`
///
/// # Errors
/// As for [`rotary`], and `Invalid` if all gradients are missing, if one has another shape or
/// dtype, or if there are norms and no `x`.
pub fn rotary_backward(
    x: Option<RocmTensor>,
    norms: Option<[RocmTensor; 2]>,
    grads: [Option<RocmTensor>; 3],
    shape: [usize; 3],
    by_norms: bool,
    options: &Rotary,
) -> Result<RotaryGradients, RocmError> {
    let Some(like) = grads.iter().flatten().next() else {
        return invalid(BACKWARD, "a gradient of queries, keys or values", "none");
    };
    float_type(BACKWARD, like)?;
    for tensor in grads.iter().flatten().chain(&x) {
        one_device(BACKWARD, &[like, tensor])?;
    }
    let sizes = options.sizes(BACKWARD, &shape, like)?;
    let (dtype, device) = (like.dtype_of(), like.hip_device().clone());
    let mut whole = true;
    let mut of = [None, None, None];
    for (place, (grad, heads)) in
        of.iter_mut().zip(grads.into_iter().zip([options.heads, options.kv_heads, options.kv_heads]))
    {
        let Some(grad) = grad else { continue };
        let expected = [sizes.batch, heads, sizes.length, sizes.width];
        if grad.dims() != expected || grad.dtype_of() != dtype {
            let found = format!("{:?} of {}", grad.dims(), grad.dtype_of().name());
            return invalid(BACKWARD, format!("a gradient {expected:?} of {}", dtype.name()), found);
        }
        let neighbours = grad.dims()[3] == 1 || grad.layout().strides()[3] == 1;
        let grad = if neighbours { grad } else { packed(grad)? };
        let lanes = lanes(&grad);
        let strides = grad.layout().strides();
        whole &= grad.byte_offset().is_multiple_of(16)
            && (0..3).all(|axis| expected[axis] == 1 || strides[axis].unsigned_abs().is_multiple_of(lanes));
        *place = Some(grad);
    }
    let [by_query, by_key, by_value] = &of;
    let (x, norms) = match norms {
        Some([query, key]) => {
            let Some(x) = x.filter(|x| x.dims() == shape && x.dtype_of() == dtype) else {
                return invalid(
                    BACKWARD,
                    format!("the input {shape:?} of {}", dtype.name()),
                    "another or none",
                );
            };
            let norms = [packed(query)?, packed(key)?];
            check_norms(BACKWARD, &x, &norms, sizes.width)?;
            (Some(packed(x)?), Some(norms))
        }
        None => (None, None),
    };
    let out = RocmTensor::empty(&device, shape, dtype)?;
    whole &= in_pieces(&out, sizes) && x.as_ref().is_none_or(|x| in_pieces(x, sizes));
    let [query, key] = both(&norms);
    let given = query.map(RocmTensor::dtype_of).filter(|_| by_norms);
    if out.is_empty() {
        let zeros = |given| full_on(&device, [sizes.width], 0i64.into(), given);
        let norms = given.map(|given| Ok::<_, RocmError>([zeros(given)?, zeros(given)?])).transpose()?;
        return Ok(RotaryGradients { x: out, norms });
    }
    let computed = compute_dtype(dtype);
    let mut shares = options.shares(&out, sizes, whole)?;
    // As many blocks each for queries, keys and values.
    let mut blocks = shares.grid.blocks;
    if given.is_some() {
        // Each team writes its part of the weights' gradients, so there are no more than fit the
        // device at once.
        blocks = blocks.min(4 * device.info().compute_units.max(1));
    }
    shares.grid.blocks = 3 * blocks.min(u32::MAX / 3);
    let teams = shares.grid.blocks as usize / 3 * (shares.grid.threads as usize / shares.team);
    let partial = given.map(|_| RocmTensor::empty(&device, [2, teams, sizes.width], computed)).transpose()?;
    let frequencies = packed(options.frequencies.clone())?;
    let kernel = Template::rotary_backward
        .ty(out.kernel_type()?)
        .ty(query.unwrap_or(&out).kernel_type()?)
        .int(options.form(&shares));
    let mut dims = options.dims(sizes, &shares);
    dims.extend([by_query, by_key, by_value].map(|grad| strides(grad.as_ref())));
    let inputs = [
        options.positions(),
        by_query.as_ref(),
        by_key.as_ref(),
        by_value.as_ref(),
        x.as_ref(),
        query,
        key,
        Some(&frequencies),
    ];
    let outputs = [Some(&out), partial.as_ref()];
    views_to(BACKWARD, &device, kernel, shares.grid, &dims, &inputs, &scalars(options), &outputs)?;
    let norms = match (given, partial) {
        (Some(given), Some(partial)) => {
            let sums = sum_partials(BACKWARD, &partial, given)?;
            let of = |at| reshape(narrow(sums.clone(), 0, at, 1)?, &[sizes.width]);
            Some([of(0)?, of(1)?])
        }
        _ => None,
    };
    Ok(RotaryGradients { x: out, norms })
}

/// `Strides` of `rotary.hip`.
fn strides(tensor: Option<&RocmTensor>) -> Arg {
    Arg::I64x4(std::array::from_fn(|axis| tensor.map_or(0, |t| t.layout().strides()[axis] as i64)))
}
