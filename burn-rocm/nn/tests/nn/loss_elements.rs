//! Losses of elements: squared error, Huber's, binary cross entropy; against Burn's modules in f64
//! or the formula, within rounding bounds.

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

/// A loss, and both gradients of its square.
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

/// Operands that every type represents exactly, with 1.5 times the first operand and that less the
/// second.
fn held_pairs(random: &Random) -> Vec<[TensorData; 2]> {
    let shapes: Vec<&[usize]> = SHAPES.iter().copied().filter(|shape| shape.len() == 2).collect();
    shapes.iter().map(|shape| [0, 1].map(|_| multiples(random, shape, 8, 0.25))).collect()
}

/// Losses of elements of [`held_pairs`] and both gradients of their squares' sum, with their
/// limits. A loss is rounded to `dtype` once. So is its product with twice the slope, and the first
/// gradient once more when it is multiplied by 1.5. In the type that computes, a loss has at most 3
/// roundings: of Huber's `p |r| - q` the product, whose magnitude is at most twice the result's,
/// counts twice. Each of both products adds one: at most 5.
fn limited_each(reference: Vec<TensorData>, dtype: DType) -> Vec<[TensorData; 2]> {
    let limited = |(reference, roundings): (TensorData, f64)| {
        let share = 1.01 * sides(dtype) * (roundings * unit(dtype) + 5.0 * unit(wide(dtype)));
        let limits = limits::shares(&reference, share, dtype);
        [reference, limits]
    };
    reference.into_iter().zip([1.0, 3.0, 2.0]).map(limited).collect()
}

/// Asserts that losses of elements, here and with their gradients, are within [`limited_each`] of
/// Burn's in f64. Gives how many results show that the limits are narrow.
macro_rules! each_within_limits {
    (
        $what:expr, $dtype:expr, $data:expr,
        theirs |$x:ident, $y:ident| $theirs:expr,
        ours |$a:ident, $b:ident| $ours:expr
    ) => {{
        let expected = limited_each(gradients!(Oracle, $data, DType::F64, |$x, $y| $theirs), $dtype);
        let mut narrow = 0;
        within_limits!($what, $dtype, expected.clone(), |B| {
            let found = gradients!(B, $data, $dtype, |$a, $b| $ours);
            narrow += assert_narrow(&$what, &found, &bounded(&expected));
            found
        });
        narrow
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
            // In f16 the gradients of such a sum's square exceed the largest number.
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
    let mut narrow = 0;
    for (data, dtype) in held_pairs(&random).iter().flat_map(|data| FLOATS.map(|dtype| (data, dtype))) {
        let what = format!("mse of each of {:?} {dtype:?}", data[0].shape);
        narrow += each_within_limits!(
            what,
            dtype,
            data,
            theirs | a,
            b | burns::MseLoss::new().forward_no_reduction(a, b),
            ours | a,
            b | own::MseLoss::new().forward_no_reduction(a, b)
        );
    }
    assert!(narrow > 0, "no result shows that the limits are narrow");
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
    let mut narrow = 0;
    for (data, dtype) in held_pairs(&random).iter().flat_map(|data| FLOATS.map(|dtype| (data, dtype))) {
        let what = format!("huber of each of {:?} {dtype:?}", data[0].shape);
        narrow += each_within_limits!(
            what,
            dtype,
            data,
            theirs | a,
            b | theirs.forward_no_reduction(a, b),
            ours | a,
            b | ours.forward_no_reduction(a, b)
        );
        narrow += each_within_limits!(
            format!("{what}, of residuals"),
            dtype,
            data,
            theirs | a,
            b | theirs.forward_residuals(a - b),
            ours | a,
            b | ours.forward_residuals(a - b)
        );
    }
    assert!(narrow > 0, "no result shows that the limits are narrow");
}

#[test]
fn broadcast_targets_are_composed() {
    let random = Random::new();
    let data = [uniform(&random, &[6, 5]), uniform(&random, &[1, 5])];
    let huber = (burns::HuberLossConfig::new(0.5).init(), own::HuberLossConfig::new(0.5).init());
    let data = data.map(|data| data.convert_dtype(DType::F32));
    let signless = data.each_ref().map(magnitudes);
    // A sum over all elements, and in the second gradient a sum over each column.
    let share = loss_share(30 + 6, DType::F32);
    let reference =
        gradients!(Oracle, data, DType::F64, |a, b| { burns::MseLoss::new().forward(a, b, Reduction::Sum) });
    let magnitude = gradients!(Oracle, signless, DType::F64, |a, b| squares(a + b).sum());
    within_limits!("mse", DType::F32, limited(reference, &magnitude, share, DType::F32), |B| {
        gradients!(B, data, DType::F32, |a, b| own::MseLoss::new().forward(a, b, Reduction::Sum))
    });
    let reference = gradients!(Oracle, data, DType::F64, |a, b| huber.0.forward(a, b, Reduction::Sum));
    let magnitude = gradients!(Oracle, signless, DType::F64, |a, b| hubers(a + b, 0.5).sum());
    within_limits!("huber", DType::F32, limited(reference, &magnitude, share, DType::F32), |B| {
        gradients!(B, data, DType::F32, |a, b| huber.1.forward(a, b, Reduction::Sum))
    });
}

#[test]
#[should_panic(expected = "BatchMean reduction is not supported")]
fn a_mean_by_batch_is_refused_as_by_burn() {
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[2, 2]), DType::F32);
    own::MseLoss::new().forward(x.clone(), x, Reduction::BatchMean);
}

/// Enough elements for several blocks.
#[test]
fn means_of_many_elements() {
    let random = Random::new();
    for dtype in FLOATS {
        let data = [0, 1].map(|_| uniform(&random, &[70_001]).convert_dtype(dtype));
        let [a, b] = [0, 1].map(|k: usize| data[k].iter::<f64>().collect::<Vec<_>>());
        let squares: Vec<f64> = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).collect();
        let mean_of = |squares: &[f64]| squares.iter().sum::<f64>() / a.len() as f64;
        let mean = mean_of(&squares);
        // The elements that remain after whole blocks of 256. A mean in bf16 has too few digits to
        // show the loss of so few elements, so a larger tail is used there.
        let tail = if dtype == DType::BF16 { 1_000 } else { 70_001 % 256 };
        let lost = mean_of(&squares[squares.len() - tail..]);
        let [a, b] = [0, 1].map(|k: usize| tensor::<Ours, 1>(&data[k], dtype));
        let ours = own::MseLoss::new().forward(a, b, Reduction::Mean).into_data();
        let mean_data = TensorData::new(vec![mean], [1]);
        let expected = rounded_once(mean_data.clone(), &mean_data, 70_001, dtype);
        assert!(expected[1].iter::<f64>().all(|limit| limit < lost), "{dtype:?}: a lost tail passes");
        assert_limits(&dtype.name(), dtype, &[ours], &[expected]);
    }
}

fn labels<const D: usize>(random: &Random, shape: [usize; D]) -> TensorData {
    let count = shape.iter().product();
    TensorData::new((0..count).map(|_| random.below(2) as i64).collect::<Vec<_>>(), shape)
}

/// A binary loss, and the gradient of its square.
macro_rules! binary {
    ($B:ident, $D:literal, $case:expr) => {{
        let (x, labels, dtype, index, logits, smoothing, weights) = &$case;
        let leaf = tensor::<$B, $D>(x, *dtype).require_grad();
        let labels = Tensor::<$B, $D, Int>::from_data(labels.clone(), (&Default::default(), *index));
        let mut loss = own::BinaryCrossEntropyLossConfig::new()
            .with_logits(*logits)
            .with_smoothing(*smoothing)
            .with_weights(weights.clone())
            .init::<$B>(&Default::default());
        loss.weights = loss.weights.map(|weights| weights.cast(*dtype));
        let out = loss.forward(leaf.clone(), labels);
        let grads = (out.clone() * out.clone()).backward();
        vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()]
    }};
}

/// The loss of each element and its slope, by the formulas in f64. Each comes with the magnitude of
/// which its roundings are shares. A smoothed target is rounded, and so is 1 minus it, by as much
/// as if both were 1.
fn binary_elements(
    x: &TensorData,
    labels: &TensorData,
    classes: usize,
    logits: bool,
    smoothing: Option<f32>,
) -> Vec<[[f64; 2]; 2]> {
    let spread = smoothing.map_or(0.0, f64::from);
    let each = |(x, label): (f64, f64)| {
        let y = label * (1.0 - spread) + spread / classes as f64;
        if logits {
            // log(1 + exp(z))
            let softplus = |z: f64| z.max(0.0) + (-z.abs()).exp().ln_1p();
            let loss = y * softplus(-x) + (1.0 - y) * softplus(x);
            [[loss, 1.0 + x.abs()], [1.0 / (1.0 + (-x).exp()) - y, 1.0]]
        } else {
            let [yes, no] = [-x.ln(), -(-x).ln_1p()];
            let slope = (1.0 - y) / (1.0 - x) - y / x;
            [[y * yes + (1.0 - y) * no, yes + no], [slope, 1.0 / x + 1.0 / (1.0 - x)]]
        }
    };
    x.iter::<f64>().zip(labels.iter::<f64>()).map(each).collect()
}

/// The gradient of a loss' square: twice the loss times `of`, the gradient of the loss. It has the
/// errors of both.
fn of_square(loss: &[TensorData; 2], of: &[TensorData; 2], dtype: DType) -> [TensorData; 2] {
    let [value, off] = loss.each_ref().map(|data| data.iter::<f64>().next().unwrap());
    let pairs = || of[0].iter::<f64>().zip(of[1].iter::<f64>());
    let squares: Vec<f64> = pairs().map(|(slope, _)| 2.0 * value * slope).collect();
    let limits: Vec<f64> = pairs()
        .map(|(slope, limit)| 2.02 * (slope.abs() * off + value.abs() * limit) + least(dtype))
        .collect();
    [squares, limits].map(|values| TensorData::new(values, of[0].shape.clone()))
}

/// The expected values and limits of [`binary!`] for elements from [`binary_elements`] with these
/// weights.
fn binary_limits(
    elements: &[[[f64; 2]; 2]],
    weights: impl Fn(usize) -> f64,
    shape: &[usize],
    dtype: DType,
) -> [[TensorData; 2]; 2] {
    let count = elements.len();
    let all = |result: usize, part: usize| -> Vec<f64> {
        let of = |(at, element): (usize, &[[f64; 2]; 2])| weights(at) * element[result][part] / count as f64;
        elements.iter().enumerate().map(of).collect()
    };
    let sum = |part: usize| TensorData::new(vec![all(0, part).iter().sum::<f64>()], [1]);
    let slopes = |part: usize| TensorData::new(all(1, part), shape.to_vec());
    let loss = rounded_once(sum(0), &sum(1), count, dtype);
    let by_x = of_square(&loss, &rounded_once(slopes(0), &slopes(1), 0, dtype), dtype);
    [loss, by_x]
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
                        let x = draw(&[n]).convert_dtype(DType::F32);
                        let elements = binary_elements(&x, &labels, 2, logits, smoothing);
                        let classes: Vec<f64> = labels.iter().collect();
                        let case = (x, labels, DType::F32, index, logits, smoothing, weights);
                        let weight = |at: usize| {
                            case.6.as_ref().map_or(1.0, |weights| f64::from(weights[classes[at] as usize]))
                        };
                        let expected = binary_limits(&elements, weight, &[n], DType::F32);
                        let what = format!("{n} logits {logits} {smoothing:?} {:?}", case.6);
                        within_limits!(what, DType::F32, expected.to_vec(), |B| binary!(B, 1, case));
                    }
                }
                for shape in [[3, 4], [33, 7], [1, 1], [4000, 5]] {
                    for weighted in [false, true] {
                        let weights: Option<Vec<f32>> =
                            weighted.then(|| (1..=shape[1]).map(|k| k as f32 / 2.0).collect());
                        let labels = labels(&random, shape);
                        let x = draw(&shape).convert_dtype(DType::F32);
                        let elements = binary_elements(&x, &labels, shape[1], logits, smoothing);
                        let case = (x, labels, DType::F32, index, logits, smoothing, weights);
                        let weight = |at: usize| {
                            case.6.as_ref().map_or(1.0, |weights| f64::from(weights[at % shape[1]]))
                        };
                        let expected = binary_limits(&elements, weight, &shape, DType::F32);
                        let what = format!("{shape:?} logits {logits} {smoothing:?} weighted {weighted}");
                        within_limits!(what, DType::F32, expected.to_vec(), |B| binary!(B, 2, case));
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
        let x = TensorData::new(x, [7, 4]).convert_dtype(DType::F32);
        let labels = labels(&random, [7, 4]);
        let weights = TensorData::new(vec![0.5, 1.0, 1.5, 2.0], [4]);
        let elements = binary_elements(&x, &labels, 4, logits, Some(0.1));
        let weight = |at: usize| (at % 4 + 1) as f64 / 2.0;
        let [loss, by_x] = binary_limits(&elements, weight, &[28], DType::F32);
        let columns = |part: usize| {
            let column = |k: usize| elements.iter().skip(k).step_by(4).map(|of| of[0][part] / 28.0).sum();
            TensorData::new((0..4).map(column).collect::<Vec<f64>>(), [4])
        };
        let by_weights = rounded_once(columns(0), &columns(1), 7, DType::F32);
        let by_weights = of_square(&loss, &by_weights, DType::F32);
        let expected = vec![loss, by_x, by_weights];
        macro_rules! loss_of {
            ($B:ident) => {{
                let [leaf, weights] = [(&x, 28), (&weights, 4)].map(|(data, count)| {
                    tensor::<$B, 1>(&TensorData::new(data.iter::<f64>().collect(), [count]), DType::F32)
                        .require_grad()
                });
                let loss = own::BinaryCrossEntropyLoss::<$B> {
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
            within_limits!(format!("logits {logits}"), DType::F32, expected.clone(), |B| loss_of!(B));
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
            let ours = binary!(Ours, 2, case);
            let elements = binary_elements(&x, &labels, 7, logits, Some(0.1));
            let expected = binary_limits(&elements, |_| 1.0, &[13, 7], dtype);
            let what = format!("{dtype:?} logits {logits}");
            assert_limits(&what, dtype, &ours, &expected);
            assert!(assert_narrow(&what, &ours, &bounded(&expected)) > 0, "{what}: nothing was checked");
        }
    }
}

/// For a large score of the right sign, loss and gradient are `log(1 + exp(-|x|))` and
/// `exp(-|x|) / (1 + exp(-|x|))`. Neither may be lost when 1 or x is added.
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
    let ours = binary!(Ours, 1, case);
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

/// One launch forward and one backward. No launch fills a tensor of zeros to subtract.
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

/// The gradient with respect to one side is the same whether or not the other is wanted.
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
