//! Which kernels and calls serve the convolutions and poolings that MIOpen does not take, asserted
//! by the backend's trace.

use std::sync::Once;

use burn_rocm::Config;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

/// Turns the tuning store off. What an earlier run has timed is not timed again. Each test calls this
/// first, because the first use of a device fixes the settings.
fn untuned() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        Config::from_env().and_then(|config| config.tuning(false).install()).expect("no device was used")
    });
}

/// The kernels and calls that served `body`, without the op's name and what follows the kernel's
/// name.
fn served<T>(body: impl FnOnce() -> T) -> Vec<String> {
    let lines = during(body).1;
    let name = |line: &String| {
        let (_, by) = line.split_once(": ").expect("an op and what serves it");
        by.strip_prefix("kernel ").unwrap_or(by).split([' ', ',']).next().unwrap_or("").to_owned()
    };
    lines.iter().map(name).collect()
}

fn tensor(shape: &[usize], dtype: DType) -> burn_rocm::RocmTensor {
    float(&Random::new(), shape, dtype, View::Contiguous, -1.0, 1.0).float::<R>(&Default::default())
}

#[test]
fn f64_is_convolved_by_products_or_by_direct_sums() {
    untuned();
    let (x, w, g) = (
        tensor(&[2, 3, 9, 9], DType::F64),
        tensor(&[4, 3, 3, 3], DType::F64),
        tensor(&[2, 4, 9, 9], DType::F64),
    );
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    let by = served(|| R::conv2d(x.clone(), w.clone(), None, options()));
    assert_eq!(by, ["conv_patches<u64>", "rocblas_dgemm_strided_batched"]);
    let by = served(|| R::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options()));
    assert_eq!(by, ["rocblas_dgemm_strided_batched", "conv_unpatch<f64>"]);
    let by = served(|| R::conv2d_weight_backward(x.clone(), w, g, options()));
    assert_eq!(by[..2], ["conv_patches<u64>", "rocblas_dgemm_strided_batched"]);
    assert!(by[2..].iter().all(|by| by.starts_with("reduce_")), "{by:?}");
    // Groups of one channel have no matrices to multiply.
    let w = tensor(&[3, 1, 3, 3], DType::F64);
    let by = served(|| R::conv2d(x.clone(), w, None, ConvOptions::new([1, 1], [1, 1], [1, 1], 3)));
    assert_eq!(by, ["conv_forward<f64>"]);
    // A window of one pixel needs no patches.
    let w = tensor(&[4, 3, 1, 1], DType::F64);
    let w = R::float_cat(vec![w.clone(), w], 1);
    let x = R::float_cat(vec![x.clone(), x], 1);
    let by = served(|| R::conv2d(x, w, None, ConvOptions::new([1, 1], [0, 0], [1, 1], 1)));
    assert_eq!(by, ["rocblas_dgemm_strided_batched"]);
}

/// MIOpen computes the gradient of maxima, also in one dimension. Where it can't, one kernel does;
/// lines and patches take one kernel each too.
#[test]
fn one_launch_a_pool() {
    untuned();
    for (dtype, gradient) in [(DType::F32, "miopenPoolingBackward"), (DType::F64, "max_pool2d_backward<f64")]
    {
        let x = tensor(&[2, 3, 10], dtype);
        let found = R::max_pool1d_with_indices(x.clone(), 2, 2, 0, 1, false);
        let (x, g) = (x, tensor(&[2, 3, 5], dtype));
        let by = served(|| R::max_pool1d(x.clone(), 2, 2, 0, 1, true));
        assert!(by.len() == 1 && by[0].starts_with("max_pool2d<"), "{by:?}");
        let by = served(|| {
            R::max_pool1d_with_indices_backward(
                x.clone(),
                2,
                2,
                0,
                1,
                false,
                g.clone(),
                found.indices.clone(),
            )
        });
        assert!(by.len() == 1 && by[0].starts_with(gradient), "{by:?}");
        let by = served(|| R::avg_pool1d(x.clone(), 2, 2, 0, true, true));
        assert_eq!(by.len(), 1, "{by:?}");
        let by = served(|| R::adaptive_avg_pool1d(x.clone(), 3));
        assert!(by.len() == 1 && by[0].starts_with("adaptive_avg_pool2d<"), "{by:?}");
        let x = R::float_reshape(x, Shape::new([2, 3, 5, 2]));
        let by = served(|| R::unfold4d(x.clone(), [2, 2], UnfoldOptions::new([1, 1], [1, 1], [1, 1])));
        assert!(by.len() == 1 && by[0].starts_with("conv_patches<"), "{by:?}");
    }
}

/// At the third use of a shape its algorithms are timed and the fastest is kept; the result stays
/// the same.
#[test]
fn a_shape_that_comes_again_is_timed() {
    untuned();
    let (x, w) = (tensor(&[2, 3, 11, 9], DType::F32), tensor(&[4, 3, 3, 3], DType::F32));
    let g = tensor(&[2, 4, 11, 9], DType::F32);
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    // Two sums of at most 198 products of at most 1, each within its bound. A weight's gradient has
    // as many products: two images of 11 x 9 places.
    let bound = 2.0 * limits::growth(198, DType::F32) * 198.0;
    let check = |immediate: &str, timed: &str, conv: &dyn Fn() -> burn_rocm::RocmTensor| {
        let (values, lines): (Vec<TensorData>, Vec<String>) =
            (0..4).map(|_| during(conv)).map(|(out, lines)| (read_float::<R>(out), lines.join("\n"))).unzip();
        for (at, line) in lines.iter().enumerate() {
            let call = if at < 2 { immediate } else { timed };
            assert!(line.contains(&format!("{call} ")), "use {at}: {line}");
        }
        let first = vec![values[0].clone(); values.len()];
        assert_close(&timed, &values, &first, Tolerance { absolute: bound, relative: 0.0 });
    };
    check("miopenConvolutionForwardImmediate", "miopenConvolutionForward", &|| {
        R::conv2d(x.clone(), w.clone(), None, options())
    });
    check("miopenConvolutionBackwardDataImmediate", "miopenConvolutionBackwardData", &|| {
        R::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options())
    });
    check("miopenConvolutionBackwardWeightsImmediate", "miopenConvolutionBackwardWeights", &|| {
        R::conv2d_weight_backward(x.clone(), w.clone(), g.clone(), options())
    });
}
