//! RCCL on the host's CPU: between threads in memory, between processes over TCP on the loopback.
//!
//! The process that made a group's unique id is its hub. The hub matches the ranks' calls, computes
//! each when its last rank has made it, and compares the ranks' calls. Ranks of other processes reach
//! the hub by TCP, where two threads act for each of them. A call returns when it is computed, as
//! every call of this device does, so the ranks of one process need a thread each, or one group. With
//! NCCL's `NCCL_COMM_BLOCKING=0` it returns before (`rank.rs`).
//!
//! Reductions go through the ranks in order, f16 and bf16 in f32, and so repeat their bits. A rank
//! that dies, aborts or makes a call that the others did not make fails the group for all of them.
//! A hub's process that dies fails it too. The last rank of that process that leaves in order waits
//! until the other processes' ranks have left, so it serves their calls to the end.
#![allow(non_upper_case_globals)] // AMD's names.

mod call;
mod compute;
mod functions;
mod hub;
mod id;
mod message;
mod rank;
mod remote;
mod serve;
#[cfg(test)]
mod tests;

use rccl_sys::{Rccl, ncclResult_t};

/// Why a group or a call failed: RCCL's status and a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    status: ncclResult_t,
    text: String,
}

impl Failure {
    fn new(status: ncclResult_t, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
}

type Outcome<T = ()> = Result<T, Failure>;

/// The CPU device's RCCL.
pub fn rccl_table() -> Rccl {
    functions::table()
}
