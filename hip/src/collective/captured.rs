//! Collectives in graphs.
//!
//! A capture records a rank's calls on a second stream. This stream waits for the captured one, and
//! the captured one waits for it. A call that joins itself is recorded on the captured stream, if no
//! other call of the rank is unjoined. All ranks capture the same calls at the same time, because RCCL's
//! calls may exchange data while they are captured, and replay the same graphs. So the ledger
//! compares captures with captures, and replays with replays.
//!
//! A replay is watched as a call is: an event after its launch marks its end, and the rank's thread
//! watches it until then.
//!
//! RCCL keeps a rank for as long as a graph with its calls lives (`persistentRefs` of NCCL's
//! communicators). `ncclCommDestroy` and `ncclCommAbort` wait for that. So a rank is destroyed when
//! the last of its graphs is dropped; an abort ends its work at once and waits in the rank's thread.

use std::any::Any;
use std::sync::Arc;

use crate::collective::call::{Call, Replay, Step};
use crate::collective::group::compare_now;
use crate::collective::in_graph::InGraph;
use crate::collective::member::Member;
use crate::device::Device;
use crate::device::collectives::Unjoined;
use crate::error::{Error, Result};
use crate::settings::settings;

/// A number that no rank has.
const NO_RANK: u64 = u64::MAX;

/// The collectives of a graph.
pub(crate) struct Replays {
    ranks: Vec<Rank>,
    _calls: Vec<InGraph>,
}

/// A rank of the graph's device, with its calls.
struct Rank {
    member: Arc<Member>,
    replay: Replay,
    calls: Vec<Call>,
}

impl Replays {
    /// The collectives among what a capture has recorded.
    pub(crate) fn of(recorded: Vec<Box<dyn Any + Send>>) -> Self {
        // A capture records nothing else.
        let calls = recorded.into_iter().filter_map(|call| call.downcast().ok());
        let calls: Vec<InGraph> = calls.map(|call| *call).collect();
        let mut members: Vec<(Arc<Member>, Vec<Call>)> = Vec::new();
        for InGraph { member, call } in &calls {
            match members.iter_mut().find(|(other, _)| Arc::ptr_eq(other, member)) {
                Some((_, calls)) => calls.push(*call),
                None => members.push((member.clone(), vec![*call])),
            }
        }
        let rank =
            |(member, calls): (_, Vec<Call>)| Some(Rank { member, replay: Replay::of(&calls)?, calls });
        Self { ranks: members.into_iter().filter_map(rank).collect(), _calls: calls }
    }

    /// Launches the graph by `launch`, which enqueues it on the device's compute stream.
    ///
    /// # Errors
    /// `Mismatch` if another rank does something else; `Collective` if a group has failed; what
    /// `launch` returns. The graph's groups have then failed.
    pub(crate) fn launch(&self, device: &Arc<Device>, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.ranks.is_empty() {
            return launch();
        }
        let _issuing = device.collectives.issuing();
        // Held until the end of this function, so passes that begin later come after the graph.
        let _issued: Vec<_> = self.ranks.iter().map(|rank| rank.member.issues()).collect();
        // A rank's other calls are in the order of its stream, but these run on the compute stream. So
        // they count as those of a group that no rank is in: no rank reduces beside a pass before them.
        let _apart = Unjoined::note(device, NO_RANK);
        let compared = match settings()?.collective_check {
            true => {
                let collective = |rank: &&Rank| rank.calls.iter().any(|call| call.kind.is_collective());
                let steps = self.ranks.iter().filter(collective).map(|rank| (&rank.member, rank.step()));
                compare_now(&steps.collect::<Vec<_>>())
            }
            false => Ok(()),
        };
        let entered = compared.and_then(|()| self.ranks.iter().try_for_each(Rank::enter));
        entered.map_err(|error| self.give_up(error))?;
        let begun = self.ranks.iter().try_for_each(|rank| rank.begin(device));
        let launched = begun.and_then(|()| launch());
        for Rank { member, .. } in &self.ranks {
            // Also after a failure: what was launched is watched until it ends.
            match device.compute.mark() {
                Ok(done) => drop(member.end(Some(done))),
                Err(error) => {
                    member.fail(error);
                    let _ = device.compute.synchronize();
                    member.end(None);
                }
            }
        }
        launched.map_err(|error| {
            // The library knows more about a failure of the group than HIP does.
            let failed = self.ranks.iter().find_map(|rank| rank.member.check().err());
            self.give_up(failed.unwrap_or(error))
        })
    }

    /// Fails all groups of the graph, because none of its calls is made now: the other ranks would wait
    /// for them. Returns the error.
    fn give_up(&self, error: Error) -> Error {
        self.ranks.iter().for_each(|rank| drop(rank.member.fail(error.clone())));
        error
    }
}

impl Rank {
    fn step(&self) -> Step {
        Step::Replay(self.replay)
    }

    /// Compares the replay with those of the process's other ranks.
    fn enter(&self) -> Result<()> {
        let Self { member, calls, .. } = self;
        let pairs = calls.iter().filter(|call| !call.kind.is_collective()).map(|&call| Step::Call(call));
        let collective = calls.iter().any(|call| call.kind.is_collective()).then(|| self.step());
        let mut steps = collective.into_iter().chain(pairs);
        steps.try_for_each(|step| member.ledger.enter(member.rank, step)).map_err(|error| member.fail(error))
    }

    /// From here on the rank's thread watches the replay.
    fn begin(&self, device: &Device) -> Result<()> {
        self.member.begin(self.step())?;
        // RCCL runs a rank's calls one after the other.
        match self.member.is_running() {
            true => device.compute.wait(&self.member.stream.mark()?),
            false => Ok(()),
        }
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use std::cell::Cell;

    use hip_kernels::DType;
    use hip_sys::{hipError_t, hipErrorOutOfMemory, hipEvent_t, hipStream_t};

    use super::*;
    use crate::device::pass::{Pass, Points};
    use crate::provider::Provider;
    use crate::{Buffer, Communicator, Graph, Part, ReduceOp, Work, trace, uncaptured};

    thread_local! {
        /// How many more events the thread can record, if there is a limit.
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    unsafe extern "C" fn record(event: hipEvent_t, stream: hipStream_t) -> hipError_t {
        match LEFT.get() {
            Some(0) => {
                LEFT.set(None);
                return hipErrorOutOfMemory;
            }
            left => LEFT.set(left.map(|left| left - 1)),
        }
        let hip = crate::provider::provider().expect("the CPU provider").hip();
        // SAFETY: the caller passes the handles of the same provider's functions.
        unsafe { (hip.hipEventRecord)(event, stream) }
    }

    /// A rank alone on a device of its own.
    fn rank() -> (Communicator, Arc<Device>) {
        let provider = Provider::altered(|hip| hip.hipEventRecord = record);
        let device = Arc::new(Device::new(provider, 0).expect("a device"));
        (Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0), device)
    }

    fn buffer(device: &Arc<Device>) -> Arc<Buffer> {
        Arc::new(device.alloc(16).expect("memory"))
    }

    fn reduce(on: &Communicator, buffer: &Arc<Buffer>) -> Result<Work> {
        on.all_reduce(ReduceOp::Sum, DType::F32, 4, Part::whole(buffer), Part::whole(buffer))
    }

    /// A graph of one reduction.
    fn graph(on: &Communicator, buffer: &Arc<Buffer>) -> Result<Graph> {
        on.device().start_capture()?;
        let captured = reduce(on, buffer).and_then(Work::join);
        let ended = on.device().stop_capture();
        captured.and(ended)
    }

    /// The points of a pass with an op.
    fn pass(device: &Arc<Device>) -> Points {
        let pass = Pass::begin(device, vec![], vec![]).expect("a pass");
        {
            let _op = trace::op("captured test", || "");
            device.fill_bytes(&buffer(device), 0, 0, 16).expect("a fill");
        }
        pass.end()
    }

    /// A bucket's reduction that waits for a point before the replay would run beside the replay's.
    #[test]
    fn a_replay_ends_the_overlap_with_passes_before_it() {
        let (rank, device) = rank();
        let graph = graph(&rank, &buffer(&device)).expect("a graph");
        let before = pass(&device);
        assert!(!rank.member().others_since(&before));
        graph.replay().expect("a replay");
        assert!(rank.member().others_since(&before));
        assert!(!rank.member().others_since(&pass(&device)), "this one is behind the replay");
        assert!(device.collectives.all_joined());
    }

    /// The graph reduces in two groups, and one of them has failed. The other one's ranks must not wait
    /// for this replay.
    #[test]
    fn a_replay_that_one_group_refuses_fails_the_others() {
        let (rank, device) = rank();
        let other = Communicator::local(std::slice::from_ref(&device)).expect("a group").remove(0);
        let summed = buffer(&device);
        device.start_capture().expect("a capture");
        for on in [&rank, &other] {
            reduce(on, &summed).and_then(Work::join).expect("a call");
        }
        let graph = device.stop_capture().expect("a graph");
        graph.replay().expect("a replay");
        rank.check().expect("nothing failed");
        other.abort();
        let error = graph.replay().expect_err("a group has failed");
        assert!(matches!(&error, Error::Collective { name, .. } if name == "aborted"), "{error}");
        assert_eq!(rank.check().expect_err("its call is missing"), error);
    }

    /// Whichever event can't be recorded: without it, the graph would lack an edge.
    #[test]
    fn an_event_that_fails_gives_no_graph() {
        failing_events(3, |rank, buffer| reduce(rank, buffer).and_then(Work::join));
        failing_events(2, |rank, buffer| {
            rank.all_reduce_joined(ReduceOp::Sum, DType::F32, 4, Part::whole(buffer), Part::whole(buffer))
        });
    }

    /// Fails each event of a captured call in turn. `least`: the fewest events that the call has.
    fn failing_events(least: u32, call: impl Fn(&Communicator, &Arc<Buffer>) -> Result<()>) {
        for left in 0.. {
            let (rank, device) = rank();
            let buffer = buffer(&device);
            device.start_capture().expect("a capture");
            LEFT.set(Some(left));
            let captured = call(&rank, &buffer);
            let failed = LEFT.take().is_none();
            let ended = device.stop_capture();
            if !failed {
                captured.and(ended).expect("nothing failed");
                assert!(left >= least, "{left} events, fewer than {least}");
                return;
            }
            let error = ended.map(drop).expect_err("an event failed");
            assert!(matches!(error, Error::Device { call: "hipEventRecord", .. }), "{left}: {error}");
        }
    }

    /// Another thread can't join a captured reduction, but its memory must not get another user.
    #[test]
    fn another_thread_leaves_the_memory_to_the_graph() {
        let (rank, device) = rank();
        device.start_capture().expect("a capture");
        let summed = buffer(&device);
        let address = summed.address();
        let work = reduce(&rank, &summed).expect("a call");
        drop(summed);
        std::thread::scope(|scope| {
            scope.spawn(|| work.join().expect("the capture's end joins it"));
        });
        assert_ne!(buffer(&device).address(), address);
        device.stop_capture().expect("a graph").replay().expect("a replay");
    }

    /// If another thread joins, only the capture's end joins the call. So the next call goes on the branch,
    /// behind it.
    #[test]
    fn a_call_comes_behind_what_another_thread_has_joined() {
        let (rank, device) = rank();
        let summed = buffer(&device);
        device.start_capture().expect("a capture");
        let work = reduce(&rank, &summed).expect("a call");
        std::thread::scope(|scope| {
            scope.spawn(|| work.join().expect("the capture's end joins it"));
        });
        assert!(!device.collectives.all_joined());
        let whole = Part::whole(&summed);
        rank.all_reduce_joined(ReduceOp::Sum, DType::F32, 4, whole, whole).expect("a call");
        assert!(!device.collectives.all_joined());
        device.stop_capture().expect("a graph").replay().expect("a replay");
        assert!(device.collectives.all_joined());
    }

    /// Compute work must not become part of the capture.
    #[test]
    fn a_join_inside_uncaptured_is_captured() {
        let (rank, device) = rank();
        let summed = Arc::new(device.upload(&3f32.to_ne_bytes().repeat(4)).expect("memory"));
        device.start_capture().expect("a capture");
        let work = reduce(&rank, &summed).expect("a call");
        let mut bytes = [0; 16];
        uncaptured(|| {
            work.join().expect("a join in the capture");
            device.read(&summed, 0, &mut bytes)
        })
        .expect("compute work runs");
        assert_eq!(bytes[..4], 3f32.to_ne_bytes());
        device.stop_capture().expect("a graph").replay().expect("a replay");
        device.sync().expect("compute work runs");
    }
}
