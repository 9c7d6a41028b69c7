//! Convolutions whose inputs have a new size in each call, such as those of speech or text.
//!
//! MIOpen compiles kernels for each shape, which takes up to seconds. A shape that does not come back
//! is not worth it: kernels of this project take any shape.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::{ConvDesc, ConvDirection};
use crate::Result;
use crate::dnn::Dnn;
use crate::settings::settings;

/// Inputs of different sizes that the same weights have had before a new size counts as one that may
/// not come back. Training, the shorter last batch, and as much for validation are four.
const SIZES: usize = 8;
/// Uses of a new size, if its family has many, before MIOpen computes it.
const USES: usize = 3;
/// The most families, and sizes of a family. A program with more gains nothing from the counts.
const MOST: usize = 1024;

/// What stays the same when only the size of the input changes: direction (`None` for a fusion
/// plan), weights and options.
type Family = (Option<ConvDirection>, ConvDesc);

/// How often each size of input has come, by family.
#[derive(Default)]
pub(in crate::dnn) struct Fresh(Mutex<HashMap<Family, HashMap<Vec<usize>, usize>>>);

impl Fresh {
    /// Counts a use. Whether the shape is still too new for MIOpen: if it has come `uses` times or
    /// fewer, or by default if its family has had [`SIZES`] others.
    fn count(&self, direction: Option<ConvDirection>, desc: &ConvDesc, uses: Option<usize>) -> bool {
        let family = ConvDesc { x: Vec::new(), y: Vec::new(), ..desc.clone() };
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if families.len() >= MOST {
            families.clear();
        }
        let sizes = families.entry((direction, family)).or_default();
        if sizes.len() >= MOST {
            sizes.retain(|_, count| *count > USES);
        }
        let others = sizes.len();
        let count = sizes.entry(desc.x.clone()).or_default();
        let known = *count;
        *count += 1;
        match uses {
            Some(uses) => known < uses,
            None => known < USES && others >= SIZES,
        }
    }
}

impl Dnn {
    /// Counts a use of a convolution, unless MIOpen has computed it before. Whether its sizes are so
    /// new that own kernels should compute it ([`Config::conv_fresh`](crate::Config::conv_fresh)).
    ///
    /// # Errors
    /// `Config` for an invalid setting.
    pub fn conv_is_fresh(&self, direction: ConvDirection, desc: &ConvDesc) -> Result<bool> {
        let uses = settings()?.conv_fresh;
        if uses == Some(0) {
            return Ok(false);
        }
        let prepared = |desc: &ConvDesc| self.convolutions[direction as usize].peek(desc).is_some();
        // MIOpen may compute it in the other order of channels.
        let other = || ConvDesc { channels_last: !desc.channels_last, ..desc.clone() };
        Ok(!prepared(desc) && !prepared(&other()) && self.fresh.count(Some(direction), desc, uses))
    }

    /// As [`Dnn::conv_is_fresh`], for [`Dnn::conv_bias_activation`].
    ///
    /// # Errors
    /// As there.
    pub fn conv_plan_is_fresh(&self, desc: &ConvDesc) -> Result<bool> {
        let uses = settings()?.conv_fresh;
        Ok(uses != Some(0) && self.fresh.count(None, desc, uses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn desc(length: usize, outputs: usize) -> ConvDesc {
        let (x, w) = ([2, 4, 1, length], [outputs, 4, 1, 3]);
        ConvDesc::new(DType::F32, &x, &w, &[1, 1], &[0, 1], &[1, 1], 1).unwrap()
    }

    const FORWARD: Option<ConvDirection> = Some(ConvDirection::Forward);

    #[test]
    fn by_default_only_many_sizes_wait() {
        let fresh = Fresh::default();
        for length in 10..10 + SIZES {
            assert!(!fresh.count(FORWARD, &desc(length, 3), None), "{length}");
        }
        for use_ in 0..USES + 2 {
            assert_eq!(fresh.count(FORWARD, &desc(50, 3), None), use_ < USES, "use {use_}");
        }
        assert!(!fresh.count(FORWARD, &desc(50, 5), None), "other weights");
        assert!(!fresh.count(Some(ConvDirection::BackwardData), &desc(50, 3), None), "another direction");
        assert!(!fresh.count(None, &desc(50, 3), None), "a plan");
    }

    #[test]
    fn with_a_number_every_size_waits_for_it() {
        let fresh = Fresh::default();
        for use_ in 0..4 {
            assert_eq!(fresh.count(FORWARD, &desc(10, 3), Some(2)), use_ < 2, "use {use_}");
        }
    }

    #[test]
    fn the_counts_are_bounded() {
        let fresh = Fresh::default();
        for length in 1..3 * MOST {
            fresh.count(FORWARD, &desc(length, 3), None);
            fresh.count(FORWARD, &desc(5, length), None);
        }
        let families = fresh.0.lock().unwrap();
        assert!(families.len() <= MOST && families.values().all(|sizes| sizes.len() <= MOST));
    }
}
