//! Graph capture by Burn's backend trait: a whole training step of an MLP, forward, backward by
//! burn-autodiff and SGD.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::useless_conversion, reason = "with the feature `dispatch` Burn's device is another type")]

use std::pin::pin;
use std::sync::{Mutex, Once};
use std::task::{Context, Poll, Waker};

use burn_autodiff::Autodiff;
use burn_backend::ops::{ActivationOps, FloatTensorOps};
use burn_backend::{AutodiffBackend, Backend, ExecutionError, TensorData, TensorMetadata};
use burn_rocm_022::trace::{Counts, counting};
use burn_rocm_022::{BurnDevice, Rocm, RocmDevice, RocmError, RocmTensor, fft, take_last_error, trace};
use burn_std::Slice;

type Tracked = Autodiff<Rocm>;

const BATCH: usize = 16;
/// Inputs, hidden values, outputs.
const WIDTHS: [usize; 3] = [12, 32, 5];
const RATE: f32 = 0.05;

/// One test at a time: they count launches and bytes of the one device.
static ALONE: Mutex<()> = Mutex::new(());

/// The lines of the trace so far.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target() == trace::TARGET
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            LINES.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// What `body` gives, and the trace of it.
fn traced<T>(body: impl FnOnce() -> T) -> (T, Vec<String>) {
    static LOG: Once = Once::new();
    LOG.call_once(|| {
        log::set_logger(&Log).unwrap();
        log::set_max_level(log::LevelFilter::Info);
    });
    LINES.lock().unwrap().clear();
    trace::enable(true);
    let result = body();
    trace::enable(false);
    (result, std::mem::take(&mut LINES.lock().unwrap()))
}

fn device() -> BurnDevice {
    RocmDevice::new(0).into()
}

fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|i| ((i as f32 + 1.0) * seed).sin()).collect()
}

fn tensor(shape: &[usize], seed: f32) -> RocmTensor {
    let values = numbers(shape.iter().product(), seed);
    Rocm::float_from_data(TensorData::new(values, shape.to_vec()), &device())
}

fn data(tensor: RocmTensor) -> Result<Vec<f32>, ExecutionError> {
    let mut read = pin!(Rocm::float_into_data(tensor));
    match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(data) => data.map(|data| data.try_to_vec().unwrap()),
        Poll::Pending => panic!("reads do not suspend"),
    }
}

fn bits(tensor: &RocmTensor) -> Vec<u32> {
    data(tensor.clone()).unwrap().into_iter().map(f32::to_bits).collect()
}

/// Writes over a tensor in its own memory, which nobody else may hold.
fn write(tensor: &mut Option<RocmTensor>, value: RocmTensor) {
    let old = tensor.take().unwrap();
    assert!(old.can_mut(), "another owner would make this a copy");
    let all: Vec<Slice> = old.shape().iter().map(|&size| Slice::from(0..size)).collect();
    *tensor = Some(Rocm::float_slice_assign(old, &all, value));
}

/// A network, a batch and where the loss goes; each in memory that stays.
struct Training {
    parameters: [Option<RocmTensor>; 4],
    x: Option<RocmTensor>,
    y: Option<RocmTensor>,
    loss: Option<RocmTensor>,
}

impl Training {
    fn new() -> Self {
        let [inputs, hidden, outputs] = WIDTHS;
        let parameter = |shape: &[usize], seed| Some(tensor(shape, seed));
        Self {
            parameters: [
                parameter(&[inputs, hidden], 0.37),
                parameter(&[1, hidden], 0.11),
                parameter(&[hidden, outputs], 0.53),
                parameter(&[1, outputs], 0.29),
            ],
            x: parameter(&[BATCH, inputs], 0.71),
            y: parameter(&[BATCH, outputs], 0.17),
            loss: parameter(&[1], 0.0),
        }
    }

    /// Refreshes the batch in place.
    fn load(&mut self, number: usize) {
        let [inputs, _, outputs] = WIDTHS;
        write(&mut self.x, tensor(&[BATCH, inputs], 0.71 + number as f32));
        write(&mut self.y, tensor(&[BATCH, outputs], 0.17 + number as f32));
    }

    /// Forward, backward, and SGD in place.
    fn step(&mut self) {
        let constant = |tensor: &Option<RocmTensor>| Tracked::from_inner(tensor.clone().unwrap());
        let leaf = |tensor: &Option<RocmTensor>| Tracked::float_set_require_grad(constant(tensor), true);
        let leaves = [0, 1, 2, 3].map(|i| leaf(&self.parameters[i]));
        let [w1, b1, w2, b2] = leaves.clone();
        let hidden = Tracked::relu(Tracked::float_add(Tracked::float_matmul(constant(&self.x), w1), b1));
        let outputs = Tracked::float_add(Tracked::float_matmul(hidden, w2), b2);
        let error = Tracked::float_sub(outputs, constant(&self.y));
        let loss = Tracked::float_mean(Tracked::float_mul(error.clone(), error));
        let value = Tracked::inner(loss.clone());
        let mut gradients = Tracked::backward(loss);
        let gradients = leaves.map(|leaf| Tracked::grad_remove(&leaf, &mut gradients).unwrap());
        for (parameter, gradient) in self.parameters.iter_mut().zip(gradients) {
            let change = Rocm::float_mul_scalar(gradient, RATE.into());
            let new = Rocm::float_sub(parameter.clone().unwrap(), change);
            write(parameter, new);
        }
        write(&mut self.loss, value);
    }

    fn state(&self) -> Vec<Vec<u32>> {
        self.parameters.iter().chain([&self.loss]).map(|tensor| bits(tensor.as_ref().unwrap())).collect()
    }
}

/// Runs the step as Burn's `capture` does before it captures.
fn warm_up(training: &mut Training) {
    Rocm::graph_prepare(&device()).unwrap();
    for _ in 0..3 {
        training.step();
        Rocm::sync(&device()).unwrap();
    }
}

#[test]
fn three_replays_of_a_training_step_equal_three_eager_steps() {
    let _alone = ALONE.lock().unwrap_or_else(|alone| alone.into_inner());
    let (device, own) = (device(), RocmDevice::new(0));
    let (mut eager, mut replayed) = (Training::new(), Training::new());
    warm_up(&mut eager);
    warm_up(&mut replayed);
    assert_eq!(eager.state(), replayed.state());
    let (before, launches) = (replayed.state(), own.counters().unwrap().launches);
    let (graph, capturing) = traced(|| {
        Rocm::graph_start_capture(&device).unwrap();
        replayed.step();
        Rocm::graph_stop_capture(&device).unwrap()
    });
    assert_eq!(own.counters().unwrap().launches, launches, "nothing was launched");
    assert_eq!(replayed.state(), before, "nothing ran");
    let recorded = graph.recorded();
    assert!(recorded.launches() >= 15, "forward, backward and four updates: {recorded:?}");
    let said = capturing.last().unwrap();
    assert!(said.starts_with("graph_stop_capture: captured a graph of "), "{said}");
    let mut losses = Vec::new();
    for number in 1..=3 {
        eager.load(number);
        eager.step();
        replayed.load(number);
        let before = own.counters().unwrap();
        let (((), counts), lines) = traced(|| {
            counting(|| {
                // SAFETY: the graph keeps its memory; this thread alone uses the tensors.
                unsafe { Rocm::graph_replay(&device, &graph).unwrap() }
            })
        });
        // The one launch, and no run of the step's ops.
        assert_eq!(counts, Counts { graphs: 1, ..Counts::default() });
        let after = own.counters().unwrap();
        assert_eq!((after.launches, after.graphs), (before.launches, before.graphs + 1));
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.starts_with("graph_replay: replay of a graph of "), "{line}");
        assert_eq!(eager.state(), replayed.state(), "step {number}");
        losses.push(replayed.state()[4][0]);
    }
    losses.dedup();
    assert_eq!(losses.len(), 3, "each on its own batch: {losses:?}");
    let other = RocmDevice::new(1).into();
    if RocmDevice::all().unwrap().len() == 1 {
        // SAFETY: refused before anything is launched.
        assert!(unsafe { Rocm::graph_replay(&other, &graph) }.is_err());
    }
}

/// The step allocates all its intermediate results in the capture. Whatever else takes memory
/// afterwards, also in the place of tensors that were dropped, is apart from them.
#[test]
fn a_graph_keeps_the_memory_of_dropped_tensors() {
    let _alone = ALONE.lock().unwrap_or_else(|alone| alone.into_inner());
    let (device, own) = (device(), RocmDevice::new(0));
    let (mut eager, mut replayed) = (Training::new(), Training::new());
    warm_up(&mut eager);
    warm_up(&mut replayed);
    let held = own.memory_stats().unwrap();
    Rocm::graph_start_capture(&device).unwrap();
    replayed.step();
    let graph = Rocm::graph_stop_capture(&device).unwrap();
    assert!(own.memory_stats().unwrap().graphs > 0);
    drop((replayed.x.take(), replayed.y.take()));
    let junk: Vec<_> = (0..200).map(|i| tensor(&[16 + i, 12], 1.3)).collect();
    for _ in 0..3 {
        eager.step();
        // SAFETY: the graph keeps its memory; this thread alone uses the tensors.
        unsafe { Rocm::graph_replay(&device, &graph).unwrap() };
    }
    assert_eq!(eager.state(), replayed.state());
    for (i, tensor) in junk.iter().enumerate() {
        assert_eq!(
            bits(tensor),
            numbers((16 + i) * 12, 1.3).into_iter().map(f32::to_bits).collect::<Vec<_>>()
        );
    }
    let copy = graph.clone();
    drop((graph, junk));
    // SAFETY: as above.
    unsafe { Rocm::graph_replay(&device, &copy).unwrap() };
    drop((copy, eager.x.take(), eager.y.take()));
    let stats = own.memory_stats().unwrap();
    assert_eq!(stats.graphs, 0);
    assert!(stats.allocated < held.allocated, "the batches' memory is free");
}

/// A replay would overwrite what an op wrote in place of a result. Inputs may be refreshed in place.
#[test]
fn only_inputs_of_a_graph_can_be_written_in_place() {
    let _alone = ALONE.lock().unwrap_or_else(|alone| alone.into_inner());
    let device = device();
    let mut x = Some(tensor(&[8], 0.3));
    Rocm::graph_prepare(&device).unwrap();
    Rocm::graph_start_capture(&device).unwrap();
    let out = Rocm::float_mul_scalar(x.clone().unwrap(), 2.0.into());
    let graph = Rocm::graph_stop_capture(&device).unwrap();
    // SAFETY: the graph keeps its memory; this thread alone uses the tensors.
    let replay = || unsafe { Rocm::graph_replay(&device, &graph).unwrap() };
    replay();
    assert!(!out.can_mut());
    let kept = Rocm::float_mul_scalar(out, 2.0.into());
    write(&mut x, tensor(&[8], 0.7));
    replay();
    let expected = numbers(8, 0.3).into_iter().map(|x| (4.0 * x).to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&kept), expected);
    assert!(kept.can_mut());
}

#[test]
fn a_capture_that_fails_changes_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(|alone| alone.into_inner());
    let device = device();
    let (mut eager, mut captured) = (Training::new(), Training::new());
    warm_up(&mut eager);
    warm_up(&mut captured);
    let start = captured.state();
    type Refused = fn(&Training) -> Result<(), ExecutionError>;
    let refused: [Refused; 2] =
        [|training| data(training.loss.clone().unwrap()).map(|_| ()), |_| Rocm::sync(&self::device())];
    for refused in refused {
        Rocm::graph_start_capture(&device).unwrap();
        captured.step();
        refused(&captured).unwrap_err();
        assert!(matches!(take_last_error(), Some(RocmError::Capture { .. })));
        // The capture is over.
        Rocm::graph_stop_capture(&device).unwrap_err();
        assert!(matches!(take_last_error(), Some(RocmError::Invalid { op: "stop_capture", .. })));
        assert_eq!(captured.state(), start);
    }
    Rocm::graph_stop_capture(&device).unwrap_err();
    // As `into_data` in the closure of Burn's `capture`, which has no guard.
    let panicked = std::panic::catch_unwind(|| {
        let mut training = Training::new();
        Rocm::graph_start_capture(&self::device()).unwrap();
        training.step();
        data(training.loss.clone().unwrap()).unwrap();
    });
    assert!(panicked.is_err());
    let loss = Rocm::float_add_scalar(captured.loss.clone().unwrap(), 1.0.into());
    assert_eq!(data(loss).unwrap(), [f32::from_bits(start[4][0]) + 1.0]);
    // Another panic leaves the capture open until something is refused, or the next one's start or
    // preparation.
    let panics = || {
        let panicked = std::panic::catch_unwind(|| {
            let mut training = Training::new();
            Rocm::graph_start_capture(&self::device()).unwrap();
            training.step();
            panic!("in the middle of it");
        });
        assert!(panicked.is_err());
    };
    panics();
    data(captured.loss.clone().unwrap()).unwrap_err();
    assert_eq!(captured.state(), start);
    panics();
    Rocm::graph_start_capture(&device).unwrap();
    Rocm::graph_stop_capture(&device).unwrap();
    panics();
    Rocm::graph_prepare(&device).unwrap();
    assert_eq!(captured.state(), start);
    eager.step();
    captured.step();
    assert_eq!(eager.state(), captured.state(), "the device works on");
}

/// A product that may become part of a sum is put off. One put off in a capture belongs to the
/// graph, whether it is used or only returned. One put off before the capture does not.
#[test]
fn products_that_wait_are_captured_where_they_were_made() {
    let _alone = ALONE.lock().unwrap_or_else(|alone| alone.into_inner());
    let device = device();
    let mut x = Some(tensor(&[4, 6, 5], 0.3));
    let y = tensor(&[4, 6, 3], 0.7);
    let product =
        |x: &Option<RocmTensor>| Rocm::float_matmul(Rocm::float_transpose(x.clone().unwrap()), y.clone());
    let sum = |x: &Option<RocmTensor>| Rocm::float_sum_dim(product(x), 0);
    Rocm::graph_prepare(&device).unwrap();
    let expected = [product(&x), sum(&x)].map(|made| bits(&made));
    let before = product(&x);
    Rocm::graph_start_capture(&device).unwrap();
    let (of_before, made, summed) = (Rocm::float_neg(before.clone()), product(&x), sum(&x));
    let graph = Rocm::graph_stop_capture(&device).unwrap();
    // Two products and a negation: the earlier product is not part of the graph.
    assert_eq!(graph.recorded().launches(), 3);
    assert_eq!(bits(&before), expected[0]);
    for seed in [0.3, 0.9] {
        write(&mut x, tensor(&[4, 6, 5], seed));
        // SAFETY: the graph keeps its memory; this thread alone uses the tensors.
        unsafe { Rocm::graph_replay(&device, &graph).unwrap() };
        assert_eq!([&made, &summed].map(bits), [product(&x), sum(&x)].map(|made| bits(&made)), "{seed}");
        assert_eq!(bits(&of_before), expected[0].iter().map(|bits| bits ^ 1 << 31).collect::<Vec<_>>());
    }
    // A product of a graph's output is computed before the next replay writes the output.
    write(&mut x, tensor(&[4, 6, 5], 0.4));
    // SAFETY: as above.
    unsafe { Rocm::graph_replay(&device, &graph).unwrap() };
    let now = bits(&Rocm::float_matmul(Rocm::float_transpose(made.clone()), made.clone()));
    let waits = Rocm::float_matmul(Rocm::float_transpose(made.clone()), made.clone());
    write(&mut x, tensor(&[4, 6, 5], 0.5));
    // SAFETY: as above.
    unsafe { Rocm::graph_replay(&device, &graph).unwrap() };
    assert_eq!(bits(&waits), now);
}

/// The transforms' tables are cached for all later transforms, so those that a capture makes are no
/// part of the graph.
#[test]
fn a_transform_in_a_capture_leaves_no_table_behind_that_was_not_computed() {
    let _alone = ALONE.lock().unwrap_or_else(|alone| alone.into_inner());
    let device = device();
    let signal = tensor(&[3, 90], 0.3);
    let transform = || {
        let (re, im) = fft::rfft(signal.clone(), 1, None);
        [re, im]
    };
    let expected = transform().map(|part| bits(&part));
    // Forgets the tables.
    Rocm::memory_cleanup(&device);
    Rocm::graph_start_capture(&device).unwrap();
    let waits = Rocm::float_matmul(Rocm::float_transpose(tensor(&[4, 6, 5], 0.3)), tensor(&[4, 6, 3], 0.7));
    let captured = transform();
    let graph = Rocm::graph_stop_capture(&device).unwrap();
    assert_eq!(transform().map(|part| bits(&part)), expected, "before the first replay");
    // SAFETY: the graph keeps its memory; this thread alone uses the tensors.
    unsafe { Rocm::graph_replay(&device, &graph).unwrap() };
    assert_eq!(captured.map(|part| bits(&part)), expected);
    let product = Rocm::float_matmul(Rocm::float_transpose(tensor(&[4, 6, 5], 0.3)), tensor(&[4, 6, 3], 0.7));
    assert_eq!(bits(&waits), bits(&product), "the product that waited is part of the graph");
}

/// A thread ended while its product waited. A capture that reads the product does not take it into
/// the graph.
#[test]
fn products_of_threads_that_ended_are_no_part_of_a_capture() {
    let _alone = ALONE.lock().unwrap_or_else(|alone| alone.into_inner());
    let device = device();
    let (x, y) = (tensor(&[4, 6, 5], 0.3), tensor(&[4, 6, 3], 0.7));
    let product = || Rocm::float_matmul(Rocm::float_transpose(x.clone()), y.clone());
    let expected = bits(&product());
    let made = std::thread::scope(|scope| scope.spawn(product).join().unwrap());
    Rocm::graph_start_capture(&device).unwrap();
    let negated = Rocm::float_neg(made.clone());
    let graph = Rocm::graph_stop_capture(&device).unwrap();
    assert_eq!(graph.recorded().launches(), 1);
    assert!(x.can_mut(), "the product let go of its operands");
    assert_eq!(bits(&made), expected);
    // SAFETY: the graph keeps its memory; this thread alone uses the tensors.
    unsafe { Rocm::graph_replay(&device, &graph).unwrap() };
    assert_eq!(bits(&negated), expected.iter().map(|bits| bits ^ 1 << 31).collect::<Vec<_>>());
}
