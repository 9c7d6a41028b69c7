//! Steps of a program captured as HIP graphs. One launch replays a whole step.
//!
//! A small model's training step is hundreds of launches, and the host takes longer to make them
//! than the GPU to run them. [`Graph::capture`] runs a step some times, then records it.
//! [`Graph::replay`] runs it again with the same memory: it reads the tensors that the step read
//! with the values they have now, and overwrites the step's results.
//!
//! ```
//! use burn::backend::Autodiff;
//! use burn::tensor::Tensor;
//! use burn_rocm::graph::{self, Graph};
//! use burn_rocm::{Rocm, RocmDevice, RocmTensor};
//!
//! type B = Autodiff<Rocm>;
//! let device = RocmDevice::default();
//!
//! // Memory that every replay reads: the input, and a parameter that the step trains.
//! let input = Tensor::<Rocm, 2>::ones([4, 3], &device);
//! let weight = Tensor::<Rocm, 2>::ones([3, 1], &device);
//! let place = |tensor: &Tensor<Rocm, 2>| -> RocmTensor { tensor.clone().into_primitive().tensor() };
//!
//! let step = || {
//!     let w = Tensor::<B, 2>::from_inner(weight.clone()).require_grad();
//!     let loss = Tensor::<B, 2>::from_inner(input.clone()).matmul(w.clone()).powf_scalar(2.0).mean();
//!     let gradient = w.grad(&loss.backward()).unwrap();
//!     // The new weight goes to the old one's memory, where the next replay finds it.
//!     graph::write(&place(&weight), place(&(weight.clone() - gradient * 0.05)))?;
//!     Ok::<_, burn_rocm::RocmError>(loss.inner())
//! };
//! let (graph, loss) = Graph::capture(&device, step)?;
//! let loss = loss?;
//!
//! let mut losses = Vec::new();
//! for batch in 1..=3 {
//!     let values = Tensor::<Rocm, 2>::ones([4, 3], &device) * (batch as f32 / 3.0);
//!     graph::write(&place(&input), place(&values))?;
//!     graph.replay()?;
//!     losses.push(loss.clone().into_scalar());
//! }
//! assert!(losses.iter().all(|loss| loss.is_finite()));
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```
//!
//! With a module, the optimizers of `burn-rocm-nn` write parameters and their states in place, so a
//! step needs no [`write()`] of its own. `burn_rocm_nn::graph` copies Burn's tensors.
//!
//! # What a replay reads anew
//!
//! - **Tensors** that existed before the capture.
//! - **Random numbers.** A replay draws the numbers that the step would draw now: it continues the
//!   device's sequence, and the ops after it continue behind it.
//! - **Learning rates** of `burn-rocm-nn`'s optimizers: [`Graph::set_learning_rate`].
//! - **The time** of Adam's bias correction, which the graph counts in device memory.
//!
//! Everything else that the host computed is fixed: Rust's branches and numbers, shapes, and
//! uploads from the host.
//!
//! # What can't be captured
//!
//! These end the capture with [`RocmError::Capture`](crate::RocmError::Capture), which names the op:
//! reads (`into_data`, `into_scalar`), `sync`, ops that must read the size of their result
//! (`bool_argwhere`), copies between devices, collectives of several ranks in one thread, a replay or
//! a capture within a capture, and an optimizer's step on a parameter that something else holds too,
//! because it can't write that parameter in place. If a library refuses to be captured, the error
//! names its function. A failed capture leaves all tensors as they are.
//!
//! Burn's own optimizers and Burn's own batch norm put new tensors in the place of the old ones. A
//! captured step with them starts each replay from the values before the capture, so copy the new
//! values with [`write()`], or use the modules of `burn-rocm-nn`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::RocmDevice;
use crate::error::{invalid, of_panic};
use crate::guard::{Guard, refuse_within};
use crate::ops::copy::{assign, contiguous, copy, may_be_written};
use crate::ops::{clock, random};
use crate::recording::{self, Recording};
use crate::tensor::{RocmTensor, one_device};
use crate::waiting::{abandon_captured, enqueue_own, enqueue_readers};

pub use hip::is_capturing;

/// How often [`Graph::capture`] runs a step before it captures it. The third call of a convolution
/// is the one that times MIOpen's algorithms.
pub const WARM_UPS: usize = 3;

/// A captured step. It keeps all memory that the step uses, also that of tensors that were dropped.
#[derive(Debug)]
pub struct Graph {
    graph: hip::Graph,
    random: Option<(RocmTensor, u64)>,
    rates: Vec<RocmTensor>,
    /// By which optimizers know that the graph lives and advances their clocks.
    _alive: Arc<()>,
    /// What the device's memory has. The lock also keeps replays apart from each other.
    sent: Mutex<Sent>,
}

#[derive(Debug)]
struct Sent {
    /// The numbers of the next replay's random ops.
    random: Option<[u64; 2]>,
    rates: Vec<Rate>,
}

/// A learning rate of the next replay.
#[derive(Debug)]
struct Rate {
    value: f64,
    /// Whether the device has another one.
    is_new: bool,
}

impl Graph {
    /// Runs `step` [`WARM_UPS`] times, then captures it. The runs compile the kernels, let MIOpen
    /// choose its algorithms and make the optimizer's state. Each is a whole step: it changes
    /// parameters and draws random numbers. The capture changes nothing. Returns the graph and the
    /// captured step's results, which hold nothing before the first replay.
    ///
    /// # Errors
    /// `Capture` if something in `step` can't be captured, or if another capture is in progress on
    /// the device; `Unsupported` if the driver has no graphs; the error of an op that fails during
    /// the capture, such as `OutOfMemory`, or `Device` with the name of the library's function.
    ///
    /// # Panics
    /// If a warm-up fails, as Burn's ops do, or if `step` panics for another reason. The capture is
    /// then over.
    pub fn capture<T>(device: &RocmDevice, step: impl FnMut() -> T) -> hip::Result<(Self, T)> {
        Self::capture_after(device, WARM_UPS, step)
    }

    /// [`capture`](Self::capture) after this many runs of `step`. With 0 the caller should have run
    /// the step already: what a step needs once becomes part of the graph otherwise, and MIOpen
    /// computes with the algorithms that it takes untimed.
    ///
    /// # Errors
    /// As [`capture`](Self::capture).
    pub fn capture_after<T>(
        device: &RocmDevice,
        runs: usize,
        mut step: impl FnMut() -> T,
    ) -> hip::Result<(Self, T)> {
        refuse_within(device.index, CAPTURE)?;
        (0..runs).for_each(|_| drop(step()));
        start(device)?;
        let guard = Guard::begin(device.index);
        let captured = catch_unwind(AssertUnwindSafe(&mut step));
        drop(guard);
        let output = match captured {
            Ok(output) => output,
            Err(panic) => {
                let refused = abandon(device)?;
                let error = of_panic(panic);
                return Err(refused.unwrap_or(error));
            }
        };
        Ok((stop(device)?, output))
    }

    /// Runs the captured step. Enqueues one launch, and does not wait for it. Before it come small
    /// uploads if random ops ran outside the graph or if the learning rate has changed. While
    /// another thread enqueues a read of a graph's memory, this blocks, and for as long as the
    /// thread reads if that takes more than 64 MiB.
    ///
    /// Tensors that share memory with the step's results, such as clones of the parameters, see the
    /// new values. An op of another thread on the step's tensors comes before or after the replay,
    /// as the threads' own order has it.
    ///
    /// # Errors
    /// `Capture` if this thread is capturing; an error of the device.
    pub fn replay(&self) -> hip::Result<()> {
        let device = self.graph.device();
        enqueue_readers(|buffer| Arc::ptr_eq(buffer.device(), device) && buffer.is_of_graph())?;
        device.refuse_captured("a graph's launch", "graphs are not nested")?;
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, rate) in self.rates.iter().zip(&mut sent.rates) {
            if rate.is_new {
                device.write(place.buffer(), 0, &rate.value.to_ne_bytes())?;
                rate.is_new = false;
            }
        }
        if let Some((state, calls)) = &self.random {
            let [seed, call] = random::reserve(&self.device(), *calls);
            let known = sent.random.take();
            if known != Some([seed, call]) {
                device.write(state.buffer(), 0, bytemuck::cast_slice(&[seed, call]))?;
            }
            self.graph.replay()?;
            sent.random = Some([seed, call + calls]);
            return Ok(());
        }
        self.graph.replay()
    }

    /// Sets the learning rate of all optimizer steps in the graph, from the next replay on. Until
    /// then they have the rates that they were captured with. Steps of `burn-rocm-nn`'s optimizers
    /// take it.
    ///
    /// # Errors
    /// `Invalid` if the graph has no such step.
    pub fn set_learning_rate(&self, lr: f64) -> hip::Result<()> {
        match self.rates.len() {
            0 => invalid("set_learning_rate", "a graph with an optimizer's step", "none"),
            count => self.set_learning_rates(&vec![lr; count]),
        }
    }

    /// [`set_learning_rate`](Self::set_learning_rate) with a rate for each step, in the order of
    /// [`learning_rates`](Self::learning_rates).
    ///
    /// # Errors
    /// `Invalid` for another number of rates.
    pub fn set_learning_rates(&self, rates: &[f64]) -> hip::Result<()> {
        if rates.len() != self.rates.len() {
            let expected = format!("{} rates", self.rates.len());
            return invalid("set_learning_rates", expected, rates.len().to_string());
        }
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        for (rate, new) in sent.rates.iter_mut().zip(rates) {
            *rate = Rate { is_new: rate.is_new || rate.value.to_bits() != new.to_bits(), value: *new };
        }
        Ok(())
    }

    /// The learning rates of the next replay: one for each step of an optimizer on the device, in
    /// the order in which they were captured. A step whose parameters have different rates counts
    /// once for each rate.
    pub fn learning_rates(&self) -> Vec<f64> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.rates.iter().map(|rate| rate.value).collect()
    }

    /// The numbers of kernels, library calls and copies that were captured. A replay launches the
    /// graph as a whole, not each of them.
    pub fn recorded(&self) -> hip::trace::Counts {
        self.graph.recorded()
    }

    /// The device on which the step was captured and runs.
    pub fn device(&self) -> RocmDevice {
        RocmDevice::new(self.graph.device().info().index)
    }
}

/// Runs `work` as if the calling thread were not capturing: what it enqueues runs, and does not
/// become part of a graph. It can't read what the captured step computes. Keep a tensor that `work`
/// makes for as long as the graph: a step that is its only owner may overwrite it.
pub fn uncaptured<T>(work: impl FnOnce() -> T) -> T {
    // A product that the step put off is part of the graph. If it fails, reads of its result report
    // the error.
    let _ = enqueue_own();
    hip::uncaptured(work)
}

/// Whether a graph's work uses the tensor's memory, so that replays may read it and overwrite it.
pub fn is_of_graph(tensor: &RocmTensor) -> bool {
    tensor.buffer().is_of_graph()
}

/// Copies `value` into the memory of `target`, whoever else holds that. So a replay that reads
/// `target` reads the new elements. In a capture the copy becomes part of the graph.
///
/// If another thread reads `target` meanwhile, a read of more than 64 KiB may return old elements
/// beside new ones. Let one of the threads wait for the other.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ; an error of the device.
pub fn write(target: &RocmTensor, value: RocmTensor) -> hip::Result<()> {
    const OP: &str = "graph::write";
    one_device(OP, &[target, &value])?;
    if target.dims() != value.dims() || target.dtype_of() != value.dtype_of() {
        let show = |tensor: &RocmTensor| format!("{:?} of {}", tensor.dims(), tensor.dtype_of().name());
        return invalid(OP, show(target), show(&value));
    }
    value.settle()?;
    may_be_written(OP, target)?;
    let memory = target.shared_buffer()?;
    // The copy has no order, so it must not read what it writes.
    let shares = value.shares_buffer(target) || value.shared_buffer()?.overlaps(memory);
    let value = if shares { copy(&value)? } else { contiguous(value)? };
    assign(OP, target, &value)
}

const CAPTURE: &str = "a capture";

/// Ends a capture that this thread left open, if any.
///
/// # Errors
/// `Capture` within [`Graph::capture`]'s step.
pub(crate) fn prepare(device: &RocmDevice) -> hip::Result<()> {
    refuse_within(device.index, CAPTURE)?;
    let device = device.open()?;
    abandon_captured(|other| Arc::ptr_eq(other, &device));
    device.abandon_capture();
    Ok(())
}

/// Begins a capture of this thread's ops. One that the thread left open is ended first.
pub(crate) fn start(device: &RocmDevice) -> hip::Result<()> {
    prepare(device)?;
    let open = device.open()?;
    enqueue_own()?;
    open.start_capture()?;
    recording::begin(device.index);
    Ok(())
}

/// Ends the capture.
pub(crate) fn stop(device: &RocmDevice) -> hip::Result<Graph> {
    refuse_within(device.index, "the end of a capture")?;
    // If a product that waits fails, the graph would lack it, so the capture fails too.
    let waited = enqueue_own();
    let recorded = recording::is_recording(device.index);
    let Recording { random, rates, clocks } = recording::end(device.index);
    let random = random.filter(|_| recorded);
    let advanced = random.as_ref().map_or(Ok(()), |(state, calls)| random::advance(state, *calls));
    let graph = device.open().and_then(|device| device.stop_capture());
    let graph = waited.and(advanced).and(graph)?;
    let (rates, values): (Vec<_>, Vec<_>) = rates.into_iter().unzip();
    let known = values.into_iter().map(|value| Rate { value, is_new: false }).collect();
    let sent = Mutex::new(Sent { random: None, rates: known });
    let alive = Arc::default();
    clock::keep(&alive, device.index, clocks);
    Ok(Graph { graph, random, rates, sent, _alive: alive })
}

/// Ends a capture without a graph. Returns the error of what was refused in it first, if anything.
fn abandon(device: &RocmDevice) -> hip::Result<Option<hip::Error>> {
    recording::end(device.index);
    let device = device.open()?;
    abandon_captured(|other| Arc::ptr_eq(other, &device));
    let ended = device.stop_capture();
    Ok(ended.err().filter(|error| matches!(error, hip::Error::Capture { .. })))
}
