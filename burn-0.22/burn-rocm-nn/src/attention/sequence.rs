//! Tokens with the sequence axis first, `[sequence, batch, features]`. In this layout the heads of
//! all batches are equally spaced in memory, so the products of attention need no copies. In the
//! layout `[batch, sequence, features]` each product needs packed operands, which takes eleven
//! copies per training step.

use burn::tensor::Tensor;

use crate::fuse::Route;
use crate::ops::attention::SwapOp;

/// Calls `run` with tokens `[batch, sequence, features]`. If this project's kernels run, `run` gets
/// the route and tokens with the sequence axis first, and its result has that layout too. This
/// takes one copy before and one after, or none if there is only one batch or one token. On other
/// backends it logs that `module` composes Burn's ops.
pub(crate) fn sequence_first<T>(
    module: &'static str,
    tokens: Tensor<3>,
    run: impl FnOnce(Option<&Route>, Tensor<3>) -> (Tensor<3>, T),
) -> (Tensor<3>, T) {
    match Route::of(module, &tokens) {
        Some(route) => {
            let (tokens, rest) = run(Some(&route), route.unary(SwapOp, tokens));
            (route.unary(SwapOp, tokens), rest)
        }
        None => run(None, tokens),
    }
}
