//! Matrix products by rocBLAS. A device has one handle, which is bound to its compute stream.

mod layout;
mod workspace;

use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

use hip_sys::hipStream_t;
use rocblas_sys::*;

use crate::device::Device;
use crate::device::library::{self as library_call, Bound};
use crate::error::static_text;
use crate::memory::span::Span;
use crate::profile::work::{Load, WorkKind};
use crate::provider::library;
use crate::settings::{deterministic, workspace_limit};
use crate::workarounds::Halves;
use crate::{Buffer, DType, Error, Result, carry_faults, trace, workarounds};
use layout::{Operand, Plan, Strided};

/// A batch of matrices in device memory. Offset and strides count elements.
#[derive(Clone, Copy)]
pub struct MatrixView<'a> {
    /// The buffer of the elements.
    pub buffer: &'a Buffer,
    /// The first element.
    pub offset: usize,
    /// Rows of one matrix.
    pub rows: usize,
    /// Columns of one matrix.
    pub cols: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next.
    pub col_stride: usize,
    /// Elements from one matrix to the next. 0 uses one matrix for the whole batch.
    pub batch_stride: usize,
}

/// rocBLAS on one device.
pub struct Blas {
    handle: Mutex<Handle>,
    device: usize,
    halves: Halves,
}

/// The raw handle, destroyed on drop.
struct Handle {
    table: &'static Rocblas,
    raw: rocblas_handle,
}

// SAFETY: rocBLAS allows any thread to use a handle, one thread at a time (rocBLAS Programmer's
// Guide, "Thread safety"). The mutex in `Blas` ensures this.
unsafe impl Send for Handle {}

impl Bound for Handle {
    /// The handle's workspace is never reallocated for a product, because rocBLAS chooses among the
    /// algorithms that fit into it (`get_available_workspace` in its `tensile_host.cpp`).
    fn bind(&self, stream: hipStream_t) -> Result<()> {
        // SAFETY: the handle is valid; the caller keeps the stream alive.
        let status = unsafe { (self.table.rocblas_set_stream)(self.raw, stream) };
        check(self.table, "rocblas_set_stream", status, String::new)
    }
}

impl Blas {
    /// Creates the handle for the current device.
    ///
    /// `arch` is the device's full architecture name and `device` its index; `stream` must live as
    /// long as the result.
    pub(crate) fn new(
        table: &'static Rocblas,
        arch: &str,
        device: usize,
        stream: hipStream_t,
        deterministic: bool,
    ) -> Result<Self> {
        workarounds::rocblas_has_kernels(table, arch)?;
        let mut raw = ptr::null_mut();
        let held = library::compiling();
        // SAFETY: `raw` outlives the call.
        let status = unsafe { (table.rocblas_create_handle)(&mut raw) };
        drop(held);
        check(table, "rocblas_create_handle", status, || arch.to_string())?;
        let handle = Handle { table, raw };
        handle.bind(stream)?;
        // SAFETY: the handle is valid.
        let status = unsafe { (table.rocblas_set_pointer_mode)(handle.raw, rocblas_pointer_mode_host) };
        check(table, "rocblas_set_pointer_mode", status, String::new)?;
        if deterministic {
            // SAFETY: the handle is valid.
            let status = unsafe { (table.rocblas_set_atomics_mode)(handle.raw, rocblas_atomics_not_allowed) };
            check(table, "rocblas_set_atomics_mode", status, String::new)?;
        }
        Ok(Self { handle: Mutex::new(handle), device, halves: Halves::of(arch)? })
    }

    /// `c[i] = alpha * a[i] x b[i] + beta * c[i]` for each matrix `i` of the batch.
    ///
    /// In each view one stride must be 1, and the other at least the size of the dimension whose
    /// stride is 1. The stride of a dimension of size 1 does not matter. Transposes follow from the
    /// strides. `dtype` is that of `a` and `b`: f32, f64, f16 and bf16 (accumulated in f32), or i8,
    /// whose `c` is i32. `c` may not overlap `a` or `b`.
    ///
    /// `gradient` says whether `c` is a gradient. On gfx90a, f16 gradients use rocBLAS's
    /// alternative implementation, which keeps subnormal values
    /// ([`Config::f16_alternative`](crate::Config::f16_alternative)).
    ///
    /// A single row or column uses gemm too. For 1 x 1024 x 1024, rocBLAS's gemv executes 216 k
    /// wave instructions in 4 workgroups, and gemm 1,765 k in 32 (ROCm 7.2, gfx1030). For 4096 x 1
    /// x 256, gemv executes 5,992 k and gemm 1,169 k. So gemv brings no clear gain. Neither was
    /// timed on an AMD GPU.
    ///
    /// # Errors
    /// `Unsupported` for other dtypes; `Invalid` for shapes, strides or sizes that rocBLAS does not
    /// support, or views that reach past a buffer's end; `Rocblas` if the library fails.
    #[allow(clippy::too_many_arguments)] // BLAS's own signature.
    pub fn gemm(
        &self,
        dtype: DType,
        batch: usize,
        a: MatrixView<'_>,
        b: MatrixView<'_>,
        c: MatrixView<'_>,
        alpha: f64,
        beta: f64,
        gradient: bool,
    ) -> Result<()> {
        let kind = Kind::of("gemm", dtype)?;
        if batch == 0 || c.rows == 0 || c.cols == 0 {
            return Ok(());
        }
        let read = [a.buffer, b.buffer];
        let plan = layout::plan(batch, a.strided(), b.strided(), c.strided())?;
        let (a, b) = (self.span("gemm", &a, batch, dtype)?, self.span("gemm", &b, batch, dtype)?);
        let out = self.span("gemm", &c, batch, kind.output)?.apart_from("gemm", &[a, b])?;
        carry_faults(read, [c.buffer]);
        // If the inner dimension is 0, rocBLAS reads nothing but still refuses null pointers.
        let (a, b) = if plan.k == 0 { (out, out) } else { (a, b) };
        let (first, second) = if plan.swap { (b, a) } else { (a, b) };
        let flags = match self.halves.alternative(dtype, gradient) {
            Some(true) => rocblas_gemm_flags_fp16_alt_impl,
            _ => rocblas_gemm_flags_none,
        };
        let handle = c.buffer.device().call(&self.handle)?;
        // SAFETY: `span` checked that every element of the views lies inside its buffer, and `plan`
        // describes those elements. The pool keeps the memory until the stream has passed this
        // call.
        unsafe { handle.gemm(kind, &plan, first.ptr, second.ptr, out.ptr, alpha, beta, flags) }
    }

    /// `c[i] = alpha * a[i] + beta * b[i]` for each matrix `i` of the batch, in f32 or f64. `a` and
    /// `b` have the shape of `c`. Transposes follow from the strides.
    ///
    /// # Errors
    /// As for [`Blas::gemm`].
    #[allow(clippy::too_many_arguments)] // BLAS's own signature.
    pub fn geam(
        &self,
        dtype: DType,
        batch: usize,
        alpha: f64,
        a: MatrixView<'_>,
        beta: f64,
        b: MatrixView<'_>,
        c: MatrixView<'_>,
    ) -> Result<()> {
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::unsupported("geam", dtype));
        }
        if batch == 0 || c.rows == 0 || c.cols == 0 {
            return Ok(());
        }
        let read = [a.buffer, b.buffer];
        let plan = layout::plan_sum(batch, a.strided(), b.strided(), c.strided())?;
        let (a, b) = (self.span("geam", &a, batch, dtype)?, self.span("geam", &b, batch, dtype)?);
        let out = self.span("geam", &c, batch, dtype)?.apart_from("geam", &[a, b])?;
        carry_faults(read, [c.buffer]);
        let handle = c.buffer.device().call(&self.handle)?;
        // SAFETY: as in `gemm`.
        unsafe { handle.geam(dtype, &plan, a.ptr, b.ptr, out.ptr, alpha, beta) }
    }

    /// The range of its buffer that a batch of matrices covers.
    fn span(&self, op: &'static str, view: &MatrixView<'_>, batch: usize, dtype: DType) -> Result<Span> {
        let overflow = || Error::invalid(op, "a view that fits memory", format!("{:?}", view.strided()));
        let bytes = |elements: usize| elements.checked_mul(dtype.size()).ok_or_else(overflow);
        let extent = view.strided().extent(batch).ok_or_else(overflow)?;
        Span::new(op, self.device, view.buffer, bytes(view.offset)?, bytes(extent)?)
    }
}

impl Device {
    /// rocBLAS on this device, bound to the compute stream. The first call creates the handle.
    ///
    /// # Errors
    /// `NotAvailable` if the provider has no rocBLAS, or if rocBLAS has no kernels for this GPU.
    pub fn blas(&self) -> Result<&Blas> {
        self.blas.get(|| {
            let table = self.provider().rocblas()?;
            self.make_current()?;
            let (arch, index) = (&self.info().arch, self.info().index);
            let blas = Blas::new(table, arch, index, self.compute.handle(), deterministic())?;
            blas.limit_workspace(self, workspace_limit())?;
            Ok(blas)
        })
    }
}

impl MatrixView<'_> {
    fn strided(&self) -> Strided {
        Strided {
            rows: self.rows,
            cols: self.cols,
            row_stride: self.row_stride,
            col_stride: self.col_stride,
            batch_stride: self.batch_stride,
        }
    }
}

/// The dtypes of a product's operands and result.
#[derive(Clone, Copy)]
struct Kind {
    input: DType,
    output: DType,
}

impl Kind {
    fn of(op: &'static str, input: DType) -> Result<Self> {
        let output = match input {
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => input,
            DType::I8 => DType::I32,
            _ => return Err(Error::unsupported(op, input)),
        };
        Ok(Self { input, output })
    }
}

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

impl Handle {
    /// # Safety
    /// `first`, `second` and `out` point to the device memory that `plan` describes, of `kind`'s
    /// types. The memory lives until the stream has passed the call.
    #[allow(clippy::too_many_arguments)]
    unsafe fn gemm(
        &self,
        kind: Kind,
        plan: &Plan,
        first: *const c_void,
        second: *const c_void,
        out: *mut c_void,
        alpha: f64,
        beta: f64,
        flags: u32,
    ) -> Result<()> {
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
            DType::F32 => typed!(f32, rocblas_sgemm, rocblas_sgemm_strided_batched),
            DType::F64 => typed!(f64, rocblas_dgemm, rocblas_dgemm_strided_batched),
            _ => {
                let (f32s, i32s) = ([alpha as f32, beta as f32], [alpha as i32, beta as i32]);
                let integer = kind.input == DType::I8;
                let compute = datatype(if integer { DType::I32 } else { DType::F32 });
                let scalar = |i: usize| -> *const c_void {
                    if integer { (&raw const i32s[i]).cast() } else { (&raw const f32s[i]).cast() }
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
                            rocblas_gemm_algo_standard,
                            0,
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
                            rocblas_gemm_algo_standard,
                            0,
                            flags,
                        )
                    };
                    ("rocblas_gemm_strided_batched_ex", status)
                }
            }
        };
        check(t, call, status, || format!("{:?}, {plan:?}", kind.input))?;
        library_call::computed(|| format!("{call} {m}x{n}, k {k}, batch {batch}"), load(kind, plan, beta));
        let alternative = if flags == rocblas_gemm_flags_none { "" } else { ", fp16_alt_impl" };
        trace::served(WorkKind::Library, || {
            format!("{call} {:?} {m}x{n}, k {k}, batch {batch}{alternative}", kind.input)
        });
        Ok(())
    }

    /// # Safety
    /// As for `gemm`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn geam(
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

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is valid and no other code uses it. The owner of a `Device` waits for
        // its stream before it drops the device.
        let status = unsafe { (self.table.rocblas_destroy_handle)(self.raw) };
        if let Err(error) = check(self.table, "rocblas_destroy_handle", status, String::new) {
            log::warn!("{error}");
        }
    }
}

/// A status as a `Result`.
fn check(
    table: &Rocblas,
    call: &'static str,
    status: rocblas_status,
    detail: impl FnOnce() -> String,
) -> Result<()> {
    // `perf_degraded` means that the result is right, but was computed more slowly for lack of
    // workspace.
    if status == rocblas_status_success || status == rocblas_status_perf_degraded {
        return Ok(());
    }
    // SAFETY: rocBLAS returns a static string for any value.
    let name =
        status.name().unwrap_or_else(|| unsafe { static_text((table.rocblas_status_to_string)(status)) });
    Err(Error::Rocblas { call, status: status.0, name, detail: detail() })
}
