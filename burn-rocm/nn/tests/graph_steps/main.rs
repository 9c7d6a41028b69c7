//! Training steps replayed from graphs, compared bit by bit with the same steps run one by one.
#![allow(missing_docs, clippy::unwrap_used)]

mod mixed;

use std::sync::{Mutex, PoisonError};

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, FloatDType, Int, Tensor, TensorData};
use burn_rocm::graph::Graph;
use burn_rocm::{RandomMark, Rocm, RocmDevice, RocmError};
use burn_rocm_nn::amp::{GradScaler, GradScalerConfig, GradScalerRecord, Mixed, Precision};
use burn_rocm_nn::loss::CrossEntropyLossConfig;
use burn_rocm_nn::optim::adaptor::OptimizerAdaptor;
use burn_rocm_nn::optim::{Adam, AdamConfig, AdamWConfig, SgdConfig};
use burn_rocm_nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn_rocm_nn::{BatchNorm, BatchNormConfig, graph};

type Inner = Rocm;
type B = Autodiff<Inner>;

const BATCH: usize = 8;
const CLASSES: usize = 4;
const BEFORE: usize = 3;
const REPLAYED: usize = 200;
const AFTER: usize = 2;

/// The tests seed the device's random numbers, and one thread captures at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A model for images of 6 x 6 in four classes.
trait Net: AutodiffModule<B> {
    fn new(device: &RocmDevice) -> Self;
    fn scores(&self, images: Tensor<B, 3>) -> Tensor<B, 2>;
}

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    first: Linear<B>,
    dropout: Dropout,
    second: Linear<B>,
}

impl Net for Mlp<B> {
    fn new(device: &RocmDevice) -> Self {
        Self {
            first: LinearConfig::new(36, 20).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            second: LinearConfig::new(20, CLASSES).init(device),
        }
    }

    fn scores(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let x = relu(self.first.forward(images.flatten(1, 2)));
        self.second.forward(self.dropout.forward(x))
    }
}

#[derive(Module, Debug)]
struct Cnn<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    dropout: Dropout,
    head: Linear<B>,
}

impl Net for Cnn<B> {
    fn new(device: &RocmDevice) -> Self {
        Self {
            conv: Conv2dConfig::new([1, 3], [3, 3]).init(device),
            norm: BatchNormConfig::new(3).init(device),
            dropout: DropoutConfig::new(0.2).init(),
            head: LinearConfig::new(3 * 16, CLASSES).init(device),
        }
    }

    fn scores(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let x = self.norm.forward(self.conv.forward(images.unsqueeze_dim(1)));
        let x: Tensor<B, 2> = relu(x).flatten(1, 3);
        self.head.forward(self.dropout.forward(x))
    }
}

/// One layer of attention, whose scores are dropped too, over the images' rows.
#[derive(Module, Debug)]
struct Attends<B: Backend> {
    encoder: TransformerEncoder<B>,
    head: Linear<B>,
}

impl Net for Attends<B> {
    fn new(device: &RocmDevice) -> Self {
        let encoder = TransformerEncoderConfig::new(6, 12, 2, 1).with_dropout(0.2);
        Self { encoder: encoder.init(device), head: LinearConfig::new(36, CLASSES).init(device) }
    }

    fn scores(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let x = self.encoder.forward(TransformerEncoderInput::new(images));
        self.head.forward(x.flatten(1, 2))
    }
}

/// The bits of all parameters and running statistics.
#[derive(Default)]
struct Bits(Vec<u32>);

impl<B: Backend> ModuleVisitor<B> for Bits {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.0.extend(param.val().to_data().iter::<f32>().map(f32::to_bits));
    }
}

/// Everything that a run computed.
#[derive(PartialEq, Debug)]
struct Outcome {
    losses: Vec<u32>,
    state: Vec<u32>,
    /// What the device's random numbers go on with.
    drawn: Vec<u32>,
}

fn images(number: usize, device: &RocmDevice) -> Tensor<B, 3> {
    let value = |i: usize| ((i * 7919 + number * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    let values: Vec<f32> = (0..BATCH * 36).map(value).collect();
    Tensor::from_data(TensorData::new(values, [BATCH, 6, 6]), device)
}

fn labels(number: usize, device: &RocmDevice) -> Tensor<B, 1, Int> {
    let values: Vec<i32> = (0..BATCH).map(|i| ((i * 3 + number) % CLASSES) as i32).collect();
    Tensor::from_data(TensorData::new(values, [BATCH]), device)
}

/// Cosine annealing from 0.02.
fn rate(number: usize) -> f64 {
    0.01 * (1.0 + (number as f64 / (BEFORE + REPLAYED + AFTER) as f64 * std::f64::consts::PI).cos())
}

/// Trains for [`BEFORE`] steps one by one, for [`REPLAYED`] as replays or one by one, and again one
/// by one for [`AFTER`].
fn train<M: Net, O: Optimizer<M, B>>(mut optimizer: O, replayed: bool) -> Outcome {
    let device = RocmDevice::default();
    Inner::seed(&device, 17);
    let mut model = Some(M::new(&device));
    let (x, y) = (images(0, &device), labels(0, &device));
    let mut step = |lr: f64| {
        let before = model.take().expect("put back below");
        let loss = CrossEntropyLossConfig::new().init(&device).forward(before.scores(x.clone()), y.clone());
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        model = Some(optimizer.step(lr, before, grads));
        loss.inner()
    };
    let feed = |number| {
        graph::write(&x, images(number, &device)).unwrap();
        graph::write_int(&y, labels(number, &device)).unwrap();
    };
    let mut losses = Vec::new();
    let mut keep = |loss: &Tensor<Rocm, 1>| losses.push(loss.clone().into_scalar().to_bits());
    let mut one_by_one = |numbers: std::ops::Range<usize>, step: &mut dyn FnMut(f64) -> Tensor<Rocm, 1>| {
        for number in numbers {
            feed(number);
            keep(&step(rate(number)));
        }
    };
    let (first, last) = (BEFORE, BEFORE + REPLAYED);
    one_by_one(0..first, &mut step);
    let mut graph = None;
    if replayed {
        // The rate of the capture is none of the schedule.
        let (captured, loss) = Graph::capture_after(&device, 0, || step(0.5)).unwrap();
        let mut replay = |lr: f64| {
            captured.set_learning_rate(lr).unwrap();
            captured.replay().unwrap();
            loss.clone()
        };
        one_by_one(first..last, &mut replay);
        graph = Some(captured);
    } else {
        one_by_one(first..last, &mut step);
    }
    one_by_one(last..last + AFTER, &mut step);
    drop(graph);
    let mut state = Bits::default();
    model.expect("put back").valid().visit(&mut state);
    let drawn = Tensor::<Rocm, 1>::random([9], Distribution::Default, &device).to_data();
    Outcome { losses, state: state.0, drawn: drawn.iter::<f32>().map(f32::to_bits).collect() }
}

fn compare<M: Net, O: Optimizer<M, B>>(optimizer: impl Fn() -> O) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let expected = train::<M, O>(optimizer(), false);
    let replayed = train::<M, O>(optimizer(), true);
    for (number, (found, want)) in replayed.losses.iter().zip(&expected.losses).enumerate() {
        assert_eq!(f32::from_bits(*found), f32::from_bits(*want), "the loss of step {number}");
    }
    assert_eq!(replayed, expected);
    let distinct: std::collections::BTreeSet<_> = expected.losses.iter().collect();
    assert!(distinct.len() > REPLAYED / 2, "the steps differ");
}

#[test]
fn adam_with_dropout() {
    compare::<Mlp<B>, _>(|| AdamConfig::new().init());
}

#[test]
fn adam_with_dropped_scores_of_attention() {
    compare::<Attends<B>, _>(|| AdamConfig::new().init());
}

/// In each replay of a graph, the second drawing has the numbers of the first. They differ from
/// replay to replay. The graph's later numbers are the same as without the second drawing.
#[test]
fn numbers_are_drawn_again_in_a_graph() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = RocmDevice::default();
    let draw = || Tensor::<Rocm, 1>::random([33], Distribution::Default, &device);
    let replays = |again: bool| -> Vec<Vec<Vec<f32>>> {
        Inner::seed(&device, 23);
        let (graph, drawn) = Graph::capture(&device, || {
            let before = draw();
            let mark = RandomMark::of(&device);
            let first = [draw(), draw()];
            let second = match again {
                true => mark.again(|| [draw(), draw()]),
                false => first.clone(),
            };
            [vec![before], first.to_vec(), second.to_vec(), vec![draw()]].concat()
        })
        .unwrap();
        let read = |tensor: &Tensor<Rocm, 1>| tensor.to_data().iter::<f32>().collect();
        (0..3)
            .map(|_| {
                graph.replay().unwrap();
                drawn.iter().map(read).collect()
            })
            .collect()
    };
    let found = replays(true);
    for replay in &found {
        assert_eq!(replay[1..3], replay[3..5]);
        assert_ne!(replay[1], replay[2]);
    }
    assert_ne!(found[0], found[1]);
    assert_eq!(found, replays(false));
}

/// Also if nothing was drawn in the graph before, and behind a mark that is set while drawing again.
#[test]
fn the_first_numbers_of_a_graph_are_drawn_again() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = RocmDevice::default();
    let draw = || Tensor::<Rocm, 1>::random([33], Distribution::Default, &device);
    let (graph, drawn) = Graph::capture(&device, || {
        let mark = RandomMark::of(&device);
        let [first, second, third] = mark.again(|| {
            let first = draw();
            let inner = RandomMark::of(&device);
            let second = draw();
            [first, second, inner.again(draw)]
        });
        let again = mark.again(|| {
            let first = draw();
            let inner = RandomMark::of(&device);
            [first, draw(), inner.again(draw)]
        });
        [vec![first, second, third], again.to_vec()].concat()
    })
    .unwrap();
    graph.replay().unwrap();
    let numbers = |tensor: &Tensor<Rocm, 1>| tensor.to_data().iter::<f32>().collect::<Vec<_>>();
    let found: Vec<_> = drawn.iter().map(numbers).collect();
    assert_ne!(found[0], found[1]);
    assert_eq!(found[1], found[2]);
    assert_eq!(found[..3], found[3..]);
}

#[test]
fn adam_with_every_setting() {
    compare::<Mlp<B>, _>(|| {
        let config =
            AdamConfig::new().with_amsgrad(true).with_weight_decay(Some(WeightDecayConfig::new(0.01)));
        config.with_grad_clipping(Some(burn::grad_clipping::GradientClippingConfig::Norm(0.05))).init()
    });
}

#[test]
fn adam_with_decoupled_decay_on_a_convolution_with_batch_norm() {
    compare::<Cnn<B>, _>(|| AdamWConfig::new().with_cautious_weight_decay(true).init());
}

#[test]
fn descent_with_momentum() {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.1).with_nesterov(true);
    let clip = burn::grad_clipping::GradientClippingConfig::Value(0.02);
    compare::<Cnn<B>, _>(|| {
        SgdConfig::new()
            .with_momentum(Some(momentum.clone()))
            .with_gradient_clipping(Some(clip.clone()))
            .init()
    });
}

#[test]
fn descent_without_momentum() {
    compare::<Mlp<B>, _>(|| SgdConfig::new().init());
}

/// What a step may not do is refused by name, and nothing changes.
#[test]
fn refused_steps_name_the_op_and_change_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = RocmDevice::default();
    let mut model = Some(Mlp::<B>::new(&device));
    let mut optimizer = AdamConfig::new().init();
    let (x, y) = (images(0, &device), labels(0, &device));
    let mut step = |after: &dyn Fn(&Mlp<B>, &Tensor<B, 1>)| {
        let before = model.clone().expect("a model");
        let loss = CrossEntropyLossConfig::new().init(&device).forward(before.scores(x.clone()), y.clone());
        after(&before, &loss);
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        model = Some(optimizer.step(0.1, before, grads));
    };
    step(&|_, _| ());
    let op_of = |result: Result<(Graph, ()), RocmError>| match result {
        Err(RocmError::Capture { op, .. }) => op,
        other => panic!("{other:?}"),
    };
    let read = Graph::capture_after(&device, 0, || step(&|_, loss| drop(loss.to_data())));
    assert_eq!(op_of(read), "a read");
    let sync = Graph::capture_after(&device, 0, || step(&|_, _| drop(Inner::sync(&RocmDevice::default()))));
    assert!(matches!(sync, Err(RocmError::Capture { op: "sync", .. })), "{sync:?}");
    // `model.clone()` is another owner of every parameter.
    let shared = Graph::capture_after(&device, 0, || step(&|_, _| ()));
    assert!(matches!(shared, Err(RocmError::Capture { op: "adam", .. })), "{shared:?}");
    // Another panic of the step is its own.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = Graph::capture_after(&device, 0, || panic!("of the step"));
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"of the step"));
    // The first step of an optimizer makes its state, so it is not captured.
    let mut fresh = AdamConfig::new().init();
    let mut other = Some(Mlp::<B>::new(&device));
    let unready = Graph::capture_after(&device, 0, || {
        let before = other.take().expect("a model");
        let loss = before.scores(x.clone()).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        other = Some(fresh.step(0.1, before, grads));
    });
    assert!(matches!(unready, Err(RocmError::Capture { op: "adam", .. })), "{unready:?}");
    step(&|_, _| ());
    assert!(bits_of(&model).iter().all(|bits| f32::from_bits(*bits).is_finite()));
}

fn bits_of(model: &Option<Mlp<B>>) -> Vec<u32> {
    let mut bits = Bits::default();
    model.as_ref().expect("put back").visit(&mut bits);
    bits.0
}

/// Who takes a step in mixed precision.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Parts,
    Mixed,
}

/// Steps in f16 with a scaler, some of which overflow. `overflow` says in which.
fn train_in_f16(
    by: By,
    replayed: bool,
    overflow: fn(usize) -> bool,
) -> (Vec<u32>, Vec<u32>, GradScalerRecord) {
    const STEPS: usize = 40;
    let device = RocmDevice::default();
    Inner::seed(&device, 3);
    let mut model = Some(Mlp::<B>::new(&device));
    let mut optimizer = AdamConfig::new().init();
    let config = GradScalerConfig::new().with_initial_scale(1024.0).with_growth_interval(7);
    let mut scaler = config.init();
    let mut mixed = Mixed::f16().with_scaler(config.init());
    let (x, y) = (images(0, &device), labels(0, &device));
    // The loss is multiplied by this.
    let weight = Tensor::<B, 1>::ones([1], &device);
    let mut step = || {
        let before = model.take().expect("put back below");
        if by == By::Mixed {
            let (after, weighted) = mixed.step(&mut optimizer, 0.01, before, |half| {
                let scores = half.scores(x.clone().cast(FloatDType::F16)).cast(FloatDType::F32);
                let loss = CrossEntropyLossConfig::new().init(&device).forward(scores, y.clone());
                loss * weight.clone()
            });
            model = Some(after);
            return weighted;
        }
        let half = Precision::new(FloatDType::F16).convert(&before);
        let scores = half.scores(x.clone().cast(FloatDType::F16)).cast(FloatDType::F32);
        let loss = CrossEntropyLossConfig::new().init(&device).forward(scores, y.clone());
        let loss = loss * weight.clone();
        let scaled = scaler.scale(loss.clone());
        let grads = GradientsParams::from_grads(scaled.backward(), &half);
        drop(half);
        model = Some(scaler.step(&mut optimizer, 0.01, before, grads));
        loss.inner()
    };
    let feed = |number| {
        graph::write(&x, images(number, &device)).unwrap();
        let factor = if overflow(number) { f32::INFINITY } else { 1.0 };
        graph::write(&weight, Tensor::from_floats([factor], &device)).unwrap();
    };
    let mut losses = Vec::new();
    for number in 0..BEFORE {
        feed(number);
        losses.push(step());
    }
    let losses = if replayed {
        let (graph, loss) = Graph::capture_after(&device, 0, &mut step).unwrap();
        for number in BEFORE..STEPS {
            feed(number);
            graph.replay().unwrap();
            losses.push(loss.clone() * 1.0);
        }
        // One more step that is not replayed goes on with the device's scale and clock.
        feed(STEPS);
        losses.push(step());
        losses
    } else {
        for number in BEFORE..=STEPS {
            feed(number);
            losses.push(step());
        }
        losses
    };
    let losses = losses.into_iter().map(|loss| loss.into_scalar().to_bits()).collect();
    let mut state = Bits::default();
    model.expect("put back").visit(&mut state);
    let scaler =
        if by == By::Mixed { mixed.scaler().map(GradScaler::to_record) } else { Some(scaler.to_record()) };
    (losses, state.0, scaler.expect("f16 has a scaler"))
}

#[test]
fn the_device_scales_the_loss_and_skips_steps() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let overflow = |number: usize| number % 11 == 5;
    let expected = train_in_f16(By::Parts, false, overflow);
    assert_eq!(expected.2.skipped, 4, "{:?}", expected.2);
    for (by, replayed) in [(By::Parts, true), (By::Mixed, false), (By::Mixed, true)] {
        assert_eq!(train_in_f16(by, replayed, overflow), expected, "{by:?}, replayed: {replayed}");
    }
}

/// Random ops draw in the order in which they run, in graphs and outside.
#[test]
fn random_numbers_follow_in_any_mix() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = RocmDevice::default();
    let draw = |n: usize| Tensor::<Inner, 1>::random([n], Distribution::Normal(0.0, 1.0), &device);
    let bits = |drawn: &Tensor<Inner, 1>| drawn.to_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
    let (first, one) = Graph::capture_after(&device, 0, || [draw(7), draw(5)]).unwrap();
    let (second, two) = Graph::capture_after(&device, 0, || draw(3)).unwrap();
    for seed in [4, 5] {
        Inner::seed(&device, seed);
        let expected: Vec<Vec<u32>> = [7, 5, 3, 7, 5, 7, 5, 9, 3, 3].map(|n| bits(&draw(n))).into();
        Inner::seed(&device, seed);
        let mut found = Vec::new();
        let both = |found: &mut Vec<Vec<u32>>| {
            first.replay().unwrap();
            found.extend(one.each_ref().map(bits));
        };
        let single = |found: &mut Vec<Vec<u32>>| {
            second.replay().unwrap();
            found.push(bits(&two));
        };
        both(&mut found);
        single(&mut found);
        both(&mut found);
        both(&mut found);
        found.push(bits(&draw(9)));
        single(&mut found);
        single(&mut found);
        assert_eq!(found, expected, "seed {seed}");
    }
}

/// A record and a clone of the optimizer count the replays, and go their own way from there.
#[test]
fn records_and_clones_count_the_replays() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = RocmDevice::default();
    let mut model = Some(Mlp::<B>::new(&device));
    let mut optimizer = AdamConfig::new().init();
    let x = images(0, &device);
    let mut step = |optimizer: &mut OptimizerAdaptor<Adam, Mlp<B>, B>| {
        let before = model.take().expect("put back below");
        let x: Tensor<B, 2> = x.clone().flatten(1, 2);
        let loss = before.second.forward(before.first.forward(x)).powf_scalar(2.0).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        model = Some(optimizer.step(0.01, before, grads));
        loss.inner()
    };
    step(&mut optimizer);
    let (graph, loss) = Graph::capture_after(&device, 0, || step(&mut optimizer)).unwrap();
    for _ in 0..9 {
        graph.replay().unwrap();
    }
    drop(loss);
    let mut others = [optimizer.clone(), AdamConfig::new().init().load_record(optimizer.to_record())];
    let next = |optimizer: &mut OptimizerAdaptor<Adam, Mlp<B>, B>, model: Mlp<B>| {
        let loss = model.second.weight.val().powf_scalar(3.0).sum() + model.first.weight.val().sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let mut bits = Bits::default();
        optimizer.step(0.01, model, grads).visit(&mut bits);
        bits.0
    };
    let trained = model.expect("put back");
    // The clones step first, so that a shared clock would show.
    let found = others.each_mut().map(|other| next(other, trained.clone()));
    let expected = next(&mut optimizer, trained);
    assert_eq!(found, [expected.clone(), expected]);
}

/// The same in lockstep. With waves of 64, small ops are deferred as on a GPU.
mod lockstep {
    use burn_rocm_tests::lockstep::whole_program;

    #[test]
    fn wave_32() {
        whole_program(32);
    }

    #[test]
    fn wave_64() {
        whole_program(64);
    }
}

/// It would be dequantised, and the copy written.
#[test]
fn a_quantised_target_is_refused() {
    let ones = Tensor::<Inner, 2>::ones([32, 32], &RocmDevice::default());
    let target = ones.clone().quantize_dynamic(&burn::tensor::quantization::QuantScheme::default());
    let written = graph::write(&target, ones * 2.0);
    assert!(matches!(written, Err(RocmError::Invalid { op: "graph::write", .. })), "{written:?}");
}
