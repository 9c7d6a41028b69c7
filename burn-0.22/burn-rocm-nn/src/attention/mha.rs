//! Multi-head attention.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_rocm::fused::AttentionOptions;

use super::weights::{Layer, heads_of};
use super::{MhaCache, MhaWeights, sequence_first};
use crate::fuse::{Route, primitive, refuse, say_composed, wrap};
use crate::layer::drops;
use crate::ops::attention::{ContextOp, Rule, SelfAttentionOp, WeightsOp};

/// Configuration of [`MultiHeadAttention`].
#[derive(Config, Debug)]
pub struct MultiHeadAttentionConfig {
    /// Features of the input and of the output.
    pub d_model: usize,
    /// The number of heads; divides `d_model`.
    pub n_heads: usize,
    /// The probability that a weight is dropped. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// The score of a masked key. Default: -1.0e4
    #[config(default = -1.0e4)]
    pub min_float: f64,
    /// Whether 1 is added to the sum of a row's exponentials, so that a head may attend to nothing
    /// ([Miller 2023](https://www.evanmiller.org/attention-is-off-by-one.html)). Default: false
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// The number of heads of keys and values; divides `n_heads`. Head `h` of the queries sees head
    /// `h / (n_heads / kv_heads)` of the keys ([Ainslie et al.
    /// 2023](https://arxiv.org/abs/2305.13245)). Default: `n_heads`
    pub kv_heads: Option<usize>,
    /// A sliding window: a query sees only keys that are fewer than this number of positions away.
    /// The last query is at the position of the last key. With a mask that hides later keys
    /// (`generate_autoregressive_mask`), a query sees itself and the `window - 1` keys before it.
    /// Default: all keys
    pub window: Option<usize>,
    /// How to initialise the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// Whether the layer of keys has a bias. Default: true
    #[config(default = true)]
    pub key_bias: bool,
    /// Whether the layer of values has a bias. Default: true
    #[config(default = true)]
    pub value_bias: bool,
    /// Whether the layer of queries has a bias. Default: true
    #[config(default = true)]
    pub query_bias: bool,
    /// Whether the output layer has a bias. Default: true
    #[config(default = true)]
    pub output_bias: bool,
}

/// Multi-head attention ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)), with the fields,
/// record and result of Burn's module.
///
/// On [`Rocm`](burn_rocm::Rocm), scores of more than `BURN_ROCM_ATTENTION_SCORES` bytes (256 MiB by
/// default) are not stored. So beyond that limit, memory grows linearly with the sequence length;
/// see [`AttentionPath`](burn_rocm::fused::AttentionPath). Made by [`MultiHeadAttentionConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
///
/// let attention: MultiHeadAttention = MultiHeadAttentionConfig::new(16, 2).init(&device);
/// let tokens = Tensor::<3>::ones([1, 4, 16], &device);
/// let output = attention.forward(MhaInput::self_attn(tokens));
/// assert_eq!(output.context.dims(), [1, 4, 16]);
/// assert_eq!(output.weights.dims(), [1, 2, 4, 4]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct MultiHeadAttention {
    /// Makes queries from the input.
    pub query: Linear,
    /// Makes keys from the input.
    pub key: Linear,
    /// Makes values from the input.
    pub value: Linear,
    /// Makes the output from the contexts of all heads.
    pub output: Linear,
    /// Dropout of the weights.
    pub dropout: Dropout,
    /// The sliding window. In Burn's module, this field is an activation that the module never calls.
    /// It keeps its name here so that records have Burn's layout.
    pub activation: SlidingWindow,
    /// Features of the input and of the output.
    pub d_model: usize,
    /// The number of heads.
    pub n_heads: usize,
    /// Features of a head.
    pub d_k: usize,
    /// The score of a masked key.
    pub min_float: f64,
    /// Whether 1 is added to the sum of a row's exponentials.
    pub quiet_softmax: bool,
}

/// The sliding window of a [`MultiHeadAttention`]. Records lack it.
#[derive(Module, Debug)]
pub struct SlidingWindow {
    /// A query sees only keys that are fewer than this number of positions away, or all keys. At
    /// least 1.
    #[module(skip)]
    pub window: Option<usize>,
}

impl ModuleDisplay for MultiHeadAttention {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        // As Burn's module prints, unless a setting differs that Burn's lacks.
        let kv_heads = self.kv_heads();
        let content = content.add("d_model", &self.d_model).add("n_heads", &self.n_heads);
        let content = if kv_heads == self.n_heads { content } else { content.add("kv_heads", &kv_heads) };
        let content = match self.activation.window {
            Some(window) => content.add("window", &window),
            None => content,
        };
        content
            .add("d_k", &self.d_k)
            .add("dropout", &self.dropout.prob)
            .add("min_float", &self.min_float)
            .add("quiet_softmax", &self.quiet_softmax)
            .optional()
    }
}

/// The input of [`MultiHeadAttention`].
#[derive(Debug, Clone)]
pub struct MhaInput {
    pub(crate) query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    /// Whether query, key and value are the same tensor.
    alike: bool,
    masks: Masks,
}

/// The masks that hide keys. Any axis may have size 1.
#[derive(Debug, Clone)]
pub(crate) struct Masks {
    /// `[batch, keys]`.
    pub(crate) pad: Option<Tensor<2, Bool>>,
    /// `[batch, queries, keys]`.
    pub(crate) attn: Option<Tensor<3, Bool>>,
}

/// A mask in which true hides a key. Broadcasts to scores `[batch, heads, queries, keys]`.
pub(crate) type Mask = Option<Tensor<4, Bool>>;

impl Masks {
    /// Joins the two masks: a key is hidden if either mask hides it.
    pub(crate) fn joined(self) -> Mask {
        let pad = self.pad.map(|mask| mask.unsqueeze_dims::<4>(&[1, 2]));
        let attn = self.attn.map(|mask| mask.unsqueeze_dim::<4>(1));
        let (pad, attn) = match (pad, attn) {
            (Some(pad), Some(attn)) => (pad, attn),
            (pad, attn) => return pad.or(attn),
        };
        let (of_pad, of_attn) = (pad.dims(), attn.dims());
        let shape: [usize; 4] =
            std::array::from_fn(|axis| if of_pad[axis] == 1 { of_attn[axis] } else { of_pad[axis] });
        if (0..4).any(|axis| of_attn[axis] != 1 && of_attn[axis] != shape[axis]) {
            let expected = "a mask_pad [batch, keys] and a mask_attn [batch, queries, keys] that broadcast";
            refuse(
                "attention",
                expected,
                format!("{of_pad:?} and {of_attn:?} as [batch, heads, queries, keys]"),
            );
        }
        Some(attn.expand(shape).bool_or(pad.expand(shape)))
    }
}

/// The products of `[batch, heads, rows, n]` and `[batch, heads / group, n, columns]`, of which the
/// heads of a group share one: they are rows of one matrix.
fn products(left: Tensor<4>, right: Tensor<4>) -> Tensor<4> {
    let ([batch, heads, rows, inner], [_, shared, _, columns]) = (left.dims(), right.dims());
    if shared == heads {
        return left.matmul(right);
    }
    let product = left.reshape([batch, shared, heads / shared * rows, inner]).matmul(right);
    product.reshape([batch, heads, rows, columns])
}

/// The keys that are `window` or more positions away from a query, shaped like the scores
/// `[batch, heads, queries, keys]`: of all queries, and of those that see another key.
fn outside(scores: &Tensor<4>, window: usize) -> [Tensor<4, Bool>; 2] {
    let ([_, _, queries, keys], device) = (scores.dims(), scores.device());
    let (window, last) = (window.min(queries + keys) as i64, keys as i64);
    let column = Tensor::<1, Int>::arange(0..last, &device).reshape([1, 1, 1, keys]);
    let row = Tensor::<1, Int>::arange(last - queries as i64..last, &device).reshape([1, 1, queries, 1]);
    let outside = (column - row.clone()).abs().greater_equal_elem(window).expand(scores.dims());
    let sees = row.greater_elem(-window).expand(scores.dims());
    [outside.clone(), outside.bool_and(sees)]
}

/// Repeats heads `[1, heads, sequence, d_k]` to `batch` batches. Leaves other heads as they are.
fn for_each_batch(heads: Tensor<4>, batch: usize) -> Tensor<4> {
    match heads.dims() {
        [1, count, sequence, width] if batch > 1 => heads.expand([batch, count, sequence, width]),
        _ => heads,
    }
}

impl MhaInput {
    /// Self-attention.
    ///
    /// # Shapes
    /// - tensor: `[batch, sequence, d_model]`
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self { alike: true, ..Self::new(tensor.clone(), tensor.clone(), tensor) }
    }

    /// Attention of queries to keys and values. Keys or values of batch 1 are used for the queries
    /// of every batch.
    ///
    /// # Shapes
    /// - query: `[batch, queries, d_model]`
    /// - key, value: `[batch, keys, d_model]` or `[1, keys, d_model]`
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self { query, key, value, alike: false, masks: Masks { pad: None, attn: None } }
    }

    /// The same input with other tensors, which `change` makes of the old ones. It is called once
    /// for self-attention.
    pub(crate) fn map(self, change: impl Fn(Tensor<3>) -> Tensor<3>) -> Self {
        let query = change(self.query);
        let (key, value) = match self.alike {
            true => (query.clone(), query.clone()),
            false => (change(self.key), change(self.value)),
        };
        Self { query, key, value, ..self }
    }

    /// Hides the keys where `mask_pad` `[batch, keys]` is true. Either axis may have size 1.
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.masks.pad = Some(mask_pad);
        self
    }

    /// Hides the keys from the queries where `mask_attn` `[batch, queries, keys]` is true. Any axis
    /// may have size 1.
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.masks.attn = Some(mask_attn);
        self
    }
}

/// The output of [`MultiHeadAttention`].
#[derive(Debug)]
pub struct MhaOutput {
    /// The weights `[batch, heads, queries, keys]`, computed when they are first used.
    pub weights: MhaWeights,
    /// The output `[batch, queries, d_model]`.
    pub context: Tensor<3>,
}

impl Clone for MhaOutput {
    fn clone(&self) -> Self {
        Self { weights: self.weights.again(), context: self.context.clone() }
    }
}

impl MultiHeadAttentionConfig {
    /// The module, with new parameters.
    ///
    /// # Panics
    /// If the number of heads does not divide `d_model`, `kv_heads` does not divide the number of
    /// heads, the window is 0, or the dropout is outside 0 to 1.
    pub fn init(&self, device: &Device) -> MultiHeadAttention {
        if self.n_heads == 0 || !self.d_model.is_multiple_of(self.n_heads) {
            let expected = format!("heads that divide {} features", self.d_model);
            refuse("MultiHeadAttentionConfig", expected, self.n_heads.to_string());
        }
        let kv_heads = self.kv_heads.unwrap_or(self.n_heads);
        if kv_heads == 0 || !self.n_heads.is_multiple_of(kv_heads) {
            let expected = format!("kv_heads that divide {} heads", self.n_heads);
            refuse("MultiHeadAttentionConfig", expected, kv_heads.to_string());
        }
        if self.window == Some(0) {
            refuse("MultiHeadAttentionConfig", "a window of at least 1 key", "0");
        }
        let (width, kv_width) = (self.d_model, self.d_model / self.n_heads * kv_heads);
        let linear = |bias, outputs| {
            LinearConfig::new(width, outputs)
                .with_initializer(self.initializer.clone())
                .with_bias(bias)
                .init(device)
        };
        MultiHeadAttention {
            query: linear(self.query_bias, width),
            key: linear(self.key_bias, kv_width),
            value: linear(self.value_bias, kv_width),
            output: linear(self.output_bias, width),
            dropout: DropoutConfig::new(self.dropout).init(),
            activation: SlidingWindow { window: self.window },
            d_model: self.d_model,
            n_heads: self.n_heads,
            d_k: self.d_model / self.n_heads,
            min_float: self.min_float,
            quiet_softmax: self.quiet_softmax,
        }
    }
}

impl MultiHeadAttention {
    /// Attention of each query to the keys and values.
    ///
    /// In training with [`MhaInput::self_attn`], the module moves the sequence axis of the tokens
    /// to the front, so that no product needs a copy of its operands. This copies the tokens once
    /// at the start and once at the end. With enough tokens, one product makes queries, keys and
    /// values.
    ///
    /// # Shapes
    /// - query: `[batch, queries, d_model]`
    /// - key, value: `[batch, keys, d_model]` or `[1, keys, d_model]`
    /// - output: `[batch, queries, d_model]`
    ///
    /// # Panics
    /// With [`Invalid`](burn_rocm::RocmError::Invalid) if inputs and masks don't broadcast, or if the
    /// window is 0.
    pub fn forward(&self, input: MhaInput) -> MhaOutput {
        let MhaInput { query, key, value, alike, masks } = input;
        let mask = masks.joined();
        if alike && Route::of("MultiHeadAttention", &query).is_some_and(|route| route.records()) {
            let (context, weights) = sequence_first("MultiHeadAttention", query, |route, tokens| {
                let (context, weights) = self.contexts(route, tokens, mask);
                (self.output.forward(context), weights)
            });
            return MhaOutput { weights, context };
        }
        let query = self.heads(query, &self.query);
        let key = self.heads(key, &self.key);
        let value = self.heads(value, &self.value);
        let (context, weights) = self.attend([query, key, value], mask);
        MhaOutput { weights, context: self.output.forward(context) }
    }

    /// [`forward`](Self::forward), but the linear layers compute only the tokens that `cache`
    /// lacks: all tokens in the first call, one in each later call.
    ///
    /// # Panics
    /// As [`forward`](Self::forward), and with [`Invalid`](burn_rocm::RocmError::Invalid) unless a
    /// later call has exactly one token more than the cache, or if the module has a window and the
    /// cache is of cross-attention; the cache then stays as it was. (Given several new tokens, Burn's
    /// module takes only the last one and panics later.)
    pub fn forward_cache(&self, input: MhaInput, cache: &mut MhaCache) -> MhaOutput {
        let MhaInput { query, key, value, masks, .. } = input;
        self.forward_cached([query, key, value], masks.joined(), cache)
    }

    /// [`forward_cache`](Self::forward_cache) of queries, keys and values.
    pub(crate) fn forward_cached(
        &self,
        [query, key, value]: [Tensor<3>; 3],
        mask: Mask,
        cache: &mut MhaCache,
    ) -> MhaOutput {
        // All checks are made before any cache changes. With a window, the last query is at the last
        // key. So keys that stay would move the queries whose outputs the cache holds.
        if let (Some(window), true) = (self.window(), cache.keeps_keys()) {
            let found = format!("a cache of cross-attention and a window of {window}");
            refuse("autoregressive cache", "a cache of self-attention, or no window", found);
        }
        for (cache, tokens) in [(&cache.query, &query), (&cache.key, &key), (&cache.value, &value)] {
            cache.check(tokens);
        }
        let query = cache.query.forward(query, |tokens| self.heads(tokens, &self.query));
        let key = cache.key.forward(key, |tokens| self.heads(tokens, &self.key));
        let value = cache.value.forward(value, |tokens| self.heads(tokens, &self.value));
        let (context, weights) = self.attend([query, key, value], mask);
        MhaOutput { weights, context: cache.output.forward(context, |tokens| self.output.forward(tokens)) }
    }

    /// The number of heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.key.weight.shape()[1] / self.d_k.max(1)
    }

    /// The window. [`SlidingWindow::window`] is a public field, so it is checked here too.
    fn window(&self) -> Option<usize> {
        let window = self.activation.window;
        if window == Some(0) {
            refuse("MultiHeadAttention", "a window of at least 1 key", "0");
        }
        window
    }

    /// The features of each head: `[batch, heads, sequence, d_k]`.
    fn heads(&self, tokens: Tensor<3>, linear: &Linear) -> Tensor<4> {
        let [batch, sequence, _] = tokens.dims();
        let features = linear.forward(tokens);
        let heads = features.dims()[2] / self.d_k.max(1);
        features.reshape([batch, sequence, heads, self.d_k]).swap_dims(1, 2)
    }

    /// The contexts of all heads, `[batch, queries, d_model]`, and the weights.
    fn attend(&self, heads: [Tensor<4>; 3], mask: Mask) -> (Tensor<3>, MhaWeights) {
        let [batch, count, queries, width] = heads[0].dims();
        let [query, key, value] = heads;
        let (context, weights) = match Route::of("MultiHeadAttention", &query) {
            Some(route) => {
                let [key, value] = [key, value].map(|heads| for_each_batch(heads, batch));
                self.fused(&route, [query, key, value], mask)
            }
            None => {
                let weights = self.composed_weights(query, key, mask);
                (products(weights.clone(), value), weights.into())
            }
        };
        (context.swap_dims(1, 2).reshape([batch, queries, count * width]), weights)
    }

    /// Self-attention without the output layer. Tokens and contexts are
    /// `[sequence, batch, d_model]` with a route, `[batch, sequence, d_model]` without one.
    pub(crate) fn contexts(
        &self,
        route: Option<&Route>,
        tokens: Tensor<3>,
        mask: Mask,
    ) -> (Tensor<3>, MhaWeights) {
        let layers = [&self.query, &self.key, &self.value];
        let Some(route) = route else {
            return self.attend(layers.map(|layer| self.heads(tokens.clone(), layer)), mask);
        };
        if let Some(layers) = self.joined(route, &tokens) {
            let rule = self.rule(route, mask);
            let [query, key, value] = layers;
            let heads = self.n_heads;
            let (made, joined) =
                ([query.clone(), key.clone()], SelfAttentionOp { rule: rule.clone(), heads });
            let weights = MhaWeights::of_tokens(tokens.clone(), made, self.d_k, rule);
            let [(wq, bq), (wk, bk), (wv, bv)] =
                [query, key, value].map(|(weight, bias)| (primitive(weight), primitive(bias)));
            let inputs = [primitive(tokens), wq, bq, wk, bk, wv, bv];
            return (wrap(route.apply(joined, inputs).0), weights);
        }
        let heads = layers.map(|layer| heads_of(layer.forward(tokens.clone()), self.d_k));
        let [sequence, batch, _] = tokens.dims();
        let (context, weights) = self.fused(route, heads, mask);
        (context.permute([2, 0, 1, 3]).reshape([sequence, batch, self.n_heads * self.d_k]), weights)
    }

    /// The layers of queries, keys and values, if it pays to make all three by one product. In f32,
    /// packing the weights, transposing them and splitting their gradient moves `72 d_model^2`
    /// bytes. It saves two additions of gradients with respect to the tokens, which move `24 rows
    /// d_model` bytes. So it pays only if there is a gradient and there are enough rows.
    fn joined(&self, route: &Route, tokens: &Tensor<3>) -> Option<[Layer; 3]> {
        let [sequence, batch, d_model] = tokens.dims();
        if !route.records() || drops(&self.dropout, tokens) || sequence * batch < 4 * d_model {
            return None;
        }
        let width = self.n_heads * self.d_k;
        let layer = |layer: &Linear| {
            let (weight, bias) = (layer.weight.val(), layer.bias.as_ref()?.val());
            (weight.dims() == [d_model, width] && bias.dims() == [width]).then_some((weight, bias))
        };
        Some([layer(&self.query)?, layer(&self.key)?, layer(&self.value)?])
    }

    /// Attention by the fused op. Returns the context of each head, and the weights. With dropout,
    /// only the weights are computed by a fused op.
    fn fused(
        &self,
        route: &Route,
        [query, key, value]: [Tensor<4>; 3],
        mask: Mask,
    ) -> (Tensor<4>, MhaWeights) {
        let rule = self.rule(route, mask);
        // The query alone, or the key alone, may be under autodiff.
        if [&query, &key].into_iter().any(|heads| drops(&self.dropout, heads)) {
            say_composed("MultiHeadAttention", &query.device(), "dropout comes after the softmax");
            let weights = wrap(route.apply(WeightsOp(rule), [primitive(query), primitive(key)]).0);
            let weights = self.dropout.forward(weights);
            return (products(weights.clone(), value), weights.into());
        }
        let weights = MhaWeights::of(query.clone(), key.clone(), rule.clone());
        let inputs = [primitive(query), primitive(key), primitive(value)];
        (wrap(route.apply(ContextOp(rule), inputs).0), weights)
    }

    /// The mask and the options of a fused op.
    fn rule(&self, route: &Route, mask: Mask) -> Rule {
        let options = AttentionOptions {
            fill: self.min_float,
            quiet: self.quiet_softmax,
            window: self.window(),
            ..AttentionOptions::default()
        };
        Rule { mask: mask.map(|mask| route.bool(mask)), options }
    }

    fn composed_weights(&self, query: Tensor<4>, key: Tensor<4>, mask: Mask) -> Tensor<4> {
        let scores = products(query, key.transpose()).div_scalar((self.d_k as f32).sqrt());
        let scores = match mask {
            Some(mask) => scores.mask_fill(mask, self.min_float),
            None => scores,
        };
        let outside = self.window().map(|window| outside(&scores, window));
        // Scores are 0 in rows that see nothing, whose gradient would otherwise be NaN.
        let scores = match &outside {
            Some([outside, hidden]) => {
                scores.mask_fill(outside.clone(), 0.0).mask_fill(hidden.clone(), f32::NEG_INFINITY)
            }
            None => scores,
        };
        let weights = if self.quiet_softmax { quiet_softmax(scores, 3) } else { softmax(scores, 3) };
        let weights = match outside {
            Some([outside, _]) => weights.mask_fill(outside, 0.0),
            None => weights,
        };
        self.dropout.forward(weights)
    }
}
