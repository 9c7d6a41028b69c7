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

use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, ExitStatus};
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
    /// Seconds between the failure of a process and the end of those that still run.
    #[arg(long, default_value_t = 10)]
    grace: u64,
    /// The program, with its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
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

    /// Waits until all have ended, or for `grace` after the first failure, which is the result.
    fn wait(&mut self, grace: Duration) -> io::Result<Option<(usize, ExitStatus)>> {
        let mut failed: Option<(usize, ExitStatus, Instant)> = None;
        loop {
            let mut running = false;
            for (rank, child) in self.0.iter_mut().enumerate() {
                match child.try_wait()? {
                    None => running = true,
                    Some(status) if !status.success() && failed.is_none() => {
                        failed = Some((rank, status, Instant::now()));
                    }
                    Some(_) => {}
                }
            }
            let is_late = failed.is_some_and(|(.., since)| since.elapsed() >= grace);
            if !running || is_late {
                return Ok(failed.map(|(rank, status, _)| (rank, status)));
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
    let mut processes = Processes::start(arguments, (&host, &port))?;
    let Some((rank, status)) = processes.wait(Duration::from_secs(arguments.grace))? else {
        return Ok(ExitCode::SUCCESS);
    };
    eprintln!("launch: process {rank} of this machine failed: {status}");
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    run(&arguments).unwrap_or_else(|error| {
        eprintln!("launch: {}: {error}", arguments.command[0]);
        ExitCode::FAILURE
    })
}
