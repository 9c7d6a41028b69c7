//! The fused ops of attention.

use burn_rocm::fused::{self, AttentionOptions, PackedOffsets, Projections};
use burn_rocm::{RocmError, RocmTensor};

use super::{Applied, Gradients, Kept, Op};

/// The arguments of an attention other than its tracked tensors.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// True hides a key; broadcasts to `[batch, heads, queries, keys]`.
    pub(crate) mask: Option<RocmTensor>,
    pub(crate) options: AttentionOptions,
}

/// The context, from query, key and value.
#[derive(Debug)]
pub(crate) struct ContextOp(pub(crate) Rule);

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

/// The context of packed sequences, from query, key and value.
#[derive(Debug)]
pub(crate) struct PackedOp {
    pub(crate) offsets: PackedOffsets,
    pub(crate) options: AttentionOptions,
}

impl Op<3> for PackedOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_packed_attention", "nn_packed_attention_backward"]
    }

    fn reads(&self) -> [bool; 3] {
        [true; 3]
    }

    fn forward(&self, [query, key, value]: [RocmTensor; 3]) -> Result<Applied, RocmError> {
        let attended = fused::attention_packed(query, key, value, &self.offsets, &self.options)?;
        Ok((attended.out, attended.kept))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<3>, wanted: [bool; 3]) -> Gradients<3> {
        let inputs = kept.first();
        let Self { offsets, options } = self;
        fused::attention_packed_backward(inputs, offsets, kept.saved, grad, options, wanted)
    }
}

/// The weights, from query and key.
#[derive(Debug)]
pub(crate) struct WeightsOp(pub(crate) Rule);

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

/// Self-attention with one projection. Its inputs are the tokens `[sequence, batch, d_model]`, and
/// weights and biases of the layers of queries, keys and values.
#[derive(Debug)]
pub(crate) struct SelfAttentionOp {
    pub(crate) rule: Rule,
    pub(crate) heads: usize,
}

impl Op<7> for SelfAttentionOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_self_attention", "nn_self_attention_backward"]
    }

    fn reads(&self) -> [bool; 7] {
        [true, false, false, false, false, false, false]
    }

    fn forward(&self, [x, wq, bq, wk, bk, wv, bv]: [RocmTensor; 7]) -> Result<Applied, RocmError> {
        let Rule { mask, options } = &self.rule;
        let projections = Projections { weights: [wq, wk, wv], biases: [bq, bk, bv], heads: self.heads };
        let attended = fused::self_attention(x, projections, mask.clone(), options)?;
        Ok((attended.out, attended.kept))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<7>, wanted: [bool; 7]) -> Gradients<7> {
        let [x] = kept.first();
        let Rule { mask, options } = &self.rule;
        let [by_x, wq, bq, wk, bk, wv, bv] = wanted;
        let wanted = [by_x, wq || wk || wv, bq || bk || bv];
        let (mask, saved) = (mask.clone(), kept.saved);
        let found = fused::self_attention_backward(x, self.heads, mask, saved, grad, options, wanted)?;
        let [wq, wk, wv] = apart(found.weights);
        let [bq, bk, bv] = apart(found.biases);
        Ok([found.tokens, wq, bq, wk, bk, wv, bv])
    }
}

/// Turns an optional array into an array of options.
fn apart(three: Option<[RocmTensor; 3]>) -> [Option<RocmTensor>; 3] {
    three.map_or([None, None, None], |three| three.map(Some))
}

/// Swaps the first two axes and packs the result.
#[derive(Debug)]
pub(crate) struct SwapOp;

impl Op<1> for SwapOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_swap_leading", "nn_swap_leading_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((fused::swap_leading(x)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([Some(fused::swap_leading(grad)?)])
    }
}
