//! Element types.

use DType::*;

/// The element type of a tensor in device memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 16-bit integer.
    I16,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 8-bit integer.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        self.facts().0
    }

    /// The type's name in the kernels (`prelude.h`).
    pub const fn cpp(self) -> &'static str {
        self.facts().1
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether it is an integer type.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, Self::Bool)
    }

    const fn facts(self) -> (usize, &'static str) {
        match self {
            Self::F64 => (8, "f64"),
            Self::F32 => (4, "f32"),
            Self::F16 => (2, "f16"),
            Self::BF16 => (2, "bf16"),
            Self::I64 => (8, "i64"),
            Self::I32 => (4, "i32"),
            Self::I16 => (2, "i16"),
            Self::I8 => (1, "i8"),
            Self::U64 => (8, "u64"),
            Self::U32 => (4, "u32"),
            Self::U16 => (2, "u16"),
            Self::U8 => (1, "u8"),
            Self::Bool => (1, "bool8"),
        }
    }
}

impl core::fmt::Display for DType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.cpp())
    }
}

/// Every type: the floats, then the integers, then bool.
pub const ALL: &[DType] = &[F32, F64, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, Bool];
/// Floats and integers.
pub const NUMBERS: &[DType] = ALL.split_at(12).0;
/// The floating-point types.
pub const FLOATS: &[DType] = NUMBERS.split_at(4).0;
/// The integer types.
pub const INTS: &[DType] = NUMBERS.split_at(4).1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_what_their_names_say() {
        assert!(FLOATS.len() == 4 && FLOATS.iter().all(|dtype| dtype.is_float()));
        assert!(INTS.len() == 8 && INTS.iter().all(|dtype| dtype.is_int()));
        assert_eq!(ALL.split_last(), Some((&Bool, NUMBERS)));
    }
}
