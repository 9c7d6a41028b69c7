//! Ops by MIOpen, one file for each op family. A device has one handle, which is bound to its
//! compute stream.

mod activation;
mod conv;
mod descriptor;
mod fusion;
mod norm;
mod pool;
mod reduce;
mod rms_norm;
mod softmax;

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt::Display;
use std::hash::Hash;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hip_sys::hipStream_t;
use miopen_sys::*;

use crate::device::Device;
use crate::device::capture::is_capturing;
use crate::device::library::{self as library_call, Bound, Call};
use crate::error::static_text;
use crate::memory::kind::MemoryKind;
use crate::memory::span::Span;
use crate::profile::work::{Load, WorkKind};
use crate::provider::library;
use crate::settings::{deterministic, workspace_limit};
use crate::tuning::library_name;
use crate::workarounds::Halves;
use crate::{Buffer, DType, Error, Result, carry_faults, trace, workarounds};

pub use activation::Activation;
pub use conv::{ConvDesc, ConvDirection, ConvProblem, channels_last};
pub use norm::{BatchNormDesc, GroupNormDesc, LayerNormDesc};
pub use pool::{PoolDesc, PoolMode};
pub use reduce::{ReduceDesc, Reduction};
pub use softmax::SoftmaxDesc;

/// A packed, row-major tensor in device memory. The op's descriptor gives its shape and dtype.
#[derive(Clone, Copy)]
pub struct TensorArg<'a> {
    /// The buffer of the elements.
    pub buffer: &'a Buffer,
    /// The byte offset of the first element.
    pub offset: usize,
}

impl<'a> TensorArg<'a> {
    /// The tensor at the start of a buffer.
    pub fn new(buffer: &'a Buffer) -> Self {
        Self { buffer, offset: 0 }
    }
}

/// [`carry_faults`] for tensor arguments.
fn carry<'a>(from: impl IntoIterator<Item = TensorArg<'a>>, to: impl IntoIterator<Item = TensorArg<'a>>) {
    carry_faults(from.into_iter().map(|arg| arg.buffer), to.into_iter().map(|arg| arg.buffer));
}

/// MIOpen on one device. Every op is enqueued on the compute stream; the host does not wait.
pub struct Dnn {
    handle: Mutex<Handle>,
    table: &'static Miopen,
    device: usize,
    deterministic: bool,
    products: bool,
    halves: Halves,
    /// The library's name and version, as the tuning store has it.
    version: String,
    fresh: conv::Fresh,
    orders: conv::Orders,
    convolutions: [Cache<ConvDesc, conv::Prepared>; 3],
    fusions: Cache<fusion::Fused, fusion::Prepared>,
    poolings: Cache<PoolDesc, pool::Prepared>,
    layer_norms: Cache<LayerNormDesc, norm::Prepared>,
    rms_norms: Cache<LayerNormDesc, norm::Prepared>,
}

/// The raw handle, destroyed on drop.
struct Handle {
    table: &'static Miopen,
    raw: miopenHandle_t,
}

// SAFETY: MIOpen allows any thread to use a handle, one thread at a time (MIOpen documentation,
// "miopenHandle_t"). The mutex in `Dnn` ensures this.
unsafe impl Send for Handle {}

impl Bound for Handle {
    /// Rebinding keeps the kernels that the handle has found and compiled.
    fn bind(&self, stream: hipStream_t) -> Result<()> {
        // SAFETY: the handle is valid; the caller keeps the stream alive.
        let status = unsafe { (self.table.miopenSetStream)(self.raw, stream) };
        check(self.table, "miopenSetStream", status, String::new)
    }
}

impl Dnn {
    /// Creates the handle for the current device.
    ///
    /// `arch` is the device's full architecture name and `device` its index; `stream` must live as
    /// long as the result. `products` says whether rocBLAS has kernels for the device. If not,
    /// MIOpen must not call it, because rocBLAS would end the process.
    pub(crate) fn new(
        table: &'static Miopen,
        arch: &str,
        device: usize,
        stream: hipStream_t,
        deterministic: bool,
        products: bool,
    ) -> Result<Self> {
        let mut raw = ptr::null_mut();
        let held = library::compiling();
        // SAFETY: `raw` outlives the call; the caller keeps the stream alive.
        let status = unsafe { (table.miopenCreateWithStream)(&mut raw, stream) };
        drop(held);
        check(table, "miopenCreateWithStream", status, || arch.to_string())?;
        Ok(Self {
            handle: Mutex::new(Handle { table, raw }),
            table,
            device,
            deterministic,
            products,
            halves: Halves::of(arch)?,
            version: version(table),
            fresh: conv::Fresh::default(),
            orders: conv::Orders::default(),
            convolutions: Default::default(),
            fusions: Cache::default(),
            poolings: Cache::default(),
            layer_norms: Cache::default(),
            rms_norms: Cache::default(),
        })
    }

    /// Makes the device current and locks the handle for one call. `at` is memory of the call.
    fn begin<'a>(&'a self, at: &'a Buffer) -> Result<Call<'a, Handle>> {
        at.device().call(&self.handle)
    }

    /// The range of its buffer that a tensor of `elements` elements covers.
    fn span(&self, op: &'static str, tensor: TensorArg<'_>, dtype: DType, elements: usize) -> Result<Span> {
        let bytes = elements
            .checked_mul(dtype.size())
            .ok_or_else(|| Error::invalid(op, "a tensor that fits memory", format!("{elements} elements")))?;
        Span::new(op, self.device, tensor.buffer, tensor.offset, bytes)
    }

    /// As `span`; null for an absent tensor.
    fn span_or_null(
        &self,
        op: &'static str,
        tensor: Option<TensorArg<'_>>,
        dtype: DType,
        elements: usize,
    ) -> Result<Span> {
        tensor.map_or(Ok(Span::NULL), |tensor| self.span(op, tensor, dtype, elements))
    }

    /// Checks the status of a call that computes, and traces the call if it succeeded.
    fn served(&self, call: &'static str, status: miopenStatus_t, detail: impl Fn() -> String) -> Result<()> {
        self.served_load(call, status, Load::UNKNOWN, detail)
    }

    /// As `served`, for a call whose memory and arithmetic are known.
    fn served_load(
        &self,
        call: &'static str,
        status: miopenStatus_t,
        load: Load,
        detail: impl Fn() -> String,
    ) -> Result<()> {
        check(self.table, call, status, &detail)?;
        library_call::computed(|| call, load);
        trace::served(WorkKind::Library, || format!("{call} {}", detail()));
        Ok(())
    }
}

/// `MIOpen` and its version.
fn version(table: &Miopen) -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the function is MIOpen's and writes three integers.
    let status = unsafe { (table.miopenGetVersion)(&mut major, &mut minor, &mut patch) };
    match status == miopenStatusSuccess {
        true => library_name(format!("MIOpen {major}.{minor}.{patch}")),
        false => "MIOpen of an unknown version".into(),
    }
}

impl Device {
    /// MIOpen on this device, bound to the compute stream. The first call creates the handle.
    ///
    /// # Errors
    /// `NotAvailable` if the provider has no MIOpen; `Miopen` if it can't make a handle.
    pub fn dnn(&self) -> Result<&Dnn> {
        self.dnn.get(|| {
            let table = self.provider().miopen()?;
            // MIOpen uses the same rocBLAS library as this crate.
            let products = self
                .provider()
                .rocblas()
                .map_or(true, |rocblas| workarounds::rocblas_has_kernels(rocblas, &self.info().arch).is_ok());
            self.make_current()?;
            let info = self.info();
            Dnn::new(table, &info.arch, info.index, self.compute.handle(), deterministic(), products)
        })
    }
}

/// The error of a call that needs more workspace than
/// [`Config::workspace_limit`](crate::Config::workspace_limit) allows.
fn over_limit(op: &'static str, dtype: DType, needed: usize, what: impl Display) -> Error {
    let limit = workspace_limit();
    let text = format!(
        "a workspace of at most {limit} bytes (BURN_ROCM_WORKSPACE_LIMIT); \
         MIOpen needs at least {needed} bytes for {what}"
    );
    Error::unsupported_with(op, dtype, text)
}

/// Memory for a call's intermediate results. An estimate counts it as a workspace, also inside the app's
/// labels.
fn workspace(device: &Arc<Device>, bytes: usize) -> Result<Buffer> {
    let _workspace = device.is_dry().then(|| MemoryKind::Workspaces.label());
    device.alloc(bytes)
}

/// The scalars of a call, which MIOpen reads before it returns: f32 for every dtype but f64.
static ONE: f32 = 1.0;
static ZERO: f32 = 0.0;

fn one() -> *const c_void {
    (&raw const ONE).cast()
}

fn zero() -> *const c_void {
    (&raw const ZERO).cast()
}

/// The number of elements; `Invalid` if it overflows.
fn elements(op: &'static str, shape: &[usize]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim))
        .ok_or_else(|| Error::invalid(op, "a tensor that fits memory", format!("{shape:?}")))
}

/// MIOpen's name for a dtype; `Unsupported` unless `allowed` lists it.
fn data_type(op: &'static str, dtype: DType, allowed: &[DType]) -> Result<miopenDataType_t> {
    if !allowed.contains(&dtype) {
        return Err(Error::unsupported(op, dtype));
    }
    Ok(match dtype {
        DType::F16 => miopenHalf,
        DType::F32 => miopenFloat,
        DType::BF16 => miopenBFloat16,
        DType::F64 => miopenDouble,
        DType::I32 => miopenInt32,
        DType::I8 => miopenInt8,
        DType::I64 => miopenInt64,
        _ => return Err(Error::unsupported(op, dtype)),
    })
}

/// The dtypes of convolution.
const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];
/// The dtypes of pooling, softmax and activations: MIOpen 3.5 has no bf16 solver for them ("No
/// solver found").
const NO_BF16: &[DType] = &[DType::F32, DType::F16];

/// A cache of MIOpen's descriptors and solutions, keyed by the values of this crate's descriptor
/// (such as [`ConvDesc`]).
struct Cache<K, V>(Mutex<HashMap<K, Arc<V>>>);

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Hash + Eq + Clone, V> Cache<K, V> {
    /// The most entries. A network has tens of shapes. A program with more than this has new shapes
    /// at every step and gains nothing from old ones.
    const LIMIT: usize = 1024;

    /// The entry for `key`, made by `make` if there is none. If two threads make it at once, one is
    /// kept.
    fn get(&self, key: &K, make: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        if let Some(found) = self.lock().get(key) {
            return Ok(found.clone());
        }
        let made = Arc::new(make()?);
        let mut entries = self.lock();
        if entries.len() >= Self::LIMIT {
            entries.clear();
        }
        Ok(entries.entry(key.clone()).or_insert(made).clone())
    }

    /// Puts a value in place of the entry for `key`.
    fn replace(&self, key: &K, value: V) -> Arc<V> {
        let value = Arc::new(value);
        self.lock().insert(key.clone(), value.clone());
        value
    }

    /// The entry for `key`, if there is one.
    fn peek(&self, key: &K) -> Option<Arc<V>> {
        self.lock().get(key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<V>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is valid and used by nobody else; whoever drops a `Device` has waited
        // for its stream.
        let status = unsafe { (self.table.miopenDestroy)(self.raw) };
        if let Err(error) = check(self.table, "miopenDestroy", status, String::new) {
            log::warn!("{error}");
        }
    }
}

/// Why MIOpen refuses a shape, if it does. A refused shape is not tried again, because each failed
/// compilation takes time.
///
/// MIOpen compiles a kernel when it is found or first run. A failed compilation has no status of
/// its own ("internal error", "unknown error"). So a failure before the first success counts as a
/// refusal. A later failure concerns that call only.
#[derive(Default)]
struct Refusal {
    why: OnceLock<Error>,
    /// A bit for each way to compute that has worked.
    worked: AtomicU64,
}

impl Refusal {
    fn check(&self) -> Result<()> {
        self.why.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Returns `result`, which is that of the `way`-th way to compute a shape. Keeps the error if
    /// it is a refusal.
    fn keep(&self, way: usize, result: Result<()>) -> Result<()> {
        let bit = 1 << way.min(63);
        match result {
            Ok(()) => {
                self.worked.fetch_or(bit, Ordering::Relaxed);
                Ok(())
            }
            // A lack of memory may be temporary, and another kernel may need less. What fails
            // during a capture may work outside it.
            Err(error) if is_short_of_memory(&error) || is_capturing() => Err(error),
            Err(Error::Miopen { call, status, name, detail, .. })
                if self.worked.load(Ordering::Relaxed) & bit != 0 =>
            {
                Err(Error::Miopen { call, status, name, detail, refused: false })
            }
            Err(error) => {
                if matches!(error, Error::Miopen { .. } | Error::Unsupported { .. }) {
                    self.why.get_or_init(|| error.clone());
                }
                Err(error)
            }
        }
    }
}

fn is_short_of_memory(error: &Error) -> bool {
    matches!(error, Error::Miopen { status, .. } if *status == miopenStatusAllocFailed.0)
}

/// A status as a `Result`.
fn check(
    table: &Miopen,
    call: &'static str,
    status: miopenStatus_t,
    detail: impl FnOnce() -> String,
) -> Result<()> {
    if status == miopenStatusSuccess {
        return Ok(());
    }
    // SAFETY: MIOpen returns a static string for any value.
    let name = status.name().unwrap_or_else(|| unsafe { static_text((table.miopenGetErrorString)(status)) });
    Err(Error::Miopen { call, status: status.0, name, detail: detail(), refused: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_makes_each_entry_once_and_keeps_no_failure() {
        let cache = Cache::<u32, u32>::default();
        assert!(cache.get(&1, || Err(Error::invalid("t", "a", "b"))).is_err());
        assert_eq!(*cache.get(&1, || Ok(10)).unwrap(), 10);
        assert_eq!(*cache.get(&1, || panic!("made twice")).unwrap(), 10);
    }

    fn failed(status: miopenStatus_t, refused: bool) -> Result<()> {
        Err(Error::Miopen { call: "c", status: status.0, name: "n", detail: String::new(), refused })
    }

    #[test]
    fn a_refusal_is_kept_unless_it_may_pass() {
        let refusal = Refusal::default();
        assert!(refusal.keep(0, failed(miopenStatusAllocFailed, true)).is_err());
        assert!(refusal.keep(0, Err(Error::invalid("t", "a", "b"))).is_err());
        assert!(refusal.check().is_ok());
        assert!(refusal.keep(0, failed(miopenStatusUnknownError, true)).is_err());
        assert_eq!(refusal.check(), failed(miopenStatusUnknownError, true));
    }

    #[test]
    fn what_has_worked_is_not_refused_when_it_fails() {
        let refusal = Refusal::default();
        assert_eq!(refusal.keep(0, Ok(())), Ok(()));
        let status = miopenStatusInternalError;
        assert_eq!(refusal.keep(0, failed(status, true)), failed(status, false), "an error of this run");
        assert_eq!(refusal.check(), Ok(()));
        // A lack of memory is temporary in either case.
        let status = miopenStatusAllocFailed;
        assert_eq!(refusal.keep(0, failed(status, true)), failed(status, true));
        assert_eq!(refusal.check(), Ok(()));
        // Another way, whose kernel has not been compiled yet.
        let status = miopenStatusInternalError;
        assert_eq!(refusal.keep(1, failed(status, true)), failed(status, true));
        assert_eq!(refusal.check(), failed(status, true));
    }

    #[test]
    fn the_cache_is_bounded() {
        let cache = Cache::<usize, usize>::default();
        for i in 0..3 * Cache::<usize, usize>::LIMIT {
            cache.get(&i, || Ok(i)).unwrap();
        }
        assert!(cache.lock().len() <= Cache::<usize, usize>::LIMIT);
    }
}
