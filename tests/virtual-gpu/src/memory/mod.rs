//! What a GPU may access: the map of its allocations, and the pages behind them.

mod map;
mod pages;

pub use map::{AccessError, AllocationMap, Hint, Nearest, Range};
pub use pages::{PAGE, Pages};
