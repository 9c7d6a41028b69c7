//! Targets that are not classes, and indices outside the input. The kernel detects them; reads of
//! the loss and of its gradients report them with the op's name. Both versions of Burn compile this
//! file.

use burn::tensor::{DType, TensorData};
use burn_rocm::fused;

use crate::world::nn::loss::{BinaryCrossEntropyLossConfig, CrossEntropyLossConfig, NllLossConfig};
use crate::world::{
    PADS_COUNT, Plain, PlainInt, Tracked, TrackedInt, from_rocm, plain, rocm, rocm_int, tracking,
};

fn ints(values: &[i64]) -> TrackedInt<1> {
    TrackedInt::from_ints(TensorData::new(values.to_vec(), [values.len()]), &tracking())
}

/// The elements, and whether a fault marks them.
fn regardless<const D: usize>(tensor: Plain<D>) -> (Vec<f32>, bool) {
    let (data, fault) = burn_rocm::read_with_fault(rocm(tensor)).unwrap();
    (data.iter().collect(), fault.is_some())
}

/// The error of reading a faulty loss, the loss's value, and the scores' gradient with whether it
/// is faulty.
fn fault_of(loss: Tracked<1>, scores: &Tracked<2>) -> (String, f32, (Vec<f32>, bool)) {
    let bystander = Tracked::<1>::from_floats([1.0, 2.0], &tracking());
    let error = loss.clone().try_into_data().expect_err("the fault is reported").to_string();
    assert_eq!((bystander.clone() + bystander).into_data().iter::<f32>().collect::<Vec<_>>(), [2.0, 4.0]);
    loss.clone().try_into_data().expect_err("and again");
    let grads = loss.backward();
    let grad = scores.grad(&grads).unwrap();
    scores.clone().try_into_data().expect("the scores are good");
    (error, regardless(loss.inner()).0[0], regardless(grad))
}

/// One test, because faults belong to the device.
#[test]
fn targets_that_are_no_class() {
    let device = tracking();
    for columns in [4usize, 50] {
        let scores = Tracked::<2>::zeros([3, columns], &device).require_grad();
        let of_row = (columns as f32).ln() / 3.0;
        for bad in [-1, columns as i64] {
            let loss = CrossEntropyLossConfig::new().init(&device);
            let loss = loss.forward(scores.clone(), ints(&[1, bad, 2]));
            let (error, loss, (grad, faulty)) = fault_of(loss, &scores);
            assert!(faulty, "the gradient is computed from what the loss left");
            assert!(error.contains("cross_entropy: ") && error.contains(&format!("index {bad}")), "{error}");
            assert!(error.contains(&format!("size, {columns}")), "{error}");
            assert!((loss - 2.0 * of_row).abs() < 1e-5, "two rows count: {loss}");
            assert!(grad[columns..2 * columns].iter().all(|&g| g == 0.0), "the third has no gradient");
            assert!(grad[..columns].iter().all(|&g| g != 0.0));
        }
        let loss = NllLossConfig::new().init(&device).forward(scores.clone(), ints(&[0, 99, 2]));
        let (error, ..) = fault_of(loss, &scores);
        assert!(error.contains("cross_entropy: ") && error.contains("index 99"), "{error}");
        // A pad token need not be a class.
        let loss = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![1000])).init(&device);
        let loss = loss.forward(scores, ints(&[1, 1000, 2])).into_data().iter::<f32>().next().unwrap();
        let expected = if PADS_COUNT { 2.0 * of_row } else { 3.0 * of_row };
        assert!((loss - expected).abs() < 1e-5, "{loss}, expected {expected}");
    }
    let scores = Tracked::<2>::zeros([1, 3], &device).require_grad();
    let loss = BinaryCrossEntropyLossConfig::new().with_logits(true).with_weights(Some(vec![1.0, 2.0]));
    let loss = loss.init(&device).forward(scores.clone().flatten::<1>(0, 1), ints(&[0, 2, 1]));
    let (error, ..) = fault_of(loss, &scores);
    assert!(error.contains("binary_cross_entropy: ") && error.contains("index 2"), "{error}");
    places_that_are_no_element();
}

/// The gradient of a maximum whose index lies outside the input; in f64, which this project's
/// kernel computes.
fn places_that_are_no_element() {
    let device = plain();
    let (kernel_size, stride) = ([2; 3], [2; 3]);
    let pool = fused::Pool3d { kernel_size, stride, padding: [0; 3], dilation: [1; 3], ceil_mode: false };
    for (place, bad) in [(7, false), (-1, false), (8, true), (-2, true)] {
        let grad = Plain::<5>::ones([1; 5], (&device, DType::F64));
        let places = PlainInt::<5>::from_ints(TensorData::new(vec![place], [1; 5]), &device);
        let (grad, places) = (rocm(grad), rocm_int(places));
        let dx = fused::max_pool3d_backward([1, 1, 2, 2, 2], pool, grad, places).unwrap();
        let dx = from_rocm::<5>(dx);
        let read = dx.clone().try_into_data();
        assert_eq!(read.is_err(), bad, "place {place}");
        if let Err(error) = read {
            let error = error.to_string();
            assert!(error.contains("max_pool3d_backward: "), "{error}");
            assert!(error.contains(&format!("index {place}")), "{error}");
        }
        let (sum, fault) = burn_rocm::read_with_fault(rocm(dx.sum())).unwrap();
        assert_eq!(
            sum.iter::<f64>().collect::<Vec<_>>(),
            [if place == 7 { 1.0 } else { 0.0 }],
            "place {place}"
        );
        assert_eq!(fault.is_some(), bad, "place {place}");
    }
}
