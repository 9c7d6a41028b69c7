//! Which kernels and library calls serve the ops, asserted by the backend's trace.

use burn_backend::TensorMetadata;
use burn_backend::ops::{ConvOptions, ConvTransposeOptions};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;
use burn_std::Slice;

/// The trace's lines while `body` runs. Its tensors are made beforehand.
fn routes<T>(body: impl FnOnce() -> T) -> Vec<String> {
    during(body).1
}

/// Asserts that there are as many lines as expected texts, and that each begins with its text.
#[track_caller]
fn assert_routes(lines: &[String], expected: &[&str]) {
    let agree = lines.len() == expected.len()
        && lines.iter().zip(expected).all(|(line, start)| line.starts_with(start));
    assert!(agree, "expected {expected:#?}\nfound {lines:#?}");
}

fn tensor(shape: &[usize], dtype: DType) -> burn_rocm::RocmTensor {
    float(&Random::new(), shape, dtype, View::Contiguous, -1.0, 1.0).float::<R>(&Default::default())
}

fn integers(shape: &[usize]) -> Input {
    int(&Random::new(), shape, DType::I32, View::Contiguous, -9, 9)
}

#[test]
fn an_elementwise_op_is_one_kernel() {
    // Chains do not support f64.
    let (a, b) = (tensor(&[8, 16], DType::F64), tensor(&[8, 16], DType::F64));
    assert_routes(&routes(|| R::float_add(a, b)), &["float_add f64: kernel binary_contiguous<Add, f64>"]);
    let (a, b) = (tensor(&[8, 16], DType::F32), tensor(&[8, 16], DType::F32));
    let by = match hip::Device::get(0).unwrap().chain_limit() {
        0 => "float_add f32: kernel binary_contiguous<Add, f32>",
        _ => "float_add f32: kernel chain<f32>, Add",
    };
    assert_routes(&routes(|| R::float_add(a, b)), &[by]);
    let (a, b) = (tensor(&[8, 16], DType::BF16), tensor(&[16], DType::BF16));
    let b = R::float_reshape(b, [1, 16].into());
    let by = match hip::Device::get(0).unwrap().chain_limit() {
        0 => "float_mul bf16: kernel binary_strided<Mul, bf16>",
        _ => "float_mul bf16: kernel chain<bf16>, Mul",
    };
    assert_routes(&routes(|| R::float_mul(a, b)), &[by]);
}

#[test]
fn views_launch_nothing() {
    let a = tensor(&[4, 6, 8], DType::F32);
    let lines = routes(|| {
        let a = R::float_permute(a, &[2, 0, 1]);
        let a = R::float_slice(a, &[Slice::from(1..7), Slice::from(0..4), Slice::new(1, Some(6), 2)]);
        let a = R::float_expand(R::float_reshape(a, [6, 4, 1, 3].into()), [6, 4, 5, 3].into());
        R::float_swap_dims(a, 0, 3)
    });
    assert!(lines.iter().all(|line| line.ends_with(": nothing launched")), "{lines:#?}");
    assert_eq!(lines.len(), 5);
}

#[test]
fn products_are_one_rocblas_call_without_a_copy() {
    for (dtype, single, batched) in [
        (DType::F32, "rocblas_sgemm F32", "rocblas_sgemm_strided_batched F32"),
        (DType::F64, "rocblas_dgemm F64", "rocblas_dgemm_strided_batched F64"),
        (DType::F16, "rocblas_gemm_ex F16", "rocblas_gemm_strided_batched_ex F16"),
        (DType::BF16, "rocblas_gemm_ex BF16", "rocblas_gemm_strided_batched_ex BF16"),
    ] {
        let (single, batched) = (
            format!("float_matmul {}: {single}", dtype.name()),
            format!("float_matmul {}: {batched}", dtype.name()),
        );
        let (a, b) = (tensor(&[8, 16], dtype), tensor(&[16, 4], dtype));
        assert_routes(&routes(|| R::float_matmul(a, b)), &[&single]);
        // A transposed view is read without a copy.
        let (a, b) = (R::float_transpose(tensor(&[16, 8], dtype)), tensor(&[16, 4], dtype));
        assert_routes(&routes(|| R::float_matmul(a, b)), &[&single]);
        // A batch of products that all have the same second operand, with stride 0.
        let (a, b) = (tensor(&[3, 8, 16], dtype), R::float_transpose(tensor(&[1, 4, 16], dtype)));
        let b = R::float_expand(b, [3, 16, 4].into());
        let lines = routes(|| R::float_matmul(a, b));
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].starts_with(&batched) || lines[0].starts_with(&single), "{lines:#?}");
    }
}

#[test]
fn integers_multiply_in_an_own_kernel() {
    let a = integers(&[8, 16]).int::<R>(&Default::default());
    let b = integers(&[16, 4]).int::<R>(&Default::default());
    assert_routes(&routes(|| R::int_matmul(a, b)), &["int_matmul i32: kernel matmul<i32>"]);
}

#[test]
fn convolutions_are_miopens_in_every_direction() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (x, w) = (tensor(&[2, 3, 9, 9], dtype), tensor(&[4, 3, 3, 3], dtype));
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        let grad = tensor(&[2, 4, 9, 9], dtype);
        let forward = routes(|| R::conv2d(x.clone(), w.clone(), None, options.clone()));
        assert_routes(&forward, &[&format!("conv2d {}: miopenConvolutionForward", dtype.name())]);
        let by_input = routes(|| R::conv2d_x_backward(x.clone(), w.clone(), grad.clone(), options.clone()));
        assert_routes(
            &by_input,
            &[&format!("conv2d_x_backward {}: miopenConvolutionBackwardData", dtype.name())],
        );
        let by_weight =
            routes(|| R::conv2d_weight_backward(x.clone(), w.clone(), grad.clone(), options.clone()));
        assert_routes(
            &by_weight,
            &[&format!("conv2d_weight_backward {}: miopenConvolutionBackwardWeights", dtype.name())],
        );
        // One dim is passed as two dims of which one is 1.
        let (x, w) = (tensor(&[2, 3, 9], dtype), tensor(&[4, 3, 3], dtype));
        let forward = routes(|| R::conv1d(x, w, None, ConvOptions::new([1], [1], [1], 1)));
        assert_routes(&forward, &[&format!("conv1d {}: miopenConvolutionForward", dtype.name())]);
        let (x, w) = (tensor(&[2, 3, 5, 5], dtype), tensor(&[3, 4, 3, 3], dtype));
        let options = ConvTransposeOptions::new([2, 2], [1, 1], [1, 1], [1, 1], 1);
        let forward = routes(|| R::conv_transpose2d(x, w, None, options));
        assert_routes(&forward, &[&format!("conv_transpose2d {}: miopenConvolution", dtype.name())]);
    }
}

#[test]
fn poolings_are_miopens_where_it_takes_them() {
    let x = tensor(&[2, 3, 8, 8], DType::F32);
    let lines = routes(|| R::avg_pool2d(x.clone(), [3, 3], [1, 1], [1, 1], true, false));
    assert_routes(&lines, &["avg_pool2d f32: miopenPoolingForward"]);
    // MIOpen's maxima differ from Burn's where there is NaN or -inf.
    let lines = routes(|| R::max_pool2d(x.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false));
    assert_routes(&lines, &["max_pool2d f32: kernel max_pool2d<f32"]);
    let x = tensor(&[2, 3, 8, 8], DType::F64);
    // MIOpen has neither f64 nor Burn's ceil mode.
    let lines = routes(|| R::avg_pool2d(x, [2, 2], [2, 2], [0, 0], true, false));
    assert_routes(&lines, &["avg_pool2d f64: kernel avg_pool2d<f64"]);
}

#[test]
fn softmax_is_one_kernel() {
    let x = tensor(&[8, 16], DType::F32);
    assert_routes(&routes(|| R::softmax(x.clone(), 1)), &["softmax f32: kernel softmax_rows<f32>"]);
    assert_routes(
        &routes(|| R::log_softmax(x.clone(), 0)),
        &["log_softmax f32: kernel log_softmax_columns<f32>"],
    );
    assert_eq!(x.shape().dims::<2>(), [8, 16]);
}

#[test]
fn reads_and_uploads_are_named() {
    let x = float(&Random::new(), &[4], DType::F32, View::Contiguous, -1.0, 1.0);
    let (tensor, up) = during(|| x.float::<R>(&Default::default()));
    assert_routes(&up, &["float_from_data f32: copy to the device"]);
    let (_, down) = during(|| read_float::<R>(tensor));
    assert_routes(&down, &["float_into_data f32: copy to the host"]);
}

#[test]
fn attention_is_one_kernel_or_composed() {
    let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
    let run = |queries: usize, width: usize| {
        // [batch, sequence, heads, features] seen as [batch, heads, sequence, features].
        let of = |length| R::float_swap_dims(tensor(&[2, length, 3, width], DType::F32), 1, 2);
        let (q, k, v) = (of(queries), of(50), of(50));
        routes(|| R::attention(q, k, v, None, None, options))
    };
    assert_routes(&run(40, 8), &["attention f32: kernel attention<f32, 0>"]);
    for (queries, width) in [(4, 8), (40, 257)] {
        let lines = run(queries, width);
        let (first, last) = (&lines[0], &lines[lines.len() - 1]);
        assert!(first.starts_with("attention f32: rocblas_sgemm"), "{lines:#?}");
        assert!(last.starts_with("attention f32: rocblas_sgemm"), "{lines:#?}");
    }
}

#[test]
fn layer_norm_goes_where_the_setting_says() {
    let (x, scale) = (tensor(&[4, 33], DType::F32), tensor(&[33], DType::F32));
    let lines = routes(|| R::layer_norm(x, scale.clone(), Some(scale), 1e-5));
    let device = hip::Device::get(0).unwrap();
    let absent = device.dnn().unwrap().has_layer_norm(hip::DType::F32).is_err();
    match device.norm_route() {
        Ok(route) if route == hip::Route::Own || absent => {
            assert_routes(&lines, &["layer_norm f32: kernel layer_norm_rows<f32, f32>"])
        }
        _ => assert_routes(
            &lines,
            &["layer_norm f32: miopenLayerNormForward", "layer_norm f32: kernel layer_norm_repair<f32>"],
        ),
    }
    let (x, scale) = (tensor(&[4, 33], DType::F64), tensor(&[33], DType::F64));
    if device.norm_route() != Ok(hip::Route::Library) {
        let lines = routes(|| R::layer_norm(x, scale.clone(), Some(scale), 1e-5));
        assert_routes(&lines, &["layer_norm f64: kernel layer_norm_rows<f64, f64>"]);
    }
}

/// `[1, heads, sequence, features]` in the layout that a linear layer leaves: each head's rows lie
/// among the other heads'.
fn heads([batch, heads, sequence, features]: [usize; 4], dtype: DType) -> burn_rocm::RocmTensor {
    R::float_swap_dims(tensor(&[batch, sequence, heads, features], dtype), 1, 2)
}

/// Counts the lines that contain each text, and asserts that each line contains one of them.
fn said(lines: &[String], what: &[&str]) -> Vec<usize> {
    let counts: Vec<usize> =
        what.iter().map(|what| lines.iter().filter(|line| line.contains(what)).count()).collect();
    assert_eq!(counts.iter().sum::<usize>(), lines.len(), "{what:?} of {lines:#?}");
    counts
}

#[test]
fn copies_on_the_device_are_named() {
    let (x, value) = (tensor(&[4, 6], DType::F32), tensor(&[2, 6], DType::F32));
    let cut = [Slice::from(1..3), Slice::from(0..6)];
    let lines = routes(|| R::float_slice_assign(x, &cut, value));
    assert_routes(&lines, &["float_slice_assign f32: copy on the device"]);
}

#[test]
fn what_nobody_else_holds_is_written_in_place() {
    let cut = [Slice::from(0..2), Slice::from(0..3), Slice::from(5..6), Slice::from(0..4)];
    let value = || tensor(&[2, 3, 1, 4], DType::F32);
    let written = "float_slice_assign f32: kernel copy_to_strided<u32>";
    let caches =
        [("packed", tensor(&[2, 3, 8, 4], DType::F32)), ("permuted", heads([2, 3, 8, 4], DType::F32))];
    for (name, cache) in caches {
        let value = value();
        let lines = routes(|| R::float_slice_assign(cache, &cut, value));
        assert_eq!(said(&lines, &[written]), [1], "{name}");
    }
    // Another owner of the tensor still reads its old contents.
    let (cache, value) = (tensor(&[2, 3, 8, 4], DType::F32), value());
    let lines = routes(|| R::float_slice_assign(cache.clone(), &cut, value));
    assert_routes(&lines, &["float_slice_assign f32: kernel cat"]);
}

#[test]
fn tensors_one_after_the_other_are_one_kernel() {
    for (shape, dim) in [([2, 3, 4, 5], 0), ([2, 3, 4, 5], 1), ([2, 3, 4, 5], 3), ([1, 16, 8, 8], 1)] {
        for dtype in FLOATS {
            let view =
                |view| float(&Random::new(), &shape, dtype, view, -1.0, 1.0).float::<R>(&Default::default());
            let parts: Vec<_> = View::ALL.into_iter().map(view).collect();
            let lines = routes(|| R::float_cat(parts, dim));
            assert_eq!(said(&lines, &["float_cat: kernel cat"]), [1], "{dtype:?} {shape:?} {dim}");
        }
    }
    let many: Vec<_> = (0..200).map(|n| tensor(&[2, 1 + n % 3, 7], DType::F32)).collect();
    let lines = routes(|| R::float_cat(many, 1));
    assert!(lines.len() <= 5, "{} launches for 200 tensors", lines.len());
}

/// The products of Burn's rotary embedding: all heads and positions share a right-hand side of 2 x
/// 4.
#[test]
fn a_shared_right_side_is_one_tall_product() {
    for heads_of in [[1, 4, 10, 16], [2, 12, 10, 16], [1, 32, 1, 16]] {
        let [batch, count, sequence, features] = heads_of;
        let x =
            R::float_reshape(heads(heads_of, DType::F32), [batch * count, sequence, features / 2, 2].into());
        let rows = x.shape().to_vec().iter().take(3).product::<usize>();
        let sign = tensor(&[1, 1, 2, 4], DType::F32);
        let lines = routes(|| R::float_matmul(x, sign));
        let product = format!("float_matmul f32: rocblas_sgemm F32 4x{rows}, k 2, batch 1");
        let counts = said(&lines, &["float_matmul f32: kernel copy_strided", &product]);
        assert!(counts[0] <= 1 && counts[1] == 1, "{heads_of:?}: {lines:#?}");
    }
}

/// The products of attention over several rows of tokens, where one stride does not reach all
/// heads.
#[test]
fn batches_that_one_stride_does_not_lead_through_are_one_call() {
    let of = |last| heads([4, 12, 8, last], DType::F32);
    let (q, k, v, scores) = (of(16), of(16), of(16), tensor(&[4, 12, 8, 8], DType::F32));
    let turned = || R::float_transpose(k.clone());
    for (name, most, a, b) in [
        ("scores", 2, q.clone(), turned()),
        ("context", 1, scores.clone(), v.clone()),
        ("weights' gradient", 2, q.clone(), R::float_transpose(v.clone())),
        ("values' gradient", 1, R::float_transpose(scores.clone()), q.clone()),
        // rocBLAS can't step through a flipped batch with any stride.
        ("flipped", 1, R::float_flip(scores.clone(), &[1]), scores.clone()),
    ] {
        let lines = routes(|| R::float_matmul(a, b));
        let counts = said(
            &lines,
            &["float_matmul f32: kernel copy_strided", "float_matmul f32: rocblas_sgemm_strided_batched"],
        );
        assert!(counts[0] <= most && counts[1] == 1, "{name}: {lines:#?}");
    }
}
