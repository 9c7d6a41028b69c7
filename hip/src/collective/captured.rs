//! Collectives in graphs.
//!
//! A capture records a rank's calls on a second stream. This stream waits for the captured one, and
//! the captured one waits for it. All ranks capture the same calls at the same time, because RCCL's
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
use crate::error::Result;
use crate::settings::settings;

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
    pub(crate) fn launch(&self, device: &Device, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.ranks.is_empty() {
            return launch();
        }
        let _issuing = device.collectives.issuing();
        // Held until the end of this function, so passes that begin later come after the graph.
        let _issued: Vec<_> = self.ranks.iter().map(|rank| rank.member.issues()).collect();
        if settings()?.collective_check {
            let collective = |rank: &&Rank| rank.calls.iter().any(|call| call.kind.is_collective());
            let steps = self.ranks.iter().filter(collective).map(|rank| (&rank.member, rank.step()));
            compare_now(&steps.collect::<Vec<_>>())?;
        }
        self.ranks.iter().try_for_each(Rank::enter)?;
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
            let error = failed.unwrap_or(error);
            self.ranks.iter().for_each(|rank| drop(rank.member.fail(error.clone())));
            error
        })
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
