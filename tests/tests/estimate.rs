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
    Estimate, MemoryKind, ProviderKind, Rocm, RocmDevice, RocmError, estimate_memory, memory_summary,
    read_with_fault,
};
use burn_rocm_examples::model::{Kind, Model};
use burn_rocm_tests::R;
use burn_std::device::Device as _;
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

/// How a model is trained.
#[derive(Clone, Copy, Debug)]
struct How {
    dtype: DType,
    /// With burn-rocm-nn's Adam instead of Burn's.
    own: bool,
    /// With labels that say what is a gradient and what is the optimizer's.
    labels: bool,
}

/// Two steps of an optimizer.
fn train<B2: AutodiffBackend, M: AutodiffModule<B2>>(
    mut model: M,
    mut optimizer: impl Optimizer<M, B2>,
    how: How,
    loss: impl Fn(&M) -> Tensor<B2, 1>,
) -> M {
    for _ in 0..2 {
        let loss = loss(&model);
        let label = how.labels.then(|| MemoryKind::Gradients.label());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        drop(label);
        let _label = how.labels.then(|| MemoryKind::Optimizer.label());
        model = optimizer.step(1e-3, model, gradients);
    }
    model
}

/// Two steps of a classifier.
fn classify<S: CheckpointStrategy>(kind: Kind, how: How, device: &RocmDevice) -> Model<Autodiff<Rocm, S>> {
    let model: Model<Of<S>> = cast(kind.init(device), how.dtype);
    let batch = (floats::<Of<S>, 3>([32, 28, 28], how.dtype, device), labels::<Of<S>>(32, device));
    let loss = |model: &Model<Of<S>>| {
        let logits = model.forward(batch.0.clone());
        CrossEntropyLossConfig::new().init(device).forward(logits, batch.1.clone())
    };
    match how.own {
        true => train(model, burn_rocm_nn::optim::AdamConfig::new().init(), how, loss),
        false => train(model, AdamConfig::new().init(), how, loss),
    }
}

/// Two steps of a transformer.
fn transform<S: CheckpointStrategy>(how: How, device: &RocmDevice) -> TransformerEncoder<Of<S>> {
    let model = cast(TransformerEncoderConfig::new(64, 256, 4, 2).init::<Of<S>>(device), how.dtype);
    let input = floats::<Of<S>, 3>([4, 32, 64], how.dtype, device);
    let loss = |model: &TransformerEncoder<Of<S>>| {
        model.forward(TransformerEncoderInput::new(input.clone())).powi_scalar(2).mean()
    };
    match how.own {
        true => train(model, burn_rocm_nn::optim::AdamConfig::new().init(), how, loss),
        false => train(model, AdamConfig::new().init(), how, loss),
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
    let measured = measured(&step);
    // On a GPU, MIOpen may have timed its algorithms by now, and the fastest has another workspace.
    // The CPU device has one algorithm for each shape.
    let one_algorithm = burn_rocm::provider().unwrap().kind() == ProviderKind::Cpu;
    assert!(found == measured || !one_algorithm && what.contains("CNN"), "{what}: {found:?}, {measured:?}");
    let sum: usize = estimate.kinds.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(sum, estimate.peak_allocated, "{what}");
    estimate
}

/// How a model is trained, without labels.
fn how(dtype: DType, own: bool) -> How {
    How { dtype, own, labels: false }
}

/// `body` for each dtype and each optimizer.
fn each(body: impl Fn(How)) {
    for dtype in [DType::F32, DType::BF16] {
        [false, true].into_iter().for_each(|own| body(how(dtype, own)));
    }
}

/// The kinds that are guessed are those that labels say, but for a tenth of the peak. Intermediate
/// results of Burn's optimizers count as gradients if no label says what they are.
fn is_near<T>(what: &str, how: How, guess: &Estimate, step: impl Fn(How, &RocmDevice) -> T) {
    let labelled = estimate_memory(|device| step(How { labels: true, ..how }, device)).unwrap();
    assert_eq!(labelled.peak_allocated, guess.peak_allocated, "{what}");
    assert!(labelled.guessed <= guess.guessed, "{what}");
    let sums = |estimate: &Estimate| {
        let [parameters, gradients, optimizer, activations, workspaces] = estimate.kinds.map(|kind| kind.1);
        let (gradients, optimizer) =
            if how.own { (gradients, optimizer) } else { (gradients + optimizer, 0) };
        [parameters, gradients, optimizer, activations, workspaces]
    };
    let apart: usize =
        sums(&labelled).iter().zip(sums(guess)).map(|(label, guess)| label.abs_diff(guess)).sum();
    assert!(apart <= guess.peak_allocated / 10, "{what}, {how:?}: guessed\n{guess}\nby labels\n{labelled}");
}

/// Exact, and with kinds that are guessed about right, with and without checkpoints.
fn is_right<T, U>(
    what: &str,
    plain: impl Fn(How, &RocmDevice) -> T,
    checkpointed: impl Fn(How, &RocmDevice) -> U,
) {
    each(|how| {
        let estimate = is_exact(what, |device| plain(how, device));
        is_near(what, how, &estimate, &plain);
        let what = format!("{what} with checkpoints");
        let estimate = is_exact(&what, |device| checkpointed(how, device));
        is_near(&what, how, &estimate, &checkpointed);
    });
}

#[test]
#[serial]
fn an_mlp() {
    is_right(
        "MLP",
        |how, device| classify::<NoCheckpointing>(Kind::Mlp, how, device),
        |how, device| classify::<BalancedCheckpointing>(Kind::Mlp, how, device),
    );
}

#[test]
#[serial]
fn a_cnn() {
    is_right(
        "CNN",
        |how, device| classify::<NoCheckpointing>(Kind::Cnn, how, device),
        |how, device| classify::<BalancedCheckpointing>(Kind::Cnn, how, device),
    );
}

#[test]
#[serial]
fn a_transformer() {
    is_right("transformer", transform::<NoCheckpointing>, transform::<BalancedCheckpointing>);
}

/// A scaler asks on the host whether gradients are finite. In an estimate they are.
#[test]
#[serial]
fn mixed_precision_with_a_scaler() {
    use burn_rocm_nn::amp::{GradScalerConfig, Precision};
    type B2 = Of<NoCheckpointing>;
    is_exact("a scaled linear layer", |device| {
        let mut model = burn::nn::LinearConfig::new(256, 128).init::<B2>(device);
        let mut optimizer = burn_rocm_nn::optim::AdamConfig::new().init();
        let mut scaler = GradScalerConfig::new().with_initial_scale(1.0).init();
        let input = floats::<B2, 2>([64, 256], DType::F16, device);
        for _ in 0..2 {
            let half = Precision::new(FloatDType::F16).convert(&model);
            let loss = half.forward(input.clone()).cast(FloatDType::F32).mean();
            let gradients = GradientsParams::from_grads(scaler.scale(loss).backward(), &half);
            model = scaler.step(&mut optimizer, 1e-3, model, gradients);
        }
        model
    });
}

/// The sizes of an MLP's kinds follow from its layers.
#[test]
#[serial]
fn the_kinds_of_an_mlp() {
    each(|how| {
        let how = How { labels: !how.own, ..how };
        let estimate = estimate_memory(|device| classify::<NoCheckpointing>(Kind::Mlp, how, device)).unwrap();
        // 784-512-256-10 with biases, and 32 images.
        let parameters = (785 * 512 + 513 * 256 + 257 * 10) * how.dtype.size();
        let images = 32 * 784 * how.dtype.size();
        let within = |kind: MemoryKind, least: usize, most: usize| {
            let found = estimate.kind(kind);
            let range = least * 9 / 10..=most * 11 / 10;
            assert!(range.contains(&found), "{how:?}, {kind}, {range:?}:\n{estimate}");
        };
        within(MemoryKind::Parameters, parameters + images, parameters + images);
        within(MemoryKind::Gradients, parameters, parameters);
        // Burn's Adam has intermediate results of the size of the largest layer too.
        within(MemoryKind::Optimizer, 2 * parameters, if how.own { 2 } else { 3 } * parameters);
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
        estimate_memory(|device| classify::<NoCheckpointing>(Kind::Cnn, how(DType::F32, true), device))
            .unwrap();
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

fn conv2d(images: Tensor<Rocm, 2>, weight: Tensor<Rocm, 2>) -> Tensor<Rocm, 4> {
    let options = burn::tensor::ops::ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
    burn::tensor::module::conv2d(images.reshape([1, 1, 64, 64]), weight.reshape([64, 1, 8, 8]), None, options)
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
    // Whichever comes first, and ops that launch a kernel, call a library or write into an operand.
    type Mix = fn(Tensor<Rocm, 2>, Tensor<Rocm, 2>);
    let mixes: [Mix; 9] = [
        |a, b| drop(a + b),
        |a, b| drop(a.matmul(b)),
        |a, b| drop(Tensor::cat(vec![a, b], 0)),
        |a, b| drop(a.slice_assign([0..64, 0..64], b)),
        |a, b| drop(a.mask_where(b.greater_elem(0.5), Tensor::zeros([64, 64], &RocmDevice::default()))),
        |a, b| drop(a.gather(1, b.int())),
        |a, b| drop(burn::tensor::module::linear(a, b, None)),
        |a, b| drop(conv2d(a, b)),
        |a, b| drop(burn_rocm::fused::optim::norm(&[a, b].map(|a| a.into_primitive().tensor())).unwrap()),
    ];
    for (number, mix) in mixes.into_iter().enumerate() {
        for first in [true, false] {
            // Burn finds some itself, and panics.
            let mixed = std::panic::catch_unwind(|| {
                estimate_memory(|device| {
                    let dry = Tensor::ones([64, 64], device);
                    if first { mix(dry, real.clone()) } else { mix(real.clone(), dry) }
                })
            });
            let refused = matches!(mixed, Err(_) | Ok(Err(RocmError::Invalid { .. })));
            assert!(refused, "{number}, {first}: {mixed:?}");
        }
    }
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
    let step = |device: &RocmDevice| classify::<NoCheckpointing>(Kind::Mlp, how(DType::F32, true), device);
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
fn the_real_device_is_as_before() {
    let device = RocmDevice::default();
    let numbers = |device: &RocmDevice| Tensor::<Rocm, 1>::random([64], Distribution::Default, device);
    let seed = |device: &RocmDevice, seed: u64| <Rocm as burn_backend::Backend>::seed(device, seed);
    seed(&device, 7);
    let expected = [numbers(&device), numbers(&device)].map(|tensor| tensor.into_data());
    seed(&device, 7);
    let first = numbers(&device).into_data();
    let before = (device.memory_stats().unwrap(), RocmDevice::default());
    estimate_memory(|device| {
        seed(device, 1);
        device.set_memory_limit(1 << 20).unwrap();
        assert!(matches!(device.set_default(), Err(RocmError::Config { .. })));
        numbers(device)
    })
    .unwrap();
    assert_eq!((device.memory_stats().unwrap(), RocmDevice::default()), before);
    assert_eq!([first, numbers(&device).into_data()], expected);
}

/// What trials leave behind: nothing, even if they run out of memory in a backward pass. Later
/// gradients are right.
#[test]
#[serial]
fn trials_leave_nothing_behind() {
    let gradient = |n: usize, device: &RocmDevice| {
        let x = Tensor::<Of<NoCheckpointing>, 2>::ones([n, 64], device).require_grad();
        let y = (x.clone() * 3.0).exp().matmul(Tensor::ones([64, 64], device));
        x.grad(&y.sum().backward()).unwrap()
    };
    let expected = gradient(4, &RocmDevice::default()).into_data();
    let mut devices = Vec::new();
    let mut in_backward = 0;
    let limit = 1 << 20;
    let fits = RocmDevice::default().largest_batch(limit, |device, n| {
        devices.push(std::sync::Arc::downgrade(&hip::Device::get(device.to_id().index_id.into()).unwrap()));
        let x = Tensor::<Of<NoCheckpointing>, 2>::ones([n, 64], device).require_grad();
        let y = (x.clone() * 3.0).exp().matmul(Tensor::ones([64, 64], device)).sum();
        in_backward += 1;
        let gradients = y.backward();
        in_backward -= 1;
        x.grad(&gradients).unwrap()
    });
    let fits = fits.unwrap();
    assert!(fits > 1 && estimate_memory(|device| gradient(fits, device)).unwrap().peak_allocated <= limit);
    assert!(in_backward > 0, "no trial ran out of memory in its backward pass");
    gradient(4, &RocmDevice::default()).into_data().assert_eq(&expected, true);
    assert_eq!(devices.iter().filter(|device| device.strong_count() > 0).count(), 0, "of {}", devices.len());
}

#[test]
#[serial]
fn a_step_may_have_threads_but_no_capture() {
    let estimate = estimate_memory(|device| {
        std::thread::scope(|scope| {
            let ones = || (Tensor::<Rocm, 1>::ones([1 << 10], device) + 1.0).exp();
            let others = [(); 2].map(|()| scope.spawn(ones));
            (ones(), others.map(|other| other.join().unwrap()))
        })
    });
    assert_eq!(estimate.unwrap().peak_allocated, 3 << 12);
    let captured = estimate_memory(|device| {
        let captured = burn_rocm::graph::Graph::capture(device, || Tensor::<Rocm, 1>::ones([64], device));
        assert!(captured.is_err());
        // The step goes on.
        (Tensor::<Rocm, 1>::ones([1 << 10], device) + 1.0).exp()
    });
    assert_eq!(captured.unwrap().peak_allocated, 1 << 12);
}

#[test]
#[serial]
fn a_profile_has_no_dry_work() {
    let step = |device: &RocmDevice| classify::<NoCheckpointing>(Kind::Mlp, how(DType::F32, true), device);
    let (estimate, profile) = burn_rocm::profile(|| estimate_memory(step).unwrap());
    assert!(estimate.peak_allocated > 0);
    let work = profile.rows(burn_rocm::profile::Detail::Work);
    assert!(work.iter().all(|row| row.kind.is_none()), "{profile}");
    assert!(profile.devices().is_empty(), "{profile}");
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
    let ones = |elements: usize, device: &RocmDevice| Tensor::<Rocm, 1>::ones([elements], device);
    // The peak is that of another part of the step until the batch is large.
    let hidden = |device: &RocmDevice, n: usize| {
        drop(ones(n, device));
        ones(10 << 20, device)
    };
    assert_eq!(device.largest_batch(limit, hidden).unwrap(), limit / 4);
    let constant = device.largest_batch(limit, |device, _| ones(1 << 10, device));
    let pieces =
        device.largest_batch(limit, |device, n| (0..n).step_by(64).for_each(|_| drop(ones(64, device))));
    let clamped = device.largest_batch(limit, |device, n| ones(n.min(512), device));
    for never in [constant, pieces, clamped] {
        assert!(matches!(never, Err(RocmError::Invalid { op: "largest_batch", .. })), "{never:?}");
    }
}

/// A step that returns the error of an op, or drops it, does not fit. What an op makes up for itself
/// does: here, a workspace.
#[test]
#[serial]
fn a_step_that_returns_its_error_does_not_fit() {
    use burn_rocm::fused::{AttentionOptions, attention};
    let device = RocmDevice::default();
    let heads = |device: &RocmDevice, n: usize| {
        Tensor::<Rocm, 4>::ones([n, 2, 64, 16], device).into_primitive().tensor()
    };
    let step = |device: &RocmDevice, n: usize| {
        let [q, k, v] = [(); 3].map(|()| heads(device, n));
        attention(q, k, v, None, &AttentionOptions::default())
    };
    let limit = 8 << 20;
    let returned = device.largest_batch(limit, step).unwrap();
    let dropped = device.largest_batch(limit, |device, n| drop(step(device, n))).unwrap();
    let panics = device
        .largest_batch(limit, |device, n| step(device, n).unwrap_or_else(|error| burn_rocm::raise(error)));
    let panics = panics.unwrap();
    assert_eq!([returned, dropped], [panics; 2]);
    let peak = device.estimate_memory(|device| step(device, returned).map(drop)).unwrap().peak_allocated;
    assert!(peak <= limit, "{peak}");
}
