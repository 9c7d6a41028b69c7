//! hipRTC: built-in kernels come from this program's tables; the host's compiler compiles all
//! others.

use crate::{code_object::Code, compiler, kernels::built_in, runtime::Handles};
use hip_provider::hiprtc::{Status, table};
use hip_provider::require;
use hip_sys::*;
use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_int},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The CPU device's hipRTC.
pub fn hiprtc_table() -> Hiprtc {
    table::<Programs>()
}

/// A hash of what this crate adds to every program that the host's compiler compiles: its headers,
/// flags and the text around the source. The key of a cached code object must cover them.
pub const HIPRTC_ADDITIONS: &str = env!("HIP_CPU_ADDITIONS");

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
    /// `Some` after compilation, empty if it failed.
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

    /// The built-in family with the same source and headers, if there is one.
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
            .any(|option| ["-D", "-U", "-I", "-i", "--include"].iter().any(|o| option.starts_with(o)));
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

/// Implements hipRTC's programs in this process.
struct Programs;

impl hip_provider::hiprtc::Programs for Programs {
    /// The version that the hipRTC of ROCm 7.2 returns.
    fn version() -> Status<[c_int; 2]> {
        Ok([9, 0])
    }

    fn create(source: &CStr, name: &CStr, headers: &[(&CStr, &CStr)]) -> Status<hiprtcProgram> {
        let text = |text: &CStr| text.to_str().map(str::to_owned).map_err(|_| HIPRTC_ERROR_INVALID_INPUT);
        let header = |(name, content): &(&CStr, &CStr)| Ok((text(name)?, text(content)?));
        let handle = PROGRAMS.insert(Arc::new(Program {
            name: text(name)?,
            source: text(source)?,
            headers: headers.iter().map(header).collect::<Status<_>>()?,
            state: Mutex::default(),
        }));
        Ok(handle as hiprtcProgram)
    }

    unsafe fn destroy(program: hiprtcProgram) -> Status {
        PROGRAMS.remove(program as usize).map(|_| ()).ok_or(HIPRTC_ERROR_INVALID_PROGRAM)
    }

    unsafe fn add_name(program: hiprtcProgram, expression: &CStr) -> Status {
        let program = get(program)?;
        let mut state = program.state();
        require(state.code.is_none(), HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION)?;
        state.names.insert(expression.to_owned(), expression.to_owned());
        Ok(())
    }

    unsafe fn compile(program: hiprtcProgram, options: &[String]) -> Status {
        get(program)?.compile(options)
    }

    unsafe fn log_size(program: hiprtcProgram) -> Status<usize> {
        Ok(get(program)?.state().log.as_bytes_with_nul().len())
    }

    unsafe fn log(program: hiprtcProgram, to: *mut c_char) -> Status {
        let program = get(program)?;
        let state = program.state();
        let log = state.log.as_bytes_with_nul();
        // SAFETY: the caller's room.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(log.as_ptr(), log.len()) };
        Ok(())
    }

    unsafe fn lowered_name(program: hiprtcProgram, expression: &CStr) -> Status<*const c_char> {
        let program = get(program)?;
        let state = program.state();
        require(state.code.is_some(), HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION)?;
        // The text does not move until the program is destroyed, because no name is added after
        // compilation.
        let name = state.names.get(expression).ok_or(HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID)?;
        Ok(name.as_ptr())
    }

    unsafe fn code_size(program: hiprtcProgram) -> Status<usize> {
        Ok(get(program)?.state().code.as_ref().map_or(0, Vec::len))
    }

    unsafe fn code(program: hiprtcProgram, to: *mut c_char) -> Status {
        let program = get(program)?;
        let state = program.state();
        let code = state.code.as_deref().unwrap_or_default();
        // SAFETY: the caller's room.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(code.as_ptr(), code.len()) };
        Ok(())
    }
}
