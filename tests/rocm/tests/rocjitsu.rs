//! `rocjitsu.sh` and `simulator/mend.py` with imitations of the sources and of what builds them.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with `rocjitsu.sh`, what it calls, a root and the sources.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-rocjitsu-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let scratch = Self(path);
        for (file, text) in [
            ("root/.rocm", ""),
            ("rocjitsu/configs/gfx942_cdna3_kmd.json", "{}"),
            ("rocjitsu/first.cpp", "first"),
            ("flatbuffers/include/flatbuffers/flatbuffers.h", "one"),
            // A source with the file `other` is of another version.
            (
                "rocm/simulator/mend.py",
                "import os, sys\nsys.exit(3 if os.path.exists(sys.argv[1] + '/other') else 0)\n",
            ),
        ] {
            scratch.write(file, text);
        }
        scratch.script("rocm/root.sh", "mkdir -p \"$1\"");
        // The library lists what it was built from.
        let build = "cd \"$1/opt/rocjitsu\"\nmkdir -p build source/third_party\n: >source/third_party/built\n\
                     { ls source; cat flatbuffers/include/flatbuffers/flatbuffers.h; } >build/librocjitsu.so";
        scratch.script("tools/chroot", build);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("rocjitsu.sh");
        fs::copy(script, scratch.0.join("rocm/rocjitsu.sh")).unwrap();
        scratch
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn script(&self, name: &str, text: &str) {
        self.write(name, &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, environment: &[(&str, &str)]) -> Output {
        let path = format!("{}:{}", self.0.join("tools").display(), std::env::var("PATH").unwrap());
        Command::new("bash")
            .arg(self.0.join("rocm/rocjitsu.sh"))
            .args(["root", "rocjitsu", "flatbuffers"].map(|name| self.0.join(name)))
            .current_dir(&self.0)
            .env_remove("OTHER_VERSION")
            .env("PATH", path)
            .envs(environment.iter().copied())
            .output()
            .unwrap()
    }

    fn library(&self) -> Option<String> {
        fs::read_to_string(self.0.join("root/opt/rocjitsu/lib/librocjitsu.so")).ok()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether there is Python, which applies the mends. Says so if there is none.
fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|found| found.status.success());
    if !found {
        eprintln!("skipped: no python3");
    }
    found
}

#[test]
fn another_version_is_built_only_if_asked_for() {
    if !has_python() {
        return;
    }
    let scratch = Scratch::new("version");
    scratch.write("rocjitsu/other", "");
    let found = scratch.run(&[]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let said = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(said.contains("OTHER_VERSION=1") && said.lines().count() == 1, "{said}");
    assert_eq!(scratch.library(), None);
    let found = scratch.run(&[("OTHER_VERSION", "1")]);
    assert!(found.status.success() && scratch.library().is_some(), "{found:?}");
}

#[test]
fn a_new_source_leaves_nothing_of_the_old_one() {
    if !has_python() {
        return;
    }
    let scratch = Scratch::new("sources");
    let built = || {
        let found = scratch.run(&[]);
        assert!(found.status.success(), "{found:?}");
        scratch.library().unwrap()
    };
    assert_eq!(built(), "configs\nfirst.cpp\nthird_party\none");
    scratch.write("flatbuffers/include/flatbuffers/flatbuffers.h", "two");
    assert_eq!(built(), "configs\nfirst.cpp\nthird_party\ntwo");
    fs::remove_file(scratch.0.join("rocjitsu/first.cpp")).unwrap();
    scratch.write("rocjitsu/second.cpp", "second");
    assert_eq!(built(), "configs\nsecond.cpp\nthird_party\ntwo");
    let kept = scratch.0.join("root-build/opt/rocjitsu/source/third_party/built");
    assert!(kept.exists(), "the build's own files stay");
}

/// Each file and each text that the source lacks is one line on stderr.
#[test]
fn the_mends_say_what_they_do_not_find() {
    if !has_python() {
        return;
    }
    let scratch = Scratch::new("mends");
    let shared = "lib/rocjitsu/src/rocjitsu/isa/arch/amdgpu/shared/addr_calc_buffer.h";
    // It has the check, but not the function before which the check stands.
    scratch.write(&format!("rocjitsu/{shared}"), "oob = offset_part >= num_records;\n");
    // One of several texts whose edits depend on each other.
    let (cache, way) =
        ("lib/simdojo/include/simdojo/components/cache.h", "    // Check for an invalid way first.\n");
    scratch.write(&format!("rocjitsu/{cache}"), way);
    let found = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/simulator/mend.py"))
        .arg(scratch.0.join("rocjitsu"))
        .arg("cdna3")
        .output()
        .unwrap();
    assert_eq!(found.status.code(), Some(3), "{found:?}");
    let said = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(said.lines().all(|line| line.starts_with("mend.py: ")), "{said}");
    assert!(said.contains("mend.py: there is no file CMakeLists.txt\n"), "{said}");
    assert!(said.contains(&format!("mend.py: {shared} has no mtbuf_calculate_addresses")), "{said}");
    assert!(said.contains(&format!("mend.py: {cache} has no for (auto &t : tags_) {{")), "{said}");
    assert_eq!(
        fs::read_to_string(scratch.0.join("rocjitsu").join(cache)).unwrap(),
        way,
        "none is made alone"
    );
}
