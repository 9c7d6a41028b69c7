//! A pool's statistics.

/// A pool's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Bytes of the blocks in use.
    pub allocated: usize,
    /// Bytes held from the driver.
    pub reserved: usize,
    /// The most bytes in use at once, since the start or the last
    /// [`MemoryPool::reset_peak`](super::MemoryPool::reset_peak).
    pub peak: usize,
    /// Allocations served from memory that the pool held.
    pub hits: u64,
    /// Allocations for which the pool had to ask the driver for memory.
    pub misses: u64,
    /// Bytes of the blocks in use that were allocated by
    /// [`MemoryPool::persistently`](super::MemoryPool::persistently), a part of `allocated`.
    pub persistent: usize,
    /// Bytes held from the driver for such blocks, a part of `reserved`.
    pub persistent_reserved: usize,
    /// The number of blocks in use.
    pub blocks: u64,
    /// Bytes that rounding up adds to the requests of the blocks in use. A part of `allocated`.
    pub padding: usize,
    /// Bytes kept for captured graphs, a part of `allocated`.
    pub graphs: usize,
}

/// The segments of one size that a pool cuts into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentStats {
    /// The bytes of one segment.
    pub size: usize,
    /// The number of segments that the pool holds.
    pub held: u64,
    /// The most segments that the pool has held at once.
    pub peak: u64,
    /// The largest request that such a segment has served, in bytes.
    pub largest: usize,
}
