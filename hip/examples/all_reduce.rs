//! The bandwidth of an all-reduce over all devices, a thread for each. The bus bandwidth is NCCL's
//! measure: `2 (n - 1) / n` times the bytes over the time, which no number of devices changes on a
//! ring (nccl-tests, `doc/PERFORMANCE.md`).
//!
//! `all_reduce [MIB...]`, by default 1, 25 and 256. `benches/peers/torch_all_reduce.py` does the
//! same with PyTorch.

use std::sync::Arc;
use std::time::Instant;

use hip::{Buffer, Communicator, DType, Device, Part, ReduceOp};

const ROUNDS: usize = 9;

/// Ends the group if this rank does not reach the end, so that the others don't wait for it.
struct Ends<'a>(&'a Communicator);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The median time of a call on this rank, in seconds.
fn measure(rank: &Communicator, bytes: usize) -> hip::Result<f64> {
    let ends = Ends(rank);
    let device = rank.device();
    let buffer = Arc::new(device.upload(&vec![0; bytes])?);
    let one = Arc::new(device.upload(&[0; 4])?);
    let reduce = |buffer: &Arc<Buffer>, count: usize| {
        rank.all_reduce(ReduceOp::Sum, DType::F32, count, Part::whole(buffer), Part::whole(buffer))
    };
    let calls = ((1usize << 30) / bytes).clamp(8, 400);
    let round = || -> hip::Result<f64> {
        // Waits until all ranks are here.
        reduce(&one, 1)?.wait()?;
        let start = Instant::now();
        for _ in 0..calls {
            reduce(&buffer, bytes / 4)?.join()?;
        }
        device.sync()?;
        Ok(start.elapsed().as_secs_f64() / calls as f64)
    };
    round()?;
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| round()).collect::<hip::Result<_>>()?;
    times.sort_by(f64::total_cmp);
    std::mem::forget(ends);
    Ok(times[ROUNDS / 2])
}

/// [`measure`], but prints each rank's error: the first rank's may only say that another rank
/// gave up.
fn measured(rank: &Communicator, bytes: usize) -> hip::Result<f64> {
    measure(rank, bytes).inspect_err(|error| eprintln!("rank {}: {error}", rank.rank()))
}

fn main() -> hip::Result<()> {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![1, 25, 256] } else { sizes };
    let devices = (0..Device::count()?).map(Device::get).collect::<hip::Result<Vec<_>>>()?;
    println!("{} devices: {}", devices.len(), devices[0].info().name);
    let ranks = Communicator::local(&devices)?;
    for mib in sizes {
        let bytes = mib << 20;
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> =
                ranks.iter().map(|rank| scope.spawn(move || measured(rank, bytes))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| std::process::exit(1)))
                .collect::<hip::Result<Vec<f64>>>()
        })?;
        let time = times.into_iter().fold(0.0, f64::max);
        let share = 2.0 * (ranks.len() - 1) as f64 / ranks.len() as f64;
        println!("{mib} MiB: {:.1} us, {:.1} GB/s bus", time * 1e6, share * bytes as f64 / time / 1e9);
    }
    Ok(())
}
