//! The hub's side of a connection to another process.

use super::Failure;
use super::call::{Call, ENCODED};
use super::compute::Memory;
use super::hub::{Hub, Ticket};
use super::message::{self, GREETING, PATIENCE, Remote, Secret};
use rccl_sys::*;
use std::{
    io::{self, Read},
    net::{Shutdown, TcpStream},
    sync::{Arc, mpsc},
    thread,
};

/// Memory for another process's call, aligned to every element type.
struct Room {
    words: Vec<u64>,
    bytes: usize,
}

impl Room {
    /// `None` if there is too little memory.
    fn new(bytes: usize) -> Option<Self> {
        let (len, mut words) = (bytes.div_ceil(8), Vec::new());
        words.try_reserve_exact(len).ok()?;
        words.resize(len, 0);
        Some(Self { words, bytes })
    }

    fn address(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    fn get(&mut self) -> &mut [u8] {
        // SAFETY: the words' own bytes, any values of which are valid.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.bytes) }
    }
}

/// Serves a new connection in a thread of its own.
pub(super) fn welcome(stream: TcpStream, secret: Secret, hub: Arc<Hub>) {
    let serve = move || {
        if let Err(error) = serve(stream, secret, &hub) {
            log::debug!("hip-cpu: a connection to a group ended: {error}");
        }
    };
    // Without a thread the connection closes, and the rank at its other end gets an error.
    let _ = thread::Builder::new().name("hip-cpu-rank".into()).spawn(serve);
}

fn serve(mut stream: TcpStream, secret: Secret, hub: &Arc<Hub>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut greeting = [0; GREETING];
    stream.read_exact(&mut greeting)?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| greeting[at + i])) as usize;
    let long = |at: usize| word(at) as u64 | (word(at + 4) as u64) << 32;
    let (rank, size, process, device) = (word(32), word(36), long(40), long(48) as usize);
    // Without an early exit, so that the time does not tell how many bytes were right.
    let wrong = greeting[..32].iter().zip(secret).fold(0, |wrong, (a, b)| wrong | (a ^ b));
    if wrong != 0 || rank >= size {
        return Err(io::Error::other("it does not know the group's secret"));
    }
    stream.set_read_timeout(None)?;
    let remote = Arc::new(Remote::new(stream.try_clone()?)?);
    let (joined, ended) = (hub.clone(), remote.clone());
    if let Err(failure) = hub.join(rank, size, (process, device), Some(remote.clone())) {
        ended.send_failure(&failure);
        return Ok(());
    }

    let (results, waiting) = mpsc::channel::<(Arc<Ticket>, Room, Room)>();
    let answer = move || {
        for (ticket, _given, mut got) in waiting {
            // After a failure, the hub has told the rank already.
            let sent = joined.wait(&ticket).is_err()
                || ended.send(&[&[message::RESULT], &(got.bytes as u64).to_le_bytes(), got.get()]).is_ok();
            if !sent {
                joined.fail(Failure::new(ncclRemoteError, format!("rank {rank} takes no results")));
            }
        }
    };
    let begun = remote.send(&[&[message::JOINED]]);
    let begun = begun.and_then(|()| thread::Builder::new().name("hip-cpu-rank".into()).spawn(answer));
    let answering = match begun {
        Ok(answering) => answering,
        // The other ranks have joined too, and would wait for this one's calls.
        Err(error) => {
            hub.fail(Failure::new(ncclRemoteError, format!("rank {rank} can't be served: {error}")));
            let _ = stream.shutdown(Shutdown::Both);
            return Err(error);
        }
    };
    let end = listen(&mut stream, rank, size, hub, &results);
    drop(results);
    match end {
        Ok(()) => hub.leave(rank),
        Err(error) => hub.fail(Failure::new(
            ncclRemoteError,
            format!("rank {rank} is gone: its process ended or closed the connection ({error})"),
        )),
    }
    let _ = answering.join();
    let _ = stream.shutdown(Shutdown::Both);
    Ok(())
}

/// Posts the rank's calls until it leaves.
fn listen(
    stream: &mut TcpStream,
    rank: usize,
    size: usize,
    hub: &Arc<Hub>,
    results: &mpsc::Sender<(Arc<Ticket>, Room, Room)>,
) -> io::Result<()> {
    loop {
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        match kind[0] {
            message::CALL => {}
            message::LEAVE => return Ok(()),
            other => return Err(io::Error::other(format!("an unknown message {other}"))),
        }
        let mut encoded = [0; ENCODED];
        stream.read_exact(&mut encoded)?;
        let call = Call::decode(&encoded, size).ok_or_else(|| io::Error::other("an unknown call"))?;
        let room = |bytes| Room::new(bytes).ok_or_else(|| io::Error::other("too little memory"));
        let (mut given, mut got) = (room(call.sent(rank, size))?, room(call.received(rank, size))?);
        stream.read_exact(given.get())?;
        let memory = Memory { send: given.address(), recv: got.address() };
        // SAFETY: the answering thread keeps the memory until the ticket is done or has failed;
        // moving a room does not move its words.
        // After a failure, the hub has told the rank.
        if let Ok(ticket) = unsafe { hub.post(rank, call, memory) }
            && results.send((ticket, given, got)).is_err()
        {
            return Err(io::Error::other("its results can't be sent"));
        }
    }
}
