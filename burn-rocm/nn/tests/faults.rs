//! Targets that are not classes, and indices outside the input. The kernel detects them; reads of
//! the loss and of its gradients report them with the op's name.
#![allow(missing_docs, clippy::unwrap_used)]

use burn::backend::Autodiff;
use burn::tensor::{DType, Int, Tensor, TensorData, TensorPrimitive};
use burn_rocm::{Rocm, fused};
use burn_rocm_nn::loss::{BinaryCrossEntropyLossConfig, CrossEntropyLoss, NllLossConfig};

type B = Autodiff<burn_rocm::Rocm>;

fn ints(values: &[i64]) -> Tensor<B, 1, Int> {
    Tensor::from_ints(TensorData::new(values.to_vec(), [values.len()]), &Default::default())
}

/// The elements, and whether a fault marks them.
fn regardless<const D: usize>(tensor: Tensor<Rocm, D>) -> (Vec<f32>, bool) {
    let (data, fault) = burn_rocm::read_with_fault(tensor.into_primitive().tensor()).unwrap();
    (data.to_vec().unwrap(), fault.is_some())
}

/// The error of reading a faulty loss, the loss's value, and the scores' gradient with whether it
/// is faulty.
fn fault_of(loss: Tensor<B, 1>, scores: &Tensor<B, 2>) -> (String, f32, (Vec<f32>, bool)) {
    let bystander = Tensor::<B, 1>::from_floats([1.0, 2.0], &Default::default());
    let error = loss.clone().try_into_data().expect_err("the fault is reported").to_string();
    assert_eq!((bystander.clone() + bystander).into_data().to_vec::<f32>().unwrap(), [2.0, 4.0]);
    loss.clone().try_into_data().expect_err("and again");
    let grads = loss.backward();
    let grad = scores.grad(&grads).unwrap();
    scores.clone().try_into_data().expect("the scores are good");
    (error, regardless(loss.inner()).0[0], regardless(grad))
}

/// One test, because faults belong to the device.
#[test]
fn targets_that_are_no_class() {
    let device = Default::default();
    for columns in [4usize, 50] {
        let scores = Tensor::<B, 2>::zeros([3, columns], &device).require_grad();
        let of_row = (columns as f32).ln() / 3.0;
        for bad in [-1, columns as i64] {
            let loss = CrossEntropyLoss::<B>::new(None, &device).forward(scores.clone(), ints(&[1, bad, 2]));
            let (error, loss, (grad, faulty)) = fault_of(loss, &scores);
            assert!(faulty, "the gradient is computed from what the loss left");
            assert!(error.contains("cross_entropy: ") && error.contains(&format!("index {bad}")), "{error}");
            assert!(error.contains(&format!("size, {columns}")), "{error}");
            assert!((loss - 2.0 * of_row).abs() < 1e-5, "two rows count: {loss}");
            assert!(grad[columns..2 * columns].iter().all(|&g| g == 0.0), "the third has no gradient");
            assert!(grad[..columns].iter().all(|&g| g != 0.0));
        }
        let loss = NllLossConfig::new().init::<B>(&device).forward(scores.clone(), ints(&[0, 99, 2]));
        let (error, ..) = fault_of(loss, &scores);
        assert!(error.contains("cross_entropy: ") && error.contains("index 99"), "{error}");
        // A pad token need not be a class.
        let loss = CrossEntropyLoss::<B>::new(Some(1000), &device).forward(scores, ints(&[1, 1000, 2]));
        assert!((loss.into_data().to_vec::<f32>().unwrap()[0] - 2.0 * of_row).abs() < 1e-5);
    }
    let scores = Tensor::<B, 2>::zeros([1, 3], &device).require_grad();
    let loss = BinaryCrossEntropyLossConfig::new().with_logits(true).with_weights(Some(vec![1.0, 2.0]));
    let loss = loss.init::<B>(&device).forward(scores.clone().flatten::<1>(0, 1), ints(&[0, 2, 1]));
    let (error, ..) = fault_of(loss, &scores);
    assert!(error.contains("binary_cross_entropy: ") && error.contains("index 2"), "{error}");
    places_that_are_no_element();
}

/// The gradient of a maximum whose index lies outside the input; in f64, which this project's
/// kernel computes.
fn places_that_are_no_element() {
    let device = Default::default();
    let (kernel_size, stride) = ([2; 3], [2; 3]);
    let pool = fused::Pool3d { kernel_size, stride, padding: [0; 3], dilation: [1; 3], ceil_mode: false };
    for (place, bad) in [(7, false), (-1, false), (8, true), (-2, true)] {
        let grad = Tensor::<Rocm, 5>::ones([1; 5], (&device, DType::F64));
        let places = Tensor::<Rocm, 5, Int>::from_ints(TensorData::new(vec![place], [1; 5]), &device);
        let (grad, places) = (grad.into_primitive().tensor(), places.into_primitive());
        let dx = fused::max_pool3d_backward([1, 1, 2, 2, 2], pool, grad, places).unwrap();
        let dx = Tensor::<Rocm, 5>::from_primitive(TensorPrimitive::Float(dx));
        let read = dx.clone().try_into_data();
        assert_eq!(read.is_err(), bad, "place {place}");
        if let Err(error) = read {
            let error = error.to_string();
            assert!(error.contains("max_pool3d_backward: "), "{error}");
            assert!(error.contains(&format!("index {place}")), "{error}");
        }
        let (sum, fault) = burn_rocm::read_with_fault(dx.sum().into_primitive().tensor()).unwrap();
        assert_eq!(sum.to_vec::<f64>().unwrap(), [if place == 7 { 1.0 } else { 0.0 }], "place {place}");
        assert_eq!(fault.is_some(), bad, "place {place}");
    }
}
