//! What the virtual GPU lacks, and what it accepts without effect.

use std::ffi::c_void;

use super::log::trace;
use super::{AgentHandle, Status};

/// Functions that return the status that the API documents for a missing feature.
macro_rules! absent {
    ($($name:ident => $status:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` is not supported.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> Status {
            trace!(concat!(stringify!($name), ": not supported"));
            Status::$status
        }
    )*};
}

absent! {
    // Images: the agents report none.
    hsa_amd_image_create => NOT_SUPPORTED;
    hsa_ext_image_create => NOT_SUPPORTED;
    hsa_ext_image_create_with_layout => NOT_SUPPORTED;
    hsa_ext_image_data_get_info => NOT_SUPPORTED;
    hsa_ext_image_destroy => NOT_SUPPORTED;
    hsa_ext_image_export => NOT_SUPPORTED;
    hsa_ext_image_import => NOT_SUPPORTED;
    hsa_ext_sampler_create => NOT_SUPPORTED;
    hsa_ext_sampler_create_v2 => NOT_SUPPORTED;
    hsa_ext_sampler_destroy => NOT_SUPPORTED;
    // Graphics, other processes, files, shared virtual memory.
    hsa_amd_interop_map_buffer => NOT_SUPPORTED;
    hsa_amd_interop_unmap_buffer => NOT_SUPPORTED;
    hsa_amd_ipc_memory_create => INVALID_ARGUMENT;
    hsa_amd_ipc_memory_attach => INVALID_ARGUMENT;
    hsa_amd_ipc_memory_detach => INVALID_ARGUMENT;
    hsa_amd_portable_export_dmabuf => INVALID_ARGUMENT;
    hsa_amd_vmem_export_shareable_handle => INVALID_ALLOCATION;
    hsa_amd_vmem_import_shareable_handle => INVALID_ALLOCATION;
    hsa_amd_ais_file_read => NOT_SUPPORTED;
    hsa_amd_ais_file_write => NOT_SUPPORTED;
    hsa_amd_svm_attributes_get => ERROR;
    hsa_amd_svm_attributes_set => ERROR;
    hsa_amd_svm_prefetch_async => ERROR;
}

/// Registers for events of the system. No such event ever comes, because a kernel's fault goes to
/// its queue's callback.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_register_system_event_handler(
    callback: *const c_void,
    _data: *mut c_void,
) -> Status {
    if callback.is_null() { Status::INVALID_ARGUMENT } else { Status::SUCCESS }
}

/// Chooses coherence for APUs' memory. Does nothing, because the host's caches are coherent.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_coherency_set_type(_agent: AgentHandle, _kind: u32) -> Status {
    Status::SUCCESS
}

/// Limits the scratch memory that is kept. Does nothing, because none is kept.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_agent_set_async_scratch_limit(_agent: AgentHandle, _size: usize) -> Status {
    Status::SUCCESS
}

/// Chooses what AMD's runtime logs. Does nothing; here `VIRTUAL_GPU_LOG` decides.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_enable_logging(_flags: *mut u8, _file: *mut c_void) -> Status {
    Status::SUCCESS
}

/// Switches the timing of copies on. Does nothing, because copies are always timed.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_profiling_async_copy_enable(_enable: bool) -> Status {
    Status::SUCCESS
}

/// Switches the timing of launches on. Does nothing, because launches are always timed.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_profiling_set_profiler_enabled(_queue: *mut c_void, _enable: i32) -> Status {
    Status::SUCCESS
}
