//! The HSA API as HIP uses it, with hand-made code objects: no ROCm needed.

#[path = "support/api.rs"]
mod api;
mod support;

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::*;
use support::{Kernel, NUMBERS, Relocation, Source};
use virtual_gpu::hsa::*;

/// Workgroup 0 waits, asleep, until another one has stored 1.
///
/// ```text
/// s_load_dwordx2 s[4:5], s[0:1], 0x0
/// v_mov_b32_e32 v0, 0
/// v_mov_b32_e32 v2, 1
/// s_waitcnt lgkmcnt(0)
/// s_cmp_lg_u32 s2, 0
/// s_cbranch_scc1 store
/// loop:
/// s_sleep 1
/// global_load_dword v1, v0, s[4:5] glc dlc
/// s_waitcnt vmcnt(0)
/// v_readfirstlane_b32 s6, v1
/// s_cmp_eq_u32 s6, 0
/// s_cbranch_scc1 loop
/// s_endpgm
/// store:
/// global_store_dword v0, v2, s[4:5]
/// s_endpgm
/// ```
const ASLEEP: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x7e00_0280,
    0x7e04_0281,
    0xbf8c_c07f,
    0xbf07_8002,
    0xbf85_0008,
    0xbf8e_0001,
    0xdc31_9000,
    0x0104_0000,
    0xbf8c_3f70,
    0x7e0c_0501,
    0xbf06_8006,
    0xbf85_fff9,
    0xbf81_0000,
    0xdc70_8000,
    0x0004_0200,
    0xbf81_0000,
];
/// As [`ASLEEP`], without the `s_sleep`.
const SPINNING: &[u32] = &[
    0xf404_0100,
    0xfa00_0000,
    0x7e00_0280,
    0x7e04_0281,
    0xbf8c_c07f,
    0xbf07_8002,
    0xbf85_0007,
    0xdc31_9000,
    0x0104_0000,
    0xbf8c_3f70,
    0x7e0c_0501,
    0xbf06_8006,
    0xbf85_fffa,
    0xbf81_0000,
    0xdc70_8000,
    0x0004_0200,
    0xbf81_0000,
];
/// `s_endpgm`
const END: &[u32] = &[0xbf81_0000];
/// `s_trap 2; s_endpgm`
const TRAP: &[u32] = &[0xbf92_0002, 0xbf81_0000];

#[test]
fn symbols_tell_what_the_file_says() {
    let lds = Kernel { lds: 1024, ..Kernel::new("second", END) };
    let mut source = Source::new(&[Kernel::new("first", END), lds]);
    // A pointer to `data` (symbol 3) behind it.
    source.relocations = vec![Relocation { offset: 32, kind: 3, symbol: 3, addend: 1 }];
    let executable = load(&source);
    let second = symbol(executable, "second.kd");
    assert_eq!((info::<u32>(second, 0), info::<u32>(second, 13), info::<u32>(second, 11)), (1, 1024, 16));
    let data = symbol(executable, "data");
    assert_eq!((info::<u32>(data, 0), info::<u32>(data, 9)), (0, 16));
    let address = info::<u64>(data, 21);
    // SAFETY: the data segment has 16 bytes of 7, and the pointer at 32.
    unsafe {
        assert_eq!((address as *const u64).read(), 0x0707_0707_0707_0707);
        assert_eq!((address as *const u64).add(4).read(), address + 1);
    }
    let missing = CString::new("third.kd").expect("the name has no zero");
    let mut found = MaybeUninit::uninit();
    let status = hsa_executable_get_symbol_by_name(
        executable,
        Text::new(&missing),
        Some(&agents().1),
        Some(&mut found),
    );
    assert_eq!(status, Status::INVALID_SYMBOL_NAME);
    assert_eq!(hsa_executable_destroy(executable), OK);
    assert_eq!(hsa_executable_destroy(executable), Status::INVALID_EXECUTABLE);
}

#[test]
fn every_work_item_of_a_launch_runs() {
    let queue = TestQueue::new();
    let kernel = one_kernel(NUMBERS);
    for groups in [1, 2, 300] {
        let count = 64 * groups as usize;
        let memory = allocate(pool(agents().1), 4 * count);
        let done = signal(1);
        queue.dispatch(kernel, groups, memory as u64, done);
        wait(done);
        // SAFETY: the allocation holds `count` words, and the launch has completed.
        let found = unsafe { std::slice::from_raw_parts(memory.cast::<u32>(), count) };
        assert!(found.iter().copied().eq(0..count as u32));
        let times = out(|times| hsa_amd_profiling_get_dispatch_time(agents().1, done, times));
        assert!(times.start > 0 && times.start <= times.end);
    }
    assert_eq!(queue.errors(), []);
}

#[test]
fn a_ring_is_used_again() {
    let queue = TestQueue::new();
    let kernel = one_kernel(NUMBERS);
    let memory = allocate(pool(agents().1), 256);
    let done = signal(200);
    for number in 0..200 {
        // HSA_SIGNAL_CONDITION_LT: fewer than 50 are in flight, of the 64 that the ring holds.
        hsa_signal_wait_scacquire(done, 2, 200 - number + 50, LIMIT.as_nanos() as u64, 0);
        queue.dispatch(kernel, 1, memory as u64, done);
    }
    wait(done);
    assert_eq!(queue.errors(), []);
}

#[test]
fn a_byte_too_few_is_a_fault_and_the_process_lives() {
    let queue = TestQueue::new();
    let kernel = one_kernel(NUMBERS);
    let (short, whole) = (allocate(pool(agents().1), 4 * 64 - 1), allocate(pool(agents().1), 4 * 64));
    let done = signal(2);
    queue.dispatch(kernel, 1, short as u64, done);
    queue.dispatch(kernel, 1, whole as u64, done);
    wait(done);
    assert_eq!(queue.errors(), [Status::MEMORY_FAULT]);
    // SAFETY: the allocation holds 64 words.
    let words = unsafe { std::slice::from_raw_parts(whole.cast::<u32>(), 64) };
    assert!(words.iter().all(|&word| word == 0), "a queue in its error state executes nothing");
    // Another queue is not concerned.
    let (other, done) = (TestQueue::new(), signal(1));
    other.dispatch(kernel, 1, whole as u64, done);
    wait(done);
    assert_eq!(other.errors(), []);
}

#[test]
fn freed_memory_is_refused() {
    let queue = TestQueue::new();
    let kernel = one_kernel(NUMBERS);
    let memory = allocate(pool(agents().1), 256);
    assert_eq!(hsa_amd_memory_pool_free(memory.cast()), OK);
    assert_eq!(hsa_amd_memory_pool_free(memory.cast()), Status::INVALID_ALLOCATION);
    let done = signal(1);
    queue.dispatch(kernel, 1, memory as u64, done);
    wait(done);
    assert_eq!(queue.errors(), [Status::MEMORY_FAULT]);
}

#[test]
fn host_memory_must_be_pinned() {
    let kernel = one_kernel(NUMBERS);
    let mut words = vec![0u32; 64];
    let pointer = words.as_mut_ptr().cast::<c_void>();
    let host = pool(agents().0);
    let locked = out(|locked| hsa_amd_memory_lock_to_pool(pointer, 256, Array::EMPTY, 0, host, 0, locked));
    let launch = || {
        let (queue, done) = (TestQueue::new(), signal(1));
        queue.dispatch(kernel, 1, locked as u64, done);
        wait(done);
        queue.errors()
    };
    assert_eq!(launch(), []);
    assert!(words.iter().copied().eq(0..64));
    assert_eq!(hsa_amd_memory_unlock(pointer), OK);
    assert_eq!(launch(), [Status::MEMORY_FAULT]);
}

#[test]
fn other_failures_have_their_own_status() {
    let wave64 = Kernel { wave32: false, ..Kernel::new("wave64", END) };
    let greedy = Kernel { lds: 100, ..Kernel::new("greedy", END) };
    // All ones is no instruction.
    let unknown = Kernel::new("unknown", &[u32::MAX]);
    let source = Source::new(&[wave64, greedy, unknown, Kernel::new("trap", TRAP), Kernel::new("end", END)]);
    let executable = load(&source);
    for (name, expected) in [
        ("wave64", Some(Status::INVALID_PACKET_FORMAT)),
        ("greedy", Some(Status::INVALID_PACKET_FORMAT)),
        ("unknown", Some(Status::ILLEGAL_INSTRUCTION)),
        ("trap", Some(Status::EXCEPTION)),
        ("end", None),
    ] {
        let (queue, done) = (TestQueue::new(), signal(1));
        queue.dispatch(kernel(executable, name), 1, 0, done);
        wait(done);
        assert_eq!(queue.errors(), Vec::from_iter(expected), "{name}");
    }
    let (queue, done) = (TestQueue::new(), signal(1));
    queue.dispatch(0x1234, 1, 0, done);
    wait(done);
    assert_eq!(queue.errors(), [Status::INVALID_CODE_OBJECT]);
}

#[test]
fn workgroups_that_wait_for_others_do_not_hang() {
    for code in [ASLEEP, SPINNING] {
        let kernel = one_kernel(code);
        let (queue, done) = (TestQueue::new(), signal(1));
        let flag = allocate(pool(agents().1), 4);
        queue.dispatch(kernel, 2, flag as u64, done);
        wait(done);
        assert_eq!(queue.errors(), []);
    }
}

#[test]
fn a_launch_that_never_ends_does_not_keep_its_queue() {
    let kernel = one_kernel(SPINNING);
    let queue = TestQueue::new();
    let flag = allocate(pool(agents().1), 4);
    // The only workgroup waits for another one.
    queue.dispatch(kernel, 1, flag as u64, SignalHandle::default());
    std::thread::sleep(Duration::from_millis(20));
    drop(queue);
}

#[test]
fn barriers_wait_for_their_signals() {
    let kernel = one_kernel(NUMBERS);
    let queue = TestQueue::new();
    let memory = allocate(pool(agents().1), 256);
    // SAFETY: the allocation holds 64 words, and only launches write to it.
    let last = || unsafe { memory.cast::<u32>().add(63).read_volatile() };
    let (gates, done) = ([signal(1), signal(5), signal(1)], signal(1));
    let and = BarrierPacket {
        dependencies: [gates[0], gates[2], <_>::default(), <_>::default(), <_>::default()],
        ..<_>::default()
    };
    let or = BarrierPacket {
        dependencies: [gates[0], gates[1], <_>::default(), <_>::default(), <_>::default()],
        ..<_>::default()
    };
    // The low byte of a value must be 7.
    let value = BarrierValuePacket {
        format: FORMAT_BARRIER_VALUE,
        signal: gates[1],
        value: 7,
        mask: 0xff,
        condition: 0,
        ..BarrierValuePacket::default()
    };
    queue.push(and, packet_type::BARRIER_AND);
    queue.push(or, packet_type::BARRIER_OR);
    queue.push(value, packet_type::VENDOR);
    queue.dispatch(kernel, 1, memory as u64, done);
    // SAFETY: the queue lives.
    let queue_ref = unsafe { &*queue.head.cast::<Queue>() };
    let reaches = |index| {
        let begin = Instant::now();
        while hsa_queue_load_read_index_relaxed(Some(queue_ref)) < index {
            assert!(begin.elapsed() < LIMIT, "packet {index} was not reached");
            std::thread::yield_now();
        }
        // What is not allowed to happen gets the time to happen.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(hsa_queue_load_read_index_relaxed(Some(queue_ref)), index);
        assert_eq!(last(), 0);
    };
    reaches(0);
    hsa_signal_store_relaxed(gates[0], 0);
    reaches(0);
    // Without a ring, as kernels write signals.
    hsa_signal_silent_store_relaxed(gates[2], 0);
    // The or-barrier holds by the first gate already.
    reaches(2);
    hsa_signal_store_relaxed(gates[1], 0x1207);
    wait(done);
    assert_eq!(last(), 63);
    assert_eq!(queue.errors(), []);
}

#[test]
fn a_queue_that_waits_can_be_destroyed() {
    let queue = TestQueue::new();
    let gate = signal(1);
    let packet = BarrierPacket { dependencies: [gate; 5], ..BarrierPacket::default() };
    queue.push(packet, packet_type::BARRIER_AND);
    drop(queue);
}

static CALLS: AtomicU32 = AtomicU32::new(0);
static SEEN: AtomicI64 = AtomicI64::new(0);

extern "C" fn count_down(value: i64, _argument: *mut c_void) -> bool {
    SEEN.store(value, Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Release) == 0
}

#[test]
fn handlers_are_called_until_they_decline() {
    let watched = signal(3);
    // HSA_SIGNAL_CONDITION_LT 3
    assert_eq!(hsa_amd_signal_async_handler(watched, 2, 3, Some(count_down), std::ptr::null_mut()), OK);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(CALLS.load(Ordering::Acquire), 0);
    hsa_signal_subtract_relaxed(watched, 1);
    let begin = Instant::now();
    while CALLS.load(Ordering::Acquire) < 2 {
        assert!(begin.elapsed() < LIMIT, "the handler was not called");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!((CALLS.load(Ordering::Acquire), SEEN.load(Ordering::Relaxed)), (2, 2));
}

#[test]
fn waits_end_by_time() {
    let never = signal(1);
    let begin = Instant::now();
    assert_eq!(hsa_signal_wait_scacquire(never, 0, 0, 5_000_000, 0), 1);
    assert!(begin.elapsed() >= Duration::from_millis(5));
}

#[test]
fn copies_wait_and_complete() {
    let (cpu, gpu) = agents();
    let device = allocate(pool(gpu), 64);
    let (mut source, mut target) = ([0u8; 64], [0u8; 64]);
    source.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
    let (gate, up, down) = (signal(1), signal(1), signal(1));
    let to = hsa_amd_memory_async_copy(
        device.cast(),
        gpu,
        source.as_ptr().cast(),
        cpu,
        64,
        1,
        Array::new(&[gate]),
        up,
    );
    let back = hsa_amd_memory_async_copy(
        target.as_mut_ptr().cast(),
        cpu,
        device.cast(),
        gpu,
        64,
        1,
        Array::new(&[up]),
        down,
    );
    assert_eq!((to, back), (OK, OK));
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!((hsa_signal_load_relaxed(up), hsa_signal_load_relaxed(down)), (1, 1));
    hsa_signal_store_relaxed(gate, 0);
    wait(down);
    assert_eq!(source, target);
    // A byte too many of the GPU's memory.
    let failed = signal(1);
    assert_eq!(
        hsa_amd_memory_async_copy(
            device.cast(),
            gpu,
            source.as_ptr().cast(),
            cpu,
            65,
            0,
            Array::EMPTY,
            failed
        ),
        OK
    );
    assert!(hsa_signal_wait_scacquire(failed, 2, 1, LIMIT.as_nanos() as u64, 0) < 0);
}

#[test]
fn rectangles_are_copied() {
    let (_, gpu) = agents();
    // 2 slices of 3 rows of 4 bytes, out of slices of 5 rows of 8 bytes, from (1, 1, 1) to (2, 0, 0) of a tighter one.
    let source: Vec<u8> = (0..120).collect();
    let device = allocate(pool(gpu), 2 * 3 * 6);
    let done = signal(1);
    let from = PitchedPointer { base: source.as_ptr().cast_mut().cast(), pitch: 8, slice: 40 };
    let to = PitchedPointer { base: device.cast(), pitch: 6, slice: 18 };
    let status = hsa_amd_memory_async_copy_rect(
        Some(&to),
        Some(&Dim3 { x: 2, y: 0, z: 0 }),
        Some(&from),
        Some(&Dim3 { x: 1, y: 1, z: 1 }),
        Some(&Dim3 { x: 4, y: 3, z: 2 }),
        gpu,
        1,
        0,
        Array::EMPTY,
        done,
    );
    assert_eq!(status, OK);
    wait(done);
    // SAFETY: the allocation has so many bytes, and the copy has completed.
    let found = unsafe { std::slice::from_raw_parts(device, 36) };
    let expected = |at: usize| {
        let (z, y, x) = (at / 18, at / 6 % 3, at % 6);
        if x < 2 { 0 } else { ((z + 1) * 40 + (y + 1) * 8 + x - 2 + 1) as u8 }
    };
    assert!((0..36).all(|at| found[at] == expected(at)), "{found:?}");
}

#[test]
fn pointers_tell_their_allocation_to_the_byte() {
    let gpu = agents().1;
    let memory = allocate(pool(gpu), 7);
    let mut about = PointerInfo {
        size: size_of::<PointerInfo>() as u32,
        kind: 9,
        agent_base: 0,
        host_base: 0,
        bytes: 0,
        user_data: 0,
        owner: AgentHandle::default(),
        flags: 0,
        registered: false,
    };
    let mut ask = |at: *mut u8| {
        assert_eq!(hsa_amd_pointer_info(at.cast(), Some(&mut about), None, None, None), OK);
        (about.kind, about.bytes, about.agent_base, about.owner)
    };
    assert_eq!(ask(memory.wrapping_add(6)), (1, 7, memory as u64, gpu));
    assert_eq!(ask(memory.wrapping_add(7)).0, 0);
}

#[test]
fn mapped_memory_is_open_only_where_access_was_given() {
    let gpu = agents().1;
    let kernel = one_kernel(NUMBERS);
    let at = out(|at| hsa_amd_vmem_address_reserve(at, 1 << 20, 0, 0));
    let memory = out(|memory| hsa_amd_vmem_handle_create(pool(gpu), 4096, 0, 0, memory));
    assert_eq!(hsa_amd_vmem_map(at, 4096, 0, memory, 0), OK);
    assert_eq!(hsa_amd_vmem_map(at, 4096, 0, memory, 0), Status::INVALID_ARGUMENT);
    assert_eq!(hsa_amd_vmem_address_free(at, 1 << 20), Status::RESOURCE_FREE);
    let launch = || {
        let (queue, done) = (TestQueue::new(), signal(1));
        queue.dispatch(kernel, 1, at as u64, done);
        wait(done);
        queue.errors()
    };
    assert_eq!(launch(), [Status::MEMORY_FAULT]);
    let access = AccessDescription { permissions: 3, agent: gpu };
    assert_eq!(hsa_amd_vmem_set_access(at, 4096, Array::new(&[access]), 1), OK);
    assert_eq!(out(|permissions| hsa_amd_vmem_get_access(at, permissions, gpu)), 3);
    assert_eq!(launch(), []);
    assert_eq!(hsa_amd_vmem_unmap(at, 4096), OK);
    assert_eq!(launch(), [Status::MEMORY_FAULT]);
    assert_eq!(hsa_amd_vmem_handle_release(memory), OK);
    assert_eq!(hsa_amd_vmem_address_free(at, 1 << 20), OK);
}

#[test]
fn a_gpu_has_no_more_memory_than_it_says() {
    let device = pool(agents().1);
    let mut size = 0usize;
    assert_eq!(hsa_amd_memory_pool_get_info(device, 2, Value::new(&mut size)), OK);
    let mut pointer = MaybeUninit::uninit();
    let too_much = hsa_amd_memory_pool_allocate(device, size + 1, 0, Some(&mut pointer));
    assert_eq!(too_much, Status::OUT_OF_RESOURCES);
    assert_eq!(hsa_amd_memory_pool_allocate(device, 0, 0, Some(&mut pointer)), Status::INVALID_ARGUMENT);
    assert_eq!(hsa_amd_memory_pool_allocate(PoolHandle::default(), 8, 0, None), Status::INVALID_MEMORY_POOL);
}
