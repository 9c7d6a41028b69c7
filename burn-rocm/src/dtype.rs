//! The table from Burn's dtypes to the kernels' dtypes.

use burn_std::{BoolStore, DType};

use crate::error::{invalid, unsupported};

/// The kernels' type for `dtype`.
///
/// # Errors
/// `Unsupported` for a quantised type.
pub(crate) fn kernel_type(dtype: DType) -> hip::Result<hip::DType> {
    Ok(match dtype {
        DType::F64 => hip::DType::F64,
        // Flex32 is stored as f32; this backend never lowers its precision.
        DType::F32 | DType::Flex32 => hip::DType::F32,
        DType::F16 => hip::DType::F16,
        DType::BF16 => hip::DType::BF16,
        DType::I64 => hip::DType::I64,
        DType::I32 => hip::DType::I32,
        DType::I16 => hip::DType::I16,
        DType::I8 => hip::DType::I8,
        DType::U64 => hip::DType::U64,
        DType::U32 | DType::Bool(BoolStore::U32) => hip::DType::U32,
        DType::U16 => hip::DType::U16,
        DType::U8 => hip::DType::U8,
        DType::Bool(BoolStore::Native | BoolStore::U8) => hip::DType::Bool,
        DType::QFloat(_) => return unsupported("a kernel", dtype),
    })
}

/// The dtype in which sums and statistics of `dtype` are kept.
pub(crate) fn compute_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The unsigned type of the same size, for kernels that move elements without looking at their
/// values.
pub(crate) fn raw_type(dtype: hip::DType) -> hip::DType {
    match dtype.size() {
        1 => hip::DType::U8,
        2 => hip::DType::U16,
        4 => hip::DType::U32,
        _ => hip::DType::U64,
    }
}

/// Whether kernels read indices of this dtype without a conversion.
pub(crate) fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

/// The largest index that an integer type holds.
fn greatest_index(dtype: DType) -> usize {
    match dtype {
        DType::I8 => i8::MAX as usize,
        DType::U8 => u8::MAX.into(),
        DType::I16 => i16::MAX as usize,
        DType::U16 => u16::MAX.into(),
        DType::I32 => i32::MAX as usize,
        DType::U32 => u32::MAX as usize,
        _ => isize::MAX as usize,
    }
}

/// Checks that an integer type holds the indices of `count` elements. `what` names these.
///
/// # Errors
/// `Invalid` if the type is too narrow.
pub(crate) fn check_indices(op: &'static str, what: &str, count: usize, index: DType) -> hip::Result<()> {
    let most = greatest_index(index);
    match count.saturating_sub(1) > most {
        true => invalid(
            op,
            format!("at most {} {what} for indices of {}", most + 1, index.name()),
            count.to_string(),
        ),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_agree() {
        for dtype in [
            DType::F64,
            DType::F32,
            DType::Flex32,
            DType::F16,
            DType::BF16,
            DType::I64,
            DType::I32,
            DType::I16,
            DType::I8,
            DType::U64,
            DType::U32,
            DType::U16,
            DType::U8,
            DType::Bool(BoolStore::Native),
            DType::Bool(BoolStore::U8),
            DType::Bool(BoolStore::U32),
        ] {
            let kernel = kernel_type(dtype).unwrap();
            assert_eq!(kernel.size(), dtype.size(), "{dtype:?}");
            assert_eq!(raw_type(kernel).size(), dtype.size(), "{dtype:?}");
        }
    }
}
