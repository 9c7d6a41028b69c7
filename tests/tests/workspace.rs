//! The limit of workspaces: what needs more is passed over, down to kernels that need none, and the
//! results stay right.
//!
//! The settings belong to a process, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm::tuning::store;
use burn_rocm::{ProviderKind, RocmDevice, RocmError, memory_summary, take_last_error};
use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

fn said(what: &str, value: impl std::fmt::Debug) {
    println!("{SAID}{what} {value:?}");
}

fn options() -> ConvOptions<2> {
    ConvOptions::new([1, 1], [1, 1], [1, 1], 1)
}

/// A convolution and its gradients, three times against the oracle. Says what computed the first
/// ones and the last ones.
fn convolutions(dtype: DType) {
    let (random, device) = (Random::new(), Default::default());
    let input = |shape: &[usize]| float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
    let (x, w, g) = (input(&[2, 8, 9, 9]), input(&[8, 8, 3, 3]), input(&[2, 8, 9, 9]));
    for _ in 0..2 {
        let tensors = || (x.float::<R>(&device), w.float::<R>(&device), g.float::<R>(&device));
        let ((x1, w1, g1), (x2, w2, g2)) = (tensors(), tensors());
        let (_, lines) = during(|| {
            let y = R::conv2d(x1.clone(), w1.clone(), None, options());
            let dx = R::conv2d_x_backward(x1, w1, g1, options());
            let dw = R::conv2d_weight_backward(x2, w2, g2, options());
            (y, dx, dw)
        });
        let by = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
        said("library", by("miopenConvolution"));
        said("patches", by("conv_patches<") + by("conv_unpatch<"));
        said("direct", by("conv_forward<") + by("conv_backward_data<") + by("conv_backward_weights<"));
        let terms = |count: usize| Terms::of(count, dtype);
        sums!("forward", terms(8 * 9), |B, device, [x = &x, w = &w]| B::conv2d(x, w, None, options()));
        sums!("data", terms(8 * 9), |B, device, [x = &x, w = &w, g = &g]| {
            B::conv2d_x_backward(x, w, g, options())
        });
        sums!("weights", terms(2 * 81), |B, device, [x = &x, w = &w, g = &g]| {
            B::conv2d_weight_backward(x, w, g, options())
        });
    }
    said("trials", store().stats().trials);
    said("entries", store().stats().entries);
}

#[test]
#[ignore = "run by the tests below, with other settings"]
fn in_f32() {
    convolutions(DType::F32);
}

#[test]
#[ignore = "run by the tests below, with other settings"]
fn in_f64() {
    convolutions(DType::F64);
}

#[test]
#[ignore = "run by the tests below, with other settings"]
fn the_error() {
    let (random, device) = (Random::new(), Default::default());
    let input = |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0);
    let (x, w) = (input(&[2, 8, 9, 9]).float::<R>(&device), input(&[8, 8, 3, 3]).float::<R>(&device));
    let done = std::panic::catch_unwind(|| R::conv2d(x, w, None, options())).is_ok();
    match take_last_error() {
        None => said("done", done),
        Some(RocmError::Unsupported { what, .. }) => println!("{SAID}{}", what.unwrap()),
        Some(other) => panic!("{other}"),
    }
}

/// A product, and the bytes of workspaces that the pool holds then.
#[test]
#[ignore = "run by the test below, with other settings"]
fn a_product() {
    let random = Random::new();
    let input = |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0);
    let (a, b) = (input(&[33, 17]), input(&[17, 9]));
    sums!("product", Terms::of(17, DType::F32), |B, device, [a = &a, b = &b]| B::float_matmul(a, b));
    let summary = memory_summary(&RocmDevice::default()).unwrap();
    let row = summary.labels.iter().find(|row| row.name == "workspaces");
    said("workspaces", row.map_or(0, |row| row.used.bytes));
}

/// What the six lines of a run with this limit say, for the first and the second use.
fn expected(library: usize, patches: usize, direct: usize) -> Vec<String> {
    let one = [format!("library {library}"), format!("patches {patches}"), format!("direct {direct}")];
    [one.clone(), one].concat()
}

/// What a run without any workspace says in f32. MIOpen's direct solvers need none; this project's
/// MIOpen has none of that kind, on the CPU device and on NVIDIA GPUs.
fn without_workspace() -> Vec<String> {
    if is_miopen() { expected(3, 0, 0) } else { expected(0, 0, 3) }
}

/// Whether the library is AMD's own MIOpen.
fn is_miopen() -> bool {
    burn_rocm::provider().unwrap().kind() == ProviderKind::Rocm
}

/// A convolution of 1 x 1 windows and its gradients in f64, which MIOpen does not have, and a
/// deformable one. Says how many products and how many pieces of columns each took.
#[test]
#[ignore = "run by the test below, with other settings"]
fn pointwise_and_deformable() {
    let (random, device) = (Random::new(), Default::default());
    let input =
        |shape: &[usize]| float(&random, shape, DType::F64, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let options = || ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1);
    let (x, w, g) = (input(&[5, 8, 6, 6]), input(&[8, 8, 1, 1]), input(&[5, 8, 6, 6]));
    let products = |body: &dyn Fn() -> burn_rocm::RocmTensor| {
        let (_, lines) = during(body);
        lines.iter().filter(|line| line.contains("rocblas_")).count()
    };
    let forward = products(&|| R::conv2d(x.clone(), w.clone(), None, options()));
    let data = products(&|| R::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options()));
    let weights = products(&|| R::conv2d_weight_backward(x.clone(), w.clone(), g.clone(), options()));
    said("products", [forward, data, weights]);
    let deform = burn::tensor::ops::DeformConvOptions::new([1, 1], [1, 1], [1, 1], 1, 1);
    let (w, offset) = (input(&[8, 8, 3, 3]), input(&[5, 18, 6, 6]));
    let run = || R::deform_conv2d(x.clone(), offset.clone(), w.clone(), None, None, deform.clone());
    let (_, lines) = during(run);
    said("columns", lines.iter().filter(|line| line.contains("deform_columns")).count());
}

/// A convolution of 1 x 1 windows writes no patches, so only its weights' gradient is cut: an image's
/// is 8 x 8 numbers. Columns of the deformable one are 8 x 9 x 36 numbers an image.
#[test]
fn only_what_takes_workspace_is_cut() {
    let columns = 8 * 9 * 36 * size_of::<f64>();
    for (limit, weights, pieces) in [
        (5 * columns, 1, 1),
        (columns, 1, 5),
        (columns / 2, 1, 10),
        (2 * 64 * size_of::<f64>(), 3, 5 * 36),
        (0, 5, 5 * 36),
    ] {
        let text = limit.to_string();
        let said = said_by("pointwise_and_deformable", &[OFF, ("BURN_ROCM_WORKSPACE_LIMIT", &text)]);
        let expected = [format!("products {:?}", [1, 1, weights]), format!("columns {pieces}")];
        assert_eq!(said, expected, "{limit} bytes");
    }
}

const OFF: (&str, &str) = ("BURN_ROCM_TUNING", "0");

#[test]
fn without_workspace_the_direct_kernels_convolve() {
    let said = said_by("in_f32", &[OFF, ("BURN_ROCM_WORKSPACE_LIMIT", "0")]);
    assert_eq!(said[..6], without_workspace(), "f32");
    for find in ["find", "normal", "immediate"] {
        let limit = ("BURN_ROCM_WORKSPACE_LIMIT", "0");
        let said = said_by("in_f32", &[OFF, limit, ("BURN_ROCM_CONV_FIND", find)]);
        assert_eq!(said[..6], without_workspace(), "{find}");
    }
    let said = said_by("in_f64", &[OFF, ("BURN_ROCM_WORKSPACE_LIMIT", "0")]);
    assert_eq!(said[..6], expected(0, 0, 3), "f64");
}

/// One image's patches of f64 have 8 x 9 x 81 numbers.
#[test]
fn patches_keep_to_the_limit() {
    let image = 8 * 9 * 81 * size_of::<f64>();
    for (limit, patches, direct) in [(image - 1, 0, 3), (image, 6, 0), (2 * image, 3, 0)] {
        let said = said_by("in_f64", &[OFF, ("BURN_ROCM_WORKSPACE_LIMIT", &limit.to_string())]);
        assert_eq!(said[..6], expected(0, patches, direct), "{limit} bytes");
    }
}

#[test]
fn miopen_computes_what_fits_and_the_error_says_what_it_needs() {
    let library = ("BURN_ROCM_CONV", "miopen");
    let said = said_by("the_error", &[OFF, library, ("BURN_ROCM_WORKSPACE_LIMIT", "0")]);
    if is_miopen() {
        assert_eq!(said, ["done true"]);
        return;
    }
    let [error] = said.as_slice() else { panic!("{said:?}") };
    assert!(error.contains("at most 0 bytes (BURN_ROCM_WORKSPACE_LIMIT)"), "{error}");
    let (_, rest) = error.split_once("at least ").expect("what MIOpen needs");
    let needed: usize = rest.split(' ').next().unwrap().parse().unwrap();
    for (limit, fits) in [(needed, true), (needed - 1, false)] {
        let limit = limit.to_string();
        let said = said_by("the_error", &[OFF, library, ("BURN_ROCM_WORKSPACE_LIMIT", &limit)]);
        assert_eq!(said == ["done true"], fits, "{limit} bytes: {said:?}");
    }
}

#[test]
fn strict_settings_make_the_fallback_an_error() {
    let limit = ("BURN_ROCM_WORKSPACE_LIMIT", "0");
    // With strict settings, the CPU device must be asked for.
    let provider = match burn_rocm::provider().unwrap().kind() {
        ProviderKind::Rocm => "rocm",
        ProviderKind::Cuda => "cuda",
        ProviderKind::Cpu => "cpu",
    };
    let strict = [OFF, ("BURN_ROCM_STRICT", "1"), ("BURN_ROCM_PROVIDER", provider), limit];
    let said = said_by("the_error", &strict);
    if is_miopen() {
        assert_eq!(said, ["done true"], "nothing falls back");
        return;
    }
    assert!(said.len() == 1 && said[0].contains("BURN_ROCM_WORKSPACE_LIMIT"), "{said:?}");
    assert_eq!(said_by("the_error", &[OFF, limit]), ["done true"]);
}

/// What a process without a limit has kept stays, and one with a limit passes over it.
#[test]
fn a_kept_solution_that_needs_more_is_passed_over() {
    let folder = std::env::temp_dir().join(format!("burn-rocm-workspace-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let cache = ("BURN_ROCM_CACHE_DIR", folder.to_str().unwrap());
    let find = ("BURN_ROCM_CONV_FIND", "find");
    let found = said_by("in_f32", &[cache, find]);
    assert_eq!(found, [expected(3, 0, 0), vec!["trials 3".into(), "entries 3".into()]].concat());
    let limited = said_by("in_f32", &[cache, find, ("BURN_ROCM_WORKSPACE_LIMIT", "0")]);
    assert_eq!(limited[..6], without_workspace());
    if !is_miopen() {
        assert_eq!(limited[7], "entries 3");
    }
    // A limit that all keep to: what is kept is used.
    let wide = said_by("in_f32", &[cache, find, ("BURN_ROCM_WORKSPACE_LIMIT", "1G")]);
    assert_eq!(wide[..7], [expected(3, 0, 0), vec!["trials 0".into()]].concat());
    assert_eq!(wide[7], limited[7], "nothing is added");
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn rocblas_gets_a_workspace_of_the_pool() {
    for (limit, bytes) in [("0", 256), ("1M", 1 << 20), ("1G", 32 << 20)] {
        let said = said_by("a_product", &[("BURN_ROCM_WORKSPACE_LIMIT", limit)]);
        assert_eq!(said, [format!("workspaces {bytes}")], "{limit}");
    }
    assert_eq!(said_by("a_product", &[]), ["workspaces 0"]);
}

/// Each failure makes another handle, but none keeps its block. A kernel then multiplies.
#[test]
fn a_workspace_that_rocblas_refuses_goes_back_to_the_pool() {
    let failing = [("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_CPU_FAIL", "rocblas_set_workspace")];
    let limit = ("BURN_ROCM_WORKSPACE_LIMIT", "1M");
    let said = said_by("a_product", &[failing[0], failing[1], limit]);
    assert_eq!(said, ["workspaces 0"]);
}
