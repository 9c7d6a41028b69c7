//! The bandwidth of an all-reduce. The bus bandwidth is NCCL's measure: `2 (n - 1) / n` times the bytes
//! over the time, which no number of devices changes on a ring (nccl-tests, `doc/PERFORMANCE.md`).

use burn::tensor::{DType, Tensor};
use burn_rocm::{Communicator, ReduceOp, Rocm, RocmDevice};

use super::{group, seconds};
use crate::Options;
use crate::gpu::report::time;

/// The calls of a graph, and of a timed step.
const CALLS: usize = 8;

pub(super) fn run(options: &Options, devices: &[RocmDevice], counts: &[usize]) -> Result<(), String> {
    if !options.names("all-reduce") {
        return Ok(());
    }
    println!("\n| all-reduce of f32 | devices | a call | bus, GB/s | in a graph | bus, GB/s |");
    println!("|---|---|---|---|---|---|");
    let sizes: &[usize] = if options.shrink > 1 { &[1] } else { &[1, 4, 25, 256] };
    for &count in counts.iter().filter(|&&count| count > 1) {
        let ranks = group(&devices[..count])?;
        for &mib in sizes {
            let bytes = (mib << 20) as f64;
            let mut cells = String::new();
            for of_calls in seconds(options, &ranks, |rank| calls(rank, mib << 18))? {
                let call = of_calls / CALLS as f64;
                let bus = 2.0 * (count - 1) as f64 / count as f64 * bytes / call / 1e9;
                cells += &format!(" {} | {bus:.1} |", time(call));
            }
            println!("| {mib} MiB | {count} |{cells}");
        }
    }
    Ok(())
}

/// All-reduces of `elements` zeros in place.
fn calls(rank: Communicator, elements: usize) -> impl FnMut() {
    let zeros = Tensor::<Rocm, 1>::zeros([elements], (&rank.device(), DType::F32)).into_primitive().tensor();
    // A graph's calls must find the same memory each time, so it is held here.
    let mut zeros = Some(zeros);
    move || {
        for _ in 0..CALLS {
            let Some(tensor) = zeros.take() else { return };
            let reduced = rank.all_reduce(ReduceOp::Sum, tensor).and_then(|reduced| reduced.join());
            zeros = Some(reduced.expect("an all-reduce"));
        }
    }
}
