//! The pool's allocator: bookkeeping of used and free blocks, without a driver.
//!
//! The allocator cuts segments, which are regions from the driver, into blocks. It keeps free
//! blocks in one list for each size class. Bitmaps of two levels say which lists are not empty, so
//! allocating and freeing take constant time. The scheme is Masmano et al., "TLSF: a new dynamic
//! memory allocator for real-time systems", ECRTS 2004.

/// Every block starts at a multiple of this many bytes. It is hipMalloc's alignment, and enough for
/// any access.
pub(crate) const ALIGN: usize = 256;
/// Size classes per power of two. A request is rounded up to a class, which wastes at most 1/32.
const STEPS: usize = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Powers of two that have classes: block sizes up to 2^48 bytes.
const POWERS: usize = 40;
const NONE: u32 = u32::MAX;

/// A block's number in its arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockId(u32);

struct Block {
    address: usize,
    size: usize,
    /// The fence that the copy stream must wait for before it writes the block; 0 is none.
    fence: u64,
    used: bool,
    /// Neighbours in the segment, by address.
    before: u32,
    after: u32,
    /// Neighbours in the list of the size class.
    previous: u32,
    next: u32,
}

/// The used and free blocks of a set of segments.
pub(crate) struct Arena {
    blocks: Vec<Block>,
    unused_numbers: Vec<u32>,
    heads: Box<[[u32; STEPS]; POWERS]>,
    powers: u64,
    steps: [u32; POWERS],
}

/// A block that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) id: BlockId,
    pub(crate) address: usize,
    pub(crate) size: usize,
    pub(crate) fence: u64,
}

/// A request rounded up to the smallest class that holds it, in bytes. `None` for 2^47 bytes or
/// more.
pub(crate) fn rounded(bytes: usize) -> Option<usize> {
    if bytes >= 1 << 47 {
        return None;
    }
    let units = bytes.div_ceil(ALIGN).max(1);
    if units < STEPS {
        return Some(units * ALIGN);
    }
    let step = 1usize << (units.ilog2() - STEP_BITS);
    Some(units.next_multiple_of(step) * ALIGN)
}

/// The class of a block of this size: its power of two, and its step within it.
fn class(size: usize) -> (usize, usize) {
    let units = size / ALIGN;
    if units < STEPS {
        return (0, units);
    }
    let log = units.ilog2();
    ((log - STEP_BITS + 1) as usize, (units >> (log - STEP_BITS)) & (STEPS - 1))
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            unused_numbers: Vec::new(),
            heads: Box::new([[NONE; STEPS]; POWERS]),
            powers: 0,
            steps: [0; POWERS],
        }
    }

    /// Takes a free block of at least `size` bytes, a result of [`rounded`], and splits it if it is
    /// larger.
    pub(crate) fn take(&mut self, size: usize) -> Option<Taken> {
        let number = self.find(size)?;
        self.unlist(number);
        Some(self.cut(number, size))
    }

    /// Takes a free block of `size` to `most` bytes, and does not split it.
    pub(crate) fn take_whole(&mut self, size: usize, most: usize) -> Option<Taken> {
        let number = self.find(size)?;
        let whole = self.blocks[number as usize].size;
        if whole > most {
            return None;
        }
        self.unlist(number);
        Some(self.cut(number, whole))
    }

    /// A free block of the smallest class that has one and whose blocks all have `size` bytes.
    fn find(&self, size: usize) -> Option<u32> {
        let (power, step) = class(size);
        let here = self.steps[power] & (u32::MAX << step);
        let (power, steps) = if here != 0 {
            (power, here)
        } else {
            let above = self.powers & (u64::MAX << (power + 1));
            if above == 0 {
                return None;
            }
            let power = above.trailing_zeros() as usize;
            (power, self.steps[power])
        };
        Some(self.heads[power][steps.trailing_zeros() as usize])
    }

    /// Adds a segment from the driver, and takes a block from its beginning.
    pub(crate) fn add_segment(&mut self, address: usize, segment: usize, size: usize) -> Taken {
        debug_assert!(size <= segment && address.is_multiple_of(ALIGN));
        let number = self.number(Block {
            address,
            size: segment,
            fence: 0,
            used: false,
            before: NONE,
            after: NONE,
            previous: NONE,
            next: NONE,
        });
        self.cut(number, size)
    }

    /// Frees a block, merges it with free neighbours, and returns its size in bytes.
    pub(crate) fn free(&mut self, id: BlockId, fence: u64) -> usize {
        let mut number = id.0;
        let block = &mut self.blocks[number as usize];
        assert!(block.used, "a block is freed once");
        block.used = false;
        block.fence = fence;
        let (size, before, after) = (block.size, block.before, block.after);
        if after != NONE && !self.blocks[after as usize].used {
            self.unlist(after);
            self.join(number, after);
        }
        if before != NONE && !self.blocks[before as usize].used {
            self.unlist(before);
            self.join(before, number);
            number = before;
        }
        self.list(number);
        size
    }

    /// Removes the segments without a used block, and returns their addresses and sizes.
    pub(crate) fn remove_free_segments(&mut self) -> Vec<(usize, usize)> {
        let mut removed = Vec::new();
        for number in 0..self.blocks.len() as u32 {
            let block = &self.blocks[number as usize];
            // An unused number has size 0.
            if block.size != 0 && !block.used && block.before == NONE && block.after == NONE {
                removed.push((block.address, block.size));
                self.unlist(number);
                self.blocks[number as usize].size = 0;
                self.unused_numbers.push(number);
            }
        }
        removed
    }

    /// The sizes of the free blocks, in bytes.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = usize> {
        // An unused number has size 0.
        self.blocks.iter().filter(|block| block.size != 0 && !block.used).map(|block| block.size)
    }

    /// Marks a block that is free and on no list as used. What exceeds `size` is split off and put
    /// on a list.
    fn cut(&mut self, number: u32, size: usize) -> Taken {
        let block = &mut self.blocks[number as usize];
        let (address, whole, fence, after) = (block.address, block.size, block.fence, block.after);
        block.used = true;
        if whole - size >= ALIGN {
            block.size = size;
            let rest = self.number(Block {
                address: address + size,
                size: whole - size,
                fence,
                used: false,
                before: number,
                after,
                previous: NONE,
                next: NONE,
            });
            self.blocks[number as usize].after = rest;
            if after != NONE {
                self.blocks[after as usize].before = rest;
            }
            self.list(rest);
        }
        let size = self.blocks[number as usize].size;
        Taken { id: BlockId(number), address, size, fence }
    }

    /// Merges the second block into the first. Neither is on a list.
    fn join(&mut self, first: u32, second: u32) {
        let Block { size, fence, after, .. } = self.blocks[second as usize];
        let block = &mut self.blocks[first as usize];
        block.size += size;
        block.fence = block.fence.max(fence);
        block.after = after;
        if after != NONE {
            self.blocks[after as usize].before = first;
        }
        self.blocks[second as usize].size = 0;
        self.unused_numbers.push(second);
    }

    fn number(&mut self, block: Block) -> u32 {
        match self.unused_numbers.pop() {
            Some(number) => {
                self.blocks[number as usize] = block;
                number
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        }
    }

    fn list(&mut self, number: u32) {
        let (power, step) = class(self.blocks[number as usize].size);
        let head = self.heads[power][step];
        let block = &mut self.blocks[number as usize];
        block.previous = NONE;
        block.next = head;
        if head != NONE {
            self.blocks[head as usize].previous = number;
        }
        self.heads[power][step] = number;
        self.steps[power] |= 1 << step;
        self.powers |= 1 << power;
    }

    fn unlist(&mut self, number: u32) {
        let Block { size, previous, next, .. } = self.blocks[number as usize];
        if next != NONE {
            self.blocks[next as usize].previous = previous;
        }
        if previous != NONE {
            self.blocks[previous as usize].next = next;
            return;
        }
        let (power, step) = class(size);
        self.heads[power][step] = next;
        if next == NONE {
            self.steps[power] &= !(1 << step);
            if self.steps[power] == 0 {
                self.powers &= !(1 << power);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_wastes_at_most_a_thirtysecond_and_is_stable() {
        for bytes in (0..100_000).chain((0..4_000).map(|i| i * 1_234_567)) {
            let size = rounded(bytes).unwrap();
            assert!(size >= bytes && size.is_multiple_of(ALIGN));
            assert!(size - bytes <= ALIGN + bytes / 32, "{bytes} -> {size}");
            assert_eq!(rounded(size), Some(size));
            // The class must exist.
            let (power, step) = class(size);
            assert!(power < POWERS && step < STEPS);
        }
        assert_eq!(rounded(usize::MAX), None);
    }

    #[test]
    fn a_block_is_split_and_merged_whatever_the_order() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]] {
            let mut arena = Arena::new();
            let blocks = [
                arena.add_segment(1 << 20, 1 << 20, 4096),
                arena.take(65536).unwrap(),
                arena.take(1024).unwrap(),
            ];
            assert_eq!(blocks[1].address, (1 << 20) + 4096);
            assert_eq!(blocks[2].address, (1 << 20) + 4096 + 65536);
            assert!(arena.remove_free_segments().is_empty());
            for at in order {
                assert_eq!(arena.free(blocks[at].id, 0), blocks[at].size);
            }
            let whole = arena.take(1 << 20).expect("merged back into the whole segment");
            assert_eq!((whole.address, whole.size), (1 << 20, 1 << 20));
            arena.free(whole.id, 0);
            assert_eq!(arena.remove_free_segments(), [(1 << 20, 1 << 20)]);
            assert!(arena.take(256).is_none());
        }
    }

    #[test]
    fn merged_blocks_keep_the_later_fence() {
        let mut arena = Arena::new();
        let a = arena.add_segment(1 << 20, 8192, 4096);
        let b = arena.take(4096).unwrap();
        arena.free(a.id, 7);
        arena.free(b.id, 3);
        assert_eq!(arena.take(8192).unwrap().fence, 7);
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn freeing_twice_is_caught() {
        let mut arena = Arena::new();
        let block = arena.add_segment(1 << 20, 8192, 4096);
        arena.free(block.id, 0);
        arena.free(block.id, 0);
    }

    #[test]
    fn random_use_never_overlaps_and_ends_merged() {
        let mut arena = Arena::new();
        let mut random = 88172645463325252u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut live: Vec<Taken> = Vec::new();
        let mut segments = 0;
        for _ in 0..20_000 {
            if next(100) < 55 {
                let size = rounded(1 << next(16)).unwrap() + 256 * next(3) as usize;
                let size = rounded(size).unwrap();
                let taken = arena.take(size).unwrap_or_else(|| {
                    segments += 1;
                    arena.add_segment(segments << 24, 1 << 20, size)
                });
                assert!(taken.size >= size);
                live.push(taken);
            } else if !live.is_empty() {
                let taken = live.swap_remove(next(live.len() as u64) as usize);
                arena.free(taken.id, 0);
            }
            if live.len() > 400 {
                live.sort_by_key(|taken| taken.address);
                assert!(live.windows(2).all(|w| w[0].address + w[0].size <= w[1].address));
                for taken in live.drain(200..) {
                    arena.free(taken.id, 0);
                }
            }
        }
        for taken in live {
            arena.free(taken.id, 0);
        }
        assert_eq!(arena.remove_free_segments().len(), segments);
    }
}
