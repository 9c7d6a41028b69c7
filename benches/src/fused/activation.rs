//! Activations.

use burn::tensor::{DType, activation};
use burn_rocm_nn::Silu;

use super::Case;

pub(super) fn cases(rows: usize) -> Vec<Case> {
    vec![Case::unary("silu", [rows, 4096], DType::F32, activation::silu, |x| Silu::new().forward(x))]
}
