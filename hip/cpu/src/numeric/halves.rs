//! What gfx90a's matrix instructions do to f16, for a device that says it is one (`BURN_ROCM_CPU_ARCH`): so a test
//! sees which implementation a call asked for.

use super::element::Element;
use crate::arch::arch_name;
use half::{bf16, f16};

/// How operands and results are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halves {
    /// As they are.
    Exact,
    /// Subnormal values as 0: the chip's own f16 instructions.
    Flushed,
    /// In bf16's digits: the libraries' alternative, which goes by that type's instructions.
    Rounded,
}

impl Halves {
    /// With the alternative asked for or not.
    pub(crate) fn of(alternative: bool) -> Self {
        match (arch_name().split(':').next() == Some("gfx90a"), alternative) {
            (false, _) => Self::Exact,
            (true, false) => Self::Flushed,
            (true, true) => Self::Rounded,
        }
    }

    /// An operand as the instructions take it.
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

/// An f16 that is taken, and rounded to, as [`Halves::Flushed`] says.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Flushed(f16);

/// An f16 that is taken as [`Halves::Rounded`] says.
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
