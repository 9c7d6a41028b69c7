//! Ops that Burn's traits lack. Each takes at most a few kernel launches. The modules of the crate
//! `burn-rocm-nn` call them.
//!
//! Operands may have any layout. Most results are contiguous; the results of [`attention`] and of
//! some element-wise ops follow the layout of their operands.

pub use crate::ops::activation::{
    Act, add_act, add_act_backward, bias_act, bias_act_backward, bias_add, bias_add_backward, mul_add,
    mul_add_backward, relu_backward, silu, silu_backward,
};
pub use crate::ops::attention::inference::attention_inference;
pub use crate::ops::attention::options::{
    Attended, AttentionDropout, AttentionInferenceOptions, AttentionOptions, AttentionPath, check_softcap,
};
pub use crate::ops::attention::packed::{
    PackedOffsets, attention_packed, attention_packed_backward, attention_packed_inference,
};
pub use crate::ops::attention::self_attention::{
    Projections, SelfAttended, SelfAttentionGradients, self_attention, self_attention_backward, swap_leading,
};
pub use crate::ops::attention::trained::{
    attention, attention_backward, attention_weights, attention_weights_backward,
};
pub use crate::ops::channels_last::{copied, from_rows, is_channels_last, rows_of};
pub use crate::ops::conv::conv_act::{Conv2dOptions, conv_act, conv_relu_backward};
pub use crate::ops::fp8::{Fp8Inputs, Fp8Tensor, Fp8Type, Fp8Weight, fp8_decode, fp8_encode};
pub use crate::ops::language::gate::{
    Gate, gated, gated_backward, gated_halves, gated_halves_backward, silu_mul, silu_mul_backward,
};
pub use crate::ops::language::projection::{Projected, Projection, ProjectionWeight, projection};
pub use crate::ops::language::residual_norm::{RmsOptions, residual_norm, residual_norm_backward};
pub use crate::ops::language::rotary::{
    MOST_PAIRS, Rotary, RotaryGradients, RotaryPositions, rotary, rotary_backward, rotary_heads,
};
pub use crate::ops::linear::{LinearGradients, linear, linear_backward};
pub use crate::ops::linear_act::{
    LinearGelu, gelu_tanh_linear_backward, linear_add, linear_gelu_tanh, linear_relu,
};
pub use crate::ops::loss::classes::{
    ClassScores, ClassTargets, MAX_PAD_TOKENS, cross_entropy, cross_entropy_backward,
};
pub use crate::ops::loss::elements::{
    BinaryTargets, Residual, Total, binary_cross_entropy, binary_cross_entropy_backward, loss_of_residuals,
    loss_of_residuals_backward, residual_loss, residual_loss_backward,
};
pub use crate::ops::lt::joins_products;
pub use crate::ops::norm::batch::{
    BatchNormStep, BatchNormed, batch_norm_backward, batch_norm_infer, batch_norm_relu_backward,
    batch_norm_relu_infer, batch_norm_step, batch_norm_train,
};
pub use crate::ops::norm::group::{group_norm, group_norm_backward};
pub use crate::ops::norm::layer::{layer_norm, layer_norm_backward};
pub use crate::ops::norm::ranks::{
    BatchStatistics, PartGradients, batch_of_parts, batch_part, gradient_of_parts, part_gradients,
    running_after,
};
pub use crate::ops::norm::rms::{rms_norm, rms_norm_backward};
pub use crate::ops::pack::{
    add, flat, held_alone, one_value, pack, pack_range, read_all, repeated, scale, scale_in_place, unpack,
};
pub use crate::ops::pool::pool3d::{
    Pool3d, avg_pool3d, avg_pool3d_backward, max_pool3d, max_pool3d_backward, max_pool3d_with_indices,
};
pub use crate::ops::qweight::{
    GroupScales, GroupZeros, GroupedWeights, MOST_ROWS as QUANT_ROWS, QuantWeight, WeightFormat, WeightParts,
    quant_linear, quant_linear_x_backward,
};
pub use crate::ops::softmax::{log_softmax, log_softmax_backward, softmax, softmax_backward};
pub use crate::ops::support::{By, FusedOp, Support, supports};
pub use crate::ops::transfer::upload;
pub use crate::ops::{amp, decode, optim};
