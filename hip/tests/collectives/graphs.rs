//! Collectives in graphs: their order beside other work, and ranks that capture or replay something
//! else, or nothing. Every wait has an end. `drawn` holds their results against f64.

use std::sync::Arc;

use hip::{Buffer, Communicator, DType, Error, Graph, Part, ReduceOp, Result};

use crate::failures::{LATE, SOON, collective, for_the_dead, ones, works};
use crate::ranks::{DEAD, Ranks, on_processes, on_threads};

/// A graph that sums `count` elements of a buffer over the ranks, in place. Before and after that it
/// copies: `count` elements of `from` to the buffer, and the sums to `to`.
struct Sums {
    graph: Graph,
    from: Arc<Buffer>,
    to: Arc<Buffer>,
    count: usize,
}

impl Sums {
    fn capture(on: &Communicator, count: usize) -> Result<Self> {
        Self::capture_as(on, count, false)
    }

    /// `joined`: by a call that joins itself.
    fn capture_as(on: &Communicator, count: usize, joined: bool) -> Result<Self> {
        let device = on.device();
        let buffer = || device.alloc(4 * count).map(Arc::new);
        let (from, to) = (buffer()?, buffer()?);
        device.start_capture()?;
        let graph = (|| {
            let summed = buffer()?;
            device.copy(&from, 0, &summed, 0, 4 * count)?;
            let part = Part::whole(&summed);
            match joined {
                true => on.all_reduce_joined(ReduceOp::Sum, DType::F32, count, part, part)?,
                false => on.all_reduce(ReduceOp::Sum, DType::F32, count, part, part)?.join()?,
            }
            device.copy(&summed, 0, &to, 0, 4 * count)
        })();
        let ended = device.stop_capture();
        graph?;
        Ok(Self { graph: ended?, from, to, count })
    }

    /// Replays it with this value in all elements, and returns the sum.
    fn sum(&self, value: f32) -> Result<f32> {
        let device = self.graph.device();
        let fresh = device.upload(&value.to_ne_bytes().repeat(self.count))?;
        device.copy(&fresh, 0, &self.from, 0, 4 * self.count)?;
        self.graph.replay()?;
        let mut bytes = vec![0; 4 * self.count];
        device.read(&self.to, 0, &mut bytes)?;
        let sums: Vec<_> =
            bytes.chunks_exact(4).map(|sum| f32::from_ne_bytes(sum.try_into().unwrap())).collect();
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
        Ok(sums[0])
    }
}

/// What ranks that give `rank + by` get.
fn expected(size: usize, by: usize) -> f32 {
    (0..size).map(|rank| (rank + by) as f32).sum()
}

fn replays(ranks: &Ranks) {
    let on = &ranks.communicator;
    for joined in [false, true] {
        let sums = Sums::capture_as(on, 1000, joined).unwrap();
        replays_of(ranks, &sums);
    }
}

fn replays_of(ranks: &Ranks, sums: &Sums) {
    let on = &ranks.communicator;
    for by in 0..5 {
        assert_eq!(sums.sum((on.rank() + by) as f32).unwrap(), expected(on.size(), by));
        // Calls that are not captured, before and behind the replays, also some that are not joined.
        let before = ones(on, 50_000).unwrap();
        assert_eq!(sums.sum((on.rank() + by) as f32).unwrap(), expected(on.size(), by));
        before.wait().unwrap();
        ones(on, 10).unwrap().join().unwrap();
    }
    assert_eq!(sums.graph.recorded().library_calls, 1);
}

#[test]
fn a_replay_reads_what_is_there_now() {
    on_threads("graphs::a_replay_reads_what_is_there_now", &LATE, |ranks| replays(&ranks));
}

#[test]
fn processes_replay_too() {
    on_processes("graphs::processes_replay_too", &LATE, &[], |ranks| replays(&ranks));
}

/// Two graphs of a rank, replayed in any order, and one of them dropped.
#[test]
fn several_graphs_share_a_group() {
    on_threads("graphs::several_graphs_share_a_group", &LATE, |ranks| {
        let on = &ranks.communicator;
        let (first, second) = (Sums::capture(on, 3).unwrap(), Sums::capture(on, 70_000).unwrap());
        for by in [1, 4] {
            for sums in [&second, &first, &second, &second] {
                assert_eq!(sums.sum((on.rank() + by) as f32).unwrap(), expected(on.size(), by));
            }
        }
        drop(second);
        assert_eq!(first.sum(1.0).unwrap(), on.size() as f32);
    });
}

/// The group's failure, as its later calls and replays return it.
fn failed(on: &Communicator, error: &Error, graph: &Sums) {
    assert_eq!(on.check().unwrap_err(), *error);
    assert_eq!(ones(on, 1).map(drop).unwrap_err(), *error);
    assert_eq!(graph.graph.replay().unwrap_err(), *error);
    works(on.device());
}

#[test]
fn captures_that_differ_are_named() {
    on_threads("graphs::captures_that_differ_are_named", &LATE, |ranks| {
        let on = &ranks.communicator;
        let error = match Sums::capture(on, if on.rank() == 0 { 10 } else { 11 }) {
            Err(error) => error,
            Ok(sums) => sums.sum(1.0).unwrap_err(),
        };
        let Error::Mismatch { call, other_call, .. } = &error else { panic!("{error}") };
        let both = format!("{call} {other_call}");
        assert!(both.contains("10 x f32") && both.contains("11 x f32"), "{both}");
        assert_eq!(both.matches("in a capture").count(), 2, "{both}");
        assert_eq!(on.check().unwrap_err(), error);
        works(on.device());
    });
}

/// A call of a graph may exchange more between the ranks than the same call outside of one.
#[test]
fn a_call_does_not_match_a_captured_one() {
    on_threads("graphs::a_call_does_not_match_a_captured_one", &LATE, |ranks| {
        let on = &ranks.communicator;
        let error = match on.rank() {
            0 => ones(on, 10).and_then(hip::Work::wait).unwrap_err(),
            _ => match Sums::capture(on, 10) {
                Err(error) => error,
                Ok(sums) => sums.sum(1.0).unwrap_err(),
            },
        };
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(on.check().unwrap_err(), error);
    });
}

#[test]
fn replays_that_differ_are_named() {
    on_threads("graphs::replays_that_differ_are_named", &LATE, |ranks| {
        let on = &ranks.communicator;
        let (first, second) = (Sums::capture(on, 10).unwrap(), Sums::capture(on, 11).unwrap());
        assert_eq!(first.sum(1.0).unwrap(), on.size() as f32);
        ranks.together();
        let mine = if on.rank() == 0 { &second } else { &first };
        let error = mine.sum(1.0).unwrap_err();
        let Error::Mismatch { call, other_call, .. } = &error else { panic!("{error}") };
        let both = format!("{call} {other_call}");
        assert!(both.matches("the replay of a graph of 1 calls").count() == 2, "{both}");
        assert!(both.contains("10 x f32") && both.contains("11 x f32"), "{both}");
        failed(on, &error, &first);
    });
}

/// With the comparison between processes, the error names both replays there too.
#[test]
fn replays_of_processes_that_differ_are_named() {
    let compared = [LATE[0], ("BURN_ROCM_COLLECTIVE_CHECK", "1")];
    on_processes("graphs::replays_of_processes_that_differ_are_named", &compared, &[], |ranks| {
        let on = &ranks.communicator;
        let (first, second) = (Sums::capture(on, 10).unwrap(), Sums::capture(on, 11).unwrap());
        let error = if on.rank() == 0 { &second } else { &first }.sum(1.0).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        failed(on, &error, &first);
    });
}

#[test]
fn a_rank_that_does_not_replay_is_a_timeout() {
    on_threads("graphs::a_rank_that_does_not_replay_is_a_timeout", &SOON, |ranks| {
        let on = &ranks.communicator;
        let sums = Sums::capture(on, 10).unwrap();
        if on.rank() == 1 {
            // Alive, but it replays nothing.
            while on.check().is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let error = on.check().unwrap_err();
            return failed(on, &error, &sums);
        }
        let error = sums.sum(1.0).unwrap_err();
        let text = collective(&error);
        assert!(text.contains("timeout") && text.contains("the replay of a graph of 1 calls"), "{text}");
        failed(on, &error, &sums);
    });
}

#[test]
fn a_rank_that_leaves_fails_those_that_replay() {
    on_threads("graphs::a_rank_that_leaves_fails_those_that_replay", &LATE, |ranks| {
        let on = &ranks.communicator;
        let sums = Sums::capture(on, 10).unwrap();
        assert_eq!(sums.sum(1.0).unwrap(), on.size() as f32);
        ranks.together();
        if on.rank() == 1 {
            return;
        }
        let error = sums.sum(1.0).unwrap_err();
        assert!(collective(&error).contains("rank 1 has left the group"), "{error}");
        failed(on, &error, &sums);
    });
}

#[test]
fn a_process_that_dies_ends_the_others_replays() {
    const TEST: &str = "graphs::a_process_that_dies_ends_the_others_replays";
    on_processes(TEST, for_the_dead(), &[1], |ranks| {
        let on = &ranks.communicator;
        let sums = Sums::capture(on, 10).unwrap();
        assert_eq!(sums.sum(1.0).unwrap(), on.size() as f32);
        ranks.together();
        if on.rank() == 1 {
            std::process::exit(DEAD);
        }
        let error = sums.sum(1.0).unwrap_err();
        collective(&error);
        failed(on, &error, &sums);
    });
}

/// The library keeps a rank for as long as a graph has its calls.
#[test]
fn a_graph_may_outlive_its_rank() {
    on_threads("graphs::a_graph_may_outlive_its_rank", &SOON, |ranks| {
        let sums = Sums::capture(&ranks.communicator, 10).unwrap();
        assert_eq!(sums.sum(1.0).unwrap(), ranks.communicator.size() as f32);
        ranks.together();
        let start = std::time::Instant::now();
        drop(ranks);
        let error = sums.graph.replay().unwrap_err();
        assert!(
            matches!(error, Error::Invalid { op: "Graph::replay", .. }) || error.to_string().contains("left")
        );
        drop(sums);
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "it waited for the timeout");
    });
}

/// A capture that gives no graph leaves the group as it was.
#[test]
fn a_capture_that_fails_leaves_the_group() {
    on_threads("graphs::a_capture_that_fails_leaves_the_group", &LATE, |ranks| {
        let on = &ranks.communicator;
        let device = on.device();
        device.start_capture().unwrap();
        let work = ones_of(on).unwrap();
        let error = work.wait().unwrap_err();
        assert!(matches!(error, Error::Capture { op: "Work::wait", .. }), "{error}");
        assert!(device.stop_capture().is_err());
        let sums = Sums::capture(on, 10).unwrap();
        assert_eq!(sums.sum(2.0).unwrap(), 2.0 * on.size() as f32);
    });
}

/// An all-reduce of memory that is allocated in the capture.
fn ones_of(on: &Communicator) -> Result<hip::Work> {
    let buffer = Arc::new(on.device().alloc(40)?);
    on.all_reduce(ReduceOp::Sum, DType::F32, 10, Part::whole(&buffer), Part::whole(&buffer))
}
