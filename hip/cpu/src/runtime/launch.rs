//! Kernel launches.

use super::{
    Host,
    capture::{enqueue, is_captured},
    device::{Device, blocks_per_unit, max_block},
    module::{self, Function, function},
    pool::{parallel, threads},
    settings,
    stream::{ordered, place},
};
use crate::abi::{Dim3, Kernel, LaunchRecord, LaunchShape};
use crate::settings::Failure;
use hip_provider::require;
use hip_provider::runtime::{Launch, Modules, Status};
use hip_sys::*;
use std::{
    cell::{Cell, RefCell},
    ffi::{CStr, c_int, c_void},
    mem::ManuallyDrop,
    sync::Arc,
};

/// The most arguments that a launch may pack in one buffer, or that a captured launch may have.
const MAX_PACKED: usize = 64;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
#[allow(dead_code, reason = "kernels write it")]
struct Line([u8; 64]);

thread_local! {
    /// Dynamic shared memory. Each thread runs one block at a time.
    static DYNAMIC: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    /// Memory for a block's data that is too large for the stack, because an application's threads
    /// may have small stacks.
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    /// Replaces `SCRATCH` while the thread ends, after `SCRATCH` was dropped. It has no destructor,
    /// so its memory leaks in a thread that uses it.
    static LAST_SCRATCH: RefCell<ManuallyDrop<Vec<Line>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Grows memory to `bytes`. The contents of the new part are undefined.
fn grow(memory: &mut Vec<Line>, bytes: u64) -> *mut c_void {
    let lines = (bytes as usize).div_ceil(size_of::<Line>());
    if memory.len() < lines {
        memory.resize(lines, Line([0; 64]));
    }
    memory.as_mut_ptr().cast()
}

/// The thread's scratch memory, grown to `bytes`. Its contents are undefined.
unsafe extern "C" fn scratch(bytes: u64) -> *mut c_void {
    SCRATCH
        .try_with(|memory| grow(&mut memory.borrow_mut(), bytes))
        .unwrap_or_else(|_| LAST_SCRATCH.with_borrow_mut(|memory| grow(memory, bytes)))
}

impl Modules for Host {
    unsafe fn load(image: *const c_void) -> Status<hipModule_t> {
        // SAFETY: the caller's code object.
        unsafe { module::load(image) }
    }

    unsafe fn unload(module: hipModule_t) -> Status {
        module::unload(module)
    }

    unsafe fn function(module: hipModule_t, name: &CStr) -> Status<hipFunction_t> {
        module::find(module, name)
    }

    unsafe fn launch(launch: &Launch) -> Status {
        let place = place(launch.stream, hipErrorInvalidValue)?;
        let function = function(launch.function).ok_or(hipErrorInvalidHandle)?;
        require(!Failure::Launch.is_asked(), hipErrorOutOfMemory)?;
        check(launch, &function, place.device)?;
        let side = |[x, y, z]: [u32; 3]| Dim3 { x, y, z };
        let (grid, block) = (side(launch.grid), side(launch.block));
        let shape = LaunchShape { grid, block, shared_bytes: launch.shared_bytes };
        let kernel = &function.kernel;
        let Some((buffer, size)) = launch.packed()? else {
            require(!launch.params.is_null() || kernel.layout.is_empty(), hipErrorInvalidValue)?;
            // SAFETY: one pointer for each parameter, by HIP's contract.
            return ordered(&place, |device| unsafe { run(device, &function, shape, launch.params) });
        };
        let mut pointers = [std::ptr::null_mut(); MAX_PACKED];
        // SAFETY: the caller's pointer to the size, by HIP's contract.
        unpack(kernel, buffer, unsafe { *size }, &mut pointers)?;
        // SAFETY: one pointer for each parameter, into the caller's buffer.
        ordered(&place, |device| unsafe { run(device, &function, shape, pointers.as_mut_ptr()) })
    }

    unsafe fn occupancy(handle: hipFunction_t, threads: c_int, _: usize) -> Status<c_int> {
        function(handle).ok_or(hipErrorInvalidDeviceFunction)?;
        Ok(blocks_per_unit(threads as u32)? as c_int)
    }
}

/// AMD's checks of a launch, in AMD's order.
fn check(launch: &Launch, function: &Function, device: &Device) -> Status {
    launch.check(65536)?;
    let threads: u64 = launch.block.iter().map(|&side| u64::from(side)).product();
    if launch.shared_bytes > settings()?.shared || threads > u64::from(max_block()?) {
        return Err(hipErrorInvalidValue);
    }
    require(function.device.index == device.index, hipErrorInvalidDevice)
}

/// Finds each argument in a packed buffer of `size` bytes.
fn unpack(kernel: &Kernel, buffer: *mut c_void, size: usize, out: &mut [*mut c_void; MAX_PACKED]) -> Status {
    require(kernel.layout.len() <= MAX_PACKED, hipErrorInvalidValue)?;
    let mut offset = 0;
    for ([bytes, align], out) in kernel.layout.iter().zip(out) {
        offset = usize::next_multiple_of(offset, *align as usize);
        // This offset is checked against the size below, before anything is read.
        *out = buffer.wrapping_byte_add(offset);
        offset += *bytes as usize;
    }
    require(!buffer.is_null() && offset <= size, hipErrorInvalidValue)
}

/// Runs a kernel. If the stream is captured, records it with its arguments instead.
///
/// # Safety
/// `arguments` has a pointer to each of the kernel's arguments.
unsafe fn run(
    device: &'static Device,
    function: &Arc<Function>,
    shape: LaunchShape,
    arguments: *mut *mut c_void,
) -> Status {
    if !is_captured() {
        // SAFETY: the caller's.
        return unsafe { execute(device, &function.kernel, &shape, arguments) };
    }
    let function = function.clone();
    // SAFETY: the caller's.
    let arguments = unsafe { function.kernel.segment(arguments) };
    let again = move || {
        let mut pointers = [std::ptr::null_mut(); MAX_PACKED];
        let values = arguments.as_ptr().cast_mut().cast();
        unpack(&function.kernel, values, size_of_val(&arguments[..]), &mut pointers)?;
        // SAFETY: there is one pointer for each argument, into the copy, which kernels do not
        // change.
        unsafe { execute(device, &function.kernel, &shape, pointers.as_mut_ptr()) }
    };
    // SAFETY: it holds copies of the arguments, and the kernel's code.
    unsafe { enqueue(again) }
}

/// # Safety
/// `arguments` has a pointer to each of the kernel's arguments.
unsafe fn execute(
    device: &'static Device,
    kernel: &Kernel,
    shape: &LaunchShape,
    arguments: *mut *mut c_void,
) -> Status {
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
    let shared_bytes = u64::from(shape.shared_bytes);
    // If there are many blocks, a task runs several.
    let step = blocks.div_ceil(threads() as u64 * 64).max(1);
    parallel(blocks.div_ceil(step) as usize, |chunk| {
        let first = chunk as u64 * step;
        let mut part = record.part(first, step.min(blocks - first));
        // `try_with` fails only while the thread ends.
        let mut memory = DYNAMIC.try_with(Cell::take).unwrap_or_default();
        if shared_bytes > 0 {
            part.dynamic_shared = grow(&mut memory, shared_bytes);
        }
        // SAFETY: as above. Blocks of a kernel may run in parallel, and none changes the arguments.
        unsafe { run(arguments as *mut *mut c_void, &part) };
        let _ = DYNAMIC.try_with(|kept| kept.set(memory));
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

/// Never called, because without the feature [`settings`] refuses lockstep.
#[cfg(not(lockstep))]
unsafe fn run_in_lockstep(_: &'static Device, _: &Kernel, _: &LaunchShape, _: *mut *mut c_void, _: u32) {}
