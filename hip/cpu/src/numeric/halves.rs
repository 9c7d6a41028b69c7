//! Imitates the f16 arithmetic of gfx90a's matrix instructions if the device reports that name
//! (`BURN_ROCM_CPU_ARCH`). So a test can see which implementation a call asked for.

use super::element::Element;
use crate::arch::arch_name;
use half::{bf16, f16};

/// How operands and results of f16 are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halves {
    /// As they are.
    Exact,
    /// Subnormal values become 0, as in the chip's f16 instructions.
    Flushed,
    /// Operands are rounded to bf16, as in the libraries' alternative, which uses bf16
    /// instructions.
    Rounded,
}

impl Halves {
    /// The rounding for a call. `alternative` says whether the call asks for the alternative.
    pub(crate) fn of(alternative: bool) -> Self {
        match (arch_name().split(':').next() == Some("gfx90a"), alternative) {
            (false, _) => Self::Exact,
            (true, false) => Self::Flushed,
            (true, true) => Self::Rounded,
        }
    }

    /// An operand as the instructions see it.
    pub(crate) fn operand(self, value: f32) -> f32 {
        match self {
            Self::Exact => value,
            Self::Flushed => flushed(value),
            Self::Rounded => bf16::from_f32(value).to_f32(),
        }
    }

    /// A result before it is rounded to f16.
    pub(crate) fn result(self, value: f32) -> f32 {
        if self == Self::Flushed { flushed(value) } else { value }
    }
}

fn flushed(value: f32) -> f32 {
    if value.abs() < f16::MIN_POSITIVE.to_f32() { 0.0 } else { value }
}

/// An f16 that is loaded and stored as [`Halves::Flushed`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Flushed(f16);

/// An f16 that is loaded as [`Halves::Rounded`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Rounded(f16);

impl Flushed {
    pub(crate) fn load(self) -> f32 {
        Halves::Flushed.operand(Element::widen(self.0))
    }
    pub(crate) fn store(value: f32) -> Self {
        Self(Element::narrow(Halves::Flushed.result(value)))
    }
}

impl Rounded {
    pub(crate) fn load(self) -> f32 {
        Halves::Rounded.operand(Element::widen(self.0))
    }
    pub(crate) fn store(value: f32) -> Self {
        Self(Element::narrow(value))
    }
}
