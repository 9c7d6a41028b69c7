//! `rocblas_gemm_ex` and its strided batch: operands in one type, sums in another.
//!
//! Low-precision operands are widened whole, multiplied in `f32` and rounded once, a slice at a time. So are 8-bit
//! integers, as many terms at a time as `f32` sums exactly; those sums are added up in `f64`, whose 53 bits hold
//! every sum of up to 2^38 products.

use super::gemm::Sizes;
use super::handle::{Outcome, check, compute, require, span};
use crate::numeric::element::{Element, Single};
use crate::numeric::halves::{Flushed, Halves, Rounded};
use crate::numeric::multiply::{Operand, Product, Scalar, multiply};
use crate::numeric::shared::Shared;
use crate::runtime::{parallel, threads};
use core::ffi::c_void;
use half::{bf16, f16};
use rocblas_sys::*;

/// A type of operands or results, computed in `C`.
trait Stored<C: Copy>: Copy + Send + Sync {
    fn load(self) -> C;
    fn store(value: C) -> Self;
    /// Loads as many as `to` holds.
    fn load_all(from: &[Self], to: &mut [C]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.load());
    }
    /// Stores as many as `to` holds.
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
/// Products of 8-bit integers whose sum `f32` holds exactly, all of them -128 squared: 2^24 in all.
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

/// The pointers of a call.
#[derive(Clone, Copy)]
struct Pointers {
    alpha: *const c_void,
    a: *const c_void,
    b: *const c_void,
    beta: *const c_void,
    c: *const c_void,
    d: *mut c_void,
}

/// Elements that one task converts.
const PIECE: usize = 1 << 15;

/// Calls `run(packed, stored, len)` for each run of elements that lie side by side in a matrix whose leading
/// dimension is `ld`: of `len` from element `packed` of the matrix without gaps, `stored` of the matrix as it is.
/// In parallel.
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
        // SAFETY: inside the matrix, which the caller checked, and inside `all`; each run is one task's.
        unsafe {
            let from = core::slice::from_raw_parts(from.get().add(stored), len);
            T::load_all(from, core::slice::from_raw_parts_mut(to.get().add(packed), len));
        }
    });
    all
}

/// Operands of `I` multiplied in `W`, at most `terms` products in one sum; the sums and the scalars, in memory `S`,
/// are `C`.
fn run<I, O, W, C, S>(sizes: Sizes, p: Pointers, terms: usize, scalar: impl Fn(S) -> C) -> Outcome
where
    I: Stored<W>,
    O: Stored<C>,
    W: Scalar + Default + Into<C>,
    C: Scalar + Default + core::ops::Add<Output = C>,
    S: Copy,
{
    require((sizes.k == 0 || !p.alpha.is_null()) && !p.beta.is_null(), rocblas_status_invalid_pointer)?;
    // SAFETY: not null; the caller's scalars, of the compute type.
    let (alpha, beta) = unsafe {
        let read = |from: *const c_void| scalar(from.cast::<S>().read_unaligned());
        (if sizes.k == 0 { C::ZERO } else { read(p.alpha) }, read(p.beta))
    };
    let reads = alpha != C::ZERO;
    let keeps = beta != C::ZERO;
    let present =
        (!reads || (!p.a.is_null() && !p.b.is_null())) && (!keeps || !p.c.is_null()) && !p.d.is_null();
    require(present, rocblas_status_invalid_pointer)?;
    let (a, b, c, d) = (p.a.cast::<I>(), p.b.cast::<I>(), p.c.cast::<O>(), p.d.cast::<O>());
    if reads {
        sizes.check_inputs(a, b)?;
    }
    if keeps {
        check(c, span(sizes.m, sizes.n, sizes.ldc, sizes.stride_c, sizes.batch)?)?;
    }
    check(d, span(sizes.m, sizes.n, sizes.ldd, sizes.stride_d, sizes.batch)?)?;
    let (m, n) = (sizes.m as usize, sizes.n as usize);
    let k = sizes.k as usize;
    let (a, b) = (Shared(a.cast_mut()), Shared(b.cast_mut()));
    let (c, d) = (Shared(c.cast_mut()), Shared(d));
    let at = |from: Shared<I>, i: usize, stride: i64| {
        Shared(from.get().wrapping_offset(i as isize * stride as isize))
    };
    let widen_a = |i| widen::<I, W>(&at(a, i, sizes.stride_a), sizes.stored_a(), sizes.lda);
    let widen_b = |i| widen::<I, W>(&at(b, i, sizes.stride_b), sizes.stored_b(), sizes.ldb);
    // Operands that the whole batch shares are widened once.
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
        // What more than one part adds up to.
        let mut sums = vec![C::ZERO; if k > terms { m * n } else { 0 }];
        for first in (0..k.max(1)).step_by(terms.min(k.max(1))) {
            let to = Shared(part.as_mut_ptr());
            // SAFETY: packed copies of the operands, and `part` for the result; the terms from `first` on are
            // inside both.
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
            // SAFETY: inside `sums`, c and d, which were checked; each run is one task's. c may be d: it is read
            // before it is written.
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
    // Many products are tasks each; the few of a batch are cut into tasks themselves.
    let batch = sizes.batch as usize;
    if batch >= 2 * threads() {
        parallel(batch, product)
    } else {
        (0..batch).for_each(product)
    }
    Ok(())
}

/// The types of a call.
#[derive(Clone, Copy)]
struct Types {
    a: rocblas_datatype,
    b: rocblas_datatype,
    c: rocblas_datatype,
    d: rocblas_datatype,
    compute: rocblas_datatype,
}

/// No limit to a sum's terms.
const ALL: usize = usize::MAX;

fn dispatch(sizes: Sizes, p: Pointers, types: Types, flags: u32) -> Outcome {
    if !sizes.check()? {
        return Ok(());
    }
    // In place only where both are laid out alike.
    let in_place = !p.c.is_null() && core::ptr::eq(p.c, p.d);
    let alike = sizes.ldc == sizes.ldd && sizes.stride_c == sizes.stride_d;
    require(!in_place || alike, rocblas_status_invalid_value)?;
    require(types.a == types.b && types.c == types.d, rocblas_status_not_implemented)?;
    match (types.a, types.c, types.compute) {
        (rocblas_datatype_f32_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => {
            run::<f32, f32, f32, f32, f32>(sizes, p, ALL, |s| s)
        }
        (rocblas_datatype_f64_r, rocblas_datatype_f64_r, rocblas_datatype_f64_r) => {
            run::<f64, f64, f64, f64, f64>(sizes, p, ALL, |s| s)
        }
        (rocblas_datatype_f16_r, rocblas_datatype_f16_r, rocblas_datatype_f32_r) => {
            match Halves::of(flags & rocblas_gemm_flags_fp16_alt_impl != 0) {
                Halves::Exact => run::<f16, f16, f32, f32, f32>(sizes, p, ALL, |s| s),
                Halves::Flushed => run::<Flushed, Flushed, f32, f32, f32>(sizes, p, ALL, |s| s),
                Halves::Rounded => run::<Rounded, Rounded, f32, f32, f32>(sizes, p, ALL, |s| s),
            }
        }
        (rocblas_datatype_f16_r, rocblas_datatype_f16_r, rocblas_datatype_f16_r) => {
            run::<f16, f16, f32, f32, f16>(sizes, p, ALL, f16::to_f32)
        }
        (rocblas_datatype_f16_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => {
            run::<f16, f32, f32, f32, f32>(sizes, p, ALL, |s| s)
        }
        (rocblas_datatype_bf16_r, rocblas_datatype_bf16_r, rocblas_datatype_f32_r) => {
            run::<bf16, bf16, f32, f32, f32>(sizes, p, ALL, |s| s)
        }
        (rocblas_datatype_bf16_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => {
            run::<bf16, f32, f32, f32, f32>(sizes, p, ALL, |s| s)
        }
        (rocblas_datatype_i8_r, rocblas_datatype_i32_r, rocblas_datatype_i32_r) => {
            run::<i8, i32, f32, f64, i32>(sizes, p, EXACT_TERMS, f64::from)
        }
        _ => Err(rocblas_status_not_implemented),
    }
}

pub(super) unsafe extern "C" fn rocblas_gemm_ex(
    handle: rocblas_handle,
    transA: rocblas_operation,
    transB: rocblas_operation,
    m: rocblas_int,
    n: rocblas_int,
    k: rocblas_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: rocblas_datatype,
    lda: rocblas_int,
    b: *const c_void,
    b_type: rocblas_datatype,
    ldb: rocblas_int,
    beta: *const c_void,
    c: *const c_void,
    c_type: rocblas_datatype,
    ldc: rocblas_int,
    d: *mut c_void,
    d_type: rocblas_datatype,
    ldd: rocblas_int,
    compute_type: rocblas_datatype,
    algo: rocblas_gemm_algo,
    solution_index: i32,
    flags: u32,
) -> rocblas_status {
    // SAFETY: the caller's handle, scalars and buffers.
    unsafe {
        rocblas_gemm_strided_batched_ex(
            handle,
            transA,
            transB,
            m,
            n,
            k,
            alpha,
            a,
            a_type,
            lda,
            0,
            b,
            b_type,
            ldb,
            0,
            beta,
            c,
            c_type,
            ldc,
            0,
            d,
            d_type,
            ldd,
            0,
            1,
            compute_type,
            algo,
            solution_index,
            flags,
        )
    }
}

pub(super) unsafe extern "C" fn rocblas_gemm_strided_batched_ex(
    handle: rocblas_handle,
    transA: rocblas_operation,
    transB: rocblas_operation,
    m: rocblas_int,
    n: rocblas_int,
    k: rocblas_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: rocblas_datatype,
    lda: rocblas_int,
    stride_a: rocblas_stride,
    b: *const c_void,
    b_type: rocblas_datatype,
    ldb: rocblas_int,
    stride_b: rocblas_stride,
    beta: *const c_void,
    c: *const c_void,
    c_type: rocblas_datatype,
    ldc: rocblas_int,
    stride_c: rocblas_stride,
    d: *mut c_void,
    d_type: rocblas_datatype,
    ldd: rocblas_int,
    stride_d: rocblas_stride,
    batch_count: rocblas_int,
    compute_type: rocblas_datatype,
    algo: rocblas_gemm_algo,
    solution_index: i32,
    flags: u32,
) -> rocblas_status {
    // Solutions choose among kernels; there is one.
    let _ = solution_index;
    let sizes = Sizes {
        a: transA,
        b: transB,
        m,
        n,
        k,
        lda,
        ldb,
        ldc,
        ldd,
        stride_a,
        stride_b,
        stride_c,
        stride_d,
        batch: batch_count,
    };
    let types = Types { a: a_type, b: b_type, c: c_type, d: d_type, compute: compute_type };
    // SAFETY: the caller's handle, scalars and buffers.
    unsafe {
        compute(handle, || {
            require(algo.name().is_some(), rocblas_status_invalid_value)?;
            dispatch(sizes, Pointers { alpha, a, b, beta, c, d }, types, flags)
        })
    }
}
