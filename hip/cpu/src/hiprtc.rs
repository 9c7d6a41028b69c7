//! hipRTC: built-in sources are served from the table of what was built ahead, any other goes to the host's compiler.

use crate::{code_object::Code, compiler, kernels::built_in, runtime::Handles};
use hip_provider::hiprtc::{Status, api, hiprtcGetErrorString};
use hip_sys::*;
use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_int},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The CPU device's hipRTC.
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

struct Program {
    name: String,
    source: String,
    headers: Vec<(String, String)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Name expressions and their lowered names, which are the same here.
    names: BTreeMap<CString, CString>,
    /// `Some` once the program was compiled, with or without success.
    code: Option<Vec<u8>>,
    log: CString,
}

static PROGRAMS: Handles<Program> = Handles::new(0xb1);

fn get(program: hiprtcProgram) -> Result<Arc<Program>, hiprtcResult> {
    PROGRAMS.get(program as usize).ok_or(HIPRTC_ERROR_INVALID_PROGRAM)
}

impl Program {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The built-in family that this is, if all its parts are as they were when it was built.
    fn family(&self) -> Option<&'static hip_kernels::Family> {
        let headers_are_ours = self.headers.iter().all(|(name, text)| {
            hip_kernels::HEADERS.iter().any(|(known, known_text)| known == name && known_text == text)
        });
        hip_kernels::families().iter().find(|family| headers_are_ours && family.source == self.source)
    }

    fn compile(&self, options: &[String]) -> Status {
        let mut state = self.state();
        let names = state.names.keys().map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>();
        let plain = !options
            .iter()
            .any(|option| ["-D", "-U", "-I", "-include"].iter().any(|o| option.starts_with(o)));
        if plain
            && let Some(family) = self.family()
            && names.iter().all(|name| built_in(family.name, name).is_some())
        {
            state.code = Some(Code::BuiltIn { family: family.name.into(), names }.to_bytes());
            state.log = CString::default();
            return Ok(());
        }
        let unit = compiler::Unit {
            name: &self.name,
            source: &self.source,
            headers: &self.headers,
            options,
            names: &names,
        };
        let (code, log) = match compiler::compile(&unit) {
            Ok((library, log)) => (Some(Code::Shared(library).to_bytes()), log),
            Err(log) => (None, log),
        };
        state.log = CString::new(log.replace('\0', " ")).unwrap_or_default();
        let done = if code.is_some() { Ok(()) } else { Err(HIPRTC_ERROR_COMPILATION) };
        state.code = Some(code.unwrap_or_default());
        done
    }
}

/// # Safety
/// `out` is null or may be written to.
unsafe fn put<T>(out: *mut T, value: T) -> Status {
    if out.is_null() {
        return Err(HIPRTC_ERROR_INVALID_INPUT);
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { out.write(value) };
    Ok(())
}

/// # Safety
/// `text` is null or a C string that lives as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, hiprtcResult> {
    if text.is_null() {
        return Err(HIPRTC_ERROR_INVALID_INPUT);
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| HIPRTC_ERROR_INVALID_INPUT)
}

/// # Safety
/// `list` is null or has `count` C strings.
unsafe fn texts(list: *const *const c_char, count: c_int) -> Result<Vec<String>, hiprtcResult> {
    let count = usize::try_from(count).map_err(|_| HIPRTC_ERROR_INVALID_INPUT)?;
    if count > 0 && list.is_null() {
        return Err(HIPRTC_ERROR_INVALID_INPUT);
    }
    (0..count)
        // SAFETY: the caller's.
        .map(|i| unsafe { text(*list.add(i)) }.map(str::to_owned))
        .collect()
}

/// The version that AMD's hipRTC of ROCm 7.2 gives.
unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    api(|| {
        if minor.is_null() {
            return Err(HIPRTC_ERROR_INVALID_INPUT);
        }
        // SAFETY: the caller's, by hipRTC's contract.
        unsafe { put(major, 9) }?;
        // SAFETY: as above.
        unsafe { put(minor, 0) }
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
            return Err(HIPRTC_ERROR_INVALID_PROGRAM);
        }
        // SAFETY: the caller's strings, by hipRTC's contract.
        let (source, headers, include_names) =
            unsafe { (text(source)?, texts(headers, header_count)?, texts(include_names, header_count)?) };
        // SAFETY: as above.
        let name = if name.is_null() { "" } else { unsafe { text(name) }? };
        let handle = PROGRAMS.insert(Arc::new(Program {
            name: name.to_owned(),
            source: source.to_owned(),
            headers: include_names.into_iter().zip(headers).collect(),
            state: Mutex::default(),
        }));
        // SAFETY: as above.
        unsafe { put(program, handle as hiprtcProgram) }
    })
}

unsafe extern "C" fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult {
    api(|| {
        if program.is_null() {
            return Err(HIPRTC_ERROR_INVALID_INPUT);
        }
        // SAFETY: the caller's, by hipRTC's contract.
        let handle = unsafe { *program };
        PROGRAMS.remove(handle as usize).ok_or(HIPRTC_ERROR_INVALID_PROGRAM)?;
        // SAFETY: as above.
        unsafe { put(program, std::ptr::null_mut()) }
    })
}

unsafe extern "C" fn hiprtcAddNameExpression(
    program: hiprtcProgram,
    expression: *const c_char,
) -> hiprtcResult {
    api(|| {
        // SAFETY: the caller's, by hipRTC's contract.
        let name = CString::new(unsafe { text(expression) }?).map_err(|_| HIPRTC_ERROR_INVALID_INPUT)?;
        let program = get(program)?;
        let mut state = program.state();
        if state.code.is_some() {
            return Err(HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION);
        }
        state.names.insert(name.clone(), name);
        Ok(())
    })
}

unsafe extern "C" fn hiprtcCompileProgram(
    program: hiprtcProgram,
    option_count: c_int,
    options: *const *const c_char,
) -> hiprtcResult {
    api(|| {
        // SAFETY: the caller's, by hipRTC's contract.
        let options = unsafe { texts(options, option_count) }?;
        get(program)?.compile(&options)
    })
}

unsafe extern "C" fn hiprtcGetProgramLogSize(program: hiprtcProgram, size: *mut usize) -> hiprtcResult {
    // SAFETY: the caller's, by hipRTC's contract.
    api(|| unsafe { put(size, get(program)?.state().log.as_bytes_with_nul().len()) })
}

unsafe extern "C" fn hiprtcGetProgramLog(program: hiprtcProgram, log: *mut c_char) -> hiprtcResult {
    api(|| {
        let program = get(program)?;
        let state = program.state();
        // SAFETY: the caller has the room that it was told, by hipRTC's contract.
        unsafe { copy(log.cast(), state.log.as_bytes_with_nul()) }
    })
}

unsafe extern "C" fn hiprtcGetLoweredName(
    program: hiprtcProgram,
    expression: *const c_char,
    lowered: *mut *const c_char,
) -> hiprtcResult {
    api(|| {
        // SAFETY: the caller's, by hipRTC's contract.
        let name = CString::new(unsafe { text(expression) }?).map_err(|_| HIPRTC_ERROR_INVALID_INPUT)?;
        let program = get(program)?;
        let state = program.state();
        if state.code.is_none() {
            return Err(HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION);
        }
        let name = state.names.get(&name).ok_or(HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID)?;
        // SAFETY: as above. The text stays where it is until the program is destroyed: no name is added any more.
        unsafe { put(lowered, name.as_ptr()) }
    })
}

unsafe extern "C" fn hiprtcGetCodeSize(program: hiprtcProgram, size: *mut usize) -> hiprtcResult {
    // SAFETY: the caller's, by hipRTC's contract.
    api(|| unsafe { put(size, get(program)?.state().code.as_ref().map_or(0, Vec::len)) })
}

unsafe extern "C" fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult {
    api(|| {
        let program = get(program)?;
        let state = program.state();
        // SAFETY: the caller has the room that it was told, by hipRTC's contract.
        unsafe { copy(code.cast(), state.code.as_deref().unwrap_or_default()) }
    })
}

/// # Safety
/// `to` is null or has room.
unsafe fn copy(to: *mut u8, bytes: &[u8]) -> Status {
    if to.is_null() {
        return Err(HIPRTC_ERROR_INVALID_INPUT);
    }
    // SAFETY: the caller's.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}
