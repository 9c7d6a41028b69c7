//! Pages of host memory, which are used as device memory.

use std::io;
use std::ptr::NonNull;

/// The size of a page in bytes: x86-64's.
pub const PAGE: usize = 4096;

/// Memory of this size or more begins at a multiple of this size, as on a GPU, where AMD's kernel
/// driver maps it in huge pages. The allocator in AMD's device library relies on that: it finds a
/// slab's header by rounding an address down.
const HUGE: usize = 2 << 20;

/// A mapping of whole pages, with at least one inaccessible page on either side.
#[derive(Debug)]
pub struct Pages {
    /// The mapping's start and length, inaccessible pages included.
    mapping: (NonNull<u8>, usize),
    /// The first accessible byte.
    start: NonNull<u8>,
    /// The accessible bytes, a multiple of a page.
    length: usize,
}

// SAFETY: `Pages` owns its mapping and gives out only its address; the kernel lets any thread unmap it.
unsafe impl Send for Pages {}
// SAFETY: as above; no method changes anything.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `size` bytes of zeros. The system gives the memory itself at the first access.
    ///
    /// # Errors
    /// What `mmap` or `mprotect` says, or `InvalidInput` for 0 bytes or more than an address can express.
    pub fn new(size: usize) -> io::Result<Self> {
        let length = size
            .checked_next_multiple_of(PAGE)
            .filter(|&length| length > 0 && length <= isize::MAX as usize - 2 * HUGE)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let alignment = if length >= HUGE { HUGE } else { PAGE };
        let whole = length + alignment + PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<u8>();
        // The offset of the first multiple that leaves room for at least one page before it.
        let offset = (base as usize + PAGE).next_multiple_of(alignment) - base as usize;
        let start = base.wrapping_add(offset);
        let not_null = |pointer| NonNull::new(pointer).ok_or(io::ErrorKind::OutOfMemory);
        let pages = Self { mapping: (not_null(base)?, whole), start: not_null(start)?, length };
        // SAFETY: these pages lie within the mapping just made, which nobody else knows.
        let status = unsafe { libc::mprotect(start.cast(), length, libc::PROT_READ | libc::PROT_WRITE) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages)
    }

    /// The address of the first byte.
    pub fn start(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// A pointer to the first byte. All `length` bytes can be accessed while `self` lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes that can be accessed: what was asked for, rounded up to a page.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Gives the memory back but keeps the addresses reserved, so that nothing else is mapped
    /// there.
    pub fn discard(&self) {
        // SAFETY: `self` owns these pages. Later accesses raise SIGSEGV, as with unmapped memory.
        unsafe {
            libc::madvise(self.start.as_ptr().cast(), self.length, libc::MADV_DONTNEED);
            libc::mprotect(self.start.as_ptr().cast(), self.length, libc::PROT_NONE);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let (base, whole) = self.mapping;
        // SAFETY: `new` mapped exactly this; nobody may use the addresses after the owner is gone.
        unsafe { libc::munmap(base.as_ptr().cast(), whole) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_what_is_written_and_are_rounded_up() {
        let pages = Pages::new(PAGE + 1).expect("two pages can be mapped");
        assert_eq!(pages.length(), 2 * PAGE);
        assert_eq!(pages.start() % PAGE as u64, 0);
        // SAFETY: both bytes lie in the pages, which live.
        unsafe {
            assert_eq!(pages.as_ptr().read(), 0);
            pages.as_ptr().add(2 * PAGE - 1).write(7);
            assert_eq!(pages.as_ptr().add(2 * PAGE - 1).read(), 7);
        }
    }

    #[test]
    fn large_memory_is_aligned() {
        for size in [HUGE, HUGE + 1, 8 * HUGE - 1] {
            let pages = Pages::new(size).expect("so much can be mapped");
            assert_eq!(pages.start() % HUGE as u64, 0);
            // SAFETY: the byte is the last one of the pages, which live.
            unsafe { pages.as_ptr().add(pages.length() - 1).write(1) };
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert!(Pages::new(0).is_err());
        assert!(Pages::new(usize::MAX).is_err());
        assert!(Pages::new(isize::MAX as usize).is_err());
    }
}
