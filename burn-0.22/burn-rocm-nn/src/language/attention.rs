//! Attention with the options of language models.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_rocm::fused::{self, AttentionInferenceOptions, AttentionOptions};
use burn_rocm::raise;

use super::AttentionRule;
use crate::fuse::{Route, from_rocm, primitive, refuse, rocm, say_composed, wrap};
use crate::ops::attention::{ContextOp, Rule};

/// `softmax(window(softcap(scale * query key^T))) value`. On `Device::rocm` this is
/// [`fused::attention`](burn_rocm::fused::attention()) and its gradient, or
/// [`fused::attention_inference`](burn_rocm::fused::attention_inference()) for softcaps without a
/// gradient. Softcaps with a gradient, and other backends, take Burn's ops.
///
/// # Shapes
/// - query, output: `[batch, heads, queries, features]`
/// - key, value: `[batch, kv_heads, keys, features]`; `kv_heads` divides `heads`
///
/// A query that sees no key gives zeros.
///
/// # Panics
/// With [`Invalid`](burn_rocm::RocmError::Invalid) if shapes do not fit, if the window is 0, or if
/// the softcap is not above 0.
pub fn attention(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, rule: &AttentionRule) -> Tensor<4> {
    rule.check(query.dtype());
    let &AttentionRule { scale, softcap, causal, window } = rule;
    let Some(route) = Route::of("attention", &query) else { return composed(query, key, value, rule) };
    if softcap.is_none() {
        let options = AttentionOptions { scale, causal, window, ..AttentionOptions::default() };
        let inputs = [primitive(query), primitive(key), primitive(value)];
        return wrap(route.apply(ContextOp(Rule { mask: None, options }), inputs).0);
    }
    // The query may be plain, and the keys of a trained layer.
    if route.records() || [&key, &value].into_iter().any(Tensor::is_autodiff) {
        say_composed("attention", &query.device(), "a softcap has no fused gradient");
        return composed(query, key, value, rule);
    }
    let options = AttentionInferenceOptions { scale, softcap, causal, window };
    let [query, key, value] = [query, key, value].map(rocm);
    let found = fused::attention_inference(query, key, value, None, None, &options);
    from_rocm(found.unwrap_or_else(|error| raise(error)))
}

fn composed(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, rule: &AttentionRule) -> Tensor<4> {
    let [batch, heads, queries, features] = query.dims();
    let [_, kv_heads, keys, _] = key.dims();
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        refuse("attention", format!("heads of keys that divide {heads}"), kv_heads.to_string());
    }
    let group = heads / kv_heads;
    let repeated = |x: Tensor<4>| {
        let [.., width] = x.dims();
        let x = x.reshape([batch, kv_heads, 1, keys, width]).repeat_dim(2, group);
        x.reshape([batch, heads, keys, width])
    };
    let scale = rule.scale.unwrap_or((features as f64).powf(-0.5));
    let mut scores = query.matmul(repeated(key).swap_dims(2, 3)) * scale;
    if let Some(cap) = rule.softcap {
        scores = (scores / cap).tanh() * cap;
    }
    let Some(hidden) = hidden(rule, [queries, keys], &scores.device()) else {
        return softmax(scores, 3).matmul(repeated(value));
    };
    let whole = |mask: Tensor<2, Bool>| mask.unsqueeze::<4>().expand([batch, heads, queries, keys]);
    // Only queries before the first key see none.
    if queries <= keys {
        return softmax(scores.mask_fill(whole(hidden), f32::NEG_INFINITY), 3).matmul(repeated(value));
    }
    let sees = hidden.clone().bool_not().any_dim(1).expand([queries, keys]);
    let [hidden, scored] = [hidden.clone(), hidden.bool_and(sees)].map(whole);
    // Scores are 0 in rows that see nothing, whose gradient would otherwise be NaN.
    let scores = scores.mask_fill(hidden.clone(), 0.0).mask_fill(scored, f32::NEG_INFINITY);
    softmax(scores, 3).mask_fill(hidden, 0.0).matmul(repeated(value))
}

/// The mask of keys that a query does not see. The last query is at the last key.
fn hidden(rule: &AttentionRule, [queries, keys]: [usize; 2], device: &Device) -> Option<Tensor<2, Bool>> {
    if !rule.causal && rule.window.is_none() {
        return None;
    }
    let range = |count: usize| Tensor::<1, Int>::arange(0..count as i64, device);
    let rows = (range(queries) + (keys as i64 - queries as i64)).reshape([queries, 1]);
    let ahead = range(keys).reshape([1, keys]).repeat_dim(0, queries) - rows.repeat_dim(1, keys);
    let mut hidden = rule.causal.then(|| ahead.clone().greater_elem(0));
    if let Some(window) = rule.window {
        // A wider window hides nothing, and the device's integers may not hold it.
        let window = window.min(queries + keys) as i64;
        let far = ahead.clone().abs().greater_equal_elem(window);
        hidden = Some(match hidden {
            Some(hidden) => hidden.bool_or(far),
            None => far,
        });
    }
    hidden
}
