//! Bad arguments, captures, and a library that is missing or fails: typed errors, and nothing else
//! changes.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use hip::rendezvous::{Rendezvous, World};
use hip::{Communicator, DType, Error, Group, Part, ReduceOp, UniqueId};

use crate::failures::{LATE, ones, works};
use crate::ranks::{in_child, on_cpu, on_threads};

#[test]
fn bad_arguments_change_nothing() {
    on_threads("refusals::bad_arguments_change_nothing", &[], |ranks| {
        let on = &ranks.communicator;
        let (rank, size, device) = (on.rank(), on.size(), on.device());
        let buffer = Arc::new(device.upload(&[7; 400]).unwrap());
        let all = Part::whole(&buffer);
        let at = |offset| Part::at(&buffer, offset);
        let (sum, f32) = (ReduceOp::Sum, DType::F32);
        let invalid = |what: &str, result: hip::Result<hip::Work>| match result {
            Err(Error::Invalid { op, .. }) => assert!(what.starts_with(op), "{what}: {op}"),
            other => panic!("{what}: {:?}", other.map(drop)),
        };
        invalid("all_reduce past the end", on.all_reduce(sum, f32, 101, all, all));
        invalid("all_reduce from past the end", on.all_reduce(sum, f32, 1, at(100), all));
        invalid("all_reduce of too many", on.all_reduce(sum, f32, usize::MAX / 2, all, all));
        invalid("all_reduce far away", on.all_reduce(sum, f32, 1, at(usize::MAX / 2), all));
        invalid("all_reduce that overlaps", on.all_reduce(sum, f32, 10, all, at(5)));
        invalid("broadcast from no rank", on.broadcast(f32, 1, size, all, all));
        invalid("reduce to no rank", on.reduce(sum, f32, 1, usize::MAX, all, all));
        invalid("send to no rank", on.send(f32, 1, size, all));
        invalid("receive from no rank", on.receive(f32, 1, size, all));
        invalid("all_gather without room", on.all_gather(f32, 100, all, all));
        invalid("all_gather that overlaps", on.all_gather(f32, 4, at(4 * rank + 1), all));
        invalid("reduce_scatter without room", on.reduce_scatter(sum, f32, 100, all, all));
        invalid("reduce_scatter that overlaps", on.reduce_scatter(sum, f32, 4, all, at(4 * rank + 1)));
        let other = hip::Device::get((device.info().index + 1) % size).unwrap();
        let far = Arc::new(other.upload(&[0; 400]).unwrap());
        invalid("all_reduce of another device", on.all_reduce(sum, f32, 1, Part::whole(&far), all));
        for dtype in [DType::I16, DType::U16, DType::Bool] {
            let error = on.all_reduce(sum, dtype, 1, all, all).map(drop).unwrap_err();
            assert!(matches!(error, Error::Unsupported { op: "all_reduce", .. }), "{error}");
        }
        // A group with a bad call: what was added before is not enqueued.
        let mut group = Group::new();
        group.all_reduce(on, sum, f32, 1, all, all).unwrap();
        assert!(group.broadcast(on, f32, 1, size, all, all).is_err());
        drop(group);
        Group::new().start().unwrap().wait().unwrap();

        on.check().unwrap();
        let mut back = [0; 400];
        device.read(&buffer, 0, &mut back).unwrap();
        assert_eq!(back, [7; 400]);
        ones(on, 50).unwrap().wait().unwrap();
    });
}

/// A rank that gives nothing, or gets nothing, may pass any buffer for it.
#[test]
fn what_is_not_looked_at_may_be_anything() {
    on_threads("refusals::what_is_not_looked_at_may_be_anything", &[], |ranks| {
        let on = &ranks.communicator;
        let (rank, size, device) = (on.rank(), on.size(), on.device());
        let other = hip::Device::get((device.info().index + 1) % size).unwrap();
        let far = Arc::new(other.upload(&[5; 8]).unwrap());
        let send = Arc::new(device.upload(&[1 + rank as u8; 40]).unwrap());
        let recv = Arc::new(device.upload(&[0; 40]).unwrap());
        let read = || {
            let mut found = [0; 40];
            device.read(&recv, 0, &mut found).unwrap();
            found
        };
        for ignored in [Part::whole(&far), Part::at(&send, 1000), Part::at(&recv, 1)] {
            let given = if rank == 1 { Part::whole(&send) } else { ignored };
            on.broadcast(DType::U8, 40, 1, given, Part::whole(&recv)).unwrap().join().unwrap();
            assert_eq!(read(), [2; 40]);
            let to = if rank == 0 { Part::whole(&recv) } else { ignored };
            on.reduce(ReduceOp::Max, DType::U8, 40, 0, Part::whole(&send), to).unwrap().join().unwrap();
            assert_eq!(read(), [if rank == 0 { size as u8 } else { 2 }; 40]);
        }
        let mut kept = [0; 8];
        other.read(&far, 0, &mut kept).unwrap();
        assert_eq!(kept, [5; 8]);
    });
}

/// One thread captures one rank's calls: a graph is of one device.
#[test]
fn several_ranks_in_one_capture_are_refused() {
    let Some((_, devices)) = in_child("refusals::several_ranks_in_one_capture_are_refused", &[]) else {
        return;
    };
    let ranks = Communicator::local(&devices).unwrap();
    let buffer = |on: &Communicator| Arc::new(on.device().upload(&1f32.to_ne_bytes()).unwrap());
    let buffers: Vec<_> = ranks.iter().map(buffer).collect();
    let start = || {
        let mut group = Group::new();
        for (on, buffer) in ranks.iter().zip(&buffers) {
            let part = Part::whole(buffer);
            group.all_reduce(on, ReduceOp::Sum, DType::F32, 1, part, part).unwrap();
        }
        group.start()
    };
    devices[0].start_capture().unwrap();
    let error = start().map(drop).unwrap_err();
    assert!(matches!(error, Error::Capture { op: "all_reduce", .. }), "{error}");
    let id = UniqueId::new().unwrap();
    let error = Communicator::new(&devices[0], &id, 0, 1).unwrap_err();
    assert!(matches!(error, Error::Capture { op: "Communicator::new", .. }), "{error}");
    for devices in [&devices[..1], &devices[..]] {
        let error = Communicator::local(devices).unwrap_err();
        assert!(matches!(error, Error::Capture { op: "Communicator::local", .. }), "{error}");
    }
    // The graph would lack the collectives.
    assert!(devices[0].stop_capture().is_err());
    start().unwrap().wait().unwrap();
    let mut sum = [0; 4];
    devices[0].read(&buffers[0], 0, &mut sum).unwrap();
    assert_eq!(f32::from_ne_bytes(sum), ranks.len() as f32);
}

#[test]
fn ranks_that_can_not_join_say_why() {
    let Some((_, devices)) = in_child("refusals::ranks_that_can_not_join_say_why", &[]) else { return };
    let id = UniqueId::new().unwrap();
    for (rank, size) in [(1, 1), (0, 0), (5, 2)] {
        let error = Communicator::new(&devices[0], &id, rank, size).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    assert!(matches!(Communicator::local(&[]).unwrap_err(), Error::Invalid { .. }));
    assert!(matches!(UniqueId::from_bytes(&[0; 127]).unwrap_err(), Error::Invalid { .. }));
    // Two ranks on one device.
    let twice = [devices[0].clone(), devices[0].clone()];
    let error = Communicator::local(&twice).unwrap_err();
    assert!(matches!(error, Error::Collective { .. }), "{error}");
    if on_cpu() {
        assert!(error.to_string().contains("both on device 0"), "{error}");
        let error =
            Communicator::new(&devices[0], &UniqueId::from_bytes(&[1; 128]).unwrap(), 0, 1).unwrap_err();
        assert!(error.to_string().contains("this is no unique id"), "{error}");
    }
    // Ranks that disagree about the size.
    std::thread::scope(|scope| {
        let threads = [2, 3].map(|size| {
            let device = &devices[size - 2];
            scope.spawn(move || Communicator::new(device, &id, size - 2, size).map(drop))
        });
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("ranks, as another rank says"), "{error}");
        }
    });
    // The devices serve the next group.
    let ranks = Communicator::local(&devices).unwrap();
    std::thread::scope(|scope| {
        ranks.iter().for_each(|on| drop(scope.spawn(|| ones(on, 5).unwrap().wait().unwrap())));
    });
    devices.iter().for_each(works);
}

#[test]
fn a_library_that_fails_is_an_error_and_the_device_works() {
    if !on_cpu() {
        return;
    }
    let fail = [("BURN_ROCM_CPU_FAIL", "ncclCommInitRank")];
    let test = "refusals::a_library_that_fails_is_an_error_and_the_device_works";
    let Some((_, devices)) = in_child(test, &fail) else { return };
    match Communicator::local(&devices).unwrap_err() {
        Error::Collective { call, name, detail } => {
            assert_eq!((call, name.as_str()), ("ncclCommInitRank", "ncclSystemError"));
            assert!(detail.contains("can't join"), "{detail}");
        }
        other => panic!("{other}"),
    }
    devices.iter().for_each(works);
}

/// A job of one process needs no port, and its collectives are copies.
#[test]
fn one_process_is_a_group() {
    let Some((_, devices)) = in_child("refusals::one_process_is_a_group", &[]) else { return };
    let rendezvous = Rendezvous::join(&World::on_this_machine(0, 1, 0, "")).unwrap();
    assert_eq!(rendezvous.gather(b"x").unwrap(), [b"x"]);
    let on = Communicator::connect(&devices[0], &rendezvous).unwrap();
    assert_eq!((on.rank(), on.size()), (0, 1));
    let send = Arc::new(on.device().upload(&[3; 40]).unwrap());
    let recv = Arc::new(on.device().upload(&[0; 40]).unwrap());
    on.all_gather(DType::U8, 40, Part::whole(&send), Part::whole(&recv)).unwrap().join().unwrap();
    let mut found = [0; 40];
    on.device().read(&recv, 0, &mut found).unwrap();
    assert_eq!(found, [3; 40]);
}

/// The warnings of this process.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            WARNINGS.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// The places of two processes in a job whose rank 0 listens at `address`.
fn job(address: &str, secret: &str) -> [World; 2] {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let [mut zero, one] = [0, 1].map(|rank| World::on_this_machine(rank, 2, port, secret));
    (zero.address, zero.is_one_machine) = (address.into(), false);
    [zero, one]
}

/// Joins as both, each in a thread.
fn join([zero, one]: [World; 2]) {
    std::thread::scope(|scope| {
        let one = scope.spawn(move || Rendezvous::join(&one).map(drop));
        Rendezvous::join(&zero).unwrap();
        one.join().unwrap().unwrap();
    });
}

/// Other machines may reach rank 0's port, and whoever reaches it may join.
#[test]
fn an_open_port_without_a_secret_is_a_warning() {
    let environment = [LATE[0], ("BURN_ROCM_STRICT", "0")];
    let test = "refusals::an_open_port_without_a_secret_is_a_warning";
    if in_child(test, &environment).is_none() {
        return;
    }
    log::set_logger(&Warnings).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let all = [("0.0.0.0", "", 1), ("0.0.0.0", "s", 0), ("127.0.0.1", "", 0)];
    for (address, secret, expected) in all {
        WARNINGS.lock().unwrap().clear();
        join(job(address, secret));
        let warnings = WARNINGS.lock().unwrap();
        let about = warnings.iter().filter(|text| text.contains("BURN_ROCM_RENDEZVOUS_SECRET"));
        assert_eq!(about.count(), expected, "{address} {secret}: {warnings:?}");
    }
}

#[test]
fn an_open_port_without_a_secret_is_an_error_in_strict_mode() {
    let environment = [LATE[0], ("BURN_ROCM_STRICT", "1")];
    let test = "refusals::an_open_port_without_a_secret_is_an_error_in_strict_mode";
    if in_child(test, &environment).is_none() {
        return;
    }
    let [zero, _] = job("0.0.0.0", "");
    let error = Rendezvous::join(&zero).unwrap_err();
    assert!(matches!(&error, Error::Config { what, .. } if what == "BURN_ROCM_RENDEZVOUS_SECRET"), "{error}");
    join(job("0.0.0.0", "s"));
    join(job("127.0.0.1", ""));
}
