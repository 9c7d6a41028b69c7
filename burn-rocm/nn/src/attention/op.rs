//! The fused ops.

use burn_rocm::fused::{self, AttentionOptions};
use burn_rocm::{RocmError, RocmTensor};

use crate::fuse::{Applied, Kept, Op};

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

impl Op for ContextOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_attention", "nn_attention_backward"]
    }

    fn reads(&self) -> &'static [bool] {
        &[true, true, true]
    }

    fn forward(&self, inputs: Vec<RocmTensor>) -> Result<Applied, RocmError> {
        let [query, key, value] = inputs.try_into().expect("three inputs");
        let attended = fused::attention(query, key, value, self.0.mask.clone(), &self.0.options)?;
        Ok((attended.out, attended.kept))
    }

    fn backward(
        &self,
        grad: RocmTensor,
        kept: Kept,
        wanted: &[bool],
    ) -> Result<Vec<Option<RocmTensor>>, RocmError> {
        let inputs: Vec<RocmTensor> = kept.inputs.into_iter().flatten().collect();
        let inputs = inputs.try_into().expect("three inputs are read");
        let wanted = [wanted[0], wanted[1], wanted[2]];
        let Rule { mask, options } = &self.0;
        Ok(fused::attention_backward(inputs, mask.clone(), kept.saved, grad, options, wanted)?.into())
    }
}

/// The weights of query and key.
#[derive(Debug)]
pub(super) struct WeightsOp(pub(super) Rule);

impl Op for WeightsOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_attention_weights", "nn_attention_weights_backward"]
    }

    fn reads(&self) -> &'static [bool] {
        &[true, true]
    }

    fn forward(&self, inputs: Vec<RocmTensor>) -> Result<Applied, RocmError> {
        let [query, key] = inputs.try_into().expect("two inputs");
        let weights = fused::attention_weights(query, key, self.0.mask.clone(), &self.0.options)?;
        Ok((weights.clone(), vec![weights]))
    }

    fn backward(
        &self,
        grad: RocmTensor,
        kept: Kept,
        wanted: &[bool],
    ) -> Result<Vec<Option<RocmTensor>>, RocmError> {
        let inputs: Vec<RocmTensor> = kept.inputs.into_iter().flatten().collect();
        let inputs = inputs.try_into().expect("two inputs are read");
        let [weights] = kept.saved.try_into().expect("the weights are saved");
        let Rule { mask, options } = &self.0;
        let wanted = [wanted[0], wanted[1]];
        Ok(fused::attention_weights_backward(inputs, mask.clone(), weights, grad, options, wanted)?.into())
    }
}
