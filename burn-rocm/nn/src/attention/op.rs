//! The fused ops.

use burn_rocm::fused::{self, AttentionOptions};
use burn_rocm::{RocmError, RocmTensor};

use crate::fuse::{Applied, Gradients, Kept, Op};

/// What an attention is but its tracked tensors.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// True hides a key; broadcasts to `[batch, heads, queries, keys]`.
    pub(super) mask: Option<RocmTensor>,
    pub(super) options: AttentionOptions,
}

/// The context of query, key and value.
#[derive(Debug)]
pub(super) struct ContextOp(pub(super) Rule);

impl Op<3> for ContextOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_attention", "nn_attention_backward"]
    }

    fn reads(&self) -> [bool; 3] {
        [true; 3]
    }

    fn forward(&self, [query, key, value]: [RocmTensor; 3]) -> Result<Applied, RocmError> {
        let attended = fused::attention(query, key, value, self.0.mask.clone(), &self.0.options)?;
        Ok((attended.out, attended.kept))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<3>, wanted: [bool; 3]) -> Gradients<3> {
        let inputs = kept.first();
        let Rule { mask, options } = &self.0;
        fused::attention_backward(inputs, mask.clone(), kept.saved, grad, options, wanted)
    }
}

/// The weights of query and key.
#[derive(Debug)]
pub(super) struct WeightsOp(pub(super) Rule);

impl Op<2> for WeightsOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_attention_weights", "nn_attention_weights_backward"]
    }

    fn reads(&self) -> [bool; 2] {
        [true; 2]
    }

    fn forward(&self, [query, key]: [RocmTensor; 2]) -> Result<Applied, RocmError> {
        let weights = fused::attention_weights(query, key, self.0.mask.clone(), &self.0.options)?;
        Ok((weights.clone(), vec![weights]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<2>, wanted: [bool; 2]) -> Gradients<2> {
        let inputs = kept.first();
        let [weights] = kept.saved.try_into().expect("the weights are saved");
        let Rule { mask, options } = &self.0;
        fused::attention_weights_backward(inputs, mask.clone(), weights, grad, options, wanted)
    }
}
