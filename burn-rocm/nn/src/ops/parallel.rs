//! Gradients of many parameters, reduced over the ranks in buckets.

use burn_backend::{DType, TensorData, TensorMetadata};
use burn_rocm::fused::{held_alone, one_value, pack, read_all, repeated, scale_in_place, unpack, upload};
use burn_rocm::graph::uncaptured;
use burn_rocm::{
    Behind, Communicator, Pass, PassPoints, PendingAll, ReduceOp, RocmError, RocmTensor, Summand,
};

use super::buckets::{Entry, Planned, plan};
use super::order::Orders;

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

/// Rank 0's numbers, on every rank. All ranks must have as many.
pub(crate) fn of_rank_0(ranks: &Communicator, numbers: &[usize]) -> Result<Vec<usize>, RocmError> {
    if ranks.size() == 1 || numbers.is_empty() {
        return Ok(numbers.to_vec());
    }
    let data = TensorData::new(numbers.iter().map(|&number| number as i64).collect(), [numbers.len()]);
    let sent = ranks.broadcast(0, upload(data, DType::I64, &ranks.device())?)?.join()?;
    let sent = read_all(vec![sent])?;
    Ok(sent.iter().flat_map(|data| data.iter::<i64>()).map(|number| number as usize).collect())
}

/// Whether all ranks say yes. Waits for the device.
pub(crate) fn all_are(ranks: &Communicator, own: bool) -> Result<bool, RocmError> {
    let own = one_value(&ranks.device(), if own { 1.0 } else { 0.0 }, DType::F32)?;
    let least = ranks.all_reduce(ReduceOp::Min, own)?.join()?;
    Ok(read_all(vec![least])?.remove(0).iter::<f32>().all(|yes| yes == 1.0))
}

/// Whether two tensors have the same dtype, shape and bits.
pub(crate) fn is_equal(lhs: &RocmTensor, rhs: &RocmTensor) -> Result<bool, RocmError> {
    if lhs.dims() != rhs.dims() || lhs.dtype() != rhs.dtype() {
        return Ok(false);
    }
    let data = read_all(vec![lhs.clone(), rhs.clone()])?;
    Ok(data[0].as_bytes() == data[1].as_bytes())
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
    orders: Orders,
    /// The last backward pass, until its gradients are reduced.
    passed: Option<Passed>,
    /// After which ops of the backward pass a bucket's gradients were complete the last time.
    wanted: Vec<u32>,
    /// Whether a gradient was not reduced in its own memory the last time, for each parameter.
    elsewhere: Vec<bool>,
    last: Overlap,
}

/// A backward pass, with memory for what is packed. That was allocated before the pass began: what
/// the pool gives out later may be memory that work of the pass still uses, and a bucket's stream
/// does not wait for all of that work.
struct Passed {
    points: PassPoints,
    /// What each reserved tensor is for.
    reserved: Vec<Place>,
}

/// What is packed: the small gradients of a bucket, or the gradient of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Small(usize),
    Of(usize),
}

/// Gradients of one dtype that are reduced together. Behind the small gradients of the dtype's last
/// bucket there is a flag for each parameter, by which a rank without some gradient learns whether
/// another rank has it.
struct Bucket {
    planned: Planned,
    /// The flag of a gradient that this rank has.
    one: RocmTensor,
    /// The flag and the elements of a gradient that this rank lacks.
    zero: RocmTensor,
}

/// What a bucket's call reduces.
enum Operand {
    /// A gradient in its own memory.
    InPlace(RocmTensor),
    /// Tensors that are packed.
    Packed(Vec<RocmTensor>, Place),
}

impl Buckets {
    pub(crate) fn new(communicator: Communicator, bytes: usize, overlap: bool) -> Self {
        Self {
            communicator,
            bytes,
            overlap,
            entries: Vec::new(),
            buckets: Vec::new(),
            orders: Orders::default(),
            passed: None,
            wanted: Vec::new(),
            elsewhere: Vec::new(),
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
        let (mut reserved, mut sizes) = (Vec::new(), Vec::new());
        for (index, bucket) in self.buckets.iter().enumerate() {
            let small = bucket.small_elements(&self.entries);
            let whole = bucket.planned.whole.iter().filter(|&&member| self.elsewhere[member]);
            let whole = whole.map(|&member| (Place::Of(member), self.entries[member].elements()));
            for (place, elements) in
                (small > 0).then_some((Place::Small(index), small)).into_iter().chain(whole)
            {
                reserved.push(place);
                sizes.push((elements, bucket.planned.dtype));
            }
        }
        // Without the memory, the buckets are reduced after the pass.
        let Some(pass) = Pass::begin_if_fits(&device, &sizes, self.wanted.clone())? else {
            return Ok(run());
        };
        let result = run();
        self.passed = Some(Passed { points: pass.end(), reserved });
        Ok(result)
    }

    fn plan(&mut self, entries: Vec<Entry>) -> Result<(), RocmError> {
        if self.entries == entries {
            return Ok(());
        }
        let device = self.communicator.device();
        let mut constants: Vec<(DType, [RocmTensor; 2])> = Vec::new();
        let mut buckets = Vec::new();
        for planned in plan(&entries, self.bytes) {
            let dtype = planned.dtype;
            let [one, zero] = match constants.iter().find(|(of, _)| *of == dtype) {
                Some((_, both)) => both.clone(),
                None => {
                    // Later steps use them too, and what is captured is written only by the first replay.
                    let constant = |value| uncaptured(|| one_value(&device, value, dtype));
                    let both = [constant(1.0)?, constant(0.0)?];
                    constants.push((dtype, both.clone()));
                    both
                }
            };
            buckets.push(Bucket { planned, one, zero });
        }
        self.buckets = buckets;
        self.orders = Orders::default();
        self.elsewhere = vec![false; entries.len()];
        self.entries = entries;
        self.wanted = Vec::new();
        Ok(())
    }

    /// The mean of the ranks' gradients, weighted by `weight`; without it all ranks weigh the same.
    /// There is one gradient for each entry. `None` for a gradient that this rank lacks, and in the
    /// result for one that all ranks lack.
    ///
    /// A rank of weight 0 lacks all gradients, whatever it has: 0 times its flag is 0, and 0 times
    /// an infinity is NaN. Waits for the device only if this rank lacks a gradient, and once when the
    /// ranks agree on the gradients' order.
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
        self.orders.agree(&self.communicator, &self.entries, &grads)?;
        for (entry, grad) in grads.iter_mut().enumerate() {
            *grad = grad.take().map(|grad| self.orders.turned(entry, grad)).transpose()?;
        }
        let shapes = self.orders.shapes(&self.entries);
        self.last = Overlap { buckets: self.buckets.len(), ..Overlap::default() };
        // Before any of them has another holder, or is used by a bucket.
        let alone = held_alone(&grads);
        self.elsewhere = alone.iter().map(|alone| !alone).collect();
        let present: Vec<bool> = grads.iter().map(Option::is_some).collect();
        let points = passed.as_ref().map(|passed| &passed.points);
        let behinds: Vec<_> = match points {
            None => self.buckets.iter().map(|_| None).collect(),
            Some(points) => {
                let behind = |bucket: &Bucket| points.behind(&bucket.own(&grads));
                self.buckets.iter().map(behind).collect::<Result<_, _>>()?
            }
        };
        let mut wanted = Vec::new();
        // The op of the pass after which the rank's stream runs the bucket. The stream runs the
        // buckets in order, behind the work that it was given before. `None` if it waits for all
        // work.
        let mut last_point = points.filter(|points| !self.communicator.issued_since(points)).map(|_| 0);
        // The next bucket is packed while the ranks reduce the one before. Every rank has the same
        // order, whatever each bucket waits for.
        let mut running = Vec::with_capacity(self.buckets.len());
        for (index, (bucket, behind)) in self.buckets.iter().zip(&behinds).enumerate() {
            let mut begin = || {
                let operands = bucket.operands(index, shapes, &mut grads, &alone, &present)?;
                let mut beside = None;
                if let (Some(passed), Some(behind)) = (&passed, behind) {
                    beside = bucket.start_beside(&self.communicator, passed, behind, &operands, weight)?;
                }
                let behind = behind.as_ref().filter(|_| beside.is_some());
                last_point = last_point.zip(behind).map(|(before, behind)| before.max(behind.point()));
                let ops = points.map_or(0, PassPoints::ops);
                self.last.beside += usize::from(last_point.is_some());
                self.last.before_end += usize::from(last_point.is_some_and(|point| point < ops));
                wanted.extend(behind.map(Behind::last_use));
                let is_flat = operands.iter().map(|operand| matches!(operand, Operand::Packed(..))).collect();
                let pending = beside.map_or_else(|| start(&self.communicator, operands, weight), Ok)?;
                Ok((pending, is_flat))
            };
            let begun: Result<(PendingAll, Vec<bool>), RocmError> = begin();
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
        for (bucket, (pending, is_flat)) in self.buckets.iter().zip(running) {
            let mut joined = pending.join()?.into_iter().zip(is_flat);
            let Planned { packed, whole, flags, .. } = &bucket.planned;
            let dims = |member: &usize| shapes[*member].dims.as_slice();
            if !packed.is_empty() || !flags.is_empty() {
                let (small, _) = joined.next().expect("the small gradients come first");
                let flag: &[usize] = &[1];
                let mut parts = unpack(&small, packed.iter().map(dims).chain(flags.iter().map(|_| flag)))?;
                let values = parts.split_off(packed.len());
                unsure.extend(flags.iter().zip(values).filter(|(member, _)| !present[**member]));
                packed.iter().zip(parts).for_each(|(&member, part)| reduced[member] = Some(part));
            }
            for (member, (result, is_flat)) in whole.iter().zip(joined) {
                reduced[*member] = match is_flat {
                    true => unpack(&result, [dims(member)])?.pop(),
                    false => Some(result),
                };
            }
        }
        for (entry, grad) in reduced.iter_mut().enumerate() {
            *grad = grad.take().map(|grad| self.orders.restored(entry, grad)).transpose()?;
        }
        let (members, flags): (Vec<&usize>, Vec<RocmTensor>) = unsure.into_iter().unzip();
        for (&member, flag) in members.into_iter().zip(read_all(flags)?) {
            if flag.iter::<f64>().all(|flag| flag == 0.0) {
                reduced[member] = None;
            }
        }
        self.orders.ended();
        Ok(reduced)
    }
}

/// Packs what is to be packed, and begins to reduce, behind all work that the device was given.
fn start(
    communicator: &Communicator,
    operands: Vec<Operand>,
    weight: Option<f64>,
) -> Result<PendingAll, RocmError> {
    let tensor = |operand| {
        let tensor = match operand {
            Operand::InPlace(grad) => grad,
            Operand::Packed(parts, _) => pack(&parts)?,
        };
        // `scale` would copy gradients that share a buffer, and those of a bucket that could not be
        // reduced beside the pass, because its point in the pass refers to their memory.
        if let Some(weight) = weight {
            scale_in_place(&tensor, weight)?;
        }
        Ok(tensor)
    };
    let tensors = operands.into_iter().map(tensor).collect::<Result<_, RocmError>>()?;
    communicator.all_reduce_into(reduction(weight), tensors)
}

fn reduction(weight: Option<f64>) -> ReduceOp {
    if weight.is_none() { ReduceOp::Average } else { ReduceOp::Sum }
}

impl Bucket {
    /// The elements of the small gradients and the flags.
    fn small_elements(&self, entries: &[Entry]) -> usize {
        let gradients = self.planned.packed.iter().map(|&member| entries[member].elements());
        gradients.sum::<usize>() + self.planned.flags.len()
    }

    /// This rank's gradients.
    fn own<'g>(&self, grads: &'g [Option<RocmTensor>]) -> Vec<&'g RocmTensor> {
        let members = self.planned.packed.iter().chain(&self.planned.whole);
        members.filter_map(|&member| grads[member].as_ref()).collect()
    }

    /// What the bucket's call reduces: the small gradients and the flags, then the others. Takes the
    /// gradients. Those that this rank lacks are zeros.
    fn operands(
        &self,
        index: usize,
        entries: &[Entry],
        grads: &mut [Option<RocmTensor>],
        alone: &[bool],
        present: &[bool],
    ) -> Result<Vec<Operand>, RocmError> {
        let mut gradient = |member: usize| {
            let Entry { dims, dtype } = &entries[member];
            match grads[member].take() {
                Some(grad) if grad.dims() == dims.as_slice() && grad.dtype() == *dtype => Ok(grad),
                Some(grad) => Err(RocmError::Invalid {
                    op: "DataParallel::reduce",
                    expected: format!("a gradient of shape {dims:?} of {}", dtype.name()),
                    found: format!("{:?} of {}", grad.dims(), grad.dtype().name()),
                }),
                None => repeated(&self.zero, dims.iter().product()),
            }
        };
        let Planned { packed, whole, flags, .. } = &self.planned;
        let mut operands = Vec::with_capacity(1 + whole.len());
        if !packed.is_empty() || !flags.is_empty() {
            let mut parts = packed.iter().map(|&member| gradient(member)).collect::<Result<Vec<_>, _>>()?;
            if flags.iter().all(|&member| present[member]) {
                parts.extend((!flags.is_empty()).then(|| repeated(&self.one, flags.len())).transpose()?);
            } else {
                let flag = |member: &usize| if present[*member] { &self.one } else { &self.zero };
                parts.extend(flags.iter().map(|member| flag(member).clone()));
            }
            operands.push(Operand::Packed(parts, Place::Small(index)));
        }
        for &member in whole {
            let grad = gradient(member)?;
            operands.push(match alone[member] {
                true => Operand::InPlace(grad),
                false => Operand::Packed(vec![grad], Place::Of(member)),
            });
        }
        Ok(operands)
    }

    /// Packs what is to be packed, and begins to reduce, behind the work that computes the gradients.
    /// `None` if there is no memory for something that is packed.
    fn start_beside(
        &self,
        communicator: &Communicator,
        passed: &Passed,
        behind: &Behind<'_>,
        operands: &[Operand],
        weight: Option<f64>,
    ) -> Result<Option<PendingAll>, RocmError> {
        let mut summands = Vec::with_capacity(operands.len());
        for operand in operands {
            summands.push(match operand {
                Operand::InPlace(grad) => Summand::InPlace(grad),
                Operand::Packed(parts, place) => {
                    let index = passed.reserved.iter().position(|reserved| reserved == place);
                    let Some(index) = index else { return Ok(None) };
                    Summand::Packed(parts, index)
                }
            });
        }
        // The flags' values were written before the pass began, in `plan`.
        let (pass, constants) = ((&passed.points, behind), [&self.one, &self.zero]);
        communicator.all_reduce_beside(pass, reduction(weight), &summands, &constants, weight)
    }
}
