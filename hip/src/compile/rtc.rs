//! Compilation by hipRTC: its options, its headers, and the calls.

use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hip_kernels::{Family, HEADERS, KernelName};
use hip_sys::{Hiprtc, hiprtcProgram};

use crate::compile::cache::{CodeObject, code_cache};
use crate::compile::program::Program;
use crate::compile::toolchain::Toolchain;
use crate::error::{Error, Result, check_rtc};
use crate::hash::Digest;
use crate::once::Once;
use crate::provider::kind::ProviderKind;
use crate::provider::library;
use crate::provider::{Versions, hip_version, load_hiprtc};
use crate::spans;
use crate::workarounds;

/// Kernels that compile faster than this are not stored: reading a file takes about 0.1 ms, writing
/// one 0.5 ms.
const WORTH_STORING: Duration = Duration::from_millis(5);

/// AMD's hipRTC on its own, which compiles for any architecture on a machine without a GPU.
///
/// It compiles the built-in kernels exactly as a device does that does not have them in its cache.
///
/// ```no_run
/// # fn main() -> hip::Result<()> {
/// let compiler = hip::Compiler::load()?;
/// let name = hip::Template::binary_contiguous.functor(hip::Functor::Add).ty(hip::DType::F32);
/// let object = compiler.compile("gfx1030", &[name])?;
/// println!("{} bytes, the kernel is {}", object.code.len(), object.symbols[0]);
/// # Ok(())
/// # }
/// ```
pub struct Compiler {
    rtc: Hiprtc,
    path: String,
    version: (i32, i32),
    toolchain: Once<Toolchain>,
}

/// The result of compiling kernels of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledKernels {
    /// The code object: an ELF file.
    pub code: Box<[u8]>,
    /// The kernels' symbols in the code object, in the order in which they were requested.
    pub symbols: Vec<String>,
}

impl Compiler {
    /// The options of every program. The architecture is added to them.
    pub const OPTIONS: &[&str] = &["-O3", "-std=c++17"];

    /// Loads AMD's hipRTC.
    ///
    /// # Errors
    /// `NotAvailable` if hipRTC is not installed or does not load.
    pub fn load() -> Result<Self> {
        let (rtc, path) = load_hiprtc()?;
        let mut version = (0, 0);
        // SAFETY: the function is hipRTC's, and it writes through two valid pointers.
        let status = unsafe { (rtc.hiprtcVersion)(&mut version.0, &mut version.1) };
        check_rtc(&rtc, "hiprtcVersion", status)?;
        Ok(Self { rtc, path, version, toolchain: Once::default() })
    }

    /// The library's path or file name.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// hipRTC's major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles built-in kernels of one family for an architecture (`gfx90a:sramecc+:xnack-`, or
    /// less of it).
    ///
    /// A device compiles each kernel on its own. Several together take less time and get the same
    /// instructions.
    ///
    /// # Errors
    /// `Compilation` if the compiler refuses, if `names` is empty, or if no family lists all of
    /// them.
    pub fn compile(&self, architecture: &str, names: &[KernelName]) -> Result<CompiledKernels> {
        self.compile_with(architecture, names, &[])
    }

    /// As [`compile`](Self::compile), with these options after the usual ones.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_with(
        &self,
        architecture: &str,
        names: &[KernelName],
        more: &[&str],
    ) -> Result<CompiledKernels> {
        let family = family_of(names)?;
        let expressions: Vec<String> = names.iter().map(KernelName::to_string).collect();
        let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
        let (file, architecture) = (file_of(family), architecture_option(architecture));
        let program = Program { options: more, ..program_of(family, &file) };
        compile(&self.rtc, &program, &expressions, &options(&architecture, &program))
    }

    /// Gets a built-in kernel as a device does: from the code-object cache on disk, or by compiling
    /// it and storing it there. So a cache can be filled in advance for machines with these GPUs
    /// and the same build of ROCm, HIP included: the key of a code object covers HIP's version and
    /// the compiler's files.
    ///
    /// `architecture` is the device's full name. A device named `gfx90a:sramecc+:xnack-` does not
    /// find what was compiled for `gfx90a`.
    ///
    /// # Errors
    /// `Compilation` if the compiler refuses, or if the table does not list the kernel.
    pub fn get(&self, architecture: &str, name: KernelName) -> Result<CompiledKernels> {
        let family = family_of(&[name])?;
        let (file, architecture) = (file_of(family), architecture_option(architecture));
        let program = program_of(family, &file);
        let (options, expression) = (options(&architecture, &program), name.to_string());
        let versions = || Versions { runtime: hip_version(), driver: 0, hiprtc: self.version };
        let toolchain = self.toolchain.get(|| toolchain(&self.rtc, ProviderKind::Rocm, versions()))?;
        let key = key(toolchain, source_hash(family), &expression, &options);
        let object = match code_cache().get(key) {
            Some(object) => object,
            None => compile_into_cache(&self.rtc, key, &program, &expression, &options)?,
        };
        Ok(CompiledKernels { code: object.code, symbols: vec![object.symbol] })
    }
}

/// The family that lists all these kernels.
fn family_of(names: &[KernelName]) -> Result<&'static Family> {
    names
        .first()
        .map(|name| hip_kernels::family_of(name.template()))
        .filter(|family| names.iter().all(|name| family.contains(name)))
        .ok_or_else(|| Error::Compilation {
            kernel: names.iter().map(KernelName::to_string).collect::<Vec<_>>().join("; "),
            options: Vec::new(),
            log: "no family of the table lists them".into(),
        })
}

/// The key of a code object. It covers everything that determines the object.
pub(crate) fn key(toolchain: &Toolchain, source: u128, expression: &str, options: &[&str]) -> u128 {
    let key = options.iter().fold(Digest::new().bytes(&source.to_le_bytes()), |key, option| key.part(option));
    toolchain.add_to(key).part(expression).part(env!("CARGO_PKG_VERSION")).finish()
}

/// The toolchain that compiles a provider's kernels.
pub(crate) fn toolchain(rtc: &Hiprtc, provider: ProviderKind, versions: Versions) -> Result<Toolchain> {
    if provider == ProviderKind::Rocm {
        // AMD's hipRTC loads its compiler, libamd_comgr, when it creates the first program. It
        // refuses an empty source, so this one has a newline.
        let program = Program { name: "empty.hip", source: "\n", headers: &[], options: &[] };
        let _held = library::compiling();
        create(rtc, &program, &[])?;
    }
    Ok(Toolchain::of(provider, versions.hiprtc, versions.runtime))
}

pub(crate) fn hash_source(program: &Program) -> u128 {
    HEADERS
        .iter()
        .chain(program.headers)
        .fold(Digest::new().part(program.source), |hash, (name, text)| hash.part(name).part(text))
        .finish()
}

/// The hash of a built-in source. It is computed once, because it takes 0.1 ms and a family has
/// hundreds of kernels.
pub(crate) fn source_hash(family: &'static Family) -> u128 {
    static KNOWN: Mutex<Vec<(&str, u128)>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, hash)) = known.iter().find(|(name, _)| *name == family.name) {
        return *hash;
    }
    let hash = hash_source(&program_of(family, family.name));
    known.push((family.name, hash));
    hash
}

/// Compiles one instantiation of a program, and stores it on disk if that is worth it.
pub(crate) fn compile_into_cache(
    rtc: &Hiprtc,
    key: u128,
    program: &Program,
    expression: &str,
    options: &[&str],
) -> Result<CodeObject> {
    let start = Instant::now();
    let object = compile(rtc, program, &[expression], options)?.only();
    let time = start.elapsed();
    log::debug!("compiled {expression} in {time:.1?}");
    spans::compiled(expression, time);
    let cache = code_cache();
    cache.count_compilation(time);
    if time > WORTH_STORING {
        cache.put(key, &object);
    }
    Ok(object)
}

impl CompiledKernels {
    /// The code object of a single kernel.
    pub(crate) fn only(mut self) -> CodeObject {
        CodeObject { symbol: self.symbols.pop().unwrap_or_default(), code: self.code }
    }
}

/// The file name of a family in the compiler's messages.
pub(crate) fn file_of(family: &Family) -> String {
    format!("{}.hip", family.name)
}

/// A family's source as a program.
pub(crate) fn program_of<'a>(family: &Family, file: &'a str) -> Program<'a> {
    Program { name: file, source: family.source, headers: &[], options: &[] }
}

/// The option that names the architecture.
pub(crate) fn architecture_option(architecture: &str) -> String {
    format!("--offload-arch={architecture}")
}

/// All options of a program.
pub(crate) fn options<'a>(architecture: &'a str, program: &Program<'a>) -> Vec<&'a str> {
    std::iter::once(architecture)
        .chain(Compiler::OPTIONS.iter().copied())
        .chain(program.options.iter().copied())
        .collect()
}

pub(crate) fn c_text(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::config(what, "text without a NUL", format!("{text:?}")))
}

/// A hipRTC program, which is destroyed on drop.
struct RtcProgram<'a> {
    rtc: &'a Hiprtc,
    raw: hiprtcProgram,
}

impl Drop for RtcProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the function is hipRTC's, and no one else has the handle.
        let status = unsafe { (self.rtc.hiprtcDestroyProgram)(&mut self.raw) };
        if status != hip_sys::HIPRTC_SUCCESS {
            log::error!("hiprtcDestroyProgram failed: {status}");
        }
    }
}

/// Compiles instantiations of a program.
pub(crate) fn compile(
    rtc: &Hiprtc,
    program: &Program,
    expressions: &[&str],
    options: &[&str],
) -> Result<CompiledKernels> {
    /// Whether the last kernel was found only by its spelled-out name. If so, the next one is
    /// requested by that name first, so that it is not compiled twice.
    static SPELLED_OUT: AtomicBool = AtomicBool::new(false);
    let spelled: Vec<String> = expressions.iter().map(|name| workarounds::spelled_out(name)).collect();
    let spelled: Vec<&str> = spelled.iter().map(String::as_str).collect();
    if SPELLED_OUT.load(Ordering::Relaxed)
        && let Ok(Some(compiled)) = compile_named(rtc, program, &spelled, options)
    {
        return Ok(compiled);
    }
    if let Some(compiled) = compile_named(rtc, program, expressions, options)? {
        return Ok(compiled);
    }
    if let Some(compiled) = compile_named(rtc, program, &spelled, options)? {
        SPELLED_OUT.store(true, Ordering::Relaxed);
        return Ok(compiled);
    }
    Err(Error::Compilation {
        kernel: expressions.join("; "),
        options: options.iter().map(|&option| option.to_owned()).collect(),
        log: "hipRTC compiled it and does not find its name".into(),
    })
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

/// Creates a program with these headers. The caller holds [`library::compiling`], since this may
/// run AMD's compiler.
fn create<'a>(rtc: &'a Hiprtc, program: &Program, headers: &[(&str, &str)]) -> Result<RtcProgram<'a>> {
    let source = c_text("program source", program.source)?;
    let name = c_text("program name", program.name)?;
    let names: Vec<CString> =
        headers.iter().map(|(name, _)| c_text("header name", name)).collect::<Result<_>>()?;
    let texts: Vec<CString> =
        headers.iter().map(|(_, text)| c_text("header", text)).collect::<Result<_>>()?;
    let (names, texts) = (pointers(&names), pointers(&texts));
    let mut raw = std::ptr::null_mut();
    // SAFETY: the function is hipRTC's and copies every text; both arrays have the stated number of
    // entries.
    let status = unsafe {
        (rtc.hiprtcCreateProgram)(
            &mut raw,
            source.as_ptr(),
            name.as_ptr(),
            texts.len() as c_int,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    check_rtc(rtc, "hiprtcCreateProgram", status)?;
    Ok(RtcProgram { rtc, raw })
}

/// Compiles instantiations by exactly these names. Returns `None` if hipRTC compiles them but does
/// not find one of the names afterwards.
fn compile_named(
    rtc: &Hiprtc,
    program: &Program,
    expressions: &[&str],
    options: &[&str],
) -> Result<Option<CompiledKernels>> {
    let name_expressions: Vec<CString> =
        expressions.iter().map(|expression| c_text("name expression", expression)).collect::<Result<_>>()?;
    let c_options: Vec<CString> =
        options.iter().map(|option| c_text("compiler option", option)).collect::<Result<_>>()?;
    let arguments = pointers(&c_options);
    let headers: Vec<_> = HEADERS.iter().chain(program.headers).copied().collect();
    let _held = library::compiling();
    let created = create(rtc, program, &headers)?;
    // SAFETY: the functions are hipRTC's, the handle is alive, and each pointer points to what
    // hipRTC's header requires.
    unsafe {
        for expression in &name_expressions {
            let status = (rtc.hiprtcAddNameExpression)(created.raw, expression.as_ptr());
            check_rtc(rtc, "hiprtcAddNameExpression", status)?;
        }
        let status = (rtc.hiprtcCompileProgram)(created.raw, arguments.len() as c_int, arguments.as_ptr());
        let failed = |log: String| Error::Compilation {
            kernel: expressions.join("; "),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            log,
        };
        if status != hip_sys::HIPRTC_SUCCESS {
            let log = log_of(&created);
            return Err(match check_rtc(rtc, "hiprtcCompileProgram", status) {
                Err(why) if log.is_empty() => failed(why.to_string()),
                _ => failed(log),
            });
        }
        let mut symbols = Vec::with_capacity(expressions.len());
        for expression in &name_expressions {
            let mut symbol: *const c_char = std::ptr::null();
            let status = (rtc.hiprtcGetLoweredName)(created.raw, expression.as_ptr(), &mut symbol);
            if status == hip_sys::HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID {
                return Ok(None);
            }
            if let Err(why) = check_rtc(rtc, "hiprtcGetLoweredName", status) {
                return Err(failed(why.to_string()));
            }
            symbols.push(std::ffi::CStr::from_ptr(symbol).to_string_lossy().into_owned());
        }
        let mut size = 0;
        check_rtc(rtc, "hiprtcGetCodeSize", (rtc.hiprtcGetCodeSize)(created.raw, &mut size))?;
        let mut code = vec![0u8; size].into_boxed_slice();
        check_rtc(rtc, "hiprtcGetCode", (rtc.hiprtcGetCode)(created.raw, code.as_mut_ptr().cast()))?;
        Ok(Some(CompiledKernels { code, symbols }))
    }
}

fn log_of(program: &RtcProgram) -> String {
    let mut size = 0;
    // SAFETY: the functions are hipRTC's and the handle is alive; hipRTC writes as many bytes of
    // log as it stated, into a buffer that is one byte longer.
    unsafe {
        if (program.rtc.hiprtcGetProgramLogSize)(program.raw, &mut size) != hip_sys::HIPRTC_SUCCESS {
            return String::new();
        }
        let mut log = vec![0u8; size + 1];
        if (program.rtc.hiprtcGetProgramLog)(program.raw, log.as_mut_ptr().cast()) != hip_sys::HIPRTC_SUCCESS
        {
            return String::new();
        }
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(size);
        String::from_utf8_lossy(&log[..end]).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hip_kernels::{DType, Functor, Template};

    #[test]
    fn only_kernels_of_one_family_go_together() {
        let add = Template::binary_contiguous.functor(Functor::Add).ty(DType::F32);
        let sum = Template::reduce_rows.functor(Functor::Sum).ty(DType::F32);
        assert_eq!(family_of(&[add]).map(|family| family.name).ok(), Some("binary"));
        for names in [&[][..], &[add, sum], &[Template::binary_contiguous.functor(Functor::Add)]] {
            assert!(matches!(family_of(names), Err(Error::Compilation { .. })), "{names:?}");
        }
    }

    #[test]
    fn each_part_of_a_key_counts() {
        let amd = || Toolchain {
            provider: ProviderKind::Rocm,
            hiprtc: (9, 0),
            runtime: 60_443_482,
            builds: "libamd_comgr 0a1b, libhiprtc 2c3d".into(),
        };
        let options = ["--offload-arch=gfx1030", "-O3"];
        let base = || key(&amd(), 1, "k<f32>", &options);
        let others = [
            key(&Toolchain { provider: ProviderKind::Cpu, ..amd() }, 1, "k<f32>", &options),
            key(&Toolchain { hiprtc: (9, 1), ..amd() }, 1, "k<f32>", &options),
            // ROCm 7.2 and 6.4: hipRTC gives version 9.0 for both.
            key(&Toolchain { runtime: 70_251_831, ..amd() }, 1, "k<f32>", &options),
            key(
                &Toolchain { builds: "libamd_comgr 0a1c, libhiprtc 2c3d".into(), ..amd() },
                1,
                "k<f32>",
                &options,
            ),
            key(&amd(), 2, "k<f32>", &options),
            key(&amd(), 1, "k<f16>", &options),
            key(&amd(), 1, "k<f32>", &["--offload-arch=gfx1031", "-O3"]),
            key(&amd(), 1, "k<f32>", &["--offload-arch=gfx1030"]),
        ];
        assert_eq!(base(), base());
        assert!(others.iter().all(|other| *other != base()));
        for (at, one) in others.iter().enumerate() {
            assert!(!others[..at].contains(one), "key {at} is another's too");
        }
    }
}
