//! Collectives over tensors.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use hip::rendezvous::Rendezvous;
use hip::{Behind, Error, Group, Kernel, Part, ReduceOp, Stream, UniqueId, Work};

use crate::device::RocmDevice;
use crate::error::invalid;
use crate::meeting::Meeting;
use crate::ops::copy::{may_be_written, packed};
use crate::ops::launch::Beside;
use crate::ops::pack::Fill;
use crate::pass::PassPoints;
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// One rank of a group of devices, whose tensors the calls below combine. Clones are the same rank.
///
/// All ranks must make the same calls in the same order, each in its own thread or process. A call
/// returns at once. The collective runs beside the device's later ops until [`Pending::join`].
///
/// ```
/// use burn_rocm::{Communicator, ReduceOp, RocmDevice};
/// use burn::tensor::Tensor;
/// use burn_rocm::Rocm;
///
/// let devices = RocmDevice::all()?;
/// let ranks = Communicator::local(&devices)?;
/// let size = ranks.len() as f32;
/// let threads = ranks.into_iter().map(|rank| std::thread::spawn(move || {
///     let ones = Tensor::<Rocm, 1>::ones([3], &rank.device());
///     let sum = rank.all_reduce(ReduceOp::Sum, ones.into_primitive().tensor())?.join()?;
///     Ok::<_, burn_rocm::RocmError>(burn_rocm::read_with_fault(sum)?.0)
/// })).collect::<Vec<_>>();
/// for thread in threads {
///     let sum = thread.join().expect("no rank panics")?;
///     assert_eq!(sum.to_vec::<f32>().expect("f32"), [size; 3]);
/// }
/// # Ok::<(), burn_rocm::RocmError>(())
/// ```
#[derive(Clone)]
pub struct Communicator {
    own: Arc<hip::Communicator>,
    /// The ranks of this process.
    meeting: Arc<Meeting>,
}

/// The meetings of the groups that this process takes part in.
static MEETINGS: LazyLock<Mutex<HashMap<UniqueId, Weak<Meeting>>>> = LazyLock::new(Default::default);

/// The meeting of a group, with one more member.
fn meeting_of(id: &UniqueId) -> Arc<Meeting> {
    let mut all = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, meeting| meeting.strong_count() > 0);
    let meeting = all.get(id).and_then(Weak::upgrade).unwrap_or_default();
    meeting.add();
    all.insert(*id, Arc::downgrade(&meeting));
    meeting
}

impl Communicator {
    /// All ranks of a group within this process; rank `i` is on `devices[i]`. For threads: give one
    /// to each.
    ///
    /// # Errors
    /// `NotAvailable` if the provider has no library for collectives, with what to install;
    /// `Invalid` for no devices or one device twice; an error of the library.
    pub fn local(devices: &[RocmDevice]) -> Result<Vec<Self>, Error> {
        let devices = devices.iter().map(RocmDevice::open).collect::<Result<Vec<_>, _>>()?;
        let ranks = hip::Communicator::local(&devices)?;
        let meeting = Arc::new(Meeting::of(ranks.len()));
        Ok(ranks.into_iter().map(|own| Self { own: Arc::new(own), meeting: meeting.clone() }).collect())
    }

    /// Joins the group `id` as `rank` of `size`. Waits until all ranks have called this, at most
    /// for `Config::collective_timeout`.
    ///
    /// # Errors
    /// As [`local`](Self::local); `Collective` if not all ranks come in time.
    pub fn new(device: &RocmDevice, id: &UniqueId, rank: usize, size: usize) -> Result<Self, Error> {
        let device = device.open()?;
        // All ranks of this process have been added once the group is complete.
        let meeting = meeting_of(id);
        let own = hip::Communicator::new(&device, id, rank, size).inspect_err(|_| meeting.remove())?;
        Ok(Self { own: Arc::new(own), meeting })
    }

    /// The rank of this process among all processes that have met, one device each.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn connect(device: &RocmDevice, rendezvous: &Rendezvous) -> Result<Self, Error> {
        let own = Arc::new(hip::Communicator::connect(&device.open()?, rendezvous)?);
        Ok(Self { own, meeting: Arc::new(Meeting::of(1)) })
    }

    /// Whether this is a clone of `other`: the same rank of the same group.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.own, &other.own)
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.own.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.own.size()
    }

    /// The device of this rank.
    pub fn device(&self) -> RocmDevice {
        RocmDevice::new(self.own.device().info().index)
    }

    /// Reduces the ranks' tensors element by element. Every rank gets the result, with the same
    /// bits. Overwrites a tensor that has no other owner.
    ///
    /// # Errors
    /// `Invalid` for a tensor of another device; `Unsupported` for a dtype that can't be reduced;
    /// `Mismatch` if the ranks' calls differ; `Collective` if a rank or the library has failed.
    /// After an error the tensor of the caller is unchanged.
    pub fn all_reduce(&self, op: ReduceOp, tensor: RocmTensor) -> Result<Pending, Error> {
        let mut input = self.own(tensor)?;
        let output = overwritten(&mut input)?;
        let (send, recv) = (part(&input)?, part(&output)?);
        let work = self.own.all_reduce(op, input.kernel_type()?, input.len(), send, recv)?;
        Ok(Pending { output, work })
    }

    /// As [`all_reduce`](Self::all_reduce) and [`Pending::join`]. In a capture it costs less: the graph
    /// needs no branch for it, if the rank's earlier calls are joined.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_joined(&self, op: ReduceOp, tensor: RocmTensor) -> Result<RocmTensor, Error> {
        let mut input = self.own(tensor)?;
        let output = overwritten(&mut input)?;
        let (send, recv) = (part(&input)?, part(&output)?);
        self.own.all_reduce_joined(op, input.kernel_type()?, input.len(), send, recv)?;
        Ok(output)
    }

    /// As [`all_reduce`](Self::all_reduce) for each of several tensors, by one call of the library.
    /// Overwrites their memory, also if something else holds it. The results are these tensors.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Invalid` for no tensors, a tensor that is not contiguous,
    /// tensors that share elements, or read-only memory.
    pub fn all_reduce_into(&self, op: ReduceOp, tensors: Vec<RocmTensor>) -> Result<PendingAll, Error> {
        const OP: &str = "all_reduce_into";
        let mut group = Group::new();
        for tensor in &tensors {
            if !tensor.is_contiguous() {
                return invalid(OP, "contiguous elements", format!("{:?}", tensor.layout()));
            }
            self.is_own(tensor)?;
            may_be_written(OP, tensor)?;
            let part = part(tensor)?;
            group.all_reduce(&self.own, op, tensor.kernel_type()?, tensor.len(), part, part)?;
        }
        if tensors.is_empty() {
            return invalid(OP, "at least one tensor", "none");
        }
        are_apart(OP, &tensors)?;
        Ok(PendingAll { work: group.start()?, outputs: tensors })
    }

    /// Packs what is to be packed, multiplies all by `factor`, and reduces it by one call of the
    /// library: on this rank's own stream, beside the ops of a pass that came after `behind`.
    ///
    /// Returns `None` and does nothing if that can't be done beside the pass.
    ///
    /// Nobody may use the tensors before the result is joined, except to read `constants`. Tensors that
    /// are views of `constants` may have been used by others meanwhile, but nobody may have written
    /// them since the pass began.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Invalid` for no summands, for tensors of several dtypes
    /// or devices, for summands in place that share elements, for an index without a reserved
    /// tensor or given twice, or for a reserved tensor that is not as long as the parts are
    /// together.
    pub fn all_reduce_beside(
        &self,
        (pass, behind): (&PassPoints, &Behind<'_>),
        op: ReduceOp,
        summands: &[Summand<'_>],
        constants: &[&RocmTensor],
        factor: Option<f64>,
    ) -> Result<Option<PendingAll>, Error> {
        const OP: &str = "all_reduce_beside";
        let mut outputs = Vec::with_capacity(summands.len());
        for summand in summands {
            outputs.push(match *summand {
                Summand::InPlace(tensor) => tensor.clone(),
                Summand::Packed(_, index) => match pass.reserved.get(index) {
                    Some(reserved) => reserved.clone(),
                    None => {
                        let expected = format!("one of {} reserved tensors", pass.reserved.len());
                        return invalid(OP, expected, index.to_string());
                    }
                },
            });
        }
        let all: Vec<&RocmTensor> = outputs.iter().collect();
        let Some(first) = all.first() else { return invalid(OP, "at least one tensor", "none") };
        self.is_own(first)?;
        let ty = first.kernel_type()?;
        one_device(OP, &all)?;
        one_dtype(OP, &all)?;
        are_apart(OP, &outputs)?;
        let mut fills = Vec::new();
        let mut used = Vec::new();
        for (summand, output) in summands.iter().zip(&outputs) {
            let fill = match *summand {
                Summand::InPlace(tensor) => {
                    used.push(tensor);
                    Fill::in_place(output, factor)?
                }
                Summand::Packed(parts, _) => {
                    used.extend(parts);
                    Fill::packed(parts, output, factor)?
                }
            };
            let Some(fill) = fill else { return Ok(None) };
            fills.push(fill);
        }
        let is_fixed = |tensor: &&RocmTensor| constants.iter().any(|fixed| tensor.shares_buffer(fixed));
        let (fixed, used): (Vec<_>, Vec<_>) = used.into_iter().partition(is_fixed);
        let buffers = |tensors: Vec<&RocmTensor>| -> Result<Vec<_>, Error> {
            tensors.into_iter().map(|tensor| tensor.shared_buffer().cloned()).collect()
        };
        let prepare = || {
            let mut enqueue = fills.into_iter().map(Fill::prepare).collect::<Result<Vec<_>, _>>()?;
            Ok(move |stream: &Stream, kernels: &mut Vec<Arc<Kernel>>| {
                enqueue.iter_mut().try_for_each(|enqueue| enqueue(Beside { stream, kernels: &mut *kernels }))
            })
        };
        let parts = outputs.iter().map(|output| Ok((part(output)?, output.len())));
        let parts = parts.collect::<Result<Vec<_>, Error>>()?;
        let work = self.own.all_reduce_beside(
            behind,
            [&buffers(used)?, &buffers(fixed)?],
            op,
            ty,
            &parts,
            prepare,
        )?;
        Ok(work.map(|work| PendingAll { work, outputs: outputs.clone() }))
    }

    /// The tensor of rank `root`, on every rank. The other ranks' tensors give its shape and dtype.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Invalid` for a root that is no rank.
    pub fn broadcast(&self, root: usize, tensor: RocmTensor) -> Result<Pending, Error> {
        let input = self.own(tensor)?;
        let output = if self.rank() == root { input.clone() } else { input.empty_like()? };
        let (send, recv) = (part(if self.rank() == root { &input } else { &output })?, part(&output)?);
        let work = self.own.broadcast(input.kernel_type()?, input.len(), root, send, recv)?;
        Ok(Pending { output, work })
    }

    /// The ranks' tensors one after the other, along a new first axis of `size` elements.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather(&self, tensor: RocmTensor) -> Result<Pending, Error> {
        let input = self.own(tensor)?;
        let output = self.gathered(&input)?;
        let (send, recv) = (part(&input)?, part(&output)?);
        let work = self.own.all_gather(input.kernel_type()?, input.len(), send, recv)?;
        Ok(Pending { output, work })
    }

    /// As [`all_gather`](Self::all_gather), joined as by [`all_reduce_joined`](Self::all_reduce_joined).
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather_joined(&self, tensor: RocmTensor) -> Result<RocmTensor, Error> {
        let input = self.own(tensor)?;
        let output = self.gathered(&input)?;
        let (send, recv) = (part(&input)?, part(&output)?);
        self.own.all_gather_joined(input.kernel_type()?, input.len(), send, recv)?;
        Ok(output)
    }

    /// Uninitialised memory for the inputs of all ranks, `[ranks, ..]`.
    fn gathered(&self, input: &RocmTensor) -> Result<RocmTensor, Error> {
        let dims: Vec<usize> = [self.size()].iter().chain(input.dims()).copied().collect();
        RocmTensor::empty(input.hip_device(), dims, input.dtype_of())
    }

    /// As [`all_gather`](Self::all_gather), into the memory of `into`, also if something else holds it.
    /// `into` may have any shape with the right number of elements.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather); `Invalid` if `into` has another number of elements or
    /// another dtype, is not contiguous, is read-only, or shares memory with `tensor`.
    pub fn all_gather_into(&self, into: &RocmTensor, tensor: RocmTensor) -> Result<Pending, Error> {
        const OP: &str = "all_gather_into";
        let input = self.own(tensor)?;
        if into.len() != self.size() * input.len()
            || into.dtype_of() != input.dtype_of()
            || !into.is_contiguous()
        {
            let (elements, dtype) = (self.size() * input.len(), input.dtype_of().name());
            let found = format!("{:?} of {}", into.dims(), into.dtype_of().name());
            return invalid(OP, format!("{elements} contiguous elements of {dtype}"), found);
        }
        may_be_written(OP, into)?;
        let (send, recv) = (part(&input)?, part(into)?);
        let work = self.own.all_gather(input.kernel_type()?, input.len(), send, recv)?;
        Ok(Pending { output: into.clone(), work })
    }

    /// Reduces the ranks' tensors element by element. Rank `r` gets the `r`-th of `size` equal
    /// parts along the first axis.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); `Invalid` unless the first axis is a multiple of
    /// `size`.
    pub fn reduce_scatter(&self, op: ReduceOp, tensor: RocmTensor) -> Result<Pending, Error> {
        let input = self.own(tensor)?;
        let mut dims = input.dims().to_vec();
        match dims.first_mut() {
            Some(first) if first.is_multiple_of(self.size()) => *first /= self.size(),
            _ => {
                let expected = format!("a first axis that {} ranks divide", self.size());
                return invalid("reduce_scatter", expected, format!("{dims:?}"));
            }
        }
        let output = RocmTensor::empty(input.hip_device(), dims, input.dtype_of())?;
        let (send, recv) = (part(&input)?, part(&output)?);
        let work = self.own.reduce_scatter(op, input.kernel_type()?, output.len(), send, recv)?;
        Ok(Pending { output, work })
    }

    /// Whether this rank has issued a collective since the pass began. The rank's later collectives
    /// run behind that one, so they wait for more than a point of the pass.
    pub fn issued_since(&self, pass: &PassPoints) -> bool {
        self.own.issued_since(&pass.points)
    }

    /// Waits on the host until every rank of this process has called this. The devices don't wait.
    ///
    /// # Errors
    /// The group's failure, if it has failed; `Collective` if not all ranks come within
    /// `Config::collective_timeout`.
    pub fn meet(&self) -> Result<(), Error> {
        self.meeting.meet("Communicator::meet", hip::collective_timeout()?, || self.check())
    }

    /// The group's failure, if it has failed. Every later call then returns it too.
    ///
    /// # Errors
    /// The failure.
    pub fn check(&self) -> Result<(), Error> {
        self.own.check()
    }

    /// Gives the group up. The other ranks get an error instead of waiting for this one.
    pub fn abort(&self) {
        self.own.abort();
    }

    /// The tensor with its elements in order, on this rank's device.
    fn own(&self, tensor: RocmTensor) -> Result<RocmTensor, Error> {
        self.is_own(&tensor)?;
        packed(tensor)
    }

    /// Refuses a tensor of another device.
    fn is_own(&self, tensor: &RocmTensor) -> Result<(), Error> {
        if Arc::ptr_eq(self.own.device(), tensor.hip_device()) {
            return Ok(());
        }
        let found = tensor.rocm_device().to_string();
        invalid("a collective", format!("a tensor of {}", self.device()), found)
    }
}

impl core::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Communicator(rank {} of {} on {})", self.rank(), self.size(), self.device())
    }
}

/// Checks that no two of these tensors, which are contiguous, share elements: a call that writes
/// both would have undefined results.
fn are_apart(op: &'static str, tensors: &[RocmTensor]) -> Result<(), Error> {
    let bytes = |tensor: &RocmTensor| {
        let start = tensor.shared_buffer()?.addresses().start + tensor.byte_offset();
        Ok(start..start + tensor.len() * tensor.dtype_size())
    };
    let all = tensors.iter().filter(|tensor| !tensor.is_empty()).map(bytes);
    let mut all = all.collect::<Result<Vec<_>, Error>>()?;
    all.sort_unstable_by_key(|bytes| bytes.start);
    match all.windows(2).any(|pair| pair[1].start < pair[0].end) {
        true => invalid(op, "tensors without common elements", "two that share elements"),
        false => Ok(()),
    }
}

fn part(tensor: &RocmTensor) -> Result<Part<'_>, Error> {
    let offset = if tensor.is_empty() { 0 } else { tensor.layout().offset() };
    Ok(Part { buffer: tensor.shared_buffer()?, offset })
}

/// Where a result of the input's shape goes: its own memory, if it has no other owner.
fn overwritten(input: &mut RocmTensor) -> Result<RocmTensor, Error> {
    if input.can_overwrite() { Ok(input.clone()) } else { input.empty_like() }
}

/// What [`Communicator::all_reduce_beside`] reduces.
#[derive(Clone, Copy, Debug)]
pub enum Summand<'a> {
    /// This tensor, in its own memory. Nobody else may hold the memory.
    InPlace(&'a RocmTensor),
    /// The elements of these tensors one after the other, as [`pack`](crate::fused::pack) joins them,
    /// in the pass's reserved tensor with this index.
    Packed(&'a [RocmTensor], usize),
}

/// The result of a collective that may still run.
#[must_use = "the result is lost, and dropping waits for it"]
pub struct Pending {
    output: RocmTensor,
    work: Work,
}

impl Pending {
    /// The result. Later ops of the device come after the collective; the host does not wait.
    ///
    /// # Errors
    /// The group's failure, if it is known by now. The next read or sync returns a later one.
    pub fn join(self) -> Result<RocmTensor, Error> {
        let Self { output, work } = self;
        work.join()?;
        Ok(output)
    }
}

/// The results of several collectives that may still run.
#[must_use = "the results are lost, and dropping waits for them"]
pub struct PendingAll {
    outputs: Vec<RocmTensor>,
    work: Work,
}

impl PendingAll {
    /// The results, in the order of the call. As [`Pending::join`].
    ///
    /// # Errors
    /// As [`Pending::join`].
    pub fn join(self) -> Result<Vec<RocmTensor>, Error> {
        let Self { outputs, work } = self;
        work.join()?;
        Ok(outputs)
    }
}
