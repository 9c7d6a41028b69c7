//! The backend type and its traits. The op traits, one file each, only delegate to [`crate::ops`].

mod activation;
mod asymmetric;
mod bool;
mod distributed;
mod float;
mod graph;
mod int;
mod module;
#[path = "../../../../burn-rocm/src/backend/options.rs"]
mod options;
mod primitive;
mod profile;
mod quantized;
mod transaction;

use burn_backend::{
    Backend, BackendTypes, DTypeUsage, DTypeUsageSet, ExecutionError, MemoryPoolUsage, ProfileDuration,
    ProfileOptions, ProfileToken, SlicedPoolReport, TensorData, profile_with_tokens,
};
use burn_ir::{BackendIr, HandleKind, TensorHandle};
use burn_rocm_macros::traced;
use burn_std::{DType, PadMode};

use crate::error::{execution, raise};
use crate::ops::pad::Border;
use crate::ops::{fft, random};
use crate::qtensor::{Format, RocmQTensor};
use crate::staging;
use crate::tensor::RocmTensor;
use crate::waiting::enqueue_own;
pub use graph::RocmGraph;
pub use primitive::BurnDevice;
pub(crate) use primitive::inherit_defaults;
use primitive::own;

/// Burn's padding mode as [`Border`].
fn border(mode: PadMode) -> Border {
    match mode {
        PadMode::Constant(value) => Border::Constant(value.into()),
        PadMode::Reflect => Border::Reflect,
        PadMode::Edge => Border::Edge,
    }
}

/// The backend. A tensor may have any supported dtype. The default dtypes are f32, i32 and one-byte
/// bools.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rocm;

impl BackendTypes for Rocm {
    type Device = BurnDevice;
    type FloatTensorPrimitive = RocmTensor;
    type IntTensorPrimitive = RocmTensor;
    type BoolTensorPrimitive = RocmTensor;
    type QuantizedTensorPrimitive = RocmQTensor;
    type GraphPrimitive = RocmGraph;
}

#[traced]
impl Backend for Rocm {
    fn name(_device: &BurnDevice) -> String {
        "rocm".into()
    }

    fn seed(device: &BurnDevice, seed: u64) {
        random::seed(&own(device), seed);
    }

    /// Launches the deferred ops.
    fn flush(device: &BurnDevice) -> Result<(), ExecutionError> {
        enqueue_own().and_then(|()| own(device).open()?.flush()).map_err(execution)
    }

    fn sync(device: &BurnDevice) -> Result<(), ExecutionError> {
        own(device).synchronize().map_err(execution)
    }

    /// Ends a capture that this thread left open, for example by a panic. After this the caller
    /// runs the work at least once, which compiles the kernels and lets MIOpen choose its
    /// algorithms.
    fn graph_prepare(device: &BurnDevice) -> Result<(), ExecutionError> {
        crate::graph::prepare(&own(device)).map_err(execution)
    }

    /// Records what this thread launches on the device, instead of running it. Other threads' work
    /// runs meanwhile. Reads and `sync` fail and end the capture, because the panic that follows
    /// would leave it open. A capture that this thread left open is ended first.
    fn graph_start_capture(device: &BurnDevice) -> Result<(), ExecutionError> {
        crate::graph::start(&own(device)).map_err(execution)
    }

    fn graph_stop_capture(device: &BurnDevice) -> Result<RocmGraph, ExecutionError> {
        crate::graph::stop(&own(device)).map(RocmGraph::new).map_err(execution)
    }

    /// Takes one launch. The graph keeps the memory of all tensors that it uses, including dropped
    /// ones.
    unsafe fn graph_replay(device: &BurnDevice, graph: &RocmGraph) -> Result<(), ExecutionError> {
        graph.replay(&own(device)).map_err(execution)
    }

    /// Runs `func`. What it allocates on this thread comes from memory that is reserved for such
    /// persistent allocations.
    fn memory_persistent_allocations<Output: Send, Input: Send, Func: Fn(Input) -> Output + Send>(
        device: &BurnDevice,
        input: Input,
        func: Func,
    ) -> Output {
        match own(device).open() {
            Ok(device) => device.pool().persistently(|| func(input)),
            Err(error) => raise(error),
        }
    }

    /// Waits for the device, then returns the memory pool's unused memory and unused pinned host
    /// memory to the driver.
    fn memory_cleanup(device: &BurnDevice) {
        let cleared = own(device).open().and_then(|device| {
            fft::forget_tables(&device);
            device.memory_cleanup()
        });
        if let Err(error) = cleared {
            raise(error);
        }
    }

    /// The pool's segments: for small blocks, for large ones, for uploads, and for persistent
    /// allocations. `None` if the device can't be opened.
    fn memory_pool_report(device: &BurnDevice) -> Option<Vec<SlicedPoolReport>> {
        let device = own(device).open().ok()?;
        let report = |segments: hip::SegmentStats| SlicedPoolReport {
            page_size: segments.size as u64,
            pages: segments.held,
            pages_peak: segments.peak,
            largest_alloc: segments.largest as u64,
        };
        Some(device.pool().segments().into_iter().map(report).collect())
    }

    /// How the pool's memory is used at the moment. `None` if the device can't be opened.
    fn memory_pool_usage(device: &BurnDevice) -> Option<MemoryPoolUsage> {
        let stats = own(device).open().ok()?.pool().stats();
        Some(MemoryPoolUsage {
            number_allocs: stats.blocks,
            bytes_in_use: (stats.allocated - stats.padding) as u64,
            bytes_padding: stats.padding as u64,
            bytes_reserved: stats.reserved as u64,
        })
    }

    /// Measures device time. A deferred op counts in the window in which it was called, whatever
    /// `options` says.
    fn profile<O: Send + 'static>(
        device: &BurnDevice,
        options: ProfileOptions,
        func: impl FnOnce() -> O + Send,
    ) -> Result<(O, ProfileDuration), ExecutionError> {
        profile_with_tokens::<Self, O>(device, options, func)
    }

    fn profile_start(device: &BurnDevice) -> Result<Option<ProfileToken>, ExecutionError> {
        profile::start(&own(device)).map(Some).map_err(execution)
    }

    fn profile_end(
        device: &BurnDevice,
        token: ProfileToken,
        _options: ProfileOptions,
    ) -> Result<ProfileDuration, ExecutionError> {
        profile::end(&own(device), token).map_err(execution)
    }

    fn profile_abandon(_device: &BurnDevice, token: ProfileToken) {
        profile::abandon(token);
    }

    /// Moves the data into pinned memory, from which `from_data` on that device uploads without
    /// another copy.
    fn staging<'a, Iter>(data: Iter, device: &BurnDevice)
    where
        Iter: Iterator<Item = &'a mut TensorData>,
    {
        match own(device).open() {
            Ok(device) => data.for_each(|data| staging::pin(&device, data)),
            Err(error) => raise(error),
        }
    }

    fn dtype_usage(_device: &BurnDevice, dtype: DType) -> DTypeUsageSet {
        match dtype {
            // Quantised types have their own matrix products. Their other ops compute on
            // dequantised floats.
            DType::QFloat(scheme) if Format::of("dtype_usage", &scheme, &[]).is_err() => {
                DTypeUsageSet::empty()
            }
            // No dtype claims matrix units, because not every GPU has them.
            _ => DTypeUsage::Storage | DTypeUsage::Arithmetic,
        }
    }

    /// The number of devices of the chosen provider, 0 if no provider has a device.
    fn device_count(_type_id: u16) -> usize {
        hip::Device::count().unwrap_or(0)
    }
}

impl BackendIr for Rocm {
    type Handle = HandleKind<Self>;

    fn float_tensor(handle: TensorHandle<Self::Handle>) -> RocmTensor {
        match handle.handle {
            HandleKind::Float(tensor) => tensor,
            other => panic!("expected a float handle, found {}", other.name()),
        }
    }

    fn int_tensor(handle: TensorHandle<Self::Handle>) -> RocmTensor {
        match handle.handle {
            HandleKind::Int(tensor) => tensor,
            other => panic!("expected an int handle, found {}", other.name()),
        }
    }

    fn bool_tensor(handle: TensorHandle<Self::Handle>) -> RocmTensor {
        match handle.handle {
            HandleKind::Bool(tensor) => tensor,
            other => panic!("expected a bool handle, found {}", other.name()),
        }
    }

    fn quantized_tensor(handle: TensorHandle<Self::Handle>) -> RocmQTensor {
        match handle.handle {
            HandleKind::Quantized(tensor) => tensor,
            other => panic!("expected a quantized handle, found {}", other.name()),
        }
    }

    fn float_tensor_handle(tensor: RocmTensor) -> Self::Handle {
        HandleKind::Float(tensor)
    }

    fn int_tensor_handle(tensor: RocmTensor) -> Self::Handle {
        HandleKind::Int(tensor)
    }

    fn bool_tensor_handle(tensor: RocmTensor) -> Self::Handle {
        HandleKind::Bool(tensor)
    }

    fn quantized_tensor_handle(tensor: RocmQTensor) -> Self::Handle {
        HandleKind::Quantized(tensor)
    }
}
