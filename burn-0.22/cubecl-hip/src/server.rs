//! The server behind a [`Client`](cubecl_runtime::client::Client). It has a device's properties and
//! returns an error for every computation.

use std::sync::Arc;

use cubecl_common::bytes::Bytes;
use cubecl_common::device::{Device as _, DeviceId, DeviceService, ServerUtilitiesHandle, ServiceId};
use cubecl_common::profile::{ProfileDuration, TimingMethod};
use cubecl_environment::backtrace::BackTrace;
use cubecl_environment::future::DynFut;
use cubecl_environment::stream::StreamId;
use cubecl_ir::{
    DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties, PciVendor, PhysicalDevice,
};
use cubecl_runtime::device::AmdDevice;
use cubecl_runtime::dry_run::LaunchMode;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{ManagedMemoryHandle, MemoryAllocationMode, StreamMemoryReport};
use cubecl_runtime::server::{
    BufferBinding, CopyDescriptor, CubeCount, Handle, IoError, KernelArguments, MemoryLayout,
    MemoryLayoutDescriptor, MemoryLayoutPolicy, ProfileError, ProfilingToken, Server, ServerCommunication,
    ServerError, ServerStorage, ServerUtilities,
};
use cubecl_runtime::storage::{ComputeStorage, ManagedResource, StorageHandle, StorageId};
use cubecl_zspace::{Shape, Strides};

/// Has a device's properties and refuses to compute.
#[derive(Debug)]
pub(crate) struct Inert {
    utilities: Arc<ServerUtilities>,
}

fn reason() -> String {
    "burn-rocm replaces CubeCL's runtime and runs no CubeCL kernels: use Burn's tensors, or leave out the crate that \
     needs such kernels"
        .into()
}

fn refused() -> ServerError {
    ServerError::Generic { reason: reason(), backtrace: BackTrace::capture() }
}

fn no_storage() -> IoError {
    IoError::UnsupportedIoOperation { backtrace: BackTrace::capture() }
}

/// # Panics
/// If the provider has no such device. (The `init` of a device service can't return an error.)
fn properties(index: usize) -> DeviceProperties {
    let device = hip::Device::get(index).unwrap_or_else(|error| panic!("rocm:{index}: {error}"));
    let info = device.info();
    let memory =
        MemoryDeviceProperties::new(info.total_memory as u64, 256).with_max_memory(info.total_memory as u64);
    let most = i32::MAX as u32;
    let threads = info.max_threads_per_block;
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: info.warp_size,
        plane_size_max: info.warp_size,
        max_bindings: most,
        max_shared_memory_size: info.shared_memory_per_block,
        max_cube_count: (most, most, most),
        max_units_per_cube: threads,
        max_cube_dim: (threads, threads, threads),
        num_streaming_multiprocessors: Some(info.compute_units),
        num_cpu_cores: None,
        last_level_cache_size: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        max_vector_size: 16,
        cube_mma_reserved_shared_memory: 0,
    };
    // Only the provider `rocm` has AMD cards.
    let mut card = PhysicalDevice::default();
    card.vendor = Some(PciVendor::Amd);
    let physical = (device.provider().kind() == hip::ProviderKind::Rocm).then_some(card);
    let identity =
        DeviceIdentity { name: info.name.clone(), fingerprint: format!("burn-rocm_{}", info.arch), physical };
    DeviceProperties::new(Default::default(), memory, hardware, TimingMethod::System, identity)
}

impl DeviceService for Inert {
    fn init(device: DeviceId) -> Self {
        let index = AmdDevice::from_id(device).index;
        let (utilities, _) = ServerUtilities::init(
            ServiceId::of::<Self>(device),
            "burn-rocm",
            properties(index),
            Default::default(),
            Arc::new(ServerLogger::default()),
            NoLayout,
        );
        Self { utilities: Arc::new(utilities) }
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

fn row_major(shape: &Shape) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..strides.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// The layout policy of a server that stores nothing.
struct NoLayout;

impl MemoryLayoutPolicy for NoLayout {
    fn apply(
        &self,
        service: ServiceId,
        stream: StreamId,
        descriptors: &[MemoryLayoutDescriptor],
    ) -> (Handle, Vec<MemoryLayout>) {
        let bytes = |d: &MemoryLayoutDescriptor| d.shape.iter().product::<usize>() * d.elem_size;
        let handle = Handle::new(service, stream, descriptors.iter().map(bytes).sum::<usize>() as u64);
        let layouts = descriptors
            .iter()
            .map(|d| MemoryLayout::new(handle.clone(), Strides::new(&row_major(&d.shape))))
            .collect();
        (handle, layouts)
    }
}

impl ServerCommunication for Inert {}

impl Server for Inert {
    fn initialize_memory(&mut self, _: ManagedMemoryHandle, _: u64, _: StreamId) -> Result<(), ServerError> {
        Err(refused())
    }

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities> {
        self.utilities.clone()
    }

    fn read(&mut self, _: Vec<CopyDescriptor>, _: StreamId) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        Box::pin(async { Err(refused()) })
    }

    fn write(&mut self, _: Vec<(CopyDescriptor, Bytes)>, _: StreamId) {}

    fn sync(&mut self, _: Vec<BufferBinding>, _: StreamId) -> DynFut<Result<(), ServerError>> {
        Box::pin(async { Err(refused()) })
    }

    fn check(&mut self, _: Vec<BufferBinding>, _: StreamId) -> Result<(), ServerError> {
        Err(refused())
    }

    unsafe fn launch(
        &mut self,
        _: Box<dyn CubeKernel>,
        _: CubeCount,
        _: KernelArguments,
        _: StreamId,
        _: LaunchMode,
    ) {
        // This method can't return an error. Reads, `sync` and `check` report that nothing ran.
    }

    fn flush(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_report(&mut self, _: StreamId) -> Option<StreamMemoryReport> {
        None
    }

    fn memory_cleanup(&mut self, _: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn start_profile(&mut self, _: StreamId) -> Result<ProfilingToken, ServerError> {
        Err(refused())
    }

    fn end_profile(&mut self, _: StreamId, _: ProfilingToken) -> Result<ProfileDuration, ProfileError> {
        Err(ProfileError::Unknown { reason: reason(), backtrace: BackTrace::capture() })
    }

    fn allocation_mode(&mut self, _: MemoryAllocationMode, _: StreamId) {}
}

/// A storage without memory.
pub(crate) struct NoStorage;

impl ComputeStorage for NoStorage {
    type Resource = ();

    fn alignment(&self) -> usize {
        256
    }

    fn get(&mut self, _: &StorageHandle) -> Result<(), IoError> {
        Err(no_storage())
    }

    fn alloc(&mut self, _: u64) -> Result<StorageHandle, IoError> {
        Err(no_storage())
    }

    fn dealloc(&mut self, _: StorageId) {}

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        0
    }
}

impl ServerStorage for Inert {
    type Storage = NoStorage;

    fn get_resource(&mut self, _: BufferBinding, _: StreamId) -> Result<ManagedResource<()>, ServerError> {
        Err(refused())
    }
}
