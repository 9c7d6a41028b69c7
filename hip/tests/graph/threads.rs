//! Threads beside a capture, and how a capture ends with its thread.

use std::sync::atomic::{AtomicBool, Ordering};

use hip::Error;
use hip::trace::Counts;
use serial_test::serial;

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
