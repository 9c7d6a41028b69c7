//! Attention of sequences of different lengths in one batch, without padding: they lie one after the
//! other along the rows ("packed", FlashAttention's "varlen").

use hip::Error as RocmError;

use super::call::{self, Call};
use super::cores::Cores;
use super::has_tiled;
use super::inference;
use super::options::{Attended, AttentionInferenceOptions, AttentionOptions, AttentionPath, check_softcap};
use super::sequences::Sequences;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::view::{permute, reshape};
use crate::tensor::RocmTensor;

const OP: &str = "attention_packed";
const BACKWARD: &str = "attention_packed_backward";

/// Where the sequences of packed attention begin. Both tensors are `[sequences + 1]` of dtype I32 or
/// I64. They ascend from 0 to the number of rows. Sequence `i` has the rows
/// `offsets[i]..offsets[i + 1]`, which may be none.
#[derive(Clone, Debug)]
pub struct PackedOffsets {
    /// The offsets of the queries.
    pub queries: RocmTensor,
    /// The offsets of the keys and values.
    pub keys: RocmTensor,
}

impl From<RocmTensor> for PackedOffsets {
    /// The offsets of self-attention: queries and keys have the same.
    fn from(offsets: RocmTensor) -> Self {
        Self { queries: offsets.clone(), keys: offsets }
    }
}

/// The implementation of a call.
enum Path {
    Cores(Cores),
    Tiled,
}

/// `[rows, heads, features]` as `[1, heads, rows, features]`.
fn heads_first(op: &'static str, tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let &[rows, heads, features] = tensor.dims() else {
        return invalid(op, "operands [rows, heads, features]", format!("{:?}", tensor.dims()));
    };
    permute(reshape(tensor, &[1, rows, heads, features])?, &[0, 2, 1, 3])
}

/// `[1, heads, rows, features]` as `[rows, heads, features]`.
fn rows_first(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let dims = tensor.dims().to_vec();
    reshape(permute(tensor, &[0, 2, 1, 3])?, &[dims[2], dims[1], dims[3]])
}

impl<'a> Call<'a> {
    /// A call with packed sequences, its operands as `[1, heads, rows, features]`, and its offsets,
    /// which a kernel checks.
    fn of_packed(
        op: &'static str,
        inputs: [RocmTensor; 3],
        offsets: &PackedOffsets,
        options: &'a AttentionOptions,
    ) -> hip::Result<(Self, [RocmTensor; 3])> {
        let [query, key, value] = inputs;
        let (query, key) = (heads_first(op, query)?, heads_first(op, key)?);
        let value = heads_first(op, value)?;
        let mut call = Self::new(op, &query, &key, None, options)?;
        call.check_value(&query, &value)?;
        if options.path == AttentionPath::Composed {
            return invalid(op, "AttentionPath::Auto or AttentionPath::Tiled", "AttentionPath::Composed");
        }
        let offsets = [&offsets.queries, &offsets.keys];
        let [_, _, queries, keys, _] = call.sizes;
        call.sequences = Sequences::packed(op, &query, offsets, [queries, keys])?;
        Ok((call, [query, key, value]))
    }

    /// The implementation of this call. Tells the summary if 16-bit operands don't go to matrix
    /// cores.
    fn packed_path(&self, query: &RocmTensor, values: usize, gradient: bool) -> hip::Result<Path> {
        let (device, dtype, width) = (query.hip_device(), query.dtype_of(), self.sizes[4]);
        let widest = width.max(values);
        let most = if gradient { call::WIDEST } else { inference::WIDEST };
        if widest > most || !has_tiled(device) {
            let expected = format!("heads of at most {most} features, blocks of 256 threads");
            let threads = device.grid_rows(1, usize::MAX).threads;
            return invalid(self.op, expected, format!("{width} and {values} features, {threads} threads"));
        }
        // Heads narrow enough for a gradient take training's forward kernel, also without a
        // gradient.
        match Cores::of(device, dtype, widest, widest <= call::WIDEST)? {
            Ok(cores) => Ok(Path::Cores(cores)),
            Err(why) => {
                if dtype.size() == 2 {
                    hip::trace::fell_back(|| format!("not on matrix cores: {why}"));
                }
                Ok(Path::Tiled)
            }
        }
    }

    /// Whether some operand has no elements, so that there is nothing to compute.
    fn is_empty(&self, values: usize) -> bool {
        self.sizes.contains(&0) || values == 0
    }

    /// Zeros `[1, heads, rows, columns]`. A read of them returns a fault of the offsets.
    fn zeros(&self, like: &RocmTensor, [heads, rows, columns]: [usize; 3]) -> hip::Result<RocmTensor> {
        let zeros = full_on(like.hip_device(), [rows, heads, columns], 0.into(), like.dtype_of())?;
        if let Some(offsets) = self.sequences.offsets() {
            hip::carry_faults([offsets.buffer()], [zeros.buffer()]);
        }
        heads_first(self.op, zeros)
    }

    fn forward_packed(&self, inputs: &[RocmTensor; 3]) -> hip::Result<Attended> {
        let [query, key, value] = inputs;
        let ([_, heads, queries, ..], values) = (self.sizes, value.dims()[3]);
        let path = self.packed_path(query, values, false)?;
        let Attended { out, kept } = match path {
            _ if self.is_empty(values) => {
                let out = self.zeros(query, [heads, queries, values])?;
                Attended { out: out.clone(), kept: vec![out, self.sums(query)?] }
            }
            Path::Cores(cores) => self.on(cores, [query, key, value])?,
            Path::Tiled => self.tiled([query, key, value])?,
        };
        let out = rows_first(out)?;
        let sums = kept.into_iter().nth(1);
        Ok(Attended { out: out.clone(), kept: [out].into_iter().chain(sums).collect() })
    }
}

/// [`attention`](crate::fused::attention()) of sequences of different lengths in one batch, without
/// padding. The queries of a sequence see the keys of the same sequence alone, and its results read
/// nothing outside it. Memory grows linearly with the number of rows. There is no mask.
///
/// # Shapes
/// - `query`: `[query rows, heads, features]`
/// - `key`: `[key rows, key heads, features]`; the heads of keys divide those of queries, as in
///   [`attention`](crate::fused::attention())
/// - `value`: `[key rows, key heads, values]`
/// - output: `[query rows, heads, values]`
///
/// Operands may have any layout. [`AttentionOptions::causal`] and [`AttentionOptions::window`] count
/// positions within a sequence: its last query is at its last key. A query without keys gives zeros.
/// Dropout draws other numbers than for padded operands. The options `fill` and `scores` have no
/// effect. Heads have at most 256 features, and for a gradient at most 128.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit, if the heads of keys do not divide those of
/// queries or are too wide, if the window is 0 or the probability outside 0..=1, or for
/// [`AttentionPath::Composed`]; `Unsupported` for integers; an error of the device. A kernel checks
/// the offsets: if they do not ascend from 0 to the number of rows, reads of the result and of what is
/// computed from it, and the next [`sync`](hip::Device::sync), return `Invalid`.
pub fn attention_packed(
    query: RocmTensor,
    key: RocmTensor,
    value: RocmTensor,
    offsets: &PackedOffsets,
    options: &AttentionOptions,
) -> Result<Attended, RocmError> {
    let (call, inputs) = Call::of_packed(OP, [query, key, value], offsets, options)?;
    call.forward_packed(&inputs)
}

/// [`attention_packed`] without a gradient, with a softcap.
///
/// # Errors
/// As [`attention_packed`]; `Invalid` if the softcap is not above 0.
pub fn attention_packed_inference(
    query: RocmTensor,
    key: RocmTensor,
    value: RocmTensor,
    offsets: &PackedOffsets,
    options: &AttentionInferenceOptions,
) -> Result<RocmTensor, RocmError> {
    let AttentionInferenceOptions { scale, softcap, causal, window } = *options;
    check_softcap(OP, softcap, query.dtype_of())?;
    let options = AttentionOptions { scale, causal, window, ..AttentionOptions::default() };
    let (mut call, inputs) = Call::of_packed(OP, [query, key, value], offsets, &options)?;
    call.softcap = softcap;
    Ok(call.forward_packed(&inputs)?.out)
}

/// The gradients of [`attention_packed`] with respect to query, key and value, from the output's
/// gradient; `None` for one that is not `wanted`. `kept` is [`Attended::kept`] for the same inputs,
/// offsets and options. Sums have a fixed order.
///
/// # Errors
/// As [`attention_packed`]; `Invalid` if the gradient's shape is not the output's, if `kept` is not
/// what such a call keeps, or for heads of more than 128 features.
pub fn attention_packed_backward(
    inputs: [RocmTensor; 3],
    offsets: &PackedOffsets,
    kept: Vec<RocmTensor>,
    grad: RocmTensor,
    options: &AttentionOptions,
    wanted: [bool; 3],
) -> Result<[Option<RocmTensor>; 3], RocmError> {
    let (call, inputs) = Call::of_packed(BACKWARD, inputs, offsets, options)?;
    let [query, key, value] = inputs.each_ref();
    let [_, heads, queries, keys, width] = call.sizes;
    let values = value.dims()[3];
    let path = call.packed_path(query, values, true)?;
    let Ok([out, sums]) = <[RocmTensor; 2]>::try_from(kept) else {
        return invalid(BACKWARD, "the two tensors that attention_packed kept", "others");
    };
    let (out, grad) = (heads_first(BACKWARD, out)?, heads_first(BACKWARD, grad)?);
    call.check("a gradient", &grad, query, &[1, heads, queries, values])?;
    call.check("an output", &out, query, &[1, heads, queries, values])?;
    let right_sums =
        sums.dims() == [1, heads, queries, 2] && sums.dtype_of() == compute_dtype(query.dtype_of());
    if !right_sums {
        return invalid(BACKWARD, "the sums that attention_packed kept", format!("{:?}", sums.dims()));
    }
    let sums = packed(sums)?;
    let found = match path {
        _ if call.is_empty(values) => {
            let shared = call.key_heads();
            let dims = [[heads, queries, width], [shared, keys, width], [shared, keys, values]];
            let mut zeros = [const { None }; 3];
            for ((zeros, dims), wanted) in zeros.iter_mut().zip(dims).zip(wanted) {
                *zeros = wanted.then(|| call.zeros(query, dims)).transpose()?;
            }
            zeros
        }
        Path::Cores(cores) => {
            call.on_backward(cores, [query, key, value], [&out, &sums, &grad], wanted, None)?
        }
        Path::Tiled => call.tiled_backward([query, key, value], [&out, &sums], &grad, wanted)?,
    };
    let [by_query, by_key, by_value] = found.map(|found| found.map(rows_first).transpose());
    Ok([by_query?, by_key?, by_value?])
}
