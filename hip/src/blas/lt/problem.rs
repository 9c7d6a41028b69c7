//! What identifies a product with an epilogue, without its data: the tuning store's key.

use std::fmt::{self, Display};

use hipblaslt_sys::*;

use super::{Epilogue, LtActivation};
use crate::DType;
use crate::blas::layout::Plan;

/// A type of fp8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// OCP's E4M3.
    E4M3,
    /// OCP's E5M2.
    E5M2,
    /// E4M3 of gfx942.
    E4M3Fnuz,
    /// E5M2 of gfx942.
    E5M2Fnuz,
}

/// What hipBLASLt's choice of an algorithm may depend on. Sizes, transposes and leading dimensions
/// are those of its call, which is column-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LtProblem {
    /// Of the result and what is added to it, and of the operands unless they are of fp8.
    pub(super) dtype: DType,
    /// The operands' types, if these are of fp8. Both then have a scale.
    pub(super) fp8: Option<[Fp8; 2]>,
    /// Whether the first and the second operand are transposed.
    pub(super) transposed: [bool; 2],
    /// m, n, k.
    pub(super) sizes: [i32; 3],
    /// Leading dimensions of the operands, of what is added, and of the result.
    pub(super) ld: [i32; 4],
    /// Whether something is added.
    pub(super) adds: bool,
    /// hipBLASLt's number of the epilogue.
    pub(super) epilogue: hipblasLtEpilogue_t,
}

/// hipBLASLt's number of an epilogue. hipBLASLt is column-major, so a row of the result is a column
/// there.
pub(super) fn number(epilogue: &Epilogue<'_>) -> hipblasLtEpilogue_t {
    use LtActivation::{GeluTanh, Relu};
    match epilogue {
        Epilogue::Forward { bias, activation, before } => {
            match (activation, bias.is_some(), before.is_some()) {
                (None, false, _) => HIPBLASLT_EPILOGUE_DEFAULT,
                (None, true, _) => HIPBLASLT_EPILOGUE_BIAS,
                (Some(Relu), false, _) => HIPBLASLT_EPILOGUE_RELU,
                (Some(Relu), true, _) => HIPBLASLT_EPILOGUE_RELU_BIAS,
                (Some(GeluTanh), false, false) => HIPBLASLT_EPILOGUE_GELU,
                (Some(GeluTanh), true, false) => HIPBLASLT_EPILOGUE_GELU_BIAS,
                (Some(GeluTanh), false, true) => HIPBLASLT_EPILOGUE_GELU_AUX,
                (Some(GeluTanh), true, true) => HIPBLASLT_EPILOGUE_GELU_AUX_BIAS,
            }
        }
        Epilogue::GeluGradient { sums: None, .. } => HIPBLASLT_EPILOGUE_DGELU,
        Epilogue::GeluGradient { sums: Some(_), .. } => HIPBLASLT_EPILOGUE_DGELU_BGRAD,
        Epilogue::ColumnSums(_) => HIPBLASLT_EPILOGUE_BGRADA,
    }
}

impl LtProblem {
    /// `added` is the leading dimension of what is added.
    pub(super) fn new(dtype: DType, plan: &Plan, added: Option<i32>, epilogue: hipblasLtEpilogue_t) -> Self {
        Self {
            dtype,
            fp8: None,
            transposed: [plan.first.transpose, plan.second.transpose],
            sizes: [plan.m, plan.n, plan.k],
            ld: [plan.first.ld, plan.second.ld, added.unwrap_or(plan.ldc), plan.ldc],
            adds: added.is_some(),
            epilogue,
        }
    }

    /// `x [rows, inputs]` times `weight [outs, inputs]`, transposed. The operands are of fp8 and packed, and
    /// so is the result. `None` if the sizes do not fit hipBLASLt's.
    pub(super) fn fp8(dtype: DType, [x, weight]: [Fp8; 2], sizes: [usize; 3]) -> Option<Self> {
        let [rows, inputs, outs] = sizes.map(|size| i32::try_from(size).ok());
        let [rows, inputs, outs] = [rows?, inputs?, outs?];
        Some(Self {
            dtype,
            fp8: Some([weight, x]),
            transposed: [true, false],
            sizes: [outs, rows, inputs],
            ld: [inputs, inputs, outs, outs],
            adds: false,
            epilogue: HIPBLASLT_EPILOGUE_DEFAULT,
        })
    }

    /// The bytes of an element of an operand.
    pub(super) fn operand_size(&self) -> usize {
        if self.fp8.is_some() { 1 } else { self.dtype.size() }
    }

    /// The types in the trace, such as `BF16` or `E4M3 x E4M3 to BF16`.
    pub(super) fn types(&self) -> String {
        match self.fp8 {
            Some([first, second]) => format!("{first:?} x {second:?} to {:?}", self.dtype),
            None => format!("{:?}", self.dtype),
        }
    }

    /// The epilogue's name in AMD's header, in lower case.
    pub(super) fn epilogue_name(&self) -> String {
        let name = self.epilogue.name().unwrap_or_default();
        name.trim_start_matches("HIPBLASLT_EPILOGUE_").to_ascii_lowercase()
    }
}

impl Display for LtProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([m, n, k], [a, b, c, d]) = (self.sizes, self.ld);
        let letters: String =
            self.transposed.map(|transposed| if transposed { 't' } else { 'n' }).iter().collect();
        f.write_str("gemm_lt ")?;
        if let Some([first, second]) = self.fp8 {
            write!(f, "{first:?}x{second:?} ")?;
        }
        write!(f, "{} {letters} {m}x{n}x{k} ld {a}x{b}x{c}x{d}", self.dtype.cpp())?;
        write!(f, " {}", self.epilogue_name())?;
        if self.adds { f.write_str(" adds") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_field_is_in_the_text() {
        let plain = LtProblem {
            dtype: DType::BF16,
            fp8: None,
            transposed: [false, true],
            sizes: [3, 5, 7],
            ld: [8, 9, 10, 11],
            adds: false,
            epilogue: HIPBLASLT_EPILOGUE_GELU_AUX_BIAS,
        };
        assert_eq!(plain.to_string(), "gemm_lt bf16 nt 3x5x7 ld 8x9x10x11 gelu_aux_bias");
        let all = [
            plain,
            LtProblem { dtype: DType::F16, ..plain },
            LtProblem { fp8: Some([Fp8::E4M3, Fp8::E5M2]), ..plain },
            LtProblem { fp8: Some([Fp8::E5M2, Fp8::E4M3]), ..plain },
            LtProblem { transposed: [true, false], ..plain },
            LtProblem { sizes: [3, 7, 5], ..plain },
            LtProblem { ld: [8, 9, 11, 10], ..plain },
            LtProblem { adds: true, ..plain },
            LtProblem { epilogue: HIPBLASLT_EPILOGUE_BGRADA, ..plain },
        ];
        let texts: BTreeSet<_> = all.iter().map(LtProblem::to_string).collect();
        assert_eq!(texts.len(), all.len());
    }
}
