//! Bad input gives a typed error. The process and the other tensors stay intact, and the next op
//! works.
#![allow(missing_docs, clippy::unwrap_used)]

mod empty;
mod shapes;

use burn_rocm::{RocmDevice, RocmError, take_last_error};
use burn_rocm_tests::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a body that must panic, returns the typed error, and checks that the next op works and
/// `bystander` is intact.
fn error_of<T>(body: impl FnOnce() -> T) -> RocmError {
    let device = Default::default();
    let bystander = R::float_from_data(TensorData::from([1.0f32, 2.0, 3.0]), &device);
    let caught = catch_unwind(AssertUnwindSafe(body)).err().expect("bad input panics");
    let error = take_last_error().expect("the error is kept");
    let text = caught.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains(&error.to_string()), "the panic says {text:?}, the error {error}");
    assert!(take_last_error().is_none(), "an error is taken once");
    assert_eq!(read_float::<R>(bystander.clone()).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    let next = R::float_add(bystander.clone(), bystander);
    assert_eq!(read_float::<R>(next).to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
    error
}

fn zeros(shape: &[usize]) -> burn_backend::tensor::FloatTensor<R> {
    R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32)
}

fn invalid(error: RocmError, op: &str, found: &str) {
    match &error {
        RocmError::Invalid { op: of, .. } => assert!(of.contains(op), "{error}"),
        other => panic!("expected Invalid, found {other:?}"),
    }
    assert!(error.to_string().contains(found), "{error} does not name {found}");
}

#[test]
fn shapes_that_do_not_fit() {
    invalid(error_of(|| R::float_add(zeros(&[2, 3]), zeros(&[4, 3]))), "add", "[4, 3]");
    invalid(error_of(|| R::float_matmul(zeros(&[2, 3]), zeros(&[4, 5]))), "matmul", "[4, 5]");
    invalid(error_of(|| R::float_reshape(zeros(&[2, 3]), Shape::from(vec![7]))), "reshape", "[7]");
    invalid(error_of(|| R::float_cat(vec![zeros(&[2, 3]), zeros(&[2, 4])], 0)), "cat", "[2, 4]");
    invalid(error_of(|| R::float_expand(zeros(&[2, 3]), Shape::from(vec![4, 3]))), "expand", "[4, 3]");
    let conv = || ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1);
    invalid(
        error_of(|| R::conv2d(zeros(&[1, 3, 8, 8]), zeros(&[4, 2, 3, 3]), None, conv())),
        "conv2d",
        "[4, 2, 3, 3]",
    );
    invalid(
        error_of(|| R::conv2d(zeros(&[1, 2, 2, 2]), zeros(&[4, 2, 3, 3]), None, conv())),
        "conv2d",
        "[1, 2, 2, 2]",
    );
}

#[test]
fn deformations_that_do_not_fit() {
    let options = || DeformConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1, 1);
    let deform = |x: &[usize], offset: &[usize], weight: &[usize], mask: Option<&[usize]>, options| {
        let (x, offset, weight) = (zeros(x), zeros(offset), zeros(weight));
        let mask = mask.map(zeros);
        error_of(move || R::deform_conv2d(x, offset, weight, mask, None, options))
    };
    let (x, offset, weight) = ([1, 3, 4, 4], [1, 18, 2, 2], [5, 3, 3, 3]);
    let found = |error, text| invalid(error, "deform_conv2d", text);
    found(deform(&x, &offset, &[5, 2, 3, 3], None, options()), "[5, 2, 3, 3]");
    found(deform(&x, &[1, 9, 2, 2], &weight, None, options()), "[1, 9, 2, 2]");
    found(deform(&x, &[1, 18, 2, 3], &weight, None, options()), "[1, 18, 2, 3]");
    found(deform(&x, &offset, &weight, Some(&[1, 18, 2, 2]), options()), "[1, 18, 2, 2]");
    found(deform(&[1, 3, 2, 2], &offset, &weight, None, options()), "[1, 3, 2, 2]");
    found(deform(&[3, 4, 4], &offset, &weight, None, options()), "[3, 4, 4]");
    let twos = DeformConvOptions::new([1, 1], [0, 0], [1, 1], 1, 2);
    found(deform(&x, &[1, 36, 2, 2], &weight, None, twos), "offset_groups: 2");
    // Options whose sums wrap to sizes that fit.
    let padded = DeformConvOptions::new([1, 1], [1_usize << 63, 0], [1, 1], 1, 1);
    found(deform(&x, &offset, &weight, None, padded), "9223372036854775808");
    let dilated = DeformConvOptions::new([1, 1], [0, 0], [usize::MAX, 1], 1, 1);
    found(deform(&x, &[1, 8, 5, 3], &[5, 3, 2, 2], None, dilated), "18446744073709551615");
    let [x, offset, weight] = [zeros(&x), zeros(&offset), zeros(&weight)];
    let bias = error_of(|| {
        R::deform_conv2d(x.clone(), offset.clone(), weight.clone(), None, Some(zeros(&[4])), options())
    });
    found(bias, "[4]");
    let grad = error_of(|| {
        R::deform_conv2d_backward(x, offset, weight, None, None, zeros(&[1, 5, 3, 2]), options());
    });
    found(grad, "[1, 5, 3, 2]");
}

#[test]
fn sequences_that_do_not_fit() {
    let ints =
        |shape: &[usize]| R::int_zeros(Shape::from(shape.to_vec()), &Default::default(), IntDType::I32);
    let loss = |log_probs: &[usize], targets: &[usize], inputs: &[usize], lengths: &[usize], blank| {
        let (x, t, i, l) = (zeros(log_probs), ints(targets), ints(inputs), ints(lengths));
        error_of(move || R::ctc_loss(x, t, i, l, blank))
    };
    let found = |error, text| invalid(error, "ctc_loss", text);
    found(loss(&[4, 2, 3], &[1, 5], &[2], &[2], 0), "[1, 5]");
    found(loss(&[4, 2, 3], &[2, 5], &[3], &[2], 0), "[3]");
    found(loss(&[4, 2, 3], &[2, 5], &[2], &[2, 1], 0), "[2, 1]");
    found(loss(&[4, 2], &[2, 5], &[2], &[2], 0), "[4, 2]");
    found(loss(&[4, 2, 3], &[2, 5], &[2], &[2], 3), "3");
    let grad = error_of(|| {
        R::ctc_loss_backward(zeros(&[4, 2, 3]), ints(&[2, 5]), ints(&[2]), ints(&[2]), zeros(&[3]), 0)
    });
    found(grad, "[3]");
}

#[test]
fn dims_that_do_not_exist() {
    invalid(error_of(|| R::float_sum_dim(zeros(&[2, 3]), 2)), "sum", "2");
    invalid(error_of(|| R::float_swap_dims(zeros(&[2, 3]), 0, 5)), "swap", "5");
}

#[test]
fn types_that_differ() {
    let device = Default::default();
    let half = || R::float_zeros(Shape::from(vec![2, 3]), &device, FloatDType::F16);
    let error = error_of(|| R::float_add(zeros(&[2, 3]), half()));
    assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
}

/// An index that wrapped would name another element.
#[test]
fn index_types_that_do_not_hold_every_index() {
    use burn_std::future::block_on;
    let narrow = [(IntDType::I8, 128, "i8"), (IntDType::U8, 256, "u8"), (IntDType::I16, 1 << 15, "i16")];
    for (dtype, most, name) in narrow {
        let line = |len: usize| zeros(&[2, len]);
        let mask = |len: usize| R::float_equal_elem(line(len), Scalar::Float(0.0), BoolDType::Native);
        let ops: [(&str, &dyn Fn(usize) -> usize); 7] = [
            ("float_argmax", &|len| R::float_argmax(line(len), 1, dtype).len()),
            ("float_argmin", &|len| R::float_argmin(line(len), 1, dtype).len()),
            ("float_max_dim_with_indices", &|len| R::float_max_dim_with_indices(line(len), 1, dtype).1.len()),
            ("float_argsort", &|len| R::float_argsort(line(len), 1, false, dtype).len()),
            ("float_sort_with_indices", &|len| {
                R::float_sort_with_indices(line(len), 1, false, dtype).1.len()
            }),
            ("float_argtopk", &|len| R::float_argtopk(line(len), 1, 3, dtype).len()),
            ("bool_argwhere", &|len| block_on(R::bool_argwhere(mask(len), dtype)).len()),
        ];
        for (op, run) in ops {
            assert!(run(most) > 0, "{op} of {most} in {name}");
            let error = error_of(|| run(most + 1));
            assert!(error.to_string().contains(&format!("{most} elements")), "{error}");
            assert!(error.to_string().contains(name), "{error}");
            invalid(error, op, &(most + 1).to_string());
        }
    }
    // The types that Burn's own ops choose for small integers.
    let ints = R::int_zeros(Shape::from(vec![200]), &Default::default(), IntDType::I8);
    assert_eq!(R::int_argsort(ints, 0, false).dtype(), DType::I32);
}

#[test]
fn divisors_that_are_zero_in_the_tensors_type() {
    let divide = |dtype: IntDType, by: Scalar| {
        let ones = || R::int_ones(Shape::from(vec![3]), &Default::default(), dtype);
        let remainder = error_of(|| R::int_remainder_scalar(ones(), by));
        let quotient = error_of(|| R::int_div_scalar(ones(), by));
        for (error, op) in [(&remainder, "int_remainder_scalar"), (&quotient, "int_div_scalar")] {
            assert!(matches!(error, RocmError::Invalid { op: of, .. } if *of == op), "{error}");
        }
        quotient.to_string()
    };
    for (dtype, by, found) in [
        (IntDType::U8, Scalar::Int(256), "256, which is 0 in u8"),
        (IntDType::I16, Scalar::Int(-65_536), "-65536, which is 0 in i16"),
        (IntDType::I32, Scalar::Float(0.5), "0.5, which is 0 in i32"),
    ] {
        let text = divide(dtype, by);
        assert!(text.contains("a divisor other than 0") && text.contains(found), "{text}");
    }
    let text = divide(IntDType::I64, Scalar::Int(0));
    assert!(text.contains("a divisor other than 0") && !text.contains("which is"), "{text}");
}

#[test]
fn a_device_past_the_end() {
    let error = error_of(|| R::float_zeros(Shape::from(vec![1]), &RocmDevice::new(9999), FloatDType::F32));
    assert!(matches!(error, RocmError::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("9999"), "{error}");
}

#[test]
fn more_memory_than_there_is() {
    let shape = Shape::from(vec![1 << 22, 1 << 22]);
    let error = error_of(|| R::float_empty(shape, &Default::default(), FloatDType::F32));
    match error {
        RocmError::OutOfMemory { requested, total, .. } => {
            assert_eq!(requested, 1 << 46);
            assert!(total > 0 && total < requested);
        }
        other => panic!("expected OutOfMemory, found {other:?}"),
    }
}

/// A read that needs a packed copy of a view of 64 TiB.
#[test]
fn more_memory_than_there_is_for_a_read() {
    let one = R::float_ones(Shape::from(vec![1, 1]), &Default::default(), FloatDType::F32);
    let view = R::float_expand(one, Shape::from(vec![1 << 22, 1 << 22]));
    drop(take_last_error());
    let result = burn_std::future::block_on(R::float_into_data(view));
    assert!(result.is_err(), "64 TiB were read");
    match take_last_error() {
        Some(RocmError::OutOfMemory { requested, .. }) => assert_eq!(requested, 1 << 46),
        other => panic!("expected OutOfMemory, found {other:?}"),
    }
}

#[test]
fn device_names() {
    assert_eq!("rocm".parse::<RocmDevice>().unwrap(), RocmDevice::new(0));
    assert_eq!("rocm:1".parse::<RocmDevice>().unwrap(), RocmDevice::new(1));
    for bad in ["", "cuda", "rocm:", "rocm:x", "rocm:-1", "rocm:1:2", "rocm:99999999999999999999"] {
        let error = bad.parse::<RocmDevice>().unwrap_err();
        assert!(error.to_string().contains("rocm"), "{bad:?}: {error}");
    }
}

/// In separate processes, because a process chooses its provider once.
#[test]
fn providers_that_cannot_be_had() {
    const CHILD: &str = "BURN_ROCM_TEST_PROVIDER_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let caught = catch_unwind(|| zeros(&[1])).err();
        println!("panicked: {}", caught.is_some());
        println!("error: {:?}", take_last_error());
        println!("rocm devices: {} available: {}", burn_rocm::rocm_device_count(), burn_rocm::is_available());
        return;
    }
    let run = |provider: &str, more: &[(&str, &str)]| {
        let environment = [&[(CHILD, "1"), ("BURN_ROCM_PROVIDER", provider)], more].concat();
        again(&["--exact", "providers_that_cannot_be_had", "--nocapture"], &environment)
    };
    let text = run("directx", &[]);
    assert!(text.contains("panicked: true") && text.contains("Config"), "{text}");
    assert!(text.contains("directx") && text.contains("auto"), "{text}");
    let text = run("cpu", &[("BURN_ROCM_CPU_THREADS", "many")]);
    assert!(text.contains("Config") && text.contains("many"), "{text}");
    if std::env::var("BURN_ROCM_PROVIDER").as_deref() != Ok("rocm")
        && !std::path::Path::new("/dev/kfd").exists()
    {
        let text = run("rocm", &[]);
        assert!(text.contains("panicked: true") && text.contains("NotAvailable"), "{text}");
        assert!(text.contains("libamdhip64"), "what was looked for is named: {text}");
        assert!(text.contains("rocm devices: 0 available: false"), "{text}");
    }
}
