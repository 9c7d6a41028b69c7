//! A block's shared memory. Each array lies between fences and is poisoned when the block begins.

use super::Mistake;
use crate::abi::{MOST_SHARED_BYTES, SHARED_BYTES};
use crate::settings::settings;
use std::{
    alloc::{Layout, alloc, handle_alloc_error},
    ffi::c_void,
};

/// Bytes between arrays.
const FENCE: usize = 64;
const FENCE_BYTE: u8 = 0xc3;
/// A GPU's shared memory starts with arbitrary values. All bits set is NaN in every float type and
/// -1 in signed integers.
const POISON_BYTE: u8 = 0xff;

/// Bytes after the last array that are checked too.
const TAIL: usize = 4096;
/// Bytes for the arrays and their fences. Only the arrays count towards the limit.
const ARENA: usize = 4 * SHARED_BYTES as usize;
const _: () = assert!(MOST_SHARED_BYTES as usize + 2 * TAIL < ARENA);

/// The shared memory of the running block.
pub(super) struct SharedMemory {
    arena: *mut u8,
    arrays: Vec<Array>,
    /// The first free byte.
    next: usize,
    /// Bytes of all arrays, and the most that they may have.
    used: usize,
    limit: usize,
    dynamic: bool,
}

// SAFETY: plain memory, used by one launch at a time.
unsafe impl Send for SharedMemory {}

struct Array {
    key: *const c_void,
    name: String,
    start: usize,
    bytes: usize,
}

impl SharedMemory {
    pub(super) fn new() -> Self {
        let layout = Layout::from_size_align(ARENA, 4096).unwrap_or(Layout::new::<u8>());
        // SAFETY: the layout's size is not 0. The arena is never freed, because it belongs to the
        // process's only `Machine`.
        let arena = unsafe { alloc(layout) };
        if arena.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: freshly allocated, of this size.
        unsafe { arena.write_bytes(FENCE_BYTE, ARENA) };
        let limit = settings().map_or(SHARED_BYTES, |settings| settings.shared) as usize;
        Self { arena, arrays: Vec::new(), next: 0, used: 0, limit, dynamic: false }
    }

    /// Begins a block with `dynamic_bytes` of dynamic shared memory.
    pub(super) fn begin(&mut self, dynamic_bytes: u32) {
        // SAFETY: inside the arena.
        unsafe { self.arena.write_bytes(FENCE_BYTE, (self.next + TAIL).min(ARENA)) };
        self.arrays.clear();
        (self.next, self.used) = (FENCE, 0);
        self.dynamic = dynamic_bytes > 0;
        if self.dynamic {
            let _ = self.array(std::ptr::null(), u64::from(dynamic_bytes), 256, || "of the launch".into());
        }
    }

    /// The array of dynamic shared memory; null if there is none.
    pub(super) fn dynamic(&self) -> *mut c_void {
        match self.arrays.first() {
            // SAFETY: inside the arena.
            Some(array) if self.dynamic => unsafe { self.arena.add(array.start) }.cast(),
            _ => std::ptr::null_mut(),
        }
    }

    /// The block's array with this key. The first request makes it.
    pub(super) fn array(
        &mut self,
        key: *const c_void,
        bytes: u64,
        align: u64,
        name: impl FnOnce() -> String,
    ) -> Result<*mut c_void, Mistake> {
        let bytes = bytes as usize;
        if let Some(array) = self.arrays.iter().find(|array| array.key == key) {
            // SAFETY: inside the arena.
            return Ok(unsafe { self.arena.add(array.start) }.cast());
        }
        let start = self.next.next_multiple_of((align as usize).clamp(16, 4096));
        self.used += bytes;
        if self.used > self.limit || start + bytes + FENCE + TAIL > ARENA {
            let Self { used, limit, .. } = self;
            return Err(Mistake::Threads(format!("{used} bytes of shared memory; a block has {limit}")));
        }
        self.arrays.push(Array { key, name: name(), start, bytes });
        self.next = start + bytes + FENCE;
        // SAFETY: inside the arena.
        Ok(unsafe {
            let array = self.arena.add(start);
            array.write_bytes(POISON_BYTE, bytes);
            array.cast()
        })
    }

    /// Checks that all fences are intact.
    pub(super) fn check(&self) -> Result<(), Mistake> {
        if self.arrays.is_empty() {
            return Ok(());
        }
        // SAFETY: the arena up to the fence after the last array; no thread of the block runs.
        let arena = unsafe { std::slice::from_raw_parts(self.arena, self.next + TAIL) };
        let mut from = 0;
        for (i, array) in self.arrays.iter().enumerate() {
            if let Some(at) = arena[from..array.start].iter().position(|byte| *byte != FENCE_BYTE) {
                // Blame the nearer of the two arrays.
                let (after, before) = (at, array.start - from - at);
                return Err(if i > 0 && after < before {
                    self.overrun(i - 1, format!("{after} bytes past its end"))
                } else {
                    self.overrun(i, format!("{before} bytes before its start"))
                });
            }
            from = array.start + array.bytes;
        }
        match arena[from..].iter().position(|byte| *byte != FENCE_BYTE) {
            Some(at) => Err(self.overrun(self.arrays.len() - 1, format!("{at} bytes past its end"))),
            None => Ok(()),
        }
    }

    fn overrun(&self, array: usize, place: String) -> Mistake {
        let Array { name, bytes, .. } = &self.arrays[array];
        Mistake::Memory(format!("a write outside the shared array {name} of {bytes} bytes, {place}"))
    }
}
