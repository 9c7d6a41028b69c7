//! The formulas of norms and their gradients in f64, with the limits of the results' errors.
//!
//! With `n = (x - mean) / sqrt(variance + epsilon)`, where a norm that does not centre has the mean
//! 0, and with `h = grad * gamma`:
//! - the output is `n * gamma + beta`;
//! - the gradient with respect to x is
//!   `(h - mean(h) - n * mean(h * n)) / sqrt(variance + epsilon)`, without `mean(h)` if the norm
//!   does not centre;
//! - those with respect to gamma and beta are the sums of `grad * n` and of `grad`.

use burn_rocm_tests::limits::in_turn;

use crate::bounded::{Bounded, Roundings, Sum, exact};
use crate::support::*;

/// The most roundings that one operation of the formulas here stands for, apart from a sum's
/// additions. Most are one difference, product or division each. The longest chain is a variance
/// that is computed from MIOpen's `1 / sqrt(variance + epsilon)`: that sum is rounded, which the
/// root halves; the root's reciprocal is off by at most 2 ulp, 4 roundings (`rsqrt`, "The OpenCL C
/// Specification", section "Relative Error as ULPs"); and 4.5 become 9 when it is squared. The
/// square, its reciprocal and the difference with epsilon are 3 more.
const STEPS: f64 = 12.0;

/// The elements of each group that is normalised together, and the parameter of each element.
pub(crate) struct Places {
    groups: Vec<Vec<usize>>,
    channel: Vec<usize>,
    channels: usize,
}

impl Places {
    /// The parameters lie along `axis`. `group` maps an element's positions before that axis and
    /// along it to its group.
    fn new(shape: &[usize], axis: usize, group: impl Fn(usize, usize) -> usize) -> Self {
        let (channels, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let (mut groups, mut channel) = (Vec::<Vec<usize>>::new(), Vec::new());
        for at in 0..shape.iter().product() {
            let (outer, of) = (at / inner / channels, at / inner % channels);
            let group = group(outer, of);
            groups.resize_with(groups.len().max(group + 1), Vec::new);
            groups[group].push(at);
            channel.push(of);
        }
        Self { groups, channel, channels }
    }

    /// Layer and RMS norm: groups along the last axis.
    pub(crate) fn rows(shape: &[usize]) -> Self {
        Self::new(shape, shape.len() - 1, |row, _| row)
    }

    /// Group norm: each sample's groups of channels.
    pub(crate) fn groups(shape: &[usize], groups: usize) -> Self {
        Self::new(shape, 1, |sample, channel| sample * groups + channel / (shape[1] / groups))
    }

    /// Batch norm: each channel over all samples.
    pub(crate) fn channels(shape: &[usize]) -> Self {
        Self::new(shape, 1, |_, channel| channel)
    }
}

/// One norm.
pub(crate) struct Norm {
    pub(crate) places: Places,
    /// Whether the mean is subtracted.
    pub(crate) centred: bool,
    pub(crate) epsilon: f64,
    pub(crate) x: Vec<Bounded>,
    pub(crate) gamma: Option<Vec<Bounded>>,
    pub(crate) beta: Option<Vec<Bounded>>,
    /// The dtypes of x and of the parameters.
    pub(crate) dtypes: [DType; 2],
    /// How many of `n` numbers are added one after the other.
    pub(crate) in_turn: fn(usize) -> usize,
}

/// Mean and variance of a group, and `1 / sqrt(variance + epsilon)`.
#[derive(Clone, Copy)]
pub(crate) struct Statistics {
    pub(crate) mean: Bounded,
    pub(crate) variance: Bounded,
    scale: Bounded,
}

impl Norm {
    /// A norm of x as kernels compute it, without parameters. If a test sets the length of a part,
    /// the kernels cut a channel into any number of parts. `dtypes` are those of x and of the
    /// parameters.
    pub(crate) fn new(places: Places, epsilon: f64, x: Vec<Bounded>, dtypes: [DType; 2]) -> Self {
        let in_turn = if std::env::var_os("BURN_ROCM_LAUNCH_REACH").is_some() { |n| n } else { in_turn };
        Self { places, centred: true, epsilon, x, gamma: None, beta: None, dtypes, in_turn }
    }

    /// The error of [`STEPS`] operations, as a share.
    fn steps(&self) -> f64 {
        STEPS * Roundings::of(self.dtypes[0]).step
    }

    /// The error bound of a sum of `terms` numbers or products, as a share of the sum of their
    /// magnitudes. The reference adds one number after the other, in f64.
    fn growth(&self, terms: usize) -> f64 {
        let terms = if self.dtypes[0] == DType::F64 { terms } else { (self.in_turn)(terms) };
        Roundings::of(self.dtypes[0]).growth(terms) + self.steps()
    }

    fn mean(&self, sum: &Sum) -> Bounded {
        let n = sum.terms as f64;
        Bounded { value: sum.value / n, off: (sum.off + self.growth(sum.terms) * sum.magnitude) / n }
    }

    /// The statistics that follow from a mean and a variance.
    pub(crate) fn given(&self, mean: Bounded, variance: Bounded) -> Statistics {
        let square = variance.value + self.epsilon;
        let value = square.sqrt().recip();
        // A variance is never below 0.
        let most = (square - variance.off).max(self.epsilon).sqrt().recip();
        let scale = Bounded { value, off: most - value + self.steps() * most };
        Statistics { mean, variance, scale }
    }

    /// Mean and variance of each group.
    ///
    /// Both may come from the sums of `d = x - s` and of `d^2`: the variance is `mean(d^2) -
    /// mean(d)^2`. Then `s` is 0, at most 4 deviations `sqrt(variance + epsilon)` from the mean, or
    /// an element of a part of the group. The means of all parts are, in the mean of squares, at
    /// most a deviation from the group's.
    pub(crate) fn statistics(&self) -> Vec<Statistics> {
        let of = |group: &Vec<usize>| {
            let n = group.len() as f64;
            let mean_of = |f: &dyn Fn(Bounded) -> f64| group.iter().map(|&at| f(self.x[at])).sum::<f64>() / n;
            let (growth, steps) = (self.growth(group.len()), self.steps());
            let mean = if self.centred { mean_of(&|x| x.value) } else { 0.0 };
            let variance = mean_of(&|x| (x.value - mean).powi(2));
            let square = variance + self.epsilon;
            let (mut magnitude, mut far, mut mean_off) = (0.0f64, 0.0f64, 0.0);
            if self.centred {
                let values = || group.iter().map(|&at| self.x[at].value);
                let ends = [values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max)];
                for s in [0.0, ends[0], ends[1]] {
                    magnitude = magnitude.max(mean_of(&|x| (x.value - s).abs()));
                }
                let from_mean = |s: f64| (s - mean).abs() / square.sqrt();
                far =
                    ends.map(|end| from_mean(end) + 1.0).into_iter().fold(from_mean(0.0).min(4.0), f64::max);
                mean_off = mean_of(&|x| x.off) + growth * magnitude + steps * mean.abs();
            }
            // The mean of d^2, and twice its root times the mean of d, in squares of a deviation.
            let spread = 1.0 + far * far;
            let sums = growth * (spread + 2.0 * far * spread.sqrt()) * square;
            let differences = mean_of(&|x| {
                let d = (x.value - mean).abs();
                let own = x.off + steps * d;
                2.0 * d * own + (own + mean_off).powi(2)
            });
            // A library may give 1 / sqrt(variance + epsilon), from which the variance is computed.
            let variance_off = sums + differences + steps * square;
            self.given(Bounded { value: mean, off: mean_off }, Bounded { value: variance, off: variance_off })
        };
        self.places.groups.iter().map(of).collect()
    }

    /// The same with variances that are, in f32, the mean of squares less the squared mean.
    pub(crate) fn with_lost_variances(&self, statistics: &[Statistics]) -> Vec<Statistics> {
        let of = |(group, of): (&Vec<usize>, &Statistics)| {
            let mean_of = |f: fn(f32) -> f32| {
                group.iter().map(|&at| f(self.x[at].value as f32)).sum::<f32>() / group.len() as f32
            };
            let variance = mean_of(|x| x * x) - mean_of(|x| x).powi(2);
            self.given(of.mean, Bounded::exact(f64::from(variance.max(0.0))))
        };
        self.places.groups.iter().zip(statistics).map(of).collect()
    }

    fn normal(&self, at: usize, of: &Statistics) -> Bounded {
        self.x[at].minus(of.mean, self.steps()).times(of.scale, self.steps())
    }

    /// `value * gamma` of an element.
    fn scaled(&self, at: usize, value: Bounded) -> Bounded {
        let by = |gamma: &Vec<Bounded>| value.times(gamma[self.places.channel[at]], self.steps());
        self.gamma.as_ref().map_or(value, by)
    }

    pub(crate) fn forward(&self, statistics: &[Statistics]) -> Vec<Bounded> {
        let mut out = vec![Bounded::default(); self.x.len()];
        for (group, of) in self.places.groups.iter().zip(statistics) {
            for &at in group {
                let scaled = self.scaled(at, self.normal(at, of));
                let plus = |beta: &Vec<Bounded>| scaled.plus(beta[self.places.channel[at]], self.steps());
                let y = self.beta.as_ref().map_or(scaled, plus);
                out[at] = Roundings::of(self.dtypes[0]).stored(y);
            }
        }
        out
    }

    /// The gradients with respect to x, gamma and beta, from the output's.
    pub(crate) fn backward(&self, statistics: &[Statistics], grad: &[Bounded]) -> [Vec<Bounded>; 3] {
        let steps = self.steps();
        let mut by_x = vec![Bounded::default(); self.x.len()];
        let mut by_params = [(); 2].map(|()| vec![Sum::default(); self.places.channels]);
        for (group, of) in self.places.groups.iter().zip(statistics) {
            let (mut all, mut along) = (Sum::default(), Sum::default());
            let mut pairs = Vec::with_capacity(group.len());
            for &at in group {
                let (normal, h) = (self.normal(at, of), self.scaled(at, grad[at]));
                all.add(h, Bounded::exact(1.0));
                along.add(h, normal);
                by_params[0][self.places.channel[at]].add(grad[at], normal);
                by_params[1][self.places.channel[at]].add(grad[at], Bounded::exact(1.0));
                pairs.push((normal, h));
            }
            let shift = if self.centred { self.mean(&all) } else { Bounded::default() };
            let slope = self.mean(&along);
            for (&at, (normal, h)) in group.iter().zip(pairs) {
                let rest = h.minus(shift, steps).minus(normal.times(slope, steps), steps);
                by_x[at] = Roundings::of(self.dtypes[0]).stored(rest.times(of.scale, steps));
            }
        }
        let param = |sum: &Sum| {
            let off = sum.off + self.growth(sum.terms) * sum.magnitude;
            Roundings::of(self.dtypes[1]).stored(Bounded { value: sum.value, off })
        };
        let [by_gamma, by_beta] = by_params.map(|sums| sums.iter().map(param).collect());
        [by_x, by_gamma, by_beta]
    }

    /// The running statistics after a batch replaced the share `momentum` of them.
    pub(crate) fn running(&self, before: &[Bounded], batch: &[Bounded], momentum: f64) -> Vec<Bounded> {
        let steps = self.steps();
        let share = |x: &Bounded, share: f64| x.times(Bounded::exact(share), steps);
        let pairs = before.iter().zip(batch);
        pairs
            .map(|(before, batch)| share(before, 1.0 - momentum).plus(share(batch, momentum), steps))
            .map(|x| Roundings::of(self.dtypes[1]).stored(x))
            .collect()
    }
}

/// The negated numbers of some data, without errors.
pub(crate) fn negated(data: &TensorData) -> Vec<Bounded> {
    exact(data.iter::<f64>().map(|x| -x))
}
