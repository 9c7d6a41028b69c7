//! Each op of the backend against burn-flex on the same data: one small case or a few of every family, so that a
//! break shows next to its cause. The exhaustive comparison (dtypes, ranks, layouts, sizes) is the `tests` package's.

use burn_backend::ops::{AttentionModuleOptions, ConvOptions, ConvTransposeOptions};
use burn_flex::Flex;
use burn_rocm::Rocm;
use burn_tensor::activation::{
    gelu, hard_sigmoid, leaky_relu, log_sigmoid, log_softmax, prelu, relu, sigmoid, softmax,
};
use burn_tensor::backend::Backend;
use burn_tensor::module as m;
use burn_tensor::{DType, IndexingUpdateOp, Tensor, TensorData, TensorPrimitive, Tolerance, s};

/// Numbers in [-2, 2), the same on every run.
fn floats<const D: usize>(shape: [usize; D]) -> TensorData {
    let n: usize = shape.iter().product();
    let at = |i: usize| {
        ((i as u64).wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407) >> 40) as f32
    };
    TensorData::new((0..n).map(|i| at(i + n) / (1 << 22) as f32 - 2.0).collect::<Vec<f32>>(), shape)
}

/// Integers in `0..below`.
fn ints<const D: usize>(shape: [usize; D], below: i32) -> TensorData {
    let n: usize = shape.iter().product();
    TensorData::new((0..n as i32).map(|i| (i * 7 + 3) % below).collect::<Vec<i32>>(), shape)
}

fn bools<const D: usize>(shape: [usize; D]) -> TensorData {
    let n: usize = shape.iter().product();
    TensorData::new((0..n).map(|i| i % 3 == 0 || i % 7 == 2).collect::<Vec<bool>>(), shape)
}

/// Burn's tensors have no method for this op of the backends.
fn layer_norm<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    gamma: Tensor<B, 1>,
    beta: Option<Tensor<B, 1>>,
    epsilon: f64,
) -> Tensor<B, D> {
    let primitive = |t: Tensor<B, 1>| t.into_primitive().tensor();
    let out = B::layer_norm(x.into_primitive().tensor(), primitive(gamma), beta.map(primitive), epsilon);
    Tensor::from_primitive(TensorPrimitive::Float(out))
}

fn compare(name: &str, expected: &[TensorData], found: &[TensorData]) {
    assert_eq!(expected.len(), found.len(), "{name}");
    for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected.shape, found.shape, "{name}, result {i}");
        if expected.dtype.is_float() {
            assert_eq!(expected.dtype, found.dtype, "{name}, result {i}");
            let tolerance = Tolerance::<f32>::rel_abs(2e-5, 2e-5);
            expected.clone().convert::<f32>().assert_approx_eq(&found.clone().convert::<f32>(), tolerance);
        } else {
            let values = |data: &TensorData| data.iter::<i64>().collect::<Vec<_>>();
            assert_eq!(values(expected), values(found), "{name}, result {i}");
        }
    }
}

/// `case!(name, |device, T, I, M| [results..])`: the same code with burn-flex's and our float, int and bool tensors.
macro_rules! case {
    ($name:ident, $device:ident, [$($result:expr),* $(,)?]) => {
        #[test]
        fn $name() {
            macro_rules! run {
                ($backend:ty) => {{
                    #[allow(dead_code)]
                    type B = $backend;
                    #[allow(dead_code)]
                    type T<const D: usize> = Tensor<B, D>;
                    #[allow(dead_code)]
                    type I<const D: usize> = Tensor<B, D, burn_tensor::Int>;
                    #[allow(dead_code)]
                    type M<const D: usize> = Tensor<B, D, burn_tensor::Bool>;
                    let $device = &Default::default();
                    let results: Vec<TensorData> = vec![$($result.into_data()),*];
                    results
                }};
            }
            let expected = run!(Flex);
            let found = run!(Rocm);
            compare(stringify!($name), &expected, &found);
        }
    };
}

case!(
    creation,
    d,
    [
        T::<2>::zeros([3, 5], d),
        T::<2>::ones([3, 5], d),
        T::<1>::full([7], -2.5, d),
        I::<1>::full([7], 9, d),
        I::<1>::arange(3..20, d),
        I::<1>::arange_step(3..20, 4, d),
        T::<2>::zeros([0, 5], d),
        T::<2>::from_data(floats([3, 5]), d),
        M::<1>::from_data(bools([9]), d),
    ]
);

case!(
    binary_same_shape,
    d,
    [
        T::<2>::from_data(floats([5, 7]), d) + T::from_data(floats([5, 7]), d),
        T::<2>::from_data(floats([5, 7]), d) - T::from_data(floats([5, 7]), d).exp(),
        T::<2>::from_data(floats([5, 7]), d) * T::from_data(floats([5, 7]), d),
        T::<2>::from_data(floats([5, 7]), d) / T::from_data(floats([5, 7]), d).exp(),
        T::<2>::from_data(floats([5, 7]), d).remainder(T::from_data(floats([5, 7]), d).exp()),
        T::<2>::from_data(floats([5, 7]), d).abs().powf(T::from_data(floats([5, 7]), d)),
        T::<2>::from_data(floats([5, 7]), d).atan2(T::from_data(floats([5, 7]), d).exp()),
        T::<2>::from_data(floats([1000, 33]), d) + T::from_data(floats([1000, 33]), d),
    ]
);

case!(
    binary_broadcast_and_views,
    d,
    [
        T::<2>::from_data(floats([5, 7]), d) + T::from_data(floats([1, 7]), d),
        T::<2>::from_data(floats([5, 1]), d) * T::from_data(floats([1, 7]), d),
        T::<2>::from_data(floats([7, 5]), d).transpose() + T::from_data(floats([5, 7]), d),
        T::<2>::from_data(floats([7, 5]), d).transpose() + T::from_data(floats([7, 5]), d).transpose(),
        T::<3>::from_data(floats([4, 6, 8]), d).slice(s![1..3, ..;2, 2..])
            - T::<3>::from_data(floats([2, 3, 6]), d),
        T::<2>::from_data(floats([4, 6]), d).flip([0, 1]) * T::from_data(floats([4, 6]), d),
        T::<2>::from_data(floats([4, 6]), d).slice(s![1..2, ..]).expand([5, 6]) + 1.5,
        T::<2>::from_data(floats([0, 6]), d) + T::from_data(floats([1, 6]), d),
    ]
);

case!(
    a_clone_keeps_its_values,
    d,
    [{
        let a = T::<2>::from_data(floats([5, 8]), d);
        let b = a.clone();
        let c = (a * 3.0).exp();
        Tensor::cat(vec![b, c], 0)
    }]
);

case!(
    scalars,
    d,
    [
        T::<1>::from_data(floats([19]), d) + 1.25,
        T::<1>::from_data(floats([19]), d) - 1.25,
        T::<1>::from_data(floats([19]), d) * -3.0,
        T::<1>::from_data(floats([19]), d) / 3.0,
        T::<1>::from_data(floats([19]), d).remainder_scalar(0.75),
        T::<1>::from_data(floats([19]), d).powi_scalar(2),
        T::<1>::from_data(floats([19]), d).powi_scalar(3),
        T::<1>::from_data(floats([19]), d).powi_scalar(-2),
        T::<1>::from_data(floats([19]), d).abs().powf_scalar(1.5),
        T::<1>::from_data(floats([19]), d).clamp(-0.5, 0.75),
        T::<1>::from_data(floats([19]), d).clamp_min(0.25),
        T::<1>::from_data(floats([19]), d).clamp_max(0.25),
    ]
);

case!(
    unary,
    d,
    [
        T::<1>::from_data(floats([37]), d).exp(),
        T::<1>::from_data(floats([37]), d).abs().log(),
        T::<1>::from_data(floats([37]), d).abs().log1p(),
        T::<1>::from_data(floats([37]), d).abs().sqrt(),
        T::<1>::from_data(floats([37]), d).recip(),
        T::<1>::from_data(floats([37]), d).cos(),
        T::<1>::from_data(floats([37]), d).sin(),
        T::<1>::from_data(floats([37]), d).tan(),
        T::<1>::from_data(floats([37]), d).cosh(),
        T::<1>::from_data(floats([37]), d).sinh(),
        T::<1>::from_data(floats([37]), d).tanh(),
        (T::<1>::from_data(floats([37]), d) / 2.0).acos(),
        (T::<1>::from_data(floats([37]), d) / 2.0).asin(),
        T::<1>::from_data(floats([37]), d).atan(),
        (T::<1>::from_data(floats([37]), d).abs() + 1.0).acosh(),
        T::<1>::from_data(floats([37]), d).asinh(),
        (T::<1>::from_data(floats([37]), d) / 2.1).atanh(),
        T::<1>::from_data(floats([37]), d).round(),
        T::<1>::from_data(floats([37]), d).floor(),
        T::<1>::from_data(floats([37]), d).ceil(),
        T::<1>::from_data(floats([37]), d).trunc(),
        T::<1>::from_data(floats([37]), d).erf(),
        T::<1>::from_data(floats([37]), d).sign(),
        T::<1>::from_data(floats([37]), d).neg(),
        T::<2>::from_data(floats([6, 5]), d).transpose().exp(),
        T::<2>::from_data(floats([6, 5]), d).slice(s![1..;2, 1..4]).exp(),
    ]
);

case!(
    comparisons,
    d,
    [
        T::<1>::from_data(floats([19]), d).greater(T::from_data(floats([19]), d).flip([0])),
        T::<1>::from_data(floats([19]), d).greater_equal(T::from_data(floats([19]), d).flip([0])),
        T::<1>::from_data(floats([19]), d).lower(T::from_data(floats([19]), d).flip([0])),
        T::<1>::from_data(floats([19]), d).lower_equal(T::from_data(floats([19]), d).flip([0])),
        T::<1>::from_data(floats([19]), d).equal(T::from_data(floats([19]), d).flip([0])),
        T::<1>::from_data(floats([19]), d).not_equal(T::from_data(floats([19]), d).flip([0])),
        T::<1>::from_data(floats([19]), d).greater_elem(0.1),
        T::<1>::from_data(floats([19]), d).lower_equal_elem(0.1),
        T::<1>::from_data(floats([19]), d).recip().is_nan(),
        (T::<1>::zeros([3], d).recip()).is_inf(),
        I::<1>::from_data(ints([19], 5), d).equal_elem(3),
        I::<2>::from_data(ints([4, 5], 5), d).greater(I::from_data(ints([1, 5], 4), d)),
    ]
);

case!(
    bool_ops,
    d,
    [
        M::<2>::from_data(bools([4, 9]), d).bool_and(M::from_data(bools([4, 9]), d).flip([0])),
        M::<2>::from_data(bools([4, 9]), d).bool_or(M::from_data(bools([4, 9]), d).flip([0])),
        M::<2>::from_data(bools([4, 9]), d).bool_xor(M::from_data(bools([4, 9]), d).flip([0])),
        M::<2>::from_data(bools([4, 9]), d).bool_not(),
        M::<2>::from_data(bools([4, 9]), d).equal(M::from_data(bools([4, 9]), d).flip([1])),
        M::<2>::from_data(bools([4, 9]), d).not_equal(M::from_data(bools([4, 9]), d).flip([1])),
        M::<2>::from_data(bools([4, 9]), d).any(),
        M::<2>::from_data(bools([4, 9]), d).all(),
        M::<2>::from_data(bools([4, 9]), d).any_dim(1),
        M::<2>::from_data(bools([4, 9]), d).all_dim(0),
        M::<2>::from_data(bools([4, 9]), d).int(),
        M::<2>::from_data(bools([4, 9]), d).float(),
        M::<2>::from_data(bools([4, 9]), d).argwhere(),
    ]
);

case!(
    views_and_copies,
    d,
    [
        T::<3>::from_data(floats([3, 4, 5]), d).permute([2, 0, 1]),
        T::<3>::from_data(floats([3, 4, 5]), d).permute([2, 0, 1]).reshape([5, 12]),
        T::<3>::from_data(floats([3, 4, 5]), d).permute([0, 2, 1]).reshape([60]),
        T::<2>::from_data(floats([100, 70]), d).transpose(),
        T::<3>::from_data(floats([3, 40, 50]), d).swap_dims(1, 2),
        T::<3>::from_data(floats([3, 4, 5]), d).slice(s![.., 1..3, ..;-2]),
        T::<3>::from_data(floats([3, 4, 5]), d).flip([0, 2]),
        T::<2>::from_data(floats([3, 1]), d).expand([2, 3, 4]),
        T::<2>::from_data(floats([3, 4]), d).repeat_dim(1, 3),
        T::<2>::from_data(floats([3, 4]), d).repeat_dim(0, 2),
        T::<2>::from_data(floats([3, 1]), d).repeat_dim(1, 4),
        T::<2>::from_data(floats([3, 8]), d).unfold::<3, _>(1, 3, 2),
        Tensor::cat(vec![T::<2>::from_data(floats([3, 4]), d), T::from_data(floats([3, 2]), d).exp()], 1),
        Tensor::cat(vec![T::<2>::from_data(floats([3, 4]), d), T::from_data(floats([5, 4]), d).exp()], 0),
        T::<2>::from_data(floats([5, 6]), d).slice_assign(s![1..3, 2..5], T::from_data(floats([2, 3]), d)),
        T::<2>::from_data(floats([5, 6]), d).slice_assign(s![..;2, ..;-1], T::from_data(floats([3, 6]), d)),
        Tensor::stack::<3>(vec![T::<2>::from_data(floats([3, 4]), d), T::from_data(floats([3, 4]), d)], 1),
    ]
);

case!(
    casts,
    d,
    [
        T::<1>::from_data(floats([19]), d).int(),
        (T::<1>::from_data(floats([19]), d) * 1e12).int(),
        I::<1>::from_data(ints([19], 1000), d).float(),
        T::<1>::from_data(floats([19]), d).cast(DType::F16),
        T::<1>::from_data(floats([19]), d).cast(DType::BF16),
        T::<1>::from_data(floats([19]), d).cast(DType::F64),
        T::<2>::from_data(floats([4, 5]), d).transpose().cast(DType::F64),
        I::<1>::from_data(ints([19], 1000), d).cast(DType::U8),
        I::<1>::from_data(ints([19], 1000), d).cast(DType::I64),
    ]
);

case!(
    masks,
    d,
    [
        T::<2>::from_data(floats([4, 5]), d).mask_fill(M::from_data(bools([4, 5]), d), -7.0),
        T::<2>::from_data(floats([4, 5]), d)
            .mask_fill(M::<2>::from_data(bools([1, 5]), d).expand([4, 5]), f32::NEG_INFINITY),
        T::<2>::from_data(floats([4, 5]), d)
            .mask_where(M::from_data(bools([4, 5]), d), T::from_data(floats([4, 5]), d).exp()),
        T::<2>::from_data(floats([5, 4]), d)
            .transpose()
            .mask_where(M::from_data(bools([4, 5]), d), T::from_data(floats([4, 5]), d).exp()),
        I::<2>::from_data(ints([4, 5], 9), d).mask_fill(M::from_data(bools([4, 5]), d), -7),
    ]
);

case!(
    reductions,
    d,
    [
        T::<2>::from_data(floats([40, 50]), d).sum(),
        T::<2>::from_data(floats([40, 50]), d).mean(),
        T::<1>::from_data(floats([9]), d).prod(),
        T::<2>::from_data(floats([300, 501]), d).exp().sum(),
        T::<2>::from_data(floats([300, 501]), d).exp().mean(),
        T::<2>::from_data(floats([300, 501]), d).max(),
        T::<2>::from_data(floats([300, 501]), d).min(),
        T::<2>::from_data(floats([300, 501]), d).exp().sum_dim(0),
        T::<2>::from_data(floats([300, 501]), d).exp().sum_dim(1),
        T::<2>::from_data(floats([3000, 3]), d).mean_dim(0),
        T::<3>::from_data(floats([6, 7, 8]), d).sum_dim(1),
        T::<3>::from_data(floats([6, 7, 8]), d).mean_dim(1),
        T::<3>::from_data(floats([6, 7, 8]), d).max_dim(1),
        T::<3>::from_data(floats([6, 7, 8]), d).min_dim(2),
        T::<3>::from_data(floats([6, 7, 8]), d).prod_dim(2),
        T::<3>::from_data(floats([6, 7, 8]), d).permute([2, 0, 1]).sum_dim(1),
        T::<3>::from_data(floats([6, 7, 8]), d).slice(s![1..3, .., 2..5]).sum_dim(2),
        T::<3>::from_data(floats([6, 7, 8]), d).argmax(2),
        T::<3>::from_data(floats([6, 7, 8]), d).argmin(0),
        T::<3>::from_data(floats([6, 7, 8]), d).max_dim_with_indices(1).1,
        T::<3>::from_data(floats([6, 7, 8]), d).max_dim_with_indices(1).0,
        T::<2>::from_data(floats([6, 7]), d).max_abs(),
        T::<2>::from_data(floats([6, 0]), d).sum_dim(1),
        T::<2>::from_data(floats([0, 6]), d).sum(),
        T::<2>::from_data(floats([6, 7]), d).any(),
        T::<2>::from_data(floats([6, 7]), d).all_dim(1),
        I::<2>::from_data(ints([6, 7], 11), d).sum(),
        I::<2>::from_data(ints([6, 7], 11), d).sum_dim(0),
        I::<2>::from_data(ints([6, 7], 11), d).prod_dim(1),
        I::<2>::from_data(ints([6, 7], 11), d).max_dim(1),
        I::<2>::from_data(ints([6, 7], 11), d).argmax(1),
        I::<2>::from_data(ints([6, 7], 11), d).mean_dim(1),
        T::<2>::from_data(floats([300, 5]), d).cast(DType::F64).sum_dim(0),
    ]
);

case!(
    scans,
    d,
    [
        T::<2>::from_data(floats([6, 70]), d).cumsum(1),
        T::<2>::from_data(floats([70, 6]), d).cumsum(0),
        T::<2>::from_data(floats([6, 7]), d).cumprod(1),
        T::<2>::from_data(floats([6, 7]), d).cummax(1),
        T::<2>::from_data(floats([6, 7]), d).cummin(0),
        I::<2>::from_data(ints([6, 7], 11), d).cumsum(1),
    ]
);

case!(
    indexing,
    d,
    [
        T::<2>::from_data(floats([6, 7]), d).gather(1, I::from_data(ints([6, 3], 7), d)),
        T::<2>::from_data(floats([6, 7]), d).gather(0, I::from_data(ints([4, 7], 6), d)),
        T::<2>::from_data(floats([7, 6]), d).transpose().gather(0, I::from_data(ints([4, 7], 6), d)),
        T::<2>::from_data(floats([6, 7]), d).select(0, I::from_data(ints([9], 6), d)),
        T::<2>::from_data(floats([6, 7]), d).select(1, I::from_data(ints([9], 7), d)),
        T::<2>::from_data(floats([6, 7]), d).scatter(
            1,
            I::from_data(ints([6, 3], 7), d),
            T::from_data(floats([6, 3]), d),
            IndexingUpdateOp::Add
        ),
        T::<2>::from_data(floats([6, 7]), d).select_assign(
            0,
            I::from_data(ints([9], 6), d),
            T::from_data(floats([9, 7]), d),
            IndexingUpdateOp::Add
        ),
        T::<2>::from_data(floats([6, 7]), d)
            .cast(DType::F16)
            .select_assign(
                1,
                I::from_data(ints([4], 7), d),
                T::from_data(floats([6, 4]), d).cast(DType::F16),
                IndexingUpdateOp::Add
            )
            .cast(DType::F32)
            .round(),
        I::<2>::from_data(ints([6, 7], 9), d).select(0, I::from_data(ints([9], 6), d)),
        m::embedding(T::<2>::from_data(floats([6, 7]), d), I::from_data(ints([2, 3], 6), d)),
    ]
);

case!(
    int_ops,
    d,
    [
        I::<1>::from_data(ints([19], 50), d) + I::from_data(ints([19], 7), d),
        I::<1>::from_data(ints([19], 50), d) * I::from_data(ints([19], 7), d),
        (I::<1>::from_data(ints([19], 50), d) - 25) / 4,
        (I::<1>::from_data(ints([19], 50), d) - 25).remainder_scalar(4),
        (I::<1>::from_data(ints([19], 50), d) - 25).abs(),
        (I::<1>::from_data(ints([19], 50), d) - 25).sign(),
        (I::<1>::from_data(ints([19], 50), d) - 25).clamp(-3, 9),
        I::<1>::from_data(ints([19], 50), d).powi_scalar(3),
        I::<1>::from_data(ints([19], 50), d).bitwise_and(I::from_data(ints([19], 7), d)),
        I::<1>::from_data(ints([19], 50), d).bitwise_or_scalar(5),
        I::<1>::from_data(ints([19], 50), d).bitwise_xor_scalar(5),
        I::<1>::from_data(ints([19], 50), d).bitwise_not(),
        I::<1>::from_data(ints([19], 50), d).bitwise_left_shift_scalar(3),
        I::<1>::from_data(ints([19], 50), d).bitwise_right_shift_scalar(1),
        I::<2>::from_data(ints([5, 6], 50), d).matmul(I::from_data(ints([6, 4], 9), d)),
        I::<3>::from_data(ints([2, 5, 6], 50), d).matmul(I::from_data(ints([1, 6, 4], 9), d)),
    ]
);

case!(
    matmuls,
    d,
    [
        T::<2>::from_data(floats([5, 7]), d).matmul(T::from_data(floats([7, 3]), d)),
        T::<2>::from_data(floats([7, 5]), d).transpose().matmul(T::from_data(floats([7, 3]), d)),
        T::<2>::from_data(floats([5, 7]), d).matmul(T::from_data(floats([3, 7]), d).transpose()),
        T::<2>::from_data(floats([1, 7]), d).matmul(T::from_data(floats([7, 1]), d)),
        T::<2>::from_data(floats([7, 1]), d).matmul(T::from_data(floats([1, 7]), d)),
        T::<3>::from_data(floats([4, 5, 7]), d).matmul(T::from_data(floats([4, 7, 3]), d)),
        T::<3>::from_data(floats([4, 5, 7]), d).matmul(T::from_data(floats([1, 7, 3]), d)),
        T::<3>::from_data(floats([1, 5, 7]), d).matmul(T::from_data(floats([4, 7, 3]), d)),
        T::<4>::from_data(floats([2, 3, 5, 7]), d).matmul(T::from_data(floats([1, 3, 7, 2]), d)),
        T::<4>::from_data(floats([2, 5, 3, 7]), d)
            .swap_dims(1, 2)
            .matmul(T::<4>::from_data(floats([2, 6, 3, 7]), d).permute([0, 2, 3, 1])),
        T::<4>::from_data(floats([20, 5, 3, 7]), d)
            .swap_dims(1, 2)
            .matmul(T::<4>::from_data(floats([20, 6, 3, 7]), d).permute([0, 2, 3, 1])),
        T::<2>::from_data(floats([6, 8]), d).slice(s![..;2, 1..7]).matmul(T::from_data(floats([6, 3]), d)),
        T::<2>::from_data(floats([6, 8]), d).flip([1]).matmul(T::from_data(floats([8, 3]), d)),
        T::<3>::from_data(floats([4, 6, 8]), d).flip([0]).matmul(T::from_data(floats([4, 8, 3]), d)),
        T::<2>::from_data(floats([6, 0]), d).matmul(T::from_data(floats([0, 3]), d)),
        T::<2>::from_data(floats([0, 6]), d).matmul(T::from_data(floats([6, 3]), d)),
        T::<2>::from_data(floats([65, 130]), d)
            .cast(DType::F64)
            .matmul(T::from_data(floats([130, 33]), d).cast(DType::F64)),
    ]
);

case!(
    linears,
    d,
    [
        m::linear(
            T::<2>::from_data(floats([5, 7]), d),
            T::from_data(floats([7, 3]), d),
            Some(T::from_data(floats([3]), d))
        ),
        m::linear(T::<3>::from_data(floats([2, 5, 7]), d), T::from_data(floats([7, 3]), d), None),
        m::linear(
            T::<1>::from_data(floats([7]), d),
            T::from_data(floats([7, 3]), d),
            Some(T::from_data(floats([3]), d))
        ),
    ]
);

case!(
    activations,
    d,
    [
        relu(T::<2>::from_data(floats([5, 7]), d)),
        gelu(T::<2>::from_data(floats([5, 7]), d)),
        sigmoid(T::<2>::from_data(floats([5, 7]), d)),
        log_sigmoid(T::<2>::from_data(floats([5, 7]), d) * 10.0),
        leaky_relu(T::<2>::from_data(floats([5, 7]), d), 0.1),
        hard_sigmoid(T::<2>::from_data(floats([5, 7]), d), 0.2, 0.5),
        prelu(T::<2>::from_data(floats([5, 7]), d), T::from_data(floats([7]), d)),
        softmax(T::<2>::from_data(floats([5, 7]), d), 1),
        softmax(T::<2>::from_data(floats([5, 7]), d), 0),
        softmax(T::<3>::from_data(floats([5, 7, 600]), d), 2),
        log_softmax(T::<2>::from_data(floats([5, 7]), d), 1),
        log_softmax(T::<3>::from_data(floats([5, 7, 9]), d), 1),
        softmax(T::<2>::from_data(floats([7, 5]), d).transpose(), 1),
    ]
);

case!(
    attention,
    d,
    [
        m::attention(
            T::from_data(floats([2, 3, 5, 8]), d),
            T::from_data(floats([2, 3, 6, 8]), d),
            T::from_data(floats([2, 3, 6, 4]), d),
            None,
            None,
            AttentionModuleOptions::default()
        ),
        m::attention(
            T::from_data(floats([2, 3, 5, 8]), d),
            T::from_data(floats([2, 3, 6, 8]), d),
            T::from_data(floats([2, 3, 6, 4]), d),
            Some(M::from_data(bools([2, 3, 5, 6]), d)),
            Some(T::from_data(floats([2, 3, 5, 6]), d)),
            AttentionModuleOptions { scale: Some(0.3), softcap: Some(2.0), is_causal: false }
        ),
        m::attention(
            T::from_data(floats([2, 3, 5, 8]), d),
            T::from_data(floats([2, 3, 5, 8]), d),
            T::from_data(floats([2, 3, 5, 4]), d),
            None,
            None,
            AttentionModuleOptions { scale: None, softcap: None, is_causal: true }
        ),
    ]
);

case!(
    convolutions,
    d,
    [
        m::conv2d(
            T::from_data(floats([2, 4, 9, 8]), d),
            T::from_data(floats([6, 4, 3, 3]), d),
            Some(T::from_data(floats([6]), d)),
            ConvOptions::new([1, 1], [1, 1], [1, 1], 1)
        ),
        m::conv2d(
            T::from_data(floats([2, 4, 9, 8]), d),
            T::from_data(floats([6, 2, 3, 2]), d),
            None,
            ConvOptions::new([2, 1], [1, 0], [1, 2], 2)
        ),
        m::conv1d(
            T::from_data(floats([2, 4, 9]), d),
            T::from_data(floats([6, 4, 3]), d),
            Some(T::from_data(floats([6]), d)),
            ConvOptions::new([2], [1], [1], 1)
        ),
        m::conv3d(
            T::from_data(floats([2, 2, 5, 4, 6]), d),
            T::from_data(floats([3, 2, 2, 3, 2]), d),
            Some(T::from_data(floats([3]), d)),
            ConvOptions::new([1, 1, 2], [0, 1, 1], [1, 1, 1], 1)
        ),
        m::conv_transpose2d(
            T::from_data(floats([2, 4, 5, 6]), d),
            T::from_data(floats([4, 3, 3, 3]), d),
            Some(T::from_data(floats([3]), d)),
            ConvTransposeOptions::new([2, 2], [1, 1], [1, 1], [1, 1], 1)
        ),
        m::conv_transpose2d(
            T::from_data(floats([2, 4, 5, 6]), d),
            T::from_data(floats([4, 3, 3, 3]), d),
            None,
            ConvTransposeOptions::new([1, 2], [1, 1], [1, 2], [2, 1], 2)
        ),
        m::conv_transpose1d(
            T::from_data(floats([2, 4, 5]), d),
            T::from_data(floats([4, 3, 3]), d),
            None,
            ConvTransposeOptions::new([2], [1], [0], [1], 1)
        ),
        m::conv2d(
            T::from_data(floats([2, 9, 8, 4]), d).permute([0, 3, 1, 2]),
            T::from_data(floats([6, 4, 3, 3]), d),
            None,
            ConvOptions::new([1, 1], [0, 0], [1, 1], 1)
        ),
    ]
);

case!(
    pools,
    d,
    [
        m::max_pool2d(T::from_data(floats([2, 3, 8, 9]), d), [2, 3], [2, 2], [0, 1], [1, 1], false),
        m::max_pool2d_with_indices(
            T::from_data(floats([2, 3, 8, 9]), d),
            [3, 3],
            [2, 1],
            [1, 1],
            [1, 1],
            false
        )
        .0,
        m::max_pool2d_with_indices(
            T::from_data(floats([2, 3, 8, 9]), d),
            [3, 3],
            [2, 1],
            [1, 1],
            [1, 1],
            false
        )
        .1,
        m::max_pool2d_with_indices(
            T::from_data(floats([2, 3, 8, 9]), d),
            [2, 2],
            [2, 2],
            [0, 0],
            [2, 2],
            false
        )
        .1,
        m::max_pool2d(T::from_data(floats([2, 3, 8, 9]), d), [3, 3], [2, 2], [0, 0], [1, 1], true),
        m::avg_pool2d(T::from_data(floats([2, 3, 8, 9]), d), [3, 2], [2, 1], [1, 1], true, false),
        m::avg_pool2d(T::from_data(floats([2, 3, 8, 9]), d), [3, 2], [2, 1], [1, 1], false, false),
        m::avg_pool2d(T::from_data(floats([2, 3, 8, 9]), d), [3, 3], [2, 2], [1, 1], false, true),
        m::avg_pool2d(T::from_data(floats([2, 3, 8, 9]), d), [3, 3], [2, 2], [1, 1], true, true),
        m::max_pool1d(T::from_data(floats([2, 3, 8]), d), 3, 2, 1, 1, false),
        m::avg_pool1d(T::from_data(floats([2, 3, 8]), d), 3, 2, 1, true, false),
        m::adaptive_avg_pool2d(T::from_data(floats([2, 3, 8, 9]), d), [3, 4]),
        m::adaptive_avg_pool1d(T::from_data(floats([2, 3, 8]), d), 5),
        m::avg_pool2d(
            T::from_data(floats([2, 3, 8, 9]), d).cast(DType::F64),
            [3, 2],
            [2, 1],
            [1, 1],
            true,
            false
        ),
    ]
);

case!(
    layer_norms,
    d,
    [
        layer_norm(
            T::<3>::from_data(floats([3, 5, 70]), d),
            T::from_data(floats([70]), d),
            Some(T::from_data(floats([70]), d)),
            1e-5
        ),
        layer_norm(T::<2>::from_data(floats([5, 7]), d), T::from_data(floats([7]), d), None, 1e-5),
    ]
);

/// Gradients of every layer's inputs and parameters, through Burn's autodiff.
macro_rules! gradients {
    ($name:ident, $device:ident, [$($data:expr),*], |$($input:ident: $rank:literal),*| $body:expr) => {
        #[test]
        fn $name() {
            macro_rules! run {
                ($backend:ty) => {{
                    type B = burn_autodiff::Autodiff<$backend>;
                    let $device = &Default::default();
                    let mut data = vec![$($data),*].into_iter();
                    $(let $input = Tensor::<B, $rank>::from_data(data.next().unwrap(), $device).require_grad();)*
                    let inputs = ($($input.clone(),)*);
                    let out = $body;
                    // Weights that differ from element to element, so that no gradient is a plain sum.
                    let weights = Tensor::from_data(floats(out.dims()), $device);
                    let grads = (out * weights).sum().backward();
                    let ($($input,)*) = inputs;
                    let results: Vec<TensorData> = vec![$($input.grad(&grads).unwrap().into_data()),*];
                    results
                }};
            }
            let expected = run!(Flex);
            let found = run!(Rocm);
            compare(stringify!($name), &expected, &found);
        }
    };
}

gradients!(conv2d_gradients, d, [floats([2, 4, 9, 8]), floats([6, 2, 3, 2]), floats([6])], |x: 4, w: 4, b: 1| {
    m::conv2d(x, w, Some(b), ConvOptions::new([2, 1], [1, 0], [1, 2], 2))
});
gradients!(conv1d_gradients, d, [floats([2, 4, 9]), floats([6, 4, 3]), floats([6])], |x: 3, w: 3, b: 1| {
    m::conv1d(x, w, Some(b), ConvOptions::new([2], [1], [1], 1))
});
gradients!(conv3d_gradients, d, [floats([2, 2, 5, 4, 6]), floats([3, 2, 2, 3, 2]), floats([3])], |x: 5, w: 5, b: 1| {
    m::conv3d(x, w, Some(b), ConvOptions::new([1, 1, 2], [0, 1, 1], [1, 1, 1], 1))
});
gradients!(conv_transpose2d_gradients, d, [floats([2, 4, 5, 6]), floats([4, 3, 3, 3]), floats([3])], |x: 4, w: 4, b: 1| {
    m::conv_transpose2d(x, w, Some(b), ConvTransposeOptions::new([2, 2], [1, 1], [1, 1], [1, 1], 1))
});
gradients!(conv_transpose1d_gradients, d, [floats([2, 4, 5]), floats([4, 3, 3])], |x: 3, w: 3| {
    m::conv_transpose1d(x, w, None, ConvTransposeOptions::new([2], [1], [1], [1], 1))
});
gradients!(max_pool2d_gradients, d, [floats([2, 3, 8, 9])], |x: 4| {
    m::max_pool2d(x, [3, 3], [2, 1], [1, 1], [1, 1], false)
});
gradients!(max_pool2d_dilated_gradients, d, [floats([2, 3, 8, 9])], |x: 4| {
    m::max_pool2d(x, [2, 2], [2, 2], [0, 0], [2, 2], false)
});
gradients!(avg_pool2d_gradients, d, [floats([2, 3, 8, 9])], |x: 4| {
    m::avg_pool2d(x, [3, 2], [2, 1], [1, 1], false, false)
});
gradients!(max_pool1d_gradients, d, [floats([2, 3, 8])], |x: 3| { m::max_pool1d(x, 3, 2, 1, 1, false) });
gradients!(adaptive_pool_gradients, d, [floats([2, 3, 8, 9])], |x: 4| { m::adaptive_avg_pool2d(x, [3, 4]) });
gradients!(linear_gradients, d, [floats([2, 5, 7]), floats([7, 3]), floats([3])], |x: 3, w: 2, b: 1| {
    m::linear(x, w, Some(b))
});
gradients!(matmul_gradients, d, [floats([4, 5, 7]), floats([1, 7, 3])], |a: 3, b: 3| { a.matmul(b) });
gradients!(softmax_gradients, d, [floats([5, 7])], |x: 2| { log_softmax(softmax(x, 0), 1) });
gradients!(activation_gradients, d, [floats([5, 7])], |x: 2| { relu(x.clone()) + sigmoid(x.clone()) + log_sigmoid(x) });
gradients!(broadcast_gradients, d, [floats([5, 7]), floats([1, 7])], |a: 2, b: 2| { (a / b.exp()).tanh() });
gradients!(indexing_gradients, d, [floats([6, 7])], |x: 2| {
    x.clone().select(0, Tensor::from_data(ints([9], 6), d)).slice(s![1..8, 2..5]) * x.slice(s![0..1, 2..5])
});

#[test]
fn a_failed_op_keeps_its_error_and_harms_nothing() {
    use burn_backend::ops::{FloatTensorOps, ModuleOps};
    use burn_rocm::{RocmError, take_last_error};
    let device = &Default::default();
    let a = Tensor::<Rocm, 2>::from_data(floats([3, 4]), device);
    let primitive = |t: &Tensor<Rocm, 2>| t.clone().into_primitive().tensor();
    let (left, right) = (primitive(&a), primitive(&a));
    let caught = std::panic::catch_unwind(|| Rocm::<f32>::float_matmul(left, right));
    assert!(caught.is_err());
    assert!(matches!(take_last_error(), Some(RocmError::Invalid { op: "float_matmul", .. })));
    let signal = primitive(&a);
    let caught = std::panic::catch_unwind(|| <Rocm as ModuleOps<Rocm>>::rfft(signal, 1, None));
    assert!(caught.is_err());
    assert!(matches!(take_last_error(), Some(RocmError::Unsupported { op: "rfft", .. })));
    let two = Tensor::<Rocm, 2>::from_data(floats([3, 4]), device) + a;
    compare("after", &[floats([3, 4])], &[(two / 2.0).into_data()]);
}
