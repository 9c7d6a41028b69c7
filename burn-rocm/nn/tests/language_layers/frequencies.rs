//! The frequencies of a rotary embedding, against the formulas of `transformers` in f64.

use burn_rocm_nn::language::{Positions, RotaryConfig, RotaryScaling};
use burn_rocm_tests::limits::unit;

use crate::support::*;

/// YaRN with its usual turns, 32 and 1, of a part of a head's features.
#[derive(Clone, Copy, Debug)]
struct Yarn {
    head_dim: usize,
    rotated: usize,
    base: f64,
    factor: f64,
    trained: usize,
    truncate: bool,
}

/// GPT-OSS, and a head of which two fifths are rotated, as in Phi.
const CASES: [Yarn; 4] = [
    Yarn { head_dim: 64, rotated: 64, base: 150_000.0, factor: 32.0, trained: 4096, truncate: false },
    Yarn { head_dim: 64, rotated: 64, base: 150_000.0, factor: 32.0, trained: 4096, truncate: true },
    Yarn { head_dim: 80, rotated: 32, base: 10_000.0, factor: 8.0, trained: 2048, truncate: false },
    Yarn { head_dim: 80, rotated: 32, base: 10_000.0, factor: 8.0, trained: 2048, truncate: true },
];

impl Yarn {
    fn config(self) -> RotaryConfig {
        let Self { head_dim, rotated, base, factor, trained, truncate } = self;
        let attention = RotaryScaling::yarn_attention(factor);
        let scaling = RotaryScaling::Yarn { factor, attention, fast: 32.0, slow: 1.0, truncate, trained };
        RotaryConfig::new(head_dim).with_base(base).with_rotated(Some(rotated)).with_scaling(Some(scaling))
    }

    /// The pairs between which frequencies are interpolated: `find_correction_range` of
    /// `_compute_yarn_parameters` (`modeling_rope_utils.py` of `transformers` 4.57). `dim` is
    /// `head_dim * partial_rotary_factor` there.
    fn range(self) -> [f64; 2] {
        let dim = self.rotated as f64;
        let pair = |turns: f64| {
            dim * (self.trained as f64 / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * self.base.ln())
        };
        let [low, high] = match self.truncate {
            true => [pair(32.0).floor(), pair(1.0).ceil()],
            false => [pair(32.0), pair(1.0)],
        };
        [low.max(0.0), high.min(dim - 1.0)]
    }

    /// `inv_freq` of `_compute_yarn_parameters`.
    fn frequencies(self) -> Vec<f64> {
        let [low, high] = self.range();
        let of = |pair: usize| {
            let turned = self.base.powf(2.0 * pair as f64 / self.rotated as f64);
            let (extrapolated, interpolated) = (1.0 / turned, 1.0 / (self.factor * turned));
            let kept = 1.0 - ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
            interpolated * (1.0 - kept) + extrapolated * kept
        };
        (0..self.rotated / 2).map(of).collect()
    }

    /// The largest relative error of a frequency in f32. The exponent's error makes the power wrong by
    /// `ln(base)` units; rounding the quotient and the power adds up to 3. The ramp's ends are rounded to
    /// f32, so the ramp is off by `low / (high - low) + 3` units, and by two more where 1 is subtracted
    /// from it. A frequency becomes at least `1 / factor` of itself, so relative to the result these units
    /// count `factor` times. Four more units allow for the products and their sum.
    fn share(self) -> f64 {
        let [low, high] = self.range();
        (self.base.ln() + 3.0 + self.factor * (low / (high - low) + 5.0) + 4.0) * unit(DType::F32)
    }
}

#[track_caller]
fn assert_near(what: &str, found: f64, expected: f64, share: f64) {
    let off = (found - expected).abs() / expected.abs();
    assert!(off <= share, "{what}: {found}, not {expected}: {off:e} of {share:e}");
}

#[test]
fn yarn_is_that_of_transformers() {
    for case in CASES {
        let found = case.config().frequencies();
        let expected = case.frequencies();
        assert_eq!(found.frequencies.len(), expected.len());
        for (pair, (&found, expected)) in found.frequencies.iter().zip(expected).enumerate() {
            assert_near(&format!("{case:?}, pair {pair}"), found.into(), expected, case.share());
        }
        assert_near("the factor", found.factor.into(), 0.1 * case.factor.ln() + 1.0, unit(DType::F32));
    }
}

/// Numbers that the same formulas give in Python: without `truncate`, both limits lie between pairs.
#[test]
fn yarn_has_these_frequencies() {
    let expected: [(Yarn, [(usize, f64); 4]); 4] = [
        (
            CASES[0],
            [
                (8, 0.050_813_274_815_461_475),
                (12, 0.006_794_959_489_732_219),
                (16, 0.000_456_483_919_223_240_86),
                (31, 3.023_511_428_119_214_4e-7),
            ],
        ),
        (
            CASES[1],
            [
                (8, 0.050_813_274_815_461_475),
                (12, 0.007_015_713_910_504_388),
                (16, 0.000_580_947_501_931_112_4),
                (31, 3.023_511_428_119_214_4e-7),
            ],
        ),
        (
            CASES[2],
            [
                (2, 0.316_227_766_016_837_94),
                (6, 0.022_578_094_941_745_08),
                (8, 0.004_233_133_441_317_673),
                (10, 0.000_419_459_168_623_606_14),
            ],
        ),
        (
            CASES[3],
            [
                (2, 0.316_227_766_016_837_94),
                (6, 0.023_717_082_451_262_844),
                (8, 0.005),
                (10, 0.000_790_569_415_042_095),
            ],
        ),
    ];
    for (case, numbers) in expected {
        let found = case.config().frequencies().frequencies;
        for (pair, expected) in numbers {
            assert_near(&format!("{case:?}, pair {pair}"), found[pair].into(), expected, case.share());
        }
    }
}

/// `_compute_llama3_parameters`. The share of a frequency between the limits is off by the errors of a
/// frequency and of its wavelength, times `fast / (fast - slow)`; otherwise as for YaRN.
#[test]
fn llama_3_is_that_of_transformers() {
    let (base, factor, slow, fast, trained) = (500_000f64, 8.0, 1.0, 4.0, 8192);
    let scaling = RotaryScaling::Llama3 { factor, slow, fast, trained };
    let found = RotaryConfig::new(64).with_base(base).with_scaling(Some(scaling)).frequencies();
    assert_eq!((found.frequencies.len(), found.factor), (32, 1.0));
    let of_between = fast / (fast - slow) * (base.ln() + 6.0) + 4.0;
    let share = (base.ln() + 3.0 + factor * of_between + 4.0) * unit(DType::F32);
    let mut between = 0;
    for (pair, &found) in found.frequencies.iter().enumerate() {
        let plain = base.powf(-2.0 * pair as f64 / 64.0);
        let turns = trained as f64 * plain / (2.0 * std::f64::consts::PI);
        let kept = ((turns - slow) / (fast - slow)).clamp(0.0, 1.0);
        between += usize::from(kept > 0.0 && kept < 1.0);
        let expected = (1.0 - kept) * plain / factor + kept * plain;
        assert_near(&format!("pair {pair}"), found.into(), expected, share);
    }
    assert!(between > 1, "{between} frequencies between the limits");
    // Two of them from the same formulas in Python.
    for (pair, expected) in [(15, 0.001_371_893_567_761_138_1), (17, 0.000_178_507_812_767_996_38)] {
        assert_near(&format!("pair {pair}"), found.frequencies[pair].into(), expected, share);
    }
}

#[test]
fn linear_scaling_divides_every_frequency() {
    let plain = RotaryConfig::new(64).with_base(500_000.0);
    let all = plain.frequencies();
    assert_eq!((all.frequencies.len(), all.frequencies[0], all.factor), (32, 1.0, 1.0));
    let linear = plain.with_scaling(Some(RotaryScaling::Linear { factor: 4.0 })).frequencies();
    assert!(linear.frequencies.iter().zip(&all.frequencies).all(|(scaled, plain)| *scaled == plain / 4.0));
}

/// `apply_rotary_pos_emb` of models with `partial_rotary_factor`: the first features of a head turn as
/// `x cos + rotate_half(x) sin`, the others stay as they are.
///
/// An angle of at most 4 radians is off by the frequency's share of it and by its own rounding. Cosine
/// and sine have slopes of at most 1 and are off by 2 units themselves; the factor and the turn round
/// three times more.
#[test]
fn a_part_of_the_features_is_rotated() {
    let random = Random::new();
    for case in CASES {
        let Yarn { head_dim, rotated, factor, .. } = case;
        let length = 5;
        let packed = uniform(&random, &[1, length, 3 * head_dim]).convert_dtype(DType::F32);
        let embedding = case.config().init::<Ours>(&Default::default());
        let leaf = tensor::<Ours, 3>(&packed, DType::F32);
        let heads = embedding.forward(leaf, [1, 1], &Positions::FromZero, None);
        let packed: Vec<f64> = packed.iter::<f64>().collect();
        let (frequencies, of_both) = (case.frequencies(), 0.1 * factor.ln() + 1.0);
        for (which, found) in [heads.query, heads.key].into_iter().enumerate() {
            let found: Vec<f64> = found.into_data().iter::<f64>().collect();
            for position in 0..length {
                let head = &packed[(3 * position + which) * head_dim..][..head_dim];
                let found = &found[position * head_dim..][..head_dim];
                assert_eq!(found[rotated..], head[rotated..], "{case:?}");
                for (at, found) in found[..rotated].iter().enumerate() {
                    let pair = at % (rotated / 2);
                    let turned = if at < rotated / 2 { -head[at + rotated / 2] } else { head[pair] };
                    let angle = position as f64 * frequencies[pair];
                    let expected = of_both * (head[at] * angle.cos() + turned * angle.sin());
                    let share = 4.0 * (case.share() + unit(DType::F32)) + 8.0 * unit(DType::F32);
                    let limit = of_both * (head[at].abs() + turned.abs()) * share;
                    let off = (found - expected).abs();
                    assert!(off <= limit, "{case:?}, {position}, {at}: {found}, not {expected}");
                }
            }
        }
    }
}
