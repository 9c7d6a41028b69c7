//! Gradients of many parameters, reduced over the ranks in buckets.

use burn_backend::{DType, TensorMetadata};
use burn_rocm::fused::{one_value, pack, read_all, repeated, scale, unpack};
use burn_rocm::graph::uncaptured;
use burn_rocm::{Communicator, Pass, PassPoints, Pending, ReduceOp, RocmError, RocmTensor};

/// A parameter that every rank has. Its gradient has this shape and dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
}

impl Entry {
    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// Orders a bucket's parameters: those of whole units of 16 bytes first, so that each of them is
/// aligned.
pub(super) fn aligned_first(members: &mut [usize], entries: &[Entry]) {
    let rest = |&member: &usize| {
        let entry = &entries[member];
        !(entry.elements() * entry.dtype.size()).is_multiple_of(16)
    };
    members.sort_by_key(rest);
}

/// How much of the last reduction ran beside the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// The number of buckets.
    pub buckets: usize,
    /// Those that wait only for the work which computes their gradients and those of earlier
    /// buckets, not for all work that the device was given.
    pub beside: usize,
    /// Of these, those for which that work ends before the backward pass does.
    pub before_end: usize,
}

/// The parameters of a model, in buckets.
pub(crate) struct Buckets {
    communicator: Communicator,
    /// The size from which a bucket is full.
    bytes: usize,
    /// Whether to reduce beside the backward pass.
    overlap: bool,
    entries: Vec<Entry>,
    buckets: Vec<Bucket>,
    /// The last backward pass, until its gradients are reduced, with memory for each bucket. That was
    /// allocated before the pass began: what the pool gives out later may be memory that work of the
    /// pass still uses, and a bucket's stream does not wait for all of that work.
    passed: Option<PassPoints>,
    /// After which ops of the backward pass a bucket's gradients were complete the last time.
    wanted: Vec<u32>,
    last: Overlap,
}

/// Gradients of one dtype that are reduced as one tensor. Behind them it has a flag for each, by
/// which a rank without some gradient learns whether another rank has it.
struct Bucket {
    /// The indices of the parameters.
    members: Vec<usize>,
    /// The flag of a gradient that this rank has.
    one: RocmTensor,
    /// The flag and the elements of a gradient that this rank lacks.
    zero: RocmTensor,
}

/// A bucket that is being planned.
struct Open {
    dtype: DType,
    members: Vec<usize>,
    bytes: usize,
    /// The bytes of its members and of all parameters of the dtype that come after them.
    left: usize,
    limit: Limit,
}

/// From which size a bucket is full.
enum Limit {
    Fixed,
    /// If there are several buckets, the last ones are smaller: each takes half of what is left.
    /// Their gradients are complete when little or nothing of the backward pass is left to run
    /// beside them.
    Shrinks,
}

/// The smallest of these buckets is this part of a whole one. On two H200, NCCL reduced 1 MiB in 22
/// us, so a smaller bucket would hardly take less.
const SMALLEST: usize = 16;

impl Open {
    fn limit(&self, bytes: usize) -> usize {
        match self.limit {
            Limit::Fixed => bytes,
            Limit::Shrinks => (self.left / 2).clamp(bytes / SMALLEST, bytes),
        }
    }
}

impl Buckets {
    pub(crate) fn new(communicator: Communicator, bytes: usize, overlap: bool) -> Self {
        Self {
            communicator,
            bytes,
            overlap,
            entries: Vec::new(),
            buckets: Vec::new(),
            passed: None,
            wanted: Vec::new(),
            last: Overlap::default(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn overlap(&self) -> bool {
        self.overlap
    }

    pub(crate) fn last(&self) -> Overlap {
        self.last
    }

    /// Runs the backward pass that computes these parameters' gradients on this thread.
    pub(crate) fn backward<T>(
        &mut self,
        entries: Vec<Entry>,
        run: impl FnOnce() -> T,
    ) -> Result<T, RocmError> {
        // Those of an earlier pass whose gradients were not reduced.
        self.passed = None;
        let device = self.communicator.device();
        if !self.overlap || self.communicator.size() == 1 {
            return Ok(run());
        }
        self.plan(entries)?;
        // A single bucket is complete when the pass is over.
        if self.buckets.len() < 2 {
            return Ok(run());
        }
        let sizes: Vec<_> =
            self.buckets.iter().map(|bucket| (bucket.elements(&self.entries), bucket.one.dtype())).collect();
        // Without the memory, the buckets are reduced after the pass.
        let Some(pass) = Pass::begin_if_fits(&device, &sizes, self.wanted.clone())? else {
            return Ok(run());
        };
        let result = run();
        self.passed = Some(pass.end());
        Ok(result)
    }

    /// Divides the parameters among buckets, beginning with the last one, whose gradient is ready
    /// first. Every rank gets the same buckets, because they depend on the parameters only.
    fn plan(&mut self, entries: Vec<Entry>) -> Result<(), RocmError> {
        if self.entries == entries {
            return Ok(());
        }
        let size = |entry: &Entry| entry.elements() * entry.dtype.size();
        let total = |dtype| entries.iter().filter(|entry| entry.dtype == dtype).map(size).sum();
        let mut open: Vec<Open> = Vec::new();
        let mut plan: Vec<(DType, Vec<usize>)> = Vec::new();
        for (index, entry) in entries.iter().enumerate().rev() {
            let at = open.iter().position(|open| open.dtype == entry.dtype).unwrap_or_else(|| {
                let (dtype, total) = (entry.dtype, total(entry.dtype));
                let limit = if total > self.bytes { Limit::Shrinks } else { Limit::Fixed };
                open.push(Open { dtype, members: Vec::new(), bytes: 0, left: total, limit });
                open.len() - 1
            });
            let open = &mut open[at];
            open.members.push(index);
            open.bytes += size(entry);
            if open.bytes >= open.limit(self.bytes) {
                plan.push((open.dtype, std::mem::take(&mut open.members)));
                open.left -= std::mem::take(&mut open.bytes);
            }
        }
        let rest = open.into_iter().map(|open| (open.dtype, open.members));
        plan.extend(rest.filter(|(_, members)| !members.is_empty()));
        for (_, members) in &mut plan {
            aligned_first(members, &entries);
        }
        let device = self.communicator.device();
        let bucket = |(dtype, members)| {
            // Later steps use them too, and what is captured is written only by the first replay.
            let constant = |value| uncaptured(|| one_value(&device, value, dtype));
            let [one, zero] = [1.0, 0.0].map(constant);
            Ok(Bucket { members, one: one?, zero: zero? })
        };
        self.buckets = plan.into_iter().map(bucket).collect::<Result<_, RocmError>>()?;
        self.entries = entries;
        self.wanted = Vec::new();
        Ok(())
    }

    /// The mean of the ranks' gradients, weighted by `weight`; without it all ranks weigh the same.
    /// There is one gradient for each entry. `None` for a gradient that this rank lacks, and in the
    /// result for one that all ranks lack.
    ///
    /// A rank of weight 0 lacks all gradients, whatever it has: 0 times its flag is 0, and 0 times
    /// an infinity is NaN. Waits for the device only if this rank lacks a gradient.
    pub(crate) fn reduce(
        &mut self,
        entries: Vec<Entry>,
        mut grads: Vec<Option<RocmTensor>>,
        weight: Option<f64>,
    ) -> Result<Vec<Option<RocmTensor>>, RocmError> {
        if self.communicator.size() == 1 {
            return Ok(grads);
        }
        if weight == Some(0.0) {
            grads.fill(None);
        }
        let passed = self.passed.take().filter(|_| self.entries == entries);
        self.plan(entries)?;
        self.last = Overlap { buckets: self.buckets.len(), ..Overlap::default() };
        let mut wanted = Vec::new();
        // The op of the pass after which the rank's stream runs the bucket. The stream runs the
        // buckets in order, behind the work that it was given before. `None` if it waits for all
        // work.
        let mut behind = passed.as_ref().filter(|pass| !self.communicator.issued_since(pass)).map(|_| 0);
        // The next bucket is packed while the ranks reduce the one before. Every rank has the same
        // order, whatever each bucket waits for.
        let mut running = Vec::with_capacity(self.buckets.len());
        for (index, bucket) in self.buckets.iter().enumerate() {
            let mut begin = || {
                let parts = bucket.parts(&self.entries, &grads)?;
                let mut beside = None;
                if let Some(pass) = &passed {
                    let last = bucket.last_use(pass, &grads)?;
                    beside = bucket.start_beside(&self.communicator, (pass, index), &parts, weight)?;
                    let last = last.filter(|_| beside.is_some());
                    let point = last.and_then(|last| pass.point_after(last));
                    behind = behind.zip(point).map(|(behind, point)| behind.max(point));
                    self.last.beside += usize::from(behind.is_some());
                    self.last.before_end += usize::from(behind.is_some_and(|behind| behind < pass.ops()));
                    wanted.extend(last);
                }
                beside.map_or_else(|| start(&self.communicator, &parts, weight), Ok)
            };
            let begun = begin();
            if begun.is_err() && index > 0 {
                // The other ranks wait for this bucket, and this rank can't begin again with the
                // first one.
                self.communicator.abort();
            }
            running.push(begun?);
        }
        if passed.is_some() {
            // The pass begins with a point anyway.
            wanted.retain(|&op| op > 0);
            wanted.sort_unstable();
            wanted.dedup();
            self.wanted = wanted;
        }
        let mut reduced = vec![None; grads.len()];
        let mut unsure = Vec::new();
        for (bucket, pending) in self.buckets.iter().zip(running) {
            let joined = pending.join()?;
            let dims = bucket.members.iter().map(|&member| self.entries[member].dims.as_slice());
            let flag: &[usize] = &[1];
            let mut parts = unpack(&joined, dims.chain(bucket.members.iter().map(|_| flag)))?;
            let flags = parts.split_off(bucket.members.len());
            for ((&member, part), flag) in bucket.members.iter().zip(parts).zip(flags) {
                if grads[member].is_none() {
                    unsure.push((member, flag));
                }
                reduced[member] = Some(part);
            }
        }
        let (members, flags): (Vec<usize>, Vec<RocmTensor>) = unsure.into_iter().unzip();
        for (member, flag) in members.into_iter().zip(read_all(flags)?) {
            if flag.iter::<f64>().all(|flag| flag == 0.0) {
                reduced[member] = None;
            }
        }
        Ok(reduced)
    }
}

/// Packs the parts and begins to reduce them, behind all work that the device was given.
fn start(
    communicator: &Communicator,
    parts: &[RocmTensor],
    weight: Option<f64>,
) -> Result<Pending, RocmError> {
    let packed = pack(parts)?;
    match weight {
        None => communicator.all_reduce(ReduceOp::Average, packed),
        Some(weight) => communicator.all_reduce(ReduceOp::Sum, scale(packed, weight)?),
    }
}

impl Bucket {
    /// The elements of the gradients and flags.
    fn elements(&self, entries: &[Entry]) -> usize {
        let gradients = self.members.iter().map(|&member| entries[member].elements());
        gradients.sum::<usize>() + self.members.len()
    }

    /// What the bucket consists of: the gradients, zeros for those that this rank lacks, and the
    /// flags.
    fn parts(&self, entries: &[Entry], grads: &[Option<RocmTensor>]) -> Result<Vec<RocmTensor>, RocmError> {
        let mut parts = Vec::with_capacity(2 * self.members.len());
        for &member in &self.members {
            let Entry { dims, dtype } = &entries[member];
            parts.push(match &grads[member] {
                Some(grad) if grad.dims() == dims.as_slice() && grad.dtype() == *dtype => grad.clone(),
                Some(grad) => {
                    return Err(RocmError::Invalid {
                        op: "DataParallel::reduce",
                        expected: format!("a gradient of shape {dims:?} of {}", dtype.name()),
                        found: format!("{:?} of {}", grad.dims(), grad.dtype().name()),
                    });
                }
                None => repeated(&self.zero, dims.iter().product())?,
            });
        }
        if self.members.iter().all(|&member| grads[member].is_some()) {
            parts.push(repeated(&self.one, self.members.len())?);
        } else {
            let flag = |member: &usize| if grads[*member].is_some() { &self.one } else { &self.zero };
            parts.extend(self.members.iter().map(|member| flag(member).clone()));
        }
        Ok(parts)
    }

    /// The op of the backward pass that was the last to use one of the gradients.
    fn last_use(&self, pass: &PassPoints, grads: &[Option<RocmTensor>]) -> Result<Option<u32>, RocmError> {
        let own: Vec<_> = self.members.iter().filter_map(|&member| grads[member].clone()).collect();
        pass.last_use(&own)
    }

    /// Packs the parts and begins to reduce them, behind the work that computes the gradients.
    /// `None` if this work is not known.
    fn start_beside(
        &self,
        communicator: &Communicator,
        pass: (&PassPoints, usize),
        parts: &[RocmTensor],
        weight: Option<f64>,
    ) -> Result<Option<Pending>, RocmError> {
        let op = if weight.is_none() { ReduceOp::Average } else { ReduceOp::Sum };
        // The flags' values were written before the pass began, in `plan`.
        communicator.all_reduce_beside(pass, op, parts, &[&self.one, &self.zero], weight)
    }
}
