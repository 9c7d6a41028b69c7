//! A device's part of a model that several devices share (Megatron's tensor parallelism:
//! [Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)).

use std::ops::Range;

use burn::tensor::{DType, TensorData};

use super::{Elements, LowRank, Role, Source, Weight};
use crate::config::Config;
use crate::error::{Error, Result};

/// One rank's part of the weights of another source: some heads, and some features of the
/// feed-forward layers. Embedding, norms and the output matrix are whole.
pub struct Part<'a> {
    whole: &'a dyn Source,
    rank: usize,
    ranks: usize,
    config: Config,
}

/// What a rank has of a weight.
enum Share {
    All,
    /// Some rows (outputs) of a matrix, or some elements of a bias.
    Rows,
    /// Some columns (inputs) of a matrix.
    Columns,
    /// The bias of a sum over ranks, which one of them adds.
    First,
}

impl Share {
    fn of(role: Role) -> Self {
        use Role::*;
        match role {
            Query | QueryBias | Key | KeyBias | Value | ValueBias | Gate | GateBias | Up | UpBias => {
                Self::Rows
            }
            AttentionOutput | Down => Self::Columns,
            AttentionOutputBias | DownBias => Self::First,
            Embedding | Output | FinalNorm | AttentionNorm | AttentionPostNorm | FeedForwardNorm
            | FeedForwardPostNorm | QueryNorm | KeyNorm => Self::All,
        }
    }
}

impl<'a> Part<'a> {
    /// The part of rank `rank` of `ranks`.
    ///
    /// # Errors
    /// [`Error::Argument`] unless the number of ranks divides the heads of queries and of keys, and
    /// the features of the feed-forward layers.
    pub fn new(whole: &'a dyn Source, config: &Config, rank: usize, ranks: usize) -> Result<Self> {
        let divided = |what: &str, count: usize| match count.checked_rem(ranks) {
            Some(0) => Ok(count / ranks),
            _ => {
                let expected = format!("a divisor of the model's {count} {what}");
                Err(Error::Argument { name: "devices", expected, found: ranks.to_string() })
            }
        };
        let config = Config {
            kv_heads: divided("heads of keys and values", config.kv_heads)?,
            heads: divided("heads of queries", config.heads)?,
            inner: divided("features within a feed-forward layer", config.inner)?,
            ..config.clone()
        };
        Ok(Self { whole, rank, ranks, config })
    }

    /// The settings of the part.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The weight of the whole model.
    fn whole(&self, weight: &Weight) -> Weight {
        let mut whole = weight.clone();
        match Share::of(weight.role) {
            Share::Rows => whole.shape[0] *= self.ranks,
            Share::Columns => whole.shape[1] *= self.ranks,
            Share::All | Share::First => {}
        }
        whole
    }

    /// The rows or columns of this rank.
    fn own(&self, count: usize) -> Range<usize> {
        self.rank * count..(self.rank + 1) * count
    }

    fn columns(&self, weight: &Weight, whole: &Weight, elements: Elements<'_>) -> Result<Elements<'a>> {
        let numbers = match elements {
            Elements::F32(numbers) => numbers,
            Elements::Bytes(bytes, dtype) => {
                TensorData::from_bytes_vec(bytes.to_vec(), whole.shape.clone(), dtype).iter::<f32>().collect()
            }
            Elements::Normal(deviation) => return Ok(Elements::Normal(deviation)),
            Elements::Constant(number) => return Ok(Elements::Constant(number)),
            Elements::Quantised(parts) => {
                return Ok(Elements::Quantised(Box::new(parts.inputs(self.own(weight.shape[1]))?)));
            }
        };
        let own = self.own(weight.shape[1]);
        let rows = numbers.chunks_exact(whole.shape[1]).flat_map(|row| &row[own.clone()]);
        Ok(Elements::F32(rows.copied().collect()))
    }

    /// This rank's share of a weight's elements.
    fn share<'b>(&self, weight: &Weight, elements: Elements<'b>) -> Result<Elements<'b>>
    where
        'a: 'b,
    {
        let share = Share::of(weight.role);
        Ok(match (share, elements) {
            (Share::All, elements) => elements,
            (Share::First, elements) if self.rank == 0 => elements,
            (Share::First, _) => Elements::Constant(0.0),
            (Share::Columns, elements) => self.columns(weight, &self.whole(weight), elements)?,
            (Share::Rows, Elements::Bytes(bytes, dtype)) => {
                let each = bytes.len() / self.ranks;
                Elements::Bytes(&bytes[self.own(each)], dtype)
            }
            (Share::Rows, Elements::F32(numbers)) => {
                let each = numbers.len() / self.ranks;
                Elements::F32(numbers[self.own(each)].to_vec())
            }
            (Share::Rows, Elements::Quantised(parts)) => {
                Elements::Quantised(Box::new(parts.outputs(self.own(weight.shape[0]))?))
            }
            (Share::Rows, elements) => elements,
        })
    }
}

impl Source for Part<'_> {
    fn read(&self, weight: &Weight) -> Result<Elements<'_>> {
        self.share(weight, self.whole.read(&self.whole(weight))?)
    }

    fn adapter(&self, weight: &Weight) -> Option<LowRank> {
        let adapter = self.whole.adapter(&self.whole(weight))?;
        Some(match Share::of(weight.role) {
            Share::Rows => adapter.outputs(self.own(weight.shape[0])),
            // The sum over ranks has all inputs.
            Share::Columns => adapter.inputs(self.own(weight.shape[1])),
            Share::All | Share::First => adapter,
        })
    }

    fn check(&self, weights: &[Weight]) -> Result<()> {
        let whole: Vec<_> = weights.iter().map(|weight| self.whole(weight)).collect();
        self.whole.check(&whole)
    }

    fn quantised_bytes(&self, weight: &Weight) -> Result<Option<usize>> {
        let bytes = self.whole.quantised_bytes(&self.whole(weight))?;
        Ok(bytes.map(|bytes| match Share::of(weight.role) {
            Share::Rows | Share::Columns => bytes / self.ranks,
            Share::All | Share::First => bytes,
        }))
    }

    fn read_floats(&self, weight: &Weight) -> Result<Elements<'_>> {
        self.share(weight, self.whole.read_floats(&self.whole(weight))?)
    }

    fn dtype(&self) -> DType {
        self.whole.dtype()
    }
}
