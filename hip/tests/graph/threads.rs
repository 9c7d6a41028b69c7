//! Threads beside a capture, and how a capture ends with its thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hip::trace::Counts;
use hip::{Buffer, Device, Error, Read};
use serial_test::serial;

use crate::again::again;
use crate::common::device;
use crate::support::*;

/// The capture waits for what another thread does with the device, as for a batch that is loaded.
#[test]
#[serial]
fn other_threads_work_runs_and_is_not_captured() {
    let device = device();
    let (x, y) = (words(&device, 1, N), words(&device, 2, N));
    add(&device, 0, &x, &x);
    let works: [&(dyn Fn() + Sync); 6] = [
        &|| add(&device, 1, &y, &y),
        &|| assert_eq!(value(&words(&device, 6, N)), 6),
        &|| assert_eq!(value(&words(&device, 7, 10)), 7),
        &|| device.sync().unwrap(),
        // No second capture begins beside the first.
        &|| {
            let refused = device.start_capture().unwrap_err();
            assert!(matches!(&refused, Error::Capture { op: "a capture", .. }), "{refused}");
        },
        &|| product_is_right(&device),
    ];
    let (graph, ()) = capture(&device, || {
        for work in works {
            add(&device, 1, &x, &x);
            std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        }
        add(&device, 1, &x, &x);
    });
    assert_eq!(graph.recorded(), Counts { kernels: 7, ..Counts::default() });
    assert_eq!((value(&x), value(&y)), (1, 3), "the others' work ran, the captured did not");
    graph.replay().unwrap();
    graph.replay().unwrap();
    assert_eq!((value(&x), value(&y)), (15, 3));
    is_usable(&device);
}

/// The same calls from the capturing thread and from another one, at the same time.
#[test]
#[serial]
fn threads_capture_and_compute_at_once() {
    let device = device();
    let (x, y) = (words(&device, 0, N), words(&device, 0, N));
    let done = AtomicBool::new(false);
    let graphs = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut turns = 0;
            while !done.load(Ordering::Relaxed) || turns == 0 {
                add(&device, 1, &y, &y);
                let z = words(&device, 5, N);
                add(&device, 1, &z, &z);
                product_is_right(&device);
                assert_eq!(value(&z), 6);
                turns += 1;
            }
            turns
        });
        let graphs: Vec<_> = (0..30)
            .map(|_| {
                let (graph, ()) = capture(&device, || {
                    for _ in 0..5 {
                        add(&device, 1, &x, &x);
                        let z = device.alloc(4 * N).unwrap();
                        add(&device, 1, &x, &z);
                    }
                });
                graph.replay().unwrap();
                graph
            })
            .collect();
        done.store(true, Ordering::Relaxed);
        let turns = busy.join().unwrap();
        assert_eq!(value(&y), turns);
        graphs
    });
    assert!(graphs.iter().all(|graph| graph.recorded().kernels == 10));
    assert_eq!(value(&x), 150);
    drop(graphs);
    assert_eq!(device.pool().stats().graphs, 0);
    is_usable(&device);
}

#[test]
#[serial]
fn another_threads_use_of_a_captured_tensor_is_an_error() {
    let device = device();
    let (x, y) = (words(&device, 1, N), words(&device, 0, N));
    let (graph, out) = capture(&device, || {
        let out = device.alloc(4 * N).unwrap();
        add(&device, 1, &x, &out);
        let captured = |error: Error| {
            let Error::Capture { op: "the use of a captured tensor", .. } = error else { panic!("{error}") };
        };
        std::thread::scope(|scope| {
            scope.spawn(|| captured(device.read(&out, 0, &mut [0; 4]).unwrap_err()));
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                add(&device, 1, &out, &y);
                captured(device.sync().unwrap_err());
                device.sync().unwrap();
                assert_eq!(value(&x), 1, "other tensors are as they were");
            });
        });
        out
    });
    graph.replay().unwrap();
    assert_eq!(value(&out), 2);
    is_usable(&device);
}

/// Runs the calling test in a new process, in which the CPU provider has two devices.
#[track_caller]
fn with_two_devices(test: &str) {
    // In that process.
    const TWO: &str = "BURN_ROCM_TEST_TWO_DEVICES";
    assert!(std::env::var_os(TWO).is_none(), "one device only");
    let environment = [(TWO, "1"), ("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")];
    again(&["--exact", test], &environment);
}

/// The copy would run on the other device, where nobody looks for the capture's error.
#[test]
#[serial]
fn a_captured_tensor_is_not_copied_to_another_device() {
    let Ok(second) = Device::get(1) else {
        return with_two_devices("threads::a_captured_tensor_is_not_copied_to_another_device");
    };
    let device = device();
    let x = words(&device, 1, N);
    let copy_of = |buffer: &Buffer| second.copy_from_device(buffer, 0, 4 * N);
    let (graph, out) = capture(&device, || {
        let out = device.alloc(4 * N).unwrap();
        add(&device, 1, &x, &out);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let error = copy_of(&out).map(|_| ()).unwrap_err();
                let Error::Capture { op: "the use of a captured tensor", .. } = error else {
                    panic!("{error}")
                };
                device.sync().unwrap();
                second.sync().unwrap();
                assert_eq!(value(&copy_of(&x).unwrap()), 1, "other tensors are copied");
            });
        });
        out
    });
    graph.replay().unwrap();
    assert_eq!(value(&copy_of(&out).unwrap()), 2);
    is_usable(&device);
}

/// All words are of the same replay, in a read of several copies and in several reads at once.
#[test]
#[serial]
fn large_reads_are_before_or_after_another_threads_replays() {
    const LARGE: usize = 5 << 20;
    let device = device();
    let (x, y) = (words(&device, 0, LARGE), words(&device, 0, N));
    let (graph, ()) = capture(&device, || {
        add(&device, 1, &x, &x);
        add(&device, 1, &y, &y);
    });
    let done = AtomicBool::new(false);
    let (begin, begun) = mpsc::channel();
    // Checked later: a panic here would leave the other thread in its loop.
    let (found, replays) = std::thread::scope(|scope| {
        let (graph, device, done) = (&graph, &device, &done);
        let replaying = scope.spawn(move || {
            let mut replays = 0u32;
            while !done.load(Ordering::Relaxed) {
                graph.replay().and_then(|()| device.sync())?;
                replays += 1;
                // Nobody hears it after the first.
                let _ = begin.send(());
            }
            hip::Result::Ok(replays)
        });
        let read = || {
            let mut bytes = vec![0; 4 * (LARGE + N)];
            let (of_x, of_y) = bytes.split_at_mut(4 * LARGE);
            device.read(&x, 0, of_x)?;
            let alone = common_word(of_x);
            let reads = [(&x, of_x), (&y, of_y)].map(|(buffer, out)| Read { buffer, byte_offset: 0, out });
            device.read_all(reads.into())?;
            hip::Result::Ok([alone, common_word(&bytes)])
        };
        // An error if the other thread has failed.
        let is_begun = begun.recv().is_ok();
        let mut found = Vec::new();
        // More than enough to meet two replays, unless the reads keep them out.
        while is_begun && found.len() < 1000 {
            found.push(read());
            let differ = found.iter().any(|other| *other != found[0]);
            if found.len() >= 20 && differ || matches!(found.last(), Some(Err(_))) {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        (found, replaying.join().unwrap())
    });
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert!(found.iter().flatten().all(Option::is_some), "{found:?}");
    assert!(found.iter().flatten().is_sorted(), "{found:?}");
    let replays = replays.unwrap();
    assert_eq!((value(&x), value(&y)), (replays, replays));
    assert!(found.first() != found.last(), "no replay between the reads: {found:?}");
    is_usable(&device);
}

/// There is always a thread that reads.
#[test]
#[serial]
fn reads_in_a_loop_let_replays_through() {
    const REPLAYS: u32 = 10;
    // Far longer than the replays take.
    const MOST: Duration = Duration::from_secs(60);
    let device = device();
    let (x, y) = (words(&device, 0, 1 << 20), words(&device, 0, N));
    let (graph, ()) = capture(&device, || {
        add(&device, 1, &x, &x);
        add(&device, 1, &y, &y);
    });
    let (done, begun) = (AtomicBool::new(false), Instant::now());
    let read = || {
        let (mut of_x, mut of_y) = (vec![0; x.len()], vec![0; y.len()]);
        while !done.load(Ordering::Relaxed) && begun.elapsed() < MOST {
            let reads = [(&x, &mut of_x), (&y, &mut of_y)];
            device.read_all(reads.map(|(buffer, out)| Read { buffer, byte_offset: 0, out }).into())?;
            device.read(&x, 0, &mut of_x)?;
        }
        hip::Result::Ok(())
    };
    let (replayed, took) = std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(read));
        let replayed = (0..REPLAYS).try_for_each(|_| graph.replay());
        let took = begun.elapsed();
        done.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap().unwrap());
        (replayed, took)
    });
    replayed.unwrap();
    assert!(took < MOST, "{took:?}");
    assert_eq!((value(&x), value(&y)), (REPLAYS, REPLAYS));
    is_usable(&device);
}

/// The source's device runs no replay during the copy.
#[test]
#[serial]
fn copies_to_another_device_are_before_or_after_another_threads_replays() {
    const LARGE: usize = 5 << 20;
    let Ok(second) = Device::get(1) else {
        return with_two_devices(
            "threads::copies_to_another_device_are_before_or_after_another_threads_replays",
        );
    };
    let device = device();
    let x = words(&device, 0, LARGE);
    let (graph, ()) = capture(&device, || add(&device, 1, &x, &x));
    let done = AtomicBool::new(false);
    let (copied, replayed) = std::thread::scope(|scope| {
        let replaying = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                graph.replay().and_then(|()| device.sync())?;
            }
            hip::Result::Ok(())
        });
        let copied: Vec<_> = (0..20).map(|_| second.copy_from_device(&x, 0, x.len())).collect();
        done.store(true, Ordering::Relaxed);
        (copied, replaying.join().unwrap())
    });
    replayed.unwrap();
    // `value` checks that all words are equal.
    let found: Vec<u32> = copied.into_iter().map(|copy| value(&copy.unwrap())).collect();
    assert!(found.is_sorted(), "{found:?}");
    is_usable(&device);
}

/// The value of all words, if they have the same.
fn common_word(bytes: &[u8]) -> Option<u32> {
    let (first, rest) = bytes.split_first_chunk::<4>()?;
    (*rest == bytes[..rest.len()]).then(|| u32::from_le_bytes(*first))
}

#[test]
#[serial]
fn a_capture_ends_with_its_thread() {
    let device = device();
    let x = words(&device, 1, N);
    let own = device.clone();
    let ended = std::thread::scope(|scope| {
        let (device, x) = (own, &x);
        scope
            .spawn(move || {
                device.start_capture().unwrap();
                add(&device, 1, x, x);
                panic!("in the middle of a capture");
            })
            .join()
    });
    assert!(ended.is_err());
    assert_eq!(value(&x), 1);
    is_usable(&device);
    // A thread that lives on says so itself.
    device.start_capture().unwrap();
    add(&device, 1, &x, &x);
    device.abandon_capture();
    device.abandon_capture();
    assert_eq!((value(&x), device.pool().stats().graphs), (1, 0));
    is_usable(&device);
    device.start_capture().unwrap();
    add(&device, 1, &x, &x);
    hip::abandon_captures();
    hip::abandon_captures();
    assert_eq!((value(&x), device.pool().stats().graphs), (1, 0));
    is_usable(&device);
}

/// Work that runs although its thread captures may fail and end the capture.
#[test]
#[serial]
fn a_capture_ends_inside_work_that_is_not_captured() {
    let device = device();
    let x = words(&device, 1, N);
    device.start_capture().unwrap();
    add(&device, 1, &x, &x);
    hip::uncaptured(hip::abandon_captures);
    assert!(!hip::is_capturing());
    assert_eq!((value(&x), device.pool().stats().graphs), (1, 0));
    is_usable(&device);
}

#[test]
#[serial]
fn only_its_own_thread_stops_a_capture() {
    let device = device();
    let x = words(&device, 1, N);
    let (graph, ()) = capture(&device, || {
        add(&device, 1, &x, &x);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                hip::abandon_captures();
                device.abandon_capture();
                device.stop_capture().map(|_| ()).unwrap_err()
            });
            let error = others.join().unwrap();
            let this = std::thread::current();
            let Error::Capture { op: "stop_capture", reason } = &error else { panic!("{error}") };
            assert!(reason.contains(this.name().unwrap()), "{error}");
        });
        add(&device, 1, &x, &x);
    });
    graph.replay().unwrap();
    assert_eq!((graph.recorded().kernels, value(&x)), (2, 3));
    is_usable(&device);
}
