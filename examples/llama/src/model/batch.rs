//! A step of many sequences. Each has its own number of tokens, in blocks of one cache.

use std::ops::Range;

use burn::tensor::{Int, Tensor, TensorData};
use burn_rocm::RocmTensor;
use burn_rocm::fused::RotaryPositions;
use burn_rocm_nn::language::{
    BLOCK, Blocks, CacheType, DecodeOptions, KvBatch, KvCache, KvCacheConfig, SampleState, SequenceId,
};

use super::cache::{FEW, Keys};
use super::ops::{Packed, Scores, ints};
use super::{B, Model};
use crate::error::{Error, Result};

/// A batch's rows are rounded up to a multiple of this, so that it serves steps of similar sizes.
const ROWS: usize = 8;

/// The keys and values of many sequences. A sequence has as many blocks as its tokens need.
#[derive(Debug)]
pub struct Paged {
    cache: KvCache,
    /// The rows of sequences that have one token in a step, and of those that have more.
    rows: [Option<Rows>; 2],
}

/// Rows of a batch on the device.
#[derive(Debug)]
struct Rows {
    batch: KvBatch,
    /// The blocks that a row may have.
    blocks: usize,
    /// The step's tokens.
    tokens: Range<usize>,
}

/// The next tokens of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The sequence, of [`Paged::sequences`].
    pub sequence: SequenceId,
    /// What follows the tokens in the cache.
    pub tokens: Next<'a>,
}

/// Tokens that the host knows, or one that it has not read.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// Tokens, at least one.
    Tokens(&'a [u32]),
    /// The token that was drawn last in a row of a [`SampleState`].
    Drawn(usize),
}

impl Next<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Drawn(_) => 1,
        }
    }
}

/// A pass, as a layer sees it.
struct Pass<'a> {
    paged: &'a Paged,
    /// `[1, tokens]`.
    positions: RocmTensor,
}

impl Paged {
    /// A cache of `blocks` blocks of 16 tokens, which stores keys and values as `stored`.
    ///
    /// # Errors
    /// [`Error::Device`] for no blocks, if the model's keys can't be stored so, and if there is too
    /// little memory.
    pub fn new(model: &Model, blocks: usize, stored: CacheType) -> Result<Self> {
        let config = model.config();
        let cache = KvCacheConfig {
            layers: config.layers.len(),
            heads: config.kv_heads,
            features: config.head_dim,
            blocks,
            stored,
        };
        Ok(Self { cache: cache.init(model.device())?, rows: [None, None] })
    }

    /// The sequences and their blocks.
    pub fn sequences(&mut self) -> &mut Blocks {
        self.cache.sequences()
    }

    /// Puts pieces into rows, and reserves their blocks. `longer`: whether they have more than one
    /// token. `start`: the number of the step's tokens before them.
    fn bind(&mut self, model: &Model, pieces: &[Piece], longer: bool, start: usize) -> Result<()> {
        let kept = self.rows[usize::from(longer)].take();
        if pieces.is_empty() {
            return Ok(());
        }
        let (mut needed, mut tokens) = (1, 0);
        for piece in pieces {
            let all = self.cache.sequences().tokens(piece.sequence)? + piece.tokens.len();
            needed = needed.max(all.div_ceil(BLOCK));
            tokens += piece.tokens.len();
        }
        let count = pieces.len().next_multiple_of(ROWS);
        // Attention splits keys by the blocks that a row may have, so far too many are slow.
        let fits =
            |kept: &Rows| kept.batch.rows().len() == count && (needed..=4 * needed).contains(&kept.blocks);
        let mut rows = match kept.filter(fits) {
            Some(kept) => kept,
            None => {
                let blocks = needed.next_power_of_two();
                // More than a few: their keys are gathered.
                let most = if longer { (blocks * BLOCK).max(FEW + 1) } else { 1 };
                let batch = KvBatch::new(model.device(), count, blocks * BLOCK, most)?;
                Rows { batch, blocks, tokens: 0..0 }
            }
        };
        let mut places: Vec<_> =
            pieces.iter().map(|piece| Some((piece.sequence, piece.tokens.len()))).collect();
        places.resize(count, None);
        self.cache.bind(&mut rows.batch, &places, 1)?;
        rows.tokens = start..start + tokens;
        self.rows[usize::from(longer)] = Some(rows);
        Ok(())
    }
}

impl Model {
    /// Runs the next tokens of sequences, and adds them to the cache. Returns the logits of the
    /// last tokens of some pieces, by their indices, which may repeat; `None` if there are none.
    /// Drawn tokens are those of `state`. Does not wait for the device.
    ///
    /// # Shapes
    /// - output, in the model's dtype or f32: `[wanted, vocabulary]`
    ///
    /// # Errors
    /// [`Error::Argument`] for no pieces, a piece without tokens, or an index without a piece;
    /// [`Error::Token`] for a token outside the vocabulary; [`Error::Cache`] with `OutOfBlocks` if
    /// too few blocks are free, also with `Invalid` for a sequence in two pieces. No sequence has
    /// more tokens then. An error of the device.
    pub fn forward_batch(
        &self,
        pieces: &[Piece],
        wanted: &[usize],
        paged: &mut Paged,
        state: &SampleState,
    ) -> Result<Option<Tensor<B, 2>>> {
        let vocabulary = self.config().vocabulary;
        let empty = pieces.iter().any(|piece| piece.tokens.len() == 0);
        if pieces.is_empty() || empty || wanted.iter().any(|&index| index >= pieces.len()) {
            let expected = "pieces with tokens, and indices of them".to_owned();
            let found = format!("{} pieces, indices {wanted:?}", pieces.len());
            return Err(Error::Argument { name: "pieces", expected, found });
        }
        let mut all = pieces.iter().flat_map(|piece| match piece.tokens {
            Next::Tokens(tokens) => tokens,
            Next::Drawn(_) => &[],
        });
        if let Some(&token) = all.find(|&&token| token as usize >= vocabulary) {
            return Err(Error::Token { token, vocabulary });
        }
        // Single tokens first: the two groups take different kernels of attention. Of these, the
        // drawn ones first, which are on the device.
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_by_key(|&index| match pieces[index].tokens {
            Next::Drawn(_) => 0,
            Next::Tokens([_]) => 1,
            Next::Tokens(_) => 2,
        });
        let singles = order.partition_point(|&index| pieces[index].tokens.len() == 1);
        let sorted: Vec<Piece> = order.iter().map(|&index| pieces[index]).collect();
        paged.bind(self, &sorted[..singles], false, 0)?;
        paged.bind(self, &sorted[singles..], true, singles)?;

        let (mut drawn, mut tokens, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = vec![0i32; pieces.len()];
        for (piece, &index) in sorted.iter().zip(&order) {
            let start = paged.sequences().tokens(piece.sequence)?;
            match piece.tokens {
                Next::Drawn(row) => drawn.push(row as i32),
                Next::Tokens(known) => tokens.extend(known.iter().map(|&token| token as i32)),
            }
            positions.extend((start..start + piece.tokens.len()).map(|position| position as i32));
            last[index] = (drawn.len() + tokens.len()) as i32 - 1;
        }
        let count = drawn.len() + tokens.len();
        let positions = ints::<2>(TensorData::new(positions, [1, count]), self.device()).into_primitive();
        let known = tokens.len();
        let host = (known > 0).then(|| ints(TensorData::new(tokens, [known]), self.device()));
        let device = (known < count).then(|| {
            let rows = ints(TensorData::new(drawn, [count - known]), self.device());
            Tensor::<B, 1, Int>::from_primitive(state.tokens()).select(0, rows)
        });
        let ids = Tensor::cat(device.into_iter().chain(host).collect(), 0);
        let mut features = self.features(ids, &Pass { paged, positions })?;
        for rows in paged.rows.iter().flatten() {
            paged.cache.count(&rows.batch, 1)?;
        }
        if wanted.is_empty() {
            return Ok(None);
        }
        let last: Vec<i32> = wanted.iter().map(|&index| last[index]).collect();
        if !last.iter().copied().eq(0..count as i32) {
            let last = ints::<1>(TensorData::new(last, [wanted.len()]), self.device());
            features = features.select(last.into_primitive())?;
        }
        Ok(Some(self.logits(features)?))
    }
}

impl Keys for Pass<'_> {
    fn positions(&self) -> RotaryPositions {
        RotaryPositions::Each(self.positions.clone())
    }

    fn attend(
        &self,
        layer: usize,
        packed: Packed,
        Scores { scale, softcap, window }: Scores,
    ) -> Result<Tensor<B, 3>> {
        let options = DecodeOptions { scale: Some(scale), softcap, window, ..DecodeOptions::default() };
        let (cache, heads) = (&self.paged.cache, packed.heads()?);
        let mut contexts = Vec::new();
        for Rows { batch, tokens, .. } in self.paged.rows.iter().flatten() {
            let [query, key, value] =
                heads.each_ref().map(|all| all.clone().narrow(0, tokens.start, tokens.len()));
            cache.append(layer, batch, key, value)?;
            contexts.push(cache.attend(layer, batch, query, &options)?);
        }
        Ok(match contexts.len() {
            1 => contexts.remove(0),
            _ => Tensor::cat(contexts, 0),
        })
    }
}
