//! PyTorch's all-reduces and its data parallel steps (DDP), a process for each device.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Options;

const PEER: &str =
    concat!(include_str!("../../../peers/torch_models.py"), include_str!("../../../peers/torch_devices.py"));

/// Prints PyTorch's rows, if its Python was named.
///
/// # Errors
/// An error text if Python can't be run, or a process fails.
pub(super) fn run(options: &Options, count: usize) -> Result<(), String> {
    let Some(python) = &options.torch else { return Ok(()) };
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.map_err(|error| error.to_string())?.port();
    let start = |rank: usize| {
        let mut command = Command::new(python);
        command.args(["-c", PEER]).env("RANK", rank.to_string()).env("WORLD_SIZE", count.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.args(["--iterations", &options.iterations.max(1).to_string()]);
        command.args(["--filter", options.filter.as_deref().unwrap_or_default()]);
        if options.bf16 {
            command.arg("--bf16");
        }
        command.stdin(Stdio::null()).spawn().map_err(|error| format!("{}: {error}", python.display()))
    };
    let mut processes = Processes(Vec::new());
    for rank in 0..count {
        processes.0.push(start(rank)?);
    }
    processes.wait()
}

/// The ranks' processes. Dropping it ends those that still run: they would wait for one that failed.
struct Processes(Vec<Child>);

impl Processes {
    /// Waits until all have ended, or one has failed.
    fn wait(&mut self) -> Result<(), String> {
        let count = self.0.len();
        let mut ended = vec![false; count];
        while ended.contains(&false) {
            for (rank, (process, ended)) in self.0.iter_mut().zip(&mut ended).enumerate() {
                match process.try_wait().map_err(|error| error.to_string())? {
                    Some(status) if !status.success() => {
                        return Err(format!("PyTorch's rank {rank} of {count}: {status}"));
                    }
                    status => *ended = status.is_some(),
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // `kill` and `wait` do nothing to a process that was already waited for.
        self.0.iter_mut().for_each(|process| drop(process.kill()));
        self.0.iter_mut().for_each(|process| drop(process.wait()));
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_that_fails_ends_the_others() {
        let shell = |script| Command::new("sh").args(["-c", script]).spawn().expect("a shell");
        let start = Instant::now();
        let mut processes = Processes(vec![shell("exec sleep 60"), shell("exit 3")]);
        let error = processes.wait().expect_err("rank 1 fails");
        drop(processes);
        assert!(error.contains("rank 1 of 2") && error.contains('3'), "{error}");
        assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
        assert_eq!(Processes(vec![shell("exit 0"), shell("sleep 0.1")]).wait(), Ok(()));
    }
}
