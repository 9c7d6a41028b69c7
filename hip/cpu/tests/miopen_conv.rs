//! MIOpen's convolution through its C table, against sums in `f64`.
#![allow(clippy::unwrap_used)]

mod library;

use core::ffi::c_void;
use half::{bf16, f16};
use library::conv::{Case, Descriptors, backward_data, backward_weights, forward};
use library::dnn::Typed;
use library::{Device, Random, close, wide};
use miopen_sys::*;

fn check<T: Typed>(case: &Case, random: &mut Random) {
    let what = format!(
        "x {:?} w {:?} stride {:?} pad {:?} dilation {:?} groups {}",
        case.x, case.w, case.stride, case.pad, case.dilation, case.groups
    );
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let x = random.values::<T>(count(&case.x));
    let w = random.values::<T>(count(&case.w));
    let dy = random.values::<T>(count(&case.y));
    let (fx, fw, fdy) = (wide(&x), wide(&w), wide(&dy));
    let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
    case.products(|i, j, k| {
        y[k] += fx[i] * fw[j];
        dx[i] += fdy[k] * fw[j];
        dw[j] += fdy[k] * fx[i];
    });
    let nan = |len: usize| Device::new(&vec![T::of(f64::NAN); len]);
    let (bx, bw, bdy) = (Device::new(&x), Device::new(&w), Device::new(&dy));
    let (by, bdx, bdw) = (nan(y.len()), nan(dx.len()), nan(dw.len()));
    let d = Descriptors::new(case, T::DATA, miopenConvolution);
    forward(&d, bx.void(), bw.void(), by.void());
    close(&format!("forward {what}"), &by.get(), &y, 1e-30);
    backward_data(&d, bdy.void(), bw.void(), bdx.void());
    close(&format!("backward data {what}"), &bdx.get(), &dx, 1e-30);
    backward_weights(&d, bdy.void(), bx.void(), bdw.void());
    close(&format!("backward weights {what}"), &bdw.get(), &dw, 1e-30);
    // The transposed convolution swaps the first two.
    let d = Descriptors::new(case, T::DATA, miopenTranspose);
    let (by, bdx, bdw) = (nan(y.len()), nan(dx.len()), nan(dw.len()));
    forward(&d, bdy.void(), bw.void(), bdx.void());
    close(&format!("transposed forward {what}"), &bdx.get(), &dx, 1e-30);
    backward_data(&d, bx.void(), bw.void(), by.void());
    close(&format!("transposed backward data {what}"), &by.get(), &y, 1e-30);
    backward_weights(&d, bx.void(), bdy.void(), bdw.void());
    close(&format!("transposed backward weights {what}"), &bdw.get(), &dw, 1e-30);
}

#[test]
fn random_shapes_in_two_and_three_dimensions() {
    let mut random = Random::new("convolution");
    let mut checked = 0;
    while checked < 150 {
        let Some(case) = Case::random(&mut random, if checked % 3 == 0 { 3 } else { 2 }) else { continue };
        match checked % 5 {
            0 => check::<f16>(&case, &mut random),
            1 => check::<bf16>(&case, &mut random),
            _ => check::<f32>(&case, &mut random),
        }
        checked += 1;
    }
}

#[test]
fn the_shapes_that_networks_use() {
    let mut random = Random::new("convolution, networks");
    for (x, w, stride, pad) in [
        ([5, 1, 28, 28], [32, 1, 3, 3], 1, 1),
        ([3, 32, 14, 14], [64, 32, 3, 3], 1, 1),
        ([2, 16, 7, 7], [24, 16, 3, 3], 1, 1),
        ([2, 24, 9, 10], [17, 24, 1, 1], 1, 0),
        ([2, 3, 33, 31], [16, 3, 7, 7], 2, 3),
        ([1, 48, 12, 12], [40, 48, 3, 3], 2, 1),
        ([2, 20, 8, 8], [12, 20, 5, 5], 1, 2),
        ([17, 8, 6, 6], [16, 8, 3, 3], 1, 0),
    ] {
        let case = Case::new(&x, &w, &[stride; 2], &[pad; 2], &[1; 2], 1).unwrap();
        check::<f32>(&case, &mut random);
    }
    // Depthwise.
    let case = Case::new(&[2, 40, 12, 12], &[40, 1, 3, 3], &[1; 2], &[1; 2], &[1; 2], 40).unwrap();
    check::<f32>(&case, &mut random);
}

#[test]
fn three_by_three_without_stride() {
    let mut random = Random::new("convolution, 3x3");
    for round in 0..40 {
        let groups = random.pick(&[1, 1, 2]);
        let (c, k) = (8 + random.below(12), 8 + random.below(20));
        let side = |random: &mut Random| 3 + random.below(18);
        let x = [1 + random.below(9), c * groups, side(&mut random), side(&mut random)];
        let pad = [random.below(4), random.below(4)];
        let Some(case) = Case::new(&x, &[k * groups, c, 3, 3], &[1; 2], &pad, &[1; 2], groups) else {
            continue;
        };
        match round % 4 {
            0 => check::<f16>(&case, &mut random),
            1 => check::<bf16>(&case, &mut random),
            _ => check::<f32>(&case, &mut random),
        }
    }
}

#[test]
fn one_by_one_filters() {
    let mut random = Random::new("convolution, 1x1");
    for round in 0..60 {
        let rank = 2 + usize::from(round % 3 == 0);
        let (c, k) = (7 + random.below(60), 7 + random.below(120));
        let axes = |random: &mut Random, least: usize, below: usize| -> Vec<usize> {
            (0..rank).map(|_| least + random.below(below)).collect()
        };
        let x = [vec![1 + random.below(9), c], axes(&mut random, 1, 14)].concat();
        let w = [vec![k, c], vec![1; rank]].concat();
        let stride = if round % 2 == 0 { vec![1; rank] } else { axes(&mut random, 1, 3) };
        let Some(case) = Case::new(&x, &w, &stride, &vec![0; rank], &vec![1; rank], 1) else { continue };
        match round % 4 {
            0 => check::<f16>(&case, &mut random),
            1 => check::<bf16>(&case, &mut random),
            _ => check::<f32>(&case, &mut random),
        }
    }
    // More than one wave of images, for which planes are written out.
    for (batch, stride) in [(3, 1), (9, 2)] {
        let case =
            Case::new(&[batch, 96, 101, 99], &[9, 96, 1, 1], &[stride; 2], &[0; 2], &[1; 2], 1).unwrap();
        check::<f32>(&case, &mut random);
        check::<f16>(&case, &mut random);
    }
    // Two waves, whose weight gradient is summed in runs of pixels.
    let case = Case::new(&[2, 32, 160, 160], &[64, 32, 1, 1], &[1; 2], &[0; 2], &[1; 2], 1).unwrap();
    check::<f16>(&case, &mut random);
}

#[test]
fn sums_and_images_of_several_blocks() {
    let mut random = Random::new("convolution, blocks");
    // More terms in a sum than a block holds, more pixels, more output channels than a task takes,
    // and strides that need several passes.
    for (x, w, stride, pad) in [
        ([3, 40, 20, 18], [70, 40, 3, 3], 1, 1),
        ([2, 34, 21, 20], [33, 34, 3, 3], 2, 1),
        ([2, 150, 5, 6], [135, 150, 2, 2], 3, 0),
        ([3, 70, 17, 15], [9, 70, 1, 1], 2, 0),
    ] {
        let case = Case::new(&x, &w, &[stride; 2], &[pad; 2], &[1; 2], 1).unwrap();
        check::<f32>(&case, &mut random);
        check::<f16>(&case, &mut random);
        check::<bf16>(&case, &mut random);
    }
}

#[test]
fn an_image_gives_alone_what_it_gives_in_a_batch() {
    // More images than are widened at once.
    let [one, all] = [1, 3].map(|batch| {
        Case::new(&[batch, 256, 64, 64], &[8, 256, 1, 1], &[1; 2], &[0; 2], &[1; 2], 1).unwrap()
    });
    let mut random = Random::new("convolution, batch");
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let (x, w) = (random.values::<f16>(count(&all.x)), Device::new(&random.values::<f16>(count(&all.w))));
    let run = |case: &Case, x: &[f16]| {
        let d = Descriptors::new(case, miopenHalf, miopenConvolution);
        let (x, y) = (Device::new(x), Device::new(&vec![f16::NAN; count(&case.y)]));
        let dx = Device::new(&vec![f16::NAN; count(&case.x)]);
        forward(&d, x.void(), w.void(), y.void());
        backward_data(&d, y.void(), w.void(), dx.void());
        (y.get(), dx.get())
    };
    let (y, dx) = run(&all, &x);
    for image in 0..3 {
        let part = |values: &[f16], case: &[usize]| values[image * count(case)..][..count(case)].to_vec();
        let alone = run(&one, &part(&x, &one.x));
        assert!(alone == (part(&y, &one.y), part(&dx, &one.x)), "image {image}");
    }
}

#[test]
fn what_is_not_finite_stays_where_it_is() {
    // An infinity in an image's corner. In memory it is next to the following image, but only
    // windows that cover it may read it.
    let case = Case::new(&[2, 9, 7, 7], &[9, 9, 3, 3], &[1; 2], &[0; 2], &[1; 2], 1).unwrap();
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let (mut x, w) = (vec![1f32; count(&case.x)], vec![1f32; count(&case.w)]);
    x[48] = f32::INFINITY;
    let dy = vec![1f32; count(&case.y)];
    let (mut y, mut dw) = (vec![0.0; dy.len()], vec![0.0; w.len()]);
    case.products(|i, j, k| {
        y[k] += f64::from(x[i]) * f64::from(w[j]);
        dw[j] += f64::from(dy[k]) * f64::from(x[i]);
    });
    let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
    let (bx, bw, bdy) = (Device::new(&x), Device::new(&w), Device::new(&dy));
    let (by, bdw) = (Device::new(&vec![0f32; y.len()]), Device::new(&vec![0f32; dw.len()]));
    forward(&d, bx.void(), bw.void(), by.void());
    backward_weights(&d, bdy.void(), bx.void(), bdw.void());
    let same =
        |found: Vec<f32>, expected: &[f64]| found.iter().zip(expected).all(|(a, b)| f64::from(*a) == *b);
    assert!(same(by.get(), &y), "forward");
    assert!(same(bdw.get(), &dw), "backward weights");
}

#[test]
fn the_same_bits_every_time() {
    let mut random = Random::new("convolution, bits");
    let case = Case::new(&[9, 8, 13, 11], &[24, 8, 3, 3], &[1; 2], &[1; 2], &[1; 2], 1).unwrap();
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    let (x, w, y) = (count(&case.x), count(&case.w), count(&case.y));
    let (bx, bdy) = (Device::new(&random.values::<f32>(x)), Device::new(&random.values::<f32>(y)));
    let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
    let run = || {
        let dw = Device::new(&vec![0f32; w]);
        backward_weights(&d, bdy.void(), bx.void(), dw.void());
        dw.get().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    };
    let first = run();
    assert!((0..5).all(|_| run() == first));
}

/// Shapes for every implementation in the CPU's MIOpen. Products of 1x1 filters are cut by the
/// number of cores. Some of these would give other bits if their parts were shorter.
#[test]
fn the_same_bits_for_any_number_of_cores() {
    const CHILD: &str = "HIP_CPU_TEST_CORES_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let bits = ["1", "2", "5"].map(|cores| {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "the_same_bits_for_any_number_of_cores", "--nocapture"])
                .env(CHILD, "1")
                .env("BURN_ROCM_CPU_THREADS", cores)
                .output()
                .unwrap();
            let text = String::from_utf8(child.stdout).unwrap();
            assert!(child.status.success(), "{text}");
            text.lines().filter(|line| line.starts_with("bits of")).map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(bits[0].len(), 9, "{bits:?}");
        assert!(bits.iter().all(|other| *other == bits[0]), "{bits:#?}");
        return;
    }
    for (x, w, groups) in [
        ([1, 64, 28, 28], [96, 64, 1, 1], 1),
        ([3, 24, 50, 40], [24, 24, 1, 1], 1),
        ([1, 1000, 7, 7], [96, 1000, 1, 1], 1),
        ([1, 600, 8, 8], [192, 600, 1, 1], 1),
        ([2, 256, 14, 14], [1024, 256, 1, 1], 1),
        ([2, 128, 48, 48], [64, 128, 1, 1], 1),
        ([2, 300, 5, 5], [40, 300, 1, 1], 1),
        ([3, 24, 20, 20], [40, 24, 3, 3], 1),
        ([3, 24, 20, 20], [24, 1, 3, 3], 24),
    ] {
        let case = Case::new(&x, &w, &[1; 2], &[0; 2], &[1; 2], groups).unwrap();
        let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        let drawn = |dims: &[usize], by: f32| {
            Device::new(&(0..count(dims)).map(|i| (i as f32 * by).sin()).collect::<Vec<f32>>())
        };
        let (x, w, dy) = (drawn(&case.x, 0.37), drawn(&case.w, 0.61), drawn(&case.y, 0.83));
        let empty = |dims: &[usize]| Device::new(&vec![f32::NAN; count(dims)]);
        let (y, dx, dw) = (empty(&case.y), empty(&case.x), empty(&case.w));
        forward(&d, x.void(), w.void(), y.void());
        backward_data(&d, dy.void(), w.void(), dx.void());
        backward_weights(&d, dy.void(), x.void(), dw.void());
        // FNV-1a.
        let digest = [y.get(), dx.get(), dw.get()].map(|values| {
            let mix = |hash: u64, x: &f32| (hash ^ u64::from(x.to_bits())).wrapping_mul(0x0100_0000_01b3);
            values.iter().fold(0xcbf2_9ce4_8422_2325, mix)
        });
        println!("\nbits of {:?} {:?}: {digest:x?}", case.x, case.w);
    }
}

#[test]
fn find_mode() {
    let mut random = Random::new("convolution, find");
    let case = Case::new(&[2, 3, 8, 8], &[4, 3, 3, 3], &[1; 2], &[1; 2], &[1; 2], 1).unwrap();
    let (x, w) = (random.values::<f32>(2 * 3 * 64), random.values::<f32>(4 * 27));
    let mut expected = vec![0.0; 2 * 4 * 64];
    case.products(|i, j, k| expected[k] += f64::from(x[i]) * f64::from(w[j]));
    let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
    let (bx, bw, by) = (Device::new(&x), Device::new(&w), Device::new(&vec![0f32; expected.len()]));
    let (one, zero) = (1.0f32, 0.0f32);
    let float = |value: &f32| core::ptr::from_ref(value).cast::<c_void>();
    let table = &d.dnn.table;
    // SAFETY: live descriptors, out-pointers, buffers of the descriptors' sizes.
    unsafe {
        let mut size = 0usize;
        let status = (table.miopenConvolutionForwardGetWorkSpaceSize)(
            d.dnn.handle,
            d.w.get(),
            d.x.get(),
            d.conv,
            d.y.get(),
            &mut size,
        );
        assert_eq!(status, miopenStatusSuccess);
        let space = Device::new(&vec![0u8; size]);
        let run = |algorithm, alpha| {
            (table.miopenConvolutionForward)(
                d.dnn.handle,
                float(alpha),
                d.x.get(),
                bx.void(),
                d.w.get(),
                bw.void(),
                d.conv,
                algorithm,
                float(&zero),
                d.y.get(),
                by.void(),
                space.void(),
                size,
            )
        };
        assert_eq!(
            run(miopenConvolutionFwdAlgoDirect, &one),
            miopenStatusUnknownError,
            "find must come first"
        );
        let (mut found, mut perf) = (0, core::mem::zeroed::<miopenConvAlgoPerf_t>());
        let status = (table.miopenFindConvolutionForwardAlgorithm)(
            d.dnn.handle,
            d.x.get(),
            bx.void(),
            d.w.get(),
            bw.void(),
            d.conv,
            d.y.get(),
            by.void(),
            1,
            &mut found,
            &mut perf,
            space.void(),
            size,
            false,
        );
        assert_eq!((status, found), (miopenStatusSuccess, 1));
        assert!(perf.memory <= size);
        assert_eq!(run(perf.algorithm.fwd_algo, &zero), miopenStatusNotImplemented);
        assert_eq!(run(perf.algorithm.fwd_algo, &one), miopenStatusSuccess);
        close("found", &by.get(), &expected, 1.0);
    }
}

#[test]
fn strides_beyond_the_input() {
    let mut random = Random::new("convolution, long strides");
    for (x, w, stride, pad) in [
        ([1, 8, 3, 3], [8, 8, 3, 3], [1 << 30, 1 << 30], [0, 0]),
        ([2, 8, 7, 5], [9, 8, 3, 2], [1 << 30, 6], [1, 0]),
        ([2, 2, 7, 6], [3, 2, 2, 3], [5, 1 << 30], [1, 2]),
    ] {
        let case = Case::new(&x, &w, &stride, &pad, &[1; 2], 1).unwrap();
        check::<f32>(&case, &mut random);
    }
}

/// Offsets into the planes would have more than 32 bits.
#[test]
fn planes_that_are_too_large_are_refused() {
    let most = i32::MAX as usize;
    for case in [
        // The gradient is filled into planes of almost twice the input's length.
        Case::new(&[1, 1, 600, 600], &[4096, 1, 2, 2], &[1; 2], &[0; 2], &[599; 2], 1),
        Case::new(&[1, 1, 1, 1], &[1, 1, 1, 1], &[most; 2], &[most; 2], &[1; 2], 1),
    ] {
        let d = Descriptors::new(&case.unwrap(), miopenFloat, miopenConvolution);
        let (ask, mut count) = (d.dnn.table.miopenConvolutionBackwardDataGetSolutionCount, 0);
        // SAFETY: live descriptors and an out-pointer.
        let status = unsafe { ask(d.dnn.handle, d.y.get(), d.w.get(), d.conv, d.x.get(), &mut count) };
        assert_eq!(status, miopenStatusNotImplemented);
    }
}

/// hip-provider's tests hold the rules for arguments. These are this provider's own: shapes that fit
/// each other, and buffers.
#[test]
fn refusals() {
    let case = Case::new(&[1, 2, 5, 5], &[3, 2, 3, 3], &[1; 2], &[0; 2], &[1; 2], 1).unwrap();
    let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
    let table = &d.dnn.table;
    let mut count = 0usize;
    let null = core::ptr::null_mut();
    // SAFETY: live descriptors or null; out-pointers.
    unsafe {
        let mut ask = |handle,
                       w: miopenTensorDescriptor_t,
                       x: miopenTensorDescriptor_t,
                       y: miopenTensorDescriptor_t| {
            (table.miopenConvolutionForwardGetSolutionCount)(handle, w, x, d.conv, y, &mut count)
        };
        let handle = d.dnn.handle;
        assert_eq!(ask(handle, d.w.get(), d.x.get(), d.y.get()), miopenStatusSuccess);
        assert_eq!(ask(handle, core::ptr::null_mut(), d.x.get(), d.y.get()), miopenStatusBadParm);
        let wrong = [
            d.dnn.tensor(miopenFloat, &[1, 3, 4, 3]), // size
            d.dnn.tensor(miopenFloat, &[2, 3, 3, 3]), // batch
            d.dnn.tensor(miopenFloat, &[1, 4, 3, 3]), // channels
        ];
        for y in &wrong {
            assert_eq!(ask(handle, d.w.get(), d.x.get(), y.get()), miopenStatusBadParm);
        }

        let mut solution = core::mem::zeroed::<miopenConvSolution_t>();
        let status = (table.miopenConvolutionForwardGetSolution)(
            handle,
            d.w.get(),
            d.x.get(),
            d.conv,
            d.y.get(),
            1,
            &mut count,
            &mut solution,
        );
        assert_eq!(status, miopenStatusSuccess);
        let space = Device::new(&vec![0u8; solution.workspace_size]);
        let (x, w, y) = (Device::new(&[0f32; 50]), Device::new(&[0f32; 54]), Device::new(&[0f32; 27]));
        let short = Device::new(&[0f32; 10]);
        let host = [0f32; 64];
        let run = |x: *mut c_void, y: *mut c_void| {
            (table.miopenConvolutionForwardImmediate)(
                handle,
                d.w.get(),
                w.void(),
                d.x.get(),
                x,
                d.conv,
                d.y.get(),
                y,
                space.void(),
                space.bytes(),
                solution.solution_id,
            )
        };
        assert_eq!(run(x.void(), y.void()), miopenStatusSuccess);
        assert_eq!(run(null, y.void()), miopenStatusBadParm);
        assert_eq!(run(x.void(), null), miopenStatusBadParm);
        assert_eq!(run(short.void(), y.void()), miopenStatusBadParm);
        assert_eq!(run(host.as_ptr().cast_mut().cast(), y.void()), miopenStatusBadParm);
    }
}
