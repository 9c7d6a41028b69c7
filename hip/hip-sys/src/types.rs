//! Types and constants of HIP and hipRTC, as in `hip_runtime_api.h`, `driver_types.h` and
//! `hiprtc.h`.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// The status that every HIP call returns: a C enum without negative values.
pub type hipError_t = c_uint;
/// The call succeeded.
pub const hipSuccess: hipError_t = 0;
/// An argument is null or out of its range.
pub const hipErrorInvalidValue: hipError_t = 1;
/// There is not enough memory.
pub const hipErrorOutOfMemory: hipError_t = 2;
/// The runtime is not initialised.
pub const hipErrorNotInitialized: hipError_t = 3;
/// The runtime is being unloaded.
pub const hipErrorDeinitialized: hipError_t = 4;
/// A launch asks for more than the device offers.
pub const hipErrorInvalidConfiguration: hipError_t = 9;
/// A pointer does not belong to an allocation.
pub const hipErrorInvalidDevicePointer: hipError_t = 17;
/// The direction of a copy is none of [`hipMemcpyKind`]'s values.
pub const hipErrorInvalidMemcpyDirection: hipError_t = 21;
/// A kernel handle is not valid.
pub const hipErrorInvalidDeviceFunction: hipError_t = 98;
/// There is no device.
pub const hipErrorNoDevice: hipError_t = 100;
/// A device index is past the end.
pub const hipErrorInvalidDevice: hipError_t = 101;
/// A code object is damaged.
pub const hipErrorInvalidImage: hipError_t = 200;
/// A context is not valid, or none is current.
pub const hipErrorInvalidContext: hipError_t = 201;
/// A context is current already.
pub const hipErrorContextAlreadyCurrent: hipError_t = 202;
/// A code object holds nothing for this device.
pub const hipErrorNoBinaryForGpu: hipError_t = 209;
/// Memory has an error that can't be corrected.
pub const hipErrorECCNotCorrectable: hipError_t = 214;
/// The two devices can't reach each other's memory.
pub const hipErrorPeerAccessUnsupported: hipError_t = 217;
/// A kernel file (CUDA: PTX) is not valid.
pub const hipErrorInvalidKernelFile: hipError_t = 218;
/// A kernel's source is not valid.
pub const hipErrorInvalidSource: hipError_t = 300;
/// A file was not found.
pub const hipErrorFileNotFound: hipError_t = 301;
/// A handle is not valid.
pub const hipErrorInvalidHandle: hipError_t = 400;
/// The operation is not possible in the present state.
pub const hipErrorIllegalState: hipError_t = 401;
/// A name was not found.
pub const hipErrorNotFound: hipError_t = 500;
/// The queried work has not finished.
pub const hipErrorNotReady: hipError_t = 600;
/// A kernel accessed an address outside any allocation.
pub const hipErrorIllegalAddress: hipError_t = 700;
/// A launch needs more registers or other resources than there are.
pub const hipErrorLaunchOutOfResources: hipError_t = 701;
/// A kernel ran for too long.
pub const hipErrorLaunchTimeOut: hipError_t = 702;
/// Access to the peer was enabled before.
pub const hipErrorPeerAccessAlreadyEnabled: hipError_t = 704;
/// A context was destroyed.
pub const hipErrorContextIsDestroyed: hipError_t = 709;
/// A device-side `assert` failed.
pub const hipErrorAssert: hipError_t = 710;
/// A kernel failed while running.
pub const hipErrorLaunchFailure: hipError_t = 719;
/// A cooperative launch has more blocks than fit on the device at once.
pub const hipErrorCooperativeLaunchTooLarge: hipError_t = 720;
/// The runtime does not implement the operation.
pub const hipErrorNotSupported: hipError_t = 801;
/// The operation is not allowed in a stream that is being captured.
pub const hipErrorStreamCaptureUnsupported: hipError_t = 900;
/// An earlier error invalidated the capture.
pub const hipErrorStreamCaptureInvalidated: hipError_t = 901;
/// The operation would merge two captures.
pub const hipErrorStreamCaptureMerge: hipError_t = 902;
/// The capture did not begin in this stream.
pub const hipErrorStreamCaptureUnmatched: hipError_t = 903;
/// Another stream of the capture has work that the first stream does not wait for.
pub const hipErrorStreamCaptureUnjoined: hipError_t = 904;
/// The capture would depend on work outside it.
pub const hipErrorStreamCaptureIsolation: hipError_t = 905;
/// The default stream would depend on the capture.
pub const hipErrorStreamCaptureImplicit: hipError_t = 906;
/// An event that was recorded in a capture can't be used so.
pub const hipErrorCapturedEvent: hipError_t = 907;
/// Another thread began the capture.
pub const hipErrorStreamCaptureWrongThread: hipError_t = 908;
/// A graph can't be updated so.
pub const hipErrorGraphExecUpdateFailure: hipError_t = 910;
/// Any other failure.
pub const hipErrorUnknown: hipError_t = 999;

/// A device's index.
pub type hipDevice_t = c_int;
/// A pointer into a device's memory.
pub type hipDeviceptr_t = *mut c_void;

macro_rules! handles {
    ($( $(#[$meta:meta])* $opaque:ident => $handle:ident; )*) => { $(
        #[doc(hidden)]
        #[repr(C)]
        pub struct $opaque {
            _private: [u8; 0],
        }
        $(#[$meta])*
        pub type $handle = *mut $opaque;
    )* };
}

handles! {
    /// A queue of work on one device; null is the default stream.
    ihipStream_t => hipStream_t;
    /// A point in a stream.
    ihipEvent_t => hipEvent_t;
    /// A loaded code object.
    ihipModule_t => hipModule_t;
    /// A kernel of a module.
    ihipModuleSymbol_t => hipFunction_t;
    /// A graph of work, captured from a stream.
    ihipGraph => hipGraph_t;
    /// A graph that can be launched.
    hipGraphExec => hipGraphExec_t;
    /// A program that hipRTC compiles.
    _hiprtcProgram => hiprtcProgram;
}

/// The direction of a copy.
pub type hipMemcpyKind = c_uint;
/// Host to host.
pub const hipMemcpyHostToHost: hipMemcpyKind = 0;
/// Host to device.
pub const hipMemcpyHostToDevice: hipMemcpyKind = 1;
/// Device to host.
pub const hipMemcpyDeviceToHost: hipMemcpyKind = 2;
/// Device to device.
pub const hipMemcpyDeviceToDevice: hipMemcpyKind = 3;
/// The runtime infers the direction from the addresses.
pub const hipMemcpyDefault: hipMemcpyKind = 4;

/// A stream that synchronises with the default stream.
pub const hipStreamDefault: c_uint = 0;
/// A stream that does not synchronise with the default stream.
pub const hipStreamNonBlocking: c_uint = 1;

/// Which calls are forbidden during a capture.
pub type hipStreamCaptureMode = c_uint;
/// Forbids unsafe calls in every thread.
pub const hipStreamCaptureModeGlobal: hipStreamCaptureMode = 0;
/// Forbids unsafe calls in the capturing thread.
pub const hipStreamCaptureModeThreadLocal: hipStreamCaptureMode = 1;
/// Forbids no call.
pub const hipStreamCaptureModeRelaxed: hipStreamCaptureMode = 2;

/// An event with timing.
pub const hipEventDefault: c_uint = 0;
/// A wait for the event sleeps instead of spinning.
pub const hipEventBlockingSync: c_uint = 1;
/// An event without timing, which is cheaper.
pub const hipEventDisableTiming: c_uint = 2;
/// After a wait for such an event, the host sees the device's writes to host memory, coherent or
/// not.
pub const hipEventReleaseToSystem: c_uint = 0x8000_0000;

/// Pinned memory that the current device can reach.
pub const hipHostMallocDefault: c_uint = 0;
/// Pinned memory that every device can reach.
pub const hipHostMallocPortable: c_uint = 1;
/// Pinned memory that the device does not cache, so host and device always see the same contents.
pub const hipHostMallocCoherent: c_uint = 0x4000_0000;

/// Managed memory that every stream of every device may use.
pub const hipMemAttachGlobal: c_uint = 1;
/// Managed memory that no device uses until a stream is named.
pub const hipMemAttachHost: c_uint = 2;

/// An attribute for [`crate::Hip::hipDeviceGetAttribute`].
pub type hipDeviceAttribute_t = c_uint;
/// Peak clock in kHz.
pub const hipDeviceAttributeClockRate: hipDeviceAttribute_t = 5;
/// Whether the device shares the host's memory.
pub const hipDeviceAttributeIntegrated: hipDeviceAttribute_t = 16;
/// Level-2 cache in bytes.
pub const hipDeviceAttributeL2CacheSize: hipDeviceAttribute_t = 19;
/// Whether `hipMallocManaged` works on the device.
pub const hipDeviceAttributeManagedMemory: hipDeviceAttribute_t = 24;
/// The largest x dimension of a grid.
pub const hipDeviceAttributeMaxGridDimX: hipDeviceAttribute_t = 29;
/// The most threads of a block.
pub const hipDeviceAttributeMaxThreadsPerBlock: hipDeviceAttribute_t = 56;
/// The most resident threads of a compute unit.
pub const hipDeviceAttributeMaxThreadsPerMultiProcessor: hipDeviceAttribute_t = 57;
/// Compute units (on RDNA in WGP mode: work group processors).
pub const hipDeviceAttributeMultiprocessorCount: hipDeviceAttribute_t = 63;
/// The device's bus on PCI.
pub const hipDeviceAttributePciBusId: hipDeviceAttribute_t = 67;
/// The device's number on its PCI bus.
pub const hipDeviceAttributePciDeviceId: hipDeviceAttribute_t = 68;
/// The device's PCI domain.
pub const hipDeviceAttributePciDomainID: hipDeviceAttribute_t = 69;
/// Shared memory of a block in bytes.
pub const hipDeviceAttributeMaxSharedMemoryPerBlock: hipDeviceAttribute_t = 74;
/// Bytes of shared memory that a block has at most if its launch asks for them.
pub const hipDeviceAttributeSharedMemPerBlockOptin: hipDeviceAttribute_t = 75;
/// Threads of a warp (AMD: a wave).
pub const hipDeviceAttributeWarpSize: hipDeviceAttribute_t = 87;

/// Device properties in the layout of HIP 6.0 and later, trimmed to the field that no attribute
/// gives.
#[repr(C, align(8))]
pub struct hipDeviceProp_tR0600 {
    /// Fields that are asked for as attributes.
    pub before: [u8; 1160],
    /// The full architecture name, such as `gfx90a:sramecc+:xnack-`; ends with a NUL.
    pub gcnArchName: [c_char; 256],
    /// Fields that are asked for as attributes.
    pub after: [u8; 56],
}

/// Device properties in the layout before HIP 6.0, trimmed to the field that no attribute gives.
#[repr(C, align(8))]
pub struct hipDeviceProp_tR0000 {
    /// Fields that are asked for as attributes.
    pub before: [u8; 396],
    /// The full architecture name, such as `gfx90a:sramecc+:xnack-`; ends with a NUL.
    pub gcnArchName: [c_char; 256],
    /// Fields that are asked for as attributes.
    pub after: [u8; 140],
}

// Sizes as AMD's headers give them (HIP 7.2, which keeps the old layout in hip_deprecated.h).
const _: () = assert!(size_of::<hipDeviceProp_tR0600>() == 1472);
const _: () = assert!(size_of::<hipDeviceProp_tR0000>() == 792);

/// The status that every hipRTC call returns.
pub type hiprtcResult = c_uint;
/// The call succeeded.
pub const HIPRTC_SUCCESS: hiprtcResult = 0;
/// There is not enough memory.
pub const HIPRTC_ERROR_OUT_OF_MEMORY: hiprtcResult = 1;
/// The program could not be created.
pub const HIPRTC_ERROR_PROGRAM_CREATION_FAILURE: hiprtcResult = 2;
/// An argument is not valid.
pub const HIPRTC_ERROR_INVALID_INPUT: hiprtcResult = 3;
/// The program handle is not valid.
pub const HIPRTC_ERROR_INVALID_PROGRAM: hiprtcResult = 4;
/// A compiler option is not valid.
pub const HIPRTC_ERROR_INVALID_OPTION: hiprtcResult = 5;
/// The program does not compile; its log has the reason.
pub const HIPRTC_ERROR_COMPILATION: hiprtcResult = 6;
/// A name expression was added after compilation.
pub const HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION: hiprtcResult = 8;
/// A lowered name was asked for before compilation.
pub const HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION: hiprtcResult = 9;
/// A name expression was never added, or names nothing.
pub const HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID: hiprtcResult = 10;
/// An internal error of the compiler.
pub const HIPRTC_ERROR_INTERNAL_ERROR: hiprtcResult = 11;
