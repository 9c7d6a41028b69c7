//! Workarounds for defects of AMD's libraries, each with its public issue and when it can go.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// rocBLAS ends the process when it has no kernels for the chip, so look before a handle is created.
///
/// <https://github.com/ROCm/rocm-libraries/issues/7026>. Can go when `rocblas_create_handle` returns a status there.
pub(crate) fn rocblas_has_kernels(arch: &str) -> Result<()> {
    let Some(directory) = kernel_directory() else { return Ok(()) };
    let Ok(entries) = std::fs::read_dir(&directory) else { return Ok(()) };
    let names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    if serves(names.iter().map(String::as_str), arch) {
        return Ok(());
    }
    Err(Error::NotAvailable {
        reason: format!("this rocBLAS has no kernels for {arch}"),
        searched: vec![directory.display().to_string()],
    })
}

/// Whether a directory with these files holds kernels for `arch`.
fn serves<'a>(names: impl Iterator<Item = &'a str>, arch: &str) -> bool {
    let chip = arch.split(':').next().unwrap_or(arch);
    let mut none_is_named = true;
    for name in names {
        for (at, _) in name.match_indices("gfx") {
            none_is_named = false;
            let rest = &name[at..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            // A generic target, such as gfx11-generic, serves a family; rocBLAS knows which.
            if &rest[..end] == chip || rest[end..].starts_with("-generic") {
                return true;
            }
        }
    }
    // A layout that we don't know.
    none_is_named
}

/// Where the loaded rocBLAS looks for its kernels; `None` if no rocBLAS is loaded or the place is not known.
fn kernel_directory() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let library = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.rsplit('/').next()?.starts_with("librocblas.so").then(|| Path::new(path))
    })?;
    if let Some(path) = std::env::var_os("ROCBLAS_TENSILE_LIBPATH") {
        return Some(path.into());
    }
    let root = library.parent()?.join("rocblas");
    let plain = root.join("library");
    if plain.is_dir() {
        return Some(plain);
    }
    // Debian puts the soname's version in between.
    std::fs::read_dir(&root)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("library")))
        .find(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::serves;

    #[test]
    fn kernels_are_found_by_chip() {
        let files = ["TensileLibrary_lazy_gfx1030.dat", "Kernels.so-000-gfx90a-xnack+.hsaco", "README"];
        for (arch, expected) in
            [("gfx1030", true), ("gfx90a:sramecc+:xnack-", true), ("gfx103", false), ("gfx1100", false)]
        {
            assert_eq!(serves(files.into_iter(), arch), expected, "{arch}");
        }
        assert!(serves(["a_gfx11-generic.dat"].into_iter(), "gfx1103"));
        assert!(serves(["README"].into_iter(), "gfx1100"), "an unknown layout is left to rocBLAS");
    }
}
