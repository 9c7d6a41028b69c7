//! Ranks that are processes, each with a CPU device of its own.

use std::net::TcpListener;
use std::process::Command;

use burn_rocm::rendezvous::{Rendezvous, World};

use crate::*;

/// Is set in the process of a rank.
const CHILD: &str = "BURN_ROCM_TEST_RANK";

pub(crate) fn is_rank() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The group of all ranks' processes, in one of them.
pub(crate) fn connect() -> Communicator {
    let rendezvous = Rendezvous::join(&World::from_env().unwrap()).unwrap();
    Communicator::connect(&RocmDevice::new(0), &rendezvous).unwrap()
}

/// A port for the ranks of a group.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs a test again, as a rank of `count`.
pub(crate) fn as_rank(test: &str, rank: usize, count: usize, port: u16) -> Command {
    let numbers = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", count)];
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .envs([(CHILD, "1"), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_DEVICES", "1")])
        .envs([("BURN_ROCM_COLLECTIVE_TIMEOUT", "60"), ("MASTER_ADDR", "127.0.0.1")])
        .envs(numbers.map(|(name, value)| (name, value.to_string())))
        .env("MASTER_PORT", port.to_string());
    command
}

/// Runs a test's body in two and in four processes.
pub(crate) fn on_processes(test: &str, body: impl FnOnce(Communicator)) {
    if is_rank() {
        return body(connect());
    }
    for count in [2, 4] {
        let port = free_port();
        std::thread::scope(|scope| {
            let run = |rank| scope.spawn(move || as_rank(test, rank, count, port).output().unwrap());
            let ranks: Vec<_> = (0..count).map(run).collect();
            for (rank, thread) in ranks.into_iter().enumerate() {
                let output = thread.join().unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                let error = String::from_utf8_lossy(&output.stderr);
                let passed = output.status.success() && said.contains("1 passed");
                assert!(passed, "rank {rank} of {count}:\n{said}\n{error}");
            }
        });
    }
}
