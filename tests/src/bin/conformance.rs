//! Writes `docs/conformance.md` and `docs/conformance-0.22.md`: every method of the backend traits
//! of a version of Burn, what computes it here, the dtypes in which the tests ran it, and the tests
//! that name it.
//!
//! `conformance TRACE TRACE_022 [--check]`: the files that `BURN_ROCM_TRACE_FILE` named while the
//! tests of each version ran. With `--check` the program writes nothing and fails if a file in the
//! repository differs.
//!
//! The methods and their default bodies come from the sources of the two `burn-backend` in this
//! workspace's lock file. So a method that a later Burn adds appears here as one without a test.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use syn::visit::Visit;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A version of Burn, and this repository's files for it. Paths are relative to the repository's
/// root.
struct Version {
    number: &'static str,
    /// The traits, in the order of the document, each with its file in `burn-backend`.
    traits: &'static [(&'static str, &'static str)],
    /// The implementations of the traits.
    ours: &'static str,
    /// The folders with the tests, and the one whose trace is read.
    tests: &'static [&'static str],
    /// A test file that lists names of methods and calls none.
    listing: &'static str,
    traced: &'static str,
    /// The methods that no test names.
    untested: &'static [&'static str],
    document: &'static str,
    /// The part of its introduction that is about the other version.
    beside: &'static str,
    /// The hand-written parts at the document's end.
    parts: &'static [&'static str],
}

const BURN_021: Version = Version {
    number: "0.21.0",
    traits: &TRAITS,
    ours: "burn-rocm/src/backend",
    tests: &["tests/tests"],
    listing: "",
    traced: "the op tests",
    untested: &[],
    document: "docs/conformance.md",
    beside: "Burn 0.22 has a [table of its own](conformance-0.22.md).",
    parts: &["docs/burn-backend-tests.md", "docs/h200.md", "docs/simulated.md"],
};

const BURN_022: Version = Version {
    number: "0.22.1",
    traits: &TRAITS_022,
    ours: "burn-0.22/burn-rocm/src/backend",
    tests: &["burn-0.22/burn-rocm/tests", "burn-0.22/burn-cubecl/tests"],
    listing: "ops22/methods",
    traced: "`burn-0.22/burn-rocm/tests/ops22`",
    // burn-train's tests run these through `Tensor`'s functions.
    untested: &["close_communication_server", "comm_device", "float_from_ref"],
    document: "docs/conformance-0.22.md",
    beside: "The tests for this version are about what it added or changed. † stands for the tests of Burn 0.21\n\
             ([table](conformance.md)), which run the same source below the traits: what serves the method, and the \
             dtypes, are then\nfrom their trace. [burn-backend-tests-0.22.md](burn-backend-tests-0.22.md) has the \
             results of Burn's own suite.",
    parts: &[],
};

const TRAITS: [(&str, &str); 8] = [
    ("Backend", "src/backend/base.rs"),
    ("FloatTensorOps", "src/backend/ops/tensor.rs"),
    ("IntTensorOps", "src/backend/ops/int_tensor.rs"),
    ("BoolTensorOps", "src/backend/ops/bool_tensor.rs"),
    ("ModuleOps", "src/backend/ops/modules/base.rs"),
    ("ActivationOps", "src/backend/ops/activation.rs"),
    ("QTensorOps", "src/backend/ops/qtensor.rs"),
    ("TransactionOps", "src/backend/ops/transaction.rs"),
];

const TRAITS_022: [(&str, &str); 9] = {
    let mut all = [("DistributedOps", "src/backend/distributed/ops.rs"); 9];
    let mut k = 0;
    while k < TRAITS.len() {
        all[k] = TRAITS[k];
        k += 1;
    }
    all
};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (traces, check) = match arguments.as_slice() {
        [first, second] => ([first, second], false),
        [first, second, check] if check == "--check" => ([first, second], true),
        _ => return Err("usage: conformance TRACE TRACE_022 [--check]".into()),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut read = Vec::new();
    for trace in traces {
        read.push(Trace::parse(&fs::read_to_string(trace).map_err(|error| format!("{trace}: {error}"))?));
    }
    // Methods that Burn 0.22's tests don't run are, below the traits, the same source as for 0.21.
    let mut earlier: Option<Tested> = None;
    for (version, trace) in [BURN_021, BURN_022].into_iter().zip(read) {
        let mut tests = sources(&root, version.tests)?;
        tests.remove(version.listing);
        let tested = Tested { trace, tests };
        write(&root, &version, &tested, earlier.as_ref(), check)?;
        earlier = Some(tested);
    }
    Ok(())
}

/// Writes or checks the document of a version.
fn write(
    root: &Path,
    version: &Version,
    tested: &Tested,
    earlier: Option<&Tested>,
    check: bool,
) -> Result<()> {
    let burn = burn_backend(root, version.number)?;
    let ours = implemented(&root.join(version.ours))?;
    let mut rows = Vec::new();
    for (name, file) in version.traits {
        rows.push((*name, methods(&burn.join(file), name, &ours, tested, earlier)?));
    }
    let parts: Vec<String> = version
        .parts
        .iter()
        .map(|part| fs::read_to_string(root.join(part)))
        .collect::<std::io::Result<_>>()?;
    let text = document(version, &rows, &parts)?;
    let untested: Vec<&str> = rows
        .iter()
        .flat_map(|(_, methods)| methods)
        .filter(|method| method.untested)
        .map(|method| method.name.as_str())
        .collect();
    if untested != version.untested {
        return Err(format!("no test names {untested:?}, {:?} were expected", version.untested).into());
    }
    let (document, path) = (version.document, root.join(version.document));
    if !check {
        return Ok(fs::write(path, text)?);
    }
    let written = fs::read_to_string(path)?;
    if let Some((line, (is, should))) =
        written.lines().zip(text.lines()).enumerate().find(|(_, (is, should))| is != should)
    {
        return Err(format!("{document} line {}:\n  is         {is}\n  should be  {should}", line + 1).into());
    }
    if written.len() != text.len() {
        return Err(format!("{document} has {} bytes, {} were expected", written.len(), text.len()).into());
    }
    Ok(())
}

/// What the tests of a version ran and named.
struct Tested {
    trace: Trace,
    /// The identifiers in each test file, by the file's name.
    tests: BTreeMap<String, BTreeSet<String>>,
}

impl Tested {
    /// The test files that name a method.
    fn naming(&self, method: &str) -> Vec<&str> {
        self.tests.iter().filter(|(_, words)| words.contains(method)).map(|(file, _)| file.as_str()).collect()
    }
}

/// The tests' trace, by op.
#[derive(Default)]
struct Trace {
    served: BTreeMap<String, BTreeSet<String>>,
    dtypes: BTreeMap<String, BTreeSet<String>>,
}

impl Trace {
    /// Parses lines such as `float_add f32: kernel binary_contiguous<Add, f32>`.
    fn parse(text: &str) -> Self {
        let mut trace = Self::default();
        for line in text.lines() {
            let Some((op, by)) = line.split_once(": ") else { continue };
            let (op, dtype) = op.split_once(' ').unwrap_or((op, ""));
            let by = match by.split_once(' ') {
                Some(("kernel", name)) => format!("`{}`", name.split('<').next().unwrap_or(name)),
                // The rest of the line describes sizes.
                Some((call, _)) if call.starts_with("rocblas") || call.starts_with("miopen") => {
                    format!("`{call}`")
                }
                _ => by.to_string(),
            };
            trace.served.entry(op.into()).or_default().insert(by);
            if !dtype.is_empty() {
                trace.dtypes.entry(op.into()).or_default().insert(dtype.into());
            }
        }
        trace
    }

    /// The library calls and kernels of an op. Copies, or the fact that nothing was launched, are
    /// listed only if there is nothing else.
    fn served(&self, op: &str) -> Option<String> {
        let all = self.served.get(op)?;
        let computed: Vec<&str> = all.iter().map(String::as_str).filter(|by| by.starts_with('`')).collect();
        let shown = if computed.is_empty() { all.iter().map(String::as_str).collect() } else { computed };
        Some(shown.join(", "))
    }

    fn dtypes(&self, op: &str) -> String {
        let dtypes = self.dtypes.get(op).map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        dtypes.unwrap_or_default().join(" ")
    }
}

/// The directory with the sources of a version of `burn-backend`, from cargo's metadata.
fn burn_backend(root: &Path, version: &str) -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let manifest = packages
        .iter()
        .find(|package| package["name"] == "burn-backend" && package["version"] == version)
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or_else(|| format!("cargo metadata names no burn-backend {version}"))?;
    Ok(Path::new(manifest).parent().ok_or("burn-backend's manifest has no directory")?.to_path_buf())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The functions of every trait implementation in a directory, by the trait's name.
fn implemented(directory: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut all = BTreeMap::<String, BTreeSet<String>>::new();
    for file in files(directory)? {
        for item in syn::parse_file(&fs::read_to_string(file)?)?.items {
            let syn::Item::Impl(block) = item else { continue };
            let Some(name) =
                block.trait_.and_then(|(_, path, _)| path.segments.last().map(|s| s.ident.to_string()))
            else {
                continue;
            };
            let functions = all.entry(name).or_default();
            functions.extend(block.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(function) => Some(function.sig.ident.to_string()),
                _ => None,
            }));
        }
    }
    Ok(all)
}

/// The identifiers in each test file of some folders, by the file's name without its extension.
fn sources(root: &Path, folders: &[&str]) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut all = BTreeMap::new();
    for folder in folders {
        let folder = root.join(folder);
        for path in files(&folder)? {
            let text = fs::read_to_string(&path)?;
            let name = path.strip_prefix(&folder)?.with_extension("").display().to_string();
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').map(String::from).collect();
            all.insert(name, words);
        }
    }
    Ok(all)
}

/// A row of the document.
struct Method {
    name: String,
    served: String,
    dtypes: String,
    tests: String,
    /// Whether neither this version's tests nor the earlier version's name it.
    untested: bool,
}

/// Collects the associated functions that a body calls.
#[derive(Default)]
struct Calls(BTreeSet<String>);

impl Visit<'_> for Calls {
    fn visit_expr_path(&mut self, path: &syn::ExprPath) {
        let segments: Vec<String> = path.path.segments.iter().map(|s| s.ident.to_string()).collect();
        if let [owner, function] = segments.as_slice()
            && (owner == "Self" || owner == "B")
        {
            self.0.insert(function.clone());
        }
        syn::visit::visit_expr_path(self, path);
    }
}

fn methods(
    file: &Path,
    name: &str,
    ours: &BTreeMap<String, BTreeSet<String>>,
    tested: &Tested,
    earlier: Option<&Tested>,
) -> Result<Vec<Method>> {
    let parsed = syn::parse_file(&fs::read_to_string(file)?)?;
    let found = parsed.items.iter().find_map(|item| match item {
        syn::Item::Trait(found) if found.ident == name => Some(found),
        _ => None,
    });
    let found = found.ok_or_else(|| format!("{} has no trait {name}", file.display()))?;
    let empty = BTreeSet::new();
    let ours = ours.get(name).unwrap_or(&empty);
    let mut rows = Vec::new();
    for item in &found.items {
        let syn::TraitItem::Fn(function) = item else { continue };
        let name = function.sig.ident.to_string();
        let (mut served, mut dtypes) = (String::new(), tested.trace.dtypes(&name));
        if ours.contains(&name) {
            let before = earlier.and_then(|earlier| Some((earlier.trace.served(&name)?, earlier)));
            if let Some(by) = tested.trace.served(&name) {
                served = by;
            } else if let Some((by, earlier)) = before {
                served = format!("{by} †");
                dtypes = earlier.trace.dtypes(&name);
            } else {
                served.push_str("this crate; no op test runs it");
            }
        } else {
            let mut calls = Calls::default();
            if let Some(body) = &function.default {
                calls.visit_block(body);
            }
            let calls: Vec<String> = calls.0.iter().map(|call| format!("`{call}`")).collect();
            served.push_str("Burn's default");
            if !calls.is_empty() {
                write!(served, ": {}", calls.join(", "))?;
            }
        }
        let mut tests = tested.naming(&name).join(", ");
        let before = earlier.is_some_and(|earlier| !earlier.naming(&name).is_empty());
        let untested = tests.is_empty() && !before;
        if tests.is_empty() && before {
            tests.push('†');
        }
        rows.push(Method { served, dtypes, tests, untested, name });
    }
    Ok(rows)
}

fn document(version: &Version, rows: &[(&str, Vec<Method>)], parts: &[String]) -> Result<String> {
    let count: usize = rows.iter().map(|(_, methods)| methods.len()).sum();
    let Version { number, traced, .. } = version;
    let mut out = String::new();
    writeln!(
        out,
        "# Conformance, Burn {number}\n\n\
         This page lists every method of burn-backend {number}'s traits ({count}): what computes it on this \
         backend, the dtypes of\nthe first operand in the tests, and the test files that name it.\n\n\
         The program `conformance` of `tests` makes this page from the trace of {traced} on the CPU\n\
         provider (`BURN_ROCM_TEST_SEED=1`). `.ci/run` fails if the file differs. \"Burn's default\" means that \
         Burn composes the\nmethod from the methods named. A kernel is one of `hip/kernels`. An op that is a view \
         launches nothing."
    )?;
    writeln!(out, "\n{}", version.beside)?;
    for (name, methods) in rows {
        writeln!(out, "\n## {name}\n\n| method | served by | dtypes | tests |\n|---|---|---|---|")?;
        for Method { name, served, dtypes, tests, .. } in methods {
            writeln!(out, "| `{name}` | {served} | {dtypes} | {tests} |")?;
        }
    }
    for part in parts {
        writeln!(out, "\n{}", part.trim_end())?;
    }
    Ok(out)
}
