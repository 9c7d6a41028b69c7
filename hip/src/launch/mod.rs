//! Launching kernels: one builder, which stores the arguments' values.

pub(crate) mod chain;
pub(crate) mod grid;
pub(crate) mod kernel;
pub(crate) mod kernels;
pub(crate) mod map;
pub(crate) mod reduced;
pub(crate) mod steps;

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use bytemuck::NoUninit;
use hip_kernels::KernelName;

use crate::device::Device;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::launch::grid::Grid;
use crate::launch::kernel::Kernel;
use crate::memory::buffer::Buffer;
use crate::memory::fault::{Fault, Ticket};
use crate::memory::marks::Set;
use crate::profile::work::{Load, Who, WorkKind};
use crate::trace;
use crate::watch::{PROFILE, SUMMARY, TRACE, watched};

/// The most arguments of a kernel.
pub const MAX_ARGUMENTS: usize = 32;
/// The most bytes of a kernel's arguments together: CUDA's limit before version 12.1. ROCm 7.2
/// accepts that many too.
pub const MAX_ARGUMENT_BYTES: usize = 4096;

/// The arguments' values, and the offset of each.
#[repr(C, align(16))]
struct Storage {
    bytes: [MaybeUninit<u8>; MAX_ARGUMENT_BYTES],
    offsets: [u16; MAX_ARGUMENTS],
}

// `push` aligns an argument's offset, which aligns the argument only if the storage itself is
// aligned.
const _: () = assert!(std::mem::offset_of!(Storage, bytes) == 0 && align_of::<Storage>() == 16);

impl Storage {
    fn new() -> Box<Self> {
        Box::new(Self {
            bytes: [const { MaybeUninit::uninit() }; MAX_ARGUMENT_BYTES],
            offsets: [0; MAX_ARGUMENTS],
        })
    }
}

thread_local! {
    /// A thread's storage between launches. It is not a part of `Launch`, because each argument
    /// moves the builder: with 1 KiB inside the builder, this crate's part of a launch with four
    /// arguments took 325 ns, and without it 76 ns (Xeon, 2 busy cores).
    static SPARE: Cell<Option<Box<Storage>>> = const { Cell::new(None) };
}

/// The builder of a launch. Add the arguments in the order of the kernel's parameters.
#[must_use = "nothing is launched until `submit`"]
pub struct Launch<'d> {
    device: &'d Device,
    kernel: Arc<Kernel>,
    /// `None` only while the launch is dropped.
    storage: Option<Box<Storage>>,
    arguments: usize,
    used: usize,
    wrong: Option<Box<Error>>,
    /// The tickets of the buffers that the kernel reads, and the launch's own.
    faults: Option<Arc<Set>>,
    /// The launch's own ticket, until the launch is enqueued.
    ticket: Option<Arc<Ticket>>,
    /// Whether an output was added.
    writes: bool,
    /// Whether a thread captures a graph, so that the buffers must be told of their use.
    captured: bool,
    /// The bytes that the kernel reads and writes; 0 is unknown.
    bytes: usize,
    /// What watches the launch.
    watched: u16,
}

impl Drop for Launch<'_> {
    #[inline]
    fn drop(&mut self) {
        // `try_with` fails only when the thread is ending and its values are gone.
        let _ = SPARE.try_with(|spare| spare.set(self.storage.take()));
        if let Some(ticket) = self.ticket.take() {
            ticket.cancelled();
        }
    }
}

impl<'d> Launch<'d> {
    #[inline]
    pub(crate) fn new(device: &'d Device, kernel: Arc<Kernel>) -> Self {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let storage = Some(spare.unwrap_or_else(Storage::new));
        Self {
            device,
            kernel,
            storage,
            arguments: 0,
            used: 0,
            wrong: None,
            faults: None,
            ticket: None,
            writes: false,
            captured: device.captures.any(),
            bytes: 0,
            watched: watched(),
        }
    }

    /// Adds a pointer to byte `byte_offset` of a buffer that the kernel reads.
    #[inline(always)] // Else each call moves the whole launch.
    pub fn buffer(mut self, buffer: &Buffer, byte_offset: usize) -> Self {
        self.reads(buffer);
        self.pointer(buffer, byte_offset);
        self
    }

    /// Adds a pointer to byte `byte_offset` of a buffer that the kernel writes. Add outputs after
    /// all inputs and after the flag, because an output takes over the faults of the arguments
    /// before it. It also keeps its own earlier faults and passes them to later outputs.
    #[inline(always)] // Else each call moves the whole launch.
    pub fn output(mut self, buffer: &Buffer, byte_offset: usize) -> Self {
        self.reads(buffer);
        self.writes = true;
        if self.faults.is_some() {
            buffer.marks.put(self.faults.clone());
        }
        self.pointer(buffer, byte_offset);
        self
    }

    /// Says how many bytes the kernel reads and writes, each operand once. Only asked if
    /// [`profile`](crate::profile()) runs.
    #[inline]
    pub fn moves(mut self, bytes: impl FnOnce() -> usize) -> Self {
        if self.watched & PROFILE != 0 {
            self.bytes = bytes();
        }
        self
    }

    /// Declares that the kernel reads a buffer to which no argument points.
    #[inline]
    pub fn reads(&mut self, buffer: &Buffer) {
        if buffer.marks.any() {
            self.faults = Set::join(self.faults.take(), buffer.marks.get());
        }
    }

    #[inline]
    fn pointer(&mut self, buffer: &Buffer, byte_offset: usize) {
        if byte_offset > buffer.len() || !std::ptr::eq(Arc::as_ptr(buffer.device()), self.device) {
            self.refuse_buffer(buffer, byte_offset);
        }
        let address = if self.captured { buffer.address() } else { buffer.place() };
        // An offset that was refused above may overflow the sum.
        self.push(address.wrapping_add(byte_offset) as u64);
    }

    /// Adds a value.
    #[inline]
    pub fn value<T: NoUninit>(mut self, value: T) -> Self {
        self.push(value);
        self
    }

    /// Adds a pointer to a flag: a `u64` in host memory that the kernel sets to a value other than
    /// 0 if it finds the fault. Reads of the outputs, and of buffers computed from them, then
    /// return [`Error::Invalid`] with the op's name. If no read has reported the fault, the next
    /// [`Device::sync`] reports it, once. A launch has at most one flag, added before its outputs.
    pub fn flag(mut self, op: &'static str, fault: Fault) -> Self {
        match self.device.faults.issue(op, fault) {
            Ok(ticket) => {
                self.push(ticket.address() as u64);
                self.faults = Set::join(self.faults.take(), Some(Set::of(ticket.clone())));
                let first = self.ticket.replace(ticket);
                if self.writes || first.is_some() {
                    let found = format!("a second flag, or one after an output, for {op}");
                    let wrong =
                        || Box::new(Error::invalid("launch", "one flag, added before the outputs", found));
                    self.wrong.get_or_insert_with(wrong);
                }
                if let Some(first) = first {
                    first.cancelled();
                }
            }
            Err(error) => {
                self.wrong.get_or_insert_with(|| Box::new(error));
            }
        }
        self
    }

    #[inline]
    fn push<T: NoUninit>(&mut self, value: T) {
        let at = self.used.next_multiple_of(align_of::<T>());
        if self.arguments == MAX_ARGUMENTS || at + size_of::<T>() > MAX_ARGUMENT_BYTES || align_of::<T>() > 16
        {
            self.refuse_argument(size_of::<T>());
            return;
        }
        let Some(storage) = &mut self.storage else { return };
        // SAFETY: `at + size_of::<T>()` is inside the storage, checked above, and `at` is a
        // multiple of T's alignment in storage aligned to 16.
        unsafe { storage.bytes.as_mut_ptr().add(at).cast::<T>().write(value) };
        storage.offsets[self.arguments] = at as u16;
        self.arguments += 1;
        self.used = at + size_of::<T>();
    }

    #[cold]
    fn refuse_buffer(&mut self, buffer: &Buffer, byte_offset: usize) {
        let expected =
            format!("an offset into {} bytes on device {}", buffer.len(), self.device.info().index);
        let found = format!("offset {byte_offset} on device {}", buffer.device().info().index);
        self.wrong.get_or_insert_with(|| Box::new(Error::invalid("launch", expected, found)));
    }

    #[cold]
    fn refuse_argument(&mut self, size: usize) {
        let expected = format!("at most {MAX_ARGUMENTS} arguments of {MAX_ARGUMENT_BYTES} bytes");
        let found = format!("argument {} of {size} bytes behind {}", self.arguments, self.used);
        self.wrong.get_or_insert_with(|| Box::new(Error::invalid("launch", expected, found)));
    }

    /// Enqueues the kernel on the device's compute stream, or captures it.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters in number, order and type. Every access that the
    /// kernel makes with them stays inside the buffers.
    ///
    /// # Errors
    /// `Invalid` for a buffer of another device, an offset past a buffer's end, too many arguments,
    /// a misplaced flag, or a block size that is not a multiple of the warp size (shuffles with
    /// missing lanes are undefined). `Device` if HIP refuses the launch.
    #[inline]
    pub unsafe fn submit(self, grid: Grid, shared_bytes: u32) -> Result<()> {
        let stream = if self.captured { self.device.stream() } else { &self.device.compute };
        // SAFETY: the caller's promise. The pool keeps the buffers' memory until the stream is past
        // the kernel.
        unsafe { self.submit_to(stream, grid, shared_bytes) }
    }

    /// Enqueues the kernel on another stream of the device, and returns the kernel, which must stay
    /// until the device is past it.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit). The caller also orders the kernel with the compute stream's
    /// work, and keeps the buffers until the compute stream waits for it.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit); `Invalid` for a launch with a flag, or a stream of another
    /// device.
    pub unsafe fn submit_on(self, stream: &Stream, grid: Grid, shared_bytes: u32) -> Result<Arc<Kernel>> {
        let expected = "a stream of the device, and no flag";
        if !std::ptr::eq(stream.context(), &*self.device.context) {
            return Err(Error::invalid("launch", expected, "a stream of another device"));
        }
        if self.ticket.is_some() {
            return Err(Error::invalid("launch", expected, "a flag"));
        }
        let kernel = self.kernel.clone();
        // SAFETY: the caller's promise.
        unsafe { self.submit_to(stream, grid, shared_bytes)? };
        Ok(kernel)
    }

    /// # Safety
    /// The arguments fit the kernel. The buffers live until the stream is past it.
    #[inline]
    unsafe fn submit_to(mut self, stream: &Stream, grid: Grid, shared_bytes: u32) -> Result<()> {
        if let Some(wrong) = self.wrong.take() {
            return Err(*wrong);
        }
        let warp = self.device.info().warp_size;
        if !grid.threads.is_multiple_of(warp) {
            return Err(part_of_a_warp(warp, grid.threads));
        }
        if grid.blocks == 0 {
            return Ok(());
        }
        let Some(storage) = &mut self.storage else { return Ok(()) };
        let base = storage.bytes.as_mut_ptr();
        let mut parameters = [std::ptr::null_mut::<c_void>(); MAX_ARGUMENTS];
        for (parameter, &offset) in parameters.iter_mut().zip(&storage.offsets[..self.arguments]) {
            // SAFETY: `push` wrote an argument at this offset of the storage.
            *parameter = unsafe { base.add(usize::from(offset)).cast() };
        }
        stream.catch_up();
        let timed = if self.watched & PROFILE != 0 { stream.begin_timed() } else { None };
        // SAFETY: the caller promises that the arguments fit the kernel.
        unsafe { stream.launch(&self.kernel, grid, shared_bytes, &mut parameters)? };
        if let Some(timed) = timed {
            let (name, load) = (self.kernel.text(), Load::bytes(self.bytes));
            stream.end_timed(timed, Who::here(), WorkKind::Kernel, name, load);
        }
        if let Some(ticket) = self.ticket.take() {
            match self.captured.then(|| self.device.captures.here()).flatten() {
                None => ticket.launched(),
                Some(captured) => captured.keep(Repeated(ticket)),
            }
        }
        trace::count(WorkKind::Kernel);
        if self.watched & (SUMMARY | TRACE) != 0 {
            trace::launched(self.watched, self.kernel.name());
        }
        Ok(())
    }
}

/// The ticket of a launch that a graph repeats. The launch never counts as finished while the graph
/// may run, so every read of its outputs checks its word.
struct Repeated(Arc<Ticket>);

impl Drop for Repeated {
    fn drop(&mut self) {
        self.0.cancelled();
    }
}

#[cold]
fn part_of_a_warp(warp: u32, threads: u32) -> Error {
    let found = format!("blocks of {threads} threads");
    Error::invalid("launch", format!("a block size that is a multiple of the warp size, {warp}"), found)
}

impl Device {
    /// A launch of a built-in kernel, which is compiled at its first use.
    ///
    /// # Errors
    /// `Compilation` if the kernel is not in the table or does not compile.
    ///
    /// Templates and functors are enums generated from the kernel table, so a misspelt name does
    /// not compile:
    ///
    /// ```compile_fail,E0599
    /// let kernel = hip::Template::binary_contigous.name();
    /// ```
    #[inline]
    pub fn launch(&self, name: KernelName) -> Result<Launch<'_>> {
        Ok(Launch::new(self, self.built_in(name)?))
    }

    /// A launch of a kernel from [`Device::kernel`].
    ///
    /// # Errors
    /// `Invalid` for a kernel of another device.
    pub fn launch_kernel(&self, kernel: &Arc<Kernel>) -> Result<Launch<'_>> {
        if !Arc::ptr_eq(kernel.context(), &self.context) {
            return Err(Error::invalid(
                "launch",
                format!("a kernel of device {}", self.info().index),
                format!("one of device {}", kernel.context().index),
            ));
        }
        Ok(Launch::new(self, kernel.clone()))
    }
}
