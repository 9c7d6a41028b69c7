//! Times products with quantised weights beside a copy of device memory.
//!
//! `quant_products [ROUNDS [LARGEST]]` prints a row for each weight of at most LARGEST (default
//! 2^29) elements and each number of rows: the median microseconds of ROUNDS (default 20) rounds,
//! the weight's bytes a second, and their share of the bytes that a copy reads and writes a second.
//! Each round goes through copies of the weight that exceed the caches, as one graph where the
//! device has graphs. docs/decisions/048-quantised-weights.md has predictions.
//!
//! A second table has products with fp8 weights and bf16 results, in us: by hipBLASLt called directly;
//! by `Fp8Weight::multiply` of inputs that are fp8 already, in turns with the direct call, with its rate as
//! a share of that call's; of bf16 inputs with a given scale and with the scale of their greatest magnitude;
//! and with the weight as floats. docs/decisions/057-fp8-products.md has predictions.

mod draws;

use std::cell::RefCell;
use std::time::Instant;

use burn::tensor::{DType, Distribution, Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::{Fp8Inputs, Fp8Tensor, Fp8Type, Fp8Weight, QuantWeight, quant_linear, upload};
use burn_rocm::graph::{self, Graph};
use burn_rocm::{Rocm, RocmDevice, RocmError, RocmTensor};
use burn_rocm_nn::language::quant::{RoundTo, round_to_nearest};
use hip::{Fp8, Fp8Product, LtAnswer, VectorView};

/// The bytes that the copies of a weight have together, at least: more than any cache.
const COLD: usize = 320 << 20;

fn primitive<const D: usize>(tensor: Tensor<Rocm, D>) -> RocmTensor {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => tensor,
        TensorPrimitive::QFloat(_) => unreachable!("no tensor here is one of Burn's quantised tensors"),
    }
}

/// The work of a round, as a graph if the device has graphs.
struct Work<'a> {
    graph: Option<Graph>,
    body: &'a mut dyn FnMut(),
}

impl<'a> Work<'a> {
    fn new(device: &RocmDevice, body: &'a mut dyn FnMut()) -> Result<Self, RocmError> {
        body();
        let graph = match Graph::capture(device, &mut *body) {
            Ok((graph, ())) => Some(graph),
            Err(RocmError::Unsupported { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut work = Self { graph, body };
        work.run()?;
        Ok(work)
    }

    fn run(&mut self) -> Result<(), RocmError> {
        match &self.graph {
            Some(graph) => graph.replay(),
            None => {
                (self.body)();
                Ok(())
            }
        }
    }

    /// The seconds of a round.
    fn time(&mut self, hip: &hip::Device) -> Result<f64, RocmError> {
        let (before, after) = (hip.timing_event()?, hip.timing_event()?);
        hip.sync()?;
        let start = Instant::now();
        hip.compute_stream().record(&before)?;
        self.run()?;
        hip.compute_stream().record(&after)?;
        after.synchronize()?;
        Ok(match hip.block_threads() {
            1 => start.elapsed().as_secs_f64(),
            _ => f64::from(after.elapsed_since(&before)?) * 1e-3,
        })
    }
}

/// The median seconds of one of `count` products in each of these ways, which take turns.
fn each<const N: usize>(
    device: &RocmDevice,
    rounds: usize,
    count: usize,
    ways: [&dyn Fn(usize) -> Result<(), RocmError>; N],
) -> Result<[f64; N], RocmError> {
    let failed = RefCell::new(None);
    let failed = &failed;
    let mut bodies = ways.map(|way| {
        move || {
            for at in 0..count {
                if let Err(error) = way(at) {
                    *failed.borrow_mut() = Some(error);
                }
            }
        }
    });
    let hip = hip::Device::get(device.index)?;
    let mut works = Vec::new();
    for body in &mut bodies {
        works.push(Work::new(device, body)?);
    }
    let mut times = [const { Vec::new() }; N];
    for _ in 0..rounds.max(1) {
        for (times, work) in times.iter_mut().zip(&mut works) {
            times.push(work.time(&hip)?);
        }
    }
    if let Some(error) = failed.take() {
        return Err(error);
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] / count as f64
    }))
}

/// Bytes that a copy reads and writes in a second.
fn copy(device: &RocmDevice, rounds: usize) -> Result<f64, RocmError> {
    const ELEMENTS: usize = 64 << 20;
    let [from, to] = [(); 2].map(|()| draws::drawn(&[ELEMENTS], DType::F32));
    let [seconds] = each(device, rounds, 1, [&|_| graph::write(&to, from.clone())])?;
    Ok(8.0 * ELEMENTS as f64 / seconds)
}

/// The sizes of weights: outputs and inputs.
const WEIGHTS: [[usize; 2]; 5] = [[2048, 2048], [8192, 2048], [2048, 8192], [8192, 8192], [128_256, 2048]];

/// Codes of random finite numbers of E4M3, which repeat after a prime number of codes.
fn codes(count: usize) -> Vec<u8> {
    const PERIOD: usize = 1_048_573;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as u8
    };
    let some: Vec<u8> = (0..PERIOD.min(count)).map(|_| random()).map(|code| code & 0xbf).collect();
    some.iter().copied().cycle().take(count).collect()
}

/// A buffer's elements.
fn whole(buffer: &hip::Buffer) -> VectorView<'_> {
    VectorView { buffer, offset: 0 }
}

/// The rows of fp8 for a weight.
fn fp8(device: &RocmDevice, rounds: usize, shape: [usize; 2]) -> Result<(), RocmError> {
    let ([outs, inputs], hip) = (shape, hip::Device::get(device.index)?);
    let bytes = codes(outs * inputs);
    let count = COLD.div_ceil(bytes.len());
    let weights = (0..count).map(|_| Fp8Weight::upload(Fp8Type::E4M3, shape, &bytes, &[1e-3], device));
    let weights = weights.collect::<Result<Vec<_>, _>>()?;
    let with = |inputs: Fp8Inputs| -> Result<Vec<_>, RocmError> {
        weights.iter().map(|weight| weight.clone().with_inputs(inputs)).collect()
    };
    let (scaled, dynamic) = (with(Fp8Inputs::Scale(0.01))?, with(Fp8Inputs::Dynamic)?);
    let raw = (0..count).map(|_| hip.upload(&bytes)).collect::<Result<Vec<_>, _>>()?;
    let factor = hip.upload(&1e-3f32.to_ne_bytes())?;
    for rows in [16, 64, 512, 4096] {
        let of_x = codes(rows * inputs);
        let (x_raw, out) = (hip.upload(&of_x)?, hip.alloc(2 * rows * outs)?);
        let direct = |at: usize| -> Result<(), RocmError> {
            let answer = hip.blas_lt_fp8()?.multiply_fp8(&Fp8Product {
                types: [Fp8::E4M3; 2],
                sizes: [rows, inputs, outs],
                x: whole(&x_raw),
                weight: whole(&raw[at]),
                scales: [whole(&factor); 2],
                dtype: hip::DType::BF16,
                out: whole(&out),
            })?;
            match answer {
                LtAnswer::Computed => Ok(()),
                other => {
                    let what = Some(format!("{other:?}"));
                    Err(RocmError::Unsupported { op: "hipBLASLt's product of fp8", dtype: None, what })
                }
            }
        };
        let x = upload(TensorData::new(of_x, [rows, inputs]), DType::U8, device)?;
        let scale = upload(TensorData::new(vec![1e-3f32], [1]), DType::F32, device)?;
        let x = Fp8Tensor::of_codes(Fp8Type::E4M3, x, scale)?;
        let ours = |at: usize| weights[at].multiply(&x, DType::BF16).map(drop);
        let [direct, ours] = each(device, rounds, count, [&direct, &ours])?;
        let x = Tensor::<Rocm, 2>::random([rows, inputs], Distribution::Default, (device, DType::BF16));
        let x = primitive(x);
        let of = |weights: &[Fp8Weight]| {
            each(device, rounds, count, [&|at| weights[at].linear(x.clone(), None).map(drop)])
        };
        let others =
            [of(&scaled)?, of(&dynamic)?, of(&weights)?].map(|[seconds]| format!("{:.2}", seconds * 1e6));
        let [direct_us, ours_us] = [direct, ours].map(|seconds| seconds * 1e6);
        println!(
            "| {outs} x {inputs} | {rows} | {direct_us:.2} | {ours_us:.2} | {:.3} | {} |",
            direct / ours,
            others.join(" | ")
        );
    }
    Ok(())
}

fn main() -> Result<(), RocmError> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().ok());
    let rounds = arguments.next().flatten().unwrap_or(20);
    let largest = arguments.next().flatten().unwrap_or(1 << 29);
    let device = RocmDevice::default();
    draws::seed();
    let copied = copy(&device, rounds)?;
    println!("a copy moves {:.0} GB/s\n", copied * 1e-9);
    println!("| weight | type | rows | us | GB/s of weights | share of a copy |");
    println!("|---|---|---:|---:|---:|---:|");
    for [outs, inputs] in WEIGHTS {
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
                let product = |at: usize| quant_linear(x.clone(), &copies[at], None).map(drop);
                let [seconds] = each(&device, rounds, count, [&product])?;
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
    println!(
        "\n| weight of E4M3 | rows | direct | inputs in fp8 | share | given scale | own scale | as floats |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for shape in WEIGHTS.into_iter().filter(|[outs, inputs]| outs * inputs <= largest) {
        fp8(&device, rounds, shape)?;
    }
    Ok(())
}
