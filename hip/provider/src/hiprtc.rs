//! hipRTC's C functions, over a provider's programs.

use crate::require;
use core::ffi::{CStr, c_char, c_int};
use hip_sys::*;

/// The result of a call; the error is hipRTC's status.
pub type Status<T = ()> = Result<T, hiprtcResult>;

/// A provider's programs. No program passed to these methods is null.
pub trait Programs {
    /// The version: major and minor.
    fn version() -> Status<[c_int; 2]>;

    /// Creates a program from a source, its name, and headers as pairs of name and text.
    fn create(source: &CStr, name: &CStr, headers: &[(&CStr, &CStr)]) -> Status<hiprtcProgram>;

    /// Destroys a program.
    ///
    /// # Safety
    /// The program came from [`Programs::create`] and is not destroyed. The same holds for the
    /// methods below.
    unsafe fn destroy(program: hiprtcProgram) -> Status;

    /// Adds a name expression, whose lowered name is wanted after compilation.
    ///
    /// # Safety
    /// As [`Programs::destroy`].
    unsafe fn add_name(program: hiprtcProgram, expression: &CStr) -> Status;

    /// Compiles a program.
    ///
    /// # Safety
    /// As [`Programs::destroy`].
    unsafe fn compile(program: hiprtcProgram, options: &[String]) -> Status;

    /// Bytes of the compiler's log, including the NUL.
    ///
    /// # Safety
    /// As [`Programs::destroy`].
    unsafe fn log_size(program: hiprtcProgram) -> Status<usize>;

    /// Writes the compiler's log.
    ///
    /// # Safety
    /// As [`Programs::destroy`]; there is room for [`Programs::log_size`] bytes.
    unsafe fn log(program: hiprtcProgram, to: *mut c_char) -> Status;

    /// The lowered name of an expression, which lives as long as the program.
    ///
    /// # Safety
    /// As [`Programs::destroy`].
    unsafe fn lowered_name(program: hiprtcProgram, expression: &CStr) -> Status<*const c_char>;

    /// Bytes of the code object.
    ///
    /// # Safety
    /// As [`Programs::destroy`].
    unsafe fn code_size(program: hiprtcProgram) -> Status<usize>;

    /// Writes the code object.
    ///
    /// # Safety
    /// As [`Programs::destroy`]; there is room for [`Programs::code_size`] bytes.
    unsafe fn code(program: hiprtcProgram, to: *mut c_char) -> Status;
}

/// hipRTC's function table for a provider.
pub fn table<P: Programs>() -> Hiprtc {
    Hiprtc {
        hiprtcVersion: hiprtcVersion::<P>,
        hiprtcGetErrorString,
        hiprtcCreateProgram: hiprtcCreateProgram::<P>,
        hiprtcDestroyProgram: hiprtcDestroyProgram::<P>,
        hiprtcAddNameExpression: hiprtcAddNameExpression::<P>,
        hiprtcCompileProgram: hiprtcCompileProgram::<P>,
        hiprtcGetProgramLogSize: hiprtcGetProgramLogSize::<P>,
        hiprtcGetProgramLog: hiprtcGetProgramLog::<P>,
        hiprtcGetLoweredName: hiprtcGetLoweredName::<P>,
        hiprtcGetCodeSize: hiprtcGetCodeSize::<P>,
        hiprtcGetCode: hiprtcGetCode::<P>,
    }
}

/// Runs the body of an API function, so that no panic unwinds into the caller.
fn api(body: impl FnOnce() -> Status) -> hiprtcResult {
    crate::boundary(HIPRTC_SUCCESS, HIPRTC_ERROR_INTERNAL_ERROR, body)
}

/// # Safety
/// `out` is null or may be written to.
unsafe fn put<T>(out: *mut T, value: T) -> Status {
    require(!out.is_null(), HIPRTC_ERROR_INVALID_INPUT)?;
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { out.write(value) };
    Ok(())
}

/// # Safety
/// `text` is null or a C string that lives as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> Status<&'a CStr> {
    require(!text.is_null(), HIPRTC_ERROR_INVALID_INPUT)?;
    // SAFETY: not null; the caller vouches for the rest.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// # Safety
/// `list` is null or has `count` C strings, which live as long as the result is used.
unsafe fn texts<'a>(list: *const *const c_char, count: c_int) -> Status<Vec<&'a CStr>> {
    let count = usize::try_from(count).map_err(|_| HIPRTC_ERROR_INVALID_INPUT)?;
    require(count == 0 || !list.is_null(), HIPRTC_ERROR_INVALID_INPUT)?;
    // SAFETY: the caller's.
    (0..count).map(|i| unsafe { text(*list.add(i)) }).collect()
}

fn checked(program: hiprtcProgram) -> Status<hiprtcProgram> {
    if program.is_null() { Err(HIPRTC_ERROR_INVALID_PROGRAM) } else { Ok(program) }
}

unsafe extern "C" fn hiprtcVersion<P: Programs>(major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    api(|| {
        require(!major.is_null() && !minor.is_null(), HIPRTC_ERROR_INVALID_INPUT)?;
        let [first, second] = P::version()?;
        // SAFETY: the caller's out-pointers, here and below.
        unsafe {
            put(major, first)?;
            put(minor, second)
        }
    })
}

unsafe extern "C" fn hiprtcCreateProgram<P: Programs>(
    program: *mut hiprtcProgram,
    source: *const c_char,
    name: *const c_char,
    header_count: c_int,
    headers: *const *const c_char,
    include_names: *const *const c_char,
) -> hiprtcResult {
    api(|| {
        require(!program.is_null(), HIPRTC_ERROR_INVALID_PROGRAM)?;
        // SAFETY: the caller's strings, by hipRTC's contract, here and below.
        unsafe {
            let (texts, names) = (texts(headers, header_count)?, texts(include_names, header_count)?);
            let headers: Vec<_> = names.into_iter().zip(texts).collect();
            let name = if name.is_null() { c"" } else { text(name)? };
            put(program, P::create(text(source)?, name, &headers)?)
        }
    })
}

unsafe extern "C" fn hiprtcDestroyProgram<P: Programs>(program: *mut hiprtcProgram) -> hiprtcResult {
    api(|| {
        require(!program.is_null(), HIPRTC_ERROR_INVALID_INPUT)?;
        // SAFETY: the caller's handle, by hipRTC's contract, here and below.
        unsafe {
            P::destroy(checked(*program)?)?;
            put(program, core::ptr::null_mut())
        }
    })
}

unsafe extern "C" fn hiprtcAddNameExpression<P: Programs>(
    program: hiprtcProgram,
    expression: *const c_char,
) -> hiprtcResult {
    // SAFETY: as above.
    api(|| unsafe { P::add_name(checked(program)?, text(expression)?) })
}

unsafe extern "C" fn hiprtcCompileProgram<P: Programs>(
    program: hiprtcProgram,
    option_count: c_int,
    options: *const *const c_char,
) -> hiprtcResult {
    api(|| {
        let program = checked(program)?;
        // SAFETY: as above.
        let options = unsafe { texts(options, option_count) }?;
        let options = options.into_iter().map(|option| option.to_str().map(str::to_owned));
        let options: Vec<_> = options.collect::<Result<_, _>>().map_err(|_| HIPRTC_ERROR_INVALID_OPTION)?;
        // SAFETY: as above.
        unsafe { P::compile(program, &options) }
    })
}

unsafe extern "C" fn hiprtcGetProgramLogSize<P: Programs>(
    program: hiprtcProgram,
    size: *mut usize,
) -> hiprtcResult {
    // SAFETY: as above.
    api(|| unsafe { put(size, P::log_size(checked(program)?)?) })
}

unsafe extern "C" fn hiprtcGetProgramLog<P: Programs>(
    program: hiprtcProgram,
    log: *mut c_char,
) -> hiprtcResult {
    api(|| {
        let program = checked(program)?;
        require(!log.is_null(), HIPRTC_ERROR_INVALID_INPUT)?;
        // SAFETY: as above; the caller has room for the size that it was given, by hipRTC's
        // contract.
        unsafe { P::log(program, log) }
    })
}

unsafe extern "C" fn hiprtcGetLoweredName<P: Programs>(
    program: hiprtcProgram,
    expression: *const c_char,
    lowered: *mut *const c_char,
) -> hiprtcResult {
    // SAFETY: as above.
    api(|| unsafe { put(lowered, P::lowered_name(checked(program)?, text(expression)?)?) })
}

unsafe extern "C" fn hiprtcGetCodeSize<P: Programs>(
    program: hiprtcProgram,
    size: *mut usize,
) -> hiprtcResult {
    // SAFETY: as above.
    api(|| unsafe { put(size, P::code_size(checked(program)?)?) })
}

unsafe extern "C" fn hiprtcGetCode<P: Programs>(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult {
    api(|| {
        let program = checked(program)?;
        require(!code.is_null(), HIPRTC_ERROR_INVALID_INPUT)?;
        // SAFETY: as above; the caller has room for the size that it was given, by hipRTC's
        // contract.
        unsafe { P::code(program, code) }
    })
}

unsafe extern "C" fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char {
    let text = match result {
        HIPRTC_SUCCESS => c"HIPRTC_SUCCESS",
        HIPRTC_ERROR_OUT_OF_MEMORY => c"HIPRTC_ERROR_OUT_OF_MEMORY",
        HIPRTC_ERROR_PROGRAM_CREATION_FAILURE => c"HIPRTC_ERROR_PROGRAM_CREATION_FAILURE",
        HIPRTC_ERROR_INVALID_INPUT => c"HIPRTC_ERROR_INVALID_INPUT",
        HIPRTC_ERROR_INVALID_PROGRAM => c"HIPRTC_ERROR_INVALID_PROGRAM",
        HIPRTC_ERROR_INVALID_OPTION => c"HIPRTC_ERROR_INVALID_OPTION",
        HIPRTC_ERROR_COMPILATION => c"HIPRTC_ERROR_COMPILATION",
        7 => c"HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION => {
            c"HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION"
        }
        HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION => {
            c"HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION"
        }
        HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID => c"HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
        _ => c"HIPRTC_ERROR_INTERNAL_ERROR",
    };
    text.as_ptr()
}
