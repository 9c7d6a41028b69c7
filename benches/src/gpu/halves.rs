//! Whether the losses of a row in a half follow those of the same row in f32.
//!
//! A half rounds the result of each op. By the analysis of Higham and Mary (2019, "A New Approach to
//! Probabilistic Rounding Error Analysis", theorem 2.4), `n` roundings in a row give a relative error of
//! at most `LAMBDA * sqrt(n) * u` to first order, with a probability of at least
//! `1 - 2 exp(-LAMBDA^2 / 2)`. A gradient passes each op once more, so `n` is twice the model's ops.
//!
//! A relative error of the gradients gives about the same relative error of the loss that the steps took
//! off, which is at most the first loss. So differences are shares of the first loss, or of a later one
//! if that is larger.

use crate::Precision;

/// 0.9993 of all results are within the limit.
const LAMBDA: f64 = 4.0;

/// The models, and the ops in a row whose results are rounded: from the input's and the weights'
/// conversion over products, activations, norms and sums to the loss.
const ROUNDINGS: [(&str, f64); 4] = [("MLP", 9.0), ("CNN", 11.0), ("ResNet-18", 48.0), ("transformer", 45.0)];

/// How far a row's losses are from those in f32, as shares of the scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Distance {
    pub(super) precision: Precision,
    /// The largest of all steps.
    pub(super) found: f64,
    /// The largest that the half's roundings explain.
    pub(super) explained: f64,
}

impl Distance {
    /// Also false for NaN.
    pub(super) fn is_explained(self) -> bool {
        self.found <= self.explained
    }
}

/// The distance of a row's losses from those of the same row in f32, which is among `rows`; `None` if
/// the row is not in a half, or if f32 was not measured.
pub(super) fn distance<'a>(
    name: &str,
    losses: &[f64],
    rows: impl IntoIterator<Item = (&'a str, &'a [f64])>,
) -> Option<Distance> {
    // A unit roundoff is half the distance of 1 to the next number: 8 and 11 significant bits.
    let (precision, unit) = [(Precision::Bf16, 2f64.powi(-8)), (Precision::F16, 2f64.powi(-11))]
        .into_iter()
        .find(|(precision, _)| name.contains(precision.suffix()))?;
    let (_, roundings) = ROUNDINGS.into_iter().find(|(model, _)| name.starts_with(model))?;
    let plain = name.replacen(precision.suffix(), "", 1);
    let (_, full) = rows.into_iter().find(|(other, _)| *other == plain)?;
    if full.is_empty() || full.len() != losses.len() {
        return None;
    }
    let apart = |(half, exact): (&f64, &f64)| (half - exact).abs() / full[0].abs().max(exact.abs());
    let found = losses.iter().zip(full).map(apart);
    // `f64::max` would drop a NaN.
    let found = found.fold(0.0, |most: f64, one| if one.is_nan() || one > most { one } else { most });
    Some(Distance { precision, found, explained: LAMBDA * (2.0 * roundings).sqrt() * unit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_is_compared_with_the_same_row_in_f32() {
        let row = |precision: &str| format!("MLP Adam step, batch 64{precision}, burn-rocm-nn, graph");
        let [plain, half] = ["", ", f16"].map(row);
        let full: [(&str, &[f64]); 3] = [
            ("MLP Adam step, batch 64", &[9.0, 9.0, 9.0]),
            (&plain, &[2.0, 1.0, 0.5]),
            (&half, &[2.0, 1.0, 0.25]),
        ];
        let of = |precision: &str, losses: &[f64]| distance(&row(precision), losses, full);
        // Each rounding of bf16 counts eight times as much as one of f16.
        let limit = 4.0 * 18f64.sqrt() / 256.0;
        let near = of(", bf16", &[2.0, 1.1, 0.5]).expect("f32 was measured");
        assert!((near.found - 0.05).abs() < 1e-12 && near.explained == limit, "{near:?}");
        assert!(near.is_explained());
        let far = of(", f16", &[2.0, 1.1, 0.5]).expect("f32 was measured");
        assert!(far.found == near.found && far.explained == limit / 8.0, "{far:?}");
        assert!(!far.is_explained());
        // A loss above the first one is its own scale.
        let grown: [(&str, &[f64]); 1] = [(&plain, &[2.0, 8.0])];
        let found = distance(&row(", bf16"), &[2.0, 10.0], grown).expect("f32 was measured");
        assert_eq!(found.found, 0.25);
        let nan = of(", bf16", &[2.0, f64::NAN, 0.5]).expect("f32 was measured");
        assert!(nan.found.is_nan() && !nan.is_explained(), "{nan:?}");
        // f32 itself, another number of steps, and a row without one in f32.
        assert_eq!(of("", &[2.0, 1.0, 0.5]), None);
        assert_eq!(of(", bf16", &[2.0, 1.0]), None);
        assert_eq!(distance(&row(", bf16"), &[2.0], []), None);
    }
}
