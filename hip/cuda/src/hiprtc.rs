//! hipRTC over NVRTC: the same handles and the same numbers of statuses; options are translated, code objects are
//! cubins.

use cudarc::nvrtc::sys as nvrtc;
use hip_provider::hiprtc::hiprtcGetErrorString;
use hip_sys::*;
use std::{
    ffi::{CStr, CString, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// hipRTC for NVIDIA GPUs.
pub fn hiprtc_table() -> Hiprtc {
    Hiprtc {
        hiprtcVersion,
        hiprtcGetErrorString,
        hiprtcCreateProgram,
        hiprtcDestroyProgram,
        hiprtcAddNameExpression,
        hiprtcCompileProgram,
        hiprtcGetProgramLogSize,
        hiprtcGetProgramLog,
        hiprtcGetLoweredName,
        hiprtcGetCodeSize,
        hiprtcGetCode,
    }
}

/// Read ahead of every program.
const HEADER: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("../device/hip_cuda.h"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the header has no NUL"),
    };
const HEADER_NAME: &CStr = c"hip_cuda.h";

/// Options of every program.
const OWN_OPTIONS: &[&str] = &[
    // As hipRTC has it: functions without a mark, `constexpr` ones say, may be called on the device.
    "--device-as-default-execution-space",
    "--pre-include=hip_cuda.h",
    // hipRTC gives a kernel without `__launch_bounds__` no more registers than a block of 1024 threads has, NVRTC
    // up to 255, with which such a block does not start. A block has 65,536 registers on every NVIDIA GPU. Kernels
    // with launch bounds keep theirs: for these the option is ignored (CUDA C++ Programming Guide, "Launch
    // Bounds").
    "--maxrregcount=64",
];

/// What this provider compiles every program with beside what hipRTC is told: a part of what a code object is kept by.
pub fn hiprtc_additions() -> impl Iterator<Item = &'static str> {
    [include_str!("../device/hip_cuda.h")].into_iter().chain(OWN_OPTIONS.iter().copied())
}

/// What NVRTC says of a call, in hipRTC's numbers, which are NVRTC's up to 11.
fn status(result: nvrtc::nvrtcResult) -> hiprtcResult {
    let code = result as u32;
    if code <= HIPRTC_ERROR_INTERNAL_ERROR { code } else { HIPRTC_ERROR_INTERNAL_ERROR }
}

fn api(body: impl FnOnce() -> hiprtcResult) -> hiprtcResult {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(HIPRTC_ERROR_INTERNAL_ERROR)
}

fn raw(program: hiprtcProgram) -> nvrtc::nvrtcProgram {
    program.cast()
}

/// hipRTC's options in NVRTC's spelling. What NVRTC has no word for and always does is left out.
fn translate(options: &[&str]) -> Vec<String> {
    let mut all = Vec::with_capacity(options.len() + OWN_OPTIONS.len());
    for option in options {
        match *option {
            // NVRTC optimises unless told not to.
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

unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    api(|| {
        if major.is_null() || minor.is_null() {
            return HIPRTC_ERROR_INVALID_INPUT;
        }
        // SAFETY: not null; the caller's, by hipRTC's contract.
        status(unsafe { nvrtc::nvrtcVersion(major, minor) })
    })
}

unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut hiprtcProgram,
    source: *const c_char,
    name: *const c_char,
    header_count: c_int,
    headers: *const *const c_char,
    include_names: *const *const c_char,
) -> hiprtcResult {
    api(|| {
        if program.is_null() {
            return HIPRTC_ERROR_INVALID_PROGRAM;
        }
        if source.is_null()
            || header_count < 0
            || (header_count > 0 && (headers.is_null() || include_names.is_null()))
        {
            return HIPRTC_ERROR_INVALID_INPUT;
        }
        // SAFETY: the caller's texts, as many as said, by hipRTC's contract.
        let given = |list: *const *const c_char| unsafe {
            if header_count > 0 { std::slice::from_raw_parts(list, header_count as usize) } else { &[] }
        };
        let (texts, names) = (given(headers), given(include_names));
        if texts.iter().chain(names).any(|text| text.is_null()) {
            return HIPRTC_ERROR_INVALID_INPUT;
        }
        let texts = [&[HEADER.as_ptr()], texts].concat();
        let names = [&[HEADER_NAME.as_ptr()], names].concat();
        // SAFETY: as above; NVRTC copies every text.
        status(unsafe {
            let count = texts.len() as c_int;
            nvrtc::nvrtcCreateProgram(program.cast(), source, name, count, texts.as_ptr(), names.as_ptr())
        })
    })
}

unsafe extern "C" fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult {
    api(|| {
        if program.is_null() {
            return HIPRTC_ERROR_INVALID_INPUT;
        }
        // SAFETY: the caller's handle, by hipRTC's contract.
        status(unsafe { nvrtc::nvrtcDestroyProgram(program.cast()) })
    })
}

unsafe extern "C" fn hiprtcAddNameExpression(
    program: hiprtcProgram,
    expression: *const c_char,
) -> hiprtcResult {
    if program.is_null() {
        return HIPRTC_ERROR_INVALID_PROGRAM;
    }
    if expression.is_null() {
        return HIPRTC_ERROR_INVALID_INPUT;
    }
    // SAFETY: the caller's handle and text, by hipRTC's contract.
    api(|| status(unsafe { nvrtc::nvrtcAddNameExpression(raw(program), expression) }))
}

unsafe extern "C" fn hiprtcCompileProgram(
    program: hiprtcProgram,
    option_count: c_int,
    options: *const *const c_char,
) -> hiprtcResult {
    api(|| {
        if program.is_null() {
            return HIPRTC_ERROR_INVALID_PROGRAM;
        }
        if option_count < 0 || (option_count > 0 && options.is_null()) {
            return HIPRTC_ERROR_INVALID_INPUT;
        }
        let mut texts = Vec::new();
        for at in 0..option_count as usize {
            // SAFETY: the caller's list of as many texts, by hipRTC's contract.
            let option = unsafe { *options.add(at) };
            if option.is_null() {
                return HIPRTC_ERROR_INVALID_OPTION;
            }
            // SAFETY: not null; as above.
            match unsafe { CStr::from_ptr(option) }.to_str() {
                Ok(text) => texts.push(text),
                Err(_) => return HIPRTC_ERROR_INVALID_OPTION,
            }
        }
        let own: Result<Vec<CString>, _> = translate(&texts).into_iter().map(CString::new).collect();
        let Ok(own) = own else { return HIPRTC_ERROR_INVALID_OPTION };
        let list: Vec<*const c_char> = own.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the caller's handle; the options outlive the call.
        status(unsafe { nvrtc::nvrtcCompileProgram(raw(program), list.len() as c_int, list.as_ptr()) })
    })
}

macro_rules! ask {
    ($( $hip:ident => $cuda:ident ($out:ident: $type:ty); )*) => { $(
        unsafe extern "C" fn $hip(program: hiprtcProgram, $out: $type) -> hiprtcResult {
            if program.is_null() {
                return HIPRTC_ERROR_INVALID_PROGRAM;
            }
            if $out.is_null() {
                return HIPRTC_ERROR_INVALID_INPUT;
            }
            // SAFETY: the caller's handle, and room for the answer, by hipRTC's contract.
            api(|| status(unsafe { nvrtc::$cuda(raw(program), $out) }))
        }
    )* };
}
ask! {
    hiprtcGetProgramLogSize => nvrtcGetProgramLogSize(size: *mut usize);
    hiprtcGetProgramLog => nvrtcGetProgramLog(log: *mut c_char);
    hiprtcGetCodeSize => nvrtcGetCUBINSize(size: *mut usize);
    hiprtcGetCode => nvrtcGetCUBIN(code: *mut c_char);
}

unsafe extern "C" fn hiprtcGetLoweredName(
    program: hiprtcProgram,
    expression: *const c_char,
    lowered: *mut *const c_char,
) -> hiprtcResult {
    if program.is_null() {
        return HIPRTC_ERROR_INVALID_PROGRAM;
    }
    if expression.is_null() || lowered.is_null() {
        return HIPRTC_ERROR_INVALID_INPUT;
    }
    // SAFETY: the caller's handle, text and out-pointer, by hipRTC's contract.
    api(|| status(unsafe { nvrtc::nvrtcGetLoweredName(raw(program), expression, lowered) }))
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
