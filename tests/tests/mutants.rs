//! Lockstep mode finds the mistakes for which it exists: each of five mistakes, planted in a
//! correct kernel, makes a run fail.
//!
//! Each run has its own process, because a process reads the wave size once.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm_tests::again;
use hip::{Device, Grid, Program};

const ROW_SUM: &str = r#"
#include "prelude.h"
// out[row] = the sum of in[row * n] to in[row * n + n - 1]; whole warps only.
template <class T> __global__ void row_sum(u32 rows, u32 n, const T *in, T *out) {
    SHARED(T, partial, 32);
    i32 lane = (i32)(threadIdx.x % (u32)warpSize), warp = (i32)(threadIdx.x / (u32)warpSize);
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        T sum = 0;
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) sum += in[row * n + i];
        for (i32 distance = warpSize / 2; distance > 0; distance /= 2) sum += shuffle(sum, lane ^ distance);
        if (lane == 0) partial[warp] = sum;
        sync_threads(); // the partial sums are written
        T total = 0;
        for (u32 w = 0; w < blockDim.x / (u32)warpSize; ++w) total += partial[w];
        if (threadIdx.x == 0) out[row] = total;
        sync_threads(); // they have been read
    }
}
"#;

/// A mistake: its name, the replaced text and its replacement, and the wave sizes with which it
/// must be found.
const MUTANTS: &[(&str, &str, &str, &[u32])] = &[
    ("a missing barrier", "sync_threads(); // the partial sums are written", "", &[32, 64]),
    (
        "a divergent barrier",
        "if (lane == 0) partial[warp] = sum;\n        sync_threads();",
        "if (lane == 0) { partial[warp] = sum; sync_threads(); }",
        &[32, 64],
    ),
    ("a wave-32 assumption", "distance = warpSize / 2", "distance = 16", &[64]),
    (
        "a shuffle with inactive lanes",
        "sum += shuffle(sum, lane ^ distance);",
        "if (lane < warpSize / 2) sum += shuffle(sum, lane ^ distance);",
        &[32, 64],
    ),
    ("a shared-memory overrun", "partial[warp] = sum", "partial[warp + 32] = partial[warp] = sum", &[32, 64]),
];

const CHILD: &str = "BURN_ROCM_TEST_MUTANT";

fn row_sums(source: &str) -> hip::Result<Vec<f32>> {
    const ROWS: usize = 7;
    const LENGTH: usize = 300;
    let device = Device::get(0)?;
    let values: Vec<u8> = (0..ROWS * LENGTH).flat_map(|i| ((i % 11) as f32).to_le_bytes()).collect();
    let (input, output) = (device.upload(&values)?, device.alloc(ROWS * 4)?);
    let program = Program { name: "row_sum.hip", source, headers: &[], options: &[] };
    let kernel = device.kernel(&program, "row_sum<f32>")?;
    let launch = device
        .launch_kernel(&kernel)?
        .value(ROWS as u32)
        .value(LENGTH as u32)
        .buffer(&input, 0)
        .buffer(&output, 0);
    // SAFETY: the kernel reads ROWS * LENGTH floats of `input` and writes ROWS of `output`; the
    // mutants' overruns are of shared memory, which the lockstep device fences.
    unsafe { launch.submit(Grid { blocks: 3, threads: 128 }, 0)? };
    let mut bytes = vec![0; ROWS * 4];
    device.read(&output, 0, &mut bytes)?;
    let sums: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let expected: Vec<f32> =
        (0..ROWS).map(|row| (0..LENGTH).map(|i| ((row * LENGTH + i) % 11) as f32).sum()).collect();
    if sums != expected {
        return Err(hip::Error::Device {
            call: "row_sum",
            code: -1,
            name: "wrong result".into(),
            message: format!("{sums:?} instead of {expected:?}"),
        });
    }
    Ok(sums)
}

/// Runs one mutant (or, if the name is empty, the correct kernel) in its own process. Returns what
/// went wrong there.
fn outcome(mutant: &str, wave: u32) -> Result<(), String> {
    // A mistake is an error there, not a crash.
    let text = again(
        &["--exact", "lockstep_finds_every_mutant", "--nocapture"],
        &[(CHILD, mutant), ("BURN_ROCM_CPU_WAVE", &wave.to_string()), ("BURN_ROCM_PROVIDER", "cpu")],
    );
    let line =
        text.lines().find_map(|line| line.split_once("outcome: ")).expect("the child prints its outcome");
    if line.1 == "right" { Ok(()) } else { Err(line.1.to_owned()) }
}

#[test]
fn lockstep_finds_every_mutant() {
    if let Ok(name) = std::env::var(CHILD) {
        let mutant = MUTANTS.iter().find(|mutant| mutant.0 == name);
        let source = mutant.map_or(ROW_SUM.to_owned(), |(_, old, new, _)| {
            assert!(ROW_SUM.contains(old), "{name} finds nothing to replace");
            ROW_SUM.replacen(old, new, 1)
        });
        match row_sums(&source) {
            Ok(_) => println!("outcome: right"),
            Err(error) => println!("outcome: {}", error.to_string().replace('\n', " ")),
        }
        return;
    }
    for wave in [32, 64] {
        assert_eq!(outcome("", wave), Ok(()), "the right kernel is right with waves of {wave}");
    }
    for (name, _, _, waves) in MUTANTS {
        for &wave in *waves {
            let wrong = outcome(name, wave).expect_err(name);
            println!("{name}, waves of {wave}: {wrong}");
        }
    }
}
