//! Ranks that die, leave, wait too long or call something else, as threads. Every wait has an end.

use std::sync::Arc;

use hip::{Communicator, DType, Device, Error, Part, ReduceOp, Result, UniqueId, Work};

use crate::ranks::{MOST, Ranks, in_child, on_cpu, on_threads};

/// The setting for tests in which ranks wait in vain.
pub(crate) const SOON: [(&str, &str); 1] = [("BURN_ROCM_COLLECTIVE_TIMEOUT", "5")];
/// The library's calls return before they are done, and go on in threads of its own. RCCL and NCCL can do so
/// from 2.17 on.
pub(crate) const GOES_ON: (&str, &str) = ("NCCL_COMM_BLOCKING", "0");
/// For tests whose failures are noticed without a timeout.
pub(crate) const LATE: [(&str, &str); 1] = [("BURN_ROCM_COLLECTIVE_TIMEOUT", "60")];

/// For tests in which a process dies: only the CPU device notices that without a timeout.
pub(crate) fn for_the_dead() -> &'static [(&'static str, &'static str)] {
    if on_cpu() { &LATE } else { &SOON }
}

/// An all-reduce of `count` ones.
pub(crate) fn ones(on: &Communicator, count: usize) -> Result<Work> {
    let buffer = Arc::new(on.device().upload(&1f32.to_ne_bytes().repeat(count)).unwrap());
    on.all_reduce(ReduceOp::Sum, DType::F32, count, Part::whole(&buffer), Part::whole(&buffer))
}

/// A first call, which succeeds on all ranks before one of them fails the group.
pub(crate) fn begun(ranks: &Ranks) {
    ones(&ranks.communicator, 100).unwrap().wait().unwrap();
    ranks.together();
}

/// The device still computes: a failed group concerns only its collectives. Its error may have been
/// kept for the first read.
pub(crate) fn works(device: &Arc<Device>) {
    let _ = device.sync();
    let buffer = device.upload(&[1, 2, 3]).unwrap();
    let mut back = [0; 3];
    device.read(&buffer, 0, &mut back).unwrap();
    assert_eq!(back, [1, 2, 3]);
}

/// The group's failure, in the call or in the wait for it. Later calls return it too.
pub(crate) fn failure(on: &Communicator, called: Result<Work>) -> Error {
    let error = called.and_then(Work::wait).unwrap_err();
    assert_eq!(on.check().unwrap_err(), error);
    assert_eq!(ones(on, 1).map(drop).unwrap_err(), error);
    works(on.device());
    error
}

/// A rank that ends with this error must have been told of another rank.
#[track_caller]
pub(crate) fn collective(error: &Error) -> String {
    assert!(matches!(error, Error::Collective { .. }), "{error}");
    error.to_string()
}

/// Whether an error says that rank 1 failed: this process's error of rank 1, or the library's error
/// of this rank's own call, whichever came first.
fn names_rank_1(text: &str) -> bool {
    text.contains("rank 1 of") || text.contains("rank 1 gave")
}

#[test]
fn a_rank_that_panics_fails_the_others() {
    on_threads("failures::a_rank_that_panics_fails_the_others", &LATE, |ranks| {
        begun(&ranks);
        let on = ranks.communicator;
        if on.rank() == 1 {
            let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _on = on;
                panic!("on purpose");
            }));
            assert!(died.is_err());
            return;
        }
        let error = failure(&on, ones(&on, 100));
        let text = collective(&error);
        assert!(names_rank_1(&text), "{text}");
    });
}

#[test]
fn a_rank_that_leaves_fails_those_that_wait_for_it() {
    on_threads("failures::a_rank_that_leaves_fails_those_that_wait_for_it", &LATE, |ranks| {
        begun(&ranks);
        let on = ranks.communicator;
        if on.rank() == 1 {
            return;
        }
        let text = collective(&failure(&on, ones(&on, 100)));
        assert!(text.contains("rank 1 has left the group"), "{text}");
    });
}

#[test]
fn a_rank_that_leaves_fails_those_that_receive_from_it() {
    on_threads("failures::a_rank_that_leaves_fails_those_that_receive_from_it", &LATE, |ranks| {
        begun(&ranks);
        let on = ranks.communicator;
        if on.rank() == 1 {
            return;
        }
        let buffer = Arc::new(on.device().upload(&[0; 64]).unwrap());
        let called = match on.rank() {
            0 => on.receive(DType::F32, 5, 1, Part::whole(&buffer)),
            _ => ones(&on, 1),
        };
        let text = collective(&failure(&on, called));
        assert!(text.contains("rank 1 has left the group"), "{text}");
    });
}

/// The other rank of the group would otherwise wait for a rank that never comes.
#[test]
fn a_rank_twice_fails_its_group() {
    let Some((_, devices)) = in_child("failures::a_rank_twice_fails_its_group", &LATE) else { return };
    let (id, size) = (UniqueId::new().unwrap(), devices.len() + 1);
    std::thread::scope(|scope| {
        let join = |(rank, device)| scope.spawn(move || Communicator::new(device, &id, rank, size));
        let threads: Vec<_> = devices.iter().enumerate().map(join).collect();
        // Whichever enters second is refused.
        let again = Communicator::new(&devices[0], &id, 0, size).unwrap_err();
        assert!(again.to_string().contains("rank 0 of this process twice"), "{again}");
        for thread in threads {
            let text = thread.join().unwrap().unwrap_err().to_string();
            assert!(text.contains("rank 0 of this process twice"), "{text}");
        }
    });
    devices.iter().for_each(works);
}

/// A panic in the CPU device's computation ends the call on all ranks.
#[test]
fn a_computation_that_panics_fails_all_ranks() {
    if !on_cpu() {
        return;
    }
    let fail = [LATE[0], ("BURN_ROCM_CPU_FAIL", "ncclAllReduce:2")];
    on_threads("failures::a_computation_that_panics_fails_all_ranks", &fail, |ranks| {
        begun(&ranks);
        let text = collective(&failure(&ranks.communicator, ones(&ranks.communicator, 100)));
        assert!(text.contains("the computation panicked"), "{text}");
    });
}

#[test]
fn a_rank_that_never_calls_is_a_timeout() {
    never_calls("failures::a_rank_that_never_calls_is_a_timeout", &SOON);
}

#[test]
fn a_rank_that_never_calls_is_a_timeout_of_a_library_that_goes_on() {
    let environment = [SOON[0], GOES_ON];
    never_calls("failures::a_rank_that_never_calls_is_a_timeout_of_a_library_that_goes_on", &environment);
}

fn never_calls(test: &str, environment: &[(&str, &str)]) {
    on_threads(test, environment, |ranks| {
        let on = ranks.communicator;
        if on.rank() == 1 {
            // Alive, but it calls nothing: it looks until the others gave up.
            let start = std::time::Instant::now();
            let error = loop {
                match on.check() {
                    Ok(()) => {
                        assert!(start.elapsed() < MOST, "the others did not give up");
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    }
                    Err(error) => break error,
                }
            };
            let text = collective(&error);
            assert!(text.contains("timeout") && text.contains("all_reduce(Sum, 100 x f32)"), "{text}");
            return;
        }
        let text = collective(&failure(&on, ones(&on, 100)));
        assert!(text.contains("timeout") && text.contains("BURN_ROCM_COLLECTIVE_TIMEOUT"), "{text}");
    });
}

#[test]
fn a_rank_that_never_joins_is_a_timeout() {
    let Some((_, devices)) = in_child("failures::a_rank_that_never_joins_is_a_timeout", &SOON) else {
        return;
    };
    let id = UniqueId::new().unwrap();
    let size = devices.len() + 1;
    std::thread::scope(|scope| {
        let join = |(rank, device)| scope.spawn(move || Communicator::new(device, &id, rank, size));
        let threads: Vec<_> = devices.iter().enumerate().map(join).collect();
        for thread in threads {
            let text = collective(&thread.join().unwrap().unwrap_err());
            assert!(text.contains("for the other ranks to join"), "{text}");
        }
    });
    devices.iter().for_each(works);
}

/// The library stops joining too: no thread of the rank is left in it.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_that_never_joins_leaves_no_thread_in_a_library_that_goes_on() {
    // Other libraries may be too old for it.
    if !on_cpu() {
        return;
    }
    let test = "failures::a_rank_that_never_joins_leaves_no_thread_in_a_library_that_goes_on";
    let Some((_, devices)) = in_child(test, &[("BURN_ROCM_COLLECTIVE_TIMEOUT", "2"), GOES_ON]) else {
        return;
    };
    let joining = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        // A thread may end meanwhile.
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
        };
        tasks.map(name).filter(|name| name.starts_with("hip-join-")).count()
    };
    let id = UniqueId::new().unwrap();
    let size = devices.len() + 1;
    std::thread::scope(|scope| {
        let join = |(rank, device)| scope.spawn(move || Communicator::new(device, &id, rank, size));
        let threads: Vec<_> = devices.iter().enumerate().map(join).collect();
        for thread in threads {
            let text = collective(&thread.join().unwrap().unwrap_err());
            // The library of one rank may hear from another one that has just given up.
            let said = ["for the other ranks to join", "gave the group up"];
            assert!(said.iter().any(|said| text.contains(said)), "{text}");
        }
    });
    let begun = std::time::Instant::now();
    while joining() > 0 {
        assert!(begun.elapsed() < MOST, "{} threads still join", joining());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    devices.iter().for_each(works);
}

#[test]
fn an_abort_ends_the_others_calls() {
    on_threads("failures::an_abort_ends_the_others_calls", &LATE, |ranks| {
        begun(&ranks);
        let on = ranks.communicator;
        if on.rank() == 1 {
            on.abort();
            let text = collective(&ones(&on, 10).map(drop).unwrap_err());
            assert!(names_rank_1(&text) && text.contains("gave the group up"), "{text}");
            return;
        }
        let text = collective(&failure(&on, ones(&on, 10)));
        assert!(names_rank_1(&text) && text.contains("gave the group up"), "{text}");
    });
}

/// Calls that differ in one thing each. The last rank's differs from the others'.
#[test]
fn calls_that_differ_are_named() {
    on_threads("failures::calls_that_differ_are_named", &LATE, |ranks| {
        begun(&ranks);
        let on = ranks.communicator;
        let differs = on.rank() == on.size() - 1;
        let error = failure(&on, ones(&on, if differs { 11 } else { 10 }));
        let Error::Mismatch { rank, call, other_rank, other_call } = &error else { panic!("{error}") };
        assert_ne!(rank, other_rank);
        let both = format!("{call} {other_call}");
        assert!(
            both.contains("all_reduce(Sum, 10 x f32)") && both.contains("all_reduce(Sum, 11 x f32)"),
            "{both}"
        );
        assert!(both.contains("its call 2"), "{both}");
    });
}

/// Makes a call with these two buffers.
pub(crate) type Made = fn(&Communicator, Part<'_>, Part<'_>) -> Result<Work>;

/// A call, with its name here and in the library.
pub(crate) struct Named {
    pub(crate) name: &'static str,
    pub(crate) in_library: &'static str,
    pub(crate) make: Made,
}

pub(crate) const BASE: Named = Named {
    name: "all_reduce(Sum, 8 x f32)",
    in_library: "ncclAllReduce(8 x ncclFloat32, ncclSum)",
    make: |on, a, b| on.all_reduce(ReduceOp::Sum, DType::F32, 8, a, b),
};

/// Calls that differ from [`BASE`] in the reduction, the dtype, the count or the kind.
pub(crate) const DIFFERENT: [Named; 6] = [
    Named {
        name: "all_reduce(Max, 8 x f32)",
        in_library: "ncclAllReduce(8 x ncclFloat32, ncclMax)",
        make: |on, a, b| on.all_reduce(ReduceOp::Max, DType::F32, 8, a, b),
    },
    Named {
        name: "all_reduce(Sum, 8 x i32)",
        in_library: "ncclAllReduce(8 x ncclInt32, ncclSum)",
        make: |on, a, b| on.all_reduce(ReduceOp::Sum, DType::I32, 8, a, b),
    },
    Named {
        name: "all_reduce(Sum, 7 x f32)",
        in_library: "ncclAllReduce(7 x ncclFloat32, ncclSum)",
        make: |on, a, b| on.all_reduce(ReduceOp::Sum, DType::F32, 7, a, b),
    },
    Named {
        name: "reduce(Sum, 8 x f32, root 1)",
        in_library: "ncclReduce(8 x ncclFloat32, ncclSum, root 1)",
        make: |on, a, b| on.reduce(ReduceOp::Sum, DType::F32, 8, 1, a, b),
    },
    Named {
        name: "broadcast(8 x f32, root 0)",
        in_library: "ncclBroadcast(8 x ncclFloat32, root 0)",
        make: |on, a, b| on.broadcast(DType::F32, 8, 0, a, b),
    },
    Named {
        name: "reduce_scatter(Sum, 8 x f32)",
        in_library: "ncclReduceScatter(8 x ncclFloat32, ncclSum)",
        make: |on, a, b| on.reduce_scatter(ReduceOp::Sum, DType::F32, 8, a, b),
    },
];

/// Rank 0 calls something else than the others. Returns the error that the rank gets.
pub(crate) fn differ(on: &Communicator, of_rank_0: &Named) -> Error {
    let buffer = || Arc::new(on.device().upload(&[0; 1024]).unwrap());
    let (a, b) = (buffer(), buffer());
    let make = if on.rank() == 0 { of_rank_0.make } else { BASE.make };
    failure(on, make(on, Part::whole(&a), Part::whole(&b)))
}

#[test]
fn every_difference_is_found() {
    let Some((_, devices)) = in_child("failures::every_difference_is_found", &LATE) else { return };
    for other in &DIFFERENT {
        let ranks = Communicator::local(&devices).unwrap();
        std::thread::scope(|scope| {
            for on in &ranks {
                scope.spawn(move || {
                    let error = differ(on, other);
                    let text = error.to_string();
                    assert!(matches!(error, Error::Mismatch { .. }), "{text}");
                    assert!(text.contains(other.name) && text.contains(BASE.name), "{text}");
                });
            }
        });
    }
}

/// A rank of the example `all_reduce` can't record an event before its first call. The example ends
/// with its error; the other rank, which has begun to measure, does not wait for it.
#[test]
fn the_example_ends_if_a_rank_fails() {
    use std::process::{Command, Stdio};
    if !on_cpu() {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let examples = own.parent().and_then(std::path::Path::parent).unwrap().join("examples");
    let program = examples.join(format!("all_reduce{}", std::env::consts::EXE_SUFFIX));
    assert!(program.exists(), "{} is missing: cargo test --examples builds it", program.display());
    let mut child = Command::new(program)
        .arg("1")
        .env("BURN_ROCM_PROVIDER", "cpu")
        .env("BURN_ROCM_CPU_DEVICES", "2")
        .env("BURN_ROCM_CPU_FAIL", "hipEventRecord:2")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Far below the timeout of collectives, and far above what the calls before the failure take.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{:?}: {text}", output.status);
    assert!(text.contains("hipEventRecord"), "{text}");
}

#[test]
fn a_send_and_its_receive_must_agree() {
    on_threads("failures::a_send_and_its_receive_must_agree", &LATE, |ranks| {
        let on = ranks.communicator;
        let buffer = Arc::new(on.device().upload(&[0; 64]).unwrap());
        let called = match on.rank() {
            0 => on.send(DType::F32, 5, 1, Part::whole(&buffer)),
            1 => on.receive(DType::F32, 6, 0, Part::whole(&buffer)),
            // The group has failed for the others too.
            _ => ones(&on, 1),
        };
        let text = failure(&on, called).to_string();
        assert!(text.contains("send(5 x f32, to 1)") && text.contains("receive(6 x f32, from 0)"), "{text}");
    });
}
