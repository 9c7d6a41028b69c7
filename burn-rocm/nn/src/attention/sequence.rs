//! Tokens sequence first, `[sequence, batch, features]`: so one stride leads from each head to the next over all
//! batches, and the products of attention take heads where they lie. Of `[batch, sequence, features]` each product
//! needs its operands packed, eleven copies a step.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::op::SwapOp;
use crate::fuse::Route;

/// What `run` makes of tokens `[batch, sequence, features]`. Where this project's kernels run it is given them
/// sequence first, with the route, and gives such: one copy in and one out, none where there is one batch or one
/// token. Where they don't, says so for `module`.
pub(crate) fn sequence_first<B: Backend, T>(
    module: &'static str,
    tokens: Tensor<B, 3>,
    run: impl FnOnce(Option<&Route<B>>, Tensor<B, 3>) -> (Tensor<B, 3>, T),
) -> (Tensor<B, 3>, T) {
    match Route::of(module) {
        Some(route) => {
            let (tokens, rest) = run(Some(&route), route.unary(SwapOp, tokens));
            (route.unary(SwapOp, tokens), rest)
        }
        None => run(None, tokens),
    }
}
