//! One call of one rank, as the hub compares and computes it.

use super::{Failure, Outcome};
use hip_provider::require;
use rccl_sys::*;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    Send,
    Receive,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Send,
        Self::Receive,
    ];

    fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "ncclAllReduce",
            Self::Broadcast => "ncclBroadcast",
            Self::Reduce => "ncclReduce",
            Self::AllGather => "ncclAllGather",
            Self::ReduceScatter => "ncclReduceScatter",
            Self::Send => "ncclSend",
            Self::Receive => "ncclRecv",
        }
    }
}

/// What all ranks of a collective must agree on. `peer` is the root, or the other rank of a send or
/// receive, else 0. `op` is the sum where nothing is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) kind: Kind,
    pub(super) dtype: ncclDataType_t,
    pub(super) op: ncclRedOp_t,
    pub(super) count: usize,
    pub(super) peer: usize,
}

/// The bytes of an encoded call.
pub(super) const ENCODED: usize = 19;

impl Call {
    /// The call, if every argument is one that RCCL takes.
    pub(super) fn checked(self, size: usize) -> Outcome<Self> {
        let argument = |what: &str| Failure::new(ncclInvalidArgument, format!("{self}: {what}"));
        require(element_bytes(self.dtype).is_some(), argument("the type is unknown"))?;
        require((0..=4).contains(&self.op.0), argument("the reduction is unknown"))?;
        require(self.peer < size, argument(&format!("the group has {size} ranks")))?;
        let all = self.count.checked_mul(8).and_then(|bytes| bytes.checked_mul(size));
        require(all.is_some_and(|bytes| isize::try_from(bytes).is_ok()), argument("too many elements"))?;
        Ok(self)
    }

    /// Bytes of an element.
    pub(super) fn element(&self) -> usize {
        element_bytes(self.dtype).unwrap_or(1)
    }

    /// Bytes that `rank` of `size` gives.
    pub(super) fn sent(&self, rank: usize, size: usize) -> usize {
        let bytes = self.count * self.element();
        match self.kind {
            Kind::ReduceScatter => bytes * size,
            Kind::Broadcast if rank != self.peer => 0,
            Kind::Receive => 0,
            _ => bytes,
        }
    }

    /// Bytes that `rank` of `size` gets.
    pub(super) fn received(&self, rank: usize, size: usize) -> usize {
        let bytes = self.count * self.element();
        match self.kind {
            Kind::AllGather => bytes * size,
            Kind::Reduce if rank != self.peer => 0,
            Kind::Send => 0,
            _ => bytes,
        }
    }

    pub(super) fn encode(&self) -> [u8; ENCODED] {
        let mut bytes = [0; ENCODED];
        bytes[0] = Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or(0) as u8;
        bytes[1] = self.dtype.0 as u8;
        bytes[2] = self.op.0 as u8;
        bytes[3..11].copy_from_slice(&(self.count as u64).to_le_bytes());
        bytes[11..].copy_from_slice(&(self.peer as u64).to_le_bytes());
        bytes
    }

    /// `None` if no call has these bytes.
    pub(super) fn decode(bytes: &[u8; ENCODED], size: usize) -> Option<Self> {
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            usize::try_from(u64::from_le_bytes(eight)).ok()
        };
        let call = Self {
            kind: *Kind::ALL.get(usize::from(bytes[0]))?,
            dtype: ncclDataType_t(i32::from(bytes[1])),
            op: ncclRedOp_t(i32::from(bytes[2])),
            count: number(3)?,
            peer: number(11)?,
        };
        call.checked(size).ok()
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, op, count, peer } = self;
        write!(f, "{}({count} x {dtype:?}", kind.name())?;
        if kind.reduces() {
            write!(f, ", {op:?}")?;
        }
        match kind {
            Kind::Broadcast | Kind::Reduce => write!(f, ", root {peer}")?,
            Kind::Send => write!(f, ", to {peer}")?,
            Kind::Receive => write!(f, ", from {peer}")?,
            _ => {}
        }
        f.write_str(")")
    }
}

/// Bytes of an element; `None` for an unknown type.
fn element_bytes(dtype: ncclDataType_t) -> Option<usize> {
    Some(match dtype {
        ncclInt8 | ncclUint8 | ncclFloat8e4m3 | ncclFloat8e5m2 => 1,
        ncclFloat16 | ncclBfloat16 => 2,
        ncclInt32 | ncclUint32 | ncclFloat32 => 4,
        ncclInt64 | ncclUint64 | ncclFloat64 => 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_the_wire_and_nonsense_does_not() {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let call = Call { kind, dtype: ncclBfloat16, op: ncclAvg, count: 1 << 40, peer: at % 4 };
            assert_eq!(Call::decode(&call.encode(), 4), Some(call));
            for (byte, value) in [(0, 7), (1, 12), (2, 5), (11, 4), (10, 0x7f)] {
                let mut bytes = call.encode();
                bytes[byte] = value;
                assert_eq!(Call::decode(&bytes, 4), None, "{kind:?} byte {byte}");
            }
        }
    }
}
