//! How a launch is divided.

/// How many blocks of how many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks; a launch of 0 does nothing.
    pub blocks: u32,
    /// Threads of a block: a multiple of the device's warp size.
    pub threads: u32,
}
