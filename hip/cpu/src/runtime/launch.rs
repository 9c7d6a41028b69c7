//! Launches.

use super::{
    device::{Device, blocks_per_unit, max_block},
    module::{Function, function},
    pool::{parallel, threads},
    settings,
    stream::stream_device,
};
use crate::abi::{Dim3, Kernel, LaunchRecord, LaunchShape, SHARED_BYTES};
use hip_provider::runtime::{Status, api, check_launch, put};
use hip_sys::*;
use std::{
    cell::RefCell,
    ffi::{c_int, c_uint, c_void},
};

/// The most arguments that a kernel may take when they come packed in one buffer.
const MAX_PACKED: usize = 64;

thread_local! {
    /// Shared memory that a launch asks for by size; one block runs on a thread at a time.
    static DYNAMIC: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
#[allow(dead_code, reason = "kernels write it")]
struct Line([u8; 64]);

thread_local! {
    /// Memory for a kernel's block that is too large for a stack: an application's threads may have
    /// small stacks.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// The thread's scratch memory, grown to `bytes`; contents undefined.
unsafe extern "C" fn scratch(bytes: u64) -> *mut c_void {
    SCRATCH.with_borrow_mut(|memory| {
        let lines = (bytes as usize).div_ceil(size_of::<Line>());
        if memory.len() < lines {
            memory.resize(lines, Line([0; 64]));
        }
        memory.as_mut_ptr().cast()
    })
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn hipModuleLaunchKernel(
    handle: hipFunction_t,
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
    api(|| {
        let device = stream_device(stream, hipErrorInvalidValue)?;
        let function = function(handle).ok_or(hipErrorInvalidHandle)?;
        let shape = LaunchShape {
            grid: Dim3 { x: grid_x, y: grid_y, z: grid_z },
            block: Dim3 { x: block_x, y: block_y, z: block_z },
            shared_bytes,
        };
        check(&shape, &function, device)?;
        if extra.is_null() {
            if params.is_null() && !function.kernel.layout.is_empty() {
                return Err(hipErrorInvalidValue);
            }
            // SAFETY: one pointer a parameter, by HIP's contract.
            unsafe { run(device, &function.kernel, &shape, params) }
        } else {
            if !params.is_null() {
                return Err(hipErrorInvalidValue);
            }
            let mut pointers = [std::ptr::null_mut(); MAX_PACKED];
            // SAFETY: the caller's list, by HIP's contract.
            unsafe { unpack(&function.kernel, extra, &mut pointers) }?;
            // SAFETY: one pointer a parameter, into the caller's buffer.
            unsafe { run(device, &function.kernel, &shape, pointers.as_mut_ptr()) }
        }
    })
}

/// AMD's checks, in AMD's order.
fn check(shape: &LaunchShape, function: &Function, device: &Device) -> Status {
    let LaunchShape { grid, block, shared_bytes } = shape;
    check_launch([grid.x, grid.y, grid.z], [block.x, block.y, block.z], 65536)?;
    if *shared_bytes > SHARED_BYTES || block.count() > u64::from(max_block()?) {
        return Err(hipErrorInvalidValue);
    }
    if function.device.index != device.index {
        return Err(hipErrorInvalidDevice);
    }
    Ok(())
}

/// Finds each argument in a packed buffer: `HIP_LAUNCH_PARAM_BUFFER_POINTER` (1), the buffer,
/// `HIP_LAUNCH_PARAM_BUFFER_SIZE` (2), a pointer to its size, `HIP_LAUNCH_PARAM_END` (3).
///
/// # Safety
/// `extra` is such a list.
unsafe fn unpack(kernel: &Kernel, extra: *mut *mut c_void, out: &mut [*mut c_void; MAX_PACKED]) -> Status {
    // SAFETY: the caller's.
    let list = unsafe { std::slice::from_raw_parts(extra, 5) };
    if [list[0] as usize, list[2] as usize, list[4] as usize] != [1, 2, 3] || list[3].is_null() {
        return Err(hipErrorInvalidValue);
    }
    // SAFETY: the list has a pointer to the size here.
    let size = unsafe { *list[3].cast::<usize>() };
    if kernel.layout.len() > MAX_PACKED {
        return Err(hipErrorInvalidValue);
    }
    let mut offset = 0;
    for ([bytes, align], out) in kernel.layout.iter().zip(out) {
        offset = usize::next_multiple_of(offset, *align as usize);
        // SAFETY: checked against the size just below, before anybody reads there.
        *out = list[1].wrapping_byte_add(offset);
        offset += *bytes as usize;
    }
    if list[1].is_null() || offset > size { Err(hipErrorInvalidValue) } else { Ok(()) }
}

/// # Safety
/// `arguments` has a pointer to each of the kernel's arguments.
unsafe fn run(
    device: &'static Device,
    kernel: &Kernel,
    shape: &LaunchShape,
    arguments: *mut *mut c_void,
) -> Status {
    let _order = device.lock();
    device.check()?;
    if let Some(wave) = settings()?.wave {
        // SAFETY: the caller's.
        unsafe { run_in_lockstep(device, kernel, shape, arguments, wave) };
        return Ok(());
    }
    let blocks = shape.grid.count();
    let record = LaunchRecord {
        grid: shape.grid,
        block_dim: shape.block,
        first: 0,
        count: blocks,
        dynamic_shared: std::ptr::null_mut(),
        thread: Dim3 { x: 0, y: 0, z: 0 },
        block: Dim3 { x: 0, y: 0, z: 0 },
        wave: 1,
        lane: 0,
        sync: None,
        shared: None,
        shuffle: None,
        ballot: None,
        arguments: std::ptr::null(),
        scratch: Some(scratch),
    };
    if shape.shared_bytes == 0 && (blocks == 1 || threads() == 1) {
        // SAFETY: the caller's; the kernel was compiled for this CPU.
        unsafe { (kernel.run)(arguments, &record) };
        return Ok(());
    }
    let run = kernel.run;
    let arguments = arguments as usize;
    let shared_words = shape.shared_bytes.div_ceil(8) as usize;
    // Many tiny blocks go a few at a time.
    let step = blocks.div_ceil(threads() as u64 * 64).max(1);
    parallel(blocks.div_ceil(step) as usize, |chunk| {
        let first = chunk as u64 * step;
        let mut part = record.part(first, step.min(blocks - first));
        if shared_words == 0 {
            // SAFETY: as above; kernels let their blocks run side by side, and none changes the arguments.
            unsafe { run(arguments as *mut *mut c_void, &part) };
        } else {
            DYNAMIC.with_borrow_mut(|memory| {
                memory.resize(shared_words.max(memory.len()), 0);
                part.dynamic_shared = memory.as_mut_ptr().cast();
                // SAFETY: as above.
                unsafe { run(arguments as *mut *mut c_void, &part) };
            });
        }
    });
    Ok(())
}

/// # Safety
/// `arguments` has a pointer to each of the kernel's arguments.
#[cfg(lockstep)]
unsafe fn run_in_lockstep(
    device: &'static Device,
    kernel: &Kernel,
    shape: &LaunchShape,
    arguments: *mut *mut c_void,
    wave: u32,
) {
    let seed = settings().map_or(0, |settings| settings.seed);
    // SAFETY: the caller's.
    let mut done = unsafe { crate::lockstep::run(kernel, shape, arguments, wave, seed) };
    if done.is_ok()
        && let Some((address, bytes)) = super::memory::broken_fence()
    {
        done = Err(super::Fault {
            status: hipErrorIllegalAddress,
            text: format!(
                "kernel {}: wrote past the end of the allocation of {bytes} bytes at {address:#x} \
                 (BURN_ROCM_CPU_SEED={seed})",
                kernel.name
            ),
        });
    }
    if let Err(fault) = done {
        device.set_fault(fault);
    }
}

/// Without the feature, settings refuse lockstep, so that no launch gets here.
#[cfg(not(lockstep))]
unsafe fn run_in_lockstep(_: &'static Device, _: &Kernel, _: &LaunchShape, _: *mut *mut c_void, _: u32) {}

pub(super) unsafe extern "C" fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    handle: hipFunction_t,
    block_size: c_int,
    _shared_bytes: usize,
) -> hipError_t {
    api(|| {
        function(handle).ok_or(hipErrorInvalidDeviceFunction)?;
        let size = u32::try_from(block_size).map_err(|_| hipErrorInvalidValue)?;
        if size == 0 {
            return Err(hipErrorInvalidValue);
        }
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(blocks, blocks_per_unit(size)? as c_int) }
    })
}
