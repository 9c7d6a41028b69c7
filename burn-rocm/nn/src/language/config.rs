//! The configurations of a language model's parts. Both versions of Burn compile this file.

use burn::config::Config;
use burn_rocm::fused::{Gate, MOST_PAIRS};

use crate::fuse::refuse;

/// The activation of a gated linear unit ([Shazeer 2020](https://arxiv.org/abs/2002.05202)).
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// `z sigmoid(z)`: SwiGLU.
    Silu,
    /// `z Phi(z)`, the exact form: GeGLU.
    Gelu,
    /// `0.5 z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))`: GeGLU by the approximation with tanh.
    GeluTanh,
}

impl GateKind {
    pub(crate) fn fused(self) -> Gate {
        match self {
            Self::Silu => Gate::Silu,
            Self::Gelu => Gate::Gelu,
            Self::GeluTanh => Gate::GeluTanh,
        }
    }
}

/// Configuration of a [`Norm`](super::Norm).
#[derive(Config, Debug)]
pub struct NormConfig {
    /// The size of the last axis.
    pub d_model: usize,
    /// Added to the mean of squares. Default: 1e-6
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// Whether the scale is 1 + the weight, as in Gemma. Default: `false`
    #[config(default = false)]
    pub adds_one: bool,
}

impl NormConfig {
    /// Panics if epsilon is not positive.
    pub(super) fn check(&self) {
        let epsilon = self.epsilon;
        if epsilon.is_nan() || epsilon <= 0.0 {
            refuse("NormConfig", "a positive epsilon", epsilon.to_string());
        }
    }
}

/// How the frequencies of a rotary embedding are scaled for sequences that are longer than those of
/// the original training.
#[derive(Config, Debug, PartialEq)]
pub enum RotaryScaling {
    /// All frequencies are divided by a factor ([Chen et al.
    /// 2023](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// That of Llama 3.1: slow frequencies are divided by a factor, fast ones stay, and those between
    /// two limits are interpolated.
    Llama3 {
        /// The factor.
        factor: f64,
        /// The turns over `trained` positions below which a frequency is slow.
        slow: f64,
        /// The turns above which it is fast.
        fast: f64,
        /// The length of the sequences of the original training.
        trained: usize,
    },
    /// YaRN ([Peng et al. 2023](https://arxiv.org/abs/2309.00071)).
    Yarn {
        /// The factor of slow frequencies' wavelengths.
        factor: f64,
        /// The factor of cosines and sines. YaRN's own is [`RotaryScaling::yarn_attention`].
        attention: f64,
        /// The turns over `trained` positions above which a frequency stays; usually 32.
        fast: f64,
        /// The turns below which it is divided by the factor; usually 1.
        slow: f64,
        /// Whether the limits are rounded to whole pairs of features, outwards.
        truncate: bool,
        /// The length of the sequences of the original training.
        trained: usize,
    },
}

impl RotaryScaling {
    /// YaRN's factor of cosines and sines: `0.1 ln(factor) + 1`, or 1 for a factor of at most 1.
    pub fn yarn_attention(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }
}

/// Configuration of a [`RotaryEmbedding`](super::RotaryEmbedding).
#[derive(Config, Debug)]
pub struct RotaryConfig {
    /// The features of a head.
    pub head_dim: usize,
    /// The base of the frequencies: pair `p` turns by `base^(-2 p / rotated)` radians for each
    /// position. Default: 10000
    #[config(default = 10_000.0)]
    pub base: f64,
    /// How many of a head's first features are rotated, an even number. Default: all
    #[config(default = "None")]
    pub rotated: Option<usize>,
    /// How the frequencies are scaled. Default: not at all
    #[config(default = "None")]
    pub scaling: Option<RotaryScaling>,
    /// Whether features `2 p` and `2 p + 1` are a pair (GPT-J), instead of `p` and `p + rotated /
    /// 2` (GPT-NeoX, Llama in `transformers`). Default: `false`
    #[config(default = false)]
    pub interleaved: bool,
}

/// The frequencies of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryFrequencies {
    /// Radians per position of each pair of features, from the fastest to the slowest.
    pub frequencies: Vec<f32>,
    /// The factor of cosines and sines: 1 without YaRN.
    pub factor: f32,
}

impl RotaryConfig {
    /// The frequencies, computed in f32 as `transformers` does.
    ///
    /// # Panics
    /// With [`Invalid`](burn_rocm::RocmError::Invalid) if the rotated features are odd, none, more
    /// than a head has or more than 512, or if a number is not positive.
    pub fn frequencies(&self) -> RotaryFrequencies {
        let rotated = self.rotated.unwrap_or(self.head_dim);
        if rotated < 2 || !rotated.is_multiple_of(2) || rotated > self.head_dim.min(2 * MOST_PAIRS) {
            let most = self.head_dim.min(2 * MOST_PAIRS);
            let expected = format!("an even number of rotated features from 2 to {most}");
            refuse("RotaryConfig", expected, rotated.to_string());
        }
        positive("base", self.base);
        let frequency = |pair: usize| {
            let exponent = (2 * pair) as f32 / rotated as f32;
            1.0 / (self.base as f32).powf(exponent)
        };
        let plain: Vec<f32> = (0..rotated / 2).map(frequency).collect();
        let with = |frequencies| RotaryFrequencies { frequencies, factor: 1.0 };
        let Some(scaling) = &self.scaling else { return with(plain) };
        match *scaling {
            RotaryScaling::Linear { factor } => {
                positive("factor", factor);
                with(plain.into_iter().map(|frequency| frequency / factor as f32).collect())
            }
            RotaryScaling::Llama3 { factor, slow, fast, trained } => {
                positive("factor", factor);
                with(llama3(plain, factor as f32, slow as f32, fast as f32, trained as f32))
            }
            RotaryScaling::Yarn { factor, attention, .. } => {
                positive("factor", factor);
                let frequencies = yarn(plain, rotated, self.base, scaling);
                RotaryFrequencies { frequencies, factor: attention as f32 }
            }
        }
    }
}

fn positive(what: &str, number: f64) {
    if number.is_nan() || number <= 0.0 {
        refuse("RotaryConfig", format!("a positive {what}"), number.to_string());
    }
}

fn llama3(plain: Vec<f32>, factor: f32, slow: f32, fast: f32, trained: f32) -> Vec<f32> {
    let scale = |frequency: f32| {
        let wavelength = std::f32::consts::TAU / frequency;
        if wavelength > trained / slow {
            frequency / factor
        } else if wavelength < trained / fast {
            frequency
        } else {
            let smooth = (trained / wavelength - slow) / (fast - slow);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    };
    plain.into_iter().map(scale).collect()
}

/// `scaling` is YaRN's.
fn yarn(plain: Vec<f32>, rotated: usize, base: f64, scaling: &RotaryScaling) -> Vec<f32> {
    let &RotaryScaling::Yarn { factor, fast, slow, truncate, trained, .. } = scaling else { return plain };
    // The pair that turns `turns` times over the trained length.
    let pair = |turns: f64| {
        rotated as f64 * (trained as f64 / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
    };
    let (mut first, mut last) = (pair(fast), pair(slow));
    if truncate {
        (first, last) = (first.floor(), last.ceil());
    }
    let first = first.max(0.0);
    let mut last = last.min((rotated - 1) as f64);
    if first == last {
        // The ramp between the two pairs must not be vertical.
        last += 0.001;
    }
    let scale = |(at, frequency): (usize, f32)| {
        let ramp = ((at as f32 - first as f32) / (last - first) as f32).clamp(0.0, 1.0);
        let kept = 1.0 - ramp;
        frequency / factor as f32 * (1.0 - kept) + frequency * kept
    };
    plain.into_iter().enumerate().map(scale).collect()
}
