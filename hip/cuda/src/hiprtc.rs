//! hipRTC over NVRTC. Handles and status numbers are the same, options are translated, and code
//! objects are cubins.

use cudarc::nvrtc::sys as nvrtc;
use hip_provider::hiprtc::{Programs, Status, table};
use hip_sys::*;
use std::{
    ffi::{CStr, CString, c_char, c_int},
    ptr,
};

/// hipRTC for NVIDIA GPUs.
pub fn hiprtc_table() -> Hiprtc {
    table::<Nvrtc>()
}

/// The header that NVRTC includes before every program.
const HEADER: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../device/hip_cuda.h"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the header has no NUL"),
    };
const HEADER_NAME: &CStr = c"hip_cuda.h";

/// Options of every program.
const OWN_OPTIONS: &[&str] = &[
    // As in hipRTC, functions without an execution space, such as `constexpr` ones, may be called
    // on the device.
    "--device-as-default-execution-space",
    "--pre-include=hip_cuda.h",
    // hipRTC limits the registers of a kernel without `__launch_bounds__`, so that a block of 1024
    // threads can start. NVRTC uses up to 255 registers for each thread. A block of 1024 threads
    // then can't start, because on every NVIDIA GPU a block has 65,536 registers. NVRTC ignores the
    // option for kernels with launch bounds (CUDA C++ Programming Guide, "Launch Bounds").
    "--maxrregcount=64",
];

/// The texts that this provider adds to every compilation: its header and options. The key of a
/// cached code object must cover them.
pub fn hiprtc_additions() -> impl Iterator<Item = &'static str> {
    [include_str!("../device/hip_cuda.h")].into_iter().chain(OWN_OPTIONS.iter().copied())
}

/// NVRTC's status as hipRTC's. The numbers are the same up to 11.
fn status(result: nvrtc::nvrtcResult) -> Status {
    match result as u32 {
        HIPRTC_SUCCESS => Ok(()),
        code => Err(code.min(HIPRTC_ERROR_INTERNAL_ERROR)),
    }
}

/// Translates hipRTC's options to NVRTC's. Options whose effect NVRTC always has are left out.
fn translate(options: &[impl AsRef<str>]) -> Vec<String> {
    let mut all = Vec::with_capacity(options.len() + OWN_OPTIONS.len());
    for option in options {
        match option.as_ref() {
            // NVRTC optimises by default.
            "-O1" | "-O2" | "-O3" => {}
            "-O0" => all.push("--device-debug".into()),
            "-ffast-math" => all.push("--use_fast_math".into()),
            "-ffp-contract=off" => all.push("--fmad=false".into()),
            "-ffp-contract=on" | "-ffp-contract=fast" => all.push("--fmad=true".into()),
            other => match other.strip_prefix("--offload-arch=") {
                Some(architecture) => all.push(format!("--gpu-architecture={architecture}")),
                None => all.push(other.into()),
            },
        }
    }
    all.extend(OWN_OPTIONS.iter().map(|&option| option.into()));
    all
}

/// NVRTC's programs.
struct Nvrtc;

impl Programs for Nvrtc {
    fn version() -> Status<[c_int; 2]> {
        let [mut major, mut minor] = [0; 2];
        // SAFETY: the function is NVRTC's, the pointers valid.
        status(unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) })?;
        Ok([major, minor])
    }

    fn create(source: &CStr, name: &CStr, headers: &[(&CStr, &CStr)]) -> Status<hiprtcProgram> {
        let all = || [(HEADER_NAME, HEADER)].iter().chain(headers);
        let names: Vec<_> = all().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<_> = all().map(|(_, text)| text.as_ptr()).collect();
        let (source, name, count) = (source.as_ptr(), name.as_ptr(), texts.len() as c_int);
        let mut made = ptr::null_mut();
        // SAFETY: both arrays have `count` texts; NVRTC copies every one.
        status(unsafe {
            nvrtc::nvrtcCreateProgram(&mut made, source, name, count, texts.as_ptr(), names.as_ptr())
        })?;
        Ok(made.cast())
    }

    unsafe fn destroy(program: hiprtcProgram) -> Status {
        // SAFETY: the caller's handle, here and below.
        status(unsafe { nvrtc::nvrtcDestroyProgram(&mut program.cast()) })
    }

    unsafe fn add_name(program: hiprtcProgram, expression: &CStr) -> Status {
        // SAFETY: as above.
        status(unsafe { nvrtc::nvrtcAddNameExpression(program.cast(), expression.as_ptr()) })
    }

    unsafe fn compile(program: hiprtcProgram, options: &[String]) -> Status {
        let own: Result<Vec<CString>, _> = translate(options).into_iter().map(CString::new).collect();
        let own = own.map_err(|_| HIPRTC_ERROR_INVALID_OPTION)?;
        let list: Vec<*const c_char> = own.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: as above; the options outlive the call.
        status(unsafe { nvrtc::nvrtcCompileProgram(program.cast(), list.len() as c_int, list.as_ptr()) })
    }

    unsafe fn log_size(program: hiprtcProgram) -> Status<usize> {
        let mut size = 0;
        // SAFETY: as above; a valid pointer.
        status(unsafe { nvrtc::nvrtcGetProgramLogSize(program.cast(), &mut size) })?;
        Ok(size)
    }

    unsafe fn log(program: hiprtcProgram, to: *mut c_char) -> Status {
        // SAFETY: as above; the caller's room.
        status(unsafe { nvrtc::nvrtcGetProgramLog(program.cast(), to) })
    }

    unsafe fn lowered_name(program: hiprtcProgram, expression: &CStr) -> Status<*const c_char> {
        let mut lowered = ptr::null();
        // SAFETY: as above; a valid pointer.
        status(unsafe { nvrtc::nvrtcGetLoweredName(program.cast(), expression.as_ptr(), &mut lowered) })?;
        Ok(lowered)
    }

    unsafe fn code_size(program: hiprtcProgram) -> Status<usize> {
        let mut size = 0;
        // SAFETY: as above; a valid pointer.
        status(unsafe { nvrtc::nvrtcGetCUBINSize(program.cast(), &mut size) })?;
        Ok(size)
    }

    unsafe fn code(program: hiprtcProgram, to: *mut c_char) -> Status {
        // SAFETY: as above; the caller's room.
        status(unsafe { nvrtc::nvrtcGetCUBIN(program.cast(), to) })
    }
}

#[cfg(test)]
mod tests {
    use super::translate;

    #[test]
    fn options_are_translated() {
        let options = ["--offload-arch=sm_90", "-O3", "-std=c++17", "-DX=1", "-ffp-contract=off"];
        assert_eq!(
            translate(&options),
            [
                "--gpu-architecture=sm_90",
                "-std=c++17",
                "-DX=1",
                "--fmad=false",
                "--device-as-default-execution-space",
                "--pre-include=hip_cuda.h",
                "--maxrregcount=64"
            ]
        );
    }
}
