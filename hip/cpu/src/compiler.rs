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
    ("hip_cpu_program.h", include_str!("../device/hip_cpu_program.h")),
    ("hip_cpu_table.h", include_str!("../device/hip_cpu_table.h")),
    // hipRTC has this header built in.
    ("hip/hip_runtime.h", ""),
];

/// Flags of this system for a shared library. On Windows, the library must not need gcc's own DLLs,
/// which lie in no folder where the loader looks. Without `-z defs`, Linux's linker accepts calls of
/// functions that do not exist. A program needs no symbol of this process, because a launch gives it
/// the process's functions as pointers.
const SYSTEM: &[&str] = if cfg!(windows) {
    &["-static"]
} else if cfg!(target_os = "linux") {
    &["-fPIC", "-Wl,-z,defs"]
} else {
    &["-fPIC"]
};

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
    let options = from_here(&options, unit.headers);
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

/// Options that name a folder of headers, as the next word or in the same one.
const FOLDERS: [&str; 4] = ["-I", "-isystem", "-iquote", "-idirafter"];

/// The host compiler's option for a folder of headers, and the folder, which is empty if it is the
/// next word.
fn folder_of(option: &str) -> Option<(&'static str, &str)> {
    let long = ["--include-path=", "--include-directory="];
    match long.iter().find_map(|start| option.strip_prefix(start)) {
        Some(folder) => Some(("-I", folder)),
        None => FOLDERS.iter().find_map(|&start| Some((start, option.strip_prefix(start)?))),
    }
}

/// The language standard, and the options that a host compiler understands. Options for GPU code
/// are dropped. A folder of headers is a word of its own.
fn options(given: &[String]) -> Result<(String, Vec<&str>), String> {
    let mut std = "-std=c++17".to_owned();
    let mut kept: Vec<&str> = Vec::new();
    let mut given = given.iter().map(String::as_str);
    while let Some(option) = given.next() {
        let mut word = || given.next().ok_or_else(|| format!("error: argument to '{option}' is missing"));
        if option.starts_with("-std=") || option.starts_with("--std=") {
            std = format!("-{}", option.trim_start_matches('-'));
        } else if let Some((start, folder)) = folder_of(option) {
            kept.extend([start, if folder.is_empty() { word()? } else { folder }]);
        } else if ["-D", "-U", "-include"].contains(&option) {
            kept.extend([option, word()?]);
        } else if ["-D", "-U"].iter().any(|start| option.starts_with(start)) {
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

/// The options for a compiler that runs in another folder, which has the program's own headers.
/// After each relative folder of headers comes the folder of that name in this process's folder. A
/// relative file to include is that of this process's folder, unless it is one of the program's own
/// or is not there.
fn from_here(options: &[&str], headers: &[(String, String)]) -> Vec<OsString> {
    let is_own = |file: &str| headers.iter().any(|(name, _)| name == file);
    let mut all = Vec::new();
    let mut options = options.iter().copied();
    while let Some(option) = options.next() {
        all.push(OsString::from(option));
        let names_folder = FOLDERS.contains(&option);
        if !names_folder && !["-D", "-U", "-include"].contains(&option) {
            continue;
        }
        let Some(word) = options.next() else { break };
        let here = std::path::absolute(word).ok().filter(|_| Path::new(word).is_relative());
        match here {
            Some(here) if names_folder => {
                all.extend([OsString::from(word), OsString::from(option), here.into_os_string()]);
            }
            Some(here) if option == "-include" && here.is_file() && !is_own(word) => {
                all.push(here.into_os_string());
            }
            _ => all.push(OsString::from(word)),
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
            "{library}#include \"hip_cpu.h\"\n#include \"hip_cpu_program.h\"\n\
             #line 1 {name:?}\n{}\n#line 1 \"names\"\n",
            with_dynamic_shared(self.source)
        );
        text.push_str("#include \"hip_cpu_table.h\"\nstatic const hip_cpu_entry hip_cpu_entries[] = {\n");
        // The search for kernels does not see macros, conditions and namespaces, so it is only for
        // programs that name no kernels. hipRTC's have all of their `extern "C"` kernels.
        let names = if self.names.is_empty() { extern_kernels(&code) } else { self.names.to_vec() };
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
        let given = ["-I", "one", "-isystem", "two", "-D", "-Iname", "-DA=1", "-include", "a.h"];
        let want = ["-I", "one", "-I", one.as_str(), "-isystem", "two", "-isystem", two.as_str()];
        assert_eq!(from_here(&given, &[]), [&want[..], &given[4..]].concat());
        assert_eq!(from_here(&["-iquote", one.as_str()], &[]), ["-iquote", one.as_str()]);
    }

    #[cfg(unix)]
    #[test]
    fn headers_on_disk_are_found_by_every_option() {
        let folder = Folder::new().unwrap();
        fs::write(folder.path().join("factor.h"), "#define FACTOR 3\n").unwrap();
        let up: PathBuf = env::current_dir().unwrap().components().skip(1).map(|_| "..").collect();
        let relative = up.join(folder.path().strip_prefix("/").unwrap()).display().to_string();
        let file = format!("{relative}/factor.h");
        let own = [(file.clone(), String::new())];
        assert_eq!(from_here(&["-include", file.as_str()], &own), ["-include", file.as_str()]);
        let word = |option: &str, path: &str| vec![option.to_owned(), path.to_owned()];
        assert_eq!(
            from_here(&["-include", "Cargo.toml"], &[])[1],
            env::current_dir().unwrap().join("Cargo.toml")
        );
        for (options, include) in [
            (word("-include", &file), ""),
            (word("-isystem", &relative), "#include <factor.h>"),
            (vec![format!("-iquote{relative}")], "#include \"factor.h\""),
            (vec![format!("--include-path={relative}")], "#include <factor.h>"),
        ] {
            let source = format!("{include}\nextern \"C\" __global__ void own(int *p) {{ *p = FACTOR; }}");
            let compiled = compile(&Unit { source: &source, options: &options, ..OWN });
            assert!(compiled.is_ok(), "{options:?}: {}", compiled.unwrap_err());
        }
    }

    /// The preprocessor changes or drops two of the texts that look like kernels, and the third one is
    /// in a namespace.
    #[cfg(unix)]
    #[test]
    fn only_the_names_asked_for_are_listed() {
        let source = "
            #define SCALE(name, T) extern \"C\" __global__ void name(T *x) { *x *= 2; }
            SCALE(scale, float)
            #if __gfx942__
            extern \"C\" __global__ void on_matrix_cores(float *x) {}
            #endif
            namespace own { extern \"C\" __global__ void inside(float *x) { *x = 1; } }";
        let names = ["scale".to_owned()];
        let unit = Unit { name: "scale.hip", source, headers: &[], options: &[], names: &names };
        assert_eq!(unit.text().matches("HIP_CPU_KERNEL(").count(), 1);
        let (library, _) = compile(&unit).unwrap();
        assert!(Program::load(&library).unwrap().table().is_some());
    }

    /// Otherwise loading would fail or, with lazy binding, the call.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_call_of_a_missing_function_is_a_compile_error() {
        for declaration in ["", "__device__ int missing(int);"] {
            let kernel = "extern \"C\" __global__ void own(int *p) { *p = missing(*p); }";
            let log = compile(&Unit { source: &format!("{declaration}\n{kernel}"), ..OWN }).unwrap_err();
            assert!(log.contains("missing"), "{declaration:?}: {log}");
        }
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
        let given = ["-Ione", "-isystem", "two", "-iquotethree", "--include-path=four"].map(String::from);
        let kept = vec!["-I", "one", "-isystem", "two", "-iquote", "three", "-I", "four"];
        assert_eq!(options(&given), Ok(("-std=c++17".into(), kept)));
        for wrong in ["--no-such", "-D", "-I", "-isystem"] {
            assert!(options(&[wrong.into()]).is_err(), "{wrong}");
        }
    }
}
