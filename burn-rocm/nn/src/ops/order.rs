//! The order in memory in which the ranks reduce a gradient.
//!
//! The gradient of a convolution's weights may have its channels last, and so may the optimizer's
//! state. If it were reduced in row-major order, it would be copied before, and the optimizer would
//! copy it back. A reduction adds elements at the same place in memory, so all ranks must use one
//! order. Each rank chooses its convolutions' order by itself, so the ranks agree once.

use burn_backend::{DType, TensorData};
use burn_rocm::fused::{from_rows, is_channels_last, read_all, rows_of, upload};
use burn_rocm::graph::is_capturing;
use burn_rocm::{Communicator, ReduceOp, RocmError, RocmTensor};

use super::buckets::Entry;

/// How many reductions pass before the ranks agree. A convolution chooses its order at the third use.
const BEFORE: usize = 3;

/// Which gradients are reduced with their channels last.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// How many reductions there were of these parameters.
    reductions: usize,
    agreed: bool,
    /// For each parameter, whether its gradient is reduced with the channels last.
    channels_last: Vec<bool>,
}

/// Whether a gradient may have its channels last. All ranks give the same answer.
fn may_be_last(entry: &Entry) -> bool {
    entry.dims.len() == 4 && matches!(entry.dtype, DType::F16 | DType::BF16)
}

impl Orders {
    /// Called by all ranks with each reduction. After [`BEFORE`] of them, each rank says which of its
    /// gradients have their channels last, and waits for the others. From then on, those that have
    /// them on every rank are reduced in that order. Within a capture nothing is asked; the next
    /// reduction outside of one asks.
    pub(super) fn agree(
        &mut self,
        ranks: &Communicator,
        entries: &[Entry],
        grads: &[Option<RocmTensor>],
    ) -> Result<(), RocmError> {
        self.reductions = self.reductions.saturating_add(1);
        if self.agreed || self.reductions <= BEFORE || is_capturing() {
            return Ok(());
        }
        self.channels_last = vec![false; entries.len()];
        let asked: Vec<usize> = (0..entries.len()).filter(|&entry| may_be_last(&entries[entry])).collect();
        if !asked.is_empty() {
            // A rank that lacks a gradient takes either order.
            let own = |&entry: &usize| grads[entry].as_ref().is_none_or(is_channels_last);
            let own: Vec<f32> = asked.iter().map(|entry| if own(entry) { 1.0 } else { 0.0 }).collect();
            let own = upload(TensorData::new(own, [asked.len()]), DType::F32, &ranks.device())?;
            let all = read_all(vec![ranks.all_reduce(ReduceOp::Sum, own)?.join()?])?;
            let counts = all.iter().flat_map(|data| data.iter::<f32>());
            for (entry, count) in asked.into_iter().zip(counts) {
                self.channels_last[entry] = count as usize == ranks.size();
            }
        }
        self.agreed = true;
        Ok(())
    }

    fn is_last(&self, entry: usize) -> bool {
        self.channels_last.get(entry).is_some_and(|&last| last)
    }

    /// The shape in which a gradient is reduced.
    pub(super) fn dims(&self, entries: &[Entry], entry: usize) -> Vec<usize> {
        match entries[entry].dims[..] {
            [outputs, inputs, height, width] if self.is_last(entry) => vec![outputs, height, width, inputs],
            ref dims => dims.to_vec(),
        }
    }

    /// A view of a gradient in this shape. A gradient that does not have four axes stays as it is.
    pub(super) fn turned(&self, entry: usize, grad: RocmTensor) -> Result<RocmTensor, RocmError> {
        match self.is_last(entry) && grad.dims().len() == 4 {
            true => rows_of(grad),
            false => Ok(grad),
        }
    }

    /// Undoes [`turned`](Self::turned).
    pub(super) fn restored(&self, entry: usize, reduced: RocmTensor) -> Result<RocmTensor, RocmError> {
        if self.is_last(entry) { from_rows(reduced) } else { Ok(reduced) }
    }
}
