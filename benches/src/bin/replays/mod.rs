//! Times replays of a graph.

use burn_rocm::RocmError;
use burn_rocm::graph::Graph;

/// The median milliseconds of a replay on the first device, after one that is not timed.
pub(crate) fn median(graph: &Graph, rounds: usize) -> Result<f64, RocmError> {
    let device = hip::Device::get(0)?;
    graph.replay()?;
    let mut times = Vec::new();
    for _ in 0..rounds.max(1) {
        let (before, after) = (device.timing_event()?, device.timing_event()?);
        device.compute_stream().record(&before)?;
        graph.replay()?;
        device.compute_stream().record(&after)?;
        after.synchronize()?;
        times.push(f64::from(after.elapsed_since(&before)?));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
