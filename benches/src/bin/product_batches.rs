//! Times products of batches that are not equally spaced in memory, in three ways: as `matmul`
//! computes them, with one call for each batch, and with operands that are already packed (their
//! copy is not timed). `copied_a_call` in `hip/src/defaults.rs` is based on these times.
//!
//! `product_batches [ROUNDS]` prints a row for each size and dtype: the launches, and the median
//! microseconds of ROUNDS (default 20) rounds. A GPU is timed by device events, the CPU device by
//! the host's clock and a sync.
//!
//! These times were predicted for an H200 before the first run, from 4 us for a call, and 3 us and
//! 2 TB/s for a copy: the rotary embedding of a 512-token prompt takes 15 us instead of 130; six
//! products of attention take 60 us instead of 100 over 4 rows of 128 tokens, and 250 instead of
//! 800 over 32 rows; over 32 rows of 512 tokens in f32, where each call fills the device, the times
//! differ by at most 10 %.

mod draws;

use std::time::Instant;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType, Shape};
use burn_rocm::{Rocm, RocmTensor, trace};
use burn_std::Slice;
use draws::drawn;

type Ops = Rocm;

/// The layout of the heads of a linear layer's output: `[batch, sequence, heads, features]` seen as
/// `[batch, heads, sequence, features]`.
fn heads([batch, heads, sequence, features]: [usize; 4], dtype: DType) -> RocmTensor {
    swap(drawn(&[batch, sequence, heads, features], dtype), 1, 2)
}

fn swap(tensor: RocmTensor, a: usize, b: usize) -> RocmTensor {
    <Ops as FloatTensorOps<Ops>>::float_swap_dims(tensor, a, b)
}

/// The same values, packed.
fn packed(tensor: &RocmTensor) -> RocmTensor {
    let zero = burn_backend::Scalar::Float(0.0);
    <Ops as FloatTensorOps<Ops>>::float_add_scalar(tensor.clone(), zero)
}

fn matmul(a: &RocmTensor, b: &RocmTensor) -> RocmTensor {
    <Ops as FloatTensorOps<Ops>>::float_matmul(a.clone(), b.clone())
}

/// One product for each index of the first axis.
fn one_by_one(a: &RocmTensor, b: &RocmTensor) -> Vec<RocmTensor> {
    let row = |tensor: &RocmTensor, at: usize| {
        let at = at.min(tensor.dims()[0] - 1);
        <Ops as FloatTensorOps<Ops>>::float_slice(tensor.clone(), &[Slice::from(at..at + 1)])
    };
    (0..a.dims()[0]).map(|at| matmul(&row(a, at), &row(b, at))).collect()
}

/// The median microseconds of one call, and the number of its launches.
fn median(rounds: usize, mut body: impl FnMut()) -> hip::Result<(f64, u64)> {
    const CALLS: usize = 10;
    let device = hip::Device::get(0)?;
    let ((), counts) = trace::counting(&mut body); // compiles and fills the pool
    let mut times = Vec::new();
    for _ in 0..rounds.max(1) {
        let (before, after) = (device.timing_event()?, device.timing_event()?);
        device.sync()?;
        let start = Instant::now();
        device.compute_stream().record(&before)?;
        (0..CALLS).for_each(|_| body());
        device.compute_stream().record(&after)?;
        after.synchronize()?;
        let time = match device.block_threads() {
            1 => start.elapsed().as_secs_f64() * 1e6,
            _ => f64::from(after.elapsed_since(&before)?) * 1e3,
        };
        times.push(time / CALLS as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], counts.launches()))
}

fn row(rounds: usize, name: &str, dtype: DType, products: &[[RocmTensor; 2]]) -> hip::Result<()> {
    let (auto, launches) = median(rounds, || products.iter().for_each(|[a, b]| drop(matmul(a, b))))?;
    let (each, calls) = median(rounds, || products.iter().for_each(|[a, b]| drop(one_by_one(a, b))))?;
    let ahead: Vec<_> = products.iter().map(|sides| sides.each_ref().map(packed)).collect();
    let (bare, _) = median(rounds, || ahead.iter().for_each(|[a, b]| drop(matmul(a, b))))?;
    println!("| {name} | {} | {auto:.1} ({launches}) | {each:.1} ({calls}) | {bare:.1} |", dtype.name());
    Ok(())
}

fn main() -> hip::Result<()> {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(20);
    draws::seed();
    println!(
        "| products | dtype | matmul, us (launches) | a call a batch, us (launches) | packed before, us |"
    );
    println!("|---|---|---:|---:|---:|");
    for dtype in [DType::F32, DType::BF16] {
        for [count, sequence, features] in [[8, 6, 64], [32, 64, 64], [32, 512, 64], [8, 512, 128]] {
            let x = heads([1, count, sequence, features], dtype);
            let pairs = Shape::from([count, sequence, features / 2, 2]);
            let x = <Ops as FloatTensorOps<Ops>>::float_reshape(x, pairs);
            let name = format!("rotary embedding: {count} heads, {sequence} tokens, {features} features");
            row(rounds, &name, dtype, &[[x, drawn(&[1, 1, 2, 4], dtype)]])?;
        }
        for sizes in [
            [2, 12, 128, 64],
            [4, 12, 32, 64],
            [4, 12, 128, 64],
            [4, 12, 512, 64],
            [32, 12, 128, 64],
            [32, 12, 512, 64],
        ] {
            let [batch, count, sequence, _] = sizes;
            let [q, k, v, g] = std::array::from_fn(|_| heads(sizes, dtype));
            let w = drawn(&[batch, count, sequence, sequence], dtype);
            let turned = |tensor: &RocmTensor| swap(tensor.clone(), 2, 3);
            let products = [
                [q.clone(), turned(&k)],
                [w.clone(), v.clone()],
                [g.clone(), turned(&v)],
                [turned(&w), g],
                [w.clone(), k],
                [turned(&w), q],
            ];
            row(rounds, &format!("attention trained, six products: {sizes:?}"), dtype, &products)?;
        }
    }
    Ok(())
}
