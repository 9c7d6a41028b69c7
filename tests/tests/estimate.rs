//! Estimates of a step's memory: exact against the same step run for real, without a launch or an
//! allocation, and with typed errors for what can't be estimated.
//!
//! One test at a time, because they read the device's pool and counters.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::module::AutodiffModule;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Distribution, FloatDType, Int, Tensor};
use burn_backend::ops::FloatTensorOps;
use burn_rocm::{
    Estimate, MemoryKind, Rocm, RocmDevice, RocmError, estimate_memory, memory_summary, read_with_fault,
};
use burn_rocm_examples::model::{Kind, Model};
use burn_rocm_tests::R;
use serial_test::serial;

/// The backend with a strategy of checkpoints.
type Of<S> = Autodiff<Rocm, S>;

/// What a step takes when it runs: peak allocated and peak reserved of an empty pool.
fn measured<T>(step: impl FnOnce(&RocmDevice) -> T) -> (usize, usize) {
    let device = RocmDevice::default();
    device.synchronize().unwrap();
    <Rocm as burn::tensor::backend::Backend>::memory_cleanup(&device);
    let before = memory_summary(&device).unwrap();
    assert_eq!((before.allocated.bytes, before.reserved), (0, 0), "the pool is not empty");
    device.reset_peak_memory().unwrap();
    let result = step(&device);
    let after = memory_summary(&device).unwrap();
    drop(result);
    device.synchronize().unwrap();
    (after.allocated.peak, after.peak_reserved)
}

fn floats<B2: AutodiffBackend<Device = RocmDevice>, const D: usize>(
    dims: [usize; D],
    dtype: DType,
    device: &RocmDevice,
) -> Tensor<B2, D> {
    Tensor::random(dims, Distribution::Default, (device, dtype))
}

fn labels<B2: AutodiffBackend<Device = RocmDevice>>(count: usize, device: &RocmDevice) -> Tensor<B2, 1, Int> {
    Tensor::arange(0..count as i64, device) % 10
}

/// Two steps of an optimizer.
fn train<B2: AutodiffBackend, M: AutodiffModule<B2>>(
    mut model: M,
    mut optimizer: impl Optimizer<M, B2>,
    loss: impl Fn(&M) -> Tensor<B2, 1>,
) -> M {
    for _ in 0..2 {
        let gradients = GradientsParams::from_grads(loss(&model).backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    model
}

/// Two steps of a classifier.
fn classify<S: CheckpointStrategy>(
    kind: Kind,
    dtype: DType,
    own: bool,
    device: &RocmDevice,
) -> Model<Autodiff<Rocm, S>> {
    let model: Model<Of<S>> = cast(kind.init(device), dtype);
    let batch = (floats::<Of<S>, 3>([32, 28, 28], dtype, device), labels::<Of<S>>(32, device));
    let loss = |model: &Model<Of<S>>| {
        let logits = model.forward(batch.0.clone());
        CrossEntropyLossConfig::new().init(device).forward(logits, batch.1.clone())
    };
    match own {
        true => train(model, burn_rocm_nn::optim::AdamConfig::new().init(), loss),
        false => train(model, AdamConfig::new().init(), loss),
    }
}

/// Two steps of a transformer.
fn transform<S: CheckpointStrategy>(
    dtype: DType,
    own: bool,
    device: &RocmDevice,
) -> TransformerEncoder<Of<S>> {
    let model = cast(TransformerEncoderConfig::new(64, 256, 4, 2).init::<Of<S>>(device), dtype);
    let input = floats::<Of<S>, 3>([4, 32, 64], dtype, device);
    let loss = |model: &TransformerEncoder<Of<S>>| {
        model.forward(TransformerEncoderInput::new(input.clone())).powi_scalar(2).mean()
    };
    match own {
        true => train(model, burn_rocm_nn::optim::AdamConfig::new().init(), loss),
        false => train(model, AdamConfig::new().init(), loss),
    }
}

/// The module with parameters of this dtype.
fn cast<B2: AutodiffBackend, M: AutodiffModule<B2>>(module: M, dtype: DType) -> M {
    struct Cast(FloatDType);
    impl<B2: AutodiffBackend> burn::module::ModuleMapper<B2> for Cast {
        fn map_float<const D: usize>(
            &mut self,
            param: burn::module::Param<Tensor<B2, D>>,
        ) -> burn::module::Param<Tensor<B2, D>> {
            let dtype = self.0;
            param.map(|tensor| {
                let grad = tensor.is_require_grad();
                Tensor::from_inner(tensor.inner().cast(dtype)).set_require_grad(grad)
            })
        }
    }
    module.map(&mut Cast(dtype.into()))
}

/// The estimate of a step is what the same step takes, to the byte: both take the same path, and
/// both pools are empty before.
fn is_exact<T>(what: &str, step: impl Fn(&RocmDevice) -> T) -> Estimate {
    let estimate = estimate_memory(&step).unwrap();
    let found = (estimate.peak_allocated, estimate.peak_reserved);
    println!("{what}, {} bytes guessed:\n{estimate}", estimate.guessed);
    assert_eq!(found, measured(&step), "{what}");
    let sum: usize = estimate.kinds.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(sum, estimate.peak_allocated, "{what}");
    estimate
}

/// `body` for each pair of dtype and optimizer, of which `true` is burn-rocm-nn's.
fn each(body: impl Fn(DType, bool)) {
    for dtype in [DType::F32, DType::BF16] {
        [false, true].into_iter().for_each(|own| body(dtype, own));
    }
}

/// A guess of each kind is at least this part of what is known, and at most its inverse.
fn near(found: usize, expected: usize) -> bool {
    found * 10 >= expected * 9 && found * 9 <= expected * 10
}

#[test]
#[serial]
fn an_mlp() {
    each(|dtype, own| {
        let plain = is_exact("MLP", |device| classify::<NoCheckpointing>(Kind::Mlp, dtype, own, device));
        is_exact("MLP with checkpoints", |device| {
            classify::<BalancedCheckpointing>(Kind::Mlp, dtype, own, device)
        });
        // 784-512-256-10 with biases. The peak is in the second step, which has all of them.
        let parameters = (785 * 512 + 513 * 256 + 257 * 10) * dtype.size();
        if dtype == DType::F32 && own {
            let kinds = [MemoryKind::Parameters, MemoryKind::Gradients, MemoryKind::Optimizer];
            let [values, gradients, state] = kinds.map(|kind| plain.kind(kind));
            assert!(near(values, parameters + 4 * 32 * 784), "{plain}");
            assert!(near(gradients, parameters), "{plain}");
            assert!(near(state, 2 * parameters), "{plain}");
        }
    });
}

#[test]
#[serial]
fn a_cnn() {
    each(|dtype, own| {
        is_exact("CNN", |device| classify::<NoCheckpointing>(Kind::Cnn, dtype, own, device));
        is_exact("CNN with checkpoints", |device| {
            classify::<BalancedCheckpointing>(Kind::Cnn, dtype, own, device)
        });
    });
}

#[test]
#[serial]
fn a_transformer() {
    each(|dtype, own| {
        is_exact("transformer", |device| transform::<NoCheckpointing>(dtype, own, device));
        is_exact("transformer with checkpoints", |device| {
            transform::<BalancedCheckpointing>(dtype, own, device)
        });
    });
}

#[test]
#[serial]
fn nothing_is_launched_allocated_or_compiled() {
    let device = RocmDevice::default();
    device.synchronize().unwrap();
    let kernels = hip::Device::get(0).unwrap().loaded_kernels();
    let before = (device.counters().unwrap(), device.memory_stats().unwrap());
    let cached = burn_rocm::code_cache().stats();
    let estimate =
        estimate_memory(|device| classify::<NoCheckpointing>(Kind::Cnn, DType::F32, true, device)).unwrap();
    assert!(estimate.peak_allocated > 0);
    assert_eq!((device.counters().unwrap(), device.memory_stats().unwrap()), before);
    assert_eq!(hip::Device::get(0).unwrap().loaded_kernels(), kernels);
    assert_eq!(format!("{:?}", burn_rocm::code_cache().stats()), format!("{cached:?}"));
}

/// An op that an estimate refuses, with the op's name.
fn refused(step: impl FnOnce(&RocmDevice)) -> (&'static str, String) {
    match estimate_memory(step) {
        Err(RocmError::Dry { op, reason }) => (op, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
#[serial]
fn reads_are_refused_by_name() {
    let ones = |device: &RocmDevice| Tensor::<Rocm, 2>::ones([64, 64], device);
    assert_eq!(refused(|device| drop(ones(device).into_data())).0, "float_into_data");
    assert_eq!(
        refused(|device| {
            let _ = ones(device).sum().into_scalar();
        })
        .0,
        "float_into_data"
    );
    assert_eq!(refused(|device| drop(ones(device).greater_elem(0.5).argwhere())).0, "bool_argwhere");
    let large = |device: &RocmDevice| Tensor::<Rocm, 1>::ones([1 << 20], device);
    assert_eq!(refused(|device| drop(large(device).into_data())).0, "float_into_data");
    let elsewhere = refused(|device| drop(ones(device).to_device(&RocmDevice::default())));
    assert_eq!(elsewhere.0, "float_to_device");
    let nested = refused(|device| {
        if let Err(error) = device.estimate_memory(ones) {
            burn_rocm::raise(error);
        }
    });
    assert!(nested.1.contains("nested"), "{nested:?}");
    // The step may handle the error itself.
    let handled = estimate_memory(|device| {
        let read = read_with_fault(ones(device).into_primitive().tensor());
        assert!(matches!(read, Err(RocmError::Dry { .. })), "{read:?}");
    });
    assert_eq!(handled.unwrap().peak_allocated, 4 * 64 * 64);
}

#[test]
#[serial]
fn tensors_of_the_real_device_are_refused() {
    let real = Tensor::<Rocm, 2>::ones([64, 64], &RocmDevice::default());
    let primitive = |tensor: Tensor<Rocm, 2>| tensor.into_primitive().tensor();
    let mixed = estimate_memory(|device| {
        R::float_matmul(primitive(Tensor::ones([64, 64], device)), primitive(real.clone()))
    });
    assert!(matches!(mixed, Err(RocmError::Invalid { .. })), "{mixed:?}");
    let moved = estimate_memory(|device| real.clone().to_device(device) * 2.0).unwrap();
    assert_eq!(moved.peak_allocated, 4 * 64 * 64);
    assert_eq!(real.into_data().to_vec::<f32>().unwrap(), [1.0; 64 * 64]);
}

#[test]
#[serial]
fn a_dry_device_ends_with_its_estimate() {
    let mut kept = None;
    estimate_memory(|device| kept = Some((device.clone(), Tensor::<Rocm, 1>::ones([64], device)))).unwrap();
    let (device, tensor) = kept.unwrap();
    assert!(matches!(device.memory_stats(), Err(RocmError::Config { .. })));
    assert!(!RocmDevice::all().unwrap().contains(&device));
    let doubled = tensor * 2.0;
    assert!(doubled.try_into_data().is_err());
    assert!(matches!(burn_rocm::take_last_error(), Some(RocmError::Dry { .. })));
}

#[test]
#[serial]
fn a_panic_of_the_step_goes_on() {
    let panic = std::panic::catch_unwind(|| estimate_memory(|_| panic!("the step's own")));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the step's own"));
    estimate_memory(|device| Tensor::<Rocm, 1>::ones([64], device)).unwrap();
}

/// Estimates beside real work of another thread find the same, and the work's results are right.
#[test]
#[serial]
fn beside_real_work() {
    let step = |device: &RocmDevice| classify::<NoCheckpointing>(Kind::Mlp, DType::F32, true, device);
    let alone = estimate_memory(step).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let device = RocmDevice::default();
            let mut rounds = 0;
            while !ends.load(Ordering::Relaxed) || rounds == 0 {
                let ones = Tensor::<Rocm, 2>::ones([64, 64], &device);
                assert_eq!(
                    (ones.clone().matmul(ones) + 1.0).into_data().to_vec::<f32>().unwrap(),
                    [65.0; 4096]
                );
                rounds += 1;
            }
        });
        for _ in 0..5 {
            let beside = estimate_memory(step).unwrap();
            let sums = |all: &Estimate| (all.peak_allocated, all.peak_reserved, all.kinds);
            assert_eq!(sums(&beside), sums(&alone));
        }
        ends.store(true, Ordering::Relaxed);
        work.join().unwrap();
    });
}

#[test]
#[serial]
fn labels_say_the_kind() {
    let ones = |elements: usize, device: &RocmDevice| Tensor::<Rocm, 1>::ones([elements], device);
    let estimate = estimate_memory(|device| {
        let elements = |kind: MemoryKind| (kind as usize + 1) << 10;
        let all = MemoryKind::ALL.map(|kind| {
            let _kind = kind.label();
            let _inner = burn_rocm::memory_label("inner");
            ones(elements(kind), device)
        });
        (all, ones(1 << 4, device))
    });
    let estimate = estimate.unwrap();
    for kind in
        [MemoryKind::Gradients, MemoryKind::Optimizer, MemoryKind::Activations, MemoryKind::Workspaces]
    {
        assert_eq!(estimate.kind(kind), (kind as usize + 1) << 12, "{kind}");
    }
    assert_eq!(estimate.guessed, 256);
    assert_eq!(estimate.kind(MemoryKind::Parameters), (1 << 12) + 256);
}

#[test]
#[serial]
fn the_largest_batch_fits_and_one_more_does_not() {
    let device = RocmDevice::default();
    let step = |device: &RocmDevice, n: usize| {
        let images = Tensor::<Rocm, 2>::ones([n, 1 << 10], device);
        images.clone().matmul(Tensor::ones([1 << 10, 1 << 10], device)) + images
    };
    let limit = 100 << 20;
    let n = device.largest_batch(limit, step).unwrap();
    let peak = |n: usize| device.estimate_memory(|device| step(device, n)).unwrap();
    assert!(peak(n).peak_allocated <= limit, "{n}");
    // The same step for real, with a pool of that limit.
    let real = |n: usize| {
        <Rocm as burn::tensor::backend::Backend>::memory_cleanup(&device);
        device.set_memory_limit(limit).unwrap();
        let ran = std::panic::catch_unwind(|| drop(step(&device, n)));
        device.set_memory_limit(None).unwrap();
        ran.map_err(|_| burn_rocm::take_last_error().unwrap())
    };
    assert_eq!(real(n), Ok(()));
    assert!(matches!(real(n + 1), Err(RocmError::OutOfMemory { .. })));
    assert!(matches!(device.largest_batch(1 << 20, step), Err(RocmError::OutOfMemory { .. })));
    let constant = device.largest_batch(limit, |device, _| Tensor::<Rocm, 1>::ones([1 << 10], device));
    assert!(matches!(constant, Err(RocmError::Invalid { op: "largest_batch", .. })), "{constant:?}");
}
