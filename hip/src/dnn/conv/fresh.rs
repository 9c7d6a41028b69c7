//! Convolutions whose inputs have a new size in each call, such as those of speech or text.
//!
//! MIOpen compiles kernels for each shape, which takes up to seconds. A shape that does not come back
//! is not worth it: kernels of this project take any shape.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::{ConvDesc, ConvDirection};
use crate::Result;
use crate::device::capture::is_capturing;
use crate::dnn::Dnn;
use crate::settings::settings;

/// Inputs of different sizes that the same weights have had before a new size counts as one that may
/// not come back. Training, the shorter last batch, and as much for validation are four.
const SIZES: usize = 8;
/// Uses of a new size, if its family has many, before MIOpen computes it.
const USES: usize = 3;
/// The most families, and sizes of a family. A program with more gains nothing from the counts.
const MOST: usize = 1024;

/// What stays the same when only the size of the input changes: direction, weights and options.
type Family = (ConvDirection, ConvDesc);

/// A size of input.
#[derive(Default)]
struct Size {
    /// Its uses, until MIOpen computes it.
    uses: usize,
    /// Whether its family had many sizes when it came first.
    waits: bool,
}

/// How often each size of input has come, by family.
#[derive(Default)]
pub(in crate::dnn) struct Fresh(Mutex<HashMap<Family, HashMap<Vec<usize>, Size>>>);

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    /// A convolution.
    Plain,
    /// A fusion plan. If the shape is too new, a plain convolution follows, and counts the use.
    Plan,
}

impl Fresh {
    /// Counts a use. Whether the shape is still too new for MIOpen: if it has come fewer than `least`
    /// times, or by default if its family has had [`SIZES`] others. In a graph, what own kernels
    /// computed until now stays with them, because MIOpen must not meet a shape there first.
    fn count(
        &self,
        family: Family,
        x: &[usize],
        least: Option<usize>,
        asking: Asking,
        captured: bool,
    ) -> bool {
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if families.len() >= MOST {
            families.clear();
        }
        let sizes = families.entry(family).or_default();
        if sizes.len() >= MOST {
            sizes.clear();
        }
        let waits = sizes.len() >= SIZES;
        let size = sizes.entry(x.to_vec()).or_insert(Size { uses: 0, waits });
        let least = least.unwrap_or(if size.waits { USES } else { 0 });
        let fresh = size.uses < least || captured && least > 0;
        if !(fresh && asking == Asking::Plan) {
            size.uses += 1;
        }
        fresh
    }
}

impl Dnn {
    /// Counts a use of a convolution, unless MIOpen has computed it before. Whether its sizes are so
    /// new that own kernels should compute it ([`Config::conv_fresh`](crate::Config::conv_fresh)).
    ///
    /// # Errors
    /// `Config` for an invalid setting.
    pub fn conv_is_fresh(&self, direction: ConvDirection, desc: &ConvDesc) -> Result<bool> {
        self.is_fresh(direction, desc, Asking::Plain)
    }

    /// As [`Dnn::conv_is_fresh`], for [`Dnn::conv_bias_activation`].
    ///
    /// # Errors
    /// As there.
    pub fn conv_plan_is_fresh(&self, desc: &ConvDesc) -> Result<bool> {
        self.is_fresh(ConvDirection::Forward, desc, Asking::Plan)
    }

    fn is_fresh(&self, direction: ConvDirection, desc: &ConvDesc, asking: Asking) -> Result<bool> {
        // In deterministic mode, a shape's history must not decide who computes it.
        let least = settings()?.conv_fresh.or(self.deterministic.then_some(0));
        if least == Some(0) {
            return Ok(false);
        }
        let prepared = |desc: &ConvDesc| self.convolutions[direction as usize].peek(desc).is_some();
        // MIOpen may compute it in the other order of channels.
        let other = || ConvDesc { channels_last: !desc.channels_last, ..desc.clone() };
        if prepared(desc) || prepared(&other()) {
            return Ok(false);
        }
        let family = (direction, ConvDesc { x: Vec::new(), y: Vec::new(), ..desc.clone() });
        Ok(self.fresh.count(family, &desc.x, least, asking, is_capturing()))
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

    fn count(fresh: &Fresh, desc: &ConvDesc, least: Option<usize>, asking: Asking, captured: bool) -> bool {
        let family = ConvDesc { x: Vec::new(), y: Vec::new(), ..desc.clone() };
        fresh.count((ConvDirection::Forward, family), &desc.x, least, asking, captured)
    }

    fn plain(fresh: &Fresh, desc: &ConvDesc, least: Option<usize>) -> bool {
        count(fresh, desc, least, Asking::Plain, false)
    }

    #[test]
    fn by_default_only_many_sizes_wait() {
        let fresh = Fresh::default();
        for round in 0..3 {
            for length in 10..10 + SIZES {
                assert!(!plain(&fresh, &desc(length, 3), None), "{length} in round {round}");
            }
        }
        for length in 50..60 {
            for use_ in 0..USES + 2 {
                assert_eq!(plain(&fresh, &desc(length, 3), None), use_ < USES, "use {use_} of {length}");
            }
        }
        assert!(!plain(&fresh, &desc(50, 5), None), "other weights");
    }

    #[test]
    fn with_a_number_every_size_waits_for_it() {
        let fresh = Fresh::default();
        for use_ in 0..4 {
            assert_eq!(plain(&fresh, &desc(10, 3), Some(2)), use_ < 2, "use {use_}");
        }
    }

    #[test]
    fn a_plan_and_the_convolution_that_replaces_it_count_once() {
        let fresh = Fresh::default();
        for use_ in 0..3 {
            let waits = use_ < 2;
            assert_eq!(count(&fresh, &desc(10, 3), Some(2), Asking::Plan, false), waits, "use {use_}");
            if waits {
                assert!(plain(&fresh, &desc(10, 3), Some(2)), "use {use_}");
            }
        }
    }

    #[test]
    fn a_graph_is_not_the_first_to_give_miopen_a_shape_that_waited() {
        let fresh = Fresh::default();
        for _ in 0..3 {
            plain(&fresh, &desc(10, 3), Some(3));
        }
        assert!(count(&fresh, &desc(10, 3), Some(3), Asking::Plain, true));
        assert!(!plain(&fresh, &desc(10, 3), Some(3)), "after the capture");
        assert!(!count(&fresh, &desc(10, 5), None, Asking::Plain, true), "a shape that never waits");
    }

    #[test]
    fn the_counts_are_bounded() {
        let fresh = Fresh::default();
        for length in 1..3 * MOST {
            for _ in 0..USES + 2 {
                plain(&fresh, &desc(length, 3), None);
            }
            plain(&fresh, &desc(5, length), None);
        }
        let families = fresh.0.lock().unwrap();
        assert!(families.len() <= MOST && families.values().all(|sizes| sizes.len() <= MOST));
    }
}
