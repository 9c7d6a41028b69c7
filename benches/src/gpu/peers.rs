//! The peers: eager PyTorch in a Python process, `burn-cuda` in this process, and this program
//! started again for cold starts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use burn_rocm_examples::model::Kind;

use super::cases::{Bar, Group, Work};
use super::report::{Line, parse_csv};
use super::time::Clock;
use crate::Options;
use crate::cold::{start, with_empty_caches};
use crate::median::median;

/// The script, embedded so that this program need not find it on disk.
const TORCH: &str =
    concat!(include_str!("../../peers/torch_models.py"), include_str!("../../peers/torch_peer.py"));

/// The names of the peers' rows for the work that was measured.
pub(crate) type Rows<'a> = BTreeSet<&'a str>;

const NO_BURN_CUDA: &str = "--burn-cuda needs a build with `--features burn-cuda`";

/// Checks that the peers that the options name can be started.
///
/// # Errors
/// If Python can't be started or has no PyTorch, or if this program was built without `burn-cuda`.
pub(crate) fn check(options: &Options) -> Result<(), String> {
    for python in options.torch.iter().chain(&options.torch_compiled) {
        let output = Command::new(python)
            .args(["-c", "import torch"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", python.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: `import torch`: {}\n{}", python.display(), output.status, said.trim()));
        }
    }
    if options.burn_cuda && !cfg!(feature = "burn-cuda") { Err(NO_BURN_CUDA.into()) } else { Ok(()) }
}

/// Runs the PyTorch peer over these rows of these groups and gives its seconds by case. If `compiled`,
/// only training steps and inference, compiled with CUDA graphs.
///
/// # Errors
/// If Python can't be started or ends with an error.
pub(crate) fn torch(
    python: &Path,
    options: &Options,
    groups: &[Group],
    rows: &Rows<'_>,
    compiled: bool,
) -> Result<BTreeMap<String, f64>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", python.display());
    let precisions: Vec<&str> = options.precision.iter().map(|precision| precision.name()).collect();
    let rows: Vec<&str> = rows.iter().copied().collect();
    let names: Vec<&str> = groups.iter().map(|group| group.name()).collect();
    let mut child = Command::new(python)
        .args(["-", "--groups", &names.join(",")])
        .args(["--shrink", &options.shrink.to_string()])
        .args(["--iterations", &options.iterations.to_string()])
        // One on each line, because names contain commas.
        .args(["--rows", &rows.join("\n")])
        .args(["--precision", &precisions.join(",")])
        .args(compiled.then_some("--compiled"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(TORCH.as_bytes()).map_err(|error| failed(&error))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&output.status));
    }
    Ok(parse_csv(&String::from_utf8_lossy(&output.stdout)))
}

/// Runs these rows on CubeCL's backend, with its default fusion and autotune.
///
/// # Errors
/// If this program was built without the feature `burn-cuda`.
#[cfg(feature = "burn-cuda")]
pub(crate) fn burn_cuda(
    options: &Options,
    groups: &[Group],
    rows: &Rows<'_>,
) -> Result<BTreeMap<String, f64>, String> {
    // Returns the memory that this backend's pool holds, so that the peer can use it.
    let device = hip::Device::get(0).map_err(|error| error.to_string())?;
    device.memory_cleanup().map_err(|error| error.to_string())?;
    Ok(in_process::<burn_cuda::Cuda>(options, groups, rows))
}

/// Runs these rows on another of Burn's backends.
pub(crate) fn in_process<B: Clock>(
    options: &Options,
    groups: &[Group],
    rows: &Rows<'_>,
) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    // `rows` selects instead of the filter, which may name a row of burn-rocm-nn.
    let all = Options { filter: None, ..options.clone() };
    for case in super::cases::cases::<B>(&all) {
        if !groups.contains(&case.group) || !rows.contains(case.name.as_str()) {
            continue;
        }
        let name = case.name.clone();
        // A case that the peer can't run ends in a panic. The other rows still count.
        let measured =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| super::measure(case, options)));
        let Ok(line) = measured else { continue };
        for (step, &loss) in line.losses.iter().enumerate() {
            values.insert(super::report::loss_of(&name, step), loss);
        }
        values.insert(name, line.seconds);
    }
    values
}

/// The same function in a build without the peer.
#[cfg(not(feature = "burn-cuda"))]
pub(crate) fn burn_cuda(_: &Options, _: &[Group], _: &Rows<'_>) -> Result<BTreeMap<String, f64>, String> {
    Err(NO_BURN_CUDA.into())
}

/// Times from process start to the end of the first training step: with empty caches, then with the
/// caches that the first start filled.
///
/// # Errors
/// If this program can't be started again, or a step fails.
pub(crate) fn cold_starts(options: &Options) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    for (kind, most) in [(Kind::Mlp, 5.0), (Kind::Cnn, 8.0)] {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..options.iterations.clamp(1, 3) {
            let [first, second] =
                with_empty_caches("cold", |cache| Ok([start(kind, cache)?, start(kind, cache)?]))?;
            cold.push(first);
            warm.push(second);
        }
        for (what, times, most) in [("cold", cold, most), ("warm", warm, 1.0)] {
            lines.push(Line {
                name: format!("{what} start to the end of the first {} step", kind.name()),
                work: Work::Step,
                bar: Bar::Seconds(most),
                seconds: median(times).expect("a start"),
                losses: Vec::new(),
            });
        }
    }
    Ok(lines)
}
