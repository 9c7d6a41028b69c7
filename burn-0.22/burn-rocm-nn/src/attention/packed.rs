//! Attention of sequences of different lengths in one batch, without padding.

use burn::nn::DropoutConfig;
use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_rocm::fused::{AttentionDropout, PackedOffsets};

use super::options::PackedAttentionOptions;
use crate::fuse::{Route, primitive, wrap};
use crate::ops::attention::PackedOp;

/// Where the sequences of [`packed_attention`] begin.
#[derive(Clone, Debug)]
pub struct PackedSequences {
    queries: Tensor<1, Int>,
    keys: Tensor<1, Int>,
}

impl PackedSequences {
    /// The sequences of self-attention. `offsets` `[sequences + 1]` ascend from 0 to the number of
    /// rows: sequence `i` has the rows `offsets[i]..offsets[i + 1]`.
    pub fn new(offsets: Tensor<1, Int>) -> Self {
        Self { queries: offsets.clone(), keys: offsets }
    }

    /// Separate offsets of queries, and of keys and values, `[sequences + 1]` each.
    pub fn between(queries: Tensor<1, Int>, keys: Tensor<1, Int>) -> Self {
        Self { queries, keys }
    }

    /// The sequences of self-attention that have these lengths, in rows.
    ///
    /// # Panics
    /// If there are 2^31 rows or more.
    pub fn of_lengths(lengths: &[usize], device: &Device) -> Self {
        let offsets = PackedAttentionOptions::offsets_of(lengths);
        let count = offsets.len();
        Self::new(Tensor::from_data(TensorData::new(offsets, [count]), device))
    }
}

/// Attention of sequences of different lengths in one batch, without padding: they lie one after
/// the other along the rows. A query sees the keys of its own sequence alone, and a query without
/// keys gives zeros. On this project's devices this is
/// [`fused::attention_packed`](burn_rocm::fused::attention_packed) and its gradient, whose memory
/// grows linearly with the number of rows. On other devices Burn's ops compute all scores between
/// all rows.
///
/// # Shapes
/// - query: `[query rows, heads, features]`
/// - key: `[key rows, key heads, features]`; the heads of keys divide those of queries
/// - value: `[key rows, key heads, values]`
/// - output: `[query rows, heads, values]`
///
/// # Panics
/// With [`Invalid`](burn_rocm::RocmError::Invalid) if shapes do not fit, or if the window is 0 or
/// the dropout outside 0 to 1. On this project's devices also for heads of more than 256 features,
/// or more than 128 in the backward pass. If the offsets do not ascend from 0 to the number of
/// rows, reading the result fails.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::attention::{PackedAttentionOptions, PackedSequences, packed_attention};
///
/// // Sequences of 3, 1 and 4 tokens, 2 heads of 16 features.
/// let sequences = PackedSequences::of_lengths(&[3, 1, 4], &device);
/// let tokens = Tensor::<3>::ones([8, 2, 16], &device);
/// let options = PackedAttentionOptions { causal: true, ..Default::default() };
/// let found = packed_attention(tokens.clone(), tokens.clone(), tokens, sequences, &options);
/// assert_eq!(found.dims(), [8, 2, 16]);
/// ```
pub fn packed_attention(
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    sequences: PackedSequences,
    options: &PackedAttentionOptions,
) -> Tensor<3> {
    options.check();
    let shapes = [query.dims(), key.dims(), value.dims()];
    let offsets = [sequences.queries.dims()[0], sequences.keys.dims()[0]];
    let group = PackedAttentionOptions::check_shapes(shapes, offsets);
    let Some(route) = Route::of("packed_attention", &query) else {
        return composed(query, key, value, sequences, options, group);
    };
    let [queries, keys] = [sequences.queries, sequences.keys].map(|offsets| route.int(offsets));
    let trains = [&query, &key, &value].into_iter().any(Tensor::is_autodiff);
    let dropout = (trains && options.dropout != 0.0)
        .then(|| AttentionDropout::draw(&queries.rocm_device(), options.dropout));
    let op = PackedOp { offsets: PackedOffsets { queries, keys }, options: options.fused(dropout) };
    wrap(route.apply(op, [primitive(query), primitive(key), primitive(value)]).0)
}

/// The sequence of each row, and the row's distance from the end of its sequence, `[rows, 1]` each.
fn places(offsets: Tensor<1, Int>, rows: usize) -> [Tensor<2, Int>; 2] {
    let count = offsets.dims()[0] - 1;
    let ends = offsets.narrow(0, 1, count);
    let row = Tensor::<1, Int>::arange(0..rows as i64, &ends.device()).reshape([rows, 1]);
    // Offsets may have another dtype than the device's integers.
    let ends = ends.cast(row.dtype());
    // A row lies behind as many sequences as end at it or before it.
    let sequence = (row.clone() - ends.clone().reshape([1, count])).greater_equal_elem(0).int().sum_dim(1);
    let end = ends.select(0, sequence.clone().reshape([rows])).reshape([rows, 1]);
    [sequence, row - end]
}

/// In training, drops each score with this probability.
fn dropped(scores: Tensor<3>, prob: f64) -> Tensor<3> {
    // Burn's dropout multiplies by 1 / (1 - prob). That factor is infinite at 1, and Burn 0.22
    // refuses 1.
    match prob < 1.0 {
        true => DropoutConfig::new(prob).init().forward(scores),
        false if scores.device().is_autodiff() => scores.mul_scalar(0.0),
        false => scores,
    }
}

/// Attention by Burn's ops.
fn composed(
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    sequences: PackedSequences,
    options: &PackedAttentionOptions,
    group: usize,
) -> Tensor<3> {
    let ([rows, heads, width], [others, _, values]) = (query.dims(), value.dims());
    if [rows, others, heads, values].contains(&0) {
        return Tensor::zeros([rows, heads, values], &query.device());
    }
    let [of_query, query_end] = places(sequences.queries, rows);
    let [of_key, key_end] = places(sequences.keys, others).map(|place| place.reshape([1, others]));
    let distance = key_end - query_end;
    let mut hidden = (of_key - of_query).not_equal_elem(0);
    if options.causal {
        hidden = hidden.bool_or(distance.clone().greater_elem(0));
    }
    if let Some(window) = options.window {
        let window = window.min(rows + others) as i64;
        hidden = hidden.bool_or(distance.abs().greater_equal_elem(window));
    }
    let shape = [heads, rows, others];
    let hidden = hidden.unsqueeze::<3>().expand(shape);
    let sees = hidden.clone().bool_not().any_dim(2).expand(shape);
    // The heads of a group share one of keys and values.
    let heads_first = |tensor: Tensor<3>| {
        let [rows, shared, columns] = tensor.dims();
        let repeated = tensor.reshape([rows, shared, 1, columns]).expand([rows, shared, group, columns]);
        repeated.reshape([rows, heads, columns]).swap_dims(0, 1)
    };
    let scale = options.scale.unwrap_or(1.0 / (width as f64).sqrt());
    let scores = query.swap_dims(0, 1).matmul(heads_first(key).transpose()).mul_scalar(scale);
    let scores = dropped(scores, options.dropout);
    // Scores are 0 in rows that see nothing, whose gradient would otherwise be NaN.
    let scores = scores.mask_fill(hidden.clone(), 0.0);
    let scores = scores.mask_fill(hidden.clone().bool_and(sees), f32::NEG_INFINITY);
    let weights = if options.quiet { quiet_softmax(scores, 2) } else { softmax(scores, 2) };
    weights.mask_fill(hidden, 0.0).matmul(heads_first(value)).swap_dims(0, 1)
}
