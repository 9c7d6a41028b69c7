//! The cache of a model's keys and values: the blocks of all layers, and the sequences of a step.

use std::collections::HashSet;

use burn_rocm::fused::decode::{self, CacheType, DecodeOptions, PagedBatch, PagedLayer};
use burn_rocm::{RocmDevice, RocmError, RocmTensor};

use super::blocks::{BLOCK, Blocks, CacheError, SequenceId};

/// The sizes of a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheConfig {
    /// The model's layers.
    pub layers: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Features of a head, up to 256. In memory their number is rounded up to a multiple of 8.
    pub features: usize,
    /// Blocks of [`BLOCK`] tokens, shared among all sequences.
    pub blocks: usize,
    /// How keys and values are stored.
    pub stored: CacheType,
}

impl KvCacheConfig {
    /// The bytes of the cache.
    pub fn bytes(&self) -> usize {
        self.layers * self.blocks * BLOCK * self.stored.bytes_of_token(self.heads, self.features)
    }

    /// The cache, without sequences.
    ///
    /// # Errors
    /// `Invalid` for a size of 0 or features that don't fit; `OutOfMemory`.
    pub fn init(&self, device: &RocmDevice) -> Result<KvCache, RocmError> {
        let Self { layers, heads, features, blocks, stored } = *self;
        let layer = |_| PagedLayer::new(device, blocks, heads, features, stored);
        let layers = (0..layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        Ok(KvCache { blocks: Blocks::new(blocks), layers })
    }
}

/// The keys and values of sequences, in blocks that are allocated once. Sequences of different
/// lengths are in one batch. Forks share the blocks of their common tokens.
///
/// A step is: [`bind`](Self::bind) the batch to sequences; for each layer, append the keys and
/// values and compute attention; [`advance`](Self::advance).
#[derive(Debug)]
pub struct KvCache {
    blocks: Blocks,
    pub(super) layers: Vec<PagedLayer>,
}

/// The rows of a step: which sequence is in each, and how many tokens of it a step has. Its memory
/// on the device stays where it is, so a captured step sees the sequences that are bound later.
#[derive(Debug)]
pub struct KvBatch {
    pub(super) device: PagedBatch,
    rows: Vec<Option<(SequenceId, usize)>>,
}

impl KvBatch {
    /// A batch of `rows` rows without sequences. A sequence may have `context` tokens, and `tokens`
    /// in one step.
    ///
    /// # Errors
    /// `Invalid` if a number is 0; `OutOfMemory`.
    pub fn new(device: &RocmDevice, rows: usize, context: usize, tokens: usize) -> Result<Self, RocmError> {
        let device = PagedBatch::new(device, rows, context.div_ceil(BLOCK), tokens)?;
        Ok(Self { device, rows: vec![None; rows] })
    }

    /// The sequence of each row, and its tokens of a step.
    pub fn rows(&self) -> &[Option<(SequenceId, usize)>] {
        &self.rows
    }

    /// The tokens of each row in the cache, `[rows]` of I32 on the device: the positions of the
    /// step's tokens.
    pub fn lengths(&self) -> RocmTensor {
        self.device.lengths()
    }

    /// Counts the step's tokens on the device alone. A captured step ends with it;
    /// [`KvCache::count`] follows on the host.
    ///
    /// # Errors
    /// Those of the device.
    pub fn advance(&self) -> Result<(), RocmError> {
        self.device.advance()
    }
}

impl KvCache {
    /// The allocator, to look at sequences and to create, fork, truncate and free them. A sequence
    /// that is bound to a batch must be bound again after it was truncated. If it was forked, a later
    /// bind may give it blocks of its own: batches that had it before must then be bound again.
    pub fn sequences(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    /// The number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// How keys and values are stored.
    pub fn stored(&self) -> Option<CacheType> {
        self.layers.first().map(PagedLayer::stored)
    }

    /// Puts sequences into the rows of a batch, each with its number of tokens in a step, and
    /// reserves blocks for `steps` steps. Writes the rows to the device, outside of captures.
    ///
    /// # Errors
    /// `OutOfBlocks`; `NoSequence`; `Device` with `Invalid` for another number of rows, a sequence in
    /// two rows, or a row that is longer than the batch allows. No sequence has changed then, nor has
    /// the batch. After another error of the device, the batch must be bound again.
    pub fn bind(
        &mut self,
        batch: &mut KvBatch,
        rows: &[Option<(SequenceId, usize)>],
        steps: usize,
    ) -> Result<(), CacheError> {
        // The blocks change when nothing can fail any more: the batches that are bound already write
        // to the old ones.
        let mut blocks = self.blocks.clone();
        let (mut seen, mut copies) = (HashSet::new(), Vec::new());
        for &(sequence, tokens) in rows.iter().flatten() {
            if !seen.insert(sequence) {
                return Err(CacheError::Device(RocmError::Invalid {
                    op: "KvCache::bind",
                    expected: "each sequence in one row".to_owned(),
                    found: format!("{sequence:?} in two"),
                }));
            }
            copies.extend(blocks.reserve(sequence, tokens.saturating_mul(steps))?);
        }
        let row = |row: &Option<(SequenceId, usize)>| match *row {
            None => Ok((&[] as &[u32], 0, 0)),
            Some((sequence, tokens)) => Ok((blocks.blocks_of(sequence)?, blocks.tokens(sequence)?, tokens)),
        };
        let written = rows.iter().map(row).collect::<Result<Vec<_>, CacheError>>()?;
        for copy in &copies {
            for layer in &self.layers {
                layer.copy_page(copy.from as usize, copy.to as usize)?;
            }
        }
        batch.device.write(&written)?;
        self.blocks = blocks;
        batch.rows = rows.to_vec();
        Ok(())
    }

    /// Counts the step's tokens, after all layers.
    ///
    /// # Errors
    /// As [`check`](Self::check), and those of the device. Nothing is counted then.
    pub fn advance(&mut self, batch: &KvBatch) -> Result<(), CacheError> {
        self.check(batch, 1)?;
        batch.advance()?;
        self.count(batch, 1)
    }

    /// Fails if [`bind`](Self::bind) has reserved fewer steps than these. For a graph, before its
    /// replays; [`count`](Self::count) follows them.
    ///
    /// # Errors
    /// `NoSequence` for a sequence that was freed; `Tokens` for too few steps.
    pub fn check(&self, batch: &KvBatch, steps: usize) -> Result<(), CacheError> {
        let mut rows = batch.rows.iter().flatten();
        rows.try_for_each(|&(id, tokens)| self.blocks.check_room(id, tokens.saturating_mul(steps)))
    }

    /// Counts the tokens of `steps` steps on the host alone: those of a graph's replays.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn count(&mut self, batch: &KvBatch, steps: usize) -> Result<(), CacheError> {
        self.check(batch, steps)?;
        let mut rows = batch.rows.iter().flatten();
        rows.try_for_each(|&(id, tokens)| self.blocks.advance(id, tokens * steps))
    }

    /// The layer.
    pub(super) fn layer(&self, layer: usize) -> Result<&PagedLayer, RocmError> {
        self.layers.get(layer).ok_or_else(|| RocmError::Invalid {
            op: "KvCache",
            expected: format!("a layer below {}", self.layers.len()),
            found: layer.to_string(),
        })
    }

    /// Attention of many tokens a row, such as a prompt's.
    pub(super) fn attend_gathered(
        &self,
        layer: usize,
        batch: &KvBatch,
        queries: RocmTensor,
        options: &DecodeOptions,
    ) -> Result<RocmTensor, CacheError> {
        let length = |row: &Option<(SequenceId, usize)>| match *row {
            None => Ok(0),
            Some((sequence, tokens)) => Ok(self.blocks.tokens(sequence)? + tokens),
        };
        let lengths = batch.rows.iter().map(length).collect::<Result<Vec<_>, CacheError>>()?;
        let tokens = batch.rows.iter().flatten().map(|row| row.1).sum();
        let layer = self.layer(layer)?;
        Ok(decode::attention_gathered(layer, &batch.device, (&lengths, tokens), queries, options)?)
    }
}
