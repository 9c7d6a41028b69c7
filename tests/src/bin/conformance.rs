//! Writes `docs/conformance.md`: every method of Burn's backend traits, what computes it here, the
//! dtypes in which the tests ran it, and the tests that name it.
//!
//! `conformance TRACE [--check]`: TRACE is the file that `BURN_ROCM_TRACE_FILE` named while the
//! tests ran. With `--check` the program writes nothing and fails if the file in the repository
//! differs.
//!
//! The methods and their default bodies come from the sources of the `burn-backend` in this
//! workspace's lock file. So a method that a later Burn adds appears here as one without a test.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use syn::visit::Visit;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The traits in the order of the document, each with its file in `burn-backend`.
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

/// The document, relative to the repository's root, and the hand-written parts at its end.
const DOCUMENT: &str = "docs/conformance.md";
const PARTS: [&str; 2] = ["docs/burn-backend-tests.md", "docs/h200.md"];

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
    let (trace, check) = match arguments.as_slice() {
        [trace] => (trace, false),
        [trace, check] if check == "--check" => (trace, true),
        _ => return Err("usage: conformance TRACE [--check]".into()),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let trace = Trace::parse(&fs::read_to_string(trace).map_err(|error| format!("{trace}: {error}"))?);
    let burn = burn_backend(&root)?;
    let ours = implemented(&root.join("burn-rocm/src/backend"))?;
    let tests = sources(&root.join("tests/tests"))?;
    let mut rows = Vec::new();
    for (name, file) in TRAITS {
        rows.push((name, methods(&burn.join(file), name, &ours, &trace, &tests)?));
    }
    let parts: Vec<String> =
        PARTS.iter().map(|part| fs::read_to_string(root.join(part))).collect::<std::io::Result<_>>()?;
    let text = document(&rows, &parts)?;
    let untested: Vec<&str> = rows
        .iter()
        .flat_map(|(_, methods)| methods)
        .filter(|method| method.tests.is_empty())
        .map(|method| method.name.as_str())
        .collect();
    if !untested.is_empty() {
        return Err(format!("no test names {} methods: {}", untested.len(), untested.join(", ")).into());
    }
    let path = root.join(DOCUMENT);
    if !check {
        return Ok(fs::write(path, text)?);
    }
    let written = fs::read_to_string(path)?;
    if let Some((line, (is, should))) =
        written.lines().zip(text.lines()).enumerate().find(|(_, (is, should))| is != should)
    {
        return Err(format!("{DOCUMENT} line {}:\n  is         {is}\n  should be  {should}", line + 1).into());
    }
    if written.len() != text.len() {
        return Err(format!("{DOCUMENT} has {} bytes, {} were expected", written.len(), text.len()).into());
    }
    Ok(())
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

    /// The library calls and kernels of an op. Copies, and that nothing was launched, count only if
    /// there is nothing else.
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

/// The directory of `burn-backend`'s sources, from cargo's metadata.
fn burn_backend(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let manifest = packages
        .iter()
        .find(|package| package["name"] == "burn-backend")
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("cargo metadata names no burn-backend")?;
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

/// The identifiers in each test file, by the file's name without its extension.
fn sources(directory: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    files(directory)?
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path)?;
            let name = path.strip_prefix(directory)?.with_extension("").display().to_string();
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').map(String::from).collect();
            Ok((name, words))
        })
        .collect()
}

/// A row of the document.
struct Method {
    name: String,
    served: String,
    dtypes: String,
    tests: String,
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
    trace: &Trace,
    tests: &BTreeMap<String, BTreeSet<String>>,
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
        let served = if ours.contains(&name) {
            trace.served(&name).unwrap_or_else(|| "this crate; no op test runs it".into())
        } else {
            let mut calls = Calls::default();
            if let Some(body) = &function.default {
                calls.visit_block(body);
            }
            let calls: Vec<String> = calls.0.iter().map(|call| format!("`{call}`")).collect();
            if calls.is_empty() {
                "Burn's default".into()
            } else {
                format!("Burn's default: {}", calls.join(", "))
            }
        };
        let tests: Vec<&str> =
            tests.iter().filter(|(_, words)| words.contains(&name)).map(|(file, _)| file.as_str()).collect();
        rows.push(Method { served, dtypes: trace.dtypes(&name), tests: tests.join(", "), name });
    }
    Ok(rows)
}

fn document(rows: &[(&str, Vec<Method>)], parts: &[String]) -> Result<String> {
    let count: usize = rows.iter().map(|(_, methods)| methods.len()).sum();
    let mut out = String::new();
    writeln!(
        out,
        "# Conformance\n\n\
         This page lists every method of burn-backend {}'s traits ({count}): what computes it on this backend, the \
         dtypes of\nthe first operand in the tests, and the test files that name it.\n\n\
         The program `conformance` of `tests` makes this page from the trace of the op tests on the CPU provider\n\
         (`BURN_ROCM_TEST_SEED=1`). `.ci/run` fails if the file differs. \"Burn's default\" means that Burn \
         composes the method\nfrom the methods named. A kernel is one of `hip/kernels`. An op that is a view \
         launches nothing.",
        env!("CARGO_PKG_VERSION"),
    )?;
    for (name, methods) in rows {
        writeln!(out, "\n## {name}\n\n| method | served by | dtypes | tests |\n|---|---|---|---|")?;
        for Method { name, served, dtypes, tests } in methods {
            writeln!(out, "| `{name}` | {served} | {dtypes} | {tests} |")?;
        }
    }
    for part in parts {
        writeln!(out, "\n{}", part.trim_end())?;
    }
    Ok(out)
}
