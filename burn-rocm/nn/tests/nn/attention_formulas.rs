//! The formulas of attention and its gradients in f64, with the limits of the results' errors.

use burn_rocm::fused::{AttentionDropout, AttentionOptions};

use crate::bounded::{Bounded, Roundings, Sum};
use crate::support::*;

/// The sizes of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) width: usize,
    pub(crate) values: usize,
    /// Heads of queries that share a head of keys and values.
    pub(crate) group: usize,
    /// For a packed sequence: its first query, and the numbers of all queries and keys.
    pub(crate) packed: Option<[usize; 3]>,
}

pub(crate) const fn case([batch, heads, queries, keys, width, values]: [usize; 6]) -> Case {
    Case { batch, heads, queries, keys, width, values, group: 1, packed: None }
}

impl Case {
    pub(crate) const fn grouped(self, group: usize) -> Self {
        Self { group, ..self }
    }

    /// The row of a pair of batch and head, and the number of keys, by which dropout numbers scores.
    fn numbered(&self, pair: usize, query: usize) -> [usize; 2] {
        match self.packed {
            None => [pair * self.queries + query, self.keys],
            Some([first, rows, keys]) => [pair * rows + first + query, keys],
        }
    }

    /// Whether the window of a query has a key, whose position may be before the first query.
    pub(crate) fn sees(&self, options: &AttentionOptions, query: usize, key: usize) -> bool {
        let distance = (query + self.keys) as i64 - (key + self.queries) as i64;
        let within = options.window.is_none_or(|window| distance.unsigned_abs() < window as u64);
        within && (!options.causal || distance >= 0)
    }
}

/// Philox 4x32-10 as its authors publish it.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [a, b] = [(counter[0], 0xd251_1f53u64), (counter[2], 0xcd9e_8d57)].map(|(c, m)| u64::from(c) * m);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

/// The factor that dropout gives to the score of a row and a key.
fn kept(dropout: &AttentionDropout, row: usize, keys: usize, key: usize) -> f64 {
    let block = (row * keys.div_ceil(64) * 16 + key / 64 * 16 + key % 16) as u64;
    let AttentionDropout { prob, seed, call } = *dropout;
    let words = philox(
        [block as u32, (block >> 32) as u32, call as u32, (call >> 32) as u32],
        [seed as u32, (seed >> 32) as u32],
    );
    let dropped = f64::from(words[key % 64 / 16]) < (prob * 4294967296.0).round();
    if dropped { 0.0 } else { 1.0 / (1.0 - prob) }
}

/// The weights, output and gradients of one call.
pub(crate) struct Expected {
    pub(crate) weights: Vec<Bounded>,
    pub(crate) out: Vec<Bounded>,
    pub(crate) grads: [Vec<Bounded>; 3],
    /// The gradients of `sum(weights * grad)` with respect to query and key.
    pub(crate) grads_of_weights: [Vec<Bounded>; 2],
}

pub(crate) struct Given<'a> {
    pub(crate) case: Case,
    pub(crate) q: &'a [Bounded],
    pub(crate) k: &'a [Bounded],
    pub(crate) v: &'a [Bounded],
    pub(crate) grad: &'a [Bounded],
    pub(crate) weights_grad: &'a [Bounded],
    pub(crate) mask: Option<&'a [bool]>,
    pub(crate) options: &'a AttentionOptions,
}

/// The scores of a row, and their derivatives with respect to the product of query and key.
fn scores(given: &Given<'_>, row: usize, roundings: Roundings) -> Vec<(Bounded, f64)> {
    let Given { case, q, k, mask, options, .. } = *given;
    let Case { queries, keys, width, .. } = case;
    let (pair, query) = (row / queries, row % queries);
    let scale = options.scale.unwrap_or(1.0 / (width as f64).sqrt());
    let q = &q[row * width..][..width];
    let [number, all_keys] = case.numbered(pair, query);
    (0..keys)
        .map(|key| {
            if !case.sees(options, query, key) {
                return (Bounded::exact(f64::NEG_INFINITY), 0.0);
            }
            if mask.is_some_and(|mask| mask[row * keys + key]) {
                return (Bounded::exact(options.fill), 0.0);
            }
            let factor = scale * options.dropout.map_or(1.0, |dropout| kept(&dropout, number, all_keys, key));
            let product = roundings.dot(q, &k[(pair / case.group * keys + key) * width..][..width]);
            // Scaled, and multiplied by the factor of dropout.
            let score = product.times(Bounded::exact(factor), 2.0 * roundings.step);
            (roundings.stored(score), factor)
        })
        .collect()
}

/// The weights of a row.
///
/// Errors of the scores are factors `exp(off)` of each exponential and of the sum. The error of an
/// exponential itself comes from rounding its argument and from the function. A kernel may keep one
/// number instead of both maximum and sum.
fn softmax(scores: &[(Bounded, f64)], quiet: bool, roundings: Roundings) -> Vec<Bounded> {
    let top = scores.iter().map(|s| s.0.value).fold(f64::NEG_INFINITY, f64::max);
    let base = if top == f64::NEG_INFINITY { 0.0 } else { top };
    let sum: f64 = scores.iter().map(|s| (s.0.value - base).exp()).sum::<f64>()
        + if quiet { (-base).exp() } else { 0.0 };
    let seen = || scores.iter().map(|s| s.0).filter(|s| s.value - base > -1e3);
    let worst = seen().map(|s| s.off).fold(0.0, f64::max);
    scores
        .iter()
        .map(|&(score, _)| {
            let value = (score.value - base).exp() / sum;
            // The key is hidden; or no key is visible; or only the added 1 counts.
            if sum == 0.0 || value == 0.0 {
                return Bounded::default();
            }
            let arguments = 3.0 * (score.value - base).abs() + 4.0 * (score.value.abs() + base.abs());
            let own = roundings.step * (arguments + sum.ln().abs() + 8.0);
            let error = score.off + worst + own + 2.0 * roundings.growth(scores.len());
            roundings.stored(Bounded { value, off: value * error.exp_m1() })
        })
        .collect()
}

/// The results of the formulas, with limits for results of `dtype`.
pub(crate) fn expected(given: &Given<'_>, dtype: DType) -> Expected {
    let Given { case, q, k, v, grad, weights_grad, options, .. } = *given;
    let Case { batch, heads, queries, keys, width, values, group, .. } = case;
    let roundings = Roundings::of(dtype);
    let rows = batch * heads * queries;
    let sums = |len: usize| vec![Sum::default(); len];
    let mut all_weights = Vec::with_capacity(rows * keys);
    let mut out = sums(rows * values);
    let mut by_value = sums(v.len());
    let mut grads = [sums(q.len()), sums(k.len())];
    let mut grads_of_weights = [sums(q.len()), sums(k.len())];
    for row in 0..rows {
        let pair = row / queries / group; // of keys
        let q = &q[row * width..][..width];
        let k = &k[pair * keys * width..][..keys * width];
        let v = &v[pair * keys * values..][..keys * values];
        let grad = &grad[row * values..][..values];
        let scores = scores(given, row, roundings);
        let weights = softmax(&scores, options.quiet, roundings);
        for (key, &weight) in weights.iter().enumerate() {
            for c in 0..values {
                out[row * values + c].add(weight, v[key * values + c]);
                by_value[(pair * keys + key) * values + c].add(weight, grad[c]);
            }
        }
        let out: Vec<Bounded> = roundings.all(out[row * values..][..values].to_vec());
        let back = |by_weights: &[Bounded], dot: Bounded, [to_q, to_k]: &mut [Vec<Sum>; 2]| {
            for key in 0..keys {
                let difference = by_weights[key].minus(dot, roundings.step);
                let by_product = weights[key]
                    .times(difference, 2.0 * roundings.step)
                    .times(Bounded::exact(scores[key].1), 2.0 * roundings.step);
                let by_product = roundings.stored(by_product);
                for d in 0..width {
                    to_q[row * width + d].add(by_product, k[key * width + d]);
                    to_k[(pair * keys + key) * width + d].add(by_product, q[d]);
                }
            }
        };
        let by_weights: Vec<Bounded> = v.chunks(values).map(|v| roundings.dot(grad, v)).collect();
        // The sum of products of weights and their gradients equals that of output and its
        // gradient. Kernels use either.
        let dot = roundings.summed(&Sum::of(weights.iter().copied(), by_weights.iter().copied()));
        let other = roundings.summed(&Sum::of(out, grad.iter().copied()));
        back(&by_weights, Bounded { off: dot.off.max(other.off), ..dot }, &mut grads);
        let by_weights = &weights_grad[row * keys..][..keys];
        let dot = roundings.summed(&Sum::of(weights.iter().copied(), by_weights.iter().copied()));
        back(by_weights, dot, &mut grads_of_weights);
        all_weights.extend(weights);
    }
    let [by_query, by_key] = grads.map(|sums| roundings.all(sums));
    Expected {
        weights: all_weights,
        out: roundings.all(out),
        grads: [by_query, by_key, roundings.all(by_value)],
        grads_of_weights: grads_of_weights.map(|sums| roundings.all(sums)),
    }
}

/// A linear layer: weight `[inputs, outputs]` and bias `[outputs]`.
pub(crate) struct Layer {
    pub(crate) weight: Vec<Bounded>,
    pub(crate) bias: Vec<Bounded>,
}

impl Layer {
    fn inputs(&self) -> usize {
        self.weight.len() / self.bias.len()
    }

    /// For each row of `x`, the stored product plus the bias.
    pub(crate) fn biased(&self, x: &[Bounded], roundings: Roundings) -> Vec<Bounded> {
        let outputs = self.bias.len();
        let of = |row: &[Bounded], column: usize| {
            let weight = self.weight.iter().skip(column).step_by(outputs);
            let product = roundings.stored(roundings.summed(&Sum::of(row.iter().copied(), weight.copied())));
            product.plus(self.bias[column], roundings.step)
        };
        x.chunks(self.inputs()).flat_map(|row| (0..outputs).map(move |column| of(row, column))).collect()
    }

    /// [`biased`](Self::biased), stored.
    pub(crate) fn forward(&self, x: &[Bounded], roundings: Roundings) -> Vec<Bounded> {
        self.biased(x, roundings).into_iter().map(|sum| roundings.stored(sum)).collect()
    }

    /// The gradient with respect to the input, as sums of terms that are not added yet.
    pub(crate) fn by_input(&self, grad: &[Bounded]) -> Vec<Sum> {
        let outputs = self.bias.len();
        let of = |grad: &[Bounded], weight: &[Bounded]| Sum::of(grad.iter().copied(), weight.iter().copied());
        grad.chunks(outputs).flat_map(|grad| self.weight.chunks(outputs).map(move |w| of(grad, w))).collect()
    }

    /// The gradients with respect to weight and bias.
    pub(crate) fn by_parameters(
        &self,
        x: &[Bounded],
        grad: &[Bounded],
        roundings: Roundings,
    ) -> [Vec<Bounded>; 2] {
        let (inputs, outputs) = (self.inputs(), self.bias.len());
        let mut by_weight = vec![Sum::default(); inputs * outputs];
        let mut by_bias = vec![Sum::default(); outputs];
        for (x, grad) in x.chunks(inputs).zip(grad.chunks(outputs)) {
            for (column, grad) in grad.iter().enumerate() {
                by_bias[column].add(*grad, Bounded::exact(1.0));
                for (row, x) in x.iter().enumerate() {
                    by_weight[row * outputs + column].add(*x, *grad);
                }
            }
        }
        [roundings.all(by_weight), roundings.all(by_bias)]
    }
}

/// Turns `[batch, sequence, heads, width]` into `[batch, heads, sequence, width]`. To undo this,
/// swap `sequence` and `heads`.
pub(crate) fn turned(x: &[Bounded], [sequence, heads, width]: [usize; 3]) -> Vec<Bounded> {
    let of = |at: usize| {
        let (at, column) = (at / width, at % width);
        let (at, token) = (at / sequence, at % sequence);
        let (batch, head) = (at / heads, at % heads);
        x[((batch * sequence + token) * heads + head) * width + column]
    };
    (0..x.len()).map(of).collect()
}

/// Self-attention after linear layers, and its gradients from `grad`, the gradient of the result.
pub(crate) struct SelfAttention<'a> {
    /// `[batch, sequence, features]`.
    pub(crate) x: &'a [Bounded],
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    /// The layers of queries, keys and values.
    pub(crate) layers: [&'a Layer; 3],
    /// The layer of the result. Without it, the result is the contexts of all heads.
    pub(crate) output: Option<&'a Layer>,
    pub(crate) grad: &'a [Bounded],
    /// `[batch, sequence]`; true hides a key.
    pub(crate) hidden: &'a [bool],
    pub(crate) options: &'a AttentionOptions,
}

impl SelfAttention<'_> {
    /// The result, then the gradients with respect to `x` and to each layer's weight and bias.
    ///
    /// The gradient with respect to `x` is one product, or three products whose results are added.
    pub(crate) fn expected(&self, dtype: DType) -> Vec<Vec<Bounded>> {
        let Self { x, batch, heads, layers, output, grad, hidden, options } = *self;
        let roundings = Roundings::of(dtype);
        let (sequence, width) = (hidden.len() / batch, layers[0].bias.len() / heads);
        let (there, back) = ([sequence, heads, width], [heads, sequence, width]);
        let [q, k, v] = layers.map(|layer| turned(&layer.forward(x, roundings), there));
        let by_contexts = match output {
            Some(layer) => turned(&roundings.all(layer.by_input(grad)), there),
            None => turned(grad, there),
        };
        let rows = batch * heads * sequence;
        let mask: Vec<bool> = (0..rows * sequence)
            .map(|at| hidden[at / (heads * sequence * sequence) * sequence + at % sequence])
            .collect();
        let given = Given {
            case: case([batch, heads, sequence, sequence, width, width]),
            q: &q,
            k: &k,
            v: &v,
            grad: &by_contexts,
            weights_grad: &vec![Bounded::default(); rows * sequence],
            mask: Some(&mask),
            options,
        };
        let Expected { out, grads, .. } = expected(&given, dtype);
        let contexts = turned(&out, back);
        let mut by_x = vec![Sum::default(); x.len()];
        let mut by_parameters = Vec::new();
        for (layer, grad) in layers.into_iter().zip(grads) {
            let grad = turned(&grad, back);
            by_x.iter_mut().zip(layer.by_input(&grad)).for_each(|(sum, other)| sum.join(other));
            by_parameters.extend(layer.by_parameters(x, &grad, roundings));
        }
        let result = match output {
            Some(layer) => {
                by_parameters.extend(layer.by_parameters(&contexts, grad, roundings));
                layer.forward(&contexts, roundings)
            }
            None => contexts,
        };
        let by_x = by_x.iter().map(|sum| roundings.in_parts(sum, 3)).collect();
        [result, by_x].into_iter().chain(by_parameters).collect()
    }
}
