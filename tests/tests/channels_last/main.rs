//! `BURN_ROCM_CHANNELS_LAST=on`: convolutions and what follows them with the channels innermost in
//! memory. Results against burn-flex and f64, and the copies of a training step.
#![allow(missing_docs, clippy::unwrap_used)]

mod few;
mod model;
mod norm;
mod pool;

use std::sync::Once;

use burn_backend::tensor::FloatTensor;
use burn_rocm::fused::{Act, Conv2dOptions, add_act, bias_act, bias_act_backward, conv_act};
use burn_rocm::{ChannelsLast, Config, MemoryEvent, RocmDevice, RocmTensor, memory_label, memory_record};
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

/// The dtypes whose convolutions put channels last.
const LAST: [DType; 2] = [DType::F16, DType::BF16];

/// Turns the setting on for this process.
fn on() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        Config::from_env().unwrap().channels_last(ChannelsLast::On).install().expect("no device was used");
    });
}

/// Whether the channels of a tensor of rank 4 are innermost in memory.
fn is_last(tensor: &RocmTensor) -> bool {
    R::float_permute(tensor.clone(), &[0, 2, 3, 1]).is_contiguous() && !tensor.is_contiguous()
}

/// An input of shape `[batch, channels, height, width]`, which is stored with its channels last or
/// in one of the other layouts.
struct Image {
    stored: Input,
    last: bool,
}

impl Image {
    fn draw(random: &Random, [n, c, h, w]: [usize; 4], dtype: DType) -> Self {
        let last = random.below(2) == 0;
        let view = if last { View::Contiguous } else { View::ALL[random.below(4)] };
        let shape = if last { [n, h, w, c] } else { [n, c, h, w] };
        Self { stored: float(random, &shape, dtype, view, -1.0, 1.0), last }
    }

    fn seen<B: Backend>(&self, stored: FloatTensor<B>) -> FloatTensor<B> {
        if self.last { B::float_permute(stored, &[0, 3, 1, 2]) } else { stored }
    }

    fn float<B: Backend>(&self) -> FloatTensor<B> {
        self.seen::<B>(self.stored.float::<B>(&Default::default()))
    }
}

/// An input `[batch, channels, height, width]` with its channels last. With `shifted`, its first
/// element is not aligned to 16 bytes.
fn stored_last(values: &[f64], [n, c, h, w]: [usize; 4], dtype: DType, shifted: bool) -> RocmTensor {
    let skipped = usize::from(shifted);
    let mut all = vec![0.0; skipped];
    all.extend(values);
    let data = TensorData::new(all, [skipped + values.len()]).convert_dtype(dtype);
    let flat = R::float_from_data(data, &Default::default());
    let rows = R::float_slice(flat, &[Slice::from(skipped..skipped + values.len())]);
    R::float_permute(R::float_reshape(rows, Shape::from([n, h, w, c])), &[0, 3, 1, 2])
}

#[test]
fn convolutions_of_every_layout() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        for _ in 0..20 {
            let groups = 1 + random.below(3);
            // Half of the cases have a multiple of 8 channels in each group.
            let (unit, most) = [(1, 6), (8, 2)][random.below(2)];
            let [from, to] = [(); 2].map(|()| groups * unit * (1 + random.below(most)));
            let each = |low: usize, below: usize| [(); 2].map(|()| low + random.below(below - low));
            let (n, size, window) = (1 + random.below(3), each(3, 11), each(1, 4));
            let (stride, padding, dilation) = (each(1, 4), each(0, 3), each(1, 2));
            let out = [0, 1].map(|d| (size[d] + 2 * padding[d] - window[d]) / stride[d] + 1);
            let options = || ConvOptions::<2>::new(stride, padding, dilation, groups);
            let x = Image::draw(&random, [n, from, size[0], size[1]], dtype);
            let w = Image::draw(&random, [to, from / groups, window[0], window[1]], dtype);
            let g = Image::draw(&random, [n, to, out[0], out[1]], dtype);
            let b = float(&random, &[to], dtype, View::Contiguous, -1.0, 1.0);
            let what = format!(
                "{dtype:?}, {n} x {from} x {size:?}, {to} of {window:?}, {groups} groups, {:?}, last {:?}",
                options(),
                [x.last, w.last, g.last]
            );
            let taps = window[0] * window[1];
            let there = Terms { bias: true, ..Terms::of(from / groups * taps, dtype) };
            sums!(what, there, |B, device, [xs = &x.stored, ws = &w.stored, b = &b]| {
                B::conv2d(x.seen::<B>(xs), w.seen::<B>(ws), Some(b), options())
            });
            let by_input = Terms::in_parts(to / groups * taps, 1, dtype);
            sums!(what, by_input, |B, device, [xs = &x.stored, ws = &w.stored, gs = &g.stored]| {
                B::conv2d_x_backward(x.seen::<B>(xs), w.seen::<B>(ws), g.seen::<B>(gs), options())
            });
            let places = n * out[0] * out[1];
            let by_weight = Terms::in_parts(places, n, dtype);
            sums!(what, by_weight, |B, device, [xs = &x.stored, ws = &w.stored, gs = &g.stored]| {
                B::conv2d_weight_backward(x.seen::<B>(xs), w.seen::<B>(ws), g.seen::<B>(gs), options())
            });
            sums!(what, Terms::of(places, dtype), |B, device, [xs = &x.stored, b = &b, gs = &g.stored]| {
                B::conv2d_bias_backward(x.seen::<B>(xs), b, g.seen::<B>(gs))
            });
        }
    }
}

/// Whether the library has each convolution in both orders. That of the CPU device has; cuDNN and
/// MIOpen may lack one, which then runs row-major, and these tests print what they find.
fn takes_each_order() -> bool {
    hip::Device::get(0).unwrap().provider().kind() == hip::ProviderKind::Cpu
}

/// In f16 and bf16, all three directions leave their channels last if both sides have a multiple of
/// 8, or the input is an image of up to 4. With fewer channels in a group they do so only for an
/// operand whose channels are last. f32 and f64 are row-major whatever the operands' order.
#[test]
fn results_have_their_channels_last() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        // Input channels, output channels, groups, whether the result is NHWC for a row-major
        // operand and for one in NHWC.
        let cases = [
            (8, 16, 1, [true, true]),
            (3, 16, 1, [true, true]),
            (1, 8, 1, [true, true]),
            (4, 8, 1, [true, true]),
            (5, 8, 1, [false, false]),
            (3, 12, 1, [false, false]),
            (2, 8, 2, [false, false]),
            (16, 12, 1, [false, false]),
            (16, 32, 2, [true, true]),
            (16, 16, 4, [false, true]),
            (8, 8, 8, [false, true]),
        ];
        for (from, to, groups, expected) in cases {
            for (last, expected) in [false, true].into_iter().zip(expected) {
                let draw = |shape: [usize; 4]| {
                    let values = float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
                    let values = values.float::<R>(&Default::default());
                    if last { in_last(&values) } else { values }
                };
                let (x, w) = (draw([2, from, 6, 6]), draw([to, from / groups, 3, 3]));
                let g = draw([2, to, 6, 6]);
                let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], groups);
                let expected = expected && LAST.contains(&dtype);
                let y = R::conv2d(x.clone(), w.clone(), None, options());
                let dx = R::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options());
                let dw = R::conv2d_weight_backward(x, w, g, options());
                let found = [&y, &dx, &dw].map(is_last);
                let what = format!("{dtype:?}, {from} to {to} in {groups} groups, last {last}");
                // Images and weights of one channel lie in both orders at once.
                let of_x = expected && from > 1;
                let of_weights = expected && from > groups;
                match takes_each_order() {
                    true => assert_eq!(found, [expected, of_x, of_weights], "{what}"),
                    false if expected => println!("{what}: channels last in y, dx, dw: {found:?}"),
                    false => assert_eq!(found, [false; 3], "{what}"),
                }
                // What reads a shape only sees no difference.
                assert_eq!(y.dims(), [2, to, 6, 6]);
            }
        }
    }
}

/// f32 does not change its order: of operands in both orders an element-wise op makes no copy, and a
/// convolution copies only what is not row-major.
#[test]
fn f32_stays_row_major() {
    on();
    let of = |shape: [usize; 4]| R::float_ones(Shape::from(shape), &Default::default(), FloatDType::F32);
    let (x, w) = (of([2, 8, 6, 6]), of([8, 8, 3, 3]));
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    let (y, lines) = during(|| R::conv2d(x.clone(), w.clone(), None, options()));
    assert!(!is_last(&y));
    assert_eq!(copies(&lines), [""; 0]);
    let ((sum, pooled), lines) = during(|| {
        let last = || R::float_permute(of([2, 6, 6, 8]), &[0, 3, 1, 2]);
        let pooled = R::avg_pool2d(last(), [2, 2], [2, 2], [0, 0], true, false);
        (R::float_add(last(), y.clone()), pooled)
    });
    assert!(!is_last(&sum) && !is_last(&pooled));
    let copies = copies(&lines);
    assert!(copies.len() == 1 && copies[0].starts_with("avg_pool2d "), "{copies:?}");
}

/// Element-wise ops keep the order if their operands share it, without a copy.
#[test]
fn element_wise_ops_keep_the_order() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        let of = |shape: &[usize]| float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
        let (a, b, other) = (of(&[2, 5, 7, 6]), of(&[2, 5, 7, 6]), of(&[2, 6, 5, 7]));
        let channel = of(&[1, 6, 1, 1]);
        differential!(format!("{dtype:?}"), Tolerance::of(dtype), |B, device| {
            let last = |input: &Input| B::float_permute(input.float::<B>(&device), &[0, 3, 1, 2]);
            let (a, b, channel) = (last(&a), last(&b), channel.float::<B>(&device));
            let mask = B::float_greater(a.clone(), b.clone(), BoolStore::Native);
            vec![
                read_float::<B>(B::float_add(a.clone(), b.clone())),
                read_float::<B>(B::float_mul(a.clone(), channel.clone())),
                read_float::<B>(B::float_sub(channel, b.clone())),
                read_float::<B>(B::float_add(a.clone(), other.float::<B>(&device))),
                read_float::<B>(B::float_sub(other.float::<B>(&device), a.clone())),
                read_float::<B>(B::float_mask_where(a.clone(), mask.clone(), b.clone())),
                read_float::<B>(B::float_mask_fill(b.clone(), mask, 0.5f64.into())),
                read_float::<B>(B::relu(a.clone())),
                read_float::<B>(B::relu_backward(B::relu(a), b)),
            ]
        });
        let last = |input: &Input| R::float_permute(input.float::<R>(&Default::default()), &[0, 3, 1, 2]);
        let channel = channel.float::<R>(&Default::default());
        let (results, lines) = during(|| {
            let mask = R::float_greater_elem(last(&a), 0.0f64.into(), BoolStore::Native);
            [
                R::float_add(last(&a), last(&b)),
                R::float_mul(channel, last(&b)),
                R::float_mask_fill(last(&a), mask, 1.0f64.into()),
                R::relu(last(&a)),
                add_act(Act::Relu, last(&a), last(&b)).unwrap(),
                bias_act(Act::Relu, last(&a), None, 1).unwrap(),
            ]
        });
        assert!(results.iter().all(is_last), "{dtype:?}");
        assert_eq!(copies(&lines), [""; 0], "{dtype:?}");
    }
}

/// The traced lines of copies to another order.
fn copies(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).filter(|line| line.contains("kernel copy_")).collect()
}

#[test]
fn a_convolution_its_bias_and_relu() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        let (x, w) = (Image::draw(&random, [2, 8, 9, 8], dtype), Image::draw(&random, [16, 8, 3, 3], dtype));
        let b = float(&random, &[16], dtype, View::Contiguous, -1.0, 1.0);
        let options = Conv2dOptions { stride: [1, 1], padding: [1, 1], dilation: [1, 1], groups: 1 };
        let device = Default::default();
        let found = conv_act(Act::Relu, x.float::<R>(), w.float::<R>(), Some(b.float::<R>(&device)), options)
            .unwrap();
        // The same in two ops. Both round the convolution, then the sum.
        let options = ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
        let two = R::relu(R::conv2d(x.float::<R>(), w.float::<R>(), Some(b.float::<R>(&device)), options));
        let tolerance = Tolerance::of(dtype);
        assert_close(
            &format!("{dtype:?}"),
            &[read_float::<R>(found.clone())],
            &[read_float::<R>(two)],
            tolerance,
        );
        let g = Image::draw(&random, [2, 16, 9, 8], dtype);
        let sums = |last: bool| {
            let y = if last { in_last(&found) } else { packed(&found) };
            let (dx, db) = bias_act_backward(Act::Relu, y, None, g.float::<R>(), 1, true).unwrap();
            [read_float::<R>(dx), read_float::<R>(db.unwrap())]
        };
        let ([dx, db], [reference, expected]) = (sums(true), sums(false));
        assert_close(&format!("{dtype:?}"), &[dx], &[reference], Tolerance::EXACT);
        // Each sum has 144 terms of at most 1 in either order, rounded to the dtype.
        let bound = 2.0 * (limits::growth(144, limits::wide(dtype)) + limits::unit(dtype)) * 144.0;
        for (found, expected) in db.iter::<f64>().zip(expected.iter::<f64>()) {
            assert!((found - expected).abs() <= bound, "{dtype:?}: {found} instead of {expected}");
        }
    }
}

/// The same tensor with its channels last.
fn in_last(tensor: &RocmTensor) -> RocmTensor {
    R::float_permute(packed(&R::float_permute(tensor.clone(), &[0, 2, 3, 1])), &[0, 3, 1, 2])
}

/// The same tensor in row-major order.
fn packed(tensor: &RocmTensor) -> RocmTensor {
    R::float_from_data(read_float::<R>(tensor.clone()), &Default::default())
}

/// The variable decides in a process that installs no `Config`. Without it, channels stay outside.
#[test]
fn the_variable_decides() {
    const VARIABLE: &str = "BURN_ROCM_CHANNELS_LAST";
    const CHILD: &str = "BURN_ROCM_TEST_CHANNELS_LAST_CHILD";
    if std::env::var_os(CHILD).is_none() {
        for value in ["on", "off", ""] {
            again(&["the_variable_decides", "--exact"], &[(VARIABLE, value), (CHILD, "1")]);
        }
        return;
    }
    let ones = |shape: [usize; 4]| R::float_ones(Shape::from(shape), &Default::default(), FloatDType::BF16);
    let options = ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1);
    let y = R::conv2d(ones([1, 8, 4, 4]), ones([8, 8, 3, 3]), None, options);
    let is_on = std::env::var(VARIABLE).as_deref() == Ok("on");
    assert!(is_last(&y) == is_on || (is_on && !takes_each_order()));
}

/// The kernels with barriers and those that take 16 bytes, with waves of both sizes.
#[test]
fn lockstep() {
    let tests = [
        "--exact",
        "norm::batch_norm_in_both_orders",
        "norm::batch_norm_of_wide_pixels",
        "pool::maxima_by_definition",
    ];
    for (wave, norm) in [("32", "own"), ("64", "auto")] {
        let variables =
            [("BURN_ROCM_CPU_WAVE", wave), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_NORM", norm)];
        again(&tests, &variables);
        // With the limit, a kernel of its own joins the parts of batch norm.
        let limited = [&variables[..2], &[("BURN_ROCM_LAUNCH_REACH", "2")]].concat();
        again(&["--exact", "norm::batch_norm_of_wide_pixels"], &limited);
    }
}

/// An op on an image that nobody else holds computes in the image's memory, whatever its order.
#[test]
fn ops_in_place_take_no_memory_in_either_order() {
    on();
    let device = RocmDevice::default();
    let dims = [2, 16, 16, 64];
    let bytes = 2 * dims.iter().product::<usize>();
    let of = |shape: [usize; 4]| R::float_ones(Shape::from(shape), &device, FloatDType::BF16);
    let image = |last: bool| match last {
        true => R::float_permute(of(dims), &[0, 3, 1, 2]),
        false => of([dims[0], dims[3], dims[1], dims[2]]),
    };
    let channel = of([1, dims[3], 1, 1]);
    let mask = |last: bool| R::float_greater_elem(image(last), 2.0.into(), BoolStore::Native);
    for op in ["add a channel's", "add", "mask_fill", "mask_where", "relu", "bias_act"] {
        for last in [false, true] {
            let (a, b, m) = (image(last), image(last), mask(last));
            device.synchronize().unwrap();
            // Other tests allocate meanwhile, on other threads.
            let _label = memory_label("in place");
            let (y, record) = memory_record(&device, || match op {
                "add a channel's" => R::float_add(a, channel.clone()),
                "add" => R::float_add(a, b.clone()),
                "mask_fill" => R::float_mask_fill(a, m.clone(), 1.0.into()),
                "mask_where" => R::float_mask_where(a, m.clone(), b.clone()),
                "relu" => R::relu(a),
                _ => bias_act(Act::Relu, a, None, 1).unwrap(),
            })
            .unwrap();
            assert_eq!(is_last(&y), last, "{op}");
            let ours =
                |event: &&MemoryEvent| event.allocated && event.bytes >= bytes && &*event.label == "in place";
            let new = record.events.iter().filter(ours).count();
            assert_eq!(new, 0, "{op}, channels last: {last}");
        }
    }
}
