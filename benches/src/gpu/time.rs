//! Clocks: device events for this project's backend, the host's clock around many repetitions for
//! others.

use burn_backend::Backend;
use std::time::Instant;

use crate::Options;

/// The shortest duration of a measured round, in seconds, and the fewest calls in it. A round has
/// several calls because the first one begins on an idle device, unlike training steps.
const ROUND: f64 = 0.02;
const CALLS: f64 = 4.0;

/// A backend whose work can be timed.
pub(crate) trait Clock: Backend {
    /// The seconds from before `body` until the work that it enqueued has ended.
    fn time(device: &Self::Device, body: &mut dyn FnMut()) -> f64;

    /// Submits the work that the backend has deferred, if it defers any. Does not wait for the
    /// work.
    fn launch(_: &Self::Device) {}
}

/// Times by the host's clock, with the device idle before and after.
fn by_host<B: Backend>(device: &B::Device, body: &mut dyn FnMut()) -> f64 {
    crate::cases::sync::<B>(device);
    let start = Instant::now();
    body();
    crate::cases::sync::<B>(device);
    start.elapsed().as_secs_f64()
}

impl Clock for burn_rocm::Rocm {
    fn time(device: &Self::Device, body: &mut dyn FnMut()) -> f64 {
        let mut events = || -> hip::Result<f64> {
            let gpu = hip::Device::get(device.index)?;
            let (before, after) = (gpu.timing_event()?, gpu.timing_event()?);
            crate::cases::sync::<Self>(device);
            gpu.compute_stream().record(&before)?;
            body();
            gpu.compute_stream().record(&after)?;
            after.synchronize()?;
            // From milliseconds to seconds.
            Ok(f64::from(after.elapsed_since(&before)?) / 1e3)
        };
        events().expect("events are recorded")
    }
}

impl Clock for burn_flex::Flex {
    fn time(device: &Self::Device, body: &mut dyn FnMut()) -> f64 {
        by_host::<Self>(device, body)
    }
}

#[cfg(feature = "burn-cuda")]
impl Clock for burn_cuda::Cuda {
    fn time(device: &Self::Device, body: &mut dyn FnMut()) -> f64 {
        by_host::<Self>(device, body)
    }

    fn launch(device: &Self::Device) {
        // burn-fusion runs its deferred work before it passes a seed on. Its `sync` would also wait
        // for the device.
        Self::seed(device, 0);
    }
}

/// The seconds of one call of each body, as the median over the measured rounds. A round has so
/// many calls that it takes far longer than the clock's resolution. Several bodies take turns, so
/// that a slow phase of the machine affects all of them.
pub(crate) fn medians<B: Clock, const N: usize>(
    device: &B::Device,
    mut bodies: [&mut dyn FnMut(); N],
    options: &Options,
) -> [f64; N] {
    let calls = bodies.each_mut().map(|body| {
        // The first calls compile, choose algorithms and fill the pool.
        for _ in 0..options.warmup.max(1) {
            by_host::<B>(device, body);
        }
        let once = by_host::<B>(device, body).max(1e-7);
        (ROUND / once).ceil().clamp(CALLS, 1000.0) as usize
    });
    let mut times = [(); N].map(|()| Vec::new());
    for _ in 0..options.iterations.max(1) {
        for ((times, body), calls) in times.iter_mut().zip(&mut bodies).zip(calls) {
            times.push(B::time(device, &mut || (0..calls).for_each(|_| body())) / calls as f64);
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}
