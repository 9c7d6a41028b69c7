//! Which reads report a fault: reads of the op's result and of everything computed from it, in
//! every thread and every time; no others. `faults.rs` tests the errors' contents.
//!
//! These tests have their own program and run one at a time: a sync reports the faults of the whole
//! device, and the tests count its words.
#![allow(missing_docs, clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_rocm::fused::optim::{Clip, Rule, Sgd, State, Step};
use burn_rocm::fused::{
    BinaryTargets, binary_cross_entropy_backward, log_softmax_backward, softmax_backward,
};
use burn_rocm::{RocmDevice, RocmError, take_last_error};
use burn_rocm_tests::*;
use burn_std::future::block_on;
use serial_test::serial;

fn floats(shape: &[usize]) -> FloatTensor<R> {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (1..=n).map(|i| i as f32).collect();
    R::float_from_data(TensorData::new(values, Shape::from(shape.to_vec())), &Default::default())
}

fn ints(values: &[i32]) -> IntTensor<R> {
    R::int_from_data(TensorData::new(values.to_vec(), [values.len()]), &Default::default())
}

/// `x` with its rows moved up by one; the last row is read from row `wrong`, which `x` does not
/// have.
fn offender(x: FloatTensor<R>, wrong: i32) -> FloatTensor<R> {
    let rows = x.dims()[0] as i32;
    let order: Vec<i32> = (1..rows).chain([wrong]).collect();
    R::float_select(x, 0, ints(&order))
}

fn is_index(error: &RocmError, op: &str, wrong: i32) -> bool {
    matches!(error, RocmError::Invalid { op: found, found: index, .. }
        if *found == op && *index == format!("index {wrong}"))
}

/// Checks that a read fails with the offender's error, also as a typed error, and that a second
/// read fails in the same way.
fn faulty(what: &str, tensor: &FloatTensor<R>, wrong: i32) {
    for time in ["first", "second"] {
        let text = block_on(R::float_into_data(tensor.clone()));
        let text = text.err().unwrap_or_else(|| panic!("{what}: the {time} read gives elements")).to_string();
        let error = take_last_error().unwrap_or_else(|| panic!("{what}: no typed error of {text}"));
        assert!(is_index(&error, "float_select", wrong), "{what}: {error}");
        assert!(text.contains(&format!("index {wrong}")), "{what}: {text}");
    }
}

fn clean(what: &str, tensor: &FloatTensor<R>) {
    if let Err(error) = block_on(R::float_into_data(tensor.clone())) {
        panic!("{what} is no result of a fault: {error}");
    }
}

fn of_bool(tensor: BoolTensor<R>) -> FloatTensor<R> {
    R::bool_into_float(tensor, FloatDType::F32)
}

fn slices(ranges: &[core::ops::Range<usize>]) -> Vec<Slice> {
    ranges.iter().map(|range| Slice::from(range.clone())).collect()
}

/// An op on a faulty tensor and a good one, both `[4, 4]`.
type Derived = (&'static str, fn(FloatTensor<R>, FloatTensor<R>) -> FloatTensor<R>);

const DERIVED: &[Derived] = &[
    ("clone", |x, _| x.clone()),
    ("a view without the bad row", |x, _| R::float_slice(x, &slices(&[0..2, 1..3]))),
    ("transpose", |x, _| R::float_transpose(x)),
    ("reshape of a transpose", |x, _| R::float_reshape(R::float_transpose(x), Shape::from(vec![16]))),
    ("add", |x, y| R::float_add(x, y)),
    ("add from the right", |x, y| R::float_add(y, x)),
    ("add a row", |x, y| R::float_add(y, R::float_slice(x, &slices(&[0..1, 0..4])))),
    ("in place", |x, _| R::float_add_scalar(x, 1.0f32.into())),
    ("a chain", |x, y| {
        let mut z = R::float_exp(R::float_mul_scalar(x, 0.01f32.into()));
        for _ in 0..40 {
            z = R::float_add(z, y.clone());
        }
        z
    }),
    ("cat", |x, y| R::float_cat(vec![y.clone(), x, y], 0)),
    ("slice_assign", |x, y| R::float_slice_assign(y, &slices(&[0..4, 0..4]), x)),
    ("slice_assign into it", |x, y| {
        R::float_slice_assign(x, &slices(&[0..1, 0..4]), R::float_slice(y, &slices(&[0..1, 0..4])))
    }),
    ("matmul", |x, y| R::float_matmul(x, y)),
    ("matmul from the right", |x, y| R::float_matmul(y, R::float_transpose(x))),
    ("convolution", |x, y| R::conv2d(image(x), image(y), None, ConvOptions::new([1; 2], [1; 2], [1; 2], 1))),
    ("weights of a convolution", |x, y| {
        R::conv2d(image(y), image(x), None, ConvOptions::new([1; 2], [1; 2], [1; 2], 1))
    }),
    ("average pooling", |x, _| R::avg_pool2d(image(x), [2; 2], [2; 2], [0; 2], true, false)),
    ("max pooling", |x, _| R::max_pool2d(image(x), [2; 2], [2; 2], [0; 2], [1; 2], false)),
    ("sum", |x, _| R::float_sum(x)),
    ("mean of an axis", |x, _| R::float_mean_dim(x, 0)),
    ("argmax", |x, _| R::int_into_float(R::float_argmax(x, 1, IntDType::I32), FloatDType::F32)),
    ("cumsum", |x, _| R::float_cumsum(x, 0)),
    ("sort", |x, _| R::float_sort(x, 1, false)),
    ("comparison", |x, y| of_bool(R::float_greater(x, y, BoolDType::Native))),
    ("mask", |x, y| {
        let mask = R::float_greater_elem(x, 3.0f32.into(), BoolDType::Native);
        R::float_mask_where(y.clone(), mask, y)
    }),
    ("cast", |x, _| R::float_cast(R::float_cast(x, FloatDType::F16), FloatDType::F32)),
    ("gather", |x, y| {
        R::float_gather(
            0,
            y,
            R::float_into_int(R::float_clamp(x, 0.0f32.into(), 1.0f32.into()), IntDType::I32),
        )
    }),
    ("softmax", |x, _| R::softmax(x, 1)),
    ("gradient of softmax", |x, y| softmax_backward(x, y, 1).unwrap()),
    ("gradient of log_softmax", |x, y| log_softmax_backward(x, y, 0).unwrap()),
    ("quantised", |x, _| {
        let scheme = burn_std::QuantScheme::default();
        R::dequantize(R::quantize_dynamic(x, &scheme), FloatDType::F32)
    }),
    ("scatter_add of it", |x, y| {
        let at = R::int_zeros(Shape::from(vec![4, 4]), &Default::default(), IntDType::I32);
        R::float_scatter_add(0, y, at, x)
    }),
];

fn image(x: FloatTensor<R>) -> FloatTensor<R> {
    R::float_reshape(x, Shape::from(vec![1, 1, 4, 4]))
}

#[test]
#[serial]
fn what_is_computed_from_a_fault_fails_and_nothing_else() {
    let (table, other) = (floats(&[4, 4]), floats(&[4, 4]));
    for (n, (what, op)) in DERIVED.iter().enumerate() {
        let wrong = 10 + n as i32;
        let bad = offender(table.clone(), wrong);
        let kept = bad.clone();
        let result = op(bad, other.clone());
        // The same op on good tensors at the same time must not fail.
        let good = op(R::float_add_scalar(table.clone(), 1.0f32.into()), other.clone());
        clean(what, &good);
        faulty(what, &result, wrong);
        faulty(what, &kept, wrong);
        clean(what, &table);
        clean(what, &other);
        clean(what, &good);
    }
    R::sync(&Default::default()).expect("each fault has been reported by a read");
}

/// Chains are off on the CPU device.
#[test]
#[serial]
fn what_is_put_off_carries_faults() {
    let test = "what_is_computed_from_a_fault_fails_and_nothing_else";
    again(&["--exact", test], &[("BURN_ROCM_CHAIN", "16")]);
}

#[test]
#[serial]
fn a_fault_in_place_stays_out_of_clones_made_before() {
    let target = floats(&[3]);
    let before = target.clone();
    let scattered = R::float_scatter_add(0, target, ints(&[0, 3, 1]), floats(&[3]));
    let after = R::float_mul_scalar(scattered.clone(), 2.0f32.into());
    for tensor in [&scattered, &after] {
        for _ in 0..2 {
            assert!(block_on(R::float_into_data(tensor.clone())).is_err());
            assert!(is_index(&take_last_error().unwrap(), "float_scatter_add", 3));
        }
    }
    assert_eq!(read_float::<R>(before).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    // Nobody else holds these: the ops write in place.
    let offender = offender(floats(&[4, 4]), 8);
    faulty("in place", &R::float_add_scalar(offender, 1.0f32.into()), 8);
    let scattered = R::float_scatter_add(0, floats(&[3]), ints(&[0, 7, 1]), floats(&[3]));
    assert!(block_on(R::float_into_data(scattered)).is_err());
}

/// Each thread reads its own results while other threads' faults occur.
#[test]
#[serial]
fn each_thread_reads_its_own_faults() {
    let shared = floats(&[8, 8]);
    let run = |thread: i32| {
        for step in 0..50 {
            let wrong = 100 + 100 * thread + step;
            let bad = R::float_matmul(offender(shared.clone(), wrong), shared.clone());
            let good = R::float_matmul(offender(shared.clone(), thread), shared.clone());
            let (bad, good) = (R::float_exp(bad), R::float_add(good, shared.clone()));
            // A read fails in any thread.
            std::thread::scope(|scope| {
                scope.spawn(|| faulty("another thread's", &bad, wrong));
                scope.spawn(|| clean("a bystander", &good));
            });
            faulty("its own", &bad, wrong);
            clean("its own", &good);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || run(thread)))));
    clean("what all share", &shared);
}

#[test]
#[serial]
fn a_fault_goes_with_its_tensor() {
    let (device, hip) = (RocmDevice::default(), hip::Device::get(0).unwrap());
    R::sync(&device).unwrap();
    let before = hip.fault_words();
    let table = floats(&[64]);
    let bad = offender(table.clone(), 99);
    let derived = R::float_exp(bad.clone());
    assert_eq!(hip.fault_words() - before, 1, "one launch, one word");
    drop(bad);
    faulty("the derived one", &derived, 99);
    drop(derived);
    R::sync(&device).expect("it has been read");
    assert_eq!(hip.fault_words(), before, "nobody holds the word");
    // New tensors get the same memory.
    for _ in 0..20 {
        let next = R::float_add(table.clone(), table.clone());
        clean("what is in its memory", &next);
    }
    // The whole tensor is overwritten.
    let bad = offender(table.clone(), 99);
    let healed = R::float_slice_assign(bad, &[Slice::from(0..64)], table);
    assert_eq!(read_float::<R>(healed).to_vec::<f32>().unwrap()[63], 64.0);
    assert!(R::sync(&device).is_err(), "a fault that no read has reported");
    R::sync(&device).unwrap();
}

/// The norms of all gradients lie in one tensor.
#[test]
#[serial]
fn a_gradients_fault_stays_with_its_parameter_where_norms_are_clipped() {
    let sgd = Sgd { lr: 0.1, penalty: 0.0, momentum: None };
    let mut step = Step::new(Rule::Sgd(sgd), Clip::Norm(1.0));
    let (bad, _) = step.add(floats(&[4]), offender(floats(&[4]), 9), &mut State::default()).unwrap();
    let (good, _) = step.add(floats(&[4]), floats(&[4]), &mut State::default()).unwrap();
    step.run().unwrap();
    faulty("the gradient's parameter", &bad, 9);
    clean("another parameter", &good);
}

/// The gradient checks the targets itself: no loss is computed here.
#[test]
#[serial]
fn a_binary_losses_gradient_reports_a_target_without_a_weight() {
    let of = BinaryTargets { logits: true, targets: ints(&[0, 1, 2]), smoothing: None };
    let grad = binary_cross_entropy_backward(floats(&[3]), Some(floats(&[2])), &of, floats(&[1])).unwrap();
    assert!(block_on(R::float_into_data(grad)).is_err(), "two weights, and target 2");
    let error = take_last_error().unwrap();
    assert!(is_index(&error, "binary_cross_entropy_backward", 2), "{error}");
}

#[test]
#[serial]
fn sync_reports_what_no_read_has_once_and_clears_nothing() {
    let device = RocmDevice::default();
    let table = floats(&[4, 4]);
    let (read, held) = (offender(table.clone(), 21), offender(table.clone(), 22));
    drop(offender(table.clone(), 23));
    faulty("read", &read, 21);
    let error = R::sync(&device).expect_err("two faults").to_string();
    assert!(error.contains("float_select: ") && !error.contains("index 21"), "{error}");
    assert!(matches!(take_last_error(), Some(RocmError::Invalid { op: "float_select", .. })));
    R::sync(&device).expect("once");
    faulty("read", &read, 21);
    faulty("held", &held, 22);
    R::sync(&device).expect("once");
    clean("the table", &table);
}

/// A panic keeps the typed error, also if an op's own read fails.
#[test]
#[serial]
fn what_a_read_panics_with_is_kept() {
    use burn::tensor::{Int, Tensor};
    let device = Default::default();
    let bad = || {
        let at = Tensor::<R, 1, Int>::from_ints([0, 5], &device);
        Tensor::<R, 1>::from_floats([1.0, 2.0], &device).select(0, at)
    };
    let caught = |body: &dyn Fn()| {
        assert!(take_last_error().is_none());
        assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
        let error = take_last_error().expect("the error is kept");
        assert!(is_index(&error, "float_select", 5), "{error}");
    };
    caught(&|| drop(bad().into_data()));
    caught(&|| println!("{}", bad().sum().into_scalar()));
    caught(&|| drop(bad().greater_elem(1.0).argwhere()));
    caught(&|| println!("{}", bad().greater_elem(1.0).any().into_scalar()));
    assert!(bad().try_into_data().is_err());
    assert!(take_last_error().is_some());
    drop(bad());
    assert!(R::sync(&device).is_err());
    assert!(is_index(&take_last_error().expect("sync keeps it too"), "float_select", 5));
}

/// A training loop looks up embeddings, updates their table and never reads. The number of fault
/// words that it holds is bounded.
#[test]
#[serial]
fn ten_thousand_look_ups_without_a_read() {
    let hip = hip::Device::get(0).unwrap();
    let mut weight = floats(&[16, 4]);
    let mut momentum = R::float_zeros(Shape::from(vec![16, 4]), &Default::default(), FloatDType::F32);
    let at = R::int_reshape(ints(&[3, 1, 15]), Shape::from(vec![1, 3]));
    let mut most = 0;
    for _ in 0..10_000 {
        let out = R::embedding(weight.clone(), at.clone());
        let grad = R::embedding_backward(weight.clone(), out, at.clone());
        momentum = R::float_add(R::float_mul_scalar(momentum, 0.5f32.into()), grad);
        weight = R::float_sub(weight, R::float_mul_scalar(momentum.clone(), 1e-3f32.into()));
        most = most.max(hip.fault_words());
    }
    println!("{most} words at most");
    assert!(most <= 1024, "{most} words are held");
    clean("the table", &weight);
    // The last read reports one wrong look-up, whatever came after it.
    let wrong = R::int_reshape(ints(&[3, 16, 15]), Shape::from(vec![1, 3]));
    for step in 0..1000 {
        let at = if step == 500 { &wrong } else { &at };
        let out = R::embedding(weight.clone(), at.clone());
        weight = R::float_sub(
            weight,
            R::float_mul_scalar(
                R::float_mean_dim(R::float_reshape(out, Shape::from(vec![3, 4])), 0),
                1e-3f32.into(),
            ),
        );
    }
    for _ in 0..2 {
        assert!(block_on(R::float_into_data(weight.clone())).is_err());
        assert!(is_index(&take_last_error().unwrap(), "embedding", 16));
    }
    assert!(hip.fault_words() <= 1024);
}

/// In a separate process with two CPU devices, because a process reads their number once.
#[test]
#[serial]
fn faults_travel_between_devices() {
    const CHILD: &str = "BURN_ROCM_TEST_FAULT_DEVICES_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let variables = [(CHILD, "1"), ("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")];
        again(&["--exact", "faults_travel_between_devices"], &variables);
        return;
    }
    let (first, second) = (RocmDevice::new(0), RocmDevice::new(1));
    let table = floats(&[4, 4]);
    let bad = offender(table.clone(), 31);
    let there = R::float_to_device(bad.clone(), &second);
    let good = R::float_to_device(table.clone(), &second);
    let product = R::float_matmul(there.clone(), good.clone());
    let back = R::float_to_device(product.clone(), &first);
    clean("another tensor of the other device", &good);
    R::sync(&second).expect("the fault is the first device's");
    for tensor in [&there, &product, &back, &bad] {
        faulty("what travelled", tensor, 31);
    }
    drop(bad);
    drop(there);
    faulty("what is left", &product, 31);
    R::sync(&first).expect("it has been read");
    clean("the table", &table);
    clean("another tensor of the other device", &R::float_matmul(good.clone(), good));
}
