//! Memory that runs out at each allocation of a training step. These tests have their own program
//! and run one at a time, because the pool belongs to the device. Both versions of Burn compile this
//! file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

#[allow(unused_imports, reason = "only Burn 0.21 has `step` in this trait")]
use burn::optim::Optimizer;
use burn_rocm::{RocmDevice, RocmError, take_last_error};

use crate::small::{batch, cnn, loss_bits, mlp, step};
use crate::world::nn::optim::AdamConfig;
use crate::world::{OPTIMIZERS_KEEP_THEIR_STATES, Plain, Tracked, bits, plain, seed, tracking};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const SEED: u64 = 20_240;

/// The most ops in a row in a model's graph.
const DEPTH: usize = 40;

/// Bytes and blocks in use, once the device has finished and Burn has let go of the graphs of
/// forward passes whose backward pass never ran. Each backward pass, of anything, lets go of one
/// level of each such graph.
fn in_use() -> (usize, u64) {
    for _ in 0..DEPTH {
        drop(Tracked::<1>::ones([1], &tracking()).require_grad().backward());
    }
    RocmDevice::new(0).synchronize().unwrap();
    let stats = hip::Device::get(0).unwrap().pool().stats();
    (stats.allocated, stats.blocks)
}

/// How many allocations have succeeded so far.
fn allocations() -> u64 {
    let stats = hip::Device::get(0).unwrap().pool().stats();
    stats.hits + stats.misses
}

fn fail_after(allocations: impl Into<Option<u64>>) {
    hip::Device::get(0).unwrap().pool().fail_after(allocations);
}

/// Runs `body` with this many allocations. If they are too few, the error is an `OutOfMemory`.
#[track_caller]
fn with_allocations<T>(allowed: u64, body: impl FnOnce() -> T) -> Option<T> {
    let _ = take_last_error();
    fail_after(allowed);
    let result = catch_unwind(AssertUnwindSafe(body));
    fail_after(None);
    let error = take_last_error();
    match result {
        Ok(value) => {
            assert!(error.is_none(), "{error:?} of a step that succeeded");
            Some(value)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().expect("the text of the error");
            let Some(error @ RocmError::OutOfMemory { .. }) = error else {
                panic!("{error:?} after {allowed} allocations: {text}")
            };
            assert!(text.contains(&error.to_string()), "{text}");
            None
        }
    }
}

fn bits_of(tensor: &Plain<1>) -> Vec<u32> {
    tensor.clone().into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Fails each allocation of the step after `$before` others, of a model whose running statistics
/// are the tensors `$statistics` of [`bits`].
macro_rules! each_allocation_fails {
    ($model:expr, $before:expr, $statistics:expr) => {{
        let (steps, statistics): (usize, &[usize]) = ($before, &$statistics);
        let (data, bystander) = (batch(steps), Plain::<1>::from_floats([1.5, -2.5, 3.5], &plain()));
        // The model and the optimizer before the step. Reading initialises the parameters.
        let start = || {
            seed(SEED);
            let (mut model, mut optimizer) = ($model, AdamConfig::new().init());
            bits(&model);
            for number in 0..steps {
                model = step!(model, optimizer, &batch(number)).0;
            }
            (model, optimizer)
        };
        // The whole step. The first run allocates what stays, such as a workspace. In the third one
        // MIOpen times its algorithms, which takes more memory.
        let mut expected = None;
        let mut count = 0;
        for _ in 0..5 {
            let (model, mut optimizer) = start();
            let before = allocations();
            let (model, loss) = step!(model, optimizer, &data);
            count = allocations() - before;
            expected = Some((loss_bits(loss), bits(&model)));
        }
        let expected = expected.unwrap();
        // The allocations of the step if the app keeps the model and the optimizer's states.
        let of_kept = {
            let (model, mut optimizer) = start();
            let kept = optimizer.clone();
            // Running statistics keep an update apart until they are read.
            bits(&model);
            let before = allocations();
            drop(step!(model.clone(), optimizer, &data));
            drop((model, kept));
            allocations() - before
        };
        // What is in use after the step, if the app has kept the optimizer's states.
        let after = {
            let (model, mut optimizer) = start();
            let kept = optimizer.clone();
            let (model, _) = step!(model, optimizer, &data);
            bits(&model);
            let after = in_use();
            drop((model, optimizer, kept));
            after
        };
        // With running statistics that took the batch twice.
        let twice = {
            let (model, mut optimizer) = start();
            drop(crate::small::Scores::loss(&model, &data));
            bits(&step!(model, optimizer, &data).0)
        };
        assert!((10..of_kept).contains(&count), "{count} allocations, {of_kept} with a model that is kept");
        let empty = in_use();
        for allowed in 0..count {
            // The step owns the model and writes its parameters in place.
            let (model, mut optimizer) = start();
            let failed = with_allocations(allowed, || drop(step!(model, optimizer, &data)));
            assert!(failed.is_none(), "{allowed} of {count} allocations are too few");
            drop(optimizer);
            assert_eq!(in_use(), empty, "after {allowed} of {count} allocations");
        }
        for allowed in 0..of_kept {
            // The app keeps the model, and takes the step again.
            let (model, mut optimizer) = start();
            let kept = optimizer.clone();
            let before = bits(&model);
            let failed = with_allocations(allowed, || drop(step!(model.clone(), optimizer, &data)));
            assert!(failed.is_none(), "{allowed} of {of_kept} allocations are too few");
            if !OPTIMIZERS_KEEP_THEIR_STATES {
                optimizer = kept.clone();
            }
            for (number, (now, before)) in bits(&model).iter().zip(&before).enumerate() {
                assert!(now == before || statistics.contains(&number), "tensor {number} changed");
            }
            // Dropout draws the same numbers again.
            drop(start());
            let (model, loss) = step!(model, optimizer, &data);
            assert_eq!(loss_bits(loss), expected.0, "the loss after {allowed} of {of_kept} allocations");
            for (number, (now, one)) in bits(&model).iter().zip(&expected.1).enumerate() {
                let again = statistics.contains(&number) && *now == twice[number];
                assert!(now == one || again, "tensor {number} after {allowed} of {of_kept} allocations");
            }
            // The backward pass has let go of what the failed step saved.
            assert_eq!(in_use(), after, "after {allowed} of {of_kept} allocations");
            drop((model, optimizer, kept));
            assert_eq!(in_use(), empty);
        }
        // One allocation more is enough.
        let (model, mut optimizer) = start();
        let (model, loss) = with_allocations(count, || step!(model, optimizer, &data)).expect("enough");
        assert_eq!((loss_bits(loss), bits(&model)), expected);
        assert_eq!(bits_of(&bystander), [1.5f32, -2.5, 3.5].map(f32::to_bits));
        let other = batch(steps);
        assert!(
            bits_of(&data.images.inner().flatten(0, 2)) == bits_of(&other.images.inner().flatten(0, 2)),
            "the batch changed"
        );
    }};
}

#[test]
fn memory_may_run_out_anywhere_in_a_step_of_layers() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // The first step makes the optimizer's states.
    each_allocation_fails!(mlp(), 0, []);
    each_allocation_fails!(mlp(), 2, []);
}

#[test]
fn memory_may_run_out_anywhere_in_a_step_with_batch_norm() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // The weight and bias of the convolution, gamma and beta, then the running mean and variance.
    each_allocation_fails!(cnn(), 0, [4, 5]);
    each_allocation_fails!(cnn(), 2, [4, 5]);
}
