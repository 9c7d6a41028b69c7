//! The grid of a launch.

/// The number of blocks of a launch, and of threads of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks. A launch of 0 blocks does nothing.
    pub blocks: u32,
    /// Threads of a block, a multiple of the device's warp size.
    pub threads: u32,
}
