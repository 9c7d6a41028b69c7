//! Several devices: all-reduces, data parallel training steps with the same batch on each device, and
//! a transformer whose layers are divided among them.

mod reduced;
mod steps;
mod tensor;
mod torch;

use std::sync::OnceLock;
use std::time::Instant;

use burn::tensor::{FloatDType, IntDType, set_default_dtypes};
use burn_rocm::graph::Graph;
use burn_rocm::{Communicator, Rocm, RocmDevice};

use crate::Options;

/// The seconds that a measured round should take.
const ROUND: f64 = 0.3;

/// Prints the rows of each number of devices, and PyTorch's if its Python was named.
///
/// # Errors
/// An error text if there are fewer devices, or no library for collectives.
pub(crate) fn run(options: &Options, counts: &[usize]) -> Result<(), String> {
    super::peers::check(options)?;
    let most = counts.iter().copied().max().unwrap_or(1);
    let devices: Vec<RocmDevice> = (0..most).map(RocmDevice::new).collect();
    for device in &devices {
        let info = device.info().map_err(|error| error.to_string())?;
        println!("{device}: {} ({})", info.name, info.architecture);
    }
    set_defaults(options, &devices)?;
    reduced::run(options, &devices, counts)?;
    steps::run(options, &devices, counts)?;
    tensor::run(options, &devices, counts)?;
    counts.iter().try_for_each(|&count| torch::run(options, count))
}

/// Sets the devices' default float to the one that is measured. Otherwise a device's first tensor sets it.
/// The all-reduces make that tensor, in f32, and the steps would then run in f32.
fn set_defaults(options: &Options, devices: &[RocmDevice]) -> Result<(), String> {
    let float = if options.bf16 { FloatDType::BF16 } else { FloatDType::F32 };
    let set = |device| set_default_dtypes::<Rocm>(device, float, IntDType::I32);
    devices.iter().try_for_each(set).map_err(|error| error.to_string())
}

/// Aborts the group if this rank's thread panics, so that ranks that wait for it get an error.
struct Member<'a>(&'a Communicator);

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
    }
}

/// The seconds of a step, launch by launch and as one graph, each as the median over rounds of many
/// steps. Each rank has a thread, in which `make` makes its step. The host's clock runs from the moment
/// at which all are idle until all are idle again.
///
/// # Errors
/// An error text if a rank fails.
fn seconds<S: FnMut()>(
    options: &Options,
    ranks: &[Communicator],
    make: impl Fn(Communicator) -> S + Sync,
) -> Result<[f64; 2], String> {
    let agreed = [const { OnceLock::new() }; 2];
    let rank = |communicator: Communicator| {
        let device = communicator.device();
        let member = Member(&communicator);
        let meet = || member.0.meet().expect("the other ranks come");
        let mut step = make(communicator.clone());
        // The first steps compile, choose algorithms and fill the pool.
        (0..options.warmup.max(1) + 3).for_each(|_| step());
        let median = |agreed: &OnceLock<usize>, step: &mut dyn FnMut()| {
            let mut steps = |count: usize| {
                device.synchronize().expect("the device works");
                meet();
                let start = Instant::now();
                (0..count).for_each(|_| step());
                device.synchronize().expect("the device works");
                meet();
                start.elapsed().as_secs_f64() / count as f64
            };
            let one = steps(3);
            // The same on every rank.
            let count = *agreed.get_or_init(|| ((ROUND / one) as usize).clamp(1, 1000));
            crate::median::median((0..options.iterations.max(1)).map(|_| steps(count)).collect())
                .expect("a round")
        };
        let eager = median(&agreed[0], &mut step);
        let (graph, ()) = Graph::capture_after(&device, 0, &mut step).expect("the step is captured");
        [eager, median(&agreed[1], &mut || graph.replay().expect("a replay"))]
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> =
            ranks.iter().cloned().map(|communicator| scope.spawn(move || rank(communicator))).collect();
        // Join all of them: the scope panics if a thread panicked and was not joined.
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let ranks: Result<Vec<_>, _> = ended.into_iter().collect();
        let ranks = ranks.map_err(|_| "a rank failed".to_string())?;
        // That of the slowest rank.
        let slowest = |a: [f64; 2], b: [f64; 2]| [a[0].max(b[0]), a[1].max(b[1])];
        ranks.into_iter().reduce(slowest).ok_or_else(|| "no device".to_string())
    })
}

/// A group of devices.
fn group(devices: &[RocmDevice]) -> Result<Vec<Communicator>, String> {
    Communicator::local(devices).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Tensor};
    use burn_rocm::bf16;
    use clap::Parser;

    use super::*;
    use crate::alone::is_alone;

    /// The two devices of a process that runs this test alone; `None` once the test has passed there.
    fn two_devices(test: &str) -> Option<[RocmDevice; 2]> {
        let environment = [
            ("BURN_ROCM_CPU_DEVICES", "2"),
            ("BURN_ROCM_PROVIDER", "cpu"),
            ("BURN_ROCM_COLLECTIVE_TIMEOUT", "20"),
        ];
        is_alone(&format!("gpu::devices::tests::{test}"), &environment).then(|| [0, 1].map(RocmDevice::new))
    }

    /// Nobody waits for a rank that has panicked.
    #[test]
    fn a_rank_that_fails_ends_all() {
        let Some(devices) = two_devices("a_rank_that_fails_ends_all") else { return };
        let ranks = group(&devices).expect("two devices");
        let step = |rank: Communicator| move || assert_eq!(rank.rank(), 0, "a rank that fails");
        let start = Instant::now();
        let ended = seconds(&Options::parse_from(["benches"]), &ranks, step);
        assert_eq!(ended, Err("a rank failed".to_string()));
        assert!(start.elapsed().as_secs() < 10, "before the collectives' timeout: {:?}", start.elapsed());
    }

    /// The all-reduces, which are of f32, don't change the steps' dtype.
    #[test]
    fn steps_after_the_all_reduces_are_in_bf16() {
        let Some(devices) = two_devices("steps_after_the_all_reduces_are_in_bf16") else { return };
        let options = Options::parse_from(["benches", "--bf16", "--shrink", "2", "--iterations", "1"]);
        set_defaults(&options, &devices).expect("no tensor was made yet");
        reduced::run(&options, &devices, &[2]).expect("two devices");
        for device in &devices {
            let made = Tensor::<Rocm<bf16>, 1>::zeros([1], device);
            assert_eq!(made.dtype(), DType::BF16);
        }
    }
}
