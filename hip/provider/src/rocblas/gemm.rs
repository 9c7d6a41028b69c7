//! Matrix products: their sizes, types and checks.

use super::{Handle, Outcome, check_memory, stored};
use crate::require;
use core::ffi::c_void;
use rocblas_sys::*;

/// The sizes of a call, in elements. After the operations `a` and `b`, `A` is `m x k` and `B` is
/// `k x n`.
#[derive(Clone, Copy)]
#[allow(missing_docs)] // rocBLAS's names.
pub struct Sizes {
    pub a: rocblas_operation,
    pub b: rocblas_operation,
    pub m: i32,
    pub n: i32,
    pub k: i32,
    pub lda: i32,
    pub ldb: i32,
    pub ldc: i32,
    pub ldd: i32,
    pub stride_a: i64,
    pub stride_b: i64,
    pub stride_c: i64,
    pub stride_d: i64,
    pub batch: i32,
}

impl Sizes {
    /// rocBLAS's checks of sizes. `false` if there is nothing to compute.
    fn check(&self) -> Outcome<bool> {
        require(self.a.name().is_some() && self.b.name().is_some(), rocblas_status_invalid_value)?;
        let sizes = [self.m, self.n, self.k, self.batch];
        require(sizes.iter().all(|&size| size >= 0), rocblas_status_invalid_size)?;
        let (a, b) = (self.stored_a(), self.stored_b());
        let fits = self.lda >= a.0 && self.ldb >= b.0 && self.ldc >= self.m && self.ldd >= self.m;
        require(fits, rocblas_status_invalid_size)?;
        Ok(self.m > 0 && self.n > 0 && self.batch > 0)
    }

    /// Rows and columns of `A` in memory.
    pub fn stored_a(&self) -> (i32, i32) {
        stored(self.a, self.m, self.k)
    }

    /// Rows and columns of `B` in memory.
    pub fn stored_b(&self) -> (i32, i32) {
        stored(self.b, self.k, self.n)
    }

    /// Row and column strides of an operand after its operation.
    pub fn strides(operation: rocblas_operation, ld: i32) -> (isize, isize) {
        if operation == rocblas_operation_none { (1, ld as isize) } else { (ld as isize, 1) }
    }
}

/// A product `D = alpha op(A) op(B) + beta C`.
#[derive(Clone, Copy)]
pub struct Gemm {
    /// The sizes.
    pub sizes: Sizes,
    /// The factor of the product, of the compute type.
    pub alpha: *const c_void,
    /// The left operand.
    pub a: *const c_void,
    /// The right operand.
    pub b: *const c_void,
    /// The factor of `c`, of the compute type.
    pub beta: *const c_void,
    /// The added matrix; may be `d`.
    pub c: *const c_void,
    /// The result.
    pub d: *mut c_void,
    /// `gemm_ex`'s flags.
    pub flags: u32,
    /// The solution that computes it, one of [`Handle::solutions`]; 0 for the default.
    pub solution: i32,
    /// Whether `a` and `b` are read. If not, alpha counts as 0.
    pub reads: bool,
    /// Whether `c` is read. If not, beta counts as 0.
    pub keeps: bool,
}

/// Alpha points to this if the caller passes null, which is allowed if `k` is 0.
static NOTHING: u64 = 0;

impl Gemm {
    /// Checks a call with operands and scalars of `T`. `false` if the call changes nothing.
    ///
    /// # Safety
    /// The scalars are readable if they are in host memory and not null.
    pub(super) unsafe fn check_plain<T: Copy + PartialEq + From<i8>, H: Handle>(
        &mut self,
        handle: &H,
    ) -> Outcome<bool> {
        if !self.sizes.check()? {
            return Ok(false);
        }
        // SAFETY: the caller's scalars.
        let is = |scalar: *const c_void, value: i8| unsafe { *scalar.cast::<T>() == T::from(value) };
        self.check_pointers(handle, (size_of::<T>(), size_of::<T>()), is)
    }

    /// Checks a call of `gemm_ex` with the types of a, b, c, d and the sums. `None` if the call
    /// changes nothing.
    ///
    /// # Safety
    /// As [`Gemm::check_plain`].
    pub(super) unsafe fn check_ex<H: Handle>(
        &mut self,
        handle: &H,
        [a, b, c, d, compute]: [rocblas_datatype; 5],
    ) -> Outcome<Option<Types>> {
        let sizes = &self.sizes;
        if !sizes.check()? {
            return Ok(None);
        }
        // If d overwrites c, both must have the same layout. rocBLAS does not compare the strides
        // of a single matrix.
        let alike = sizes.ldc == sizes.ldd && (sizes.batch == 1 || sizes.stride_c == sizes.stride_d);
        require(!self.in_place() || alike, rocblas_status_invalid_size)?;
        require(a == b && c == d, rocblas_status_not_implemented)?;
        let types = Types::of(a, c, compute)?;
        require(!self.d.is_null(), rocblas_status_invalid_pointer)?;
        // SAFETY: the caller's scalars, of the compute type.
        let is = |scalar: *const c_void, value: i8| unsafe { types.scalar_is(scalar, value) };
        Ok(self.check_pointers(handle, types.bytes(), is)?.then_some(types))
    }

    /// Whether the result `d` overwrites `c`.
    pub fn in_place(&self) -> bool {
        !self.c.is_null() && core::ptr::eq(self.c, self.d)
    }

    /// rocBLAS's checks of pointers. `false` if the call changes nothing. `is` compares a scalar in
    /// host memory with 0 or 1.
    fn check_pointers<H: Handle>(
        &mut self,
        handle: &H,
        (input, output): (usize, usize),
        is: impl Fn(*const c_void, i8) -> bool,
    ) -> Outcome<bool> {
        let Gemm { sizes, alpha, a, b, beta, c, d, .. } = *self;
        require((sizes.k == 0 || !alpha.is_null()) && !beta.is_null(), rocblas_status_invalid_pointer)?;
        let on_host = handle.scalars_on_host();
        let reads = sizes.k > 0 && !(on_host && is(alpha, 0));
        let keeps = !(on_host && is(beta, 0));
        if !reads && on_host && is(beta, 1) && core::ptr::eq(c, d) {
            return Ok(false);
        }
        let present = (!reads || (!a.is_null() && !b.is_null())) && (!keeps || !c.is_null()) && !d.is_null();
        require(present, rocblas_status_invalid_pointer)?;
        let Sizes { m, n, lda, ldb, ldc, ldd, batch, .. } = sizes;
        if reads {
            check_memory::<H>(a, input, sizes.stored_a(), lda.into(), sizes.stride_a, batch)?;
            check_memory::<H>(b, input, sizes.stored_b(), ldb.into(), sizes.stride_b, batch)?;
        }
        if keeps {
            check_memory::<H>(c, output, (m, n), ldc.into(), sizes.stride_c, batch)?;
        }
        check_memory::<H>(d, output, (m, n), ldd.into(), sizes.stride_d, batch)?;
        if alpha.is_null() {
            self.alpha = (&raw const NOTHING).cast();
        }
        (self.reads, self.keeps) = (reads, keeps);
        Ok(true)
    }
}

/// The combinations of types that rocBLAS multiplies: of the operands, of the result, and of sums
/// and scalars.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Types {
    /// All f32.
    F32,
    /// All f64.
    F64,
    /// f16, summed in f32.
    F16,
    /// f16 throughout.
    F16InF16,
    /// f16 to f32.
    F16ToF32,
    /// bf16, summed in f32.
    Bf16,
    /// bf16 to f32.
    Bf16ToF32,
    /// i8 to i32.
    I8,
}

impl Types {
    fn of(input: rocblas_datatype, output: rocblas_datatype, compute: rocblas_datatype) -> Outcome<Self> {
        Ok(match (input, output, compute) {
            (rocblas_datatype_f32_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => Self::F32,
            (rocblas_datatype_f64_r, rocblas_datatype_f64_r, rocblas_datatype_f64_r) => Self::F64,
            (rocblas_datatype_f16_r, rocblas_datatype_f16_r, rocblas_datatype_f32_r) => Self::F16,
            (rocblas_datatype_f16_r, rocblas_datatype_f16_r, rocblas_datatype_f16_r) => Self::F16InF16,
            (rocblas_datatype_f16_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => Self::F16ToF32,
            (rocblas_datatype_bf16_r, rocblas_datatype_bf16_r, rocblas_datatype_f32_r) => Self::Bf16,
            (rocblas_datatype_bf16_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => Self::Bf16ToF32,
            (rocblas_datatype_i8_r, rocblas_datatype_i32_r, rocblas_datatype_i32_r) => Self::I8,
            _ => return Err(rocblas_status_not_implemented),
        })
    }

    /// Bytes of an operand's element and of a result's.
    pub fn bytes(self) -> (usize, usize) {
        match self {
            Self::F32 => (4, 4),
            Self::F64 => (8, 8),
            Self::F16 | Self::F16InF16 | Self::Bf16 => (2, 2),
            Self::F16ToF32 | Self::Bf16ToF32 => (2, 4),
            Self::I8 => (1, 4),
        }
    }

    /// Whether a scalar in host memory has this value, 0 or 1.
    ///
    /// # Safety
    /// The scalar is readable, of the compute type.
    unsafe fn scalar_is(self, at: *const c_void, value: i8) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match self {
                // The bits of 0 and 1 in binary16; -0 counts as 0.
                Self::F16InF16 => {
                    let bits = at.cast::<u16>().read_unaligned();
                    if value == 0 { bits & 0x7fff == 0 } else { bits == 0x3c00 }
                }
                Self::F64 => at.cast::<f64>().read_unaligned() == f64::from(value),
                Self::I8 => at.cast::<i32>().read_unaligned() == i32::from(value),
                _ => at.cast::<f32>().read_unaligned() == f32::from(value),
            }
        }
    }
}
