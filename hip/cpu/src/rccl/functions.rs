//! RCCL's C functions.
//!
//! They check what RCCL checks, and that the buffers are memory of the runtime. `ncclCommInitRank`
//! inside a group is refused, because the calls of this device wait: ranks of one process join in
//! threads of their own.

use super::call::{Call, Kind};
use super::compute::Memory;
use super::hub::Ticket;
use super::id::{self, Id};
use super::rank::{Rank, Seat, blocks, go_on};
use super::{Failure, Outcome};
use crate::numeric::device::is_device_memory;
use crate::runtime::{Captured, Handles, current_index, in_order};
use crate::settings::Failure as Asked;
use core::ffi::{CStr, c_char, c_int, c_void};
use hip_provider::require;
use hip_sys::hipStream_t;
use rccl_sys::*;
use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::CString,
    mem::{self, ManuallyDrop},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::Arc,
};

/// RCCL 2.27.7, of ROCm 7.2.
const VERSION: c_int = 22_707;

/// A call that waits for the end of its group, or for other ranks.
#[derive(Clone)]
struct Posted {
    rank: Arc<Rank>,
    call: Call,
    memory: Memory,
    /// The rank's handle.
    comm: usize,
    /// The stream, if it is captured.
    captured: Option<Captured>,
}

/// Calls that another thread makes.
struct Apart(Vec<Posted>);

// SAFETY: the caller keeps the calls' memory until they are done, so any thread may use its addresses.
// Any thread may use the other fields too.
unsafe impl Send for Apart {}

impl Apart {
    fn calls(self) -> Vec<Posted> {
        self.0
    }
}

/// How a posted call is waited for.
enum Receipt {
    Here(Arc<Ticket>),
    Elsewhere(u64),
}

static RANKS: Handles<Rank> = Handles::new(0xa8);

/// The thread's group.
#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<Posted>,
    failure: Option<Failure>,
}

thread_local! {
    /// `ManuallyDrop`: a value without a destructor stays usable while the thread ends.
    static GROUP: RefCell<ManuallyDrop<Group>> = RefCell::default();
    /// The text of the thread's last failure.
    static LAST: RefCell<CString> = RefCell::default();
}

pub(super) fn table() -> Rccl {
    Rccl {
        ncclGetVersion,
        ncclGetUniqueId,
        ncclCommInitRank,
        ncclCommDestroy,
        ncclCommAbort,
        ncclCommGetAsyncError,
        ncclCommCount,
        ncclCommUserRank,
        ncclGetErrorString,
        ncclAllReduce,
        ncclBroadcast,
        ncclReduce,
        ncclAllGather,
        ncclReduceScatter,
        ncclSend,
        ncclRecv,
        ncclGroupStart,
        ncclGroupEnd,
        ncclGetLastError: Some(ncclGetLastError),
    }
}

/// Runs the body of a C function. No panic unwinds into the caller.
fn api(body: impl FnOnce() -> Outcome) -> ncclResult_t {
    let outcome = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err(Failure::new(ncclInternalError, "the CPU device's RCCL panicked")));
    let Err(failure) = outcome else { return ncclSuccess };
    keep(&failure);
    failure.status
}

/// Keeps a failure's text for [`ncclGetLastError`].
fn keep(failure: &Failure) {
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // `try_with` fails only while the thread ends.
    let _ = LAST.try_with(|last| last.replace(text));
}

fn argument(text: impl Into<String>) -> Failure {
    Failure::new(ncclInvalidArgument, text)
}

fn rank_of(comm: ncclComm_t) -> Outcome<Arc<Rank>> {
    RANKS.get(comm as usize).ok_or_else(|| argument("this is no communicator"))
}

/// Writes a result through a caller's pointer.
///
/// # Safety
/// The pointer is null or valid.
unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    require(!to.is_null(), argument("a pointer is null"))?;
    // SAFETY: the caller's pointer.
    unsafe { to.write(value) };
    Ok(())
}

impl Posted {
    /// # Safety
    /// The memory is the call's until [`Posted::finish`] has returned.
    unsafe fn post(&self) -> Outcome<Receipt> {
        let Self { rank, call, memory, .. } = self;
        // SAFETY: the caller's memory.
        unsafe {
            match rank.seat()? {
                Seat::Here(hub) => hub.post(rank.rank, *call, *memory).map(Receipt::Here),
                Seat::Elsewhere(connection) => connection.post(call, *memory).map(Receipt::Elsewhere),
            }
        }
    }

    /// Waits until the call is done or has failed.
    ///
    /// # Safety
    /// As for [`Posted::post`].
    unsafe fn finish(&self, receipt: &Receipt) -> Outcome {
        match (self.rank.seat()?, receipt) {
            (Seat::Here(hub), Receipt::Here(ticket)) => hub.wait(ticket),
            // SAFETY: the caller's memory.
            (Seat::Elsewhere(connection), Receipt::Elsewhere(number)) => unsafe {
                connection.wait(*number, &self.call, self.memory)
            },
            _ => Err(Failure::new(ncclInternalError, "a receipt of another group")),
        }
    }
}

/// Posts the calls in their order and waits for all of them. Returns the first failure.
///
/// # Safety
/// Each call's memory is its own until this returns.
unsafe fn run(calls: &[Posted]) -> Outcome {
    let mut outcome = Ok(());
    let mut receipts = Vec::with_capacity(calls.len());
    for call in calls {
        // SAFETY: the caller's memory, here and below.
        match unsafe { call.post() } {
            Ok(receipt) => receipts.push((call, receipt)),
            Err(failure) => {
                outcome = Err(failure);
                break;
            }
        }
    }
    // Also after a failure, because the posted calls' memory must stay until they have ended.
    for (call, receipt) in &receipts {
        // SAFETY: as above.
        let finished = unsafe { call.finish(receipt) };
        outcome = outcome.and(finished);
    }
    outcome
}

/// Refuses a rank's send to itself without the matching receive, and a receive without its send. No
/// other rank can make the missing call.
fn check_own(calls: &[Posted]) -> Outcome {
    let mut unmatched = BTreeMap::<usize, isize>::new();
    for Posted { call, comm, .. } in calls.iter().filter(|posted| posted.call.peer == posted.rank.rank) {
        match call.kind {
            Kind::Send => *unmatched.entry(*comm).or_default() += 1,
            Kind::Receive => *unmatched.entry(*comm).or_default() -= 1,
            _ => {}
        }
    }
    if unmatched.into_values().all(|calls| calls == 0) {
        return Ok(());
    }
    let usage = "a rank's sends to itself and its receives from itself must be issued together";
    Err(Failure::new(ncclInvalidUsage, usage))
}

/// Runs calls that were issued together, or records them if their stream is captured.
///
/// # Safety
/// Each call's memory is its own until this returns, or while a graph with the calls runs.
unsafe fn run_or_record(calls: Vec<Posted>) -> Outcome {
    let Some(first) = calls.first() else { return Ok(()) };
    let stream = first.captured.clone();
    let usage = "calls that are issued together must be in one captured stream, or in none";
    let same = calls.iter().all(|call| call.captured == stream);
    require(same, Failure::new(ncclInvalidUsage, usage))?;
    check_own(&calls)?;
    let Some(stream) = stream else {
        if blocks() {
            // SAFETY: the caller's memory, here and below.
            return unsafe { run(&calls) };
        }
        let (ranks, calls) = (calls.iter().map(|call| call.rank.clone()).collect(), Apart(calls));
        // SAFETY: as above; the caller keeps the memory until `ncclCommGetAsyncError` reports the end.
        return go_on(ranks, move || unsafe { run(&calls.calls()) });
    };
    let again = move || {
        // A rank may have left since the capture.
        let here = calls.iter().all(|call| RANKS.get(call.comm).is_some());
        // SAFETY: as above.
        here && unsafe { run(&calls) }.is_ok()
    };
    // SAFETY: the work holds ranks, which any thread may use, values, and the caller's memory.
    unsafe { stream.record(again) };
    Ok(())
}

/// Checks a call and makes it, or adds it to the thread's group.
///
/// # Safety
/// The buffers are as RCCL demands.
unsafe fn collective(
    call: Call,
    send: *const c_void,
    recv: *mut c_void,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    api(|| {
        let checked = || {
            let rank = rank_of(comm)?;
            require(!rank.is_busy(), argument("the rank's last call goes on"))?;
            let call = call.checked(rank.size)?;
            let buffer = |at: *const c_void, bytes: usize, what: &str| {
                let aligned = (at as usize).is_multiple_of(call.element());
                require(bytes == 0 || aligned, argument(format!("{call}: {what} is not aligned")))?;
                let problem = argument(format!("{call}: {what} is no device memory of {bytes} bytes"));
                require(is_device_memory(at, bytes), problem)
            };
            buffer(send, call.sent(rank.rank, rank.size), "the send buffer")?;
            buffer(recv, call.received(rank.rank, rank.size), "the receive buffer")?;
            // Waits for the stream's work, and reports the failure of an earlier kernel.
            let (device, captured) = in_order(stream).map_err(|status| {
                let text = format!("{call}: the stream can't run it: HIP status {status}");
                Failure::new(ncclUnhandledCudaError, text)
            })?;
            let other = format!("{call}: a stream of device {device} for a rank on device {}", rank.device);
            require(device == rank.device, argument(other))?;
            let memory = Memory { send: send.cast(), recv: recv.cast() };
            Ok(Posted { rank, call, memory, comm: comm as usize, captured })
        };
        let posted: Outcome<Posted> = checked();
        GROUP
            .with_borrow_mut(|group| match (group.depth, posted) {
                (0, posted) => posted.map(|posted| vec![posted]),
                (_, Ok(posted)) => {
                    group.calls.push(posted);
                    Ok(Vec::new())
                }
                (_, Err(failure)) => {
                    group.failure.get_or_insert(failure.clone());
                    Err(failure)
                }
            })
            // SAFETY: the caller's buffers, which stay until the call returns or its group ends.
            .and_then(|calls: Vec<Posted>| unsafe { run_or_record(calls) })
    })
}

unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the caller's pointer, here and below.
    api(|| unsafe { put(version, VERSION) })
}

unsafe extern "C" fn ncclGetUniqueId(id: *mut ncclUniqueId) -> ncclResult_t {
    api(|| {
        require(!id.is_null(), argument("a pointer is null"))?;
        // SAFETY: as above.
        unsafe { put(id, id::make()?) }
    })
}

unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    size: c_int,
    id: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    api(|| {
        require(!comm.is_null(), argument("a pointer is null"))?;
        require(
            !Asked::CommInitRank.is_asked(),
            Failure::new(ncclSystemError, "a failure that BURN_ROCM_CPU_FAIL asks for"),
        )?;
        require(
            GROUP.with_borrow(|group| group.depth) == 0,
            Failure::new(ncclInvalidUsage, "ranks join in threads of their own, not in a group"),
        )?;
        let range = || argument(format!("rank {rank} of {size}"));
        let (size, rank) =
            (usize::try_from(size).map_err(|_| range())?, usize::try_from(rank).map_err(|_| range())?);
        require(rank < size, range())?;
        let device = current_index()
            .map_err(|status| Failure::new(ncclUnhandledCudaError, format!("HIP status {status}")))?;
        let id = Id::read(&id).ok_or_else(|| argument("this is no unique id of the CPU device"))?;
        let rank = Arc::new(Rank::new(rank, size, device, id));
        if blocks() {
            rank.join()?;
        }
        let handle = RANKS.insert(rank.clone());
        // SAFETY: as above.
        unsafe { put(comm, handle as ncclComm_t)? };
        if blocks() {
            return Ok(());
        }
        let joined = go_on(vec![rank.clone()], move || rank.join());
        if joined.as_ref().is_err_and(|failure| failure.status != ncclInProgress) {
            // The caller has no communicator after an error.
            drop(RANKS.remove(handle));
        }
        joined
    })
}

unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    api(|| {
        let rank = RANKS.remove(comm as usize).ok_or_else(|| argument("this is no communicator"))?;
        rank.leave();
        Ok(())
    })
}

unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    api(|| {
        let rank = RANKS.remove(comm as usize).ok_or_else(|| argument("this is no communicator"))?;
        rank.abort();
        Ok(())
    })
}

unsafe extern "C" fn ncclCommGetAsyncError(comm: ncclComm_t, error: *mut ncclResult_t) -> ncclResult_t {
    api(|| {
        let rank = rank_of(comm)?;
        if rank.is_busy() {
            // SAFETY: as above.
            return unsafe { put(error, ncclInProgress) };
        }
        let failure = rank.failure();
        let status = failure.as_ref().map_or(ncclSuccess, |failure| failure.status);
        // `ncclGetLastError` of this thread then returns the failure's text.
        failure.iter().for_each(keep);
        // SAFETY: as above.
        unsafe { put(error, status) }
    })
}

unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: as above.
    api(|| unsafe { put(count, rank_of(comm)?.size as c_int) })
}

unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: as above.
    api(|| unsafe { put(rank, rank_of(comm)?.rank as c_int) })
}

unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    let text: &'static CStr = match result {
        ncclSuccess => c"no error",
        ncclUnhandledCudaError => c"unhandled HIP error",
        ncclSystemError => c"unhandled system error",
        ncclInternalError => c"internal error",
        ncclInvalidArgument => c"invalid argument",
        ncclInvalidUsage => c"invalid usage",
        ncclRemoteError => c"remote process exited or there was a network error",
        ncclInProgress => c"operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// The text of the calling thread's last failure, which stays valid until its next one.
unsafe extern "C" fn ncclGetLastError(_: ncclComm_t) -> *const c_char {
    LAST.try_with(|text| text.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let call = Call { kind: Kind::AllReduce, dtype, op, count, peer: 0 };
    // SAFETY: the caller's buffers, here and below.
    unsafe { collective(call, send, recv, comm, stream) }
}

/// A root or peer; too large a number for a negative one.
fn peer(rank: c_int) -> usize {
    usize::try_from(rank).unwrap_or(usize::MAX)
}

unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let call = Call { kind: Kind::Broadcast, dtype, op: ncclSum, count, peer: peer(root) };
    // SAFETY: as above.
    unsafe { collective(call, send, recv, comm, stream) }
}

unsafe extern "C" fn ncclReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let call = Call { kind: Kind::Reduce, dtype, op, count, peer: peer(root) };
    // SAFETY: as above.
    unsafe { collective(call, send, recv, comm, stream) }
}

unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let call = Call { kind: Kind::AllGather, dtype, op: ncclSum, count, peer: 0 };
    // SAFETY: as above.
    unsafe { collective(call, send, recv, comm, stream) }
}

unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let call = Call { kind: Kind::ReduceScatter, dtype, op, count, peer: 0 };
    // SAFETY: as above.
    unsafe { collective(call, send, recv, comm, stream) }
}

unsafe extern "C" fn ncclSend(
    send: *const c_void,
    count: usize,
    dtype: ncclDataType_t,
    to: c_int,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let call = Call { kind: Kind::Send, dtype, op: ncclSum, count, peer: peer(to) };
    // SAFETY: as above.
    unsafe { collective(call, send, ptr::null_mut(), comm, stream) }
}

unsafe extern "C" fn ncclRecv(
    recv: *mut c_void,
    count: usize,
    dtype: ncclDataType_t,
    from: c_int,
    comm: ncclComm_t,
    stream: hipStream_t,
) -> ncclResult_t {
    let call = Call { kind: Kind::Receive, dtype, op: ncclSum, count, peer: peer(from) };
    // SAFETY: as above.
    unsafe { collective(call, ptr::null(), recv, comm, stream) }
}

unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    api(|| {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    })
}

unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    api(|| {
        let ended = GROUP.with_borrow_mut(|group| {
            let problem = Failure::new(ncclInvalidUsage, "a group ends that has not begun");
            group.depth = group.depth.checked_sub(1).ok_or(problem)?;
            Ok(if group.depth > 0 { Group::default() } else { mem::take(&mut **group) })
        })?;
        ended.failure.map_or(Ok(()), Err)?;
        // SAFETY: the callers' buffers, which they keep until the group has ended.
        unsafe { run_or_record(ended.calls) }
    })
}
