//! Products with epilogues by hipBLASLt: what follows a product (a bias, an activation, their
//! gradients) is computed before the product is stored, so that it is not read again.

mod calls;
mod choose;
mod fp8;
mod problem;
mod verify;

use std::sync::Mutex;

use hipblaslt_sys::{HIPBLASLT_EPILOGUE_BGRADA, HIPBLASLT_EPILOGUE_BIAS, Hipblaslt};

use super::choose::{Chooser, Source};
use super::layout::Strided;
use super::{MatrixView, layout};
use crate::compile::toolchain::builds_loaded;
use crate::device::Device;
use crate::memory::arena::ALIGN;
use crate::memory::kind::MemoryKind;
use crate::memory::pool::Purpose;
use crate::memory::span::Span;
use crate::provider::names;
use crate::settings::{HipblasLt, settings, workspace_limit};
use crate::tuning::{library_name, tuning_store};
use crate::workarounds::Halves;
use crate::{Buffer, DType, Error, Result, carry_faults};
use calls::{Handle, NO_SCALES, Pointers};
use choose::TODAY;
pub use fp8::Fp8Product;
pub use problem::Fp8;
use problem::LtProblem;

/// A packed vector in device memory.
#[derive(Clone, Copy)]
pub struct VectorView<'a> {
    /// The buffer of the elements.
    pub buffer: &'a Buffer,
    /// The first element.
    pub offset: usize,
}

/// An activation that hipBLASLt computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LtActivation {
    /// `max(x, 0)`. Unlike this project's kernels, the libraries may give 0 for a NaN.
    Relu,
    /// GELU by its approximation with tanh. The exact form has no epilogue.
    GeluTanh,
}

/// What follows a product. `x` is an element of `a b + onto`.
#[derive(Clone, Copy)]
pub enum Epilogue<'a> {
    /// `activation(x + bias)`.
    Forward {
        /// One element for each column of the result.
        bias: Option<VectorView<'a>>,
        /// The activation.
        activation: Option<LtActivation>,
        /// Where `x + bias` is stored, packed, for the gradient. Only with [`LtActivation::GeluTanh`].
        before: Option<MatrixView<'a>>,
    },
    /// `x` times the derivative of [`LtActivation::GeluTanh`] at `before`.
    GeluGradient {
        /// What the activation has read, packed.
        before: MatrixView<'a>,
        /// Where the sums of the result's columns are stored: the bias' gradient.
        sums: Option<VectorView<'a>>,
    },
    /// The result is `x`, and the sums of the columns of `b` are stored here. If `a b` is the
    /// gradient of a linear layer's weight (`b` is then the output's gradient), they are the
    /// gradient of its bias.
    ColumnSums(VectorView<'a>),
}

/// A product `out = epilogue(a b + onto)` of matrices of one dtype. What is written (`out`, and what
/// the epilogue stores) may overlap no other operand.
#[derive(Clone, Copy)]
pub struct LtProduct<'a> {
    /// f32, f16 or bf16; sums are f32.
    pub dtype: DType,
    /// The left operand.
    pub a: MatrixView<'a>,
    /// The right operand.
    pub b: MatrixView<'a>,
    /// What is added to the product, row by row in memory.
    pub onto: Option<MatrixView<'a>>,
    /// The result, packed row by row.
    pub out: MatrixView<'a>,
    /// What follows.
    pub epilogue: Epilogue<'a>,
    /// Whether the product computes a gradient ([`Blas::gemm`](super::Blas::gemm)).
    pub gradient: bool,
}

/// Who computed a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LtAnswer {
    /// hipBLASLt.
    Computed,
    /// Nobody: the caller computes it without hipBLASLt, because that is faster or nothing was
    /// timed.
    Passed,
    /// Nobody: hipBLASLt can't compute it, for this reason.
    Refused(String),
}

/// hipBLASLt on one device.
pub struct BlasLt {
    handle: Mutex<Handle>,
    device: usize,
    halves: Halves,
    /// What the tuning store calls the device and the library.
    names: [String; 2],
    /// Chooses by timing; `None` if the heuristic's first algorithm serves.
    chooser: Option<Chooser<LtProblem>>,
}

/// The most workspace that the handle gets. cuBLAS takes as much on Hopper, and rocBLAS on most
/// GPUs.
const MOST: usize = 32 << 20;

impl Device {
    /// hipBLASLt on this device. The first call creates the handle.
    ///
    /// # Errors
    /// `NotAvailable` if the settings forbid it or the provider has no hipBLASLt; `Dry` on a dry
    /// device; `HipblasLt` and `OutOfMemory` if the handle can't be made.
    pub fn blas_lt(&self) -> Result<&BlasLt> {
        if settings()?.hipblaslt == HipblasLt::Off {
            return Err(forbidden("BURN_ROCM_HIPBLASLT=off"));
        }
        self.blas_lt_fp8()
    }

    /// hipBLASLt for products of fp8, which no other library computes. `BURN_ROCM_HIPBLASLT=off` does not
    /// forbid it.
    ///
    /// # Errors
    /// `NotAvailable` in deterministic mode, and as [`blas_lt`](Self::blas_lt).
    pub fn blas_lt_fp8(&self) -> Result<&BlasLt> {
        if settings()?.deterministic {
            return Err(forbidden("BURN_ROCM_DETERMINISTIC=1"));
        }
        self.blas_lt.get(|| BlasLt::new(self, self.provider().hipblaslt()?))
    }
}

/// What the tuning store calls hipBLASLt with this workspace. An entry is a place in the heuristic's
/// list, which builds of one version may order differently.
fn name_of(version: i32, limit: usize) -> String {
    let build = builds_loaded(&[names::HIPBLASLT.stem]);
    let build = if build.is_empty() { build } else { format!(" ({build})") };
    library_name(format!("hipBLASLt {version}{build}, at most {limit} bytes of workspace"))
}

fn forbidden(setting: &str) -> Error {
    Error::NotAvailable { reason: format!("setting {setting}"), searched: Vec::new() }
}

impl BlasLt {
    fn new(device: &Device, table: &'static Hipblaslt) -> Result<Self> {
        let on = settings()?.hipblaslt;
        device.make_current()?;
        let info = device.info();
        let mut handle = Handle::new(table, device.compute.handle())?;
        let limit = workspace_limit().min(MOST);
        let library = name_of(handle.version()?, limit);
        let halves = Halves::of(&info.arch)?;
        // Last, because a failure after this would lose the block.
        if limit >= ALIGN {
            let _label = MemoryKind::Workspaces.label();
            // Not given back: the device owns both this handle and the pool, and drops the handle
            // first.
            let block = device.pool.allocate(limit, Purpose::Compute)?;
            handle.set_workspace(block.address as *mut _, limit);
        }
        Ok(Self {
            handle: Mutex::new(handle),
            device: info.index,
            halves,
            names: [info.tuned_as(), library],
            chooser: (on == HipblasLt::Auto).then(|| Chooser::with(tuning_store())),
        })
    }

    /// Who computes a linear layer of `sizes` (rows, inputs and outputs), or, if `gradient`, the
    /// gradients of its weight and bias by one product. All matrices are packed and aligned. Asks
    /// the heuristic the first time.
    ///
    /// # Errors
    /// An error of the device.
    pub fn linear(
        &self,
        device: &Device,
        dtype: DType,
        sizes: [usize; 3],
        gradient: bool,
    ) -> Result<LtAnswer> {
        let [rows, inner, outer] = sizes;
        if let Some(why) = self.never(dtype, gradient, sizes) {
            return Ok(LtAnswer::Refused(why.into()));
        }
        let packed = |rows, cols| Strided { rows, cols, row_stride: cols, col_stride: 1, batch_stride: 0 };
        let turned = Strided { rows: inner, cols: rows, row_stride: 1, col_stride: inner, batch_stride: 0 };
        let (plan, epilogue) = match gradient {
            false => (
                layout::plan(1, packed(rows, inner), packed(inner, outer), packed(rows, outer))?,
                HIPBLASLT_EPILOGUE_BIAS,
            ),
            true => (
                layout::plan(1, turned, packed(rows, outer), packed(inner, outer))?,
                HIPBLASLT_EPILOGUE_BGRADA,
            ),
        };
        let problem = LtProblem::new(dtype, &plan, None, epilogue);
        if let Err(why) = device.call(&self.handle)?.algorithms(&problem, NO_SCALES) {
            return Ok(LtAnswer::Refused(why));
        }
        let chosen = match &self.chooser {
            None => Some(TODAY + 1),
            // Ranks of a group time nothing: see `chosen`.
            Some(_) if device.is_replica() => Some(TODAY),
            Some(chooser) => chooser.chosen(&problem),
        };
        Ok(if chosen.is_some_and(|chosen| chosen != TODAY) { LtAnswer::Computed } else { LtAnswer::Passed })
    }

    /// Why hipBLASLt computes no product of a kind.
    fn never(&self, dtype: DType, gradient: bool, sizes: [usize; 3]) -> Option<&'static str> {
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Some("hipBLASLt does not have the dtype here");
        }
        if self.halves.alternative(dtype, gradient) == Some(true) {
            return Some("hipBLASLt has no alternative for f16 on gfx90a");
        }
        sizes.contains(&0).then_some("hipBLASLt takes no empty product")
    }

    /// Computes a product, unless hipBLASLt can't or is not chosen for the shape. `today` computes
    /// the same without hipBLASLt, into memory of its own. It is called only to be timed.
    ///
    /// # Errors
    /// `Invalid` for views that reach past a buffer's end, or a result that overlaps an operand; an
    /// error of the device. hipBLASLt's own errors are answers.
    pub fn multiply(
        &self,
        product: &LtProduct<'_>,
        today: &mut dyn FnMut() -> Result<()>,
    ) -> Result<LtAnswer> {
        let (problem, pointers) = match self.resolve(product)? {
            Ok(resolved) => resolved,
            Err(why) => return Ok(LtAnswer::Refused(why.into())),
        };
        let chosen = match &self.chooser {
            Some(chooser) => self.chosen(chooser, product, &problem, today)?,
            None => TODAY + 1,
        };
        if chosen == TODAY {
            return Ok(LtAnswer::Passed);
        }
        let device = product.out.buffer.device();
        let handle = device.call(&self.handle)?;
        if let Err(why) = handle.algorithms(&problem, NO_SCALES) {
            return Ok(LtAnswer::Refused(why));
        }
        // SAFETY: `resolve` checked the memory; the pool keeps it until the stream has passed the
        // call.
        match unsafe { handle.multiply(&problem, &pointers, chosen - TODAY - 1) } {
            Ok(()) => {
                carry_faults(product.read(), product.written());
                Ok(LtAnswer::Computed)
            }
            Err(Error::HipblasLt { call, name, .. }) => {
                self.refused(&problem, device);
                Ok(LtAnswer::Refused(format!("{call} failed: {name}")))
            }
            Err(other) => Err(other),
        }
    }

    /// The problem and its memory, or why hipBLASLt does not take it.
    #[allow(clippy::type_complexity)]
    fn resolve(
        &self,
        product: &LtProduct<'_>,
    ) -> Result<std::result::Result<(LtProblem, Pointers), &'static str>> {
        const OP: &str = "hipblaslt";
        let LtProduct { dtype, a, b, onto, out, epilogue, gradient } = *product;
        let (rows, cols) = (out.rows, out.cols);
        if let Some(why) = self.never(dtype, gradient, [rows, cols, a.cols]) {
            return Ok(Err(why));
        }
        let packed = |view: &MatrixView<'_>| {
            (view.rows, view.cols) == (rows, cols)
                && (view.col_stride == 1 || cols == 1)
                && (view.row_stride == cols || rows == 1)
        };
        let before = match epilogue {
            Epilogue::Forward { before, .. } => before,
            Epilogue::GeluGradient { before, .. } => Some(before),
            Epilogue::ColumnSums(_) => None,
        };
        if !packed(&out) || before.is_some_and(|before| !packed(&before)) {
            return Ok(Err("hipBLASLt gets only packed results"));
        }
        let Some(plan) =
            layout::plan(1, a.strided(), b.strided(), out.strided()).ok().filter(|plan| plan.swap)
        else {
            return Ok(Err("hipBLASLt does not take the operands' strides"));
        };
        let added = onto.map(|onto| by_rows(&onto, [rows, cols]));
        if added == Some(None) {
            return Ok(Err("hipBLASLt does not take the strides of what is added"));
        };
        let overflow = |found: String| Error::invalid(OP, "a view that fits memory", found);
        let bytes = |elements: usize| {
            elements.checked_mul(dtype.size()).ok_or_else(|| overflow(format!("{elements} elements")))
        };
        let matrix = |view: &MatrixView<'_>| {
            let strided = view.strided();
            let extent = strided.extent(1).ok_or_else(|| overflow(format!("{strided:?}")))?;
            Span::new(OP, self.device, view.buffer, bytes(view.offset)?, bytes(extent)?)
        };
        let vector = |view: &VectorView<'_>| {
            Span::new(OP, self.device, view.buffer, bytes(view.offset)?, bytes(cols)?)
        };
        let (first, second) = (matrix(&b)?, matrix(&a)?);
        let onto_span = onto.as_ref().map(matrix).transpose()?;
        let before = before.as_ref().map(matrix).transpose()?.unwrap_or(Span::NULL);
        let bias = match &epilogue {
            Epilogue::Forward { bias, .. } => bias.as_ref(),
            Epilogue::GeluGradient { sums, .. } => sums.as_ref(),
            Epilogue::ColumnSums(sums) => Some(sums),
        };
        let bias = bias.map(vector).transpose()?.unwrap_or(Span::NULL);
        let (stored, also_read) = match epilogue {
            Epilogue::Forward { .. } => (before, bias),
            Epilogue::GeluGradient { .. } | Epilogue::ColumnSums(_) => (bias, before),
        };
        let out_span = matrix(&out)?;
        let read = [first, second, onto_span.unwrap_or(Span::NULL), also_read];
        Span::all_apart(OP, &[out_span, stored], &read)?;
        let pointers = Pointers {
            first: first.ptr,
            second: second.ptr,
            onto: onto_span.map_or(out_span.ptr, |span| span.ptr),
            out: out_span.ptr,
            bias: bias.ptr,
            before: before.ptr,
            scales: NO_SCALES,
        };
        if !pointers.are_aligned() {
            return Ok(Err("hipBLASLt gets only tensors that begin at multiples of 16 bytes"));
        }
        let problem = LtProblem::new(dtype, &plan, added.flatten(), problem::number(&epilogue));
        Ok(Ok((problem, pointers)))
    }
}

/// The distance of the rows of a matrix of `size`, if they do not overlap and are contiguous.
fn by_rows(view: &MatrixView<'_>, size: [usize; 2]) -> Option<i32> {
    let distance = if view.rows == 1 { view.cols } else { view.row_stride };
    let whole = [view.rows, view.cols] == size && (view.col_stride == 1 || view.cols == 1);
    (whole && distance >= view.cols).then_some(i32::try_from(distance).ok()?)
}

impl<'a> LtProduct<'a> {
    /// The buffers that are read.
    fn read(&self) -> impl Iterator<Item = &'a Buffer> {
        let epilogue = match self.epilogue {
            Epilogue::Forward { bias, .. } => bias.map(|bias| bias.buffer),
            Epilogue::GeluGradient { before, .. } => Some(before.buffer),
            Epilogue::ColumnSums(_) => None,
        };
        let onto = self.onto.map(|onto| onto.buffer);
        [Some(self.a.buffer), Some(self.b.buffer), onto, epilogue].into_iter().flatten()
    }

    /// The buffers that are written.
    fn written(&self) -> impl Iterator<Item = &'a Buffer> {
        self.places().map(|place| place.buffer)
    }

    /// A packed matrix in bytes, whose rows are the result's.
    fn matrix(&self, view: &MatrixView<'a>) -> Source<'a> {
        let (size, elements) = (self.dtype.size(), self.out.rows * self.out.cols);
        Source { buffer: view.buffer, offset: view.offset * size, bytes: elements * size }
    }

    /// A vector in bytes, with an element for each column of the result.
    fn vector(&self, view: &VectorView<'a>) -> Source<'a> {
        let size = self.dtype.size();
        Source { buffer: view.buffer, offset: view.offset * size, bytes: self.out.cols * size }
    }

    /// The same product with its results in other memory, `offset` elements behind the beginning of
    /// a buffer for each of [`places`](Self::places).
    fn written_to<'b>(&self, rooms: &'b [Buffer], offset: usize) -> LtProduct<'b>
    where
        'a: 'b,
    {
        let matrix = |view: MatrixView<'b>, at: usize| match rooms.get(at) {
            Some(buffer) => MatrixView { buffer, offset, ..view },
            None => view,
        };
        let vector = |view: VectorView<'b>| match rooms.get(1) {
            Some(buffer) => VectorView { buffer, offset },
            None => view,
        };
        let epilogue = match self.epilogue {
            Epilogue::Forward { bias, activation, before } => {
                Epilogue::Forward { bias, activation, before: before.map(|view| matrix(view, 1)) }
            }
            Epilogue::GeluGradient { before, sums } => {
                Epilogue::GeluGradient { before, sums: sums.map(vector) }
            }
            Epilogue::ColumnSums(sums) => Epilogue::ColumnSums(vector(sums)),
        };
        LtProduct { out: matrix(self.out, 0), epilogue, ..*self }
    }

    /// What is written.
    fn places(&self) -> impl Iterator<Item = Source<'a>> {
        let epilogue = match &self.epilogue {
            Epilogue::Forward { before, .. } => before.as_ref().map(|before| self.matrix(before)),
            Epilogue::GeluGradient { sums, .. } => sums.as_ref().map(|sums| self.vector(sums)),
            Epilogue::ColumnSums(sums) => Some(self.vector(sums)),
        };
        [Some(self.matrix(&self.out)), epilogue].into_iter().flatten()
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests;
