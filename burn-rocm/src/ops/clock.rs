//! The numbers of an optimizer's step that a graph repeats: they change from replay to replay, so
//! kernels compute them in device memory.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use burn_std::{DType, Shape};
use hip::{Device, Error as RocmError, Template};

use super::copy::copy;
use super::launch::views;
use super::multi_tensor::{Row, Writes, tables};
use super::transfer::read;
use super::view::narrow;
use crate::arg::Arg;
use crate::error::{invalid, raise};
use crate::recording;
use crate::tensor::RocmTensor;

/// `NUMBERS` of `optim.hip`.
const NUMBERS: usize = 16;

/// A parameter's number of steps in device memory. A graph's replay advances it.
#[derive(Debug)]
pub struct Clock(RocmTensor);

/// The copy advances on its own.
impl Clone for Clock {
    fn clone(&self) -> Self {
        Self(copy(&self.0).unwrap_or_else(|error| raise(error)))
    }
}

impl Clock {
    /// A clock that stands at `time`.
    pub(crate) fn new(device: &Arc<Device>, time: usize) -> Result<Self, RocmError> {
        recording::words(device, Shape::from([1]), DType::U64, &[time as u64]).map(Self)
    }

    /// The same clock.
    pub(crate) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    pub(crate) fn tensor(&self) -> &RocmTensor {
        &self.0
    }

    /// Where it stands. Waits for the device.
    ///
    /// # Errors
    /// `Capture` in a capture; an error of the device.
    pub fn time(&self) -> Result<usize, RocmError> {
        let data = read(self.0.clone())?;
        let time = data.iter::<u64>().next().unwrap_or_default();
        usize::try_from(time).or_else(|_| invalid("clock", "a count of steps", time.to_string()))
    }
}

/// The clocks that living graphs advance. Burn 0.22's states have no place for a clock, so a step
/// finds it by the first moment, whose memory the graph keeps from being used for anything else.
static OF_GRAPHS: Mutex<Vec<OfGraph>> = Mutex::new(Vec::new());

struct OfGraph {
    device: usize,
    /// The address of the first moment.
    moment: usize,
    clock: RocmTensor,
    /// Gone with the graph.
    graph: Weak<()>,
}

/// The address of a first moment. In a capture the graph then keeps the memory.
fn address(moment: &RocmTensor) -> usize {
    moment.buffer().address() + moment.byte_offset()
}

/// The clock that a living graph, or the one being captured, advances for the parameter with this
/// first moment.
pub(crate) fn of_graph(moment: &RocmTensor) -> Option<Clock> {
    let (device, at) = (moment.rocm_device().index, address(moment));
    let recorded = recording::with(device, |recording| {
        let found = recording.clocks.iter().find(|(moment, _)| *moment == at);
        found.map(|(_, clock)| clock.clone())
    });
    let of_living = || {
        let mut all = OF_GRAPHS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|entry| entry.graph.strong_count() > 0);
        let found = all.iter().find(|entry| (entry.device, entry.moment) == (device, at));
        found.map(|entry| entry.clock.clone())
    };
    recorded.flatten().or_else(of_living).map(Clock)
}

/// Says that the graph being captured advances the clock for the parameter with this first moment.
pub(crate) fn record(moment: &RocmTensor, clock: &Clock) {
    let (device, at) = (moment.rocm_device().index, address(moment));
    recording::with(device, |recording| {
        if recording.clocks.iter().all(|(moment, _)| *moment != at) {
            recording.clocks.push((at, clock.0.clone()));
        }
    });
}

/// Keeps a captured graph's clocks, by the address of each one's first moment, for as long as
/// `graph` lives.
pub(crate) fn keep(graph: &Arc<()>, device: usize, clocks: Vec<(usize, RocmTensor)>) {
    let mut all = OF_GRAPHS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|entry| entry.graph.strong_count() > 0);
    let graph = Arc::downgrade(graph);
    let entry = |(moment, clock)| OfGraph { device, moment, clock, graph: graph.clone() };
    all.extend(clocks.into_iter().map(entry));
}

/// The learning rate in device memory. In a capture it is the graph's, which sets it anew for
/// replays.
pub(crate) fn rate(device: &Arc<Device>, lr: f64) -> Result<RocmTensor, RocmError> {
    let rate = recording::words(device, Shape::from([1]), DType::F64, &[lr.to_bits()])?;
    recording::with(device.info().index, |all| all.rates.push((rate.clone(), lr)));
    Ok(rate)
}

thread_local! {
    static UNLESS: RefCell<Option<(RocmTensor, bool)>> = const { RefCell::new(None) };
}

/// Calls `step`, in which an optimizer takes a step. The device takes the step only if `flag`, a
/// u32, is then 0. For steps in a capture, which can't read the flag. Parameters and states are
/// written in place.
///
/// # Errors
/// `Capture` if `step` runs no [`Step`](super::optim::Step), so that nothing asked for the flag.
pub fn unless<T>(flag: &RocmTensor, step: impl FnOnce() -> T) -> Result<T, RocmError> {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            UNLESS.take();
        }
    }
    let reset = Reset;
    UNLESS.replace(Some((flag.clone(), false)));
    let stepped = step();
    let asked = UNLESS.with_borrow(|unless| unless.as_ref().is_some_and(|(_, asked)| *asked));
    drop(reset);
    match asked {
        true => Ok(stepped),
        false => Err(RocmError::Capture {
            op: "unless",
            reason: "only the optimizers of burn-rocm-nn can skip a step on the device".into(),
        }),
    }
}

/// Whether the thread is inside [`unless`].
pub(crate) fn is_conditional() -> bool {
    UNLESS.with_borrow(Option::is_some)
}

/// The flag of the enclosing [`unless`].
pub(crate) fn flag() -> Option<RocmTensor> {
    UNLESS.with_borrow_mut(|unless| {
        let (flag, asked) = unless.as_mut()?;
        *asked = true;
        Some(flag.clone())
    })
}

/// The numbers of a step, for each row or for all.
pub(crate) struct Numbers {
    all: RocmTensor,
    /// Elements from a row's numbers to the next row's; 0 if they share them.
    pub(crate) stride: usize,
}

impl Numbers {
    /// The numbers of the rows in this range.
    pub(crate) fn of(&self, rows: std::ops::Range<usize>) -> Result<RocmTensor, RocmError> {
        match self.stride {
            0 => Ok(self.all.clone()),
            stride => narrow(self.all.clone(), 0, rows.start * stride, rows.len() * stride),
        }
    }
}

fn compute_type(ty: hip::DType) -> (DType, hip::DType) {
    match ty {
        hip::DType::F64 => (DType::F64, hip::DType::F64),
        _ => (DType::F32, hip::DType::F32),
    }
}

/// Advances the clocks and computes the numbers of Adam's step, a row's from its clock.
pub(crate) fn adam(
    op: &'static str,
    device: &Arc<Device>,
    ty: hip::DType,
    settings: [f64; 12],
    rate: &RocmTensor,
    clocks: &[Row],
) -> Result<Numbers, RocmError> {
    let (dtype, compute) = compute_type(ty);
    let all = RocmTensor::empty(device, Shape::from([clocks.len() * NUMBERS]), dtype)?;
    let (numbers, skip) = (Numbers { all, stride: NUMBERS }, flag());
    for (table, range) in tables(op, device, clocks)? {
        let out = numbers.of(range)?;
        let buffers = [Some(rate), skip.as_ref(), Some(&out)];
        let kernel = Template::optim_adam_numbers.ty(compute);
        table.launch(op, kernel, &[Arg::F64x12(settings)], &buffers, Writes { of_row: 1, buffers: 1 })?;
    }
    Ok(numbers)
}

/// The numbers of a step of gradient descent.
pub(crate) fn sgd(
    op: &'static str,
    device: &Arc<Device>,
    ty: hip::DType,
    settings: [f64; 12],
    rate: &RocmTensor,
) -> Result<Numbers, RocmError> {
    let (dtype, compute) = compute_type(ty);
    let all = RocmTensor::empty(device, Shape::from([NUMBERS]), dtype)?;
    let skip = flag();
    let inputs = [Some(rate), skip.as_ref()];
    let kernel = Template::optim_sgd_numbers.ty(compute);
    views(op, device, kernel, device.grid(1), &[Arg::F64x12(settings)], &inputs, &[], &all)?;
    Ok(Numbers { all, stride: 0 })
}
