//! Times the ops of a language model's layer, forward and backward, beside a copy of as many bytes.
//!
//! `language_layers [ROUNDS [SHRINK]]` prints a row for each op, shape and dtype: device
//! microseconds of a call, the bytes that it must move, its bandwidth, and that bandwidth as a
//! share of the copy's. A figure is the median of ROUNDS (default 9) replays of a graph of at least
//! ten calls. The calls use several sets of operands in turn, which together exceed the caches of a GPU,
//! except with one token. SHRINK divides the number of tokens, so that the program can be tried on any
//! device. The shapes are those of Llama 3.2 1B and Llama 3.1 8B.

mod draws;
mod replays;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType, TensorData};
use burn_rocm::fused::{
    Gate, RmsOptions, Rotary, RotaryPositions, copied, gated_halves, gated_halves_backward, residual_norm,
    residual_norm_backward, rotary, rotary_backward, rotary_heads,
};
use burn_rocm::graph::Graph;
use burn_rocm::{Rocm, RocmDevice, RocmError};
use draws::drawn;

/// How often a graph calls an op, at least.
const CALLS: usize = 10;
/// A row has so many sets of operands that calls with all of them move at least this many bytes.
const SPREAD: usize = 512 << 20;
/// But it has at most this many sets.
const SETS: usize = 64;

/// The median microseconds of a call. The calls get these sets of operands in turn.
fn median<T>(
    rounds: usize,
    sets: &[T],
    body: impl Fn(&T) -> Result<(), RocmError>,
) -> Result<f64, RocmError> {
    let calls = sets.len().max(CALLS);
    let each = || sets.iter().cycle().take(calls).try_for_each(&body);
    let (graph, done) = Graph::capture(&RocmDevice::default(), each)?;
    done?;
    Ok(replays::median(&graph, rounds)? * 1e3 / calls as f64)
}

/// What rows have in common.
struct Table {
    rounds: usize,
}

impl Table {
    /// `bytes` are those that a call must move, and `make` makes the operands of a call.
    fn row<T>(
        &self,
        name: &str,
        dtype: DType,
        bytes: usize,
        make: impl Fn() -> T,
        body: impl Fn(&T) -> Result<(), RocmError>,
    ) -> Result<(), RocmError> {
        let count = SPREAD.div_ceil(bytes.max(1)).clamp(1, SETS);
        let sets: Vec<T> = (0..count).map(|_| make()).collect();
        let time = median(self.rounds, &sets, body)?;
        drop(sets);
        // A copy reads half of the bytes and writes the other half.
        let elements = (bytes / 2 / dtype.size()).max(1);
        let sources: Vec<_> = (0..count).map(|_| drawn(&[elements], dtype)).collect();
        let copy = median(self.rounds, &sources, |source| copied(source).map(drop))?;
        let name = format!("{name} | {}", dtype.name());
        let (bandwidth, share) = (bytes as f64 / time / 1e3, copy / time);
        println!("| {name} | {:.1} | {time:.1} | {bandwidth:.0} | {share:.2} |", bytes as f64 / 1e6);
        Ok(())
    }
}

fn main() -> Result<(), RocmError> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().ok());
    let rounds = arguments.next().flatten().unwrap_or(9);
    let shrink: usize = arguments.next().flatten().unwrap_or(1).max(1);
    let table = Table { rounds };
    draws::seed();
    println!("| op | dtype | MB | us | GB/s | share of a copy |");
    println!("|---|---|---:|---:|---:|---:|");
    for dtype in [DType::BF16, DType::F32] {
        for (tokens, width, [heads, kv_heads, head_dim], inner) in [
            (4096usize.div_ceil(shrink), 4096, [32, 8, 128], 14_336),
            (8192usize.div_ceil(shrink), 2048, [32, 8, 64], 8192),
            (1, 2048, [32, 8, 64], 8192),
        ] {
            let (size, of) = (dtype.size(), |op: &str| format!("{op}, {tokens} tokens of {width}"));
            let options = RmsOptions { epsilon: 1e-5, shift: 0.0 };
            let weight = drawn(&[width], dtype);
            let (whole, one) = (tokens * width * size, width * size);
            let pair = || [(); 2].map(|()| drawn(&[tokens, width], dtype));
            table.row(&of("residual sum and norm"), dtype, 4 * whole + one, pair, |[x, residual]| {
                let (x, residual) = (x.clone(), residual.clone());
                residual_norm(x, Some(residual), None, Some(weight.clone()), options).map(drop)
            })?;
            // The weight is read, and its gradient written.
            table.row(&of("its gradient"), dtype, 3 * whole + 2 * one, pair, |[x, grad]| {
                let (x, grad) = (x.clone(), grad.clone());
                residual_norm_backward(x, weight.clone(), grad, None, options, true).map(drop)
            })?;

            let shape = [1, tokens, (heads + 2 * kv_heads) * head_dim];
            let row = tokens * head_dim * size;
            let frequencies: Vec<f32> =
                (0..head_dim / 2).map(|p| 500_000f32.powf(-2.0 * p as f32 / head_dim as f32)).collect();
            let frequencies = TensorData::new(frequencies, [head_dim / 2]);
            let options = Rotary {
                heads,
                kv_heads,
                frequencies: <Rocm as FloatTensorOps<Rocm>>::float_from_data(
                    frequencies,
                    &Default::default(),
                ),
                factor: 1.0,
                interleaved: false,
                positions: RotaryPositions::FromZero,
                norms: options,
            };
            let all = (heads + 2 * kv_heads) * row;
            let norms = [(); 2].map(|()| drawn(&[head_dim], dtype));
            for norms in [None, Some(norms)] {
                let by_norms = norms.is_some();
                let name = if by_norms { "rotary embedding with norms" } else { "rotary embedding" };
                let weights = if by_norms { 2 * head_dim * size } else { 0 };
                // The input stays in use, so values are copied too.
                let packed = || drawn(&shape, dtype);
                table.row(&of(name), dtype, 2 * all + weights, packed, |packed| {
                    rotary(packed.clone(), norms.clone(), &options).map(drop)
                })?;
                let reads = if by_norms { (heads + kv_heads) * row } else { 0 };
                let bytes = 2 * all + reads + 2 * weights;
                // With norms the input is read too.
                let made = || (by_norms.then(packed), packed());
                table.row(&of(&format!("{name}: gradient")), dtype, bytes, made, |(x, grads)| {
                    let grads = rotary_heads(grads.clone(), heads, kv_heads)?.map(Some);
                    rotary_backward(x.clone(), norms.clone(), grads, shape, by_norms, &options).map(drop)
                })?;
            }

            let half = tokens * inner * size;
            let both = || drawn(&[tokens, 2 * inner], dtype);
            for (name, gate) in [("SwiGLU", Gate::Silu), ("GeGLU by tanh", Gate::GeluTanh)] {
                table.row(&of(&format!("{name} of {inner}")), dtype, 3 * half, both, |both| {
                    gated_halves(gate, both.clone()).map(drop)
                })?;
                let made = || (both(), drawn(&[tokens, inner], dtype));
                let name = format!("{name} of {inner}: gradient");
                table.row(&of(&name), dtype, 5 * half, made, |(both, grad)| {
                    gated_halves_backward(gate, both.clone(), grad.clone()).map(drop)
                })?;
            }
        }
    }
    Ok(())
}
