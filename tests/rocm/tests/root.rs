//! `root.sh` with imitations of apt and dpkg.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of imitated tools, which goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn script(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Puts a package with HIP's library into apt's cache.
const APT_GET: &str = r#"cache= command=
for word in "$@"; do
    case $word in
    Dir::Cache=*) cache=${word#*=} ;;
    update | install) command=$word ;;
    esac
done
[ "$command" = install ] || exit 0
lib=$cache/files/usr/lib/x86_64-linux-gnu
mkdir -p "$lib"
: >"$lib/libamdhip64.so.5.7.1"
tar -cf "$cache/archives/hip.deb" -C "$cache/files" ."#;

#[test]
fn a_root_that_is_made_anew_keeps_what_others_put_there() {
    if !Path::new("/usr/share/keyrings/debian-archive-keyring.gpg").exists() {
        eprintln!("skipped: the keys of Debian's archive are missing");
        return;
    }
    let scratch = Scratch(std::env::temp_dir().join(format!("burn-rocm-root-{}", std::process::id())));
    let _ = fs::remove_dir_all(&scratch.0);
    scratch.script("tools/apt-get", APT_GET);
    scratch.script("tools/apt-cache", "echo '  Candidate: 5.7.1-1'");
    scratch.script("tools/dpkg-deb", "cat \"$2\"");
    let root = scratch.0.join("root");
    let make = || {
        let path = format!("{}:{}", scratch.0.join("tools").display(), std::env::var("PATH").unwrap());
        let made = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/root.sh"))
            .arg(&root)
            .arg("5.7")
            .env("PATH", path)
            .env_remove("ROOT_LOCKED")
            .env("BURN_ROCM_DEBIAN", "http://mirror.invalid/debian")
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        String::from_utf8_lossy(&made.stdout).into_owned()
    };
    make();
    for file in ["opt/burn-rocm/gfx942.tsv", "opt/rocjitsu/lib/librocjitsu.so", "usr/bin/old"] {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), file).unwrap();
    }
    assert!(make().contains("made before"));

    let marked = fs::read_to_string(root.join(".rocm")).unwrap();
    fs::write(root.join(".rocm"), marked.replace("librccl-dev", "another-package")).unwrap();
    assert!(!make().contains("made before"));
    assert_eq!(fs::read_to_string(root.join(".rocm")).unwrap(), marked);
    for file in ["opt/burn-rocm/gfx942.tsv", "opt/rocjitsu/lib/librocjitsu.so"] {
        assert_eq!(fs::read_to_string(root.join(file)).unwrap(), file);
    }
    assert!(!root.join("usr/bin/old").exists(), "the rest is of the new packages");
}
