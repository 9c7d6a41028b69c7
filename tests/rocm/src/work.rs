//! Distributes the compilation over processes of this program, because in one process hipRTC
//! compiles only one program at a time.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hip::{Compiler, KernelName, Template};
use hip_kernels::{Family, HEADERS};
use serde::{Deserialize, Serialize};

use crate::assembly::{Accesses, accesses, disassembly, fused, matrix_products};
use crate::cores::is_counted;
use crate::made_with;
use crate::notes::{Notes, notes_of};
use crate::wide::wide;

/// The number of kernels that are compiled together. Many, because starting the compiler takes as
/// long as compiling ten kernels.
const TOGETHER: usize = 120;

/// Whether a kernel has several ops in a row, each of which must round its result as its own kernel
/// does. Then no product of one op may be fused with the sum of the next.
fn rounds_each_step(name: &KernelName) -> bool {
    name.template() == Template::chain
}

/// One kernel on one architecture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Compiled {
    /// The architecture.
    pub(crate) architecture: String,
    /// The family, which is the source file.
    pub(crate) family: String,
    /// The hash of its sources, from [`sources_of`].
    pub(crate) sources: u64,
    /// The instantiation.
    pub(crate) kernel: String,
    /// The notes of its code object.
    pub(crate) notes: Notes,
    /// Its memory accesses; `None` if no rule is about them.
    pub(crate) accesses: Option<Accesses>,
    /// Its fused multiply-adds: as compiled, and with `-ffp-contract=off`. `None` if no rule is
    /// about them.
    pub(crate) fused: Option<[u32; 2]>,
    /// Its products on matrix cores; `None` if no rule is about them.
    pub(crate) products: Option<u32>,
}

/// What a job does with its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compiles them with the compiler for which they are tuned.
    Read,
    /// Compiles them with an older compiler. First finds out with one kernel which form of names
    /// this compiler expects. Disassembles nothing.
    Find,
}

impl Mode {
    /// The word that tells a process its mode.
    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Find => "find",
        }
    }

    /// The mode that a process was told.
    pub(crate) fn of(word: &str) -> Option<Self> {
        [Self::Read, Self::Find].into_iter().find(|mode| mode.word() == word)
    }
}

/// The variable that names a folder for the code objects, if they are wanted.
const OBJECTS: &str = "KERNEL_OBJECTS";

/// Some kernels of a family on one architecture.
#[derive(Debug, Clone)]
struct Job {
    architecture: &'static str,
    family: &'static Family,
    first: usize,
}

/// A hash of everything that determines a family's results: the compiler, its options, the source,
/// the included headers, the requested instantiations, and which of their instructions are counted.
pub(crate) fn sources_of(family: &Family) -> u64 {
    let mut hasher = DefaultHasher::new();
    (made_with().ok(), Compiler::OPTIONS, family.source).hash(&mut hasher);
    let mut texts = vec![family.source];
    let mut left: Vec<_> = HEADERS.to_vec();
    while let Some(text) = texts.pop() {
        left.retain(|&(name, header)| {
            let included = text.contains(&format!("#include \"{name}\""));
            if included {
                header.hash(&mut hasher);
                texts.push(header);
            }
            !included
        });
    }
    // As text: the enums' numbers change with every template that is inserted before them.
    family.instantiations().for_each(|name| name.to_string().hash(&mut hasher));
    if family.rules.iter().any(|rule| is_counted(rule.template)) {
        "products".hash(&mut hasher);
    }
    if family.instantiations().any(|name| rounds_each_step(&name)) {
        "fused".hash(&mut hasher);
    }
    hasher.finish()
}

/// Compiles every kernel of these families for these architectures with `processes` processes.
/// Returns the results and the failures. Skips jobs whose results are all in `known`. Calls
/// `finished` with the results of each job when it ends.
pub(crate) fn compile_all(
    architectures: &[&'static str],
    families: &[&'static Family],
    known: &[Compiled],
    processes: usize,
    mode: Mode,
    finished: impl Fn(&[Compiled]) + Sync,
) -> (Vec<Compiled>, Vec<String>) {
    let known: HashSet<(&str, &str)> =
        known.iter().map(|one| (one.architecture.as_str(), one.kernel.as_str())).collect();
    let mut jobs = Vec::new();
    for family in families {
        let names: Vec<String> = family.instantiations().map(|name| name.to_string()).collect();
        for (chunk, names) in names.chunks(TOGETHER).enumerate() {
            for &architecture in architectures {
                if !names.iter().all(|name| known.contains(&(architecture, name))) {
                    jobs.push(Job { architecture, family, first: chunk * TOGETHER });
                }
            }
        }
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new((Vec::new(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..processes.max(1) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = in_process(job, mode);
                    let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match result {
                        Ok(compiled) => {
                            finished(&compiled);
                            done.0.extend(compiled);
                        }
                        Err(why) => {
                            let Job { architecture, family, first } = job;
                            done.1.push(format!("{architecture} {} from {first}: {why}", family.name));
                        }
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The results in a file from an earlier run, for families whose sources did not change; empty if
/// there is no file.
pub(crate) fn kept(file: &Path) -> Result<Vec<Compiled>, String> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| format!("{}: {error}", file.display()))?,
    };
    let current: HashMap<&str, u64> =
        hip_kernels::families().iter().map(|family| (family.name, sources_of(family))).collect();
    let mut found = Vec::new();
    for line in text.lines() {
        // A line that an earlier version of this program wrote may have another format.
        let Ok(one) = serde_json::from_str::<Compiled>(line) else { continue };
        if current.get(one.family.as_str()) == Some(&one.sources) {
            found.push(one);
        }
    }
    Ok(found)
}

/// Appends results to a file.
pub(crate) fn keep(file: &mut File, compiled: &[Compiled]) -> Result<(), String> {
    let mut lines = String::new();
    for one in compiled {
        lines += &serde_json::to_string(one).map_err(|error| error.to_string())?;
        lines.push('\n');
    }
    file.write_all(lines.as_bytes()).map_err(|error| error.to_string())
}

/// Runs a job in a separate process and reads its output: one line for each kernel.
fn in_process(job: &Job, mode: Mode) -> Result<Vec<Compiled>, String> {
    let program = std::env::args().next().ok_or("no program name")?;
    let mut child = Command::new(&program)
        .args([mode.word(), job.architecture, job.family.name, &job.first.to_string()])
        // LLVM's own cache would hide compilations.
        .env("AMD_COMGR_CACHE", "0")
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let lines = child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines());
    let mut compiled = Vec::new();
    let mut other = Vec::new();
    for line in lines {
        let line = line.map_err(|error| error.to_string())?;
        match serde_json::from_str(&line) {
            Ok(kernel) => compiled.push(kernel),
            Err(_) => other.push(line),
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let expected = job.family.instantiations().count().saturating_sub(job.first).min(TOGETHER);
    if !status.success() || compiled.len() != expected {
        let said = other.join("\n");
        return Err(format!("{status}, {} of {expected} kernels compiled\n{said}", compiled.len()));
    }
    Ok(compiled)
}

/// The work of a job's process: writes one line for each kernel, or the error.
pub(crate) fn worker(mode: Mode, architecture: &str, family: &str, first: &str) -> Result<(), String> {
    let family = hip_kernels::families().iter().find(|one| one.name == family).ok_or("no such family")?;
    let first: usize = first.parse().map_err(|_| "no number")?;
    let names: Vec<KernelName> = family.instantiations().skip(first).take(TOGETHER).collect();
    let compiler = Compiler::load().map_err(|error| error.to_string())?;
    if let (Mode::Find, Some(&name)) = (mode, names.first()) {
        compiler.compile(architecture, &[name]).map_err(|error| error.to_string())?;
    }
    let object = compiler.compile(architecture, &names).map_err(|error| error.to_string())?;
    if let Some(folder) = std::env::var_os(OBJECTS) {
        let file = Path::new(&folder).join(format!("{architecture}-{}-{first}.co", family.name));
        std::fs::write(&file, &object.code).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let notes: HashMap<String, Notes> =
        notes_of(&object.code)?.into_iter().map(|notes| (notes.symbol.clone(), notes)).collect();
    let rounded: Vec<KernelName> = names.iter().copied().filter(rounds_each_step).collect();
    let counts = |name: &KernelName| wide(name).is_some() || is_counted(name.template());
    let is_read = !rounded.is_empty() || names.iter().any(counts);
    let text = match mode == Mode::Read && is_read {
        true => disassembled(&object.code)?,
        false => String::new(),
    };
    let unfused = match mode == Mode::Read && !rounded.is_empty() {
        true => {
            let object = compiler.compile_with(architecture, &rounded, &["-ffp-contract=off"]);
            disassembled(&object.map_err(|error| error.to_string())?.code)?
        }
        false => String::new(),
    };
    let (accesses, fusions) = (accesses(&text), [fused(&text), fused(&unfused)]);
    let products = matrix_products(&text);
    let sources = sources_of(family);
    for (name, symbol) in names.iter().zip(&object.symbols) {
        let notes = notes.get(symbol).ok_or_else(|| format!("{name}: no notes"))?.clone();
        let is_wide = mode == Mode::Read && wide(name).is_some();
        let accesses = is_wide.then(|| accesses.get(symbol).copied().unwrap_or_default());
        let is_rounded = mode == Mode::Read && rounds_each_step(name);
        let of_symbol = |all: &HashMap<String, u32>| all.get(symbol).copied().unwrap_or_default();
        let fused = is_rounded.then(|| fusions.each_ref().map(of_symbol));
        let is_on_cores = mode == Mode::Read && is_counted(name.template());
        let products = is_on_cores.then(|| of_symbol(&products));
        let compiled = Compiled {
            architecture: architecture.to_owned(),
            family: family.name.to_owned(),
            sources,
            kernel: name.to_string(),
            notes,
            accesses,
            fused,
            products,
        };
        println!("{}", serde_json::to_string(&compiled).map_err(|error| error.to_string())?);
    }
    Ok(())
}

/// The disassembly of a code object.
fn disassembled(code: &[u8]) -> Result<String, String> {
    let file = format!("/tmp/kernels-{}.co", std::process::id());
    std::fs::write(&file, code).map_err(|error| format!("{file}: {error}"))?;
    let text = disassembly(file.as_ref());
    let _ = std::fs::remove_file(&file);
    text
}
