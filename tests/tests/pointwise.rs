//! Convolutions with windows of one element, which products compute where they are faster: their
//! results by both, and that the tuning store's choice is followed.
//!
//! A process has one set of settings, so each case is a process of its own.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_backend::ops::ConvOptions;
use burn_rocm::RocmDevice;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

/// Batch, channels, height, width, output channels, strides. The channels are such that they may be
/// last.
const CASES: [([usize; 5], [usize; 2]); 4] = [
    ([2, 16, 5, 6, 24], [1, 1]),
    ([3, 32, 7, 7, 40], [2, 2]),
    ([1, 40, 4, 9, 8], [1, 3]),
    ([2, 24, 1, 1, 16], [1, 1]),
];

fn values(tensor: burn_backend::tensor::FloatTensor<R>) -> Vec<f64> {
    read_float::<R>(tensor).iter::<f64>().collect()
}

/// Computes each case four times, checks each result against f64, and prints what the last ones
/// launched: convolutions of the library, and products.
#[test]
#[ignore = "run by the test below, with other settings"]
fn each_four_times() {
    let (random, device) = (Random::new(), RocmDevice::default());
    let (mut convolutions, mut products) = (0, 0);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for ([batch, from, height, width, to], stride) in CASES {
            let of = |shape: [usize; 4]| float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
            let (x, w) = (of([batch, from, height, width]), of([to, from, 1, 1]));
            let (x, w) = (x.float::<R>(&device), w.float::<R>(&device));
            let options = ConvOptions::new(stride, [0, 0], [1, 1], 1);
            // As a convolution before it would leave it, if the settings put channels last.
            let x = R::float_permute(x, &[0, 2, 3, 1]);
            let x = R::float_from_data(read_float::<R>(x), &device);
            let x = R::float_permute(x, &[0, 3, 1, 2]);
            let (xs, ws) = (values(x.clone()), values(w.clone()));
            for round in 0..4 {
                let (out, lines) = during(|| R::conv2d(x.clone(), w.clone(), None, options.clone()));
                if round == 3 {
                    let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
                    convolutions += count("miopenConvolution");
                    products += count("rocblas_");
                }
                let [_, _, rows, columns] = out.shape().dims();
                let found = values(out);
                for (at, &found) in found.iter().enumerate() {
                    let (column, row) = (at % columns, at / columns % rows);
                    let (channel, image) = (at / columns / rows % to, at / columns / rows / to);
                    let terms = (0..from).map(|c| {
                        let place =
                            ((image * from + c) * height + row * stride[0]) * width + column * stride[1];
                        xs[place] * ws[channel * from + c]
                    });
                    let (sum, all) = terms.fold((0.0, 0.0), |(sum, all), x| (sum + x, all + f64::abs(x)));
                    // A sum in f32, which matrix units may truncate, and a rounding to the dtype.
                    let off = 2.0 * (from as f64 + 4.0) * limits::unit(DType::F32) * all;
                    let off = off + limits::unit(dtype) * (sum.abs() + off) + limits::least(dtype);
                    let what = format!("{dtype:?} {batch} {from} {height} {width} {to} {stride:?}");
                    assert!((found - sum).abs() <= off, "{what} at {at}: {found} instead of {sum}");
                }
            }
        }
    }
    println!("{SAID}{convolutions} {products}");
}

/// Gives every choice between the library and a product this number.
fn replace_choices(folder: &std::path::Path, choice: usize) {
    for file in std::fs::read_dir(folder.join("tuning")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if !text.contains("library or product") {
            continue;
        }
        let line = |line: &str| match line.starts_with("solution ") {
            true => format!("solution {choice}\n"),
            false => format!("{line}\n"),
        };
        std::fs::write(&path, text.lines().map(line).collect::<String>()).unwrap();
    }
}

#[test]
fn the_stores_choice_computes() {
    let count = (3 * CASES.len()).to_string();
    for order in ["off", "auto", "on"] {
        let folder = std::env::temp_dir().join(format!("burn-rocm-pointwise-{order}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let settings = [
            ("BURN_ROCM_PROVIDER", "cpu"),
            ("BURN_ROCM_CPU_WAVE", "32"),
            ("BURN_ROCM_CHANNELS_LAST", order),
            ("BURN_ROCM_CACHE_DIR", folder.to_str().unwrap()),
        ];
        said_by("each_four_times", &settings);
        for (choice, expected) in [(0, format!("{count} 0")), (2, format!("0 {count}"))] {
            replace_choices(&folder, choice);
            assert_eq!(said_by("each_four_times", &settings), [expected], "{order}, {choice}");
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}

/// Blocks of one thread are the CPU device's own, whose library computes a product anyway.
#[test]
fn the_cpu_device_asks_its_library() {
    let expected = format!("{} 0", 3 * CASES.len());
    assert_eq!(said_by("each_four_times", &[("BURN_ROCM_PROVIDER", "cpu")]), [expected]);
}
