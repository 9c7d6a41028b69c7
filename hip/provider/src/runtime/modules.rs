//! Modules, the kernels in them, and launches.

use super::{Status, api, put};
use crate::require;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use hip_sys::*;

/// The arguments of a launch.
pub struct Launch {
    /// The kernel, not null.
    pub function: hipFunction_t,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: hipStream_t,
    /// A pointer to each argument, or null.
    pub params: *mut *mut c_void,
    extra: *mut *mut c_void,
}

impl Launch {
    /// AMD's checks of grid and block, in AMD's order. `most` is the largest size of the grid's
    /// second and third axes.
    #[inline]
    pub fn check(&self, most: u32) -> Status {
        let Launch { grid, block, .. } = self;
        if grid[0] > i32::MAX as u32 || grid[1] > most || grid[2] > most {
            return Err(hipErrorInvalidValue);
        }
        if u64::from(grid[0]) * u64::from(block[0]) > u64::from(u32::MAX) {
            return Err(hipErrorInvalidConfiguration);
        }
        require(!grid.contains(&0), hipErrorInvalidValue)?;
        require(!block.contains(&0), hipErrorInvalidConfiguration)
    }

    /// The buffer of the arguments and a pointer to its size, if the caller packed the arguments in
    /// one buffer. The caller then passes the list `HIP_LAUNCH_PARAM_BUFFER_POINTER` (1), the
    /// buffer, `HIP_LAUNCH_PARAM_BUFFER_SIZE` (2), the pointer to the size, `HIP_LAUNCH_PARAM_END`
    /// (3).
    #[inline]
    pub fn packed(&self) -> Status<Option<(*mut c_void, *mut usize)>> {
        if self.extra.is_null() {
            return Ok(None);
        }
        require(self.params.is_null(), hipErrorInvalidValue)?;
        // SAFETY: the caller's list of five pointers, by HIP's contract.
        let list = unsafe { core::slice::from_raw_parts(self.extra, 5) };
        let marks = [list[0] as usize, list[2] as usize, list[4] as usize];
        require(marks == [1, 2, 3] && !list[3].is_null(), hipErrorInvalidValue)?;
        Ok(Some((list[1], list[3].cast())))
    }
}

/// A provider's modules. No module or function passed to these methods is null.
pub trait Modules {
    /// Loads a code object.
    ///
    /// # Safety
    /// `image` is a code object, by HIP's contract.
    unsafe fn load(image: *const c_void) -> Status<hipModule_t>;

    /// Unloads a module.
    ///
    /// # Safety
    /// By HIP's contract, modules and functions are live. The same holds for the methods below.
    unsafe fn unload(module: hipModule_t) -> Status;

    /// Finds a kernel by its name, which is not empty.
    ///
    /// # Safety
    /// As [`Modules::unload`].
    unsafe fn function(module: hipModule_t, name: &CStr) -> Status<hipFunction_t>;

    /// Launches a kernel.
    ///
    /// # Safety
    /// As [`Modules::unload`]; the arguments are the kernel's.
    unsafe fn launch(launch: &Launch) -> Status;

    /// How many blocks of `threads` threads, at least one, fit on a compute unit.
    ///
    /// # Safety
    /// As [`Modules::unload`].
    unsafe fn occupancy(function: hipFunction_t, threads: c_int, shared_bytes: usize) -> Status<c_int>;
}

pub(super) unsafe extern "C" fn hipModuleLoadData<M: Modules>(
    module: *mut hipModule_t,
    image: *const c_void,
) -> hipError_t {
    api(|| {
        require(!module.is_null() && !image.is_null(), hipErrorInvalidValue)?;
        // SAFETY: the caller's code object, handles, texts and out-pointers, by HIP's contract,
        // here and below.
        unsafe { put(module, M::load(image)?) }
    })
}

pub(super) unsafe extern "C" fn hipModuleUnload<M: Modules>(module: hipModule_t) -> hipError_t {
    api(|| {
        require(!module.is_null(), hipErrorInvalidHandle)?;
        // SAFETY: as above.
        unsafe { M::unload(module) }
    })
}

pub(super) unsafe extern "C" fn hipModuleGetFunction<M: Modules>(
    function: *mut hipFunction_t,
    module: hipModule_t,
    name: *const c_char,
) -> hipError_t {
    api(|| {
        require(!function.is_null() && !name.is_null(), hipErrorInvalidValue)?;
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) };
        require(!name.is_empty(), hipErrorInvalidValue)?;
        require(!module.is_null(), hipErrorInvalidHandle)?;
        // SAFETY: as above.
        unsafe { put(function, M::function(module, name)?) }
    })
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn hipModuleLaunchKernel<M: Modules>(
    function: hipFunction_t,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: hipStream_t,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> hipError_t {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    api(|| {
        require(!function.is_null(), hipErrorInvalidHandle)?;
        // SAFETY: as above.
        unsafe { M::launch(&Launch { function, grid, block, shared_bytes, stream, params, extra }) }
    })
}

pub(super) unsafe extern "C" fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor<M: Modules>(
    blocks: *mut c_int,
    function: hipFunction_t,
    block_size: c_int,
    shared_bytes: usize,
) -> hipError_t {
    api(|| {
        require(!function.is_null(), hipErrorInvalidDeviceFunction)?;
        require(block_size > 0, hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { put(blocks, M::occupancy(function, block_size, shared_bytes)?) }
    })
}
