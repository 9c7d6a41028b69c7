//! Ranks that fail or differ.

use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use burn_rocm::{ReduceOp, RocmError, RocmTensor, UniqueId, take_last_error};
use burn_rocm_nn::parallel::{Shards, Share};

use crate::processes::{as_rank, connect, free_port, is_rank};
use crate::*;

fn error(run: impl FnOnce()) -> RocmError {
    catch_unwind(AssertUnwindSafe(run)).expect_err("an error was expected");
    take_last_error().expect("the typed error is kept")
}

fn reduced(ranks: &mut DataParallel, net: &Net<B>, share: Share) {
    let device = ranks.communicator().device();
    let grads = ranks.backward(net, Some(net.loss(&[1, 2], &device)));
    drop(ranks.reduce(net, grads, share));
}

/// Models that differ, and ranks that disagree about their shares: each rank's error names both
/// calls.
#[test]
fn ranks_that_ask_for_different_things() {
    let Some(count) = devices("failures::ranks_that_ask_for_different_things") else { return };
    let errors = on_ranks(count, |mut ranks| {
        let device = ranks.communicator().device();
        let mut net = Net::<B>::new(&device, 0);
        if ranks.rank() == 1 {
            net.last.push(LinearConfig::new(1, 1).init(&device));
        }
        error(|| reduced(&mut ranks, &net, Share::EVEN))
    });
    for error in errors {
        assert!(matches!(error, RocmError::Mismatch { .. }), "{error}");
    }
    let errors = on_ranks(count, |mut ranks| {
        let net = Net::<B>::new(&ranks.communicator().device(), 0);
        let share = if ranks.rank() == 0 { Share::of(2, 2 * ranks.size()) } else { Share::EVEN };
        error(|| reduced(&mut ranks, &net, share))
    });
    for error in errors {
        assert!(matches!(error, RocmError::Mismatch { .. }), "{error}");
    }
}

/// A call that overwrites its tensors takes no element twice. The group goes on after the error.
#[test]
fn tensors_that_share_elements_are_not_overwritten() {
    let Some(count) = devices("failures::tensors_that_share_elements_are_not_overwritten") else { return };
    on_ranks(count, |ranks| {
        let whole = Tensor::<Inner, 1>::from_data([1.0f64; 8], &ranks.communicator().device());
        let part = |range: std::ops::Range<usize>| whole.clone().slice([range]).into_primitive().tensor();
        let reduce = |parts: Vec<RocmTensor>| ranks.communicator().all_reduce_into(ReduceOp::Sum, parts);
        for parts in [vec![part(0..8), part(0..8)], vec![part(4..8), part(0..5)]] {
            let error = reduce(parts).map(drop).unwrap_err();
            assert!(matches!(error, RocmError::Invalid { op: "all_reduce_into", .. }), "{error}");
        }
        drop(reduce(vec![part(4..8), part(0..4)]).unwrap().join().unwrap());
        assert_eq!(whole.into_data().to_vec::<f64>().unwrap(), [count as f64; 8]);
    });
}

/// One of the ranks first names a rank that does not exist, and tries again.
#[test]
fn a_rank_that_could_not_join_is_not_waited_for() {
    let Some(count) = devices("failures::a_rank_that_could_not_join_is_not_waited_for") else { return };
    let id = UniqueId::new().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..count {
            let device = RocmDevice::new(rank);
            scope.spawn(move || {
                if rank == 1 {
                    // Rank 0 is there already, so the meeting outlives this call.
                    std::thread::sleep(Duration::from_millis(200));
                    let wrong = Communicator::new(&device, &id, count, count);
                    assert!(matches!(wrong, Err(RocmError::Invalid { .. })), "{wrong:?}");
                }
                Communicator::new(&device, &id, rank, count).unwrap().meet().unwrap();
            });
        }
    });
}

/// The other ranks get an error long before the timeout.
#[test]
fn a_rank_that_ends_is_an_error_on_the_others() {
    let Some(count) = devices("failures::a_rank_that_ends_is_an_error_on_the_others") else { return };
    let begun = Instant::now();
    let errors = on_ranks(count, |mut ranks| {
        let net = Net::<B>::new(&ranks.communicator().device(), 0);
        reduced(&mut ranks, &net, Share::EVEN);
        ranks.communicator().meet().unwrap();
        if ranks.rank() == 1 {
            ranks.communicator().abort();
            return None;
        }
        Some(error(|| (0..3).for_each(|_| reduced(&mut ranks, &net, Share::EVEN))))
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(error, RocmError::Collective { .. }), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

/// A rank has reduced a bucket with the others, and can't go on. It keeps its communicator until the
/// others have an error.
#[test]
fn a_rank_that_fails_within_a_reduction_is_an_error_on_the_others() {
    const NAME: &str = "failures::a_rank_that_fails_within_a_reduction_is_an_error_on_the_others";
    let Some(count) = devices(NAME) else { return };
    let begun = Instant::now();
    let errors = on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(1);
        let net = Net::<B>::new(&ranks.communicator().device(), 0);
        let loss = net.loss(&[1, 2], &ranks.communicator().device());
        let mut grads = ranks.backward(&net, Some(loss));
        if ranks.rank() == 1 {
            // Of the last bucket.
            let weight = grads.remove::<Inner, 2>(net.first.weight.id).unwrap();
            grads.register(net.first.weight.id, weight.cast(burn::tensor::FloatDType::F32));
        }
        (error(|| drop(ranks.reduce(&net, grads, Share::EVEN))), ranks.communicator().clone())
    });
    for (error, communicator) in errors {
        match communicator.rank() {
            1 => assert!(matches!(error, RocmError::Invalid { .. }), "{error}"),
            _ => assert!(matches!(error, RocmError::Collective { .. }), "{error}"),
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn bad_arguments_are_typed_errors() {
    let invalid = |run: &dyn Fn()| {
        let error = error(run);
        assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
    };
    invalid(&|| _ = Share::of(3, 2));
    invalid(&|| _ = Share::of(0, 0));
    invalid(&|| _ = Shards::new(10, 0, 0, 1));
    invalid(&|| _ = Shards::new(10, 4, 2, 2));
    let Some(_) = devices("failures::bad_arguments_are_typed_errors") else { return };
    // A model on another device, and a gradient of another dtype than its parameter's.
    let mut ranks: Vec<DataParallel> = Communicator::local(&[RocmDevice::new(0), RocmDevice::new(1)])
        .unwrap()
        .into_iter()
        .map(DataParallel::new)
        .collect();
    let there = Net::<B>::new(&RocmDevice::new(1), 0);
    let grads = || GradientsParams::from_grads(there.loss(&[1], &RocmDevice::new(1)).backward(), &there);
    let first = &mut ranks[0];
    let found = error(|| drop(first.reduce(&there, grads(), Share::EVEN)));
    assert!(matches!(found, RocmError::Invalid { .. }), "{found}");
    let mut narrow = grads();
    let weight = narrow.remove::<Inner, 2>(there.first.weight.id).unwrap();
    narrow.register(there.first.weight.id, weight.cast(burn::tensor::FloatDType::F32));
    let second = &mut ranks[1];
    let found = error(|| drop(second.reduce(&there, narrow, Share::EVEN)));
    assert!(matches!(found, RocmError::Invalid { .. }), "{found}");
    assert!(found.to_string().contains("f64") && found.to_string().contains("f32"), "{found}");
}

const KILLED: &str = "failures::a_killed_process_is_an_error_on_the_others";

/// Trains until an error comes, and prints its text.
fn trains_until_an_error() {
    let mut ranks = DataParallel::new(connect());
    let net = Net::<B>::new(&ranks.communicator().device(), 0);
    let error = error(|| {
        for step in 0.. {
            reduced(&mut ranks, &net, Share::EVEN);
            println!("\nstep {step}");
        }
    });
    let kind = if matches!(error, RocmError::Collective { .. }) { "collective" } else { "other" };
    println!("\nended {kind}: {error}");
}

/// A process, which ends with its owner.
struct Trains(Child);

impl Drop for Trains {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of two or four processes is killed (`SIGKILL`) while all train. The others' steps end
/// with a typed error long before the timeout, whichever process was killed.
#[test]
fn a_killed_process_is_an_error_on_the_others() {
    if is_rank() {
        return trains_until_an_error();
    }
    for (count, victim) in [(2, 0), (2, 1), (4, 2)] {
        let port = free_port();
        let start = |rank: usize| {
            let mut process = as_rank(KILLED, rank, count, port);
            Trains(process.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
        };
        let mut all: Vec<Trains> = (0..count).map(start).collect();
        let mut output = BufReader::new(all[victim].0.stdout.take().unwrap());
        let mut line = String::new();
        while line.trim() != "step 3" {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "rank {victim} of {count} ended by itself");
        }
        let begun = Instant::now();
        all[victim].0.kill().unwrap();
        for (rank, process) in all.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            let mut text = String::new();
            process.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            let what = format!("rank {rank} of {count}, {victim} killed");
            assert!(process.0.wait().unwrap().success(), "{what}: {text}");
            assert!(text.contains("\nended collective: "), "{what}: {text}");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}
