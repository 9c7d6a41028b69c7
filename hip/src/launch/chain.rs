//! Chains: element-wise ops over tensors of one length, which are deferred and launched together.
//!
//! A small op spends its time on the launch (2 to 4 us of the host's time, depending on the
//! driver), not on its elements. A large op spends it on reading and writing memory. One launch for
//! several ops saves launches, and passes over memory. Therefore a device's compute stream keeps
//! lists of deferred steps. Any other work on the stream, any event recorded in it and any wait for
//! it launches the lists first, so only the timing differs. The kernel applies the steps to each
//! element in their order. It uses the same functors as the ops' own kernels and rounds each result
//! to the tensor's dtype, so the bits are the same.

use std::sync::atomic::Ordering;

use hip_kernels::{DType, Functor, Template};

use crate::device::Device;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::launch::map::{Mapped, Over};
use crate::launch::steps::{Access, Next, Operand, Pending};
use crate::memory::buffer::{Buffer, carry_faults};
use crate::profile::work::{Who, WorkKind};
use crate::summary::ledger;
use crate::trace;
use crate::watch::{PROFILE, SUMMARY, TRACE, watched};

/// Vector accesses need addresses that are multiples of this.
const ALIGNMENT: usize = 16;

/// Elements of a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// The byte offset of the first element.
    pub byte_offset: usize,
    /// The shape and strides of the elements; `None` if they are contiguous.
    pub over: Option<Over<'a>>,
}

/// The operands of an element-wise op.
#[derive(Debug, Clone, Copy)]
pub enum Operands<'a> {
    /// A value alone, for the functor `Fill`.
    Value(f32),
    /// A tensor.
    One(Elements<'a>),
    /// A tensor, and a value that is the same for every element.
    Scalar(Elements<'a>, f32),
    /// Two tensors.
    Two(Elements<'a>, Elements<'a>),
}

/// An element-wise op that may be deferred: `out[i] = functor(a[i], b[i])`, computed in f32. `out`
/// is contiguous, and may be an operand that is.
#[derive(Debug, Clone, Copy)]
pub struct ElementWise<'a> {
    /// The function.
    pub functor: Functor,
    /// The dtype of the operands.
    pub from: DType,
    /// The dtype of the result.
    pub dtype: DType,
    /// The number of elements of the result.
    pub len: usize,
    /// The functor's arguments.
    pub operands: Operands<'a>,
    /// The result.
    pub out: Elements<'a>,
}

impl Device {
    /// How many element-wise ops one launch can join ([`Config::chain`](crate::Config::chain)); with
    /// 0 or 1, each is launched by itself.
    pub fn chain_limit(&self) -> usize {
        self.chain_limit
    }

    /// Whether an element-wise op whose result has `bytes` bytes may be deferred; `Err` says why
    /// not. It also needs a functor that `chain.hip` has, and tensors at 16-byte boundaries.
    pub fn defers(&self, dtype: DType, bytes: usize) -> std::result::Result<(), &'static str> {
        match dtype {
            _ if self.chain_limit == 0 => Err("chains are off on this device or by BURN_ROCM_CHAIN"),
            _ if bytes == 0 => Err("no elements"),
            _ if bytes > self.chain_bytes => Err("a result of more bytes than BURN_ROCM_CHAIN_BYTES"),
            DType::F32 | DType::F16 | DType::BF16 => Ok(()),
            _ => Err("chains have f32, f16 and bf16 only"),
        }
    }

    /// Whether [`put_off`](Self::put_off) takes an op like this, if its operands suit a chain.
    pub fn may_put_off(&self, functor: Functor, dtype: DType, len: usize) -> bool {
        let bytes = len.saturating_mul(dtype.size());
        self.defers(dtype, bytes).is_ok() && functor.in_chain().is_some() && len <= i32::MAX as usize
    }

    /// Defers an op, to launch it together with others. Returns `false` and does nothing if the op
    /// can't be deferred:
    /// - its result is empty or larger than [`Config::chain_bytes`](crate::Config::chain_bytes);
    /// - its result or a contiguous operand is not at a 16-byte boundary;
    /// - an operand is strided along more than four axes, or shares memory with the result at other
    ///   elements;
    /// - the kernel lacks the functor or dtype;
    /// - chains are off for the device.
    ///
    /// # Errors
    /// `Invalid` for a range past its buffer's end or a buffer of another device; `Compilation` if
    /// the kernel does not compile.
    pub fn put_off(&self, op: &'static str, step: ElementWise<'_>) -> Result<bool> {
        let ElementWise { functor, from, dtype, len, operands, out } = step;
        let may = [from, dtype].iter().all(|&dtype| self.may_put_off(functor, dtype, len));
        let Some(number) = functor.in_chain().filter(|_| may) else { return Ok(false) };
        let (a, b, value) = match operands {
            Operands::Value(value) => (None, None, value),
            Operands::One(a) => (Some(a), None, 0.0),
            Operands::Scalar(a, value) => (Some(a), None, value),
            Operands::Two(a, b) => (Some(a), Some(b), 0.0),
        };
        // Done before the lists are locked, because this may record an event, and that launches the
        // lists.
        carry_faults([a, b].into_iter().flatten().map(|read| read.buffer), [out.buffer]);
        let operand = |elements: Option<Elements<'_>>| match elements {
            None => Ok(Some(Operand::Scalar(value))),
            Some(elements) => Ok(self.access(op, elements, from, len)?.map(Operand::Tensor)),
        };
        let (Some(a), Some(b)) = (operand(a)?, operand(b)?) else { return Ok(false) };
        let Some(out) = self.access(op, out, dtype, len)?.filter(|out| out.mapped.is_none()) else {
            return Ok(false);
        };
        let copies_halves = functor == Functor::Cast && from == dtype && dtype != DType::F32;
        let next = Next { functor: number as u8, from, to: dtype, operands: [a, b], out, copies_halves };
        if !next.is_sound() {
            return Ok(false);
        }
        let stream = self.stream();
        let mut lists = stream.chain.pending();
        let pending = list_for(stream, &mut *lists, &next, len);
        let first = pending.count() == 0;
        let dtype = Some(dtype).filter(|_| from == dtype && (first || pending.dtype == Some(dtype)));
        let kernel = dtype.map_or(Template::chain_mixed.ty(DType::F32), |dtype| Template::chain.ty(dtype));
        if first || pending.dtype != dtype {
            pending.kernel = Some(self.built_in(kernel)?);
            pending.dtype = dtype;
        }
        if first {
            // A thread takes eight elements.
            pending.begin(self.grid_bytes(len * 2), len);
            // The thread that begins the list counts the kernel, because another thread may launch
            // it.
            trace::count(WorkKind::Kernel);
        }
        let watched = watched();
        if watched & PROFILE != 0 {
            pending.ops.push(Who::here());
        }
        pending.push(next);
        if pending.count() >= self.chain_limit {
            stream.launch_pending(pending);
        }
        stream.chain.any.store(lists.iter().any(|list| list.count() > 0), Ordering::Release);
        drop(lists);
        if watched & SUMMARY != 0 {
            ledger::joined(&kernel.to_string(), first);
        }
        if watched & TRACE != 0 {
            trace::say(&format_args!("kernel {kernel}, {functor}"));
        }
        Ok(true)
    }

    /// The memory of an operand or a result of `len` elements; `None` if the kernel can't access it
    /// as it lies.
    fn access(
        &self,
        op: &'static str,
        elements: Elements<'_>,
        dtype: DType,
        len: usize,
    ) -> Result<Option<Access>> {
        let Elements { buffer, byte_offset, over } = elements;
        let size = dtype.size();
        let mapped = match over {
            None => None,
            Some(over) if over.shape.iter().product::<usize>() != len => return Ok(None),
            Some(over) => match Mapped::new(over) {
                None => return Ok(None),
                Some(mapped) => Some(mapped),
            },
        };
        let (least, greatest) = mapped.as_ref().map_or((0, len as isize - 1), |m| (m.least, m.greatest));
        let span = (greatest - least) as usize * size + size;
        let Some(begin) = byte_offset.checked_add_signed(least * size as isize) else {
            let found = format!("an element {} before it", least.unsigned_abs());
            return Err(Error::invalid(op, "elements behind the buffer's start", found));
        };
        self.check_range(op, buffer, begin, span)?;
        let start = (buffer.address() + begin) as u64;
        let address = (buffer.address() + byte_offset) as u64;
        let aligned = address.is_multiple_of(ALIGNMENT as u64);
        let mapped = match mapped {
            Some(mapped) if !(mapped.is_contiguous() && aligned) => {
                Some((mapped.source(address, size), mapped.map))
            }
            _ if !aligned => return Ok(None),
            _ => None,
        };
        Ok(Some(Access { address, start, end: start + span as u64, mapped }))
    }
}

/// The list that the op joins. Launches what must come before the op.
fn list_for<'l>(stream: &Stream, lists: &'l mut [Pending], next: &Next, len: usize) -> &'l mut Pending {
    // A conversion may suit both lists. It joins the one that computes its operand.
    let shares = lists.iter().position(|list| list.takes(next, len) && !list.is_apart_from(next));
    let own = shares.or_else(|| lists.iter().position(|list| list.takes(next, len)));
    for (at, list) in lists.iter_mut().enumerate() {
        let stays = if own == Some(at) { list.fits(next) } else { list.is_apart_from(next) };
        if list.count() > 0 && !stays {
            stream.launch_pending(list);
        }
    }
    let Some(at) = own.or_else(|| lists.iter().position(|list| list.count() == 0)) else {
        // The lengths have changed, so each list begins anew.
        lists.iter_mut().for_each(|list| stream.launch_pending(list));
        return &mut lists[0];
    };
    &mut lists[at]
}
