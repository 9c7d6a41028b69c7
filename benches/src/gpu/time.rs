//! Clocks: device events for this project's backend, the host's clock around many repetitions for
//! others.

use burn_backend::Backend;
use burn_rocm::graph::WARM_UPS;
use std::time::Instant;

use crate::Options;
use crate::median::median;

/// The shortest duration of a measured round, in seconds, and the fewest and the most calls in it. A
/// round has several calls because the first one begins on an idle device, unlike training steps.
const ROUND: f64 = 0.02;
const CALLS: f64 = 4.0;
const MOST_CALLS: f64 = 100_000.0;

/// A backend whose work can be timed.
pub(crate) trait Clock: Backend {
    /// The seconds from before `body` until the work that it enqueued has ended.
    fn time(device: &Self::Device, body: &mut dyn FnMut()) -> f64;

    /// Submits the work that the backend has deferred, if it defers any. Does not wait for the
    /// work. Call it before dropping a result: a deferred op whose result nobody holds stores nothing.
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
            Self::launch(device);
            gpu.compute_stream().record(&after)?;
            after.synchronize()?;
            // From milliseconds to seconds.
            Ok(f64::from(after.elapsed_since(&before)?) / 1e3)
        };
        events().expect("events are recorded")
    }

    fn launch(device: &Self::Device) {
        // Asking for the stream enqueues the deferred ops, because an app's work on it must come after
        // all ops of this thread.
        burn_rocm::interop::backend_stream(device).expect("the device's stream");
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
        // The first calls compile, choose algorithms, capture a graph and fill the pool.
        for _ in 0..options.warmup.max(WARM_UPS + 2) {
            by_host::<B>(device, body);
        }
        let once = by_host::<B>(device, body).min(by_host::<B>(device, body));
        calls_a_round(once, |calls| B::time(device, &mut || (0..calls).for_each(|_| body())))
    });
    let mut times = [(); N].map(|()| Vec::new());
    for _ in 0..options.iterations.max(1) {
        for ((times, body), calls) in times.iter_mut().zip(&mut bodies).zip(calls) {
            times.push(B::time(device, &mut || (0..calls).for_each(|_| body())) / calls as f64);
        }
    }
    times.map(|times| median(times).expect("a round"))
}

/// The number of calls with which a round lasts at least [`ROUND`]. `once` is the seconds of one call by
/// the host's clock. `round` makes the given number of calls, and returns the seconds that they take.
fn calls_a_round(once: f64, mut round: impl FnMut(usize) -> f64) -> usize {
    let fill = |call: f64| (ROUND / call).ceil().clamp(CALLS, MOST_CALLS) as usize;
    let mut calls = fill(once);
    loop {
        let seconds = round(calls);
        if seconds >= ROUND || calls >= MOST_CALLS as usize {
            return calls;
        }
        // A tenth more, because the next rounds may be a little faster.
        calls = fill(seconds / calls as f64 / 1.1).max(calls + 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::tensor::Tensor;
    use burn_rocm::{Rocm, RocmDevice};
    use clap::Parser;

    use super::*;
    use crate::alone::{DEFERS, is_alone};

    /// The first calls time algorithms, or capture a graph. They must not decide how many calls a
    /// round has.
    #[test]
    fn slow_first_calls_do_not_shorten_a_round() {
        let options = Options::parse_from(["benches", "--iterations", "1", "--warmup", "0"]);
        let mut calls = 0;
        let mut body = || {
            calls += 1;
            if calls <= WARM_UPS + 1 {
                std::thread::sleep(Duration::from_millis(30));
            }
        };
        medians::<burn_flex::Flex, 1>(&Default::default(), [&mut body], &options);
        assert!(calls > 100, "{calls} calls");
    }

    #[test]
    fn rounds_grow_until_they_are_long_enough() {
        // A call takes 10 us. The host's clock also counts a wait of 990 us.
        assert_eq!(calls_a_round(1e-3, |calls| calls as f64 * 1e-5), 2200);
        assert_eq!(calls_a_round(1.0, |calls| calls as f64), 4);
        assert_eq!(calls_a_round(0.0, |_| 0.0), 100_000);
    }

    #[test]
    fn launching_enqueues_what_is_deferred() {
        if !is_alone("gpu::time::tests::launching_enqueues_what_is_deferred", &DEFERS) {
            return;
        }
        let device = RocmDevice::default();
        let x = Tensor::<Rocm, 1>::ones([64], &device);
        crate::cases::sync::<Rocm>(&device);
        let launches = || device.counters().expect("the counters").launches;
        let before = launches();
        let sum = x.clone() + x;
        assert_eq!(launches(), before, "the sum is deferred");
        <Rocm as Clock>::launch(&device);
        assert_eq!(launches(), before + 1);
        drop(sum);
    }
}
