//! The times of a stream that is busy, which the CPU device never is: an altered HIP says so. Also
//! what a correlator is told.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hip_sys::{hipError_t, hipErrorInvalidValue, hipErrorNotReady, hipEvent_t, hipStream_t, hipSuccess};
use serial_test::serial;

use super::{Correlator, Detail, Profile, WorkKind, correlate, profile, region};
use crate::device::Device;
use crate::memory::buffer::Buffer;
use crate::provider::Provider;

/// Whether no event is passed.
static BUSY: AtomicBool = AtomicBool::new(false);
/// The events that were recorded.
static RECORDED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn query(_: hipEvent_t) -> hipError_t {
    if BUSY.load(Ordering::Relaxed) { hipErrorNotReady } else { hipSuccess }
}

unsafe extern "C" fn record(event: hipEvent_t, stream: hipStream_t) -> hipError_t {
    RECORDED.fetch_add(1, Ordering::Relaxed);
    let hip = crate::provider::provider().expect("the CPU provider").hip();
    // SAFETY: the caller passes the handles of the same provider's functions.
    unsafe { (hip.hipEventRecord)(event, stream) }
}

/// A microsecond, whatever the machine does meanwhile.
unsafe extern "C" fn elapsed(milliseconds: *mut f32, _: hipEvent_t, _: hipEvent_t) -> hipError_t {
    // SAFETY: the caller passes a place for the result.
    unsafe { *milliseconds = 1e-3 };
    hipSuccess
}

fn busy_device() -> Arc<Device> {
    let provider = Provider::altered(|hip| {
        hip.hipEventQuery = query;
        hip.hipEventRecord = record;
        hip.hipEventElapsedTime = elapsed;
    });
    Arc::new(Device::new(provider, 0).expect("a device"))
}

fn fill(device: &Device, buffer: &Buffer) {
    device.fill_bytes(buffer, 0, 1, buffer.len()).expect("memset");
}

/// The one row of a region; other tests of this process work too.
fn row_of(profile: &Profile, region: &str) -> super::Row {
    let mut rows = profile.rows(Detail::Region);
    rows.retain(|row| &*row.region == region);
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.remove(0)
}

/// One test, because the altered functions have one state.
#[test]
#[serial(profile)]
fn a_busy_stream_has_one_event_for_each_piece() {
    let device = busy_device();
    let buffer = device.alloc(1 << 16).expect("memory");
    let ((), profile) = profile(|| {
        let _region = region("busy");
        let before = RECORDED.load(Ordering::Relaxed);
        BUSY.store(true, Ordering::Relaxed);
        (0..40).for_each(|_| fill(&device, &buffer));
        BUSY.store(false, Ordering::Relaxed);
        // The first piece found an empty stream.
        assert_eq!(RECORDED.load(Ordering::Relaxed) - before, 41);
        fill(&device, &buffer);
        assert_eq!(RECORDED.load(Ordering::Relaxed) - before, 43);
    });
    let row = row_of(&profile, "busy");
    assert_eq!((row.kind, &*row.work, row.calls, row.timed), (Some(WorkKind::Copy), "memset", 41, 41));
    assert_eq!(row.bytes, Some(41 << 16));
    assert!(row.least <= row.average() && row.average() <= row.most, "{row:?}");
    assert!(row.total <= profile.wall(), "{row:?} in {:?}", profile.wall());

    let ((), profile) = super::profile(|| {
        let _region = region("full");
        BUSY.store(true, Ordering::Relaxed);
        (0..10_000).for_each(|_| fill(&device, &buffer));
        BUSY.store(false, Ordering::Relaxed);
    });
    let row = row_of(&profile, "full");
    assert_eq!((row.calls, row.timed, row.shared), (10_000, 8192, 0), "none was timed alone");
    assert!(profile.to_string().contains("of 10000 is not known") || profile.devices().len() > 1);

    // Pieces that were timed alone share events while the stream is behind.
    let ((), profile) = super::profile(|| {
        let _region = region("shared");
        (0..300).for_each(|_| fill(&device, &buffer));
        let before = RECORDED.load(Ordering::Relaxed);
        BUSY.store(true, Ordering::Relaxed);
        (0..1000).for_each(|_| fill(&device, &buffer));
        BUSY.store(false, Ordering::Relaxed);
        // Each 61st has an event before it, unless it is the first, and one after it.
        let recorded = RECORDED.load(Ordering::Relaxed) - before;
        assert!((31..=34).contains(&recorded), "{recorded}");
    });
    let row = row_of(&profile, "shared");
    assert_eq!((row.calls, row.timed), (1300, 1300));
    assert!((983..=984).contains(&row.shared), "{row:?}");
    assert_eq!(row.most, Duration::from_micros(1));
    assert!(row.least <= row.average() && row.average() <= row.most, "{row:?}");
    assert!(row.total <= profile.wall(), "{row:?} in {:?}", profile.wall());
    assert!(profile.to_string().contains("shared events"), "{profile}");
}

/// Begins work that enqueues nothing, like a library call that only queries something, or work that
/// is refused.
fn begin_nothing(device: &Device) {
    drop(device.compute.begin_work());
}

#[test]
#[serial(profile)]
fn work_after_a_call_that_computed_nothing_has_a_beginning_of_its_own() {
    let device = busy_device();
    let buffer = device.alloc(1 << 16).expect("memory");
    let ((), profile) = profile(|| {
        let _region = region("after nothing");
        BUSY.store(true, Ordering::Relaxed);
        begin_nothing(&device);
        fill(&device, &buffer);
        BUSY.store(false, Ordering::Relaxed);
    });
    let row = row_of(&profile, "after nothing");
    assert_eq!((row.calls, row.timed), (1, 1));
}

#[test]
#[serial(profile)]
fn a_wait_before_a_call_that_computed_nothing_is_in_no_time() {
    let device = busy_device();
    let buffer = device.alloc(1 << 16).expect("memory");
    let ((), _) = profile(|| {
        BUSY.store(true, Ordering::Relaxed);
        fill(&device, &buffer);
        let other = device.copies.mark().expect("an event");
        device.compute.wait(&other).expect("a wait");
        begin_nothing(&device);
        let before = RECORDED.load(Ordering::Relaxed);
        (0..2).for_each(|_| fill(&device, &buffer));
        // One before the first piece, because it comes after a wait, and one after each.
        assert_eq!(RECORDED.load(Ordering::Relaxed) - before, 3);
        BUSY.store(false, Ordering::Relaxed);
    });
}

thread_local! {
    /// The numbers of the thread's pieces that began, and 0 for each that ended.
    static TOLD: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn told() -> Vec<u64> {
    TOLD.take()
}

unsafe extern "C" fn refuse(_: *mut c_void, _: c_int, _: usize, _: hipStream_t) -> hipError_t {
    hipErrorInvalidValue
}

/// The numbers in the timeline of the pieces of a region.
fn numbers(profile: &Profile, region: &str) -> Vec<u64> {
    let trace: serde_json::Value = serde_json::from_str(&profile.chrome_trace()).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    let own = events.iter().filter(|event| event["args"]["region"] == region);
    own.filter_map(|event| event["args"]["piece"].as_u64()).collect()
}

#[test]
#[serial(profile)]
fn a_correlator_is_told_of_each_piece() {
    let begins = |number| TOLD.with_borrow_mut(|told| told.push(number));
    let ends = || TOLD.with_borrow_mut(|told| told.push(0));
    correlate(Correlator { begins, ends }).expect("the first");
    assert!(correlate(Correlator { begins, ends }).unwrap_err().to_string().contains("another"));
    // A device of its own, because the thread that enqueues work may launch another's deferred ops.
    let device = Arc::new(Device::new(Provider::altered(|_| ()), 0).expect("a device"));
    let buffer = device.alloc(1 << 10).expect("memory");
    fill(&device, &buffer);
    // Another test may profile meanwhile.
    told();

    let ((), profile) = profile(|| {
        let _region = region("correlated");
        (0..3).for_each(|_| fill(&device, &buffer));
    });
    let [a, 0, b, 0, c, 0] = told()[..] else { panic!("three pieces") };
    assert!(0 < a && a < b && b < c);
    assert_eq!(numbers(&profile, "correlated"), [a, b, c]);

    // A graph's launch is one piece, and what is captured is none.
    let ((), profile) = super::profile(|| {
        let _region = region("replayed");
        device.start_capture().expect("a capture");
        fill(&device, &buffer);
        let graph = device.stop_capture().expect("a graph");
        assert!(told().is_empty(), "what is captured does not run");
        graph.replay().expect("a replay");
    });
    let [launch, 0] = told()[..] else { panic!("one piece") };
    assert_eq!(numbers(&profile, "replayed"), [launch]);

    // Refused work ends, too.
    let device =
        Arc::new(Device::new(Provider::altered(|hip| hip.hipMemsetAsync = refuse), 0).expect("a device"));
    let buffer = device.alloc(1 << 10).expect("memory");
    let (refused, profile) = super::profile(|| {
        let _region = region("refused");
        device.fill_bytes(&buffer, 0, 1, 1 << 10)
    });
    refused.expect_err("refused");
    assert!(matches!(told()[..], [_, 0]));
    assert!(numbers(&profile, "refused").is_empty());
}

/// What another thread does while one tells a stream to wait.
static MEANWHILE: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

unsafe extern "C" fn wait(stream: hipStream_t, event: hipEvent_t, flags: c_uint) -> hipError_t {
    let meanwhile = MEANWHILE.lock().expect("no test panics with it").take();
    if let Some(meanwhile) = meanwhile {
        std::thread::spawn(meanwhile).join().expect("the other thread");
    }
    let hip = crate::provider::provider().expect("the CPU provider").hip();
    // SAFETY: the caller passes the handles of the same provider's functions.
    unsafe { (hip.hipStreamWaitEvent)(stream, event, flags) }
}

/// Its time could be that of the wait.
#[test]
#[serial(profile)]
fn a_piece_that_another_threads_wait_may_precede_has_no_time() {
    let provider = Provider::altered(|hip| hip.hipStreamWaitEvent = wait);
    let device = Arc::new(Device::new(provider, 0).expect("a device"));
    let buffer = Arc::new(device.alloc(1 << 10).expect("memory"));
    let ((), profile) = profile(|| {
        let other = device.copies.mark().expect("an event");
        let (for_device, for_buffer) = (device.clone(), buffer.clone());
        let meanwhile = move || {
            let _region = region("meanwhile");
            fill(&for_device, &for_buffer);
        };
        *MEANWHILE.lock().expect("no test panics with it") = Some(Box::new(meanwhile));
        device.compute.wait(&other).expect("a wait");
        let _region = region("afterwards");
        fill(&device, &buffer);
    });
    let counts = ["meanwhile", "afterwards"].map(|name| {
        let row = row_of(&profile, name);
        (row.calls, row.timed)
    });
    assert_eq!(counts, [(1, 0), (1, 1)]);
}
