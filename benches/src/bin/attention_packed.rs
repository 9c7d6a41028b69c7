//! Times attention of packed sequences beside the same sequences padded to the longest, heads of 32
//! features, masks and dropout. `benches/peers/torch_attention.py` times the same cases with PyTorch's
//! FlashAttention-2.
//!
//! `attention_packed [ROUNDS [SHRINK]]` prints a row for each case and dtype: device milliseconds of a
//! call forward, and forward and backward. A figure is the median of ROUNDS (default 9) replays of a
//! graph of ten calls. SHRINK divides the lengths, so that the program can be tried on any device.

mod draws;
mod replays;

use burn_backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn_backend::{DType, TensorData};
use burn_rocm::fused::{
    AttentionDropout, AttentionOptions, PackedOffsets, attention, attention_backward, attention_packed,
    attention_packed_backward,
};
use burn_rocm::graph::Graph;
use burn_rocm::{Rocm, RocmDevice, RocmError, RocmTensor};
use draws::drawn;

/// How often a graph calls attention.
const CALLS: usize = 10;

/// Sequences and heads.
struct Case {
    name: &'static str,
    lengths: Vec<usize>,
    heads: usize,
    key_heads: usize,
    features: usize,
}

fn cases(shrink: usize) -> Vec<Case> {
    let case = |name, lengths: Vec<usize>, [heads, key_heads, features]: [usize; 3]| {
        let lengths = lengths.into_iter().map(|length| length.div_ceil(shrink)).collect();
        Case { name, lengths, heads, key_heads, features }
    };
    // Lengths like those of texts in tokens: most are short.
    let mixed: Vec<usize> = (0..64).map(|at| 16 + (at * at * 389) % 1009).collect();
    let uneven: Vec<usize> = [8192].into_iter().chain([128; 63]).collect();
    vec![
        case("4 of 2048", vec![2048; 4], [12, 12, 64]),
        case("4 of 2048, heads of 32", vec![2048; 4], [12, 12, 32]),
        case("4 of 2048, heads of 128", vec![2048; 4], [12, 12, 128]),
        case("64 of 16 to 1024", mixed.clone(), [12, 12, 64]),
        case("64 of 16 to 1024, 4 heads of keys", mixed, [12, 4, 64]),
        case("one of 8192, 63 of 128", uneven, [12, 12, 64]),
    ]
}

/// `[batch, heads, rows, features]` of a tensor that lies as `[batch, rows, heads, features]`.
fn padded([batch, rows, heads, features]: [usize; 4], dtype: DType) -> RocmTensor {
    <Rocm as FloatTensorOps<Rocm>>::float_swap_dims(drawn(&[batch, rows, heads, features], dtype), 1, 2)
}

/// The median milliseconds of a call.
fn median(rounds: usize, mut body: impl FnMut()) -> Result<f64, RocmError> {
    let (graph, ()) = Graph::capture(&RocmDevice::default(), || (0..CALLS).for_each(|_| body()))?;
    Ok(replays::median(&graph, rounds)? / CALLS as f64)
}

/// Prints a row of a case: forward, and forward and backward.
fn row(
    rounds: usize,
    name: &str,
    dtype: DType,
    forward: impl Fn() -> Vec<RocmTensor>,
    backward: impl Fn(Vec<RocmTensor>),
) -> Result<(), RocmError> {
    let alone = median(rounds, || drop(forward()))?;
    let both = median(rounds, || backward(forward()))?;
    println!("| {name} | {} | {alone:.3} | {both:.3} |", dtype.name());
    Ok(())
}

fn main() -> Result<(), RocmError> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().ok());
    let rounds = arguments.next().flatten().unwrap_or(9);
    let shrink = arguments.next().flatten().unwrap_or(1).max(1);
    draws::seed();
    println!("| case | dtype | forward, ms | forward and backward, ms |");
    println!("|---|---|---:|---:|");
    for dtype in [DType::BF16, DType::F32] {
        for case in cases(shrink) {
            let Case { lengths, heads, key_heads, features, .. } = &case;
            let (rows, longest) = (lengths.iter().sum(), lengths.iter().copied().max().unwrap_or(0));
            let [heads, key_heads, features, batch] = [*heads, *key_heads, *features, lengths.len()];
            let ends = lengths.iter().scan(0, |sum, &length| {
                *sum += length as i32;
                Some(*sum)
            });
            let offsets: Vec<i32> = [0].into_iter().chain(ends).collect();
            let offsets = TensorData::new(offsets, [batch + 1]);
            let offsets = PackedOffsets::from(<Rocm as IntTensorOps<Rocm>>::int_from_data(
                offsets,
                &Default::default(),
            ));
            for causal in [false, true] {
                let options = AttentionOptions { causal, ..AttentionOptions::default() };
                let kind = if causal { ", causal" } else { "" };
                {
                    let [q, grad] = [(); 2].map(|()| drawn(&[rows, heads, features], dtype));
                    let [k, v] = [(); 2].map(|()| drawn(&[rows, key_heads, features], dtype));
                    let forward = || {
                        let (q, k, v) = (q.clone(), k.clone(), v.clone());
                        attention_packed(q, k, v, &offsets, &options).expect("packed attention").kept
                    };
                    let backward = |kept| {
                        let inputs = [q.clone(), k.clone(), v.clone()];
                        let grads = attention_packed_backward(
                            inputs,
                            &offsets,
                            kept,
                            grad.clone(),
                            &options,
                            [true; 3],
                        );
                        drop(grads.expect("its gradient"));
                    };
                    row(rounds, &format!("{}{kind}: packed", case.name), dtype, forward, backward)?;
                }
                let [q, grad] = [(); 2].map(|()| padded([batch, longest, heads, features], dtype));
                let [k, v] = [(); 2].map(|()| padded([batch, longest, key_heads, features], dtype));
                // The mask that an application with padding would pass.
                let hidden: Vec<bool> =
                    lengths.iter().flat_map(|&length| (0..longest).map(move |key| key >= length)).collect();
                let hidden = TensorData::new(hidden, [batch, 1, 1, longest]);
                let mask = <Rocm as BoolTensorOps<Rocm>>::bool_from_data(hidden, &Default::default());
                let dropout = AttentionDropout { prob: 0.1, seed: 1, call: 1 };
                let ways = [("padded", None, None), ("padded, mask", Some(mask), None)]
                    .into_iter()
                    .chain((dtype == DType::BF16).then_some(("padded, dropout", None, Some(dropout))));
                for (way, mask, dropout) in ways {
                    let options = AttentionOptions { dropout, ..options };
                    let forward = || {
                        let (q, k, v) = (q.clone(), k.clone(), v.clone());
                        attention(q, k, v, mask.clone(), &options).expect("attention").kept
                    };
                    let backward = |kept| {
                        let inputs = [q.clone(), k.clone(), v.clone()];
                        let grads =
                            attention_backward(inputs, mask.clone(), kept, grad.clone(), &options, [true; 3]);
                        drop(grads.expect("its gradient"));
                    };
                    row(rounds, &format!("{}{kind}: {way}", case.name), dtype, forward, backward)?;
                }
            }
        }
    }
    Ok(())
}
