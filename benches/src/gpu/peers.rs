//! The peers: eager PyTorch in a Python process, `burn-cuda` in this process, and this program
//! started again for cold starts.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use burn_rocm_examples::model::Kind;

use super::cases::{Bar, Group, Work};
use super::report::{Line, parse_csv};
use super::time::Clock;
use crate::Options;

/// The script, embedded so that this program need not find it on disk.
const TORCH: &str =
    concat!(include_str!("../../peers/torch_models.py"), include_str!("../../peers/torch_peer.py"));

/// Runs the PyTorch peer over the same groups and gives its seconds by case. If `compiled`, only
/// training steps and inference, compiled with CUDA graphs.
///
/// # Errors
/// If Python can't be started or ends with an error.
pub(crate) fn torch(
    python: &Path,
    options: &Options,
    groups: &[Group],
    compiled: bool,
) -> Result<BTreeMap<String, f64>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", python.display());
    let precisions: Vec<&str> = options.precision.iter().map(|precision| precision.name()).collect();
    let names: Vec<&str> = groups.iter().map(|group| group.name()).collect();
    let mut child = Command::new(python)
        .args(["-", "--groups", &names.join(",")])
        .args(["--shrink", &options.shrink.to_string()])
        .args(["--iterations", &options.iterations.to_string()])
        .args(["--filter", options.filter.as_deref().unwrap_or_default()])
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

/// Runs the cases on CubeCL's backend, with its default fusion and autotune.
///
/// # Errors
/// If this program was built without the feature `burn-cuda`.
#[cfg(feature = "burn-cuda")]
pub(crate) fn burn_cuda(options: &Options, groups: &[Group]) -> Result<BTreeMap<String, f64>, String> {
    // Returns the memory that this backend's pool holds, so that the peer can use it.
    let device = hip::Device::get(0).map_err(|error| error.to_string())?;
    device.memory_cleanup().map_err(|error| error.to_string())?;
    Ok(in_process::<burn_cuda::Cuda>(options, groups))
}

/// Runs the cases on another of Burn's backends.
pub(crate) fn in_process<B: Clock>(options: &Options, groups: &[Group]) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    for case in super::cases::cases::<B>(options) {
        if !groups.contains(&case.group) {
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
pub(crate) fn burn_cuda(_: &Options, _: &[Group]) -> Result<BTreeMap<String, f64>, String> {
    Err("--burn-cuda needs a build with `--features burn-cuda`".into())
}

/// Times from process start to the end of the first training step: with empty caches, then with the
/// caches that the first start filled.
///
/// # Errors
/// If this program can't be started again, or a step fails.
pub(crate) fn cold_starts(options: &Options) -> Result<Vec<Line>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut lines = Vec::new();
    for (kind, most) in [(Kind::Mlp, 5.0), (Kind::Cnn, 8.0)] {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for round in 0..options.iterations.clamp(1, 3) {
            let cache = std::env::temp_dir().join(format!("burn-rocm-cold-{}-{round}", std::process::id()));
            std::fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
            for times in [&mut cold, &mut warm] {
                let start = std::time::Instant::now();
                let status = Command::new(&program)
                    .args(["--first-step", kind.name()])
                    .env("XDG_CACHE_HOME", &cache)
                    .env("CUDA_CACHE_PATH", cache.join("driver"))
                    .status()
                    .map_err(|error| error.to_string())?;
                times.push(start.elapsed().as_secs_f64());
                if !status.success() {
                    return Err(format!("the first step of the {} failed: {status}", kind.name()));
                }
            }
            // A leftover folder among the system's temporary files does no harm.
            let _ = std::fs::remove_dir_all(&cache);
        }
        for (what, mut times, most) in [("cold", cold, most), ("warm", warm, 1.0)] {
            times.sort_by(f64::total_cmp);
            lines.push(Line {
                name: format!("{what} start to the end of the first {} step", kind.name()),
                work: Work::Step,
                bar: Bar::Seconds(most),
                seconds: times[times.len() / 2],
                losses: Vec::new(),
            });
        }
    }
    Ok(lines)
}
