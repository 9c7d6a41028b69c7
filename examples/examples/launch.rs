//! Starts a process for each device, where there is no torchrun, mpirun or srun. Each gets the
//! variables that torchrun sets.
//!
//! ```text
//! launch -n 2 -- target/release/examples/mnist --model mlp
//! # On two machines, the same command but for the number of the machine:
//! BURN_ROCM_RENDEZVOUS_SECRET=.. launch -n 8 --nodes 2 --node 0 --master n1:29500 -- my-app
//! BURN_ROCM_RENDEZVOUS_SECRET=.. launch -n 8 --nodes 2 --node 1 --master n1:29500 -- my-app
//! ```
//!
//! If a process fails, the others get an error from their collectives. After `--grace` seconds,
//! `launch` kills those that still run. The exit status is that of the first process that failed.
//!
//! A signal that asks `launch` to end (SIGTERM, SIGINT and SIGHUP, unless it is ignored, as `nohup`
//! does) ends its processes too: `launch` sends them SIGTERM, and kills those that still run after
//! `--grace` seconds. Then the exit status is 1. On Windows, Ctrl-C goes to all processes of a console.

use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

/// Starts a process for each device.
#[derive(Debug, Parser)]
#[command(name = "launch")]
struct Arguments {
    /// The processes on this machine.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    processes: u32,
    /// The machines, each with as many processes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// This machine's number, from 0.
    #[arg(long, default_value_t = 0)]
    node: u32,
    /// Machine 0's name or address, and a port that is free there. On one machine, this one and any
    /// free port.
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<String>,
    /// How long to wait, in seconds, after a process fails or a signal arrives, before killing the
    /// processes that still run.
    #[arg(long, default_value_t = 10)]
    grace: u64,
    /// The program, with its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// A flag that the signals set which ask this program to end, and which it does not ignore.
#[cfg(unix)]
fn asked_to_end() -> io::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    // Linux's mask of ignored signals, with signal 1 as its lowest bit. Another Unix has no such file.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        if ignored >> (signal - 1) & 1 == 0 {
            signal_hook::flag::register(signal, flag.clone())?;
        }
    }
    Ok(flag)
}

/// Windows sends Ctrl-C to all processes of a console.
#[cfg(not(unix))]
fn asked_to_end() -> io::Result<Arc<AtomicBool>> {
    Ok(Arc::default())
}

/// Why the wait ended other than by success.
#[derive(Clone, Copy)]
enum Ended {
    /// The first process that failed.
    Failed(usize, ExitStatus),
    /// A signal asked for it.
    Asked,
}

/// Ends the processes with their owner.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended stays as it is.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Processes {
    fn start(arguments: &Arguments, (host, port): (&str, &str)) -> io::Result<Self> {
        let Arguments { processes, nodes, node, command, .. } = arguments;
        let mut all = Self(Vec::new());
        for local in 0..*processes {
            let numbers = [
                ("RANK", node * processes + local),
                ("LOCAL_RANK", local),
                ("WORLD_SIZE", nodes * processes),
                ("LOCAL_WORLD_SIZE", *processes),
                ("GROUP_RANK", *node),
            ];
            let child = Command::new(&command[0])
                .args(&command[1..])
                .envs(numbers.map(|(name, number)| (name, number.to_string())))
                .envs([("MASTER_ADDR", host), ("MASTER_PORT", port)])
                .spawn()?;
            all.0.push(child);
        }
        Ok(all)
    }

    /// Asks all to end.
    #[cfg(unix)]
    fn ask_to_end(&mut self) {
        use nix::sys::signal::{Signal, kill};
        use nix::unistd::Pid;

        for child in &mut self.0 {
            // The number of one that has been waited for may be another process's by now.
            if let (Ok(None), Ok(pid)) = (child.try_wait(), i32::try_from(child.id())) {
                // It may have ended since.
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
    }

    #[cfg(not(unix))]
    fn ask_to_end(&mut self) {}

    /// Waits until all have ended, or for `grace` after the first failure or a signal.
    fn wait(&mut self, grace: Duration, asked_to_end: &AtomicBool) -> io::Result<Option<Ended>> {
        let mut ended: Option<(Ended, Instant)> = None;
        loop {
            if asked_to_end.swap(false, Ordering::Relaxed) {
                ended.get_or_insert((Ended::Asked, Instant::now()));
                self.ask_to_end();
            }
            let mut running = false;
            for (rank, child) in self.0.iter_mut().enumerate() {
                match child.try_wait()? {
                    None => running = true,
                    Some(status) if !status.success() && ended.is_none() => {
                        ended = Some((Ended::Failed(rank, status), Instant::now()));
                    }
                    Some(_) => {}
                }
            }
            let is_late = ended.is_some_and(|(_, since)| since.elapsed() >= grace);
            if !running || is_late {
                return Ok(ended.map(|(why, _)| why));
            }
            sleep(Duration::from_millis(10));
        }
    }
}

/// Ends this program as an argument that clap refuses does.
fn refuse(text: &str) -> ! {
    Arguments::command().error(ErrorKind::ValueValidation, text).exit()
}

/// Machine 0's address and port.
fn master(arguments: &Arguments) -> io::Result<(String, String)> {
    if arguments.node >= arguments.nodes {
        refuse("--node must be below --nodes");
    }
    match &arguments.master {
        Some(master) => match master.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
                Ok((host.into(), port.into()))
            }
            _ => refuse("--master is not of the form HOST:PORT"),
        },
        None if arguments.nodes > 1 => refuse("several machines need --master"),
        None => {
            // Free now. If another program takes it first, rank 0 takes one of the next ports.
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            Ok(("127.0.0.1".into(), port.to_string()))
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<ExitCode> {
    let (host, port) = master(arguments)?;
    // Before there is a process that a signal could leave behind.
    let asked_to_end = asked_to_end()?;
    let mut processes = Processes::start(arguments, (&host, &port))?;
    match processes.wait(Duration::from_secs(arguments.grace), &asked_to_end)? {
        None => Ok(ExitCode::SUCCESS),
        Some(Ended::Failed(rank, status)) => {
            eprintln!("launch: process {rank} of this machine failed: {status}");
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
        }
        Some(Ended::Asked) => {
            eprintln!("launch: a signal asked it to end; all its processes have ended");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    run(&arguments).unwrap_or_else(|error| {
        eprintln!("launch: {}: {error}", arguments.command[0]);
        ExitCode::FAILURE
    })
}
