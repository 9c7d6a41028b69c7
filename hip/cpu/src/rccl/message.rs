//! The messages between the processes of a group.
//!
//! A connection begins with a greeting: the secret, rank, size, process and device. Every later
//! message is one byte that names it, and what the constant says.

use super::{Failure, Outcome};
use rccl_sys::*;
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// What a process must know to join: 32 random bytes.
pub(super) type Secret = [u8; 32];

/// How long a connection may take to say who it is, and to take a message.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The bytes of a greeting.
pub(super) const GREETING: usize = 32 + 4 + 4 + 8 + 8;

/// To the hub: an encoded call and the bytes that the rank gives.
pub(super) const CALL: u8 = 1;
/// To the hub: the rank leaves.
pub(super) const LEAVE: u8 = 2;
/// From the hub: all ranks have joined.
pub(super) const JOINED: u8 = 3;
/// From the hub: the length of what the rank gets from its oldest call, and the bytes.
pub(super) const RESULT: u8 = 4;
/// From the hub: the group has failed. A status, the length of a text, and the text.
pub(super) const FAILED: u8 = 5;
/// From the hub: its process has left the group and may end.
pub(super) const CLOSING: u8 = 6;

/// The writing end of a connection.
pub(super) struct Remote {
    stream: Mutex<TcpStream>,
}

impl Remote {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream: Mutex::new(stream) }
    }

    /// Sends a message. The parts of two messages do not mix.
    pub(super) fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().try_for_each(|part| stream.write_all(part))
    }

    /// Sends a failure. If that fails too, the other end notices that the connection is closed.
    pub(super) fn send_failure(&self, failure: &Failure) {
        let text = failure.text.as_bytes();
        let length = (text.len() as u32).to_le_bytes();
        let _ = self.send(&[&[FAILED, failure.status.0 as u8], &length, text]);
    }

    pub(super) fn send_closing(&self) {
        let _ = self.send(&[&[CLOSING]]);
    }
}

/// Reads a failure after its first byte.
pub(super) fn read_failure(stream: &mut TcpStream) -> io::Result<Failure> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    let mut text = vec![0; length.min(1 << 16) as usize];
    stream.read_exact(&mut text)?;
    Ok(Failure::new(ncclResult_t(i32::from(head[0])), String::from_utf8_lossy(&text)))
}

/// A failure of the connection to the hub.
pub(super) fn lost(error: &io::Error) -> Failure {
    Failure::new(
        ncclRemoteError,
        format!("the process that made the group's id is gone: the connection to it is closed ({error})"),
    )
}

/// The result of an operation on the connection to the hub.
pub(super) fn connected<T>(result: io::Result<T>) -> Outcome<T> {
    result.map_err(|error| lost(&error))
}
