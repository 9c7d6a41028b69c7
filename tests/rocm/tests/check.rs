//! `check.sh` with imitations of the scripts and programs that it calls.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with `check.sh` and what it calls.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-check-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let scratch = Self(path);
        let parts = ["root", "bindings", "loader", "kernels", "run"].map(|part| format!("rocm/{part}.sh"));
        for script in parts.iter().map(String::as_str).chain(["virtual-gpu/rocm.sh", "instructions"]) {
            scratch.script(script, "echo \"ran ${0##*/}\"");
        }
        scratch.tests_that_pass(2);
        let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("check.sh");
        fs::copy(check, scratch.0.join("rocm/check.sh")).unwrap();
        scratch
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn tests_that_pass(&self, count: usize) {
        let result = format!("test result: ok. {count} passed; 0 failed; 0 ignored; 0 measured");
        self.script("isa", &format!("echo '{result}'"));
    }

    fn run(&self) -> Output {
        self.run_with(&self.0.join("roots"))
    }

    fn run_with(&self, roots: &Path) -> Output {
        Command::new("bash")
            .arg(self.0.join("rocm/check.sh"))
            .arg(roots)
            .current_dir(&self.0)
            .envs([("ISA", self.0.join("isa")), ("INSTRUCTIONS", self.0.join("instructions"))])
            .output()
            .unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_part_runs() {
    let scratch = Scratch::new("all");
    let found = scratch.run();
    assert!(found.status.success(), "{found:?}");
    let out = String::from_utf8_lossy(&found.stdout).into_owned();
    for part in ["bindings.sh", "loader.sh", "rocm.sh", "run.sh", "instructions", "kernels.sh"] {
        assert!(out.contains(&format!("ran {part}\n")), "{part}: {out}");
    }
}

/// The parts work in other folders than the caller's.
#[test]
fn a_relative_folder_of_roots_is_the_callers() {
    let scratch = Scratch::new("relative");
    let passed = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured";
    scratch.script("isa", &format!("[ \"$ROOT\" = \"${{0%/*}}/roots/7.2\" ] && echo '{passed}'"));
    let found = scratch.run_with(Path::new("roots"));
    assert!(found.status.success(), "{found:?}");
}

#[test]
fn a_script_that_can_not_run_is_an_error() {
    let scratch = Scratch::new("bit");
    let loader = scratch.0.join("rocm/loader.sh");
    fs::set_permissions(loader, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(!scratch.run().status.success());
}

/// `--ignored llvm` would pass if the tests had other names.
#[test]
fn a_filter_that_names_no_test_is_an_error() {
    let scratch = Scratch::new("none");
    scratch.tests_that_pass(0);
    let found = scratch.run();
    assert!(!found.status.success(), "{found:?}");
    assert!(
        String::from_utf8_lossy(&found.stderr).contains("expected tests that pass, found none"),
        "{found:?}"
    );
}
