//! One rank: its handle, its stream, and the thread that watches its work.
//!
//! RCCL's calls enqueue work on the device that waits for the other ranks, for as long as it takes.
//! The thread looks at the work, at the library's own errors and at the ranks of this process. If the
//! work can't end or takes too long, it aborts the rank. Only this thread aborts or destroys a rank:
//! RCCL's functions for that may wait until the group's other ranks call them too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rccl_sys::ncclComm_t;

use crate::collective::call::Step;
use crate::collective::id::UniqueId;
use crate::collective::ledger::{Ledger, Watched};
use crate::collective::library::{Handle, Library};
use crate::device::Device;
use crate::device::collectives::Unjoined;
use crate::device::event::Event;
use crate::device::pass::Points;
use crate::device::stream::{COLLECTIVES, Stream};
use crate::error::{Error, Result};
use crate::provider::kind::ProviderKind;

/// How often the thread looks at unfinished work. Each look is one query of an event and one of the
/// library.
const LOOK: Duration = Duration::from_millis(10);
/// How long a call may take to return after the group has failed. A call enqueues within
/// microseconds. One that has not returned by then is in a loop of RCCL's in which it waits for
/// another rank and looks for an abort (the set-up of a connection). An abort of a rank whose call
/// is doing something else would free memory that the call uses.
const RETURNS: Duration = Duration::from_secs(2);
/// How often a thread asks whether the library has enqueued a call, if it does not block.
const ASK: Duration = Duration::from_micros(50);
/// How long a wait goes on after the watching thread should have ended it.
const GRACE: Duration = Duration::from_secs(5);

/// One rank.
pub(super) struct Member {
    /// No other member of the process has or had it.
    pub(super) number: u64,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) device: Arc<Device>,
    pub(super) library: Library,
    pub(super) stream: Arc<Stream>,
    pub(super) ledger: Arc<Ledger>,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// `None` once the rank has left or was aborted.
    handle: Option<Handle>,
    failure: Option<Error>,
    /// The failure that this rank has found, and waits for the others to find.
    found: Option<Error>,
    /// When the failure was noted.
    failed: Option<Instant>,
    /// The call that a thread is in, and since when.
    calling: Option<(Instant, Step)>,
    /// Whether that call has returned, and the library goes on with it.
    returned: bool,
    /// Whether the library has gone on with calls after they returned.
    goes_on: bool,
    /// Enqueued calls, in order.
    running: VecDeque<Arc<Running>>,
    /// Since when the first of them is the first: the others wait for it, not for other ranks.
    first_since: Instant,
    leaving: bool,
    left: bool,
    /// How many of the rank's calls are part of graphs that exist.
    in_graphs: usize,
}

/// Enqueued calls.
pub(super) struct Running {
    last: Step,
    /// The number of the capture, if they are captured. Then the host never waits for them.
    pub(super) capture: Option<u64>,
    /// Behind them in the rank's stream.
    pub(super) done: Event,
    /// Whether they ended before the group failed. After an abort the stream passes the event too.
    ended: AtomicBool,
}

impl Running {
    /// Looks whether they have ended.
    fn look(&self) -> bool {
        let ended = self.ended.load(Ordering::Acquire) || matches!(self.done.query(), Ok(true));
        self.ended.store(ended, Ordering::Release);
        ended
    }
}

impl State {
    /// Forgets the calls that have ended.
    fn forget_ended(&mut self) {
        while self.running.front().is_some_and(|running| running.look()) {
            self.running.pop_front();
            self.first_since = Instant::now();
        }
    }

    /// The error that the library found outside of calls. A library that does not block isn't asked
    /// while a thread is in a call ([`Handle::is_ready`] says why).
    fn asynchronous(&self) -> Result<()> {
        match &self.handle {
            Some(handle) if !self.goes_on || self.returned || self.calling.is_none() => handle.asynchronous(),
            _ => Ok(()),
        }
    }
}

impl Member {
    /// Joins a group, and waits for its other ranks.
    pub(super) fn join(
        device: &Arc<Device>,
        id: &UniqueId,
        rank: usize,
        size: usize,
        timeout: Duration,
    ) -> Result<Arc<Self>> {
        // First, so that the process's other ranks hear of any failure instead of waiting.
        let ledger = Ledger::join(id, rank, size)?;
        let begin = || -> Result<_> {
            let library = Library(device.provider().rccl()?);
            let label = format!("collectives of rank {rank}");
            let stream = Arc::new(Stream::of_priority(&device.context, &label, COLLECTIVES)?);
            let joined = init(library, device, id, (rank, size), timeout, &ledger)?;
            Ok((library, stream, joined))
        };
        let (library, stream, (handle, goes_on)) = begin().inspect_err(|error| ledger.fail(error))?;
        if size > 1 {
            device.becomes_replica();
        }
        let state = State {
            handle: Some(handle),
            failure: None,
            found: None,
            failed: None,
            calling: None,
            returned: false,
            goes_on,
            running: VecDeque::new(),
            first_since: Instant::now(),
            leaving: false,
            left: false,
            in_graphs: 0,
        };
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let member = Arc::new(Self {
            number,
            rank,
            size,
            device: device.clone(),
            library,
            stream,
            ledger,
            timeout,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let weak = Arc::downgrade(&member);
        member.ledger.watch(weak);
        let watched = member.clone();
        let spawned = spawn(format!("hip-rank-{rank}"), move || watched.watch());
        // Without a thread nobody aborts the rank, but nothing of it runs yet.
        spawned.map_err(|error| member.fail(error))?;
        Ok(member)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group's failure, if it is known already.
    pub(super) fn failure(&self) -> Option<Error> {
        self.lock().failure.clone()
    }

    /// The group's failure, if it has failed. Asks the library.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let failure = match self.ledger.failure() {
            Some(failure) => Err(failure),
            None => self.lock().asynchronous(),
        };
        failure.map_err(|error| self.fail(error))
    }

    /// Gives the group up, for this reason. If calls were unfinished, their results are lost, so
    /// the next read or sync of the device reports it too. Returns before the rank is aborted,
    /// with the failure that every later call returns: the first one.
    pub(super) fn fail(&self, error: Error) -> Error {
        let mut state = self.lock();
        if let Some(first) = &state.failure {
            return first.clone();
        }
        let error = state.found.take().unwrap_or(error);
        log::error!("rank {} of {}: {error}", self.rank, self.size);
        state.forget_ended();
        state.failure = Some(error.clone());
        state.failed = Some(Instant::now());
        // Before the abort, which lets the device go on with wrong data.
        if !state.running.is_empty() || state.calling.is_some() {
            self.device.record(error.clone());
        }
        drop(state);
        self.changed.notify_all();
        self.ledger.fail(&error);
        error
    }

    /// Notes the failure that the group will have, whatever happens first.
    pub(super) fn will_fail(&self, error: Error) {
        self.lock().found.get_or_insert(error);
    }

    /// Begins a call: it may wait for other ranks, so the thread watches it from here on.
    pub(super) fn begin(&self, step: Step) -> Result<ncclComm_t> {
        let mut state = self.lock();
        match (&state.failure, &state.handle) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some(handle)) if !state.leaving => {
                let raw = handle.raw();
                state.calling = Some((Instant::now(), step));
                state.returned = false;
                self.changed.notify_all();
                Ok(raw)
            }
            _ => Err(Error::invalid(step.op(), "a rank of a group", "a rank that has left")),
        }
    }

    /// Notes that a call has returned which the library continues.
    pub(super) fn goes_on(&self) {
        let mut state = self.lock();
        (state.returned, state.goes_on) = (true, true);
        // Another thread may have failed the group during the call.
        self.changed.notify_all();
    }

    /// Waits until the library has enqueued a call that [goes on](Self::goes_on). After a failure it waits
    /// for the abort: until then the library may use the call's buffers.
    pub(super) fn enqueued(&self) -> Result<()> {
        let mut state = self.lock();
        loop {
            if let Some(failure) = &state.failure {
                if state.left || state.failed.is_some_and(|failed| failed.elapsed() > RETURNS + GRACE) {
                    return Err(failure.clone());
                }
            } else {
                let ready = state.handle.as_ref().map_or(Ok(true), Handle::is_ready);
                match ready {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => {
                        drop(state);
                        // A rank of this process that gave up may say more than the library.
                        self.fail(self.ledger.failure().unwrap_or(error));
                        state = self.lock();
                        continue;
                    }
                }
            }
            state = self.changed.wait_timeout(state, ASK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends a call. `done` is behind the work that it enqueued; `None` if it enqueued nothing.
    pub(super) fn end(&self, done: Option<Event>) -> Option<Arc<Running>> {
        let mut state = self.lock();
        let call = state.calling.take();
        // The thread may be waiting for the call's end.
        self.changed.notify_all();
        let (_, last) = call?;
        let running = Arc::new(Running { last, capture: None, done: done?, ended: AtomicBool::new(false) });
        if state.failure.is_none() && !running.look() {
            if state.running.is_empty() {
                state.first_since = Instant::now();
            }
            state.running.push_back(running.clone());
        }
        Some(running)
    }

    /// Ends a call that was captured. `done` is behind it in the capture with this number.
    pub(super) fn end_captured(&self, done: Option<Event>, capture: Option<u64>) -> Option<Arc<Running>> {
        let (_, last) = self.lock().calling.take()?;
        self.changed.notify_all();
        Some(Arc::new(Running { last, capture, done: done?, ended: AtomicBool::new(false) }))
    }

    /// Whether calls are unfinished.
    pub(super) fn is_running(&self) -> bool {
        let mut state = self.lock();
        state.forget_ended();
        !state.running.is_empty()
    }

    /// Notes that a graph has a call of the rank.
    pub(super) fn enters_graph(&self) {
        self.lock().in_graphs += 1;
    }

    /// Notes that a graph with a call of the rank is gone.
    pub(super) fn leaves_graph(&self) {
        let mut state = self.lock();
        state.in_graphs -= 1;
        let over = state.in_graphs == 0 && state.leaving;
        drop(state);
        self.changed.notify_all();
        if over {
            self.wait_for_the_others(Instant::now() + self.timeout + RETURNS + GRACE);
        }
    }

    /// Why calls failed, if the group failed before they ended.
    pub(super) fn outcome(&self, running: &Running) -> Result<()> {
        match self.failure() {
            Some(failure) if !running.ended.load(Ordering::Acquire) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Waits on the host for calls. After a failure it waits only as long as the abort should take.
    pub(super) fn wait(&self, running: &Running) -> Result<()> {
        let mut pause = Duration::from_micros(5);
        while !running.done.query()? {
            let failed = self.lock().failed;
            if failed.is_some_and(|failed| failed.elapsed() > RETURNS + GRACE) {
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_micros(200));
        }
        self.outcome(running)
    }

    /// Notes that this rank issues a collective, and that it is not joined until the result is
    /// dropped.
    pub(super) fn issues(&self) -> Unjoined {
        Unjoined::note(&self.device, self.number)
    }

    /// Whether calls of this rank are unjoined, beside one that [`issues`](Self::issues) has noted.
    pub(super) fn has_unjoined_before(&self) -> bool {
        self.device.collectives.unjoined(self.number) > 1
    }

    /// Whether a collective of another group may still run beside the pass's work: one that the
    /// device has issued since the pass began, or one that was not joined when it began.
    pub(super) fn others_since(&self, points: &Points) -> bool {
        self.device.collectives.others_since(&points.before, self.number)
    }

    /// Whether this rank has issued a collective since the pass began.
    pub(super) fn issued_since(&self, points: &Points) -> bool {
        self.device.collectives.issued_since(&points.before, self.number)
    }

    /// Whether a thread is in a call of this rank.
    #[cfg(test)]
    pub(super) fn is_calling(&self) -> bool {
        self.lock().calling.is_some()
    }

    /// Leaves the group after its work has ended. The library forgets the rank afterwards: for that
    /// it may need the group's other ranks, so only the last rank of this process waits for it.
    pub(super) fn leave(&self) {
        self.ledger.leave(self.rank);
        let until = Instant::now() + self.timeout + RETURNS + GRACE;
        let mut state = self.lock();
        state.leaving = true;
        self.changed.notify_all();
        while state.failure.is_none() && (state.calling.is_some() || !state.running.is_empty()) {
            let Some(rest) = until.checked_duration_since(Instant::now()) else { break };
            state = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.device.collectives.forget(self.number);
        self.wait_for_the_others(until);
    }

    /// Waits until the library has let the ranks of this process go, if all have left. While a graph
    /// has a rank's calls, the library keeps the rank, and so nobody waits.
    fn wait_for_the_others(&self, until: Instant) {
        let left = self.ledger.left();
        if !left.iter().any(|member| member.is_in_graph()) {
            left.iter().for_each(|member| member.wait_until_gone(until));
        }
    }

    /// Watches the rank's work until the rank leaves.
    fn watch(&self) {
        let mut state = self.lock();
        loop {
            state.forget_ended();
            self.changed.notify_all();
            let problem = match state.failure.is_none() {
                true => self.problem(&state),
                false => Ok(()),
            };
            if let Err(error) = problem {
                drop(state);
                self.fail(error);
                state = self.lock();
                continue;
            }
            let busy = state.calling.is_some() || !state.running.is_empty();
            if state.failed.is_some() {
                if state.calling.is_none() || self.may_abort_beside(&state) {
                    let handle = state.handle.take();
                    drop(state);
                    // Aborts the rank.
                    drop(handle);
                    break;
                }
            } else if state.leaving && !busy && state.in_graphs == 0 {
                let handle = state.handle.take();
                drop(state);
                handle.into_iter().for_each(Handle::destroy);
                break;
            }
            state = if busy {
                self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
        let mut state = self.lock();
        state.running.clear();
        state.left = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Whether a failed rank may be aborted although a thread is in a call.
    fn may_abort_beside(&self, state: &State) -> bool {
        // The CPU device's library looks a handle up in each call.
        state.returned
            || self.device.provider().kind() == ProviderKind::Cpu
            || state.failed.is_some_and(|failed| failed.elapsed() >= RETURNS)
    }

    /// Why the unfinished work can't end, if so.
    fn problem(&self, state: &State) -> Result<()> {
        if let Some(failure) = self.ledger.failure() {
            return Err(failure);
        }
        state.asynchronous()?;
        let oldest = match (state.running.front(), &state.calling) {
            (Some(running), _) => {
                running.done.query()?;
                (state.first_since, running.last)
            }
            (None, Some(calling)) => *calling,
            (None, None) => return Ok(()),
        };
        if oldest.0.elapsed() < self.timeout {
            return Ok(());
        }
        let detail = format!(
            "rank {} of {} waited {:?} for {}: a rank died, is slow, or calls something else \
             (BURN_ROCM_COLLECTIVE_TIMEOUT sets the time, BURN_ROCM_COLLECTIVE_CHECK=1 compares the ranks' calls)",
            self.rank, self.size, self.timeout, oldest.1
        );
        Err(timeout(oldest.1.function(), detail))
    }
}

impl Watched for Member {
    fn wake(&self) {
        // Locked, because the thread could otherwise be between its look and its wait.
        drop(self.lock());
        self.changed.notify_all();
    }

    fn is_in_graph(&self) -> bool {
        self.lock().in_graphs > 0
    }

    fn wait_until_gone(&self, until: Instant) {
        let mut state = self.lock();
        while !state.left {
            let Some(rest) = until.checked_duration_since(Instant::now()) else {
                let detail = format!("RCCL did not let rank {} of {} go", self.rank, self.size);
                return log::warn!("{}", timeout("ncclCommDestroy", detail));
            };
            state = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An error for ranks that did not come in time.
fn timeout(call: &'static str, detail: String) -> Error {
    Error::Collective { call, name: "timeout".into(), detail }
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name).spawn(body);
    spawned.map(drop).map_err(|error| Error::Collective {
        call: "a thread's start",
        name: "system".into(),
        detail: error.to_string(),
    })
}

/// Runs `ncclCommInitRank`, which waits for the other ranks for as long as it takes, in a thread that
/// can be left behind. A handle that comes too late is aborted. A library that does not block returns at
/// once and joins in a thread of its own. Then this thread waits until it has joined. If `init` has given
/// up meanwhile, this thread aborts the handle, which ends the library's thread too. Returns the handle,
/// and whether the library joined in this way.
fn init(
    library: Library,
    device: &Arc<Device>,
    id: &UniqueId,
    (rank, size): (usize, usize),
    limit: Duration,
    ledger: &Ledger,
) -> Result<(Handle, bool)> {
    const CALL: &str = "ncclCommInitRank";
    let (answer, answered) = mpsc::channel();
    let (id, on) = (id.raw(), device.clone());
    // Until this function returns.
    let waits = Arc::new(());
    let awaited = Arc::downgrade(&waits);
    let join = move || {
        let join = || {
            on.make_current()?;
            let mut raw = std::ptr::null_mut();
            // SAFETY: the function is RCCL's; it writes one handle, owned from then on.
            let status = unsafe { (library.0.ncclCommInitRank)(&mut raw, size as i32, id, rank as i32) };
            let begun = library.begun(CALL, status, || format!("rank {rank} of {size} can't join"))?;
            let handle = Handle::new(library, on.clone(), raw);
            // A join that has ended before it is asked about must not hide that later calls go on.
            let mut goes_on =
                begun || std::env::var_os("NCCL_COMM_BLOCKING").is_some_and(|value| value == "0");
            // NCCL's function succeeds also if the library goes on with it.
            while matches!(handle.is_ready(), Ok(false)) {
                goes_on = true;
                if awaited.strong_count() == 0 {
                    return Err(timeout(CALL, format!("rank {rank} of {size} has given up")));
                }
                std::thread::sleep(LOOK / 10);
            }
            handle.asynchronous()?;
            Ok((handle, goes_on))
        };
        // If nobody listens any more, this drops the handle, which aborts it.
        let _ = answer.send(join());
    };
    spawn(format!("hip-join-{rank}"), join)?;
    let start = Instant::now();
    loop {
        match answered.recv_timeout(LOOK) {
            Ok(joined) => return joined,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Error::Collective {
                    call: CALL,
                    name: "panicked".into(),
                    detail: format!("rank {rank} of {size} could not join"),
                });
            }
        }
        if let Some(failure) = ledger.failure() {
            return Err(failure);
        }
        if start.elapsed() >= limit {
            let detail = format!("rank {rank} of {size} waited {limit:?} for the other ranks to join");
            return Err(timeout(CALL, detail));
        }
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests;
