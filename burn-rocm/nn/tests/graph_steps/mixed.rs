//! Captures that are refused, and replays between other work on the same tensors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, TensorData};
use burn_rocm::fused::amp::{Growth, Scale, any_set};
use burn_rocm::fused::optim::{self, Clip, Rule, State, Step};
use burn_rocm::graph::{Graph, uncaptured};
use burn_rocm::{Rocm, RocmDevice, RocmError};
use burn_rocm_nn::amp::GradScalerConfig;
use burn_rocm_nn::optim::SgdConfig;
use burn_rocm_nn::{BatchNormConfig, graph};
use burn_rocm_tests::Random;

use crate::B;
use crate::replays::alone;
use crate::small::{Scores, batch, mlp};
use crate::world::{Plain, bits, from_rocm, rocm, seed};

/// Frees memory with large numbers. A step that ran on uncomputed memory would move the parameters
/// by them.
fn leave_numbers(device: &RocmDevice) {
    let numbers = (0..16).map(|_| Plain::<1>::full([1 << 18], 1e30, device)).collect::<Vec<_>>();
    <Rocm>::sync(device).unwrap();
    drop(numbers);
}

/// A step may drop the error of what was refused and go on. What it enqueues then never runs.
#[test]
fn a_step_that_goes_on_after_a_refusal_changes_nothing() {
    let _alone = alone();
    let device = RocmDevice::default();
    let (x, other) = (batch(0).images, Plain::<1>::ones([1], &device));
    let caught = |body: &dyn Fn()| drop(catch_unwind(AssertUnwindSafe(body)));
    let inner = || Graph::capture(&device, || other.clone() * 2.0).map(drop);
    type Refused<'a> = (&'a str, &'a dyn Fn(&Plain<1>));
    let refused: [Refused<'_>; 5] = [
        ("sync", &|_| drop(<Rocm>::sync(&device))),
        ("a read", &|loss| drop(loss.clone().try_into_data())),
        ("a read", &|loss| caught(&|| drop(loss.to_data()))),
        ("a capture", &|_| assert!(matches!(inner(), Err(RocmError::Capture { op: "a capture", .. })))),
        ("adam", &|_| {
            let reason = "refused by an op".to_owned();
            caught(&|| burn_rocm::raise(RocmError::Capture { op: "adam", reason: reason.clone() }));
        }),
    ];
    for (op, refuse) in refused {
        let (mut model, mut optimizer) = (Some(mlp()), SgdConfig::new().init());
        let before = bits(model.as_ref().expect("a model"));
        leave_numbers(&device);
        let captured = Graph::capture_after(&device, 0, || {
            let taken = model.take().expect("put back below");
            let loss = taken.scores(x.clone()).powf_scalar(2.0).mean();
            let grads = loss.backward();
            refuse(&loss.inner());
            let grads = GradientsParams::from_grads(grads, &taken);
            model = Some(optimizer.step(0.1, taken, grads));
        });
        assert!(matches!(captured, Err(RocmError::Capture { op: found, .. }) if found == op), "{captured:?}");
        assert_eq!(bits(model.as_ref().expect("put back")), before, "{op}");
    }
    // What is refused outside of the capture leaves it as it is.
    let inside = || {
        uncaptured(|| assert!(matches!(inner(), Err(RocmError::Capture { .. }))));
        other.clone() + 1.0
    };
    let (captured, sum) = Graph::capture_after(&device, 0, inside).unwrap();
    captured.replay().unwrap();
    assert_eq!(sum.into_scalar(), 2.0);
}

/// Parameters that were added to a step in a capture are not updated after it.
#[test]
fn a_captured_step_does_not_run_outside_of_its_capture() {
    let _alone = alone();
    let device = RocmDevice::default();
    let values = |value: f32| rocm(Plain::<1>::full([8], value, &device));
    let (mut param, grad) = (Some(values(3.0)), values(1.0));
    let rule = Rule::Sgd(optim::Sgd { lr: 0.5, penalty: 0.0, momentum: None });
    let mut step = Step::new(rule, Clip::None);
    let captured = Graph::capture_after(&device, 0, || {
        let added = step.add(param.take().unwrap(), grad.clone(), &mut State::default());
        param = Some(added.unwrap().0);
    });
    captured.unwrap();
    let late = step.run();
    assert!(matches!(late, Err(RocmError::Capture { op: "sgd", .. })), "{late:?}");
    let param = from_rocm::<1>(param.unwrap()).into_data();
    assert_eq!(param.to_vec::<f32>().unwrap(), [3.0; 8]);
}

/// A batch of products with ones, which is put off.
fn product(left: &Plain<3>) -> Plain<3> {
    left.clone().transpose().matmul(Plain::ones([4, 6, 3], &left.device()))
}

fn all_are(product: Plain<3>, value: f32) {
    assert_eq!(product.into_data().to_vec::<f32>().unwrap(), [value; 4 * 5 * 3]);
}

#[test]
fn what_runs_uncaptured_leaves_the_steps_products_to_the_graph() {
    let _alone = alone();
    let device = RocmDevice::default();
    let left = Plain::<3>::ones([4, 6, 5], &device);
    let step = || {
        let made = product(&left);
        uncaptured(|| drop(Plain::<1>::ones([1], &device)));
        made
    };
    let (captured, made) = Graph::capture_after(&device, 0, step).unwrap();
    for factor in [1.0, 2.0] {
        graph::write(&left, Plain::ones([4, 6, 5], &device) * factor).unwrap();
        captured.replay().unwrap();
        all_are(made.clone(), 6.0 * factor);
    }
}

/// A thread put a product off and ended. A write, or a replay of a graph that was captured later,
/// comes after the product.
#[test]
fn products_of_other_threads_come_before_later_writes() {
    let _alone = alone();
    let device = RocmDevice::default();
    let left = Plain::<3>::ones([4, 6, 5], &device);
    let elsewhere = || std::thread::scope(|scope| scope.spawn(|| product(&left)).join().unwrap());
    let made = elsewhere();
    graph::write(&left, Plain::ones([4, 6, 5], &device) * 2.0).unwrap();
    all_are(made, 6.0);
    let made = elsewhere();
    let add = || graph::write(&left, left.clone() + 1.0).unwrap();
    let (captured, ()) = Graph::capture_after(&device, 0, add).unwrap();
    captured.replay().unwrap();
    all_are(made, 12.0);
    all_are(product(&left), 18.0);
}

#[test]
fn a_view_is_written_over_another_view_of_its_memory() {
    let _alone = alone();
    let device = RocmDevice::default();
    let numbers: Vec<f32> = (0..4000u16).map(f32::from).collect();
    let all = Plain::<1>::from_data(TensorData::new(numbers.clone(), [4000]), &device);
    // Every second pair, from the pairs that lie one after the other.
    let pairs = all.clone().reshape([1000, 4]).slice([0..1000, 0..2]);
    graph::write(&pairs, all.clone().slice(4..2004).reshape([1000, 2])).unwrap();
    assert_eq!(pairs.into_data().to_vec::<f32>().unwrap(), numbers[4..2004]);
    let before = all.to_data();
    graph::write(&all, all.clone()).unwrap();
    assert_eq!(all.to_data(), before);
    graph::write(&all.clone().slice(0..3000), all.clone().slice(1000..4000)).unwrap();
    let expected = &before.as_slice::<f32>().unwrap()[1000..];
    assert_eq!(all.into_data().as_slice::<f32>().unwrap()[..3000], *expected);
}

/// An epoch may end with a smaller batch, which is not replayed.
#[test]
fn running_statistics_follow_in_any_mix() {
    let _alone = alone();
    let device = RocmDevice::default();
    let run = |replayed: bool| {
        let norm = BatchNormConfig::new(36).init::<B>(&device);
        let x = batch(0).images;
        let step = || drop(norm.forward(x.clone().flatten::<2>(1, 2)));
        let rest = |number| drop(norm.forward(batch(number).images.flatten::<2>(1, 2).slice(0..5)));
        step();
        let captured = replayed.then(|| Graph::capture_after(&device, 0, step).unwrap().0);
        for epoch in 1..4 {
            for number in 0..3 {
                graph::write(&x, batch(10 * epoch + number).images).unwrap();
                match &captured {
                    Some(captured) => captured.replay().unwrap(),
                    None => step(),
                }
            }
            rest(epoch);
        }
        let statistics = [&norm.running_mean, &norm.running_var].map(|state| state.value_sync().to_data());
        (bits(&norm), statistics)
    };
    assert_eq!(run(true), run(false));
}

/// Outside of captures a scaler works as before the first one, whether that failed or not.
#[test]
fn a_scaler_steps_outside_of_captures_as_before_them() {
    let _alone = alone();
    let device = RocmDevice::default();
    let x = batch(0).images;
    let train = |captures: bool| {
        seed(8);
        let mut model = mlp();
        let mut optimizer = burn::optim::SgdConfig::new().init();
        let mut scaler = GradScalerConfig::new().with_growth_interval(2).init();
        let mut step = |factor: f32| {
            // The clone makes every update one into new memory.
            let before = model.clone();
            let hidden = before.1.forward(before.0.forward(x.clone().flatten::<2>(1, 2)));
            let loss = hidden.powf_scalar(2.0).mean() * factor;
            let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &before);
            model = scaler.step(&mut optimizer, 0.01, before, grads);
        };
        step(1.0);
        if captures {
            // Burn's optimizer can't skip a step on the device.
            let failed = Graph::capture_after(&device, 0, || step(1.0));
            assert!(matches!(failed, Err(RocmError::Capture { op: "unless", .. })), "{failed:?}");
        }
        [1.0, f32::INFINITY, 1.0].into_iter().for_each(&mut step);
        model = scaler.step(&mut optimizer, 0.01, model, GradientsParams::new());
        (bits(&model), scaler.to_record())
    };
    assert_eq!(train(true), train(false));
}

/// Gradients of four dtypes take several launches. The scale follows each step, whichever gradient
/// is not finite, and whether the launch that unscales also updates the scale or another launch
/// does.
#[test]
fn a_scale_follows_gradients_of_many_launches() {
    let _alone = alone();
    let device = RocmDevice::default();
    let by = Growth { growth: 4.0, backoff: 0.25, interval: 2 };
    let random = Random::new();
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::F64];
    for joined in [true, false] {
        let scale = Scale::new(&device, 1024.0, 0, 0).unwrap();
        let (mut expected, mut finite, mut skipped) = (1024.0f32, 0, 0);
        for step in 0..6 {
            // A launch takes at most 165 gradients, so step 0 needs several. Empty ones take no
            // part.
            let count = |_| if step == 0 { 166 + random.below(174) } else { random.below(4) };
            let row =
                || -> Vec<f64> { (0..random.below(70)).map(|_| random.below(128) as f64 - 64.0).collect() };
            let mut grads: Vec<(Vec<f64>, DType)> = dtypes
                .iter()
                .flat_map(|&dtype| (0..count(dtype)).map(move |_| dtype))
                .map(|dtype| (row(), dtype))
                .collect();
            let full: Vec<usize> = (0..grads.len()).filter(|&at| !grads[at].0.is_empty()).collect();
            let overflows = random.below(5) < 2 && !full.is_empty();
            if overflows {
                let row = &mut grads[full[random.below(full.len())]].0;
                let at = random.below(row.len());
                row[at] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][random.below(3)];
            }
            let tensor = |(row, dtype): &(Vec<f64>, DType)| {
                let data = TensorData::new(row.clone(), [row.len()]).convert_dtype(*dtype);
                rocm(Plain::<1>::from_data(data, (&device, *dtype)))
            };
            let given = grads.iter().map(tensor).collect();
            let (unscaled, flag) = if joined {
                scale.unscale_and_update(given, by).unwrap()
            } else {
                let (unscaled, flag) = scale.unscale(given).unwrap();
                scale.update(&flag, by).unwrap();
                (unscaled, flag)
            };
            assert_eq!(any_set(vec![flag]).unwrap(), overflows, "step {step}");
            let inverse = 1.0 / expected;
            for ((row, dtype), out) in grads.iter().zip(unscaled) {
                let found: Vec<f64> = from_rocm::<1>(out).into_data().iter::<f64>().collect();
                let result = |&x: &f64| match dtype {
                    DType::F64 => x * f64::from(inverse),
                    _ => f64::from(x as f32 * inverse),
                };
                let right = row.iter().map(result).zip(&found);
                assert!(
                    found.len() == row.len()
                        && right.clone().all(|(a, &b)| a == b || a.is_nan() && b.is_nan())
                );
            }
            if overflows {
                (expected, finite, skipped) = (expected * 0.25, 0, skipped + 1);
            } else if finite + 1 == by.interval {
                (expected, finite) = (expected * 4.0, 0);
            } else {
                finite += 1;
            }
            assert_eq!(scale.read().unwrap(), (expected, finite, skipped), "step {step}");
        }
    }
}
