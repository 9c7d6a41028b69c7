//! Compiles every kernel of the table with AMD's own hipRTC, without a GPU, and evaluates the notes
//! of the code objects.
//!
//! Runs inside a ROCm root (`root.sh`). `kernels.sh` copies it there and calls it:
//!
//! ```text
//! check DIRECTORY [--arch a,b | --full] [--family f,g] [--write] [--keep FILE] [--found]
//! ```
//!
//! `DIRECTORY` holds `exceptions.txt`, `kernels.md` and `training.txt`, which lists the kernels of
//! a small training run. `--write` writes new tables into `kernels.md` instead of comparing them.
//! `--keep` reuses the results of an earlier run in FILE for families that did not change, compiles
//! the rest, and writes all results back. `--found` only checks that each kernel compiles and is
//! found by its name, and prints which kernels spill or use scratch. Use it with compilers for
//! which the kernels are not tuned.

mod architecture;
mod assembly;
mod cores;
mod notes;
mod report;
mod rules;
mod times;
mod wide;
mod work;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use architecture::{ARCHITECTURES, Architecture};
use hip_kernels::Family;
use report::Table;
use work::{Compiled, Mode};

/// The second line of this file describes a root.
const ROOT: &str = "/.rocm";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        [mode, architecture, family, first] if let Some(mode) = Mode::of(mode) => {
            work::worker(mode, architecture, family, first).map(|()| true)
        }
        ["check", directory, options @ ..] => Options::read(options)
            .and_then(|options| check(Path::new(directory), &options))
            .map(|problems| problems == 0),
        _ => Err(
            "usage: check DIRECTORY [--arch a,b | --full] [--family f,g] [--write] [--keep FILE] [--found]"
                .into(),
        ),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

struct Options {
    architectures: Vec<&'static Architecture>,
    families: Vec<&'static Family>,
    write: bool,
    keep: Option<PathBuf>,
    mode: Mode,
}

impl Options {
    fn read(args: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            architectures: ARCHITECTURES.iter().filter(|one| one.always).collect(),
            families: hip_kernels::families().iter().collect(),
            write: false,
            keep: None,
            mode: Mode::Read,
        };
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            match arg {
                "--full" => options.architectures = ARCHITECTURES.iter().collect(),
                "--write" => options.write = true,
                "--found" => options.mode = Mode::Find,
                "--keep" => options.keep = Some(args.next().ok_or("--keep takes a file")?.into()),
                "--arch" => {
                    let list = args.next().ok_or("--arch takes a list")?;
                    let find = |name: &str| {
                        ARCHITECTURES
                            .iter()
                            .find(|one| one.name == name)
                            .ok_or_else(|| format!("{name} is not in architecture.rs"))
                    };
                    options.architectures = list.split(',').map(find).collect::<Result<_, _>>()?;
                }
                "--family" => {
                    let list = args.next().ok_or("--family takes a list")?;
                    let is_known = |name: &str| hip_kernels::families().iter().any(|one| one.name == name);
                    if let Some(name) = list.split(',').find(|name| !is_known(name)) {
                        return Err(format!("{name} is not a family of kernels"));
                    }
                    options.families.retain(|family| list.split(',').any(|name| name == family.name));
                }
                other => return Err(format!("no such option: {other}")),
            }
        }
        Ok(options)
    }

    /// Whether the run compiles every family, for all wanted architectures.
    fn has(&self, wanted: impl Fn(&Architecture) -> bool) -> bool {
        let whole = self.families.len() == hip_kernels::families().len();
        whole
            && ARCHITECTURES
                .iter()
                .filter(|one| wanted(one))
                .all(|one| self.architectures.iter().any(|taken| taken.name == one.name))
    }
}

/// The compiler's version, from the root's description.
fn made_with() -> Result<String, String> {
    let text = std::fs::read_to_string(ROOT).map_err(|error| format!("{ROOT}: {error}"))?;
    Ok(text.lines().nth(1).ok_or("/.rocm has no second line")?.to_owned())
}

/// Runs everything and prints each problem. Returns the number of problems.
fn check(directory: &Path, options: &Options) -> Result<usize, String> {
    let read = |name: &str| {
        std::fs::read_to_string(directory.join(name)).map_err(|error| format!("{name}: {error}"))
    };
    let exceptions = rules::read_exceptions(&read("exceptions.txt")?)?;
    let (document, training) = (read("kernels.md")?, read("training.txt")?);
    let made_with = made_with()?;

    let architectures: Vec<&str> = options.architectures.iter().map(|one| one.name).collect();
    let processes = std::thread::available_parallelism().map_or(1, |count| count.get());
    let start = Instant::now();
    let mut compiled = match &options.keep {
        Some(file) => work::kept(file)?,
        None => Vec::new(),
    };
    // Results are written as soon as they are known, so a stopped run can continue.
    let kept = match &options.keep {
        Some(path) => {
            let mut file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            work::keep(&mut file, &compiled)?;
            Some(Mutex::new(file))
        }
        None => None,
    };
    let keep = |compiled: &[Compiled]| {
        let Some(file) = &kept else { return };
        if let Err(why) = work::keep(&mut file.lock().unwrap_or_else(PoisonError::into_inner), compiled) {
            eprintln!("not kept: {why}");
        }
    };
    let (more, failed) =
        work::compile_all(&architectures, &options.families, &compiled, processes, options.mode, keep);
    compiled.extend(more);
    compiled.retain(|one| {
        architectures.contains(&one.architecture.as_str())
            && options.families.iter().any(|family| family.name == one.family)
    });
    compiled.sort_by(|a, b| (&a.kernel, &a.architecture).cmp(&(&b.kernel, &b.architecture)));
    println!(
        "{} kernels' notes read: {} kernels for {} architectures, by {made_with}, in {:.0?} with {processes} processes",
        compiled.len(),
        options.families.iter().map(|family| family.instantiations().count()).sum::<usize>(),
        architectures.len(),
        start.elapsed()
    );
    let whole = failed.is_empty() && options.has(|_| false);
    let mut problems = failed.len();
    show("not compiled", failed);
    if options.mode == Mode::Find {
        show("spill or use scratch, which this run allows", report::spilling(&compiled));
        println!("{}", if problems == 0 { "all are found" } else { "some are not found" });
        return Ok(problems);
    }

    let mut used = vec![false; exceptions.len()];
    let mut excepted = BTreeMap::new();
    let mut wrong: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for one in &compiled {
        let Some(architecture) = options.architectures.iter().find(|known| known.name == one.architecture)
        else {
            continue;
        };
        for (kind, what) in rules::violations(architecture, one) {
            let exception = exceptions
                .iter()
                .position(|exception| exception.covers(&one.architecture, &one.kernel, kind));
            match exception {
                Some(at) => {
                    used[at] = true;
                    *excepted.entry(one.architecture.clone()).or_insert(0) += 1;
                }
                None => wrong
                    .entry(format!("{} | {kind}: {what}", one.kernel))
                    .or_default()
                    .push(&one.architecture),
            }
        }
    }
    problems += wrong.len();
    show(
        "against the rules",
        wrong.iter().map(|(what, where_)| format!("{} | {what}", where_.join(" "))).collect(),
    );
    let stale: Vec<String> = exceptions
        .iter()
        .zip(&used)
        .filter(|(exception, used)| !**used && exception.decided_by(&architectures, whole))
        .map(|(exception, _)| format!("{} covers nothing any more: remove it", exception.place()))
        .collect();
    problems += stale.len();
    show("stale exceptions", stale);

    if options.has(|one| one.always) {
        let slow = times::check("gfx1030", &compiled, &training)?;
        problems += slow.len();
        show("compile times", slow);
    }
    problems += tables(directory, options, &made_with, &compiled, &excepted, document)?;
    println!("{}", if problems == 0 { "all is well".into() } else { format!("{problems} problems") });
    Ok(problems)
}

/// Compares the tables that this run can make with the document, or writes them.
fn tables(
    directory: &Path,
    options: &Options,
    made_with: &str,
    compiled: &[Compiled],
    excepted: &BTreeMap<String, usize>,
    mut document: String,
) -> Result<usize, String> {
    let mut tables: Vec<Table> = Vec::new();
    if options.has(|one| one.always) {
        tables.push(report::templates(made_with, compiled));
    }
    if options.has(|_| true) {
        tables.push(report::architectures(made_with, compiled, excepted));
    }
    let mut problems = 0;
    for table in tables {
        if options.write {
            document = table.put_into(&document)?;
            continue;
        }
        match table.is_in(&document)? {
            Some(true) => {}
            Some(false) => {
                println!(
                    "docs/kernels.md: the table of {} is out of date; kernels.sh --full --write makes it",
                    table.name
                );
                problems += 1;
            }
            None => println!(
                "docs/kernels.md: the table of {} was made with another compiler: not compared",
                table.name
            ),
        }
    }
    if options.write {
        let path = directory.join("kernels.md");
        std::fs::write(&path, document).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(problems)
}

fn show(what: &str, lines: Vec<String>) {
    if lines.is_empty() {
        return;
    }
    println!("{what}: {}", lines.len());
    for line in lines {
        println!("  {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_family_is_an_error() {
        let known = hip_kernels::families()[0].name;
        let families = |list: &str| {
            let options = Options::read(&["--family", list]);
            options.map(|options| options.families.iter().map(|one| one.name).collect::<Vec<_>>())
        };
        assert_eq!(families(known), Ok(vec![known]));
        for list in ["unknown", &format!("{known},unknown")] {
            assert_eq!(families(list), Err("unknown is not a family of kernels".into()));
        }
    }
}
