//! Calls that are issued together.

use std::any::Any;
use std::sync::{Arc, MutexGuard};

use crate::collective::call::{Call, Kind, Part, Prepared, ReduceOp, Step};
use crate::collective::compare::compare;
use crate::collective::element::Element;
use crate::collective::in_graph::InGraph;
use crate::collective::member::Member;
use crate::collective::work::Work;
use crate::device::capture::uncaptured;
use crate::device::event::Event;
use crate::device::pass::Points;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::launch::kernel::Kernel;
use crate::memory::buffer::{Buffer, carry_faults};
use crate::memory::last_use::not_noted;
use crate::profile::work::{Load, WorkKind};
use crate::settings::settings;
use crate::trace;

use super::Communicator;

/// Calls that are issued together. Use it where one thread drives several ranks, where a rank both
/// sends and receives, and to give RCCL several small collectives at once.
///
/// Nothing is enqueued before [`start`](Self::start). The methods check their arguments, and return
/// the errors of [`Communicator`]'s methods of the same names.
#[derive(Default)]
pub struct Group<'a> {
    calls: Vec<(&'a Communicator, Prepared)>,
}

impl<'a> Group<'a> {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    fn add(
        &mut self,
        on: &'a Communicator,
        (kind, dtype, count): (Kind, Element, usize),
        send: Option<Part<'_>>,
        recv: Option<Part<'_>>,
    ) -> Result<()> {
        let call = Call { kind, dtype, count };
        let prepared = call.prepare(on.device(), (on.rank(), on.size()), send, recv)?;
        self.calls.push((on, prepared));
        Ok(())
    }

    /// Adds [`Communicator::all_reduce`].
    pub fn all_reduce(
        &mut self,
        on: &'a Communicator,
        op: ReduceOp,
        dtype: impl Into<Element>,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::AllReduce(op), dtype.into(), count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::broadcast`].
    pub fn broadcast(
        &mut self,
        on: &'a Communicator,
        dtype: impl Into<Element>,
        count: usize,
        root: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::Broadcast(root), dtype.into(), count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::reduce`].
    #[allow(clippy::too_many_arguments)] // RCCL's own arguments.
    pub fn reduce(
        &mut self,
        on: &'a Communicator,
        op: ReduceOp,
        dtype: impl Into<Element>,
        count: usize,
        root: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::Reduce(op, root), dtype.into(), count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::all_gather`].
    pub fn all_gather(
        &mut self,
        on: &'a Communicator,
        dtype: impl Into<Element>,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::AllGather, dtype.into(), count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::reduce_scatter`].
    pub fn reduce_scatter(
        &mut self,
        on: &'a Communicator,
        op: ReduceOp,
        dtype: impl Into<Element>,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::ReduceScatter(op), dtype.into(), count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::send`].
    pub fn send(
        &mut self,
        on: &'a Communicator,
        dtype: impl Into<Element>,
        count: usize,
        peer: usize,
        send: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::Send(peer), dtype.into(), count), Some(send), None)
    }

    /// Adds [`Communicator::receive`].
    pub fn receive(
        &mut self,
        on: &'a Communicator,
        dtype: impl Into<Element>,
        count: usize,
        peer: usize,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::Receive(peer), dtype.into(), count), None, Some(recv))
    }

    /// Issues all calls. They share one [`Work`].
    ///
    /// # Errors
    /// `Capture` if this thread captures a graph on one of the devices, and the calls are of several
    /// ranks; `Mismatch` and `Collective` as for [`Communicator::all_reduce`]. After either error,
    /// every group in the calls has failed.
    pub fn start(self) -> Result<Work> {
        let calls: Vec<_> = self.calls.iter().map(|(on, call)| (on.member(), call)).collect();
        issue(&calls)
    }
}

/// The captured stream that calls become part of.
#[derive(Clone, Copy)]
struct Origin<'a> {
    stream: &'a Arc<Stream>,
    /// Whether the calls are made on this stream itself, and not on a branch.
    inline: bool,
}

/// Enqueues work that fills the calls' buffers on a stream. Adds the kernels that it launches.
pub(super) type Fill<'a> = dyn FnMut(&Stream, &mut Vec<Arc<Kernel>>) -> Result<()> + 'a;

/// What a rank's calls wait for and do first, in place of a wait for the end of the compute
/// stream.
pub(super) struct Beside<'a> {
    /// An event of the compute stream.
    pub(super) point: &'a Event,
    pub(super) fill: &'a mut Fill<'a>,
    /// What `fill` uses.
    pub(super) buffers: Vec<Arc<Buffer>>,
}

/// Issues checked calls together.
pub(super) fn issue(calls: &[(&Arc<Member>, &Prepared)]) -> Result<Work> {
    let _locked = lock(calls)?;
    issue_locked(calls, false, None)
}

/// Issues a rank's checked call and joins it. A captured call is made on the captured stream itself, if
/// no other call of the rank is unjoined. A branch of the graph would cost some 3 us (NCCL 2.28 on two
/// H200, unless `NCCL_GRAPH_MIXING_SUPPORT` is 0).
pub(super) fn issue_joined(member: &Arc<Member>, prepared: &Prepared) -> Result<()> {
    let calls = [(member, prepared)];
    let locked = lock(&calls)?;
    let work = issue_locked(&calls, true, None)?;
    drop(locked);
    work.join()
}

/// Issues a rank's checked calls beside a pass. `None` if a collective of another group may run side
/// by side with them.
pub(super) fn issue_beside(
    member: &Arc<Member>,
    prepared: &[Prepared],
    points: &Points,
    beside: Beside<'_>,
) -> Result<Option<Work>> {
    let calls: Vec<_> = prepared.iter().map(|prepared| (member, prepared)).collect();
    let _locked = lock(&calls)?;
    if member.others_since(points) {
        return Ok(None);
    }
    issue_locked(&calls, false, Some(beside)).map(Some)
}

/// Lets no other thread issue collectives on the calls' devices.
fn lock<'a>(calls: &[(&'a Arc<Member>, &Prepared)]) -> Result<Vec<MutexGuard<'a, ()>>> {
    if calls.iter().any(|(member, _)| !Arc::ptr_eq(member, calls[0].0)) {
        for (member, prepared) in calls {
            let reason = "each rank's collectives are captured by a thread of its own";
            member.device.refuse_captured(prepared.call.kind.op(), reason)?;
        }
    }
    // NCCL's guide ("Thread Safety") allows one thread at a time for a device, also with several
    // groups. Locked in the same order by all threads.
    let mut devices: Vec<_> = calls.iter().map(|&(member, _)| &member.device).collect();
    devices.sort_by_key(|device| device.info().index);
    devices.dedup_by_key(|device| device.info().index);
    Ok(devices.into_iter().map(|device| device.collectives.issuing()).collect())
}

/// The devices are locked. `joined`: whether the caller joins the calls at once.
fn issue_locked(
    calls: &[(&Arc<Member>, &Prepared)],
    joined: bool,
    beside: Option<Beside<'_>>,
) -> Result<Work> {
    // Before the calls, because another thread may begin a pass while they wait for other ranks. If
    // they fail, `enqueue` joins them before this is dropped.
    let unjoined = calls.iter().map(|(member, _)| member.issues()).collect();
    let origin = calls.first().and_then(|(member, _)| {
        let stream = member.device.captures.here()?;
        Some(Origin { stream, inline: joined && !member.has_unjoined_before() })
    });
    let step = if origin.is_some() { Step::Capture } else { Step::Call };
    let steps: Vec<_> = calls.iter().map(|(member, prepared)| (*member, step(prepared.call))).collect();
    if settings()?.collective_check {
        let all = |(_, step): &&(_, Step)| step.of_all_ranks();
        let compared = compare_now(&steps.iter().filter(all).copied().collect::<Vec<_>>());
        compared.map_err(|error| give_up(calls.iter().map(|(member, _)| *member), origin, error))?;
    }
    let mut work = enqueue(calls, &steps, origin, beside)?;
    work.unjoined = unjoined;
    Ok(work)
}

/// Compares the ranks' steps between processes. In a capture this runs now.
pub(super) fn compare_now(steps: &[(&Arc<Member>, Step)]) -> Result<()> {
    uncaptured(|| {
        compare(steps, |calls| {
            let steps: Vec<_> =
                calls.iter().map(|(member, prepared)| (*member, Step::Call(prepared.call))).collect();
            enqueue(calls, &steps, None, None)
        })
    })
}

/// Fails every group whose calls are not made: the other ranks would wait for them, and a capture
/// would lack them. Returns the error.
fn give_up<'a>(
    members: impl Iterator<Item = &'a Arc<Member>>,
    origin: Option<Origin<'_>>,
    error: Error,
) -> Error {
    members.for_each(|member| drop(member.fail(error.clone())));
    if let Some(origin) = origin {
        origin.stream.spoil(error.clone());
    }
    error
}

/// As [`issue_locked`], without noting the calls and comparing them between processes. `origin` is
/// the captured stream, if the calls are captured; then all are of one rank.
fn enqueue(
    calls: &[(&Arc<Member>, &Prepared)],
    steps: &[(&Arc<Member>, Step)],
    origin: Option<Origin<'_>>,
    mut beside: Option<Beside<'_>>,
) -> Result<Work> {
    // Each rank of these calls once.
    let mut members: Vec<&Arc<Member>> = Vec::new();
    for (member, _) in calls {
        if !members.iter().any(|other| Arc::ptr_eq(other, member)) {
            members.push(member);
        }
    }
    for (member, step) in steps {
        if let Err(error) = member.ledger.enter(member.rank, *step) {
            return Err(give_up(members.into_iter(), origin, member.fail(error)));
        }
    }
    let own = calls.iter().flat_map(|(_, prepared)| prepared.buffers.iter().flatten().cloned());
    let filled = beside.iter().flat_map(|beside| beside.buffers.iter().cloned());
    let mut work = Work::new(own.chain(filled));
    work.in_order = origin.is_some_and(|origin| origin.inline);
    let called = call(&members, calls, steps, origin, beside.as_mut(), &mut work.kernels);
    for member in &members {
        if let Some(origin) = origin {
            let marked = capture(member, calls, origin);
            // Without the event nothing in the graph would wait for the calls. Their own error comes
            // first.
            if let (Ok(()), Err(error)) = (&called, &marked) {
                origin.stream.spoil(error.clone());
            }
            if let Some(running) = member.end_captured(marked.ok(), origin.stream.capture_number()) {
                work.add(member, running);
            }
            continue;
        }
        // Also after a failure: the work must cover what was enqueued.
        let marked = match member.stream.mark() {
            Ok(event) => Some(event),
            // Without an event, wait here, before anybody uses the memory.
            Err(error) => {
                member.fail(error);
                let _ = member.stream.synchronize();
                None
            }
        };
        if let Some(running) = member.end(marked) {
            work.add(member, running);
        }
    }
    if let Err(error) = called {
        // The group's failure may say more.
        let error = match members.first() {
            Some(first) => first.fail(error),
            None => error,
        };
        return Err(give_up(members.into_iter(), origin, error));
    }
    for (member, prepared) in calls {
        // A fault of another rank's data stays on that rank.
        let [send, recv] = &prepared.buffers;
        if let (Some(send), Some(recv)) = (send, recv)
            && prepared.call.kind.moves_on(member.rank)
        {
            carry_faults([&**send], [&**recv]);
        }
        trace::served(WorkKind::Library, || {
            format!("{} {}, rank {}", prepared.call.kind.function(), prepared.call, member.rank)
        });
    }
    Ok(work)
}

/// Adds the calls of a rank to the capture. The result is behind them.
fn capture(member: &Arc<Member>, calls: &[(&Arc<Member>, &Prepared)], origin: Origin<'_>) -> Result<Event> {
    let Origin { stream, inline } = origin;
    let calls = calls.iter().map(|(_, prepared)| InGraph::new(member, prepared.call));
    let calls = calls.map(|call| Box::new(call) as Box<dyn Any + Send>).collect();
    let fork = stream.fork(member.number)?;
    let marked = match inline {
        // The rank's later calls on the branch come after these.
        true => stream.mark().and_then(|event| fork.wait(&event).map(|()| event)),
        false => fork.mark(),
    };
    stream.captured_on(&fork, member.number, calls)?;
    marked
}

/// Makes the calls on the ranks' streams, behind the work of their devices' compute streams or behind
/// an event there. Captured calls are made on `origin`, or on a stream that waits for it.
fn call(
    members: &[&Arc<Member>],
    calls: &[(&Arc<Member>, &Prepared)],
    steps: &[(&Arc<Member>, Step)],
    origin: Option<Origin<'_>>,
    mut beside: Option<&mut Beside<'_>>,
    kernels: &mut Vec<Arc<Kernel>>,
) -> Result<()> {
    let Some((first, _)) = calls.first() else { return Ok(()) };
    let library = first.library;
    let mut handles = Vec::with_capacity(calls.len());
    for member in members {
        // Launches deferred ops.
        member.device.make_current()?;
        let stream = stream_of(member, origin)?;
        match &beside {
            None if origin.is_some_and(|origin| origin.inline) => {}
            None => stream.wait(&member.device.stream().mark()?)?,
            Some(beside) => stream.wait(beside.point)?,
        }
    }
    for (member, step) in steps {
        handles.push(member.begin(*step)?);
    }
    if let Some(beside) = &mut beside {
        // Behind `begin`: from there on the work covers what is enqueued, also after an error. These
        // uses are ordered by the work too, and later calls of the rank run behind them.
        let stream = stream_of(first, origin)?;
        not_noted(|| (beside.fill)(&stream, kernels))?;
    }
    // Each rank's stream takes its calls as one piece of work.
    let streams = members.iter().map(|member| stream_of(member, origin)).collect::<Result<Vec<_>>>()?;
    let timed: Vec<_> = streams.iter().map(|stream| stream.begin_work()).collect();
    let grouped = calls.len() > 1;
    if grouped {
        // SAFETY: the function is RCCL's and has no precondition.
        library.check("ncclGroupStart", unsafe { (library.0.ncclGroupStart)() }, String::new)?;
    }
    let mut outcome = Ok(());
    // Whether the library goes on with the calls after they have returned.
    let mut goes_on = false;
    for ((member, prepared), handle) in calls.iter().zip(&handles) {
        if outcome.is_ok() {
            outcome = member.device.context.bind().and_then(|()| {
                let kind = prepared.call.kind;
                let stream = stream_of(member, origin)?;
                // SAFETY: `begin` gave the handle. Until `end` the watching thread frees it only if
                // this call waits in RCCL, which then ends it (`Member::may_abort_beside`). The
                // `Work` keeps the buffers until the device's compute stream has waited for the
                // rank's stream.
                let status = unsafe { prepared.issue(library.0, *handle, stream.handle()) };
                let who = || format!("rank {} of {}, {}", member.rank, member.size, prepared.call);
                library.begun(kind.function(), status, who).map(|begun| goes_on |= begun)
            });
        }
    }
    if grouped {
        // RCCL's group is the thread's: unless it ends after an error, too, the next call joins it.
        // SAFETY: as above.
        let ended = unsafe { (library.0.ncclGroupEnd)() };
        outcome = outcome.and_then(|()| {
            let who = || format!("{} calls from {} on", calls.len(), calls[0].1.call);
            library.begun("ncclGroupEnd", ended, who).map(|begun| goes_on |= begun)
        });
    }
    if goes_on {
        members.iter().for_each(|member| member.goes_on());
        for member in members {
            // The others would wait for calls that are not made.
            if let Err(error) = &outcome {
                member.fail(error.clone());
            }
            outcome = outcome.and(member.enqueued());
        }
    }
    if outcome.is_ok() {
        for ((member, stream), timed) in members.iter().zip(streams).zip(timed) {
            let own = calls.iter().filter(|(of, _)| Arc::ptr_eq(of, member));
            let name = || {
                let calls =
                    own.map(|(_, prepared)| format!("{} {}", prepared.call.kind.function(), prepared.call));
                calls.collect::<Vec<_>>().join(" + ")
            };
            stream.end_work(timed, WorkKind::Library, name, Load::UNKNOWN);
        }
    }
    // After an abort by another thread, the call's own status says little or nothing.
    let aborted = members.iter().find_map(|member| member.failure());
    let elsewhere = || members.iter().find_map(|member| member.ledger.failure());
    match aborted.or_else(|| outcome.is_err().then(elsewhere).flatten()) {
        Some(failure) => Err(failure),
        None => outcome,
    }
}

/// The stream of a rank's calls.
fn stream_of(member: &Member, origin: Option<Origin<'_>>) -> Result<Arc<Stream>> {
    match origin {
        None => Ok(member.stream.clone()),
        Some(Origin { stream, inline: true }) => Ok(stream.clone()),
        Some(Origin { stream, inline: false }) => stream.fork(member.number),
    }
}

impl Communicator {
    /// Issues one call.
    pub(super) fn issue(
        &self,
        (kind, dtype, count): (Kind, Element, usize),
        send: Option<Part<'_>>,
        recv: Option<Part<'_>>,
    ) -> Result<Work> {
        let call = Call { kind, dtype, count };
        let prepared = call.prepare(self.device(), (self.rank(), self.size()), send, recv)?;
        issue(&[(self.member(), &prepared)])
    }

    /// Issues one call and joins it.
    pub(super) fn issue_joined(
        &self,
        (kind, dtype, count): (Kind, Element, usize),
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        let call = Call { kind, dtype, count };
        let prepared = call.prepare(self.device(), (self.rank(), self.size()), Some(send), Some(recv))?;
        issue_joined(self.member(), &prepared)
    }
}
