//! The values of settings that are a choice among several.

use std::path::PathBuf;

/// Which implementation computes an op that both a library and a kernel of this project can
/// compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The library if it supports the dtype and options, else the kernel.
    Auto,
    /// Only the library. An op that it does not support is an error.
    Library,
    /// Only the kernel.
    Own,
}

/// How the backend chooses MIOpen's algorithm for a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindMode {
    /// The first two calls with a shape use MIOpen's database. The third times the candidates and
    /// keeps the fastest, unless [`Config::deterministic`](super::Config::deterministic) is set.
    Auto,
    /// From MIOpen's database. [`ChannelsLast::Auto`] is then the same as [`ChannelsLast::Off`].
    Immediate,
    /// By timing the candidates at a shape's first use, in MIOpen's default find mode or that of
    /// its variable `MIOPEN_FIND_MODE`.
    Find,
    /// As [`Find`](Self::Find), in MIOpen's normal mode: all solutions are timed.
    Normal,
    /// As [`Find`](Self::Find), in MIOpen's fast mode: what its database has is taken, else its
    /// immediate mode's choice.
    Fast,
    /// As [`Find`](Self::Find), in MIOpen's hybrid mode: what its database has is taken, else all
    /// solutions are timed.
    Hybrid,
    /// As [`Find`](Self::Find), in MIOpen's dynamic hybrid mode: as in hybrid mode, without
    /// solutions that compile a kernel for each shape.
    DynamicHybrid,
    /// As [`Normal`](Self::Normal), and MIOpen searches the best parameters of each tunable kernel
    /// that its database does not have yet. This takes minutes for each shape.
    Exhaustive,
    /// As [`Exhaustive`](Self::Exhaustive), also for what MIOpen's database and the tuning store
    /// have.
    Retune,
}

impl FindMode {
    /// Whether algorithms are timed at a shape's first use.
    pub(crate) fn at_first_use(self) -> bool {
        !matches!(self, Self::Auto | Self::Immediate)
    }

    /// Whether an entry of the tuning store replaces the timing.
    pub(crate) fn uses_store(self) -> bool {
        !matches!(self, Self::Immediate | Self::Retune)
    }
}

/// How the backend chooses rocBLAS's solution for a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GemmFind {
    /// rocBLAS chooses.
    Off,
    /// rocBLAS chooses for the first two products of a shape. The third times its solutions, and
    /// the fastest serves from then on, unless
    /// [`Config::deterministic`](super::Config::deterministic) is set.
    Auto,
}

/// Whether hipBLASLt computes products together with what follows them: a bias, an activation, and
/// their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HipblasLt {
    /// Never.
    Off,
    /// The third use of a shape times hipBLASLt's algorithms. The fastest serves if it takes less
    /// time than rocBLAS and a kernel after it.
    Auto,
    /// Wherever its heuristic returns an algorithm, by the first one.
    On,
}

/// Where the channels of 2-D convolutions in f16 and bf16 lie in memory. f32 and f64 have NCHW.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelsLast {
    /// Outside the pixels (NCHW), always.
    Off,
    /// Where the layer's convolutions are faster, copies included, as timing at the third use finds.
    /// [`On`](Self::On)'s conditions apply too. The same as [`Off`](Self::Off) in deterministic mode,
    /// and if [`Config::conv_find`](super::Config::conv_find) is `Immediate`.
    Auto,
    /// Innermost (NHWC) if MIOpen computes the convolution and has it in this order, and input and
    /// output have a multiple of 8 channels. The input may also be an image of up to 4 channels.
    On,
}

/// Which f16 products and convolutions use the libraries' alternative implementation on gfx90a.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum F16Alternative {
    /// None. Subnormal operands count as 0.
    None,
    /// Those that compute gradients.
    Gradients,
    /// All.
    All,
}

/// Which elements of an op's float result count as wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckFinite {
    /// None: nothing is checked.
    Off,
    /// NaN.
    Nan,
    /// NaN and infinities.
    All,
}

/// Where the memory of an integrated GPU (APU) comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApuMemory {
    /// From `hipMalloc`. What is beyond the GPU's carve-out comes from `hipMallocManaged` where
    /// `hipMalloc` may not reach it.
    Auto,
    /// From `hipMalloc` alone.
    Device,
    /// From `hipMallocManaged` alone.
    Managed,
}

/// Where the profile of the whole process goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ProfileOutput {
    /// There is none.
    #[default]
    None,
    /// A table on stderr.
    Table,
    /// A file that Perfetto opens. Its name ends in `.json`.
    Trace(PathBuf),
}

impl From<PathBuf> for ProfileOutput {
    fn from(path: PathBuf) -> Self {
        Self::Trace(path)
    }
}
