//! The API's calls, as the tests use them.
#![allow(unreachable_pub, missing_docs, reason = "a module of tests")]

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use virtual_gpu::hsa::*;

use super::support::{Kernel, Source, code_object};

pub const LIMIT: Duration = Duration::from_secs(30);
pub const OK: Status = Status::SUCCESS;

/// What a call writes.
pub fn out<T>(call: impl FnOnce(Option<&mut MaybeUninit<T>>) -> Status) -> T {
    let mut value = MaybeUninit::uninit();
    assert_eq!(call(Some(&mut value)), OK);
    // SAFETY: the call succeeded, so it wrote the value.
    unsafe { value.assume_init() }
}

extern "C" fn note_agent(agent: AgentHandle, agents: *mut c_void) -> Status {
    // SAFETY: the caller of `hsa_iterate_agents` below passes a `Vec`.
    unsafe { &mut *agents.cast::<Vec<AgentHandle>>() }.push(agent);
    OK
}

extern "C" fn note_pool(pool: PoolHandle, pools: *mut c_void) -> Status {
    // SAFETY: the caller of `hsa_amd_agent_iterate_memory_pools` below passes a `Vec`.
    unsafe { &mut *pools.cast::<Vec<PoolHandle>>() }.push(pool);
    OK
}

pub fn agents() -> (AgentHandle, AgentHandle) {
    assert_eq!(hsa_init(), OK);
    let mut agents = Vec::new();
    assert_eq!(hsa_iterate_agents(Some(note_agent), std::ptr::from_mut(&mut agents).cast()), OK);
    (agents[0], agents[1])
}

/// A pool of an agent: the first, which is fine-grained on the host and coarse-grained on a GPU.
pub fn pool(agent: AgentHandle) -> PoolHandle {
    let mut pools = Vec::new();
    let status =
        hsa_amd_agent_iterate_memory_pools(agent, Some(note_pool), std::ptr::from_mut(&mut pools).cast());
    assert_eq!(status, OK);
    pools[0]
}

pub fn allocate(pool: PoolHandle, size: usize) -> *mut u8 {
    out(|pointer| hsa_amd_memory_pool_allocate(pool, size, 0, pointer)).cast()
}

pub fn signal(value: i64) -> SignalHandle {
    out(|signal| hsa_signal_create(value, 0, Array::EMPTY, signal))
}

/// Waits until a signal is 0, or fails.
pub fn wait(signal: SignalHandle) {
    // HSA_SIGNAL_CONDITION_LT
    let value = hsa_signal_wait_scacquire(signal, 2, 1, LIMIT.as_nanos() as u64, 0);
    assert_eq!(value, 0, "the signal was not completed");
}

/// A queue, with the statuses of its errors.
pub struct TestQueue {
    pub head: *mut QueueHead,
    errors: &'static Mutex<Vec<Status>>,
}

extern "C" fn note_error(status: Status, _queue: *mut QueueHead, errors: *mut c_void) {
    // SAFETY: `TestQueue::new` passes a leaked `Mutex`.
    let errors = unsafe { &*errors.cast::<Mutex<Vec<Status>>>() };
    errors.lock().expect("no test panics with the lock").push(status);
}

impl TestQueue {
    pub fn new() -> Self {
        let errors: &'static Mutex<Vec<Status>> = Box::leak(Box::default());
        let data = std::ptr::from_ref(errors).cast_mut().cast();
        let head = out(|queue| hsa_queue_create(agents().1, 64, 0, Some(note_error), data, 0, 0, queue));
        Self { head, errors }
    }

    /// Writes a packet of 64 bytes and rings the doorbell.
    pub fn push<T: Copy>(&self, packet: T, header: u16) {
        assert_eq!(size_of::<T>(), 64);
        // SAFETY: the queue lives as long as `self`.
        let queue = unsafe { &*self.head.cast::<Queue>() };
        let index = hsa_queue_add_write_index_screlease(Some(queue), 1);
        let place = (queue.head.base + (index % u64::from(queue.head.size)) * 64) as *mut T;
        // SAFETY: the packet was just taken from the ring; the processor waits for its header, which comes last.
        unsafe {
            place.write(packet);
            let header_place = std::sync::atomic::AtomicU16::from_ptr(place.cast());
            header_place.store(header, Ordering::Release);
        }
        hsa_signal_store_screlease(queue.head.doorbell, index as i64);
    }

    /// Launches a kernel with one argument. `completion` may be 0.
    pub fn dispatch(&self, kernel: u64, groups: u32, argument: u64, completion: SignalHandle) {
        self.dispatch_with(kernel, groups, 0, argument, completion);
    }

    /// The same with LDS, in bytes a workgroup.
    pub fn dispatch_with(&self, kernel: u64, groups: u32, lds: u32, argument: u64, completion: SignalHandle) {
        let kernarg = allocate(pool(agents().0), 16).cast::<u64>();
        // SAFETY: the allocation has 16 bytes.
        unsafe { kernarg.write(argument) };
        let packet = DispatchPacket {
            header: packet_type::INVALID,
            setup: 1,
            workgroup: [64, 1, 1],
            grid: [64 * groups, 1, 1],
            kernel,
            group_size: lds,
            kernarg: kernarg as u64,
            completion,
            ..DispatchPacket::default()
        };
        self.push(packet, packet_type::DISPATCH);
    }

    pub fn errors(&self) -> Vec<Status> {
        self.errors.lock().expect("no test panics with the lock").clone()
    }
}

impl Drop for TestQueue {
    fn drop(&mut self) {
        assert_eq!(hsa_queue_destroy(self.head), OK);
    }
}

/// Loads a code object.
pub fn load(source: &Source) -> ExecutableHandle {
    let file = code_object(source);
    let executable = out(|executable| hsa_executable_create_alt(1, 0, Text::NONE, executable));
    let reader =
        out(|reader| hsa_code_object_reader_create_from_memory(file.as_ptr().cast(), file.len(), reader));
    let gpu = agents().1;
    let status = hsa_executable_load_agent_code_object(executable, gpu, reader, Text::NONE, None);
    assert_eq!(status, OK);
    assert_eq!(hsa_code_object_reader_destroy(reader), OK);
    assert_eq!(hsa_executable_freeze(executable, Text::NONE), OK);
    executable
}

pub fn symbol(executable: ExecutableHandle, name: &str) -> SymbolHandle {
    let name = CString::new(name).expect("the name has no zero");
    out(|symbol| hsa_executable_get_symbol_by_name(executable, Text::new(&name), Some(&agents().1), symbol))
}

pub fn info<T: Default>(symbol: SymbolHandle, attribute: u32) -> T {
    let mut value = T::default();
    assert_eq!(hsa_executable_symbol_get_info(symbol, attribute, Value::new(&mut value)), OK);
    value
}

pub fn kernel(executable: ExecutableHandle, name: &str) -> u64 {
    info(symbol(executable, &format!("{name}.kd")), 22)
}

pub fn one_kernel(code: &[u32]) -> u64 {
    kernel(load(&Source::new(&[Kernel::new("kernel", code)])), "kernel")
}
