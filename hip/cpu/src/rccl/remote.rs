//! A rank's side of the connection to a hub in another process.

use super::call::Call;
use super::compute::Memory;
use super::id::{Id, process};
use super::message::{self, GREETING, PATIENCE, Remote, connected, lost, read_failure};
use super::{Failure, Outcome};
use rccl_sys::*;
use std::{
    collections::VecDeque,
    convert::Infallible,
    io::{self, Read},
    net::{Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

#[derive(Default)]
struct State {
    joined: bool,
    failure: Option<Failure>,
    posted: u64,
    /// Results that the rank has not fetched, oldest first, and the number of the oldest.
    results: VecDeque<Vec<u8>>,
    fetched: u64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A rank's connection to its hub.
pub(super) struct Connection {
    rank: usize,
    size: usize,
    to_hub: Remote,
    stream: TcpStream,
    shared: Arc<Shared>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: Failure) {
        self.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    /// Reads what the hub says until the connection ends, which is a failure, whoever ends it.
    fn listen(&self, stream: &mut TcpStream) {
        let Err(error) = self.listen_on(stream);
        self.fail(lost(&error));
    }

    fn listen_on(&self, stream: &mut TcpStream) -> io::Result<Infallible> {
        loop {
            let mut kind = [0];
            stream.read_exact(&mut kind)?;
            match kind[0] {
                message::JOINED => self.lock().joined = true,
                message::FAILED => {
                    let failure = read_failure(stream)?;
                    self.fail(failure);
                }
                message::RESULT => {
                    let mut length = [0; 8];
                    stream.read_exact(&mut length)?;
                    let mut result = Vec::new();
                    stream.take(u64::from_le_bytes(length)).read_to_end(&mut result)?;
                    if result.len() as u64 != u64::from_le_bytes(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.lock().results.push_back(result);
                }
                other => return Err(io::Error::other(format!("an unknown message {other}"))),
            }
            self.changed.notify_all();
        }
    }
}

impl Connection {
    /// Joins a group of another process, and waits until all ranks have joined.
    pub(super) fn join(id: &Id, rank: usize, size: usize, device: usize) -> Outcome<Self> {
        let failed = |error: io::Error| {
            let text = format!("no group at {}: {error}; all its ranks have joined, or it ended", id.address);
            Failure::new(ncclRemoteError, text)
        };
        let stream = TcpStream::connect_timeout(&id.address, PATIENCE).map_err(failed)?;
        connected(stream.set_nodelay(true))?;
        let mut greeting = [0; GREETING];
        greeting[..32].copy_from_slice(&id.secret);
        greeting[32..36].copy_from_slice(&(rank as u32).to_le_bytes());
        greeting[36..40].copy_from_slice(&(size as u32).to_le_bytes());
        greeting[40..48].copy_from_slice(&process().to_le_bytes());
        greeting[48..].copy_from_slice(&(device as u64).to_le_bytes());
        let to_hub = connected(stream.try_clone().and_then(Remote::new))?;
        connected(to_hub.send(&[&greeting]))?;
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let (listener, mut from_hub) = (shared.clone(), connected(stream.try_clone())?);
        let listen = move || listener.listen(&mut from_hub);
        connected(thread::Builder::new().name("hip-cpu-rank".into()).spawn(listen))?;
        let connection = Self { rank, size, to_hub, stream, shared };
        connection.wait_until(|state| state.joined.then_some(()))?;
        Ok(connection)
    }

    /// Waits until `ready` finds what it looks for, or the group fails.
    fn wait_until<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> Outcome<T> {
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = ready(&mut state) {
                return Ok(found);
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends a call to the hub. Returns the number of its result.
    ///
    /// # Safety
    /// `memory` is the call's.
    pub(super) unsafe fn post(&self, call: &Call, memory: Memory) -> Outcome<u64> {
        let number = {
            let mut state = self.shared.lock();
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            state.posted += 1;
            state.posted - 1
        };
        let given: &[u8] = match call.sent(self.rank, self.size) {
            0 => &[],
            // SAFETY: the caller's memory has what the call gives.
            bytes => unsafe { std::slice::from_raw_parts(memory.send, bytes) },
        };
        match self.to_hub.send(&[&[message::CALL], &call.encode(), given]) {
            Ok(()) => Ok(number),
            // The connection is closed. The hub may have said why: the listening thread reads that,
            // and then finds the end.
            Err(_) => self.wait_until(|_| None),
        }
    }

    /// Waits for a call's result and stores it. Results are fetched in the order of the calls.
    ///
    /// # Safety
    /// As for [`Connection::post`].
    pub(super) unsafe fn wait(&self, number: u64, call: &Call, memory: Memory) -> Outcome {
        let result = self.wait_until(|state| {
            let result = if state.fetched == number { state.results.pop_front() } else { None };
            state.fetched += u64::from(result.is_some());
            result
        })?;
        let wanted = call.received(self.rank, self.size);
        if result.len() != wanted {
            let text = format!("{call}: the hub gave {} bytes, not {wanted}", result.len());
            return Err(Failure::new(ncclInternalError, text));
        }
        // SAFETY: the caller's memory has room for what the call gets.
        unsafe { result.as_ptr().copy_to(memory.recv, wanted) };
        Ok(())
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.shared.lock().failure.clone()
    }

    pub(super) fn leave(&self) {
        let _ = self.to_hub.send(&[&[message::LEAVE]]);
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the connection, which fails the group for the other ranks too.
    pub(super) fn abort(&self) {
        self.shared.fail(Failure::new(ncclRemoteError, "this rank gave the group up"));
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Connection {
    /// For a rank that never joined, or whose handle was forgotten.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
