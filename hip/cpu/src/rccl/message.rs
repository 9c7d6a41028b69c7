//! The messages between the processes of a group.
//!
//! A connection begins with a greeting: the secret, rank, size, process and device. Every later
//! message is one byte that names it, and what the constant says.

use super::{Failure, Outcome};
use rccl_sys::*;
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// What a process must know to join: 32 random bytes.
pub(super) type Secret = [u8; 32];

/// How long a connection may take to say who it is. Once its group has failed, also how long a rank
/// may take no bytes.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How often a write that waits for its reader looks whether the group has failed.
const LOOK: Duration = Duration::from_millis(500);

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
/// The writing end of a connection.
pub(super) struct Remote {
    stream: Mutex<TcpStream>,
    /// The group has failed, so a rank that takes nothing is no longer waited for.
    failed: AtomicBool,
}

impl Remote {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(LOOK))?;
        Ok(Self { stream: Mutex::new(stream), failed: AtomicBool::new(false) })
    }

    /// Sends a message. The parts of two messages do not mix. Waits for a slow reader for as long as
    /// the group is whole. An error closes the connection, because half a message may be in it.
    pub(super) fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = parts.iter().try_for_each(|part| self.write(&mut stream, part));
        if sent.is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        sent
    }

    fn write(&self, stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
        let mut waited = Duration::ZERO;
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    waited = Duration::ZERO;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if waited < PATIENCE => {
                        if self.failed.load(Ordering::Acquire) {
                            waited += LOOK;
                        }
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Sends a failure. If that fails too, the other end notices that the connection is closed.
    pub(super) fn send_failure(&self, failure: &Failure) {
        self.failed.store(true, Ordering::Release);
        let text = failure.text.as_bytes();
        let length = (text.len() as u32).to_le_bytes();
        let _ = self.send(&[&[FAILED, failure.status.0 as u8], &length, text]);
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
