//! The backend's functions beside ops: reads of many tensors, staged uploads, persistent
//! allocations, clean-up, seeds, devices. Burn's dispatch does not forward most of these.
//!
//! One test at a time, because they read the device's counters and its pool's statistics.
#![allow(missing_docs, clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn_backend::Distribution;
use burn_backend::quantization::{QuantLevel, QuantScheme, QuantStore, QuantValue};
use burn_backend::tensor::{FloatTensor, QuantizedTensor};
use burn_rocm::{RocmDevice, RocmError, take_last_error};
use burn_rocm_tests::*;
use burn_std::AllocationProperty;
use burn_std::future::block_on;
use serial_test::serial;

fn device() -> (RocmDevice, Arc<hip::Device>) {
    (RocmDevice::default(), hip::Device::get(0).expect("a device"))
}

fn floats(random: &Random, n: usize) -> TensorData {
    let values: Vec<f32> = (0..n).map(|_| random.uniform(-1.0, 1.0) as f32).collect();
    TensorData::new(values, Shape::from(vec![n]))
}

#[test]
#[serial]
fn a_transaction_waits_once() {
    let (device, hip) = device();
    let random = Random::new();
    // Small and large, odd and empty sizes, and one tensor that must be made contiguous first.
    let sizes = [1, 3, 0, 1000, 70_001, 2_000_003];
    let data: Vec<TensorData> = sizes.iter().map(|&n| floats(&random, n)).collect();
    let upload = |data: &TensorData| R::float_from_data(data.clone(), &device);
    let mut floats: Vec<FloatTensor<R>> = data.iter().map(upload).collect();
    let turned = float(&random, &[50, 70], DType::F16, View::Permuted, -1.0, 1.0);
    floats.push(turned.float::<R>(&device));
    let ints: Vec<_> =
        INTS.iter().map(|&dtype| int(&random, &[7, 5], dtype, View::Contiguous, 0, 9)).collect();
    let bools = mask(&random, &[13], View::Contiguous);
    let transaction = TransactionPrimitive::<R>::new(
        floats.clone(),
        vec![],
        ints.iter().map(|input| input.int::<R>(&device)).collect(),
        vec![bools.bool::<R>(&device)],
    );
    let before = hip.counters();
    let read = block_on(R::tr_execute(transaction)).expect("the data can be read");
    let after = hip.counters();
    assert_eq!(after.waits - before.waits, 1, "one wait for all");
    assert_eq!(after.device_to_host - before.device_to_host, (floats.len() + ints.len() + 1) as u64);
    for (data, read) in data.iter().zip(&read.read_floats) {
        assert_eq!(data.to_vec::<f32>().unwrap(), read.to_vec::<f32>().unwrap());
    }
    assert_eq!(read.read_floats[sizes.len()], read_float::<R>(floats.pop().unwrap()));
    for (input, read) in ints.iter().zip(&read.read_ints) {
        assert_eq!(*read, read_int::<R>(input.int::<R>(&device)));
    }
    assert_eq!(read.read_bools, [read_bool::<R>(bools.bool::<R>(&device))]);
    let none = block_on(R::tr_execute(TransactionPrimitive::default())).expect("nothing can be read");
    assert!(none.read_floats.is_empty() && none.read_bools.is_empty());
}

/// The values and scales of quantised tensors are read with the other tensors.
#[test]
#[serial]
fn a_transaction_reads_quantised_tensors_with_the_others() {
    let (device, hip) = device();
    let random = Random::new();
    let x = float(&random, &[8, 24], DType::F32, View::Contiguous, -1.0, 1.0);
    let mut quantised = Vec::new();
    for store in [QuantStore::Native, QuantStore::PackedU32(0)] {
        for value in [QuantValue::Q8S, QuantValue::Q4S] {
            for level in [QuantLevel::Tensor, QuantLevel::block([8u8])] {
                let scheme = QuantScheme::default().with_value(value).with_store(store).with_level(level);
                quantised.push(R::quantize_dynamic(x.float::<R>(&device), &scheme));
            }
        }
    }
    // A view, whose values are put in order first.
    quantised.push(R::q_transpose(quantised[0].clone()));
    let single = |tensor: &QuantizedTensor<R>| block_on(R::q_into_data(tensor.clone())).unwrap();
    let before = hip.counters();
    let expected: Vec<TensorData> = quantised.iter().map(single).collect();
    assert_eq!(hip.counters().waits - before.waits, expected.len() as u64, "values and scales at once");
    let plain = floats(&random, 1000);
    let tensors = vec![R::float_from_data(plain.clone(), &device)];
    let transaction = TransactionPrimitive::<R>::new(tensors, quantised, vec![], vec![]);
    let before = hip.counters();
    let read = block_on(R::tr_execute(transaction)).expect("the data can be read");
    assert_eq!(hip.counters().waits - before.waits, 1, "one wait for all");
    assert_eq!(read.read_qfloats, expected);
    assert_eq!(read.read_floats, [plain]);
}

#[test]
#[serial]
fn a_transaction_reports_faults() {
    let (device, _) = device();
    let x = R::float_from_data(TensorData::from([1.0f32, 2.0]), &device);
    let bad = R::float_select(x.clone(), 0, R::int_from_data(TensorData::from([5i32]), &device));
    let read = || TransactionPrimitive::<R>::new(vec![x.clone(), bad.clone()], vec![], vec![], vec![]);
    let error = block_on(R::tr_execute(read())).err().expect("the fault is reported").to_string();
    assert!(error.contains("float_select"), "{error}");
    assert!(block_on(R::tr_execute(read())).is_err(), "as often as it is read");
    let good = TransactionPrimitive::<R>::new(vec![x.clone()], vec![], vec![], vec![]);
    assert_eq!(block_on(R::tr_execute(good)).unwrap().read_floats[0].to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
#[serial]
fn staged_data_is_pinned_and_uploads_the_same() {
    let (device, hip) = device();
    let random = Random::new();
    let mut data: Vec<TensorData> = [10, 100_000, 1_500_001, 0].iter().map(|&n| floats(&random, n)).collect();
    let plain = data.clone();
    R::staging(data.iter_mut(), &device);
    assert_eq!(data, plain, "staging changes no value");
    assert_eq!(data[1].bytes.property(), AllocationProperty::Pinned);
    assert_eq!(data[2].bytes.property(), AllocationProperty::Pinned);
    // Staging twice has the same effect as once, a clone is ordinary data, and the host may still
    // change it.
    R::staging(data.iter_mut(), &device);
    let copy = data[1].clone();
    let before = hip.counters();
    for (staged, plain) in data.into_iter().zip(&plain) {
        let tensor = R::float_from_data(staged, &device);
        let doubled = R::float_add(tensor.clone(), tensor);
        let values = read_float::<R>(doubled).to_vec::<f32>().unwrap();
        let expected: Vec<f32> = plain.iter::<f32>().map(|v| v + v).collect();
        assert_eq!(values, expected);
    }
    assert_eq!(hip.counters().host_to_device - before.host_to_device, 3, "one copy each, none of nothing");
    assert_eq!(read_float::<R>(R::float_from_data(copy, &device)), plain[1]);
    // Blocks are reused, and data that is never uploaded gives its block back.
    for _ in 0..4 {
        let mut data = [floats(&random, 300_000)];
        let expected = data[0].to_vec::<f32>().unwrap();
        R::staging(data.iter_mut(), &device);
        let [data] = data;
        if random.below(2) == 0 {
            let tensor = R::float_from_data(data, &device);
            assert_eq!(read_float::<R>(tensor).to_vec::<f32>().unwrap(), expected);
        }
    }
    R::memory_cleanup(&device);
}

#[test]
#[serial]
fn persistent_allocations_are_apart() {
    let (device, hip) = device();
    let random = Random::new();
    let data = [floats(&random, 100), floats(&random, 400_000)];
    let before = hip.pool().stats();
    let transient = R::float_zeros(Shape::from(vec![1000]), &device, FloatDType::F32);
    assert_eq!(hip.pool().stats().persistent, before.persistent);
    let input = (data.clone(), device.clone());
    let weights = R::memory_persistent_allocations(&device, input, |(data, device)| {
        let [a, b] = data;
        [
            R::float_from_data(a, &device),
            R::float_from_data(b, &device),
            R::float_ones(Shape::from(vec![256]), &device, FloatDType::F32),
        ]
    });
    let during = hip.pool().stats();
    let bytes = 4 * (100 + 400_000 + 256);
    let held = during.persistent - before.persistent;
    assert!(held >= bytes && held < bytes + bytes / 16, "{held} bytes for {bytes}");
    assert!(during.persistent_reserved >= during.persistent);
    // Short-lived tensors do not touch them, and clean-up frees nothing that is in use.
    for n in [100, 5000, 400_000, 3_000_000] {
        let x = R::float_zeros(Shape::from(vec![n]), &device, FloatDType::F32);
        drop(R::float_add(x.clone(), x));
    }
    R::memory_cleanup(&device);
    let after = hip.pool().stats();
    assert_eq!(
        (after.persistent, after.persistent_reserved),
        (during.persistent, during.persistent_reserved)
    );
    for (weight, data) in weights.iter().zip(&data) {
        assert_eq!(read_float::<R>(weight.clone()), *data);
    }
    // Freed blocks stay for the next persistent allocation, so no new memory is requested, unless
    // the whole program runs without pooling.
    drop(weights);
    let freed = hip.pool().stats();
    assert_eq!(freed.persistent, before.persistent);
    assert_eq!(freed.persistent_reserved, during.persistent_reserved);
    let pools = std::env::var_os("BURN_ROCM_MEMORY_POOL").is_none_or(|value| value != "0");
    let again = R::memory_persistent_allocations(&device, data[1].clone(), |data| {
        R::float_from_data(data, &device_of())
    });
    assert_eq!(hip.pool().stats().misses, freed.misses + u64::from(!pools));
    assert_eq!(read_float::<R>(again), data[1]);
    R::memory_cleanup(&device);
    assert_eq!(hip.pool().stats().persistent_reserved, before.persistent_reserved);
    drop(transient);
}

fn device_of() -> RocmDevice {
    RocmDevice::default()
}

#[test]
#[serial]
fn cleanup_gives_back_what_is_free() {
    let (device, hip) = device();
    R::memory_cleanup(&device);
    let before = hip.pool().stats();
    let kept = R::float_ones(Shape::from(vec![10]), &device, FloatDType::F32);
    drop(R::float_zeros(Shape::from(vec![40 << 20]), &device, FloatDType::F32));
    assert!(hip.pool().stats().reserved >= before.reserved + (160 << 20));
    R::memory_cleanup(&device);
    let after = hip.pool().stats();
    assert!(after.reserved <= before.reserved + (8 << 20), "{after:?}");
    assert_eq!(read_float::<R>(kept).to_vec::<f32>().unwrap(), [1.0; 10]);
}

#[test]
#[serial]
fn the_same_seed_gives_the_same_numbers() {
    let (device, _) = device();
    let draw = || {
        let shape = || Shape::from(vec![1000]);
        [
            read_float::<R>(R::float_random(shape(), Distribution::Default, &device, FloatDType::F32)),
            read_float::<R>(R::float_random(
                shape(),
                Distribution::Normal(0.0, 1.0),
                &device,
                FloatDType::F64,
            )),
            read_int::<R>(R::int_random(shape(), Distribution::Uniform(0.0, 100.0), &device, IntDType::I64)),
        ]
    };
    R::seed(&device, 7);
    let (first, second) = (draw(), draw());
    assert_ne!(first, second);
    R::seed(&device, 7);
    assert_eq!((draw(), draw()), (first.clone(), second));
    R::seed(&device, 8);
    assert_ne!(draw(), first);
}

#[test]
#[serial]
fn sync_waits_for_the_device() {
    let (device, hip) = device();
    let x = R::float_ones(Shape::from(vec![1000]), &device, FloatDType::F32);
    let kept = R::float_exp(x);
    let before = hip.counters().waits;
    R::sync(&device).expect("nothing is wrong");
    assert!(hip.counters().waits > before);
    drop(kept);
}

#[test]
#[serial]
fn devices_are_counted_and_a_wrong_one_is_an_error() {
    let count = R::device_count(0);
    assert_eq!(count, hip::Device::count().unwrap());
    assert!(count >= 1);
    assert_eq!(R::name(&RocmDevice::default()), "rocm");
    assert!(!R::ad_enabled(&RocmDevice::default()));
    let past = RocmDevice::new(count);
    assert!(R::sync(&past).is_err());
    let config = |body: &dyn Fn()| {
        assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
        assert!(matches!(take_last_error(), Some(RocmError::Config { .. })));
    };
    config(&|| R::memory_cleanup(&past));
    config(&|| R::staging([TensorData::from([1.0f32])].iter_mut(), &past));
    config(&|| R::memory_persistent_allocations(&past, (), |()| ()));
}

/// Ops do with a dtype what `dtype_usage` promises.
#[test]
#[serial]
fn dtypes_are_what_they_are_said_to_be() {
    let device = RocmDevice::default();
    let flex = [DType::Flex32];
    for dtype in FLOATS.iter().chain(&flex) {
        assert!(R::supports_dtype(&device, *dtype), "{dtype:?}");
        let x = R::float_from_data(TensorData::from([1.0f32, 2.5]), &device);
        let x = R::float_cast(x, (*dtype).into());
        assert_eq!(x.dtype(), *dtype);
        let sum = R::float_sum(R::float_mul(R::float_add(x.clone(), x.clone()), x));
        assert_eq!(sum.dtype(), *dtype);
        assert_eq!(read_float::<R>(R::float_cast(sum, FloatDType::F32)).to_vec::<f32>().unwrap(), [14.5]);
    }
    for dtype in INTS {
        assert!(R::supports_dtype(&device, dtype), "{dtype:?}");
        let x = R::int_from_data(TensorData::from([1i32, 2]).convert_dtype(dtype), &device);
        let sum = R::int_sum(R::int_mul(R::int_add(x.clone(), x.clone()), x));
        assert_eq!(sum.dtype(), dtype);
        assert_eq!(read_int::<R>(sum).iter::<i64>().collect::<Vec<_>>(), [10]);
    }
    for store in [BoolStore::Native, BoolStore::U8, BoolStore::U32] {
        assert!(R::supports_dtype(&device, DType::Bool(store)), "{store:?}");
        let x = R::bool_zeros(Shape::from(vec![2]), &device, store);
        let x = R::bool_or(R::bool_not(x.clone()), x);
        assert_eq!(x.dtype(), DType::Bool(store));
        assert_eq!(read_int::<R>(R::bool_into_int(x, IntDType::I32)).to_vec::<i32>().unwrap(), [1, 1]);
    }
}
