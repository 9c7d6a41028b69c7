//! The formulas of a layer of the transformer's encoder and its gradients in f64, with the limits
//! of the results' errors.

use burn_rocm::fused::AttentionOptions;

use crate::attention_formulas::{Layer, SelfAttention};
use crate::bounded::{Bounded, Roundings};
use crate::norm_formulas::{Norm, Places};
use crate::support::*;

/// A layer without dropout or masks.
pub(crate) struct EncoderLayer {
    /// `[batch, sequence, features]`.
    pub(crate) x: Vec<Bounded>,
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    /// The layers of queries, keys, values and the attention's output.
    pub(crate) attention: [Layer; 4],
    /// The position-wise layers, with GELU between them.
    pub(crate) linear: [Layer; 2],
    /// Gamma and beta of the norm between attention and position-wise layers, and of the other
    /// norm.
    pub(crate) norms: [[Vec<Bounded>; 2]; 2],
    pub(crate) epsilon: f64,
    /// Whether a norm comes before each sub-layer instead of after it.
    pub(crate) norm_first: bool,
    /// The gradient of the result.
    pub(crate) grad: Vec<Bounded>,
}

/// The normal distribution's density, and its distribution function by the series of Marsaglia
/// 2004, "Evaluating the Normal Distribution", whose terms have one sign.
fn normal(z: f64) -> [f64; 2] {
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (mut sum, mut term, mut k) = (z, z, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        k += 2.0;
        term *= z * z / k;
        sum += term;
    }
    [density, 0.5 + sum * density]
}

/// GELU and its slope. The slope is at most 1.13 and changes by at most 0.8 where `z` changes by 1.
///
/// A kernel's own error is at most 8 roundings `u`, of `z` and of the greatest slope. `erf` may then
/// be off by up to 8 ulp, each at most `u`. CUDA's `erff` is off by 2 ("CUDA C++ Programming Guide",
/// appendix "Mathematical Functions"); the CPU's polynomials and their roundings are off by 5.
/// - `0.5 z (1 + erf(z / sqrt(2)))`: the argument's two roundings move `erf` by at most `u`, and 1 is
///   added within `2 u`. Half of these 11, and the product: `6.5 u |z|`.
/// - The slope adds `z density(z)`, at most 0.25. Its argument's rounding, an exponential that is off
///   by 2 ulp, and three products and constants move it by `0.25 + 1 + 0.75`; the sum is rounded
///   within 1.13. With the 5.5 of the distribution function: `8.7 u`, below `8 * 1.13 u`.
///
/// f16 and bf16 take approximations instead, whose error is [`of_gelu`] of `z` and of the slope.
fn gelu(z: Bounded, roundings: Roundings) -> [Bounded; 2] {
    let [density, below] = normal(z.value);
    let own = 8.0 * roundings.step + roundings.of_gelu();
    [
        Bounded { value: z.value * below, off: 1.13 * z.off + own * (z.value.abs() + z.off) },
        Bounded { value: below + z.value * density, off: 0.8 * z.off + own * 1.13 },
    ]
}

fn sum(a: &[Bounded], b: &[Bounded], roundings: Roundings) -> Vec<Bounded> {
    a.iter().zip(b).map(|(&a, &b)| roundings.stored(a.plus(b, roundings.step))).collect()
}

/// The results of each stage of a layer, computed from the exact results of the stages before.
struct Stages {
    /// All stages' results, with the errors of their own stage.
    results: Vec<Bounded>,
    /// A result's index, and the number that is added to it.
    nudge: Option<(usize, f64)>,
}

impl Stages {
    /// Keeps a stage's results, and passes them to later stages without their errors.
    fn pass(&mut self, stage: Vec<Bounded>) -> Vec<Bounded> {
        let first = self.results.len();
        let mut values: Vec<Bounded> = stage.iter().map(|x| Bounded::exact(x.value)).collect();
        if let Some((at, by)) = self.nudge
            && let Some(value) = at.checked_sub(first).and_then(|at| values.get_mut(at))
        {
            value.value += by;
        }
        self.results.extend(stage);
        values
    }
}

impl EncoderLayer {
    /// The result, and the gradients with respect to x and to all parameters: of the attention's
    /// layers, of the position-wise layers and of the norms.
    ///
    /// The limits are of first order: the error of each stage's own results, times the measured
    /// change that it causes in the final results. They are enlarged by a quarter for products of
    /// errors.
    pub(crate) fn expected(&self, dtypes: &[DType]) -> Vec<Vec<Vec<Bounded>>> {
        let values = |nudge| {
            let mut stages = Stages { results: Vec::new(), nudge };
            let results = self.run(&mut stages, DType::F64);
            (results, stages.results.len())
        };
        let (results, count) = values(None);
        let errors = dtypes.iter().map(|&dtype| {
            let mut stages = Stages { results: Vec::new(), nudge: None };
            self.run(&mut stages, dtype);
            stages.results
        });
        let errors: Vec<Vec<Bounded>> = errors.collect();
        let mut all = vec![results.clone(); dtypes.len()];
        const BY: f64 = 1e-6;
        for at in 0..count {
            let (nudged, _) = values(Some((at, BY)));
            for (all, errors) in all.iter_mut().zip(&errors) {
                let share = 1.25 * errors[at].off / BY;
                for ((all, before), after) in
                    all.iter_mut().flatten().zip(results.iter().flatten()).zip(nudged.iter().flatten())
                {
                    all.off += share * (after.value - before.value).abs();
                }
            }
        }
        all
    }

    /// The attention's result, and its gradients from `grad`, in the order of a layer of
    /// `attention`.
    fn attention(&self, x: &[Bounded], grad: &[Bounded], dtype: DType) -> Vec<Vec<Bounded>> {
        let [query, key, value, output] = &self.attention;
        let of = SelfAttention {
            x,
            batch: self.batch,
            heads: self.heads,
            layers: [query, key, value],
            output: Some(output),
            grad,
            hidden: &vec![false; x.len() / output.bias.len()],
            options: &AttentionOptions::default(),
        };
        of.expected(dtype)
    }

    fn norm(&self, which: usize, x: &[Bounded], dtype: DType) -> Norm {
        let [gamma, beta] = self.norms[which].clone().map(Some);
        let features = self.norms[which][0].len();
        let places = Places::rows(&[x.len() / features, features]);
        Norm { gamma, beta, ..Norm::new(places, self.epsilon, x.to_vec(), [dtype; 2]) }
    }

    fn normed(&self, which: usize, x: &[Bounded], dtype: DType) -> Vec<Bounded> {
        let norm = self.norm(which, x, dtype);
        norm.forward(&norm.statistics())
    }

    /// The gradients with respect to x, gamma and beta.
    fn norm_back(&self, which: usize, x: &[Bounded], grad: &[Bounded], dtype: DType) -> [Vec<Bounded>; 3] {
        let norm = self.norm(which, x, dtype);
        norm.backward(&norm.statistics(), grad)
    }

    fn run(&self, stages: &mut Stages, dtype: DType) -> Vec<Vec<Bounded>> {
        let (first, roundings) = (self.norm_first, Roundings::of(dtype));
        let [inner, outer] = &self.linear;
        let x = self.x.clone();
        let tokens = if first { stages.pass(self.normed(1, &x, dtype)) } else { x.clone() };
        let no_grad = vec![Bounded::default(); x.len()];
        let attended = stages.pass(self.attention(&tokens, &no_grad, dtype).swap_remove(0));
        let between = stages.pass(sum(&x, &attended, roundings));
        let positions = stages.pass(self.normed(0, &between, dtype));
        let z = stages.pass(inner.biased(&positions, roundings));
        let of_z: Vec<[Bounded; 2]> = z.iter().map(|&z| gelu(z, roundings)).collect();
        let hidden = stages.pass(of_z.iter().map(|[value, _]| roundings.stored(*value)).collect());
        let onto = if first { &between } else { &positions };
        let last = stages.pass(outer.forward(&hidden, roundings));
        let after = stages.pass(sum(onto, &last, roundings));

        // Backward: from the result to the second sum, to the position-wise layers, to the first
        // sum.
        let (result, by_sum, norm_2) = if first {
            (after, self.grad.clone(), None)
        } else {
            let result = stages.pass(self.normed(1, &after, dtype));
            let [by_sum, by_gamma, by_beta] =
                self.norm_back(1, &after, &self.grad, dtype).map(|all| stages.pass(all));
            (result, by_sum, Some([by_gamma, by_beta]))
        };
        let by_hidden = stages.pass(roundings.all(outer.by_input(&by_sum)));
        let slopes = by_hidden.iter().zip(&of_z);
        let by_z =
            slopes.map(|(by, [_, slope])| roundings.stored(by.times(*slope, roundings.step))).collect();
        let by_z = stages.pass(by_z);
        let by_inner = inner.by_parameters(&positions, &by_z, roundings).map(|all| stages.pass(all));
        let by_outer = outer.by_parameters(&hidden, &by_sum, roundings).map(|all| stages.pass(all));
        let mut by_positions = stages.pass(roundings.all(inner.by_input(&by_z)));
        if !first {
            by_positions = stages.pass(sum(&by_sum, &by_positions, roundings));
        }
        let [mut by_first, by_gamma, by_beta] =
            self.norm_back(0, &between, &by_positions, dtype).map(|all| stages.pass(all));
        if first {
            by_first = stages.pass(sum(&by_first, &self.grad, roundings));
        }
        let by_attention = self.attention(&tokens, &by_first, dtype).split_off(1);
        let mut by_attention: Vec<_> = by_attention.into_iter().map(|all| stages.pass(all)).collect();
        let mut by_tokens = by_attention.remove(0);
        let norm_2 = norm_2.unwrap_or_else(|| {
            let [by_x, by_gamma, by_beta] =
                self.norm_back(1, &x, &by_tokens, dtype).map(|all| stages.pass(all));
            by_tokens = by_x;
            [by_gamma, by_beta]
        });
        // The sum's gradient may be the first of up to four added parts.
        let of_first = |x: &Bounded| Bounded { off: 2.0 * roundings.once(*x), ..*x };
        let by_x = sum(&by_tokens, &by_first.iter().map(of_first).collect::<Vec<_>>(), roundings);
        let by_x = stages.pass(by_x);
        let by_norms = [vec![by_gamma, by_beta], norm_2.into()].concat();
        [vec![result, by_x], by_attention, by_inner.into(), by_outer.into(), by_norms].concat()
    }
}
