//! A rank, and the calls that it continues after they have returned.
//!
//! With NCCL's variable `NCCL_COMM_BLOCKING=0`, a call returns `ncclInProgress` and continues in a thread
//! of its own. `ncclCommGetAsyncError` reports `ncclInProgress` until the call is done.

use super::hub::Hub;
use super::id::{self, Id};
use super::remote::Connection;
use super::{Failure, Outcome};
use rccl_sys::*;
use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

/// What an `ncclComm_t` stands for.
pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) device: usize,
    id: Id,
    /// Once the rank has joined.
    seat: OnceLock<Seat>,
    beside: Mutex<Beside>,
}

/// Where the group's hub is.
pub(super) enum Seat {
    Here(Arc<Hub>),
    Elsewhere(Connection),
}

/// What goes on after calls have returned.
#[derive(Default)]
struct Beside {
    calls: usize,
    failure: Option<Failure>,
    given_up: bool,
}

/// Whether calls return when they are done.
pub(super) fn blocks() -> bool {
    static BLOCKS: OnceLock<bool> = OnceLock::new();
    *BLOCKS.get_or_init(|| env::var_os("NCCL_COMM_BLOCKING").is_none_or(|value| value != "0"))
}

impl Rank {
    pub(super) fn new(rank: usize, size: usize, device: usize, id: Id) -> Self {
        Self { rank, size, device, id, seat: OnceLock::new(), beside: Mutex::default() }
    }

    /// Joins the group, and waits until all ranks have joined.
    pub(super) fn join(&self) -> Outcome {
        let seat = match self.id.hub() {
            Some(hub) => {
                hub.join(self.rank, self.size, (id::process(), self.device), None)?;
                Seat::Here(hub)
            }
            None => Seat::Elsewhere(Connection::join(&self.id, self.rank, self.size, self.device)?),
        };
        // Nobody else joins as this rank.
        let _ = self.seat.set(seat);
        if self.beside().given_up {
            self.give_up();
        }
        Ok(())
    }

    pub(super) fn seat(&self) -> Outcome<&Seat> {
        self.seat.get().ok_or_else(|| Failure::new(ncclInvalidArgument, "the rank has not joined yet"))
    }

    fn beside(&self) -> MutexGuard<'_, Beside> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call goes on.
    pub(super) fn is_busy(&self) -> bool {
        self.beside().calls > 0
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        let own = self.beside().failure.clone();
        own.or_else(|| match self.seat.get()? {
            Seat::Here(hub) => hub.failure(),
            Seat::Elsewhere(connection) => connection.failure(),
        })
    }

    pub(super) fn leave(&self) {
        match self.seat.get() {
            Some(Seat::Here(hub)) => hub.leave(self.rank),
            Some(Seat::Elsewhere(connection)) => connection.leave(),
            None => {
                self.beside().given_up = true;
                self.give_up();
            }
        }
    }

    /// Fails the group, and waits until this rank's calls have ended. If the rank is still joining a group
    /// whose hub is in another process, the group fails as soon as the rank has joined.
    pub(super) fn abort(&self) {
        self.beside().given_up = true;
        self.give_up();
        while self.seat.get().is_some() && self.is_busy() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn give_up(&self) {
        let hub = match self.seat.get() {
            Some(Seat::Elsewhere(connection)) => return connection.abort(),
            Some(Seat::Here(hub)) => Some(hub.clone()),
            None => self.id.hub(),
        };
        if let Some(hub) = hub {
            hub.fail(Failure::new(ncclRemoteError, format!("rank {} gave the group up", self.rank)));
            // This process may end now.
            hub.wait_until_told();
        }
    }
}

/// Runs a call's work in a thread of its own. Returns `ncclInProgress` as the failure.
pub(super) fn go_on(ranks: Vec<Arc<Rank>>, work: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    ranks.iter().for_each(|rank| rank.beside().calls += 1);
    let of = ranks.clone();
    let run = move || {
        let panicked = |_| Err(Failure::new(ncclInternalError, "the CPU device's RCCL panicked"));
        let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked);
        for rank in &of {
            let mut beside = rank.beside();
            beside.calls -= 1;
            if let Err(failure) = &outcome {
                beside.failure.get_or_insert(failure.clone());
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("hip-cpu-call".into()).spawn(run) {
        ranks.iter().for_each(|rank| rank.beside().calls -= 1);
        return Err(Failure::new(ncclSystemError, format!("no thread: {error}")));
    }
    Err(Failure::new(ncclInProgress, "the call goes on in a thread of its own"))
}
