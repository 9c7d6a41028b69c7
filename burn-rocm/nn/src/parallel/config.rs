//! Settings of models whose parameters are divided. Both versions of Burn compile this file.

use burn::tensor::FloatDType;

use crate::amp::GradScaler;
use crate::optim::OptimizerConfig;

/// Settings of a [`ShardedModel`](super::ShardedModel).
#[derive(Clone, Debug)]
pub struct ShardedModelConfig {
    pub(super) optimizer: OptimizerConfig,
    pub(super) dtype: Option<FloatDType>,
    pub(super) most: Option<f32>,
    pub(super) scaler: Option<GradScaler>,
}

impl ShardedModelConfig {
    /// A model that this optimizer trains.
    pub fn new(optimizer: impl Into<OptimizerConfig>) -> Self {
        Self { optimizer: optimizer.into(), dtype: None, most: None, scaler: None }
    }

    /// Computes with parameters of this dtype. By default each has the dtype with which it was
    /// built. For f16 and bf16 a rank keeps its part in f32, and the optimizer updates that.
    /// [`ShardedModel::build`](super::ShardedModel::build) refuses f16 without
    /// [`with_scaler`](Self::with_scaler).
    pub fn with_dtype(self, dtype: FloatDType) -> Self {
        Self { dtype: Some(dtype), ..self }
    }

    /// Scales the gradients so that their norm over all parameters is at most `most`. The gradients
    /// are then kept until the backward pass has ended: `1 / ranks` of them, in the dtype of the
    /// computation. Without it each layer is updated during the pass, and its gradients are
    /// dropped.
    pub fn with_global_norm(self, most: f32) -> Self {
        Self { most: Some(most), ..self }
    }

    /// Whether no gradient is used before the backward pass has ended.
    pub(super) fn keeps_gradients(&self) -> bool {
        self.most.is_some() || self.scaler.is_some()
    }

    /// Scales the loss by this scaler, which may come from a record. A step in which a rank finds an
    /// infinite or NaN gradient changes nothing on any rank, except the scaler. Ranks that divide a
    /// layer skip such a step together, too. The gradients are kept until the backward pass has ended,
    /// as for [`with_global_norm`](Self::with_global_norm), and each step waits for the device once.
    /// [`ShardedModel::scaler`](super::ShardedModel::scaler) is the scaler after the steps so far.
    ///
    /// Waits for the device if a graph has used the scaler.
    pub fn with_scaler(self, scaler: GradScaler) -> Self {
        // A graph that used the scaler has moved its state into device memory.
        let state = scaler.to_record();
        Self { scaler: Some(scaler.load_record(state)), ..self }
    }
}
