//! Tensors of more elements than 31 bits count. Ignored: they need so much memory.

use burn_rocm_tests::*;

/// Past 2^31 elements (4.3 GB), each plane well below.
const SHAPE: [usize; 4] = [2, 2, 23_172, 23_174];

/// Zeros but for the last element of each plane, which has its plane's number from 1.
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

/// The last element of each plane, and the sum of all.
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
    // Of the channels' planes 1, 3 and 2, 4, each by itself.
    assert_eq!(read_float::<R>(grad).iter::<f64>().collect::<Vec<_>>(), [10.0, 20.0]);
}

/// More rows over all batches than 31 bits count, each batch's well below; and as many in one matrix.
#[test]
#[ignore = "needs 10 GB"]
fn products_of_more_than_31_bits() {
    let device = Default::default();
    let [batch, rows] = [70_000, 32_768];
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
