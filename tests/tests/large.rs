//! Tensors with more elements than 31 bits can count. Ignored by default, because they need so much
//! memory.

use burn_rocm::fused::{
    BatchNormed, batch_norm_backward, batch_norm_infer, batch_norm_train, group_norm, group_norm_backward,
};
use burn_rocm::{RocmError, RocmTensor};
use burn_rocm_tests::*;

/// More than 2^31 elements (4.3 GB), but far fewer in each plane.
const SHAPE: [usize; 4] = [2, 2, 23_172, 23_174];

/// Zeros except for the last element of each plane, which has its plane's number, counted from 1.
fn marked() -> burn_rocm::RocmTensor {
    let device = Default::default();
    let [batch, channels, height, width] = SHAPE;
    let mut x = R::float_zeros(Shape::from(SHAPE.to_vec()), &device, FloatDType::F16);
    for plane in 0..batch * channels {
        let at = [plane / channels, plane % channels, height - 1, width - 1];
        let slices: Vec<Slice> = at.iter().map(|&at| Slice::from(at..at + 1)).collect();
        let value = TensorData::new(vec![plane as f64 + 1.0], [1, 1, 1, 1]).convert_dtype(DType::F16);
        x = R::float_slice_assign(x, &slices, R::float_from_data(value, &device));
    }
    x
}

/// The last element of each plane, and the sum of all elements.
fn corners(x: burn_rocm::RocmTensor) -> (Vec<f64>, f64) {
    let dims = x.dims().to_vec();
    let [height, width] = [dims[2], dims[3]];
    let slices = [0..dims[0], 0..dims[1], height - 1..height, width - 1..width].map(Slice::from);
    let corner = read_float::<R>(R::float_slice(x.clone(), &slices)).iter::<f64>().collect();
    (corner, read_float::<R>(R::float_sum(x)).iter::<f64>().sum())
}

#[test]
#[ignore = "needs 6 GB"]
fn pools_of_more_than_31_bits() {
    let (corner, sum) = corners(R::max_pool2d(marked(), [2, 2], [2, 2], [0, 0], [1, 1], false));
    assert_eq!((corner, sum), ((1..=4).map(f64::from).collect(), 10.0));
    let (corner, sum) = corners(R::avg_pool2d(marked(), [2, 2], [2, 2], [0, 0], true, false));
    assert_eq!((corner, sum), ((1..=4).map(|n| f64::from(n) / 4.0).collect(), 10.0 / 4.0));
}

#[test]
#[ignore = "needs 16 GB"]
fn gradients_of_pools_of_more_than_31_bits() {
    let found = R::max_pool2d_with_indices(marked(), [2, 2], [2, 2], [0, 0], [1, 1], false);
    let back = R::max_pool2d_with_indices_backward(
        marked(),
        [2, 2],
        [2, 2],
        [0, 0],
        [1, 1],
        false,
        found.output,
        found.indices,
    );
    let (corner, sum) = corners(back.x_grad);
    assert_eq!((corner, sum), ((1..=4).map(f64::from).collect(), 10.0));
}

#[test]
#[ignore = "needs 16 GB"]
fn convolutions_of_more_than_31_bits() {
    let device = Default::default();
    let ones = |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &device, FloatDType::F16);
    let options = || ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 2);
    let (corner, sum) = corners(R::conv2d(marked(), ones(&[2, 1, 1, 1]), None, options()));
    assert_eq!((corner, sum), ((1..=4).map(f64::from).collect(), 10.0));
    let (corner, sum) = corners(R::conv2d_x_backward(marked(), ones(&[2, 1, 1, 1]), marked(), options()));
    assert_eq!((corner, sum), ((1..=4).map(f64::from).collect(), 10.0));
    let grad = R::conv2d_weight_backward(marked(), ones(&[2, 1, 1, 1]), marked(), options());
    // The sums of planes 1 and 3 and of planes 2 and 4, which are the channels.
    assert_eq!(read_float::<R>(grad).iter::<f64>().collect::<Vec<_>>(), [10.0, 20.0]);
}

/// The number of elements whose bytes 32 bits can't count, at 8 bytes an element.
const COUNTED: usize = 1 << 29;

/// Zeros of `shape` in f16, except for `values` at `places`.
fn sparse(shape: [usize; 3], places: &[[usize; 3]], values: &[f64]) -> RocmTensor {
    let zeros = R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F16);
    places.iter().zip(values).fold(zeros, |x, (at, value)| {
        let value = TensorData::new(vec![*value], [1, 1, 1]).convert_dtype(DType::F16);
        let slices = at.map(|at| Slice::from(at..at + 1));
        R::float_slice_assign(x, &slices, R::float_from_data(value, &Default::default()))
    })
}

/// The elements at `places`.
fn at(x: &RocmTensor, places: &[[usize; 3]]) -> Vec<f64> {
    let read = |at: &[usize; 3]| {
        let slices = at.map(|at| Slice::from(at..at + 1));
        read_float::<R>(R::float_slice(x.clone(), &slices)).iter::<f64>().next().expect("one element")
    };
    places.iter().map(read).collect()
}

fn assert_near(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (x, y) in found.iter().zip(expected) {
        // Two roundings to f16.
        assert!(
            (x - y).abs() <= 2f64.powi(-10) * y.abs().max(1.0),
            "{what}: {found:?} instead of {expected:?}"
        );
    }
}

fn values(x: RocmTensor) -> Vec<f64> {
    read_float::<R>(x).iter::<f64>().collect()
}

/// Channels of at least 2^29 elements, not a multiple of a piece. With an epsilon of 1, data that
/// are almost all 0 equal their norm. So gamma's gradient is the sum of products of those few
/// values with the output's gradient.
#[test]
#[ignore = "needs 9 GB"]
fn norms_of_channels_of_2_29_elements() -> Result<(), RocmError> {
    for shape in [[2, 1, COUNTED + 3], [1, 2, COUNTED + 8]] {
        let [batch, channels, spatial] = shape;
        let last = [batch - 1, channels - 1, spatial - 1];
        let places = [[0, 0, 0], [0, 0, spatial - 1], [batch - 1, channels - 1, 1], last];
        let grads = [1.0, 2.0, 3.0, 4.0];
        let new = || sparse(shape, &places, &grads);
        let what = format!("{shape:?}");
        // For each channel.
        let (by_gamma, by_beta) =
            if channels == 1 { (vec![30.0], vec![10.0]) } else { (vec![5.0, 25.0], vec![3.0, 7.0]) };
        let (dx, sums) = group_norm_backward(new(), None, new(), channels, 1.0, true)?;
        assert_near(&what, &at(&dx, &places), &[1.0, 2.0, 3.0, 4.0]);
        drop(dx);
        let [dgamma, dbeta] = sums.unwrap();
        assert_near(&what, &values(dgamma), &by_gamma);
        assert_near(&what, &values(dbeta), &by_beta);
        assert_near(&what, &at(&group_norm(new(), None, 1, 1.0)?, &places), &grads);
        let of_channels = |value: f64| {
            let data = TensorData::new(vec![value; channels], [channels]).convert_dtype(DType::F32);
            R::float_from_data(data, &Default::default())
        };
        let [ones, zeros] = [1.0, 0.0].map(of_channels);
        let infer = batch_norm_infer(new(), ones.clone(), ones.clone(), [zeros.clone(), ones.clone()], 0.0)?;
        assert_near(&what, &at(&infer, &places), &grads.map(|x| x + 1.0));
        drop(infer);
        let running = [zeros.clone(), ones.clone()];
        let BatchNormed { output, statistics, .. } =
            batch_norm_train(new(), ones.clone(), zeros, running, 0.5, 1.0)?;
        assert_near(&what, &at(&output, &places), &grads);
        drop(output);
        let [dx, dgamma, dbeta] = batch_norm_backward(new(), ones, statistics, new(), 1.0)?;
        assert_near(&what, &at(&dx, &places), &grads);
        assert_near(&what, &values(dgamma), &by_gamma);
        assert_near(&what, &values(dbeta), &by_beta);
    }
    Ok(())
}

/// At least 2^29 channels of one element each. Gamma's gradient is a product with the output's
/// gradient; beta's is that gradient itself.
#[test]
#[ignore = "needs 14 GB"]
fn a_norm_of_2_29_channels() -> Result<(), RocmError> {
    let shape = [1, COUNTED + 3, 1];
    let last = shape[1] - 1;
    let places = [0, 1, last - 1, last].map(|channel| [0, channel, 0]);
    let grads = [1.0, 2.0, 3.0, 4.0];
    let new = || sparse(shape, &places, &grads);
    let (dx, sums) = group_norm_backward(new(), None, new(), 1, 1.0, true)?;
    assert_near("dx", &at(&dx, &places), &grads);
    drop(dx);
    let [dgamma, dbeta] = sums.unwrap().map(|sums| R::float_reshape(sums, Shape::from(shape.to_vec())));
    assert_near("dgamma", &at(&dgamma, &places), &grads.map(|x| x * x));
    assert_near("dbeta", &at(&dbeta, &places), &grads);
    assert_eq!(read_float::<R>(R::float_sum(dbeta)).iter::<f64>().sum::<f64>(), 10.0);
    Ok(())
}

/// All batches together have more rows than 31 bits count: in many small batches, in batches of one
/// row, and in one matrix.
#[test]
#[ignore = "needs 10 GB"]
fn products_of_more_than_31_bits() {
    let device = Default::default();
    let [batch, rows] = [70_000usize, 32_768];
    for shape in [[batch, rows, 1], [batch * rows, 1, 1], [1, batch * rows, 1]] {
        let weight = R::float_from_data(TensorData::from([[[3f32]]]).convert_dtype(DType::F16), &device);
        let x = R::float_zeros(Shape::from(shape.to_vec()), &device, FloatDType::F16);
        let last: Vec<Slice> = shape.iter().map(|&dim| Slice::from(dim - 1..dim)).collect();
        let one = R::float_ones(Shape::from(vec![1, 1, 1]), &device, FloatDType::F16);
        let product = R::float_matmul(R::float_slice_assign(x, &last, one), weight);
        let end = read_float::<R>(R::float_slice(product.clone(), &last)).iter::<f64>().collect::<Vec<_>>();
        let sum = read_float::<R>(R::float_sum(product)).iter::<f64>().sum::<f64>();
        assert_eq!((end, sum), (vec![3.0], 3.0), "{shape:?}");
    }
}
