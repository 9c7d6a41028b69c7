//! What Burn 0.22 needs of a device: profiling windows, the pool's state, and few waits.
//!
//! One test at a time, because the tests read the device's counters.
#![allow(missing_docs, clippy::unwrap_used, clippy::useless_conversion)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn_backend::ops::*;
use burn_backend::quantization::QuantScheme;
use burn_backend::{Backend, ProfileOptions, Shape, TensorMetadata, TimingMethod};
use burn_rocm_022::trace::{Counts, counting};
use burn_rocm_022::{
    BurnDevice, MemoryBy, ProviderKind, Rocm, RocmDevice, RocmError, memory_label, memory_record,
    memory_snapshot, memory_summary, memory_track_ops, take_last_error,
};
use burn_std::future::block_on;
use burn_std::{BoolStore, FloatDType, IntDType};

type R = Rocm;

fn alone() -> (MutexGuard<'static, ()>, RocmDevice, BurnDevice) {
    static LOCK: Mutex<()> = Mutex::new(());
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let device = RocmDevice::new(0);
    (lock, device.clone(), device.into())
}

fn ones(device: &BurnDevice, shape: impl Into<Shape>) -> burn_rocm_022::RocmTensor {
    R::float_ones(shape.into(), device, FloatDType::F32)
}

/// Work that takes a while on any device.
fn work(device: &BurnDevice) {
    let mut x = ones(device, [512, 512]);
    for _ in 0..8 {
        x = R::float_matmul(x.clone(), x);
        x = R::float_mul_scalar(x, (1.0f32 / 512.0).into());
    }
}

/// The summary and `supports` are this crate's too, and agree.
#[test]
fn a_summary_shows_what_supports_said() {
    use burn_rocm_022::fused::{self, By, FusedOp, supports};
    let (_lock, device, burn) = alone();
    let (x, row) = (ones(&burn, [8, 16]), ones(&burn, [16]));
    let dtype = burn_std::DType::F32;
    let said = supports(&FusedOp::LayerNorm { parameters: dtype }, &device, dtype, &[8, 16]).unwrap();
    let (_, summary) = burn_rocm_022::optimization_summary(|| {
        let normed = fused::layer_norm(x.clone(), row, None, 1e-5).unwrap();
        R::float_matmul(normed, R::float_transpose(x))
    });
    let sum = |of: fn(&burn_rocm_022::summary::OpSummary) -> u64| summary.ops.iter().map(of).sum::<u64>();
    assert_eq!(sum(|op| op.miopen), u64::from(said.forward == Some(By::Miopen)), "{said:?} {summary}");
    let products: Vec<_> = summary.of_op("float_matmul").collect();
    assert_eq!(products.len(), 1, "{summary}");
    assert_eq!(products[0].rocblas + products[0].kernels, 1, "{summary}");
}

#[test]
fn an_estimate_is_what_the_step_takes() {
    let (_lock, real, device) = alone();
    let step = |device: &RocmDevice| {
        let device = BurnDevice::from(device.clone());
        work(&device);
        ones(&device, [64, 64])
    };
    R::sync(&device).unwrap();
    R::memory_cleanup(&device);
    let estimate = real.estimate_memory(step).unwrap();
    real.reset_peak_memory().unwrap();
    let in_use = real.memory_stats().unwrap().allocated;
    drop(step(&real));
    assert_eq!(memory_summary(&real).unwrap().allocated.peak - in_use, estimate.peak_allocated);
    let read = real.estimate_memory(|device| {
        let ones = ones(&BurnDevice::from(device.clone()), [4]);
        block_on(R::float_into_data(ones)).unwrap_err();
        burn_rocm_022::raise(take_last_error().unwrap());
    });
    assert!(matches!(read, Err(RocmError::Dry { op: "float_into_data", .. })), "{read:?}");
}

#[test]
fn windows_measure_the_devices_time() {
    let (_lock, _, device) = alone();
    R::sync(&device).unwrap();
    let begun = Instant::now();
    let (seven, duration) = R::profile(&device, ProfileOptions::default(), || {
        work(&device);
        7
    })
    .unwrap();
    assert_eq!((seven, duration.timing_method()), (7, TimingMethod::Device));
    let taken = block_on(duration.resolve()).expect("a measurement").duration();
    let outside = begun.elapsed();
    assert!(taken > Duration::ZERO && taken <= outside, "{taken:?} of {outside:?}");

    // The outer window contains the inner one.
    let inside = device.clone();
    let (inner, outer) = R::profile(&device, ProfileOptions::default().flush(), move || {
        work(&inside);
        let (_, inner) = R::profile(&inside, ProfileOptions::default(), || work(&inside)).unwrap();
        work(&inside);
        inner
    })
    .unwrap();
    let [inner, outer] =
        [inner, outer].map(|window| block_on(window.resolve()).expect("a measurement").duration());
    assert!(inner > Duration::ZERO && inner < outer, "{inner:?} in {outer:?}");
}

#[test]
fn windows_are_closed_once() {
    let (_lock, _, device) = alone();
    let [first, second] = [(); 2].map(|()| R::profile_start(&device).unwrap().expect("a window"));
    assert_ne!(first, second);
    R::profile_abandon(&device, first);
    for closed in [first, second] {
        let result = R::profile_end(&device, closed, ProfileOptions::default());
        assert_eq!(result.is_ok(), closed == second);
    }
    for token in [first, second] {
        take_last_error();
        assert!(R::profile_end(&device, token, ProfileOptions::default()).is_err());
        assert!(matches!(take_last_error(), Some(RocmError::Invalid { op: "profile_end", .. })));
    }
    // If the work of a window panics, the window is abandoned and another can be opened.
    let panicked = std::panic::catch_unwind(|| {
        let device = RocmDevice::new(0).into();
        R::profile(&device, ProfileOptions::default(), || panic!("the work's own"))
    });
    assert!(panicked.is_err());
    assert!(R::profile(&device, ProfileOptions::default(), || work(&device)).is_ok());
}

#[test]
fn the_pool_is_counted() {
    let (_lock, _, device) = alone();
    R::sync(&device).unwrap();
    R::memory_cleanup(&device);
    let before = R::memory_pool_usage(&device).unwrap();
    let (small, large) = (ones(&device, [100]), ones(&device, [5 << 20]));
    let during = R::memory_pool_usage(&device).unwrap();
    assert_eq!(during.number_allocs, before.number_allocs + 2);
    assert_eq!(during.bytes_in_use, before.bytes_in_use + 400 + (20 << 20));
    assert!(during.bytes_padding >= before.bytes_padding);
    assert!(during.bytes_reserved >= during.bytes_in_use + during.bytes_padding);
    let report = R::memory_pool_report(&device).unwrap();
    let of_large =
        report.iter().find(|pool| pool.largest_alloc >= 20 << 20).expect("the pool of large blocks");
    assert!(of_large.pages >= 1 && of_large.pages_peak >= of_large.pages, "{report:?}");
    assert!(report.iter().all(|pool| pool.largest_alloc <= pool.page_size), "{report:?}");
    drop((small, large));
    let after = R::memory_pool_usage(&device).unwrap();
    assert_eq!((after.number_allocs, after.bytes_in_use), (before.number_allocs, before.bytes_in_use));
    assert!(after.bytes_reserved >= before.bytes_reserved);
}

/// A selection by a mask only waits to read the size of its result.
#[test]
fn mask_select_waits_once() {
    let (_lock, rocm, device) = alone();
    let x = ones(&device, [300, 70]);
    let mask = R::float_greater_elem(x.clone(), 0.5f32.into(), BoolStore::U8);
    R::sync(&device).unwrap();
    let before = rocm.counters().unwrap();
    let out = block_on(R::float_mask_select(x, mask));
    let after = rocm.counters().unwrap();
    assert_eq!(out.shape().as_slice(), [300 * 70]);
    assert_eq!(after.device_to_host - before.device_to_host, 1);
}

/// A transaction reads the values and scales of quantised tensors together.
#[test]
fn a_transaction_of_quantised_tensors_waits_once() {
    let (_lock, rocm, device) = alone();
    let quantised = [[8, 24], [4, 8], [16, 4]]
        .map(|shape| R::quantize_dynamic(ones(&device, shape), &QuantScheme::default()));
    let single = quantised.clone().map(|tensor| block_on(R::q_into_data(tensor)).unwrap());
    let transaction = TransactionPrimitive::<R>::new(vec![], quantised.into(), vec![], vec![]);
    R::sync(&device).unwrap();
    let before = rocm.counters().unwrap();
    let read = block_on(R::tr_execute(transaction)).unwrap();
    assert_eq!(rocm.counters().unwrap().waits - before.waits, 1);
    assert_eq!(read.read_qfloats, single);
}

/// One launch sums axes that are adjacent in memory; other axes take one launch for each run.
/// Padding takes one launch for each axis.
#[test]
fn few_launches() {
    let (_lock, rocm, device) = alone();
    let launches = |work: &dyn Fn()| {
        R::sync(&device).unwrap();
        let before = rocm.counters().unwrap().launches;
        work();
        R::flush(&device).unwrap();
        rocm.counters().unwrap().launches - before
    };
    let x = ones(&device, [64, 64, 4, 4]);
    assert_eq!(launches(&|| drop(R::float_sum_dims(x.clone(), &[2, 3]))), 1);
    let turned = R::float_permute(x.clone(), &[2, 0, 3, 1]);
    assert_eq!(launches(&|| drop(R::float_sum_dims(turned.clone(), &[0, 2]))), 1);
    // A few long lines are summed in two steps: at most two launches for each run.
    assert!(launches(&|| drop(R::float_sum_dims(x.clone(), &[0, 2, 3]))) <= 4);
    let padding = [(0, 0), (0, 0), (1, 2), (2, 1)];
    for mode in [burn_std::PadMode::Reflect, burn_std::PadMode::Edge] {
        assert_eq!(launches(&|| drop(R::float_pad(x.clone(), &padding, mode))), 2, "{mode:?}");
    }
    assert!(launches(&|| drop(R::float_pad(x.clone(), &padding, burn_std::PadMode::Constant(1.0)))) <= 2);
    let one = launches(&|| drop(R::float_sort_with_indices(x.clone(), 1, true, IntDType::I32)));
    assert_eq!(launches(&|| drop(R::float_topk_with_indices(x.clone(), 1, 3, IntDType::I32))), one);
}

/// MIOpen computes the statistics, the normalised tensor and the gradients; own kernels do the
/// rest. The CPU provider always does so. Elsewhere own kernels compute everything if the provider
/// has no such call or the call would leave most of a GPU idle. All elements are 1.
#[test]
fn batch_norm_takes_one_call_or_own_kernels() {
    let (_lock, _, device) = alone();
    let must = burn_rocm_022::provider().is_ok_and(|provider| provider.kind() == ProviderKind::Cpu);
    let (x, gamma) = (ones(&device, [16, 3, 8, 8]), ones(&device, [3]));
    // The sums are whole numbers. The variance is 0, so the scale is 1 / sqrt(1e-5) < 317. A
    // formula that takes scaled numbers from each other has fewer than 16 roundings of that.
    let most = 317.0 * 16.0 * 2f32.powi(-24);
    let is_all = |tensor, value: f32| {
        let data = block_on(R::float_into_data(tensor)).unwrap();
        assert!(data.iter::<f32>().all(|found| (found - value).abs() <= most), "{data:?} instead of {value}");
    };
    R::sync(&device).unwrap();
    let (out, counts) = counting(|| R::batch_norm_train(x.clone(), gamma.clone(), gamma.clone(), 1e-5));
    // After a call, one kernel makes the running statistics and repairs variances. Without a call,
    // two own kernels compute everything. The op also zeroes the earlier running statistics: where
    // small ops are deferred, as on GPUs, that is a kernel, and otherwise a memset.
    let counted = |counts: Counts| (counts.library_calls, counts.kernels);
    assert!(
        counted(counts) == (1, 1) || (!must && matches!(counted(counts), (1, 2) | (0, 2..=3))),
        "{counts:?}"
    );
    is_all(out.output, 1.0);
    is_all(out.mean.clone(), 1.0);
    is_all(out.variance.clone(), 0.0);
    let (back, counts) = counting(|| {
        R::batch_norm_train_backward(x.clone(), gamma.clone(), out.mean, out.variance, 1e-5, x.clone())
    });
    // Also the reciprocal root, as a chain of three steps or one launch each, and joining it to the
    // mean. Two own kernels stand for the call.
    let (calls, kernels) = counted(counts);
    assert!(
        (calls == 1 && kernels <= 4) || (!must && calls == 0 && (3..=6).contains(&kernels)),
        "{counts:?}"
    );
    is_all(back.x_grad, 0.0);
    is_all(back.gamma_grad, 0.0);
    is_all(back.beta_grad, 16.0 * 8.0 * 8.0);
    let (out, counts) = counting(|| {
        R::batch_norm(x.clone(), gamma.clone(), gamma.clone(), gamma.clone(), gamma.clone(), 1e-5)
    });
    assert!(counted(counts) == (1, 0) || (!must && counted(counts) == (0, 1)), "{counts:?}");
    is_all(out, 1.0);
}

/// A tensor may be overwritten only while nobody else holds its memory.
#[test]
fn can_mut() {
    let (_lock, _, device) = alone();
    let x = ones(&device, [4, 4]);
    assert!(x.can_mut());
    let other = R::float_slice(x.clone(), &[(0..2).into()]);
    assert!(!x.can_mut() && !other.can_mut());
    drop(other);
    assert!(x.can_mut());
    R::flush(&device).unwrap();
}

/// The profile by op, beside Burn's own windows.
#[test]
fn a_profile_has_each_op_with_its_shapes() {
    use burn_rocm_022::profile::{Detail, WorkKind};
    use burn_rocm_022::{profile, region};

    let (_lock, own, device) = alone();
    work(&device);
    own.synchronize().unwrap();
    let ((_, counts), profile) = profile(|| {
        let _region = region("work");
        counting(|| work(&device))
    });
    let rows = profile.rows(Detail::Region);
    let of = |kind| {
        let rows = rows.iter().filter(move |row| row.kind == Some(kind));
        rows.map(|row| row.calls).sum::<u64>()
    };
    assert_eq!((of(WorkKind::Library), of(WorkKind::Kernel)), (counts.library_calls, counts.kernels));
    let product = rows.iter().find(|row| &*row.op == "float_matmul").unwrap();
    assert_eq!((product.calls, &*product.shapes, &*product.region), (8, "[512, 512] [512, 512]", "work"));
    assert_eq!(product.flops, Some(8 * 2 * 512 * 512 * 512));
    let total: Duration = rows.iter().map(|row| row.total).sum();
    assert!(total > Duration::ZERO && total <= profile.wall(), "{profile}");
}

#[test]
fn reports_say_what_holds_the_memory() {
    let (_lock, own, device) = alone();
    memory_track_ops(true);
    let (product, record) = memory_record(&own, || {
        let _label = memory_label("device22");
        let x = ones(&device, [512, 512]);
        R::float_matmul(x.clone(), x)
    })
    .unwrap();
    memory_track_ops(false);
    let table = memory_summary(&own).unwrap().to_string();
    let row: Vec<_> = table.lines().find(|line| line.contains("device22")).unwrap().split('|').collect();
    assert_eq!([row[2].trim(), row[4].trim(), row[5].trim()], ["1.0 MiB", "1", "2"], "{table}");
    let snapshot = memory_snapshot(&own).unwrap();
    let block = snapshot.blocks.iter().find(|block| block.label.as_deref() == Some("device22")).unwrap();
    assert_eq!((block.bytes, block.op), (1 << 20, Some("float_matmul")));
    let at_peak = record.at_peak(MemoryBy::Op);
    for op in ["float_ones", "float_matmul"] {
        assert!(at_peak.contains(&(op.to_owned(), 1 << 20)), "{at_peak:?}");
    }
    drop(product);
}
