//! A group's hub: it matches the ranks' calls and computes them.

use super::call::{Call, Kind};
use super::compute::{Memory, compute, copy};
use super::message::Remote;
use super::{Failure, Outcome};
use crate::settings::Failure as Asked;
use rccl_sys::*;
use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread,
};

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const DONE: u8 = 2;
/// The call's memory is no longer used, and its results are lost.
const FAILED: u8 = 3;

/// The state of one rank's call.
pub(super) struct Ticket(AtomicU8);

/// A rank's call that waits for other ranks.
struct Entry {
    rank: usize,
    call: Call,
    memory: Memory,
    ticket: Arc<Ticket>,
}

// SAFETY: whoever posts a call keeps its memory valid until the call is done or has failed, and
// any thread may compute it.
unsafe impl Send for Entry {}

/// A rank that has joined.
struct Member {
    /// The process, and the device within it: no two ranks may share both.
    place: (u64, usize),
    left: bool,
    /// The connection, for a rank of another process.
    remote: Option<Arc<Remote>>,
}

#[derive(Default)]
struct State {
    /// By rank. Empty until the first rank has said how many there are.
    members: Vec<Option<Member>>,
    failure: Option<Failure>,
    /// How many collectives each rank has called.
    called: Vec<u64>,
    /// The number of the first collective in `open`.
    first: u64,
    /// Collectives that some ranks have not called yet.
    open: VecDeque<Vec<Option<Entry>>>,
    /// Sends and receives that wait for each other, by sender and receiver.
    pairs: HashMap<(usize, usize), (VecDeque<Entry>, VecDeque<Entry>)>,
    /// The ranks of other processes know of the failure, or their connections are closed.
    told: bool,
}

pub(super) struct Hub {
    state: Mutex<State>,
    changed: Condvar,
    /// Runs once, when no further rank will join.
    complete: Box<dyn Fn() + Send + Sync>,
}

impl Hub {
    pub(super) fn new(complete: impl Fn() + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), complete: Box::new(complete) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails the group, unless it has failed already, and tells all ranks.
    pub(super) fn fail(&self, failure: Failure) {
        self.fail_locked(self.lock(), failure);
    }

    fn fail_locked(&self, mut state: MutexGuard<'_, State>, failure: Failure) {
        if state.failure.is_some() {
            return;
        }
        log::debug!("hip-cpu: a group of {} ranks failed: {}", state.members.len(), failure.text);
        state.failure = Some(failure.clone());
        // Their memory may be gone as soon as their callers know of the failure.
        state.open.clear();
        state.pairs.clear();
        let remotes = state.remotes();
        self.changed.notify_all();
        drop(state);
        // Side by side, so that one that takes nothing does not delay the others.
        thread::scope(|scope| {
            for remote in &remotes {
                let tell = || remote.send_failure(&failure);
                if thread::Builder::new().spawn_scoped(scope, tell).is_err() {
                    tell();
                }
            }
        });
        self.lock().told = true;
        self.changed.notify_all();
        (self.complete)();
    }

    /// How many ranks have joined.
    #[cfg(all(test, unix))]
    pub(super) fn joined(&self) -> usize {
        self.lock().members.iter().flatten().count()
    }

    /// Lets a rank join, and waits until all have joined.
    pub(super) fn join(
        &self,
        rank: usize,
        size: usize,
        place: (u64, usize),
        remote: Option<Arc<Remote>>,
    ) -> Outcome {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.members.is_empty() {
            state.members.resize_with(size, || None);
            state.called.resize(size, 0);
        }
        let of = state.members.len();
        if state.members.iter().all(Option::is_some) {
            return Err(Failure::new(ncclInvalidUsage, format!("all {of} ranks have joined already")));
        }
        let same = state.members.iter().position(|m| m.as_ref().is_some_and(|m| m.place == place));
        let problem = match same {
            _ if of != size => {
                Some((ncclInvalidArgument, format!("rank {rank} joins {size} ranks, others {of}")))
            }
            _ if state.members[rank].is_some() => {
                Some((ncclInvalidUsage, format!("two ranks join as rank {rank}")))
            }
            Some(other) => Some((
                ncclInvalidUsage,
                format!("ranks {other} and {rank} are both on device {} of one process", place.1),
            )),
            None => None,
        };
        if let Some((status, text)) = problem {
            let failure = Failure::new(status, text);
            self.fail_locked(state, failure.clone());
            return Err(failure);
        }
        state.members[rank] = Some(Member { place, left: false, remote });
        if state.members.iter().all(Option::is_some) {
            self.changed.notify_all();
            drop(state);
            (self.complete)();
            return Ok(());
        }
        while state.failure.is_none() && state.members.iter().any(Option::is_none) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    /// Notes that a rank makes no more calls. Other ranks that wait for it get an error. The last rank
    /// of the hub's own process then waits until the other processes' ranks have left too, or know
    /// that the group has failed, because its process may end afterwards.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        let Some(Some(member)) = state.members.get_mut(rank) else { return };
        member.left = true;
        let is_here = member.remote.is_none();
        self.changed.notify_all();
        let waits_for = |key: &(usize, usize)| key.0 == rank || key.1 == rank;
        let in_pair = state.pairs.iter().any(|(key, (a, b))| waits_for(key) && a.len() + b.len() > 0);
        let waited_for = in_pair || state.open.iter().any(|ranks| ranks[rank].is_none());
        if waited_for {
            self.fail_locked(state, has_left(rank));
            state = self.lock();
        }
        if !is_here || state.members.iter().flatten().any(|member| member.remote.is_none() && !member.left) {
            return;
        }
        // The caller bounds this wait, as it does for every library.
        while state.failure.is_none() && state.members.iter().flatten().any(|member| !member.left) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.wait_until_told();
    }

    /// After a failure, waits until the ranks of other processes have been told.
    pub(super) fn wait_until_told(&self) {
        let mut state = self.lock();
        while state.failure.is_some() && !state.told {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a rank's call. The last rank to make a collective computes it.
    ///
    /// # Safety
    /// `memory` is the call's, as [`compute`] wants it, until the ticket is done or has failed.
    pub(super) unsafe fn post(&self, rank: usize, call: Call, memory: Memory) -> Outcome<Arc<Ticket>> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let ticket = Arc::new(Ticket(AtomicU8::new(WAITING)));
        let entry = Entry { rank, call, memory, ticket: ticket.clone() };
        let taken = match call.kind {
            Kind::Send | Kind::Receive => state.pair(entry),
            _ => state.collective(entry),
        };
        let ready = match taken {
            Ok(ready) => ready,
            Err(failure) => {
                self.fail_locked(state, failure.clone());
                return Err(failure);
            }
        };
        if ready.is_empty() {
            return Ok(ticket);
        }
        ready.iter().for_each(|entry| entry.ticket.0.store(RUNNING, Ordering::Relaxed));
        drop(state);
        let run = || {
            let asked = call.kind == Kind::AllReduce && Asked::AllReduce.is_asked();
            assert!(!asked, "a failure that BURN_ROCM_CPU_FAIL asks for");
            // SAFETY: the posters' memory, which they keep while their tickets run.
            unsafe { compute_ready(&call, &ready) }
        };
        // A panic comes out once no thread uses the memory any more.
        let ran = catch_unwind(AssertUnwindSafe(run));
        let ends_as = if ran.is_ok() { DONE } else { FAILED };
        let state = self.lock();
        ready.iter().for_each(|entry| entry.ticket.0.store(ends_as, Ordering::Relaxed));
        self.changed.notify_all();
        if ran.is_err() {
            let failure = Failure::new(ncclInternalError, format!("{call}: the computation panicked"));
            self.fail_locked(state, failure.clone());
            return Err(failure);
        }
        drop(state);
        Ok(ticket)
    }

    /// Waits until a call is done or has failed. After that, nothing uses its memory.
    pub(super) fn wait(&self, ticket: &Ticket) -> Outcome {
        let mut state = self.lock();
        loop {
            // Relaxed: the lock orders it.
            match (ticket.0.load(Ordering::Relaxed), &state.failure) {
                (DONE, _) => return Ok(()),
                (WAITING | FAILED, Some(failure)) => return Err(failure.clone()),
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Why the group failed, if it has.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }
}

/// Computes the calls of a collective's ranks, or a send and its receive.
///
/// # Safety
/// Each entry's memory is its call's, and nothing else uses it.
unsafe fn compute_ready(call: &Call, ready: &[Entry]) {
    match ready {
        [send, receive] if send.call.kind == Kind::Send => {
            let bytes = call.count * call.element();
            // SAFETY: the caller's memory, here and below.
            unsafe { copy(send.memory.send, receive.memory.recv, bytes) }
        }
        _ => {
            let memory: Vec<_> = ready.iter().map(|entry| entry.memory).collect();
            // SAFETY: as above.
            unsafe { compute(call, &memory) }
        }
    }
}

fn has_left(rank: usize) -> Failure {
    Failure::new(ncclRemoteError, format!("rank {rank} has left the group"))
}

impl State {
    fn remotes(&self) -> Vec<Arc<Remote>> {
        self.members.iter().flatten().filter_map(|member| member.remote.clone()).collect()
    }

    fn left(&self, rank: usize) -> bool {
        self.members[rank].as_ref().is_some_and(|member| member.left)
    }

    /// Enters a rank's collective. Returns the entries of all ranks, in their order, once all have
    /// called it.
    fn collective(&mut self, entry: Entry) -> Outcome<Vec<Entry>> {
        let size = self.members.len();
        let number = self.called[entry.rank];
        self.called[entry.rank] += 1;
        let at = (number - self.first) as usize;
        if self.open.len() <= at {
            self.open.push_back((0..size).map(|_| None).collect());
        }
        let ranks = &mut self.open[at];
        if let Some(other) = ranks.iter().flatten().find(|other| other.call != entry.call) {
            return Err(Failure::new(
                ncclInvalidUsage,
                format!(
                    "the ranks' collectives {} differ: rank {} called {}, rank {} called {}",
                    number + 1,
                    other.rank,
                    other.call,
                    entry.rank,
                    entry.call
                ),
            ));
        }
        let rank = entry.rank;
        ranks[rank] = Some(entry);
        if let Some(gone) = (0..size).find(|&rank| self.open[at][rank].is_none() && self.left(rank)) {
            return Err(has_left(gone));
        }
        if self.open[at].iter().any(Option::is_none) {
            return Ok(Vec::new());
        }
        // Each rank calls in order, so the first open collective is complete first.
        self.first += 1;
        Ok(self.open.pop_front().into_iter().flatten().flatten().collect())
    }

    /// Enters a send or a receive. Returns both once both were called.
    fn pair(&mut self, entry: Entry) -> Outcome<Vec<Entry>> {
        let (rank, peer) = (entry.rank, entry.call.peer);
        let sends = entry.call.kind == Kind::Send;
        let key = if sends { (rank, peer) } else { (peer, rank) };
        let pair = self.pairs.entry(key).or_default();
        if sends {
            pair.0.push_back(entry)
        } else {
            pair.1.push_back(entry)
        }
        if pair.0.is_empty() || pair.1.is_empty() {
            return if self.left(peer) { Err(has_left(peer)) } else { Ok(Vec::new()) };
        }
        let ready: Vec<_> = pair.0.pop_front().into_iter().chain(pair.1.pop_front()).collect();
        let [send, receive] = ready.as_slice() else { return Ok(Vec::new()) };
        if (send.call.count, send.call.dtype) != (receive.call.count, receive.call.dtype) {
            return Err(Failure::new(
                ncclInvalidUsage,
                format!(
                    "a send and its receive differ: rank {} called {}, rank {} called {}",
                    send.rank, send.call, receive.rank, receive.call
                ),
            ));
        }
        Ok(ready)
    }
}
