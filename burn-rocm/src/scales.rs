//! How a quantisation scheme's scales lie over a tensor's values.

/// What the kernels and [`crate::ops::quantized`] know of a scheme's scales.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scales {
    /// Values in row-major order that share a scale; `None` where all do.
    pub(crate) run: Option<usize>,
    /// The scales' precision as `quantize.hip` numbers it: what its rounding is for.
    pub(crate) param: u32,
    /// The number of blocks along each axis and of a block's elements there, as far as the axis in which a run ends;
    /// `None` where a block is one run.
    pub(crate) grid: Option<Vec<[usize; 2]>>,
    /// Where scales are rounded up instead.
    pub(crate) up: Option<Narrow>,
    /// The greatest block scale, where block scales are relative to a scale of the whole tensor.
    pub(crate) relative_to: Option<f32>,
}

/// A type of scales that is narrower than f32, by the f32 numbers that it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Narrow {
    /// The distance between the bits of two neighbours.
    pub(crate) step: u32,
    /// The greatest number.
    pub(crate) most: f32,
    /// The least normal number, and the distance between the smaller ones; `None` where those are f32's.
    pub(crate) subnormal: Option<[f32; 2]>,
}
