//! The tables of dry devices: the chosen provider's functions, of which those that would use the
//! device's memory or its time do nothing.
//!
//! Each table is written out whole, so a function that is added to it does not compile until
//! somebody has decided here what a dry device does with it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use hip_sys::{
    Hip, hipError_t, hipErrorInvalidMemcpyDirection, hipErrorOutOfMemory, hipMemcpyKind, hipStream_t,
};
use miopen_sys::*;
use rocblas_sys::*;

use super::Provider;
use crate::error::Result;

/// A status that says that a call has succeeded.
trait Success {
    const SUCCESS: Self;
}

impl Success for hipError_t {
    const SUCCESS: Self = hip_sys::hipSuccess;
}

impl Success for rocblas_status {
    const SUCCESS: Self = rocblas_status_success;
}

impl Success for miopenStatus_t {
    const SUCCESS: Self = miopenStatusSuccess;
}

/// A C function of any signature that does nothing and succeeds.
trait Nothing {
    fn nothing() -> Self;
}

macro_rules! nothing {
    ($($argument:ident)*) => {
        impl<R: Success, $($argument),*> Nothing for unsafe extern "C" fn($($argument),*) -> R {
            fn nothing() -> Self {
                #[allow(clippy::too_many_arguments)] // AMD's own signatures.
                unsafe extern "C" fn nothing<R: Success, $($argument),*>($(_: $argument),*) -> R {
                    R::SUCCESS
                }
                nothing::<R, $($argument),*>
            }
        }
    };
}

/// [`nothing`] for as many arguments as there are names, and for every smaller number.
macro_rules! up_to {
    () => { nothing! {} };
    ($first:ident $($rest:ident)*) => {
        nothing! { $first $($rest)* }
        up_to! { $($rest)* }
    };
}
up_to! { A B C D E F G H I J K L M N O P Q S T U V W X Y Z A1 B1 C1 D1 E1 }

/// `table! { Table of real: real { a, b } nothing { c, d } instead { e: function } absent { f } }`
/// is a table whose `a` and `b` are those of `real`. `c` and `d` do nothing, `e` is another
/// function, and `f`, which is optional, is absent. `maybe` lists optional functions that do
/// nothing.
macro_rules! table {
    (
        $table:ident of $from:ident: real { $($real:ident),* $(,)? } nothing { $($nothing:ident),* $(,)? }
        maybe { $($maybe:ident),* $(,)? } instead { $($name:ident: $instead:expr),* $(,)? }
        absent { $($absent:ident),* $(,)? }
    ) => {
        $table {
            $($real: $from.$real,)*
            $($nothing: Nothing::nothing(),)*
            $($maybe: $from.$maybe.map(|_| Nothing::nothing()),)*
            $($name: $instead,)*
            $($absent: None,)*
        }
    };
}

/// HIP for dry devices. Facts about the device and its free memory are real.
pub(super) fn hip(real: &Hip) -> Hip {
    table! { Hip of real:
        real {
            hipInit, hipGetDeviceCount, hipSetDevice, hipGetDevice, hipDeviceGetAttribute, hipDeviceGetName,
            hipDeviceTotalMem, hipMemGetInfo, hipDriverGetVersion, hipRuntimeGetVersion, hipGetErrorName,
            hipGetErrorString, hipGetLastError, hipGetDevicePropertiesR0600, hipGetDeviceProperties,
            hipDeviceGetStreamPriorityRange,
        }
        nothing {
            hipFree, hipMemcpyPeerAsync, hipMemsetAsync, hipMemsetD32Async, hipStreamDestroy,
            hipStreamSynchronize, hipStreamWaitEvent, hipEventDestroy, hipEventRecord, hipEventQuery,
            hipEventSynchronize, hipModuleLoadData, hipModuleUnload, hipModuleGetFunction,
            hipModuleLaunchKernel, hipDeviceSynchronize, hipDeviceEnablePeerAccess, hipHostRegister,
            hipHostUnregister,
        }
        maybe {}
        instead {
            hipMalloc: malloc,
            hipMallocManaged: Some(managed),
            hipHostMalloc: host_malloc,
            hipHostFree: host_free,
            hipMemcpyAsync: copy,
            hipStreamCreateWithFlags: new_handle,
            hipStreamCreateWithPriority: new_stream,
            hipEventCreateWithFlags: new_handle,
            hipEventElapsedTime: no_time,
            hipDeviceCanAccessPeer: no_peer,
        }
        // Without these, captures are refused as on a driver that has no graphs.
        absent {
            hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, hipStreamBeginCapture, hipStreamEndCapture,
            hipGraphInstantiateWithFlags, hipGraphLaunch, hipGraphExecDestroy, hipGraphDestroy,
        }
    }
}

/// rocBLAS for dry devices.
pub(super) fn rocblas(real: &Rocblas) -> Rocblas {
    table! { Rocblas of real:
        real { rocblas_status_to_string, rocblas_get_version_string_size, rocblas_get_version_string }
        nothing {
            rocblas_destroy_handle, rocblas_set_stream, rocblas_get_stream, rocblas_set_pointer_mode,
            rocblas_set_atomics_mode, rocblas_set_workspace, rocblas_sgemm, rocblas_dgemm,
            rocblas_sgemm_strided_batched, rocblas_dgemm_strided_batched, rocblas_gemm_ex,
            rocblas_gemm_strided_batched_ex, rocblas_sgemv, rocblas_dgemv, rocblas_sgeam, rocblas_dgeam,
            rocblas_sgeam_strided_batched, rocblas_dgeam_strided_batched,
        }
        maybe {}
        instead { rocblas_create_handle: new_blas, rocblas_initialize: initialize }
        // Without it no product is timed.
        absent { rocblas_gemm_strided_batched_ex_get_solutions }
    }
}

/// MIOpen for dry devices. Its handle is real, because the library can answer questions about
/// solutions and workspaces without running anything. It is bound to no stream of the app.
pub(super) fn miopen(real: &Miopen) -> Miopen {
    let _ = CREATE.set(real.miopenCreateWithStream);
    table! { Miopen of real:
        real {
            miopenGetErrorString, miopenGetVersion, miopenDestroy, miopenCreateTensorDescriptor,
            miopenSetTensorDescriptor, miopenDestroyTensorDescriptor, miopenCreateConvolutionDescriptor,
            miopenInitConvolutionNdDescriptor, miopenSetConvolutionGroupCount,
            miopenSetConvolutionAttribute, miopenSetConvolutionFindMode, miopenDestroyConvolutionDescriptor,
            miopenConvolutionForwardGetSolutionCount, miopenConvolutionForwardGetSolution,
            miopenConvolutionForwardGetSolutionWorkspaceSize, miopenConvolutionBackwardDataGetSolutionCount,
            miopenConvolutionBackwardDataGetSolution, miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
            miopenConvolutionBackwardWeightsGetSolutionCount, miopenConvolutionBackwardWeightsGetSolution,
            miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
            miopenConvolutionForwardGetWorkSpaceSize, miopenConvolutionBackwardDataGetWorkSpaceSize,
            miopenConvolutionBackwardWeightsGetWorkSpaceSize, miopenCreatePoolingDescriptor,
            miopenSetNdPoolingDescriptor, miopenSetPoolingIndexType, miopenSetPoolingWorkSpaceIndexMode,
            miopenPoolingGetWorkSpaceSizeV2, miopenDestroyPoolingDescriptor,
            miopenCreateActivationDescriptor, miopenSetActivationDescriptor,
            miopenDestroyActivationDescriptor, miopenCreateFusionPlan, miopenDestroyFusionPlan,
            miopenFusionPlanGetWorkSpaceSize, miopenCreateOpConvForward, miopenCreateOpActivationForward,
            miopenCreateOpBiasForward, miopenCreateOperatorArgs, miopenDestroyOperatorArgs,
            miopenSetOpArgsConvForward, miopenSetOpArgsActivForward, miopenSetOpArgsBiasForward,
            miopenCreateReduceTensorDescriptor, miopenSetReduceTensorDescriptor,
            miopenDestroyReduceTensorDescriptor, miopenGetReductionIndicesSize,
            miopenGetReductionWorkspaceSize, miopenGetLayerNormBackwardWorkspaceSize,
        }
        // Finding succeeds without an algorithm, so the untimed ones are used.
        nothing {
            miopenSetStream, miopenConvolutionForwardCompileSolution, miopenConvolutionForwardImmediate,
            miopenConvolutionBackwardDataCompileSolution, miopenConvolutionBackwardDataImmediate,
            miopenConvolutionBackwardWeightsCompileSolution, miopenConvolutionBackwardWeightsImmediate,
            miopenFindConvolutionForwardAlgorithm, miopenFindConvolutionBackwardDataAlgorithm,
            miopenFindConvolutionBackwardWeightsAlgorithm, miopenConvolutionForward,
            miopenConvolutionBackwardData, miopenConvolutionBackwardWeights, miopenPoolingForward,
            miopenPoolingBackward, miopenSoftmaxForward_V2, miopenSoftmaxBackward_V2,
            miopenBatchNormalizationForwardTraining, miopenBatchNormalizationForwardInference,
            miopenBatchNormalizationBackward, miopenActivationForward, miopenActivationBackward,
            miopenExecuteFusionPlan, miopenReduceTensor,
        }
        maybe {
            miopenLayerNormForward, miopenLayerNormBackward, miopenGroupNormForward,
            miopenT5LayerNormForward, miopenExecuteFusionPlan_v2, miopenSetTuningPolicy,
        }
        instead { miopenCreateWithStream: new_dnn, miopenCompileFusionPlan: no_plan }
        absent {}
    }
}

/// The real `miopenCreateWithStream`. A process has one provider, so it has one such function.
static CREATE: OnceLock<
    unsafe extern "C" fn(*mut miopenHandle_t, miopenAcceleratorQueue_t) -> miopenStatus_t,
> = OnceLock::new();

/// The first address of dry devices. Neither x86-64 nor a GPU can map it: user addresses have at
/// most 56 bits. So any access faults, and none can reach memory of the app.
const FIRST: usize = 1 << 62;
/// Addresses are multiples of this, as those of HIP's own allocations may be.
const ALIGNMENT: usize = 2 << 20;

/// Addresses that no device of this process has had yet.
unsafe extern "C" fn malloc(address: *mut *mut c_void, bytes: usize) -> hipError_t {
    static NEXT: AtomicUsize = AtomicUsize::new(FIRST);
    let size = bytes.checked_next_multiple_of(ALIGNMENT).filter(|&size| size <= FIRST / 2);
    let next = |next: usize| next.checked_add(size?).filter(|&end| end <= FIRST + FIRST / 2);
    // Relaxed, because the addresses refer to no memory.
    match NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
        Ok(own) => {
            // SAFETY: the caller passes a place for one pointer.
            unsafe { address.write(std::ptr::without_provenance_mut(own)) };
            hip_sys::hipSuccess
        }
        Err(_) => hipErrorOutOfMemory,
    }
}

unsafe extern "C" fn managed(address: *mut *mut c_void, bytes: usize, _flags: c_uint) -> hipError_t {
    // SAFETY: the caller's place.
    unsafe { malloc(address, bytes) }
}

/// The bytes in front of a host block, which hold its size. It keeps the block aligned to a page.
const HEADER: usize = 4096;

fn host_layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(HEADER)?, HEADER).ok()
}

/// Plain memory of the host, which the app may fill. Not pinned, because no device reads it.
unsafe extern "C" fn host_malloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) -> hipError_t {
    let Some(layout) = host_layout(bytes) else { return hipErrorOutOfMemory };
    // SAFETY: the layout is not empty, because of the header. The header has room for a `usize` and
    // is aligned for it. The caller passes a place for one pointer.
    unsafe {
        let block = alloc_zeroed(layout);
        if block.is_null() {
            handle_alloc_error(layout);
        }
        block.cast::<usize>().write(bytes);
        address.write(block.add(HEADER).cast());
    }
    hip_sys::hipSuccess
}

unsafe extern "C" fn host_free(address: *mut c_void) -> hipError_t {
    // SAFETY: the caller passes what `host_malloc` gave, so the size lies in the header in front of
    // it, and the layout is the same as there.
    unsafe {
        let block = address.cast::<u8>().sub(HEADER);
        if let Some(layout) = host_layout(block.cast::<usize>().read()) {
            dealloc(block, layout);
        }
    }
    hip_sys::hipSuccess
}

/// Copies nothing. A copy to the host fails, because it would leave the host's memory as it was.
/// [`Device::refuse_dry`](crate::Device::refuse_dry) has refused it before.
unsafe extern "C" fn copy(
    _: *mut c_void,
    _: *const c_void,
    _: usize,
    kind: hipMemcpyKind,
    _: hipStream_t,
) -> hipError_t {
    if kind == hip_sys::hipMemcpyDeviceToHost { hipErrorInvalidMemcpyDirection } else { hip_sys::hipSuccess }
}

/// A handle that is not null. Nobody dereferences it, because every function that takes it does
/// nothing.
unsafe extern "C" fn new_handle<T>(handle: *mut *mut T, _flags: c_uint) -> hipError_t {
    // SAFETY: the caller passes a place for one handle.
    unsafe { handle.write(std::ptr::without_provenance_mut(FIRST)) };
    hip_sys::hipSuccess
}

unsafe extern "C" fn new_stream(stream: *mut hipStream_t, flags: c_uint, _: c_int) -> hipError_t {
    // SAFETY: the caller's place.
    unsafe { new_handle(stream, flags) }
}

unsafe extern "C" fn no_time<T>(milliseconds: *mut f32, _: *mut T, _: *mut T) -> hipError_t {
    // SAFETY: the caller passes a place for one f32.
    unsafe { milliseconds.write(0.0) };
    hip_sys::hipSuccess
}

unsafe extern "C" fn no_peer(can: *mut c_int, _: c_int, _: c_int) -> hipError_t {
    // SAFETY: the caller passes a place for one int.
    unsafe { can.write(0) };
    hip_sys::hipSuccess
}

unsafe extern "C" fn new_blas(handle: *mut rocblas_handle) -> rocblas_status {
    // SAFETY: the caller passes a place for one handle. Nobody dereferences it, as in `new_handle`.
    unsafe { handle.write(std::ptr::without_provenance_mut(FIRST)) };
    rocblas_status_success
}

unsafe extern "C" fn initialize() {}

/// A real handle on the default stream, because the dry stream is none of HIP's.
unsafe extern "C" fn new_dnn(handle: *mut miopenHandle_t, _: miopenAcceleratorQueue_t) -> miopenStatus_t {
    match CREATE.get() {
        // SAFETY: the caller passes a place for one handle; a null stream is the default one.
        Some(create) => unsafe { create(handle, std::ptr::null_mut()) },
        None => miopenStatusNotInitialized,
    }
}

/// Compiling a plan may run kernels to time them. Without a plan the backend computes a
/// convolution, its bias and its activation one after the other.
unsafe extern "C" fn no_plan(_: miopenHandle_t, _: miopenFusionPlanDescriptor_t) -> miopenStatus_t {
    miopenStatusUnsupportedOp
}

impl Provider {
    /// The provider of dry devices: `self`, but nothing runs and no device memory is allocated.
    pub(crate) fn dry(&'static self) -> &'static Self {
        static DRY: OnceLock<Provider> = OnceLock::new();
        DRY.get_or_init(|| Self {
            kind: self.kind,
            real: Some(self),
            hip: hip(&self.hip),
            hiprtc: self.hiprtc,
            devices: self.devices,
            versions: self.versions,
            libraries: self.libraries.clone(),
            rocblas: OnceLock::new(),
            hipblaslt: OnceLock::new(),
            miopen: OnceLock::new(),
            rccl: OnceLock::new(),
        })
    }

    /// Whether nothing runs on its devices.
    #[inline]
    pub(crate) fn is_dry(&self) -> bool {
        self.real.is_some()
    }

    /// The dry table of a library that the real provider opens; `None` for a real provider.
    pub(super) fn dried<T: 'static>(
        &self,
        open: impl FnOnce(&'static Self) -> Result<&'static T>,
        dry: impl FnOnce(&T) -> T,
    ) -> Option<Result<T>> {
        Some(open(self.real?).map(dry))
    }
}
