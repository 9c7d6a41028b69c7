//! burn-vision's ops here and on burn-flex, and where they compute.

use std::fmt::Debug;

use burn::tensor::kind::Basic;
use burn::tensor::ops::PadMode;
use burn::tensor::{Bool, Device, FloatDType, IntDType, Scalar, Tensor, TensorData};
use burn_cubecl::trace::{Counts, counting};
use burn_vision::utils::{ColorDisplayOpts, ImageDimOrder, TensorDisplayOptions, save_tensor_as_image};
use burn_vision::{
    BorderType, ColorConversion, ConnectedComponents, ConnectedStatsOptions, Connectivity, KernelShape,
    MorphOptions, Morphology, Nms, NmsOptions, Point, Size, Transform2D, create_structuring_element,
    filter2d, median,
};

/// Unit roundoff of f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Numbers in -1..1.
fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

/// Shape and elements.
fn contents(data: TensorData) -> (Vec<usize>, Vec<f64>) {
    (data.shape().to_vec(), data.iter::<f64>().collect())
}

/// The result here, which must be burn-flex's.
fn same<T: Debug + PartialEq>(case: impl Debug, op: impl Fn(&Device) -> T) -> T {
    let (found, expected) = (op(&Device::rocm(0)), op(&Device::flex()));
    assert_eq!(found, expected, "{case:?}");
    found
}

/// What the op requests of the device, without what its first call compiles and chooses.
fn work<T>(op: impl Fn() -> T) -> Counts {
    let device = Device::rocm(0);
    op();
    device.sync().expect("the device works");
    let of_op = || {
        op();
        device.flush().expect("the device works");
    };
    counting(of_op).1
}

/// A black and white image: a part of a larger one, and transposed.
fn drawing([height, width]: [usize; 2], step: f32, device: &Device) -> Tensor<2, Bool> {
    let whole = TensorData::new(wave((width + 2) * (height + 1), step), [width + 2, height + 1]);
    let whole = Tensor::<2>::from_data(whole, device).greater_scalar(0.1);
    whole.slice([1..width + 1, 0..height]).transpose()
}

/// Labels, areas, sides (left, top, right, bottom), and the largest label.
type Components = Vec<(Vec<usize>, Vec<f64>)>;

fn components(
    image: Tensor<2, Bool>,
    connectivity: Connectivity,
    options: ConnectedStatsOptions,
) -> Components {
    let (labels, stats) = image.clone().connected_components_with_stats(connectivity, options);
    let alone = image.connected_components(connectivity);
    let mut all = vec![contents(labels.into_data()), contents(alone.into_data())];
    let stats = [stats.area, stats.left, stats.top, stats.right, stats.bottom, stats.max_label];
    all.extend(stats.map(|stat| contents(stat.into_data())));
    all
}

#[test]
fn components_are_labelled() {
    let connectivities = [Connectivity::Four, Connectivity::Eight];
    let some = ConnectedStatsOptions { bounds_enabled: false, ..ConnectedStatsOptions::all() };
    for connectivity in connectivities {
        for options in [ConnectedStatsOptions::all(), some] {
            for (shape, step) in
                [([1, 1], 0.9), ([1, 9], 1.1), ([9, 1], 1.1), ([9, 14], 1.3), ([67, 33], 1.7)]
            {
                let case = (shape, connectivity, options);
                let all =
                    same(case, |device| components(drawing(shape, step, device), connectivity, options));
                assert_eq!(all[0], all[1], "{case:?}");
                assert_eq!(all[0].0, shape);
            }
            // On burn-flex, burn-vision reads outside an image without rows, and may crash.
            let image = TensorData::new(Vec::<bool>::new(), [0, 3]);
            let image = Tensor::from_data(image, &Device::rocm(0));
            let all = components(image, connectivity, options);
            assert_eq!(all[..2], [(); 2].map(|()| (vec![0, 3], vec![])));
            assert_eq!(all[2..], [(); 6].map(|()| (vec![1], vec![0.0])));
        }
    }
    let image =
        |device: &Device| Tensor::<2, Bool>::from_data([[true, false, true], [false, true, false]], device);
    let labels = connectivities.map(|connectivity| {
        contents(image(&Device::rocm(0)).connected_components(connectivity).into_data()).1
    });
    assert_eq!(labels, [[1.0, 0.0, 2.0, 0.0, 3.0, 0.0], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]]);
}

/// Erodes and dilates an image of three channels, with several kernels and borders.
fn morphology<K: Basic + Clone>(name: &str, image: impl Fn(&Device) -> Tensor<3, K>)
where
    Tensor<3, K>: Morphology,
{
    let border = vec![Scalar::Int(0), Scalar::Int(1), Scalar::Int(1)];
    let options = [
        MorphOptions::default(),
        MorphOptions::builder().border_value(border).build(),
        MorphOptions::builder().border_type(BorderType::Replicate).iterations(2).build(),
        MorphOptions::builder().border_type(BorderType::Reflect).anchor(Point::new(0, 2)).build(),
        MorphOptions::builder().border_type(BorderType::Reflect101).build(),
    ];
    for shape in [KernelShape::Rect, KernelShape::Cross, KernelShape::Ellipse] {
        for options in &options {
            let [eroded, dilated] = same((name, shape, options), |device| {
                let kernel = create_structuring_element(shape, Size::new(5, 3), None, device);
                let image = image(device);
                let eroded = image.clone().erode(kernel.clone(), options.clone());
                [eroded, image.dilate(kernel, options.clone())].map(|out| contents(out.into_data()))
            });
            assert_eq!(eroded.0, [9, 11, 3]);
            assert!(eroded.1.iter().zip(&dilated.1).all(|(eroded, dilated)| eroded <= dilated));
            assert_ne!(eroded, dilated, "{name} {shape:?} {options:?}");
        }
    }
}

/// An image of three channels, whose rows and columns are swapped in memory.
fn picture(device: &Device) -> Tensor<3> {
    let data = TensorData::new(wave(9 * 11 * 3, 1.3), [11, 9, 3]);
    Tensor::<3>::from_data(data, device).swap_dims(0, 1)
}

#[test]
fn images_are_eroded_and_dilated() {
    for dtype in [FloatDType::F32, FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        morphology(&format!("{dtype:?}"), |device| picture(device).cast(dtype));
    }
    for dtype in [IntDType::I64, IntDType::I32, IntDType::I16, IntDType::I8] {
        morphology(&format!("{dtype:?}"), |device| (picture(device) * 100.0).int().cast(dtype));
    }
    morphology("bool", |device| picture(device).greater_scalar(0.1));
}

/// Boxes that overlap, and their scores.
fn boxes(count: usize, device: &Device) -> (Tensor<2>, Tensor<1>) {
    let of = |step| Tensor::<1>::from_data(TensorData::new(wave(count, step), [count]), device);
    let [left, top] = [of(0.7), of(1.9)].map(|at| at * 30.0);
    let (right, bottom) = (left.clone() + of(1.1) * 5.0 + 12.0, top.clone() + of(2.3) * 5.0 + 12.0);
    (Tensor::stack(vec![left, top, right, bottom], 1), of(2.9))
}

#[test]
fn boxes_are_suppressed() {
    let all = NmsOptions { iou_threshold: 0.3, score_threshold: -1.0, max_output_boxes: 0 };
    let cases = [all, NmsOptions { score_threshold: 0.2, ..all }, NmsOptions { max_output_boxes: 3, ..all }];
    let kept = cases.map(|options| {
        same(options, |device| {
            let (boxes, scores) = boxes(70, device);
            contents(boxes.nms(scores, options).into_data())
        })
    });
    let [all, scored, few] = kept.map(|kept| kept.1.len());
    assert!(all < 70 && scored < all, "{all} and {scored} of 70 boxes");
    assert_eq!(few, 3);
    let none = same("no boxes", |device| {
        let (boxes, scores) = boxes(4, device);
        contents(boxes.slice([0..0, 0..4]).nms(scores.slice(0..0), cases[0]).into_data())
    });
    assert_eq!(none, (vec![0], vec![]));
}

/// Images in -1..1, or as `map` changes these numbers.
fn images(map: impl Fn(f32) -> f32, device: &Device) -> Tensor<4> {
    let numbers = wave(2 * 3 * 9 * 9, 0.7).into_iter().map(map).collect();
    Tensor::from_data(TensorData::new(numbers, [2, 3, 9, 9]), device)
}

/// The result here must be burn-flex's within `bound`.
fn near(case: &str, bound: f64, op: impl Fn(&Device) -> Tensor<4>) {
    let [found, expected] = [Device::rocm(0), Device::flex()].map(|on| contents(op(&on).into_data()));
    assert_eq!(found.0, expected.0, "{case}");
    assert!(expected.1.iter().any(|value| *value != expected.1[0]), "{case}: one value everywhere");
    for (a, b) in found.1.iter().zip(&expected.1) {
        assert!((a - b).abs() <= bound, "{case}: {a}, expected {b} within {bound:.1e}");
    }
}

type MakeTransform = fn() -> Transform2D;

#[test]
fn images_are_filtered_and_transformed() {
    let plain = |device: &Device| images(|x| x, device);
    for [height, width] in [[3, 5], [4, 2]] {
        for border in [PadMode::Reflect, PadMode::Edge, PadMode::Constant(0.5)] {
            // Each sum has at most 15 products of at most 1, and two devices' errors differ.
            near("filter2d", 2.0 * 15.0 * 16.0 * U, |device| {
                let weights = TensorData::new(wave(height * width, 0.4), [height, width]);
                filter2d(plain(device), Tensor::from_data(weights, device), border)
            });
        }
    }
    near("median", 0.0, |device| median(plain(device), 3));
    // A coordinate is a sum of three terms below 5 in total, of four roundings. It is scaled by 4 to
    // pixels, whose numbers are at most 24, with three roundings more. So it is off by at most 4 * 5
    // * 4 + 24 * 3 = 152 U. Pixels differ by at most 2 from their neighbours along both axes. The
    // interpolation adds 8 roundings of numbers of at most 1.
    let bound = 2.0 * (2.0 * 2.0 * 152.0 + 8.0) * U;
    let transforms: [(&str, MakeTransform); 4] = [
        ("rotation", || Transform2D::rotation(0.3, 0.1, -0.2)),
        ("shear", || Transform2D::shear(0.2, -0.3, 0.1, 0.1)),
        ("translation", || Transform2D::translation(0.3, -0.2)),
        ("all", || {
            let scale = Transform2D::scale(0.8, 1.2, 0.0, 0.1);
            Transform2D::composed([
                scale,
                Transform2D::rotation(-0.5, 0.0, 0.0),
                Transform2D::translation(0.1, 0.2),
            ])
        }),
    ];
    for (name, transform) in transforms {
        near(name, bound, |device| transform().transform(plain(device)));
    }
}

#[test]
fn colours_are_converted() {
    // Pixels side by side. No hue is near 0, where it jumps to 360.
    let pixels = |pixels: [[f32; 3]; 6], device: &Device| {
        Tensor::<2>::from_floats(pixels, device).transpose().reshape([1, 3, 2, 3])
    };
    let rgb = [
        [0.9, 0.5, 0.1],
        [0.1, 0.8, 0.3],
        [0.2, 0.4, 1.0],
        [0.7, 0.1, 0.6],
        [0.3, 0.6, 0.6],
        [0.5, 0.5, 0.5],
    ];
    // Three products of at most 1, and their sum.
    near("rgb2gray", 2.0 * 6.0 * U, |device| pixels(rgb, device).rgb2gray());
    near("gray2rgb", 0.0, |device| images(f32::abs, device).slice([0..2, 0..1]).gray2rgb());
    // A hue is 60 times a sum of at most 6, of five roundings, and rounded twice more at 360.
    near("rgb2hsv", 2.0 * (60.0 * 6.0 * 5.0 + 2.0 * 360.0) * U, |device| pixels(rgb, device).rgb2hsv());
    let hsv = [
        [10.0, 0.5, 0.9],
        [75.0, 1.0, 0.4],
        [133.0, 0.2, 0.7],
        [200.0, 0.9, 1.0],
        [301.0, 0.6, 0.3],
        [359.0, 0.8, 0.8],
    ];
    // A sixth of the circle plus 5, of at most 11, is rounded three times; then come three numbers
    // of at most 4.
    near("hsv2rgb", 2.0 * (11.0 * 3.0 + 4.0 * 3.0) * U, |device| pixels(hsv, device).hsv2rgb());
}

/// The ops that are made of Burn's ops transfer nothing but what the op says. The others read
/// their inputs, compute on the host and upload one result.
#[test]
fn where_ops_compute() {
    let device = Device::rocm(0);
    let plain = images(|x| x, &device);
    let kernel = Tensor::<2>::ones([3, 3], &device);
    let filtered = work(|| filter2d(plain.clone(), kernel.clone(), PadMode::Reflect));
    let medians = work(|| median(plain.clone(), 3));
    let hues = work(|| plain.clone().rgb2hsv());
    for counts in [filtered, medians, hues] {
        assert!(counts.launches() > 0 && counts.transfers == 0, "{counts:?}");
    }
    // The matrix.
    let turned = work(|| Transform2D::rotation(0.3, 0.1, -0.2).transform(plain.clone()));
    assert!(turned.launches() > 0 && turned.transfers == 1, "{turned:?}");

    let on_the_host = |inputs: u64, counts: Counts| {
        assert_eq!((counts.launches(), counts.transfers), (0, inputs + 1), "{counts:?}");
    };
    let mask = plain.clone().slice([0..1, 0..1]).reshape([9, 9]).greater_scalar(0.1);
    on_the_host(1, work(|| mask.clone().connected_components(Connectivity::Eight)));
    let image = plain.clone().slice([0..1, 0..1]).reshape([9, 9, 1]);
    let element = create_structuring_element(KernelShape::Cross, Size::new(3, 3), None, &device);
    on_the_host(2, work(|| image.clone().erode(element.clone(), MorphOptions::default())));
    let (boxes, scores) = boxes(8, &device);
    on_the_host(2, work(|| boxes.clone().nms(scores.clone(), NmsOptions::default())));
}

#[test]
fn a_tensor_is_saved_as_an_image() {
    let path = std::env::temp_dir().join(format!("burn-rocm-app022-{}.ppm", std::process::id()));
    let tensor = Tensor::<2>::from_floats([[0.0, 4.0, 1.0], [3.0, 2.0, 4.0]], &Device::rocm(0));
    let options = TensorDisplayOptions {
        dim_order: ImageDimOrder::Hw,
        color_opts: ColorDisplayOpts::Monochrome { min: [0.0; 3], max: [1.0, 1.0, 0.0] },
        batch_opts: None,
        width_out: 3,
        height_out: 2,
    };
    save_tensor_as_image(tensor, options, &path).expect("saved");
    let file = std::fs::read(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is there");
    let pixels = [0, 255, 63, 191, 127, 255].into_iter().flat_map(|value| [value, value, 0]);
    let expected: Vec<u8> = b"P6\n3 2\n255\n".iter().copied().chain(pixels).collect();
    assert_eq!(file, expected);
}
