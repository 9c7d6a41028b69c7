//! The rotary embedding, with the split into heads and their norms.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use burn_rocm::fused::{RmsOptions, Rotary, RotaryPositions};

use super::norm::composed as composed_norm;
use super::{Norm, RotaryConfig, RotaryFrequencies};
use crate::fuse::{Route, primitive, refuse, rocm, wrap};
use crate::ops::language::{HeadGradients, HeadsOp, RotaryOp};

/// Where the tokens of a call are in their sequences. On `Device::rocm` the host never reads the
/// positions, so a captured graph runs with those that the tensor has when it is replayed.
#[derive(Clone, Debug)]
pub enum Positions {
    /// Every sequence begins at position 0.
    FromZero,
    /// The position of each sequence's first token, `[batch]`. The others follow.
    Starts(Tensor<1, Int>),
    /// The position of each token, `[batch, length]`.
    Each(Tensor<2, Int>),
}

/// The heads of queries, keys and values.
#[derive(Clone, Debug)]
pub struct Heads {
    /// `[batch, heads, length, head_dim]`.
    pub query: Tensor<4>,
    /// `[batch, kv_heads, length, head_dim]`.
    pub key: Tensor<4>,
    /// `[batch, kv_heads, length, head_dim]`.
    pub value: Tensor<4>,
}

impl RotaryConfig {
    /// The embedding.
    ///
    /// # Panics
    /// As [`frequencies`](Self::frequencies).
    pub fn init(&self, device: &Device) -> RotaryEmbedding {
        RotaryEmbedding::new(&self.frequencies(), self.head_dim, self.interleaved, device)
    }
}

/// A rotary position embedding ([Su et al. 2021](https://arxiv.org/abs/2104.09864)). Made by
/// [`RotaryConfig`], or from frequencies.
///
/// Angles are frequencies times positions, rounded to f32 (in f64 for f64 tensors). So a position
/// `n` has an error of up to `n 2^-24` radians, as in `transformers`: 0.008 at position 131072 in
/// the fastest pair. Their cosines and sines are within `2^-23`.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::language::{Positions, RotaryConfig, RotaryEmbedding};
///
/// let rotary: RotaryEmbedding = RotaryConfig::new(16).init(&device);
/// // Two sequences of three tokens: 4 heads of queries, 2 of keys and 2 of values.
/// let packed = Tensor::<3>::ones([2, 3, 8 * 16], &device);
/// let heads = rotary.forward(packed, [4, 2], &Positions::FromZero, None);
/// assert_eq!(heads.query.dims(), [2, 4, 3, 16]);
/// assert_eq!(heads.value.dims(), [2, 2, 3, 16]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct RotaryEmbedding {
    /// Radians per position of each pair of features, f32 `[pairs]`.
    pub frequencies: Tensor<1>,
    /// The features of a head. Those from `2 * pairs` on are not rotated.
    pub head_dim: usize,
    /// The factor of cosines and sines.
    pub factor: f64,
    /// Whether features `2 p` and `2 p + 1` are a pair, instead of `p` and `pairs + p`.
    pub interleaved: bool,
}

impl RotaryEmbedding {
    /// An embedding with these frequencies, of which there are at most half as many as features.
    pub fn new(frequencies: &RotaryFrequencies, head_dim: usize, interleaved: bool, device: &Device) -> Self {
        let RotaryFrequencies { frequencies, factor } = frequencies;
        let data = TensorData::new(frequencies.clone(), [frequencies.len()]);
        Self {
            frequencies: Tensor::from_data(data, (device, DType::F32)),
            head_dim,
            factor: f64::from(*factor),
            interleaved,
        }
    }

    /// Splits packed queries, keys and values into heads, and rotates queries and keys, after the
    /// norms of each head's queries and keys if there are `norms`. One kernel, and one for the
    /// gradient; one more joins the sums of the norms' gradients.
    ///
    /// In memory a token's heads stay side by side, as attention reads them without a copy. If
    /// nothing else holds the packed tensor, the kernel rotates in place and does not touch the
    /// values. Training with norms holds it, so then the kernel writes all heads to new memory.
    ///
    /// # Shapes
    /// - packed: `[batch, length, (heads + 2 kv_heads) * head_dim]`: a token's queries, its keys,
    ///   then its values
    /// - `[heads, kv_heads]`: the heads of queries, and those of keys and of values
    ///
    /// # Panics
    /// With [`Invalid`](burn_rocm::RocmError::Invalid) if shapes or dtypes do not fit, or if the
    /// norms have different epsilons or only one adds 1.
    pub fn forward(
        &self,
        packed: Tensor<3>,
        [heads, kv_heads]: [usize; 2],
        positions: &Positions,
        norms: Option<[&Norm; 2]>,
    ) -> Heads {
        let shape = packed.dims();
        let features = (heads + 2 * kv_heads) * self.head_dim;
        if heads == 0 || kv_heads == 0 || shape[2] != features {
            let expected = format!("[batch, length, {features}] and heads of queries and keys");
            refuse("RotaryEmbedding", expected, format!("{shape:?}, {heads} and {kv_heads} heads"));
        }
        let options = norms.map_or(RmsOptions { epsilon: 1.0, shift: 0.0 }, |[query, _]| query.options());
        if let Some(other) = norms.map(|[_, key]| key.options()).filter(|other| *other != options) {
            refuse("RotaryEmbedding", format!("two norms with {options:?}"), format!("{other:?}"));
        }
        let weights = norms.map(|norms| norms.map(|norm| norm.weight.val()));
        let Some(route) = Route::of("RotaryEmbedding", &packed) else {
            return self.composed(packed, [heads, kv_heads], positions, weights, options);
        };
        let rotary = Rotary {
            heads,
            kv_heads,
            frequencies: rocm(self.frequencies.clone()),
            factor: self.factor,
            interleaved: self.interleaved,
            positions: match positions {
                Positions::FromZero => RotaryPositions::FromZero,
                Positions::Starts(starts) => RotaryPositions::Starts(route.int(starts.clone())),
                Positions::Each(each) => RotaryPositions::Each(route.int(each.clone())),
            },
            norms: options,
        };
        let grads = HeadGradients::default();
        let op = RotaryOp { rotary, shape, grads: grads.clone() };
        let all = match weights {
            None => route.apply(op, [primitive(packed)]).0,
            Some([query, key]) => route.apply(op, [primitive(packed), primitive(query), primitive(key)]).0,
        };
        let part = |which| {
            let op = HeadsOp { which, heads, kv_heads, grads: grads.clone() };
            wrap(route.apply(op, [all.clone()]).0)
        };
        Heads { query: part(0), key: part(1), value: part(2) }
    }

    fn composed(
        &self,
        packed: Tensor<3>,
        [heads, kv_heads]: [usize; 2],
        positions: &Positions,
        weights: Option<[Tensor<1>; 2]>,
        options: RmsOptions,
    ) -> Heads {
        let [batch, length, _] = packed.dims();
        let all = packed.reshape([batch, length, heads + 2 * kv_heads, self.head_dim]).swap_dims(1, 2);
        let [query, key] = weights.map_or([None, None], |weights| weights.map(Some));
        let normed = |x: Tensor<4>, weight: Option<Tensor<1>>| match weight {
            Some(weight) => composed_norm(x, weight, options),
            None => x,
        };
        let query = normed(all.clone().narrow(1, 0, heads), query);
        let key = normed(all.clone().narrow(1, heads, kv_heads), key);
        let positions = match positions {
            Positions::FromZero => {
                Tensor::<1, Int>::arange(0..length as i64, &all.device()).reshape([1, length])
            }
            Positions::Starts(starts) => {
                let steps: Tensor<2, Int> =
                    Tensor::<1, Int>::arange(0..length as i64, &all.device()).reshape([1, length]);
                let steps = steps.cast(starts.dtype());
                starts.clone().reshape([batch, 1]).repeat_dim(1, length) + steps.repeat_dim(0, batch)
            }
            Positions::Each(each) => each.clone(),
        };
        let rows = positions.dims()[0];
        let dtype = all.dtype();
        let wide = if dtype == DType::F64 { FloatDType::F64 } else { FloatDType::F32 };
        let [pairs] = self.frequencies.dims();
        // Not by way of the default type, which may round them.
        let angles = positions.cast(wide).reshape([rows, 1, length, 1])
            * self.frequencies.clone().cast(wide).reshape([1, 1, 1, pairs]);
        let (cosine, sine) = (angles.clone().cos() * self.factor, angles.sin() * self.factor);
        let rotated = |x: Tensor<4>| {
            let x = x.cast(wide);
            let [_, count, ..] = x.dims();
            let turned = x.clone().narrow(3, 0, 2 * pairs);
            let (first, second): (Tensor<4>, Tensor<4>) = match self.interleaved {
                false => (turned.clone().narrow(3, 0, pairs), turned.narrow(3, pairs, pairs)),
                true => {
                    let by_pair = turned.reshape([batch, count, length, pairs, 2]);
                    let of = |at| by_pair.clone().narrow(4, at, 1).reshape([batch, count, length, pairs]);
                    (of(0), of(1))
                }
            };
            let a = first.clone() * cosine.clone() - second.clone() * sine.clone();
            let b = second * cosine.clone() + first * sine.clone();
            let turned = match self.interleaved {
                false => Tensor::cat(vec![a, b], 3),
                true => Tensor::stack::<5>(vec![a, b], 4).reshape([batch, count, length, 2 * pairs]),
            };
            let rest = self.head_dim - 2 * pairs;
            match rest {
                0 => turned,
                _ => Tensor::cat(vec![turned, x.narrow(3, 2 * pairs, rest)], 3),
            }
            .cast(dtype)
        };
        Heads { query: rotated(query), key: rotated(key), value: all.narrow(1, heads + kv_heads, kv_heads) }
    }
}

impl ModuleDisplay for RotaryEmbedding {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [pairs] = self.frequencies.dims();
        content
            .add("head_dim", &self.head_dim)
            .add("rotated", &(2 * pairs))
            .add("interleaved", &self.interleaved)
            .optional()
    }
}
