//! The CTC loss and its gradient, checked by enumeration of all alignments and against Burn's
//! composition and its autodiff.

use burn::backend::Autodiff;
use burn::tensor::{Int, Tensor, activation::log_softmax, module::ctc_loss};
use burn_rocm_tests::*;

/// The log-probabilities `[steps, batch, classes]`, the targets and the lengths of one call.
#[derive(Clone, Debug)]
struct Case {
    dims: [usize; 3],
    log_probs: Vec<f64>,
    labels: usize,
    targets: Vec<i64>,
    input_lengths: Vec<i64>,
    target_lengths: Vec<i64>,
    blank: usize,
}

impl Case {
    /// Random log-probabilities, which are not normalised, because nothing depends on that. Padding
    /// labels are out of range: they must not be read.
    fn new(random: &Random, dims: [usize; 3], labels: usize, blank: usize) -> Self {
        let [steps, batch, classes] = dims;
        let count = |n: usize| (0..n).map(|_| random.uniform(-3.0, 0.0)).collect();
        let target_lengths: Vec<i64> = (0..batch).map(|_| random.below(labels + 1) as i64).collect();
        let mut targets = vec![-1; batch * labels];
        for n in 0..batch {
            for j in 0..target_lengths[n] as usize {
                // There are few classes, so labels repeat.
                targets[n * labels + j] = random.below(classes) as i64;
                while targets[n * labels + j] == blank as i64 {
                    targets[n * labels + j] = random.below(classes) as i64;
                }
            }
        }
        let input_lengths = (0..batch).map(|_| 1 + random.below(steps) as i64).collect();
        let log_probs = count(steps * batch * classes);
        Self { dims, log_probs, labels, targets, input_lengths, target_lengths, blank }
    }

    fn log_probs(&self, dtype: DType) -> TensorData {
        TensorData::new(self.log_probs.clone(), self.dims).convert_dtype(dtype)
    }

    fn ints<B: Backend>(
        &self,
        values: &[i64],
        shape: &[usize],
        dtype: DType,
    ) -> burn_backend::tensor::IntTensor<B> {
        let data = TensorData::new(values.to_vec(), Shape::from(shape.to_vec()));
        B::int_cast(B::int_from_data(data, &Default::default()), int_dtype(dtype))
    }

    /// The targets and both lengths as integers of `dtype`.
    fn integers<B: Backend>(&self, dtype: DType) -> [burn_backend::tensor::IntTensor<B>; 3] {
        let batch = self.dims[1];
        [
            self.ints::<B>(&self.targets, &[batch, self.labels], dtype),
            self.ints::<B>(&self.input_lengths, &[batch], dtype),
            self.ints::<B>(&self.target_lengths, &[batch], dtype),
        ]
    }

    fn loss<B: Backend>(&self, log_probs: TensorData, dtype: DType) -> TensorData {
        let [targets, inputs, lengths] = self.integers::<B>(dtype);
        let log_probs = B::float_from_data(log_probs, &Default::default());
        read_float::<B>(B::ctc_loss(log_probs, targets, inputs, lengths, self.blank))
    }

    fn gradient(&self, log_probs: TensorData, grad: &[f64], dtype: DType) -> TensorData {
        let [targets, inputs, lengths] = self.integers::<R>(dtype);
        let grad = TensorData::new(grad.to_vec(), [self.dims[1]]).convert_dtype(log_probs.dtype);
        let [log_probs, grad] = [log_probs, grad].map(|t| R::float_from_data(t, &Default::default()));
        read_float::<R>(R::ctc_loss_backward(log_probs, targets, inputs, lengths, grad, self.blank))
    }

    /// The losses, and the gradients for losses weighted by `grad`, by enumeration of every
    /// alignment.
    fn by_enumeration(&self, log_probs: &TensorData, grad: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let Self { dims, labels, blank, .. } = *self;
        let (targets, input_lengths, target_lengths) =
            (&self.targets, &self.input_lengths, &self.target_lengths);
        let sequences = alignments::Sequences { dims, labels, targets, input_lengths, target_lengths, blank };
        sequences.by_enumeration(&log_probs.iter::<f64>().collect::<Vec<_>>(), grad)
    }

    /// Replaces padding labels by valid ones, because Burn's composition gathers every label.
    fn padded(mut self) -> Self {
        self.targets.iter_mut().for_each(|label| *label = (*label).max(0));
        self
    }
}

/// The tolerance for sums of logarithms and for what is computed from their differences.
fn near(dtype: DType) -> Tolerance {
    match dtype {
        DType::F64 => Tolerance::of(dtype).times(100.0),
        _ => Tolerance::of(dtype).times(8.0),
    }
}

#[test]
fn ctc_loss_by_enumeration() {
    let random = Random::new();
    let shapes = [[5, 7, 3], [4, 6, 4], [1, 3, 2], [6, 5, 2], [3, 4, 3], [7, 2, 3]];
    for dtype in FLOATS {
        for dims in shapes {
            for blank in [0, dims[2] - 1] {
                for labels in [0, 1, 2, 3] {
                    let case = Case::new(&random, dims, labels, blank);
                    let grad: Vec<f64> =
                        (0..dims[1]).map(|_| (1 + random.below(8)) as f64 / 4.0 - 1.5).collect();
                    let log_probs = case.log_probs(dtype);
                    let (losses, gradient) = case.by_enumeration(&log_probs, &grad);
                    let ints = [DType::I64, DType::I32, DType::I16, DType::I8][random.below(4)];
                    let what = format!("ctc_loss {dtype:?} {ints:?} {case:?}");
                    let losses = TensorData::new(losses, [dims[1]]).convert_dtype(dtype);
                    assert_close(&what, &[case.loss::<R>(log_probs.clone(), ints)], &[losses], near(dtype));
                    let gradient = TensorData::new(gradient, dims).convert_dtype(dtype);
                    let found = case.gradient(log_probs, &grad, ints);
                    assert_close(&what, &[found], &[gradient], near(dtype).times(2.0));
                }
            }
        }
    }
}

/// Longer sequences against Burn's composition in f64 of the same numbers, with every integer type
/// for targets and lengths.
#[test]
fn ctc_loss_as_composed() {
    let random = Random::new();
    for dtype in FLOATS {
        for (dims, labels) in [([40, 3, 6], 9), ([23, 4, 3], 20), ([17, 1, 40], 8), ([64, 2, 5], 31)] {
            let case = Case::new(&random, dims, labels, random.below(dims[2])).padded();
            let ints = INTS[random.below(INTS.len())];
            let log_probs = case.log_probs(dtype);
            let theirs = case.loss::<O>(log_probs.clone().convert_dtype(DType::F64), DType::I64);
            let ours = case.loss::<R>(log_probs, ints);
            let what = format!("ctc_loss {dtype:?} {ints:?} {case:?}");
            assert_close(&what, &[ours], &[theirs.convert_dtype(dtype)], near(dtype));
        }
    }
}

/// The gradient equals the slope of the loss along a random direction.
#[test]
fn ctc_loss_backward_by_differences() {
    assert!(R::has_ctc_loss_backward());
    let random = Random::new();
    for (dims, labels) in [([20, 3, 5], 6), ([33, 2, 3], 12), ([9, 4, 12], 3)] {
        let mut case = Case::new(&random, dims, labels, 0);
        case.input_lengths.fill(dims[0] as i64); // every target then has alignments
        case.target_lengths.iter_mut().for_each(|n| *n = (*n).min(dims[0] as i64 / 2));
        let grad: Vec<f64> = (0..dims[1]).map(|_| random.uniform(-1.0, 1.0)).collect();
        let along: Vec<f64> = (0..case.log_probs.len()).map(|_| random.uniform(-1.0, 1.0)).collect();
        let loss = |step: f64| -> f64 {
            let mut moved = case.clone();
            moved.log_probs.iter_mut().zip(&along).for_each(|(x, d)| *x += step * d);
            let losses = moved.loss::<R>(moved.log_probs(DType::F64), DType::I64);
            losses.iter::<f64>().zip(&grad).map(|(loss, g)| loss * g).sum()
        };
        let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        let found = case.gradient(case.log_probs(DType::F64), &grad, DType::I32);
        let expected: f64 = found.iter::<f64>().zip(&along).map(|(g, d)| g * d).sum();
        assert!(
            (slope - expected).abs() < 1e-7 * (1.0 + slope.abs()),
            "{case:?}: {expected} instead of {slope}"
        );
    }
}

/// Through a log-softmax and a view, and directly from the log-probabilities, the gradients equal
/// those of Burn's autodiff of its composition.
#[test]
fn ctc_loss_through_autodiff() {
    fn gradient<B: burn::tensor::backend::AutodiffBackend>(case: &Case, softmax: bool) -> Vec<TensorData> {
        let device = Default::default();
        let [steps, batch, classes] = case.dims;
        // `[batch, steps, classes]`, as a model outputs it, with two steps more than needed.
        let values =
            case.log_probs.iter().copied().cycle().take(batch * (steps + 2) * classes).collect::<Vec<_>>();
        let data = TensorData::new(values, [batch, steps + 2, classes]).convert_dtype(DType::F32);
        let leaf = Tensor::<B, 3>::from_data(data, &device).require_grad();
        let x = if softmax { log_softmax(leaf.clone(), 2) } else { leaf.clone() };
        let x = x.swap_dims(0, 1).narrow(0, 2, steps);
        let ints = |values: &[i64]| Tensor::<B, 1, Int>::from_data(TensorData::from(values), &device);
        let targets = ints(&case.targets).reshape([batch, case.labels]);
        let loss = ctc_loss(x, targets, ints(&case.input_lengths), ints(&case.target_lengths), case.blank);
        let weights = Tensor::arange(1..batch as i64 + 1, &device).float();
        let grads = (loss.clone() * weights).sum().backward();
        vec![loss.into_data(), leaf.grad(&grads).expect("the leaf takes part").into_data()]
    }
    let random = Random::new();
    for softmax in [false, true] {
        let mut case = Case::new(&random, [14, 3, 4], 5, 2).padded();
        // Without an alignment, the gradient of Burn's autodiff has no defined value.
        case.input_lengths.iter_mut().for_each(|n| *n = (*n).max(11));
        let (ours, theirs) =
            (gradient::<Autodiff<R>>(&case, softmax), gradient::<Autodiff<O>>(&case, softmax));
        let near = Tolerance { absolute: 2e-5, relative: 2e-5 };
        assert_close(&format!("ctc_loss {softmax} {case:?}"), &ours, &theirs, near);
    }
}

/// The edges: no possible alignment, empty targets, empty sequences, probabilities of zero, and a
/// label that equals the blank.
#[test]
fn ctc_loss_at_the_ends() {
    let half = 0.5f64.ln();
    let case = Case {
        dims: [3, 6, 2],
        log_probs: vec![half; 36],
        labels: 3,
        targets: [[1, 1, 9], [1, 1, 9], [9, 9, 9], [9, 9, 9], [1, 9, 9], [1, 1, 1]].concat(),
        input_lengths: vec![3, 2, 3, 0, 0, 3],
        target_lengths: vec![2, 2, 0, 0, 1, 3],
        blank: 0,
    };
    for dtype in FLOATS {
        let losses: Vec<f64> = case.loss::<R>(case.log_probs(dtype), DType::I64).iter().collect();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-2;
        assert!(near(losses[0], -3.0 * half), "one way to say 1 1 in three steps: {losses:?}");
        assert_eq!(losses[1], f64::INFINITY, "none in two");
        assert!(near(losses[2], -3.0 * half), "only blanks say nothing: {losses:?}");
        assert_eq!(losses[3], 0.0, "an empty sequence says nothing");
        assert_eq!(losses[4..], [f64::INFINITY; 2]);
        let grads: Vec<f64> = case.gradient(case.log_probs(dtype), &[1.0; 6], DType::I64).iter().collect();
        let of = |n: usize| -> Vec<f64> {
            (0..3).flat_map(|t| [0, 1].map(|c| grads[(t * 6 + n) * 2 + c])).collect()
        };
        assert_eq!(of(0), [0.0, -1.0, -1.0, 0.0, 0.0, -1.0]);
        assert_eq!(of(2), [-1.0, 0.0, -1.0, 0.0, -1.0, 0.0]);
        for n in [1, 3, 4, 5] {
            assert_eq!(of(n), [0.0; 6], "sequence {n} in {dtype:?}");
        }
    }
    // The only possible alignment has a class of probability 0.
    let mut sure =
        Case { log_probs: vec![0.0, f64::NEG_INFINITY], dims: [1, 1, 2], labels: 1, ..case.clone() };
    (sure.targets, sure.input_lengths, sure.target_lengths) = (vec![1], vec![1], vec![1]);
    let [loss, grad] = [
        sure.loss::<R>(sure.log_probs(DType::F32), DType::I64),
        sure.gradient(sure.log_probs(DType::F32), &[1.0], DType::I64),
    ];
    assert_eq!(loss.to_vec::<f32>().unwrap(), [f32::INFINITY]);
    assert_eq!(grad.to_vec::<f32>().unwrap(), [0.0, 0.0]);
    // A blank among the labels is a state like any other, as in Burn's composition.
    let mut odd = Case::new(&Random::new(), [9, 1, 3], 3, 1);
    (odd.targets, odd.input_lengths, odd.target_lengths) = (vec![0, 1, 1], vec![9], vec![3]);
    let log_probs = odd.log_probs(DType::F64);
    let (ours, theirs) = (odd.loss::<R>(log_probs.clone(), DType::I64), odd.loss::<O>(log_probs, DType::I64));
    assert_close(&"a blank label", &[ours], &[theirs], near(DType::F64));
}

/// More states than fit a block's shared memory.
#[test]
fn ctc_loss_of_many_states() {
    let random = Random::new();
    let (steps, labels) = (530, 520);
    let mut case = Case::new(&random, [steps, 1, 3], labels, 0);
    case.targets = (0..labels as i64).map(|j| 1 + j % 2).collect();
    (case.input_lengths, case.target_lengths) = (vec![steps as i64], vec![labels as i64]);
    let log_probs = case.log_probs(DType::F64);
    let theirs = case.loss::<O>(log_probs.clone(), DType::I64);
    assert_close(&"ctc_loss", &[case.loss::<R>(log_probs.clone(), DType::I64)], &[theirs], near(DType::F64));
    let grads: Vec<f64> = case.gradient(log_probs, &[1.0], DType::I64).iter().collect();
    // At every step an alignment occupies exactly one class, so the gradients of a step sum to -1.
    let worst = grads.chunks(3).map(|step| (step.iter().sum::<f64>() + 1.0).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-9, "{worst}");
}

/// Over a thousand steps the logarithms of products reach thousands, where f32 has four digits
/// after the decimal point. Each step's gradients must still sum to -1 within the rounding of one
/// sum. Each gradient must be close to f64's. The limit follows from two thousand roundings of the
/// logarithms, whose signs are random.
#[test]
fn ctc_gradients_of_long_sequences_keep_their_digits() {
    let (steps, classes, labels, least) = (1000, 30, 200, -7.0);
    let random = Random::new();
    let mut case = Case::new(&random, [steps, 1, classes], labels, 0);
    case.log_probs = (0..steps * classes).map(|_| random.uniform(least, 0.0)).collect();
    case.targets = (0..labels).map(|_| 1 + random.below(classes - 1) as i64).collect();
    (case.input_lengths, case.target_lengths) = (vec![steps as i64], vec![labels as i64]);
    let log_probs = case.log_probs(DType::F32);
    let exact = case.gradient(log_probs.clone().convert_dtype(DType::F64), &[1.0], DType::I64);
    let found = case.gradient(log_probs, &[1.0], DType::I64);
    let [found, exact] = [found, exact].map(|data| data.iter::<f64>().collect::<Vec<_>>());
    let unit = 2f64.powi(-24);
    // A step sums over all states and all classes, with two exponentials of 4 ulp and a few
    // products.
    let of_sums = (2 * labels + 1 + classes + 24) as f64 * unit;
    for (step, grads) in found.chunks(classes).enumerate() {
        let sum: f64 = grads.iter().sum();
        assert!((sum + 1.0).abs() <= of_sums, "step {step} sums to {sum}, bound {of_sums:e}");
    }
    // A variable is rounded twice in each step, and is at most as large as 16 steps can make it.
    let of_steps = (2.0 * steps as f64).sqrt() * 2.0 * unit * 16.0 * -least;
    let differences = found.iter().zip(&exact).map(|(found, exact)| (found - exact).abs());
    let worst = differences.fold(0.0, f64::max);
    assert!(worst <= of_steps, "off by {worst:e}, bound {of_steps:e}");
}

/// Batches without sequences, and sequences without steps.
#[test]
fn ctc_loss_of_nothing() {
    let random = Random::new();
    let none = Case::new(&random, [4, 0, 3], 2, 0);
    assert_eq!(none.loss::<R>(none.log_probs(DType::F32), DType::I64).shape, Shape::from(vec![0]));
    assert_eq!(none.gradient(none.log_probs(DType::F32), &[], DType::I64).shape, Shape::from(vec![4, 0, 3]));
    let still = Case {
        dims: [0, 1, 3],
        input_lengths: vec![0],
        target_lengths: vec![0],
        targets: vec![0],
        labels: 1,
        log_probs: vec![],
        blank: 0,
    };
    assert_eq!(still.loss::<R>(still.log_probs(DType::F32), DType::I64).to_vec::<f32>().unwrap(), [0.0]);
}
