//! rocBLAS's workspace, if it is limited.

use rocblas_sys::Rocblas;

use super::{Blas, Handle, check};
use crate::Result;
use crate::device::Device;
use crate::memory::arena::ALIGN;
use crate::memory::kind::MemoryKind;
use crate::memory::pool::Purpose;

/// What a handle allocates by default on most GPUs. It then grows when a product asks for more.
const MOST: usize = 32 << 20;

impl Blas {
    /// Gives the handle a workspace of at most `limit` bytes, which never grows; does nothing without
    /// a limit. rocBLAS chooses among the algorithms that fit into it (`get_available_workspace` in
    /// its `tensile_host.cpp`).
    ///
    /// rocBLAS takes a workspace of 0 bytes as permission to allocate its own. So a lower limit
    /// gives it 256 bytes, the smallest block of the pool.
    ///
    /// # Errors
    /// `OutOfMemory`; `Rocblas` if the library fails.
    pub(super) fn limit_workspace(&self, device: &Device, limit: usize) -> Result<()> {
        if limit == usize::MAX {
            return Ok(());
        }
        let bytes = limit.clamp(ALIGN, MOST);
        let _label = MemoryKind::Workspaces.label();
        // Not given back: the device owns both this handle and the pool, and drops the handle first.
        let block = device.pool.allocate(bytes, Purpose::Compute)?;
        let set = device.call(&self.handle).and_then(|handle| {
            let Handle { table, raw } = &*handle;
            let table: &Rocblas = table;
            // SAFETY: the handle is valid. The pool keeps the block for as long as the device lives,
            // because nobody frees it once it is set. Only the handle's own calls use it, in the order
            // of its stream.
            let status = unsafe { (table.rocblas_set_workspace)(*raw, block.address as *mut _, bytes) };
            check(table, "rocblas_set_workspace", status, || format!("{bytes} bytes"))
        });
        // The caller drops the handle then, and the next call makes another.
        set.inspect_err(|_| device.pool.free(block, 0))
    }
}
