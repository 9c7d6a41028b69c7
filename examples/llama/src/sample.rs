//! How the next token is chosen from logits. The device draws it (`burn_rocm::fused::decode`). The
//! functions here compute the same probabilities on the host, with which tests compare the device's.

use std::collections::BTreeSet;

use burn_rocm::fused::decode;

use crate::config::Generation;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// How tokens are drawn. The order is that of `transformers`: penalty, temperature, top-k, top-p,
/// min-p.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits. 0: always the most likely token.
    pub temperature: f64,
    /// Draws from so many of the most likely tokens. 0: from all.
    pub top_k: usize,
    /// Draws from the most likely tokens whose probabilities reach this sum.
    pub top_p: f64,
    /// Draws from tokens with at least this part of the largest probability.
    pub min_p: f64,
    /// Makes tokens of the text so far less likely: divides their logits above 0, and multiplies
    /// those below.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    /// Always the most likely token.
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

/// `top_p`, above 0. Authors and clients write 0 for "only the most likely token"; the smallest sum
/// above 0 keeps just that token.
pub(crate) fn above_0(top_p: f64) -> f64 {
    if top_p == 0.0 { f32::MIN_POSITIVE.into() } else { top_p }
}

impl Sampling {
    /// What the model's authors recommend.
    pub fn recommended(generation: &Generation) -> Self {
        let none = Self::default();
        let repetition_penalty = generation.repetition_penalty.unwrap_or(1.0);
        if !generation.sample {
            return Self { repetition_penalty, ..none };
        }
        Self {
            temperature: generation.temperature.unwrap_or(1.0),
            // The default of `transformers`.
            top_k: generation.top_k.unwrap_or(50),
            top_p: generation.top_p.map_or(1.0, above_0),
            min_p: generation.min_p.unwrap_or(0.0),
            repetition_penalty,
        }
    }

    /// The same for the device.
    pub fn on_device(&self, seed: u64) -> decode::Sampling {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty } = *self;
        decode::Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            seed,
            ..decode::Sampling::default()
        }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn check(&self) -> Result<()> {
        let wrong = |name, expected: &str, found: f64| {
            Err(Error::Argument { name, expected: expected.to_owned(), found: found.to_string() })
        };
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong("temperature", "a number from 0", self.temperature);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top-p", "a number above 0, up to 1", self.top_p);
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("min-p", "a number from 0 to 1", self.min_p);
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return wrong("repetition-penalty", "a number above 0", self.repetition_penalty);
        }
        Ok(())
    }

    /// The tokens that may come next with their probabilities, the most likely one first.
    ///
    /// `text`: the tokens so far, for the penalty.
    pub fn candidates(&self, logits: &[f32], text: &[u32]) -> Vec<(u32, f64)> {
        let mut logits: Vec<f64> = logits.iter().map(|&logit| logit.into()).collect();
        for token in text.iter().collect::<BTreeSet<_>>() {
            if let Some(logit) = logits.get_mut(*token as usize) {
                let penalty = self.repetition_penalty;
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
        // A NaN comes last, never first.
        let key = |logit: f64| if logit.is_nan() { f64::NEG_INFINITY } else { logit };
        let mut order: Vec<(u32, f64)> = (0..).zip(logits.into_iter().map(key)).collect();
        // Among equals, the smaller id comes first.
        let before = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let count = match (self.temperature, self.top_k) {
            (0.0, _) => 1,
            (_, 0) => order.len(),
            (_, top_k) => top_k.min(order.len()),
        };
        if count < order.len() {
            order.select_nth_unstable_by(count, before);
            order.truncate(count);
        }
        order.sort_unstable_by(before);
        if self.temperature > 0.0 {
            order.iter_mut().for_each(|(_, logit)| *logit /= self.temperature);
        }
        softmax(&mut order);
        let mut sum = 0.0;
        let kept = order.iter().take_while(|(_, probability)| {
            let before = sum;
            sum += probability;
            before < self.top_p
        });
        let kept = kept.count();
        order.truncate(kept);
        let least = order.first().map_or(0.0, |(_, best)| best * self.min_p);
        order.retain(|(_, probability)| *probability >= least);
        let sum: f64 = order.iter().map(|(_, probability)| probability).sum();
        order.iter_mut().for_each(|(_, probability)| *probability /= sum);
        order
    }

    /// The next token; `None` without logits.
    pub fn next(&self, logits: &[f32], text: &[u32], rng: &mut Rng) -> Option<u32> {
        let candidates = self.candidates(logits, text);
        let mut rest = rng.uniform();
        for &(token, probability) in &candidates {
            rest -= probability;
            if rest < 0.0 {
                return Some(token);
            }
        }
        candidates.last().map(|&(token, _)| token)
    }
}

/// Turns sorted logits into probabilities.
fn softmax(order: &mut [(u32, f64)]) {
    let Some(&(_, largest)) = order.first() else { return };
    let mut sum = 0.0;
    for (_, logit) in order.iter_mut() {
        // All logits may be infinite.
        *logit = if *logit == largest { 1.0 } else { (*logit - largest).exp() };
        sum += *logit;
    }
    order.iter_mut().for_each(|(_, probability)| *probability /= sum);
}
