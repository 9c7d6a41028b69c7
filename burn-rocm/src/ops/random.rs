//! Random tensors by Philox 4x32-10 on the device. The counter consists of the element's index and
//! the number of the call.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use burn_backend::Distribution;
use burn_std::{DType, Shape, bf16, f16};
use hip::Template;

use super::cast::cast;
use super::launch::{flat, rows};
use crate::arg::Arg;
use crate::device::RocmDevice;
use crate::error::invalid;
use crate::recording;
use crate::tensor::RocmTensor;

/// A device's stream of random numbers.
#[derive(Clone, Copy, Debug)]
struct State {
    seed: u64,
    calls: u64,
}

/// The streams of devices, by their indices.
type States = HashMap<usize, State>;

fn states() -> MutexGuard<'static, States> {
    static STATES: OnceLock<Mutex<States>> = OnceLock::new();
    STATES.get_or_init(Default::default).lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The random streams that this thread draws from instead of the devices' own, if any.
    /// `ManuallyDrop`: a value without a destructor stays usable while the thread ends. [`Aside`]
    /// drops the streams.
    static ASIDE: RefCell<ManuallyDrop<Option<States>>> = const { RefCell::new(ManuallyDrop::new(None)) };

    /// The device whose numbers this thread draws again in a capture, if any, and its next call's
    /// place in the graph.
    static AGAIN: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

/// Until this is dropped, the thread draws from copies of the devices' streams, which stay as they
/// are. Other threads are not affected.
pub(crate) struct Aside {
    /// The thread's copies before.
    outer: Option<States>,
}

impl Aside {
    pub(crate) fn begin() -> Self {
        let copies = of_thread(|states| states.clone());
        Self { outer: exchange(Some(copies)) }
    }
}

/// Replaces the thread's own streams.
fn exchange(states: Option<States>) -> Option<States> {
    ManuallyDrop::into_inner(ASIDE.replace(ManuallyDrop::new(states)))
}

impl Drop for Aside {
    fn drop(&mut self) {
        exchange(self.outer.take());
    }
}

/// A place in a device's random numbers, from which the same numbers can be drawn again.
///
/// ```
/// use burn::tensor::{Distribution, Tensor};
/// use burn_rocm::{RandomMark, Rocm, RocmDevice};
///
/// let device = RocmDevice::default();
/// let draw = || Tensor::<Rocm, 1>::random([4], Distribution::Default, &device).into_data();
/// let mark = RandomMark::of(&device);
/// let first = draw();
/// assert_eq!(mark.again(draw), first);
/// // The device continues after the first call.
/// assert_ne!(draw(), first);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomMark {
    device: usize,
    state: State,
    /// The number of random calls so far in this thread's capture on the device.
    recorded: Option<u64>,
}

impl RandomMark {
    /// The place of the device's next random numbers. They are those of the calling thread, if it
    /// draws from others than the device's own, as in [`warm_up`](crate::warm_up()).
    pub fn of(device: &RocmDevice) -> Self {
        let [seed, calls] = reserve(device, 0);
        let recorded = recording::with(device.index, |recording| match AGAIN.get() {
            Some((index, again)) if index == device.index => again,
            _ => recording.random.as_ref().map_or(0, |(_, calls)| *calls),
        });
        Self { device: device.index, state: State { seed, calls }, recorded }
    }

    /// Runs `f`, in which this thread draws the device's random numbers from this place on.
    /// Afterwards all devices' numbers go on as if `f` had not run. Other threads are not affected.
    ///
    /// In a capture ([`graph`](crate::graph)) the mark must be of the same capture. Each replay
    /// then draws its own numbers, and those in `f` once more.
    pub fn again<T>(&self, f: impl FnOnce() -> T) -> T {
        /// Ends the second drawing, after a panic too.
        struct End(Option<(usize, u64)>);
        impl Drop for End {
            fn drop(&mut self) {
                AGAIN.set(self.0);
            }
        }
        let _aside = Aside::begin();
        of_thread(|states| states.insert(self.device, self.state));
        let _end = End(AGAIN.replace(self.recorded.map(|calls| (self.device, calls))));
        f()
    }
}

/// Calls `f` with the streams that the calling thread draws from.
fn of_thread<T>(f: impl FnOnce(&mut States) -> T) -> T {
    ASIDE.with_borrow_mut(|aside| match &mut **aside {
        Some(states) => f(states),
        None => f(&mut states()),
    })
}

/// Restarts the device's random numbers from `seed`.
pub(crate) fn seed(device: &RocmDevice, seed: u64) {
    of_thread(|states| states.insert(device.index, State { seed, calls: 0 }));
}

/// Drops the device's random numbers.
pub(crate) fn forget(device: usize) {
    of_thread(|states| states.remove(&device));
}

/// The seed and the number of the first of the next `calls` calls, which nobody else gets.
pub(crate) fn reserve(device: &RocmDevice, calls: u64) -> [u64; 2] {
    of_thread(|states| {
        let state = states
            .entry(device.index)
            .or_insert_with(|| State { seed: RandomState::new().build_hasher().finish(), calls: 0 });
        let call = state.calls;
        state.calls += calls;
        [state.seed, call]
    })
}

/// The key and the number of this call. A device that was never seeded starts from the operating
/// system's entropy, taken from the random keys of the standard library's hash maps.
///
/// In a capture they are the address of a graph's numbers and the call's place in the graph, as
/// `stream_of` in `philox.h` takes them.
///
/// # Errors
/// In a capture, those of an upload.
pub(crate) fn next(device: &RocmDevice) -> hip::Result<[u64; 2]> {
    let recorded = recording::with(device.index, |recording| {
        let (state, calls) = match &mut recording.random {
            Some(random) => random,
            first => {
                let state = recording::words(&device.open()?, Shape::from([2]), DType::U64, &[0, 0])?;
                first.insert((state, 0))
            }
        };
        let call = match AGAIN.get() {
            Some((index, again)) if index == device.index => {
                AGAIN.set(Some((index, again + 1)));
                again
            }
            _ => *calls,
        };
        *calls = (*calls).max(call + 1);
        Ok([state.buffer().address() as u64, IN_GRAPH | call])
    });
    recorded.unwrap_or_else(|| Ok(reserve(device, 1)))
}

/// The bit by which `stream_of` knows a graph's call.
const IN_GRAPH: u64 = 1 << 63;

/// Whether a kernel may take these for a seed and a call: numbers of an eager op, or those that
/// [`next`] returned in this thread's capture on the device.
pub(crate) fn is_stream(device: usize, seed: u64, call: u64) -> bool {
    let drawn = |recording: &mut recording::Recording| {
        recording.random.as_ref().is_some_and(|(state, calls)| {
            state.buffer().address() as u64 == seed && call & !IN_GRAPH < *calls
        })
    };
    call & IN_GRAPH == 0 || recording::with(device, drawn).unwrap_or(false)
}

/// Enqueues what moves a graph's numbers past its calls, at the end of the graph.
pub(crate) fn advance(state: &RocmTensor, calls: u64) -> hip::Result<()> {
    let device = state.hip_device();
    rows(
        "random",
        device,
        Template::philox_advance.name(),
        device.grid(1),
        &[Arg::U64(calls)],
        &[],
        &[],
        &[state],
    )
}

/// The range of uniform numbers: a float type's finite numbers, or from an integer type's least
/// number to one more than its greatest.
fn bounds(dtype: DType) -> (f64, f64) {
    let two_to = |bits: usize| 2f64.powi(bits as i32);
    let bits = 8 * dtype.size();
    match dtype {
        DType::F16 => (f16::MIN.to_f64(), f16::MAX.to_f64()),
        DType::BF16 => (bf16::MIN.to_f64(), bf16::MAX.to_f64()),
        DType::F64 => (f64::MIN, f64::MAX),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (-two_to(bits - 1), two_to(bits - 1)),
        _ if dtype.is_float() => (f32::MIN.into(), f32::MAX.into()),
        _ => (0.0, two_to(bits)),
    }
}

/// A tensor drawn from the distribution. `Default` is [0, 1) for floats and [0, 255) for ints, as
/// on Burn's other GPU backends. The bounds of a uniform distribution are clamped to the dtype's
/// finite numbers.
///
/// # Errors
/// `Invalid` for uniform bounds that are not finite, which Burn's CPU backends refuse too.
pub(crate) fn random(
    device: &RocmDevice,
    shape: Shape,
    distribution: Distribution,
    dtype: DType,
) -> hip::Result<RocmTensor> {
    let float = dtype.is_float();
    let (kernel, parameters): (Template, &[f64]) = match &distribution {
        Distribution::Default if float => (Template::random_uniform, &[0.0, 1.0]),
        Distribution::Default => (Template::random_uniform, &[0.0, 255f64.min(bounds(dtype).1)]),
        Distribution::Uniform(low, high) => {
            if !(low.is_finite() && high.is_finite()) {
                return invalid("random", "finite bounds", format!("{low}..{high}"));
            }
            let (least, most) = bounds(dtype);
            (Template::random_uniform, &[low.clamp(least, most), high.clamp(least, most)])
        }
        Distribution::Bernoulli(p) => (Template::random_bernoulli, &[*p]),
        Distribution::Normal(..) if !float => {
            // The 24 bits of f32 are too few for integers of 4 and 8 bytes.
            let drawn = if dtype.size() < 4 { DType::F32 } else { DType::F64 };
            return cast(random(device, shape, distribution, drawn)?, dtype);
        }
        Distribution::Normal(mean, deviation) => (Template::random_normal, &[*mean, *deviation]),
    };
    let out = RocmTensor::empty(&device.open()?, shape, dtype)?;
    if out.is_empty() {
        return Ok(out);
    }
    let mut scalars = next(device)?.map(Arg::U64).to_vec();
    scalars.extend(parameters.iter().map(|&value| Arg::F64(value)));
    flat("random", kernel.ty(out.kernel_type()?), out.len(), &[], &scalars, &[&out])?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_thread_that_ends_draws_numbers() {
        static CALL: AtomicU64 = AtomicU64::new(0);
        struct AtEnd;
        impl Drop for AtEnd {
            fn drop(&mut self) {
                CALL.store(draw(), Ordering::Relaxed);
            }
        }
        thread_local!(static AT_END: AtEnd = const { AtEnd });
        /// Three calls, on a device that no other test has. Returns the first one's number.
        fn draw() -> u64 {
            reserve(&RocmDevice::new(usize::MAX), 3)[1]
        }
        let thread = std::thread::spawn(|| {
            // A thread drops its values in the opposite order of their first uses.
            AT_END.with(|_| ());
            draw()
        });
        assert_eq!(thread.join().unwrap(), 0);
        assert_eq!(CALL.load(Ordering::Relaxed), 3);
    }
}
