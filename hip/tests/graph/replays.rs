//! What a graph records, what its replay computes, and which memory it keeps.

use hip::trace::{Counts, counting};
use hip::{Device, Error, Fault, Read};
use serial_test::serial;

use crate::common::device;
use crate::support::*;

#[test]
#[serial]
fn a_replay_is_one_launch_and_computes_again() {
    let device = device();
    let (x, y, z) = (words(&device, 1, N), words(&device, 100, N), words(&device, 7, N));
    let kernel = device.kernel(&PROGRAM, "add").unwrap();
    device.sync().unwrap();
    let before = device.counters();
    let (graph, ()) = capture(&device, || {
        add(&device, 1, &x, &x);
        device.copy(&x, 0, &y, 0, 4 * N).unwrap();
        device.fill_bytes(&z, 0, 0xab, 4 * N).unwrap();
        add(&device, 10, &y, &y);
    });
    let recorded = Counts { kernels: 2, copies: 2, ..Counts::default() };
    assert_eq!((graph.recorded(), device.counters().launches), (recorded, before.launches), "none ran");
    assert_eq!((value(&x), value(&y), value(&z)), (1, 100, 7));
    // The graph keeps the kernel.
    drop(kernel);
    device.forget_kernels();
    device.sync().unwrap();
    for turn in 1..=3 {
        let (before, ((), counts)) = (device.counters(), counting(|| graph.replay().unwrap()));
        assert_eq!(counts, Counts { graphs: 1, ..Counts::default() });
        assert_eq!(counts.launches(), 1);
        let after = device.counters();
        assert_eq!((after.launches, after.graphs), (before.launches, before.graphs + 1));
        assert_eq!((value(&x), value(&y), value(&z)), (1 + turn, 11 + turn, 0xabab_abab));
    }
    // Refreshed in place.
    device.copy(&words(&device, 50, N), 0, &x, 0, 4 * N).unwrap();
    graph.replay().unwrap();
    assert_eq!((value(&x), value(&y)), (51, 61));
    drop(graph);
    is_usable(&device);
}

#[test]
#[serial]
fn what_is_allocated_in_a_capture_stays_the_graphs() {
    let device = device();
    device.sync().unwrap();
    let (start, peak) = (device.pool().stats(), 6);
    let x = words(&device, 5, N);
    let (graph, (out, places)) = capture(&device, || {
        let (mut last, mut places) = (device.alloc(4 * N).unwrap(), Vec::new());
        add(&device, 1, &x, &last);
        // Each is freed when the next but one is made.
        for _ in 0..20 {
            let next = device.alloc(4 * N).unwrap();
            add(&device, 1, &last, &next);
            places.push(next.address());
            last = next;
        }
        (last, places)
    });
    let stats = device.pool().stats();
    assert!((1..=3).contains(&places.iter().collect::<std::collections::HashSet<_>>().len()), "reused");
    assert!(stats.graphs >= 4 * N && stats.graphs <= 4 * peak * N, "{stats:?}");
    // Nobody else gets it.
    let others = junk(&device);
    assert!(others.iter().all(|other| !places.contains(&other.address())));
    for turn in 0..3 {
        device.copy(&words(&device, turn, N), 0, &x, 0, 4 * N).unwrap();
        graph.replay().unwrap();
        assert_eq!(value(&out), turn + 21);
    }
    assert!(is_junk(&others));
    drop(others);
    // What a tensor of the graph needs outlives it; the rest goes back.
    drop(graph);
    assert_eq!(value(&out), 2 + 21);
    assert!(device.pool().stats().graphs < stats.graphs);
    let others = junk(&device);
    assert_eq!(value(&out), 2 + 21);
    drop((out, x, others));
    let end = device.pool().stats();
    assert_eq!((end.graphs, end.allocated), (0, start.allocated));
}

/// Nobody but the capturing thread may keep other values there, until the graph ends.
#[test]
#[serial]
fn a_living_graphs_own_memory_is_replayed() {
    let device = device();
    let x = words(&device, 5, N);
    let alloc = || device.alloc(4 * N).unwrap();
    let (graph, out) = capture(&device, || {
        let out = alloc();
        add(&device, 1, &x, &out);
        assert!(!out.is_replayed(), "its writes are part of the graph");
        assert!(hip::uncaptured(|| out.is_replayed()), "these would not be");
        std::thread::scope(|scope| scope.spawn(|| assert!(out.is_replayed())).join().unwrap());
        out
    });
    assert!(out.is_replayed());
    assert!(x.is_of_graph() && !x.is_replayed(), "the graph only reads it");
    drop(capture(&device, || assert!(out.is_replayed(), "in the capture of another graph")));
    graph.replay().unwrap();
    drop(graph);
    assert!(!out.is_replayed());
    assert_eq!(value(&out), 6);
    device.start_capture().unwrap();
    let abandoned = alloc();
    device.abandon_capture();
    assert!(!abandoned.is_replayed());
    drop(abandoned);
    is_usable(&device);
}

/// More than the pool holds: the driver is asked, and what it says is an error of the op.
#[test]
#[serial]
fn an_allocation_in_a_capture_may_need_the_driver() {
    let device = device();
    device.pool().clear().unwrap();
    let x = words(&device, 5, N);
    let misses = device.pool().stats().misses;
    let (graph, out) = capture(&device, || {
        let large = device.alloc(256 << 20).unwrap();
        device.fill_bytes(&large, 0, 1, 256 << 20).unwrap();
        let out = device.alloc(4 * N).unwrap();
        device.copy(&large, 128 << 20, &out, 0, 4 * N).unwrap();
        add(&device, 1, &out, &out);
        out
    });
    assert!(device.pool().stats().misses > misses);
    graph.replay().unwrap();
    assert_eq!(value(&out), 0x0101_0102);
    drop(graph);
    // Where there is none: the cache is given back first, and then it is an error of the op's.
    let reserved = device.pool().stats().reserved;
    device.pool().set_limit(Some(reserved + (64 << 20)));
    device.start_capture().unwrap();
    let large = device.alloc(270 << 20).unwrap();
    assert!(matches!(device.alloc(2 << 30), Err(Error::OutOfMemory { .. })));
    add(&device, 1, &x, &x);
    drop(large);
    let graph = device.stop_capture().unwrap();
    device.pool().set_limit(None);
    graph.replay().unwrap();
    assert_eq!(value(&x), 6);
    drop(graph);
    is_usable(&device);
}

#[test]
#[serial]
fn a_tensor_of_the_graph_that_is_dropped_is_kept_for_it() {
    let device = device();
    device.sync().unwrap();
    let allocated = device.pool().stats().allocated;
    // From the copy stream, from the compute stream, and of small size.
    let large = words(&device, 1, N);
    let computed = device.alloc(4 * N).unwrap();
    device.fill_bytes(&computed, 0, 2, 4 * N).unwrap();
    let small = words(&device, 3, 10);
    let freed_meanwhile = words(&device, 4, N);
    let unused = words(&device, 9, N);
    let out: Vec<_> = [N, N, 10, N].map(|count| device.alloc(4 * count).unwrap()).into();
    let (graph, ()) = capture(&device, || {
        for (from, to) in [&large, &computed, &small, &freed_meanwhile].into_iter().zip(&out) {
            add(&device, 1, from, to);
        }
        drop((freed_meanwhile, unused));
        let temporary = device.alloc(4 * N).unwrap();
        device.fill_bytes(&temporary, 0, 0xff, 4 * N).unwrap();
    });
    drop((large, computed, small));
    let others = junk(&device);
    let uploads: Vec<_> = (0..12).map(|_| words(&device, 0xeeee_eeee, N)).collect();
    for _ in 0..2 {
        graph.replay().unwrap();
        let got: Vec<u32> = out.iter().map(value).collect();
        assert_eq!(got, [2, 0x0202_0203, 4, 5]);
    }
    assert!(is_junk(&others) && is_junk(&uploads));
    // The results too: a replay writes where they were.
    drop(out);
    let more = junk(&device);
    graph.replay().unwrap();
    assert!(is_junk(&more) && is_junk(&others));
    drop(graph);
    assert!(is_junk(&junk(&device)));
    drop((others, uploads, more));
    assert_eq!(device.pool().stats().allocated, allocated, "all is free again");
}

/// A graph that reads what another one computes keeps that memory when the other graph ends.
#[test]
#[serial]
fn graphs_hold_each_others_tensors() {
    let device = device();
    let x = words(&device, 1, N);
    let (first, middle) = capture(&device, || {
        let middle = device.alloc(4 * N).unwrap();
        add(&device, 1, &x, &middle);
        middle
    });
    let out = device.alloc(4 * N).unwrap();
    let (second, ()) = capture(&device, || {
        add(&device, 1, &middle, &out);
    });
    first.replay().unwrap();
    second.replay().unwrap();
    assert_eq!(value(&out), 3);
    let (third, ()) = capture(&device, || {
        drop((first, middle));
        add(&device, 5, &out, &out);
    });
    let others = junk(&device);
    second.replay().unwrap();
    third.replay().unwrap();
    assert_eq!((value(&out), is_junk(&others)), (8, true));
    drop((second, third));
    assert_eq!(device.pool().stats().graphs, 0);
    is_usable(&device);
}

#[test]
#[serial]
fn uploads_are_repeated_from_bytes_of_the_graphs_own() {
    let device = device();
    let out = [device.alloc(40).unwrap(), device.alloc(4 * N).unwrap(), device.alloc(4 * N).unwrap()];
    let (graph, inner) = capture(&device, || {
        let small = words(&device, 5, 10);
        let large = words(&device, 6, N);
        let mut pinned = device.host_buffer(4 * N).unwrap();
        pinned.bytes_mut().fill(7);
        struct Owned(hip::HostBuffer);
        impl std::ops::Deref for Owned {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                self.0.bytes()
            }
        }
        // SAFETY: pinned memory does not move with its owner.
        let owned = unsafe { device.upload_owned(Owned(pinned)).unwrap() };
        for (from, to) in [&small, &large, &owned].into_iter().zip(&out) {
            add(&device, 1, from, to);
            // The next replay finds the upload's bytes again.
            device.fill_bytes(from, 0, 0, from.len()).unwrap();
        }
        [small, large, owned]
    });
    assert_eq!(graph.recorded().transfers, 3);
    // What else goes through pinned memory goes elsewhere.
    let others: Vec<_> = (0..20).map(|i| words(&device, i, N)).collect();
    let pinned: Vec<_> = (0..4).map(|_| device.host_buffer(4 * N).unwrap()).collect();
    for _ in 0..2 {
        graph.replay().unwrap();
        assert_eq!([value(&out[0]), value(&out[1]), value(&out[2])], [6, 7, 0x0707_0708]);
        assert_eq!(value(&inner[1]), 0);
    }
    assert!(others.iter().zip(0..).all(|(other, i)| value(other) == i));
    drop((graph, pinned));
    is_usable(&device);
}

#[test]
#[serial]
fn what_cant_be_captured_is_refused_and_no_graph_comes_of_it() {
    let device = device();
    let (x, y) = (words(&device, 1, N), words(&device, 2, 10));
    let other = (Device::count().unwrap() > 1).then(|| Device::get(1).unwrap());
    let (idle, ()) = capture(&device, || add(&device, 0, &y, &y));
    type Refused<'a> = Box<dyn Fn() -> hip::Result<()> + 'a>;
    let mut refused: Vec<Refused<'_>> = vec![
        Box::new(|| device.read(&x, 0, &mut vec![0; 4 * N])),
        Box::new(|| device.read(&y, 0, &mut [0; 40])),
        Box::new(|| device.read_all(vec![Read { buffer: &y, byte_offset: 0, out: &mut [0; 4] }])),
        Box::new(|| device.sync()),
        Box::new(|| device.start_capture()),
        Box::new(|| idle.replay()),
    ];
    if let Some(other) = &other {
        refused.push(Box::new(|| other.copy_from_device(&x, 0, 4).map(|_| ())));
    }
    for call in &refused {
        device.start_capture().unwrap();
        add(&device, 1, &x, &x);
        let error = call().unwrap_err();
        assert!(matches!(error, Error::Capture { .. }), "{error}");
        // The work after it is still not run.
        add(&device, 1, &x, &x);
        assert_eq!(device.stop_capture().map(|_| ()).unwrap_err(), error);
        assert_eq!((value(&x), value(&y)), (1, 2));
    }
    drop(refused);
    let error = device.stop_capture().map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Invalid { op: "stop_capture", .. }), "{error}");
    is_usable(&device);
    // An op's own error is nothing of the capture's.
    let (graph, ()) = capture(&device, || {
        assert!(matches!(device.copy(&x, 0, &y, 0, 4 * N), Err(Error::Invalid { .. })));
        add(&device, 1, &x, &x);
    });
    graph.replay().unwrap();
    assert_eq!(value(&x), 2);
}

/// What waits for the device, but not for the captured work.
#[test]
#[serial]
fn memory_is_given_back_in_a_capture() {
    let device = device();
    let (x, temporary) = (words(&device, 1, N), words(&device, 5, N));
    let earlier = capture(&device, || add(&device, 1, &temporary, &temporary)).0;
    earlier.replay().unwrap();
    let (graph, ()) = capture(&device, || {
        add(&device, 1, &x, &x);
        // A graph's end waits for its launches.
        drop((earlier, temporary));
        device.forget_kernels();
        device.memory_cleanup().unwrap();
        add(&device, 1, &x, &x);
        std::thread::scope(|scope| {
            scope.spawn(|| device.memory_cleanup().unwrap());
        });
        add(&device, 1, &x, &x);
    });
    assert_eq!(value(&x), 1);
    graph.replay().unwrap();
    assert_eq!(value(&x), 4);
    drop(graph);
    is_usable(&device);
}

#[test]
#[serial]
fn a_fault_that_a_replay_finds_is_told_by_reads() {
    let device = device();
    device.sync().unwrap();
    let kernel = device.kernel(&PROGRAM, "below_100").unwrap();
    let (x, y, z) = (words(&device, 5, 10), words(&device, 0, 10), words(&device, 0, 10));
    let words_in_use = device.fault_words();
    let (graph, ()) = capture(&device, || {
        let launch = device.launch_kernel(&kernel).unwrap().value(10u64).flag("below", Fault::Division);
        let launch = launch.buffer(&x, 0).output(&y, 0);
        // SAFETY: the parameters are a u64, the flag and two pointers to so many u32.
        unsafe { launch.submit(device.grid(10), 0).unwrap() };
        add(&device, 1, &y, &z);
    });
    graph.replay().unwrap();
    assert_eq!((value(&y), value(&z)), (5, 6));
    device.sync().unwrap();
    device.copy(&words(&device, 200, 10), 0, &x, 0, 40).unwrap();
    graph.replay().unwrap();
    for buffer in [&z, &y, &z] {
        let error = device.read(buffer, 0, &mut [0; 40]).unwrap_err();
        assert!(matches!(error, Error::Invalid { op: "below", .. }), "{error}");
    }
    assert_eq!(value(&x), 200);
    // Its word is the graph's.
    assert_eq!(device.fault_words(), words_in_use + 1);
    drop((graph, y, z));
    device.sync().unwrap();
    assert_eq!(device.fault_words(), words_in_use);
    is_usable(&device);
}
