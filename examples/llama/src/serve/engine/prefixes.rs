//! Blocks of earlier sequences, for prompts that begin with the same tokens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use burn_rocm_nn::language::{BLOCK, Blocks, CacheError, SequenceId};

/// The tokens of a block, and the entry of those before them (0: none).
type Key = (u64, [u32; BLOCK]);

/// A tree of full blocks, each by all tokens up to its end. The cache holds its blocks.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    entries: HashMap<u64, Entry>,
    by_tokens: HashMap<Key, u64>,
    /// The number of the last entry, and of the last use.
    last: u64,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    block: u32,
    children: usize,
    used: u64,
}

/// How far a sequence is in the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// The entry of its last block in the tree; 0 at the root.
    entry: u64,
    /// Its blocks in the tree.
    blocks: usize,
}

fn key(entry: u64, tokens: &[u32]) -> Option<Key> {
    Some((entry, tokens.try_into().ok()?))
}

impl Prefixes {
    /// The number of blocks.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The blocks that begin as these tokens do, and the chain of a sequence that has them.
    pub(super) fn find(&mut self, tokens: &[u32]) -> (Vec<u32>, Chain) {
        self.clock += 1;
        let (mut blocks, mut chain) = (Vec::new(), Chain::default());
        for tokens in tokens.chunks_exact(BLOCK) {
            let found = key(chain.entry, tokens).and_then(|key| self.by_tokens.get(&key));
            let Some(&id) = found else { break };
            let Some(entry) = self.entries.get_mut(&id) else { break };
            entry.used = self.clock;
            blocks.push(entry.block);
            chain = Chain { entry: id, blocks: chain.blocks + 1 };
        }
        (blocks, chain)
    }

    /// Adds a sequence's blocks that are full since the last call. `tokens`: those in the cache.
    ///
    /// An entry below which a sequence's blocks come has a block of that sequence, so that all
    /// blocks that no sequence has can be evicted.
    pub(super) fn extend(
        &mut self,
        chain: &mut Chain,
        tokens: &[u32],
        sequence: SequenceId,
        blocks: &mut Blocks,
    ) -> Result<(), CacheError> {
        self.clock += 1;
        for (index, tokens) in tokens.chunks_exact(BLOCK).enumerate().skip(chain.blocks) {
            let Some(key) = key(chain.entry, tokens) else { return Ok(()) };
            let Some(&own) = blocks.blocks_of(sequence)?.get(index) else { return Ok(()) };
            let id = match self.by_tokens.get(&key) {
                Some(&id) => {
                    let Some(entry) = self.entries.get_mut(&id) else { return Ok(()) };
                    if entry.block != own {
                        // Another sequence computed the same block, and runs: the next call tries
                        // again.
                        if blocks.holders(entry.block) > 1 {
                            return Ok(());
                        }
                        blocks.hold(own)?;
                        blocks.let_go(entry.block)?;
                        entry.block = own;
                    }
                    entry.used = self.clock;
                    id
                }
                None => {
                    blocks.hold(own)?;
                    self.last += 1;
                    if let Some(parent) = self.entries.get_mut(&chain.entry) {
                        parent.children += 1;
                    }
                    self.by_tokens.insert(key, self.last);
                    let entry = Entry { key, block: own, children: 0, used: self.clock };
                    self.entries.insert(self.last, entry);
                    self.last
                }
            };
            *chain = Chain { entry: id, blocks: index + 1 };
        }
        Ok(())
    }

    /// The blocks that no sequence has. [`evict`](Self::evict) can free all of them.
    pub(super) fn unused(&self, blocks: &Blocks) -> usize {
        self.entries.values().filter(|entry| blocks.holders(entry.block) == 1).count()
    }

    /// Frees blocks that no sequence has, those first that were not used for the longest time; of
    /// a chain, its end first, because the others lead to it. Returns how many.
    pub(super) fn evict(&mut self, count: usize, blocks: &mut Blocks) -> Result<usize, CacheError> {
        let leaf = |(&id, entry): (&u64, &Entry)| {
            let is_leaf = entry.children == 0 && blocks.holders(entry.block) == 1;
            is_leaf.then_some(Reverse((entry.used, id)))
        };
        let mut leaves: BinaryHeap<_> = self.entries.iter().filter_map(leaf).collect();
        let mut freed = 0;
        while freed < count
            && let Some(Reverse((_, id))) = leaves.pop()
        {
            let Some(entry) = self.entries.remove(&id) else { continue };
            self.by_tokens.remove(&entry.key);
            blocks.let_go(entry.block)?;
            freed += 1;
            let above = entry.key.0;
            if let Some(parent) = self.entries.get_mut(&above) {
                parent.children -= 1;
                if parent.children == 0 && blocks.holders(parent.block) == 1 {
                    leaves.push(Reverse((parent.used, above)));
                }
            }
        }
        Ok(freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence with these tokens, all in the tree.
    fn sequence(tokens: &[u32], prefixes: &mut Prefixes, blocks: &mut Blocks) -> SequenceId {
        let (found, mut chain) = prefixes.find(tokens);
        let id = blocks.adopt(&found).expect("blocks of the tree");
        add(id, tokens.len() - found.len() * BLOCK, blocks);
        prefixes.extend(&mut chain, tokens, id, blocks).expect("blocks of the sequence");
        id
    }

    fn add(id: SequenceId, tokens: usize, blocks: &mut Blocks) {
        assert!(blocks.reserve(id, tokens).expect("room").is_none());
        blocks.advance(id, tokens).expect("room");
    }

    fn tokens(count: usize, seed: u32) -> Vec<u32> {
        (0..count as u32).map(|token| token * 7 + seed).collect()
    }

    #[test]
    fn prompts_share_full_blocks_up_to_the_first_difference() {
        let (mut prefixes, mut blocks) = (Prefixes::default(), Blocks::new(16));
        let first = tokens(40, 1);
        let id = sequence(&first, &mut prefixes, &mut blocks);
        assert_eq!((prefixes.len(), blocks.blocks_free()), (2, 13));
        blocks.free(id).expect("a sequence");
        assert_eq!((blocks.blocks_free(), prefixes.unused(&blocks)), (14, 2), "the partial block is free");

        let mut second = first.clone();
        second[20] += 1;
        assert_eq!(prefixes.find(&second).0.len(), 1);
        assert_eq!(prefixes.find(&first).0.len(), 2);
        assert_eq!(prefixes.find(&first[..31]).0.len(), 1);
        // The same second block behind another first one is another block.
        let third = [&tokens(16, 9)[..], &first[16..]].concat();
        assert_eq!(prefixes.find(&third).0.len(), 0);
        let id = sequence(&second, &mut prefixes, &mut blocks);
        assert_eq!((prefixes.len(), prefixes.unused(&blocks)), (3, 1));
        blocks.free(id).expect("a sequence");
    }

    #[test]
    fn what_was_not_used_for_long_goes_first_and_leaves_go_before_their_parents() {
        let (mut prefixes, mut blocks) = (Prefixes::default(), Blocks::new(8));
        let (old, new) = (tokens(32, 1), tokens(48, 2));
        for tokens in [&old, &new] {
            let id = sequence(tokens, &mut prefixes, &mut blocks);
            blocks.free(id).expect("a sequence");
        }
        assert_eq!((prefixes.len(), blocks.blocks_free()), (5, 3));
        assert_eq!(prefixes.evict(1, &mut blocks).expect("blocks"), 1);
        assert_eq!(prefixes.find(&old).0.len(), 1, "the second block of the older");
        // Now the newer one is not used for longer.
        assert_eq!(prefixes.evict(2, &mut blocks).expect("blocks"), 2);
        assert_eq!((prefixes.find(&new).0.len(), prefixes.find(&old).0.len()), (1, 1));
        // A block that a sequence has stays, and so does what leads to it.
        let id = sequence(&new, &mut prefixes, &mut blocks);
        assert_eq!(prefixes.evict(9, &mut blocks).expect("blocks"), 1);
        assert_eq!((prefixes.find(&new).0.len(), prefixes.len()), (3, 3));
        blocks.free(id).expect("a sequence");
        assert_eq!(prefixes.evict(9, &mut blocks).expect("blocks"), 3);
        assert_eq!((prefixes.len(), blocks.blocks_free()), (0, 8));
    }

    #[test]
    fn sequences_with_the_same_tokens_leave_no_block_that_cannot_go() {
        let (mut prefixes, mut blocks) = (Prefixes::default(), Blocks::new(8));
        let tokens = tokens(48, 1);
        // Both begin before either is in the tree.
        let ids = [blocks.create(), blocks.create()];
        let mut chains = [Chain::default(); 2];
        for (&id, chain) in ids.iter().zip(&mut chains) {
            add(id, 16, &mut blocks);
            prefixes.extend(chain, &tokens[..16], id, &mut blocks).expect("blocks of the sequence");
        }
        assert_eq!((prefixes.len(), blocks.blocks_free()), (1, 6));
        // The second has a block of its own, and so none in the tree while the first runs.
        add(ids[1], 16, &mut blocks);
        prefixes.extend(&mut chains[1], &tokens[..32], ids[1], &mut blocks).expect("blocks of the sequence");
        assert_eq!((prefixes.len(), chains[1]), (1, Chain::default()));
        blocks.free(ids[0]).expect("a sequence");
        assert_eq!((prefixes.unused(&blocks), blocks.blocks_free()), (1, 5));
        // Then the tree takes its blocks, and the first's is free.
        add(ids[1], 16, &mut blocks);
        prefixes.extend(&mut chains[1], &tokens, ids[1], &mut blocks).expect("blocks of the sequence");
        assert_eq!((prefixes.len(), prefixes.unused(&blocks), blocks.blocks_free()), (3, 0, 5));
        assert_eq!(prefixes.find(&tokens).0, blocks.blocks_of(ids[1]).expect("a sequence"));
        assert_eq!(prefixes.evict(9, &mut blocks).expect("blocks"), 0);
        blocks.free(ids[1]).expect("a sequence");
        assert_eq!(prefixes.evict(9, &mut blocks).expect("blocks"), 3);
        assert_eq!(blocks.blocks_free(), 8);
    }

    #[test]
    fn an_older_chain_goes_whole_before_a_newer_one() {
        let (mut prefixes, mut blocks) = (Prefixes::default(), Blocks::new(8));
        let (old, new) = (tokens(48, 1), tokens(48, 2));
        for tokens in [&new, &old] {
            // Block by block, as answers grow.
            let (id, mut chain) = (blocks.create(), Chain::default());
            for end in [16, 32, 48] {
                add(id, 16, &mut blocks);
                prefixes.extend(&mut chain, &tokens[..end], id, &mut blocks).expect("blocks of the sequence");
            }
            blocks.free(id).expect("a sequence");
        }
        assert_eq!(prefixes.find(&new).0.len(), 3);
        assert_eq!(prefixes.evict(2, &mut blocks).expect("blocks"), 2);
        assert_eq!((prefixes.find(&new).0.len(), prefixes.find(&old).0.len()), (3, 1));
        // That was a use of the old one's first block, and before it of all of the new one.
        assert_eq!(prefixes.evict(3, &mut blocks).expect("blocks"), 3);
        assert_eq!((prefixes.find(&new).0.len(), prefixes.find(&old).0.len()), (0, 1));
    }
}
