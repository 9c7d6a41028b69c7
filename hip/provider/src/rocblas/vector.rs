//! Products of a matrix and a vector (`gemv`) and sums of matrices (`geam`): their arguments and
//! checks.

use super::{Handle, Outcome, check_memory, stored};
use crate::require;
use core::ffi::c_void;
use rocblas_sys::*;

/// A vector with elements `increment` apart. If `increment` is negative, the first element has the
/// highest address.
#[derive(Clone, Copy)]
pub struct Vector<T> {
    /// The lowest address.
    pub at: T,
    /// Elements from one to the next.
    pub increment: i32,
}

/// The arguments of a `gemv`.
#[derive(Clone, Copy)]
pub struct Gemv<T> {
    /// The operation on the matrix.
    pub trans: rocblas_operation,
    /// Rows of the matrix in memory.
    pub m: i32,
    /// Columns of the matrix in memory.
    pub n: i32,
    /// The product's factor.
    pub alpha: *const T,
    /// The matrix.
    pub a: *const T,
    /// Its leading dimension.
    pub lda: i32,
    /// The operand vector.
    pub x: Vector<*const T>,
    /// The factor of the old `y`.
    pub beta: *const T,
    /// The result.
    pub y: Vector<*mut T>,
    /// Whether `a` and `x` are read.
    pub reads: bool,
}

impl<T: Copy + PartialEq + From<i8>> Gemv<T> {
    /// rocBLAS's checks; `false` if the call changes nothing.
    ///
    /// # Safety
    /// The scalars are readable if they are on the host and not null.
    pub(super) unsafe fn check<H: Handle>(&mut self, handle: &H) -> Outcome<bool> {
        let Gemv { trans, m, n, alpha, a, lda, x, beta, y, .. } = *self;
        require(trans.name().is_some(), rocblas_status_invalid_value)?;
        let fits = m >= 0 && n >= 0 && lda >= m.max(1) && x.increment != 0 && y.increment != 0;
        require(fits, rocblas_status_invalid_size)?;
        if m == 0 || n == 0 {
            return Ok(false);
        }
        require(!alpha.is_null() && !beta.is_null(), rocblas_status_invalid_pointer)?;
        // SAFETY: not null; the caller's scalars, read only if they are on the host.
        let (reads, stays) = unsafe {
            let on_host = handle.scalars_on_host();
            (!on_host || *alpha != T::from(0), on_host && *beta == T::from(1))
        };
        if !reads && stays {
            return Ok(false);
        }
        let present = (!reads || (!a.is_null() && !x.at.is_null())) && !y.at.is_null();
        require(present, rocblas_status_invalid_pointer)?;
        let (written, read) = stored(trans, m, n);
        let vector = |at: *const T, len: i32, increment: i32| {
            check_memory::<H>(at.cast(), size_of::<T>(), (1, len), i64::from(increment).abs(), 0, 1)
        };
        if reads {
            check_memory::<H>(a.cast(), size_of::<T>(), (m, n), lda.into(), 0, 1)?;
            vector(x.at, read, x.increment)?;
        }
        vector(y.at, written, y.increment)?;
        self.reads = reads;
        Ok(true)
    }
}

/// A batch of matrices.
#[derive(Clone, Copy)]
pub struct Matrix<T> {
    /// The first.
    pub at: T,
    /// Elements from one column to the next.
    pub ld: i32,
    /// Elements from one matrix to the next.
    pub stride: i64,
}

/// The arguments of a `geam`.
#[derive(Clone, Copy)]
pub struct Geam<T> {
    /// The operation on each operand.
    pub trans: [rocblas_operation; 2],
    /// Rows of the result.
    pub m: i32,
    /// Columns of the result.
    pub n: i32,
    /// The factor of each operand: alpha and beta.
    pub factors: [*const T; 2],
    /// The operands: A and B.
    pub operands: [Matrix<*const T>; 2],
    /// The result.
    pub c: Matrix<*mut T>,
    /// The number of matrices in the batch.
    pub batch: i32,
    /// Whether each operand is read.
    pub reads: [bool; 2],
}

impl<T: Copy + PartialEq + From<i8>> Geam<T> {
    /// rocBLAS's checks; `false` if the call changes nothing.
    ///
    /// # Safety
    /// The scalars are readable if they are on the host and not null.
    pub(super) unsafe fn check<H: Handle>(&mut self, handle: &H) -> Outcome<bool> {
        let Geam { trans, m, n, factors, operands, c, batch, .. } = *self;
        require(trans.iter().all(|trans| trans.name().is_some()), rocblas_status_invalid_value)?;
        require(m >= 0 && n >= 0 && batch >= 0, rocblas_status_invalid_size)?;
        let stored = trans.map(|trans| stored(trans, m, n));
        let fits = operands.iter().zip(stored).all(|(operand, stored)| operand.ld >= stored.0);
        require(fits && c.ld >= m, rocblas_status_invalid_size)?;
        // An operand that the result overwrites must have the result's layout.
        for (operand, trans) in operands.iter().zip(trans) {
            let alike = operand.ld == c.ld && trans == rocblas_operation_none;
            require(!core::ptr::eq(operand.at, c.at) || alike, rocblas_status_invalid_size)?;
        }
        if m == 0 || n == 0 || batch == 0 {
            return Ok(false);
        }
        let present = factors.iter().all(|factor| !factor.is_null()) && !c.at.is_null();
        require(present, rocblas_status_invalid_pointer)?;
        // SAFETY: not null; the caller's scalars, read only if they are on the host.
        let reads = factors.map(|factor| !handle.scalars_on_host() || unsafe { *factor != T::from(0) });
        for (operand, reads) in operands.iter().zip(reads) {
            require(!reads || !operand.at.is_null(), rocblas_status_invalid_pointer)?;
        }
        let memory = |at: *const c_void, stored, ld: i32, stride| {
            check_memory::<H>(at, size_of::<T>(), stored, ld.into(), stride, batch)
        };
        for ((operand, reads), stored) in operands.iter().zip(reads).zip(stored) {
            if reads {
                memory(operand.at.cast(), stored, operand.ld, operand.stride)?;
            }
        }
        memory(c.at.cast_const().cast(), (m, n), c.ld, c.stride)?;
        self.reads = reads;
        Ok(true)
    }
}
