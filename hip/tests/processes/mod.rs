//! Cases that run in a process of their own, and imitations of libraries.
#![allow(dead_code, reason = "each test uses a part")]

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A process that runs one case of the test program's `child`.
pub(crate) fn command(case: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("HIP_TEST_CASE", case);
    command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs one case: its result, and its standard error.
pub(crate) fn run(case: &str, variables: &[(&str, &str)]) -> (String, String) {
    let output = command(case, variables).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{case}: {stderr}");
    (result(&output.stdout), stderr)
}

/// The line of the result in a case's output.
pub(crate) fn result(stdout: &[u8]) -> String {
    let text = String::from_utf8_lossy(stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    line.unwrap_or_else(|| panic!("no result in {text}")).to_owned()
}

/// A folder that is removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hip-provider-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes a library of C functions under `ROOT/lib`. The functions in `bodies` have the given
/// bodies; the other names return `status`.
pub(crate) fn make_library(root: &Path, file: &str, names: &[&CStr], status: u32, bodies: &[(&str, &str)]) {
    make_linked_library(root, file, names, status, bodies, &[]);
}

/// As [`make_library`], with more arguments for the compiler.
pub(crate) fn make_linked_library(
    root: &Path,
    file: &str,
    names: &[&CStr],
    status: u32,
    bodies: &[(&str, &str)],
    more: &[String],
) {
    let lib = root.join("lib");
    fs::create_dir_all(&lib).unwrap();
    let mut text = String::from("#include <string.h>\n");
    for name in names.iter().map(|name| name.to_str().unwrap()) {
        if !bodies.iter().any(|(given, _)| *given == name) {
            text += &format!("int {name}() {{ return {status}; }}\n");
        }
    }
    for (name, body) in bodies {
        text += &format!("int {name}{body}\n");
    }
    let source = lib.join(format!("{file}.c"));
    fs::write(&source, text).unwrap();
    let arguments = ["-w", "-shared", "-fPIC", "-o"];
    let made = Command::new("cc").args(arguments).args([lib.join(file), source]).args(more).status();
    assert!(made.expect("a C compiler, which this test needs").success());
}
