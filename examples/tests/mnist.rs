//! The program `mnist` as one of several processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program, which `cargo test` builds beside the tests.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("this program's path");
    let folder = own.parent().and_then(Path::parent).expect("a folder above `deps`");
    let program = folder.join("examples").join(format!("mnist{}", std::env::consts::EXE_SUFFIX));
    assert!(program.exists(), "{} is missing: cargo test --examples builds it", program.display());
    program
}

/// Process `rank` of two on CPU devices, which writes into `folder` and waits at most `timeout`
/// seconds.
fn process(rank: u16, port: u16, timeout: &str, folder: &Path, data: &str) -> Command {
    let numbers = [("RANK", rank), ("LOCAL_RANK", rank), ("MASTER_PORT", port)];
    let mut command = Command::new(program());
    command
        .args(["--model", "mlp", "--steps", "1", "--provider", "cpu", "--data", data, "--output"])
        .arg(folder.join(rank.to_string()))
        .env_remove("BURN_ROCM_RENDEZVOUS_PORT")
        .envs([("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_COLLECTIVE_TIMEOUT", timeout)])
        .envs(numbers.map(|(name, number)| (name, number.to_string())))
        .envs([("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("burn-rocm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(feature = "devices")]
mod devices {
    use super::*;

    fn free_port() -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    }

    /// Loading may take minutes. A process that loads first would find only then that others are missing.
    #[test]
    fn a_process_joins_its_group_before_it_loads_the_images() {
        let folder = Folder::new("mnist-joins");
        let output = process(0, free_port(), "0.5", &folder.0, "digits").output().expect("its output");
        let [said, failed] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(!output.status.success() && failed.contains("Rendezvous::join"), "{failed}");
        assert!(said.contains("device: ") && !said.contains("data: "), "{said}");
    }

    #[test]
    fn all_processes_end_if_one_has_no_images() {
        let folder = Folder::new("mnist-images");
        let port = free_port();
        let mut second = process(1, port, "120", &folder.0, "mnist");
        // No cached images, and none to download.
        second.envs(["HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"].map(|name| (name, &folder.0)));
        let proxies = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
        second.envs(proxies.map(|name| (name, "http://127.0.0.1:1")));
        let processes = [process(0, port, "120", &folder.0, "digits"), second];
        for child in processes.map(|mut command| command.spawn().expect("the program starts")) {
            let output = child.wait_with_output().expect("its output");
            let failed = String::from_utf8_lossy(&output.stderr);
            let expected = "found rank 1 has none (MNIST is not available: ";
            assert!(!output.status.success() && failed.contains(expected), "{failed}");
        }
    }
}

#[cfg(not(feature = "devices"))]
#[test]
fn one_of_several_processes_needs_the_feature_devices() {
    let folder = Folder::new("mnist-alone");
    let output = process(0, 29_500, "1", &folder.0, "digits").output().expect("its output");
    let failed = String::from_utf8_lossy(&output.stderr);
    let expected = "error: the number of processes: expected 1, because this program trains in one process \
        (build it with --features burn-rocm-examples/devices for several), found 2, by torchrun";
    assert!(!output.status.success() && failed.contains(expected), "{failed}");
}
