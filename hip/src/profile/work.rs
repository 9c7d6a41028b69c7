//! What the profile knows about one piece of a device's work.

use crate::profile::names::{self, Text};
use crate::watch::{RUNNING, Running};

/// The kinds of work that the profile and [`Counts`](crate::trace::Counts) tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKind {
    /// A kernel of this project or of the app.
    Kernel,
    /// A call into rocBLAS, MIOpen or RCCL. It may launch several kernels.
    Library,
    /// A copy or fill within a device's memory, or a copy between devices.
    Copy,
    /// A copy from the host or to it.
    Transfer,
    /// The launch of a captured graph.
    Graph,
}

impl WorkKind {
    /// Its name in tables and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Library => "library",
            Self::Copy => "copy",
            Self::Transfer => "transfer",
            Self::Graph => "graph",
        }
    }
}

/// On whose behalf work is done: the op that its thread runs, and the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Who {
    pub(crate) region: Text,
    pub(crate) op: Text,
    pub(crate) dtype: &'static str,
    pub(crate) shapes: u32,
    /// Where the app called the op, if profiles ask for that.
    pub(crate) site: Text,
}

impl Who {
    pub(crate) const NOBODY: Self =
        Self { region: Text::EMPTY, op: Text::EMPTY, dtype: "", shapes: 0, site: Text::EMPTY };

    /// That of the calling thread.
    pub(crate) fn here() -> Self {
        Self::of(&RUNNING.get())
    }

    /// That of an op which the calling thread runs.
    pub(crate) fn of(running: &Running) -> Self {
        let &Running { op, dtype, shapes, site, .. } = running;
        Self { region: names::region(), op: names::fixed(op), dtype, shapes, site }
    }

    /// That of several ops which one launch computes: all but their names is the first one's.
    pub(crate) fn joined(all: &[Self]) -> Self {
        let Some(&first) = all.first() else { return Self::here() };
        Self { op: names::joined(all.iter().map(|who| who.op)), ..first }
    }
}

/// What pieces of work have in common that count as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) who: Who,
    pub(crate) kind: WorkKind,
    /// The kernel or the library's function.
    pub(crate) name: Text,
    pub(crate) device: usize,
}

/// The memory that one piece of work reads and writes, and the arithmetic that it does, as far as
/// the caller knows them; 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) bytes: u64,
    pub(crate) flops: u64,
}

impl Load {
    pub(crate) const UNKNOWN: Self = Self { bytes: 0, flops: 0 };

    pub(crate) const fn bytes(bytes: usize) -> Self {
        Self { bytes: bytes as u64, flops: 0 }
    }
}
