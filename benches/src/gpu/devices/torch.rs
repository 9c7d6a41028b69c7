//! PyTorch's all-reduces and its data parallel steps (DDP), a process for each device.

use std::process::{Command, Stdio};

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
    let processes = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
    for (rank, mut process) in processes.into_iter().enumerate() {
        let status = process.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("PyTorch's rank {rank} of {count}: {status}"));
        }
    }
    Ok(())
}
