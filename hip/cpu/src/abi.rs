//! The structs that the device shares with compiled kernels, as in `device/hip_cpu.h` and
//! `device/hip_cpu_table.h`.

use std::ffi::{c_char, c_int, c_void};

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim3 {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl Dim3 {
    pub(crate) fn count(self) -> u64 {
        u64::from(self.x) * u64::from(self.y) * u64::from(self.z)
    }

    /// The position with this index. x runs fastest.
    #[cfg(lockstep)]
    pub(crate) fn at(self, index: u64) -> Self {
        let (x, y) = (u64::from(self.x), u64::from(self.y));
        Self { x: (index % x) as u32, y: (index / x % y) as u32, z: (index / x / y) as u32 }
    }
}

/// `hip_cpu_launch`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchRecord {
    pub(crate) grid: Dim3,
    pub(crate) block_dim: Dim3,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) dynamic_shared: *mut c_void,
    pub(crate) thread: Dim3,
    pub(crate) block: Dim3,
    pub(crate) wave: c_int,
    pub(crate) lane: c_int,
    pub(crate) sync: Option<unsafe extern "C" fn(site: *const c_void)>,
    pub(crate) shared: Option<
        unsafe extern "C" fn(key: *const c_void, bytes: u64, align: u64, name: *const c_char) -> *mut c_void,
    >,
    pub(crate) shuffle: Option<
        unsafe extern "C" fn(
            site: *const c_void,
            value: *const c_void,
            out: *mut c_void,
            bytes: u32,
            source: c_int,
        ),
    >,
    pub(crate) ballot: Option<unsafe extern "C" fn(site: *const c_void, predicate: c_int) -> u64>,
    pub(crate) arguments: *const c_void,
    pub(crate) scratch: Option<unsafe extern "C" fn(bytes: u64) -> *mut c_void>,
}

// SAFETY: native launches share the record read-only, and each part of a launch sets its own
// `dynamic_shared`. Only lockstep uses `arguments`.
unsafe impl Sync for LaunchRecord {}

impl LaunchRecord {
    /// The part of this launch that has `count` blocks, beginning with block `first`.
    pub(crate) fn part(&self, first: u64, count: u64) -> Self {
        Self { first, count, ..*self }
    }
}

/// Runs blocks (native) or one thread (lockstep) of a kernel.
pub(crate) type Run = unsafe extern "C" fn(arguments: *mut *mut c_void, launch: *const LaunchRecord);

/// `hip_cpu_entry`.
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) name: *const c_char,
    pub(crate) run: Option<Run>,
    pub(crate) argument_count: u64,
    pub(crate) layout: *const [u32; 2],
}

/// One translation unit's entries.
#[repr(C)]
pub(crate) struct Table {
    pub(crate) entries: *const Entry,
    pub(crate) count: u64,
}

/// A kernel that can be launched. It is plain data, so its owner must keep the code loaded.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
    /// Size and alignment of each argument.
    pub(crate) layout: &'static [[u32; 2]],
}

impl Kernel {
    /// The arguments in AMD's layout: one after the other, each at its type's alignment (LLVM's
    /// "User Guide for AMDGPU Backend", "Kernarg Segment").
    ///
    /// # Safety
    /// `arguments` has a pointer to each of the kernel's arguments.
    pub(crate) unsafe fn segment(&self, arguments: *mut *mut c_void) -> Vec<u128> {
        let end = self
            .layout
            .iter()
            .fold(0, |end: usize, [size, align]| end.next_multiple_of(*align as usize) + *size as usize);
        // The kernel may read the segment as a struct that has more members than the kernel has
        // parameters, without using the extra ones. So there is some room after the arguments.
        let mut segment = vec![u128::MAX; end.div_ceil(size_of::<u128>()) + 4];
        let mut at: usize = 0;
        for (index, [size, align]) in self.layout.iter().enumerate() {
            at = at.next_multiple_of(*align as usize);
            // SAFETY: the segment has room for all arguments; the caller vouches for each.
            unsafe {
                let to = segment.as_mut_ptr().cast::<u8>().add(at);
                to.copy_from_nonoverlapping((*arguments.add(index)).cast(), *size as usize);
            }
            at += *size as usize;
        }
        segment
    }
}

impl Table {
    /// The table's kernels.
    ///
    /// # Safety
    /// `hip_cpu_table.h` generated the table, and the table stays loaded while the result is used,
    /// although the result's lifetimes are static.
    pub(crate) unsafe fn kernels(&self) -> Vec<Kernel> {
        (0..self.count as usize)
            .filter_map(|i| {
                // SAFETY: the caller vouches for `count` entries.
                let entry = unsafe { &*self.entries.add(i) };
                // SAFETY: a NUL-terminated literal of the translation unit.
                let name = unsafe { std::ffi::CStr::from_ptr(entry.name) };
                // SAFETY: `layout` has a pair for each argument.
                let layout =
                    unsafe { std::slice::from_raw_parts(entry.layout, entry.argument_count as usize) };
                Some(Kernel { name: name.to_str().ok()?, run: entry.run?, layout })
            })
            .collect()
    }
}

/// The size of a launch.
pub(crate) struct LaunchShape {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: u32,
}

/// Shared memory of a block, in bytes, as on AMD's GPUs.
pub(crate) const SHARED_BYTES: u32 = 65536;
/// The most that `BURN_ROCM_CPU_SHARED` may ask for, as on NVIDIA's H100.
pub(crate) const MOST_SHARED_BYTES: u32 = 227 << 10;
