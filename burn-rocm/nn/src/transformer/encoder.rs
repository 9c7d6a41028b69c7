//! The transformer encoder: layers of self-attention and position-wise feed-forward layers.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Tensor};

use super::PositionWiseFeedForward;
use super::config::{PositionWiseFeedForwardConfig, TransformerEncoderConfig};
use crate::attention::{
    Mask, Masks, MhaCache, MultiHeadAttention, MultiHeadAttentionConfig, TensorCache, sequence_first,
};
use crate::fuse::{Route, refuse, say_composed};
use crate::layer::linear_add;
use crate::{LayerNorm, LayerNormConfig};

/// The encoder of a transformer ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)), with the
/// fields, record and result of Burn's module. Made by [`TransformerEncoderConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::transformer::{
///     TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
/// };
///
/// let config = TransformerEncoderConfig::new(16, 32, 2, 1);
/// let encoder: TransformerEncoder<Rocm> = config.init(&device);
/// let tokens = Tensor::<Rocm, 3>::ones([1, 4, 16], &device);
/// let output = encoder.forward(TransformerEncoderInput::new(tokens));
/// assert_eq!(output.dims(), [1, 4, 16]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct TransformerEncoder<B: Backend> {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer<B>>,
    /// Features of the input and of the output.
    pub d_model: usize,
    /// Features between the two position-wise linear layers.
    pub d_ff: usize,
    /// The number of heads.
    pub n_heads: usize,
    /// The number of layers.
    pub n_layers: usize,
    /// The probability of every dropout.
    pub dropout: f64,
    /// Whether the layer norms come before the sub-layers instead of after them.
    pub norm_first: bool,
    /// Whether 1 is added to the sum of a row's exponentials.
    pub quiet_softmax: bool,
}

impl<B: Backend> ModuleDisplay for TransformerEncoder<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("d_ff", &self.d_ff)
            .add("n_heads", &self.n_heads)
            .add("n_layers", &self.n_layers)
            .add("dropout", &self.dropout)
            .add("norm_first", &self.norm_first)
            .add("quiet_softmax", &self.quiet_softmax)
            .optional()
    }
}

/// The input of [`TransformerEncoder`].
#[derive(Debug)]
pub struct TransformerEncoderInput<B: Backend> {
    tensor: Tensor<B, 3>,
    mask_pad: Option<Tensor<B, 2, Bool>>,
    mask_attn: Option<Tensor<B, 3, Bool>>,
}

impl<B: Backend> TransformerEncoderInput<B> {
    /// A sequence for each batch.
    ///
    /// # Shapes
    /// - tensor: `[batch, sequence, d_model]`
    pub fn new(tensor: Tensor<B, 3>) -> Self {
        Self { tensor, mask_pad: None, mask_attn: None }
    }

    /// Hides the positions where `mask_pad` `[batch, sequence]` is true. Either axis may have size
    /// 1.
    pub fn mask_pad(mut self, mask_pad: Tensor<B, 2, Bool>) -> Self {
        self.mask_pad = Some(mask_pad);
        self
    }

    /// Hides positions from others where `mask_attn` `[batch, sequence, sequence]` is true. Any
    /// axis may have size 1.
    pub fn mask_attn(mut self, mask_attn: Tensor<B, 3, Bool>) -> Self {
        self.mask_attn = Some(mask_attn);
        self
    }
}

impl TransformerEncoderConfig {
    /// The module, with new parameters.
    pub fn init<B: Backend>(&self, device: &B::Device) -> TransformerEncoder<B> {
        TransformerEncoder {
            layers: (0..self.n_layers).map(|_| TransformerEncoderLayer::new(self, device)).collect(),
            d_model: self.d_model,
            d_ff: self.d_ff,
            n_heads: self.n_heads,
            n_layers: self.n_layers,
            dropout: self.dropout,
            norm_first: self.norm_first,
            quiet_softmax: self.quiet_softmax,
        }
    }
}

impl<B: Backend> TransformerEncoder<B> {
    /// Runs the layers one after the other. On this project's backend, the sequence axis of the
    /// tokens is moved to the front, which takes one copy before and one after the layers.
    ///
    /// # Shapes
    /// - input, output: `[batch, sequence, d_model]`
    pub fn forward(&self, input: TransformerEncoderInput<B>) -> Tensor<B, 3> {
        let TransformerEncoderInput { tensor, mask_pad, mask_attn } = input;
        let mask = Masks { pad: mask_pad, attn: mask_attn }.joined();
        let layers = |route: Option<&Route<B>>, tokens| {
            (self.layers.iter().fold(tokens, |x, layer| layer.of_tokens(route, x, &mask)), ())
        };
        sequence_first("TransformerEncoder", tensor, layers).0
    }

    /// [`forward`](Self::forward) of a sequence that is one token longer than at the last call with
    /// this cache.
    ///
    /// # Shapes
    /// - input, output: `[batch, sequence, d_model]`
    ///
    /// # Panics
    /// If the cache was made for another number of layers, or the sequence is not one token longer
    /// than the cached one.
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerEncoderInput<B>,
        cache: &mut TransformerEncoderAutoregressiveCache<B>,
    ) -> Tensor<B, 3> {
        if self.layers.len() != cache.layers.len() {
            let expected = format!("a cache of {} layers", self.layers.len());
            refuse("transformer_encoder", expected, format!("one of {}", cache.layers.len()));
        }
        let TransformerEncoderInput { tensor, mask_pad, mask_attn } = input;
        let mask = Masks { pad: mask_pad, attn: mask_attn }.joined();
        let layers = self.layers.iter().zip(&mut cache.layers);
        layers.fold(tensor, |x, (layer, cache)| layer.of_one_more_token(x, &mask, cache))
    }

    /// An empty cache for
    /// [`forward_autoregressive_inference`](Self::forward_autoregressive_inference).
    pub fn new_autoregressive_cache(&self) -> TransformerEncoderAutoregressiveCache<B> {
        TransformerEncoderAutoregressiveCache {
            layers: self.layers.iter().map(|_| TransformerEncoderLayerAutoregressiveCache::empty()).collect(),
        }
    }
}

/// The name of a layer in the log.
const LAYER: &str = "TransformerEncoderLayer";

/// One layer of a [`TransformerEncoder`].
#[derive(Module, Debug)]
pub struct TransformerEncoderLayer<B: Backend> {
    /// Self-attention.
    pub mha: MultiHeadAttention<B>,
    /// The position-wise feed-forward layers.
    pub pwff: PositionWiseFeedForward<B>,
    /// The norm between attention and feed-forward layers.
    pub norm_1: LayerNorm<B>,
    /// The norm before the attention (`norm_first`), or after the feed-forward layers.
    pub norm_2: LayerNorm<B>,
    /// Dropout of the outputs of both sub-layers.
    pub dropout: Dropout,
    /// Whether the layer norms come before the sub-layers instead of after them.
    pub norm_first: bool,
}

impl<B: Backend> TransformerEncoderLayer<B> {
    /// A layer with new parameters.
    pub fn new(config: &TransformerEncoderConfig, device: &B::Device) -> Self {
        let norm = || LayerNormConfig::new(config.d_model).with_epsilon(config.layer_norm_eps).init(device);
        Self {
            mha: MultiHeadAttentionConfig::new(config.d_model, config.n_heads)
                .with_initializer(config.initializer.clone())
                .with_dropout(config.dropout)
                .with_quiet_softmax(config.quiet_softmax)
                .init(device),
            pwff: PositionWiseFeedForwardConfig::new(config.d_model, config.d_ff)
                .with_initializer(config.initializer.clone())
                .with_dropout(config.dropout)
                .with_activation(config.activation.clone())
                .init(device),
            norm_1: norm(),
            norm_2: norm(),
            dropout: DropoutConfig::new(config.dropout).init(),
            norm_first: config.norm_first,
        }
    }

    /// Attention and feed-forward layers, each added to its input.
    ///
    /// # Shapes
    /// - input, output: `[batch, sequence, d_model]`
    pub fn forward(
        &self,
        input: Tensor<B, 3>,
        mask_pad: Option<Tensor<B, 2, Bool>>,
        mask_attn: Option<Tensor<B, 3, Bool>>,
    ) -> Tensor<B, 3> {
        let mask = Masks { pad: mask_pad, attn: mask_attn }.joined();
        sequence_first(LAYER, input, |route, tokens| (self.of_tokens(route, tokens, &mask), ())).0
    }

    /// [`forward`](Self::forward) for tokens in the layout of [`MultiHeadAttention::contexts`]. All
    /// parts but the attention treat each token separately, so they take either layout.
    fn of_tokens(&self, route: Option<&Route<B>>, tokens: Tensor<B, 3>, mask: &Mask<B>) -> Tensor<B, 3> {
        self.layer(tokens, |part| match part {
            Part::Attention { x, onto } => {
                let (context, _) = self.mha.contexts(route, x, mask.clone());
                self.add(onto, &self.mha.output, context)
            }
            Part::FeedForward { x, onto } => {
                let adds = self.dropout.prob == 0.0 || !B::ad_enabled(&x.device());
                match adds.then(|| self.pwff.joined(&x, Some(&onto))).flatten() {
                    Some(sum) => sum,
                    None => self.add(onto, &self.pwff.linear_outer, self.pwff.between(x)),
                }
            }
            Part::Norm1(x) => self.norm_1.forward(x),
            Part::Norm2(x) => self.norm_2.forward(x),
        })
    }

    /// Adds a sub-layer's output `last(x)` to the sub-layer's input `onto`.
    fn add(&self, onto: Tensor<B, 3>, last: &Linear<B>, x: Tensor<B, 3>) -> Tensor<B, 3> {
        if self.dropout.prob == 0.0 || !B::ad_enabled(&x.device()) {
            return linear_add(LAYER, last, x, onto);
        }
        say_composed::<B>(LAYER, "dropout comes before a sum");
        onto + self.dropout.forward(last.forward(x))
    }

    /// [`forward`](Self::forward) of a sequence that is one token longer than at the last call with
    /// this cache.
    ///
    /// # Panics
    /// If the sequence is not one token longer than the cached one.
    pub fn forward_autoregressive_inference(
        &self,
        input: Tensor<B, 3>,
        mask_pad: Option<Tensor<B, 2, Bool>>,
        mask_attn: Option<Tensor<B, 3, Bool>>,
        cache: &mut TransformerEncoderLayerAutoregressiveCache<B>,
    ) -> Tensor<B, 3> {
        self.of_one_more_token(input, &Masks { pad: mask_pad, attn: mask_attn }.joined(), cache)
    }

    fn of_one_more_token(
        &self,
        input: Tensor<B, 3>,
        mask: &Mask<B>,
        cache: &mut TransformerEncoderLayerAutoregressiveCache<B>,
    ) -> Tensor<B, 3> {
        say_composed::<B>(LAYER, "with a cache, sums are composed");
        self.layer(input, |part| match part {
            Part::Attention { x, onto } => {
                let output = self.mha.forward_cached([x.clone(), x.clone(), x], mask.clone(), &mut cache.mha);
                onto + self.dropout.forward(output.context)
            }
            Part::FeedForward { x, onto } => {
                let output = cache.pwff.forward_autoregressive(x, 1, |x| self.pwff.forward(x));
                onto + self.dropout.forward(output)
            }
            Part::Norm1(x) => cache.norm_1.forward_autoregressive(x, 1, |x| self.norm_1.forward(x)),
            Part::Norm2(x) => cache.norm_2.forward_autoregressive(x, 1, |x| self.norm_2.forward(x)),
        })
    }

    /// Runs the parts in the order that `norm_first` asks for.
    fn layer(&self, x: Tensor<B, 3>, mut run: impl FnMut(Part<B>) -> Tensor<B, 3>) -> Tensor<B, 3> {
        if self.norm_first {
            let ahead = run(Part::Norm2(x.clone()));
            let x = run(Part::Attention { x: ahead, onto: x });
            let ahead = run(Part::Norm1(x.clone()));
            run(Part::FeedForward { x: ahead, onto: x })
        } else {
            let x = run(Part::Attention { x: x.clone(), onto: x });
            let x = run(Part::Norm1(x));
            let x = run(Part::FeedForward { x: x.clone(), onto: x });
            run(Part::Norm2(x))
        }
    }
}

/// A part of a layer with its input `x`. The output of a sub-layer is added to `onto`.
enum Part<B: Backend> {
    Attention { x: Tensor<B, 3>, onto: Tensor<B, 3> },
    FeedForward { x: Tensor<B, 3>, onto: Tensor<B, 3> },
    Norm1(Tensor<B, 3>),
    Norm2(Tensor<B, 3>),
}

/// The cache of a [`TransformerEncoderLayer`].
pub struct TransformerEncoderLayerAutoregressiveCache<B: Backend> {
    /// The cache of the attention.
    pub mha: MhaCache<B>,
    /// The cache of the feed-forward layers.
    pub pwff: TensorCache<B, 3>,
    /// The cache of the first norm.
    pub norm_1: TensorCache<B, 3>,
    /// The cache of the second norm.
    pub norm_2: TensorCache<B, 3>,
}

impl<B: Backend> TransformerEncoderLayerAutoregressiveCache<B> {
    /// An empty cache.
    pub fn empty() -> Self {
        Self {
            mha: MhaCache::autoregressive(),
            pwff: TensorCache::empty(),
            norm_1: TensorCache::empty(),
            norm_2: TensorCache::empty(),
        }
    }
}

/// The cache of a [`TransformerEncoder`], for decoding token by token.
pub struct TransformerEncoderAutoregressiveCache<B: Backend> {
    layers: Vec<TransformerEncoderLayerAutoregressiveCache<B>>,
}
