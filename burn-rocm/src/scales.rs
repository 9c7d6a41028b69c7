//! How the scales of a quantisation scheme are laid out over a tensor's values.

/// The properties of a scheme's scales that the kernels and [`crate::ops::quantized`] use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scales {
    /// The number of values in row-major order that share a scale; `None` if all values do.
    pub(crate) run: Option<usize>,
    /// The precision to which scales are rounded, numbered as in `quantize.hip`.
    pub(crate) param: u32,
    /// For each axis, the number of blocks along it and the number of elements that a block has
    /// along it. The list ends with the axis in which a run ends. `None` if a block is one run.
    pub(crate) grid: Option<Vec<[usize; 2]>>,
    /// The type to which scales are rounded up instead, if any.
    pub(crate) up: Option<Narrow>,
    /// The largest block scale, if block scales are relative to a scale of the whole tensor.
    pub(crate) relative_to: Option<f32>,
}

/// A scale type that is narrower than f32, described by the f32 numbers that it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Narrow {
    /// The difference between the f32 bits of two neighbouring numbers.
    pub(crate) step: u32,
    /// The largest number.
    pub(crate) most: f32,
    /// The smallest normal number, and the distance between the numbers below it. `None` if both
    /// are those of f32.
    pub(crate) subnormal: Option<[f32; 2]>,
}
