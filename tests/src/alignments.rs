//! The CTC loss by its definition, the sum over every alignment. Suitable only for short sequences.

/// Sequences and their target labels.
#[derive(Debug, Clone, Copy)]
pub struct Sequences<'a> {
    /// Steps, sequences and classes.
    pub dims: [usize; 3],
    /// The number of labels that `targets` has for each sequence.
    pub labels: usize,
    /// The labels, `[sequences, labels]`.
    pub targets: &'a [i64],
    /// The number of steps of each sequence, at most that of `dims`.
    pub input_lengths: &'a [i64],
    /// The number of labels of each sequence, at most `labels`.
    pub target_lengths: &'a [i64],
    /// The class of the blank.
    pub blank: usize,
}

/// The labels of an alignment: repetitions are merged, then blanks dropped.
fn said(path: &[usize], blank: usize) -> Vec<i64> {
    let mut merged = path.to_vec();
    merged.dedup();
    merged.into_iter().filter(|&class| class != blank).map(|class| class as i64).collect()
}

impl Sequences<'_> {
    /// Each sequence's loss, and the gradient of the log-probabilities
    /// `[steps, sequences, classes]` for losses weighted by `grad`. Without any alignment, the loss
    /// is infinite and its gradient 0.
    pub fn by_enumeration(&self, log_probs: &[f64], grad: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let [_, batch, classes] = self.dims;
        let mut gradient = vec![0.0; log_probs.len()];
        let losses = (0..batch).map(|n| {
            let steps = self.input_lengths[n] as usize;
            let start = n * self.labels;
            let target = &self.targets[start..start + self.target_lengths[n] as usize];
            let at = |t: usize, class: usize| (t * batch + n) * classes + class;
            let mut total = 0.0;
            let mut share = vec![0.0; log_probs.len()];
            for number in 0..classes.pow(steps as u32) {
                let path: Vec<usize> = (0..steps).map(|t| number / classes.pow(t as u32) % classes).collect();
                if said(&path, self.blank) != target {
                    continue;
                }
                let p = path.iter().enumerate().map(|(t, &class)| log_probs[at(t, class)]).sum::<f64>().exp();
                total += p;
                path.iter().enumerate().for_each(|(t, &class)| share[at(t, class)] += p);
            }
            if total > 0.0 {
                gradient.iter_mut().zip(&share).for_each(|(g, s)| *g -= grad[n] * s / total);
            }
            -total.ln()
        });
        (losses.collect(), gradient)
    }
}
