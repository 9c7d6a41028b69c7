//! The calls of rocBLAS for products and sums of matrices.

use std::ffi::c_void;
use std::ptr;

use rocblas_sys::*;

use super::layout::{Operand, Plan};
use super::problem::{DEFAULT, GemmProblem};
use super::{Handle, Kind, check};
use crate::device::library as library_call;
use crate::profile::work::{Load, WorkKind};
use crate::{DType, Result, trace};

/// The elements of a product, each operand once, and its multiplications and additions.
fn load(kind: Kind, plan: &Plan, beta: f64) -> Load {
    let Plan { m, n, k, batch, first, second, .. } = *plan;
    let [m, n, k, batch] = [m, n, k, batch].map(|size| size as u64);
    // A matrix that the whole batch shares has the stride 0.
    let matrices = |operand: &Operand| if operand.batch_stride == 0 { 1 } else { batch };
    let read = (m * k * matrices(&first) + k * n * matrices(&second)) * kind.input.size() as u64;
    let written = m * n * batch * kind.output.size() as u64;
    Load { bytes: read + written * if beta == 0.0 { 1 } else { 2 }, flops: 2 * m * n * k * batch }
}

fn datatype(dtype: DType) -> rocblas_datatype {
    match dtype {
        DType::F64 => rocblas_datatype_f64_r,
        DType::F32 => rocblas_datatype_f32_r,
        DType::F16 => rocblas_datatype_f16_r,
        DType::BF16 => rocblas_datatype_bf16_r,
        DType::I8 => rocblas_datatype_i8_r,
        DType::I32 => rocblas_datatype_i32_r,
        _ => rocblas_datatype_invalid,
    }
}

fn operation(operand: &Operand) -> rocblas_operation {
    if operand.transpose { rocblas_operation_transpose } else { rocblas_operation_none }
}

/// A product in rocBLAS's terms, without its result.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) kind: Kind,
    pub(super) plan: &'a Plan,
    pub(super) first: *const c_void,
    pub(super) second: *const c_void,
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) flags: u32,
}

impl Product<'_> {
    pub(super) fn alternative(&self) -> bool {
        self.flags != rocblas_gemm_flags_none
    }

    pub(super) fn problem(&self) -> GemmProblem {
        GemmProblem::new(self.kind.input, self.plan, self.beta != 0.0, self.alternative())
    }

    /// The type of sums and scalars, and alpha and beta in it, at the start of 8 bytes each.
    fn scalars(&self) -> (rocblas_datatype, [u64; 2]) {
        let both = [self.alpha, self.beta];
        let wide = |[a, b, c, d]: [u8; 4]| u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]);
        match self.kind.input {
            DType::F64 => (rocblas_datatype_f64_r, both.map(f64::to_bits)),
            DType::I8 => (rocblas_datatype_i32_r, both.map(|scalar| wide((scalar as i32).to_ne_bytes()))),
            _ => (rocblas_datatype_f32_r, both.map(|scalar| wide((scalar as f32).to_ne_bytes()))),
        }
    }
}

impl Handle {
    /// Launches a product by one of rocBLAS's solutions.
    ///
    /// # Safety
    /// `product`'s operands and `out` point to the device memory that its plan describes, of its
    /// types. The memory lives until the stream has passed the call.
    pub(super) unsafe fn gemm(&self, product: &Product<'_>, out: *mut c_void, solution: i32) -> Result<()> {
        // SAFETY: the caller's memory.
        let call = unsafe { self.launch(product, out, solution) }?;
        let Product { kind, plan, beta, .. } = *product;
        let Plan { m, n, k, batch, .. } = *plan;
        library_call::computed(|| format!("{call} {m}x{n}, k {k}, batch {batch}"), load(kind, plan, beta));
        trace::served(WorkKind::Library, || {
            let alternative = if product.alternative() { ", fp16_alt_impl" } else { "" };
            let chosen = if solution == DEFAULT { String::new() } else { format!(", solution {solution}") };
            format!("{call} {:?} {m}x{n}, k {k}, batch {batch}{alternative}{chosen}", kind.input)
        });
        Ok(())
    }

    /// As `gemm`, but neither traced nor profiled. Returns the called function.
    ///
    /// # Safety
    /// As for `gemm`.
    pub(super) unsafe fn launch(
        &self,
        product: &Product<'_>,
        out: *mut c_void,
        solution: i32,
    ) -> Result<&'static str> {
        let Product { kind, plan, first, second, alpha, beta, flags } = *product;
        let Plan { m, n, k, batch, first: a, second: b, ldc, stride_c, .. } = *plan;
        let (op_a, op_b) = (operation(&a), operation(&b));
        let t = self.table;
        macro_rules! typed {
            ($type:ty, $single:ident, $batched:ident) => {{
                let (alpha, beta) = (alpha as $type, beta as $type);
                let (first, second, out) = (first.cast(), second.cast(), out.cast());
                if batch == 1 {
                    // SAFETY: the caller vouches for the memory; the scalars outlive the call,
                    // which reads them before it returns (pointer mode host).
                    let status = unsafe {
                        (t.$single)(
                            self.raw, op_a, op_b, m, n, k, &alpha, first, a.ld, second, b.ld, &beta, out, ldc,
                        )
                    };
                    (stringify!($single), status)
                } else {
                    // SAFETY: as above.
                    let status = unsafe {
                        (t.$batched)(
                            self.raw,
                            op_a,
                            op_b,
                            m,
                            n,
                            k,
                            &alpha,
                            first,
                            a.ld,
                            a.batch_stride,
                            second,
                            b.ld,
                            b.batch_stride,
                            &beta,
                            out,
                            ldc,
                            stride_c,
                            batch,
                        )
                    };
                    (stringify!($batched), status)
                }
            }};
        }
        let (call, status) = match kind.input {
            DType::F32 if solution == DEFAULT => typed!(f32, rocblas_sgemm, rocblas_sgemm_strided_batched),
            DType::F64 if solution == DEFAULT => typed!(f64, rocblas_dgemm, rocblas_dgemm_strided_batched),
            _ => {
                let (compute, scalars) = product.scalars();
                let scalar = |i: usize| -> *const c_void { (&raw const scalars[i]).cast() };
                let algo = match solution {
                    DEFAULT => rocblas_gemm_algo_standard,
                    _ => rocblas_gemm_algo_solution_index,
                };
                let (input, output) = (datatype(kind.input), datatype(kind.output));
                if batch == 1 {
                    // SAFETY: as above; rocBLAS allows d to be c.
                    let status = unsafe {
                        (t.rocblas_gemm_ex)(
                            self.raw,
                            op_a,
                            op_b,
                            m,
                            n,
                            k,
                            scalar(0),
                            first,
                            input,
                            a.ld,
                            second,
                            input,
                            b.ld,
                            scalar(1),
                            out,
                            output,
                            ldc,
                            out,
                            output,
                            ldc,
                            compute,
                            algo,
                            solution,
                            flags,
                        )
                    };
                    ("rocblas_gemm_ex", status)
                } else {
                    // SAFETY: as above.
                    let status = unsafe {
                        (t.rocblas_gemm_strided_batched_ex)(
                            self.raw,
                            op_a,
                            op_b,
                            m,
                            n,
                            k,
                            scalar(0),
                            first,
                            input,
                            a.ld,
                            a.batch_stride,
                            second,
                            input,
                            b.ld,
                            b.batch_stride,
                            scalar(1),
                            out,
                            output,
                            ldc,
                            stride_c,
                            out,
                            output,
                            ldc,
                            stride_c,
                            batch,
                            compute,
                            algo,
                            solution,
                            flags,
                        )
                    };
                    ("rocblas_gemm_strided_batched_ex", status)
                }
            }
        };
        check(t, call, status, || format!("{:?}, {plan:?}", kind.input))?;
        Ok(call)
    }

    /// The numbers of rocBLAS's solutions for a product; none if it has no function for that.
    ///
    /// # Safety
    /// As for `gemm`.
    pub(super) unsafe fn solutions(&self, product: &Product<'_>, out: *mut c_void) -> Result<Vec<i32>> {
        const CALL: &str = "rocblas_gemm_strided_batched_ex_get_solutions";
        let Some(get) = self.table.rocblas_gemm_strided_batched_ex_get_solutions else {
            return Ok(Vec::new());
        };
        let Product { kind, plan, first, second, flags, .. } = *product;
        let Plan { m, n, k, batch, first: a, second: b, ldc, stride_c, .. } = *plan;
        let (op_a, op_b) = (operation(&a), operation(&b));
        let (input, output) = (datatype(kind.input), datatype(kind.output));
        let (compute, scalars) = product.scalars();
        let [alpha, beta] = scalars;
        let ask = |list: *mut i32, count: &mut i32| {
            // SAFETY: the caller's memory; the scalars outlive the call. The list is null or has
            // room for `count` numbers.
            let status = unsafe {
                get(
                    self.raw,
                    op_a,
                    op_b,
                    m,
                    n,
                    k,
                    (&raw const alpha).cast(),
                    first,
                    input,
                    a.ld,
                    a.batch_stride,
                    second,
                    input,
                    b.ld,
                    b.batch_stride,
                    (&raw const beta).cast(),
                    out,
                    output,
                    ldc,
                    stride_c,
                    out,
                    output,
                    ldc,
                    stride_c,
                    batch,
                    compute,
                    rocblas_gemm_algo_solution_index,
                    flags,
                    list,
                    count,
                )
            };
            check(self.table, CALL, status, || format!("{:?}, {plan:?}", kind.input))
        };
        let mut count = 0;
        ask(ptr::null_mut(), &mut count)?;
        let mut list = vec![0; usize::try_from(count).unwrap_or(0)];
        if list.is_empty() {
            return Ok(list);
        }
        ask(list.as_mut_ptr(), &mut count)?;
        list.truncate(usize::try_from(count).unwrap_or(0));
        Ok(list)
    }

    /// # Safety
    /// As for `gemm`.
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn geam(
        &self,
        dtype: DType,
        plan: &Plan,
        first: *const c_void,
        second: *const c_void,
        out: *mut c_void,
        alpha: f64,
        beta: f64,
    ) -> Result<()> {
        let Plan { m, n, batch, first: a, second: b, ldc, stride_c, .. } = *plan;
        let (op_a, op_b) = (operation(&a), operation(&b));
        macro_rules! typed {
            ($type:ty, $batched:ident) => {{
                let (alpha, beta) = (alpha as $type, beta as $type);
                // SAFETY: the caller vouches for the memory; the scalars are read before the call
                // returns.
                let status = unsafe {
                    (self.table.$batched)(
                        self.raw,
                        op_a,
                        op_b,
                        m,
                        n,
                        &alpha,
                        first.cast(),
                        a.ld,
                        a.batch_stride,
                        &beta,
                        second.cast(),
                        b.ld,
                        b.batch_stride,
                        out.cast(),
                        ldc,
                        stride_c,
                        batch,
                    )
                };
                (stringify!($batched), status)
            }};
        }
        let (call, status) = match dtype {
            DType::F32 => typed!(f32, rocblas_sgeam_strided_batched),
            _ => typed!(f64, rocblas_dgeam_strided_batched),
        };
        check(self.table, call, status, || format!("{dtype:?}, {plan:?}"))?;
        library_call::computed(|| format!("{call} {m}x{n}, batch {batch}"), Load::UNKNOWN);
        trace::served(WorkKind::Library, || format!("{call} {dtype:?} {m}x{n}, batch {batch}"));
        Ok(())
    }
}
