//! Times attention by tiled kernels and by products, forward and backward. `AttentionPath::Auto` is
//! based on these times.
//!
//! `attention_paths [ROUNDS]` prints a row for each size and dtype: milliseconds, the median of
//! ROUNDS (default 5) rounds by device events.

mod draws;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, DType};
use burn_rocm::fused::{AttentionDropout, AttentionOptions, AttentionPath, attention, attention_backward};
use burn_rocm::{Rocm, RocmTensor};

/// Batch, heads, sequence, features, and the probability of dropout. The first row is the benches'
/// transformer; the others have longer and shorter sequences.
const SIZES: &[([usize; 4], f64)] = &[
    ([16, 12, 512, 64], 0.0),
    ([16, 12, 512, 64], 0.1),
    ([64, 12, 128, 64], 0.0),
    ([4, 12, 2048, 64], 0.0),
    ([1, 12, 8192, 64], 0.0),
    ([8, 8, 1024, 128], 0.0),
];

/// A tensor in the layout of a linear layer's output: `[batch, sequence, heads, features]` seen as
/// `[batch, heads, sequence, features]`.
fn heads([batch, heads, sequence, features]: [usize; 4], dtype: DType) -> RocmTensor {
    let tensor = draws::drawn(&[batch, sequence, heads, features], dtype);
    <Rocm as FloatTensorOps<Rocm>>::float_swap_dims(tensor, 1, 2)
}

/// The median milliseconds of one call.
fn median(rounds: usize, mut body: impl FnMut()) -> hip::Result<f64> {
    let device = hip::Device::get(0)?;
    body(); // compiles and fills the pool
    let mut times = Vec::new();
    for _ in 0..rounds.max(1) {
        let (before, after) = (device.timing_event()?, device.timing_event()?);
        device.compute_stream().record(&before)?;
        body();
        device.compute_stream().record(&after)?;
        after.synchronize()?;
        times.push(f64::from(after.elapsed_since(&before)?));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> hip::Result<()> {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    draws::seed();
    println!(
        "| batch, heads, sequence, features | dropout | dtype | path | forward, ms | backward, ms \
         | TFLOP/s of 12 s^2 f |"
    );
    println!("|---|---|---|---|---|---|---|");
    for dtype in [DType::F32, DType::BF16] {
        for &(sizes, prob) in SIZES {
            let [q, k, v, grad] = std::array::from_fn(|_| heads(sizes, dtype));
            for path in [AttentionPath::Composed, AttentionPath::Tiled] {
                let dropout = (prob > 0.0).then(|| AttentionDropout::draw(&Default::default(), prob));
                let options = AttentionOptions { dropout, path, ..AttentionOptions::default() };
                let run = || attention(q.clone(), k.clone(), v.clone(), None, &options);
                let kept = run()?.kept;
                let forward = median(rounds, || drop(run().expect("it ran before")))?;
                let inputs = || [q.clone(), k.clone(), v.clone()];
                let back =
                    || attention_backward(inputs(), None, kept.clone(), grad.clone(), &options, [true; 3]);
                back()?;
                let backward = median(rounds, || drop(back().expect("it ran before")))?;
                let [batch, heads, sequence, features] = sizes.map(|n| n as f64);
                let rate = 12.0 * batch * heads * sequence * sequence * features / (forward + backward) / 1e9;
                println!(
                    "| {sizes:?} | {prob} | {} | {path:?} | {forward:.3} | {backward:.3} | {rate:.3} |",
                    dtype.name()
                );
            }
        }
    }
    <Rocm as Backend>::sync(&Default::default()).expect("the device has no error");
    Ok(())
}
