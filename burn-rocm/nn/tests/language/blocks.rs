//! The allocator against a plain model: which sequences see which tokens.

use std::collections::{BTreeMap, BTreeSet};

use burn_rocm_nn::language::{BLOCK, Blocks, CacheError, SequenceId};

use crate::support::Random;

/// The blocks of all sequences: each sequence's own contents, and what each block holds.
struct Model {
    texts: BTreeMap<SequenceId, Vec<u32>>,
    memory: Vec<[Option<u32>; BLOCK]>,
}

#[test]
fn sequences_keep_their_tokens_through_forks() {
    let random = Random::new();
    let mut blocks = Blocks::new(12);
    let mut model = Model { texts: BTreeMap::new(), memory: vec![[None; BLOCK]; 12] };
    let (mut refused, mut copied) = (0, 0);
    for turn in 0..4000u32 {
        let ids: Vec<SequenceId> = model.texts.keys().copied().collect();
        let any = (!ids.is_empty()).then(|| ids[random.below(ids.len())]);
        // Few enough sequences that most have room.
        let choice = if ids.len() > 5 { 2 } else { random.below(8) };
        match (choice, any) {
            (0, _) | (_, None) => {
                model.texts.insert(blocks.create(), Vec::new());
            }
            (1, Some(id)) => {
                let text = &model.texts[&id];
                let tokens = random.below(text.len() + 1);
                let copy = text[..tokens].to_vec();
                let new = blocks.fork(id, tokens).unwrap();
                model.texts.insert(new, copy);
            }
            (2, Some(id)) => {
                blocks.free(id).unwrap();
                model.texts.remove(&id);
                assert!(matches!(blocks.reserve(id, 1), Err(CacheError::NoSequence(found)) if found == id));
            }
            (3, Some(id)) => {
                let text = model.texts.get_mut(&id).unwrap();
                let tokens = random.below(text.len() + 1);
                blocks.truncate(id, tokens).unwrap();
                text.truncate(tokens);
            }
            (_, Some(id)) => {
                let tokens = random.below(24);
                let free = blocks.blocks_free();
                match blocks.reserve(id, tokens) {
                    Err(CacheError::OutOfBlocks { needed, free: found }) => {
                        assert!(needed > free && found == free);
                        assert_eq!(blocks.blocks_free(), free, "a refusal changes nothing");
                        refused += 1;
                    }
                    Err(other) => panic!("{other}"),
                    Ok(copy) => {
                        if let Some(copy) = copy {
                            model.memory[copy.to as usize] = model.memory[copy.from as usize];
                            copied += 1;
                        }
                        let text = model.texts.get_mut(&id).unwrap();
                        for token in 0..tokens {
                            let at = text.len();
                            let block = blocks.blocks_of(id).unwrap()[at / BLOCK];
                            let written = turn * 64 + token as u32;
                            model.memory[block as usize][at % BLOCK] = Some(written);
                            text.push(written);
                        }
                        blocks.advance(id, tokens).unwrap();
                    }
                }
            }
        }
        let mut held = BTreeSet::new();
        for (&id, text) in &model.texts {
            assert_eq!(blocks.tokens(id).unwrap(), text.len());
            held.extend(blocks.blocks_of(id).unwrap().iter().copied());
            for (at, &token) in text.iter().enumerate() {
                let block = blocks.blocks_of(id).unwrap()[at / BLOCK];
                assert_eq!(model.memory[block as usize][at % BLOCK], Some(token), "token {at} of {id:?}");
            }
        }
        assert_eq!(blocks.blocks_free() + held.len(), blocks.blocks());
    }
    assert!(refused > 20 && copied > 20, "{refused} refusals, {copied} copies");
}

#[test]
fn a_call_that_does_not_fit_says_so() {
    let mut blocks = Blocks::new(2);
    let id = blocks.create();
    assert!(matches!(blocks.advance(id, 1), Err(CacheError::Tokens { found: 0, .. })));
    assert!(matches!(blocks.fork(id, 1), Err(CacheError::Tokens { found: 0, .. })));
    assert!(matches!(blocks.truncate(id, 1), Err(CacheError::Tokens { found: 0, .. })));
    let error = blocks.reserve(id, 2 * BLOCK + 1).unwrap_err();
    assert_eq!(error.to_string(), "3 blocks are needed, 2 are free");
    assert!(matches!(blocks.reserve(id, usize::MAX), Err(CacheError::OutOfBlocks { .. })));
    assert_eq!(blocks.reserve(id, 2 * BLOCK).unwrap(), None);
}

#[test]
fn held_blocks_stay_for_sequences_that_adopt_them() {
    let mut blocks = Blocks::new(4);
    let first = blocks.create();
    assert_eq!(blocks.reserve(first, 40).unwrap(), None);
    blocks.advance(first, 40).unwrap();
    let own = blocks.blocks_of(first).unwrap().to_vec();
    own[..2].iter().for_each(|&block| blocks.hold(block).unwrap());
    assert!(matches!(blocks.hold(own[0]), Err(CacheError::NoBlock(block)) if block == own[0]));
    assert_eq!([0, 1, 2].map(|index| blocks.holders(own[index])), [2, 2, 1]);
    blocks.free(first).unwrap();
    assert_eq!(blocks.blocks_free(), 2);
    assert!(matches!(blocks.hold(own[2]), Err(CacheError::NoBlock(_))), "it is free");
    assert!(matches!(blocks.adopt(&own), Err(CacheError::NoBlock(block)) if block == own[2]));

    let second = blocks.adopt(&own[..2]).unwrap();
    assert_eq!((blocks.tokens(second).unwrap(), blocks.blocks_of(second).unwrap()), (32, &own[..2]));
    assert_eq!(blocks.reserve(second, 1).unwrap(), None, "it writes behind them");
    // A sequence that would write into a held block gets a copy.
    blocks.truncate(second, 20).unwrap();
    let copy = blocks.reserve(second, 1).unwrap().expect("a copy");
    assert_eq!((copy.from, copy.to == own[1]), (own[1], false));
    assert_eq!((blocks.holders(own[1]), blocks.blocks_free()), (1, 1));
    blocks.let_go(own[1]).unwrap();
    assert!(matches!(blocks.let_go(own[1]), Err(CacheError::NoBlock(_))));
    assert_eq!((blocks.holders(own[1]), blocks.blocks_free()), (0, 2));
    blocks.free(second).unwrap();
    blocks.let_go(own[0]).unwrap();
    assert_eq!(blocks.blocks_free(), 4);
    for beyond in [4, u32::MAX] {
        assert!(
            blocks.hold(beyond).is_err()
                && blocks.let_go(beyond).is_err()
                && blocks.adopt(&[beyond]).is_err()
        );
    }
}
