//! What a warm-up leaves as it was. These tests have their own program and run one at a time, because
//! the random numbers belong to the device. Both versions of Burn compile this file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[allow(unused_imports, reason = "only Burn 0.21 has `step` in this trait")]
use burn::optim::Optimizer;
use burn::tensor::Distribution;
use burn_rocm::graph::Graph;
use burn_rocm::{RocmDevice, RocmError};

use crate::small::{Batch, batch, cnn, loss_bits, mlp, step};
use crate::world::nn::optim::AdamConfig;
use crate::world::nn::{graph, warm_up};
use crate::world::{CLONES_ARE_LAZY, Plain, bits, plain, seed};

const STEPS: usize = 6;

fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device() -> RocmDevice {
    RocmDevice::new(0)
}

/// The next random numbers of the device.
fn drawn() -> Vec<u32> {
    let drawn = Plain::<1>::random([9], Distribution::Default, &plain());
    drawn.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// The losses, the parameters with the running statistics, and the next random numbers.
type Outcome = (Vec<u32>, Vec<Vec<u32>>, Vec<u32>);

/// A seed, which is printed.
fn any_seed() -> u64 {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    seed
}

/// Trains a model, with a warm-up before the steps of these numbers.
macro_rules! train {
    ($model:expr, $seed:expr, $warm_ups:expr) => {{
        seed($seed);
        let mut optimizer = AdamConfig::new().init();
        let mut model = $model;
        if !CLONES_ARE_LAZY {
            // Otherwise a warm-up initialises the parameters before the first dropout draws.
            bits(&model);
        }
        let mut losses = Vec::new();
        for number in 0..STEPS {
            if $warm_ups.contains(&number) {
                // A batch that the training never sees, for which the step leaves other statistics.
                let other = batch(1000 + number);
                let mut runs = 0;
                let (after, loss) = warm_up(&device(), &model, &optimizer, |model, mut optimizer| {
                    runs += 1;
                    step!(model, optimizer, &other)
                })
                .unwrap();
                assert!(f32::from_bits(loss_bits(loss)).is_finite());
                assert_eq!((runs, bits(&after).len() > 3), (burn_rocm::graph::WARM_UPS, true));
            }
            let (next, loss) = step!(model, optimizer, &batch(number));
            model = next;
            losses.push(loss_bits(loss));
        }
        let outcome: Outcome = (losses, bits(&model), drawn());
        outcome
    }};
}

/// At the beginning Burn 0.21 has not initialised the parameters yet.
#[test]
fn training_goes_on_as_without_a_warm_up() {
    let _alone = alone();
    let seed = any_seed();
    let none: [usize; 0] = [];
    let expected = (train!(mlp(), seed, none), train!(cnn(), seed, none));
    for warm_ups in [vec![0], vec![3], (0..STEPS).collect()] {
        let found = (train!(mlp(), seed, warm_ups), train!(cnn(), seed, warm_ups));
        assert_eq!(found, expected, "warm-ups before the steps {warm_ups:?}");
    }
    assert!(expected.0.0[0] != expected.0.0[1] && expected.1.0[0] != expected.1.0[1], "the steps differ");
}

/// A step whose optimizer's states and running statistics a graph replays.
#[test]
fn replays_go_on_as_without_a_warm_up() {
    let _alone = alone();
    let number = any_seed();
    let train = |warms: bool| -> Outcome {
        seed(number);
        let Batch { images, labels } = batch(0);
        let mut optimizer = AdamConfig::new().init();
        let mut model = Some(cnn());
        let mut take = || {
            let before = model.take().unwrap();
            let (next, loss) =
                step!(before, optimizer, &Batch { images: images.clone(), labels: labels.clone() });
            model = Some(next);
            loss
        };
        drop(take());
        let (replayed, loss) = Graph::capture_after(&device(), 0, &mut take).unwrap();
        let mut losses = Vec::new();
        for number in 0..STEPS {
            graph::write(&images, batch(number).images).unwrap();
            replayed.replay().unwrap();
            losses.push(loss_bits(loss.clone()));
            if warms {
                let model = model.as_ref().unwrap();
                let other = batch(50);
                warm_up(&device(), model, &optimizer, |model, mut optimizer| {
                    drop(step!(model, optimizer, &other));
                    // Beside the graph, whose place in the numbers must not change.
                    drop(drawn());
                })
                .unwrap();
            }
        }
        (losses, bits(model.as_ref().unwrap()), drawn())
    };
    assert_eq!(train(true), train(false));
}

/// The copy has memory of its own: what is written there does not reach the model.
#[test]
fn the_model_is_out_of_reach() {
    let _alone = alone();
    let (model, optimizer) = (cnn(), AdamConfig::new().init());
    let (mut kept, first) = (optimizer.clone(), batch(0));
    let (model, _) = step!(model, kept, &first);
    let before = bits(&model);
    warm_up(&device(), &model, &optimizer, |(conv, norm, linear), _| {
        for tensor in [norm.gamma.val(), norm.beta.val(), norm.running_mean.value(), norm.running_var.value()]
        {
            graph::write(&tensor, tensor.zeros_like()).unwrap();
        }
        graph::write(&linear.weight.val(), linear.weight.val().zeros_like()).unwrap();
        graph::write(&conv.weight.val(), conv.weight.val().zeros_like()).unwrap();
        let written = bits(&(conv, norm, linear));
        assert_eq!(written.iter().filter(|one| one.iter().all(|&bits| bits == 0)).count(), 6);
    })
    .unwrap();
    assert_eq!(bits(&model), before);
}

#[test]
fn a_step_that_fails_leaves_everything_as_it_was() {
    let _alone = alone();
    let number = any_seed();
    seed(number);
    let (mut optimizer, first) = (AdamConfig::new().init(), batch(0));
    let (model, _) = step!(cnn(), optimizer, &first);
    let before = bits(&model);
    seed(number);
    let expected = (drawn(), drawn());
    seed(number);
    assert_eq!(drawn(), expected.0);

    // An op that fails: the error is typed.
    let mut runs = 0;
    let refused = warm_up(&device(), &model, &optimizer, |model, mut optimizer| {
        runs += 1;
        drop(step!(model, optimizer, &first));
        drop(drawn());
        let _ = Plain::<2>::empty([1 << 22, 1 << 22], &plain());
    });
    assert!(matches!(refused, Err(RocmError::OutOfMemory { .. })), "{refused:?}");
    assert_eq!(runs, 1);
    // Another panic is the caller's.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        warm_up(&device(), &model, &optimizer, |model, mut optimizer| {
            drop(step!(model, optimizer, &first));
            drop(drawn());
            panic!("of the step");
        })
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"of the step"));
    // An error of the caller's is its result.
    let own = warm_up(&device(), &model, &optimizer, |_, _| Err::<(), _>(drawn().len())).unwrap();
    assert_eq!(own, Err(9));
    // In a capture nothing runs.
    let captured = Graph::capture_after(&device(), 0, || {
        warm_up(&device(), &model, &optimizer, |_, _| -> () { panic!("it ran") })
    });
    assert!(matches!(captured, Err(RocmError::Capture { .. })), "{captured:?}");

    assert_eq!((bits(&model), drawn()), (before, expected.1));
}

/// Other threads draw from the device's numbers meanwhile, and a warm-up within a warm-up leaves the
/// outer one's numbers as they were.
#[test]
fn numbers_are_apart_by_thread_and_by_warm_up() {
    let _alone = alone();
    let number = any_seed();
    seed(number);
    let expected = [drawn(), drawn(), drawn()];
    seed(number);
    let mut of_thread = Vec::new();
    let mut own = Vec::new();
    let mut inner = Vec::new();
    burn_rocm::warm_up(&device(), || {
        of_thread.push(std::thread::scope(|scope| scope.spawn(drawn).join().unwrap()));
        burn_rocm::warm_up(&device(), || {
            seed(number + 1);
            inner.push(drawn());
        })
        .unwrap();
        own.push(drawn());
    })
    .unwrap();
    // Each run goes on in the copy of the sequence.
    assert_eq!(own, expected);
    assert_eq!(of_thread, expected, "the thread drew the device's own");
    seed(number + 1);
    assert_eq!(inner, vec![drawn(); 9]);
}
