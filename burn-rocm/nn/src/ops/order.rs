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

/// How many reductions pass before the ranks agree. A convolution chooses its order at the third use, and a
/// graph is captured after the third.
const BEFORE: usize = 2;

/// Which gradients are reduced with their channels last.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// How many reductions of these parameters have ended outside of captures. The ranks agree at the
    /// same one, also if one of them had to repeat a call that was refused.
    reductions: usize,
    agreed: Option<Agreed>,
}

/// What the ranks have agreed on.
#[derive(Debug)]
struct Agreed {
    /// For each parameter, whether its gradient is reduced with the channels last.
    channels_last: Vec<bool>,
    /// The shapes in which gradients are reduced: `[outputs, height, width, inputs]` for those.
    shapes: Vec<Entry>,
}

/// Whether a gradient may have its channels last. All ranks give the same answer.
fn may_be_last(entry: &Entry) -> bool {
    entry.dims.len() == 4 && matches!(entry.dtype, DType::F16 | DType::BF16)
}

/// The ranks' numbers, added up.
fn summed(ranks: &Communicator, own: Vec<f32>) -> Result<Vec<f32>, RocmError> {
    let count = own.len();
    let own = upload(TensorData::new(own, [count]), DType::F32, &ranks.device())?;
    let all = read_all(vec![ranks.all_reduce(ReduceOp::Sum, own)?.join()?])?;
    Ok(all.iter().flat_map(|data| data.iter::<f32>()).collect())
}

impl Orders {
    /// Called by all ranks with each reduction, before its other collectives. After [`BEFORE`] of them,
    /// each rank says which gradients it has, and which of these have their channels last, and waits
    /// for the others. From then on, those that have them on every rank are reduced in that order.
    /// Within a capture nothing is asked; the next reduction outside of one asks.
    ///
    /// # Errors
    /// Those of the collective. The group has ended then, because other ranks may have the answers.
    pub(super) fn agree(
        &mut self,
        ranks: &Communicator,
        entries: &[Entry],
        grads: &[Option<RocmTensor>],
    ) -> Result<(), RocmError> {
        if self.agreed.is_some() || self.reductions < BEFORE || is_capturing() {
            return Ok(());
        }
        let asked: Vec<usize> = (0..entries.len()).filter(|&entry| may_be_last(&entries[entry])).collect();
        let flag = |is: bool| if is { 1.0 } else { 0.0 };
        // For each gradient: whether this rank has it, and whether it has its channels last.
        let own: Vec<f32> = asked
            .iter()
            .flat_map(|&entry| {
                let grad = grads[entry].as_ref();
                [grad.is_some(), grad.is_some_and(is_channels_last)].map(flag)
            })
            .collect();
        let (mut channels_last, mut shapes) = (vec![false; entries.len()], entries.to_vec());
        if !asked.is_empty() {
            let counts = summed(ranks, own).inspect_err(|_| ranks.abort())?;
            for (entry, count) in asked.into_iter().zip(counts.chunks(2)) {
                if count[0] > 0.0 && count[0] == count[1] {
                    channels_last[entry] = true;
                    shapes[entry].dims[1..].rotate_left(1);
                }
            }
        }
        self.agreed = Some(Agreed { channels_last, shapes });
        Ok(())
    }

    /// Called when a reduction has ended.
    pub(super) fn ended(&mut self) {
        if !is_capturing() {
            self.reductions = self.reductions.saturating_add(1);
        }
    }

    fn is_last(&self, entry: usize) -> bool {
        self.agreed.as_ref().is_some_and(|agreed| agreed.channels_last[entry])
    }

    /// The parameters, with the shapes in which their gradients are reduced.
    pub(super) fn shapes<'e>(&'e self, entries: &'e [Entry]) -> &'e [Entry] {
        self.agreed.as_ref().map_or(entries, |agreed| &agreed.shapes)
    }

    /// A view of a gradient in its shape of [`shapes`](Self::shapes). A gradient that does not have four
    /// axes stays as it is.
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
