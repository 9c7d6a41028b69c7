//! Cold start: how long a user waits until the first training step is done.

use crate::Options;
use crate::cases::{batch, step};
use crate::median::median;
use crate::table::Row;
use burn::backend::Autodiff;
use burn::optim::AdamConfig;
use burn_backend::Backend;
use burn_rocm_examples::model::Kind;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

type B = Autodiff<burn_rocm::Rocm>;

/// Builds a model and trains it for one step.
pub(crate) fn first_step(kind: Kind) {
    let device = Default::default();
    let data = batch::<B>(&device, 128);
    step(kind.init::<B>(&device), &mut AdamConfig::new().init(), data);
    B::sync(&device).expect("the device finishes");
}

/// A command that starts this program again, with the caches of this project, of the libraries and of
/// the drivers in one folder.
///
/// # Errors
/// If the path of this program is unknown.
pub(crate) fn itself(cache: &Path) -> Result<Command, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    command
        .env("BURN_ROCM_CACHE_DIR", cache)
        // For AMD's compiler.
        .env("XDG_CACHE_HOME", cache)
        .env("MIOPEN_USER_DB_PATH", cache.join("miopen"))
        .env("MIOPEN_CUSTOM_CACHE_DIR", cache.join("miopen-kernels"))
        .env("CUDA_CACHE_PATH", cache.join("driver"));
    Ok(command)
}

/// Starts this program again for a model's first training step. Returns the seconds until it ends.
///
/// # Errors
/// If the program can't be started, or fails.
pub(crate) fn start(kind: Kind, cache: &Path) -> Result<f64, String> {
    let start = Instant::now();
    let status =
        itself(cache)?.args(["--first-step", kind.name()]).status().map_err(|error| error.to_string())?;
    let seconds = start.elapsed().as_secs_f64();
    match status.success() {
        true => Ok(seconds),
        false => Err(format!("the first step of the {} failed: {status}", kind.name())),
    }
}

/// Calls `body` with an empty folder for caches, and removes the folder afterwards.
///
/// # Errors
/// If the folder can't be made; the errors of `body`.
pub(crate) fn with_empty_caches<T>(
    what: &str,
    body: impl FnOnce(&Path) -> Result<T, String>,
) -> Result<T, String> {
    let cache = std::env::temp_dir().join(format!("burn-rocm-{what}-{}", std::process::id()));
    // An earlier process with this number may have left a folder.
    let _ = std::fs::remove_dir_all(&cache);
    std::fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let result = body(&cache);
    // A leftover folder among the system's temporary files does no harm.
    let _ = std::fs::remove_dir_all(&cache);
    result
}

/// Starts this program again with an empty cache folder, and times it.
///
/// # Errors
/// As [`start`].
pub(crate) fn cold_start(options: &Options, rows: &mut Vec<Row>) -> Result<(), String> {
    for kind in [Kind::Mlp, Kind::Cnn] {
        let cold = |_| with_empty_caches("cold", |cache| start(kind, cache));
        let times = (0..options.iterations).map(cold).collect::<Result<Vec<_>, _>>()?;
        rows.push(Row {
            case: format!("cold start to the end of the first {} step", kind.name()),
            ours: median(times).expect("a start"),
            peer: None,
            bar: 2.0,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No variable of the user may lead to a warm cache: `BURN_ROCM_CACHE_DIR` overrides
    /// `XDG_CACHE_HOME`, and MIOpen has folders of its own.
    #[test]
    fn a_start_has_all_of_its_caches_in_the_folder() {
        let folder = Path::new("cold");
        let command = itself(folder).expect("this program has a path");
        for name in [
            "BURN_ROCM_CACHE_DIR",
            "XDG_CACHE_HOME",
            "MIOPEN_USER_DB_PATH",
            "MIOPEN_CUSTOM_CACHE_DIR",
            "CUDA_CACHE_PATH",
        ] {
            let set = command.get_envs().find(|(set, _)| *set == name).and_then(|(_, value)| value);
            assert!(set.is_some_and(|value| Path::new(value).starts_with(folder)), "{name}: {set:?}");
        }
    }
}
