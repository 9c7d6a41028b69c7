//! Late mode: a test of orders. A stream's work runs as late as HIP allows: when the host waits for
//! it, or when another stream's work runs that waits for it by an event, and then only up to that
//! event. So work that should wait for other work, and does not, runs before it.
//!
//! One lock is held in every call of the mode, [`lock`]: queues belong to
//! several devices, because a stream may wait for an event of another device.

pub(super) use super::order::{is_on, lock};
use super::{capture::Work, device::Device, error::Fault};
use hip_sys::*;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A place in a stream: behind this many pieces of work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    stream: usize,
    behind: u64,
}

enum Item {
    Run(&'static Device, Work),
    Wait(Point),
}

/// What a stream was given and has not run yet.
#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    given: u64,
    ran: u64,
}

/// By the streams' handles. Locked only to change it, never while work runs.
static QUEUES: Mutex<BTreeMap<usize, Queue>> = Mutex::new(BTreeMap::new());

fn queues() -> MutexGuard<'static, BTreeMap<usize, Queue>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn push(stream: hipStream_t, item: Item) {
    let mut queues = queues();
    let queue = queues.entry(stream as usize).or_default();
    queue.items.push_back(item);
    queue.given += 1;
}

/// Gives a stream work.
pub(super) fn give(stream: hipStream_t, device: &'static Device, work: Vec<Work>) {
    work.into_iter().for_each(|work| push(stream, Item::Run(device, work)));
}

/// Behind all that the stream was given.
pub(super) fn end_of(stream: hipStream_t) -> Point {
    let behind = queues().get(&(stream as usize)).map_or(0, |queue| queue.given);
    Point { stream: stream as usize, behind }
}

/// Makes a stream's later work wait.
pub(super) fn wait(stream: hipStream_t, point: Point) {
    push(stream, Item::Wait(point));
}

/// Whether the stream is past the point.
pub(super) fn is_past(point: Point) -> bool {
    queues().get(&point.stream).is_none_or(|queue| queue.ran >= point.behind)
}

/// Runs a stream's work up to the point, and before it what that work waits for.
pub(super) fn run_to(point: Point) {
    while !is_past(point) {
        let item = queues().get_mut(&point.stream).and_then(|queue| queue.items.pop_front());
        match item {
            // What it waits for was given before it, so this ends.
            Some(Item::Wait(other)) => run_to(other),
            Some(Item::Run(device, work)) => {
                // A panic counts as a failure. If it unwound from here, the queue would never get
                // past this item.
                if !catch_unwind(AssertUnwindSafe(|| work.run())).unwrap_or(false) {
                    let text = "work that ran late failed".to_owned();
                    device.set_fault(Fault { status: hipErrorLaunchFailure, text });
                }
            }
            None => return,
        }
        if let Some(queue) = queues().get_mut(&point.stream) {
            queue.ran += 1;
        }
    }
}

/// Runs all work of all streams.
pub(super) fn run_all() {
    let ends: Vec<Point> =
        queues().iter().map(|(&stream, queue)| Point { stream, behind: queue.given }).collect();
    ends.into_iter().for_each(run_to);
}

/// Runs all work of all streams, for a call in a stream that runs its work at once.
pub(crate) fn run_first() {
    if is_on() {
        run_all();
    }
}

/// Runs a stream's work before the stream goes.
pub(super) fn forget(stream: hipStream_t) {
    run_to(end_of(stream));
    queues().remove(&(stream as usize));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::capture::{enqueue, take_down};
    use crate::runtime::device::device;
    use std::sync::Arc;

    /// Handles that no other test has.
    const STREAMS: [hipStream_t; 2] = [8 as hipStream_t, 16 as hipStream_t];

    #[test]
    fn work_runs_when_somebody_waits_for_it_and_not_before() {
        let (ran, device) = (Arc::new(Mutex::new(Vec::new())), device(0).unwrap());
        let [first, second] = STREAMS;
        let work = |name: &'static str| {
            let ran = ran.clone();
            let work = move || {
                ran.lock().unwrap().push(name);
                assert_ne!(name, "panics");
                if name == "fails" { Err(hipErrorUnknown) } else { Ok(()) }
            };
            // SAFETY: the work holds nothing but the list and a name.
            take_down(true, || unsafe { enqueue(work) }).unwrap()
        };
        let names = || ran.lock().unwrap().clone();
        let _order = device.lock();
        give(first, device, work("a"));
        let behind_a = end_of(first);
        give(first, device, work("b"));
        give(second, device, work("c"));
        wait(second, behind_a);
        give(second, device, work("d"));
        let behind_d = end_of(second);
        // Behind the point that is waited for, both ways.
        wait(first, behind_d);
        give(first, device, work("fails"));
        assert_eq!((names().len(), is_past(behind_a)), (0, false));
        run_to(behind_d);
        assert_eq!(names(), ["c", "a", "d"]);
        assert!(is_past(behind_a) && is_past(behind_d) && !is_past(end_of(first)));
        run_to(behind_a);
        assert_eq!(names().len(), 3, "nothing is left to do");
        assert!(device.check().is_ok());
        forget(first);
        assert_eq!(names(), ["c", "a", "d", "b", "fails"]);
        assert_eq!(device.check(), Err(hipErrorLaunchFailure));
        give(second, device, work("panics"));
        let behind_panics = end_of(second);
        run_to(behind_panics);
        assert!(is_past(behind_panics));
        assert_eq!(device.check(), Err(hipErrorLaunchFailure));
        forget(second);
    }
}
