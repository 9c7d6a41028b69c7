//! The probabilities that a request asks for, from logits on the host.

use super::job::Chances;

/// The probability of the drawn token, and of the most likely ones; among equals, the smaller id
/// comes first.
pub(super) fn of_row(logits: &[f32], drawn: u32, count: usize) -> Chances {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    let chance = |logit: f32| (f64::from(logit - largest) - sum.ln()) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let logit = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let before = |a: &u32, b: &u32| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b));
    let count = count.min(order.len());
    if count < order.len() {
        order.select_nth_unstable_by(count, before);
        order.truncate(count);
    }
    order.sort_unstable_by(before);
    let best = order.into_iter().map(|id| (id, chance(logit(id)))).collect();
    Chances { drawn: chance(logit(drawn)), best }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_the_logarithms_of_the_softmax() {
        let quarters = [1f32, 2.0, 1.0, 0.0].map(|count| (count / 4.0).ln() + 100.0);
        let Chances { drawn, best } = of_row(&quarters, 0, 2);
        // A logit near 100 is rounded by up to 2^-18.
        let near = |found: f32, expected: f32| (found - expected.ln()).abs() < 1e-5;
        assert!(near(drawn, 0.25), "{drawn}");
        assert_eq!(best.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 0]);
        assert!(near(best[0].1, 0.5) && near(best[1].1, 0.25), "{best:?}");
        assert_eq!(of_row(&quarters, 1, 9).best.len(), 4);
        assert!(of_row(&quarters, 1, 0).best.is_empty());
    }
}
