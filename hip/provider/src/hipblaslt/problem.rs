//! What a product computes: descriptors and their checks.

use super::Outcome;
use crate::require;
use core::ffi::c_void;
use core::ptr;
use hipblaslt_sys::*;

/// What a `hipblasLtMatrixLayout_t` points to.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) ty: hipDataType,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) ld: i64,
}

/// What a `hipblasLtMatmulDesc_t` points to.
pub(super) struct Desc {
    pub(super) transposes: [hipblasOperation_t; 2],
    pub(super) epilogue: hipblasLtEpilogue_t,
    pub(super) bias: *mut c_void,
    pub(super) bias_type: Option<hipDataType>,
    /// The factors of A and B; null for 1.
    pub(super) scales: [*const c_void; 2],
    pub(super) aux: *mut c_void,
    pub(super) aux_ld: i64,
}

impl Desc {
    pub(super) fn new() -> Self {
        Self {
            transposes: [HIPBLAS_OP_N; 2],
            epilogue: HIPBLASLT_EPILOGUE_DEFAULT,
            bias: ptr::null_mut(),
            bias_type: None,
            scales: [ptr::null(); 2],
            aux: ptr::null_mut(),
            aux_ld: 0,
        }
    }
}

/// An activation of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`, which is 0 for a NaN.
    Relu,
    /// GELU by its approximation with tanh.
    Gelu,
}

/// What follows the scaled product plus `beta C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Adds a bias with an element for each row, stores the values, and applies the activation,
    /// each if asked for.
    Forward {
        /// The activation.
        activation: Option<Activation>,
        /// Whether there is a bias.
        bias: bool,
        /// Whether the values before the activation are stored.
        aux: bool,
    },
    /// Multiplies by GELU's derivative at the stored values.
    GeluGradient {
        /// Whether the sums of the result's rows are stored.
        sums: bool,
    },
    /// Also stores the sums of an operand along the inner dimension.
    Sums {
        /// Whether the operand is the first one.
        first: bool,
    },
}

impl Epilogue {
    fn of(value: hipblasLtEpilogue_t) -> Outcome<Self> {
        let forward = |activation, bias, aux| Self::Forward { activation, bias, aux };
        let (relu, gelu) = (Some(Activation::Relu), Some(Activation::Gelu));
        Ok(match value {
            HIPBLASLT_EPILOGUE_DEFAULT => forward(None, false, false),
            HIPBLASLT_EPILOGUE_BIAS => forward(None, true, false),
            HIPBLASLT_EPILOGUE_RELU => forward(relu, false, false),
            HIPBLASLT_EPILOGUE_RELU_BIAS => forward(relu, true, false),
            HIPBLASLT_EPILOGUE_GELU => forward(gelu, false, false),
            HIPBLASLT_EPILOGUE_GELU_BIAS => forward(gelu, true, false),
            HIPBLASLT_EPILOGUE_GELU_AUX => forward(gelu, false, true),
            HIPBLASLT_EPILOGUE_GELU_AUX_BIAS => forward(gelu, true, true),
            HIPBLASLT_EPILOGUE_DGELU => Self::GeluGradient { sums: false },
            HIPBLASLT_EPILOGUE_DGELU_BGRAD => Self::GeluGradient { sums: true },
            HIPBLASLT_EPILOGUE_BGRADA => Self::Sums { first: true },
            HIPBLASLT_EPILOGUE_BGRADB => Self::Sums { first: false },
            _ => return Err(HIPBLAS_STATUS_NOT_SUPPORTED),
        })
    }

    /// Whether the bias pointer is used.
    pub fn has_bias(self) -> bool {
        match self {
            Self::Forward { bias, .. } => bias,
            Self::GeluGradient { sums } => sums,
            Self::Sums { .. } => true,
        }
    }

    /// Whether the auxiliary matrix is used.
    pub fn has_aux(self) -> bool {
        matches!(self, Self::Forward { aux: true, .. } | Self::GeluGradient { .. })
    }
}

/// Whether a type is one of fp8.
pub fn is_fp8(ty: hipDataType) -> bool {
    matches!(ty, HIP_R_8F_E4M3 | HIP_R_8F_E5M2 | HIP_R_8F_E4M3_FNUZ | HIP_R_8F_E5M2_FNUZ)
}

/// The bytes of an element.
fn size(ty: hipDataType) -> usize {
    match ty {
        HIP_R_32F => 4,
        HIP_R_16F | HIP_R_16BF => 2,
        _ => 1,
    }
}

/// A checked product, without its memory. All matrices are column-major, sums and scalars are f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// The type of C, D and the bias: f32, f16 or bf16.
    pub ty: hipDataType,
    /// The types of A and B: both `ty`, or both of fp8.
    pub operands: [hipDataType; 2],
    /// Whether the first and the second operand are transposed.
    pub transposed: [bool; 2],
    /// Rows of the result, at least 1.
    pub m: usize,
    /// Columns of the result, at least 1.
    pub n: usize,
    /// Terms of a sum, at least 1.
    pub k: usize,
    /// Leading dimensions of A, B, C and D.
    pub ld: [i64; 4],
    /// What follows the product.
    pub epilogue: Epilogue,
    /// Its number.
    pub raw_epilogue: hipblasLtEpilogue_t,
    /// The leading dimension of the auxiliary matrix.
    pub aux_ld: i64,
}

impl Problem {
    /// Checks descriptors as hipBLASLt does.
    pub(super) fn new(desc: &Desc, [a, b, c, d]: [&Layout; 4]) -> Outcome<Self> {
        let stored = |layout: &Layout, operation: hipblasOperation_t| match operation {
            HIPBLAS_OP_N => (layout.rows, layout.cols),
            _ => (layout.cols, layout.rows),
        };
        let (left, right) = (stored(a, desc.transposes[0]), stored(b, desc.transposes[1]));
        let fits = left == (d.rows, right.0) && right.1 == d.cols && (c.rows, c.cols) == (d.rows, d.cols);
        require(fits, HIPBLAS_STATUS_INVALID_VALUE)?;
        let all = [a, b, c, d];
        let sized = |layout: &&Layout| {
            let most = 1..=i32::MAX as u64;
            most.contains(&layout.rows) && most.contains(&layout.cols) && layout.ld >= layout.rows as i64
        };
        require(all.iter().all(sized), HIPBLAS_STATUS_INVALID_VALUE)?;
        let operands = [a.ty, b.ty];
        let fp8 = operands.map(is_fp8) == [true; 2];
        let types_fit = c.ty == d.ty && !is_fp8(d.ty) && (fp8 || operands == [d.ty; 2]);
        require(types_fit, HIPBLAS_STATUS_NOT_SUPPORTED)?;
        let unscaled = desc.scales.iter().all(|scale| scale.is_null());
        require(fp8 || unscaled, HIPBLAS_STATUS_INVALID_VALUE)?;
        require(desc.bias_type.is_none_or(|ty| ty == d.ty), HIPBLAS_STATUS_NOT_SUPPORTED)?;
        let epilogue = Epilogue::of(desc.epilogue)?;
        let aux_fits = !epilogue.has_aux() || desc.aux_ld >= d.rows as i64;
        require(aux_fits, HIPBLAS_STATUS_INVALID_VALUE)?;
        Ok(Self {
            ty: d.ty,
            operands,
            transposed: desc.transposes.map(|operation| operation == HIPBLAS_OP_T),
            m: d.rows as usize,
            n: d.cols as usize,
            k: right.0 as usize,
            ld: all.map(|layout| layout.ld),
            epilogue,
            raw_epilogue: desc.epilogue,
            aux_ld: desc.aux_ld,
        })
    }

    /// Rows and columns of A in memory.
    pub fn stored_a(&self) -> (usize, usize) {
        if self.transposed[0] { (self.k, self.m) } else { (self.m, self.k) }
    }

    /// Rows and columns of B in memory.
    pub fn stored_b(&self) -> (usize, usize) {
        if self.transposed[1] { (self.n, self.k) } else { (self.k, self.n) }
    }

    /// The elements of the bias or the sums.
    pub fn bias_len(&self) -> usize {
        if self.epilogue == (Epilogue::Sums { first: false }) { self.n } else { self.m }
    }

    /// Whether the operands are of fp8.
    pub fn is_fp8(&self) -> bool {
        is_fp8(self.operands[0])
    }

    /// The bytes of an element of the result.
    pub fn size(&self) -> usize {
        size(self.ty)
    }
}

/// The bytes from the first element of a matrix of a type to its last.
pub(super) fn bytes_of(ty: hipDataType, (rows, cols): (usize, usize), ld: i64) -> Option<usize> {
    let last = (cols - 1).checked_mul(usize::try_from(ld).ok()?)?.checked_add(rows)?;
    last.checked_mul(size(ty))
}
