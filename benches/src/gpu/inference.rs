//! Inference of ResNet-50 and BERT base, with Burn's modules and with burn-rocm-nn's: call by call
//! and replayed from a graph.

use burn::tensor::FloatDType;
use burn_rocm::Rocm;
use burn_rocm::graph::{Graph, WARM_UPS};

use super::cases::{Bar, Case, FUSED, GRAPH, Group, Timed, Work};
use super::models::{Scored, cast, fill, fused, stock};
use crate::{Options, Precision};

/// How a row computes.
#[derive(Clone, Copy)]
struct How {
    precision: Precision,
    graph: bool,
    suffix: &'static str,
}

/// The bars (required times) in seconds of ResNet-50 and of BERT base with stock modules, at a
/// batch of 16; 0 is none.
fn bars(how: How) -> [f64; 2] {
    match (how.precision, how.graph) {
        _ if how.suffix == FUSED => [0.0; 2],
        (Precision::F32, false) => [5.5e-3, 10.5e-3],
        (Precision::Bf16, false) => [2.5e-3, 2.6e-3],
        (Precision::Bf16, true) => [1.4e-3, 1.9e-3],
        _ => [0.0; 2],
    }
}

/// The rows.
pub(crate) fn cases(options: &Options) -> Vec<Case<Rocm>> {
    let size = if options.shrink > 1 { 1 } else { 16 };
    let mut all = Vec::new();
    for &precision in &options.precision {
        for graph in [false, true].into_iter().filter(|&graph| options.graph || !graph) {
            for suffix in ["", FUSED] {
                let how = How { precision, graph, suffix };
                let [resnet, bert] = bars(how);
                if suffix.is_empty() {
                    all.push(case::<stock::ResNet50<Rocm>>("ResNet-50", size, how, resnet));
                    all.push(case::<stock::Bert<Rocm>>("BERT base", size, how, bert));
                } else {
                    all.push(case::<fused::ResNet50<Rocm>>("ResNet-50", size, how, resnet));
                    all.push(case::<fused::Bert<Rocm>>("BERT base", size, how, bert));
                }
            }
        }
    }
    all.retain(|case| options.names(&case.name));
    all
}

fn case<M>(model: &str, size: usize, how: How, bar: f64) -> Case<Rocm>
where
    M: Scored<Rocm> + 'static,
    M::Batch: 'static,
{
    let precision = how.precision.suffix();
    let graph = if how.graph { GRAPH } else { "" };
    Case {
        group: Group::Inference,
        name: format!("{model} inference, batch {size}{precision}{}{graph}", how.suffix),
        work: Work::Step,
        bar: if bar > 0.0 { Bar::Seconds(bar) } else { Bar::None },
        make: Box::new(move |device| timed::<M>(size, how, device)),
    }
}

/// Computes the model's scores of a batch at each call. With a graph, the first calls run op by op,
/// the next call captures, and later calls replay.
fn timed<M>(size: usize, how: How, device: &burn_rocm::RocmDevice) -> Timed
where
    M: Scored<Rocm> + 'static,
    M::Batch: 'static,
{
    let dtype = match how.precision {
        Precision::F32 => FloatDType::F32,
        Precision::Bf16 => FloatDType::BF16,
        Precision::F16 => FloatDType::F16,
    };
    let model = cast::<Rocm, M>(fill::<Rocm, M>(M::new(device)), dtype);
    let batch = M::cast(M::batch(size, device), dtype);
    let device = device.clone();
    let mut scores = move || model.scores(batch.clone());
    let (mut calls, mut graph, mut last) = (0, None, None);
    let body = move || {
        calls += 1;
        if !how.graph || calls <= WARM_UPS {
            // Held until the next call, because a deferred op whose result nobody holds stores
            // nothing.
            drop(last.replace(scores()));
            return;
        }
        let (graph, _) = graph.get_or_insert_with(|| {
            Graph::capture_after(&device, 0, &mut scores).expect("the call is captured")
        });
        graph.replay().expect("a replay");
    };
    Timed { body: Box::new(body), losses: None }
}
