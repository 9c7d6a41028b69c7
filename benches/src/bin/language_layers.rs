//! Times the ops of a language model's layer, forward and backward, beside a copy of as many bytes.
//!
//! `language_layers [ROUNDS [SHRINK]]` prints a row for each op, shape and dtype: device
//! microseconds of a call, the bytes that it must move, its bandwidth, and that bandwidth as a
//! share of the copy's. A figure is the median of ROUNDS (default 9) replays of a graph of ten
//! calls. SHRINK divides the number of tokens, so that the program can be tried on any device. The
//! shapes are those of Llama 3.2 1B and Llama 3.1 8B; with 4096 tokens, no tensor fits the L2 cache
//! of a large GPU.

mod replays;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType, Distribution, Shape, TensorData, TensorMetadata};
use burn_rocm::fused::{
    Gate, RmsOptions, Rotary, RotaryPositions, copied, gated_halves, gated_halves_backward, residual_norm,
    residual_norm_backward, rotary, rotary_backward, rotary_heads,
};
use burn_rocm::graph::Graph;
use burn_rocm::{Rocm, RocmDevice, RocmError, RocmTensor};

/// How often a graph calls an op.
const CALLS: usize = 10;

fn drawn(shape: &[usize], dtype: DType) -> RocmTensor {
    let uniform = Distribution::Uniform(-0.5, 0.5);
    let (shape, dtype) = (Shape::from(shape.to_vec()), dtype.into());
    <Rocm as FloatTensorOps<Rocm>>::float_random(shape, uniform, &Default::default(), dtype)
}

/// The median microseconds of a call.
fn median(rounds: usize, mut body: impl FnMut() -> Result<(), RocmError>) -> Result<f64, RocmError> {
    body()?;
    let (graph, done) = Graph::capture(&RocmDevice::default(), || (0..CALLS).try_for_each(|_| body()))?;
    done?;
    Ok(replays::median(&graph, rounds)? * 1e3 / CALLS as f64)
}

/// What rows have in common.
struct Table {
    rounds: usize,
}

impl Table {
    fn row(
        &self,
        name: &str,
        dtype: DType,
        bytes: usize,
        body: impl FnMut() -> Result<(), RocmError>,
    ) -> Result<(), RocmError> {
        let time = median(self.rounds, body)?;
        // A copy reads half of the bytes and writes the other half.
        let source = drawn(&[(bytes / 2 / dtype.size()).max(1)], dtype);
        let copy = median(self.rounds, || copied(&source).map(drop))?;
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
            let [x, residual] = [(); 2].map(|()| drawn(&[tokens, width], dtype));
            let weight = drawn(&[width], dtype);
            let whole = tokens * width * size;
            table.row(&of("residual sum and norm"), dtype, 4 * whole, || {
                let (x, residual) = (x.clone(), residual.clone());
                residual_norm(x, Some(residual), None, Some(weight.clone()), options).map(drop)
            })?;
            table.row(&of("its gradient"), dtype, 3 * whole, || {
                let (x, grad) = (x.clone(), residual.clone());
                residual_norm_backward(x, weight.clone(), grad, None, options, true).map(drop)
            })?;

            let packed = drawn(&[1, tokens, (heads + 2 * kv_heads) * head_dim], dtype);
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
                let name = if norms.is_some() { "rotary embedding with norms" } else { "rotary embedding" };
                // The input stays in use, so values are copied too.
                table.row(&of(name), dtype, 2 * all, || {
                    rotary(packed.clone(), norms.clone(), &options).map(drop)
                })?;
                let grads = rotary_heads(packed.clone(), heads, kv_heads)?;
                let shape = [1, tokens, packed.shape().dims::<3>()[2]];
                let reads = if norms.is_some() { (heads + kv_heads) * row } else { 0 };
                table.row(&of(&format!("{name}: gradient")), dtype, 2 * all + reads, || {
                    let grads = grads.clone().map(Some);
                    let x = norms.is_some().then(|| packed.clone());
                    let by_norms = norms.is_some();
                    rotary_backward(x, norms.clone(), grads, shape, by_norms, &options).map(drop)
                })?;
            }

            let (both, grad) = (drawn(&[tokens, 2 * inner], dtype), drawn(&[tokens, inner], dtype));
            let half = tokens * inner * size;
            for (name, gate) in [("SwiGLU", Gate::Silu), ("GeGLU by tanh", Gate::GeluTanh)] {
                table.row(&of(&format!("{name} of {inner}")), dtype, 3 * half, || {
                    gated_halves(gate, both.clone()).map(drop)
                })?;
                table.row(&of(&format!("{name} of {inner}: gradient")), dtype, 5 * half, || {
                    gated_halves_backward(gate, both.clone(), grad.clone()).map(drop)
                })?;
            }
        }
    }
    Ok(())
}
