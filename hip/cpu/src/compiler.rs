//! The host's C++ compiler at run time, for programs that are not built in.

use crate::{
    abi::Table,
    flags::{self, IsaFlags, LOCKSTEP, isas},
    folder::Folder,
    kernels::isa,
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Component, Path, PathBuf},
    process::{Command, Output},
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

/// The file that is compiled, and the one that is made.
const SOURCE: &str = "program.cpp";
const LIBRARY: &str = "program.so";

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
    compile_by(&compilers(), unit, cfg!(windows))
}

/// As [`compile`], by the first of the compilers that runs. `windows` chooses the kernels' flags.
fn compile_by(compilers: &[OsString], unit: &Unit<'_>, windows: bool) -> Result<(Vec<u8>, String), String> {
    let (std, options) = options(unit.options)?;
    let options = with_folders(&options);
    let folder = Folder::new().map_err(|error| format!("no folder for temporary files: {error}"))?;
    let folder = folder.path();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
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
        write(name, &with_dynamic_shared(text))?;
    }
    fs::write(folder.join(SOURCE), unit.text()).map_err(|error| error.to_string())?;

    let isa = isas(env::consts::ARCH).iter().chain([&LOCKSTEP]).find(|known| known.name == isa().name);
    let isa = isa.unwrap_or(&IsaFlags { name: "", flags: &[] });
    let run = |compiler: &OsStr, if_known: &[&str]| -> io::Result<(Output, String)> {
        let mut command = Command::new(compiler);
        command.arg(&std).args(["-shared", "-w"]).args(SYSTEM).args(flags::of(isa)).args(if_known);
        // The compiler runs in the folder and gets names without it. MinGW's reads a path in the
        // code page of its system, which may lack the letters of the user's folder.
        command.args(["-iquote", ".", "-idirafter", "."]).args(&options);
        command.current_dir(folder).args([SOURCE, "-o", LIBRARY]).args(LIBRARIES);
        let output = command.output()?;
        // Of a header in the folder, its name is enough.
        let log = String::from_utf8_lossy(&output.stderr).replace("from ./", "from ");
        let log: String =
            log.split_inclusive('\n').map(|line| line.strip_prefix("./").unwrap_or(line)).collect();
        Ok((output, log))
    };
    let mut tried = Vec::new();
    for compiler in compilers {
        let ran = run(compiler, flags::if_known(windows)).and_then(|(output, log)| {
            // A compiler or assembler that does not know a flag names it.
            let unknown = |flag: &&str| log.contains(flag.trim_start_matches("-Wa,"));
            match !output.status.success() && flags::if_known(windows).iter().any(unknown) {
                true => run(compiler, &[]),
                false => Ok((output, log)),
            }
        });
        match ran {
            Ok((output, log)) if output.status.success() => {
                let library = fs::read(folder.join(LIBRARY)).map_err(|error| error.to_string())?;
                return Ok((library, log));
            }
            Ok((output, log)) => return Err(if log.is_empty() { output.status.to_string() } else { log }),
            Err(error) => tried.push(format!("{}: {error}", Path::new(compiler).display())),
        }
    }
    Err(format!(
        "this program is not among the built-in ones, and no C++ compiler runs here to compile it ({}); install g++ or \
         point CXX at a compiler",
        tried.join("; ")
    ))
}

fn compilers() -> Vec<OsString> {
    compilers_of(env::var_os("CXX"))
}

/// The compilers to try, where `set` is the value of `CXX`.
fn compilers_of(set: Option<OsString>) -> Vec<OsString> {
    let set = set.filter(|value| !value.is_empty()).map(absolute);
    set.into_iter().chain(["c++", "g++", "clang++"].map(OsString::from)).collect()
}

/// A program's path as any folder sees it, because the compiler runs in another folder than this
/// process. A name without a folder is looked up in PATH, so it stays.
fn absolute(program: OsString) -> OsString {
    match Path::new(&program).components().count() {
        0 | 1 => program,
        _ => std::path::absolute(&program).map_or(program, PathBuf::into_os_string),
    }
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

/// The options, and after each relative folder of headers the folder of that name in this process's
/// folder. The compiler runs in another folder, which has the program's own headers.
fn with_folders(options: &[&str]) -> Vec<OsString> {
    let mut all = Vec::new();
    let mut options = options.iter().copied();
    while let Some(option) = options.next() {
        all.push(OsString::from(option));
        let word = if ["-D", "-U", "-I", "-include"].contains(&option) { options.next() } else { None };
        all.extend(word.map(OsString::from));
        let folder = if option == "-I" { word } else { option.strip_prefix("-I") };
        if let Some(folder) = folder.map(Path::new).filter(|folder| folder.is_relative())
            && let Ok(folder) = std::path::absolute(folder)
        {
            all.extend([OsString::from("-I"), folder.into_os_string()]);
        }
    }
    all
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
            with_dynamic_shared(self.source)
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

/// The code with each `extern __shared__ T name[];` as a pointer to the block's dynamic shared
/// memory. A host's compiler knows no such arrays.
fn with_dynamic_shared(code: &str) -> String {
    let mut parts = code.split("extern");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let pointer = part.split_once(';').and_then(|(declaration, rest)| {
            let array = declaration.trim_start().strip_prefix("__shared__")?.trim_end();
            let array = array.strip_suffix(']')?.trim_end().strip_suffix('[')?.trim_end();
            let name = array.rsplit(|letter: char| letter != '_' && !letter.is_alphanumeric()).next()?;
            let element = array.strip_suffix(name).filter(|element| !element.contains('['))?;
            Some(format!("{element}*const {name} = HIP_CPU_DYNAMIC;{rest}"))
        });
        text.push_str(&pointer.unwrap_or_else(|| format!("extern{part}")));
    }
    text
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

/// A program that [`compile`] made, loaded. Windows keeps the file of a loaded library, so the
/// folder is removed after the library is unloaded.
pub(crate) struct Program {
    library: libloading::Library,
    _folder: Option<Folder>,
}

impl Program {
    /// Loads a shared object from memory.
    pub(crate) fn load(library: &[u8]) -> Result<Self, String> {
        let folder = Folder::new()?;
        let mut path = folder.path().join(LIBRARY);
        fs::write(&path, library).map_err(|error| error.to_string())?;
        if cfg!(windows) {
            // With the prefix `\\?\`, without which the loader takes no path of 260 letters or more.
            path = fs::canonicalize(&path).map_err(|error| error.to_string())?;
        }
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
    fn dynamic_shared_memory_becomes_a_pointer() {
        for (code, pointer) in [
            ("{ extern __shared__ float a[]; f(a); }", "{  float *const a = HIP_CPU_DYNAMIC; f(a); }"),
            ("extern  __shared__\nPair<int, T*> a_1 [ ] ;", "\nPair<int, T*> *const a_1 = HIP_CPU_DYNAMIC;"),
        ] {
            assert_eq!(with_dynamic_shared(code), pointer);
        }
        for code in [
            "extern \"C\" __global__ void a() {} extern int b[];",
            "#define A(name) extern __shared__ int name[]\nA(a);",
            "#define A(name) extern __shared__ int name[]\nint b[];",
            "extern __shared__ int a[4];",
            "extern",
        ] {
            assert_eq!(with_dynamic_shared(code), code);
        }
    }

    /// A compiler that writes its arguments to `seen`, one a line, and then runs `body`.
    #[cfg(unix)]
    fn compiler(folder: &Path, name: &str, body: &str) -> OsString {
        use std::os::unix::fs::PermissionsExt;
        let (path, seen) = (folder.join(name), folder.join("seen"));
        let text = format!("#!/bin/sh\nprintf '%s\\n' \"$@\" >>'{}'\n{body}\n", seen.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        // A process that another test starts may have inherited the file while it was open to be
        // written. Until that process runs its own program, the file can't be run.
        let run = || std::process::Command::new(&path).output();
        while run().is_err_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy) {
            std::thread::yield_now();
        }
        fs::remove_file(&seen).unwrap();
        path.into()
    }

    #[cfg(unix)]
    const OWN: Unit<'static> = Unit {
        name: "own",
        source: "extern \"C\" __global__ void own(int *p) { *p = 1; }",
        headers: &[],
        options: &[],
        names: &[],
    };

    /// The body of a compiler that makes no library, so what is read back is what it wrote.
    #[cfg(unix)]
    const MAKES: &str = "while [ $# -gt 1 ]; do [ \"$1\" != -o ] || printf made >\"$2\"; shift; done";

    /// The compiler runs in a temporary folder.
    #[cfg(unix)]
    #[test]
    fn a_relative_compiler_is_of_this_processs_folder() {
        let folder = Folder::new().unwrap();
        let path = compiler(folder.path(), "own-c++", MAKES);
        let up: PathBuf = env::current_dir().unwrap().components().skip(1).map(|_| "..").collect();
        let relative = up.join(Path::new(&path).strip_prefix("/").unwrap());
        assert!(relative.is_file(), "{}", relative.display());
        let made = Ok((b"made".to_vec(), String::new()));
        assert_eq!(compile_by(&compilers_of(Some(relative.into())), &OWN, false), made);
        assert_eq!(compilers_of(Some("own-c++".into()))[0], "own-c++", "this is for PATH");
    }

    #[test]
    fn relative_folders_of_headers_are_of_this_processs_folder_too() {
        let here = |folder: &str| env::current_dir().unwrap().join(folder).display().to_string();
        let (one, two) = (here("one"), here("two"));
        let given = ["-Ione", "-I", "two", "-D", "-Iname", "-DA=1", "-include", "a.h"];
        let want = ["-Ione", "-I", one.as_str(), "-I", "two", "-I", two.as_str()];
        let want = [&want[..], &given[3..]].concat();
        assert_eq!(with_folders(&given), want);
        let far = format!("-I{one}");
        assert_eq!(with_folders(&[far.as_str()]), [far.as_str()]);
    }

    /// Windows's kernels need [`flags::UNALIGNED_MOVES`], whether the build script or a program at run
    /// time compiles them. A compiler that does not know the flag compiles without it.
    #[cfg(unix)]
    #[test]
    fn windows_gets_its_flag_from_compilers_that_know_it() {
        let unit = OWN;
        let folder = Folder::new().unwrap();
        let seen = || {
            let seen = fs::read_to_string(folder.path().join("seen")).unwrap();
            fs::remove_file(folder.path().join("seen")).unwrap();
            assert!(flags::COMMON.iter().all(|flag| seen.lines().any(|line| line == *flag)), "{seen}");
            seen.lines().filter(|line| *line == flags::UNALIGNED_MOVES).count()
        };
        let make = MAKES;
        let knows = compiler(folder.path(), "knows", make);
        let refuses = "case \"$*\" in *unaligned-vector-move*) echo \"as: unrecognized option \
                       '-muse-unaligned-vector-move'\" >&2; exit 1;; esac";
        let old = compiler(folder.path(), "old", &format!("{refuses}\n{make}"));
        let fails = compiler(folder.path(), "fails", "echo 'program.cpp:1: error' >&2; exit 1");

        let made = Ok((b"made".to_vec(), String::new()));
        assert_eq!(compile_by(std::slice::from_ref(&knows), &unit, true), made);
        assert_eq!(seen(), 1);
        assert_eq!(compile_by(&[knows], &unit, false), made);
        assert_eq!(seen(), 0);
        assert_eq!(compile_by(&[old], &unit, true), made);
        assert_eq!(seen(), 1, "the second call is without the flag");
        assert_eq!(compile_by(&[fails], &unit, true), Err("program.cpp:1: error\n".into()));
        assert_eq!(seen(), 1, "another error is not tried again");
    }

    #[test]
    fn options_of_a_gpu_are_not_the_hosts() {
        let given = ["--offload-arch=cpu", "-O3", "-DA=1", "-D", "B", "-std=c++20"].map(String::from);
        assert_eq!(options(&given), Ok(("-std=c++20".into(), vec!["-DA=1", "-D", "B"])));
        assert!(options(&["--no-such".into()]).is_err());
        assert!(options(&["-D".into()]).is_err());
    }
}
