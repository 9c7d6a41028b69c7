//! Ranks in processes: some die, some call something else.

use std::process::exit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hip::{Communicator, DType, Error, Group, Part, ReduceOp, UniqueId};

use crate::failures::{
    BASE, DIFFERENT, GOES_ON, LATE, SOON, begun, collective, differ, failure, for_the_dead, ones,
};
use crate::ranks::{DEAD, Ranks, on_cpu, on_processes};
#[cfg(unix)]
use crate::ranks::{kill_this_process, on_processes_of_which_some_are_killed};

/// What the CPU device says in the other processes when rank 0's has ended, which serves them.
const HUB_GONE: &str = "the process that made the group's id is gone";

/// How a failure of another process shows. The CPU device notices it at once; NCCL between GPUs of
/// one machine by the timeout.
fn noticed(text: &str, by: &[&str]) {
    let known = by.iter().any(|by| text.contains(by)) || (!on_cpu() && text.contains("timeout"));
    assert!(known, "{text}");
}

fn survives(ranks: &Ranks, by: &[&str]) {
    noticed(&collective(&failure(&ranks.communicator, ones(&ranks.communicator, 1000))), by);
}

#[test]
fn a_process_that_dies_fails_the_others() {
    on_processes("processes::a_process_that_dies_fails_the_others", for_the_dead(), &[1], |ranks| {
        begun(&ranks);
        if ranks.communicator.rank() == 1 {
            exit(DEAD);
        }
        // Rank 0's process, which serves the others, ends only when they know this.
        survives(&ranks, &["rank 1 is gone"]);
    });
}

/// As above, where the library's calls go on by themselves.
#[test]
fn a_process_that_dies_fails_calls_that_go_on() {
    const TEST: &str = "processes::a_process_that_dies_fails_calls_that_go_on";
    on_processes(TEST, &[for_the_dead()[0], GOES_ON], &[1], |ranks| {
        begun(&ranks);
        if ranks.communicator.rank() == 1 {
            exit(DEAD);
        }
        survives(&ranks, &["rank 1 is gone"]);
    });
}

#[test]
fn the_process_that_made_the_id_may_die() {
    on_processes("processes::the_process_that_made_the_id_may_die", for_the_dead(), &[0], |ranks| {
        begun(&ranks);
        if ranks.communicator.rank() == 0 {
            exit(DEAD);
        }
        // Between four ranks, another one may give up first.
        survives(&ranks, &[HUB_GONE]);
    });
}

/// A rank is killed while all make calls. The others' calls end with a typed error, on the CPU device
/// long before the timeout.
#[cfg(unix)]
fn killed_within_calls(test: &str, killed: usize, by: &[&str]) {
    on_processes_of_which_some_are_killed(test, for_the_dead(), &[killed], |ranks| {
        begun(&ranks);
        let on = &ranks.communicator;
        let begun = Instant::now();
        if on.rank() == killed {
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                kill_this_process()
            });
        }
        let error = loop {
            match ones(on, 50_000).and_then(|work| work.wait()) {
                Ok(()) => assert!(begun.elapsed() < Duration::from_secs(60), "nobody was killed"),
                Err(error) => break error,
            }
        };
        assert_ne!(on.rank(), killed, "{error}");
        // NCCL's limit is 5 seconds here, and it may take as long to end its work.
        let most = Duration::from_secs(if on_cpu() { 30 } else { 15 });
        assert!(begun.elapsed() < most, "{:?}", begun.elapsed());
        noticed(&collective(&error), by);
        assert_eq!(failure(on, ones(on, 10)), error);
    });
}

#[cfg(unix)]
#[test]
fn a_process_that_is_killed_fails_the_others() {
    // Noticed by a read or by a write, or heard from a rank that noticed it before.
    let by = ["rank 1 is gone", "rank 1 takes no results", "gave the group up"];
    killed_within_calls("processes::a_process_that_is_killed_fails_the_others", 1, &by);
}

#[cfg(unix)]
#[test]
fn the_process_that_made_the_id_may_be_killed() {
    killed_within_calls("processes::the_process_that_made_the_id_may_be_killed", 0, &[HUB_GONE]);
}

#[test]
fn processes_leave_in_any_order() {
    on_processes("processes::processes_leave_in_any_order", &LATE, &[], |ranks| {
        for round in 0..50 {
            ones(&ranks.communicator, 1 + round).unwrap().join().unwrap();
        }
        // Each leaves and ends when it likes: a late result must still arrive.
    });
}

/// The CPU device's rank 0 serves the others, also calls in which it takes no part.
#[test]
fn rank_0_may_leave_at_once() {
    on_processes("processes::rank_0_may_leave_at_once", &LATE, &[], |ranks| {
        begun(&ranks);
        let on = &ranks.communicator;
        if on.rank() == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
        let send = Arc::new(on.device().upload(&[on.rank() as u8; 100]).unwrap());
        let recv = Arc::new(on.device().upload(&[0; 100]).unwrap());
        let mut group = Group::new();
        group.send(on, DType::U8, 100, on.rank(), Part::whole(&send)).unwrap();
        group.receive(on, DType::U8, 100, on.rank(), Part::whole(&recv)).unwrap();
        group.start().unwrap().join().unwrap();
        let mut found = [0; 100];
        on.device().read(&recv, 0, &mut found).unwrap();
        assert_eq!(found, [on.rank() as u8; 100]);
    });
}

/// A panic in the CPU device's computation ends the call on all ranks.
#[test]
fn a_computation_that_panics_fails_all_ranks() {
    if !on_cpu() {
        return;
    }
    let fail = [LATE[0], ("BURN_ROCM_CPU_FAIL", "ncclAllReduce:2")];
    on_processes("processes::a_computation_that_panics_fails_all_ranks", &fail, &[], |ranks| {
        begun(&ranks);
        survives(&ranks, &["the computation panicked"]);
    });
}

#[test]
fn calls_of_no_elements_pass() {
    on_processes("processes::calls_of_no_elements_pass", &LATE, &[], |ranks| {
        let on = &ranks.communicator;
        let buffer = Arc::new(on.device().upload(&[9; 8]).unwrap());
        let part = Part::whole(&buffer);
        for _ in 0..3 {
            ones(on, 0).unwrap().join().unwrap();
            on.all_gather(DType::F32, 0, part, part).unwrap().join().unwrap();
            on.broadcast(DType::F32, 0, 1, part, part).unwrap().join().unwrap();
        }
        let mut found = [0; 8];
        on.device().read(&buffer, 0, &mut found).unwrap();
        assert_eq!(found, [9; 8]);
    });
}

#[test]
fn a_process_that_waits_in_vain_gives_up() {
    on_processes("processes::a_process_that_waits_in_vain_gives_up", &SOON, &[], |ranks| {
        begun(&ranks);
        let on = &ranks.communicator;
        if on.rank() == 1 && !on_cpu() {
            // NCCL tells nothing to a process that calls nothing.
            std::thread::sleep(std::time::Duration::from_secs(8));
            return;
        }
        if on.rank() == 1 {
            // Alive, but it calls nothing: it looks until the others gave up.
            let error = loop {
                match on.check() {
                    Ok(()) => std::thread::sleep(std::time::Duration::from_millis(5)),
                    Err(error) => break error,
                }
            };
            return noticed(&collective(&error), &["gave the group up", "is gone"]);
        }
        // Of several ranks, one gives up first.
        noticed(&collective(&failure(on, ones(on, 10))), &["timeout", "is gone", "gave the group up"]);
    });
}

/// The id of another group, which comes through this one.
fn another_id(on: &Communicator) -> UniqueId {
    let own = if on.rank() == 0 { *UniqueId::new().unwrap().as_bytes() } else { [0; UniqueId::BYTES] };
    let sent = Arc::new(on.device().upload(&own).unwrap());
    let part = Part::whole(&sent);
    on.broadcast(DType::U8, UniqueId::BYTES, 0, part, part).unwrap().join().unwrap();
    let mut id = [0; UniqueId::BYTES];
    on.device().read(&sent, 0, &mut id).unwrap();
    UniqueId::from_bytes(&id).unwrap()
}

/// Another group of the same ranks.
fn another_group(on: &Communicator) -> Communicator {
    Communicator::new(on.device(), &another_id(on), on.rank(), on.size()).unwrap()
}

/// Without the check between processes, only the CPU device compares them: its library does, so the error
/// names both calls as the library does.
#[test]
fn the_cpu_device_finds_every_difference_between_processes() {
    if !on_cpu() {
        return;
    }
    on_processes("processes::the_cpu_device_finds_every_difference_between_processes", &LATE, &[], |ranks| {
        for other in &DIFFERENT {
            let on = another_group(&ranks.communicator);
            // All have joined before the group fails.
            ones(&on, 100).unwrap().wait().unwrap();
            ranks.together();
            let text = collective(&differ(&on, other));
            assert!(text.contains(BASE.in_library) && text.contains(other.in_library), "{text}");
        }
    });
}

#[test]
fn the_check_between_processes_names_both_calls() {
    let check = [LATE[0], ("BURN_ROCM_COLLECTIVE_CHECK", "1")];
    on_processes("processes::the_check_between_processes_names_both_calls", &check, &[], |ranks| {
        begun(&ranks);
        let on = &ranks.communicator;
        let error = failure(on, ones(on, 10 + usize::from(on.rank() == 1)));
        // On every rank: none gives the group up before all have seen the difference.
        let Error::Mismatch { rank, call, other_rank, other_call } = &error else { panic!("{error}") };
        assert_eq!(*rank, on.rank());
        assert_eq!([*rank, *other_rank].iter().filter(|&&rank| rank == 1).count(), 1, "{error}");
        let both = format!("{call} {other_call}");
        assert!(both.contains("all_reduce(Sum, 10 x f32), call 1 of 1"), "{both}");
        assert!(both.contains("all_reduce(Sum, 11 x f32), call 1 of 1"), "{both}");
    });
}

/// Calls of two groups are issued together, and those of one differ. No rank makes the other group's
/// call, so that group fails too.
#[test]
fn a_difference_in_one_group_fails_the_others_of_the_calls() {
    const TEST: &str = "processes::a_difference_in_one_group_fails_the_others_of_the_calls";
    let check = [LATE[0], ("BURN_ROCM_COLLECTIVE_CHECK", "1")];
    on_processes(TEST, &check, &[], |ranks| {
        let same = &ranks.communicator;
        let (rank, device) = (same.rank(), same.device());
        let differs = another_group(same);
        let buffers = [(); 2].map(|()| Arc::new(device.upload(&[0; 44]).unwrap()));
        let mut calls = Group::new();
        for (on, count, buffer) in
            [(same, 10, &buffers[0]), (&differs, 10 + usize::from(rank == 1), &buffers[1])]
        {
            let part = Part::whole(buffer);
            calls.all_reduce(on, ReduceOp::Sum, DType::F32, count, part, part).unwrap();
        }
        let error = calls.start().map(drop).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(differs.check().unwrap_err(), error);
        // Another rank may have failed the group before.
        same.check().unwrap_err();
    });
}

/// Of two groups with other ranks, whose calls rank 0 issues together, one differs. The rank that is
/// only in the other one sees no difference and has made its call: nothing else may meet it.
#[test]
fn a_difference_in_one_group_is_not_told_to_a_group_with_other_ranks() {
    const TEST: &str = "processes::a_difference_in_one_group_is_not_told_to_a_group_with_other_ranks";
    let check = [for_the_dead()[0], ("BURN_ROCM_COLLECTIVE_CHECK", "1")];
    on_processes(TEST, &check, &[], |ranks| {
        let all = &ranks.communicator;
        let (rank, device) = (all.rank(), all.device());
        if all.size() < 3 {
            return;
        }
        let ids = [another_id(all), another_id(all)];
        let join = |id: &UniqueId, of: [usize; 2]| {
            let at = of.iter().position(|&member| member == rank)?;
            Some(Communicator::new(device, id, at, 2).unwrap())
        };
        let (differs, same) = (join(&ids[0], [0, 1]), join(&ids[1], [0, 2]));
        let buffers = [(); 2].map(|()| Arc::new(device.upload(&[0; 44]).unwrap()));
        let mut calls = Group::new();
        for (on, count, buffer) in
            [(&differs, 10 + usize::from(rank == 1), &buffers[0]), (&same, 10, &buffers[1])]
        {
            let Some(on) = on else { continue };
            let part = Part::whole(buffer);
            calls.all_reduce(on, ReduceOp::Sum, DType::F32, count, part, part).unwrap();
        }
        if let Some(differs) = &differs {
            let error = calls.start().map(drop).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            assert_eq!(differs.check().unwrap_err(), error);
        } else if let Some(same) = &same {
            noticed(&collective(&failure(same, calls.start())), &["gave the group up"]);
        }
        if let (Some(_), Some(same)) = (&differs, &same) {
            // Another rank may have failed the group before.
            same.check().unwrap_err();
        }
        // The CPU device's rank 0 serves the others.
        ranks.together();
    });
}
