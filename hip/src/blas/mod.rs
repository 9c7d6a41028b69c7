//! Matrix products by rocBLAS, and together with what follows them by hipBLASLt. A device has one
//! handle of each, which is bound to its compute stream.

mod calls;
mod choose;
mod layout;
mod lt;
mod problem;
mod rounding;
mod tunable_op;
mod workspace;

use std::ptr;
use std::sync::Mutex;

use hip_sys::hipStream_t;
use rocblas_sys::*;

use crate::device::Device;
use crate::device::info::DeviceInfo;
use crate::device::library::Bound;
use crate::error::static_text;
use crate::memory::span::Span;
use crate::provider::library;
use crate::settings::{deterministic, workspace_limit};
use crate::workarounds::Halves;
use crate::{Buffer, DType, Error, Result, carry_faults, workarounds};
use calls::Product;
use choose::{Chooser, Source};
use layout::Strided;
pub use lt::{BlasLt, Epilogue, Fp8, Fp8Product, LtActivation, LtAnswer, LtProduct, VectorView};
use problem::{DEFAULT, GemmProblem};
pub use tunable_op::TunableOpCount;

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
    identity: Identity,
    /// `None` if rocBLAS chooses every solution.
    chooser: Option<Chooser<GemmProblem>>,
}

/// What the tuning store calls the device and the library.
struct Identity {
    device: String,
    /// The architecture alone.
    arch: String,
    /// The library's name in the tuning store, with the settings that decide which solutions it lists.
    library: String,
    /// The library's version; empty if it does not say.
    version: String,
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
    /// `stream` must live as long as the result.
    pub(crate) fn new(
        table: &'static Rocblas,
        device: &DeviceInfo,
        stream: hipStream_t,
        deterministic: bool,
    ) -> Result<Self> {
        let arch = device.arch.as_str();
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
        let version = version(table).unwrap_or_default();
        let name = if version.is_empty() { "of an unknown version" } else { &version };
        // With little workspace rocBLAS refuses some solutions, and others are the fastest.
        let limit = match workspace_limit() {
            usize::MAX => String::new(),
            limit => format!(", at most {limit} bytes of workspace"),
        };
        let identity = Identity {
            device: device.tuned_as(),
            arch: arch.to_owned(),
            library: format!("rocBLAS {name}{limit}{}", use_of_hipblaslt()),
            version,
        };
        Ok(Self {
            handle: Mutex::new(handle),
            device: device.index,
            halves: Halves::of(arch)?,
            identity,
            chooser: Chooser::new(table, deterministic)?,
        })
    }

    /// `c[i] = alpha * a[i] x b[i] + beta * c[i]` for each matrix `i` of the batch.
    ///
    /// In each view one stride must be 1, and the other at least the size of the dimension whose
    /// stride is 1. The stride of a dimension of size 1 does not matter. Transposes follow from the
    /// strides. `dtype` is that of `a` and `b`: f32, f64, f16 and bf16 (accumulated in f32), or i8,
    /// whose `c` is i32. `c` may not overlap `a` or `b`, nor may its matrices overlap each other.
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
        let views = if plan.swap { [b, a] } else { [a, b] };
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
        let product = Product { kind, plan: &plan, first: first.ptr, second: second.ptr, alpha, beta, flags };
        // SAFETY: `span` checked that every element of the views lies inside its buffer, and `plan`
        // describes those elements. The pool keeps the memory until the stream has passed this
        // call.
        unsafe {
            match &self.chooser {
                Some(chooser) if plan.k > 0 => {
                    let [x, y] = views;
                    let sources =
                        [x.source(first, dtype), y.source(second, dtype), c.source(out, kind.output)];
                    self.gemm_chosen(chooser, &product, out, sources)
                }
                _ => c.buffer.device().call(&self.handle)?.gemm(&product, out.ptr, DEFAULT),
            }
        }
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
            let blas = Blas::new(table, self.info(), self.compute.handle(), deterministic())?;
            blas.limit_workspace(self, workspace_limit())?;
            Ok(blas)
        })
    }
}

impl<'a> MatrixView<'a> {
    fn source(&self, span: Span, dtype: DType) -> Source<'a> {
        Source { buffer: self.buffer, offset: self.offset * dtype.size(), bytes: span.bytes }
    }

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

/// Whether the user lets rocBLAS use hipBLASLt, for the tuning store: which solutions rocBLAS lists
/// depends on it.
fn use_of_hipblaslt() -> String {
    ["ROCBLAS_USE_HIPBLASLT", "ROCBLAS_USE_HIPBLASLT_BATCHED"]
        .iter()
        .filter_map(|name| Some(format!(", {name}={:?}", std::env::var_os(name)?)))
        .collect()
}

/// The library's version.
fn version(table: &Rocblas) -> Option<String> {
    let mut length = 0;
    // SAFETY: the function is rocBLAS's and writes one number.
    let status = unsafe { (table.rocblas_get_version_string_size)(&mut length) };
    check(table, "rocblas_get_version_string_size", status, String::new).ok()?;
    // One 0 more than rocBLAS writes, which ends the text.
    let mut text = vec![0; length + 1];
    // SAFETY: the function is rocBLAS's and writes at most `length` bytes.
    let status = unsafe { (table.rocblas_get_version_string)(text.as_mut_ptr().cast(), length) };
    check(table, "rocblas_get_version_string", status, String::new).ok()?;
    let text = std::ffi::CStr::from_bytes_until_nul(&text).ok()?;
    Some(text.to_string_lossy().trim_end_matches('.').to_owned())
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
