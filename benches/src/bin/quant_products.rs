//! Times products with quantised weights beside a copy of device memory.
//!
//! `quant_products [ROUNDS [LARGEST]]` prints a row for each weight of at most LARGEST (default
//! 2^29) elements and each number of rows: the median microseconds of ROUNDS (default 20) rounds,
//! the weight's bytes a second, and their share of the bytes that a copy reads and writes a second.
//! Each round goes through copies of the weight that exceed the caches, as one graph where the
//! device has graphs. docs/decisions/048-quantised-weights.md has predictions.

use std::time::Instant;

use burn::tensor::{DType, Distribution, Tensor, TensorPrimitive};
use burn_rocm::fused::{QuantWeight, quant_linear};
use burn_rocm::graph::Graph;
use burn_rocm::{Rocm, RocmDevice, RocmError, RocmTensor};
use burn_rocm_nn::language::quant::{RoundTo, round_to_nearest};

/// The bytes that the copies of a weight have together, at least: more than any cache.
const COLD: usize = 320 << 20;

fn primitive<const D: usize>(tensor: Tensor<Rocm, D>) -> RocmTensor {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => tensor,
        TensorPrimitive::QFloat(_) => unreachable!("no tensor here is one of Burn's quantised tensors"),
    }
}

/// The median seconds of `body`, which runs as a graph if the device has graphs.
fn median(device: &RocmDevice, rounds: usize, mut body: impl FnMut()) -> Result<f64, RocmError> {
    body();
    let graph = match Graph::capture(device, &mut body) {
        Ok((graph, ())) => Some(graph),
        Err(RocmError::Unsupported { .. }) => None,
        Err(error) => return Err(error),
    };
    let mut run = || match &graph {
        Some(graph) => graph.replay(),
        None => {
            body();
            Ok(())
        }
    };
    run()?;
    let hip = hip::Device::get(device.index)?;
    let mut times = Vec::new();
    for _ in 0..rounds.max(1) {
        let (before, after) = (hip.timing_event()?, hip.timing_event()?);
        hip.sync()?;
        let start = Instant::now();
        hip.compute_stream().record(&before)?;
        run()?;
        hip.compute_stream().record(&after)?;
        after.synchronize()?;
        times.push(match hip.block_threads() {
            1 => start.elapsed().as_secs_f64(),
            _ => f64::from(after.elapsed_since(&before)?) * 1e-3,
        });
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Bytes that a copy reads and writes in a second.
fn copy(device: &RocmDevice, rounds: usize) -> Result<f64, RocmError> {
    const ELEMENTS: usize = 64 << 20;
    let x = Tensor::<Rocm, 1>::zeros([ELEMENTS], (device, DType::F32));
    let seconds = median(device, rounds, || drop(x.clone().mul_scalar(2.0)))?;
    Ok(8.0 * ELEMENTS as f64 / seconds)
}

fn main() -> Result<(), RocmError> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().ok());
    let rounds = arguments.next().flatten().unwrap_or(20);
    let largest = arguments.next().flatten().unwrap_or(1 << 29);
    let device = RocmDevice::default();
    let copied = copy(&device, rounds)?;
    println!("a copy moves {:.0} GB/s\n", copied * 1e-9);
    println!("| weight | type | rows | us | GB/s of weights | share of a copy |");
    println!("|---|---|---:|---:|---:|---:|");
    for [outs, inputs] in [[2048, 2048], [8192, 2048], [2048, 8192], [8192, 8192], [128_256, 2048]] {
        if outs * inputs > largest {
            continue;
        }
        // One drawn row for all, which the formats don't tell from others.
        let row = Tensor::<Rocm, 1>::random([inputs], Distribution::Normal(0.0, 0.02), &device);
        let row = row.into_data().to_vec::<f32>().unwrap_or_default();
        let weights = row.repeat(outs);
        for to in [RoundTo::Int4, RoundTo::Int8] {
            let parts = round_to_nearest(&weights, [outs, inputs], to)?;
            let count = COLD.div_ceil(parts.bytes());
            let copies = (0..count).map(|_| QuantWeight::upload(&parts, &device));
            let copies = copies.collect::<Result<Vec<_>, _>>()?;
            for rows in [1, 4, 16, 64] {
                let shape = [rows, inputs];
                let x = Tensor::<Rocm, 2>::random(shape, Distribution::Default, (&device, DType::BF16));
                let x = primitive(x);
                let mut failed = None;
                let seconds = median(&device, rounds, || {
                    for weight in &copies {
                        failed = quant_linear(x.clone(), weight, None).err().or(failed.take());
                    }
                })?;
                if let Some(error) = failed {
                    return Err(error);
                }
                let seconds = seconds / count as f64;
                let rate = parts.bytes() as f64 / seconds;
                println!(
                    "| {outs} x {inputs} | {to:?} | {rows} | {:.2} | {:.0} | {:.2} |",
                    seconds * 1e6,
                    rate * 1e-9,
                    rate / copied
                );
            }
        }
    }
    Ok(())
}
