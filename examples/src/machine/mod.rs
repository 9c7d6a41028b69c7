//! Facts that decide whether AMD's libraries can work on this machine. They come from files and the
//! environment only, so they can be reported even if every library is broken.

#[cfg(unix)]
mod linux;
#[cfg(windows)]
mod windows;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

#[cfg(unix)]
pub use linux::{kernel_driver, system};
#[cfg(windows)]
pub use windows::{kernel_driver, system};

/// The prefixes of environment variables that matter.
const PREFIXES: [&str; 9] =
    ["BURN_ROCM_", "ROCM_", "HIP_", "HSA_", "ROCR_", "ROCBLAS_", "MIOPEN_", "AMD_", "CUDA_"];
/// Further environment variables that matter.
const NAMES: [&str; 7] = [
    "CONDA_PREFIX",
    "GPU_DEVICE_ORDINAL",
    "GPU_MAX_HW_QUEUES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
];

/// Why there is no folder.
const NO_CACHE: &str = if cfg!(windows) {
    "none: BURN_ROCM_CACHE=0, or LOCALAPPDATA is not set"
} else {
    "none: BURN_ROCM_CACHE=0, or neither XDG_CACHE_HOME nor HOME is set"
};

/// A heading and its lines of `name  value`.
#[derive(Debug, Default)]
pub struct Section {
    title: &'static str,
    lines: Vec<(String, String)>,
}

impl Section {
    fn new(title: &'static str) -> Self {
        Self { title, lines: Vec::new() }
    }

    fn line(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.lines.push((name.into(), value.into()));
    }
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.title)?;
        let width = self.lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &self.lines {
            writeln!(f, "  {name:width$}  {value}")?;
        }
        Ok(())
    }
}

/// The variables that matter, out of `variables`.
pub fn environment<N: AsRef<OsStr>>(variables: impl IntoIterator<Item = (N, N)>) -> Section {
    let mut section = Section::new("environment");
    for (name, value) in variables {
        let name = name.as_ref().to_string_lossy().into_owned();
        if NAMES.contains(&name.as_str()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            section.line(name, value.as_ref().to_string_lossy().into_owned());
        }
    }
    section.lines.sort();
    if section.lines.is_empty() {
        let mut names = String::new();
        for prefix in PREFIXES {
            // Writing to a string does not fail.
            let _ = write!(names, "{prefix}* ");
        }
        section.line("nothing set", format!("of {names}{}", NAMES.join(" ")));
    }
    section
}

/// The folder of compiled kernels, as it is on disk.
pub fn cache(directory: Option<&Path>) -> Section {
    let mut section = Section::new("compiled kernels");
    let Some(directory) = directory else {
        section.line("folder", NO_CACHE);
        return section;
    };
    section.line("folder", directory.display().to_string());
    if !directory.exists() {
        section.line("content", "not there yet");
        return section;
    }
    let (mut count, mut bytes) = (0, 0);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if let Ok(file) = entry.metadata()
            && file.is_file()
        {
            count += 1;
            bytes += file.len();
        }
    }
    section.line("content", format!("{count} files, {:.1} MiB", bytes as f64 / f64::from(1 << 20)));
    section
}

/// The names in a folder, sorted; none if there is no such folder.
fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_that_matter_are_shown() {
        let section =
            environment([("HOME", "/root"), ("HSA_OVERRIDE_GFX_VERSION", "10.3.0"), ("HIPPO", "x")]);
        assert_eq!(section.to_string(), "environment\n  HSA_OVERRIDE_GFX_VERSION  10.3.0\n");
        assert!(environment([("HOME", "/root")]).to_string().contains("nothing set"));
        assert!(cache(None).to_string().contains("none"));
    }
}
