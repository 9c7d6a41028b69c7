//! Computes a collective that all ranks have called.

use super::call::{Call, Kind};
use crate::numeric::fp8::{E4M3, E5M2};
use crate::numeric::shared::Shared;
use crate::runtime::parallel_ranges;
use half::{bf16, f16};
use rccl_sys::*;
use std::ptr;

/// Elements that one task reduces: its sums stay in the first-level cache.
const BLOCK: usize = 1024;

/// One rank's memory for a call.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) send: *const u8,
    pub(super) recv: *mut u8,
}

/// An element type that can be reduced.
trait Element: Copy + Send + Sync + 'static {
    /// The type of sums.
    type Sum: Copy + Default;
    fn widen(self) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
    fn combine(op: ncclRedOp_t, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn divide(sum: Self::Sum, ranks: usize) -> Self::Sum;
}

macro_rules! floats {
    ($($t:ty, $sum:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $t {
            type Sum = $sum;
            #[inline(always)]
            fn widen(self) -> $sum {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(sum: $sum) -> $t {
                $narrow(sum)
            }
            #[inline(always)]
            fn combine(op: ncclRedOp_t, a: $sum, b: $sum) -> $sum {
                match op {
                    ncclProd => a * b,
                    ncclMax => a.max(b),
                    ncclMin => a.min(b),
                    _ => a + b,
                }
            }
            #[inline(always)]
            fn divide(sum: $sum, ranks: usize) -> $sum {
                sum / ranks as $sum
            }
        }
    )*};
}
floats! {
    f64, f64, |value| value, |sum| sum;
    f32, f32, |value| value, |sum| sum;
    f16, f32, f16::to_f32, f16::from_f32;
    bf16, f32, bf16::to_f32, bf16::from_f32;
    E4M3, f32, E4M3::to_f32, E4M3::from_f32;
    E5M2, f32, E5M2::to_f32, E5M2::from_f32;
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Sum = $t;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(sum: $t) -> $t {
                sum
            }
            #[inline(always)]
            fn combine(op: ncclRedOp_t, a: $t, b: $t) -> $t {
                match op {
                    ncclProd => a.wrapping_mul(b),
                    ncclMax => a.max(b),
                    ncclMin => a.min(b),
                    _ => a.wrapping_add(b),
                }
            }
            /// Rounds towards 0, as RCCL does. A count of ranks that the type can't hold is larger
            /// than every sum.
            #[inline(always)]
            fn divide(sum: $t, ranks: usize) -> $t {
                <$t>::try_from(ranks).map_or(0, |ranks| sum.wrapping_div(ranks))
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

/// Computes a call for all ranks. `memory` has one entry for each rank.
///
/// # Safety
/// Each rank's memory holds what [`Call::sent`] and [`Call::received`] say, aligned to elements.
/// Nothing else accesses it. A rank's two ranges are apart, or the call is in place as NCCL defines
/// it: the ranges begin at the same address, or in a gathering or scattering call the smaller range
/// is the rank's own part of the larger one.
pub(super) unsafe fn compute(call: &Call, memory: &[Memory]) {
    let bytes = call.count * call.element();
    match call.kind {
        Kind::AllReduce => {
            let outputs: Vec<_> = memory.iter().map(|rank| rank.recv).collect();
            // SAFETY: the caller's memory, here and below.
            unsafe { reduce(call, memory, 0, &outputs) }
        }
        // SAFETY: as above.
        Kind::Reduce => unsafe { reduce(call, memory, 0, &[memory[call.peer].recv]) },
        Kind::ReduceScatter => {
            for (rank, own) in memory.iter().enumerate() {
                // SAFETY: as above. In place, a rank's result lies where only this result is
                // computed from.
                unsafe { reduce(call, memory, rank * call.count, &[own.recv]) }
            }
        }
        Kind::Broadcast => {
            for rank in memory {
                // SAFETY: as above.
                unsafe { copy(memory[call.peer].send, rank.recv, bytes) }
            }
        }
        Kind::AllGather => {
            for (part, from) in memory.iter().enumerate() {
                for to in memory {
                    // SAFETY: as above.
                    unsafe { copy(from.send, to.recv.add(part * bytes), bytes) }
                }
            }
        }
        Kind::Send | Kind::Receive => {}
    }
}

/// Copies bytes, unless they are there already.
///
/// # Safety
/// Both ranges are valid, and apart or the same.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if !ptr::eq(from, to) {
        // SAFETY: the caller's ranges.
        unsafe { ptr::copy(from, to, bytes) }
    }
}

/// Reduces `call.count` elements of every rank, from element `first` on, into each output.
///
/// # Safety
/// As for [`compute`].
unsafe fn reduce(call: &Call, memory: &[Memory], first: usize, outputs: &[*mut u8]) {
    let (op, count) = (call.op, call.count);
    // SAFETY: the caller's memory has elements of this type.
    unsafe {
        match call.dtype {
            ncclInt8 => reduce_as::<i8>(op, count, memory, first, outputs),
            ncclUint8 => reduce_as::<u8>(op, count, memory, first, outputs),
            ncclInt32 => reduce_as::<i32>(op, count, memory, first, outputs),
            ncclUint32 => reduce_as::<u32>(op, count, memory, first, outputs),
            ncclInt64 => reduce_as::<i64>(op, count, memory, first, outputs),
            ncclUint64 => reduce_as::<u64>(op, count, memory, first, outputs),
            ncclFloat16 => reduce_as::<f16>(op, count, memory, first, outputs),
            ncclFloat32 => reduce_as::<f32>(op, count, memory, first, outputs),
            ncclFloat64 => reduce_as::<f64>(op, count, memory, first, outputs),
            ncclFloat8e4m3 => reduce_as::<E4M3>(op, count, memory, first, outputs),
            ncclFloat8e5m2 => reduce_as::<E5M2>(op, count, memory, first, outputs),
            _ => reduce_as::<bf16>(op, count, memory, first, outputs),
        }
    }
}

/// # Safety
/// As for [`reduce`], with elements of `T`.
unsafe fn reduce_as<T: Element>(
    op: ncclRedOp_t,
    count: usize,
    memory: &[Memory],
    first: usize,
    outputs: &[*mut u8],
) {
    let inputs: Vec<_> = memory.iter().map(|rank| Shared(rank.send.cast_mut().cast::<T>())).collect();
    let outputs: Vec<_> = outputs.iter().map(|output| Shared(output.cast::<T>())).collect();
    let (inputs, outputs) = (&inputs, &outputs);
    parallel_ranges(count, BLOCK, |range| {
        let mut sums = [T::Sum::default(); BLOCK];
        let sums = &mut sums[..range.len()];
        for (rank, input) in inputs.iter().enumerate() {
            for (at, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's memory; a task writes only elements that it alone reads.
                let value = unsafe { input.get().add(first + range.start + at).read() }.widen();
                *sum = if rank == 0 { value } else { T::combine(op, *sum, value) };
            }
        }
        if op == ncclAvg {
            sums.iter_mut().for_each(|sum| *sum = T::divide(*sum, inputs.len()));
        }
        for output in outputs {
            for (at, sum) in sums.iter().enumerate() {
                // SAFETY: as above.
                unsafe { output.get().add(range.start + at).write(T::narrow(*sum)) }
            }
        }
    });
}
