//! A step of generating text as a graph.

use std::sync::Arc;

use burn_rocm::fused::decode::SampleState;
use burn_rocm::graph::Graph;
use burn_rocm::{RocmDevice, RocmError};

use super::blocks::CacheError;
use super::cache::{KvBatch, KvCache};

/// A captured step. It reads the tokens that the step before has drawn, computes the logits, draws
/// the next tokens and counts them. One launch replays it, and the host copies nothing.
///
/// The graph reads the batch and the state from their memory, so the caller keeps both. It may bind
/// other sequences to the batch and set other parameters without a new capture.
#[derive(Debug)]
pub struct DecodeStep {
    graph: Graph,
    state: Arc<SampleState>,
}

impl DecodeStep {
    /// Captures `step`, which computes the logits from [`SampleState::tokens`] and calls
    /// [`sample`](super::sample). The caller has run it at least once, which compiled its kernels.
    /// The capture changes nothing. The state may be an [`Arc`], of which the caller keeps a clone to
    /// go on without a graph if the capture fails.
    ///
    /// # Errors
    /// As [`Graph::capture`], and the error of `step`.
    pub fn capture<E: From<RocmError>>(
        device: &RocmDevice,
        batch: &KvBatch,
        state: impl Into<Arc<SampleState>>,
        mut step: impl FnMut(&SampleState) -> Result<(), E>,
    ) -> Result<Self, E> {
        let state = state.into();
        let (graph, captured) = Graph::capture_after(device, 0, || {
            step(&state)?;
            Ok::<(), E>(batch.advance()?)
        })?;
        captured?;
        Ok(Self { graph, state })
    }

    /// The parameters and the tokens.
    pub fn state(&self) -> &SampleState {
        &self.state
    }

    /// Runs the step for the sequences that are bound to the batch. Does not wait for it.
    ///
    /// # Errors
    /// `Tokens` if [`KvCache::bind`] has reserved no more steps; an error of the device. Nothing is
    /// counted then.
    pub fn replay(&self, cache: &mut KvCache, batch: &KvBatch) -> Result<(), CacheError> {
        cache.check(batch, 1)?;
        self.graph.replay()?;
        cache.count(batch, 1)
    }
}
