//! Ops beyond Burn's traits, each a few launches at most: what modules of the crate `burn-rocm-nn` are made of.
//!
//! All take tensors in any layout, and give contiguous ones; but what [`attention`] gives lies in memory as its
//! operands do.

mod act;
mod activation;
pub mod amp;
mod attention;
mod attention_options;
mod batch_norm;
mod conv_act;
mod group_norm;
mod layer_norm;
mod loss;
mod loss_elements;
pub mod optim;
mod pool;
mod self_attention;
mod softmax;

pub use act::{
    Act, add_act, add_act_backward, bias_act, bias_act_backward, bias_add, bias_add_backward, mul_add,
    mul_add_backward, relu_backward, silu_mul, silu_mul_backward,
};
pub use activation::{silu, silu_backward};
pub use attention::{attention, attention_backward, attention_weights, attention_weights_backward};
pub use attention_options::{Attended, AttentionDropout, AttentionOptions, AttentionPath};
pub use batch_norm::{BatchNormed, batch_norm_backward, batch_norm_infer, batch_norm_train};
pub use conv_act::{Conv2dOptions, conv_act, conv_relu_backward};
pub use group_norm::{group_norm, group_norm_backward};
pub use layer_norm::{layer_norm, layer_norm_backward, rms_norm, rms_norm_backward};
pub use loss::{ClassScores, ClassTargets, MAX_PAD_TOKENS, cross_entropy, cross_entropy_backward};
pub use loss_elements::{
    BinaryTargets, Residual, Total, binary_cross_entropy, binary_cross_entropy_backward, loss_of_residuals,
    loss_of_residuals_backward, residual_loss, residual_loss_backward,
};
pub use pool::{
    Pool3d, avg_pool3d, avg_pool3d_backward, max_pool3d, max_pool3d_backward, max_pool3d_with_indices,
};
pub use self_attention::{
    Projections, SelfAttended, SelfAttentionGradients, self_attention, self_attention_backward, swap_leading,
};
pub use softmax::{log_softmax, log_softmax_backward, softmax, softmax_backward};
