//! One rank's call: its arguments, checked, and how RCCL takes them.

use std::fmt;
use std::sync::Arc;

use rccl_sys::*;

use crate::collective::element::Element;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::memory::buffer::Buffer;
use crate::memory::span::Span;

/// What a reduction does with the ranks' elements. Integers wrap around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Product,
    /// The largest element. If some are NaN, RCCL does not say which it is.
    Max,
    /// The smallest element.
    Min,
    /// The sum divided by the number of ranks. For integers, rounded towards 0.
    Average,
}

/// A place in a buffer, from which a call counts its elements.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The buffer.
    pub buffer: &'a Arc<Buffer>,
    /// The first element, counted in elements of the call's dtype.
    pub offset: usize,
}

impl<'a> Part<'a> {
    /// The buffer from its first element on.
    pub fn whole(buffer: &'a Arc<Buffer>) -> Self {
        Self { buffer, offset: 0 }
    }

    /// The buffer from this element on.
    pub fn at(buffer: &'a Arc<Buffer>, offset: usize) -> Self {
        Self { buffer, offset }
    }

    /// `count` elements from here on.
    fn span(&self, op: &'static str, device: &Device, dtype: Element, count: usize) -> Result<Span> {
        let bytes = |elements: usize| {
            let overflow =
                || Error::invalid(op, "a size that fits memory", format!("{elements} elements of {dtype}"));
            elements.checked_mul(dtype.size()).ok_or_else(overflow)
        };
        Span::new(op, device.info().index, self.buffer, bytes(self.offset)?, bytes(count)?)
    }
}

impl<'a> From<&'a Arc<Buffer>> for Part<'a> {
    fn from(buffer: &'a Arc<Buffer>) -> Self {
        Self::whole(buffer)
    }
}

/// Which call, with the root or the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    AllReduce(ReduceOp),
    Broadcast(usize),
    Reduce(ReduceOp, usize),
    AllGather,
    ReduceScatter(ReduceOp),
    Send(usize),
    Receive(usize),
}

/// What all ranks of a collective must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) kind: Kind,
    pub(super) dtype: Element,
    pub(super) count: usize,
}

/// What a rank does next. The ranks of a group must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A call.
    Call(Call),
    /// A call that becomes part of a graph.
    Capture(Call),
    /// A launch of a graph.
    Replay(Replay),
}

/// A graph's calls, as [`Replay::of`] finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Replay {
    pub(super) calls: usize,
    pub(super) first: Call,
    /// A hash of the collectives, with their order.
    pub(super) hash: u128,
}

impl Replay {
    /// Describes a rank's calls: the collectives, in which the ranks agree, or the sends and receives if
    /// there are no collectives. `None` for no calls.
    pub(super) fn of(calls: &[Call]) -> Option<Self> {
        let collectives: Vec<Call> = calls.iter().filter(|call| call.kind.is_collective()).copied().collect();
        let hash = collectives.iter().fold(Digest::new(), |hash, call| hash.part(&call.to_string())).finish();
        let calls = if collectives.is_empty() { calls } else { &collectives };
        Some(Self { calls: calls.len(), first: *calls.first()?, hash })
    }
}

/// A checked call.
pub(super) struct Prepared {
    pub(super) call: Call,
    /// Null for a call that sends nothing, or receives nothing.
    send: Span,
    recv: Span,
    /// The buffers, which must live until the device is past the call.
    pub(super) buffers: [Option<Arc<Buffer>>; 2],
}

impl Kind {
    /// The method's name.
    pub(super) fn op(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::Broadcast(_) => "broadcast",
            Self::Reduce(..) => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::Send(_) => "send",
            Self::Receive(_) => "receive",
        }
    }

    /// RCCL's function.
    pub(super) fn function(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "ncclAllReduce",
            Self::Broadcast(_) => "ncclBroadcast",
            Self::Reduce(..) => "ncclReduce",
            Self::AllGather => "ncclAllGather",
            Self::ReduceScatter(_) => "ncclReduceScatter",
            Self::Send(_) => "ncclSend",
            Self::Receive(_) => "ncclRecv",
        }
    }

    /// Whether all ranks take part.
    pub(super) fn is_collective(self) -> bool {
        !matches!(self, Self::Send(_) | Self::Receive(_))
    }

    /// Whether what `rank` gives is in what it gets.
    pub(super) fn moves_on(self, rank: usize) -> bool {
        match self {
            Self::Broadcast(root) | Self::Reduce(_, root) => rank == root,
            _ => true,
        }
    }

    fn reduction(self) -> Option<ReduceOp> {
        match self {
            Self::AllReduce(op) | Self::Reduce(op, _) | Self::ReduceScatter(op) => Some(op),
            _ => None,
        }
    }

    fn other_rank(self) -> Option<usize> {
        match self {
            Self::Broadcast(rank) | Self::Reduce(_, rank) | Self::Send(rank) | Self::Receive(rank) => {
                Some(rank)
            }
            _ => None,
        }
    }
}

impl Call {
    /// Checks a call of `rank` of `size` ranks, on a device.
    ///
    /// # Errors
    /// `Unsupported` for a reduction of a type that RCCL lacks. `Invalid` for a root or peer that
    /// is no rank, a range outside its buffer or on another device, and ranges that overlap other
    /// than in place.
    pub(super) fn prepare(
        self,
        device: &Device,
        (rank, size): (usize, usize),
        send: Option<Part<'_>>,
        recv: Option<Part<'_>>,
    ) -> Result<Prepared> {
        let Self { kind, dtype, count } = self;
        let op = kind.op();
        if let Some(other) = kind.other_rank().filter(|&other| other >= size) {
            return Err(Error::invalid(op, format!("a rank below {size}"), format!("rank {other}")));
        }
        if kind.reduction().is_some() {
            dtype.can_be_reduced(op, device)?;
        }
        let all = count.checked_mul(size).ok_or_else(|| {
            Error::invalid(
                op,
                "a size that fits memory",
                format!("{count} elements for each of {size} ranks"),
            )
        })?;
        // What RCCL ignores need not be valid: such a rank calls in place.
        let (send, recv) = match kind {
            Kind::Broadcast(root) if root != rank => (recv, recv),
            Kind::Reduce(_, root) if root != rank => (send, send),
            _ => (send, recv),
        };
        // What this rank gives and gets, in elements.
        let (given, got) = match kind {
            Kind::AllGather => (count, all),
            Kind::ReduceScatter(_) => (all, count),
            _ => (count, count),
        };
        let span = |part: Option<Part<'_>>, elements| match part {
            Some(part) => part.span(op, device, dtype, elements),
            None => Ok(Span::NULL),
        };
        let (send_span, recv_span) = (span(send, given)?, span(recv, got)?);
        // In place, one range begins in the other at this distance.
        let own = rank * count * dtype.size();
        let in_place = match kind {
            Kind::AllGather => recv_span.ptr.wrapping_byte_add(own) == send_span.ptr,
            Kind::ReduceScatter(_) => send_span.ptr.wrapping_byte_add(own) == recv_span.ptr,
            _ => send_span.ptr == recv_span.ptr,
        };
        if !in_place {
            recv_span.apart_from(op, &[send_span])?;
        }
        let buffers = [send, recv].map(|part| part.map(|part| part.buffer.clone()));
        // The rank's stream writes it beside the compute stream, whose later work may join it in
        // another op.
        buffers[1].iter().for_each(|buffer| buffer.lend());
        Ok(Prepared { call: self, send: send_span, recv: recv_span, buffers })
    }
}

impl Prepared {
    /// Makes the call.
    ///
    /// # Safety
    /// The handle is alive, and the stream is on its device. The buffers live until the stream is
    /// past the call.
    pub(super) unsafe fn issue(
        &self,
        library: &Rccl,
        comm: ncclComm_t,
        stream: hip_sys::hipStream_t,
    ) -> ncclResult_t {
        let (send, recv, op) = (self.send.ptr.cast_const(), self.recv.ptr, reduction(self.call.kind));
        // A type that RCCL lacks moves as bytes. So does fp8, which older libraries lack.
        let Call { kind, dtype: element, count } = self.call;
        let as_bytes = kind.reduction().is_none() && matches!(element, Element::Fp8(_));
        let (dtype, count) = match element.datatype() {
            Some(dtype) if !as_bytes => (dtype, count),
            _ => (ncclUint8, count * element.size()),
        };
        // SAFETY: the functions are RCCL's; `prepare` checked that the ranges lie in their buffers,
        // which the caller keeps.
        unsafe {
            match self.call.kind {
                Kind::AllReduce(_) => (library.ncclAllReduce)(send, recv, count, dtype, op, comm, stream),
                Kind::Broadcast(root) => {
                    (library.ncclBroadcast)(send, recv, count, dtype, root as i32, comm, stream)
                }
                Kind::Reduce(_, root) => {
                    (library.ncclReduce)(send, recv, count, dtype, op, root as i32, comm, stream)
                }
                Kind::AllGather => (library.ncclAllGather)(send, recv, count, dtype, comm, stream),
                Kind::ReduceScatter(_) => {
                    (library.ncclReduceScatter)(send, recv, count, dtype, op, comm, stream)
                }
                Kind::Send(peer) => (library.ncclSend)(send, count, dtype, peer as i32, comm, stream),
                Kind::Receive(peer) => (library.ncclRecv)(recv, count, dtype, peer as i32, comm, stream),
            }
        }
    }
}

/// RCCL's name of a call's reduction; the sum for a call that reduces nothing.
fn reduction(kind: Kind) -> ncclRedOp_t {
    match kind.reduction() {
        None | Some(ReduceOp::Sum) => ncclSum,
        Some(ReduceOp::Product) => ncclProd,
        Some(ReduceOp::Max) => ncclMax,
        Some(ReduceOp::Min) => ncclMin,
        Some(ReduceOp::Average) => ncclAvg,
    }
}

impl Step {
    /// Whether all ranks take it.
    pub(super) fn of_all_ranks(self) -> bool {
        match self {
            Self::Call(call) | Self::Capture(call) => call.kind.is_collective(),
            Self::Replay(_) => true,
        }
    }

    /// HIP's or RCCL's function, for errors.
    pub(super) fn function(self) -> &'static str {
        match self {
            Self::Call(call) | Self::Capture(call) => call.kind.function(),
            Self::Replay(_) => "hipGraphLaunch",
        }
    }

    /// The method's name.
    pub(super) fn op(self) -> &'static str {
        match self {
            Self::Call(call) | Self::Capture(call) => call.kind.op(),
            Self::Replay(_) => "Graph::replay",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(call) => call.fmt(f),
            Self::Capture(call) => write!(f, "{call} in a capture"),
            // The hash distinguishes graphs with the same number of calls.
            Self::Replay(Replay { calls, first, hash }) => {
                write!(
                    f,
                    "the replay of a graph of {calls} calls from {first} on (hash {:08x})",
                    *hash as u32
                )
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, count } = self;
        write!(f, "{}(", kind.op())?;
        if let Some(op) = kind.reduction() {
            write!(f, "{op:?}, ")?;
        }
        write!(f, "{count} x {dtype}")?;
        match kind {
            Kind::Broadcast(root) | Kind::Reduce(_, root) => write!(f, ", root {root}")?,
            Kind::Send(peer) => write!(f, ", to {peer}")?,
            Kind::Receive(peer) => write!(f, ", from {peer}")?,
            _ => {}
        }
        f.write_str(")")
    }
}
