//! What a training run relies on: the oracle's losses, constant memory, no hidden waits,
//! repeatability.
#![allow(missing_docs, clippy::unwrap_used)]

use burn::backend::Autodiff;
use burn_rocm_examples::model::Kind;
use burn_rocm_tests::again;
use burn_rocm_tests::training::{Trainer, batch};
use burn_rocm_tests::{O, R};
use serial_test::serial;

type A = Autodiff<R>;

const KINDS: [Kind; 2] = [Kind::Mlp, Kind::Cnn];

fn losses<B: burn::tensor::backend::AutodiffBackend>(kind: Kind, steps: usize) -> Vec<f64> {
    let device = Default::default();
    let data = batch::<B>(&device, 16);
    let mut trainer = Trainer::<B>::new(kind, &device);
    (0..steps).map(|_| trainer.step(&data)).collect()
}

#[test]
#[serial(device)]
fn losses_follow_the_oracle() {
    for kind in KINDS {
        let (ours, theirs) = (losses::<A>(kind, 10), losses::<Autodiff<O>>(kind, 10));
        for (step, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            assert!(
                (a - b).abs() < 1e-3 * b.abs().max(1.0),
                "{kind:?}, step {step}: {a} instead of {b}\n{ours:?}\n{theirs:?}"
            );
        }
        assert!(ours[9] < ours[0], "{kind:?} learns: {ours:?}");
    }
}

#[test]
#[serial(device)]
fn memory_is_steady_and_steps_do_not_wait() {
    let device = Default::default();
    let hip = hip::Device::get(0).expect("a device");
    let data = batch::<A>(&device, 16);
    let mut trainer = Trainer::<A>::new(Kind::Cnn, &device);
    for _ in 0..3 {
        trainer.step_on_device(&data);
    }
    let (peak, reserved) = (hip.pool().stats().peak, hip.pool().stats().reserved);
    let before = hip.counters();
    for step in 3..200 {
        trainer.step_on_device(&data);
        let stats = hip.pool().stats();
        assert!(stats.peak <= peak, "step {step}: the peak grew from {peak} to {} bytes", stats.peak);
        assert!(
            stats.reserved <= reserved,
            "step {step}: reserved memory grew from {reserved} to {} bytes",
            stats.reserved
        );
    }
    let after = hip.counters();
    assert_eq!(after.device_to_host - before.device_to_host, 0, "a training step reads nothing back");
    assert_eq!(after.waits - before.waits, 0, "a training step waits for nothing");
}

/// In a process of its own, because the setting is read once.
#[test]
#[serial(device)]
fn deterministic_runs_give_the_same_bits() {
    const CHILD: &str = "BURN_ROCM_TEST_DETERMINISTIC_CHILD";
    if std::env::var_os(CHILD).is_some() {
        for kind in KINDS {
            for loss in losses::<A>(kind, 5) {
                println!("loss {:016x}", loss.to_bits());
            }
        }
        return;
    }
    let run = || {
        let text = again(
            &["--exact", "deterministic_runs_give_the_same_bits", "--nocapture"],
            &[(CHILD, "1"), ("BURN_ROCM_DETERMINISTIC", "1")],
        );
        text.lines().filter(|line| line.starts_with("loss ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = run();
    assert_eq!(first.len(), 10);
    assert_eq!(first, run());
}
