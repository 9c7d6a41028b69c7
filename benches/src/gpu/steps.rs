//! Training steps of burn-rocm-nn's modules and optimizers: one by one and replayed from a graph, in
//! f32 and in mixed precision.

use std::cell::RefCell;
use std::rc::Rc;

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::{FloatDType, Tensor};
use burn_rocm::Rocm;
use burn_rocm::graph::{Graph, WARM_UPS};
use burn_rocm_nn::amp::{GradScalerConfig, Precision as Amp};
use burn_rocm_nn::optim::AdamConfig;

use super::cases::{Bar, Case, FUSED, GRAPH, Group, LEARNING_RATE, STEPS, Timed, Work};
use super::models::fused::{Cnn, Mlp, ResNet18, Transformer};
use super::models::{Trained, fill};
use crate::{Options, Precision};

type B = Autodiff<Rocm>;

/// How a row takes its steps.
#[derive(Clone, Copy)]
struct How {
    precision: Precision,
    graph: bool,
}

/// The bars of batches of 64, 512 and 4096 of the MLP and of the CNN, of ResNet-18 and of the
/// transformer. f16 may take 5 % longer than bf16 takes in the same run.
fn bars(how: How) -> [Bar; 8] {
    let seconds = match (how.precision, how.graph) {
        (Precision::F32, false) => [0.35e-3, 0.35e-3, 0.45e-3, 0.7e-3, 1.8e-3, 13e-3, 23e-3, 36e-3],
        (Precision::F32, true) => [0.12e-3, 0.0, 0.0, 0.25e-3, 0.0, 0.0, 0.0, 0.0],
        (Precision::Bf16, true) => [0.10e-3, 0.0, 0.15e-3, 0.20e-3, 0.80e-3, 4.4e-3, 5.0e-3, 4.6e-3],
        (Precision::F16, true) => return [Bar::OfBf16(1.05); 8],
        (_, false) => [0.0; 8],
    };
    seconds.map(|most| if most > 0.0 { Bar::Seconds(most) } else { Bar::None })
}

/// The rows. Those of one model in all float types are neighbours, because they are compared, and a
/// GPU's clock changes in the course of a run.
pub(crate) fn cases(options: &Options) -> Vec<Case<Rocm>> {
    let mut all = Vec::new();
    for graph in [false, true] {
        if graph && !options.graph {
            continue;
        }
        let of = |&precision: &Precision| rows(How { precision, graph }, options.shrink > 1).into_iter();
        let mut lists: Vec<_> = options.precision.iter().map(of).collect();
        loop {
            let neighbours: Vec<_> = lists.iter_mut().filter_map(Iterator::next).collect();
            if neighbours.is_empty() {
                break;
            }
            all.extend(neighbours);
        }
    }
    all.retain(|case| options.names(&case.name));
    all
}

/// A row of each model.
fn rows(how: How, small: bool) -> Vec<Case<Rocm>> {
    let mut all = Vec::new();
    let [mlp_64, mlp_512, mlp_4096, cnn_64, cnn_512, cnn_4096, resnet, transformer] = bars(how);
    let (images, sequences) = if small { (1, 1) } else { (64, 16) };
    let kept = if small { 1 } else { 3 };
    for (size, bar) in [(64, mlp_64), (512, mlp_512), (4096, mlp_4096)].into_iter().take(kept) {
        all.push(case::<Mlp<B>>("MLP", size, how, bar));
    }
    for (size, bar) in [(64, cnn_64), (512, cnn_512), (4096, cnn_4096)].into_iter().take(kept) {
        all.push(case::<Cnn<B>>("CNN", size, how, bar));
    }
    all.push(case::<ResNet18<B>>("ResNet-18", images, how, resnet));
    all.push(case::<Transformer<B>>("transformer", sequences, how, transformer));
    all
}

fn case<M>(model: &str, size: usize, how: How, bar: Bar) -> Case<Rocm>
where
    M: Trained<B> + AutodiffModule<B> + 'static,
    M::Batch: 'static,
{
    let precision = how.precision.suffix();
    let graph = if how.graph { GRAPH } else { "" };
    Case {
        group: Group::Train,
        name: format!("{model} Adam step, batch {size}{precision}{FUSED}{graph}"),
        work: Work::Step,
        bar,
        make: Box::new(move |device| timed::<M>(size, how, device)),
    }
}

/// A step and the losses before each of the first ones. With a graph, the first steps run one by
/// one, the next captures, and all others are replays.
fn timed<M>(size: usize, how: How, device: &burn_rocm::RocmDevice) -> Timed
where
    M: Trained<B> + AutodiffModule<B> + 'static,
    M::Batch: 'static,
{
    let losses: Rc<RefCell<Vec<Tensor<Rocm, 1>>>> = Rc::default();
    let (seen, device) = (losses.clone(), device.clone());
    let keep = move |loss: Tensor<Rocm, 1>| {
        if seen.borrow().len() <= STEPS {
            seen.borrow_mut().push(loss);
        }
    };
    let mut step = step::<M>(size, how.precision, &device);
    let mut steps = 0;
    let mut graph: Option<(Graph, Tensor<Rocm, 1>)> = None;
    let body = move || {
        steps += 1;
        if !how.graph || steps <= WARM_UPS {
            return keep(step());
        }
        let (graph, loss) = graph.get_or_insert_with(|| {
            Graph::capture_after(&device, 0, &mut step).expect("the step is captured")
        });
        graph.replay().expect("a replay");
        if steps <= STEPS + 1 {
            // The next replay overwrites the loss.
            keep(loss.clone() + 0.0);
        }
    };
    let first = move || -> Option<Vec<f64>> {
        let losses = losses.borrow();
        let all: &[Tensor<Rocm, 1>] = losses.get(..=STEPS)?;
        all.iter().map(|loss| loss.to_data().iter::<f64>().next()).collect()
    };
    Timed { body: Box::new(body), losses: Some(Box::new(first)) }
}

/// One training step, which returns the loss before it.
fn step<M>(
    size: usize,
    precision: Precision,
    device: &burn_rocm::RocmDevice,
) -> impl FnMut() -> Tensor<Rocm, 1> + use<M>
where
    M: Trained<B> + AutodiffModule<B> + 'static,
    M::Batch: 'static,
{
    let half = match precision {
        Precision::F32 => None,
        Precision::Bf16 => Some(FloatDType::BF16),
        Precision::F16 => Some(FloatDType::F16),
    };
    let batch = M::batch(size, device);
    let mut state = Some(fill::<B, M>(M::new(device)));
    let mut optimizer = AdamConfig::new().init();
    let mut scaler = GradScalerConfig::new().init();
    move || {
        let model = state.take().expect("put back below");
        let Some(half) = half else {
            let loss = model.loss(batch.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            state = Some(optimizer.step(LEARNING_RATE, model, gradients));
            return loss.inner();
        };
        let narrow = Amp::new(half).convert(&model);
        let loss = narrow.loss(M::cast(batch.clone(), half)).cast(FloatDType::F32);
        // bf16 has the range of f32.
        let scaled = if half == FloatDType::F16 { scaler.scale(loss.clone()) } else { loss.clone() };
        let gradients = GradientsParams::from_grads(scaled.backward(), &narrow);
        // It shares the parameters that stay f32, which the step writes in place.
        drop(narrow);
        state = Some(match half {
            FloatDType::F16 => scaler.step(&mut optimizer, LEARNING_RATE, model, gradients),
            _ => optimizer.step(LEARNING_RATE, model, gradients),
        });
        loss.inner()
    }
}
