//! The crate's error type, and the only place where a HIP or hipRTC status becomes a `Result`.

use std::ffi::{CStr, c_char};

use hip_kernels::DType;
use hip_sys::{Hip, Hiprtc, hipError_t, hipSuccess, hiprtcResult};

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The errors of this crate: everything that can go wrong between an op and the device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No provider has a device, or the chosen provider lacks a library, one of its functions, or
    /// kernels for the device.
    #[error("not available: {reason}{}", list("; looked for ", searched))]
    NotAvailable {
        /// The reason.
        reason: String,
        /// The files that were tried. One that exists is followed by the reason why it did not
        /// load.
        searched: Vec<String>,
    },
    /// A HIP or hipRTC call failed.
    #[error("{call} failed: {name} ({code}): {message}")]
    Device {
        /// The C function.
        call: &'static str,
        /// The status.
        code: i32,
        /// The status's name.
        name: String,
        /// The status's description.
        message: String,
    },
    /// The device has too little memory, even after the pool gave back every cached block.
    #[error(
        "out of device memory: asked for {requested} bytes, {free} free of {total}{}",
        after("; in use: ", held)
    )]
    OutOfMemory {
        /// Bytes asked for.
        requested: usize,
        /// Bytes free at the failure.
        free: usize,
        /// The bytes of the device's memory, or the pool's limit if that is less.
        total: usize,
        /// What holds the memory, by label and by op, and what to do. Empty if the request is more
        /// than any device can have.
        held: String,
    },
    /// A kernel does not compile.
    #[error("kernel `{kernel}` does not compile{}:\n{log}", list(" with ", options))]
    Compilation {
        /// The kernel's C++ name, such as `binary_contiguous<Add, f32>`.
        kernel: String,
        /// The compiler's options.
        options: Vec<String>,
        /// The compiler's log.
        log: String,
    },
    /// A rocBLAS call failed.
    #[error("{call} failed: {name} ({status}): {detail}")]
    Rocblas {
        /// The C function.
        call: &'static str,
        /// The status.
        status: i32,
        /// The status's name.
        name: &'static str,
        /// The arguments of the call.
        detail: String,
    },
    /// A hipBLASLt call failed.
    #[error("{call} failed: {name} ({status}): {detail}")]
    HipblasLt {
        /// The C function.
        call: &'static str,
        /// The status.
        status: i32,
        /// The status's name.
        name: &'static str,
        /// The arguments of the call.
        detail: String,
    },
    /// A MIOpen call failed.
    #[error("{call} failed: {name} ({status}): {detail}")]
    Miopen {
        /// The C function.
        call: &'static str,
        /// The status.
        status: i32,
        /// The status's name.
        name: &'static str,
        /// The arguments of the call.
        detail: String,
        /// Whether MIOpen can't do this at all, so that another implementation may be used. False
        /// if the same call has worked before.
        refused: bool,
    },
    /// A group of ranks has failed: a call of RCCL or NCCL failed, a rank died or left, or the others
    /// did not come in time.
    #[error("{call} failed: {name}: {detail}")]
    Collective {
        /// The C function, or what else failed.
        call: &'static str,
        /// The status's name, such as `ncclRemoteError`, or `timeout`.
        name: String,
        /// Which rank it was, what it did, and what to look at.
        detail: String,
    },
    /// Two ranks of a group made different calls, where all must make the same ones. Only ranks that are
    /// compared find this ([`Communicator`](crate::Communicator)).
    #[error("the ranks' calls differ: rank {rank}: {call}; rank {other_rank}: {other_call}")]
    Mismatch {
        /// A rank.
        rank: usize,
        /// Its call, and its number among the rank's calls.
        call: String,
        /// The other rank.
        other_rank: usize,
        /// Its call.
        other_call: String,
    },
    /// The op does not exist for this dtype, or not with this option, shape or library.
    #[error("{}", unsupported(op, *dtype, what.as_deref()))]
    Unsupported {
        /// The op.
        op: &'static str,
        /// The name of the tensors' dtype, such as `f16`; `None` if the dtype does not matter.
        dtype: Option<&'static str>,
        /// What the op does not support for tensors of this dtype; `None` if it is the dtype
        /// itself.
        what: Option<String>,
    },
    /// A setting, device index or cache file is not valid.
    #[error("{what}: expected {expected}, found {found}")]
    Config {
        /// What was checked.
        what: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The call conflicts with the capture of a graph. If this thread captures one, the call can't
    /// be part of it, because it waits for the device or needs a stream other than the captured
    /// one. If another thread captures one, this thread can't begin a capture, end that one or use
    /// its results.
    #[error("{op} during a graph's capture: {reason}")]
    Capture {
        /// What was called.
        op: &'static str,
        /// Why it was refused.
        reason: String,
    },
    /// The op can't be part of a step whose memory is estimated, because nothing runs there.
    #[error("{op} on a dry device, which computes nothing: {reason}")]
    Dry {
        /// The op, such as `float_into_data`.
        op: &'static str,
        /// Why it was refused.
        reason: String,
    },
    /// An op's arguments do not fit together or are out of range.
    #[error("{op}: expected {expected}, found {found}")]
    Invalid {
        /// The op.
        op: &'static str,
        /// What was expected.
        expected: String,
        /// What was passed.
        found: String,
    },
}

impl Error {
    /// Makes an [`Error::Config`].
    pub(crate) fn config(
        what: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Config { what: what.into(), expected: expected.into(), found: found.into() }
    }

    /// Makes an [`Error::Invalid`].
    pub(crate) fn invalid(op: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Invalid { op, expected: expected.into(), found: found.into() }
    }

    /// Makes an [`Error::Unsupported`] for a dtype.
    pub(crate) fn unsupported(op: &'static str, dtype: DType) -> Self {
        Self::Unsupported { op, dtype: Some(dtype.cpp()), what: None }
    }

    /// Makes an [`Error::Unsupported`] for something that tensors of `dtype` can't have.
    pub(crate) fn unsupported_with(op: &'static str, dtype: DType, what: impl Into<String>) -> Self {
        Self::Unsupported { op, dtype: Some(dtype.cpp()), what: Some(what.into()) }
    }
}

fn unsupported(op: &str, dtype: Option<&str>, what: Option<&str>) -> String {
    match (dtype, what) {
        (Some(dtype), Some(what)) => format!("{op} of {dtype} does not support {what}"),
        (Some(one), None) | (None, Some(one)) => format!("{op} does not support {one}"),
        (None, None) => format!("{op} is not supported"),
    }
}

fn list(before: &str, items: &[String]) -> String {
    if items.is_empty() { String::new() } else { format!("{before}{}", items.join(", ")) }
}

fn after(before: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{before}{text}") }
}

/// Turns a HIP status into a `Result`.
#[inline]
pub(crate) fn check(hip: &Hip, call: &'static str, status: hipError_t) -> Result<()> {
    if status == hipSuccess { Ok(()) } else { Err(device_error(hip, call, status)) }
}

#[cold]
pub(crate) fn device_error(hip: &Hip, call: &'static str, status: hipError_t) -> Error {
    // SAFETY: the table's functions are HIP's; both texts are static, and clearing the thread's
    // last error has no precondition. It must be cleared, because a library that checks for errors
    // after its next launch would otherwise find this one.
    let (name, message) = unsafe {
        let texts = (text((hip.hipGetErrorName)(status)), text((hip.hipGetErrorString)(status)));
        (hip.hipGetLastError)();
        texts
    };
    Error::Device { call, code: status as i32, name, message }
}

/// Turns a hipRTC status into a `Result`.
pub(crate) fn check_rtc(rtc: &Hiprtc, call: &'static str, status: hiprtcResult) -> Result<()> {
    if status == hip_sys::HIPRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: the function is hipRTC's; the text is static.
    let name = unsafe { text((rtc.hiprtcGetErrorString)(status)) };
    Err(Error::Device { call, code: status as i32, name, message: "hipRTC".into() })
}

/// # Safety
/// `pointer` is null or a NUL-ended text that outlives the call.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return "unknown".into();
    }
    // SAFETY: the caller vouches for the text.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// A static text from a library, such as the library's name for a status that its bindings lack.
///
/// # Safety
/// `pointer` is null or a NUL-ended text that is never freed.
pub(crate) unsafe fn static_text(pointer: *const c_char) -> &'static str {
    if pointer.is_null() {
        return "unknown status";
    }
    // SAFETY: the caller vouches for the text.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap_or("unknown status")
}
