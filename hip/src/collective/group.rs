//! Calls that are issued together.

use std::sync::{Arc, PoisonError};

use hip_kernels::DType;

use crate::collective::call::{Call, Kind, Part, Prepared, ReduceOp};
use crate::collective::compare::compare;
use crate::collective::member::Member;
use crate::collective::work::Work;
use crate::error::Result;
use crate::memory::buffer::carry_faults;
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
        (kind, dtype, count): (Kind, DType, usize),
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
        dtype: DType,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::AllReduce(op), dtype, count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::broadcast`].
    pub fn broadcast(
        &mut self,
        on: &'a Communicator,
        dtype: DType,
        count: usize,
        root: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::Broadcast(root), dtype, count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::reduce`].
    #[allow(clippy::too_many_arguments)] // RCCL's own arguments.
    pub fn reduce(
        &mut self,
        on: &'a Communicator,
        op: ReduceOp,
        dtype: DType,
        count: usize,
        root: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::Reduce(op, root), dtype, count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::all_gather`].
    pub fn all_gather(
        &mut self,
        on: &'a Communicator,
        dtype: DType,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::AllGather, dtype, count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::reduce_scatter`].
    pub fn reduce_scatter(
        &mut self,
        on: &'a Communicator,
        op: ReduceOp,
        dtype: DType,
        count: usize,
        send: Part<'_>,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::ReduceScatter(op), dtype, count), Some(send), Some(recv))
    }

    /// Adds [`Communicator::send`].
    pub fn send(
        &mut self,
        on: &'a Communicator,
        dtype: DType,
        count: usize,
        peer: usize,
        send: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::Send(peer), dtype, count), Some(send), None)
    }

    /// Adds [`Communicator::receive`].
    pub fn receive(
        &mut self,
        on: &'a Communicator,
        dtype: DType,
        count: usize,
        peer: usize,
        recv: Part<'_>,
    ) -> Result<()> {
        self.add(on, (Kind::Receive(peer), dtype, count), None, Some(recv))
    }

    /// Issues all calls. They share one [`Work`].
    ///
    /// # Errors
    /// `Capture` if this thread captures a graph; `Mismatch` and `Collective` as for
    /// [`Communicator::all_reduce`].
    pub fn start(self) -> Result<Work> {
        let calls: Vec<_> = self.calls.iter().map(|(on, call)| (on.member(), call)).collect();
        issue(&calls)
    }
}

/// Issues checked calls together.
pub(super) fn issue(calls: &[(&Arc<Member>, &Prepared)]) -> Result<Work> {
    for (member, prepared) in calls {
        let reason = "a collective waits for other ranks on a stream of its own";
        member.device.refuse_captured(prepared.call.kind.op(), reason)?;
    }
    if settings()?.collective_check {
        compare(calls, enqueue)?;
    }
    enqueue(calls)
}

/// As [`issue`], without comparing calls between processes.
fn enqueue(calls: &[(&Arc<Member>, &Prepared)]) -> Result<Work> {
    // The ranks of these calls, in an order that is the same for all threads.
    let mut members: Vec<&Arc<Member>> = calls.iter().map(|(member, _)| *member).collect();
    members.sort_by_key(|member| Arc::as_ptr(member));
    members.dedup_by_key(|member| Arc::as_ptr(member));
    let _orders: Vec<_> =
        members.iter().map(|member| member.order.lock().unwrap_or_else(PoisonError::into_inner)).collect();

    for (member, prepared) in calls {
        member.ledger.enter(member.rank, &prepared.call).inspect_err(|error| member.fail(error.clone()))?;
    }
    let mut work =
        Work::new(calls.iter().flat_map(|(_, prepared)| prepared.buffers.iter().flatten().cloned()));
    let called = call(&members, calls);
    for member in &members {
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
        // The other ranks make calls that this one did not.
        members.iter().for_each(|member| member.fail(error.clone()));
        // The first failure is the one that every later call returns.
        return Err(members.iter().find_map(|member| member.failure()).unwrap_or(error));
    }
    for (member, prepared) in calls {
        let [send, recv] = &prepared.buffers;
        if let (Some(send), Some(recv)) = (send, recv) {
            carry_faults([&**send], [&**recv]);
        }
        trace::served(trace::Kind::Library, || {
            format!("{} {}, rank {}", prepared.call.kind.function(), prepared.call, member.rank)
        });
    }
    Ok(work)
}

/// Makes the calls on the ranks' streams, behind the work of their devices' compute streams.
fn call(members: &[&Arc<Member>], calls: &[(&Arc<Member>, &Prepared)]) -> Result<()> {
    let Some((first, _)) = calls.first() else { return Ok(()) };
    let library = first.library;
    let mut handles = Vec::with_capacity(calls.len());
    for member in members {
        // Launches deferred ops.
        member.device.make_current()?;
        member.stream.wait(&member.device.compute.mark()?)?;
    }
    for (member, prepared) in calls {
        handles.push(member.begin(prepared.call)?);
    }
    let grouped = calls.len() > 1;
    if grouped {
        // SAFETY: the function is RCCL's and has no precondition.
        library.check("ncclGroupStart", unsafe { (library.0.ncclGroupStart)() }, String::new)?;
    }
    let mut outcome = Ok(());
    for ((member, prepared), handle) in calls.iter().zip(&handles) {
        if outcome.is_ok() {
            outcome = member.device.context.bind().and_then(|()| {
                let kind = prepared.call.kind;
                // SAFETY: `begin` gave the handle, which only an abort takes away; RCCL then ends
                // this call with an error. The `Work` keeps the buffers until the device's compute
                // stream has waited for the rank's stream.
                let status = unsafe { prepared.issue(library.0, *handle, member.stream.handle()) };
                let who = || format!("rank {} of {}, {}", member.rank, member.size, prepared.call);
                library.check(kind.function(), status, who)
            });
        }
    }
    if grouped {
        // Ends the thread's group in any case.
        // SAFETY: as above.
        let ended = unsafe { (library.0.ncclGroupEnd)() };
        outcome = outcome.and_then(|()| {
            let who = || format!("{} calls from {} on", calls.len(), calls[0].1.call);
            library.check("ncclGroupEnd", ended, who)
        });
    }
    // After an abort by another thread, the call's own status says little or nothing.
    let aborted = members.iter().find_map(|member| member.failure());
    let elsewhere = || members.iter().find_map(|member| member.ledger.failure());
    match aborted.or_else(|| outcome.is_err().then(elsewhere).flatten()) {
        Some(failure) => Err(failure),
        None => outcome,
    }
}

impl Communicator {
    /// Issues one call.
    pub(super) fn issue(
        &self,
        (kind, dtype, count): (Kind, DType, usize),
        send: Option<Part<'_>>,
        recv: Option<Part<'_>>,
    ) -> Result<Work> {
        let call = Call { kind, dtype, count };
        let prepared = call.prepare(self.device(), (self.rank(), self.size()), send, recv)?;
        issue(&[(self.member(), &prepared)])
    }
}
