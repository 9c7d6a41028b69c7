//! Losses of elements: squared error, Huber's, binary cross entropy; against Burn's modules in f64
//! or the formula, within rounding bounds, and against Burn's in f32.

use burn::nn::loss as burns;
use burn::nn::loss::Reduction;
use burn::tensor::Int;
use burn_rocm::fused::{self, Residual, Total};
use burn_rocm_nn::loss as own;
use burn_rocm_tests::limits::{self, least, unit, wide};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, SHAPES};

use crate::bounded::{assert_narrow, bounded};
use crate::support::*;

/// What a loss gives, and both gradients of its square.
macro_rules! gradients {
    ($B:ident, $data:expr, $dtype:expr, |$a:ident, $b:ident| $loss:expr) => {{
        let [first, second] = [0, 1].map(|k: usize| tensor::<$B, 2>(&$data[k], $dtype).require_grad());
        let ($a, $b) = (first.clone() * 1.5, second.clone());
        let out = $loss;
        let grads = (out.clone() * out.clone()).sum().backward();
        let [by_a, by_b] = [first, second].map(|leaf| leaf.grad(&grads).unwrap().into_data());
        vec![out.into_data(), by_a, by_b]
    }};
}

fn pairs(random: &Random) -> Vec<[TensorData; 2]> {
    let shapes: Vec<&[usize]> = SHAPES.iter().copied().filter(|shape| shape.len() == 2).collect();
    shapes.iter().map(|shape| [0, 1].map(|_| uniform(random, shape))).collect()
}

/// Operands of which every type has 1.5 times the first, and that less the second.
fn held_pairs(random: &Random) -> Vec<[TensorData; 2]> {
    let shapes: Vec<&[usize]> = SHAPES.iter().copied().filter(|shape| shape.len() == 2).collect();
    shapes.iter().map(|shape| [0, 1].map(|_| multiples(random, shape, 8, 0.25))).collect()
}

/// Losses of elements of [`held_pairs`] and both gradients of their squares' sum, with their
/// limits. A loss is rounded to `dtype` once. So is its product with twice the slope, and the first
/// gradient once more when it is multiplied by 1.5. What is computed ahead of each has at most 8
/// roundings in the type that it is computed in.
fn limited_each(reference: Vec<TensorData>, dtype: DType) -> Vec<[TensorData; 2]> {
    let limited = |(reference, roundings): (TensorData, f64)| {
        let share = 1.01 * sides(dtype) * (roundings * unit(dtype) + 8.0 * unit(wide(dtype)));
        let limits = limits::shares(&reference, share, dtype);
        [reference, limits]
    };
    reference.into_iter().zip([1.0, 3.0, 2.0]).map(limited).collect()
}

/// Asserts that losses of elements, here and with their gradients, are within [`limited_each`] of
/// Burn's in f64.
macro_rules! each_within_limits {
    (
        $what:expr, $dtype:expr, $data:expr,
        theirs |$x:ident, $y:ident| $theirs:expr,
        ours |$a:ident, $b:ident| $ours:expr
    ) => {{
        let expected = limited_each(gradients!(Oracle, $data, DType::F64, |$x, $y| $theirs), $dtype);
        within_limits!($what, $dtype, expected.clone(), |B| {
            let found = gradients!(B, $data, $dtype, |$a, $b| $ours);
            assert_narrow(&$what, &found, &bounded(&expected));
            found
        });
    }};
}

#[test]
fn squared_error() {
    let random = Random::new();
    for (data, dtype) in pairs(&random).iter().flat_map(|data| FLOATS.map(|dtype| (data, dtype))) {
        let what = format!("mse of {:?} {dtype:?}", data[0].shape);
        let rounded = data.each_ref().map(|data| data.clone().convert_dtype(dtype));
        let signless = rounded.each_ref().map(magnitudes);
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Auto] {
            let sum = matches!(reduction, Reduction::Sum);
            // The gradients of such a sum's square are past f16's greatest number.
            if dtype == DType::F16 && data[0].num_elements() > 100 && sum {
                continue;
            }
            let loss = burns::MseLoss::new();
            let reference =
                gradients!(Oracle, rounded, DType::F64, |a, b| loss.forward(a, b, reduction.clone()));
            let magnitude = gradients!(Oracle, signless, DType::F64, |a, b| {
                let squares = squares(a + b);
                if sum { squares.sum() } else { squares.mean() }
            });
            let expected = limited(reference, &magnitude, loss_share(data[0].num_elements(), dtype), dtype);
            within_limits!(format!("{what} {reduction:?}"), dtype, expected, |B| {
                gradients!(B, rounded, dtype, |a, b| own::MseLoss::new().forward(a, b, reduction.clone()))
            });
        }
    }
    for (data, dtype) in held_pairs(&random).iter().flat_map(|data| FLOATS.map(|dtype| (data, dtype))) {
        let what = format!("mse of each of {:?} {dtype:?}", data[0].shape);
        each_within_limits!(
            what,
            dtype,
            data,
            theirs | a,
            b | burns::MseLoss::new().forward_no_reduction(a, b),
            ours | a,
            b | own::MseLoss::new().forward_no_reduction(a, b)
        );
    }
}

#[test]
fn huber() {
    let random = Random::new();
    for (data, dtype) in pairs(&random).iter().flat_map(|data| FLOATS.map(|dtype| (data, dtype))) {
        let what = format!("huber of {:?} {dtype:?}", data[0].shape);
        let theirs = burns::HuberLossConfig::new(0.7).init();
        let ours = own::HuberLossConfig::new(0.7).init();
        let rounded = data.each_ref().map(|data| data.clone().convert_dtype(dtype));
        let signless = rounded.each_ref().map(magnitudes);
        let reference = gradients!(Oracle, rounded, DType::F64, |a, b| theirs.forward(a, b, Reduction::Mean));
        let magnitude = gradients!(Oracle, signless, DType::F64, |a, b| hubers(a + b, 0.7).mean());
        let expected = limited(reference, &magnitude, loss_share(data[0].num_elements(), dtype), dtype);
        within_limits!(format!("{what} mean"), dtype, expected, |B| {
            gradients!(B, rounded, dtype, |a, b| ours.forward(a, b, Reduction::Mean))
        });
    }
    let theirs = burns::HuberLossConfig::new(0.7).init();
    let ours = own::HuberLossConfig::new(0.7).init();
    for (data, dtype) in held_pairs(&random).iter().flat_map(|data| FLOATS.map(|dtype| (data, dtype))) {
        let what = format!("huber of each of {:?} {dtype:?}", data[0].shape);
        each_within_limits!(
            what,
            dtype,
            data,
            theirs | a,
            b | theirs.forward_no_reduction(a, b),
            ours | a,
            b | ours.forward_no_reduction(a, b)
        );
        each_within_limits!(
            format!("{what}, of residuals"),
            dtype,
            data,
            theirs | a,
            b | theirs.forward_residuals(a - b),
            ours | a,
            b | ours.forward_residuals(a - b)
        );
    }
}

#[test]
fn broadcast_targets_are_composed() {
    let random = Random::new();
    let data = [uniform(&random, &[6, 5]), uniform(&random, &[1, 5])];
    let huber = (burns::HuberLossConfig::new(0.5).init(), own::HuberLossConfig::new(0.5).init());
    against_burn!("mse", Tolerance::of(DType::F32).times(30.0), |B|
        theirs gradients!(B, data, DType::F32, |a, b| burns::MseLoss::new().forward(a, b, Reduction::Sum)),
        ours gradients!(B, data, DType::F32, |a, b| own::MseLoss::new().forward(a, b, Reduction::Sum))
    );
    against_burn!("huber", Tolerance::of(DType::F32).times(30.0), |B|
        theirs gradients!(B, data, DType::F32, |a, b| huber.0.forward(a, b, Reduction::Sum)),
        ours gradients!(B, data, DType::F32, |a, b| huber.1.forward(a, b, Reduction::Sum))
    );
}

#[test]
#[should_panic(expected = "BatchMean reduction is not supported")]
fn a_mean_by_batch_is_refused_as_by_burn() {
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[2, 2]), DType::F32);
    own::MseLoss::new().forward(x.clone(), x, Reduction::BatchMean);
}

/// Of so many elements that several blocks sum them.
#[test]
fn means_of_many_elements() {
    let random = Random::new();
    for dtype in FLOATS {
        let data = [0, 1].map(|_| uniform(&random, &[70_001]).convert_dtype(dtype));
        let [a, b] = [0, 1].map(|k: usize| data[k].iter::<f64>().collect::<Vec<_>>());
        let mean = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>() / a.len() as f64;
        let [a, b] = [0, 1].map(|k: usize| tensor::<Ours, 1>(&data[k], dtype));
        let ours = own::MseLoss::new().forward(a, b, Reduction::Mean).into_data();
        let mean_data = TensorData::new(vec![mean], [1]);
        let expected = rounded_once(mean_data.clone(), &mean_data, 70_001, dtype);
        let off = if dtype == DType::BF16 { 0.02 } else { 0.01 };
        assert!(expected[1].iter::<f64>().all(|limit| limit < off * mean), "{dtype:?}: a wide limit");
        assert_limits(&dtype.name(), dtype, &[ours], &[expected]);
    }
}

fn labels<const D: usize>(random: &Random, shape: [usize; D]) -> TensorData {
    let count = shape.iter().product();
    TensorData::new((0..count).map(|_| random.below(2) as i64).collect::<Vec<_>>(), shape)
}

/// What a binary loss gives, and the gradient of its square.
macro_rules! binary {
    ($B:ident, $D:literal, $from:ident, $case:expr) => {{
        let (x, labels, dtype, index, logits, smoothing, weights) = &$case;
        let leaf = tensor::<$B, $D>(x, *dtype).require_grad();
        let labels = Tensor::<$B, $D, Int>::from_data(labels.clone(), (&Default::default(), *index));
        let mut loss = $from::BinaryCrossEntropyLossConfig::new()
            .with_logits(*logits)
            .with_smoothing(*smoothing)
            .with_weights(weights.clone())
            .init::<$B>(&Default::default());
        loss.weights = loss.weights.map(|weights| weights.cast(*dtype));
        // The oracle makes targets floats of its default type.
        let out = loss.forward(leaf.clone(), labels);
        let grads = (out.clone() * out.clone()).backward();
        vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()]
    }};
}

#[test]
fn binary_cross_entropy() {
    let random = Random::new();
    for logits in [true, false] {
        for smoothing in [None, Some(0.2)] {
            for index in [DType::I32, DType::I64] {
                let draw = |shape: &[usize]| {
                    let count = shape.iter().product();
                    let (low, high) = if logits { (-30.0, 30.0) } else { (0.01, 0.99) };
                    let values: Vec<f64> = (0..count).map(|_| random.uniform(low, high)).collect();
                    TensorData::new(values, shape.to_vec())
                };
                for n in [1, 17, 300] {
                    for weights in [None, Some(vec![0.5, 3.0])] {
                        let labels = labels(&random, [n]);
                        let case = (draw(&[n]), labels, DType::F32, index, logits, smoothing, weights);
                        let what = format!("{n} logits {logits} {smoothing:?} {:?}", case.6);
                        against_burn!(what, Tolerance::of(DType::F32).times(30.0), |B|
                            theirs binary!(B, 1, burns, case),
                            ours binary!(B, 1, own, case)
                        );
                    }
                }
                for shape in [[3, 4], [33, 7], [1, 1], [4000, 5]] {
                    for weighted in [false, true] {
                        let weights = weighted.then(|| (1..=shape[1]).map(|k| k as f32 / 2.0).collect());
                        let labels = labels(&random, shape);
                        let case = (draw(&shape), labels, DType::F32, index, logits, smoothing, weights);
                        let what = format!("{shape:?} logits {logits} {smoothing:?} weighted {weighted}");
                        against_burn!(what, Tolerance::of(DType::F32).times(30.0), |B|
                            theirs binary!(B, 2, burns, case),
                            ours binary!(B, 2, own, case)
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn binary_weights_that_require_a_gradient_have_burns() {
    let random = Random::new();
    for logits in [true, false] {
        let (low, high) = if logits { (-6.0, 6.0) } else { (0.05, 0.95) };
        let x: Vec<f64> = (0..28).map(|_| random.uniform(low, high)).collect();
        let x = TensorData::new(x, [7, 4]);
        let labels = labels(&random, [7, 4]);
        let weights = TensorData::new(vec![0.5, 1.0, 1.5, 2.0], [4]);
        macro_rules! loss_of {
            ($B:ident, $from:ident) => {{
                let [leaf, weights] = [(&x, 28), (&weights, 4)].map(|(data, count)| {
                    tensor::<$B, 1>(&TensorData::new(data.iter::<f64>().collect(), [count]), DType::F32)
                        .require_grad()
                });
                let loss = $from::BinaryCrossEntropyLoss::<$B> {
                    weights: Some(weights.clone()),
                    smoothing: Some(0.1),
                    logits,
                };
                let labels = Tensor::<$B, 2, Int>::from_data(labels.clone(), &Default::default());
                let out = loss.forward(leaf.clone().reshape([7, 4]), labels);
                let grads = (out.clone() * out.clone()).backward();
                let [by_x, by_weights] = [leaf, weights].map(|leaf| leaf.grad(&grads).unwrap().into_data());
                vec![out.into_data(), by_x, by_weights]
            }};
        }
        let (_, lines) = during(|| {
            against_burn!(format!("logits {logits}"), Tolerance::of(DType::F32).times(30.0), |B|
                theirs loss_of!(B, burns),
                ours loss_of!(B, own)
            );
        });
        assert!(lines.len() > 10 && !lines.iter().any(|line| line.starts_with("nn_")), "{lines:#?}");
    }
}

/// The other float types, from the formula in f64: the oracle multiplies no f16 by its f32 targets.
#[test]
fn binary_cross_entropy_in_every_float_type() {
    let random = Random::new();
    for dtype in FLOATS {
        for logits in [true, false] {
            let (low, high) = if logits { (-6.0, 6.0) } else { (0.05, 0.95) };
            let x: Vec<f64> = (0..91).map(|_| random.uniform(low, high)).collect();
            let x = TensorData::new(x, [13, 7]).convert_dtype(dtype);
            let labels = labels(&random, [13, 7]);
            let case = (x.clone(), labels.clone(), dtype, DType::I32, logits, Some(0.1f32), None::<Vec<f32>>);
            let ours = binary!(Ours, 2, own, case);
            let (mut loss, mut loss_magnitude) = (0.0, 0.0);
            let (mut slopes, mut slope_magnitudes) = (Vec::new(), Vec::new());
            for (x, y) in x.iter::<f64>().zip(labels.iter::<f64>()) {
                let y = y * (1.0 - f64::from(0.1f32)) + f64::from(0.1f32) / 7.0;
                let p = if logits { 1.0 / (1.0 + (-x).exp()) } else { x };
                let each = -(y * p.ln() + (1.0 - y) * (1.0 - p).ln());
                loss += each / 91.0;
                // A logit is multiplied by a target that was rounded, and may be rounded itself.
                loss_magnitude += if logits { 1.0 + x.abs() } else { each } / 91.0;
                let [no, yes] = [(1.0 - y) / (1.0 - p), y / p];
                slopes.push((no - yes) * if logits { p * (1.0 - p) } else { 1.0 } / 91.0);
                // Of a logit, a sigmoid less a target.
                slope_magnitudes.push(if logits { 1.0 } else { no + yes } / 91.0);
            }
            let data = |values: &[f64], shape: &[usize]| TensorData::new(values.to_vec(), shape.to_vec());
            let all = |values: &[f64]| data(values, &[13, 7]);
            let one = |value: f64| data(&[value], &[1]);
            let of_loss = rounded_once(one(loss), &one(loss_magnitude), 91, dtype);
            let [_, slope_limits] = rounded_once(all(&slopes), &all(&slope_magnitudes), 0, dtype);
            // The gradient of the square is twice the loss times the slope: it has the errors of
            // both.
            let loss_limit = of_loss[1].iter::<f64>().next().unwrap();
            let limits: Vec<f64> = slopes
                .iter()
                .zip(slope_limits.iter::<f64>())
                .map(|(slope, limit)| 2.02 * (slope.abs() * loss_limit + loss * limit) + least(dtype))
                .collect();
            let squares: Vec<f64> = slopes.iter().map(|slope| 2.0 * loss * slope).collect();
            let expected = [of_loss, [all(&squares), all(&limits)]];
            let what = format!("{dtype:?} logits {logits}");
            assert_limits(&what, dtype, &ours, &expected);
            assert_narrow(&what, &ours, &bounded(&expected));
        }
    }
}

/// For a large score of the right sign, loss and gradient are `log(1 + exp(-|x|))` and
/// `exp(-|x|) / (1 + exp(-|x|))`. Neither may be lost to rounding beside 1 or x.
#[test]
fn the_loss_of_a_sure_and_right_score_keeps_its_digits() {
    let random = Random::new();
    for (dtype, unit) in [(DType::F32, 2f64.powi(-24)), (DType::F64, 2f64.powi(-53))] {
        for n in [1, 17, 300] {
            let labels = labels(&random, [n]);
            let signs = labels.iter::<f64>().map(|y| 2.0 * y - 1.0);
            let x: Vec<f64> = signs.map(|sign| sign * random.uniform(10.0, 80.0)).collect();
            let x = TensorData::new(x, [n]).convert_dtype(dtype);
            let leaf = tensor::<Ours, 1>(&x, dtype).require_grad();
            let classes = Tensor::<Ours, 1, Int>::from_data(labels, &Default::default());
            let config = own::BinaryCrossEntropyLossConfig::new().with_logits(true);
            let out = config.init::<Ours>(&Default::default()).forward(leaf.clone(), classes);
            let grads = out.backward();
            let found = [out.into_data(), leaf.grad(&grads).unwrap().into_data()];
            let tails: Vec<f64> = x.iter::<f64>().map(|x| (-x.abs()).exp()).collect();
            let loss = tails.iter().map(|tail| tail.ln_1p()).sum::<f64>() / n as f64;
            let slopes =
                x.iter::<f64>().zip(&tails).map(|(x, tail)| -x.signum() * tail / (1.0 + tail) / n as f64);
            // Two functions of 4 ulp, a sum of n terms of one sign and a few products; in f64 the
            // reference's own error too.
            let relative = (16.0 + n as f64 + 8.0) * unit * if dtype == DType::F64 { 2.0 } else { 1.0 };
            let found = found.iter().flat_map(|data| data.iter::<f64>());
            for (place, (found, value)) in found.zip([loss].into_iter().chain(slopes)).enumerate() {
                let near = (found - value).abs() <= relative * value.abs();
                assert!(
                    near,
                    "{n} of {dtype:?}, [loss, gradient..][{place}]: {found:e} instead of {value:e}"
                );
            }
        }
    }
}

#[test]
fn certain_probabilities_keep_finite_losses_and_gradients() {
    let x = TensorData::new(vec![0.0f32, 1.0, 0.0, 1.0], [4]);
    let labels = TensorData::new(vec![0i64, 1, 1, 0], [4]);
    let case = (x, labels, DType::F32, DType::I64, false, None, None);
    let ours = binary!(Ours, 1, own, case);
    assert_eq!(ours[0].to_vec::<f32>().unwrap(), [50.0], "two of four are wrong, each -100 at most");
    assert!(ours[1].iter::<f32>().all(f32::is_finite), "{:?}", ours[1]);
}

#[test]
fn the_trace_names_the_fused_ops() {
    let data = [0, 1].map(|_| uniform(&Random::new(), &[8, 8]));
    let [a, b] = [0, 1].map(|k: usize| tensor::<Ours, 2>(&data[k], DType::F32).require_grad());
    let huber = own::HuberLossConfig::new(1.0).init();
    let (_, lines) = during(|| {
        own::MseLoss::new().forward(a.clone(), b.clone(), Reduction::Mean).backward();
        huber.forward(a, b, Reduction::Sum).backward();
    });
    let fused: Vec<_> = lines.iter().filter(|line| line.starts_with("nn_")).collect();
    assert_eq!(
        fused,
        [
            "nn_mse_loss f32: kernel residual_loss_sum<Squared, f32>",
            "nn_mse_loss_backward f32: kernel residual_loss_sum_backward<Squared, f32>",
            "nn_huber_loss f32: kernel residual_loss_sum<Huber, f32>",
            "nn_huber_loss_backward f32: kernel residual_loss_sum_backward<Huber, f32>",
        ],
        "{lines:#?}"
    );
}

/// One launch each way, none that fills zeros to take from them.
#[test]
fn residuals_alone_are_read_alone() {
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[8, 9]), DType::F32).require_grad();
    let huber = own::HuberLossConfig::new(1.0).init();
    let (loss, forward) = during(|| huber.forward_residuals(x.clone()));
    assert_eq!(forward, ["nn_huber_loss f32: kernel residual_loss<Huber, f32>"]);
    let (_, backward) = during(|| loss.backward());
    let of_loss: Vec<_> = backward.iter().filter(|line| line.starts_with("nn_")).collect();
    assert_eq!(of_loss, ["nn_huber_loss_backward f32: kernel residual_loss_backward<Huber, f32>"]);
}

/// Gradients by either side alone, and by both: the same.
#[test]
fn gradients_by_one_side_are_those_by_both() {
    let random = Random::new();
    let huber = own::HuberLossConfig::new(0.7).init();
    for (shape, dtype) in SHAPES.iter().filter(|shape| shape.len() == 2).flat_map(|s| FLOATS.map(|d| (s, d)))
    {
        let data = [0, 1].map(|_| uniform(&random, shape).convert_dtype(dtype));
        for each in [false, true] {
            let run = |tracked: [bool; 2]| {
                let inputs = [0, 1].map(|k| tensor::<Ours, 2>(&data[k], dtype).set_require_grad(tracked[k]));
                let [a, b] = inputs.clone();
                let loss = match each {
                    true => huber.forward_no_reduction(a, b).sum(),
                    false => huber.forward(a, b, Reduction::Mean),
                };
                let grads = loss.backward();
                inputs.map(|input| input.grad(&grads).map(|grad| grad.into_data()))
            };
            let [Some(by_a), Some(by_b)] = run([true, true]) else { panic!("both are tracked") };
            let what = format!("{shape:?} {dtype:?} each {each}");
            let [first, second] = [run([true, false]), run([false, true])];
            let (alone, both) = ([first[0].clone(), second[1].clone()], [by_a, by_b]);
            assert_eq!([&first[1], &second[0]], [&None, &None], "{what}");
            burn_rocm_tests::assert_close(&what, &alone.map(Option::unwrap), &both, Tolerance::EXACT);
        }
    }
}

#[test]
fn bad_inputs_are_refused() {
    let of = |shape: &[usize], dtype| {
        let data = uniform(&Random::new(), shape);
        tensor::<Ours, 1>(&data, dtype).inner().into_primitive().tensor()
    };
    let (a, short, narrow) = (of(&[4], DType::F32), of(&[3], DType::F32), of(&[4], DType::F16));
    for b in [short, narrow] {
        let error = fused::residual_loss(Residual::Squared, a.clone(), b.clone(), Total::Mean);
        assert!(matches!(error, Err(burn_rocm::RocmError::Invalid { op: "residual_loss", .. })), "{error:?}");
        let error = fused::residual_loss_backward(
            Residual::Squared,
            a.clone(),
            a.clone(),
            b.clone(),
            Total::Sum,
            true,
        );
        assert!(matches!(error, Err(burn_rocm::RocmError::Invalid { .. })), "{error:?}");
        let error = fused::loss_of_residuals_backward(Residual::Squared, a.clone(), b);
        assert!(matches!(error, Err(burn_rocm::RocmError::Invalid { .. })), "{error:?}");
    }
}
