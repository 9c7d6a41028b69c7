//! The calls of hipBLASLt.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;

use hip_sys::hipStream_t;
use hipblaslt_sys::*;

use super::problem::{Fp8, LtProblem};
use crate::device::library::{self as library_call, Bound};
use crate::profile::work::{Load, WorkKind};
use crate::provider::library;
use crate::{DType, Error, Result, trace};

/// The most shapes whose algorithms are remembered. Further ones are not given to hipBLASLt. Those
/// of fp8 count apart: see [`Handle::algorithms`].
const MOST_SHAPES: usize = 1 << 12;
/// The most algorithms that the heuristic is asked for.
const MOST_ALGORITHMS: usize = 16;
/// The alignment of matrices and vectors in bytes: kernels read up to 16 bytes at once.
const ALIGNED: usize = 16;

/// The memory of a product.
#[derive(Clone, Copy)]
pub(super) struct Pointers {
    /// hipBLASLt's first operand.
    pub(super) first: *const c_void,
    pub(super) second: *const c_void,
    /// What is added, or the result.
    pub(super) onto: *const c_void,
    pub(super) out: *mut c_void,
    /// The bias, or the place of sums; null without.
    pub(super) bias: *mut c_void,
    /// The matrix before the activation; null without.
    pub(super) before: *mut c_void,
    /// The factors of the operands, if these are of fp8; else null.
    pub(super) scales: Scales,
}

/// Addresses of f32 in device memory.
pub(super) type Scales = [*const c_void; 2];
/// Those of a product that has none.
pub(super) const NO_SCALES: Scales = [ptr::null(); 2];

impl Pointers {
    pub(super) fn are_aligned(&self) -> bool {
        let Self { first, second, onto, out, bias, before, scales: _ } = *self;
        let all = [first, second, onto, out.cast_const(), bias.cast_const(), before.cast_const()];
        all.iter().all(|at| (*at as usize).is_multiple_of(ALIGNED))
    }
}

/// A status as a `Result`.
fn check(call: &'static str, status: hipblasStatus_t, detail: impl FnOnce() -> String) -> Result<()> {
    if status == HIPBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    let name = status.name().unwrap_or("an unknown status");
    Err(Error::HipblasLt { call, status: status.0, name, detail: detail() })
}

fn datatype(dtype: DType) -> hipDataType {
    match dtype {
        DType::F16 => HIP_R_16F,
        DType::BF16 => HIP_R_16BF,
        _ => HIP_R_32F,
    }
}

fn fp8_datatype(ty: Fp8) -> hipDataType {
    match ty {
        Fp8::E4M3 => HIP_R_8F_E4M3,
        Fp8::E5M2 => HIP_R_8F_E5M2,
        Fp8::E4M3Fnuz => HIP_R_8F_E4M3_FNUZ,
        Fp8::E5M2Fnuz => HIP_R_8F_E5M2_FNUZ,
    }
}

/// Calls a function of the table, and makes its status a `Result`.
macro_rules! call {
    ($table:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the function is hipBLASLt's. Objects are alive; places have room for what it
        // writes, and values for what it reads.
        let status = unsafe { ($table.$function)($($argument),*) };
        check(stringify!($function), status, String::new)
    }};
}

/// The raw handle, destroyed on drop.
pub(super) struct Handle {
    table: &'static Hipblaslt,
    raw: hipblasLtHandle_t,
    stream: Cell<hipStream_t>,
    workspace: (*mut c_void, usize),
    /// The problems with operands of the result's dtype, and those with operands of fp8.
    prepared: [RefCell<Known>; 2],
}

/// `Err` says why no algorithm computes the problem.
type Known = HashMap<LtProblem, std::result::Result<Prepared, String>>;

// SAFETY: any thread may use a handle and its descriptors, one thread at a time: hipBLASLt has no
// thread-local state. The mutex in `BlasLt` ensures this.
unsafe impl Send for Handle {}

impl Bound for Handle {
    fn bind(&self, stream: hipStream_t) -> Result<()> {
        // Each call names its stream.
        self.stream.set(stream);
        Ok(())
    }
}

/// The descriptors of a problem, destroyed on drop, and its algorithms, best first.
struct Prepared {
    table: &'static Hipblaslt,
    desc: hipblasLtMatmulDesc_t,
    /// First operand, second operand, what is added, result.
    layouts: [hipblasLtMatrixLayout_t; 4],
    algorithms: Vec<hipblasLtMatmulAlgo_t>,
}

impl Prepared {
    /// The descriptors, without algorithms.
    fn new(table: &'static Hipblaslt, problem: &LtProblem, scales: Scales) -> Result<Self> {
        let (desc, layouts) = (ptr::null_mut(), [ptr::null_mut(); 4]);
        let mut own = Self { table, desc, layouts, algorithms: Vec::new() };
        call!(table, hipblasLtMatmulDescCreate(&mut own.desc, HIPBLAS_COMPUTE_32F, HIP_R_32F))?;
        let [m, n, k] = problem.sizes;
        let stored = |transposed, rows: i32, cols: i32| if transposed { (cols, rows) } else { (rows, cols) };
        let [first, second] = problem.transposed;
        let sizes = [stored(first, m, k), stored(second, k, n), (m, n), (m, n)];
        let ty = datatype(problem.dtype);
        let [a, b] = problem.fp8.map_or([ty; 2], |types| types.map(fp8_datatype));
        let all = own.layouts.iter_mut().zip(sizes).zip([a, b, ty, ty]).zip(problem.ld);
        for (((layout, (rows, cols)), ty), ld) in all {
            call!(table, hipblasLtMatrixLayoutCreate(layout, ty, rows as u64, cols as u64, i64::from(ld)))?;
        }
        let operation = |transposed| if transposed { HIPBLAS_OP_T } else { HIPBLAS_OP_N };
        own.set(HIPBLASLT_MATMUL_DESC_TRANSA, operation(first))?;
        own.set(HIPBLASLT_MATMUL_DESC_TRANSB, operation(second))?;
        own.set(HIPBLASLT_MATMUL_DESC_EPILOGUE, problem.epilogue)?;
        if problem.fp8.is_some() {
            // Algorithms of hipBLASLt differ in whether they scale, so the heuristic must know.
            own.set_scales(scales)?;
            return Ok(own);
        }
        // Always, because the heuristic asks for the bias' type.
        own.set(HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, ty)?;
        own.set(HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, i64::from(m))?;
        Ok(own)
    }

    fn set_scales(&self, [a, b]: Scales) -> Result<()> {
        self.set(HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER, a)?;
        self.set(HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER, b)
    }

    fn set<T: Copy>(&self, attribute: hipblasLtMatmulDescAttributes_t, value: T) -> Result<()> {
        let from = (&raw const value).cast();
        call!(self.table, hipblasLtMatmulDescSetAttribute(self.desc, attribute, from, size_of::<T>()))
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let mut done = Ok(());
        if !self.desc.is_null() {
            done = done.and(call!(self.table, hipblasLtMatmulDescDestroy(self.desc)));
        }
        for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
            done = done.and(call!(self.table, hipblasLtMatrixLayoutDestroy(layout)));
        }
        if let Err(error) = done {
            log::warn!("{error}");
        }
    }
}

/// A preference, destroyed on drop.
struct Preference(&'static Hipblaslt, hipblasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        if let Err(error) = call!(self.0, hipblasLtMatmulPreferenceDestroy(self.1)) {
            log::warn!("{error}");
        }
    }
}

impl Handle {
    /// Creates the handle for the current device. `stream` must live as long as the result.
    pub(super) fn new(table: &'static Hipblaslt, stream: hipStream_t) -> Result<Self> {
        let mut raw = ptr::null_mut();
        let held = library::compiling();
        call!(table, hipblasLtCreate(&mut raw))?;
        drop(held);
        let workspace = (ptr::null_mut(), 0);
        Ok(Self { table, raw, stream: Cell::new(stream), workspace, prepared: Default::default() })
    }

    /// Gives all calls this workspace, which the device keeps for as long as the handle lives. Only
    /// the handle's own calls use it, in the order of their stream.
    pub(super) fn set_workspace(&mut self, at: *mut c_void, bytes: usize) {
        self.workspace = (at, bytes);
    }

    /// The library's version, as its number.
    pub(super) fn version(&self) -> Result<i32> {
        let mut version = 0;
        call!(self.table, hipblasLtGetVersion(self.raw, &mut version))?;
        Ok(version)
    }

    fn known(&self, problem: &LtProblem) -> &RefCell<Known> {
        &self.prepared[usize::from(problem.fp8.is_some())]
    }

    /// Remembers that hipBLASLt can't compute a problem.
    pub(super) fn refuse(&self, problem: &LtProblem, why: String) {
        self.known(problem).borrow_mut().insert(*problem, Err(why));
    }

    /// The number of algorithms for a problem, at least 1, or why there are none. The first call
    /// with a problem asks the heuristic, which does not read the scales.
    ///
    /// Products of fp8 have a shape for each number of rows, and no other library computes them. So
    /// if there are too many shapes, all are forgotten, and the heuristic is asked again. Nothing
    /// that is timed depends on these.
    pub(super) fn algorithms(
        &self,
        problem: &LtProblem,
        scales: Scales,
    ) -> std::result::Result<usize, String> {
        let mut all = self.known(problem).borrow_mut();
        let is_full = !all.contains_key(problem) && all.len() >= MOST_SHAPES;
        if is_full && problem.fp8.is_none() {
            return Err(format!("hipBLASLt gets only the first {MOST_SHAPES} shapes"));
        }
        if is_full {
            all.clear();
        }
        let prepared = all.entry(*problem).or_insert_with(|| {
            self.ask(problem, scales)
                .map_err(|error| format!("hipBLASLt has no algorithm for {problem}: {error}"))
        });
        prepared.as_ref().map(|prepared| prepared.algorithms.len()).map_err(String::clone)
    }

    /// Asks the heuristic.
    fn ask(&self, problem: &LtProblem, scales: Scales) -> Result<Prepared> {
        let mut prepared = Prepared::new(self.table, problem, scales)?;
        let mut preference = Preference(self.table, ptr::null_mut());
        call!(self.table, hipblasLtMatmulPreferenceCreate(&mut preference.1))?;
        let bytes = self.workspace.1 as u64;
        call!(
            self.table,
            hipblasLtMatmulPreferenceSetAttribute(
                preference.1,
                HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of::<u64>()
            )
        )?;
        let empty = hipblasLtMatmulHeuristicResult_t {
            algo: hipblasLtMatmulAlgo_t { data: [0; 16], max_workspace_bytes: 0 },
            workspaceSize: 0,
            state: HIPBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let (mut found, mut count) = ([empty; MOST_ALGORITHMS], 0);
        let [a, b, c, d] = prepared.layouts;
        call!(
            self.table,
            hipblasLtMatmulAlgoGetHeuristic(
                self.raw,
                prepared.desc,
                a,
                b,
                c,
                d,
                preference.1,
                MOST_ALGORITHMS as i32,
                found.as_mut_ptr(),
                &mut count
            )
        )?;
        let found = found.iter().take(usize::try_from(count).unwrap_or(0));
        let fits = |result: &&hipblasLtMatmulHeuristicResult_t| {
            result.state == HIPBLAS_STATUS_SUCCESS && result.workspaceSize <= self.workspace.1
        };
        prepared.algorithms = found.filter(fits).map(|result| result.algo).collect();
        match prepared.algorithms.is_empty() {
            false => Ok(prepared),
            true => check("hipblasLtMatmulAlgoGetHeuristic", HIPBLAS_STATUS_NOT_SUPPORTED, || {
                "it returned no algorithm".into()
            })
            .map(|()| prepared),
        }
    }

    /// Launches a product by one of its algorithms.
    ///
    /// # Safety
    /// The pointers are to the device memory that the problem describes. The memory lives until the
    /// stream has passed the call.
    pub(super) unsafe fn multiply(
        &self,
        problem: &LtProblem,
        pointers: &Pointers,
        algorithm: i32,
    ) -> Result<()> {
        // SAFETY: the caller's memory.
        unsafe { self.launch(problem, pointers, algorithm) }?;
        let ([m, n, k], name) = (problem.sizes, || problem.epilogue_name());
        let call = "hipblasLtMatmul";
        library_call::computed(|| format!("{call} {m}x{n}, k {k}, {}", name()), load(problem));
        trace::served(WorkKind::Library, || {
            let adds = if problem.adds { ", adds" } else { "" };
            let chosen = if algorithm == 0 { String::new() } else { format!(", algorithm {algorithm}") };
            format!("{call} {} {m}x{n}, k {k}, {}{adds}{chosen}", problem.types(), name())
        });
        Ok(())
    }

    /// As `multiply`, but neither traced nor profiled.
    ///
    /// # Safety
    /// As for `multiply`.
    pub(super) unsafe fn launch(
        &self,
        problem: &LtProblem,
        pointers: &Pointers,
        algorithm: i32,
    ) -> Result<()> {
        const CALL: &str = "hipblasLtMatmul";
        let detail = || problem.to_string();
        let refused = |_| check(CALL, HIPBLAS_STATUS_NOT_SUPPORTED, detail);
        if let Err(why) = self.algorithms(problem, pointers.scales) {
            return refused(why);
        }
        let all = self.known(problem).borrow();
        let prepared = all.get(problem).and_then(|prepared| prepared.as_ref().ok());
        let algorithm = usize::try_from(algorithm).ok();
        let Some((prepared, algo)) =
            prepared.and_then(|prepared| Some((prepared, prepared.algorithms.get(algorithm?)?)))
        else {
            return refused(String::new());
        };
        if !pointers.bias.is_null() {
            prepared.set(HIPBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias)?;
        }
        if !pointers.before.is_null() {
            prepared.set(HIPBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pointers.before)?;
        }
        if problem.fp8.is_some() {
            prepared.set_scales(pointers.scales)?;
        }
        let (alpha, beta) = (1f32, if problem.adds { 1f32 } else { 0.0 });
        let [a, b, c, d] = prepared.layouts;
        // SAFETY: all objects are alive; the caller vouches for the memory, and the device for the
        // workspace. The scalars are read before the call returns (pointer mode host).
        let status = unsafe {
            (self.table.hipblasLtMatmul)(
                self.raw,
                prepared.desc,
                (&raw const alpha).cast(),
                pointers.first,
                a,
                pointers.second,
                b,
                (&raw const beta).cast(),
                pointers.onto,
                c,
                pointers.out,
                d,
                algo,
                self.workspace.0,
                self.workspace.1,
                self.stream.get(),
            )
        };
        check(CALL, status, detail)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.prepared.iter().for_each(|known| known.borrow_mut().clear());
        if let Err(error) = call!(self.table, hipblasLtDestroy(self.raw)) {
            log::warn!("{error}");
        }
    }
}

/// The elements of a product, each matrix once, and its multiplications and additions.
fn load(problem: &LtProblem) -> Load {
    let [m, n, k] = problem.sizes.map(|size| size as u64);
    let stored = [HIPBLASLT_EPILOGUE_GELU_AUX, HIPBLASLT_EPILOGUE_GELU_AUX_BIAS];
    let read = [HIPBLASLT_EPILOGUE_DGELU, HIPBLASLT_EPILOGUE_DGELU_BGRAD];
    let more = stored.contains(&problem.epilogue) || read.contains(&problem.epilogue);
    let results = 1 + u64::from(problem.adds) + u64::from(more);
    let [of_operand, of_result] = [problem.operand_size() as u64, problem.dtype.size() as u64];
    let bytes = (m * k + k * n) * of_operand + results * m * n * of_result;
    Load { bytes, flops: 2 * m * n * k }
}
