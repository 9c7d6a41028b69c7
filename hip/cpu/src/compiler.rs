//! The host's C++ compiler at run time, for programs that are not built in.

use crate::{
    abi::Table,
    flags::{COMMON, LOCKSTEP, isas},
    kernels::isa,
};
use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Component, MAIN_SEPARATOR, Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

const DEVICE_HEADERS: &[(&str, &str)] = &[
    ("hip_cpu.h", include_str!("../device/hip_cpu.h")),
    ("hip_cpu_table.h", include_str!("../device/hip_cpu_table.h")),
    // hipRTC has this header built in.
    ("hip/hip_runtime.h", ""),
];

/// Flags of this system for a shared library. On Windows, the library must not need gcc's own DLLs,
/// which lie in no folder where the loader looks.
const SYSTEM: &[&str] = if cfg!(windows) { &["-static"] } else { &["-fPIC"] };

const LIBRARIES: &[&str] = if cfg!(windows) { &[] } else { &["-lm"] };

/// A program to compile.
pub(crate) struct Unit<'a> {
    pub(crate) name: &'a str,
    pub(crate) source: &'a str,
    pub(crate) headers: &'a [(String, String)],
    pub(crate) options: &'a [String],
    pub(crate) names: &'a [String],
}

/// Compiles to a shared object and a log; `Err` is the compiler's log.
pub(crate) fn compile(unit: &Unit<'_>) -> Result<(Vec<u8>, String), String> {
    let (std, options) = options(unit.options)?;
    let folder = Folder::new().map_err(|error| format!("no folder for temporary files: {error}"))?;
    let write = |name: &str, text: &str| {
        let path = folder.0.join(name);
        if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(format!("{name}: not a header's name"));
        }
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text))
            .map_err(|e| e.to_string())
    };
    for (name, text) in DEVICE_HEADERS {
        write(name, text)?;
    }
    for (name, text) in unit.headers {
        write(name, text)?;
    }
    let source = folder.0.join("program.cpp");
    let library = folder.0.join("program.so");
    fs::write(&source, unit.text()).map_err(|error| error.to_string())?;

    let mut tried = Vec::new();
    for compiler in compilers() {
        let mut command = Command::new(&compiler);
        command.arg(&std).args(["-shared", "-w"]).args(COMMON).args(SYSTEM);
        let isa_flags =
            isas(env::consts::ARCH).iter().chain([&LOCKSTEP]).find(|known| known.name == isa().name);
        command.args(isa_flags.map_or(&[][..], |isa| isa.flags));
        command.arg("-iquote").arg(&folder.0).arg("-idirafter").arg(&folder.0).args(&options);
        // The compiler runs in the folder, so that its messages do not show the folder's path.
        command.current_dir(&folder.0).arg(&source).arg("-o").arg(&library).args(LIBRARIES);
        match command.output() {
            Ok(output) => {
                let beside = format!("{}{MAIN_SEPARATOR}", folder.0.display());
                let log = String::from_utf8_lossy(&output.stderr).replace(&beside, "");
                if !output.status.success() {
                    return Err(if log.is_empty() { output.status.to_string() } else { log });
                }
                return fs::read(&library).map(|library| (library, log)).map_err(|error| error.to_string());
            }
            Err(error) => tried.push(format!("{}: {error}", Path::new(&compiler).display())),
        }
    }
    Err(format!(
        "this program is not among the built-in ones, and no C++ compiler runs here to compile it ({}); install g++ or \
         point CXX at a compiler",
        tried.join("; ")
    ))
}

fn compilers() -> Vec<OsString> {
    let set = env::var_os("CXX").filter(|value| !value.is_empty());
    set.into_iter().chain(["c++", "g++", "clang++"].map(OsString::from)).collect()
}

/// The path of the compiler for programs that are not built in; `None` if there is none.
pub fn host_compiler() -> Option<PathBuf> {
    let folders: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let found = |name: OsString| {
        let path = Path::new(&name);
        // A name without a folder is looked up in PATH.
        let path = match path.components().count() {
            1 => folders.iter().map(|folder| program(folder.join(path))).find(|path| path.is_file())?,
            _ => program(path.to_owned()),
        };
        // `c++` is a link to a link to the compiler.
        fs::canonicalize(path).ok()
    };
    compilers().into_iter().find_map(found)
}

/// The file of a program: on Windows its name ends with `.exe`.
fn program(path: PathBuf) -> PathBuf {
    if env::consts::EXE_EXTENSION.is_empty() || path.extension().is_some() {
        path
    } else {
        path.with_extension(env::consts::EXE_EXTENSION)
    }
}

/// The language standard, and the options that a host compiler understands. Options for GPU code
/// are dropped.
fn options(given: &[String]) -> Result<(String, Vec<&str>), String> {
    let mut std = "-std=c++17".to_owned();
    let mut kept = Vec::new();
    let mut given = given.iter().map(String::as_str);
    while let Some(option) = given.next() {
        if option.starts_with("-std=") || option.starts_with("--std=") {
            std = format!("-{}", option.trim_start_matches('-'));
        } else if ["-D", "-U", "-I", "-include"].contains(&option) {
            kept.push(option);
            kept.push(given.next().ok_or_else(|| format!("error: argument to '{option}' is missing"))?);
        } else if ["-D", "-U", "-I"].iter().any(|start| option.starts_with(start)) {
            kept.push(option);
        } else if ![
            "-O",
            "-g",
            "-f",
            "-m",
            "-W",
            "-w",
            "-nogpu",
            "--offload-arch=",
            "--gpu-architecture=",
            "--hiprtc",
        ]
        .iter()
        .any(|start| option.starts_with(start))
        {
            return Err(format!("error: unknown argument: '{option}'"));
        }
    }
    Ok((std, kept))
}

impl Unit<'_> {
    fn text(&self) -> String {
        let code = without_comments(self.source);
        // A program without `prelude.h` gets the C library's mathematical functions, because AMD's
        // compiler has such functions built in.
        let library = if code.contains("#include \"prelude.h\"") {
            ""
        } else {
            "#include <math.h>\n#include <stdint.h>\n"
        };
        let name = if self.name.is_empty() { "program" } else { self.name };
        let mut text = format!(
            "{library}#include \"hip_cpu.h\"\n#line 1 {name:?}\n{}\n#line 1 \"names\"\n",
            self.source
        );
        text.push_str("#include \"hip_cpu_table.h\"\nstatic const hip_cpu_entry hip_cpu_entries[] = {\n");
        let mut names = self.names.to_vec();
        names.extend(extern_kernels(&code).into_iter().filter(|name| !self.names.contains(name)));
        for name in &names {
            // A name expression may begin with `&`.
            let kernel = name.trim().trim_start_matches('&');
            text.push_str(&format!("HIP_CPU_KERNEL({name:?}, {kernel}),\n"));
        }
        text.push_str(
            "{nullptr, nullptr, 0, nullptr}};\n\
             struct hip_cpu_table_type { const void *entries; unsigned long long count; };\n\
             extern \"C\" __attribute__((visibility(\"default\"))) const hip_cpu_table_type hip_cpu_table = {\n\
             hip_cpu_entries, sizeof(hip_cpu_entries) / sizeof(hip_cpu_entries[0]) - 1};\n",
        );
        text
    }
}

fn without_comments(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        text.push_str(&rest[..at]);
        let (end, skip) = if rest[at..].starts_with("//") { ("\n", 0) } else { ("*/", 2) };
        rest = rest[at + 2..].find(end).map_or("", |length| &rest[at + 2 + length + skip..]);
    }
    text + rest
}

/// The kernels with plain names: `extern "C" __global__ void name(`.
fn extern_kernels(code: &str) -> Vec<String> {
    code.split("extern \"C\"")
        .skip(1)
        .filter_map(|declaration| {
            let mut declaration = declaration.to_owned();
            if let Some(bounds) = declaration.find("__launch_bounds__") {
                let end = bounds + declaration[bounds..].find(')')? + 1;
                declaration.replace_range(bounds..end, " ");
            }
            let head = &declaration[..declaration.find('(')?];
            if !head.contains("__global__") || head.contains([';', '{']) {
                return None;
            }
            head.split_whitespace().next_back().map(str::to_owned)
        })
        .collect()
}

/// A temporary folder that no other user may read, removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = env::temp_dir().join(format!("hip-cpu-{}-{number}", std::process::id()));
            match create_private(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(unix)]
fn create_private(folder: &Path) -> io::Result<()> {
    std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(folder)
}

/// The folder for temporary files of a Windows user is that user's alone, and so is what it holds.
#[cfg(not(unix))]
fn create_private(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that [`compile`] made, loaded. Windows keeps the file of a loaded library, so the
/// folder is removed after the library is unloaded.
pub(crate) struct Program {
    library: libloading::Library,
    _folder: Option<Folder>,
}

impl Program {
    /// Loads a shared object from memory.
    pub(crate) fn load(library: &[u8]) -> Result<Self, String> {
        let folder = Folder::new().map_err(|error| error.to_string())?;
        let path = folder.0.join("program.so");
        fs::write(&path, library).map_err(|error| error.to_string())?;
        // SAFETY: `compile` made the library, which has no initialisers.
        let library = unsafe { libloading::Library::new(&path) }.map_err(|error| error.to_string())?;
        Ok(Self { library, _folder: cfg!(windows).then_some(folder) })
    }

    /// The program's table of kernels; `None` if the library has none.
    pub(crate) fn table(&self) -> Option<&Table> {
        // SAFETY: `Unit::text` makes the symbol, of this type, and it lives as long as the library.
        let table = unsafe { self.library.get::<*const Table>(b"hip_cpu_table\0") }.ok()?;
        // SAFETY: as above.
        Some(unsafe { &**table })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_kernels_are_found() {
        let code = "/* extern \"C\" __global__ void no(int) */ extern \"C\" __global__ void one(int *p) {}\n// extern\n\
                    extern \"C\" __global__ __launch_bounds__(256) void two() {} extern \"C\" int three();";
        assert_eq!(extern_kernels(&without_comments(code)), ["one", "two"]);
    }

    #[test]
    fn options_of_a_gpu_are_not_the_hosts() {
        let given = ["--offload-arch=cpu", "-O3", "-DA=1", "-D", "B", "-std=c++20"].map(String::from);
        assert_eq!(options(&given), Ok(("-std=c++20".into(), vec!["-DA=1", "-D", "B"])));
        assert!(options(&["--no-such".into()]).is_err());
        assert!(options(&["-D".into()]).is_err());
    }
}
