//! Times attention of single tokens over a paged cache beside a copy, and the choice of tokens.
//!
//! `decode [ROUNDS [SHRINK]]` prints, for each case, microseconds of a call and the rate at which it
//! reads keys and values, as a part of a copy's rate. A call is one layer: heads of 128 features, 32
//! of queries and 8 of keys (Llama 3.1 8B; 3.2 1B has 64 features). Each call of a graph reads
//! another layer, together more than any cache of a GPU holds. A figure is the median of ROUNDS
//! (default 9) replays. SHRINK divides the sizes, so that the program can be tried on any device.
//! Attention is timed with the number of splits that the device gets, and with others. With
//! `BURN_ROCM_MATRIX_CORES=0` it runs on vector units.

mod draws;
mod replays;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{DType, TensorData};
use burn_rocm::fused::decode::{
    CacheType, DecodeOptions, PAGE, PagedBatch, PagedLayer, SampleState, SampleTables, Sampling, append,
    attention, sample,
};
use burn_rocm::graph::{self, Graph};
use burn_rocm::{Rocm, RocmDevice, RocmError};
use draws::drawn;

/// Bytes of keys and values that the calls of a graph read, at least.
const SPREAD: usize = 512 << 20;
/// The most layers of a graph.
const LAYERS: usize = 64;
/// Bytes of the copy.
const COPIED: usize = 1 << 30;

/// The median microseconds of one of `calls`.
fn median(
    rounds: usize,
    calls: usize,
    mut body: impl FnMut(usize) -> Result<(), RocmError>,
) -> Result<f64, RocmError> {
    let (graph, done) = Graph::capture(&RocmDevice::default(), || (0..calls).try_for_each(&mut body))?;
    done?;
    Ok(replays::median(&graph, rounds)? * 1e3 / calls as f64)
}

/// Bytes a second that a copy reads and writes together.
fn copy_rate(rounds: usize, shrink: usize) -> Result<f64, RocmError> {
    let len = COPIED / 4 / shrink;
    let (from, to) = (drawn(&[len], DType::F32), drawn(&[len], DType::F32));
    let us = median(rounds, 4, |_| graph::write(&to, from.clone()))?;
    Ok(2.0 * 4.0 * len as f64 / us * 1e6)
}

/// A case of attention.
struct Case {
    rows: usize,
    keys: usize,
    features: usize,
    dtype: DType,
    stored: CacheType,
}

fn attend(case: &Case, splits: &[usize], rounds: usize, copied: f64) -> Result<(), RocmError> {
    let Case { rows, keys, features, dtype, stored } = *case;
    let (heads, shared, device) = (32, 8, RocmDevice::default());
    let pages = keys.div_ceil(PAGE);
    let bytes = rows * keys * stored.bytes_of_token(shared, features);
    let count = SPREAD.div_ceil(bytes).clamp(1, LAYERS);
    let fill = PagedBatch::new(&device, rows, pages, keys)?;
    // The pages of a row lie apart, as a server's do.
    let tables: Vec<Vec<u32>> =
        (0..rows).map(|row| (0..pages).map(|page| (page * rows + row) as u32).collect()).collect();
    let bind = |batch: &PagedBatch, length, tokens| {
        batch.write(&tables.iter().map(|table| (table.as_slice(), length, tokens)).collect::<Vec<_>>())
    };
    bind(&fill, 0, keys)?;
    let given = [(); 2].map(|()| drawn(&[rows * keys, shared, features], dtype));
    let mut layers = Vec::new();
    for _ in 0..count {
        let layer = PagedLayer::new(&device, rows * pages, shared, features, stored)?;
        append(&layer, &fill, given[0].clone(), given[1].clone())?;
        layers.push(layer);
    }
    let batch = PagedBatch::new(&device, rows, pages, 1)?;
    bind(&batch, keys - 1, 1)?;
    let queries = drawn(&[rows, heads, features], dtype);
    for splits in std::iter::once(None).chain(splits.iter().copied().map(Some)) {
        let options = DecodeOptions { splits, ..DecodeOptions::default() };
        let us =
            median(rounds, count, |at| attention(&layers[at], &batch, queries.clone(), &options).map(drop))?;
        let rate = bytes as f64 / us * 1e6;
        println!(
            "| {rows} | {keys} | {features} | {} | {stored:?} | {} | {us:.1} | {:.0} | {:.2} |",
            dtype.name(),
            splits.map_or("-".into(), |splits| splits.to_string()),
            rate / 1e9,
            rate / copied
        );
    }
    Ok(())
}

fn choose(
    rows: usize,
    vocabulary: usize,
    dtype: DType,
    (name, sampling): &(&str, Sampling),
    rounds: usize,
) -> Result<(), RocmError> {
    let tables = SampleTables { counts: sampling.repetition_penalty != 1.0, ..SampleTables::default() };
    let state = SampleState::new(&RocmDevice::default(), rows, vocabulary, tables)?;
    for row in 0..rows {
        state.set(row, &Sampling { seed: row as u64, ..*sampling }, &[1, 2, 3])?;
    }
    // Logits of a bell's shape, so that the most likely tokens are few.
    let logits = {
        let parts = [3usize, 7, 11, 13].map(|step| {
            let values: Vec<f32> = (0..rows * vocabulary)
                .map(|at| ((at * step + 17) * 2_654_435_761 % 8191) as f32 / 8191.0 - 0.5)
                .collect();
            values
        });
        let sum = |at: usize| parts.iter().map(|part| part[at]).sum::<f32>() * 5.0;
        let values: Vec<f32> = (0..rows * vocabulary).map(sum).collect();
        let data = TensorData::new(values, [rows, vocabulary]).convert_dtype(dtype);
        <Rocm as FloatTensorOps<Rocm>>::float_from_data(data, &Default::default())
    };
    let us = median(rounds, 10, |_| sample(logits.clone(), &state))?;
    println!("| {rows} | {} | {name} | {us:.1} |", dtype.name());
    Ok(())
}

fn main() -> Result<(), RocmError> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().ok());
    let rounds = arguments.next().flatten().unwrap_or(9);
    let shrink = arguments.next().flatten().unwrap_or(1).max(1);
    draws::seed();
    let copied = copy_rate(rounds, shrink)?;
    println!("a copy: {:.0} GB/s read and written\n", copied / 1e9);
    println!("| sequences | keys | features | dtype | cache | splits | us | GB/s | part of the copy |");
    println!("|---:|---:|---:|---|---|---:|---:|---:|---:|");
    let (bf16, int) = ((DType::BF16, CacheType::BF16), (DType::BF16, CacheType::I8));
    let (one, many): (&[usize], &[usize]) = (&[16, 33, 66, 99, 128], &[1, 2, 4, 6, 9]);
    for (rows, keys, features, (dtype, stored), splits) in [
        (1, 512, 128, bf16, &[1, 2, 4][..]),
        (1, 8192, 128, bf16, one),
        (1, 32768, 128, bf16, one),
        (16, 512, 128, bf16, many),
        (16, 8192, 128, bf16, many),
        (16, 32768, 128, bf16, many),
        (1, 8192, 64, bf16, one),
        (16, 2048, 64, bf16, many),
        (1, 8192, 128, int, one),
        (16, 8192, 128, int, many),
        (1, 8192, 128, (DType::F32, CacheType::F32), one),
    ] {
        let keys = (keys / shrink).max(1);
        attend(&Case { rows, keys, features, dtype, stored }, splits, rounds, copied)?;
    }
    println!("\n| sequences | logits | sampling | us |");
    println!("|---:|---|---|---:|");
    let warm = Sampling { temperature: 0.8, ..Sampling::default() };
    let ways = [
        ("greedy", Sampling::default()),
        ("temperature", warm),
        ("top-k 50", Sampling { top_k: 50, ..warm }),
        ("top-p 0.95", Sampling { top_p: 0.95, ..warm }),
        (
            "top-k 50, top-p 0.95, penalty",
            Sampling { top_k: 50, top_p: 0.95, repetition_penalty: 1.1, ..warm },
        ),
    ];
    for rows in [1, 16] {
        for way in &ways {
            choose(rows, (128_256 / shrink).max(2), DType::F32, way, rounds)?;
        }
        choose(rows, (128_256 / shrink).max(2), DType::BF16, &ways[3], rounds)?;
    }
    Ok(())
}
