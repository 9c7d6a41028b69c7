//! `rocblas_gemm_ex` and its strided batch: operands in one type, sums in another.
//!
//! Operands of f16 and bf16 are widened to `f32` as whole matrices, multiplied in `f32`, and the
//! results rounded once. 8-bit integers are also multiplied in `f32`, in parts with so few terms
//! that the sum is exact in `f32`. The parts are added in `f64`, whose 53 bits hold every sum of up
//! to 2^38 products.

use crate::numeric::element::{Element, Single};
use crate::numeric::halves::{Flushed, Halves, Rounded};
use crate::numeric::multiply::{Operand, Product, Scalar, multiply};
use crate::numeric::shared::Shared;
use crate::runtime::{parallel, threads};
use core::ffi::c_void;
use half::{bf16, f16};
use hip_provider::rocblas::{Gemm, Sizes, Types};
use rocblas_sys::rocblas_gemm_flags_fp16_alt_impl;

/// A type of operands or results, computed in `C`.
trait Stored<C: Copy>: Copy + Send + Sync {
    fn load(self) -> C;
    fn store(value: C) -> Self;
    /// Loads `to.len()` values.
    fn load_all(from: &[Self], to: &mut [C]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.load());
    }
    /// Stores `to.len()` values.
    fn store_all(from: &[C], to: &mut [Self]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = Self::store(from));
    }
}
macro_rules! stored {
    ($($t:ty, $c:ty;)+) => { $(impl Stored<$c> for $t {
        fn load(self) -> $c { self }
        fn store(value: $c) -> Self { value }
    })+ };
}
stored! { f32, f32; f64, f64; }
macro_rules! stored_half {
    ($($t:ty)+) => { $(impl Stored<f32> for $t {
        fn load(self) -> f32 { self.widen() }
        fn store(value: f32) -> Self { Self::narrow(value) }
        fn load_all(from: &[Self], to: &mut [f32]) { Self::widen_slice(from, to) }
        fn store_all(from: &[f32], to: &mut [Self]) { Self::narrow_slice(from, to) }
    })+ };
}
stored_half! { f16 bf16 }
impl Stored<f32> for Flushed {
    fn load(self) -> f32 {
        self.load()
    }
    fn store(value: f32) -> Self {
        Self::store(value)
    }
}
impl Stored<f32> for Rounded {
    fn load(self) -> f32 {
        self.load()
    }
    fn store(value: f32) -> Self {
        Self::store(value)
    }
}
impl Stored<f32> for i8 {
    fn load(self) -> f32 {
        f32::from(self)
    }
    fn store(value: f32) -> i8 {
        value as i8
    }
}
/// The most products of 8-bit integers whose sum `f32` holds exactly: 1024 times (-128)^2 is 2^24.
const EXACT_TERMS: usize = 1 << 10;
impl Stored<f64> for i32 {
    fn load(self) -> f64 {
        f64::from(self)
    }
    fn store(value: f64) -> i32 {
        // Sums wrap, as the hardware's do.
        value as i64 as i32
    }
}

/// Elements that one task converts.
const PIECE: usize = 1 << 15;

/// Calls `run(packed, stored, len)` in parallel for each contiguous run of `len` elements of a
/// matrix with leading dimension `ld`. The run begins at element `packed` of the matrix without
/// gaps, and at element `stored` of the matrix in memory.
fn each_run(rows: usize, columns: usize, ld: usize, run: impl Fn(usize, usize, usize) + Sync) {
    let each = PIECE.div_ceil(rows.max(1));
    parallel(columns.div_ceil(each), |task| {
        let (from, to) = (task * each, ((task + 1) * each).min(columns));
        if ld == rows {
            return run(from * rows, from * rows, (to - from) * rows);
        }
        (from..to).for_each(|column| run(column * rows, column * ld, rows));
    });
}

/// Copies a matrix of `rows` x `columns` with leading dimension `ld` into packed columns of `C`.
fn widen<T: Stored<C>, C: Scalar + Default>(
    from: &Shared<T>,
    (rows, columns): (i32, i32),
    ld: i32,
) -> Vec<C> {
    let (rows, columns, ld) = (rows as usize, columns as usize, ld as usize);
    let mut all = vec![C::default(); rows * columns];
    let to = Shared(all.as_mut_ptr());
    each_run(rows, columns, ld, |packed, stored, len| {
        // SAFETY: inside the matrix, which the caller checked, and inside `all`; each run belongs
        // to one task.
        unsafe {
            let from = core::slice::from_raw_parts(from.get().add(stored), len);
            T::load_all(from, core::slice::from_raw_parts_mut(to.get().add(packed), len));
        }
    });
    all
}

/// Multiplies operands of `I` in `W`, with at most `terms` products in a sum, and adds such sums in
/// `C`. The results are `O`. The scalars are `S` in memory and converted to `C`.
///
/// # Safety
/// The call was checked, for buffers of `I` and `O` and scalars of `S`.
unsafe fn run<I, O, W, C, S>(call: &Gemm, terms: usize, scalar: impl Fn(S) -> C)
where
    I: Stored<W>,
    O: Stored<C>,
    W: Scalar + Default + Into<C>,
    C: Scalar + Default + core::ops::Add<Output = C>,
    S: Copy,
{
    let Gemm { sizes, reads, keeps, .. } = *call;
    // SAFETY: the caller's scalars, of the compute type.
    let (alpha, beta) = unsafe {
        let read = |from: *const c_void| scalar(from.cast::<S>().read_unaligned());
        (if reads { read(call.alpha) } else { C::ZERO }, read(call.beta))
    };
    let (a, b, c, d) = (call.a.cast::<I>(), call.b.cast::<I>(), call.c.cast::<O>(), call.d.cast::<O>());
    let (m, n) = (sizes.m as usize, sizes.n as usize);
    let k = sizes.k as usize;
    let (a, b) = (Shared(a.cast_mut()), Shared(b.cast_mut()));
    let (c, d) = (Shared(c.cast_mut()), Shared(d));
    let at = |from: Shared<I>, i: usize, stride: i64| {
        Shared(from.get().wrapping_offset(i as isize * stride as isize))
    };
    let widen_a = |i| widen::<I, W>(&at(a, i, sizes.stride_a), sizes.stored_a(), sizes.lda);
    let widen_b = |i| widen::<I, W>(&at(b, i, sizes.stride_b), sizes.stored_b(), sizes.ldb);
    // An operand that the whole batch shares is widened once.
    let shared_a = (reads && sizes.stride_a == 0).then(|| widen_a(0));
    let shared_b = (reads && sizes.stride_b == 0).then(|| widen_b(0));
    let product = |i: usize| {
        let own_a = (reads && shared_a.is_none()).then(|| widen_a(i));
        let own_b = (reads && shared_b.is_none()).then(|| widen_b(i));
        let operand = |values: Option<&Vec<W>>, operation, rows: i32| {
            let (row, column) = Sizes::strides(operation, rows);
            (Shared(values.map_or(core::ptr::null_mut(), |values| values.as_ptr().cast_mut())), row, column)
        };
        let a = operand(own_a.as_ref().or(shared_a.as_ref()), sizes.a, sizes.stored_a().0);
        let b = operand(own_b.as_ref().or(shared_b.as_ref()), sizes.b, sizes.stored_b().0);
        let mut part = vec![W::default(); m * n];
        // The sum of several parts.
        let mut sums = vec![C::ZERO; if k > terms { m * n } else { 0 }];
        for first in (0..k.max(1)).step_by(terms.min(k.max(1))) {
            let to = Shared(part.as_mut_ptr());
            // SAFETY: packed copies of the operands, and `part` for the result; the terms from
            // `first` on are inside both.
            unsafe {
                multiply(1, |_| Product {
                    m,
                    n,
                    k: terms.min(k - first),
                    a: Operand { at: a.0.get().wrapping_offset(first as isize * a.2), row: a.1, column: a.2 },
                    b: Operand { at: b.0.get().wrapping_offset(first as isize * b.1), row: b.1, column: b.2 },
                    c: to.get(),
                    c_row: 1,
                    c_column: sizes.m as isize,
                    alpha: if reads { W::ONE } else { W::ZERO },
                    beta: W::ZERO,
                });
            }
            for (sum, part) in sums.iter_mut().zip(&part) {
                *sum = *sum + (*part).into();
            }
        }
        if k <= terms {
            sums = part.into_iter().map(Into::into).collect();
        }
        let sums = Shared(sums.as_mut_ptr());
        let c = Shared(c.get().cast_const().wrapping_offset(i as isize * sizes.stride_c as isize).cast_mut());
        let d = Shared(d.get().wrapping_offset(i as isize * sizes.stride_d as isize));
        each_run(m, n, sizes.ldd as usize, |packed, stored, len| {
            // SAFETY: inside `sums`, c and d, which were checked; each run belongs to one task. c
            // may be d, because each element is read before it is written.
            unsafe {
                let sums = core::slice::from_raw_parts_mut(sums.get().add(packed), len);
                for (at, sum) in (packed..).zip(sums.iter_mut()) {
                    *sum = alpha * *sum;
                    if keeps {
                        *sum = *sum + beta * (*c.get().add(at / m * sizes.ldc as usize + at % m)).load();
                    }
                }
                O::store_all(sums, core::slice::from_raw_parts_mut(d.get().add(stored), len));
            }
        });
    };
    // In a large batch each product is a task. In a small batch each product is cut into tasks.
    let batch = sizes.batch as usize;
    let whole = call.solution == WHOLE || batch >= 2 * threads();
    if whole { parallel(batch, product) } else { (0..batch).for_each(product) }
}

/// No limit on a sum's terms.
const ALL: usize = usize::MAX;

/// The solution that computes each product of a batch as one task, on one thread.
const WHOLE: i32 = 1;
/// The solution that adds sums of [`BLOCK`] terms. Negative, as the numbers of rocBLAS's own
/// solutions are in a rocBLAS that has hipBLASLt's too.
const BLOCKED: i32 = -12;
/// The solutions besides the default.
pub(super) const SOLUTIONS: [i32; 2] = [WHOLE, BLOCKED];
/// Terms of a sum in [`BLOCKED`]: columns of 256 f32 take 1 KiB, so 32 of them fit the L1 cache.
const BLOCK: usize = 256;

/// # Safety
/// The call was checked, for these types.
pub(super) unsafe fn run_types(call: &Gemm, types: Types) {
    let all = if call.solution == BLOCKED { BLOCK } else { ALL };
    // SAFETY: the caller's checked call.
    unsafe {
        match types {
            Types::F32 => run::<f32, f32, f32, f32, f32>(call, all, |s| s),
            Types::F64 => run::<f64, f64, f64, f64, f64>(call, all, |s| s),
            Types::F16 => match Halves::of(call.flags & rocblas_gemm_flags_fp16_alt_impl != 0) {
                Halves::Exact => run::<f16, f16, f32, f32, f32>(call, all, |s| s),
                Halves::Flushed => run::<Flushed, Flushed, f32, f32, f32>(call, all, |s| s),
                Halves::Rounded => run::<Rounded, Rounded, f32, f32, f32>(call, all, |s| s),
            },
            Types::F16InF16 => run::<f16, f16, f32, f32, f16>(call, all, f16::to_f32),
            Types::F16ToF32 => run::<f16, f32, f32, f32, f32>(call, all, |s| s),
            Types::Bf16 => run::<bf16, bf16, f32, f32, f32>(call, all, |s| s),
            Types::Bf16ToF32 => run::<bf16, f32, f32, f32, f32>(call, all, |s| s),
            Types::I8 => run::<i8, i32, f32, f64, i32>(call, all.min(EXACT_TERMS), f64::from),
        }
    }
}
