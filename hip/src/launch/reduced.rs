//! Chains that end in a sum along an axis, computed by the same kernel (`chain_reduce.hip`).

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use bytemuck::{Pod, Zeroable};
use hip_kernels::{DType, KernelName};

use crate::device::Device;
use crate::error::Result;
use crate::launch::chain::Elements;
use crate::launch::grid::Grid;
use crate::launch::steps::Steps;
use crate::memory::buffer::carry_faults;
use crate::profile::work::Who;
use crate::summary::ledger;
use crate::trace;
use crate::watch::{PROFILE, SUMMARY, TRACE, watched};

/// A sum of the last deferred result, seen as `[outer, len, inner]`, over its middle axis.
#[derive(Debug, Clone, Copy)]
pub struct DeferredSum<'a> {
    /// The instantiation of `chain_rows` or `chain_columns`.
    pub kernel: KernelName,
    /// The grid of the reduction alone, which decides the order of the sums.
    pub grid: Grid,
    /// The contiguous elements that are summed.
    pub input: Elements<'a>,
    /// Their dtype.
    pub dtype: DType,
    /// Whether nobody reads the elements afterwards, so that they need not be stored.
    pub is_last_use: bool,
    /// `[outer, len, inner]`.
    pub sizes: [usize; 3],
    /// Into how many parts each sum is cut.
    pub parts: usize,
    /// What a mean divides by.
    pub count: usize,
    /// The sums, `[outer, parts, inner]`.
    pub out: Elements<'a>,
    /// The dtype of the sums.
    pub out_dtype: DType,
}

/// `Reduced` of `chain_reduce.hip`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Reduced {
    steps: Steps,
    sizes: [u64; 3],
    parts: u64,
    count: u64,
    out: u64,
}

impl Device {
    /// Launches the list of deferred ops whose last result is the input, together with the sum.
    /// Returns `false` and does nothing if no list ends in the input, if the list has several
    /// dtypes, or if the sums share memory with the list.
    ///
    /// # Errors
    /// `Invalid` for a range past its buffer's end or a buffer of another device; `Compilation` if
    /// the kernel does not compile.
    pub fn reduce_deferred(&self, op: &'static str, reduction: DeferredSum<'_>) -> Result<bool> {
        let stream = self.stream();
        if !stream.defers() {
            return Ok(false);
        }
        let DeferredSum { kernel, grid, input, dtype, sizes, parts, count, out, out_dtype, .. } = reduction;
        let [outer, len, inner] = sizes;
        let elements = outer.saturating_mul(len).saturating_mul(inner);
        let sums = outer.saturating_mul(parts).saturating_mul(inner);
        self.check_range(op, input.buffer, input.byte_offset, elements.saturating_mul(dtype.size()))?;
        let sum_bytes = sums.saturating_mul(out_dtype.size());
        self.check_range(op, out.buffer, out.byte_offset, sum_bytes)?;
        let address = (input.buffer.address() + input.byte_offset) as u64;
        let to = (out.buffer.address() + out.byte_offset) as u64;
        // Done before the lists are locked, because this may record an event, and that launches the
        // lists.
        carry_faults([input.buffer], [out.buffer]);
        let mut lists = stream.chain.pending();
        let own = lists.iter().position(|list| {
            list.is_of(elements)
                && list.dtype == Some(dtype)
                && list.last_result() == Some(address)
                && !list.uses(to, to + sum_bytes as u64)
        });
        let Some(own) = own else { return Ok(false) };
        let loaded = self.built_in(kernel)?;
        // The sums may be where the others read or write.
        for (_, list) in lists.iter_mut().enumerate().filter(|(at, _)| *at != own) {
            stream.launch_pending(list);
        }
        let list = &mut lists[own];
        if reduction.is_last_use {
            list.forget(address, address + 1);
        }
        let watched = watched();
        if watched & PROFILE != 0 {
            list.ops.push(Who::here());
        }
        let sizes = [outer as u64, len as u64, inner as u64];
        let mut argument =
            Reduced { steps: list.steps, sizes, parts: parts as u64, count: count as u64, out: to };
        list.kernel = None;
        stream.launch_as(list, &loaded, grid, sum_bytes, std::ptr::from_mut(&mut argument).cast::<c_void>());
        stream.chain.any.store(false, Ordering::Release);
        drop(lists);
        if watched & SUMMARY != 0 {
            ledger::joined(&kernel.to_string(), false);
        }
        if watched & TRACE != 0 {
            trace::say(&format_args!("kernel {kernel}"));
        }
        Ok(true)
    }
}
