//! The calls of a group's ranks in this process, compared with each other. RCCL compares nothing:
//! ranks whose calls differ never return or get wrong results.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::collective::call::{Call, Kind, Step};
use crate::collective::id::UniqueId;
use crate::error::{Error, Result};

/// The groups that have ranks in this process.
static LEDGERS: Mutex<Option<HashMap<UniqueId, Weak<Ledger>>>> = Mutex::new(None);

/// A rank of this process, as the ledger sees it.
pub(super) trait Watched: Send + Sync {
    /// Makes the rank's thread look at the ledger at once.
    fn wake(&self);

    /// Whether a graph has collectives of the rank. The library then keeps the rank.
    fn is_in_graph(&self) -> bool;

    /// Waits until the library has let the rank go, at most until this time.
    fn wait_until_gone(&self, until: Instant);
}

/// A group's calls.
pub(super) struct Ledger {
    size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The ranks of this process, each with the number of its collectives so far.
    ranks: HashMap<usize, Rank>,
    /// Collectives that some rank of this process has not called yet, by their number.
    open: HashMap<u64, Open>,
    /// Sends and receives that the other rank has not called yet, by sender, receiver and number.
    pairs: HashMap<(usize, usize, u64), (usize, Step, Call)>,
    failure: Option<Error>,
    /// The ranks of this process, to be woken by a failure.
    members: Vec<Weak<dyn Watched>>,
}

#[derive(Default)]
struct Rank {
    called: u64,
    left: bool,
    /// The sends to and the receives from each peer so far.
    sent: HashMap<usize, u64>,
    received: HashMap<usize, u64>,
}

struct Open {
    rank: usize,
    step: Step,
    /// How many ranks of this process have called it.
    callers: usize,
}

impl Ledger {
    /// The group's ledger, made for `size` ranks if it does not exist yet.
    pub(super) fn of(id: &UniqueId, size: usize) -> Arc<Self> {
        let mut ledgers = LEDGERS.lock().unwrap_or_else(PoisonError::into_inner);
        let ledgers = ledgers.get_or_insert_default();
        ledgers.retain(|_, ledger| ledger.strong_count() > 0);
        ledgers.get(id).and_then(Weak::upgrade).unwrap_or_else(|| {
            let ledger = Arc::new(Self { size, state: Mutex::default() });
            ledgers.insert(*id, Arc::downgrade(&ledger));
            ledger
        })
    }

    /// Enters a rank.
    ///
    /// # Errors
    /// `Invalid` if the rank is taken, or other ranks gave another size.
    pub(super) fn join(id: &UniqueId, rank: usize, size: usize) -> Result<Arc<Self>> {
        let op = "Communicator::new";
        let ledger = Self::of(id, size);
        if ledger.size != size {
            let expected = format!("a group of {} ranks, as another rank says", ledger.size);
            let error = Error::invalid(op, expected, format!("{size} ranks"));
            ledger.fail(&error);
            return Err(error);
        }
        let mut state = ledger.lock();
        if state.ranks.contains_key(&rank) {
            let found = format!("rank {rank} of this process twice");
            let error = Error::invalid(op, "a rank of its own for each device", found);
            drop(state);
            // The group lacks another rank, for which the others would wait.
            ledger.fail(&error);
            return Err(error);
        }
        state.ranks.insert(rank, Rank::default());
        drop(state);
        Ok(ledger)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether ranks are in other processes.
    pub(super) fn has_others(&self) -> bool {
        self.lock().ranks.len() < self.size
    }

    /// Why a rank of this process gave the group up.
    pub(super) fn failure(&self) -> Option<Error> {
        self.lock().failure.clone()
    }

    /// Notes that a rank of this process has given the group up, and wakes the ranks' threads.
    pub(super) fn fail(&self, error: &Error) {
        let mut state = self.lock();
        state.failure.get_or_insert_with(|| error.clone());
        wake(state);
    }

    /// Enters who shall be woken by a failure.
    pub(super) fn watch(&self, member: Weak<dyn Watched>) {
        self.lock().members.push(member);
    }

    /// All ranks of this process, if all of them have left.
    pub(super) fn left(&self) -> Vec<Arc<dyn Watched>> {
        let state = self.lock();
        match state.ranks.values().all(|rank| rank.left) {
            true => state.members.iter().filter_map(Weak::upgrade).collect(),
            false => Vec::new(),
        }
    }

    /// Notes that a rank makes no more calls. A rank that waits for it gets an error.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        let Some(own) = state.ranks.get_mut(&rank) else { return };
        own.left = true;
        let called = own.called;
        let ahead = state.ranks.iter().find(|(_, other)| other.called > called).map(|(&other, _)| other);
        let paired = state.pairs.iter().find_map(|(&(from, to, _), _)| match rank {
            _ if from == to => None,
            _ if rank == from => Some(to),
            _ if rank == to => Some(from),
            _ => None,
        });
        if let Some(other) = ahead.or(paired) {
            let error = gone(rank, other);
            state.failure.get_or_insert(error);
            wake(state);
        }
    }

    /// Enters a rank's next step. Returns the group's failure, if it has failed.
    ///
    /// # Errors
    /// `Mismatch` if another rank's step with this number differs; `Collective` if another rank has
    /// left.
    pub(super) fn enter(&self, rank: usize, step: Step) -> Result<()> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let entered = state.enter(rank, step);
        if let Err(error) = &entered {
            state.failure = Some(error.clone());
            wake(state);
        }
        entered
    }
}

/// Wakes the ranks' threads, after the ledger is unlocked: they lock it while their rank is locked.
fn wake(state: MutexGuard<'_, State>) {
    let members: Vec<_> = state.members.iter().filter_map(Weak::upgrade).collect();
    drop(state);
    members.iter().for_each(|member| member.wake());
}

fn gone(rank: usize, waiting: usize) -> Error {
    Error::Collective {
        call: "a collective",
        name: "left".into(),
        detail: format!("rank {rank} has left the group, and rank {waiting} waits for it"),
    }
}

impl State {
    fn enter(&mut self, rank: usize, step: Step) -> Result<()> {
        let here = self.ranks.len();
        let Some(own) = self.ranks.get_mut(&rank) else { return Ok(()) };
        if let Step::Call(call) | Step::Capture(call) = step
            && !step.of_all_ranks()
        {
            return self.enter_pair(rank, step, call);
        }
        let number = own.called;
        own.called += 1;
        if let Some((&left, _)) = self.ranks.iter().find(|(_, other)| other.left && other.called <= number) {
            return Err(gone(left, rank));
        }
        let first = self.open.entry(number).or_insert(Open { rank, step, callers: 0 });
        if first.step != step {
            return Err(Error::Mismatch {
                rank: first.rank,
                call: format!("{}, its call {}", first.step, number + 1),
                other_rank: rank,
                other_call: step.to_string(),
            });
        }
        first.callers += 1;
        if first.callers == here {
            self.open.remove(&number);
        }
        Ok(())
    }

    fn enter_pair(&mut self, rank: usize, step: Step, call: Call) -> Result<()> {
        let (peer, sends) = match call.kind {
            Kind::Send(peer) => (peer, true),
            Kind::Receive(peer) => (peer, false),
            _ => return Ok(()),
        };
        // The peer of another process can't be compared with.
        if peer != rank && !self.ranks.contains_key(&peer) {
            return Ok(());
        }
        let Some(own) = self.ranks.get_mut(&rank) else { return Ok(()) };
        let counter = if sends { &mut own.sent } else { &mut own.received };
        let next = counter.entry(peer).or_default();
        let number = *next;
        *next += 1;
        let key = if sends { (rank, peer, number) } else { (peer, rank, number) };
        match self.pairs.remove(&key) {
            None if self.ranks.get(&peer).is_some_and(|peer| peer.left) => Err(gone(peer, rank)),
            None => {
                self.pairs.insert(key, (rank, step, call));
                Ok(())
            }
            Some((_, other_step, other))
                if (other.count, other.dtype) == (call.count, call.dtype)
                    && matches!(other_step, Step::Capture(_)) == matches!(step, Step::Capture(_)) =>
            {
                Ok(())
            }
            Some((other_rank, other_step, _)) => Err(Error::Mismatch {
                rank: other_rank,
                call: other_step.to_string(),
                other_rank: rank,
                other_call: step.to_string(),
            }),
        }
    }
}
