//! Compiling, spread over processes of this program: hipRTC compiles one thing at a time in a process.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hip::{Compiler, KernelName};
use hip_kernels::Family;
use serde::{Deserialize, Serialize};

use crate::assembly::{Accesses, accesses_of};
use crate::notes::{Notes, notes_of};
use crate::rules;

/// Kernels that are compiled together: the compiler's own start takes as long as ten of them.
const TOGETHER: usize = 120;

/// One kernel on one architecture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Compiled {
    /// The architecture.
    pub(crate) architecture: String,
    /// The family, that is the source file.
    pub(crate) family: String,
    /// The instantiation.
    pub(crate) kernel: String,
    /// What its code object says.
    pub(crate) notes: Notes,
    /// How it reaches memory; `None` where nothing is asked of that.
    pub(crate) accesses: Option<Accesses>,
}

/// Some kernels of a family on one architecture.
#[derive(Debug, Clone)]
struct Job {
    architecture: &'static str,
    family: &'static Family,
    first: usize,
}

/// Compiles every kernel of these families for these architectures, `processes` at a time, the largest families first.
/// Returns what was compiled and what failed. What is in `known` already is left out, whole families at a time.
pub(crate) fn compile_all(
    architectures: &[&'static str],
    families: &[&'static Family],
    known: &[Compiled],
    processes: usize,
) -> (Vec<Compiled>, Vec<String>) {
    let known: HashSet<(&str, &str)> =
        known.iter().map(|one| (one.architecture.as_str(), one.family.as_str())).collect();
    let mut jobs = Vec::new();
    for family in families {
        let architectures: Vec<&'static str> =
            architectures.iter().copied().filter(|one| !known.contains(&(one, family.name))).collect();
        for first in (0..family.instantiations().count()).step_by(TOGETHER) {
            for &architecture in &architectures {
                jobs.push(Job { architecture, family, first });
            }
        }
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new((Vec::new(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..processes.max(1) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = in_process(job);
                    let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match result {
                        Ok(compiled) => done.0.extend(compiled),
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

/// What an earlier run left in a file; nothing where there is none.
pub(crate) fn kept(file: &Path) -> Result<Vec<Compiled>, String> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| format!("{}: {error}", file.display()))?,
    };
    let line = |line| serde_json::from_str(line).map_err(|error| format!("{}: {error}", file.display()));
    text.lines().map(line).collect()
}

/// Adds to the file what a run compiled.
pub(crate) fn keep(file: &Path, compiled: &[Compiled]) -> Result<(), String> {
    let mut out =
        OpenOptions::new().create(true).append(true).open(file).map_err(|error| error.to_string())?;
    for one in compiled {
        let line = serde_json::to_string(one).map_err(|error| error.to_string())?;
        writeln!(out, "{line}").map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Runs a job in a process of its own and reads what it writes: a line a kernel.
fn in_process(job: &Job) -> Result<Vec<Compiled>, String> {
    let program = std::env::args().next().ok_or("no program name")?;
    let mut child = Command::new(&program)
        .args(["worker", job.architecture, job.family.name, &job.first.to_string()])
        // LLVM's own cache would hide what is compiled.
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

/// What the process of a job does: writes a line a kernel, or what went wrong.
pub(crate) fn worker(architecture: &str, family: &str, first: &str) -> Result<(), String> {
    let family = hip_kernels::families().iter().find(|one| one.name == family).ok_or("no such family")?;
    let first: usize = first.parse().map_err(|_| "no number")?;
    let names: Vec<KernelName> = family.instantiations().skip(first).take(TOGETHER).collect();
    let compiler = Compiler::load().map_err(|error| error.to_string())?;
    let object = compiler.compile(architecture, &names).map_err(|error| error.to_string())?;
    let notes: HashMap<String, Notes> =
        notes_of(&object.code)?.into_iter().map(|notes| (notes.symbol.clone(), notes)).collect();
    let accesses = if names.iter().any(|name| rules::wide(name).is_some()) {
        let file = format!("/tmp/kernels-{}.co", std::process::id());
        std::fs::write(&file, &object.code).map_err(|error| format!("{file}: {error}"))?;
        let accesses = accesses_of(file.as_ref());
        let _ = std::fs::remove_file(&file);
        Some(accesses?)
    } else {
        None
    };
    for (name, symbol) in names.iter().zip(&object.symbols) {
        let notes = notes.get(symbol).ok_or_else(|| format!("{name}: no notes"))?.clone();
        let accesses = rules::wide(name)
            .and(accesses.as_ref())
            .map(|accesses| accesses.get(symbol).copied().unwrap_or_default());
        let compiled = Compiled {
            architecture: architecture.to_owned(),
            family: family.name.to_owned(),
            kernel: name.expression(),
            notes,
            accesses,
        };
        println!("{}", serde_json::to_string(&compiled).map_err(|error| error.to_string())?);
    }
    Ok(())
}
