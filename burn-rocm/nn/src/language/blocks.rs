//! Which blocks of a cache belong to which sequence, on the host. Nothing here touches a device.

use std::error::Error;
use std::fmt;

use burn_rocm::RocmError;
use burn_rocm::fused::decode::PAGE;

/// The tokens of a block.
pub const BLOCK: usize = PAGE;

/// A sequence of a cache. It is not reused after the sequence was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(u64);

/// Why a call of a cache failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CacheError {
    /// Too few blocks are free. Nothing has changed. Free or truncate sequences, or wait.
    OutOfBlocks {
        /// The blocks that the call needs.
        needed: usize,
        /// The blocks that are free.
        free: usize,
    },
    /// There is no such sequence.
    NoSequence(SequenceId),
    /// A sequence has fewer tokens than the call needs, or no room for as many.
    Tokens {
        /// What the call needs.
        expected: String,
        /// What the sequence has.
        found: usize,
    },
    /// The block is free, not [held](Blocks::hold), or held already, and the call needs another
    /// state.
    NoBlock(u32),
    /// An op on the device failed.
    Device(RocmError),
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBlocks { needed, free } => write!(f, "{needed} blocks are needed, {free} are free"),
            Self::NoSequence(SequenceId(id)) => write!(f, "the cache has no sequence {id}"),
            Self::Tokens { expected, found } => write!(f, "expected {expected}, found {found} tokens"),
            Self::NoBlock(block) => {
                write!(
                    f,
                    "block {block} is free, not held, or held already, and the call needs another state"
                )
            }
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl Error for CacheError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Device(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RocmError> for CacheError {
    fn from(error: RocmError) -> Self {
        Self::Device(error)
    }
}

type Result<T> = std::result::Result<T, CacheError>;

#[derive(Clone, Debug, Default)]
struct Sequence {
    blocks: Vec<u32>,
    tokens: usize,
}

/// A block whose tokens must be copied to another block before the sequence writes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the sequence's tokens are lost unless the block is copied"]
pub struct BlockCopy {
    /// The shared block.
    pub from: u32,
    /// The sequence's own.
    pub to: u32,
}

/// The allocator of a cache's blocks of [`BLOCK`] tokens. Sequences share blocks: a block is free
/// when no sequence has it and it is not [held](Self::hold).
#[derive(Clone, Debug)]
pub struct Blocks {
    /// How many sequences have each block. A held block counts one more.
    holders: Vec<u32>,
    held: Vec<bool>,
    free: Vec<u32>,
    sequences: std::collections::HashMap<SequenceId, Sequence>,
    next: u64,
}

impl Blocks {
    /// An allocator of this many blocks, all of them free.
    pub fn new(blocks: usize) -> Self {
        let free = (0..blocks as u32).rev().collect();
        Self {
            holders: vec![0; blocks],
            held: vec![false; blocks],
            free,
            sequences: Default::default(),
            next: 0,
        }
    }

    /// A new sequence without tokens.
    pub fn create(&mut self) -> SequenceId {
        self.insert(Sequence::default())
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(id, sequence);
        id
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence> {
        self.sequences.get(&id).ok_or(CacheError::NoSequence(id))
    }

    /// The number of a sequence's tokens.
    ///
    /// # Errors
    /// `NoSequence`.
    pub fn tokens(&self, id: SequenceId) -> Result<usize> {
        Ok(self.get(id)?.tokens)
    }

    /// The blocks of a sequence in the order of its tokens, and after them those that it has
    /// reserved.
    ///
    /// # Errors
    /// `NoSequence`.
    pub fn blocks_of(&self, id: SequenceId) -> Result<&[u32]> {
        Ok(&self.get(id)?.blocks)
    }

    /// The blocks that no sequence has and that are not held.
    pub fn blocks_free(&self) -> usize {
        self.free.len()
    }

    /// All blocks.
    pub fn blocks(&self) -> usize {
        self.holders.len()
    }

    /// Makes room for `tokens` more tokens of a sequence. If the block that it will write next is
    /// shared, it gets a block of its own. The caller then copies the tokens as the result says.
    ///
    /// # Errors
    /// `NoSequence`; `OutOfBlocks`.
    pub fn reserve(&mut self, id: SequenceId, tokens: usize) -> Result<Option<BlockCopy>> {
        let sequence = self.get(id)?;
        if tokens == 0 {
            return Ok(None);
        }
        let first = sequence.tokens / BLOCK;
        let end = sequence.tokens.saturating_add(tokens).div_ceil(BLOCK);
        let is_shared = |block: &u32| self.holders[*block as usize] > 1;
        let written = sequence.blocks.get(first..end.min(sequence.blocks.len())).unwrap_or_default();
        let shared = written.iter().filter(|block| is_shared(block)).count();
        let needed = shared + end.saturating_sub(sequence.blocks.len());
        if needed > self.free.len() {
            return Err(CacheError::OutOfBlocks { needed, free: self.free.len() });
        }
        let Some(sequence) = self.sequences.get_mut(&id) else { return Err(CacheError::NoSequence(id)) };
        let mut copy = None;
        let mut own = self.free.split_off(self.free.len() - needed).into_iter().rev();
        for (index, block) in sequence.blocks.iter_mut().enumerate().take(end).skip(first) {
            if self.holders[*block as usize] > 1
                && let Some(to) = own.next()
            {
                self.holders[*block as usize] -= 1;
                if index == first && !sequence.tokens.is_multiple_of(BLOCK) {
                    copy = Some(BlockCopy { from: *block, to });
                }
                self.holders[to as usize] = 1;
                *block = to;
            }
        }
        for block in own {
            self.holders[block as usize] = 1;
            sequence.blocks.push(block);
        }
        Ok(copy)
    }

    /// Counts tokens that were written where [`reserve`](Self::reserve) has made room.
    ///
    /// # Errors
    /// `NoSequence`; `Tokens` without the room.
    pub fn advance(&mut self, id: SequenceId, tokens: usize) -> Result<()> {
        self.check_room(id, tokens)?;
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.tokens += tokens;
        }
        Ok(())
    }

    /// Fails unless a sequence has room for `tokens` more tokens.
    pub(super) fn check_room(&self, id: SequenceId, tokens: usize) -> Result<()> {
        let sequence = self.get(id)?;
        let room = sequence.blocks.len() * BLOCK;
        if sequence.tokens.checked_add(tokens).is_none_or(|all| all > room) {
            let expected = format!("room for {tokens} more tokens than {}", sequence.tokens);
            return Err(CacheError::Tokens { expected, found: room });
        }
        Ok(())
    }

    /// A new sequence with the first `tokens` tokens of another. Both share their blocks.
    ///
    /// # Errors
    /// `NoSequence`; `Tokens` if the other has fewer.
    pub fn fork(&mut self, id: SequenceId, tokens: usize) -> Result<SequenceId> {
        let other = self.get(id)?;
        if tokens > other.tokens {
            return Err(CacheError::Tokens {
                expected: format!("{tokens} tokens to fork"),
                found: other.tokens,
            });
        }
        let blocks = other.blocks[..tokens.div_ceil(BLOCK)].to_vec();
        blocks.iter().for_each(|&block| self.holders[block as usize] += 1);
        Ok(self.insert(Sequence { blocks, tokens }))
    }

    /// Keeps a sequence's block after the sequence is gone, so that later ones can
    /// [`adopt`](Self::adopt) it. The block should be full: a sequence that shares a block gets a
    /// copy before it writes.
    ///
    /// # Errors
    /// `NoBlock` for a block that no sequence has, or that is held already.
    pub fn hold(&mut self, block: u32) -> Result<()> {
        match (self.holders.get_mut(block as usize), self.held.get_mut(block as usize)) {
            (Some(holders), Some(held)) if *holders > 0 && !*held => {
                (*holders, *held) = (*holders + 1, true);
                Ok(())
            }
            _ => Err(CacheError::NoBlock(block)),
        }
    }

    /// Gives up what [`hold`](Self::hold) keeps.
    ///
    /// # Errors
    /// `NoBlock` for a block that is not held.
    pub fn let_go(&mut self, block: u32) -> Result<()> {
        match self.held.get_mut(block as usize) {
            Some(held) if *held => *held = false,
            _ => return Err(CacheError::NoBlock(block)),
        }
        self.release(vec![block]);
        Ok(())
    }

    /// How many sequences have a block. If it is held, this counts as one more.
    pub fn holders(&self, block: u32) -> u32 {
        self.holders.get(block as usize).copied().unwrap_or(0)
    }

    /// A new sequence whose first tokens are those of these blocks, which are full. Others have
    /// them too, or they are held.
    ///
    /// # Errors
    /// `NoBlock` for a block that is free.
    pub fn adopt(&mut self, blocks: &[u32]) -> Result<SequenceId> {
        if let Some(&block) = blocks.iter().find(|&&block| self.holders(block) == 0) {
            return Err(CacheError::NoBlock(block));
        }
        blocks.iter().for_each(|&block| self.holders[block as usize] += 1);
        Ok(self.insert(Sequence { blocks: blocks.to_vec(), tokens: blocks.len() * BLOCK }))
    }

    /// Forgets a sequence's tokens after the first `tokens`, and its reserved blocks.
    ///
    /// # Errors
    /// `NoSequence`; `Tokens` if it has fewer.
    pub fn truncate(&mut self, id: SequenceId, tokens: usize) -> Result<()> {
        let Some(sequence) = self.sequences.get_mut(&id) else { return Err(CacheError::NoSequence(id)) };
        if tokens > sequence.tokens {
            let expected = format!("{tokens} tokens to keep");
            return Err(CacheError::Tokens { expected, found: sequence.tokens });
        }
        sequence.tokens = tokens;
        let rest = sequence.blocks.split_off(tokens.div_ceil(BLOCK));
        self.release(rest);
        Ok(())
    }

    /// Forgets a sequence.
    ///
    /// # Errors
    /// `NoSequence`.
    pub fn free(&mut self, id: SequenceId) -> Result<()> {
        let sequence = self.sequences.remove(&id).ok_or(CacheError::NoSequence(id))?;
        self.release(sequence.blocks);
        Ok(())
    }

    fn release(&mut self, blocks: Vec<u32>) {
        for block in blocks {
            let holders = &mut self.holders[block as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(block);
            }
        }
    }
}
