//! The functions of `libhiprtc`.

use core::ffi::{c_char, c_int};

use crate::{function_table, hiprtcProgram, hiprtcResult};

function_table! {
    /// The functions of `libhiprtc` that this project calls.
    pub struct Hiprtc {
        required {
            /// Gives hipRTC's version.
            fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult;
            /// Describes a status.
            fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char;
            /// Creates a program from source text and headers in memory.
            fn hiprtcCreateProgram(
                program: *mut hiprtcProgram, source: *const c_char, name: *const c_char, header_count: c_int,
                headers: *const *const c_char, include_names: *const *const c_char,
            ) -> hiprtcResult;
            /// Destroys a program.
            fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult;
            /// Asks for an instantiation by its C++ name.
            fn hiprtcAddNameExpression(program: hiprtcProgram, expression: *const c_char) -> hiprtcResult;
            /// Compiles a program.
            fn hiprtcCompileProgram(
                program: hiprtcProgram, option_count: c_int, options: *const *const c_char,
            ) -> hiprtcResult;
            /// Gives the size of the compiler's log, the NUL included.
            fn hiprtcGetProgramLogSize(program: hiprtcProgram, size: *mut usize) -> hiprtcResult;
            /// Gives the compiler's log.
            fn hiprtcGetProgramLog(program: hiprtcProgram, log: *mut c_char) -> hiprtcResult;
            /// Gives the symbol of an instantiation; the program owns the text.
            fn hiprtcGetLoweredName(
                program: hiprtcProgram, expression: *const c_char, lowered: *mut *const c_char,
            ) -> hiprtcResult;
            /// Gives the code object's size.
            fn hiprtcGetCodeSize(program: hiprtcProgram, size: *mut usize) -> hiprtcResult;
            /// Gives the code object.
            fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult;
        }
        optional {}
    }
}
